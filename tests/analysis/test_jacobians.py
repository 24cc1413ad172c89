"""d y_N / d y_l of every layer: several ways to compute them agree, in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

import hdnn
from catalog import build, each
from hdnn import fields
from hdnn.analysis import layer_factors, profile, sensitivities, velocity_jacobians
from hdnn.errors import HdnnError
from skips import needs_kernels
from twins import error, twin

FUSED = pytest.param("fused", marks=needs_kernels)
every_backend = pytest.mark.parametrize("backend", [FUSED, "reference"])


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@each
def test_factors_multiply_to_sensitivities(name: str, scheme: str) -> None:
    net, y = build(name, scheme, layers=4, scale=0.5), torch.randn(3, 4)
    factors, M = layer_factors(net, y), sensitivities(net, y)
    assert not M.requires_grad
    assert torch.equal(M[-1], torch.eye(4).expand(3, 4, 4))
    close(M[0], vmap(jacrev(net))(y).detach())
    for l in range(4):
        close(M[l + 1] @ factors[l], M[l])


@every_backend
@pytest.mark.parametrize("name", ["H2", "MS1"])
def test_images_and_ensembles_are_rows_on_other_axes(name: str, backend: str) -> None:
    net, images, together = (
        build(name, layers=3, backend=backend, **options)
        for options in ({}, {"channels": 4}, {"ensemble": 2})
    )
    images.load_state_dict(net.state_dict())
    y, own = torch.randn(5, 4, 2, 3), torch.randn(2, 5, 4)
    for function in (sensitivities, layer_factors):
        close(function(images, y), function(net, y.movedim(1, -1)))
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), together.parameters(), strict=True):
            mine.copy_(theirs[1])
    for function in (sensitivities, layer_factors):
        close(function(together, own)[:, 1], function(net, own[1]))
        close(function(together, own[:1])[:, 1], function(net, own[0]))  # one batch for all


def convolutions() -> list[hdnn.HamiltonianNetwork]:
    """By their kernel, as a map (a dense one, two of half the channels), and a custom energy."""
    dense = fields.STRUCTURES["dense"]
    halves = fields.BlockDiagonal(fields.Convolution(dense(1, 3)), fields.Convolution(dense(1, 3)))
    nets = [build("H1", channels=2, kernel=3), build("MS1", channels=2, kernel=3)]
    for K in (fields.Convolution(dense(2, 3)), halves):
        weights = fields.Weights(K, channels=2, layers=3, scale=0.5)
        field = fields.HamiltonianField("J1", weights)
        nets.append(hdnn.HamiltonianNetwork(field, step=0.3))

    def energy(x: Tensor, t: Any) -> Tensor:  # neighbors are coupled
        return (x.square().sum((1, 2, 3)) + x.diff(dim=3).cos().sum((1, 2, 3))) / 2

    coupled = fields.EnergyField("J1", energy, channels=2)
    return [*nets, hdnn.HamiltonianNetwork(coupled, layers=3, step=0.3)]


@pytest.mark.parametrize("number", range(5))
def test_convolutions_couple_all_pixels(number: int) -> None:
    """Whatever says that K is a convolution: the Jacobians are those of whole images."""
    net, y = convolutions()[number], torch.randn(2, 2, 3, 3)
    factors, M, A = (f(net, y) for f in (layer_factors, sensitivities, velocity_jacobians))
    states = net.trajectory(y).detach()

    def plain(function: Any, x: Tensor) -> Tensor:
        return vmap(jacrev(lambda v: function(v[None])[0].flatten()))(x).flatten(2).detach()

    close(M[0], plain(net, y))
    close(A[1], plain(lambda v: net.field.velocity(v, 1, net.h), states[1]))
    for l in range(3):
        close(M[l + 1] @ factors[l], M[l])
    assert torch.equal(M[3], torch.eye(18).expand(2, 18, 18))
    largest = torch.linalg.matrix_norm(M, 2)
    norms = profile(net, y)
    close(norms.maximum, largest.amax(1), 1e-9)
    close(norms.minimum, largest.amin(1), 1e-9)
    assert norms.samples == 2


@needs_kernels
@pytest.mark.parametrize("layers", [200, 700])
def test_at_depth(layers: int) -> None:
    """In segments, with fewer saved states than segments; the network is volume-preserving."""
    net = build("MS3", features=16, layers=layers, T=1.0, scale=0.25, backend="fused")
    y = torch.randn(20, 16)
    M = sensitivities(net, y)
    assert error(M, sensitivities(twin(net, "reference"), y)) <= 1e-11
    close(torch.linalg.det(M), torch.ones(layers + 1, 20), 1e-9)


@every_backend
def test_a_sample_that_is_not_finite_spoils_no_other(backend: str) -> None:
    net, y = build("H1", layers=3, backend=backend), torch.randn(37, 4)
    good = sensitivities(net, y)
    y[[3, 36]] = torch.nan
    M = sensitivities(net, y)
    others = [k for k in range(37) if k not in (3, 36)]
    close(M[:, others], good[:, others])
    assert bool(M[:3, [3, 36]].isnan().any(-1).all())


@pytest.mark.parametrize(
    "options",
    [{"step": [0.1, 0.3, 0.2]}, {"T": 1.0, "learn_steps": True}],
    ids=["steps", "learned"],
)
def test_velocity_jacobians_are_equation_16(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, y = hdnn.network("H1", features=4, layers=3, **options), torch.randn(5, 4)
    monkeypatch.setattr("hdnn.analysis.jacobians.ENTRIES", 100)  # two samples at a time
    A, h = velocity_jacobians(net, y), torch.as_tensor(net.h).detach().expand(3)
    factors, states = layer_factors(net, y), net.trajectory(y).detach()
    for l in range(3):
        close(factors[l], torch.eye(4) + h[l] * A[l])  # forward Euler
        K, b = net.K[l].detach(), net.b[l].detach()
        D = 1 - torch.tanh(states[l] @ K.mT + b) ** 2
        close(A[l], net.J @ K.mT @ torch.diag_embed(D) @ K)  # transposed in the paper


def test_no_layers_and_no_samples() -> None:
    empty, y = build("H1", layers=0), torch.randn(3, 4)
    assert sensitivities(build("H1"), torch.randn(0, 4)).shape == (4, 0, 4, 4)
    assert layer_factors(empty, y).shape == (0, 3, 4, 4)
    assert torch.equal(sensitivities(empty, y), torch.eye(4).expand(1, 3, 4, 4))


def test_states_and_networks_that_do_not_fit_raise() -> None:
    for y in (torch.randn(3, 5), torch.randn(3, 4, dtype=torch.float32)):
        with pytest.raises(HdnnError):
            sensitivities(build("H1"), y)
    large = build("H1", channels=4, kernel=3), torch.randn(2, 4, 17, 17)
    for function in (sensitivities, layer_factors, velocity_jacobians):
        with pytest.raises(HdnnError, match=r"couples all 1156 numbers .*profile estimates"):
            function(*large)
    with pytest.raises(HdnnError, match="no step size"):
        velocity_jacobians(build("FCNN"), torch.randn(3, 4))
