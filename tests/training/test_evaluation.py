"""Figures of results agree with their definitions and with scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

import hdnn
from hdnn.training.evaluation import (
    calibration_error,
    classification_metrics,
    evaluate,
    references,
    regression_metrics,
    result_warnings,
    score,
)


def model_of(features: int, outputs: int, task: str) -> hdnn.Model:
    net = hdnn.network("H1", features=2 * features, layers=2, T=1.0)
    padding = hdnn.Padding(features, 2 * features)
    model = hdnn.Model(net, outputs, padding, task=task)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return model


def test_two_classes_by_hand() -> None:
    target = np.array([0, 0, 0, 1])
    second = np.array([0.1, 0.6, 0.2, 0.7])
    metrics = classification_metrics(target, np.stack([1 - second, second], 1), ["no", "yes"])
    assert metrics["confusion"] == [[2, 1], [0, 1]]
    assert metrics["accuracy"] == 0.75
    assert metrics["roc_auc"] == 1.0
    no, yes = metrics["classes"]
    assert (no["label"], no["samples"], no["precision"], no["recall"]) == ("no", 3, 1.0, 2 / 3)
    assert (yes["precision"], yes["recall"]) == (0.5, 1.0)
    assert yes["f1"] == pytest.approx(2 / 3)
    expected = -np.log([0.9, 0.4, 0.8, 0.7]).mean()
    assert metrics["log_loss"] == pytest.approx(expected)


@pytest.mark.parametrize("rare", [0, 1])
def test_average_precision_is_of_the_rarer_class(rare: int) -> None:
    """Else a classifier that finds none of a rare class has 0.99."""
    target = np.full(50, 1 - rare)
    target[:2] = rare
    scores = np.random.default_rng(0).random(50)
    P = np.stack([1 - scores, scores], 1)
    metrics = classification_metrics(target, P, ["a", "b"])
    assert metrics["average_precision"] == average_precision_score(target == rare, P[:, rare])
    assert metrics["average_precision"] < 0.5


def test_mean_leaves_out_a_class_without_samples() -> None:
    P, target = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]), np.array([0, 1])
    metrics = classification_metrics(target, P, list("abc"))
    assert metrics["roc_auc"] == 1.0
    assert np.isnan(metrics["classes"][2]["roc_auc"])
    one = classification_metrics(target[:1], P[:1], list("abc"))
    assert np.isnan(one["roc_auc"])
    lost = classification_metrics(target, P * np.nan, list("abc"))
    assert np.isnan([lost["log_loss"], lost["roc_auc"], lost["calibration_error"]]).all()


def test_calibration_error_by_hand() -> None:
    """Two bins: two samples at 0.9, one of them right; two at 0.6, both right."""
    P = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    gaps = 0.5 * abs(0.5 - 0.9) + 0.5 * abs(1.0 - 0.6)
    assert calibration_error(np.array([0, 1, 0, 0]), P) == pytest.approx(gaps)
    assert calibration_error(np.array([0, 1]), np.eye(2)) == 0.0  # confidence 1 has a bin


def test_values_by_target() -> None:
    target = np.array([[1.0, 10.0], [3.0, 10.0], [5.0, 10.0]])
    errors = np.array([[0.0, 1.0], [0.0, 1.0], [2.0, -1.0]])
    metrics = regression_metrics(target, target + errors, ["a", "b"])
    a, b = metrics["targets"]
    assert (a["name"], a["r2"]) == ("a", pytest.approx(1 - 4 / 8))
    assert (b["rmse"], b["mae"]) == (1.0, 1.0)
    assert np.isnan(b["r2"])  # its values do not vary
    assert metrics["rmse"] == pytest.approx(np.sqrt(7 / 6))


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_model_is_measured_by_its_probabilities(outputs: int) -> None:
    model, X = model_of(2, outputs, "classification"), torch.randn(40, 2)
    target = torch.randint(0, max(2, outputs), (40,))
    metrics = evaluate(model, X, target)
    P = model.probabilities(X).detach().numpy()
    assert metrics["log_loss"] == pytest.approx(log_loss(target, P), rel=1e-5)
    if outputs == 3:
        area = roc_auc_score(target, P, multi_class="ovr")
        assert metrics["roc_auc"] == pytest.approx(area, rel=1e-5)


def test_a_regression_is_measured_by_its_values() -> None:
    model, X, target = model_of(2, 2, "regression"), torch.randn(40, 2), torch.randn(40, 2)
    metrics, errors = evaluate(model, X, target), (model(X) - target).detach()
    assert metrics["samples"] == 40
    assert metrics["rmse"] == pytest.approx(float(errors.square().mean().sqrt()))
    assert metrics["mae"] == pytest.approx(float(errors.abs().mean()))
    spread = (target - target.mean(0)).square().sum()
    assert metrics["r2"] == pytest.approx(float(1 - errors.square().sum() / spread))


def test_references_are_scikit_learns_on_the_training_data() -> None:
    """The zeros that pad the network's input change neither."""
    X, noise = torch.randn(80, 2), 0.3 * torch.randn(80)
    train, test = slice(60), slice(60, 80)
    values = X[:, 0] - 2 * X[:, 1] + noise
    labels = (values > 0.5).long()

    data = X[train], values[train], X[test], values[test]
    metrics = references(model_of(2, 1, "regression"), *data)
    ridge = Ridge().fit(X[train], values[train])
    assert metrics["linear"]["r2"] == pytest.approx(ridge.score(X[test], values[test]))
    error = (values[test] - values[train].mean()).square().mean().sqrt()
    assert metrics["baseline"]["rmse"] == pytest.approx(float(error))

    data = X[train], labels[train], X[test], labels[test]
    metrics = references(model_of(2, 1, "classification"), *data)
    logistic = LogisticRegression().fit(X[train], labels[train])
    assert metrics["linear"]["accuracy"] == logistic.score(X[test], labels[test])
    majority = labels[train].mode().values
    assert metrics["baseline"]["accuracy"] == float((labels[test] == majority).double().mean())


def test_references_where_training_data_lack_classes() -> None:
    model, X, y = model_of(2, 3, "classification"), torch.randn(10, 2), torch.tensor([0, 2] * 5)
    assert set(references(model, X, y, X, y)) == {"baseline", "linear"}
    assert set(references(model, X, 0 * y, X, y)) == {"baseline"}


def test_warnings_about_a_result() -> None:
    def metrics(second: list[float]) -> dict[str, object]:
        P = np.stack([1 - np.array(second), second], 1)
        return classification_metrics(np.array([0, 0, 1]), P, ["a", "b"])

    baseline = {"baseline": {"accuracy": 2 / 3}}
    blind, good = metrics([0.1, 0.1, 0.2]), metrics([0.1, 0.1, 0.8])
    assert result_warnings(good, baseline) == []
    assert len(result_warnings(blind, baseline)) == 2
    assert result_warnings(blind, {}) == ["class 'b' (1 samples) is never predicted"]
    assert "the mean" in result_warnings({"rmse": float("nan")}, {"baseline": {"rmse": 1.0}})[0]


@pytest.mark.parametrize(("task", "outputs"), [("classification", 1), ("regression", 2)])
def test_the_score_is_that_of_all_metrics(task: str, outputs: int) -> None:
    model, X = model_of(3, outputs, task), torch.randn(40, 3)
    target = torch.randn(40, 2) * torch.tensor([1.0, 9.0]) if outputs == 2 else torch.arange(40) % 2
    metrics = evaluate(model, X, target)
    expected = metrics["accuracy" if task == "classification" else "r2"]
    assert score(model, X, target) == pytest.approx(expected, rel=1e-6)
    if outputs == 2:
        assert np.isnan(score(model, X, target * 0))
