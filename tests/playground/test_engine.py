"""The playground's modules, run by Node: they compute what hdnn does, and its defaults learn."""

from __future__ import annotations

import re
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
from hdnn.data import PROBLEMS, planar, split
from hdnn.fields import ACTIVATIONS, HamiltonianField
from hdnn.models import Model
from hdnn.training.loops import AutogradLoop
from hdnn.training.output_solver import OutputProblem, newton
from hdnn.training.samples import Samples
from hdnn.zoo import ARCHITECTURES
from javascript import needs_node, run

SPLITTINGS = ["Leapfrog", "Yoshida4", "ForwardEuler"]
PAIRS = [
    *((name, None) for name in ARCHITECTURES),
    *((name, scheme) for name in ("MS1", "MS3", "HS") for scheme in SPLITTINGS),
]


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
    model = Model(net, outputs, hdnn.Padding(2, 4))
    config = TrainingConfig(method=method, learning_rate=0.02, loop="autograd")
    batches = torch.randperm(500, generator=torch.Generator().manual_seed(1)).split(125) * 5
    weight = torch.ones(500)
    states = Samples(model.stem.prepare(data.X).float(), data.y, weight)
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


@needs_node
@pytest.mark.parametrize("n", [2, 5, 16])
def test_norms_are_the_largest_singular_values(n: int) -> None:
    rng = np.random.default_rng(n)
    square = rng.normal(size=(n, n))
    orthogonal, one = np.linalg.qr(square)[0], np.outer(square[0], square[1])
    matrices = [square, orthogonal, one, np.eye(n), 0 * square, np.diag(10.0 ** -np.arange(n))]
    matrices += [scale * square for scale in (1e-200, 1e200)]
    found = run([{"task": "norms", "n": n, "matrices": [M.ravel().tolist() for M in matrices]}])[0]
    np.testing.assert_allclose(found, [np.linalg.norm(M, 2) for M in matrices], rtol=1e-12)


@needs_node
@pytest.mark.parametrize(("outputs", "loss"), [(1, "logistic"), (3, "softmax")])
def test_newton_takes_the_steps_of_hdnn(outputs: int, loss: str) -> None:
    """From far away, and from where a line search measures nothing but rounding."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(4000, 2)), rng.integers(0, max(2, outputs), 4000)
    Z, target = np.hstack([X, np.ones((4000, 1))]), labels[:, None].astype(float)
    minimum = np.zeros((outputs, 3))
    newton(OutputProblem(Z, target, np.full(4000, 1 / 4000), loss, 1e-3), minimum, 100, 1e-12)
    far = 3 * rng.normal(size=(4, *minimum.shape))
    near = minimum + 1e-8 * rng.normal(size=(30, *minimum.shape))
    case = {"task": "newton", "outputs": outputs, "alphaC": 1e-3, "labels": labels.tolist()}
    case["features"] = X.T.ravel().tolist()
    cases = [
        {**case, "starts": starts.reshape(len(starts), -1).tolist(), "iterations": count}
        for starts, count in ((far, 30), (near, 1))
    ]
    for found in run(cases):
        expected = np.broadcast_to(minimum.ravel(), np.shape(found))
        np.testing.assert_allclose(found, expected, atol=1e-12)


@needs_node
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_problems_are_those_of_hdnn(name: str) -> None:
    """From the same uniform numbers come the same points."""
    numbers = torch.rand(200, 2 if name == "peaks" else 1, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planar, "_uniform", lambda *shape, generator: numbers.reshape(shape).clone())
        patch.setattr(planar, "_noisy", lambda x, y, *_: torch.stack([x, y], 1))
        X, labels = PROBLEMS[name].draw(200, None, 0.0)
    case = {"task": "problem", "name": name, "size": 200, "uniforms": numbers.ravel().tolist()}
    found = np.array(run([case])[0])
    np.testing.assert_allclose(found[:, :2], X, atol=1e-12)
    np.testing.assert_array_equal(found[:, 2], labels)


@needs_node
@pytest.mark.parametrize("name", [*PROBLEMS, "spirals"])
def test_samples_have_the_usual_noise_and_are_split(name: str) -> None:
    case = {"task": "sample", "name": name, "seed": 3, "share": 0.2, "arms": 5}
    usual, exact, noisy = run([case, {**case, "noise": 0}, {**case, "noise": 0.3}])
    amplitude = PROBLEMS[name].noise if name in PROBLEMS else 0.02
    for sample, size in ((usual, amplitude), (noisy, 0.3)):
        noise = np.subtract(sample["points"], exact["points"]).reshape(-1, 2)
        for bound, end in ((-size, noise.min(0)), (size, noise.max(0))):
            np.testing.assert_allclose(end, bound, atol=0.01 * size)
        assert sample["labels"] == exact["labels"]
    assert exact["classes"] == (5 if name in ("peaks", "spirals") else 2)
    points = np.reshape(usual["points"], (-1, 2))
    train, test = (np.reshape(usual[part], (-1, 2)) for part in ("train", "test"))
    assert (len(train), len(test)) == (3200, 800)
    both = np.concatenate([train, test])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], points[np.lexsort(points.T)])


@needs_node
def test_bounds_are_a_square_around_the_points() -> None:
    found = run([{"task": "bounds", "points": [0, 0, 4, 1, 2, 3]}])[0]
    assert found["side"] > 4
    centers = found["x"] + found["side"] / 2, found["y"] + found["side"] / 2
    assert centers == pytest.approx((2, 1.5))


# --- settings, links, code ------------------------------------------------------------------------


@needs_node
def test_every_setting_comes_back_from_its_link() -> None:
    settings = run([{"task": "settings"}])[0]
    usual = {setting["name"]: setting["value"] for setting in settings}
    changes = [{row["name"]: value} for row in settings for value in row["values"]]
    changes.append({row["name"]: row["values"][-1] for row in settings})
    cases: list[dict[str, Any]] = [{"settings": change} for change in changes]
    found = run([{"task": "link", **case} for case in cases])
    for case, opened in zip(cases, found, strict=True):
        assert opened["message"] is None, opened["hash"]
        assert opened["state"] == usual | case["settings"]
    links = {link["hash"] for link in found}
    assert len(links) == sum(len(setting["values"]) - 1 for setting in settings) + 2


@needs_node
def test_links_carry_drawn_points_and_the_step_of_the_tour() -> None:
    drawn: list[list[float]] = [[-1, 1, 0], [0.3, -0.7, 2], [0, 0.001, 1]]
    case = {"task": "link", "settings": {"data": "drawn"}, "drawn": drawn, "tour": 4}
    found = run([case])[0]
    np.testing.assert_allclose(found["drawn"], drawn, atol=1 / 4095)
    assert found["tour"] == 4


@needs_node
@pytest.mark.parametrize(
    ("link", "message"),
    {
        "#v=2&l=8": "another version",
        "#v=1&l=5": "does not exist (l)",
        "#v=1&__proto__=5": "does not exist (__proto__)",
        "#v=1&d=table": "does not exist (d)",
        "#v=1&tour=6": "five steps",
        "#v=1&d=drawn&p=abc": "damaged",
        "#v=1&d=drawn&p=00003": "damaged",
        "#v=1&d=%": "damaged",
        "#<script>": "does not exist",
    }.items(),
)
def test_a_bad_link_gives_a_message_and_defaults(link: str, message: str) -> None:
    found, empty = run([{"task": "open", "hash": link}, {"task": "open", "hash": ""}])
    assert message in found["message"]
    assert empty["message"] is None
    assert found["state"] == empty["state"]


CODES: dict[str, dict[str, Any]] = {
    "defaults": {"seed": 2},
    "spirals": {"data": "spirals", "arms": 4, "first": "MS1", "scheme": "Leapfrog", "layers": 8},
    "peaks": {"data": "peaks", "noise": 0.1, "second": "FCNN", "method": "joint", "T": 4},
    "moons": {"data": "double-moons", "first": "MS3", "second": "HS", "scheme": "Yoshida4"},
    "drawn": {"data": "drawn", "second": "none", "test": "0.2", "timeInvariant": "yes", "width": 6},
    "Euler": {"first": "MS1", "second": "MS2", "scheme": "ForwardEuler", "activation": "sin"},
}


@needs_node
@pytest.mark.parametrize("title", CODES)
def test_the_python_code_makes_the_data_and_networks_of_the_page(title: str) -> None:
    settings = CODES[title]
    drawn = [[k / 20 - 1, 0.123456, k % 3] for k in range(40)]
    classes = {"spirals": 4, "peaks": 5, "drawn": 3}.get(title, 2)
    case = {"settings": settings, "drawn": drawn, "classes": classes, "epochs": 7}
    text = run([{"task": "python", **case}])[0]["code"]
    compile(text, title, "exec")
    names: dict[str, Any] = {}
    exec(text.partition("for network in networks:")[0], names)
    state = run([{"task": "open", "hash": ""}])[0]["state"] | settings
    size = 40 if title == "drawn" else 4000
    tested = round(float(state["test"]) * size)
    assert (len(names["X_train"]), len(names["X_test"])) == (size - tested, tested)
    assert set(names["y_train"].tolist()) == set(range(classes))
    config = names["config"]
    assert (config.epochs, config.batch_size, config.seed) == (7, state["batch"], state["seed"])
    assert (config.method, config.learning_rate) == (state["method"], state["learningRate"])
    assert (config.alpha, config.alpha_c) == (state["alpha"], state["alphaC"])
    networks, schemes_of = names["networks"], run([{"task": "catalog"}])[0]["schemes"]
    assert [net.name for net in networks] == [
        name for name in (state["first"], state["second"]) if name != "none"
    ]
    for net in networks:
        assert (net.features, net.layers) == (state["width"], state["layers"])
        assert net.field.activation.name == state["activation"]
        assert net.time_invariant == (state["timeInvariant"] == "yes")
        if net.name != "FCNN":
            assert net.h == pytest.approx(state["T"] / state["layers"])
        own = ARCHITECTURES[net.name].scheme
        if settings.get("scheme") in schemes_of[net.name]:
            assert spec(net)["scheme"] == settings["scheme"]
        else:
            assert type(net.scheme) is type(own)
        if isinstance(net.scheme, schemes.Splitting):
            assert net.scheme.first == own.first  # type: ignore[union-attr]


# --- the geometry of the flow ---------------------------------------------------------------------


@needs_node
def test_the_view_of_the_flow_turns_from_the_data_to_the_decision() -> None:
    rng = np.random.default_rng(0)
    n, shown = 4, 200
    states = rng.normal(size=(3, n, shown))
    states += 5 * np.outer([0, -1, 3, 0], rng.normal(size=shown))
    head = np.array([1, 0, 0.1, 2])
    snapshot = {"n": n, "shown": shown, "outputs": 1, "depths": [0, 4, 8], "V": [*head, 0.5]}
    snapshot["flow"] = states.ravel().tolist()
    found = run([{"task": "flow", "snapshot": snapshot}])[0]
    np.testing.assert_allclose(found["first"]["plane"], np.eye(n)[:2], atol=1e-12)
    for plane in (found["middle"], found["last"]["plane"]):
        np.testing.assert_allclose(np.array(plane) @ np.transpose(plane), np.eye(2), atol=1e-12)
    normal, other = np.array(found["last"]["plane"])
    np.testing.assert_allclose(normal, head / np.linalg.norm(head))
    # Across it, the direction in which the states differ most.
    rest = np.eye(n) - np.outer(normal, normal)
    spread = np.linalg.svd((states[2] - states[2].mean(1, keepdims=True)).T @ rest)[2][0]
    assert abs(spread @ other) > 0.99
    assert other[1] > 0  # up stays up
    for look, d in (("first", 0), ("last", 2)):
        places = np.array(found[look]["plane"]) @ states[d]
        np.testing.assert_allclose(found[look]["places"], places, atol=1e-12)
        reach = np.sort(np.abs(places).max(0))
        assert found[look]["extent"] == pytest.approx(reach[int(0.99 * (shown - 1))])
    assert not found["collapsed"]
    states[2] = states[2, :, :1] + 1e-3 * states[2]
    snapshot["flow"] = states.ravel().tolist()
    assert run([{"task": "flow", "snapshot": snapshot}])[0]["collapsed"]


# --- learning -------------------------------------------------------------------------------------


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


@needs_node
def test_the_lesson_opens_what_it_says() -> None:
    """Every link of docs/teach.md names its settings, so that new defaults change nothing."""
    page = Path(__file__).parents[2] / "docs" / "teach.md"
    links = re.findall(r'href="play/index\.html(#v=[^"]*)"', page.read_text(encoding="utf-8"))
    links = [link.replace("&amp;", "&") for link in links]
    assert len(links) >= 5
    for link, opened in zip(links, run([{"task": "open", "hash": h} for h in links]), strict=True):
        assert opened["message"] is None, link
        assert all(f"&{key}=" in link for key in ("d", "a", "b", "l", "T")), link
