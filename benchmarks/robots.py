"""Twelve robots swap sides: trained for 5 s, run for 50 s. Controllers with and without guarantees.

    python benchmarks/robots.py            # what has no record yet; under an hour on one core
    python benchmarks/robots.py --only trained --seeds 2
    python benchmarks/robots.py --page     # writes the tables of results/robots/README.md

The benchmark of Furieri, Galimberti, Zakwan and Ferrari-Trecate, "Distributed neural network
control with dependability guarantees" (L4DC 2022): robots of mass 1 with spring and friction, at
targets that lie across, two columns of six; the cost is that of states, forces and collisions. Here
the controllers see velocities sampled every 0.05 s, of the robot and its two neighbors on a ring,
and hold their forces in between; the plant is computed exactly. All train with Adam
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
from hdnn.control import LinearPlant, gain_limit, sampled
from hdnn.files import read_json_lines, write_json_lines
from hdnn.statespace import Cell

OUT = Path(__file__).resolve().parent.parent / "results" / "robots"
ROBOTS, STEP = 12, 0.05
HORIZON, LONG = 100, 1000  # steps: 5 s and 50 s
SEEDS = range(5)
GAIN = 30.0
SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
GAINS = (20.0, 30.0, 35.0, 39.0, 41.0, 45.0, 50.0, 60.0, 75.0, 100.0)
UNTRAINED, SWEPT = 30, 16  # controllers with random weights

RING = torch.eye(ROBOTS) + torch.eye(ROBOTS).roll(1, 0) + torch.eye(ROBOTS).roll(-1, 0)
NEIGHBORS = torch.tensor([[k, (k + 1) % ROBOTS, (k - 1) % ROBOTS] for k in range(ROBOTS)])


def starts_and_targets() -> tuple[Tensor, Tensor]:
    """Momentum and position of every robot, ``(12, 4)`` each."""
    starts, targets = [], []
    for column in (-3.0, 3.0):
        for k, height in enumerate((5.0, 3.0, 1.0, -1.0, -3.0, -5.0)):
            starts.append([0.0, 0.5 if k < 3 else -0.5, column, height])
            targets.append([0.0, 0.0, -column, -height])
    return torch.tensor(starts), torch.tensor(targets)


def robot(mass: float = 1.0, spring: float = 1.0, friction: float = 0.2) -> LinearPlant:
    """One robot in the plane: momentum and distance from the target; the output is the velocity."""
    none, one = torch.zeros(2, 2), torch.eye(2)
    A = torch.kron(torch.tensor([[-friction / mass, -spring], [1 / mass, 0.0]]), torch.eye(2))
    return sampled(A, torch.cat([one, none]), torch.cat([one / mass, none], 1), step=STEP)


# --- controllers: a state and a step from velocities (B, 12, 2) to forces -------------------------

State = Any
Loop = tuple[Callable[[int], State], Callable[[State, Tensor], tuple[State, Tensor]]]


class StateSpaceController(nn.Module):
    """Units and dynamics for every robot, inputs along the ring; passive, so the force is -y."""

    def __init__(self, seed: int, scale: float = 0.1, gain: float = GAIN) -> None:
        super().__init__()
        n, m, each = 8, 16, torch.eye(ROBOTS)
        blocks = {
            "K": torch.kron(each, torch.ones(m, n)),
            "L": torch.eye(ROBOTS * n),
            "A": torch.kron(each, torch.ones(n, n)),
            "G": torch.kron(RING, torch.ones(n, 2)),
        }
        self.net = hdnn.StateSpace(
            inputs=2 * ROBOTS,
            states=ROBOTS * n,
            units=ROBOTS * m,
            step=STEP,
            mu=0.05,
            passive=True,
            gain=gain,
            structure={name: block > 0 for name, block in blocks.items()},
            learn_initial=True,
            generator=torch.Generator().manual_seed(seed),
            scale=scale,
        )
        # It begins as an oscillator for each axis, driven by the velocity.
        half = n // 2
        J, drive = torch.zeros(n, n), torch.zeros(n, 2)
        J[:half, half:], J[half:, :half] = -torch.eye(half), torch.eye(half)
        drive[0, 0] = drive[1, 1] = 1.0
        start = {
            "A": torch.kron(each, J) / 2 * STEP,
            "G": torch.kron(each, drive),
            "L": 0.6 * torch.eye(ROBOTS * n),
        }
        layer = self.net.weights[0]
        with torch.no_grad():
            layer.K.mul_(3.0)
            layer.A.mul_(0.1 * STEP)
            for name, value in start.items():
                getattr(layer, name).add_(value[blocks[name] > 0])
            self.net.x0[::n] = 3.0

    def loop(self) -> Loop:
        cell: Cell = self.net.assemble()

        def step(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            x, y = cell.step(x, v.flatten(-2))
            return x, -y.unflatten(-1, (ROBOTS, 2))

        return cell.initial, step


class PerRobot(nn.Module):
    """The same small function for a robot's own sensors, with weights of its own."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int, scale: float) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        for name, shape in shapes.items():
            fan = shape[-1] if len(shape) > 1 else 1
            size = scale / fan**0.5 if len(shape) > 1 else 0.1 * scale
            start = size * torch.randn(ROBOTS, *shape, generator=draw)
            self.register_parameter(name, nn.Parameter(start))

    @staticmethod
    def seen(v: Tensor) -> Tensor:
        """The velocities of a robot and its neighbors: ``(B, 12, 6)``."""
        return v[..., NEIGHBORS, :].flatten(-2)

    @staticmethod
    def apply_weights(W: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("roi,bri->bro", W, x)


class MLP(PerRobot):
    """6 - 16 - 2 for every robot: 1,752 parameters, as published."""

    def __init__(self, seed: int, scale: float = 1.0, damped: bool = False) -> None:
        super().__init__({"W": (16, 6), "b": (16,), "V": (2, 16), "c": (2,)}, seed, scale)
        self.damping = nn.Parameter(torch.zeros(ROBOTS, 1)) if damped else None

    def force(self, v: Tensor) -> Tensor:
        s = torch.tanh(self.apply_weights(self.W, self.seen(v)) + self.b)
        return self.apply_weights(self.V, s) + self.c

    def loop(self) -> Loop:
        def step(x: None, v: Tensor) -> tuple[None, Tensor]:
            if self.damping is None:
                return None, self.force(v)
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
    "state space": StateSpaceController,
    "MLP": MLP,
    "MLP, trained on 2T": MLP,
    "MLP with damping": lambda seed, scale=1.0: MLP(seed, scale, damped=True),
    "GRU": GRU,
    "linear": Linear,
}
ITERATIONS = {"state space": 200, "GRU": 200}  # of the others 300


# --- the loop and its cost ------------------------------------------------------------------------


def simulate(
    controller: nn.Module,
    steps: int,
    plant: LinearPlant | None = None,
    starts: Tensor | None = None,
    delay: int = 0,
) -> tuple[Tensor, Tensor]:
    """Distances from the targets ``(steps + 1, B, 12, 4)`` and forces ``(steps, B, 12, 2)``."""
    first, targets = starts_and_targets()
    z = ((first if starts is None else starts) - targets).reshape(-1, ROBOTS, 4)
    plant = plant or robot()
    initial, step = controller.loop()
    x, states, forces = initial(len(z)), [z], []
    waiting = [torch.zeros(len(z), ROBOTS, 2)] * delay
    for _ in range(steps):
        x, force = step(x, plant.measure(z))
        waiting.append(force)
        applied = waiting.pop(0)
        z = plant.advance(z, applied)
        states.append(z)
        forces.append(applied)
    return torch.stack(states), torch.stack(forces)


def squared_distances(states: Tensor) -> Tensor:
    positions = states[..., 2:] + starts_and_targets()[1][:, 2:]
    return (positions.unsqueeze(-2) - positions.unsqueeze(-3)).square().sum(-1)


APART = ~torch.eye(ROBOTS, dtype=torch.bool)


def costs(states: Tensor, forces: Tensor, discount: float = 1.0) -> Tensor:
    """The cost of every sample: states, half of the squared forces, and near collisions."""
    weights = (discount ** (STEP * torch.arange(len(states)))).flip(0)[:, None]
    near = squared_distances(states)
    collisions = 50 * ((1 / (near + 1e-3)) * (near.detach() < 0.49) * APART).sum((0, 2, 3))
    own = (states.square().sum((2, 3)) * weights).sum(0)
    return own + 0.5 * forces.square().sum((0, 2, 3)) + collisions


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
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.page:
        page = OUT / "README.md"
        page.write_text(fill(page.read_text(), pages()))
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
