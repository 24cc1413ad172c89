"""CSV files as a source of tables: read by pandas, block by block, behind a guard."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from hdnn.data.columns import MISSING, Block, as_number, plain
from hdnn.data.reading import reading, reason_of, refuse_many
from hdnn.errors import FileFormatError
from hdnn.progress import Meter, note

DELIMITERS = (",", ";", "\t")
SUFFIXES = (".csv", ".tsv", ".txt")
BLOCK, BLOCK_CELLS = 20_000, 250_000
"""Rows and cells that are in memory at once: a cell takes 60 bytes or more as a text."""

ANNOUNCED = 20
"""Megabytes from which on a file takes a while."""

_HEAD = 2**20
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
_EXACT = {"float_precision": "round_trip"} if _PANDAS < (3, 1) else {}
"""From 3.1 on, pandas reads every float as Python does; before, only when it is told to."""

Record = tuple[int, list[str], str]
"""A row: the number of the line it ends on, its cells, and its text."""


class CsvSource:
    """A CSV file: a header, fields between commas, semicolons or tabs, quotes as needed.

    The file is opened once, and read from its start by every call of `blocks`.

    Args:
        path: the file; UTF-8, UTF-16 with a byte order mark, or else Latin-1.
        file: the same, if it is open already; it is read instead, and stays open.

    Raises:
        FileFormatError: it has no header, or is no text.
    """

    own_target: str | None = None
    unit = "line"

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self.path, self.where, self._mine = path, str(path), file is None
        with reading(path, "CSV"):
            self._file = open(path, "rb") if file is None else file  # noqa: SIM115 (see `close`)
        try:
            with reading(path, "CSV"):
                self._file.seek(0)
                self.encoding = _encoding(self._file)
            self.delimiter = max(DELIMITERS, key=self._rank)
            header = next(self._records(), None)
            if header is None:
                raise FileFormatError(
                    f"{path} is empty; expected a line of column names, then one line for every row"
                )
            self.header = tuple(header[1])
            refuse_many(self.where, len(self.header))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._mine:
            self._file.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The column names: the header without spaces around them."""
        return tuple(name.strip() for name in self.header)

    @property
    def notes(self) -> Sequence[str]:
        """Remarks on the file as a whole."""
        if self.encoding == "latin-1":
            return ["the file is not UTF-8 and was read as Latin-1; check letters with accents"]
        return []

    def blocks(
        self, columns: Sequence[str], texts: Sequence[str] = (), size: int = BLOCK
    ) -> Iterator[Block]:
        """The rows below the header, at most ``size`` at a time; blank lines are skipped.

        Args:
            columns: which ones to read, by name.
            texts: those of them whose cells stay texts, even if they look like numbers.
            size: rows in a block.
        """
        place = {name: j for j, name in enumerate(self.names)}
        positions = {place[name]: name for name in columns}
        strings = dict.fromkeys((place[name] for name in texts), object)
        size = max(1, min(size, BLOCK_CELLS // len(self.header)))
        if (megabytes := self._file.seek(0, io.SEEK_END) / 1e6) > ANNOUNCED:
            note(f"reading {self.path.name}, {megabytes:.0f} MB ...")
        meter, done = Meter(f"reading {self.path.name}, rows"), 0
        records = self._records()
        next(records)
        while block := list(itertools.islice(records, size)):
            lines, rows, raw = (list(part) for part in zip(*block, strict=True))
            if set(map(len, rows)) != {len(self.header)}:
                for line, row in zip(lines, rows, strict=True):
                    self._check_width(line, row)
            with reading(self.path, "CSV"):
                frame = pd.read_csv(
                    io.StringIO("".join(raw)),
                    sep=self.delimiter,
                    header=None,
                    names=range(len(self.header)),
                    usecols=list(positions),
                    index_col=False,
                    dtype=strings,
                    na_values=sorted(MISSING),
                    keep_default_na=False,
                    skipinitialspace=True,
                    skip_blank_lines=False,
                    low_memory=False,
                    **_EXACT,
                )
            values = {name: plain(frame[j]) for j, name in positions.items()}
            done += len(block)
            meter(done, 0)
            yield Block(values, lines, rows)

    def looks_headless(self) -> bool:
        """Whether the first line holds numbers only; 0, 1, 2, ..., as pandas numbers, are names."""
        if self.names == tuple(map(str, range(len(self.names)))):
            return False
        try:
            return not all(np.isnan([as_number(name) for name in self.names]))
        except ValueError:
            return False

    # pandas fills short rows with missing values, takes "1"x for 1x, has no limit for a field and
    # counts rows, not lines. So the csv module reads every row first; it is faster than pandas.

    def _records(self) -> Iterator[Record]:
        """Every row that is not blank."""
        pending: list[str] = []

        def lines() -> Iterator[str]:
            for line in text:
                pending.append(line)
                yield line

        self._file.seek(0)
        text = io.TextIOWrapper(self._file, encoding=self.encoding, newline="")
        reader = csv.reader(lines(), delimiter=self.delimiter, strict=True, skipinitialspace=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row, self._checked(reader.line_num, "".join(pending))
                pending.clear()
        except csv.Error as error:
            raise FileFormatError(
                f"{self.path}, line {reader.line_num}: {error}; check the quotes of this line"
            ) from error
        except UnicodeError as error:  # of UTF-16
            raise FileFormatError(
                f"{self.path}, line {reader.line_num + 1} or below, is no text in {self.encoding} "
                f"({reason_of(error)}); save it again with the encoding UTF-8"
            ) from error
        finally:
            if not self._file.closed:  # else there is nothing left to be kept open
                text.detach()

    def _checked(self, line: int, text: str) -> str:
        if "\0" in text:  # where a text ends, for pandas
            raise FileFormatError(
                f"{self.path}, line {line}: it holds a NUL character, so it is no text; save it "
                "again with the encoding UTF-8"
            )
        return text

    def _check_width(self, line: int, row: list[str]) -> None:
        if len(row) != len(self.header):
            raise FileFormatError(
                f"{self.path}, line {line}: {len(row)} fields, but the header has "
                f"{len(self.header)}; put quotes around text that holds {self.delimiter!r}, and "
                "write nothing between delimiters for a missing value"
            )

    def _rank(self, delimiter: str) -> tuple[bool, int]:
        """A delimiter should split header and first row alike, into many fields."""
        self.delimiter = delimiter
        try:
            widths = [len(row) for _, row, _ in itertools.islice(self._records(), 2)]
        except FileFormatError:
            return False, 0
        return len(widths) == 2 and widths[0] == widths[1] > 1, widths[0] if widths else 0


def _encoding(file: Any) -> str:
    """The encoding of a file: by its mark, else UTF-8 if all of it is, else Latin-1."""
    head = file.read(_HEAD)
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while head:
            decoder.decode(head)
            head = file.read(_HEAD)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"
