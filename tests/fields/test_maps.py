"""K as a linear map with an exact adjoint: matrices, convolutions, blocks, and one of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import hdnn
from catalogue import OWN, as_function, build, each, every_name, jacobian
from hdnn.errors import FileFormatError, HdnnError
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
from hdnn.schemes import SCHEMES, ForwardEuler, SemiImplicitEuler
from longhand import J1, J2, LONGHAND

Net = hdnn.HamiltonianNetwork


class GraphMap(LinearMap):
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

    def arguments(self) -> dict[str, Any]:
        return {"adjacency": self.A.tolist(), "features": self.features}


def adjacency(nodes: int, seed: int, share: float = 0.4) -> np.ndarray:
    """A random directed graph, with loops, weights and perhaps lonely nodes."""
    random = np.random.default_rng(seed)
    return random.normal(size=(nodes, nodes)) * (random.random((nodes, nodes)) < share)


def graph_network(A: np.ndarray, features: int = 2, layers: int = 3, **options: Any) -> Net:
    """HS over a graph: y and z live on its nodes."""
    K = BlockDiagonal(GraphMap(A, features), GraphMap(A, features))
    own = {name: options.pop(name) for name in ("ensemble", "time_invariant") if name in options}
    weights = Weights(K, features=2 * len(A) * features, layers=layers, scale=0.5, **own)
    if "step" not in options:
        options.setdefault("T", 1.0)
    return Net(HamiltonianField("J1", weights), SemiImplicitEuler(), **options)


def inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


# --- every map ------------------------------------------------------------------------------------

A3 = adjacency(3, 0)
MAPS: dict[str, tuple[Callable[[], LinearMap], tuple[int, ...], tuple[int, ...]]] = {
    **{
        f"{structure} matrix": (lambda s=structure: Matrix(STRUCTURES[s](6)), (), ())
        for structure in STRUCTURES
    },
    "tall matrix": (lambda: Matrix(hdnn.fields.patterns.plain(9, 6)), (), ()),
    "pointwise": (lambda: Matrix(STRUCTURES["dense"](6)), (), (3, 4)),
    "ensemble": (lambda: Matrix(STRUCTURES["skew"](6)), (2,), ()),
    "pointwise ensemble": (lambda: Matrix(STRUCTURES["dense"](6)), (2,), (3, 4)),
    **{
        f"{structure} convolution": (
            lambda s=structure: Convolution(STRUCTURES[s](6, 3)),
            (),
            (4, 7),
        )
        for structure in STRUCTURES
    },
    "larger kernel": (lambda: Convolution(STRUCTURES["dense"](6, 5)), (), (3, 2)),
    "blocks": (
        lambda: BlockDiagonal(
            Matrix(hdnn.fields.patterns.plain(3, 2)), Matrix(STRUCTURES["skew"](4))
        ),
        (),
        (),
    ),
    "blocks of an ensemble": (
        lambda: BlockDiagonal(Matrix(STRUCTURES["dense"](2)), Matrix(STRUCTURES["skew"](4))),
        (2,),
        (),
    ),
    "blocks of convolutions": (
        lambda: BlockDiagonal(
            Convolution(STRUCTURES["dense"](4, 3)), Convolution(STRUCTURES["skew"](2, 3))
        ),
        (),
        (3, 5),
    ),
    "graph": (lambda: GraphMap(A3, 2), (), ()),
    "graph ensemble": (lambda: GraphMap(A3, 2), (2,), ()),
}
every_map = pytest.mark.parametrize("kind", MAPS)


def assembled(kind: str) -> tuple[LinearMap, Tensor, tuple[int, ...], tuple[int, ...]]:
    make, lead, spatial = MAPS[kind]
    K = make()
    return K, K.assemble(torch.randn(*lead, 2, K.size)), lead, spatial


@every_map
def test_the_adjoint_is_exact(kind: str) -> None:
    """<K x, s> = <x, K' s>, layer by layer."""
    K, stack, lead, spatial = assembled(kind)
    x, s = (torch.randn(*lead, 5, n, *spatial) for n in (K.width, K.units))
    for layer in stack.unbind(len(lead)):
        there, back = K.multiply(layer, x), K.adjoint(layer, s)
        assert (there.shape, back.shape) == (s.shape, x.shape)
        assert abs(inner(there, s) - inner(x, back)) < 1e-12 * float(there.norm() * s.norm())


@every_map
def test_a_map_is_linear_in_its_parameters_and_shows_its_support(kind: str) -> None:
    K, _, lead, spatial = assembled(kind)
    x = torch.randn(*lead, 5, K.width, *spatial)

    def applied(theta: Tensor) -> Tensor:
        return K.multiply(K.assemble(theta).select(len(lead), 0), x)

    a, b = torch.randn(2, *lead, 1, K.size)
    torch.testing.assert_close(applied(a + 2 * b), applied(a) + 2 * applied(b))
    if not lead and not spatial:
        M = matrices(K, a)[0]
        torch.testing.assert_close(x @ M.mT, applied(a))
        assert not bool(M[~torch.from_numpy(K.support)].any())


@every_map
def test_what_is_mixed_with_S_is_S_times_the_adjoint(kind: str) -> None:
    K, stack, lead, spatial = assembled(kind)
    S = torch.randn(*lead, 1, 4, K.width)  # one for all layers
    mixed = K.mixed(S, stack)
    if mixed is None:
        assert not isinstance(K, Matrix | Convolution)
        return
    s = torch.randn(*lead, 5, K.units, *spatial)
    for layer in range(2):
        found = K.multiply(mixed.select(len(lead), layer), s).reshape(*lead, 5, 4, -1)
        gradient = K.adjoint(stack.select(len(lead), layer), s).reshape(*lead, 5, K.width, -1)
        torch.testing.assert_close(found, S @ gradient)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_adjoint_of_a_convolution_is_the_transposed_one(structure: str) -> None:
    K = Convolution(STRUCTURES[structure](4, 5))
    kernels, s = K.assemble(torch.randn(1, K.size))[0], torch.randn(2, 4, 4, 7)
    transposed = F.conv_transpose2d(s, kernels, padding=2)
    torch.testing.assert_close(K.adjoint(kernels, s), transposed, rtol=0, atol=1e-12)


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


@every_name
@pytest.mark.parametrize(("kernel", "height", "width"), [(3, 4, 5), (5, 3, 2)])
def test_convolutions_follow_the_layer_equations(
    name: str, kernel: int, height: int, width: int
) -> None:
    """A convolutional network is the network of the matrices of its convolutions."""
    steps = {} if name == "FCNN" else {"step": [0.3, 0.1, 0.5]}
    net = conv(name, kernel=kernel, **steps)
    Y = torch.randn(2, 4, height, width)
    pixels = height * width
    layer = LONGHAND[name]
    if name == "H2":
        J = np.kron(J2(4), np.eye(pixels))
        layer = lambda y, K, b, h: y + h * J @ K.T @ np.tanh(K @ y + b)  # noqa: E731
    expected = []
    for y in Y.reshape(2, -1).numpy():
        for j in range(3):
            b = net.b[j].detach().numpy().repeat(pixels)
            h = 1.0 if name == "FCNN" else float(net.h[j])
            y = layer(y, matrix(net.K[j], height, width), b, h)
        expected.append(y)
    result = net(Y).detach().reshape(2, -1)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@each
def test_kernels_of_one_point_are_the_pointwise_network(name: str, scheme: str) -> None:
    """With zeros around its center a kernel is a matrix over channels, for every scheme."""
    plain, net = build(name, scheme, channels=4), conv(name, scheme)
    K, theta, code = plain.K, net.field.weights.theta, net.field.weights.pattern.code[..., 1, 1]
    with torch.no_grad():
        theta.zero_()
        for o, i in zip(*np.nonzero(code > 0), strict=True):
            theta[:, code[o, i] - 1] = K[:, o, i]
        net.field.weights.beta.copy_(plain.field.weights.beta)
    y = torch.randn(2, 4, 3, 2)
    torch.testing.assert_close(net(y), plain(y), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(net.trajectory(y)[-1], net(y), rtol=0, atol=0)
    if net.invertible:
        torch.testing.assert_close(net.inverse(net(y)), y, rtol=1e-9, atol=1e-9)


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


def test_MS3_is_symplectic_over_the_whole_image() -> None:
    net, y = conv("MS3", channels=2), torch.randn(1, 2, 3, 3)
    M = jacobian(net, y).reshape(18, 18)
    J = torch.from_numpy(J1(18))
    torch.testing.assert_close(M @ J @ M.mT, J, rtol=0, atol=1e-12)
    assert net.structure_preserving


@pytest.mark.parametrize("scheme", ["ForwardEuler", "RK4"])
@pytest.mark.parametrize("kind", ["J(t)", "J(y, t)"])
def test_any_J_acts_on_channels(kind: str, scheme: str) -> None:
    """J1 given as a stack or as a function of the state is J1."""
    canonical = torch.from_numpy(J1(4))
    J: Any = canonical.expand(3, 4, 4)
    if kind == "J(y, t)":
        J = lambda y, t: canonical.expand(*y.shape, 4)  # noqa: E731
    weights = Weights("dense", channels=4, kernel=3, layers=3)
    y, rule = torch.randn(2, 4, 3, 5), SCHEMES[scheme]()
    nets = [Net(HamiltonianField(given, weights), rule, step=0.2) for given in (J, "J1")]
    torch.testing.assert_close(nets[0](y), nets[1](y), rtol=1e-12, atol=1e-12)


def test_HS_with_an_X_mixes_the_channels_of_its_halves() -> None:
    X = torch.randn(2, 2)
    net, y = conv("HS", layers=1, X=X), torch.randn(2, 4, 3, 3)
    K, (b1, b2) = net.K[0], net.b[0].chunk(2)
    p, q = y.chunk(2, 1)

    def force(K: Tensor, b: Tensor, x: Tensor, X: Tensor) -> Tensor:
        s = torch.tanh(F.conv2d(x, K, b, padding=1))
        return torch.einsum("wr,brpq->bwpq", X, F.conv_transpose2d(s, K, padding=1))

    p = p + net.h * force(K[2:, 2:], b2, q, X)
    q = q - net.h * force(K[:2, :2], b1, p, X.mT)
    torch.testing.assert_close(net(y), torch.cat([p, q], 1), rtol=1e-12, atol=1e-12)
    learned = conv("HS", layers=1, X="learned", memory="lean")
    learned(y).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned.parameters())


@pytest.mark.parametrize("name", ["H1", "MS3"])
def test_convolutions_take_any_order_of_memory(name: str) -> None:
    net, y = conv(name), torch.randn(3, 4, 5, 6)
    exact = net(y).float()
    net, y = net.to(torch.float32), y.to(torch.float32)
    for state in (y, y.contiguous(memory_format=torch.channels_last), y.mT.contiguous().mT):
        torch.testing.assert_close(net(state), exact, rtol=1e-5, atol=1e-5)
    assert net(y).reshape(3, -1).shape == (3, 120)
    every = torch.func.vmap(net)(torch.stack([y, 2 * y]))
    torch.testing.assert_close(every[1], net(2 * y), rtol=1e-5, atol=1e-5)


def test_what_a_convolution_has_no_matrix_for_raises() -> None:
    net, y = conv("H1"), torch.randn(2, 4, 3, 3)
    for state in (torch.randn(2, 4), torch.randn(2, 4, 3), torch.randn(2, 3, 3, 3), y[None]):
        with pytest.raises(HdnnError, match=r"\(B, 4, height, width\)"):
            net(state)
    with pytest.raises(HdnnError, match="field_at gives J, K and b as matrices"):
        net.field_at(0)
    for name in ("MS1", "MS2"):
        with pytest.raises(HdnnError, match="is no convolution"):
            _ = conv(name).J
    with pytest.raises(HdnnError, match="Newton's method would solve dense systems of 4800"):
        conv("H1", "ImplicitMidpoint")(torch.randn(1, 4, 30, 40))
    fixed = hdnn.schemes.ImplicitMidpoint(solver="fixed-point")
    large = hdnn.network("H1", channels=4, kernel=3, layers=1, step=0.1, scheme=fixed)
    assert large(torch.randn(1, 4, 30, 40)).shape == (1, 4, 30, 40)


def test_blocks_of_convolutions_are_the_block_diagonal_structure() -> None:
    plain = conv("HS")
    halves = BlockDiagonal(*(Convolution(STRUCTURES["dense"](2, 3)) for _ in range(2)))
    weights = Weights(halves, channels=4, kernel=3, layers=3)
    net = Net(HamiltonianField("J1", weights), SemiImplicitEuler(), T=1.0)
    net.load_state_dict(plain.state_dict())
    y = torch.randn(2, 4, 3, 5)
    torch.testing.assert_close(net(y), plain(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.inverse(net(y)), y, rtol=0, atol=1e-12)


# --- a map of one's own: a graph ------------------------------------------------------------------


def longhand_graph(net: Net, A: np.ndarray, f: int, Y: np.ndarray) -> np.ndarray:
    """I (x) W + A (x) V as a matrix, in the layer equation of HS."""
    theta, b = net.field.weights.theta.detach().numpy(), net.b.detach().numpy()
    rows = []
    for y in Y:
        for j in range(net.layers):
            W1, V1, W2, V2 = theta[j].reshape(4, f, f)
            K1, K2 = (np.kron(np.eye(len(A)), W) + np.kron(A, V) for W, V in ((W1, V1), (W2, V2)))
            zero = np.zeros_like(K1)
            y = LONGHAND["HS"](y, np.block([[K1, zero], [zero, K2]]), b[j], net.h)
        rows.append(y)
    return np.array(rows)


directed = st.tuples(st.integers(1, 5), st.integers(0, 10**6), st.floats(0, 1))


@given(graph=directed, features=st.integers(1, 3))
def test_a_network_over_a_graph_is_the_layer_equation_of_its_matrix(
    graph: tuple[int, int, float], features: int
) -> None:
    A = adjacency(*graph)
    net = graph_network(A, features)
    y = torch.randn(4, net.features)
    expected = longhand_graph(net, A, features, y.numpy())
    np.testing.assert_allclose(net(y).detach(), expected, rtol=1e-12, atol=1e-12)


@given(graph=directed, features=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_a_network_over_any_directed_graph_is_symplectic(
    graph: tuple[int, int, float], features: int, seed: int
) -> None:
    torch.manual_seed(seed)
    net = graph_network(adjacency(*graph), features)
    assert net.structure_preserving
    M, J = jacobian(net, torch.randn(net.features)), net.J
    defect = (M @ J @ M.mT - J).norm() / max(1.0, float(M.norm()) ** 2)
    assert float(defect) < 1e-12
    assert float(torch.linalg.matrix_norm(M, 2)) >= 1 - 1e-12


@settings(max_examples=5)
@given(graph=directed)
def test_a_certificate_accepts_a_network_over_a_graph(graph: tuple[int, int, float]) -> None:
    net = graph_network(adjacency(*graph), layers=6)
    found = hdnn.analysis.certify(net, torch.randn(5, net.features))
    assert found.ok, str(found)
    for name in ("structure", "reciprocal-pairs", "norm-at-least-one", "imaginary-spectrum"):
        assert found[name].holds, name


def test_the_reference_computes_it_and_says_so() -> None:
    net, y = graph_network(A3), torch.randn(4, 12)
    choice = net.explain_backend(y)
    assert choice.backend == "reference"
    assert "GraphMap" in choice.reason
    torch.testing.assert_close(net.inverse(net(y)), y, rtol=0, atol=1e-12)
    for memory in ("fast", "lean"):
        net.memory = memory
        function, parameters = as_function(net)
        state = torch.randn(2, 12, requires_grad=True)
        assert torch.autograd.gradcheck(function, (state, *parameters))


def test_a_graph_in_one_piece_serves_the_schemes_of_any_field() -> None:
    """H2 over a graph: K reads everything, so nothing splits."""
    field = HamiltonianField("J2", Weights(GraphMap(A3, 2), features=6, layers=3))
    net, y = Net(field, ForwardEuler(), T=1.0), torch.randn(4, 6)
    J, K, b = net.field_at(1)
    torch.testing.assert_close(field.velocity(y, 1), torch.tanh(y @ K.mT + b) @ K @ J.mT)
    with pytest.raises(HdnnError, match="separable"):
        Net(field, SemiImplicitEuler(), T=1.0)


def test_a_file_asks_for_the_arguments_of_a_map(tmp_path: Path) -> None:
    class Silent(GraphMap):
        arguments = LinearMap.arguments

    field = HamiltonianField("J2", Weights(Silent(A3, 2), features=6, layers=3))
    with pytest.raises(HdnnError, match=r"Silent: give it a method arguments\(\)"):
        hdnn.save(Net(field, T=1.0), tmp_path / "net")
    path, net = tmp_path / "other", graph_network(A3)
    hdnn.save(net, path)
    path.write_bytes(path.read_bytes().replace(b"GraphMap", b"GraphMop"))
    with pytest.raises(FileFormatError, match="import the module that defines it"):
        hdnn.load(path)


def test_a_map_of_another_width_raises() -> None:
    with pytest.raises(HdnnError, match="must read 8 features, got a map of 6"):
        Weights(GraphMap(A3, 2), features=8, layers=3)
