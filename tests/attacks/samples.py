"""Valid files of every kind that hdnn reads, and some that unpack to far more than they are."""

from __future__ import annotations

import functools
import io
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import hdnn
from hdnn.cli import app
from hdnn.config import Config
from hdnn.data import ColumnEncoder, ColumnType
from hdnn.fields import STRUCTURES
from hdnn.models import Projection
from hdnn.zoo import ARCHITECTURES


@functools.cache
def models() -> list[bytes]:
    """Networks of every architecture, structure and scheme, models for tables and for images."""
    found: list[Any] = []
    for name, row in ARCHITECTURES.items():
        time = {"T": 1.0} if row.scheme.uses_step else {}
        found += [
            hdnn.network(name, features=4, layers=3, **time),
            hdnn.network(name, features=4, layers=3, time_invariant=True, **time),
            hdnn.network(name, channels=2, kernel=3, layers=2, **time),
            hdnn.network(name, features=2, layers=2, ensemble=2, dtype=torch.float64, **time),
        ]
    for structure in STRUCTURES:
        weights = hdnn.fields.Weights(structure, features=4, layers=2)
        found.append(hdnn.HamiltonianNetwork(hdnn.fields.HamiltonianField("J2", weights), T=1.0))
    graph = hdnn.fields.Weights([[1, 1, 1, 1]], features=4, layers=2)
    learned = hdnn.fields.HamiltonianField(hdnn.fields.Learned(4), graph)
    found += [
        hdnn.HamiltonianNetwork(learned, scheme=hdnn.schemes.ImplicitMidpoint(), step=0.1),
        hdnn.network(
            "H1", features=4, layers=3, T=1.0, learn_steps=True, scheme=hdnn.schemes.RK4()
        ),
        hdnn.network("HS", features=4, layers=3, T=1.0, X="learned", memory="lean"),
        *_classifiers(),
    ]
    return [_saved(thing) for thing in found]


def _classifiers() -> list[Any]:
    X = torch.randn(20, 3)
    plain = hdnn.network("H1", features=6, layers=2, T=1.0)
    lean = hdnn.network("MS3", features=4, layers=2, T=1.0)
    options: list[dict[str, Any]] = [
        {"layers": 2},
        {"widths": (2, 4), "layers": (1, 2), "kernel": 3, "norm": "batch"},
        {"widths": (2, 2), "layers": (2, 2), "kernel": 3, "time_invariant": True},
        {"architecture": "H2", "layers": 1, "mean": (0.5,), "std": (0.1,)},
    ]
    return [
        hdnn.Model(
            plain,
            3,
            hdnn.Augmentation(3, 6),
            hdnn.Scaler.fit(X),
            task="classification",
            classes=["a", "b", "é"],
            feature_names=["u", "v", "w"],
        ),
        hdnn.Model(lean, 1, hdnn.Augmentation(2, 4, "spread"), task="regression"),
        *_models_of_mixed_columns(),
        *(
            hdnn.image_model(channels=1, size=(8, 8), classes=[0, 1, 2], **given)
            for given in options
        ),
    ]


def _models_of_mixed_columns() -> list[Any]:
    """A model with an encoder of texts, dates, gaps and large numbers, and a projection."""
    values = {
        "city": np.array(["Rome", "Bern", "Rome", None] * 10, object),
        "age": np.array([31.0, 42.0, np.nan, 7.0] * 10),
        "day": np.array(["2020-01-01", "2021-02-03", "NaT", "2022-01-01"] * 10, "datetime64[D]"),
        "code": np.array([f"c{number}" for number in range(40)], object),
        "order": 9e15 + 7.0 * np.arange(40),
    }
    kinds = "category", "number", "date", "category", "number"
    types = [ColumnType(name, kind) for name, kind in zip(values, kinds, strict=True)]
    encoder = ColumnEncoder.fit(values, types, keep=["code"])
    X = torch.from_numpy(encoder.transform(values)).float()
    model = hdnn.Model(
        hdnn.network("H1", features=4, layers=2, T=1.0),
        2,
        task="regression",
        feature_names=encoder.feature_names,
        target_names=["u", "v"],
        columns=encoder.to_list(),
        projection=Projection(X.shape[1], 4),
        scaler=hdnn.Scaler.fit(X),
    )
    return [model]


def _saved(thing: Any) -> bytes:
    with TemporaryDirectory() as folder:
        hdnn.save(thing, path := Path(folder) / "file")
        return path.read_bytes()


def configs() -> list[bytes]:
    """Run configs, of data that need no file."""
    stopping = {"epochs": 1, "validation": 0.2, "early_stopping": 3, "class_weight": [1.0, 2.0]}
    joint = {"method": "joint", "epochs": 1}
    ms1 = {"architecture": "MS1", "layers": 2, "step": 0.1}
    images = {"layers": [1, 1], "width": [2, 2], "kernel": 3}
    configs = [
        Config(data={"size": 40}, model={"layers": 2}),
        Config(data={"source": "double-moons", "size": 40}, model=ms1, training=stopping),
        Config(data={"size": 40}, model={"layers": 2, "projection": "on"}, training=joint),
        Config(data={"source": "digits"}, model=images),
    ]
    return [config.to_toml().encode() for config in configs]


@functools.cache
def run_files(*arguments: str) -> dict[str, bytes]:
    """The files of a run that ``hdnn train`` made, with a checkpoint of its last epoch."""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        out = Path(folder) / "run"
        words = ["train", *arguments, "--checkpoint-seconds", "0", "--out", str(out)]
        app(words, standalone_mode=False)
        files = [path for path in out.rglob("*") if path.is_file()]
        return {str(path.relative_to(out)): path.read_bytes() for path in files}


def unfinished_run() -> dict[str, bytes]:
    """The files of a recorded run that was stopped after its last epoch, and its model."""
    words = ("swiss-roll", "--size", "40", "--layers", "1", "--epochs", "3", "--record", "1")
    return run_files(*words)
