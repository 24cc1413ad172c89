"""Reports of every kind of run: one page, self-contained, whose numbers are those of the model."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from commands import done, write_rows
from hdnn.config import Config, DataConfig, ModelConfig, RecordConfig
from hdnn.data import load
from hdnn.errors import HdnnError
from hdnn.plots import flow
from hdnn.reports import report_of_run
from hdnn.reports.page import inputs_of_run
from hdnn.training import TrainingConfig
from hdnn.training.runs import Run
from hdnn.training.trainer import EpochRecord, Trainer
from page import Page

SECTIONS = ["results", "learning", "flow", "gradients", "theory", "repeat"]
EVIL = "<script>alert('1')</script>\"&"
LONG = "n" * 10_000
ROLL = Config(
    data=DataConfig(source="swiss-roll", size=200),
    model=ModelConfig(architecture="H1", layers=6, T=1.0, dtype="float64"),
    training=TrainingConfig(epochs=2, batch_size=50),
)


def trained(folder: Path, config: Config) -> Path:
    Run.create(folder, config).train()
    return folder


def page_of(run: Path, **options: bool) -> Page:
    text = report_of_run(run, **options).html
    assert len(text.encode()) < 6e6
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)|url\((?!#)|@import", text)
    return Page(text)


def stop(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def roll(tmp_path: Path) -> Path:
    config = ROLL.replace(record=RecordConfig(every=1, depths=4, samples=5))
    return trained(tmp_path / "roll", config)


def test_a_planar_run_has_every_section_in_order(roll: Path) -> None:
    page = page_of(roll, compare=True)
    assert page.sections == SECTIONS
    accuracy = json.loads(Run.open(roll).metrics.read_text())["test"]["accuracy"]
    assert f"{100 * accuracy:.1f} %" in page.texts("strong")
    assert "of 100 held-out samples are classified correctly" in page.words
    assert "During training" in page.words
    assert "Both networks have the same size and were trained on the same data" in page.words
    assert all(element.get("alt") for element in page.all("img"))
    assert all(element.get("aria-label") for element in [*page.all("canvas"), *page.all("svg")])


def test_the_slider_has_the_trajectory_and_the_decision_regions(roll: Path) -> None:
    scene, model = page_of(roll, compare=True).scene, Run.open(roll).load_model()
    moving = flow(model, inputs_of_run(roll).X)
    points = np.frombuffer(base64.b64decode(scene["flows"][0]["points"]), "<f4").reshape(7, 100, 2)
    np.testing.assert_allclose(points, moving.points, rtol=1e-6, atol=1e-6)
    assert scene["flows"][0]["depths"] == list(range(7))
    assert len(scene["flows"]) == 2
    packed = base64.b64decode(scene["flows"][0]["regions"][-1])
    classes, lengths = np.frombuffer(packed, np.uint8).reshape(-1, 2).T
    cells = np.repeat(classes, lengths).reshape(scene["resolution"], -1)
    left, right, bottom, top = scene["box"]
    side = scene["resolution"] - 1
    for i, j in ((0, 0), (0, side), (side, 0), (30, 80), (77, 12)):
        place = [left + (right - left) * j / side, bottom + (top - bottom) * i / side]
        assert cells[i, j] == int(model.predict(torch.tensor([place]))[0])


def test_hostile_names_come_out_as_text(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 90))
    labels = [("</script>" + EVIL, LONG, "'\"q")[k % 3] for k in range(90)]
    names = [EVIL, LONG, *(f"c{k}" for k in range(28)), "label"]
    columns = dict(zip(names, [*X.tolist(), labels], strict=True))
    path = write_rows(tmp_path / "<b>'&.csv", **columns)
    data = DataConfig(source=str(path), target="label")
    config = Config(
        data=data,
        model=ModelConfig(architecture="H1", layers=3, T=0.5),
        training=TrainingConfig(epochs=1),
    )
    page = page_of(trained(tmp_path / "run", config))
    assert "alert('1')" in page.words
    assert not any("alert" in text for text in page.texts("script"))
    assert LONG[:300] not in page.words
    assert "principal components of the states of all layers together" in page.words


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_page_of_a_table_is_about_the_table(task: str, tmp_path: Path) -> None:
    """Beside the models that any result should beat; its own columns, by what they are worth."""
    rng = np.random.default_rng(0)
    color, noise = rng.choice(["red", "green", "blue"], 200), rng.normal(size=200)
    values = ("stop", "go") if task == "classification" else (0.5, 2.0)
    columns = {"noise": noise, "color": color, "y": np.where(color == "red", *values)}
    path = write_rows(tmp_path / "t.csv", **columns)
    data = DataConfig(source=str(path), target="y", task=task)
    page = page_of(
        trained(
            tmp_path / "run",
            Config(data=data, model=ModelConfig(architecture="H1", layers=3, T=1.0)),
        )
    )
    cells = page.texts("th")
    baseline = "most frequent class" if task == "classification" else "mean of the targets"
    assert {"this network", "on training data", "linear model", baseline} <= set(cells)
    assert ("go" in cells, "R²" in cells) == (task == "classification", task == "regression")
    # A category is one column, whatever its encoding: its levels are shuffled together.
    assert cells.index("color") < cells.index("noise")
    assert not any("=" in cell for cell in cells)


@pytest.mark.parametrize("options", [{}, {"block": "hamiltonian", "kernel": 3}])
def test_images_show_those_that_are_most_wrong(options: dict[str, Any]) -> None:
    images = {"channels": 1, "size": (6, 6), "classes": 3}
    model = hdnn.image_model(**images, layers=2, step=0.1, dtype=torch.float64, **options)
    X = torch.randint(0, 256, (30, 1, 6, 6), dtype=torch.uint8)
    y = torch.arange(30) % 3
    page = Page(hdnn.report(model, X, y).html)
    wrong = int((model.predict(X) != y).sum())
    shown = page.all("ul[@class='mistakes']/li/img")
    assert len(shown) == min(12, wrong) > 0
    assert "gradients" in page.sections
    blocks = len(model.networks)
    assert ("theory" in page.sections) is bool(blocks)
    if blocks:  # the certificate, also of a convolution
        assert "theorems about gradients apply to this network" in page.words
        assert "Nothing is proved about the rest of the model: stem (ImageStem)" in page.words
        assert any(text.startswith("det of every layer ≥ 1") for text in page.texts("td"))


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", ROLL)
    page = page_of(run.folder)
    assert "not finished: 0 of 2 epochs" in page.words
    assert page.sections == ["repeat"]
    with pytest.raises(KeyboardInterrupt):
        run.train([stop])
    page = page_of(run.folder)
    assert "not finished: 1 of 2 epochs. Continue it with: hdnn train --resume" in page.words
    assert "at its last checkpoint" in page.words
    assert page.sections == SECTIONS
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-9])
    page = page_of(run.folder)
    assert "cannot be used" in page.words
    assert page.sections == ["learning", "repeat"]


def test_the_model_of_a_checkpoint_is_the_one_that_was_trained(tmp_path: Path) -> None:
    """Also of a regression, which is trained on standardized targets."""
    a, b = np.random.default_rng(0).normal(size=(2, 60))
    path = write_rows(tmp_path / "t.csv", a=a, b=b, y=1000 + 50 * a)
    data = DataConfig(source=str(path), target="y", task="regression")
    model = ModelConfig(architecture="MS3", layers=3, T=0.5, dtype="float64")
    run = Run.create(
        tmp_path / "run", Config(data=data, model=model, training=TrainingConfig(epochs=2))
    )
    X, outputs = torch.randn(20, 2), []

    def predict_and_stop(trainer: Trainer, _: EpochRecord) -> None:
        outputs.append(trainer.model(X).detach())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train([predict_and_stop])
    inputs, target = inputs_of_run(run.folder), load(run.config.data).y
    assert inputs.model is not None
    expected = outputs[0] * target.std(correction=0) + target.mean()
    torch.testing.assert_close(inputs.model(X).detach(), expected)


def test_a_page_with_a_lead_begins_with_the_slider_and_samples_much_data() -> None:
    nets = [hdnn.network(name, features=4, layers=200, T=1.0) for name in ("H1", "ResNet")]
    model, other = (hdnn.Model(net, 1, hdnn.Padding(2, 4)) for net in nets)
    X, y = torch.randn(30_000, 2), torch.arange(30_000) % 2
    report = hdnn.report(model, X, y, beside=other, lead=("A claim", "So <b> it is."))
    page = Page(report.html)
    assert len(report.html) < 6e6
    assert page.sections[:3] == ["flow", "gradients", "about"]
    assert {"A claim", "So <b> it is."} <= {*page.texts("h1"), *page.texts("p")}
    assert "800 of 30,000 samples are shown" in page.words
    assert "of 30,000 samples are classified correctly" in page.words
    depths = page.scene["flows"][0]["depths"]
    assert (len(depths), depths[0], depths[-1]) == (65, 0, 200)


def test_labels_may_be_names_and_data_must_fit() -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    model = hdnn.Model(net, 1, hdnn.Padding(2, 4), classes=["ham", "spam"])
    X = np.random.default_rng(0).normal(size=(4, 2))
    page = hdnn.report(model, X, np.array(["ham", "spam", "ham", "spam"]))
    assert "spam" in page.html
    assert page._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(HdnnError, match="eggs"):
        hdnn.report(model, X, ["ham", "eggs", "ham", "ham"])
    with pytest.raises(HdnnError, match="4 samples and y has 2"):
        hdnn.report(model, X, ["ham", "spam"])


def test_the_command_of_a_page_repeats_the_run(
    roll: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [text for text in page_of(roll).texts("code") if text.startswith("hdnn train")]
    done(*line.split()[1:])
    assert Run.open("again").model_file.read_bytes() == Run.open(roll).model_file.read_bytes()
