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
from pathlib import Path

import pandas as pd
from perturbations import accuracy_under

from hdnn.data import images as image_sets
from hdnn.files import atomic
from hdnn.paper.experiment import KEY, Cell
from hdnn.paper.records import Records
from hdnn.paper.table2 import CONVOLUTION, cells, train_cell
from hdnn.paper.tables import markdown
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
    "H2, 8 layers": cells(PROTOCOL, architecture=["H2"], layers=[8])[0],
    "MS1, 8 layers": cells(PROTOCOL, architecture=["MS1"], layers=[8])[0],
    "0 layers": cells(PROTOCOL, architecture=["MS1"], layers=[0])[0],
    # One 3x3 convolution from 8 to 8 channels has 584 parameters, 8 pointwise H2 layers have 576.
    "plain convolution": cells(PROTOCOL, architecture=[CONVOLUTION])[0]._replace(layers=1),
}
COLORS = (1, 0, 6, 2)
"""Of the networks, in the palette."""


def measure(store: Records, cell: Cell, seed: int) -> None:
    """Train a network, or continue its training, and add the records that are missing."""
    known = store.read()
    missing = [
        (kind, level)
        for kind, levels in LEVELS.items()
        for level in levels
        if (*cell[: len(KEY)], kind, level, seed) not in known
    ]
    if not missing:
        return
    place = store.folder.resolve()
    name = f"{cell.data}-{cell.architecture}-{cell.layers}-{seed}"
    folder = place.with_name(f"{place.name}.unfinished") / name
    record = train_cell(cell, seed, folder, EPOCHS)
    model, images = Run(folder).load_model(), image_sets.load(cell.data)
    for kind, level in missing:
        (accuracy,) = accuracy_under(model, images.X_test, images.y_test, kind, [level])
        store.add([{**record, "perturbation": kind, "level": level, "accuracy": accuracy}])
        print(f"{name}, {kind} {level:g}: {100 * accuracy:.2f} %", flush=True)
    shutil.rmtree(folder)


def read(store: Records) -> pd.DataFrame:
    """All records with the ``network``, a key of `CELLS`, and accuracies in per cent."""
    frame = pd.DataFrame(store.read().values())
    names = {cell[: len(KEY)]: name for name, cell in CELLS.items()}
    frame["network"] = [names[cell] for cell in frame[list(KEY)].itertuples(index=False, name=None)]
    fractions = ["accuracy", "train_accuracy", "test_accuracy"]
    frame[fractions] *= 100
    return frame


def by_level(records: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Statistics over seeds of the accuracy under a perturbation, by network and level."""
    part = records[records.perturbation == kind]
    return part.groupby(["network", "level"]).accuracy.agg(["min", "mean", "max", "size"])


def table(records: pd.DataFrame, kind: str) -> str:
    """Accuracies, as Markdown: means over seeds, and the range where there are more."""
    found, (title, unit) = by_level(records, kind), WORDS[kind]
    means = found["mean"].map("{:.1f}".format)
    low, high = found["min"].map("{:.1f}".format), found["max"].map("{:.1f}".format)
    texts = means.where(found["size"] == 1, means + " (" + low + " to " + high + ")").unstack()
    texts = texts.loc[[name for name in CELLS if name in texts.index]]
    texts = texts.rename(columns="{:g}".format).rename_axis(f"{title}: {unit}")
    return markdown(texts.reset_index())


def sizes(records: pd.DataFrame) -> str:
    """Parameters, seeds and clean accuracies of the networks, as Markdown; and what is missing."""
    rows = []
    for name in CELLS:
        part = records[records.network == name].drop_duplicates("seed")
        if len(part):
            rows.append(
                {
                    "network": name,
                    "parameters": f"{part.parameters.iloc[0]:,}",
                    "seeds": ", ".join(map(str, part.seed)),
                    "training accuracy, %": f"{part.train_accuracy.mean():.2f}",
                    "test accuracy, %": f"{part.test_accuracy.mean():.2f}",
                }
            )
    missing = "; ".join(name for name in CELLS if name not in {*records.network})
    return markdown(pd.DataFrame(rows)) + (f"\nNot measured yet: {missing}.\n" if missing else "")


def draw(store: Records) -> None:
    """A panel for every perturbation: means, and the range over seeds as a band."""
    records, figure = read(store), new_figure(10.0, 3.4)
    axes = figure.subplots(1, len(LEVELS), sharey=True)
    for axis, (kind, levels) in zip(axes, LEVELS.items(), strict=True):
        found = by_level(records, kind)
        for color, name in zip(COLORS, CELLS, strict=True):
            if name in found.index:
                part = found.loc[name]
                band = part["min"], part["mean"], part["max"]
                plot_band(axis, part.index, band, color=LIGHT.color(color), label=name)
        title, unit = WORDS[kind]
        axis.set_title(title, fontsize=NORMAL, loc="left")
        axis.set_xlabel(unit)
        axis.set_xticks(levels)
        axis.set_ylim(0, 101)
        clean(axis)
    axes[0].set_ylabel("test accuracy, %")
    label_ends(axes[0])  # there the lines end apart
    save_figure(figure, store.folder / "robustness.svg")


def write(store: Records, seeds: int) -> None:
    """The page of the folder."""
    records = read(store)
    version = records.version.iloc[0]
    text = f"""# Robustness on MNIST: records

    python benchmarks/robustness.py --seeds {seeds}

made everything in this folder, with hdnn {version}; a second call does only what is missing.
`records.jsonl` has a line for every network, seed, perturbation and level. What it says is in
[docs/images.md](../../docs/images.md#robustness).

{sizes(records)}
Trained by protocol `{PROTOCOL}` of Table 2, shortened to {EPOCHS} epochs; the last epoch counts.
No changes of the training images, no adversarial training. "Plain convolution" is the paper's
network with one layer y = relu(conv(y)), 3x3, in place of the 8 pointwise Hamiltonian layers.
Networks and levels were fixed before the first result.

Below: accuracy on the 10,000 test images, per cent; means over the seeds, in brackets the least
and the greatest. Levels are on the scale on which black is 0 and white is 1; perturbed images are
cut off there. All networks meet the same noise.

![accuracy under perturbation](robustness.svg)

""" + "\n".join(table(records, kind) for kind in LEVELS)
    with atomic(store.folder / "README.md") as temporary:
        temporary.write_text(text)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="trainings of every network")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(given)
    store = Records(options.out, (*KEY, "perturbation", "level"))
    for seed in range(options.seeds):
        for cell in sorted(CELLS.values(), key=lambda cell: cell.layers):  # the quick ones first
            measure(store, cell, seed)
            draw(store)
            write(store, options.seeds)


if __name__ == "__main__":
    main()
