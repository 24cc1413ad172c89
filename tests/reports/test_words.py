"""Sentences say what the numbers say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hdnn
from hdnn.reports import words
from hdnn.reports.page import ReportInputs
from hdnn.training.evaluation import predictions_metrics

Y = torch.arange(200) % 2


def predictions(wrong: int) -> np.ndarray:
    """Probabilities of two classes, of which the first so many are wrong."""
    right = np.where(np.arange(200) < wrong, 0.1, 0.9)
    return np.where(np.arange(2) == Y.numpy()[:, None], right[:, None], 1 - right[:, None])


def verdict(task: str, target: torch.Tensor, made: dict[str, np.ndarray], **known: Any) -> str:
    net = hdnn.network("H1", features=4, layers=1, T=1.0)
    model = hdnn.Model(net, 1, hdnn.Padding(2, 4), task=task)
    metrics = {k: predictions_metrics(model, each, target.numpy()) for k, each in made.items()}
    return words.verdict(ReportInputs("", model, y=target, **known), made, metrics)


@pytest.mark.parametrize(
    ("own", "linear", "baseline", "begins"),
    [
        (
            10,
            40,
            100,
            "Better than the linear model by 15.0 points: accuracy 95.0 % against 80.0 %.",
        ),
        (
            40,
            10,
            100,
            "Worse than the linear model by 15.0 points: accuracy 80.0 % against 95.0 %.",
        ),
        (10, 10, 100, "No better than the linear model on 200 held-out samples: accuracy 95.0 %"),
        (10, 14, 100, "No better than the linear model"),  # 4 of 200 are two standard errors
        (10, 15, 100, "Better than the linear model"),
        (14, 10, 100, "No better than the linear model"),
        (15, 10, 100, "Worse than the linear model"),
        (100, 40, 100, "No better than the most frequent class on 200 held-out samples"),
        (104, 100, 100, "No better than the most frequent class"),
        (150, 40, 100, "Worse than the most frequent class by 25.0 points"),
        (40, None, 100, "Better than the most frequent class by 30.0 points"),
    ],
)
def test_a_verdict_is_about_the_better_of_both_references(
    own: int, linear: int | None, baseline: int, begins: str
) -> None:
    made = {"network": predictions(own), "baseline": predictions(baseline)}
    if linear is not None:
        made["linear"] = predictions(linear)
    text = verdict("classification", Y, made)
    assert text.startswith(begins)
    assert ("--epochs" in text) == (not begins.startswith("Better"))


def test_samples_are_compared_in_pairs() -> None:
    """A difference of ten mistakes decides less, where the models are wrong on other samples."""
    other = 1 - predictions(20)[::-1]  # wrong on the last 20, as the classes alternate
    made = {"network": predictions(10), "linear": other, "baseline": predictions(100)}
    assert verdict("classification", Y, made).startswith("No better than the linear model")
    made["linear"] = predictions(20)
    assert verdict("classification", Y, made).startswith("Better than the linear model")


@pytest.mark.parametrize(
    ("errors", "begins"),
    [
        ((0.1, 0.5), "Better than the linear model: R² "),
        ((0.5, 0.1), "Worse than the linear model: R² "),
        ((0.5, 0.5), "No better than the linear model on 200 held-out samples: R² "),
        ((3.0, 0.5), "Worse than the mean of the targets: R² "),
    ],
)
def test_a_regression_is_judged_by_squared_errors(errors: tuple[float, float], begins: str) -> None:
    target, noise = torch.randn(200), np.random.default_rng(0).normal(size=(2, 200, 1))
    own, linear = (target.numpy()[:, None] + e * n for e, n in zip(errors, noise, strict=True))
    made = {"network": own, "linear": linear, "baseline": np.zeros((200, 1))}
    assert verdict("regression", target, made).startswith(begins)
    made["network"] = own * np.nan
    assert verdict("regression", target, made).startswith("Worse than the mean of the targets")


@pytest.mark.parametrize(
    ("train", "history", "remedy"),
    [
        ({"accuracy": 0.94}, [], "more epochs (--epochs)"),
        ({}, [], "more epochs (--epochs)"),
        ({"accuracy": 1.0}, [], "early stopping (--validation 0.1 --early-stopping 10)"),
        ({"accuracy": 1.0}, [{"validation_loss": 0.3}], "a smaller network"),
    ],
)
def test_advice_depends_on_the_training_data(
    train: dict[str, float], history: list[dict[str, float]], remedy: str
) -> None:
    made = {"network": predictions(20), "linear": predictions(20), "baseline": predictions(100)}
    text = verdict("classification", Y, made, train_metrics=train, history=history)
    assert f"Take the linear model, which is simpler, or try {remedy}" in text


def test_a_history_in_words() -> None:
    history = [
        {"epoch": k, "loss": loss, "validation_loss": validation}
        for k, loss, validation in ((1, 0.9, 0.8), (2, 0.5, 0.6), (3, 0.4, 0.7))
    ]
    text = words.learning(history)
    assert "fell from 0.9 to 0.4 in 3 epochs" in text
    assert "The validation loss was lowest in epoch 2 (0.6)" in text
    assert "rose from 0.4 to 0.9" in words.learning([history[2], {**history[0], "epoch": 4}])
    assert "validation" not in words.learning([{"epoch": k, "loss": 1.0} for k in (1, 2)])
