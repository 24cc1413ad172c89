"""The data that a config names: a planar problem, a table, images."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hdnn.config import DataConfig, check_applies
from hdnn.data import images
from hdnn.data.dataset import Dataset, holdout
from hdnn.data.encoder import ColumnEncoder
from hdnn.data.planar import PROBLEMS, split
from hdnn.data.readers import reading
from hdnn.data.tables import Table, read_table
from hdnn.errors import HdnnError, unknown_name

BUNDLED: dict[str, str] = {
    "iris": "load_iris",
    "wine": "load_wine",
    "breast-cancer": "load_breast_cancer",
    "diabetes": "load_diabetes",
}
"""The tables that come with scikit-learn, and its functions."""


def bundled(name: str, target: Any = None, task: str | None = None, **options: Any) -> Table:
    """A table of scikit-learn, with its names of features and classes; needs no network.

    Args:
        name: one of `BUNDLED`.
        target: the column to predict; None: the one that scikit-learn calls target.
        task: as of `read_table`.
        options: others of `read_table`.

    Returns:
        Features, target and class names.

    >>> bundled("iris")
    Table(150 rows, 4 features, classification of target)
    >>> bundled("iris").classes
    ('setosa', 'versicolor', 'virginica')
    """
    frame, usual = bundled_frame(name)
    if target is None:
        target, task = "target", task or usual
    return read_table(frame, target, task=task, **options)


def bundled_frame(name: str) -> tuple[pd.DataFrame, str]:
    """A table of scikit-learn with labels by name, and the task that its column target has."""
    from sklearn import datasets  # slow to import, and needed here only

    data = getattr(datasets, BUNDLED[name])(as_frame=True)
    if "target_names" not in data:
        return data.frame, "regression"
    labels = np.asarray(data.target_names)[data.target]
    return data.frame.assign(target=labels), "classification"


def load(config: DataConfig) -> Dataset:
    """Read the data that a config names, and hold a part of them out.

    Args:
        config: names a planar problem, a bundled table, a file, an image set or a folder. Where it
            has a digest, the file or folder must still have it.

    Returns:
        The data.

    Raises:
        HdnnError: they cannot be read, are not those of the digest, or a setting is for other data.

    >>> load(DataConfig(source="swiss-roll"))
    Dataset(swiss-roll: 5000 training rows, 5000 test rows, 2 features, 2 classes)
    """
    name = config.source.lower().replace("_", "-")  # wins over a file that is called like it
    if name in PROBLEMS:
        check_applies(config, "planar")
        return split(name, config.split, config.size, config.seed)
    named = name in images.IMAGE_SETS or name in BUNDLED
    path = Path(name) if named else _existing(config)
    are_images = name in images.IMAGE_SETS or (not named and path.is_dir())
    check_applies(config, "images" if are_images else "table")
    digest = None if named else data_digest(path)
    if config.digest not in (None, digest):
        raise HdnnError(
            f"{config.source} has changed since the run began; train anew in another --out"
        )
    if are_images:
        data = images.load(name if named else path, size=config.pixels, seed=config.seed)
        return replace(data, digest=digest)
    if config.target is None and not named:
        raise HdnnError(f"{config.source} is a table: say which column to predict with --target")
    options = {name: getattr(config, name) for name in ("task", "drop", "categorical", "numeric")}
    read = functools.partial(bundled, name) if named else functools.partial(read_table, path)
    return replace(_encoded(config, read(config.target, **options), str(path)), digest=digest)


def _existing(config: DataConfig) -> Path:
    if os.path.exists(os.path.expanduser(config.source)):  # unlike Path, for any text
        return Path(config.source).expanduser().resolve()
    source, moved = config.source[:200], config.digest is not None
    if moved or os.path.splitext(source)[1] or os.path.dirname(source):  # meant as a file
        remedy = "correct the source in the config.toml of the run" if moved else "check it"
        raise HdnnError(f"there is no such file or folder: {source}; {remedy}")
    known = dict.fromkeys((*PROBLEMS, *BUNDLED, *images.IMAGE_SETS))
    raise unknown_name("data set (and there is no such file)", source, known)


def _encoded(config: DataConfig, table: Table, source: str) -> Dataset:
    """A table as numbers, a part of it held out."""
    y = torch.from_numpy(table.targets)
    train, test = torch.arange(len(table)), torch.arange(0)
    if config.test > 0:
        labels = y if table.task == "classification" else None
        train, test = holdout(len(table), config.test, config.seed, labels)
    # Fitted to the training rows only: the test rows must not decide how they are encoded.
    rows = {name: values[train.numpy()] for name, values in table.columns.items()}
    encoder = ColumnEncoder.fit(rows, table.types, keep=(*config.categorical, *config.numeric))
    X = torch.from_numpy(encoder.transform(table.columns))
    return Dataset(
        X=X[train],
        y=y[train],
        X_test=X[test],
        y_test=y[test],
        task=table.task or "classification",
        classes=table.classes,
        feature_names=tuple(encoder.feature_names),
        target_names=table.target_names if table.task == "regression" else None,
        encoder=None if encoder.is_plain else encoder,
        notes=(f"columns: {encoder.summary}", *table.notes, *encoder.notes),
        source=source,
    )


def data_digest(path: Path) -> str:
    """The SHA-256 of a table, or of the images in a folder.

    Args:
        path: of the file or folder.

    Returns:
        Hexadecimal digits.

    Raises:
        HdnnError: it cannot be read.
    """
    if path.is_dir():
        return images.folder_digest(path)
    with reading(path, "a table"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
