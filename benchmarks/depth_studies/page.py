"""The page and the figure, from the records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depth_studies.figure import draw
from depth_studies.images import EPOCHS, IMAGES, TABLE2_EPOCHS, TEST_IMAGES
from depth_studies.studies import (
    COARSENED,
    DEEP,
    HARD,
    LEVELS,
    SAMPLES,
    SMOOTH,
    SMOOTH_T,
)

Record = dict[str, Any]
REACHED = 0.99
"""An accuracy that counts as solved, on the planar problems."""


def write(records: Sequence[Record], folder: Path) -> None:
    """Write README.md and depth.svg."""
    parts = [
        head(records),
        swiss_roll(of(records, "swiss-roll")),
        smooth(of(records, "smooth")),
        deep(of(records, "deep")),
        mnist(of(records, "mnist"), of(records, "mnist-full")),
        coarsened(of(records, "coarsened")),
        table2(of(records, "table2")),
        varpro(of(records, "varpro")),
        steps(of(records, "steps")),
    ]
    (folder / "README.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")
    draw(records, relative_times(of(records, "varpro")), folder / "depth.svg")


HEAD = """# Depth as a dial, measured

In short:

- **Train at the depth that you want.** On the Swiss roll multilevel training loses to a single
  level of 64 layers, by 0.5 to 19 points with the settings of Table 1, and does not win with
  settings made for it. On MNIST two levels are a little more accurate than one, with 0.62 of the
  work.
- **Coarsening needs smooth weights.** With alpha = 0.05 instead of 0.0005, networks of 64 layers on
  the double moons become 4 to 30 layers within 0.1 points. On the Swiss roll half the layers
  are another network, and a stronger penalty keeps it from learning. On MNIST a strong penalty lets
  16 layers become 11 (MS1) or 14 (H2), and costs 0.7 and 0.3 points.
- **`varpro` goes further down than 50 epochs of coordinate descent, but into more bad minima.** It
  {varpro}.
- **Learned steps** change T a lot and the accuracy little.

Made by `python benchmarks/depth.py` from `records.jsonl`, one training a line; one thread. Planar
problems: the protocol "tuned" of Table 1 (width 4, 50 epochs, float32) where nothing else is said.
Work is counted in layer evaluations of training samples (forward and backward as one). Accuracies
are on 5000 test points. Seconds are the processor's, without the measuring of accuracies; those of
images and of learned steps are wall time.

![Accuracy against work and against depth, and how soon varpro gets there](depth.svg)
"""


def head(records: Sequence[Record]) -> str:
    """The beginning of the page."""
    times = [t for found in relative_times(of(records, "varpro")).values() for t in found]
    reached = [t for t in times if t is not None]
    sooner = sum(t < 1 for t in reached)
    text = f"reaches their objective for {len(reached)} of {len(times)} starts, {sooner} of them "
    return HEAD.format(varpro=text + "sooner than they end")


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
    for way in LEVELS:
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


def smooth(records: Sequence[Record]) -> str:
    if not records:
        return ""
    rows = []
    for name in SMOOTH_T:
        for way in SMOOTH:
            mine = of(records, "smooth", architecture=name, way=way)
            if mine:
                scores = [r["accuracy"] for r in mine]
                rows.append(
                    [
                        f"{name}: {way}",
                        percent(statistics.fmean(scores)),
                        percent(statistics.median(scores)),
                        percent(min(scores)),
                        solved(mine),
                        f"{mine[0]['work'] / (16 * 5000 * 64):.2f}",
                    ]
                )
    head = ["levels", "mean, %", "median, %", "worst, %", "at least 99 %", "work"]
    times = " and ".join(f"{T:g} for {name}" for name, T in SMOOTH_T.items())
    return (
        "\n## Levels where the coarse networks follow the ODE\n\n"
        "What multilevel training needs: a step short enough on the coarsest level, and weights "
        f"that are smooth in time. So T is {times} (2.5 above), the coarsest level has 8 layers, "
        f'and "smooth" begins with weights that are random at {SAMPLES} times and linear in '
        f"between. Few epochs, where ways differ. {len({r['seed'] for r in records})} "
        "seeds; work is relative to 16 epochs at 64 layers.\n\n"
        f"{table(head, rows)}\n" + SMOOTH_TEXT
    )


SMOOTH_TEXT = """A single level of half the epochs is the better way to halve the work: for H1 it
loses 0.01 points, the three levels 5.9. For MS3 they are 0.4 points above it, and still 1.4 points
below 16 epochs. Smooth initial weights alone make training slower: random weights in every layer
give the 64 layers more to begin with. (These settings were found on other seeds: T of 0.5, 1, 2.5
and 6, alpha from 0.0005 to 5, learning rates from 0.02 to 0.1, leapfrog steps, and the levels 16,64
and 8,16,64, five or six seeds each and not in every combination.)
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


def mnist(records: Sequence[Record], full: Sequence[Record]) -> str:
    rows = []
    for found, images in ((records, IMAGES), (full, 60_000)):
        for kernel, title in ((1, "paper's (K mixes channels)"), (3, "convolutional (3 x 3)")):
            for way in ("16", "4,16"):
                mine = [r for r in found if (r["kernel"], r["way"]) == (kernel, way)]
                if mine:
                    rows.append(
                        [
                            f"{title}: {way}",
                            images,
                            len(mine),
                            percent(mean(mine, lambda r: r["accuracy"])),
                            f"{mine[0]['work'] / (16 * images * EPOCHS):.2f}",
                            f"{mean(mine, lambda r: r['seconds']):.1f}",
                        ]
                    )
    if not rows:
        return ""
    head = ["network: levels", "images", "seeds", "accuracy, %", "work", "seconds"]
    return (
        f"\n## MNIST\n\nMS1 with 8 channels, 16 layers, T = 1.6; {EPOCHS} epochs of joint descent, "
        f"{TEST_IMAGES} test images (all 10,000 where the training has all 60,000).\n\n"
        f"{table(head, rows)}\n" + MNIST
    )


MNIST = """Multilevel training is at least as accurate here with 0.62 of the work, three fifths of
it at the last depth: with 4,16 and equal epochs it cannot be half.
"""


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
accuracy on the double moons, and most networks keep it with 4 to 15 layers; a thousand times brings
little more, and ten thousand times costs 2 points of accuracy. The Swiss roll is not learned with a
penalty of 0.5 or 5 (65 and 53 %), and what is learned with 0.05 needs 32 layers or more.
"""


def table2(records: Sequence[Record]) -> str:
    if not records:
        return ""
    depths = records[0]["depths"]
    rows = []
    for r in records:
        scores = [f"{100 * score:.2f}" for score in r["accuracies"]]
        rows.append([f"{r['architecture']}: {r['way']}", *scores, r["smallest"]])
    return (
        "\n## Coarsening the networks of Table 2\n\n"
        "Test accuracy in % on MNIST (10,000 images) of the paper's networks of 16 layers, trained "
        f'on all 60,000 images by the protocol "tuned" in {TABLE2_EPOCHS} epochs instead of 40 '
        "(the schedule of the learning rate goes through the whole cycle in them), one seed; "
        "coarsened, with the output layer as it was trained; alpha is 0.001 where it is not "
        "said.\n\n"
        f"{table(['trained', *map(str, depths), 'within 0.1'], rows)}\n" + TABLE2_TEXT
    )


TABLE2_TEXT = """With the penalty of Table 2, half the layers are another network: the initial
weights are random in every layer, and a few epochs with a weak penalty do not smooth them. With
alpha = 1, MS1 can go from 16 to 11 layers and H2 to 14 within 0.1 points, but the 16
layers are 0.7 and 0.3 points worse to begin with. Levels make weights smoother only in part.
"""


def varpro(records: Sequence[Record]) -> str:
    rows = []
    for name, layers in HARD:
        for way in ("coordinate", "varpro"):
            mine = of(records, "varpro", architecture=name, layers=layers, way=way)
            if mine:
                rows.append(
                    [
                        f"{name}, {layers}: {way}",
                        percent(mean(mine, lambda r: r["accuracy"])),
                        solved(mine),
                        f"{statistics.median(r['curve']['objective'][-1] for r in mine):.4f}",
                        f"{statistics.median(r['seconds'] for r in mine):.2f}",
                        *(_sooner(records, mine) if way == "varpro" else ("", "", "")),
                    ]
                )
    if not rows:
        return ""
    head = ["network", "mean, %", "at least 99 %", "median objective", "seconds"]
    head += ["reaches it", "seconds to it", "sooner"]
    return (
        "\n## Variable projection on the hard cells of Table 1\n\n"
        f"Double moons, {len({r['seed'] for r in records})} seeds; 30 epochs of `varpro` (5 "
        "iterations of L-BFGS each) against 50 of coordinate descent, from the same weights. The "
        "objective is one function for both: loss and penalties on all 5000 training points, with "
        'the output layer solved for all of them. "Reaches it": for how many seeds varpro comes '
        "down to the objective that coordinate descent ends with; then the median time of these, "
        "and how many of them in less time than the 50 epochs take. Seconds (medians) are of the "
        "processor, one thread, measured side by side.\n\n"
        f"{table(head, rows)}\n" + VARPRO
    )


def _time_to_goal(records: Sequence[Record], mine: Record) -> tuple[float | None, float]:
    """When a training by varpro reached the objective of the other method, and how long that took.

    The other training from the same weights is looked for among the records.
    """
    same = {name: mine[name] for name in ("architecture", "layers", "seed")}
    (other,) = of(records, "varpro", way="coordinate", **same)
    goal, curve = other["curve"]["objective"][-1], mine["curve"]
    points = zip(curve["objective"], curve["seconds"], strict=True)
    return next((t for value, t in points if value <= goal), None), other["seconds"]


def _sooner(records: Sequence[Record], mine: Sequence[Record]) -> tuple[str, str, str]:
    pairs = [_time_to_goal(records, r) for r in mine]
    times = [t for t, _ in pairs if t is not None]
    sooner = sum(t is not None and t < whole for t, whole in pairs)
    median = f"{statistics.median(times):.2f}" if times else ""
    return f"{len(times)} of {len(mine)}", median, str(sooner)


def relative_times(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """By network, for every seed: the time to the other method's objective, relative to its own."""
    found: dict[str, list[float | None]] = {}
    for r in of(records, "varpro", way="varpro"):
        t, whole = _time_to_goal(records, r)
        name = f"{r['architecture']}, {r['layers']} layer{'s' * (r['layers'] > 1)}"
        found.setdefault(name, []).append(None if t is None else t / whole)
    return found


VARPRO = """Where L-BFGS comes to a minimum as good as the other method's, it goes on to a lower
one: its median objective is about half, but for the first cell. Else it stays in a bad minimum. The
noise of batches of 125 leaves many of these, so that the mean accuracy of coordinate descent is
higher in three of four cells, and it stays the default. varpro is for a start that is good already,
for an objective that is to be exact, and for several starts (`--n-init`): it stops by itself in a
minimum.
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
