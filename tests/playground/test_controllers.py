"""The page's second tab: its controllers are those of hdnn, and what it says of them holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from hdnn.control import feedback, gain_limit, sampled
from hdnn.playground import FOLDER, controllers
from javascript import needs_node, run

STORED = json.loads((FOLDER / "controllers.json").read_text(encoding="utf-8"))
PLANT = sampled(*controllers.MASS, step=controllers.STEP)
START = [2.0, 0.5]


def case(kind: str, noise: Tensor, **more: Any) -> dict[str, Any]:
    given = {"kind": kind, "weights": STORED[kind]["weights"], "settings": STORED}
    loop = {"plant": STORED["plant"], "start": START, "noise": noise.tolist()}
    return {"task": "loop", **given, **loop, **more}


@torch.no_grad()
def load(controller: Any, weights: dict[str, Any]) -> None:
    for name, parameter in controller.named_parameters():
        parameter.copy_(torch.tensor(weights[name.rpartition(".")[2]]))


@torch.no_grad()
def in_python(kind: str, weights: dict[str, Any], noise: Tensor) -> Tensor:
    controller = controllers.controllers()[kind]
    load(controller, weights)
    start = torch.tensor([START]).double()
    force = noise[:, None, None]
    return feedback(PLANT, controller, start, steps=len(noise), disturbance=force).plant[:, 0]


@needs_node
def test_the_loops_of_the_page_are_those_of_hdnn() -> None:
    noise = 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
    cases = [case(kind, noise) for kind in ("stateSpace", "mlp")]
    # Small weights are not scaled down when a cell is assembled, large ones are.
    cases += [
        case(kind, noise, scale=scale, seed=seed)
        for seed, (scale, kind) in enumerate(
            (scale, kind) for scale in (0.1, 1, 10) for kind in ("stateSpace", "mlp")
        )
    ]
    for given, result in zip(cases, run(cases), strict=True):
        expected = in_python(given["kind"], result["weights"], noise)
        found = torch.tensor(result["states"]).double()
        error = (found - expected).abs().max() / expected.abs().max()
        assert error < 1e-9, (given["kind"], given.get("scale"), float(error))


@needs_node
def test_scrambled_weights_let_the_mass_rest_as_proved_and_most_mlps_do_not() -> None:
    cases = [
        case(kind, torch.zeros(4000), scale=3, seed=seed)
        for kind in ("stateSpace", "mlp")
        for seed in range(12)
    ]
    states = torch.tensor([result["states"] for result in run(cases)]).double()
    largest = states[..., 0].abs().amax(1)
    assert largest[:12].max() < 2.5
    assert states[:12, -1].abs().max() < 1e-3
    assert (largest[12:] > 5).sum() >= 6


@needs_node
def test_the_python_code_runs_and_random_weights_let_the_mass_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (result,) = run([{"task": "loopCode", "scale": 10}])
    exec(result["code"].replace("range(100)", "range(2)"), {})
    limit, distance = capsys.readouterr().out.splitlines()
    assert "proved=True" in limit
    assert float(distance.rpartition(" ")[2]) < 1e-6


def test_the_stored_numbers_are_those_of_the_script() -> None:
    limit = gain_limit(*controllers.MASS, step=controllers.STEP)
    assert limit.proved
    assert STORED["limit"] == pytest.approx(limit.gain, abs=1e-3)
    assert STORED["gain"] == controllers.GAIN < limit.gain
    network = controllers.controllers()["stateSpace"]
    assert STORED["mu"] == network.mu
    assert STORED["step"] == network.h == controllers.STEP
    for name, matrix in STORED["plant"].items():
        assert torch.equal(torch.tensor(matrix).double(), getattr(PLANT, name))
    # Trained alike, and equally well: they differ in what is proved.
    for kind, controller in controllers.controllers().items():
        load(controller, STORED[kind]["weights"])
        cost = float(controllers.cost(PLANT, controller).detach())
        assert cost == pytest.approx(STORED[kind]["cost"], rel=1e-3)
    costs = [STORED[kind]["cost"] for kind in ("stateSpace", "mlp")]
    assert max(costs) < 1.01 * min(costs)
