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
        encoder: what made numbers of a table; None where its columns are numbers taken as they are.
        weight: ``(rows,)``, of the training rows; None counts them alike.
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
        X_test: Any = None,
        y_test: Any = None,
        weight: Any = None,
        task: str | None = None,
        classes: Sequence[Any] | None = None,
        feature_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
        encoder: ColumnEncoder | None = None,
        notes: Sequence[str] = (),
    ) -> Dataset:
        """A data set of arrays or tensors.

        Args:
            X: ``(rows, features)`` numbers, NaN where missing; or images ``(rows, C, H, W)`` uint8.
            y: labels ``(rows,)``, or values ``(rows[, targets])``.
            X_test, y_test: data held out; None for none.
            weight: ``(rows,)``; None counts all rows alike.
            task: "classification" or "regression"; None decides as `read_table`.
            classes: the labels in the order of their numbers; None: those of y, sorted.
            feature_names, target_names: for people, and for reading tables later.
            encoder: what made X of a table, to be stored with the model.
            notes: remarks for people.

        Returns:
            The data set, in float64 (images in uint8).

        Raises:
            HdnnError: X and y do not belong together.
        """
        inputs, labels = _inputs(X), np.asarray(y)
        task = task or guess_task(labels)
        if task == "classification":
            classes = tuple(np.unique(labels).tolist() if classes is None else classes)
        else:
            classes = None
        data = cls(
            inputs,
            _targets(y, classes),
            inputs[:0] if X_test is None else _inputs(X_test),
            _targets(labels[:0] if y_test is None else y_test, classes),
            task,
            "images" if inputs.ndim == 4 else "table",
            classes,
            None if feature_names is None else tuple(feature_names),
            None if target_names is None else tuple(target_names),
            encoder,
            None if weight is None else torch.as_tensor(weight, dtype=torch.float64),
            tuple(notes),
        )
        counts = len(data.X), len(data.y), len(data.X if data.weight is None else data.weight)
        if len({*counts}) > 1 or len(data.X_test) != len(data.y_test):
            raise HdnnError(
                "X, y and weight need the same number of rows, got "
                f"{counts[0]}, {counts[1]} and {counts[2]} (test: {len(data.X_test)} and "
                f"{len(data.y_test)})"
            )
        return data

    def to(self, dtype: torch.dtype) -> Dataset:
        """The same with X and X_test in another precision; images stay uint8.

        Args:
            dtype: of the model.

        Returns:
            A data set that shares what it can.
        """
        if self.kind == "images":
            return self
        return replace(self, X=self.X.to(dtype), X_test=self.X_test.to(dtype))

    def hold_out(self, fraction: float = 0.2, seed: int = 0) -> Dataset:
        """A part of the training rows in place of the test rows, by class for classification.

        Args:
            fraction: share of the training rows, between 0 and 1.
            seed: of the generator.

        Returns:
            The data set with fewer training rows.

        Raises:
            HdnnError: as `hdnn.data.holdout`.
        """
        labels = self.y if self.task == "classification" else None
        kept, held = holdout(len(self.X), fraction, seed, labels)
        X, y = self.X, self.y
        return replace(self, X=X[kept], y=y[kept], X_test=X[held], y_test=y[held])

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.X.shape[1:]))
        features = shape if self.kind == "images" else f"{shape} features"
        goal = "regression" if self.classes is None else f"{len(self.classes)} classes"
        return (
            f"Dataset({self.source}: {len(self.X)} training rows, {len(self.X_test)} test rows, "
            f"{features}, {goal})"
        )


def _inputs(X: Any) -> Tensor:
    """Numbers in float64, images in uint8."""
    if getattr(X, "ndim", 2) == 4:
        return torch.as_tensor(X)
    return torch.as_tensor(X, dtype=torch.float64)


def _targets(y: Any, classes: Sequence[Any] | None) -> Tensor:
    if classes is None:
        return torch.as_tensor(y, dtype=torch.float64)
    return torch.from_numpy(encode(np.asarray(y), classes))


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
        HdnnError: the fraction is not between 0 and 1, or there are too few rows.

    >>> kept, held = holdout(10, 0.2, seed=0)
    >>> len(kept), len(held)
    (8, 2)
    """
    if not 0 < fraction < 1:
        raise HdnnError(f"fraction is a share between 0 and 1, such as 0.2, got {fraction}")
    groups = torch.zeros(size, dtype=torch.int64) if labels is None else torch.as_tensor(labels)
    generator = torch.Generator().manual_seed(seed)  # torch's default one is left alone
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
