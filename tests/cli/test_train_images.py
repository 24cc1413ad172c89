"""Image data from the command line: presets, training, evaluation, prediction."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hdnn.training.prepare import prepare, statistics
from hdnn.training.presets import PRESETS
from hdnn.training.run_config import RunConfig
from typer.testing import CliRunner

from hdnn.cli import app
from hdnn.data.images import load
from hdnn.training.runs import Run


def test_statistics_of_images() -> None:
    X = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8)
    mean, std = statistics(X)
    wide = (X / 255.0).transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.tensor(mean), wide.mean(1))
    torch.testing.assert_close(torch.tensor(std), wide.std(1, correction=0))


# --- recipes and runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_come_back_from_a_config_file(preset: str) -> None:
    recipe = RunConfig.from_tables({"data": {"source": "digits"}, "model": {"preset": preset}})
    assert RunConfig.from_toml(recipe.to_toml()) == recipe
    assert recipe.training.method == "joint"


def test_the_papers_preset_is_appendix_B2() -> None:
    training = RunConfig.from_tables({"data": {"source": "mnist"}}).training
    assert (training.epochs, training.batch_size, training.optimizer) == (40, 100, "Adam")
    assert [training.learning_rate_at(e) for e in (0, 1)] == pytest.approx([0.04, 0.032])
    assert (training.alpha, training.alpha_c, training.weight_decay) == (1e-3, 2e-4, 0.0)


# --- the command line -----------------------------------------------------------------------------


def command(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_train_evaluate_predict(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command(
        "train",
        "digits",
        "--preset",
        "convolutional",
        "--widths",
        "4,8",
        "--layers",
        "1,1",
        "--head",
        "linear",
        "--epochs",
        3,
        "--warmup",
        1,
        "--lr",
        0.02,
        "--averaging",
        0.5,
        "--shift",
        0,
        "--rotate",
        0,
        "--out",
        run,
    )
    found = json.loads(command("evaluate", run, "--json").stdout)
    assert found["samples"] == 359
    assert found["accuracy"] > 0.7
    test = load("digits").test
    file = tmp_path / "images-idx3-ubyte"
    file.write_bytes(struct.pack(">I3I", 0x803, len(test), 8, 8) + test.numpy().tobytes())
    command("predict", run, file, "--out", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    model = Run(run).load_model()
    assert [row["prediction"] for row in rows] == [str(k) for k in model.predict(test).tolist()]
    assert sum(float(rows[0][f"p_{k}"]) for k in range(10)) == pytest.approx(1, abs=1e-4)


def test_a_folder_of_images_by_class(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    found = load("digits")
    for label in ("no", "yes"):
        (tmp_path / "data" / label).mkdir(parents=True)
    for number in range(60):
        label = "yes" if found.train_labels[number] > 4 else "no"
        image = pillow.fromarray(found.train[number, 0].numpy())
        image.save(tmp_path / "data" / label / f"{number}.png")
    run = tmp_path / "run"
    command("train", tmp_path / "data", "--layers", 1, "--epochs", 1, "--out", run)
    result = json.loads(command("evaluate", run, tmp_path / "data", "--json").stdout)
    assert result["samples"] == 60
    command("predict", run, tmp_path / "data", "--out", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    assert rows[0]["image"].startswith("no/")


def test_a_folder_does_not_hide_a_data_set_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits" / "checkpoint").mkdir(parents=True)  # as of a run with that name
    config = RunConfig.from_tables({"data": {"source": "digits"}}, "here")
    assert len(prepare(config).X_test) == 359
