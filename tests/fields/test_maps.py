"""K as a linear map with an exact adjoint: matrices, convolutions, blocks, and a custom one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hdnn
from catalog import OWN, as_function, build, every_name, structure_defect
from hdnn.errors import HdnnError
from hdnn.fields import (
    STRUCTURES,
    BlockDiagonal,
    Convolution,
    HamiltonianField,
    LinearMap,
    Matrix,
    Weights,
)
from hdnn.fields.maps import matrices
from hdnn.fields.patterns import plain
from hdnn.schemes import ForwardEuler, ImplicitMidpoint, SemiImplicitEuler
from hdnn.testing import assert_adjoint, assert_invertible
from longhand import J1, J2, LONGHAND, hs

Net = hdnn.HamiltonianNetwork


class GraphMap(LinearMap, nn.Module):
    """K = I (x) W + A (x) V: every node sees itself by W and its neighbors by V.

    Args:
        adjacency: A, ``(nodes, nodes)``, symmetric or not.
        features: f of every node; the state is ``(nodes * f)``, node by node.
    """

    A: Tensor

    def __init__(self, adjacency: Any, features: int) -> None:
        A = torch.as_tensor(adjacency, dtype=torch.get_default_dtype())
        super().__init__(len(A) * features, len(A) * features, 2 * features**2)
        self.features = features
        self.register_buffer("A", A, persistent=False)

    def _of_nodes(self, K: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        W, V = K.unflatten(-1, (2, 1, self.features, self.features)).unbind(-4)
        return W, V, x.unflatten(-1, (-1, self.features))

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        W, V, x = self._of_nodes(K, x)
        return (x @ W.mT + self.A @ x @ V.mT).flatten(-2)

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        W, V, s = self._of_nodes(K, s)
        return (s @ W + self.A.mT @ s @ V).flatten(-2)


def adjacency(nodes: int, seed: int, share: float = 0.4) -> np.ndarray:
    """A random directed graph, with loops, weights and perhaps lonely nodes."""
    random = np.random.default_rng(seed)
    return random.normal(size=(nodes, nodes)) * (random.random((nodes, nodes)) < share)


def graph_network(A: np.ndarray, features: int = 2) -> Net:
    """HS over a graph: y and z live on its nodes."""
    K = BlockDiagonal(GraphMap(A, features), GraphMap(A, features))
    weights = Weights(K, features=2 * len(A) * features, layers=3, scale=0.5)
    return Net(HamiltonianField("J1", weights), SemiImplicitEuler(), T=1.0)


# --- every map ------------------------------------------------------------------------------------

A3 = adjacency(3, 0)


def blocks(make: Callable[..., LinearMap], *kernel: int) -> LinearMap:
    return BlockDiagonal(*(make(STRUCTURES[s](n, *kernel)) for s, n in (("dense", 4), ("skew", 2))))


def matrix_of(structure: str) -> Callable[[], LinearMap]:
    return lambda: Matrix(STRUCTURES[structure](6))


def convolution_of(structure: str, kernel: int = 3) -> Callable[[], LinearMap]:
    return lambda: Convolution(STRUCTURES[structure](6, kernel))


MAPS: dict[str, tuple[Callable[[], LinearMap], tuple[int, ...], tuple[int, ...]]] = {
    **{f"{name} matrix": (matrix_of(name), (), ()) for name in STRUCTURES},
    "tall matrix": (lambda: Matrix(plain(9, 6)), (), ()),
    "pointwise": (matrix_of("dense"), (), (3, 4)),
    "pointwise ensemble": (matrix_of("skew"), (2,), (3, 4)),
    **{f"{name} convolution": (convolution_of(name), (), (4, 7)) for name in STRUCTURES},
    "larger kernel": (convolution_of("dense", 5), (), (3, 2)),
    "blocks": (lambda: blocks(Matrix), (), ()),
    "blocks of an ensemble": (lambda: blocks(Matrix), (2,), ()),
    "blocks of convolutions": (lambda: blocks(Convolution, 3), (), (3, 5)),
    "graph": (lambda: GraphMap(A3, 2), (), ()),
    "graph ensemble": (lambda: GraphMap(A3, 2), (2,), ()),
}


@pytest.mark.parametrize("kind", MAPS)
def test_adjoint_and_left_multiply_are_exact_and_K_is_linear_in_theta(kind: str) -> None:
    """<K x, s> = <x, K' s> for every layer; `left_multiply` is S K', where a map has it."""
    make, lead, spatial = MAPS[kind]
    K, axis = make(), len(lead)
    a, b = torch.randn(2, *lead, 2, K.size)
    stack = K.assemble(a)
    x, s = (torch.randn(*lead, 5, n, *spatial) for n in (K.width, K.units))
    S = torch.randn(*lead, 1, 4, K.width)  # one for all layers
    mixed = K.left_multiply(S, stack)
    assert (mixed is None) is not isinstance(K, Matrix | Convolution)
    for j in range(2):
        layer = stack.select(axis, j)
        there, back = K.multiply(layer, x), K.adjoint(layer, s)
        assert (there.shape, back.shape) == (s.shape, x.shape)
        assert_adjoint(partial(K.multiply, layer), partial(K.adjoint, layer), x, tolerance=5e-13)
        sum_of_both = K.multiply(K.assemble(a + 2 * b).select(axis, j), x)
        other = K.multiply(K.assemble(b).select(axis, j), x)
        torch.testing.assert_close(sum_of_both, there + 2 * other)
        if mixed is not None:
            applied = K.multiply(mixed.select(axis, j), s).reshape(*lead, 5, 4, -1)
            torch.testing.assert_close(applied, S @ back.reshape(*lead, 5, K.width, -1))
    if not lead and not spatial:
        M = matrices(K, a)[1]
        torch.testing.assert_close(x @ M.mT, there)
        assert not bool(M[~torch.from_numpy(K.support)].any())


# --- networks of convolutions ---------------------------------------------------------------------


def conv(name: str, scheme: str = OWN, **options: Any) -> Net:
    return build(name, scheme, **({"channels": 4, "kernel": 3, "scale": 2.0} | options))


def matrix(K: Tensor, height: int, width: int) -> np.ndarray:
    """The convolution with zeros around the image as a matrix over (channel, row, column)."""
    o, i, k, _ = K.shape
    M = np.zeros((o, height, width, i, height, width))
    for p, q, u, v in np.ndindex(height, width, k, k):
        row, column = p + u - k // 2, q + v - k // 2
        if 0 <= row < height and 0 <= column < width:
            M[:, p, q, :, row, column] = K[:, :, u, v].detach().numpy()
    return M.reshape(o * height * width, i * height * width)


@pytest.mark.parametrize("name", [*LONGHAND, "HS with X"])
def test_convolutions_follow_the_layer_equations(name: str) -> None:
    """A convolutional network is the network of the matrices of its convolutions."""
    steps = {} if name == "FCNN" else {"step": [0.3, 0.1, 0.5]}
    Y, pixels, layer = torch.randn(2, 4, 3, 5), 15, LONGHAND.get(name)
    if name == "HS with X":
        X = torch.randn(2, 2)
        both = np.kron(X, np.eye(pixels))
        net = conv("HS", X=X, **steps)
        layer = lambda y, K, b, h: hs(y, K, b, h, both)  # noqa: E731
    else:
        net = conv(name, **steps)
    if name == "H2":
        J = np.kron(J2(4), np.eye(pixels))
        layer = lambda y, K, b, h: y + h * J @ K.T @ np.tanh(K @ y + b)  # noqa: E731
    expected = []
    for y in Y.reshape(2, -1).numpy():
        for j in range(3):
            b = net.b[j].detach().numpy().repeat(pixels)
            h = 1.0 if name == "FCNN" else float(net.h[j])
            y = layer(y, matrix(net.K[j], 3, 5), b, h)
        expected.append(y)
    result = net(Y).detach().reshape(2, -1)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@every_name
def test_gradients_of_convolutions(name: str) -> None:
    function, parameters = as_function(conv(name, channels=2, layers=2))
    y = torch.randn(2, 2, 2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *parameters))


def test_implicit_midpoint_solves_for_all_pixels_at_once() -> None:
    """y_1 = y_0 + h f((y_0 + y_1) / 2) at a step at which pixels are strongly coupled."""
    net = conv("H1", "ImplicitMidpoint", channels=2, layers=1, step=1.0)
    y = torch.randn(2, 2, 2, 3, requires_grad=True)
    end = net(y)
    middle = y + net.field.velocity((y + end) / 2)
    torch.testing.assert_close(end, middle, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.inverse(end), y, rtol=1e-11, atol=1e-11)
    assert torch.autograd.gradcheck(net, (y,))
    large = torch.randn(1, 2, 40, 60)
    with pytest.raises(HdnnError, match="Newton's method would solve dense systems of 4800"):
        net(large)
    fixed = Net(net.field, ImplicitMidpoint(solver="fixed-point"), step=0.1)
    assert fixed(large).shape == large.shape


def test_MS3_is_symplectic_over_the_whole_image() -> None:
    net, y = conv("MS3", channels=2), torch.randn(1, 2, 3, 3)
    assert structure_defect(net, y, torch.from_numpy(J1(18))) < 1e-13
    assert net.structure_preserving


def test_any_J_acts_on_channels() -> None:
    """J1 given as a stack or as a function of the state is J1."""
    J, weights = torch.from_numpy(J1(4)), Weights("dense", channels=4, kernel=3, layers=3)
    y = torch.randn(2, 4, 3, 5)
    expected = Net(HamiltonianField("J1", weights), step=0.2)(y)
    for other in (J.expand(3, 4, 4), lambda y, t: J.expand(*y.shape, 4)):
        net = Net(HamiltonianField(other, weights), step=0.2)
        torch.testing.assert_close(net(y), expected, rtol=1e-12, atol=1e-12)


def test_a_convolution_has_no_matrices_and_needs_images() -> None:
    net, y = conv("H1"), torch.randn(2, 4, 3, 3)
    for state in (torch.randn(2, 4), torch.randn(2, 4, 3), torch.randn(2, 3, 3, 3), y[None]):
        with pytest.raises(HdnnError, match=r"\(B, 4, height, width\)"):
            net(state)
    with pytest.raises(HdnnError, match="field_at gives J, K and b as matrices"):
        net.field_at(0)
    with pytest.raises(HdnnError, match="is no convolution"):
        _ = conv("MS2").J


# --- a custom map: a graph ------------------------------------------------------------------------


@given(
    graph=st.tuples(st.integers(1, 4), st.integers(0, 10**6), st.floats(0, 1)), f=st.integers(1, 3)
)
def test_a_graph_network_follows_its_layer_equation_and_is_symplectic(
    graph: tuple[int, int, float], f: int
) -> None:
    """K = I (x) W + A (x) V as a matrix in the equation of HS; M J M' = J for any graph."""
    A = adjacency(*graph)
    net = graph_network(A, f)
    y = torch.randn(net.features)
    theta, b, expected = net.field.weights.theta.detach().numpy(), net.b.detach().numpy(), y.numpy()
    for j in range(net.layers):
        W1, V1, W2, V2 = theta[j].reshape(4, f, f)
        K1, K2 = (np.kron(np.eye(len(A)), W) + np.kron(A, V) for W, V in ((W1, V1), (W2, V2)))
        zero = np.zeros_like(K1)
        expected = hs(expected, np.block([[K1, zero], [zero, K2]]), b[j], net.h)
    np.testing.assert_allclose(net(y).detach(), expected, rtol=1e-12, atol=1e-12)
    assert_invertible(net, net.inverse, y, tolerance=3e-13)
    assert net.structure_preserving
    assert structure_defect(net, y, net.J) < 1e-13


def test_the_reference_computes_a_custom_map() -> None:
    net, y = graph_network(A3), torch.randn(4, 12)
    choice = net.explain_backend(y)
    assert choice.backend == "reference"
    assert "GraphMap" in choice.reason
    for memory in ("fast", "lean"):
        net.memory = memory
        function, parameters = as_function(net)
        state = torch.randn(2, 12, requires_grad=True)
        assert torch.autograd.gradcheck(function, (state, *parameters))


def test_a_map_that_reads_everything_does_not_split() -> None:
    field = HamiltonianField("J2", Weights(GraphMap(A3, 2), features=6, layers=3))
    net, y = Net(field, ForwardEuler(), T=1.0), torch.randn(4, 6)
    J, K, b = net.field_at(1)
    torch.testing.assert_close(field.velocity(y, 1), torch.tanh(y @ K.mT + b) @ K @ J.mT)
    with pytest.raises(HdnnError, match="separable"):
        Net(field, SemiImplicitEuler(), T=1.0)
    both = HamiltonianField("J1", Weights(GraphMap(A3, 2), features=6, layers=3))
    assert not both.separable
    with pytest.raises(HdnnError, match="must read 8 features, got a map of 6"):
        Weights(GraphMap(A3, 2), features=8, layers=3)
