"""Noise and adversarial images: H-DNNs against no layers and a plain convolution of equal size.

    python benchmarks/robustness.py            # trains what has no records: an hour for each seed
    python benchmarks/robustness.py --seeds 0  # the tables of the committed records

Trains on MNIST by protocol `tuned` of Table 2, but for 8 epochs, and measures the accuracy on the
10,000 test images under perturbations. Records go to results/robustness, one line a network, seed,
perturbation and level. Levels, networks and settings were fixed before the first result.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from torch import Tensor, nn

from hdnn.data import images as image_sets
from hdnn.paper.experiment import KEY
from hdnn.paper.records import Records
from hdnn.paper.summaries import markdown
from hdnn.paper.table2 import CONVOLUTION, cells, train_cell
from hdnn.training.runs import Run

OUT = Path(__file__).parent.parent / "results" / "robustness"
LEVELS = {
    "gaussian": (0.0, 0.1, 0.2, 0.3, 0.5),
    "salt-and-pepper": (0.0, 0.05, 0.1, 0.2),
    "fgsm": (0.0, 0.02, 0.05, 0.1, 0.15),
}
"""Sigma, share of the pixels, epsilon: on the scale on which black is 0 and white is 1."""
CELLS = [
    *cells("tuned", architecture=["H2"], layers=[8], epochs=8),
    *cells("tuned", architecture=["MS1"], layers=[8], epochs=8),
    *cells("tuned", architecture=["MS1"], layers=[0], epochs=8),
    # One 3x3 convolution from 8 to 8 channels has 584 parameters, 8 pointwise H2 layers have 576.
    cells("tuned", architecture=[CONVOLUTION], epochs=8)[0]._replace(layers=1),
]
BATCH = 500
"""Images that are changed and classified at once; fixed, so that a seed names the noise."""


def perturb(kind: str, model: nn.Module, x: Tensor, labels: Tensor, level: float) -> Tensor:
    """Change images ``(B, C, H, W)`` in [0, 1]; all models and levels meet the same noise."""
    if kind == "fgsm":
        return (x + level * _ascent(model, x, labels).sign()).clamp(0, 1)
    if kind == "gaussian":
        return (x + level * torch.randn(x.shape, dtype=x.dtype)).clamp(0, 1)
    B, _, H, W = x.shape
    order = torch.rand(B, H * W).argsort(1)
    hit = (order < round(level * H * W)).reshape(B, 1, H, W)
    return torch.where(hit, torch.randint(0, 2, (B, 1, H, W)).to(x.dtype), x)


def _ascent(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """A positive multiple of the gradient of the loss.

    With p the softmax of the logits z, the gradient is 1 - p_label times (dz/dx)' (q - e_label),
    where q is the softmax over the *other* classes. The factor is left out: where a model is so
    sure that it rounds to 0, the sign would be lost and the model would seem robust.
    """
    moving = x.detach().requires_grad_()
    logits: Tensor = model(moving)
    own = nn.functional.one_hot(labels, logits.shape[1]).bool()
    others = logits.detach().masked_fill(own, -torch.inf).softmax(1)
    return torch.autograd.grad(logits, moving, others.masked_fill(own, -1.0))[0]


def accuracy_under(
    kind: str, level: float, model: nn.Module, images: Tensor, labels: Tensor
) -> float:
    """The share of perturbed images (uint8) that a classifier gets right."""
    torch.manual_seed(0)
    dtype, right = next(model.parameters()).dtype, 0
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        changed = perturb(kind, model, x.to(dtype) / 255, y, level)
        with torch.no_grad():
            right += int((model(changed).argmax(1) == y).sum())
    return right / len(images)


def tables(records: pd.DataFrame) -> str:
    """Accuracies in per cent, means over the seeds; a table for every perturbation."""
    records["network"] = records.architecture + ", " + records.layers.astype(str) + " layers"
    parts = []
    for kind, part in records.groupby("perturbation", sort=False):
        wide = 100 * part.pivot_table("accuracy", "network", "level", sort=False)
        texts = wide.sort_index(axis=1).map("{:.1f}".format).rename(columns="{:g}".format)
        parts.append(markdown([f"{kind}", *texts], texts.itertuples(name=None)))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="trainings of every network")
    options = parser.parse_args()
    store = Records(OUT, (*KEY, "perturbation", "level"))
    wanted = [(kind, level) for kind, levels in LEVELS.items() for level in levels]
    for seed in range(options.seeds):
        for cell in CELLS:
            if (*cell[: len(KEY)], *wanted[-1], seed) in store.read():
                continue
            with TemporaryDirectory() as folder:
                record = train_cell(cell, seed, Path(folder) / "run")
                model = Run(Path(folder) / "run").load_model().eval()
            data = image_sets.load(cell.data)
            accuracies = [
                accuracy_under(*place, model, data.X_test, data.y_test) for place in wanted
            ]
            store.add(
                {**record, "perturbation": kind, "level": level, "accuracy": accuracy}
                for (kind, level), accuracy in zip(wanted, accuracies, strict=True)
            )
    print(tables(pd.DataFrame(store.read().values())))


if __name__ == "__main__":
    main()
