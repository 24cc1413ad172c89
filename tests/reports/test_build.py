"""Reports of every kind of run: one page, self-contained, whose numbers are those of the model."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
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
from hdnn.reports import report_of_run, slider, words
from hdnn.reports.build import material_of_run
from hdnn.training import TrainingConfig
from hdnn.training.runs import Run
from hdnn.training.trainer import EpochRecord, Trainer

SECTIONS = ["results", "learning", "flow", "gradients", "theory", "repeat"]
EVIL = "<script>alert('1')</script>\"&"
LONG = "n" * 10_000
ROLL = Config(
    DataConfig("swiss-roll", size=200),
    ModelConfig("H1", 6, T=1.0, dtype="float64"),
    TrainingConfig(epochs=2, batch_size=50),
)


class Page(HTMLParser):
    """Tags, texts by tag, and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.scripts: list[str] = []
        self.cells: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "script":
            self.scripts.append(data)
        elif self._inside and self._inside[-1] != "style":
            self.words += data
            if self._inside[-1] == "th":
                self.cells.append(data.strip())

    @property
    def sections(self) -> list[str]:
        return [str(attributes["id"]) for tag, attributes in self.tags if tag == "section"]


def trained(folder: Path, config: Config) -> Path:
    Run.create(folder, config).train()
    return folder


def page_of(run: Path) -> Page:
    text = report_of_run(run).html
    assert len(text.encode()) < 6e6
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)|url\((?!#)|@import", text)
    return Page(text)


@pytest.fixture(scope="module")
def roll(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(ROLL, record=RecordConfig(every=1, depths=4, samples=5))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # as in every test
    try:
        return trained(tmp_path_factory.mktemp("runs") / "roll", config)
    finally:
        torch.set_default_dtype(before)


def test_a_planar_run_has_every_section_in_order(roll: Path) -> None:
    page = page_of(roll)
    assert page.sections == SECTIONS
    accuracy = json.loads(Run.open(roll).metrics.read_text())["test"]["accuracy"]
    assert f"{100 * accuracy:.1f} % of 100 held-out samples" in " ".join(page.words.split())
    assert "During training" in page.words
    assert "Both networks have the same size and were trained on the same data" in page.words
    assert "ResNet" in page.words
    for tag, attributes in page.tags:
        assert tag != "img" or attributes.get("alt")
        assert tag not in ("canvas", "svg") or attributes.get("aria-label")
    (still,) = [k for k, (_, a) in enumerate(page.tags) if "still" in str(a.get("class")).split()]
    assert page.tags[still + 1][0] == "svg"  # what is seen without a script


def test_the_slider_has_the_trajectory_and_the_decision_regions(roll: Path) -> None:
    page, run = page_of(roll), Run.open(roll)
    data = json.loads(next(text for text in page.scripts if text.startswith("{")))
    model, material = run.load_model(), material_of_run(roll)
    moving = flow(model, material.X)
    points = np.frombuffer(base64.b64decode(data["flows"][0]["points"]), "<f4").reshape(7, 100, 2)
    np.testing.assert_allclose(points, moving.points, rtol=1e-6, atol=1e-6)
    assert data["flows"][0]["depths"] == list(range(7))
    assert len(data["flows"]) == 2
    cells = unpacked(data["flows"][0]["regions"][-1]).reshape(data["resolution"], -1)
    left, right, bottom, top = data["box"]
    side = data["resolution"] - 1
    for i, j in ((0, 0), (0, side), (side, 0), (30, 80), (77, 12)):
        place = [left + (right - left) * j / side, bottom + (top - bottom) * i / side]
        assert cells[i, j] == int(model.predict(torch.tensor([place]))[0])


def unpacked(text: str) -> np.ndarray:
    pairs = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1])


def test_run_lengths_are_undone() -> None:
    area = np.zeros((40, 40), np.uint8)
    area[3:5, 7] = 2
    area[39, 39] = 1
    np.testing.assert_array_equal(unpacked(slider._base64(slider._run_lengths(area))), area.ravel())


def test_hostile_names_come_out_as_text(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 90))
    labels = [("</script>" + EVIL, LONG, "'\"q")[k % 3] for k in range(90)]
    names = [EVIL, LONG, *(f"c{k}" for k in range(28)), "label"]
    columns = dict(zip(names, [*X.tolist(), labels], strict=True))
    path = write_rows(tmp_path / "<b>'&.csv", **columns)
    data = DataConfig(str(path), target="label")
    config = Config(data, ModelConfig("H1", 3, T=0.5), TrainingConfig(epochs=1))
    page = page_of(trained(tmp_path / "run", config))
    assert "During training" not in page.words  # nothing was recorded
    assert "alert('1')" in page.words
    assert not any("alert" in text for text in page.scripts)
    assert len(page.scripts) == 3
    assert LONG[:300] not in page.words
    assert "principal components of the states of all layers together" in page.words
    assert re.search(r"They show \d+ % and \d+ % of the variance", page.words)


def test_a_regression_shows_its_residuals(tmp_path: Path) -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 60))
    path = write_rows(tmp_path / "t.csv", a=a, b=b, y=2 * a)
    data = DataConfig(str(path), target="y", task="regression")
    config = Config(data, ModelConfig("MS3", 3, T=0.5), TrainingConfig(epochs=2))
    page = page_of(trained(tmp_path / "run", config))
    assert "R²" in page.words
    assert "principal components" in page.words
    assert {"this network", "linear model", "a", "b"} <= set(page.cells)
    assert "confusion" not in [attributes.get("class") for _, attributes in page.tags]


def test_the_page_of_a_table_is_about_the_table(tmp_path: Path) -> None:
    """Beside the models that any result should beat; its own columns, by what they are worth."""
    rng = np.random.default_rng(0)
    color, noise = rng.choice(["red", "green", "blue"], 200), rng.normal(size=200)
    label = np.where(color == "red", "stop", "go")
    path = write_rows(tmp_path / "t.csv", noise=noise, color=color, label=label)
    config = Config(DataConfig(str(path), target="label"), ModelConfig("H1", 3, T=1.0))
    page = page_of(trained(tmp_path / "run", config))
    assert {"this network", "linear model", "most frequent class, or mean"} <= set(page.cells)
    assert {"stop", "go"} <= set(page.cells)
    # A category is one column, whatever its encoding: its levels are shuffled together.
    assert page.cells.index("color") < page.cells.index("noise")
    assert not any("=" in cell for cell in page.cells)


@pytest.mark.parametrize("options", [{}, {"block": "hamiltonian", "kernel": 3}])
def test_images_show_those_that_are_most_wrong(options: dict[str, Any]) -> None:
    images = {"channels": 1, "size": (6, 6), "classes": 3}
    model = hdnn.image_model(**images, layers=2, step=0.1, dtype=torch.float64, **options)
    X = torch.randint(0, 256, (30, 1, 6, 6), dtype=torch.uint8)
    y = torch.arange(30) % 3
    page = Page(hdnn.report(model, X, y).html)
    wrong = int((model.predict(X) != y).sum())
    images = [a for tag, a in page.tags if tag == "img" and "classified as" in str(a["alt"])]
    assert len(images) == min(12, wrong)
    assert wrong
    assert "gradients" in page.sections


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", ROLL)
    page = page_of(run.folder)
    assert "not finished: 0 of 2 epochs" in page.words
    assert page.sections == ["repeat"]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train([stop])
    page = page_of(run.folder)
    assert "not finished: 1 of 2 epochs" in page.words
    assert "hdnn train --resume" in page.words
    assert "at its last checkpoint" in page.words
    assert page.sections == SECTIONS
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-9])
    page = page_of(run.folder)
    assert "cannot be used" in page.words
    assert page.sections == ["learning", "repeat"]
    run.checkpoint.unlink()
    run.train()
    assert "not finished" not in page_of(run.folder).words


def test_the_model_of_a_checkpoint_is_the_one_that_was_trained(tmp_path: Path) -> None:
    """Also of a regression, which is trained on standardized targets."""
    a, b = np.random.default_rng(0).normal(size=(2, 60))
    path = write_rows(tmp_path / "t.csv", a=a, b=b, y=1000 + 50 * a)
    data = DataConfig(str(path), target="y", task="regression")
    model = ModelConfig("MS3", 3, T=0.5, dtype="float64")
    run = Run.create(tmp_path / "run", Config(data, model, TrainingConfig(epochs=2)))

    X, seen = torch.randn(20, 2), []

    def stop(trainer: Trainer, _: EpochRecord) -> None:
        with torch.no_grad():
            seen.append(trainer.model(X))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train([stop])
    found = material_of_run(run.folder)
    target = load(run.config.data).y
    assert found.model is not None
    expected = seen[0] * target.std(correction=0) + target.mean()
    torch.testing.assert_close(found.model(X).detach(), expected)
    assert set(found.metrics) == {"test"}


def test_a_page_with_a_lead_begins_with_the_slider() -> None:
    nets = (
        hdnn.network("H1", features=4, layers=8, T=1.0),
        hdnn.network("ResNet", features=4, layers=8, T=1.0),
    )
    model, other = (hdnn.Model(net, 1, hdnn.Augmentation(2, 4)) for net in nets)
    X, y = torch.randn(40, 2), torch.arange(40) % 2
    page = Page(hdnn.report(model, X, y, beside=other, lead=("A claim", "So <b> it is.")).html)
    assert page.sections[:3] == ["flow", "gradients", "about"]
    assert "A claim" in page.words
    assert "So <b> it is." in page.words
    right = 100 * float((model.predict(X) == y).double().mean())
    assert f"{right:.1f} % correct" in page.words


def test_many_layers_and_rows_are_sampled_and_the_page_says_so() -> None:
    net = hdnn.network("MS3", features=4, layers=1000, T=1.0)
    model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4))
    torch.nn.init.normal_(model.head.weight)
    X = torch.randn(100_000, 2)
    text = hdnn.report(model, X, torch.arange(len(X)) % 2).html
    assert len(text) < 6e6
    page = Page(text)
    assert "800 of 100,000 samples are shown" in page.words
    assert "first 20,000 of 100,000 samples" in page.words
    data = json.loads(next(t for t in page.scripts if t.startswith("{")))
    depths = data["flows"][0]["depths"]
    assert (len(depths), depths[0], depths[-1]) == (65, 0, 1000)


def test_labels_may_be_names_and_data_must_fit() -> None:
    net = hdnn.network("H1", features=4, layers=2, T=1.0)
    model = hdnn.Model(net, 1, hdnn.Augmentation(2, 4), classes=["ham", "spam"])
    X = np.random.default_rng(0).normal(size=(4, 2))
    page = hdnn.report(model, X, np.array(["ham", "spam", "ham", "spam"]))
    assert "spam" in page.html
    assert page._repr_html_().startswith("<iframe srcdoc=")
    with pytest.raises(HdnnError, match="eggs"):
        hdnn.report(model, X, ["ham", "eggs", "ham", "ham"])
    with pytest.raises(HdnnError, match="4 samples and y has 2"):
        hdnn.report(model, X, ["ham", "spam"])


def test_notebook_reprs_are_escaped() -> None:
    net = hdnn.network("H1", features=4, layers=5, T=1.0)
    model = hdnn.Model(net, 3, classes=["<i>", "b", LONG])
    assert "&lt;i&gt;" in model._repr_html_()
    assert LONG not in model._repr_html_()
    assert "<script" not in hdnn.analysis.certify(net, torch.randn(9, 4))._repr_html_()


def test_the_command_of_a_page_repeats_the_run(
    roll: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = page_of(roll)
    lines = [line.strip() for line in page.words.splitlines()]
    line = next(line for line in lines if line.startswith("hdnn train"))
    done(*line.split()[1:])
    again = Run.open("again").load_model().state_dict()
    for name, tensor in Run.open(roll).load_model().state_dict().items():
        assert torch.equal(tensor, again[name])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.345, "12.3"),
        (1612.0, "1,612"),
        (1.2e-21, "1.2·10⁻²¹"),
        (float("nan"), "not a number"),
        (float("inf"), "infinite"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: float, text: str) -> None:
    assert words.number(value) == text
