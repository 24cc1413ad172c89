"""The data that a config names: a planar problem, a table, images."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hdnn.data import images
from hdnn.data.dataset import Dataset, holdout
from hdnn.data.encoder import ColumnEncoder
from hdnn.data.files import reading
from hdnn.data.planar import PROBLEMS, split
from hdnn.data.tables import Table, read_table
from hdnn.errors import HdnnError, optional, unknown_name

if TYPE_CHECKING:  # settings are checked against the catalogues of this package
    from hdnn.config import DataConfig

BUNDLED: dict[str, str] = {
    "iris": "load_iris",
    "wine": "load_wine",
    "breast-cancer": "load_breast_cancer",
    "diabetes": "load_diabetes",
}
"""The tables that come with scikit-learn, and its functions."""


def bundled(name: str) -> Table:
    """A table of scikit-learn, with its names of features and classes; needs no network.

    Args:
        name: "iris", "wine", "breast-cancer" or "diabetes", in any case, with - or _.

    Returns:
        Features, target and class names.

    Raises:
        HdnnError: no table has this name.

    >>> bundled("iris")
    Table(150 rows, 4 features, classification of target)
    >>> bundled("iris").classes
    ('setosa', 'versicolor', 'virginica')
    """
    key = str(name).lower().replace("_", "-")
    if key not in BUNDLED:
        raise unknown_name("bundled table", name, BUNDLED)
    data = getattr(optional("sklearn.datasets", "app"), BUNDLED[key])()
    columns = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    if "target_names" not in data:
        return read_table({**columns, "target": data.target}, "target", task="regression")
    labels = np.asarray(data.target_names)[data.target]
    return read_table({**columns, "target": labels}, "target", task="classification")


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
    if name in PROBLEMS:
        parts = split(name, config.split, config.size, config.seed)
        return replace(parts, source=config.source)
    if config.is_image:
        return _load_images(config, name)
    return _load_table(config, name)


def data_digest(path: Path) -> str:
    """The SHA-256 of a table, or of the images in a folder.

    Args:
        path: of the file or folder.

    Returns:
        Hexadecimal digits.

    Raises:
        HdnnError: it cannot be read.
    """
    try:
        if path.is_dir():
            return images.folder_digest(path)
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HdnnError(f"cannot read {path}: {error.strerror or error}") from error


def _checked_digest(config: DataConfig, path: Path) -> str:
    digest = data_digest(path)
    if config.digest not in (None, digest):
        raise HdnnError(
            f"{config.source} has changed since the run began; train anew in another --out"
        )
    return digest


def _load_images(config: DataConfig, name: str) -> Dataset:
    if name in images.IMAGE_SETS:  # a name wins over a folder that is called like it
        return images.load(name, size=config.pixels)
    folder = Path(config.source).expanduser().resolve()
    digest = _checked_digest(config, folder)
    found = images.load(folder, size=config.pixels, seed=config.seed)
    return replace(found, digest=digest)


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
    types = () if digest is None else (f"columns: {encoder.summary}",)
    return Dataset(
        X[train],
        y[train],
        X[test],
        y[test],
        table.task or "classification",
        "table",
        table.classes,
        tuple(encoder.feature_names),
        table.target if table.task == "regression" else None,
        None if encoder.is_plain else encoder,
        notes=(*types, *table.notes, *encoder.notes),
        source=source,
        digest=digest,
    )


def _read_file(config: DataConfig) -> tuple[str, str, Table]:
    """Path, digest and content of a file."""
    if not os.path.exists(os.path.expanduser(config.source)):  # unlike Path, for any text
        known = dict.fromkeys((*PROBLEMS, *BUNDLED, *images.IMAGE_SETS))
        raise unknown_name("data set (and there is no such file)", config.source[:200], known)
    if config.target is None:
        raise HdnnError(f"{config.source} is a table: say which column to predict with --target")
    path = Path(config.source).expanduser().resolve()
    with reading(path, "a table"):
        digest = _checked_digest(config, path)
    table = read_table(
        path,
        config.target,
        task=config.task,
        drop=config.drop,
        categorical=config.categorical,
        numeric=config.numeric,
    )
    return str(path), digest, table
