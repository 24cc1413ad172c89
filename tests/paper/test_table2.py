"""Table 2: published numbers, resumable trainings, and what the committed records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import done, record
from hdnn.errors import HdnnError
from hdnn.paper import table2
from hdnn.paper.records import Records

COMMITTED = Path(__file__).parents[2] / "results" / "table2"
PAPER = """
 0   93.730  92.47   93.828  92.41
 2   99.570  97.72   99.815  97.83
 4   99.970  98.03   99.789  98.02
 8   99.982  98.05   99.707  98.22
16  100      98.14   99.503  98.21
"""
"""Table 2 of the paper: training and test accuracy of MS1 and H2."""


def test_published_values_are_the_papers() -> None:
    rows = [[float(word) for word in line.split()] for line in PAPER.strip().splitlines()]
    cells = table2.cells()
    assert [(c.layers, c.published_train, c.published) for c in cells] == [
        *((row[0], row[1], row[2]) for row in rows),
        *((row[0], row[3], row[4]) for row in rows),
    ]
    steps = [table2.run_config(cell, 0).model.step for cell in cells]  # type: ignore[union-attr]
    assert steps == [0.4] * 5 + [0.05] * 5
    assert [c.layers for c in table2.cells(architecture=["convolution"])] == [2, 4, 8, 16]
    for wrong in ({"architecture": ["H1"]}, {"layers": [3]}):
        with pytest.raises(HdnnError, match="Table 2"):
            table2.cells(**wrong)  # type: ignore[arg-type]


def test_protocols_train_the_same_networks() -> None:
    for cell in table2.cells():
        configs = [table2.run_config(cell._replace(protocol=p), 0) for p in ("paper", "tuned")]
        assert configs[0].model == configs[1].model
        assert {(c.training.epochs, c.training.batch_size) for c in configs} == {(40, 100)}


def test_a_killed_sweep_continues_from_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = table2.cells(architecture=["H2"], layers=[0, 2], data="digits", epochs=2)
    out, told = tmp_path / "records", []

    def interrupt(text: str) -> None:
        told.append(text)
        if "H2-2" in text:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(table2, "note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            table2.sweep(cells, [0], out)
    assert len(Records(out, table2.KEY).read()) == 1
    histories = [path.read_text() for path in tmp_path.glob("*.unfinished/*H2-2*/history.jsonl")]
    assert [len(text.splitlines()) for text in histories] == [1]
    records = table2.sweep(cells, [0], out)
    assert [(r["layers"], r["epochs"]) for r in records] == [(0, 2), (2, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["records"]
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["records.jsonl"]
    whole = table2.sweep(cells, [0], tmp_path / "whole")
    accuracies = [
        [(r["train_accuracy"], r["test_accuracy"]) for r in rs] for rs in (records, whole)
    ]
    assert accuracies[0] == accuracies[1]
    monkeypatch.setattr(table2, "train_cell", lambda *_: pytest.fail("trained twice"))
    options = ("--data", "digits", "--architecture", "H2", "--layers", 2, "--epochs", 2)
    words = ("reproduce", "table2", *options, "--out", out)
    assert [row["architecture"] for row in record(*words)["rows"]] == ["H2"]
    assert "Table 2, protocol" in done(*words).stdout


def test_other_epochs_are_other_trainings(tmp_path: Path) -> None:
    words = ("reproduce", "table2", "--data", "digits", "--architecture", "H2", "--layers", 0)
    for epochs in (1, 2):
        (row,) = record(*words, "--epochs", epochs, "--out", tmp_path)["rows"]
        assert (row["epochs"], row["seeds"]) == (epochs, 1)
    assert [r["epochs"] for r in Records(tmp_path, table2.KEY).read().values()] == [1, 2]


def test_committed_records_reach_the_published_accuracies() -> None:
    records = Records(COMMITTED, table2.KEY).read().values()
    assert table2.page(records) == (COMMITTED / "README.md").read_text()
    rows = table2.summary(table2.cells("tuned"), records)
    assert (rows.reached == "yes").all()
    assert len(rows) == 10
