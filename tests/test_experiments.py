"""Table 1: specs, records, sweeps, summaries."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.errors import HdnnError
from hdnn.experiments import cells, specs, summary, sweep
from hdnn.experiments.records import LOCK, Record, Store
from hdnn.files import DamagedFileWarning

ROOT = Path(__file__).parents[1]


def record(
    seed: int = 0, accuracy: float = 0.5, layers: int = 4, protocol: str = "tuned"
) -> Record:
    return Record("swiss-roll", "H1", layers, protocol, "paper", seed, 1.0, 0.5, accuracy, 0.1, "0")


def stub(task: sweep.Task, threads: int | None = None) -> list[Record]:
    c = task.cell
    return [
        Record(
            c.data,
            c.architecture,
            c.layers,
            task.protocol,
            task.split,
            seed,
            1.0,
            0.5,
            0.5,
            0.1,
            "0",
        )
        for seed in task.seeds
    ]


# --- specs ----------------------------------------------------------------------------------------


def test_published_values_are_the_papers() -> None:
    table = {(c.data, c.architecture, c.layers): c for c in specs.table1()}
    assert len(table) == 40
    assert table["swiss-roll", "H2", 4].published == 98.9
    assert table["swiss-roll", "MS3", 8].published == 87.0
    assert table["double-moons", "MS2", 2].published == 94.9
    assert (table["double-moons", "MS1", 1].row, table["double-moons", "MS1", 1].column) == (6, 1)


@pytest.mark.parametrize("name", specs.PROTOCOLS)
def test_every_cell_has_frozen_settings(name: str) -> None:
    chosen = specs.protocol(name)
    for cell in specs.table1():
        settings = specs.settings(name, cell)
        for field, allowed in chosen.choices.items():
            assert getattr(settings, field) in allowed


def test_filters_repeat_and_refuse_what_is_not_in_the_table() -> None:
    found = specs.select(["double-moons"], ["h1", "MS2"], [1, 4])
    assert {(c.architecture, c.layers) for c in found} == {
        ("H1", 1),
        ("H1", 4),
        ("MS2", 1),
        ("MS2", 4),
    }
    assert len(specs.select()) == 40
    with pytest.raises(HdnnError, match="swiss-roll has 4 8 16 32 64"):
        specs.select(["swiss-roll"], [], [5])
    with pytest.raises(HdnnError, match="did you mean 'tuned'"):
        specs.protocol("tund")


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
from hdnn.experiments.records import Record, Store
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
    code = "import sys; sys.modules['fcntl'] = None; import hdnn.experiments.records"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_second_call_does_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[sweep.Task] = []

    def failing(task: sweep.Task, threads: int | None = None) -> list[Record]:
        if len(tasks) == 2:
            raise KeyboardInterrupt
        tasks.append(task)
        return stub(task)

    monkeypatch.setattr(sweep, "run_task", failing)
    store, chosen = Store(tmp_path, Record), specs.select(["swiss-roll"], ["H1"])
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(store, chosen, "tuned", "paper", range(3))
    assert len(store.read()) == 6
    again: list[sweep.Task] = []
    monkeypatch.setattr(sweep, "run_task", lambda task: again.append(task) or stub(task))
    seen: list[tuple[int, int]] = []
    sweep.sweep(
        store,
        chosen,
        "tuned",
        "paper",
        range(4),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [task.seeds for task in again] == [(3,), (3,), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert seen[0] == (0, 14)
    assert seen[-1] == (14, 14)
    assert len(store.read()) == 20


def test_seeds_are_independent_of_how_they_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed gives the same network alone, in a task, and with restarts of one."""
    cell = specs.select(["double-moons"], ["H1"], [2])[0]
    quick = specs.protocol("tuned")
    quick = replace(quick, training=replace(quick.training, epochs=2))
    settings = specs.Settings(1.0, 0.05, 1.0, "append")
    together = cells.train(cell, quick, settings, "paper", [5, 6, 7])
    alone = cells.train(cell, quick, settings, "paper", [6])
    assert together.test_accuracy[1] == alone.test_accuracy[0]
    assert (together.V[1] == alone.V[0]).all()


def test_restarts_keep_the_lowest_training_loss() -> None:
    cell = specs.select(["double-moons"], ["MS3"], [1])[0]
    quick = specs.protocol("tuned")
    quick = replace(quick, training=replace(quick.training, epochs=3))
    settings = specs.Settings(1.0, 0.1, 1.0, "append")
    single = cells.train(cell, quick, settings, "paper", [5, 6])
    many = cells.train(cell, replace(quick, restarts=6), settings, "paper", [5, 6])
    assert many.network.ensemble == 2
    assert len(many.test_accuracy) == 2
    assert all(
        m >= s - 0.02 for m, s in zip(many.train_accuracy, single.train_accuracy, strict=True)
    )
    assert sum(many.train_accuracy) > sum(single.train_accuracy)


def test_choosing_settings_never_sees_the_test_part() -> None:
    part = cells._part("swiss-roll", "paper", 3, held_out=True)
    whole = cells._part("swiss-roll", "paper", 3, held_out=False)
    rows = {tuple(row) for row in whole.X_test.tolist()}
    assert not rows & {tuple(row) for row in part.X_test.tolist()}
    assert not rows & {tuple(row) for row in part.X_train.tolist()}
    assert (len(part.X_train), len(part.X_test)) == (4000, 1000)


def test_engines_and_names_are_checked(tmp_path: Path) -> None:
    for words, match in (
        ({"name": "nope"}, "protocol"),
        ({"split": "nope"}, "split"),
        ({"engine": "dusk"}, "dask"),
        ({"engine": "dask"}, "--address"),
    ):
        given = {"name": "tuned", "split": "paper", **words}
        with pytest.raises(HdnnError, match=match):
            sweep.sweep(Store(tmp_path, Record), specs.select(), seeds=[0], **given)  # type: ignore[arg-type]


def test_a_dask_worker_and_the_scheduler_may_be_killed(tmp_path: Path) -> None:
    """A real scheduler and two worker processes; one dies; no record is lost or doubled.

    Then the scheduler ends as well: that is an error, and no record is lost.
    """
    distributed = pytest.importorskip("distributed")
    chosen = specs.select(["double-moons"], [], [1, 2])
    store = Store(tmp_path, Record)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        killed = []

        def progress(done: int, total: int) -> None:
            if done and not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.process.kill())

        sweep.sweep(
            store,
            chosen,
            "tuned",
            "paper",
            range(5),
            engine="dask",
            address=cluster.scheduler_address,
            progress=progress,
        )
        assert len(killed) == 1
        assert len(store.path.read_text().splitlines()) == len(store.read()) == 5 * len(chosen)
        lost: list[int] = []

        def lose(done: int, total: int) -> None:
            if done and not lost:
                lost.append(done)
                cluster.close()

        with pytest.raises(HdnnError, match=r"engine dask failed.*repeat the command"):
            sweep.sweep(
                store,
                specs.select(["swiss-roll"], [], [64]),
                "tuned",
                "paper",
                range(5),
                engine="dask",
                address=cluster.scheduler_address,
                progress=lose,
            )
    assert lost[0] > 0
    assert len(store.read()) >= 5 * len(chosen) + lost[0]


# --- summaries ------------------------------------------------------------------------------------


def test_statistics_and_the_mark_at_the_papers_rounding() -> None:
    cell = specs.select(["swiss-roll"], ["H1"], [4])[0]  # 93.6 %
    records = [record(s, a) for s, a in enumerate((0.90, 0.95, 0.9565))]
    row = summary.summarise([cell], records, "tuned", "paper")[0]
    assert (row.minimum, row.maximum, row.median, row.seeds) == (90.0, 95.65, 95.0, 3)
    assert row.mean == pytest.approx(93.55)
    assert row.deviation == pytest.approx(3.0915, abs=1e-3)
    assert replace(row, mean=93.56).reached
    assert not replace(row, mean=93.54).reached
    assert summary.summarise([cell], records, "paper", "paper") == []


def test_tables_say_the_same_in_every_form() -> None:
    chosen = specs.select(["swiss-roll"], ["H1"])
    records = [record(s, 0.97, layers=c.layers) for c in chosen for s in range(2)]
    rows = summary.summarise(chosen, records, "tuned", "paper")
    assert summary.markdown(rows).count("\n") == 2 + len(rows)
    found = list(csv.DictReader(io.StringIO(summary.comma_separated(rows))))
    assert [float(line["mean"]) for line in found] == [pytest.approx(97.0)] * len(rows)
    assert "| swiss-roll, 4 | 93.6 / **97.0 ± 0.0** |" in summary.compact(rows)
    assert "| swiss-roll, 8 | 99.0 / 97.0 ± 0.0 |" in summary.compact(rows)
    page = summary.page(rows, "a <title>")
    assert page.count("<tr class=") == len(rows)
    assert "a &lt;title&gt;" in page
    with pytest.raises(HdnnError, match="no marks"):
        summary.fill("nothing", "table")


def test_readme_agrees_with_the_records() -> None:
    records = Store(ROOT / "results" / "table1", Record).read().values()
    rows = summary.summarise(specs.select(), records, "tuned", "paper")
    assert len(rows) == 40
    assert all(row.seeds == 20 for row in rows)
    readme = (ROOT / "README.md").read_text()
    assert summary.fill(readme, summary.compact(rows)) == readme


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
