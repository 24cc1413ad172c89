"""Training and test data from the planar problems, and validation data from training data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hdnn.data.toy import Sample, problem
from hdnn.errors import HdnnError, unknown_name

KINDS = ("paper", "independent")


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test data of one planar problem, and what made them.

    Args:
        X_train, X_test: points, ``(size / 2, 2)``.
        y_train, y_test: class numbers, ``(size / 2,)``.
        name, kind, seed, noise: which problem, which kind of split, from which seed.
        classes: number of classes.

    >>> import hdnn
    >>> split = hdnn.data.split("double-moons", size=100)
    >>> split.X_train.shape, split.classes
    (torch.Size([50, 2]), 2)
    """

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    name: str
    kind: str
    seed: int
    noise: float
    classes: int

    def __repr__(self) -> str:
        return (
            f"Split({self.name}, {self.kind}, seed={self.seed}, noise={self.noise}: "
            f"{len(self.X_train)} training points, {len(self.X_test)} test points, "
            f"{self.classes} classes)"
        )


def split(
    name: str,
    kind: str = "paper",
    size: int = 10_000,
    seed: int = 0,
    noise: float | None = None,
) -> Split:
    """Training and test points of a planar problem, half of ``size`` each.

        paper:        one sample, shuffled; even positions train, odd positions test
        independent:  two samples, both with noise

    The Swiss roll and peaks have no noise of their own; in the independent split they get uniform
    noise of +-0.02, else two samples of one curve would be all but the same. All random numbers
    come from one generator in float64: a seed means the same points in every precision.

    Args:
        name: a problem of `PROBLEMS`.
        kind: "paper" or "independent".
        size: number of points, even.
        seed: of the generator.
        noise: amplitude of the noise; None is the problem's own for this kind of split.

    Returns:
        Both parts, with how they were made.

    Raises:
        HdnnError: an unknown name or kind, or a size that is odd.

    >>> split("swiss-roll")
    Split(swiss-roll, paper, seed=0, noise=0.0: 5000 training points, 5000 test points, 2 classes)
    """
    chosen = problem(name)
    if kind not in KINDS:
        raise unknown_name("kind of split", kind, KINDS)
    if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
        raise HdnnError(f"size is an even number of points, half for training, got {size!r}")
    generator = _seeded(seed)
    if noise is None:
        noise = chosen.noise if kind == "paper" else chosen.independent_noise
    if kind == "paper":
        X, labels = chosen.draw(size, generator, noise)
        order = torch.randperm(size, generator=generator)
        train, test = ((X[part], labels[part]) for part in (order[::2], order[1::2]))
    else:
        train, test = (chosen.draw(size // 2, generator, noise) for _ in range(2))
    return Split(*train, *test, chosen.name, kind, seed, noise, chosen.classes)


def validation(data: Split, fraction: float = 0.2, seed: int = 0) -> tuple[Split, Sample]:
    """Cut a validation part from the training part, with the same share of every class.

    Args:
        data: training and test part.
        fraction: share of the training part to cut off, between 0 and 1.
        seed: of the generator.

    Returns:
        The split with the smaller training part, and the validation points and labels.

    >>> smaller, (X, labels) = validation(split("double-moons", size=1000), 0.2)
    >>> len(smaller.X_train), len(X), len(smaller.X_test)
    (400, 100, 500)
    """
    kept, held = holdout(len(data.X_train), fraction, seed, data.y_train)
    smaller = replace(data, X_train=data.X_train[kept], y_train=data.y_train[kept])
    return smaller, (data.X_train[held], data.y_train[held])


def holdout(
    size: int, fraction: float = 0.2, seed: int = 0, labels: Any = None
) -> tuple[Tensor, Tensor]:
    """Row numbers to keep and to hold out, each ascending; any data, planar or a table.

    Args:
        size: number of rows.
        fraction: share to hold out, between 0 and 1.
        seed: of the generator.
        labels: class numbers ``(size,)`` (tensor or array), to hold out the same share of every
            class: to the nearest row, at least one and not all. A class with one row is kept.

    Returns:
        Row numbers kept, and row numbers held out.

    Raises:
        HdnnError: the fraction is none, the labels are too few, or a part would be empty.

    >>> kept, held = holdout(10, 0.2, seed=0)
    >>> len(kept), len(held)
    (8, 2)
    """
    if not 0 < fraction < 1:
        raise HdnnError(f"fraction is a share between 0 and 1, such as 0.2, got {fraction}")
    groups = torch.zeros(size, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
    if groups.shape != (size,):
        raise HdnnError(f"{size} rows need {size} labels, got shape {tuple(groups.shape)}")
    generator = _seeded(seed)
    out = torch.zeros(size, dtype=torch.bool)
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        out[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    if not out.any():
        raise HdnnError(
            f"too few rows to hold some out: {size} rows, {len(groups.unique())} classes; add "
            "rows, or hold none out (--test 0, --validation 0)"
        )
    return (~out).nonzero().flatten(), out.nonzero().flatten()


def _seeded(seed: int) -> torch.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise HdnnError(f"seed is an integer, at least 0, got {seed!r}")
    return torch.Generator().manual_seed(seed)
