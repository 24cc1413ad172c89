"""Any bytes give data or an HdnnError of readable length."""

from __future__ import annotations

import gzip
import io
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
from stress import mutate

MUTANTS = 120
ROWS = "".join(f"{i},{i / 3:.3f},{'uv'[i % 2]},2021-01-{1 + i:02}\n" for i in range(30))
PEOPLE = '"a ""x""";b;y\r\n1,5;NA;3\r\n"2";für;5\r\n'
CSV = [f"a,b,y,day\n{ROWS}".encode(), PEOPLE.encode("latin-1"), PEOPLE.encode("utf-16")]
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, *range(24)])


def parquet() -> bytes:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": np.arange(40.0), "b": [1, None] * 20, "y": ["u", "v"] * 20})
    return frame.to_parquet()


def image(kind: str) -> bytes:
    pixels = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    pixels.save(buffer := io.BytesIO(), kind)
    return buffer.getvalue()


def table(path: Path) -> None:
    read = read_table(path, "y")
    encoder = ColumnEncoder.fit(read.columns, read.types)
    for _, values in read_blocks(path, encoder.columns):
        encoder.transform(values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "valid", "read"),
    [
        ("data.csv", lambda: CSV, table),
        ("data.csv.gz", lambda: list(map(gzip.compress, CSV)), table),
        ("data.parquet", lambda: [parquet()], table),
        ("data.idx", lambda: [IDX], read_idx),
        ("image.png", lambda: [image("PNG"), image("JPEG")], lambda p: images.read_images([p])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_bytes_give_data_or_one_clear_error(
    name: str, valid: Callable[[], list[bytes]], read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path, samples = tmp_path / name, valid()
    for sample in samples:
        path.write_bytes(sample)
        read(path)
    for number in range(MUTANTS):
        path.write_bytes(mutate(samples[number % len(samples)], Random(number)))
        message = ""
        try:
            read(path)
        except HdnnError as error:
            message = str(error)
        assert len(message) <= 1500 + 2 * len(str(path))
