"""Twelve robots swap sides: trained for 5 s, run for 50 s. Controllers with and without guarantees.

    python benchmarks/robots.py            # what has no record yet; under an hour on one core
    python benchmarks/robots.py --only trained --seeds 2
    python benchmarks/robots.py --page     # writes the tables of results/robots/README.md
    python benchmarks/robots.py --weights  # trains two controllers, and writes what the demo shows

The benchmark of Furieri, Galimberti, Zakwan and Ferrari-Trecate, "Distributed neural network
control with dependability guarantees" (L4DC 2022): robots of mass 1 with spring and friction, at
targets that lie across, two columns of six; the cost is that of states, forces and collisions. Here
the controllers see velocities sampled every 0.05 s, of the robot and its two neighbors on a ring,
and hold their forces in between; the plant is computed exactly (`hdnn.robots`). All train with Adam
at 0.01; only the state-space controller starts from a design.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pages import fill
from torch import Tensor, nn

import hdnn
from hdnn.control import gain_limit
from hdnn.files import read_json_lines, write_json_lines
from hdnn.robots import (
    APART,
    HORIZON,
    LONG,
    MLP,
    ROBOTS,
    STEP,
    Loop,
    PerRobot,
    StateSpaceController,
    costs,
    robot,
    save_weights,
    simulate,
    squared_distances,
    starts_and_targets,
)

OUT = Path(__file__).resolve().parent.parent / "results" / "robots"
SEEDS = range(5)
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
GAINS = (20.0, 30.0, 35.0, 39.0, 41.0, 45.0, 50.0, 60.0, 75.0, 100.0)
UNTRAINED, SWEPT = 30, 16  # controllers with random weights


# --- controllers beside those of hdnn.robots ------------------------------------------------------


class DampedMLP(MLP):
    """MLP(v) - MLP(0) - k v with a learned k > 0."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__(seed, scale)
        self.damping = nn.Parameter(torch.zeros(ROBOTS, 1))

    def loop(self) -> Loop:
        def step(x: None, v: Tensor) -> tuple[None, Tensor]:
            still = self.force(torch.zeros_like(v))  # 0 is an equilibrium
            return None, self.force(v) - still - nn.functional.softplus(self.damping) * v

        return lambda batch: None, step


class Linear(PerRobot):
    """Velocities times a matrix."""

    def __init__(self, seed: int, scale: float = 0.1) -> None:
        super().__init__({"W": (2, 6)}, seed, scale)

    def loop(self) -> Loop:
        return lambda batch: None, lambda x, v: (None, self.apply_weights(self.W, self.seen(v)))


class GRU(PerRobot):
    """Four states for every robot: 1,848 parameters."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        n = 4
        shapes = {"W": (3 * n, 6), "U": (3 * n, n), "b": (3 * n,), "V": (2, n), "c": (2,)}
        super().__init__(shapes, seed, scale)

    def loop(self) -> Loop:
        def step(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            own = self.apply_weights(self.W, self.seen(v)) + self.b
            recurrent = self.apply_weights(self.U, x)
            r, z, new = own.chunk(3, -1)
            r2, z2, new2 = recurrent.chunk(3, -1)
            z, new = torch.sigmoid(z + z2), torch.tanh(new + torch.sigmoid(r + r2) * new2)
            x = (1 - z) * new + z * x
            return x, self.apply_weights(self.V, x) + self.c

        return lambda batch: torch.zeros(batch, ROBOTS, 4), step


CONTROLLERS: dict[str, Callable[..., nn.Module]] = {
    **hdnn.robots.CONTROLLERS,
    "MLP, trained on 2T": MLP,
    "MLP with damping": DampedMLP,
    "GRU": GRU,
    "linear": Linear,
}
ITERATIONS = {"state space": 200, "GRU": 200}  # of the others 300


# --- training and what is measured ----------------------------------------------------------------


def train(name: str, seed: int) -> tuple[nn.Module, float]:
    controller, begin = CONTROLLERS[name](seed), time.perf_counter()
    parameters = list(controller.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    phases = [(ITERATIONS.get(name, 300), HORIZON)]
    if name.endswith("2T"):
        phases.append((130, 2 * HORIZON))
    for iterations, horizon in phases:
        for _ in range(iterations):
            loss = costs(*simulate(controller, horizon), discount=0.95).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1e3)
            optimizer.step()
    return controller, time.perf_counter() - begin


@torch.no_grad()
def examine(name: str, seed: int, controller: nn.Module, seconds: float) -> dict[str, Any]:
    """One record of a trained controller."""

    def end(**options: Any) -> float:
        return float(simulate(controller, LONG, **options)[0][-1].norm(dim=-1).max())

    short, long = simulate(controller, HORIZON), simulate(controller, LONG)
    first, _ = starts_and_targets()
    draw = torch.Generator().manual_seed(1)
    moved = first + torch.tensor([0.0, 0.0, 0.5, 0.5]) * torch.randn(20, ROBOTS, 4, generator=draw)
    perturbed = simulate(controller, HORIZON, starts=moved)
    return {
        "controller": name,
        "seed": seed,
        "parameters": sum(p.numel() for p in controller.parameters()),
        "cost_T": float(costs(*short)),
        "cost_10T": float(costs(*long)),
        "collisions": int(((squared_distances(long[0]) < 0.25) & APART).sum()) // 2,
        "end": end(),
        "end_half_mass_quarter_friction": end(plant=robot(0.5, 1.0, 0.05)),
        "end_delay_2": end(delay=2),
        "end_delay_5": end(delay=5),
        "perturbed_mean": float(costs(*perturbed).mean()),
        "perturbed_worst": float(costs(*perturbed).max()),
        "perturbed_collisions": float(
            ((squared_distances(perturbed[0]) < 0.25) & APART).sum() / 2 / len(moved)
        ),
        "seconds": seconds,
        "version": hdnn.__version__,
    }


@torch.no_grad()
def share_that_leaves(make: Callable[[int], nn.Module], count: int) -> dict[str, float]:
    """Of controllers with random weights: those in whose hands a robot is 100 m away after 60 s."""
    ends = torch.stack(
        [simulate(make(100 + k), 1200)[0][-1].norm(dim=-1).max() for k in range(count)]
    )
    left = ~(ends <= 100)
    worst = float(ends[~left].max()) if not bool(left.all()) else float("inf")
    return {"left": float(left.double().mean()), "worst_of_others": worst, "count": count}


def jobs(
    only: str | None, seeds: int
) -> Iterator[tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]]:
    """File, key, and how to compute what else a record has."""
    if only in (None, "trained"):
        for seed in SEEDS[:seeds]:
            for name in CONTROLLERS:
                key = {"controller": name, "seed": seed}
                yield "trained", key, lambda n=name, s=seed: examine(n, s, *train(n, s))
    if only in (None, "untrained"):
        for name, make in CONTROLLERS.items():
            for scale in () if name.endswith("2T") else SCALES:
                key = {"controller": name, "scale": scale}
                yield (
                    "untrained",
                    key,
                    lambda m=make, s=scale: share_that_leaves(lambda seed: m(seed, s), UNTRAINED),
                )
    if only in (None, "gains"):
        for scale in (3.0, 10.0):
            for gain in GAINS:
                key = {"gain": gain, "scale": scale}
                yield (
                    "gains",
                    key,
                    lambda g=gain, s=scale: share_that_leaves(
                        lambda seed: StateSpaceController(seed, s, g), SWEPT
                    ),
                )


def records(name: str) -> list[dict[str, Any]]:
    path = OUT / f"{name}.jsonl"
    return read_json_lines(path, dict)


def table(frame: pd.DataFrame) -> str:
    head = [f"| {' | '.join(map(str, frame.columns))} |", "|" + " --- |" * len(frame.columns)]
    return "\n".join(head + [f"| {' | '.join(map(str, row))} |" for row in frame.itertuples(False)])


def number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.2g}"


TRAINED = {
    "parameters": "parameters",
    "cost at T": "cost_T",
    "cost at 10 T": "cost_10T",
    "collisions": "collisions",
    "seconds": "seconds",
}
ENDS = {
    "nominal": "end",
    "mass / 2, friction / 4": "end_half_mass_quarter_friction",
    "delay of 2": "end_delay_2",
    "delay of 5": "end_delay_5",
}
MOVED = {"mean cost": "perturbed_mean", "largest": "perturbed_worst"}
MOVED |= {"collisions a start": "perturbed_collisions"}


def over_seeds(frame: pd.DataFrame, columns: dict[str, str]) -> str:
    """A table of medians, and in parentheses the largest, where seeds differ."""
    rows = []
    for name in CONTROLLERS:
        own = frame[frame.controller == name]
        cells = []
        for column in columns.values():
            middle, worst = number(own[column].median()), number(own[column].max())
            cells.append(middle if middle == worst else f"{middle} ({worst})")
        rows.append([name, *cells])
    return table(pd.DataFrame(rows, columns=["controller", *columns]))


def shares(name: str, rows: str, columns: str, first: list[Any]) -> str:
    """A table of the shares that leave, and in parentheses how far the others get."""
    frame = pd.DataFrame(records(name))
    worst = frame.worst_of_others.map(lambda d: "" if pd.isna(d) else f" ({number(d)} m)")
    frame["cell"] = (100 * frame.left).map("{:.0f} %".format) + worst
    wide = frame.pivot(index=rows, columns=columns, values="cell").reindex(first)
    wide = wide.rename(columns=(columns + " {:g}").format)
    return table(
        wide.rename(index=lambda key: key if isinstance(key, str) else f"{key:g}").reset_index()
    )


def pages() -> dict[str, str]:
    """The tables of the page, by their marks."""
    trained = pd.DataFrame(records("trained"))
    others = [name for name in CONTROLLERS if not name.endswith("2T")]
    own, other = (
        gain_limit(
            [[-friction / mass, -1.0], [1 / mass, 0.0]],
            [[1.0], [0.0]],
            [[1 / mass, 0.0]],
            step=STEP,
        )
        for mass, friction in ((1.0, 0.2), (0.5, 0.05))
    )
    return {
        "trained": over_seeds(trained, TRAINED),
        "ends": over_seeds(trained, ENDS),
        "perturbed": over_seeds(trained, MOVED),
        "untrained": shares("untrained", "controller", "scale", others),
        "gains": shares("gains", "gain", "scale", [*GAINS]),
        "limit": f"`hdnn.control.gain_limit`: {own.gain:.2f} for these robots, {other.gain:.2f} "
        "with half the mass and a quarter of the friction.",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=("trained", "untrained", "gains"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--page", action="store_true", help="write the tables of the page")
    parser.add_argument("--weights", action="store_true", help="write the weights of the demo")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.page:
        page = OUT / "README.md"
        page.write_text(fill(page.read_text(), pages()))
        return
    if arguments.weights:
        save_weights({name: train(name, seed=0)[0] for name in hdnn.robots.CONTROLLERS})
        return
    for name, key, compute in jobs(arguments.only, arguments.seeds):
        known = records(name)
        if any(key.items() <= record.items() for record in known):
            continue
        record = key | compute()
        write_json_lines(OUT / f"{name}.jsonl", [*known, record])
        print(name, record, flush=True)


if __name__ == "__main__":
    main()
