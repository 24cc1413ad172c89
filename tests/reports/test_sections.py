"""The numbers of a page are those of the model: each is computed here in another way."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, precision_score, recall_score

import hdnn
from commands import record, write_rows
from hdnn.config import Config, DataConfig, ModelConfig
from hdnn.errors import HdnnError
from hdnn.reports import report_of_run
from hdnn.training import TrainingConfig, evaluation
from hdnn.training.runs import Run
from hdnn.training.trainer import Trainer
from page import Page, text_of

LABELS = ["ham", "spam", "egg"]
DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def random_model(outputs: int, **options: Any) -> hdnn.Model:
    net = hdnn.network("H1", features=4, layers=3, T=1.0)
    model = hdnn.Model(net, outputs, hdnn.Padding(2, 4), **options)
    torch.nn.init.normal_(model.head.weight)
    return model


def table_run(folder: Path, epochs: int = 30, rows: int = 300, **options: Any) -> Path:
    """A ring, which no linear model can find, in two columns of three; some cells are missing."""
    rng = np.random.default_rng(0)
    a, b, noise = rng.normal(size=(3, rows))
    label = np.where(a**2 + b**2 < 1.4, "in", "out")
    cells = [["" if rng.random() < 0.1 else x for x in column] for column in (a, noise, b)]
    names = ("a", "noise", "b")
    path = write_rows(folder / "ring.csv", **dict(zip(names, cells, strict=True)), label=label)
    training = TrainingConfig(epochs=epochs, **options)
    Run.create(
        folder / "run", Config(data=DataConfig(source=str(path), target="label"), training=training)
    ).train()
    return folder / "run"


def columns(page: Page) -> dict[str, dict[str, str]]:
    """The metrics by column and row."""
    header, *rows = page.table("section[@id='results']/div/div/table[@class='metrics']")
    return {name: {row[0]: row[k] for row in rows} for k, name in enumerate(header) if k}


def test_the_confusion_matrix_has_true_classes_in_rows() -> None:
    model, X, y = random_model(3, classes=LABELS), torch.randn(60, 2), torch.arange(60) % 3
    page = Page(hdnn.report(model, X, [LABELS[k] for k in y]).html)
    expected = np.zeros((3, 3), dtype=int)
    for truth, guess in zip(y, model.predict(X), strict=True):
        expected[truth, guess] += 1
    assert (expected != expected.T).any()
    header, *rows = page.table("table[@class='confusion']")
    assert header == ["", *LABELS]
    assert rows == [[name, *map(str, row)] for name, row in zip(LABELS, expected, strict=True)]
    cells = [cell for cell in page.all("table[@class='confusion']/tbody/tr/td")]
    shares = [float(cell.attrib["style"].split(":")[1]) for cell in cells]
    np.testing.assert_allclose(shares, (expected / expected.sum(1)[:, None]).ravel(), atol=6e-4)
    hits = [cell.attrib["class"] == "hit" for cell in cells]
    assert hits == np.eye(3, dtype=bool).ravel().tolist()


def test_precision_and_recall_stand_in_their_columns() -> None:
    model, X, y = random_model(3), torch.randn(60, 2), torch.arange(60) % 3
    _, by_class = Page(hdnn.report(model, X, y).html).all("table[@class='metrics']")
    header, *rows = [[text_of(cell) for cell in row] for row in by_class.iter("tr")]
    assert header == ["", "samples", "precision", "recall", "F1"]
    guesses = model.predict(X)
    for metric, k in ((precision_score, 2), (recall_score, 3)):
        expected = metric(y, guesses, average=None, zero_division=0)
        assert [float(row[k]) for row in rows] == pytest.approx(expected, abs=6e-4)


def test_every_column_of_metrics_is_that_of_its_model(tmp_path: Path) -> None:
    """As computed from predictions here, and as the terminal shows them."""
    run = Run.open(table_run(tmp_path))
    model, data = run.load_model(), run.load_data()
    page = Page(report_of_run(run.folder).html)
    shown = columns(page)
    assert [*shown] == ["this network", "on training data", "linear model", "most frequent class"]
    inputs = [model.prepare(X).detach().double().numpy() for X in (data.X, data.X_test)]
    linear = LogisticRegression(max_iter=200).fit(inputs[0], data.y)
    majority = int(data.y.double().mean() > 0.5)
    second = torch.sigmoid(model(data.X_test)[:, 0].double()).detach()
    accuracies = [
        float((model.predict(data.X_test) == data.y_test).double().mean()),
        float((model.predict(data.X) == data.y).double().mean()),
        linear.score(inputs[1], data.y_test),
        float((data.y_test == majority).double().mean()),
    ]
    assert len({*accuracies}) == 4
    assert [float(column["accuracy"]) for column in shown.values()] == pytest.approx(
        accuracies, abs=6e-4
    )
    losses = log_loss(data.y_test, second), log_loss(data.y_test, linear.predict_proba(inputs[1]))
    names = ("this network", "linear model")
    assert [float(shown[name]["log loss"]) for name in names] == pytest.approx(losses, rel=6e-3)
    assert page.texts("p[@class='headline']/strong") == [f"{100 * accuracies[0]:.1f} %"]
    terminal = record("evaluate", run.folder)
    others = {"this network": terminal, "linear model": terminal["linear"]}
    others["most frequent class"] = terminal["baseline"]
    for title, metrics in others.items():
        for name, row in evaluation.METRICS.items():
            if name in metrics:
                assert float(shown[title][row].replace("·10⁻", "e-").translate(DIGITS)) == (
                    pytest.approx(metrics[name], rel=6e-2 if "·" in shown[title][row] else 6e-3)
                )


def test_a_regression_is_drawn_predicted_over_observed() -> None:
    model, X = random_model(1, task="regression"), torch.randn(50, 2)
    y = torch.randn(50)
    page = Page(hdnn.report(model, X, y).html)
    (drawn, *_) = page.all("div[@class='results']/figure/svg")
    marks = [
        (float(use.attrib["x"]), float(use.attrib["y"]))
        for group in drawn.iter("g")
        if group.attrib.get("clip-path")
        for use in group.iter("use")
    ]
    assert len(marks) == 50
    across, down = np.array(marks).T
    predicted = model(X)[:, 0].detach()
    assert abs(np.corrcoef(predicted, y)[0, 1]) < 0.9
    assert np.corrcoef(across, y)[0, 1] == pytest.approx(1, abs=1e-4)
    assert np.corrcoef(down, predicted)[0, 1] == pytest.approx(-1, abs=1e-4)
    turned = {
        text_of(text): "rotate(-90" in text.get("transform", "") for text in drawn.iter("text")
    }
    assert (turned["observed"], turned["predicted"]) == (False, True)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_worst_mistakes_come_first_with_their_own_images(classes: int) -> None:
    made = hdnn.image_model(channels=1, size=(6, 6), classes=classes, layers=2, step=0.1)
    torch.nn.init.normal_(made.head.weight)
    X = torch.randint(0, 256, (30, 1, 6, 6), dtype=torch.uint8)
    y = torch.arange(30) % classes
    page = Page(hdnn.report(made, X, y).html)
    P = made(X).detach().double().softmax(1)
    guesses = P.argmax(1)
    worst = sorted((k for k in range(30) if guesses[k] != y[k]), key=lambda k: P[k, y[k]])[:12]
    items = page.all("ul[@class='mistakes']/li")
    assert len(items) == len(worst) > 3
    for k, item in zip(worst, items, strict=True):
        source = item[0].attrib["src"].removeprefix("data:image/png;base64,")
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))
        np.testing.assert_array_equal(shown, X[k, 0])
        assert text_of(item) == f"{y[k]} → {guesses[k]}{100 * P[k].max():.0f} %"


def test_columns_are_ranked_by_their_shuffles_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that the model does not use has no effect; metrics are computed once a model."""
    run, calls = table_run(tmp_path), []
    measure = evaluation.classification_metrics

    def count(*arguments: Any) -> Any:
        calls.append(1)
        return measure(*arguments)

    monkeypatch.setattr(evaluation, "classification_metrics", count)
    page = Page(report_of_run(run).html)
    falls = {
        row[0]: float(row[1]) for row in page.table("table[@class='metrics columns-that-matter']")
    }
    assert [*falls][-1] == "noise"
    assert falls["noise"] < 0.05 < 0.1 < min(falls["a"], falls["b"])
    assert len(calls) == 3  # the network, the linear model, the baseline


def test_a_table_of_two_columns_with_gaps_has_a_page(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(80, 2))
    y = np.where(X[:, 0] > 0, "p", "n")
    X[::9, 0] = X[::7, 1] = np.nan
    model = random_model(1, classes=["n", "p"])
    scene = Page(hdnn.report(model, X, y).html).scene
    left, right, bottom, top = scene["box"]
    low, high = np.nanmin(X, 0), np.nanmax(X, 0)
    assert left < low[0] < high[0] < right
    assert bottom < low[1] < high[1] < top
    Page(hdnn.report(model, X * np.nan, y).html)


def test_only_compare_trains_a_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = table_run(tmp_path, epochs=1)
    fits, fit = [], Trainer.fit

    def counted(self: Trainer, *arguments: Any) -> Any:
        fits.append(self.model.network.name)
        return fit(self, *arguments)

    monkeypatch.setattr(Trainer, "fit", counted)
    assert len(Page(report_of_run(run).html).scene["flows"]) == 1
    assert fits == []
    page = Page(report_of_run(run, compare=True).html)
    assert fits == ["ResNet"]
    assert [text.startswith("ResNet") for text in page.texts("div[@class='network']/h3")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("source", "architecture", "message"),
    [("digits", "H2", "tables"), ("iris", "ResNet", "Hamiltonian"), ("iris", "H1", "not finished")],
)
def test_compare_says_why_it_cannot(
    source: str, architecture: str, message: str, tmp_path: Path
) -> None:
    model = ModelConfig(architecture=architecture)
    run = Run.create(
        tmp_path / "run",
        Config(data=DataConfig(source=source), model=model, training=TrainingConfig(epochs=1)),
    )
    if "finished" not in message:
        run.train()
    with pytest.raises(HdnnError, match=message):
        report_of_run(run.folder, compare=True)


def test_validation_is_drawn_and_the_weights_are_named(tmp_path: Path) -> None:
    options = {"method": "joint", "averaging": 0.9, "validation": 0.2, "early_stopping": 3}
    run = Run.open(table_run(tmp_path, epochs=4, **options))
    page = Page(report_of_run(run.folder).html)
    for name in ("loss", "accuracy"):
        assert {f"training {name}", f"validation {name}"} <= {*page.texts("text")}
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert (
        facts["weights"] == "averaged over training, of the epoch with the lowest validation loss"
    )
    model, data = run.load_model(), run.load_data()
    accuracy = float((model.predict(data.X_test) == data.y_test).double().mean())
    assert page.texts("strong") == [f"{100 * accuracy:.1f} %"]


def test_no_page_says_where_its_files_are(tmp_path: Path) -> None:
    run = table_run(tmp_path, epochs=2)
    page = report_of_run(run.resolve()).html
    assert str(tmp_path) not in page
    assert "source = &#34;ring.csv&#34;" in page
    Run.open(run).model_file.unlink()
    unfinished = report_of_run(run.resolve()).html
    checkpoint = run / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
    for page in (unfinished, report_of_run(run.resolve()).html):
        assert "hdnn train --resume run" in page
        assert str(tmp_path) not in page
