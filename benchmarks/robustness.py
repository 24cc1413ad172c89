"""Noise and adversarial images: H-DNNs against no layers and a plain convolution of equal size.

    python benchmarks/robustness.py --seeds 3

trains on MNIST by protocol `tuned` of Table 2, but for 8 epochs, measures the accuracy on the
10,000 test images under perturbations, and writes results/robustness: records.jsonl (a line for
every network, seed, perturbation and level, as soon as it is measured), robustness.svg, README.md.
A training that is interrupted goes on from its last epoch; what has a record is not repeated.
Levels, networks and settings were fixed before the first result; nothing is chosen by it.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hdnn.analysis import accuracy_under
from hdnn.data import images as image_sets
from hdnn.files import atomic
from hdnn.paper.store import Store
from hdnn.paper.table2 import (
    CONVOLUTION,
    DATA,
    SPLIT,
    ImageCell,
    ImageRecord,
    protocol,
    select,
    train_cell,
)
from hdnn.plots import LIGHT, clean, label_ends, new_figure, plot_band, save_figure
from hdnn.plots.style import NORMAL
from hdnn.training.runs import Run

OUT = Path(__file__).parent.parent / "results" / "robustness"
PROTOCOL, EPOCHS = "tuned", 8
LEVELS = {
    "gaussian": (0.0, 0.1, 0.2, 0.3, 0.5),
    "salt-and-pepper": (0.0, 0.05, 0.1, 0.2),
    "fgsm": (0.0, 0.02, 0.05, 0.1, 0.15),
}
WORDS = {
    "gaussian": ("Gaussian noise", "sigma"),
    "salt-and-pepper": ("Salt and pepper", "share of pixels"),
    "fgsm": ("Adversarial (FGSM)", "epsilon"),
}
CELLS = {
    "H2, 8 layers": select(["H2"], [8])[0],
    "MS1, 8 layers": select(["MS1"], [8])[0],
    "0 layers": select(["MS1"], [0])[0],
    # One 3x3 convolution from 8 to 8 channels has 584 parameters, 8 pointwise H2 layers have 576.
    "plain convolution": replace(select([CONVOLUTION], [2])[0], layers=1),
}
COLORS = (1, 0, 6, 2)
"""Of the networks, in the palette."""


@dataclass(frozen=True)
class PerturbedRecord(ImageRecord):
    """A training, and its accuracy on test images that are perturbed."""

    perturbation: str = ""
    level: float = 0.0
    accuracy: float = 0.0

    @property
    def key(self) -> tuple:  # type: ignore[override, type-arg]
        return (*super().key, self.perturbation, self.level)


def key(cell: ImageCell, seed: int, kind: str, level: float) -> tuple:  # type: ignore[type-arg]
    """Of the record of a measurement."""
    return DATA, cell.architecture, cell.layers, PROTOCOL, SPLIT, seed, kind, level


def measure(store: Store, cell: ImageCell, seed: int) -> None:
    """Train a network, or go on with it, and add the records that it has not."""
    known = store.read()
    missing = [
        (kind, level)
        for kind, levels in LEVELS.items()
        for level in levels
        if key(cell, seed, kind, level) not in known
    ]
    if not missing:
        return
    place = store.folder.resolve()
    folder = place.with_name(f"{place.name}.unfinished") / f"{DATA}-{cell.name}-{seed}"
    record = train_cell(cell, protocol(PROTOCOL), seed, folder, epochs=EPOCHS)
    model, images = Run(folder).load_model(), image_sets.load(DATA)
    for kind, level in missing:
        (found,) = accuracy_under(model, images.test, images.test_labels, kind, [level])
        more = {"perturbation": kind, "level": level, "accuracy": found}
        store.add([PerturbedRecord(**{**asdict(record), **more})])
        print(f"{cell.name}, seed {seed}, {kind} {level:g}: {100 * found:.2f} %", flush=True)
    shutil.rmtree(folder)


def accuracies(store: Store, cell: ImageCell, kind: str) -> dict[int, list[float]]:
    """By seed, where all levels are measured: per cent for every level."""
    known = store.read()
    seeds = sorted({name[5] for name in known})
    rows = {
        seed: [known.get(key(cell, seed, kind, level)) for level in LEVELS[kind]] for seed in seeds
    }
    return {seed: [100 * r.accuracy for r in row] for seed, row in rows.items() if all(row)}


def table(store: Store, kind: str) -> str:
    """Accuracies in per cent, as Markdown: means over seeds, and the range where there are more."""
    title, unit = WORDS[kind]
    lines = [
        f"| {title}: {unit} | " + " | ".join(f"{level:g}" for level in LEVELS[kind]) + " |",
        "| --- " * (1 + len(LEVELS[kind])) + "|",
    ]
    for name, cell in CELLS.items():
        found = np.array(list(accuracies(store, cell, kind).values()))
        if not len(found):
            continue
        spread = [
            f" ({a:.1f} to {b:.1f})" if len(found) > 1 else ""
            for a, b in zip(found.min(0), found.max(0), strict=True)
        ]
        cells = [f"{m:.1f}{s}" for m, s in zip(found.mean(0), spread, strict=True)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def sizes(store: Store) -> str:
    """Parameters, seeds and clean accuracies of the networks, as Markdown; and what is missing."""
    missing = [n for n, c in CELLS.items() if not all(accuracies(store, c, k) for k in LEVELS)]
    lines = [
        "| network | parameters | seeds | training accuracy, % | test accuracy, % |",
        "| --- " * 5 + "|",
    ]
    for name, cell in CELLS.items():
        rows = [r for k, r in store.read().items() if k == key(cell, k[5], "fgsm", 0.0)]
        if rows:
            train, test = (
                100 * np.mean([getattr(r, part) for r in rows])
                for part in ("train_accuracy", "test_accuracy")
            )
            seeds = ", ".join(str(r.seed) for r in rows)
            lines.append(
                f"| {name} | {rows[0].parameters:,} | {seeds} | {train:.2f} | {test:.2f} |"
            )
    if missing:
        lines += ["", f"Not measured yet: {'; '.join(missing)}."]
    return "\n".join(lines) + "\n"


def draw(store: Store) -> None:
    """A panel for every perturbation: means, and the range over seeds as a band."""
    figure = new_figure(10.0, 3.4)
    axes = figure.subplots(1, len(LEVELS), sharey=True)
    for axis, (kind, levels) in zip(axes, LEVELS.items(), strict=True):
        for number, (name, cell) in enumerate(CELLS.items()):
            found = np.array(list(accuracies(store, cell, kind).values()))
            if len(found):
                band = found.min(0), found.mean(0), found.max(0)
                plot_band(axis, levels, *band, color=LIGHT.color(COLORS[number]), label=name)
        title, unit = WORDS[kind]
        axis.set_title(title, fontsize=NORMAL, loc="left")
        axis.set_xlabel(unit)
        axis.set_xticks(levels)
        axis.set_ylim(0, 101)
        clean(axis)
    axes[0].set_ylabel("test accuracy, %")
    label_ends(axes[0])  # there the lines end apart
    save_figure(figure, store.folder / "robustness.svg")


def write(store: Store, seeds: int) -> None:
    """The page of the folder."""
    version = next(iter(store.read().values())).version
    text = f"""# Robustness on MNIST: records

    python benchmarks/robustness.py --seeds {seeds}

made everything in this folder, with hdnn {version}; a second call does only what is missing.
`records.jsonl` has a line for every network, seed, perturbation and level. What it says is in
[docs/images.md](../../docs/images.md#robustness).

{sizes(store)}
Trained by protocol `{PROTOCOL}` of Table 2, shortened to {EPOCHS} epochs; the last epoch counts.
No changes of the training images, no adversarial training. "Plain convolution" is the paper's
network with one layer y = relu(conv(y)), 3x3, in place of the 8 pointwise Hamiltonian layers.
Networks and levels were fixed before the first result.

Below: accuracy on the 10,000 test images, per cent; means over the seeds, in brackets the least
and the greatest. Levels are on the scale on which black is 0 and white is 1; perturbed images are
cut off there. All networks meet the same noise.

![accuracy under perturbation](robustness.svg)

""" + "\n".join(table(store, kind) for kind in LEVELS)
    with atomic(store.folder / "README.md") as temporary:
        temporary.write_text(text)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="trainings of every network")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(given)
    store = Store(options.out, PerturbedRecord)
    for seed in range(options.seeds):
        for cell in sorted(CELLS.values(), key=lambda cell: cell.layers):  # the quick ones first
            measure(store, cell, seed)
            draw(store)
            write(store, options.seeds)


if __name__ == "__main__":
    main()
