"""Records: each training once, and a damaged file is an error that names the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hdnn.errors import FileFormatError
from hdnn.paper.records import Records


def record(layers: Any, seed: Any = 0, **more: Any) -> dict[str, Any]:
    return {"layers": layers, "seed": seed, **more}


def test_the_first_record_of_a_training_stays_and_all_are_sorted(tmp_path: Path) -> None:
    store = Records(tmp_path, ("layers",))
    store.add([record(8), record(4, 1), record("deep")])
    store.add([record(4, 1, note="later"), record(4, 0.5)])
    assert list(store.read()) == [(4, 0.5), (4, 1), (8, 0), ("deep", 0)]
    assert store.read()[4, 1] == record(4, 1)


@pytest.mark.parametrize(
    "line", ['{"layers": 4}', '{"layers": {}, "seed": 0}', '{"layers": 4, "seed": null}', "[", "5"]
)
def test_a_line_that_is_no_record_raises(line: str, tmp_path: Path) -> None:
    store = Records(tmp_path, ("layers",))
    damaged = f"{json.dumps(record(4))}\n{line}\n"
    store.path.write_text(damaged)
    for work in (store.read, lambda: store.add([record(8)])):
        with pytest.raises(FileFormatError, match=r"cannot read line 2 of .*records.jsonl"):
            work()
    assert store.path.read_text() == damaged
