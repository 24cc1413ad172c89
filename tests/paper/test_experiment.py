"""Sweeps: records neither lost nor doubled, however often they are interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import joblib
import pandas as pd
import pytest

from hdnn.errors import FileFormatError, HdnnError
from hdnn.paper import table1
from hdnn.paper.experiment import Experiment, frame
from hdnn.paper.records import Record, Records


class Square(NamedTuple):
    side: int
    color: str = "red"


def area(cell: Square, seeds: Sequence[int]) -> list[Record]:
    return [{"side": cell.side, "seed": seed, "area": cell.side**2} for seed in seeds]


SQUARES = Experiment([Square(side) for side in range(5)], ("side",), area, together=2)


def test_an_interrupted_sweep_is_resumed_record_by_record(tmp_path: Path) -> None:
    def interrupted(cell: Square, seeds: Sequence[int]) -> list[Record]:
        if cell.side == 3:
            raise KeyboardInterrupt
        return area(cell, seeds)

    store = Records(tmp_path, SQUARES.key)
    with pytest.raises(KeyboardInterrupt):
        replace(SQUARES, run=interrupted).sweep(range(4), store)
    assert list(store.read()) == [(side, seed) for side in range(3) for seed in range(2)]
    tasks = SQUARES.missing(store.read(), range(4))
    assert [(c.side, seeds) for c, seeds in tasks[:3]] == [(3, [0, 1]), (4, [0, 1]), (0, [2, 3])]
    records = SQUARES.sweep(range(4), store)
    assert [(r["side"], r["seed"], r["area"]) for r in records] == [
        (side, seed, side**2) for side in range(5) for seed in range(4)
    ]
    assert len(store.path.read_text().splitlines()) == 20
    assert SQUARES.missing(store.read(), range(4)) == []


@pytest.mark.slow
def test_several_processes_add_records_and_none_is_lost(tmp_path: Path) -> None:
    def add(first: int) -> None:
        for seed in range(first, first + 20):
            Records(tmp_path, ()).add([{"seed": seed}])

    joblib.Parallel(n_jobs=3)(joblib.delayed(add)(first) for first in (0, 10, 30))
    assert list(Records(tmp_path, ()).read()) == [(seed,) for seed in range(50)]


def test_a_key_is_recorded_once_and_pandas_reads_the_file(tmp_path: Path) -> None:
    store = Records(tmp_path, ("side",))
    store.add(area(Square(2), [1, 0]))
    store.add([{"side": 2, "seed": 1, "area": 5}, {"side": 1, "seed": 0, "area": 1}])
    assert pd.read_json(store.path, lines=True).area.tolist() == [1, 4, 4]
    joined = frame([Square(2, "blue")], ("side",), store.read().values())
    assert joined[["color", "seed"]].values.tolist() == [["blue", 0], ["blue", 1]]


@pytest.mark.parametrize("line", ["{", "[]", '{"side": 2}'])
def test_a_line_that_is_no_record_raises_and_nothing_is_written(tmp_path: Path, line: str) -> None:
    store = Records(tmp_path, ("side",))
    store.path.write_text(f"{json.dumps(area(Square(2), [0])[0])}\n{line}\n")
    before = store.path.read_bytes()
    with pytest.raises(FileFormatError, match="line 2"):
        store.add(area(Square(3), [0]))
    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HdnnError, match="cannot make"):
        Records(tmp_path / "file" / "folder", ())


def test_filters_repeat_and_a_value_in_no_cell_raises() -> None:
    cells = table1.cells(data=["double-moons"], architecture=["h1", "MS2"], layers=[1, 4])
    found = [(c.architecture, c.layers) for c in cells]
    assert found == [("MS2", 1), ("H1", 1), ("MS2", 4), ("H1", 4)]
    with pytest.raises(HdnnError, match=r"layers \[1\]; swiss-roll has 4 8 16 32 64"):
        table1.cells(data=["swiss-roll"], layers=[1])
    with pytest.raises(HdnnError, match="unknown architecture of Table 1 'h3'"):
        table1.cells(architecture=["H3"])
    with pytest.raises(HdnnError, match="did you mean 'tuned'"):
        table1.cells("tund")
    with pytest.raises(HdnnError, match="unknown split"):
        table1.cells("tuned", "half")
