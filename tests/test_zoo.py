"""The catalog: every architecture is its layer equations, and a new one is five lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hdnn
from catalog import HAMILTONIAN, build, structure_defect
from hdnn.errors import HdnnError
from hdnn.fields import ACTIVATIONS, canonical
from hdnn.fields.patterns import masked
from hdnn.schemes import Leapfrog
from hdnn.testing import assert_invertible
from hdnn.zoo import ARCHITECTURES, Architecture
from longhand import J1, J2, LONGHAND, Layer, Vector, hs

COUNTS: dict[str, Callable[[int], float]] = {
    "MS1": lambda n: n**2 / 4 + n,
    "MS2": lambda n: (n**2 + n) / 2,
    "MS3": lambda n: n**2 / 2 + n,
    "H1": lambda n: n**2 + n,
    "H2": lambda n: n**2 + n,
    "HS": lambda n: n**2 / 2 + n,
    "FCNN": lambda n: n**2 + n,
    "ResNet": lambda n: n**2 + n,
}
WIDTHS = [
    (name, n)
    for name in LONGHAND
    for n in (2, 3, 4, 10)
    if n % 2 == 0 or name in ("MS2", "H2", "FCNN", "ResNet")
]


def longhand(net: torch.nn.Module, layer: Layer, Y: torch.Tensor) -> Vector:
    """The states after every layer: ``(layers + 1, B, n)``."""
    K, b = net.K.detach().numpy(), net.b.detach().numpy()
    h = np.broadcast_to(np.asarray(net.h), (net.layers,))
    path = [Y.numpy()]
    for j in range(net.layers):
        path.append(np.array([layer(y, K[j], b[j], h[j]) for y in path[-1]]))
    return np.array(path)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("name", "n"), [(name, n) for name, n in WIDTHS if n != 2])
def test_network_equals_the_layer_equations(name: str, n: int, backend: str) -> None:
    """With one step for all layers, T / L, and with a step for each."""
    for steps in ({}, {"step": [0.1, 0.5, 0.02, 0.3, 0.2]})[: 1 if name == "FCNN" else 2]:
        net = build(name, features=n, layers=5, backend=backend, **steps)
        assert steps or net.h == (1.0 if name == "FCNN" else 0.2)
        Y = torch.randn(5, n)
        path = longhand(net, LONGHAND[name], Y)
        np.testing.assert_allclose(net(Y).detach(), path[-1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(net.trajectory(Y).detach(), path, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", ACTIVATIONS)
def test_MS1_and_MS2_have_a_J_with_any_activation(sigma: str) -> None:
    """y' = J K' sigma(K y + b) with a skew J, also where sigma is not odd."""
    for name in ("MS1", "MS2"):
        field, y = build(name, activation=sigma).field, torch.randn(5, 4)
        K, b, P = field.weights.K[1], field.weights.b[1], torch.eye(4) if name == "MS2" else J1(4)
        J = torch.as_tensor(P) @ torch.linalg.inv(K.mT)
        torch.testing.assert_close(J, -J.mT, rtol=0, atol=1e-10)
        gradient = field.gradient(y, layer=1)
        torch.testing.assert_close(gradient, ACTIVATIONS[sigma].function(y @ K.mT + b) @ K)
        torch.testing.assert_close(field.velocity(y, layer=1), gradient @ J.mT)
        torch.testing.assert_close(field.J[1], J)


@pytest.mark.parametrize("X", ["learned", "given"])
def test_HS_with_an_X_equals_its_layer_equations(X: str) -> None:
    net = build("HS", features=6, X=torch.randn(3, 3) if X == "given" else X)
    if X == "learned":
        torch.nn.init.normal_(net.field.interconnection.theta)
    corner = net.J[:3, 3:].detach().numpy()
    assert not np.allclose(corner, np.eye(3))
    Y = torch.randn(5, 6)
    expected = longhand(net, lambda s, K, b, h: hs(s, K, b, h, corner), Y)[-1]
    np.testing.assert_allclose(net(Y).detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LONGHAND)
def test_parameter_counts_are_the_last_row_of_table_1(name: str) -> None:
    for n in (width for known, width in WIDTHS if known == name):
        for layers, options in ((5, {}), (1, {"time_invariant": True})):
            net = build(name, features=n, **{"layers": 5, **options})
            count = sum(p.numel() for p in net.parameters() if p.requires_grad)
            assert count == COUNTS[name](n) * layers
            assert net.field.weights.parameters_per_layer == COUNTS[name](n)


def test_J1_and_J2_are_those_of_the_paper() -> None:
    for name, J in (("H1", J1), ("H2", J2), ("MS3", J1), ("HS", J1)):
        np.testing.assert_array_equal(build(name, features=6).J, J(6))


@pytest.mark.parametrize("name", HAMILTONIAN)
def test_every_layer_is_a_special_case_of_the_general_field(name: str) -> None:
    """y' = J K' tanh(K y + b) with the (J, K, b) of field_at is the velocity of the network."""
    net, Y = build(name, layers=4), torch.randn(5, 4)
    for j in (0, 3, -1):
        J, K, b = net.field_at(j)
        torch.testing.assert_close(J, -J.mT, rtol=1e-10, atol=1e-10)
        general = (J @ K.mT @ torch.tanh(K @ Y.mT + b[:, None])).mT
        expected = net.field.velocity(Y, layer=j)
        torch.testing.assert_close(general, expected, rtol=1e-10, atol=1e-10)


def test_HS_with_the_identity_is_MS3_relabeled() -> None:
    """K = [K1 0; 0 K2] of HS and [0 K1; K2 0] of MS3: the units of y and z change places."""
    hs_net, ms3_net = build("HS", layers=6), build("MS3", layers=6)
    rows = torch.tensor([2, 3, 0, 1])
    with torch.no_grad():
        K1, K2 = hs_net.K[:, :2, :2], hs_net.K[:, 2:, 2:]
        ms3_net.field.weights.theta.copy_(torch.cat([K2.flatten(1), K1.flatten(1)], 1))
        ms3_net.field.weights.beta.copy_(hs_net.b[:, rows])
    assert torch.equal(ms3_net.K, hs_net.K[:, rows])
    Y = torch.randn(7, 4)
    torch.testing.assert_close(ms3_net(Y), hs_net(Y), rtol=1e-13, atol=1e-13)


# --- a custom architecture ------------------------------------------------------------------------

TWISTED = Architecture(
    "Twisted",
    "HS with a twist and leapfrog",
    lambda n: masked(np.kron(np.eye(2), np.ones((n // 2, n // 2)))),
    lambda n: canonical(n, torch.ones(n // 2, n // 2).triu()),
    Leapfrog("z"),
)


def test_a_new_architecture_is_structure_preserving_and_saved(tmp_path: Path) -> None:
    net, y = hdnn.network(TWISTED, features=4, layers=10, T=1.0), torch.randn(4)
    assert net.parameters_per_layer == 8 + 4
    assert structure_defect(net, y, net.J) < 1e-13
    assert_invertible(net, net.inverse, y, tolerance=3e-13)
    hdnn.save(net, tmp_path / "net")
    other = hdnn.load(tmp_path / "net")
    assert torch.equal(other(y), net(y))
    assert repr(other) == repr(net)


def test_a_registered_architecture_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, TWISTED.name, TWISTED)
    assert hdnn.network("twisted", features=4, layers=2, T=1.0).name == "Twisted"
    with pytest.raises(HdnnError, match="did you mean 'Twisted'"):
        hdnn.network("Twister", features=4, layers=2, T=1.0)
