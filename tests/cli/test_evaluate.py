"""`hdnn evaluate`: the metrics of the run, those of another table, and what to doubt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Trained, done, fails, read_rows, record, write_rows


@pytest.mark.parametrize("name", ["mail", "houses", "roll"])
def test_held_out_data_give_the_metrics_of_the_run(
    name: str, request: pytest.FixtureRequest
) -> None:
    trained = request.getfixturevalue(name)
    run = trained if name == "roll" else trained.run
    metrics = json.loads((run / "metrics.json").read_text())
    result = record("evaluate", run)
    assert result == result | metrics["test"]
    lines = done("evaluate", run).stdout.splitlines()
    assert lines[0] == f"{result['samples']} samples"
    for key, title in (("accuracy", "accuracy"), ("r2", "R²"), ("rmse", "RMSE")):
        if key in result:
            row = next(line for line in lines if line.startswith(title))
            metrics = [part[key] for part in (result, result["linear"], result["baseline"])]
            assert [float(text) for text in row.split()[1:]] == pytest.approx(metrics, abs=1e-4)


def test_the_confusion_matrix_has_true_classes_in_rows() -> None:
    """All rows have one class, and 30 of 40 are taken for the other: nothing is symmetric."""
    draw = np.random.default_rng(0).normal(size=120)
    write_rows(Path("t.csv"), x=draw, y=np.where(draw > 0, "up", "down"))
    done("train", "t.csv", "--target", "y", "--layers", 2, "--out", "run")
    write_rows(Path("new.csv"), x=[-3.0] * 30 + [3.0] * 10, y=["up"] * 40)
    lines = done("evaluate", "run", "new.csv").stdout.splitlines()
    header = next(k for k, line in enumerate(lines) if line.startswith("true"))
    rows = [line.split() for line in lines[header + 2 : header + 4]]
    assert lines[header].split()[-2:] == ["down", "up"]
    assert rows == [["down", "0", "0"], ["up", "30", "10"]]


def test_another_table_is_measured_as_predict_predicts_it(mail: Trained) -> None:
    done("predict", mail.run, mail.table, "--out", "p.csv")
    rows = read_rows(Path("p.csv"))
    right = sum(row["prediction"] == row["label"] for row in rows) / len(rows)
    result = record("evaluate", mail.run, mail.table)
    assert (result["samples"], result["accuracy"]) == (150, pytest.approx(right))


def test_a_table_without_the_target_is_told_so(mail: Trained) -> None:
    header, rows = mail.table.read_text().split("\n", 1)
    Path("new.csv").write_text(f"{header.replace('label', 'kind')}\n{rows}")
    fails(2, ("evaluate", mail.run, "new.csv"), "it lacks the target 'label'", "--target")
    record("evaluate", mail.run, "new.csv", "--target", "kind")


def test_a_result_no_better_than_the_baseline_is_doubted() -> None:
    """99 % accurate, and useless."""
    labels = ["rare", *["ok"] * 99] * 2
    write_rows(Path("t.csv"), a=list(range(200)), b=[0.0, 1.0] * 100, label=labels)
    words = ("t.csv", "--target", "label", "--layers", 2, "--epochs", 1)
    trained = done("train", *words, "--out", "run")
    warnings = record("evaluate", "run", "t.csv")["warnings"]
    for text in (trained.stderr, warnings[0]):
        assert "is no better than always predicting the most frequent class" in text
    assert "class 'rare' (2 samples) is never predicted" in warnings


def test_several_targets_without_the_training_data(houses: Trained) -> None:
    columns = {name: [float(row[name]) for row in read_rows(houses.table)] for name in "abc"}
    write_rows(Path("t.csv"), **columns)
    words = ("--target", "b", "--target", "c", "--layers", 1, "--epochs", 1, "--out", "run")
    done("train", "t.csv", *words)
    Path("t.csv").rename("moved.csv")
    result = done("evaluate", "run", "moved.csv")
    assert [line.split()[0] for line in result.stdout.splitlines()[-3:-1]] == ["b", "c"]
    assert "no baseline and no linear model to compare with" in result.stderr
    header = done("predict", "run", "moved.csv").stdout.splitlines()[0]
    assert header == "a,b,c,prediction_b,prediction_c"
    fails(2, ("evaluate", "run"), "t.csv")


def test_a_bundled_table_and_a_file_of_hdnn_save() -> None:
    from hdnn.data.loading import bundled_frame

    done("train", "iris", "--layers", 1, "--epochs", 2, "--out", "run")
    bundled_frame("iris")[0].to_csv("other.csv", index=False)
    Path("run/model.safetensors").rename("alone.safetensors")
    for target in ((), ("--target", "target")):
        words = ("other.csv", *target) if target else ("iris",)
        result = record("evaluate", "alone.safetensors", *words)
        assert (result["samples"], len(result["classes"])) == (150, 3)
        assert "linear" not in result  # a file has no training data
    fails(2, ("evaluate", "alone.safetensors"), "pass the data to evaluate it on")
    fails(2, ("evaluate", "alone.safetensors", "other.csv"), "--target NAME")
    assert record("gradients", "alone.safetensors", "--data", "iris")["trained"]
    assert "remedy" in record("advise", "alone.safetensors", "--data", "other.csv")


def test_errors(mail: Trained, houses: Trained, roll: Path) -> None:
    fails(2, ("evaluate", "none"), "none is neither a run")
    fails(2, ("evaluate", roll, mail.table), "--target")
    fails(2, ("evaluate", mail.run, "--target", "label"), "pass one")
    fails(2, ("evaluate", mail.run, houses.table), "'label'")
    write_rows(Path("t.csv"), length=[1], links=[2], score=[3], label=["eggs"])
    fails(2, ("evaluate", mail.run, "t.csv"), "'eggs'", "ham")
