"""`Dataset`: features and targets as tensors, from arrays or from whatever a config names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hdnn.data import images
from hdnn.data.bundled import BUNDLED, bundled
from hdnn.data.encoder import ColumnEncoder
from hdnn.data.folders import folder_digest
from hdnn.data.labels import classes_of, encode, guess_task
from hdnn.data.reading import reading
from hdnn.data.splits import holdout, split
from hdnn.data.tables import Table, read_table
from hdnn.data.toy import PROBLEMS, problem
from hdnn.errors import HdnnError, unknown_name

if TYPE_CHECKING:  # settings are checked against the catalogues of this package
    from hdnn.config import DataConfig


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
            task: "classification" or "regression"; None decides as `hdnn.data.guess_task`.
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
            classes = classes_of(labels) if classes is None else tuple(classes)
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


# --- what a config names --------------------------------------------------------------------------


def load(config: DataConfig) -> Dataset:
    """Read the data that a config names, and hold a part of them out.

    Args:
        config: names a planar problem, a bundled table, a file, an image set or a folder. Where it
            has a digest, the file or folder must still have it.

    Returns:
        The data.

    Raises:
        HdnnError: they cannot be read, or are not those of the digest.

    >>> from hdnn.config import DataConfig
    >>> load(DataConfig("swiss-roll"))
    Dataset(swiss-roll: 5000 training rows, 5000 test rows, 2 features, 2 classes)
    """
    if config.digest is not None and not os.path.exists(config.source):
        raise HdnnError(
            f"there is no such file or folder: {config.source[:200]}, the data of this run; say "
            "where they are now: hdnn train --resume RUN --data PATH"
        )
    name = config.source.lower().replace("_", "-")
    if config.is_image:
        return _load_images(config, name)
    return _load_planar(config) if name in PROBLEMS else _load_table(config, name)


def data_digest(path: Path) -> str:
    """The SHA-256 of a table, or of the images in a folder."""
    if path.is_dir():
        return folder_digest(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HdnnError(f"cannot read {path}: {error.strerror or error}") from error


def _check_digest(config: DataConfig, digest: str) -> str:
    if config.digest not in (None, digest):
        raise HdnnError(
            f"{config.source} has changed since the run began; train anew in another --out"
        )
    return digest


def _load_planar(config: DataConfig) -> Dataset:
    parts = split(problem(config.source).name, config.split, config.size, config.seed)
    return Dataset(
        parts.X_train,
        parts.y_train,
        parts.X_test,
        parts.y_test,
        "classification",
        "planar",
        tuple(range(parts.classes)),
        source=config.source,
    )


def _load_images(config: DataConfig, name: str) -> Dataset:
    source, digest = config.source, None
    if name not in images.IMAGE_SETS:  # a name wins over a folder that is called like it
        folder = Path(source).expanduser().resolve()
        source, digest = str(folder), _check_digest(config, folder_digest(folder))
    size = None if config.pixels is None else (config.pixels, config.pixels)
    read = images.load(source, size=size, strict=config.strict, seed=config.seed)
    return Dataset(
        read.train,
        read.train_labels,
        read.test,
        read.test_labels,
        "classification",
        "images",
        read.classes,
        notes=read.notes,
        source=source,
        digest=digest,
    )


def _load_table(config: DataConfig, name: str) -> Dataset:
    source, digest = config.source, None
    if name in BUNDLED:
        table = bundled(name)
    else:
        source, digest, table = _read_file(config)
    y = torch.from_numpy(table.targets)
    train, test = torch.arange(len(table)), torch.arange(0)
    if config.test > 0:
        labels = y if table.task == "classification" else None
        train, test = holdout(len(table), config.test, config.seed, labels)
    # What is chosen from the data is chosen from the training rows only.
    seen = {name: values[train.numpy()] for name, values in table.columns.items()}
    encoder = ColumnEncoder.fit(seen, table.types, keep=(*config.categorical, *config.numeric))
    X = torch.from_numpy(encoder.transform(table.columns))
    assert table.task is not None
    return Dataset(
        X[train],
        y[train],
        X[test],
        y[test],
        table.task,
        "table",
        table.classes,
        tuple(encoder.feature_names),
        _target_names(table),
        None if encoder.is_plain else encoder,
        notes=(*table.notes, *encoder.notes),
        source=source,
        digest=digest,
    )


def _target_names(table: Table) -> tuple[str, ...] | None:
    """What a regression predicts; a class has its own names."""
    if table.task != "regression" or table.target is None:
        return None
    return (table.target,) if isinstance(table.target, str) else tuple(table.target)


def _read_file(config: DataConfig) -> tuple[str, str, Table]:
    """Path, digest and content of a file, which is opened once: what is hashed is what is read."""
    if not os.path.exists(os.path.expanduser(config.source)):  # unlike Path, for any text
        known = dict.fromkeys((*PROBLEMS, *BUNDLED, *images.IMAGE_SETS))
        raise unknown_name("data set (and there is no such file)", config.source[:200], known)
    if config.target is None:
        raise HdnnError(f"{config.source} is a table: say which column to predict with --target")
    path = Path(config.source).expanduser().resolve()
    with reading(path, "a table"), open(path, "rb") as file:
        digest = _check_digest(config, hashlib.file_digest(file, "sha256").hexdigest())
        table = read_table(
            path,
            config.target,
            task=config.task,
            drop=config.drop,
            categorical=config.categorical,
            numeric=config.numeric,
            file=file,
        )
    return str(path), digest, table
