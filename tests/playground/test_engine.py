"""The playground's engine, run by Node: it computes what hdnn computes, and its defaults learn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hdnn
from hdnn import schemes
from hdnn.analysis import sensitivities
from hdnn.config import TrainingConfig
from hdnn.data import split
from hdnn.fields import ACTIVATIONS, HamiltonianField
from hdnn.models import Model
from hdnn.playground import FOLDER
from hdnn.training.batches import Batches
from hdnn.training.loops import AutogradLoop
from hdnn.zoo import ARCHITECTURES

RUNNER = Path(__file__).with_name("engine.mjs")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None and "HDNN_CI" not in os.environ, reason="Node 20 or later runs the engine"
)

SPLITTINGS = ["Leapfrog", "Yoshida4", "ForwardEuler"]
PAIRS = [
    *((name, None) for name in ARCHITECTURES),
    *((name, scheme) for name in ("MS1", "MS3", "HS") for scheme in SPLITTINGS),
]


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(RUNNER), str(FOLDER)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def build(name: str, scheme: str | None = None, layers: int = 12, **options: Any) -> Any:
    row = ARCHITECTURES[name]
    options = {"features": 4, "generator": torch.Generator().manual_seed(5), **options}
    if scheme is not None:
        kind: Any = schemes.SCHEMES[scheme]
        own: Any = row.scheme
        options["scheme"] = kind() if scheme == "ForwardEuler" else kind(own.first)
    if row.scheme.uses_step:
        options["T"] = 1.2
    return hdnn.network(name, layers=layers, **options).float()


def spec(net: Any) -> dict[str, Any]:
    weights = net.field.weights
    given = {
        "architecture": net.name,
        "width": net.features,
        "layers": net.layers,
        "step": net.h,
        "activation": net.field.activation.name,
        "timeInvariant": net.time_invariant,
        "theta": weights.theta.flatten().tolist(),
        "beta": weights.beta.flatten().tolist(),
    }
    if isinstance(net.scheme, schemes.Splitting):
        return {**given, "scheme": net.scheme.name, "first": net.scheme.first}
    return {**given, "scheme": type(net.scheme).__name__}


def close(found: Any, expected: Tensor, what: str) -> None:
    """Equal to 1e-5, relative to the largest entry."""
    flat = expected.detach().double().reshape(-1)
    error = (torch.tensor(found, dtype=torch.float64) - flat).abs().max()
    assert error <= 1e-5 * flat.abs().max(), f"{what}: {float(error)} of {float(flat.abs().max())}"


def networks() -> list[tuple[str, Any]]:
    nets = [(f"{name} {scheme}", build(name, scheme)) for name, scheme in PAIRS]
    nets += [(f"{name} shared", build(name, time_invariant=True)) for name in ("H2", "MS1")]
    nets += [(f"H1 {sigma}", build("H1", activation=sigma)) for sigma in ACTIVATIONS]
    nets += [(f"{name} wide", build(name, features=6)) for name in ("MS2", "MS3", "H2")]
    nets += [("HS 10", build("HS", features=10)), ("FCNN 8", build("FCNN", features=8))]
    return nets


@cache
def compared() -> dict[str, tuple[Any, Tensor, Tensor, dict[str, Any]]]:
    """Every network with its batch, its cotangents, and what the engine makes of them."""
    inputs, cases = [], []
    for title, net in networks():
        y, g = torch.randn(2, 7, net.features, generator=torch.Generator().manual_seed(len(title)))
        inputs.append((title, net, y, g))
        states, cotangents = (array.T.flatten().tolist() for array in (y, g))
        case = {"network": spec(net), "states": states, "cotangents": cotangents}
        cases.append({"task": "network", **case})
    results = zip(inputs, run(cases), strict=True)
    return {title: (net, y, g, result) for (title, net, y, g), result in results}


TITLES = [title for title, _ in networks()]


@needs_node
@pytest.mark.parametrize("title", TITLES)
def test_the_engine_computes_what_hdnn_computes(title: str) -> None:
    net, y, g, found = compared()[title]
    assert "error" not in found, found
    wide = net.double()
    states = y.double().requires_grad_()
    out = wide(states)
    out.backward(g.double())
    close(found["out"], out.T, "outputs")
    close(found["theta"], wide.field.weights.theta.grad, "gradient of K")
    close(found["beta"], wide.field.weights.beta.grad, "gradient of b")
    close(found["states"], states.grad.T, "gradient of the states")  # type: ignore[union-attr]
    with torch.no_grad():
        M = sensitivities(wide, y.double())
        close(found["sensitivities"], M, "sensitivities")
        close(found["norms"], torch.linalg.matrix_norm(M[0, :2], 2), "norms")
        velocity = torch.func.jacrev(wide.field.velocity)(y[0].double())
        close(found["jacobian"], velocity, "Jacobian of the field")
        if isinstance(wide.field, HamiltonianField):
            path = wide.trajectory(y.double())
            H = torch.stack(
                [wide.field.energy(path[j], min(j, net.layers - 1)) for j in range(net.layers + 1)]
            )
            close(found["energies"], H, "energies")
    eigenvalues = torch.tensor([[float(a), float(b)] for a, b in found["eigenvalues"]])
    distances = torch.cdist(torch.view_as_real(torch.linalg.eigvals(velocity)), eigenvalues)
    # Every eigenvalue has one of the engine's beside it, and the other way round.
    nearest = torch.stack([distances.min(0).values, distances.min(1).values])
    assert nearest.max() <= 1e-6 * max(1.0, float(velocity.abs().max()))


@needs_node
def test_the_catalogs_agree() -> None:
    found = run([{"task": "catalog"}])[0]
    assert set(found["schemes"]) == set(ARCHITECTURES)
    assert found["activations"] == list(ACTIVATIONS)
    for name, listed in found["schemes"].items():
        own = ARCHITECTURES[name].scheme
        assert listed[0] == (own.name if isinstance(own, schemes.Splitting) else type(own).__name__)
        assert {(name, scheme) for scheme in listed[1:]} <= set(PAIRS)


@needs_node
@pytest.mark.parametrize("problem", ["swiss-roll", "peaks"])
@pytest.mark.parametrize("method", ["coordinate", "joint"])
@pytest.mark.parametrize("name", ["H1", "MS1", "FCNN"])
def test_a_training_follows_the_loss_curve_of_hdnn(name: str, method: str, problem: str) -> None:
    data = split(problem, size=1000)
    outputs = 1 if len(data.classes) == 2 else len(data.classes)
    net = build(name, layers=8)
    given = spec(net)
    model = Model(net, outputs, hdnn.Augmentation(2, 4))
    config = TrainingConfig(method=method, learning_rate=0.02, loop="autograd")
    batches = torch.randperm(500, generator=torch.Generator().manual_seed(1)).split(125) * 5
    weight = torch.ones(500)
    states = Batches(model.stem.prepare(data.X).float(), data.y, weight)
    loop = AutogradLoop(model, states, config)
    expected = []
    for i, batch in enumerate(batches):
        expected.append(loop.gradients(batch, 0, i, len(batches))[:2])
        loop.optimizer.step()
    case = {
        "task": "training",
        "network": given,
        "points": data.X.flatten().tolist(),
        "labels": data.y.tolist(),
        "classes": len(data.classes),
        "batches": [batch.tolist() for batch in batches],
        "config": {
            "method": method,
            "learningRate": 0.02,
            "alpha": config.alpha,
            "alphaC": config.alpha_c,
            "batch": 125,
        },
    }
    found = run([case])[0]
    for column, key in enumerate(("loss", "penalized")):
        curve = np.array([step[column] for step in expected])
        # Rounding grows with the iterations; a wrong gradient shows in the second of them.
        np.testing.assert_allclose(found[key], curve, rtol=2e-3)
        np.testing.assert_allclose(found[key][:4], curve[:4], rtol=1e-4)
        assert not np.allclose(curve[1:], curve[:-1], rtol=1e-4)


def accuracies(architecture: str, iterations: int, seeds: range) -> np.ndarray:
    """Test accuracies with the page's default settings, every 50 iterations, (seeds, times)."""
    case = {"task": "defaults", "architecture": architecture, "iterations": iterations, "every": 50}
    return np.array([found["accuracy"] for found in run([{**case, "seed": s} for s in seeds])])


@needs_node
@pytest.mark.slow
def test_the_default_is_learned_with_skip_connections_and_not_without() -> None:
    """What the first screen and the tour say of H1, the ResNet and the plain network."""
    seeds = range(3)
    # From 3 s to 20 s after Play, at the page's 250 iterations a second.
    assert accuracies("H1", 5000, seeds)[:, 15 - 1 :].min() >= 0.95
    assert accuracies("ResNet", 1500, seeds)[:, -1].min() >= 0.95
    assert accuracies("FCNN", 750, seeds)[:, -1].max() <= 0.6
