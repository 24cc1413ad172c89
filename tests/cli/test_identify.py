"""`hdnn identify` and `hdnn simulate`: the same numbers as in Python, resumed, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hdnn
from commands import command, done, fails, record, write_rows
from hdnn.identification import runs
from hdnn.identification.runs import IdentificationRun

SIZE = ("--states", 1, "--units", 2, "--restarts", 1)
UNREADABLE = ("missing", "empty", "binary", "folder")
SIGNALS = ("--input", "u", "--output", "y")


@pytest.fixture
def recording() -> Path:
    """A saturated first-order system; a column that numbers its rows is of no use."""
    draw = np.random.default_rng(0)
    u = np.repeat(draw.normal(size=30), 10)
    x, y = 0.0, []
    for v in u:
        y.append(20 + 3 * x)
        x += 0.2 * (np.tanh(v) - x)
    return write_rows(Path("data.csv"), k=range(300), t=np.arange(300) / 2, u=u, y=np.array(y))


@pytest.fixture
def run(recording: Path) -> IdentificationRun:
    done("identify", recording, *SIGNALS, "--time", "t", *SIZE, "--out", "run")
    return IdentificationRun.open("run")


def test_the_numbers_are_those_of_the_estimator(recording: Path) -> None:
    words = (*SIGNALS, "--time", "t", *SIZE, "--seed", 3, "--test", 0.0, "--out", "run")
    result = record("identify", recording, *words)
    table = pd.read_csv(recording)
    options = {"states": 1, "units": 2, "restarts": 1, "random_state": 3}
    identifier = hdnn.SystemIdentifier(**options, sampling_time=0.5)
    identifier.fit(table[["u"]], table[["y"]])
    assert result["rate"] == identifier.result_.rate
    assert result["gain"] == identifier.result_.gain
    assert (
        result["fits"]["train"]["network"]["fit"] == identifier.result_.fits["train"]["network"].fit
    )
    assert result["time_constant"] == -0.5 / np.log(result["rate"])


def test_what_a_person_reads(recording: Path) -> None:
    lines = done("identify", recording, *SIGNALS, *SIZE, "--out", "run").stdout
    assert {"test", "network", "linear", "mean"} <= set(lines.split())
    assert "cannot diverge for any bounded input: proved" in lines
    assert "hdnn simulate run INPUTS" in lines
    assert IdentificationRun.open("run").config.identification.test == 0.2


def test_simulated_outputs_are_appended(run: IdentificationRun) -> None:
    """Measured ones, as far as the first rows have them, give the initial state."""
    table, model = pd.read_csv("data.csv"), run.load().model
    table.loc[20:, "y"] = np.nan
    table.to_csv("known.csv", index=False)
    table.drop(columns="y").to_csv("inputs.csv", index=False)
    assert "20 measured outputs" in done("simulate", "run", "known.csv", "--out", "a.csv").stdout
    assert "at rest" in done("simulate", "run", "inputs.csv", "--out", "b.csv").stdout
    a, b = pd.read_csv("a.csv"), pd.read_csv("b.csv")
    assert list(a) == ["k", "t", "u", "y", "y_simulated"]
    assert list(b) == ["k", "t", "u", "y_simulated"]
    u = table[["u"]].to_numpy()
    at_rest = runs.free_run(model, u)[:, 0]
    np.testing.assert_allclose(b["y_simulated"], at_rest, rtol=1e-12)
    truth = pd.read_csv("data.csv")["y"]
    assert abs(a["y_simulated"] - truth)[:5].max() < 0.1 * abs(b["y_simulated"] - truth)[:5].max()
    # What was simulated before is replaced, and experiments begin anew.
    done("simulate", "run", "a.csv", "--out", "c.csv")
    assert Path("c.csv").read_text() == Path("a.csv").read_text()


def test_experiments_are_simulated_one_by_one(recording: Path) -> None:
    table = pd.read_csv(recording).assign(day=np.repeat(["a", "b"], 150))
    table.to_csv("days.csv", index=False)
    done("identify", "days.csv", *SIGNALS, "--experiment", "day", *SIZE, "--out", "run")
    twice = pd.concat([table[:50], table[:50].assign(day="b")]).drop(columns="y")
    twice.to_csv("twice.csv", index=False)
    done("simulate", "run", "twice.csv", "--out", "out.csv")
    simulated = pd.read_csv("out.csv")["y_simulated"].to_numpy()
    np.testing.assert_array_equal(simulated[:50], simulated[50:])


def test_byte_order_mark_and_decimal_commas_are_read(recording: Path) -> None:
    table = pd.read_csv(recording)
    table.to_csv("mark.csv", index=False, encoding="utf-8-sig")
    table.to_csv("comma.csv", index=False, sep=";", decimal=",")
    files = (recording, "mark.csv", "comma.csv")
    found = [record("identify", file, *SIGNALS, *SIZE, "--out", f"run-{file}") for file in files]
    assert found[1]["fits"] == found[2]["fits"] == found[0]["fits"]


def test_a_run_goes_on_where_it_stopped(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ("--states", "1,2", "--units", 2, "--restarts", 1)
    words = ("identify", recording, *SIGNALS, *sizes, "--out")
    whole = record(*words, "whole")
    fitted, fit = [], runs.identify.__globals__["fit"]

    def interrupted(model, names, *rest, **options):  # type: ignore[no-untyped-def]
        if len(fitted) == 3:
            raise KeyboardInterrupt
        fitted.append(model.units)
        return fit(model, names, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setitem(runs.identify.__globals__, "fit", interrupted)
        stopped = command(*words, "part")
    assert stopped.exit_code == 130
    assert "hdnn identify --resume part" in stopped.stderr
    fails(2, ("simulate", "part", recording, "--out", "a.csv"), "not finished")
    result = record("identify", "--resume", "part")
    assert (result["fits"], result["gain"]) == (whole["fits"], whole["gain"])
    assert len(fitted) == 3
    assert "nothing to do" in done("identify", "--resume", "part").stdout
    fails(2, (*words, "part"), "--overwrite")
    fails(2, (*words, "part", "--seed", 1), "another config")
    assert record(*words, "part", "--seed", 1, "--overwrite")["run"] == "part"


def test_other_commands_take_its_runs(run: IdentificationRun, recording: Path) -> None:
    own = record("evaluate", "run")
    assert own["test"]["network"]["fit"] == run.load().fits["test"]["network"].fit
    assert record("evaluate", "run", recording)["data.csv"]["network"]["fit"] > 0.9
    done("export", "run", "--out", "model.c")
    assert "hdnn_step" in Path("model.c").read_text()
    fails(2, ("predict", "run", recording), "run of hdnn identify")
    fails(2, ("evaluate", "run", recording, "--target", "y"), "--target is for tables")


def test_a_run_of_linear_models_only(recording: Path) -> None:
    """No network is tried, none is said to have lost, and every command takes the run."""
    words = ("identify", recording, *SIGNALS, "--states", "1,2", "--units", 0, "--out", "run")
    lines = done(*words).stdout
    assert "linear: the best of 2 models" in lines
    assert "No network" not in lines
    result = IdentificationRun.open("run").load()
    assert [(c["states"], c["units"]) for c in result.candidates] == [(1, 0), (2, 0)]
    done("simulate", "run", recording, "--out", "a.csv")
    simulated = pd.read_csv("a.csv")[["y_simulated", "y"]].to_numpy()[50:]
    assert np.corrcoef(simulated.T)[0, 1] > 0.9
    done("report", "run")
    page = Path("run/report.html").read_text()
    assert "no network was fitted" in page
    assert "No network was better" not in page
    assert record("evaluate", "run")["test"]["network"]["fit"] == result.fits["test"]["linear"].fit
    done("export", "run", "--out", "model.c")
    assert "hdnn_step" in Path("model.c").read_text()


def test_data_sets_by_name() -> None:
    words = ("two-tanks", "--states", 1, "--units", 1, "--restarts", 1, "--out", "run")
    assert set(record("identify", *words)["fits"]) == {"train", "validation", "test"}
    assert json.loads(Path("run/identification.json").read_text())["output_names"] == ["level"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to identify from"),
        (("nothing",), "unknown recording 'nothing'"),
        (("data.csv", "--input", "u"), "--output NAME"),
        (("data.csv", "--input", "u", "--output", "v"), "unknown column 'v'"),
        (("data.csv", "--input", "u", "--output", "u"), "is an input and an output"),
        (("missing.csv", *SIGNALS), "missing.csv"),
        (("two-tanks", "--input", "pump"), "are known"),
        (("two-tanks", "--test", 0.5), "are known"),
        (("data.csv", *SIGNALS, "--states", "two"), "--states takes integers"),
        (("data.csv", *SIGNALS, "--states", 0), "states"),
        (("data.csv", *SIGNALS, "--test", 1.5), "test"),
        (("data.csv", *SIGNALS, "--time", "t", "--sampling-time", 1), "not both"),
        (("data.csv", *SIGNALS, "--time", "uneven"), "line 12"),
        (("data.csv", "--input", "u", "--output", "gap"), "line 7"),
        (("data.csv", "--input", "u", "--output", "word"), "line 4"),
        (("data.csv", "--input", "u", "--output", "constant"), "constant"),
        (("short.csv", *SIGNALS), "at least"),
        (("header.csv", *SIGNALS), "0 rows"),
        (("twice.csv", *SIGNALS), "rename all but one"),
        (("empty.csv", *SIGNALS), "is empty"),
        (("binary.csv", *SIGNALS), "binary.csv"),
        (("folder.csv", *SIGNALS), "not a regular file"),
        (("data.csv", *SIGNALS, "--time", "dates"), "a gap at line 102"),
        (("data.csv", *SIGNALS, "--time", "back"), "sort the rows by time"),
        (("data.csv", "slow.csv", *SIGNALS, "--time", "t"), "resample one of them"),
        (("data.csv", "other.csv", *SIGNALS), "other.csv, line 1: unknown column 'u'"),
        (("data.csv", "--input", "infinite", "--output", "y"), "data.csv: column 'infinite'"),
        (("data.csv", "--input", "valve", "--output", "y"), "or name another column"),
        (("data.csv", *SIGNALS, "--output", "constant"), "'constant' is constant (1)"),
        (("data.csv", *SIGNALS, "--output", "y"), "'y' is given twice"),
        (("data.csv", "--input", "u", "--output", "huge"), "another unit"),
        (("data.csv", "--input", "tiny", "--output", "y"), "another unit"),
        (("data.csv", *SIGNALS, "--experiment", "day"), "day '1' has 10 rows"),
        (("data.csv", *SIGNALS, "--states", 1000), "at most 24"),
        (("data.csv", *SIGNALS, "--units", 1000), "at most 24"),
        (("data.csv", *SIGNALS, "--units", -1), "units"),
        (("data.csv", *SIGNALS, "--restarts", 0), "restarts"),
        (("data.csv", *SIGNALS, "--jobs", 0), "jobs is 0"),
        (("--resume", "none"), "no identify.toml"),
        (("--resume", "none", "--units", 0), "takes no other settings"),
    ],
)
def test_what_is_no_request(recording: Path, words: tuple[object, ...], said: str) -> None:
    table = pd.read_csv(recording)
    table["uneven"] = table["t"] + (table.index > 9)
    table["gap"] = table["y"].mask(table.index == 5)
    table["word"] = table["y"].astype(str).mask(table.index == 2, "n/k")
    table["constant"] = 1.0
    table["dates"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        table["k"] + 3600 * (table["k"] >= 100), unit="s"
    )
    table["back"] = -table["t"]
    table["infinite"] = table["u"].mask(table.index == 7, np.inf)
    table["valve"] = np.where(table["u"] > 0, "open", "shut")
    table["huge"], table["tiny"] = 1e300 * table["y"], 1e-200 * table["u"]
    table["day"] = (table["k"] >= 290).astype(int)
    table.to_csv(recording, index=False)
    table.assign(t=2 * table["t"]).to_csv("slow.csv", index=False)
    table.drop(columns="u").to_csv("other.csv", index=False)
    Path("header.csv").write_text("u,y\n")
    Path("twice.csv").write_text("u,y,u\n" + 30 * "1,2,3\n")
    Path("empty.csv").touch()
    Path("binary.csv").write_bytes(np.random.default_rng(0).bytes(5000))
    Path("folder.csv").mkdir()
    table[:10].to_csv("short.csv", index=False)
    unreadable = words[:1] and str(words[0]).split(".")[0] in UNREADABLE
    fails(1 if unreadable else 2, ("identify", *words), said)
    assert not Path("runs").exists() or not any(Path("runs").rglob("model.safetensors"))
