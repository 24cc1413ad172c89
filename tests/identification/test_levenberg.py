"""Fits: exact derivatives, exact recovery, initial states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hdnn.data import Recordings
from hdnn.identification.levenberg import (
    Segments,
    _Steps,
    fit,
    initial_state,
    jacobian,
    states_of,
    weights_of,
)
from hdnn.identification.search import ALL, LINEAR
from hdnn.statespace import StateSpace


def recordings(*lengths: int, inputs: int = 1, outputs: int = 1, seed: int = 0) -> Recordings:
    draw = np.random.default_rng(seed)
    u = tuple(draw.standard_normal((k, inputs)) for k in lengths)
    return Recordings(u, tuple(draw.standard_normal((k, outputs)) for k in lengths))


def model_of(
    states: int = 3, units: int = 4, inputs: int = 1, outputs: int = 1, scale: float = 1.0
) -> StateSpace:
    sizes = {"inputs": inputs, "outputs": outputs, "states": states, "units": units}
    model = StateSpace(**sizes, scale=scale, learn_initial=True)
    nn.init.normal_(weights_of(model).D)
    return model


@pytest.mark.parametrize("units", [0, 5])
@pytest.mark.parametrize("scale", [0.3, 3.0])  # 3: K and L are scaled down when assembled
def test_sensitivities_are_those_of_automatic_differentiation(units: int, scale: float) -> None:
    model, names = model_of(3, units, 2, 2), ALL if units else LINEAR
    with torch.no_grad():
        weights_of(model).K.mul_(scale)
        weights_of(model).L.mul_(scale)
    segments, x0 = Segments.of(recordings(12, 9, inputs=2, outputs=2)), torch.randn(2, 3)
    J = jacobian(model, segments, x0, names)
    parameters = [getattr(weights_of(model), name) for name in names]
    start = x0.clone().requires_grad_()
    e = segments.residuals(model(segments.u, start)[0])
    assert torch.allclose(J.e, e.flatten(1), atol=1e-12)
    for s in range(2):
        for r in range(24):
            grads = torch.autograd.grad(
                e.flatten(1)[s, r], [*parameters, start], retain_graph=True, allow_unused=True
            )
            flat = torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten()
                              for g, p in zip(grads, parameters, strict=False)])  # fmt: skip
            assert torch.allclose(J.theta[s, r], flat, atol=1e-9)
            assert torch.allclose(J.x0[s, r], grads[-1][s], atol=1e-10)


def test_eliminating_the_initial_states_solves_the_whole_normal_equations() -> None:
    model = model_of()
    segments, x0 = Segments.of(recordings(40, 30, 25)), torch.randn(3, 3)
    J = jacobian(model, segments, x0, ALL)
    moved = 0.1 * torch.randn(J.theta.shape[-1])
    step, to_x0 = _Steps(J, 0.5, moved)(0.3)
    P, whole = len(step), torch.cat([J.theta.flatten(0, 1), torch.block_diag(*J.x0)], 1)
    H = whole.mT @ whole
    g = whole.mT @ J.e.flatten()
    H[:P, :P] += 0.5 * torch.eye(P)
    g[:P] += 0.5 * moved
    diagonal, damped = H.diagonal().clone(), H.clone()
    for part in (slice(0, P), *(slice(P + 3 * s, P + 3 * s + 3) for s in range(3))):
        own = diagonal[part]
        damped[part, part] += torch.diag(0.3 * (own + 1e-3 * own.mean()))
    expected = -torch.linalg.solve(damped, g)
    assert torch.allclose(torch.cat([step, to_x0.flatten()]), expected, rtol=1e-6, atol=1e-9)


def outputs_of(model: StateSpace, given: Recordings, x0: Tensor) -> Recordings:
    with torch.no_grad():
        y = [model(torch.tensor(u), x)[0].numpy() for u, x in zip(given.inputs, x0, strict=True)]
    return Recordings(given.inputs, tuple(y))


def test_a_fit_near_the_truth_is_exact_without_noise() -> None:
    truth, x0 = model_of(2, 3, scale=0.4), torch.randn(2, 2)
    data = outputs_of(truth, recordings(200, 150), x0)
    model = model_of(2, 3, scale=0.4)
    with torch.no_grad():
        for name in ALL:
            own = getattr(weights_of(truth), name)
            getattr(weights_of(model), name).copy_(own + 0.02 * torch.randn_like(own))
    segments = Segments.of(data)
    done = fit(model, ALL, segments, torch.zeros(2, 2), 100)
    assert done.score < 1e-10 * float(segments.y.square().sum())


def test_the_weights_of_the_best_score_are_kept() -> None:
    data, model = recordings(100), model_of()
    scores = iter([5.0, 4.0, 3.0, 9.0, 9.0, 9.0, 9.0])
    seen = []

    def score(net: StateSpace, x0: Tensor) -> float:
        seen.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
        return next(scores)

    segments = Segments.of(data)
    done = fit(model, ALL, segments, torch.zeros(1, 3), 20, score, patience=3)
    assert (done.score, done.best, done.iterations) == (3.0, 2, 5)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), seen[2])


def test_long_recordings_are_cut_into_segments_that_cover_both_ends() -> None:
    data = recordings(30, 5000, 100)
    segments = Segments.of(data, length=100, most=1000)
    assert segments.first == [0, 1, len(segments.u) - 1]
    assert segments.u.shape[1] == 100
    assert float(segments.weight.sum()) == segments.weight.shape[0] * 100 - 70
    assert np.array_equal(segments.y[1].numpy(), data.outputs[1][:100])
    assert np.array_equal(segments.y[-2].numpy(), data.outputs[1][-100:])
    whole = Segments.of(recordings(30, 50), most=1000)
    assert whole.u.shape == (2, 50, 1)
    assert whole.samples == 80


def test_states_are_those_of_single_steps() -> None:
    model, u, x = model_of(3, 4), torch.randn(1, 7, 1), torch.randn(1, 3)
    states = states_of(model, u, x)
    for t in range(7):
        assert torch.allclose(states[:, t], x, atol=1e-12)
        x = model.step(x, u[:, t])[0].detach()


def test_the_initial_state_is_recovered_from_first_outputs() -> None:
    model, x0 = model_of(3, 4), torch.randn(3)
    u = torch.randn(60, 1)
    with torch.no_grad():
        y = model(u, x0)[0]
    assert torch.allclose(initial_state(model, u, y[:40]), x0, atol=1e-6)


def test_a_step_that_goes_too_far_is_shortened() -> None:
    torch.manual_seed(3)
    model, u, too_far = model_of(2, 6), torch.zeros(40, 1), 0
    with torch.no_grad():
        model.weights[0].K.mul_(30)
        for _ in range(20):
            y = model(u, 10 * torch.randn(2))[0][:20]
            found = (initial_state(model, u, y, iterations=n) for n in (1, 2, 15))
            rest, full, last = (float((model(u[:20], x)[0] - y).square().sum()) for x in found)
            if full == rest:
                too_far += 1
                assert last < rest
    assert too_far
