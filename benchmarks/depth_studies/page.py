"""The page and the figure, from the records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depth_studies.figure import draw
from depth_studies.images import EPOCHS, IMAGES, TEST_IMAGES
from depth_studies.studies import (
    COARSENED,
    DEEP,
    HARD,
    LEVELS,
    SMOOTH,
)

Record = dict[str, Any]
REACHED = 0.99
"""An accuracy that counts as solved, on the planar problems."""


def write(records: Sequence[Record], folder: Path) -> None:
    """Write README.md and depth.png."""
    parts = [
        HEAD,
        swiss_roll(of(records, "swiss-roll")),
        deep(of(records, "deep")),
        mnist(of(records, "mnist")),
        coarsened(of(records, "coarsened")),
        varpro(of(records, "varpro")),
        steps(of(records, "steps")),
    ]
    (folder / "README.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")
    draw(of(records, "swiss-roll"), of(records, "deep"), folder / "depth.png")


HEAD = """# Depth as a dial, measured

Made by `python benchmarks/depth.py` from `records.jsonl`, one training a line; one thread. Planar
problems: the protocol "tuned" of Table 1 (width 4, 50 epochs, float32). Work is counted in layer
evaluations of training samples (forward and backward as one). Accuracies are on 5000 test points.
Seconds are without the measuring of accuracies.

![Test accuracy against work, and gradients at 1024 layers](depth.png)
"""


def of(records: Iterable[Record], study: str, **wanted: Any) -> list[Record]:
    """The records of a study with certain values."""
    return [
        r
        for r in records
        if r["study"] == study and all(r.get(name) == value for name, value in wanted.items())
    ]


def mean(records: Sequence[Record], value: Callable[[Record], float]) -> float:
    return statistics.fmean(map(value, records))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of markdown; the first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def solved(records: Sequence[Record]) -> str:
    return f"{sum(r['accuracy'] >= REACHED for r in records)} of {len(records)}"


def work_to_reach(records: Sequence[Record], accuracy: float) -> float | None:
    """The work after which the mean accuracy is this high for the first time."""
    curves = np.mean([r["curve"]["accuracy"] for r in records], axis=0)
    high = np.nonzero(curves >= accuracy - 1e-12)[0]
    return records[0]["curve"]["work"][high[0]] if len(high) else None


# --- studies --------------------------------------------------------------------------------------


def swiss_roll(records: Sequence[Record]) -> str:
    if not records:
        return ""
    rows = [row for name in ("H1", "MS3") for row in _ways(records, name)]
    seeds = len({r["seed"] for r in records})
    head = ["levels", "accuracy, %", "at least 99 %", "work", "work to a mean of 99 %", "seconds"]
    return (
        f"\n## Multilevel training on the Swiss roll: {seeds} seeds\n\n"
        "Work is relative to 50 epochs at 64 layers; alpha is 0.0005 where it is not said.\n\n"
        f"{table(head, rows)}\n" + SWISS_ROLL
    )


def _ways(records: Sequence[Record], name: str) -> Iterable[Sequence[object]]:
    """The rows of a network."""
    full = 50 * 5000 * 64
    for way in (*LEVELS, *SMOOTH):
        mine = of(records, "swiss-roll", architecture=name, way=way)
        if mine:
            reached = work_to_reach(mine, REACHED)
            yield [
                f"{name}: {way}",
                percent(mean(mine, lambda r: r["accuracy"])),
                solved(mine),
                f"{mine[0]['work'] / full:.2f}",
                "never" if reached is None else f"{reached / full:.2f}",
                f"{mean(mine, lambda r: r['seconds']):.2f}",
            ]


SWISS_ROLL = """Multilevel training does not pay here: the mean of a single level of 64 layers is
at 99 % after a quarter of its work, that of two levels after nearly half, and three levels do not
get there. A coarse network of Table 1 is no approximation of the fine one. With steps this long it
classifies by what the discretization does, not the ODE, so that refinement loses most of what a
coarse level has learned, and the epochs at the last depth decide.
"""


def deep(records: Sequence[Record]) -> str:
    if not records:
        return ""
    rows = []
    for way in DEEP:
        mine = of(records, "deep", way=way)
        largest = max(max(r["curve"]["largest"]) for r in mine)
        smallest = min(min(r["curve"]["smallest"]) for r in mine)
        rows.append(
            [
                way,
                percent(mean(mine, lambda r: r["accuracy"])),
                f"{mean(mine, lambda r: r['curve']['loss'][-1]):.4f}",
                f"{mean(mine, lambda r: r['work']) / 256e6:.2f}",
                f"{mean(mine, lambda r: r['seconds']):.1f}",
                f"{smallest:.1e} to {largest:.1e}",
            ]
        )
    head = ["levels", "accuracy, %", "last loss", "work", "seconds", "gradient norms"]
    return (
        f"\n## 1024 layers from 4: H1 on the Swiss roll, {len(records) // 2} seeds\n\n"
        "Ten epochs on each of 4, 16, 64, 256 and 1024 layers, against 50 at 1024. Gradient norms: "
        "smallest and largest of any layer in any epoch, of the loss by K as a function of "
        "time.\n\n" + table(head, rows)
    )


def mnist(records: Sequence[Record]) -> str:
    rows = []
    for kernel, title in ((1, "paper's (K mixes channels)"), (3, "convolutional (3 x 3)")):
        for way in ("16", "4,16"):
            mine = of(records, "mnist", kernel=kernel, way=way)
            if mine:
                rows.append(
                    [
                        f"{title}: {way}",
                        len(mine),
                        percent(mean(mine, lambda r: r["accuracy"])),
                        f"{mine[0]['work'] / (16 * IMAGES * EPOCHS):.2f}",
                        f"{mean(mine, lambda r: r['seconds']):.1f}",
                    ]
                )
    if not rows:
        return ""
    head = ["network: levels", "seeds", "accuracy, %", "work", "seconds"]
    return (
        "\n## MNIST, on a small budget\n\nMS1 with 8 channels, 16 layers, T = 1.6; "
        f"{IMAGES} training images, {EPOCHS} epochs of joint descent, {TEST_IMAGES} test "
        "images.\n\n" + table(head, rows)
    )


def coarsened(records: Sequence[Record]) -> str:
    if not records:
        return ""
    depths = records[0]["depths"]
    rows = []
    for data in ("swiss-roll", "double-moons"):
        for name in ("MS1", "MS2", "MS3", "H1", "H2"):
            for way in COARSENED:
                mine = of(records, "coarsened", data=data, architecture=name, way=way)
                if mine:
                    scores = np.mean([r["accuracies"] for r in mine], axis=0)
                    small = "/".join(str(r["smallest"]) for r in mine)
                    figures = [f"{100 * score:.1f}" for score in scores]
                    rows.append([f"{data}, {name}: {way}", *figures, small])
    speeds = np.median([r["speed"] for r in records], axis=0)
    speed = ", ".join(f"{s:.1f} ({n})" for n, s in zip(depths, speeds, strict=True))
    head = ["trained", *map(str, depths), "within 0.1"]
    return (
        "\n## Coarsening the networks of Table 1\n\n"
        "Mean test accuracy in % (3 seeds) of trained networks of 64 layers, coarsened to so many "
        'and with the output layer solved again; "within 0.1": the smallest depth that loses at '
        "most 0.1 points, seed by seed.\n\n"
        f"{table(head, rows)}\n"
        f"How many times as fast (layers): {speed}. " + COARSENING
    )


COARSENING = """Averages of weights mean something only where the weights are smooth in time. The
paper's penalty is too weak for that at 64 layers (alpha = 0.0005: neighbors stay as different as
they began), and then half the layers are another network. A hundred times the penalty costs no
accuracy on the double moons, and the depth goes down by a factor of two to sixteen.
"""


def varpro(records: Sequence[Record]) -> str:
    rows = []
    for name, layers in HARD:
        for way in ("coordinate", "varpro"):
            mine = of(records, "varpro", architecture=name, layers=layers, way=way)
            if not mine:
                continue
            rows.append(
                [
                    f"{name}, {layers}: {way}",
                    percent(mean(mine, lambda r: r["accuracy"])),
                    percent(max(r["accuracy"] for r in mine)),
                    solved(mine),
                    f"{statistics.median(r['curve']['loss'][-1] for r in mine):.4f}",
                    f"{statistics.median(r['seconds'] for r in mine):.2f}",
                    _sooner(records, mine) if way == "varpro" else "",
                ]
            )
    if not rows:
        return ""
    head = ["network", "mean, %", "best, %", "at least 99 %", "median loss", "seconds", "sooner"]
    return (
        "\n## Variable projection on the hard cells of Table 1\n\n"
        "Double moons; 30 epochs of `varpro` (5 iterations of L-BFGS each) against 50 of "
        'coordinate descent, from the same weights. "Sooner": for how many seeds varpro reaches '
        "the loss that coordinate descent ends with, and how many of these in less time.\n\n"
        f"{table(head, rows)}\n" + VARPRO
    )


def _sooner(records: Sequence[Record], mine: Sequence[Record]) -> str:
    reached = faster = 0
    for r in mine:
        same = {name: r[name] for name in ("architecture", "layers", "seed")}
        (other,) = of(records, "varpro", way="coordinate", **same)
        goal = min(other["curve"]["loss"][-5:])
        below = [k for k, loss in enumerate(r["curve"]["loss"]) if loss <= goal]
        reached += bool(below)
        faster += bool(below) and r["curve"]["seconds"][below[0]] < other["seconds"]
    return f"{reached} of {len(mine)}, {faster} faster"


VARPRO = """L-BFGS goes down to the nearest minimum, and there are bad ones; the noise of batches of
125 leaves many of them. So coordinate descent stays the default, and varpro is for full batches,
for a start that is good already, and for a loss that is to be exact.
"""


def steps(records: Sequence[Record]) -> str:
    if not records:
        return ""
    rows, others = [], []
    for data in ("swiss-roll", "double-moons"):
        for name in ("H1", "MS3"):
            for way in ("equal", "learned"):
                mine = of(records, "steps", data=data, architecture=name, way=way)
                if not mine:
                    continue
                rows.append(
                    [
                        f"{data}, {name}: {way}",
                        percent(mean(mine, lambda r: r["accuracy"])),
                        f"{mean(mine, lambda r: r['T']):.2f}",
                        f"{mean(mine, lambda r: r['ratio']):.1f}",
                        f"{mean(mine, lambda r: r['seconds']):.1f}",
                    ]
                )
                found = [np.mean([r["adaptive"][t] for r in mine], axis=0) for t in TOLERANCES]
                figures = [f"{100 * score:.1f} ({work:.0f})" for work, score in found]
                others.append([f"{data}, {name}: {way}", rows[-1][1], *figures])
    head = ["4 layers, steps", "accuracy, %", "T", "longest / shortest", "seconds"]
    adaptive = ["network", "as trained (4)", *TOLERANCES]
    return (
        "\n## Learned steps, and steps that adapt\n\n"
        f"Five seeds, both without compiled epochs.\n\n{table(head, rows)}\n"
        "The same networks evaluated by `net.ode().solve` with a tolerance: accuracy in % "
        f"(evaluations of the field).\n\n{table(adaptive, others)}\n" + STEPS
    )


TOLERANCES = ("0.1", "0.01", "0.001", "0.0001")
STEPS = """The ODE behind a network of four layers classifies worse than the network: what was
trained is the discretization. `hdnn advise RUN` says how far apart the two are.
"""
