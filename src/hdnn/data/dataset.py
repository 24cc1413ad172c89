"""`Dataset`: features and targets as tensors, and what a model must know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.data.encoder import ColumnEncoder
from hdnn.data.labels import encode, guess_task
from hdnn.errors import HdnnError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data, and what a model must know of them.

    Args:
        X: training data, ``(rows, features)`` float64, or images ``(rows, C, H, W)`` uint8.
        y: class numbers ``(rows,)`` int64, or values ``(rows[, targets])`` float64.
        X_test, y_test: the part held out; it may have no rows.
        task: "classification" or "regression".
        kind: "planar", "table" or "images".
        classes: the labels, in the order of their numbers; None for regression.
        feature_names: of the columns of X.
        target_names: of what a regression predicts.
        encoder: encodes the columns of a table; None where they are numbers, used as they are.
        weight: ``(rows,)``, of the training rows; None weights them alike.
        notes: remarks for people.
        source: a name, or the absolute path of a file or folder.
        digest: the SHA-256 of the file or folder; None for other sources.

    >>> import hdnn
    >>> data = hdnn.data.Dataset.from_arrays([[1.0], [2.0], [3.0]], ["no", "yes", "no"])
    >>> data
    Dataset(arrays: 3 training rows, 0 test rows, 1 features, 2 classes)
    >>> data.classes, data.y.tolist()
    (('no', 'yes'), [0, 1, 0])
    """

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    task: str
    kind: str = "table"
    classes: tuple[Any, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    encoder: ColumnEncoder | None = None
    weight: Tensor | None = None
    notes: tuple[str, ...] = ()
    source: str = "arrays"
    digest: str | None = None

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        *,
        weight: Any = None,
        task: str | None = None,
        classes: Sequence[Any] | None = None,
        feature_names: Sequence[str] | None = None,
        encoder: ColumnEncoder | None = None,
    ) -> Dataset:
        """A data set of arrays or tensors, without a test part; see `hold_out`.

        Args:
            X: ``(rows, features)`` numbers, NaN where missing; or images ``(rows, C, H, W)`` uint8.
            y: labels ``(rows,)``, or values ``(rows[, targets])``.
            weight: ``(rows,)``; None weights all rows alike.
            task: "classification" or "regression"; None decides as `read_table`.
            classes: the labels in the order of their numbers; None: those of y, sorted.
            feature_names: names of the columns of X.
            encoder: what made X of a table, to be stored with the model.

        Returns:
            The data set, in float64 (images in uint8).

        Raises:
            HdnnError: X, y and weight differ in length, or a label is no class.
        """
        images = getattr(X, "ndim", 2) == 4
        inputs = torch.as_tensor(X, dtype=None if images else torch.float64)
        labels = np.asarray(y)
        task = task or guess_task(labels)
        if task == "classification":
            classes = tuple(np.unique(labels).tolist() if classes is None else classes)
            targets = torch.from_numpy(encode(labels, classes))
        else:
            classes, targets = None, torch.as_tensor(y, dtype=torch.float64)
        if weight is not None:
            weight = torch.as_tensor(weight, dtype=torch.float64)
        counts = len(inputs), len(targets), len(inputs if weight is None else weight)
        if len({*counts}) > 1:
            raise HdnnError(f"X, y and weight need the same number of rows, got {counts}")
        return cls(
            inputs,
            targets,
            inputs[:0],
            targets[:0],
            task,
            "images" if images else "table",
            classes,
            None if feature_names is None else tuple(feature_names),
            encoder=encoder,
            weight=weight,
        )

    def to(self, dtype: torch.dtype) -> Dataset:
        """Convert X and X_test to another precision; images stay uint8.

        Args:
            dtype: of the model.

        Returns:
            A data set that shares what it can.
        """
        if self.kind == "images":
            return self
        return replace(self, X=self.X.to(dtype), X_test=self.X_test.to(dtype))

    def hold_out(self, fraction: float = 0.2, seed: int = 0) -> Dataset:
        """Replace the test rows by a part of the training rows, stratified for classification.

        Args:
            fraction: share of the training rows, between 0 and 1.
            seed: of the generator.

        Returns:
            The data set with fewer training rows.

        Raises:
            HdnnError: as `hdnn.data.holdout`.
        """
        labels = self.y if self.task == "classification" else None
        train, test = holdout(len(self.X), fraction, seed, labels)
        X, y, weight = self.X, self.y, None if self.weight is None else self.weight[train]
        return replace(self, X=X[train], y=y[train], X_test=X[test], y_test=y[test], weight=weight)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.X.shape[1:]))
        features = shape if self.kind == "images" else f"{shape} features"
        goal = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return (
            f"Dataset({self.source}: {len(self.X)} training rows, {len(self.X_test)} test rows, "
            f"{features}, {goal})"
        )


def holdout(
    size: int, fraction: float = 0.2, seed: int = 0, labels: Any = None
) -> tuple[Tensor, Tensor]:
    """Split row numbers at random into a part for training and a part held out, each ascending.

    Args:
        size: number of rows.
        fraction: share to hold out, between 0 and 1.
        seed: of the generator.
        labels: class numbers ``(size,)`` (tensor or array), to hold out the same share of every
            class: to the nearest row, at least one and not all. A single row of a class stays.

    Returns:
        Row numbers for training, and row numbers held out.

    Raises:
        HdnnError: the fraction is not between 0 and 1, or there are too few rows.

    >>> train, held = holdout(10, 0.2, seed=0)
    >>> len(train), len(held)
    (8, 2)
    """
    if not 0 < fraction < 1:
        raise HdnnError(f"fraction is a share between 0 and 1, such as 0.2, got {fraction}")
    groups = torch.zeros(size, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
    generator = torch.Generator().manual_seed(seed)  # torch's default one is left alone
    out = torch.zeros(size, dtype=torch.bool)
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        # Every class is in both parts if it has two rows; a part without it could not be judged.
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        out[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    if not out.any():
        raise HdnnError(
            f"too few rows to hold some out: {size} rows, {len(groups.unique())} classes; add "
            "rows, or hold none out (--test 0, --validation 0)"
        )
    return (~out).nonzero().flatten(), out.nonzero().flatten()
