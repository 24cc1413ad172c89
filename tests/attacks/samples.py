"""Valid files of every kind that hdnn reads, and some that unpack to far more than they are."""

from __future__ import annotations

import functools
import gzip
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import torch
from PIL import Image
from pyarrow import parquet

import hdnn
from hdnn.cli import app
from hdnn.config import Config
from hdnn.data import ColumnEncoder, ColumnType
from hdnn.data.encoder import SCALINGS
from hdnn.fields import STRUCTURES
from hdnn.models import Projection
from hdnn.zoo import ARCHITECTURES

ZEROS = 160 * 2**20
"""Bytes that a compressed file unpacks to: more than ten times its size and 64 MB."""


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
        {"widths": (2, 4), "layers": (1, 2), "kernel": 3, "norm": "batch", "connector": "stride"},
        {"widths": (2, 2), "layers": (2, 2), "kernel": 3, "time_invariant": True, "head": "pool"},
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
            hdnn.ImageClassifier(
                hdnn.ImageConfig(size=(8, 8), classes=3, **given), classes=[0, 1, 2]
            )
            for given in options
        ),
    ]


def _models_of_mixed_columns() -> list[Any]:
    """Models with an encoder of texts, dates and gaps, of every scaling, and a projection."""
    values = {
        "city": np.array(["Rome", "Bern", "Rome", None] * 5, object),
        "age": np.array([31.0, 42.0, np.nan, 7.0] * 5),
        "day": np.array(["2020-01-01", "2021-02-03", "NaT", "2022-01-01"] * 5, "datetime64[D]"),
        "code": np.array([f"c{number % 40}" for number in range(20)], object),
    }
    kinds = {"city": "category", "age": "number", "day": "date", "code": "category"}
    types = [ColumnType(name, kind) for name, kind in kinds.items()]
    made = []
    for scaling in SCALINGS:
        encoder = ColumnEncoder.fit(values, types, keep=["code"], scaling=scaling)
        features = len(encoder.feature_names)
        net = hdnn.network("H1", features=4, layers=2, T=1.0)
        made.append(
            hdnn.Model(
                net,
                2,
                task="regression",
                feature_names=encoder.feature_names,
                target_names=["u", "v"],
                columns=encoder.to_list(),
                projection=Projection(features, 4),
                scaler=hdnn.Scaler.fit(torch.from_numpy(encoder.transform(values)).float()),
            )
        )
    return made


def _saved(thing: Any) -> bytes:
    with TemporaryDirectory() as folder:
        hdnn.save(thing, path := Path(folder) / "file")
        return path.read_bytes()


@functools.cache
def tables() -> dict[str, list[bytes]]:
    """CSV, Parquet and NPZ; the target is y."""
    rng = np.random.default_rng(0)
    a, b, y = rng.normal(size=30), rng.integers(0, 9, 30), rng.integers(0, 2, 30)
    rows = [f"{u:.4f},{v},{'yes' if w else 'no'}" for u, v, w in zip(a, b, y, strict=True)]
    csv = "\n".join(["a,b,y", *rows, ""])
    quoted = csv.replace("a,b,y", '"a, or so",b,"y"').replace(",3,", ",NA,").replace("-", "")
    cities = "Rome", "Bern", "Zürich"
    mixed_rows = [
        f"{'' if v == 3 else v};{cities[v % 3]};2020-0{v % 9 + 1}-11;{u:.3f};{w}"
        for u, v, w in zip(a, b, y, strict=True)
    ]
    people = "\n".join(["age;city;day;weight;y", *mixed_rows, ""]).replace(".", ",")
    numeric = "\n".join(["a,b,y", *(f"{u},{v},{u + v}" for u, v in zip(a, b, strict=True))])
    text = [str(v) for v in b]
    whole = pyarrow.table({"a": a, "b": b, "y": y.astype(bool)})
    mixed = pyarrow.table(
        {
            "a": [None, *a[1:]],
            "t": pyarrow.array(text).dictionary_encode(),
            "y": text,
            "d": np.datetime64("2020-01-01") + b,
        }
    )
    nested = mixed.append_column("l", [[[1.0]] * 30])  # which is no column of a table
    return {
        "csv": [
            csv.encode(),
            quoted.encode(),
            csv.replace(",", ";").encode(),
            ("\ufeff" + numeric.replace(",", "\t")).encode(),
            *(people.encode(encoding) for encoding in ("utf-8", "utf-16", "latin-1")),
        ],
        "parquet": [
            *map(_parquet, (whole, mixed, nested)),
            _parquet(whole, compression="gzip"),
        ],
        "npz": [
            _npz(X=np.stack([a, b], 1), y=y),
            _npz(a=a, b=b, y=np.array(text)),
            _npz(X=np.ones((9, 2)), y=y[:9], feature_names=np.array(["u", "v"])),
        ],
    }


def _parquet(table: pyarrow.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out, **options)
    return out.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


@functools.cache
def images() -> dict[str, list[bytes]]:
    """IDX, plain and compressed, and a PNG and a JPEG."""
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3, 4, 5])
    pixels = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, *range(24)])
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    files = []
    for kind in ("PNG", "JPEG"):
        image.save(out := io.BytesIO(), kind)
        files.append(out.getvalue())
    return {
        "idx": [labels, pixels],
        "idx.gz": [gzip.compress(labels), gzip.compress(pixels)],
        "image": files,
    }


def _zeros_parquet() -> bytes:
    zeros = np.zeros(ZEROS // 8)
    return _parquet(pyarrow.table({"a": zeros, "y": zeros}))


def _zeros_npz() -> bytes:
    return _npz(X=np.zeros((ZEROS // 64, 8)))


def _zeros_idx() -> bytes:
    return gzip.compress(bytes([0, 0, 8, 1]) + ZEROS.to_bytes(4, "big") + bytes(ZEROS), 1)


def _zeros_png() -> bytes:
    Image.new("L", (9000, 9000)).save(out := io.BytesIO(), "PNG")
    return out.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "parquet": functools.cache(_zeros_parquet),
    "npz": functools.cache(_zeros_npz),
    "idx.gz": functools.cache(_zeros_idx),
    "image": functools.cache(_zeros_png),
}
"""Valid files that are small and hold very many zeros."""


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
