"""Experiments of the paper: Table 1 and Table 2, the store, sweeps, tables."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.errors import HdnnError, StorageError
from hdnn.files import DamagedFileWarning
from hdnn.paper import planar, render, table1, table2
from hdnn.paper.engines import Engine
from hdnn.paper.experiment import Experiment, Progress, find, silent
from hdnn.paper.store import LOCK, Record, Store
from hdnn.training.runs import Run, read_history

ROOT = Path(__file__).parents[1]


def record(
    seed: int = 0, accuracy: float = 0.5, layers: int = 4, protocol: str = "tuned"
) -> Record:
    return Record("swiss-roll", "H1", layers, protocol, "paper", seed, 1.0, 0.5, accuracy, 0.1, "0")


def stub(cell: table1.Cell, seeds: Sequence[int], say: object = None) -> Iterator[list[Record]]:
    yield [
        replace(record(seed), data=cell.data, architecture=cell.architecture, layers=cell.layers)
        for seed in seeds
    ]


# --- cells ----------------------------------------------------------------------------------------


def test_published_values_are_the_papers() -> None:
    table = {(c.data, c.architecture, c.layers): c for c in table1.cells()}
    assert len(table) == 40
    assert table["swiss-roll", "H2", 4].published == 98.9
    assert table["swiss-roll", "MS3", 8].published == 87.0
    assert table["double-moons", "MS2", 2].published == 94.9
    assert (table["double-moons", "MS1", 1].row, table["double-moons", "MS1", 1].column) == (6, 1)


@pytest.mark.parametrize("name", table1.PROTOCOLS)
def test_every_cell_has_frozen_settings(name: str) -> None:
    chosen = table1.PROTOCOLS[name]
    for cell in table1.cells():
        settings = table1.settings(name, cell)
        for field, allowed in chosen.choices.items():
            assert getattr(settings, field) in allowed


def test_filters_repeat_and_refuse_what_is_not_in_the_table() -> None:
    found = table1.select(["double-moons"], ["h1", "MS2"], [1, 4])
    assert {(c.architecture, c.layers) for c in found} == {
        ("H1", 1),
        ("H1", 4),
        ("MS2", 1),
        ("MS2", 4),
    }
    assert len(table1.select()) == 40
    with pytest.raises(HdnnError, match=r"layers \[5\]; swiss-roll has 4 8 16 32 64"):
        table1.select(["swiss-roll"], [], [5])
    with pytest.raises(HdnnError, match="unknown architecture of Table 1 'H3'"):
        table1.select([], ["H3"])
    with pytest.raises(HdnnError, match="did you mean 'tuned'"):
        find("protocol", "tund", table1.PROTOCOLS)


# --- records --------------------------------------------------------------------------------------


def test_a_key_is_recorded_once(tmp_path: Path) -> None:
    store = Store(tmp_path, Record)
    store.add([record(1), record(0)])
    store.add([record(1, accuracy=0.9), record(2)])
    assert [r.seed for r in store.read().values()] == [0, 1, 2]
    assert next(r for r in store.read().values() if r.seed == 1).test_accuracy == 0.5
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert all(set(json.loads(line)) == set(Record.__dataclass_fields__) for line in lines)
    assert {path.name for path in tmp_path.iterdir()} == {"records.jsonl", LOCK}


def test_a_torn_last_line_does_not_count_and_a_torn_other_is_set_aside(tmp_path: Path) -> None:
    store = Store(tmp_path, Record)
    store.add([record(0), record(1)])
    whole = store.path.read_text()
    store.path.write_text(whole[:-20])
    assert [r.seed for r in store.read().values()] == [0]
    store.path.write_text(whole[10:])
    with pytest.warns(DamagedFileWarning, match="1 of 2 lines .*line 1"):
        assert [r.seed for r in store.read().values()] == [1]
    with pytest.warns(DamagedFileWarning):
        store.add([record(2)])
    assert [r.seed for r in store.read().values()] == [1, 2]  # no warning any more
    damaged = tmp_path / "records.jsonl.damaged"
    assert damaged.read_text() == whole[10:].splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "0"),
        ("seed", True),
        ("seed", 2**63),
        ("layers", 4.0),
        ("layers", None),
        ("test_accuracy", math.nan),
        ("test_accuracy", "0.5"),
        ("seconds", 10**200),
        ("seconds", [0.1]),
        ("data", 5),
        ("data", ["swiss-roll"]),
        ("version", None),
        ("more", 1),
    ],
)
def test_a_line_is_a_record_only_if_its_types_are_right(
    tmp_path: Path, name: str, value: object
) -> None:
    store = Store(tmp_path, Record)
    line = json.dumps({**asdict(record(1)), name: value})
    store.path.write_text(f"{json.dumps(asdict(record(0)))}\n{line}\n")
    with pytest.warns(DamagedFileWarning, match="line 2"):
        assert [r.seed for r in store.read().values()] == [0]


ADD = """
import sys
from hdnn.paper.store import Record, Store
store, first = Store(sys.argv[1], Record), int(sys.argv[2])
print("ready", flush=True)
input()
for seed in range(first, first + 20):
    store.add([Record("swiss-roll", "H1", 4, "tuned", "paper", seed, 1.0, 0.5, 0.5, 0.1, "0")])
"""


def test_several_processes_add_records_and_none_is_lost(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ADD, str(tmp_path)]
    runs = [
        subprocess.Popen([*words, str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for k in (0, 20, 40)
    ]
    try:
        for run in runs:
            assert run.stdout is not None
            assert run.stdout.readline() == "ready\n"
        for run in runs:
            run.communicate("go\n", timeout=120)
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert [r.seed for r in Store(tmp_path, Record).read().values()] == list(range(60))


def test_records_need_no_module_that_windows_lacks() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import hdnn.paper.store"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_second_call_does_only_what_is_missing(tmp_path: Path) -> None:
    asked: list[tuple[int, ...]] = []

    def run(cell: table1.Cell, seeds: Sequence[int], say: object = None) -> Iterator[list[Record]]:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(tuple(seeds))
        return stub(cell, seeds)

    store, cells = Store(tmp_path, Record), table1.select(["swiss-roll"], ["H1"])
    interrupted = replace(table1.table1(wanted=cells), run=run)
    with pytest.raises(KeyboardInterrupt):
        interrupted.sweep(range(3), store)
    assert len(store.read()) == 6
    again: list[tuple[int, ...]] = []
    seen: list[tuple[int, int]] = []
    whole: Experiment[table1.Cell, Record] = replace(
        interrupted, run=lambda cell, seeds, say: again.append(seeds) or stub(cell, seeds)
    )
    whole.sweep(range(4), store, progress=lambda done, total, _: seen.append((done, total)))
    assert again == [(3,), (3,), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert seen[0] == (0, 14)
    assert seen[-1] == (14, 14)
    assert len(store.read()) == 20


def test_tasks_are_so_many_seeds_of_all_cells_then_the_next(tmp_path: Path) -> None:
    cells = table1.select(["swiss-roll"], ["H1", "H2"], [4])
    experiment = replace(table1.table1(wanted=cells), run=stub, together=2)
    tasks = [(c.architecture, seeds) for c, seeds in experiment.missing((), range(3), 2)]
    assert tasks == [("H1", (0, 1)), ("H2", (0, 1)), ("H1", (2,)), ("H2", (2,))]
    records = experiment.sweep(range(3))
    assert [r.seed for r in records] == [0, 1, 0, 1, 2, 2]
    assert [(g.cell, g.seeds) for g in experiment.groups(records)] == [(c, 3) for c in cells]
    due = replace(experiment, due=lambda cell, seed: seed == 1)
    assert [s for _, s in due.missing({r.key for r in records}, range(3), 2)] == [(1,), (1,)]


def test_seeds_are_independent_of_how_they_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed gives the same network alone, in a task, and with restarts of one."""
    cell = table1.select(["double-moons"], ["H1"], [2])[0]
    quick = table1.PROTOCOLS["tuned"]
    quick = replace(quick, training=replace(quick.training, epochs=2))
    settings = table1.Settings(1.0, 0.05, 1.0, "append")
    together = table1.train(cell, quick, settings, "paper", [5, 6, 7])
    alone = table1.train(cell, quick, settings, "paper", [6])
    assert together.test_accuracy[1] == alone.test_accuracy[0]
    assert (together.V[1] == alone.V[0]).all()


def test_restarts_keep_the_lowest_training_loss() -> None:
    cell = table1.select(["double-moons"], ["MS3"], [1])[0]
    quick = table1.PROTOCOLS["tuned"]
    quick = replace(quick, training=replace(quick.training, epochs=3))
    settings = table1.Settings(1.0, 0.1, 1.0, "append")
    single = table1.train(cell, quick, settings, "paper", [5, 6])
    many = table1.train(cell, replace(quick, restarts=6), settings, "paper", [5, 6])
    assert many.network.ensemble == 2
    assert len(many.test_accuracy) == 2
    assert all(
        m >= s - 0.02 for m, s in zip(many.train_accuracy, single.train_accuracy, strict=True)
    )
    assert sum(many.train_accuracy) > sum(single.train_accuracy)


def test_choosing_settings_never_sees_the_test_part() -> None:
    part = planar.part("swiss-roll", "paper", 3, held_out=True)
    whole = planar.part("swiss-roll", "paper", 3, held_out=False)
    rows = {tuple(row) for row in whole.X_test.tolist()}
    assert not rows & {tuple(row) for row in part.X_test.tolist()}
    assert not rows & {tuple(row) for row in part.X_train.tolist()}
    assert (len(part.X_train), len(part.X_test)) == (4000, 1000)


def test_engines_and_names_are_checked() -> None:
    for build, match in (
        (lambda: table1.table1("nope"), "protocol"),
        (lambda: table1.table1("tuned", "nope"), "split"),
        (lambda: Engine("dusk"), "dask"),
        (lambda: Engine("dask"), "--address"),
    ):
        with pytest.raises(HdnnError, match=match):
            build()


def test_processes_give_the_records_of_one(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    experiment = table1.table1(wanted=table1.select(["double-moons"], ["H1"], [1]))
    here = experiment.sweep(range(2))
    there = experiment.sweep(range(2), Store(tmp_path, Record), Engine("local", workers=2))
    assert [replace(r, seconds=0) for r in there] == [replace(r, seconds=0) for r in here]


def test_a_dask_worker_and_the_scheduler_may_be_killed(tmp_path: Path) -> None:
    """A real scheduler and two worker processes; one dies; no record is lost or doubled.

    Then the scheduler ends as well: that is an error, and no record is lost.
    """
    distributed = pytest.importorskip("distributed")
    chosen = table1.select(["double-moons"], [], [1])
    store = Store(tmp_path, Record)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        killed = []

        def progress(done: int, total: int, words: str) -> None:
            if done and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.process.kill())

        engine = Engine("dask", address=cluster.scheduler_address)
        table1.table1(wanted=chosen).sweep(range(5), store, engine, progress)
        assert len(killed) == 1
        assert len(store.path.read_text().splitlines()) == len(store.read()) == 5 * len(chosen)
        lost: list[int] = []

        def lose(done: int, total: int, words: str) -> None:
            if done and not lost:
                lost.append(done)
                cluster.close()

        deep = table1.table1(wanted=table1.select(["swiss-roll"], ["H1", "H2"], [64]))
        with pytest.raises(HdnnError, match=r"engine dask failed.*repeat the command"):
            deep.sweep(range(5), store, engine, lose)
    assert lost[0] > 0
    assert len(store.read()) >= 5 * len(chosen) + lost[0]


# --- summaries ------------------------------------------------------------------------------------


def test_statistics_and_the_mark_at_the_papers_rounding() -> None:
    experiment = table1.table1(wanted=table1.select(["swiss-roll"], ["H1"], [4]))  # 93.6 %

    def row(*accuracies: float) -> dict[str, object]:
        records = [record(seed, accuracy) for seed, accuracy in enumerate(accuracies)]
        return render.Table(table1.COLUMNS, experiment.groups(records)).data()[0]

    found = row(0.90, 0.95, 0.9565)
    assert (found["minimum"], found["maximum"], found["median"]) == (90.0, 95.65, 95.0)
    assert found["seeds"] == 3
    assert found["mean"] == pytest.approx(93.55)
    assert found["deviation"] == pytest.approx(3.0915, abs=1e-3)
    assert row(0.9356)["reached"]
    assert not row(0.9354)["reached"]
    assert table1.table1("paper").groups([record(0)]) == []


def test_tables_say_the_same_in_every_form() -> None:
    experiment = table1.table1(wanted=table1.select(["swiss-roll"], ["H1"]))
    records = [record(s, 0.97, layers=c.layers) for c in experiment.cells for s in range(2)]
    rows = experiment.groups(records)
    table = render.Table(table1.COLUMNS, rows)
    assert table.markdown().count("\n") == 2 + len(rows)
    found = list(csv.DictReader(io.StringIO(table.csv())))
    assert [float(line["mean"]) for line in found] == [pytest.approx(97.0)] * len(rows)
    assert json.loads(json.dumps(table.data())) == table.data()
    assert "| swiss-roll, 4 | 93.6 / **97.0 ± 0.0** |" in table1.compact(rows)
    assert "| swiss-roll, 8 | 99.0 / 97.0 ± 0.0 |" in table1.compact(rows)
    page = table.html("a <title>")
    assert page.count("<tr class=") == len(rows)
    assert "a &lt;title&gt;" in page
    wide, narrow = (
        [c.header for c in table.terminal("title", width).columns] for width in (200, 60)
    )
    assert wide == [column.heading for column in table1.COLUMNS if column.heading]
    assert [heading for heading in wide if heading in narrow] == narrow
    assert "median" not in narrow
    assert "mean" in narrow
    with pytest.raises(HdnnError, match="no marks"):
        render.fill("nothing", "table1", "table")


def test_committed_tables_agree_with_the_records() -> None:
    folder = ROOT / "results" / "table1"
    records = list(Store(folder, Record).read().values())
    rows = table1.table1("tuned", "paper").groups(records)
    assert len(rows) == 40
    assert all(row.seeds == 20 for row in rows)
    readme = (ROOT / "README.md").read_text()
    assert render.fill(readme, "table1", table1.compact(rows)) == readme
    for protocol in ("tuned", "paper"):
        for kind in ("paper", "independent"):
            rows = table1.table1(protocol, kind).groups(records)
            title = f"Table 1, protocol {protocol}, split {kind}"
            for ending, text in table1.pages(rows, title).items():
                assert text == (folder / f"table1-{protocol}-{kind}.{ending}").read_text()


# --- Table 2 --------------------------------------------------------------------------------------


def test_the_ten_cells_of_table_2() -> None:
    cells = table2.select()
    assert len(cells) == 10
    assert {(c.architecture, c.layers): c.test for c in cells}["H2", 8] == 98.22
    assert table2.select(["ms1"], [16])[0].train == 100.0
    assert {c.layers for c in table2.select(["convolution"])} == {2, 4, 8, 16}
    steps = [table2.run_config(c, table2.protocol("paper"), 0).model.step for c in cells]  # type: ignore[union-attr]
    assert steps == [0.4] * 5 + [0.05] * 5
    for wrong in ({"architecture": ["H1"]}, {"layers": [3]}):
        with pytest.raises(HdnnError, match="Table 2"):
            table2.select(**wrong)  # type: ignore[arg-type]


def test_tuned_has_the_same_networks() -> None:
    for cell in table2.select():
        ours, papers = (table2.run_config(cell, table2.protocol(n), 0) for n in ("tuned", "paper"))
        assert replace(ours.model, scale=1.0) == papers.model
        assert not ours.training.distorts
        assert (ours.training.epochs, ours.training.batch_size) == (40, 100)


def test_records_of_table_2_are_made_once_and_survive_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(folder: Path, progress: Progress = silent) -> list[table2.ImageRecord]:
        cells, protocol = table2.select(["H2"], [0, 2]), table2.protocol("paper")
        experiment = table2.table2(protocol, folder, cells, data="digits", epochs=2)
        return experiment.sweep([0], Store(folder, table2.ImageRecord), progress=progress)

    def kill(done: int, total: int, words: str) -> None:
        if "H2-2" in words and "epoch 1," in words:
            raise KeyboardInterrupt

    out = tmp_path / "records"
    with pytest.raises(KeyboardInterrupt):
        sweep(out, kill)
    assert len(Store(out, table2.ImageRecord).read()) == 1
    begun = [read_history(path) for path in tmp_path.glob("*.unfinished/*/history.jsonl")]
    assert [len(entries) for entries in begun] == [1]
    records = sweep(out)
    assert [r.layers for r in records] == [0, 2]
    assert [p.name for p in tmp_path.rglob("*.jsonl")] == ["records.jsonl"]
    assert [p.name for p in tmp_path.iterdir()] == ["records"]
    for a, b in zip(records, sweep(tmp_path / "whole"), strict=True):
        assert (a.train_accuracy, a.test_accuracy) == (b.train_accuracy, b.test_accuracy)
    monkeypatch.setattr(table2, "train_cell", lambda *_, **__: pytest.fail("trained twice"))
    sweep(out)


def test_a_checkpoint_stays_until_its_record_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk between training and record costs no training."""
    cells, folder = table2.select(["H2"], [0]), tmp_path / "records"
    experiment = table2.table2(table2.protocol("paper"), folder, cells, data="digits", epochs=1)
    store = Store(folder, table2.ImageRecord)

    def full(records: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", full)
        with pytest.raises(StorageError):
            experiment.sweep([0], store)
    assert list(tmp_path.glob("*.unfinished/*/model.safetensors"))
    monkeypatch.setattr(Run, "train", lambda *_, **__: pytest.fail("trained twice"))
    assert len(experiment.sweep([0], store)) == 1
    assert not list(tmp_path.glob("*.unfinished"))


def test_the_summary_counts_what_is_reached() -> None:
    record = table2.ImageRecord(
        "mnist", "H2", 8, "paper", "standard", 0, 0.4, 0.997, 0.9820, 1.0, "0", epochs=40
    )
    records = [record, replace(record, seed=1, test_accuracy=0.9826)]
    rows = table2.table2(table2.protocol("paper")).groups(records)
    (row,) = render.Table(table2.COLUMNS, rows).data()
    assert row["test"] == pytest.approx(98.23)
    assert row["deviation"] == pytest.approx(0.06 / 2**0.5)
    assert row["reached"]
    page = table2.page([replace(r, test_accuracy=0.98) for r in records])
    assert "in 0 of 1 cells" in page
    assert "98.22 | 98.00" in page


def test_the_committed_page_of_table_2_agrees_with_the_records() -> None:
    folder = ROOT / "results" / "table2"
    records = Store(folder, table2.ImageRecord).read().values()
    assert table2.page(records) == (folder / "README.md").read_text()


# --- the command line -----------------------------------------------------------------------------


def test_reproduce_writes_records_tables_and_figures(tmp_path: Path) -> None:
    def command(*words: object) -> str:
        result = CliRunner().invoke(app, ["reproduce", *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    flags = ("--data", "double-moons", "--architecture", "h1", "--layers", 1, "--seeds", 2)
    shown = json.loads(command("table1", *flags, "--out", tmp_path, "--json"))
    assert [(row["layers"], row["seeds"]) for row in shown["rows"]] == [(1, 2)]
    assert shown["rows"][0]["mean"] > 99
    again = (tmp_path / "records.jsonl").read_text()
    assert "of 1 cells" in command("table1", *flags, "--out", tmp_path)
    assert (tmp_path / "records.jsonl").read_text() == again
    kinds = {path.suffix for path in tmp_path.iterdir() if path.name != LOCK}
    assert kinds == {".jsonl", ".md", ".csv", ".html"}
    command("depth", tmp_path, "--out", tmp_path / "depth.svg")
    assert (tmp_path / "depth.svg").read_text().startswith("<?xml")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table1 -->\nold\n<!-- end of table1 -->\nafter\n")
    command("readme", tmp_path, "--page", page)
    assert "double-moons, 1" in page.read_text()
    assert "old" not in page.read_text()
    refused = CliRunner().invoke(
        app, ["reproduce", "table1", "--out", str(tmp_path), "--layers", "3"]
    )
    assert refused.exit_code == 2
