"""Hostile files: every reader gives data or an HdnnError, in bounded memory, whatever it meets."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdnn.data import ColumnEncoder, iter_rows, read_table
from hdnn.data.idx import read_idx
from hdnn.errors import FileFormatError, HdnnError

MUTANTS = 150
"""Of every seed file; `make attack` makes many more."""

LONGEST_MESSAGE = 1500


# ------------------------------------------------------------------------------------- mutations
def mutated(data: bytes, rng: random.Random) -> bytes:
    """A file with bits flipped, bytes inserted, removed, repeated, or its end cut off."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1) if content else 0
        length = rng.choice((1, 1, 2, 4, 8, 64))
        other = rng.randrange(len(content) + 1) if content else 0
        kind = rng.randrange(7)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(content):
            content[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        elif kind == 2:
            content[at : at + length] = rng.choice((b"\xff", b"\0", b"9", b"\x80")) * length
        elif kind == 3:
            content[at:at] = rng.randbytes(length)
        elif kind == 4:
            del content[at : at + length]
        elif kind == 5:
            content[at:at] = content[other : other + length]
        elif rng.random() < 0.3:
            del content[at:]
    return bytes(content)


@contextmanager
def bounded(path: Path) -> Iterator[None]:
    """Nothing in the block may allocate more than ten times the file's size plus 64 MB."""
    with _arrow_peak() as arrow:
        tracemalloc.start()
        try:
            yield
            peak = tracemalloc.get_traced_memory()[1] + arrow()
        finally:
            tracemalloc.stop()
    assert peak <= 10 * path.stat().st_size + 64 * 2**20


POOLS: list[Any] = []
"""Kept, because pyarrow does not, and what was allocated from one is freed there."""


@contextmanager
def _arrow_peak() -> Iterator[Callable[[], int]]:
    """What pyarrow allocates at most in the block."""
    try:
        import pyarrow
    except ImportError:
        yield lambda: 0
        return
    usual = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(usual)
    POOLS.append(pool)
    pyarrow.set_memory_pool(pool)
    try:
        yield pool.max_memory
    finally:
        pyarrow.set_memory_pool(usual)


def survives(read: Callable[[Path], Any], path: Path) -> bool:
    """Whether a file is read; else it is refused by an HdnnError of readable length."""
    with bounded(path):
        try:
            read(path)
        except HdnnError as error:
            message = str(error)
        else:
            return True
    assert len(message) <= LONGEST_MESSAGE + 2 * len(str(path))
    return False


# ------------------------------------------------------------------------------------ seed files
def npz(save: Callable[..., None] = np.savez, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    pyarrow, writer = (
        pytest.importorskip("pyarrow"),
        pytest.importorskip("pyarrow.parquet"),
    )
    buffer = io.BytesIO()
    writer.write_table(pyarrow.table(columns), buffer, **options)
    return buffer.getvalue()


def idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def tables(kind: str) -> list[bytes]:
    rng = np.random.default_rng(0)
    if kind == "csv":
        rows = "".join(f"{i},{i / 3},{'uv'[i % 2]}\n" for i in range(30))
        return [f"a,b,y\n{rows}".encode(), b'"a ""x""";b;y\r\n1;NA;3\r\n"2";4;5\r\n']
    if kind == "npz":
        X, labels = rng.normal(size=(10, 3)), np.array(["a", "b"] * 5)
        bits = np.asfortranarray(rng.integers(0, 9, (6, 4), dtype=np.uint8))
        return [
            npz(np.savez_compressed, X=X, y=labels),
            npz(u=X[:, 0], v=X[:, 1].astype(np.float32), y=np.arange(10) % 2),
            npz(X=bits, feature_names=np.array(list("abcd"))),
        ]
    columns = {"a": rng.normal(size=40), "b": [1, None] * 20, "y": ["u", "v"] * 20}
    plain = {"use_dictionary": False, "compression": "gzip"}
    delta = {"b": "DELTA_BINARY_PACKED", "y": "DELTA_BYTE_ARRAY", "a": "BYTE_STREAM_SPLIT"}
    return [
        parquet(columns),
        parquet(columns, compression="zstd", data_page_version="2.0"),
        parquet(columns, **plain),
        parquet(columns, **plain, column_encoding=delta),
    ]


def read_any_table(path: Path) -> None:
    """With a target that may be there, without one, and as a stream."""
    for target in ("y", None):
        try:
            table = read_table(path, target)
            ColumnEncoder.fit(table.columns, table.types).transform(table.columns)
        except HdnnError as error:
            last = error
        else:
            return
    if path.suffix == ".csv":
        list(iter_rows(path, ["a"]))
    raise last


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_a_damaged_table_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{kind}"
    for seed, data in enumerate(tables(kind)):
        path.write_bytes(data)
        assert survives(read_any_table, path)
        rng = random.Random(seed)
        for _ in range(MUTANTS):
            path.write_bytes(mutated(data, rng))
            survives(read_any_table, path)


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_a_damaged_idx_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    path, rng = tmp_path / name, random.Random(0)
    for whole in (idx((2, 2, 3), bytes(range(12))), idx((5,), bytes(5))):
        data = gzip.compress(whole) if path.suffix else whole
        path.write_bytes(data)
        assert survives(read_idx, path)
        for _ in range(MUTANTS):
            path.write_bytes(mutated(data, rng))
            survives(read_idx, path)


@given(shape=st.lists(st.integers(0, 2**32 - 1), max_size=255), values=st.binary(max_size=20))
def test_any_header_of_idx(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], values: bytes
) -> None:
    path = tmp_path_factory.mktemp("idx") / "data"
    path.write_bytes(idx(tuple(shape), values))
    survives(read_idx, path)


# ------------------------------------------------------------------------------------------ lies
def array_member(header: str, values: bytes = b"") -> bytes:
    """An NPY file with any header."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


def archive(member: bytes, method: int = zipfile.ZIP_DEFLATED, flags: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("X.npy", member)
        file.filelist[0].flag_bits |= flags
    data = bytearray(buffer.getvalue())
    data[6] |= flags
    return bytes(data)


def header(shape: str, descr: str = "<f8", order: str = "False") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n"


ZEROS = bytes(8 * 100)
LIES: dict[str, Callable[[], bytes]] = {
    "encrypted": lambda: archive(array_member(header("(10, 10)"), ZEROS), flags=1),
    "lzma": lambda: archive(array_member(header("(10, 10)"), ZEROS), zipfile.ZIP_LZMA),
    "bzip2": lambda: archive(array_member(header("(10, 10)"), ZEROS), zipfile.ZIP_BZIP2),
    "promises 2 GB": lambda: archive(array_member(header("(250000000, 1)"), ZEROS)),
    "promises too much": lambda: archive(array_member(header("(10**9, 10**9)"), ZEROS)),
    "negative": lambda: archive(array_member(header("(-10, -10)"), ZEROS)),
    "more than it says": lambda: archive(array_member(header("(10, 5)"), ZEROS)),
    "values of no bytes": lambda: archive(array_member(header("(1000000000, 1)", "|V0"))),
    "texts of no bytes": lambda: archive(array_member(header("(1000000000, 1)", "<U0"))),
    "empty columns": lambda: archive(array_member(header("(0, 1000000000)"))),
    "a number of 5000 digits": lambda: archive(array_member(header(f"({'9' * 5000},)"))),
    "deep": lambda: archive(array_member(header("(" * 900 + ")" * 900))),
    "unpacks to 300 MB": lambda: archive(
        array_member(header("(300000000, 1)", "|b1"), bytes(3 * 10**8))
    ),
    "unpacks to 320 MB of numbers": lambda: archive(
        array_member(header("(40000000, 1)", "|b1"), bytes(4 * 10**7))
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_an_npz_file_that_lies_is_refused_before_it_is_believed(case: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(LIES[case]())
    assert not survives(read_table, path)
    with pytest.raises(FileFormatError, match=r"data\.npz"):
        read_table(path)


@given(text=st.text(max_size=200) | st.binary(max_size=100).map(repr))
def test_any_header_of_npy(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("npz") / "data.npz"
    path.write_bytes(archive(array_member(text)))
    survives(read_table, path)


def test_a_file_that_is_trusted_may_unpack_to_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, X=np.zeros((10**5, 100), np.uint8))
    with pytest.raises(FileFormatError, match=r"if you trust the file, set HDNN_UNPACK_MB=\d+"):
        read_table(path)
    monkeypatch.setenv("HDNN_UNPACK_MB", "100")
    assert read_table(path).X.shape == (10**5, 100)
    monkeypatch.setenv("HDNN_UNPACK_MB", "much")
    with pytest.raises(HdnnError, match="number of megabytes"):
        read_table(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx((10**6, 10, 10), bytes(10**8))))
    assert path.stat().st_size < 10**6
    assert not survives(read_idx, path)


def test_parquet_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    ones, text = np.ones(3 * 10**6), "x" * 10**5
    repeated = {"a": ones[:2000], "y": [text] * 2000}
    prefixed = {"use_dictionary": False, "column_encoding": {"y": "DELTA_BYTE_ARRAY"}}
    for data in (
        parquet({"a": ones, "y": ones}),
        parquet(repeated),
        parquet(repeated, **prefixed),
    ):
        path.write_bytes(data)
        assert path.stat().st_size < 10**6
        assert not survives(lambda path: read_table(path, "y"), path)
        with pytest.raises(FileFormatError, match=r"would take .* MB of memory"):
            read_table(path, "y")


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "use_dictionary": False}])
def test_parquet_pages_that_promise_much_are_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Every integer of the first page headers in turn is as large as it can be."""
    path = tmp_path / "data.parquet"
    data = parquet({"a": np.arange(200) / 7, "y": ["u", "v"] * 100}, **options)
    path.write_bytes(data)
    assert survives(lambda path: read_table(path, "y"), path)
    metadata = pytest.importorskip("pyarrow.parquet").ParquetFile(path).metadata
    for column in map(metadata.row_group(0).column, range(2)):
        start = column.dictionary_page_offset or column.data_page_offset
        end = start + column.total_compressed_size
        for at in range(start, start + 16):
            if data[at] == 0x15:  # an integer of 32 bits follows, 7 bits in a byte
                after = next(k for k in range(at + 1, end) if data[k] < 0x80) + 1
                changed = data[start : at + 1] + b"\xfe\xff\xff\xff\x0f" + data[after:end]
                path.write_bytes(data[:start] + changed[: end - start] + data[end:])
                assert not survives(lambda path: read_table(path, "y"), path)


def test_parquet_reads_only_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    nested: dict[str, Any] = {"a": [1.0, 2.0], "list": [[1], [2, 3]], "raw": [b"x", b"y"]}
    path.write_bytes(parquet(nested))
    assert read_table(path, drop=["list", "raw"]).X.tolist() == [[1.0], [2.0]]
    for name in ("list", "raw"):
        with pytest.raises(HdnnError, match=rf"column '{name}' holds .*; leave out the column"):
            read_table(path, name, features=["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a,y\n1,{'7' * 5000}\n2,3\n", "infinite"),
        (f"a,y\n{'7' * 5000},1\n2,3\n", "infinite"),
        (f"a,y\n1,{'x' * 100_000}\n" + "1,u\n1,v\n" * 10_000, "labels are short"),
        ("a,y\n1,\0\n\0,3\n", "NUL character"),
        (f"{'x' * 100_000},y\nz,3\n1,4\n", "not numeric"),
        (f"{'x' * 100_000},b\n1,3\n", "unknown column"),
        ("a,y" + ",b" * 200_000 + "\n1,2\n", "at most 100000"),
        (",".join(map(str, range(90_000))) + ",y,y\n1\n", "2 columns are named 'y'"),
        ("a,y\n" + "1," * 200_000 + "\n", "200001 fields"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_csv_file_with_huge_parts(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    assert not survives(lambda path: read_table(path, "y").X, path)
    with pytest.raises(HdnnError, match=message):
        _ = read_table(path, "y").X


def test_nothing_waits_for_a_fifo(tmp_path: Path) -> None:
    for name, read in (("x.csv", read_table), ("x.npz", read_table), ("x.idx", read_idx)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(HdnnError, match="not a regular file"):
            read(tmp_path / name)
