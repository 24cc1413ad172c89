"""How deep is deep enough: errors of discretization, and fewer layers for a trained run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hdnn
from hdnn.analysis import depth_error
from hdnn.cli import app
from hdnn.data import split
from hdnn.errors import HdnnError
from hdnn.training import TrainingConfig
from hdnn.training.coarsening import Coarsening
from hdnn.training.prepare import PreparedRun
from hdnn.training.run_config import RunConfig
from hdnn.training.runs import Run
from hdnn.training.settings import DataConfig, ModelConfig


def model_of(layers: int, name: str = "H1", task: str = "classification", **options: Any) -> Any:
    draw = torch.Generator().manual_seed(1)
    options = {"scale": 0.7, "generator": draw} | options
    net = hdnn.network(name, features=4, layers=2, T=1.0, **options)
    model = hdnn.Model(net, 2, hdnn.Augmentation(2, 4), task=task)
    nn.init.normal_(model.head.weight, generator=draw)
    return hdnn.refine(model, layers)


X = split("double-moons", size=200).X_train.double()


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(("name", "layers"), [("H1", 256), ("MS3", 256)])
def test_the_estimated_error_is_the_error(name: str, layers: int, task: str) -> None:
    """Against a network so deep that it is the ODE's flow, for all that is seen here."""
    model = model_of(layers, name, task)
    found = depth_error(model, X)
    assert found.observed_order == pytest.approx(found.order, abs=0.1)
    assert found.reliable
    with torch.no_grad():
        exact = hdnn.refine(model, 64 * layers)
        one, other = (
            m.probabilities(X) if task == "classification" else m(X) for m in (model, exact)
        )
    error = (one - other).abs()
    if task == "regression":
        error /= one.std(0, correction=0)
    assert found.error == pytest.approx(float(error.amax(-1).mean()), rel=0.1)


def test_the_depth_that_is_enough_is_enough() -> None:
    wanted = depth_error(model_of(64), X, tolerance=1e-4)
    assert wanted.enough > 128
    there = depth_error(model_of(wanted.enough), X, tolerance=1e-4)
    assert there.error == pytest.approx(1e-4, rel=0.1)


def test_a_network_that_does_not_follow_its_ode_says_so() -> None:
    coarse = depth_error(model_of(2, scale=6.0), X)
    assert not coarse.reliable
    assert "lower bound" in str(coarse)
    assert coarse.differ is not None
    assert coarse.differ > 0


def test_what_has_no_error_raises() -> None:
    fcnn = hdnn.Model(hdnn.network("FCNN", features=2, layers=2), 1)
    with pytest.raises(HdnnError, match="no ODE"):
        depth_error(fcnn, X)
    for data, tolerance in ((X[:0], 0.1), (X, 0.0)):
        with pytest.raises(HdnnError, match="positive tolerance"):
            depth_error(model_of(2), data, tolerance)


# --- coarsening -----------------------------------------------------------------------------------


def prepared(**options: Any) -> PreparedRun:
    training = TrainingConfig(epochs=1, **options)
    return PreparedRun.of(RunConfig(DataConfig(size=400), ModelConfig(layers=2), training))


def test_a_refined_model_is_coarsened_back() -> None:
    given = prepared(method="joint")
    fine = Coarsening(hdnn.refine(given.model, 64), given.data, given.config.training)
    torch.testing.assert_close(fine.at(2).state_dict(), given.model.state_dict())


@pytest.mark.parametrize("method", ["coordinate", "joint"])
def test_the_output_layer_is_solved_where_the_training_did(method: str) -> None:
    given = prepared(method=method)
    nn.init.ones_(given.model.head.weight)
    coarse = Coarsening(given.model, given.data, given.config.training).at(1)
    assert bool((coarse.head.weight == 1).all()) == (method == "joint")
    assert given.model.network.layers == 2
    if method == "coordinate":
        values = coarse(given.data.X_train)[:, 0]
        target = given.data.y_train.to(values.dtype)
        loss = nn.functional.binary_cross_entropy_with_logits(values, target)
        penalty = coarse.head.weight.square().sum() + coarse.head.bias.square().sum()
        alpha_c = given.config.training.alpha_c
        found = torch.autograd.grad(loss + alpha_c * penalty, list(coarse.head.parameters()))
        assert max(float(g.abs().max()) for g in found) < 1e-5


def test_the_smallest_depth_is_within_the_tolerance_and_no_smaller_one_is() -> None:
    given = prepared()
    coarsening = Coarsening(hdnn.refine(given.model, 8), given.data, given.config.training)
    scores = {n: coarsening.score(coarsening.at(n)).score for n in range(1, 9)}
    for points in (0.0, 1.0, 5.0, 30.0):
        layers = coarsening.smallest(points).network.layers
        assert layers == min(n for n, s in scores.items() if s >= scores[8] - points / 100 - 1e-9)


def test_depths_need_held_out_data_and_a_tolerance() -> None:
    given = prepared()
    with pytest.raises(HdnnError, match="at least 0"):
        Coarsening(given.model, given.data, given.config.training).smallest(-1.0)
    nothing = replace(given.data, X_test=given.data.X_test[:0])
    with pytest.raises(HdnnError, match="held out no data"):
        Coarsening(given.model, nothing, given.config.training)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "deep"
    model = ModelConfig(layers=8, step=0.1)
    training = TrainingConfig(epochs=4, levels=(2, 8))
    Run.create(folder, RunConfig(DataConfig(size=400), model, training)).train()
    return folder


def invoke(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_writes_a_run_of_that_depth(run: Path) -> None:
    found = invoke("coarsen", run, "--layers", 4)
    made = Run.open(run.with_name("deep-4"))
    assert found["run"] == str(made.folder)
    assert made.load_model().network.layers == 4
    assert made.read_config().model == replace(ModelConfig(), layers=4, step=0.2, T=None)
    assert pytest.approx(0.8) == made.load_model().network.T
    measured = invoke("evaluate", made.folder)
    assert measured["accuracy"] == found["test"]["accuracy"] == found["after"]["score"]
    facts = json.loads((made.folder / "coarsened.json").read_text())
    assert (facts["run"], facts["layers"]) == ("deep", 8)
    again = CliRunner().invoke(app, ["coarsen", str(run), "--layers", "4"])
    assert again.exit_code == 2  # what is there is not replaced


def test_the_command_finds_the_depth_by_itself(run: Path, tmp_path: Path) -> None:
    found = invoke("coarsen", run, "--tolerance", 100, "--out", tmp_path / "shallow")
    assert found["after"]["layers"] == 1
    assert CliRunner().invoke(app, ["coarsen", str(run), "--layers", "9"]).exit_code == 2


def test_advice_on_a_run_tells_its_depth(run: Path) -> None:
    found = invoke("advise", run)
    assert [row["layers"] for row in found["coarsened"]] == [1, 2, 4, 8]
    assert found["depth"]["layers"] == 8
    assert found["depth"]["enough"] >= 1
    text = CliRunner().invoke(app, ["advise", str(run)]).output
    assert "deep enough" in text
    assert "times as fast" in text
