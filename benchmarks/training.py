"""The speed of training: an iteration, a whole training, an ensemble; each against its floor.

    python benchmarks/training.py            a table
    python benchmarks/training.py --json     the same as JSON, with versions

All figures are ratios within one run. The eager peer (`eager.py`) is run for two epochs, one before
and one after the trainings of hdnn, and scaled to the whole number of epochs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from typing import Any

import eager
import torch
from speed.cases import machine
from speed.peers import fused
from speed.timing import interleave

import hdnn
from hdnn.data import Split, split
from hdnn.models import Model
from hdnn.training import Ensemble, Trainer, TrainingConfig
from hdnn.training.ensemble import CompiledLoop
from hdnn.training.loops import Batches

Record = dict[str, Any]
SOLVERS = ("newton", "adam")
LAYERS, FEATURES, T = 64, 4, 1.2


def network(**options: Any) -> hdnn.HamiltonianNetwork:
    return hdnn.network("H1", features=FEATURES, layers=LAYERS, T=T, dtype=torch.float32, **options)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def widen(x: torch.Tensor) -> torch.Tensor:
    return hdnn.Augmentation(2, FEATURES)(x.float())


def iteration(data: Split, rounds: int = 50) -> Record:
    """An iteration of coordinate descent against forward and backward through autograd."""
    states = widen(data.X_train)
    batches = Batches(states, data.y_train, torch.ones(len(states)))
    config = TrainingConfig(loop="compiled")
    count = -(-len(states) // config.batch_size)
    once = fused(network(generator=seeded(0)), states[: config.batch_size])

    def both() -> None:
        for _ in range(count):
            once()

    works: dict[str, Any] = {"fused": both}
    for solver in SOLVERS:
        model = Model(network(generator=seeded(0)), 1)
        loop = CompiledLoop(model, batches, TrainingConfig(loop="compiled", solver=solver))
        order = torch.randperm(len(states), generator=seeded(1))
        works[solver] = lambda loop=loop, order=order: loop.epoch(order, 0)
    timings = interleave(works, least=rounds, most=rounds)
    each = {name: timing.median / count for name, timing in timings.items()}
    return {
        "seconds": each,
        "quartiles": {
            name: [timing.low / count, timing.high / count] for name, timing in timings.items()
        },
        "ratios": {solver: each[solver] / each["fused"] for solver in SOLVERS},
        "floor": 1.8,
        "sense": "at most",
    }


def whole(data: Split, config: TrainingConfig, seed: int) -> tuple[float, float]:
    """One training by hdnn, final output layer included: seconds, test accuracy."""
    model = Model(network(generator=seeded(seed)), 1, hdnn.Augmentation(2, FEATURES))
    start = time.perf_counter()
    Trainer(model, config).fit(data.X_train.float(), data.y_train)
    seconds = time.perf_counter() - start
    right = model.predict(data.X_test.float()) == data.y_test
    return seconds, float(right.float().mean())


def together(data: Split, config: TrainingConfig, members: int) -> float:
    """Seconds a network of an ensemble, final output layers included."""
    generators = [seeded(e) for e in range(members)]
    networks = network(ensemble=members, generator=generators)
    states = widen(data.X_train).expand(members, -1, -1)
    start = time.perf_counter()
    Trainer(Ensemble(networks, range(members)), config).fit(
        states, data.y_train.expand(members, -1)
    )
    return (time.perf_counter() - start) / members


def trainings(data: Split, epochs: int, peer_epochs: int, repeats: int, members: int) -> Record:
    """A whole training, and one of an ensemble, against the eager peer, interleaved."""
    configs = {solver: TrainingConfig(epochs=epochs, solver=solver) for solver in SOLVERS}
    for config in configs.values():  # compiles, or loads the kernels
        whole(data, TrainingConfig(epochs=1, solver=config.solver), 0)
    eager.train(LAYERS, 0)
    singles: dict[str, list[tuple[float, float]]] = {solver: [] for solver in SOLVERS}
    ensembles: dict[str, list[float]] = {solver: [] for solver in SOLVERS}
    peer = []
    for k in range(max(repeats, peer_epochs)):
        if k < peer_epochs:
            peer.append(eager.train(LAYERS, 1, seed=k, T=T)[0])
        for solver, config in configs.items():
            if k < repeats:
                singles[solver].append(whole(data, config, k))
                ensembles[solver].append(together(data, config, members))
    eager_seconds = statistics.mean(peer) * epochs
    record: Record = {
        "eager": {
            "seconds": eager_seconds,
            "epochs measured": peer_epochs,
            "scaled by": epochs,
            "seconds of an epoch": peer,
        }
    }
    for name, found, floor in (
        ("training", {s: [t for t, _ in singles[s]] for s in SOLVERS}, 60),
        ("ensemble", ensembles, 120),
    ):
        medians = {solver: statistics.median(times) for solver, times in found.items()}
        record[name] = {
            "seconds": medians,
            "ratios": {solver: eager_seconds / medians[solver] for solver in SOLVERS},
            "floor": floor,
            "sense": "at least",
        }
    record["training"]["test_accuracy"] = {
        solver: statistics.mean(accuracy for _, accuracy in singles[solver]) for solver in SOLVERS
    }
    record["ensemble"]["members"] = members
    return record


def measure(epochs: int, peer_epochs: int, repeats: int, members: int) -> Record:
    data = split("swiss-roll")
    return {
        "machine": machine(),
        "work": f"H1, {LAYERS} layers, n={FEATURES}, batch 125, float32, Swiss roll, "
        f"{epochs} epochs",
        "config": asdict(TrainingConfig(epochs=epochs)),
        "iteration": iteration(data),
        **trainings(data, epochs, peer_epochs, repeats, members),
    }


def table(found: Record) -> str:
    """The measurements for people."""
    peer, ensemble = found["eager"], found["ensemble"]
    lines = [
        found["work"],
        f"eager peer: {peer['seconds']:.1f} s, {peer['epochs measured']} epochs measured and "
        f"their mean multiplied by {peer['scaled by']}",
        "",
        f"{'':34} {'solver':8} {'time':>12} {'ratio':>10}   floor",
    ]
    rows = (
        ("iteration", "an iteration / fused fwd + bwd", 1e6, "us"),
        ("training", "eager / a whole training", 1.0, "s"),
        ("ensemble", f"eager / one of {ensemble['members']} together", 1.0, "s"),
    )
    for name, title, unit, symbol in rows:
        part = found[name]
        for solver in SOLVERS:
            ratio, good = part["ratios"][solver], part["ratios"][solver] >= part["floor"]
            held = good if part["sense"] == "at least" else ratio <= part["floor"]
            lines.append(
                f"{title:34} {solver:8} {part['seconds'][solver] * unit:9.3f} {symbol:2} "
                f"{ratio:10.2f}   {part['sense']} {part['floor']:g}: {'holds' if held else 'NO'}"
            )
    accuracy = found["training"]["test_accuracy"]
    lines += [
        "",
        f"fused forward + backward: {found['iteration']['seconds']['fused'] * 1e6:.1f} us",
        f"test accuracy: newton {accuracy['newton']:.1%}, adam {accuracy['adam']:.1%}",
        ", ".join(f"{name} {value}" for name, value in found["machine"].items()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--peer-epochs", type=int, default=2, help="epochs of the eager peer")
    parser.add_argument("--repeats", type=int, default=3, help="trainings, of which the median")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.epochs, given.peer_epochs, given.repeats, given.members)
    print(json.dumps(found, indent=2) if given.json else table(found))


if __name__ == "__main__":
    main()
