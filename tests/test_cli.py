"""The command line: every command, what it prints and writes, and every error a user can meet."""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import hdnn
from hdnn.cli import app, base, use
from hdnn.cli import demo as demo_module
from hdnn.cli import train as train_module
from hdnn.data import iter_rows
from hdnn.errors import HdnnError
from hdnn.training.runs import Run

COMMANDS = ("train", "predict", "evaluate", "report", "animate", "info", "demo")
QUICK = ("--layers", 3, "--epochs", 5, "--batch-size", 20)
ROLL = ("swiss-roll", "--size", 200, "--layers", 3, "--epochs", 4)


def changed(words: tuple[object, ...], *changes: object) -> tuple[object, ...]:
    """Words with other options in the place of theirs: an option is given once."""
    kept = list(words)
    for option in {*changes} & {*words}:
        if str(option).startswith("--"):
            del kept[kept.index(option) : kept.index(option) + 2]
    return (*kept, *changes)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def done(*words: object) -> Result:
    result = command(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(result: Result, code: int, *words: str) -> None:
    """One message, no traceback, nothing on standard output."""
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def strict_json(text: str) -> Any:
    def fail(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=fail)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, names: list[str], columns: list[Any]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*columns, strict=True))
    return path


# --- three tables that users have, and the runs trained on them -----------------------------------


@dataclass(frozen=True)
class Trained:
    """A table and the run that was trained on it by the command line."""

    table: Path
    run: Path
    result: Result


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(150, 3))


@pytest.fixture(scope="module")
def labeled(home: Path, numbers: np.ndarray) -> Trained:
    """String labels, an odd number of features, missing values, and a column to leave out."""
    labels = np.where(numbers[:, 0] + numbers[:, 1] > 0, "spam", "ham")
    texts = np.vectorize(lambda x: f"{x:.4f}")(numbers).astype(object)
    texts[5:20, 1], texts[0, 2] = "", "NA"
    names = ["id", "length", "links", "score", "label"]
    path = write(home / "mail.csv", names, [[f"m{k}" for k in range(150)], *texts.T, labels])
    words = (path, "--target", "label", "--drop", "id", *changed(QUICK, "--epochs", 20))
    return Trained(path, home / "mail", done("train", *words, "--out", home / "mail"))


@pytest.fixture(scope="module")
def linear(home: Path, numbers: np.ndarray) -> Trained:
    price = 1000 + 30 * numbers[:, 0] - 20 * numbers[:, 1]
    path = write(home / "houses.csv", ["a", "b", "c", "price"], [*numbers.T, price])
    words = (path, "--target", "price", "--layers", 3, "--epochs", 40, "--batch-size", 20)
    return Trained(path, home / "houses", done("train", *words, "--out", home / "houses"))


@pytest.fixture(scope="module")
def many(home: Path, numbers: np.ndarray) -> Trained:
    kinds = np.digitize(numbers[:, 0], [-0.5, 0.5]) * 10  # classes 0, 10, 20
    path = write(home / "kinds.csv", ["a", "b", "c", "kind"], [*numbers.T, kinds])
    words = (path, "--target", "kind", *QUICK)
    return Trained(path, home / "kinds", done("train", *words, "--out", home / "kinds"))


@pytest.fixture(scope="module")
def roll(home: Path) -> Path:
    done("train", *ROLL, "--out", home / "roll")
    return home / "roll"


# --- help and misuse ------------------------------------------------------------------------------


def test_python_m_hdnn_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hdnn", "--help"])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_module("hdnn", run_name="__main__")
    assert not leaving.value.code
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = done(name, "--help")
    assert "Usage" in result.stdout
    assert "--help" in result.stdout


def test_the_words_of_the_design_are_options() -> None:
    text = done("train", "--help").stdout
    for word in (
        "--architecture",
        "--layers",
        "--T",
        "--epochs",
        "--seed",
        "--out",
        "--resume",
        "--target",
        "--config",
        "--overwrite",
        "--json",
    ):
        assert word in text


@pytest.mark.parametrize(
    "words",
    [
        ("trian",),
        ("train", "--layerz", "4"),
        ("train", "swiss-roll", "--layers", "four"),
        ("predict",),
        ("predict", "run"),
        ("predict", "run", "x.csv"),
        ("evaluate",),
        ("train", "swiss-roll", "double-moons"),
        ("demo", "--epochs", "x"),
    ],
    ids=" ".join,
)
def test_misuse_is_exit_code_2(words: tuple[str, ...]) -> None:
    result = command(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_without_a_command_there_is_help() -> None:
    result = command()
    assert "Usage" in result.output
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", ["odd[bold].csv", "odd[/b].csv", "hdnn[plots]"])
def test_messages_show_brackets_as_they_are(name: str) -> None:
    refused(command("train", name, "--target", "y"), 2, name)


def test_output_shows_brackets_as_they_are() -> None:
    result = done("train", *changed(ROLL, "--epochs", 1), "--out", "run[red]")
    assert "run: run[red]" in result.stdout


def test_an_extra_that_is_missing_is_named(
    labeled: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    Path("x.parquet").touch()
    refused(command("train", "x.parquet", "--target", "y"), 2, "pip install 'hdnn[data]'")


# --- train ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["swiss-roll", "double-moons", "double-circles", "peaks"])
def test_every_data_set_by_name(name: str) -> None:
    done("train", name, "--size", 100, "--layers", 2, "--epochs", 1, "--out", "run")
    found = Run.open("run").config
    assert (found.data.source, found.data.size) == (name, 100)


@pytest.mark.parametrize("name", list(hdnn.zoo.ARCHITECTURES))
def test_every_architecture_by_name(name: str) -> None:
    done("train", *changed(ROLL, "--epochs", 1, "--architecture", name.lower()), "--out", "run")
    assert Run.open("run").load_model().network.name == name


FLAGS: dict[str, tuple[tuple[object, ...], str, str, object]] = {
    "step": (("--step", 0.1), "model", "step", 0.1),
    "T": (("--T", 2), "model", "T", 2.0),
    "width": (("--width", 6), "model", "width", 6),
    "activation": (("--activation", "relu"), "model", "activation", "relu"),
    "set": (("--set", "model.standardize=true"), "model", "standardize", True),
    "batch": (("--batch-size", 7), "training", "batch_size", 7),
    "lr": (("--lr", 0.01), "training", "learning_rate", 0.01),
    "alpha": (("--alpha", 0), "training", "alpha", 0.0),
    "method": (("--method", "joint"), "training", "method", "joint"),
    "balanced": (("--balanced",), "training", "class_weight", "balanced"),
    "validation": (("--validation", 0.2), "training", "validation", 0.2),
    "patience": (
        ("--validation", 0.2, "--early-stopping", 3),
        "training",
        "early_stopping",
        3,
    ),
    "split": (("--split", "independent"), "data", "split", "independent"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_reaches_the_config(name: str) -> None:
    words, table, setting, value = FLAGS[name]
    done("train", *changed(changed(ROLL, "--epochs", 1), *words), "--out", "run")
    assert getattr(getattr(Run.open("run").config, table), setting) == value


def test_a_seed_is_one_for_all() -> None:
    done("train", *changed(ROLL, "--epochs", 1, "--seed", 5), "--out", "run")
    found = Run.open("run").config
    assert (found.data.seed, found.model.seed, found.training.seed) == (5, 5, 5)


def test_without_out_the_run_has_a_name() -> None:
    done("train", *ROLL, "--seed", 2)
    assert Run.open("runs/swiss-roll-H1-3-2").finished


def test_plain_lines_when_piped() -> None:
    lines = done("train", *ROLL, "--out", "run").stdout.splitlines()
    figures = r"loss \d\.\d{4}  accuracy \d\.\d{4}"
    for number, line in enumerate(lines[:4], start=1):
        assert re.fullmatch(rf"epoch {number}/4  {figures}", line)
    assert re.fullmatch(r"train     loss .*, accuracy .*  \(100 samples\)", lines[4])
    assert re.fullmatch(r"test      loss .*, accuracy .*  \(100 samples\)", lines[5])
    assert re.fullmatch(r"linear    loss \d\.\d{4}, accuracy \d\.\d{4}", lines[6])
    assert re.fullmatch(r"baseline  loss 0.6931, accuracy 0.5000", lines[7])
    assert re.fullmatch(r"loss by epoch +reaction of the output, by layer", lines[8])
    assert [line.count("|") for line in lines[9:]] == [2, 2, 2, 2, 2, 0, 0]
    assert lines[-2].split()[:2] == ["1", "4"]  # epochs
    assert lines[-1] == "run: run"


def test_progress_shows_what_would_be_returned() -> None:
    """Of the last epoch that is what was returned."""
    lines = done("train", *ROLL, "--out", "run").stdout.splitlines()
    loss, accuracy = re.findall(r"\d\.\d{4}", lines[3])
    assert lines[4].startswith(f"train     loss {loss}, accuracy {accuracy} ")


def test_long_trainings_print_ten_lines() -> None:
    lines = done(
        "train", *changed(ROLL, "--epochs", 50), "--validation", 0.2, "--out", "run"
    ).stdout
    shown = [line for line in lines.splitlines() if line.startswith("epoch")]
    assert [int(line.split("/")[0].split()[1]) for line in shown] == list(range(5, 51, 5))
    assert all("validation" in line for line in shown)


def test_a_bar_with_loss_and_accuracy_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(train_module, "console", terminal)
    result = done("train", *ROLL, "--out", "run")
    assert "epoch" not in result.stdout
    shown = screen.getvalue()
    assert "training" in shown
    assert "4/4" in shown
    assert re.search(r"loss \d\.\d{4}  accuracy \d\.\d{4}", shown)


def test_the_bar_moves_within_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[float] = []
    update = train_module.Progress.update
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(train_module, "console", terminal)
    monkeypatch.setattr(
        train_module.Progress,
        "update",
        lambda bar, task, **given: (
            moves.append(given.get("completed", 0.0)) or update(bar, task, **given)
        ),
    )
    Path("loop.toml").write_text('[training]\nloop = "autograd"\n')
    batches = ("--size", 200, "--batch-size", 25, "--layers", 2, "--config", "loop.toml")
    done("train", "swiss-roll", *batches, "--epochs", 2, "--out", "run")
    assert {0.25, 0.5, 0.75, 1.25, 1.5, 1.75} <= set(moves)


def test_json_and_nothing_else_on_standard_output(labeled: Trained) -> None:
    words = (labeled.table, "--target", "label", "--drop", "id", *QUICK, "--out", "run")
    result = done("train", *words, "--json")
    found = strict_json(result.stdout)
    assert found["finished"] is True
    assert found["run"] == "run"
    assert {**found["test"]} == json.loads(Path("run/metrics.json").read_text())["test"]
    assert "missing values" in result.stderr


# --- configs --------------------------------------------------------------------------------------

CONFIG = """
[data]
source = "double-moons"
size = 200
[model]
architecture = "MS1"
layers = 4
T = 3.0
[training]
epochs = 2
alpha = 0.25
"""


def test_flags_override_a_config() -> None:
    Path("my.toml").write_text(CONFIG)
    done("train", "--config", "my.toml", "--out", "plain")
    found = Run.open("plain").config
    assert (found.data.source, found.model.architecture, found.model.T) == (
        "double-moons",
        "MS1",
        3.0,
    )
    words = ("peaks", "--layers", 2, "--step", 0.1, "--epochs", 1, "--out", "over")
    done("train", "--config", "my.toml", *words)
    found = Run.open("over").config
    assert (found.data.source, found.data.size) == ("peaks", 200)
    assert (found.model.layers, found.model.T, found.model.step) == (2, None, 0.1)
    assert (found.training.epochs, found.training.alpha) == (1, 0.25)


def test_the_config_of_a_run_trains_it_again(roll: Path) -> None:
    done("train", "--config", roll / "config.toml", "--out", "again")
    assert Run("again").model_file.read_bytes() == Run(roll).model_file.read_bytes()


def test_the_config_of_a_run_is_readable(roll: Path) -> None:
    tables = tomllib.loads((roll / "config.toml").read_text())
    assert tables["data"]["source"] == "swiss-roll"
    assert tables["model"]["layers"] == 3


def test_a_flag_completes_a_config() -> None:
    Path("my.toml").write_text(CONFIG + "early_stopping = 2\n")
    done("train", "--config", "my.toml", "--validation", 0.2, "--out", "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[model]\nlayer = 4", ("my.toml", "'layer'", "did you mean 'layers'")),
        ("[training]\nepoch = 4", ("did you mean 'epochs'",)),
        ("[dta]\nsource = 4", ("did you mean 'data'",)),
        ("model = 3", ("my.toml", "table")),
        ("x = [", ("my.toml", "not TOML")),
        ("[data]\ntest = 'x'", ("my.toml", "test should be a valid number, got 'x'")),
        ("[data]\nsource = 5", ("source",)),
        ("[model]\nT = 1.0\nstep = 0.1", ("T", "step")),
    ],
    ids=lambda value: value.replace("\n", " ") if isinstance(value, str) else "",
)
def test_a_wrong_config_is_refused(text: str, words: tuple[str, ...]) -> None:
    Path("my.toml").write_text(text)
    source = () if "source" in text else ("swiss-roll", "--size", 100)
    refused(command("train", *source, "--config", "my.toml", "--out", "run"), 2, *words)


def test_a_config_that_is_no_text() -> None:
    Path("my.toml").write_bytes(b"\xff\xfe\x00")
    refused(command("train", "--config", "my.toml"), 2, "my.toml")
    refused(command("train", "--config", "none.toml"), 2, "none.toml")
    refused(command("train", "--config", "."), 2, "no config file")


# --- errors of train ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ("say what to train on",)),
        (("swis-roll",), ("no such file", "did you mean 'swiss-roll'")),
        (("data.csv", "--target", "y"), ("data.csv", "no such file")),
        ((*ROLL, "--architecture", "H9"), ("unknown architecture 'H9'", "MS1")),
        ((*ROLL, "--T", 1, "--step", 0.1), ("exactly one of T",)),
        ((*ROLL, "--T", "nan"), ("T should be a finite number",)),
        ((*ROLL, "--width", 1, "--set", "model.projection=off"), ("too small for 2 features",)),
        ((*ROLL, "--set", "model.dtype=half"), ("unknown dtype",)),
        (changed(ROLL, "--epochs", -1), ("epochs",)),
        ((*ROLL, "--batch-size", 0), ("batch_size",)),
        ((*ROLL, "--lr", 0), ("learning_rate",)),
        ((*ROLL, "--set", "training.optimizer=Adamm"), ("did you mean 'Adam'",)),
        ((*ROLL, "--set", "training.warmup"), ("TABLE.NAME=VALUE",)),
        ((*ROLL, "--method", "join"), ("did you mean 'joint'",)),
        ((*ROLL, "--activation", "tan"), ("unknown activation 'tan'",)),
        ((*ROLL, "--early-stopping", 3), ("validation",)),
        ((*ROLL, "--validation", 1), ("less than 1",)),
        ((*ROLL, "--split", "papr"), ("did you mean 'paper'",)),
        (changed(ROLL, "--size", 3), ("even",)),
        ((*ROLL, "--test", 1), ("less than 1",)),
        ((*ROLL, "--seed", -1), ("seed",)),
        (changed(ROLL, "--layers", -1), ("layers",)),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:],
)
def test_errors_of_train(words: tuple[object, ...], expected: tuple[str, ...]) -> None:
    refused(command("train", *words), 2, *expected)


@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_a_network_without_layers_is_misuse(method: str) -> None:
    result = command("train", *changed(ROLL, "--layers", 0), "--method", method, "--out", method)
    refused(result, 2, "layers should be greater than or equal to 1")


def test_errors_of_tables(labeled: Trained) -> None:
    refused(command("train", labeled.table), 2, "--target")
    refused(command("train", labeled.table, "--target", "lable"), 2, "did you mean 'label'")
    numeric = ("--numeric", "id")
    refused(
        command("train", labeled.table, "--target", "label", *numeric), 2, "'id'", "not numeric"
    )
    words = ("train", labeled.table, "--target", "label", "--drop", "id")
    refused(command(*words, "--drop", "links_"), 2, "did you mean 'links'")
    refused(command(*words, "--task", "regresion"), 2, "did you mean 'regression'")
    refused(command(*words, "--task", "regression"), 2, "label")
    Path("notes.doc").write_text("x")
    refused(command("train", "notes.doc", "--target", "y"), 2, ".doc")
    Path("empty.csv").touch()
    refused(command("train", "empty.csv", "--target", "y"), 1, "empty")
    assert not Path("runs").exists()


def test_missing_values_without_a_scaler_are_refused_with_a_reason(labeled: Trained) -> None:
    """There is no mean to put in their place, which is no matter of the step."""
    words = (
        labeled.table,
        "--target",
        "label",
        "--drop",
        "id",
        *QUICK,
        "--set",
        "model.standardize=false",
    )
    result = command("train", *words, "--out", "run")
    assert result.exit_code in (1, 2)
    assert "missing values" in result.stderr.split("error: ")[1]


# --- tables of one's own --------------------------------------------------------------------------


def test_own_table_with_labels_gaps_and_an_odd_number_of_features(labeled: Trained) -> None:
    assert "missing values" in labeled.result.stderr
    assert "links 15" in labeled.result.stderr
    metrics = json.loads((labeled.run / "metrics.json").read_text())
    assert metrics["train"]["samples"] == 120
    assert metrics["test"]["samples"] == 30
    assert metrics["test"]["accuracy"] > 0.8
    model = Run.open(labeled.run).load_model()
    assert model.classes == ["ham", "spam"]
    assert model.feature_names == ["length", "links", "score"]
    assert model.network.features == 8


def test_own_table_of_numbers_is_a_regression(linear: Trained) -> None:
    metrics = json.loads((linear.run / "metrics.json").read_text())
    assert metrics["test"]["r2"] > 0.97
    assert 0 < metrics["test"]["mae"] <= metrics["test"]["rmse"] < 8  # prices spread by 36
    assert "accuracy" not in metrics["test"]
    assert "r2" in linear.result.stdout


def test_own_table_with_three_classes(many: Trained) -> None:
    metrics = json.loads((many.run / "metrics.json").read_text())
    assert metrics["test"]["accuracy"] > 0.8
    assert Run.open(many.run).load_model().classes == [0, 10, 20]


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_other_kinds_of_files(kind: str, numbers: np.ndarray) -> None:
    labels = (numbers[:, 0] > 0).astype(int)
    if kind == "npz":
        np.savez("t.npz", a=numbers[:, 0], b=numbers[:, 1], y=labels)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({"a": numbers[:, 0], "b": numbers[:, 1], "y": labels})
        parquet.write_table(table, "t.parquet")
    done("train", f"t.{kind}", "--target", "y", *QUICK, "--out", "run")
    assert json.loads(Path("run/metrics.json").read_text())["test"]["accuracy"] > 0.8
    done("evaluate", "run", f"t.{kind}")


def test_labels_true_and_false() -> None:
    write(
        Path("t.csv"), ["a", "y"], [range(40), ["true" if k > 20 else "false" for k in range(40)]]
    )
    done("train", "t.csv", "--target", "y", *QUICK, "--out", "run")
    assert Run.open("run").load_model().classes == [False, True]
    done("predict", "run", "t.csv", "--out", "p.csv")
    assert {row["prediction"] for row in rows_of(Path("p.csv"))} == {"False", "True"}
    assert done("evaluate", "run", "t.csv").exit_code == 0


def test_a_held_out_row_of_its_own_is_still_json() -> None:
    """R^2 of one value is no number, and JSON has no NaN."""
    write(Path("t.csv"), ["a", "y"], [[1, 2, 3, 4, 5], [1.5, 2.5, 3.5, 4.5, 5.6]])
    result = done("train", "t.csv", "--target", "y", "--epochs", 1, "--out", "run", "--json")
    strict_json(result.stdout)
    strict_json(Path("run/metrics.json").read_text())
    strict_json(done("evaluate", "run", "--json").stdout)


def test_nothing_held_out() -> None:
    write(Path("t.csv"), ["a", "y"], [range(40), [k % 2 for k in range(40)]])
    done("train", "t.csv", "--target", "y", *QUICK, "--test", 0, "--out", "run")
    assert set(json.loads(Path("run/metrics.json").read_text())) == {"train"}
    refused(command("evaluate", "run"), 2, "held out no data")
    done("evaluate", "run", "t.csv")


# --- predict --------------------------------------------------------------------------------------


def expected_chances(trained: Trained, columns: list[str]) -> torch.Tensor:
    model = Run.open(trained.run).load_model()
    cells = [[row[name] for name in columns] for row in rows_of(trained.table)]
    values = [
        [float("nan") if cell in ("", "NA") else float(cell) for cell in row] for row in cells
    ]
    with torch.no_grad():
        return model.probabilities(torch.tensor(values, dtype=torch.float32))


def test_predictions_are_appended(labeled: Trained) -> None:
    result = done("predict", labeled.run, labeled.table, "--out", "p.csv")
    assert "150 rows" in result.stdout
    found, given = rows_of(Path("p.csv")), rows_of(labeled.table)
    assert list(found[0]) == [*given[0], "prediction", "p_ham", "p_spam"]
    assert [{k: row[k] for k in given[0]} for row in found] == given
    chances = expected_chances(labeled, ["length", "links", "score"])
    assert [[float(row["p_ham"]), float(row["p_spam"])] for row in found] == pytest.approx(
        chances.numpy(), rel=1e-5, abs=1e-12
    )
    assert [row["prediction"] for row in found] == [
        ("ham", "spam")[k] for k in chances.argmax(1).tolist()
    ]
    assert [path.name for path in Path().iterdir()] == ["p.csv"]


def test_columns_are_found_by_name(labeled: Trained) -> None:
    done("predict", labeled.run, labeled.table, "--out", "p.csv")
    given = rows_of(labeled.table)
    names = ["score", "more", "length", "links"]
    columns = [[row.get(name, "?") for row in given] for name in names]
    write(Path("other.csv"), names, columns)
    done("predict", labeled.run, "other.csv", "--out", "q.csv")
    first, second = rows_of(Path("p.csv")), rows_of(Path("q.csv"))
    assert [row["p_ham"] for row in first] == [row["p_ham"] for row in second]
    assert list(second[0])[:4] == names


def test_predictions_of_three_classes_and_of_values(many: Trained, linear: Trained) -> None:
    done("predict", many.run, many.table, "--out", "p.csv")
    row = rows_of(Path("p.csv"))[0]
    assert list(row)[4:] == ["prediction", "p_0", "p_10", "p_20"]
    assert sum(float(row[f"p_{k}"]) for k in (0, 10, 20)) == pytest.approx(1, abs=1e-5)
    done("predict", linear.run, linear.table, "--out", "q.csv")
    found = rows_of(Path("q.csv"))
    assert list(found[0])[4:] == ["prediction"]
    errors = [float(row["prediction"]) - float(row["price"]) for row in found]
    assert float(np.abs(errors).mean()) < 8


def test_predictions_of_a_planar_problem(roll: Path) -> None:
    write(Path("points.csv"), ["x1", "x0"], [[0.1, 0.5], [0.2, -0.5]])
    done("predict", roll, "points.csv", "--out", "p.csv")
    model = Run.open(roll).load_model()
    points = torch.tensor([[0.2, 0.1], [-0.5, 0.5]], dtype=torch.float32)
    expected = model.predict(points).tolist()
    assert [int(row["prediction"]) for row in rows_of(Path("p.csv"))] == expected


def test_predictions_in_blocks_are_the_same(
    labeled: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("predict", labeled.run, labeled.table, "--out", "whole.csv")
    sizes: list[int] = []
    original = use._predictions

    def counted(model: hdnn.Model, X: np.ndarray) -> Any:
        sizes.append(len(X))
        return original(model, X)

    monkeypatch.setattr(use, "_predictions", counted)
    monkeypatch.setattr(use, "iter_rows", partial(iter_rows, chunk=64))
    done("predict", labeled.run, labeled.table, "--out", "blocks.csv")
    assert sizes == [64, 64, 22]
    first, second = rows_of(Path("whole.csv")), rows_of(Path("blocks.csv"))
    assert len(first) == len(second) == 150
    for a, b in zip(first, second, strict=True):
        assert a["prediction"] == b["prediction"]
        assert float(a["p_ham"]) == pytest.approx(float(b["p_ham"]), rel=1e-4, abs=1e-12)


def test_a_file_of_several_blocks(many: Trained) -> None:
    values = np.round(np.random.default_rng(1).normal(size=(20_001, 3)), 3)
    write(Path("large.csv"), ["a", "b", "c"], list(values.T))
    result = done("predict", many.run, "large.csv", "--out", "p.csv", "--json")
    assert strict_json(result.stdout) == {
        "rows": 20_001,
        "out": "p.csv",
        "columns": ["prediction", "p_0", "p_10", "p_20"],
    }
    assert len(Path("p.csv").read_text().splitlines()) == 20_002
    refused(command("predict", many.run, "large.csv", "--json"), 2, "--json", "give --out")


def test_errors_of_predict_leave_the_old_file(
    labeled: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use, "iter_rows", partial(iter_rows, chunk=2))
    out = Path("p.csv")
    out.write_text("old")
    good = ["1", "2", "3", "4", "5"]
    write(Path("narrow.csv"), ["length", "score"], [good, good])
    write(Path("text.csv"), ["length", "score", "links"], [good, good, [*good[:4], "many"]])
    Path("ragged.csv").write_text("length,score,links\n1,2,3\n1,2,3\n1,2,3\n1,2\n")
    for name, code, words in (
        ("narrow.csv", 2, ("narrow.csv", "'links'")),
        ("text.csv", 2, ("'links'", "line 6", "'many'")),
        ("ragged.csv", 1, ("ragged.csv", "line 5")),
        ("none.csv", 2, ("none.csv", "No such file")),
        ("t.parquet", 2, ("t.parquet", "No such file")),
        ("t.npz", 2, ("CSV and Parquet",)),
    ):
        refused(command("predict", labeled.run, name, "--out", out), code, *words)
        assert out.read_text() == "old"
    names = {path.name for path in Path().iterdir()}
    assert names == {"p.csv", "narrow.csv", "text.csv", "ragged.csv"}
    refused(command("predict", labeled.run, labeled.table, "--out", "no/p.csv"), 2, "no/p.csv")
    refused(command("predict", labeled.run, labeled.table, "--out", "."), 2)
    refused(command("predict", "none", labeled.table, "--out", out), 2, "not a run")


def test_a_file_may_be_replaced_by_its_predictions(labeled: Trained) -> None:
    shutil.copy(labeled.table, "t.csv")
    done("predict", labeled.run, "t.csv", "--out", "t.csv")
    assert len(rows_of(Path("t.csv"))) == 150
    assert "prediction" in rows_of(Path("t.csv"))[0]


# --- evaluate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labeled", "linear", "many"])
def test_the_held_out_part_gives_the_metrics_of_the_run(
    name: str, request: pytest.FixtureRequest
) -> None:
    trained: Trained = request.getfixturevalue(name)
    metrics = json.loads((trained.run / "metrics.json").read_text())
    found = strict_json(done("evaluate", trained.run, "--json").stdout)
    assert found == found | metrics["test"]
    assert {"baseline", "linear", "warnings"} < set(found)
    shown = done("evaluate", trained.run).stdout.splitlines()
    assert shown[0] == f"{found['samples']} samples"
    for name, title in (("accuracy", "accuracy"), ("r2", "R2"), ("rmse", "RMSE"), ("mae", "MAE")):
        if name in found:
            row = next(line for line in shown if line.startswith(title))
            figures = [part[name] for part in (found, found["linear"], found["baseline"])]
            assert [float(text) for text in row.split()[1:]] == pytest.approx(figures, abs=1e-4)


def test_a_result_no_better_than_the_baseline_is_doubted() -> None:
    """99 % accurate, and useless."""
    columns = [list(range(200)), [0.0, 1.0] * 100, ["rare", *["ok"] * 99] * 2]
    write(Path("t.csv"), ["a", "b", "label"], columns)
    result = done(
        "train", "t.csv", "--target", "label", *changed(QUICK, "--epochs", 1), "--out", "run"
    )
    measured = done("evaluate", "run", "t.csv", "--json")
    for text in (result.stderr, *strict_json(measured.stdout)["warnings"][:1]):
        assert "is no better than always predicting the most frequent class" in text
    assert "class 'rare' (2 samples) is never predicted" in strict_json(measured.stdout)["warnings"]


def test_evaluate_on_another_table(labeled: Trained, linear: Trained) -> None:
    found = strict_json(done("evaluate", labeled.run, labeled.table, "--json").stdout)
    metrics = json.loads((labeled.run / "metrics.json").read_text())
    both = [metrics[part]["accuracy"] * metrics[part]["samples"] for part in ("train", "test")]
    assert found["samples"] == 150
    assert found["accuracy"] == pytest.approx(sum(both) / 150)
    assert strict_json(done("evaluate", linear.run, linear.table, "--json").stdout)["r2"] > 0.97

    done("predict", labeled.run, labeled.table, "--out", "p.csv")
    rows = rows_of(Path("p.csv"))
    right = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    assert found["accuracy"] == pytest.approx(right)

    only = [row for row in rows if row["label"] == "spam"]
    names = ["links", "length", "score", "label"]
    write(Path("spam.csv"), names, [[row[name] for row in only] for name in names])
    found = strict_json(done("evaluate", labeled.run, "spam.csv", "--json").stdout)
    assert found["accuracy"] == pytest.approx(
        sum(row["prediction"] == "spam" for row in only) / len(only)
    )


def test_evaluate_on_a_planar_problem(roll: Path) -> None:
    metrics = json.loads((roll / "metrics.json").read_text())
    found = strict_json(done("evaluate", roll, "--json").stdout)
    assert found == found | metrics["test"]


def test_errors_of_evaluate(labeled: Trained, many: Trained, roll: Path) -> None:
    refused(command("evaluate", "none"), 2, "not a run")
    refused(command("evaluate", roll, labeled.table), 2, "not trained on a table")
    refused(command("evaluate", labeled.run, "none.csv"), 2, "none.csv")
    refused(command("evaluate", labeled.run, many.table), 2, "'label'")
    write(Path("t.csv"), ["length", "links", "score", "label"], [[1], [2], [3], ["eggs"]])
    refused(command("evaluate", labeled.run, "t.csv"), 2, "'eggs'", "ham")


# --- info, demo -----------------------------------------------------------------------------------


def test_info() -> None:
    facts = strict_json(done("info", "--json").stdout)
    assert facts["hdnn"] == hdnn.__version__
    assert facts["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert facts["architectures"] == list(hdnn.zoo.ARCHITECTURES)
    listed = [line.split()[0] for line in done("data").stdout.splitlines()]
    assert facts["data sets"] == list(dict.fromkeys(listed))  # what trains by name
    assert {"swiss-roll", "iris", "mnist"} <= set(listed)
    assert {"auto", "reference", "fused"} <= set(facts["backends"])
    assert facts["threads"] >= 1
    text = done("info").stdout
    for name, value in facts.items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        assert re.search(rf"^{re.escape(name)} +{re.escape(shown)}$", text, re.MULTILINE)


def test_demo_prints_a_table_and_draws_a_figure() -> None:
    image = pytest.importorskip("matplotlib.image")
    result = done("demo", "--epochs", 1, "--seed", 3)
    rows = re.findall(r"^│ (\w+) +│ +(\d+) │ +(\S+)(?: %)? │ +(\S+) % │", result.stdout, re.M)
    assert [(name, int(layers)) for name, layers, _, _ in rows] == list(demo_module.CELLS)
    assert {
        (name, int(layers)): float(paper) for name, layers, paper, _ in rows if paper != "-"
    } == {("H1", 4): 93.6, ("H1", 16): 99.8, ("H1", 64): 99.8, ("MS1", 16): 97.7, ("MS1", 64): 100}
    assert all(0 <= float(ours) <= 100 for *_, ours in rows)
    height, width, _ = image.imread("demo.png").shape
    assert 600 <= height <= 3000
    assert 900 <= width <= 4000
    assert image.imread("demo.png").std() > 0.02
    assert "report: demo.html" in result.stdout
    assert Path("demo.html").read_text().startswith("<!doctype html>")


def test_demo_refuses_a_figure_that_it_could_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the minute of training, not after it."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it began to train")

    monkeypatch.setattr(demo_module, "Trainer", never)
    refused(command("demo", "--epochs", 1, "--out", "demo.xyz"), 2, "xyz")
    refused(command("demo", "--epochs", 1, "--out", "nowhere/demo.png"), 2, "nowhere")


def test_the_networks_of_the_demo() -> None:
    """H1 at 4, 16 and 64 layers, MS1 and FCNN beside it."""
    assert {name for name, _ in demo_module.CELLS} == {"H1", "MS1", "FCNN"}
    assert {layers for name, layers in demo_module.CELLS if name == "H1"} == {4, 16, 64}


# --- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (hdnn.errors.FileFormatError, 1),
        (hdnn.errors.ConvergenceError, 1),
        (hdnn.training.DivergenceError, 1),
        (HdnnError, 2),
        (hdnn.errors.IncompatibleError, 2),
    ],
)
def test_errors_are_exit_codes(
    error: Callable[[str], HdnnError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error("so it is")

    monkeypatch.setattr(torch, "get_num_threads", fail)
    refused(command("info"), code, "so it is")


def test_interrupted_it_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module._Progress, "__call__", interrupt)
    result = command("train", *ROLL, "--out", "run")
    assert result.exit_code == base.INTERRUPTED == 130
    assert "interrupted; resume it with: hdnn train --resume run" in result.stderr
    assert Run("run").checkpoint.exists()


# --- small things ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("train", "iris", "--epochs", 1, "--epochs", 2), "--epochs"),
        (("train", "iris", "--balanced", "--balanced"), "--balanced"),
        (("reproduce", "table1", "--out", "a", "--out", "b"), "--out"),
    ],
    ids=["value", "flag", "command of a command"],
)
def test_an_option_of_one_value_is_given_once(words: tuple[object, ...], option: str) -> None:
    result = command(*words)
    assert result.exit_code == 2
    assert re.search(rf"'{option}' is given 2 times", result.stderr)


def test_an_option_of_several_values_repeats(labeled: Trained) -> None:
    words = (labeled.table, "--target", "label", "--drop", "id", "--drop", "links", *QUICK)
    done("train", *words, "--out", "run")
    assert Run.open(Path("run")).config.data.drop == ("id", "links")


def test_a_figure_without_an_ending_gets_one(roll: Path) -> None:
    result = done("gradients", roll, "--out", "norms")
    assert "norms has no ending: norms.png is written" in result.stderr
    assert Path("norms.png").read_bytes().startswith(b"\x89PNG")
    assert not Path("norms").exists()


def test_a_rehearsal_says_so_and_does_everything(
    monkeypatch: pytest.MonkeyPatch, labeled: Trained
) -> None:
    monkeypatch.setenv("HDNN_QUICK", "1")
    result = done("train", labeled.table, "--target", "label", "--epochs", 500, "--out", "run")
    assert "HDNN_QUICK is set, so this is a rehearsal: epochs 3" in result.stderr
    assert Run.open(Path("run")).config.training.epochs == 3
    assert Run.open(Path("run")).finished


def test_every_command_takes_a_run_of_mixed_columns_with_gaps_and_a_projection() -> None:
    rows = [f"{k % 7},{'' if k % 5 == 0 else k % 3},{'ab'[k % 2]},{k % 4 > 1}" for k in range(60)]
    Path("t.csv").write_text("\n".join(["u,v,w,label", *rows, ""]))
    words = ("--width", 4, "--set", "model.projection=on", "--record", 1, "--report")
    done("train", "t.csv", "--target", "label", *QUICK, *words, "--out", "run")
    for name in ("evaluate", "gradients", "certify", "advise", "margins"):
        done(name, "run")
    done("predict", "run", "t.csv", "--out", "p.csv")
    done("export", "run", "--out", "model.onnx")
    assert len(rows_of(Path("p.csv"))) == 60
