"""Convolutional networks: K_j a convolution with zeros around the image, K_j' its exact adjoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

import hdnn
from catalogue import HAMILTONIAN, OWN, build, every_name, every_pair, jacobian
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import STRUCTURES, Channels, Convolution, HamiltonianField, Pattern, Weights
from test_longhand import J1, J2, LONGHAND

every_structure = pytest.mark.parametrize("structure", STRUCTURES)
COUNTS = {
    "dense": lambda n, k: n**2 * k**2,
    "skew": lambda n, k: (n**2 * k**2 - n) / 2,
    "off-diagonal-skew": lambda n, k: n**2 * k**2 / 4,
    "off-diagonal": lambda n, k: n**2 * k**2 / 2,
    "block-diagonal": lambda n, k: n**2 * k**2 / 2,
}


def conv(name: str, scheme: str = OWN, **options: Any) -> hdnn.HamiltonianNetwork:
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


def inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum()


# --- the operator ---------------------------------------------------------------------------------


@every_structure
@pytest.mark.parametrize("kernel", [3, 5])
def test_the_adjoint_is_exact(structure: str, kernel: int) -> None:
    """<K x, y> = <x, K' y>, and K' is the transposed convolution."""
    weights = Weights(structure, channels=6, kernel=kernel, layers=2)
    layout, K = weights.layout, weights.K[1]
    x, y = torch.randn(2, 6, 4, 7), torch.randn(2, 6, 4, 7)
    back = layout.linear(layout.adjoint(K), y)
    assert abs(inner(layout.linear(K, x), y) - inner(x, back)) < 1e-12
    torch.testing.assert_close(
        back, F.conv_transpose2d(y, K, padding=kernel // 2), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("structure", ["skew", "off-diagonal-skew"])
def test_a_skew_kernel_is_a_skew_operator(structure: str) -> None:
    weights = Weights(structure, channels=4, kernel=3, layers=1)
    K, apply = weights.K[0], weights.layout.linear
    x, y = torch.randn(1, 4, 5, 6), torch.randn(1, 4, 5, 6)
    assert abs(inner(apply(K, x), y) + inner(x, apply(K, y))) < 1e-12
    assert torch.equal(K, -K.transpose(0, 1).flip(-1, -2))


@every_structure
@pytest.mark.parametrize(("n", "k"), [(2, 3), (4, 3), (6, 5)])
def test_parameter_counts(structure: str, n: int, k: int) -> None:
    weights = Weights(structure, channels=n, kernel=k, layers=3)
    assert weights.pattern.size == COUNTS[structure](n, k)
    assert weights.parameters_per_layer == weights.pattern.size + n
    assert weights.theta.shape == (3, weights.pattern.size)
    assert weights.K.shape == (3, n, n, k, k)


def test_every_skew_kernel_has_parameters() -> None:
    """No freedom is lost: any R - R' is reached, those on the diagonal too."""
    R = torch.randn(3, 3, 3, 3)
    wanted = R - R.transpose(0, 1).flip(-1, -2)
    weights = Weights("skew", channels=3, kernel=3, layers=1)
    plus = torch.from_numpy(weights.pattern.code.ravel() > 0)
    with torch.no_grad():
        weights.theta[0, torch.from_numpy(weights.pattern.index)[plus]] = wanted.ravel()[plus]
    assert torch.equal(weights.K[0], wanted)


def test_default_scale_of_the_parameters(generator: torch.Generator) -> None:
    """1 / sqrt(n k^2), times the scale; of matrices over channels 1, as documented."""
    weights = Weights("dense", channels=16, kernel=5, layers=8, generator=generator)
    assert float(weights.theta.detach().std()) * 20 == pytest.approx(1, abs=0.02)
    weights.reset_parameters(generator, scale=3.0)
    assert float(weights.theta.detach().std()) * 20 == pytest.approx(3, abs=0.06)
    assert float(weights.beta.detach().std()) * 20 == pytest.approx(3, abs=0.6)
    pointwise = Weights("dense", channels=64, kernel=1, layers=8, generator=generator)
    assert float(pointwise.theta.detach().std()) == pytest.approx(1, abs=0.02)


# --- the networks ---------------------------------------------------------------------------------


@every_name
@pytest.mark.parametrize(("kernel", "height", "width"), [(3, 4, 5), (5, 3, 2)])
def test_network_equals_the_layer_equations(
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


@every_pair()
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


def test_kernel_1_is_the_pointwise_map() -> None:
    one = build("H1", channels=4, kernel=1, generator=torch.Generator().manual_seed(3))
    without = build("H1", channels=4, generator=torch.Generator().manual_seed(3))
    y = torch.randn(2, 4, 3, 3)
    assert isinstance(one.field.layout, Channels)
    assert torch.equal(one(y), without(y))
    assert (one.kernel, conv("H1").kernel) == (1, 3)
    assert "kernel=3" in repr(conv("H1"))


@every_name
def test_gradients(name: str) -> None:
    net = conv(name, channels=2, layers=2)
    parameters = dict(net.named_parameters())

    def function(y: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(net, given, (y,))

    y = torch.randn(2, 2, 2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *parameters.values()), fast_mode=False)


def test_implicit_midpoint_solves_for_all_pixels_at_once() -> None:
    """y_1 = y_0 + h f((y_0 + y_1) / 2) at a step at which pixels are strongly coupled."""
    net = conv("H1", "ImplicitMidpoint", channels=2, layers=1, step=1.0)
    y = torch.randn(2, 2, 3, 4, requires_grad=True)
    end = net(y)
    middle = y + net.field.velocity((y + end) / 2)
    torch.testing.assert_close(end, middle, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.inverse(end), y, rtol=1e-11, atol=1e-11)
    assert torch.autograd.gradcheck(net, (y,))


@every_name
@pytest.mark.parametrize("time_invariant", [False, True])
def test_lean_memory_serves_convolutions(name: str, time_invariant: bool) -> None:
    net = conv(name, layers=6, time_invariant=time_invariant)
    weight, y = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3, requires_grad=True)
    wanted = [y, *net.parameters()]
    found = {}
    for net.memory in ("fast", "lean"):
        assert net.explain_backend(y).backend == {"fast": "reference"}.get(
            net.memory, "checkpointed"
        )
        found[net.memory] = torch.autograd.grad((net(y) * weight).sum(), wanted)
    torch.testing.assert_close(found["fast"], found["lean"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", HAMILTONIAN)
def test_the_energy_and_its_gradient(name: str) -> None:
    """H = sum log cosh(K y + b) over channels and pixels; K' sigma(K y + b) is its derivative."""
    net = conv(name)
    field, y = net.field, torch.randn(3, 4, 4, 3, requires_grad=True)
    H = field.energy(y, layer=1)
    units = F.conv2d(y, net.K[1], field.weights.b[1], padding=1)
    torch.testing.assert_close(H, units.cosh().log().sum((1, 2, 3)))
    (slope,) = torch.autograd.grad(H.sum(), y)
    torch.testing.assert_close(field.gradient(y, layer=1), slope, rtol=1e-12, atol=1e-12)
    if name not in ("MS1", "MS2"):
        J = torch.einsum("wr,brpq->bwpq", net.J, slope)
        torch.testing.assert_close(field.velocity(y, layer=1), J, rtol=1e-12, atol=1e-12)
        assert abs(inner(slope, field.velocity(y, layer=1))) < 1e-10


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
    y, rule = torch.randn(2, 4, 3, 5), hdnn.schemes.SCHEMES[scheme]()
    nets = [
        hdnn.HamiltonianNetwork(HamiltonianField(given, weights), rule, step=0.2)
        for given in (J, "J1")
    ]
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
def test_the_order_of_memory_is_the_callers(name: str) -> None:
    """float32 is computed with channels last: the same values, and what comes out can be viewed."""
    net, y = conv(name), torch.randn(3, 4, 5, 6)
    exact = net(y).float()
    net, y = net.to(torch.float32), y.to(torch.float32)
    for state in (y, y.contiguous(memory_format=torch.channels_last), y.mT.contiguous().mT):
        torch.testing.assert_close(net(state), exact, rtol=1e-5, atol=1e-5)
    assert net(y).view(3, -1).shape == (3, 120)
    every = torch.func.vmap(net)(torch.stack([y, 2 * y]))
    torch.testing.assert_close(every[1], net(2 * y), rtol=1e-5, atol=1e-5)


# --- files and refusals ---------------------------------------------------------------------------


@every_name
def test_round_trip(name: str, tmp_path: Path) -> None:
    net, y = conv(name), torch.randn(2, 4, 3, 3)
    hdnn.save(net, tmp_path / "net")
    again = hdnn.load(tmp_path / "net")
    assert torch.equal(again(y), net(y))
    assert again.extra_repr() == net.extra_repr()


def test_graphs_of_kernels(tmp_path: Path) -> None:
    """An edge of a graph is a whole kernel; what is no edge is zero."""
    graph = np.triu(np.ones((4, 4), dtype=bool))
    net = hdnn.HamiltonianNetwork(
        HamiltonianField("J2", Weights(graph, channels=4, kernel=3, layers=2)), step=0.1
    )
    assert net.parameters_per_layer == 10 * 9 + 4
    assert torch.equal((net.K != 0).all(-1).all(-1), torch.from_numpy(graph).expand(2, 4, 4))
    hdnn.save(net, tmp_path / "net")
    assert torch.equal(hdnn.load(tmp_path / "net").K, net.K)


def test_files_from_before_convolutions_are_read(tmp_path: Path) -> None:
    net, path = build("H1", channels=4), tmp_path / "net"
    hdnn.save(net, path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hdnn"])
        del description["sha256"]
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    del description["field"]["kernel"]
    save_file(tensors, path, metadata={"hdnn": json.dumps(description)})
    assert torch.equal(hdnn.load(path).K, net.K)


@pytest.mark.parametrize("kernel", [0, 2, -3, 3.0, True, "3", 10**9 + 1])
def test_a_file_with_a_foreign_kernel_is_refused(kernel: Any, tmp_path: Path) -> None:
    path = tmp_path / "net"
    hdnn.save(conv("H1"), path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["hdnn"])
        del description["sha256"]
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    description["field"]["kernel"] = kernel
    save_file(tensors, path, metadata={"hdnn": json.dumps(description)})
    with pytest.raises(HdnnError, match=r"kernel|K has shape"):
        hdnn.load(path)


@pytest.mark.parametrize("kernel", [0, 2, -3, 3.0, True, "3"])
def test_a_kernel_is_an_odd_positive_integer(kernel: Any) -> None:
    with pytest.raises(HdnnError, match="odd positive integer"):
        conv("H1", kernel=kernel)


def test_what_has_no_meaning_is_refused() -> None:
    net, y = conv("H1"), torch.randn(2, 4, 3, 3)
    with pytest.raises(HdnnError, match="give channels=n"):
        hdnn.network("H1", features=4, kernel=3, layers=1, T=1.0)
    with pytest.raises(HdnnError, match="ensembles have matrices only"):
        conv("H1", ensemble=2)
    for state in (torch.randn(2, 4), torch.randn(2, 4, 3), torch.randn(2, 3, 3, 3), y[None]):
        with pytest.raises(HdnnError, match=r"\(B, 4, height, width\)"):
            net(state)
    with pytest.raises(IncompatibleError, match="oneDNN"):
        conv("H1", backend="fused")(y)
    assert "oneDNN" in net.explain_backend(y).reason
    with pytest.raises(HdnnError, match="field_at gives J, K and b as matrices"):
        net.field_at(0)
    with pytest.raises(HdnnError, match=r"hdnn\.analysis\.watch"):
        hdnn.analysis.sensitivities(net, y)
    for name in ("MS1", "MS2"):
        with pytest.raises(HdnnError, match="is no convolution"):
            _ = conv(name).J
    with pytest.raises(HdnnError, match="Newton's method would solve dense systems of 4800"):
        conv("H1", "ImplicitMidpoint")(torch.randn(1, 4, 30, 40))
    fixed = hdnn.schemes.ImplicitMidpoint(solver="fixed-point")
    large = hdnn.network("H1", channels=4, kernel=3, layers=1, step=0.1, scheme=fixed)
    assert large(torch.randn(1, 4, 30, 40)).shape == (1, 4, 30, 40)


@pytest.mark.parametrize("pattern", ["matrix", "function of n", "wrong side"])
def test_structures_must_be_of_kernels(pattern: str) -> None:
    eye = Pattern.of(np.arange(1, 17).reshape(4, 4))
    structure: Any = {"matrix": eye, "function of n": lambda n: eye}.get(
        pattern, Pattern.of(np.arange(1, 401).reshape(4, 4, 5, 5))
    )
    with pytest.raises(HdnnError, match="with kernel=3 a structure has shape"):
        Weights(structure, channels=4, kernel=3, layers=1)
    own = Pattern.of(np.arange(1, 145).reshape(4, 4, 3, 3))
    assert Weights(own, channels=4, kernel=3, layers=1).K.shape == (1, 4, 4, 3, 3)


def test_layout_says_what_it_is() -> None:
    assert str(Convolution(8, side=5)) == "channels=8, kernel=5"
