"""Any bytes give data or an HdnnError of readable length."""

from __future__ import annotations

import gzip
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from hdnn.data import ColumnEncoder, images, read_blocks, read_table
from hdnn.data.images import read_idx
from hdnn.errors import HdnnError

MUTANTS = 120


def mutated(data: bytes, rng: Random) -> bytes:
    """A file with bits flipped, bytes replaced, inserted, removed or repeated, or its end cut."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, length = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
        match rng.randrange(6):
            case 0 if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                tokens = (b"\0", b"\xff", b"9" * 400, b'"', b",", b"\n", b"1e999", b"NaN")
                content[at : at + rng.choice((0, 1))] = rng.choice(tokens)
            case 2:
                content[at:at] = rng.randbytes(length)
            case 3:
                del content[at : at + length]
            case 4:
                content[at:at] = content[at : at + length]
            case _ if rng.random() < 0.3:
                del content[at:]
    return bytes(content)


def packed(data: bytes, rng: Random) -> bytes:
    """A compressed file, changed outside or inside."""
    whole = rng.random() < 0.5
    return mutated(data, rng) if whole else gzip.compress(mutated(gzip.decompress(data), rng), 1)


def csv() -> list[bytes]:
    rows = "".join(f"{i},{i / 3:.3f},{'uv'[i % 2]},2021-01-{1 + i:02}\n" for i in range(30))
    people = '"a ""x""";b;y\r\n1,5;NA;3\r\n"2";für;5\r\n'
    return [f"a,b,y,day\n{rows}".encode(), people.encode("latin-1"), people.encode("utf-16")]


def saved(write: Callable[[Any], object]) -> bytes:
    write(buffer := io.BytesIO())
    return buffer.getvalue()


def parquet() -> list[bytes]:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": np.arange(40.0), "b": [1, None] * 20, "y": ["u", "v"] * 20})
    return [saved(frame.to_parquet)]


def idx() -> list[bytes]:
    return [bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, *range(24)])]


def image() -> list[bytes]:
    pixels = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    return [saved(lambda file, kind=kind: pixels.save(file, kind)) for kind in ("PNG", "JPEG")]


def table(path: Path) -> None:
    read = read_table(path, "y")
    encoder = ColumnEncoder.fit(read.columns, read.types)
    for _, values in read_blocks(path, encoder.columns):
        encoder.transform(values)


def folder(path: Path) -> None:
    for name in ("a", "b"):
        (path.parent / "set" / name).mkdir(parents=True, exist_ok=True)
        (path.parent / "set" / name / "1.png").write_bytes(path.read_bytes())
        (path.parent / "set" / name / "2.png").write_bytes(image()[0])
    images.load(path.parent / "set")


@pytest.mark.parametrize(
    ("name", "valid", "read", "mutation"),
    [
        ("data.csv", csv, table, mutated),
        ("data.csv.gz", lambda: [gzip.compress(each) for each in csv()], table, packed),
        ("data.parquet", parquet, table, mutated),
        ("data.idx", idx, read_idx, mutated),
        ("image", image, folder, mutated),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_bytes_give_data_or_one_clear_error(
    name: str,
    valid: Callable[[], list[bytes]],
    read: Callable[[Path], Any],
    mutation: Callable[[bytes, Random], bytes],
    tmp_path: Path,
) -> None:
    path, samples = tmp_path / name, valid()
    for sample in samples:
        path.write_bytes(sample)
        read(path)
    for number in range(MUTANTS):
        path.write_bytes(mutation(samples[number % len(samples)], Random(number)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            message = error_of(read, path)
        assert len(message) <= 1500 + 2 * len(str(path))


def error_of(read: Callable[[Path], Any], path: Path) -> str:
    """What an HdnnError says; nothing where the file is read. Other errors pass through."""
    try:
        read(path)
    except HdnnError as error:
        return str(error)
    return ""
