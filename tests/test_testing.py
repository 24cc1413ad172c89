"""Every assertion passes what is right, and names what is wrong: in mutants, and in random ones."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from catalog import build
from hdnn import testing
from hdnn.errors import HdnnError


class Network(nn.Module):
    """Steps of a Hamiltonian system, H = sum log cosh(K q + b) + sum log cosh(K p + b).

    Args:
        dof: of q and of p.
        order: 1, semi-implicit Euler; 2, leapfrog.
        scale: of the initial weights.
        steps: into how many of them a call divides h.
        sigma: activation; with another one than tanh the energy is not that of `energy`.
        wrong: which mistake it contains; none by default.
    """

    def __init__(
        self,
        wrong: str = "",
        *,
        dof: int = 2,
        order: int = 1,
        scale: float = 0.5,
        steps: int = 1,
        sigma: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> None:
        super().__init__()
        self.wrong, self.dof, self.order, self.steps = wrong, dof, order, steps
        self.sigma = sigma
        self.K, self.W = (nn.Parameter(scale * torch.randn(2, 5, dof)) for _ in range(2))
        self.b = nn.Parameter(scale * torch.randn(2, 5))
        self.calls = 0
        self.drop = nn.Dropout(0.3 if wrong == "dropout" else 0.0)
        self.register_buffer("memory", torch.zeros(()))

    def gradient(self, half: int, v: Tensor) -> Tensor:
        """dH / dq (half 0) or dH / dp (half 1)."""
        if self.wrong == "a detached state":
            v = v.detach()
        if self.wrong == "a detached parameter":
            return self.sigma(v @ self.K[half].mT + self.b[half].detach()) @ self.K[half]
        units = self.sigma(v @ self.K[half].mT + self.b[half])
        return units @ (self.W if self.wrong == "no gradient" else self.K)[half]

    def energy(self, x: Tensor) -> Tensor:
        q, p = x.chunk(2, -1)
        units = torch.cat([v @ self.K[k].mT + self.b[k] for k, v in enumerate((q, p))], -1)
        return units.cosh().log().sum(-1)

    def field(self, x: Tensor) -> Tensor:
        q, p = x.chunk(2, -1)
        if self.wrong == "velocities exchanged":
            return torch.cat([-self.gradient(0, q), self.gradient(1, p)], -1)
        sign = 1 if self.wrong == "a sign" else -1
        damping = 0.1 * p if self.wrong == "damping" else 0.0
        return torch.cat([self.gradient(1, p), sign * self.gradient(0, q) - damping], -1)

    def forward(self, x: Tensor, h: float = 0.1) -> Tensor:
        h /= self.steps
        if self.wrong == "explicit Euler":
            return x + h * self.steps * self.field(x)
        if self.wrong == "in place":
            x += 0.0 if self.calls else 1.0
        if self.wrong == "another formula in eval mode" and not self.training:
            return x + h * self.field(x)
        if self.wrong == "a memory":
            x = x + self.memory
            self.memory.add_(1.0)
        q, p = x.chunk(2, -1)
        sign = 1 if self.wrong == "a sign" else -1
        for _ in range(self.steps):
            old = q
            first = h / 2 if self.order == 2 else h
            q = q + first * self.gradient(1, p)
            if self.wrong == "not separable":
                q = q + h * p.sin() * q.cos()
            p = p + sign * h * self.gradient(0, old if self.wrong == "an old time level" else q)
            if self.order == 2:
                last = old if self.wrong == "an old last half step" else q
                q = last + h / 2 * self.gradient(1, p)
        if self.wrong == "damping":
            p = p * (1 - h / 30)
        if self.wrong == "halves exchanged":
            q, p = p, q
        return self.drop(torch.cat([q, p], -1))

    def inverse(self, x: Tensor, h: float = 0.1) -> Tensor:
        h /= self.steps
        q, p = x.chunk(2, -1)
        for _ in range(self.steps):
            if self.wrong == "an inverse in the same order":
                q = q - h * self.gradient(1, p)
                p = p + h * self.gradient(0, q)
                continue
            if self.order == 2:
                q = q - h / 2 * self.gradient(1, p)
            p = p + h * self.gradient(0, q)
            if self.wrong != "an inverse without its last half":
                q = q - (h / 2 if self.order == 2 else h) * self.gradient(1, p)
        return torch.cat([q, p], -1)


class Plant(nn.Module):
    """x+ = x + h ((J - R) m + G u), y = G' m at m = (x + x+) / 2, which stores |x|^2 / 2."""

    def __init__(self, wrong: str = "", *, scale: float = 0.5, n: int = 4, h: float = 0.2) -> None:
        super().__init__()
        self.wrong, self.h = wrong, h
        self.A, self.L = (nn.Parameter(scale * torch.randn(n, n)) for _ in range(2))
        self.G = nn.Parameter(scale * torch.randn(n, 2))
        self.B = nn.Parameter(scale * torch.randn(n, 2))

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        R = self.L @ self.L.mT
        S = self.A - self.A.mT - (-R if self.wrong == "negative damping" else R)
        if self.wrong == "J is not skew":
            S = self.A - R
        left = torch.eye(len(S)) - self.h / 2 * S
        m = torch.linalg.solve(left, (x + self.h / 2 * u @ self.G.mT).mT).mT
        after = x + self.h * (m @ S.mT + u @ self.G.mT)
        if self.wrong == "explicit Euler":
            m, after = x, x + self.h * (x @ S.mT + u @ self.G.mT)
        y = m @ (self.B if self.wrong == "another output matrix" else self.G)
        if self.wrong == "the output of the old state":
            y = x @ self.G
        return after, -y if self.wrong == "the sign of the output" else y


class Cell(nn.Module):
    """x+ = rate W tanh(x) + B u with an orthogonal W."""

    def __init__(
        self, wrong: str = "", *, scale: float = 0.5, n: int = 3, rate: float = 0.9
    ) -> None:
        super().__init__()
        self.wrong, self.rate = wrong, rate
        self.A, self.B = (nn.Parameter(scale * torch.randn(n, n)) for _ in range(2))

    def step(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        W = torch.matrix_exp(self.A - self.A.mT)
        if self.wrong == "a spectral radius":  # less than 1, but not the norm
            W = torch.tril(self.A, -1) * 3 + torch.eye(len(W))
        if self.wrong == "small at first":
            W = self.A
        if self.wrong == "a gate that opens":
            W = W * (1 + 0.2 * torch.tanh(u).square().mean())
        after = self.rate * torch.tanh(x) @ W.mT + u @ self.B.mT
        if self.wrong == "a skip connection":
            after = after + x
        return after, x


class Edges(nn.Module):
    """K x = A x W over the edges of a directed graph, x ``(nodes, features)``."""

    def __init__(self, wrong: str = "", *, scale: float = 0.5, nodes: int = 6) -> None:
        super().__init__()
        self.wrong = wrong
        self.W = nn.Parameter(scale * torch.randn(3, 2))
        self.bias = nn.Parameter(scale * torch.randn(2))
        self.register_buffer("graph", (torch.rand(nodes, nodes) < 0.4).to(torch.float64).triu(1))
        self.graph[0, 1] = 1.0

    def multiply(self, x: Tensor) -> Tensor:
        y = self.graph @ x @ self.W
        return y + self.bias if self.wrong == "a bias" else y

    def adjoint(self, s: Tensor) -> Tensor:
        graph = self.graph if self.wrong == "the same edges" else self.graph.mT
        s = graph @ s @ self.W.mT
        return -s if self.wrong == "a sign" else s


Make = Callable[..., nn.Module]
Assertion = Callable[[Any, Tensor], None]

# For each assertion: how to make what it is about, how to call it, and mistakes with the message.
TABLE: dict[str, tuple[Make, Callable[[Any], None], dict[str, str]]] = {
    "symplectic": (
        Network,
        lambda net: testing.assert_symplectic(net, states(net)),
        {
            "no gradient": "the determinant is 1: no gradient as force",
            "explicit Euler": "the determinant is .*: explicit Euler",
            "an old time level": "explicit Euler, an old time level",
            "not separable": "the determinant is .*H not separable",
            "halves exchanged": "M J M' = -J: are q and p exchanged",
            "damping": "J: does something scale or damp the state",
        },
    ),
    "volume-preserving": (
        Network,
        lambda net: testing.assert_volume_preserving(net, states(net)),
        {
            "explicit Euler": "volume grows: explicit Euler",
            "an old time level": "volume",
            "damping": "volume shrinks",
            "not separable": "volume",
        },
    ),
    "inverse to each other": (
        partial(Network, order=2),
        lambda net: testing.assert_invertible(net, net.inverse, states(net)),
        {
            "an inverse in the same order": "in the same order",
            "an inverse without its last half": "does a half use an old value",
            "an old time level": "does a half use an old value",
        },
    ),
    "conserving H along steps": (
        Network,
        lambda net: testing.assert_energy_conserved(lambda x: net(x, 0.5), net.energy, states(net)),
        {
            "explicit Euler": "H grows",
            "damping": "H falls",
            "an old time level": "H grows",
        },
    ),
    "conserving H": (
        Network,
        lambda net: testing.assert_field_conserves(net.field, net.energy, states(net)),
        {
            "velocities exchanged": "are the velocities of q and p exchanged",
            "a sign": "a sign wrong",
            "damping": "is there damping",
            "no gradient": "a sign wrong",
        },
    ),
    "passive": (
        Plant,
        lambda net: testing.assert_passive(
            net.step, lambda x: x.square().sum(1) / 2, *inputs(net), h=0.2
        ),
        {
            "negative damping": "more is stored than supplied",
            "J is not skew": "more is stored than supplied",
            "explicit Euler": "more is stored than supplied",
            "another output matrix": "more is stored than supplied",
            "the output of the old state": "an output without its share of the input",
            "the sign of the output": "a sign",
        },
    ),
    "contracting": (
        Cell,
        lambda net: testing.assert_contracting(net.step, *inputs(net), rate=0.9),
        {
            "a spectral radius": "grow by a factor of [1-9]",
            "small at first": r"typical parameters.*grow by a factor",
            "a gate that opens": "grow by a factor of [01]",
            "a skip connection": "grow by a factor of 1",
        },
    ),
    "consistent": (
        Network,
        lambda net: testing.assert_consistent(net, Network.field.__get__(right(net)), states(net)),
        {
            "a sign": "a wrong sign",
            "not separable": "a wrong sign or factor of h",
            "damping": "a wrong sign or factor of h",
            "halves exchanged": "velocity of another variable",
        },
    ),
    "of order 2": (
        partial(Network, order=2),
        lambda net: testing.assert_order(net, states(net), 2),
        {
            "an old last half step": "the observed order is",
            "explicit Euler": "the observed order is 1.0",
            "an old time level": "the observed order is 1.0",
        },
    ),
    "adjoint": (
        Edges,
        lambda net: testing.assert_adjoint(net.multiply, net.adjoint, states(net)),
        {
            "the same edges": "one over other edges",
            "a sign": "is it the map itself",
            "a bias": "K is not linear",
        },
    ),
    "differentiated by autograd": (
        Network,
        lambda net: testing.assert_gradients(net, states(net)),
        {
            "a detached state": "is a state detached",
            "a detached parameter": "parameters: is one detached",
        },
    ),
    "the same map": (
        Network,
        lambda net: testing.assert_same_map(net, states(net)),
        {
            "dropout": "is it random",
            "a memory": "does it keep a state",
            "another formula in eval mode": "in the other mode",
            "in place": "it changes its input in place",
        },
    ),
}
MUTANTS = [(claim, wrong) for claim, (_, _, mistakes) in TABLE.items() for wrong in mistakes]


def states(net: Any) -> Tensor:
    return torch.randn(len(net.graph), 3) if isinstance(net, Edges) else torch.randn(5, 2 * net.dof)


def inputs(net: Any) -> tuple[Tensor, Tensor]:
    """States and inputs."""
    return torch.randn(5, len(net.A)), torch.randn(5, net.B.shape[1])


def right(net: Network) -> Network:
    """The same network without its mistake, over the same parameters."""
    other = copy.copy(net)
    other.wrong = ""
    return other


# --- what each assertion finds --------------------------------------------------------------------


@pytest.mark.parametrize("claim", TABLE)
def test_every_assertion_passes_what_is_right(claim: str) -> None:
    make, check, _ = TABLE[claim]
    for scale in (0.3, 0.6):
        check(make(scale=scale))


@pytest.mark.parametrize(("claim", "wrong"), MUTANTS)
def test_every_mutant_is_found_and_named(claim: str, wrong: str) -> None:
    make, check, mistakes = TABLE[claim]
    with pytest.raises(AssertionError, match=mistakes[wrong]) as raised:
        check(make(wrong, scale=0.3))
    assert str(raised.value).startswith(f"not {claim.removesuffix(' along steps')}: ")


# --- our own networks -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["MS3", "HS", "H1"])
def test_networks_are_examined_in_float64_and_left_alone(name: str, dtype: torch.dtype) -> None:
    scheme = "ImplicitMidpoint" if name == "H1" else "Leapfrog"
    net = build(name, scheme, layers=3, T=0.5, scale=0.01, dtype=dtype)
    net.register_buffer("extra", torch.ones(2, dtype=dtype))
    kept = copy.deepcopy(net.state_dict())
    objects = [*net.parameters(), *net.buffers()]
    y = torch.randn(4, 4, dtype=dtype)
    testing.assert_symplectic(net, y)
    testing.assert_gradients(net, y)
    testing.assert_same_map(net, y)
    if net.invertible:
        testing.assert_invertible(net, net.inverse, y, tolerance=1e-11)
    assert all(torch.equal(kept[k], v) and v.dtype == dtype for k, v in net.state_dict().items())
    assert all(a is b for a, b in zip(objects, [*net.parameters(), *net.buffers()], strict=True))
    assert torch.get_default_dtype() == torch.float64
    euler = build(name, "ForwardEuler", layers=3, T=0.5, scale=0.01, dtype=dtype)
    assert testing.symplectic_defect(euler, y).value < 1e-3  # which small weights nearly hide
    with pytest.raises(AssertionError, match="not symplectic"):
        testing.assert_symplectic(euler, y)


def test_states_too_large_for_a_Jacobian_are_examined_in_some_directions() -> None:
    """J acts on channels, axis 1; without a matrix of 1600 x 1600 numbers."""
    options = {"channels": 4, "kernel": 3, "layers": 2, "T": 0.5}
    y = torch.randn(2, 4, 20, 20)
    testing.assert_symplectic(build("MS3", **options), y, dim=1)
    with pytest.raises(AssertionError, match="is the force a gradient"):
        testing.assert_symplectic(build("H1", **options), y, dim=1)
    testing.assert_gradients(build("MS3", **options), y)
    with pytest.raises(HdnnError, match="up to 1024 numbers, got 1600"):
        testing.assert_volume_preserving(build("MS3", **options), y)


# --- what is found, and how it is left ------------------------------------------------------------


def references(net: Network) -> dict[str, Any]:
    """Ways to refer to a module."""

    class Owner:
        def __init__(self) -> None:
            self.parts = {"net": [net]}

        def step(self, x: Tensor) -> Tensor:
            return net(x)

    def inner(x: Tensor) -> Tensor:
        return net(x)

    return {
        "module": net,
        "method": net.forward,
        "closure": lambda x: net(x, 0.3),
        "function of a function": lambda x: inner(x) + 0,
        "partial": partial(net.forward, h=0.2),
        "method of an owner": Owner().step,
    }


@pytest.mark.parametrize("how", references(Network()))
def test_parameters_are_found_drawn_and_restored(how: str) -> None:
    net = Network("no gradient", scale=1e-4)
    f, x = references(net)[how], torch.randn(3, 4)
    kept = copy.deepcopy(net.state_dict())
    assert testing.symplectic_defect(f, x).value < 1e-7  # initial values hide it
    with pytest.raises(AssertionError, match=r"at typical parameters \(own: \d\.\de-\d\d\)"):
        testing.assert_symplectic(f, x)
    with testing.typical_parameters(f):
        assert 0.1 < float(net.K.detach().std()) < 0.9
    with pytest.raises(KeyError), testing.typical_parameters(f):
        raise KeyError
    assert all(torch.equal(kept[name], v) for name, v in net.state_dict().items())
    net.requires_grad_(False)  # frozen ones stay, too
    testing.assert_symplectic(f, x)


def test_positive_parameters_stay_positive_and_errors_say_where_they_arise() -> None:
    class Heavy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mass, self.other = nn.Parameter(torch.ones(4)), nn.Parameter(-torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            if not bool((self.other < 0).all()):
                raise ValueError("never positive")
            return x / self.mass

    heavy = Heavy()
    with testing.typical_parameters(heavy):
        assert bool((heavy.mass > 0).all())
        assert not bool((heavy.other < 0).all())
    with pytest.raises(ValueError, match="never positive") as raised:
        testing.assert_volume_preserving(heavy, torch.randn(2, 4))
    assert "requires_grad=False" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "module",
    [nn.LayerNorm(4), nn.GRUCell(4, 3), nn.PReLU(4), nn.BatchNorm1d(4), nn.Bilinear(4, 4, 2)],
    ids=lambda module: module._get_name(),
)
def test_parameters_of_any_shape_are_differentiated(module: nn.Module) -> None:
    x = torch.randn(5, 4)
    f = partial(module, x) if isinstance(module, nn.Bilinear) else module
    testing.assert_gradients(f, x)
    rounded = lambda x: f(x) + module.weight.detach().sum()  # noqa: E731
    if hasattr(module, "weight"):
        with pytest.raises(AssertionError, match="parameters: is one detached"):
            testing.assert_gradients(rounded, x)


def test_tensors_are_found_in_whatever_a_module_has() -> None:
    """Constants in lists, of float32, and also where gradients are switched off around the call."""

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"K": [torch.randn(2, 2, dtype=torch.float32)]}
            self.b = nn.Parameter(torch.randn(2, dtype=torch.float32))

        def forward(self, x: Tensor) -> Tensor:
            q, p = x.chunk(2, -1)
            K = self.parts["K"][0]
            return torch.cat([q, p + torch.tanh(q @ K.mT + self.b) @ K], -1)

    module, x = Coupling(), torch.randn(3, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            testing.assert_symplectic(module, x)
            testing.assert_gradients(module, x)
    assert module.parts["K"][0].dtype == torch.float32


def test_the_lines_for_CI_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of docs/testing.md, on a right layer and on a wrong one."""
    page = Path(__file__).parents[1].joinpath("docs/testing.md").read_text()
    lines, own = page.split("```python\n")[1].split("```")[0], ModuleType("mypackage")
    monkeypatch.setitem(sys.modules, "mypackage", own)
    for wrong, holds in (("", True), ("no gradient", False)):
        own.Layer = partial(Network, wrong)  # type: ignore[attr-defined]
        namespace: dict[str, Any] = {}
        exec(lines, namespace)
        with nullcontext() if holds else pytest.raises(AssertionError, match="not symplectic"):
            namespace["test_layer_is_what_its_docstring_says"]()


def test_nothing_but_torch_is_loaded() -> None:
    code = "import sys, hdnn.testing; print(*sorted(m for m in sys.modules if m[:4] == 'hdnn'))"
    call = [sys.executable, "-c", code]
    loaded = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["hdnn", "hdnn.errors", "hdnn.testing"]


# --- J, samples, and what cannot be measured ------------------------------------------------------


def test_other_J_than_the_canonical_one() -> None:
    net, x = Network(), torch.randn(3, 4)
    order = torch.tensor([0, 2, 1, 3])
    pairs = lambda x: net(x[:, order])[:, order]  # noqa: E731 (q1, p1, q2, p2)
    testing.assert_symplectic(pairs, x, "interleaved")
    with pytest.raises(AssertionError, match="interleaved"):
        testing.assert_symplectic(pairs, x)
    J = torch.kron(torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    testing.assert_symplectic(pairs, x, J)
    testing.assert_symplectic(lambda x: x, x, torch.block_diag(J[:2, :2], torch.zeros(2, 2)))


def test_J_of_the_state() -> None:
    """A rotation about an axis, by an angle that depends on it, is a flow of J(m) v = m x v."""

    def J(m: Tensor) -> Tensor:
        a, b, c = m.unbind(-1)
        o = torch.zeros_like(a)
        rows = ((o, -c, b), (c, o, -a), (-b, a, o))
        return torch.stack([torch.stack(row, -1) for row in rows], -2)

    def turn(m: Tensor, angle: Tensor | None = None) -> Tensor:
        a, b, c = m.unbind(-1)
        phi = c if angle is None else angle
        return torch.stack([a * phi.cos() - b * phi.sin(), a * phi.sin() + b * phi.cos(), c], -1)

    m = torch.randn(5, 3)
    testing.assert_symplectic(turn, m, J)
    with pytest.raises(AssertionError):
        testing.assert_symplectic(lambda m: turn(m, m[:, 0]), m, J)


def test_samples_that_react_to_each_other_are_one_state() -> None:
    """Leapfrog on a directed graph: with the adjoint of its edges, and with the same edges."""
    graph, W = torch.zeros(6, 6), torch.randn(2, 2)
    graph[0, 1] = graph[1, 2] = graph[4, 3] = 1.0

    def step(x: Tensor, back: Tensor) -> Tensor:
        q, p = x.chunk(2, -1)
        q = q + 0.2 * p
        return torch.cat([q, p - 0.2 * back @ torch.tanh(graph @ q @ W) @ W.mT], -1)

    x = torch.randn(6, 4)
    testing.assert_symplectic(lambda x: step(x, graph.mT), x)
    with pytest.raises(AssertionError, match="an adjoint that is none"):
        testing.assert_symplectic(lambda x: step(x, graph), x)
    testing.assert_symplectic(lambda x: step(x[0], graph.mT)[None], x[None])


def test_the_worst_sample_is_named_and_kinks_are_left_out() -> None:
    x = torch.zeros(4, 4)
    x[2] = 1.0
    only_there = lambda x: x + x * (x > 0.5)  # noqa: E731 (twice the state, there)
    assert testing.volume_defect(only_there, x).sample == 2
    with pytest.raises(AssertionError, match="worst sample 2"):
        testing.assert_volume_preserving(only_there, x)
    x[2], x[3] = 1e-6, -1.0  # the one near its kink, the others away from it
    x[:2] = 1.0
    assert testing.gradient_defect(torch.relu, x).value < 1e-9


def test_passivity_of_differences() -> None:
    """y = u (1 + u^2 / 10) x: passive about the origin, not between any two trajectories."""
    x, u = torch.randn(5, 3), torch.randn(5, 3)
    nothing = lambda x: 0.0 * x.sum(1)  # noqa: E731
    for static, holds in ((torch.tanh, True), (lambda u: u * (u.abs() < 1), False)):
        step = lambda x, u, f=static: (x, f(u))  # noqa: E731
        testing.assert_passive(step, nothing, x, u, h=1.0)
        testing.assert_passive(step, nothing, x, u, supply=lambda u, y: (u * y).sum(1))
        if holds:
            testing.assert_passive(step, nothing, x, u, h=1.0, incremental=True)
        else:
            with pytest.raises(AssertionError, match="not passive"):
                testing.assert_passive(step, nothing, x, u, h=1.0, incremental=True)


def test_the_rate_is_that_of_the_worst_state_and_direction() -> None:
    x, u = torch.ones(3, 2), torch.ones(3, 2)
    step = lambda x, u: (torch.tensor([0.9, 0.3]) * torch.tanh(x) + u, x)  # noqa: E731
    testing.assert_contracting(step, x, u, rate=0.9)
    with pytest.raises(AssertionError, match=r"grow by a factor of 0\.[89]"):
        testing.assert_contracting(step, x, u, rate=0.8)


def test_an_inverse_is_one_on_both_sides() -> None:
    with pytest.raises(AssertionError, match="is x in the range of f"):
        testing.assert_invertible(torch.exp, lambda y: y.abs().log(), -torch.rand(3, 2))


def test_modes_are_left_as_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
    module[1].eval()
    testing.assert_same_map(module, torch.randn(3, 4))
    assert [part.training for part in module.modules()] == [True, True, False]


def test_an_exact_flow_has_every_order() -> None:
    testing.assert_order(lambda x, h: x * math.exp(h), torch.ones(2, 3), 9)


X = torch.ones(3, 4, dtype=torch.float64)
BAD: dict[str, tuple[Callable[[], None], str]] = {
    "no tensor": (lambda: testing.assert_same_map(torch.sin, [1.0]), "states are a tensor"),
    "integers": (lambda: testing.assert_same_map(torch.sin, torch.ones(3).long()), "real numbers"),
    "no samples": (lambda: testing.assert_same_map(torch.sin, X[:0]), "states are a tensor"),
    "not finite": (lambda: testing.assert_same_map(torch.sin, X / 0), "must be finite"),
    "another shape": (
        lambda: testing.assert_symplectic(lambda x: x[:, :2], X),
        "the shape must be that of x",
    ),
    "no output": (lambda: testing.assert_symplectic(lambda x: None, X), "got NoneType; wrap it"),
    "one output": (lambda: testing.assert_contracting(lambda x, u: x, X, X), "the next state and"),
    "odd": (lambda: testing.assert_symplectic(torch.sin, X[:, :3]), "needs an even width, got 3"),
    "one degree": (lambda: testing.assert_symplectic(torch.sin, X[:, :2]), "at least 4 numbers"),
    "a wrong J": (lambda: testing.assert_symplectic(torch.sin, X, X[0]), "must be skew-symmetric"),
    "a typo": (lambda: testing.assert_symplectic(torch.sin, X, "cannonical"), "'canonical'"),
    "J is singular": (
        lambda: testing.assert_symplectic(
            torch.sin, X.repeat(1, 25), torch.block_diag(torch.kron(J_SMALL, X[:1, :1]), ZEROS)
        ),
        "by J\\^-1, and this J has none",
    ),
    "no supply": (
        lambda: testing.assert_passive(lambda x, u: (x, u), torch.sum, X, X),
        "give the step h",
    ),
    "few steps": (
        lambda: testing.assert_energy_conserved(torch.sin, torch.sum, X, steps=4),
        "at least 8 steps",
    ),
    "no motion": (
        lambda: testing.assert_energy_conserved(lambda x: x + 1, lambda x: x.sum(1), X, steps=40),
        "no state turns around in 10 steps",
    ),
    "random": (
        lambda: testing.assert_symplectic(lambda x: x + torch.rand_like(x), X),
        "the function is random",
    ),
    "float32 inside": (
        lambda: testing.assert_symplectic(lambda x: x.float().sin().double(), X),
        "computes in float32 inside",
    ),
    "energies of components": (
        lambda: testing.assert_field_conserves(torch.sin, torch.square, X),
        r"one number for each sample, \(3,\), got \(3, 4\)",
    ),
    "a pair": (lambda: testing.assert_same_map(lambda x: (x, x), X), "got Tensor, Tensor; wrap it"),
    "lazy": (lambda: testing.assert_gradients(nn.LazyLinear(2), X), "call the module once before"),
    "an inverse of another shape": (
        lambda: testing.assert_invertible(torch.sin, lambda x: x[:, :2], X),
        "the shape must be that of x",
    ),
    "an adjoint of another shape": (
        lambda: testing.assert_adjoint(torch.sin, lambda x: x[:, :2], X),
        "the shape must be that of x",
    ),
}
J_SMALL = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
ZEROS = torch.zeros(98, 98, dtype=torch.float64)


@pytest.mark.parametrize("what", BAD)
def test_input_that_cannot_be_judged_raises(what: str) -> None:
    call, message = BAD[what]
    with pytest.raises(HdnnError, match=message):
        call()


def overflow(x: Tensor, *more: Any) -> Tensor:
    return (1e4 * x).exp() - (1e4 * x).exp()


OVERFLOWS: dict[str, Callable[[], None]] = {
    "symplectic": lambda: testing.assert_symplectic(overflow, X),
    "volume": lambda: testing.assert_volume_preserving(overflow, X),
    "inverse": lambda: testing.assert_invertible(overflow, torch.sin, X),
    "energy": lambda: testing.assert_energy_conserved(overflow, lambda x: x.sum(1), X),
    "field": lambda: testing.assert_field_conserves(overflow, lambda x: x.sum(1), X),
    "passive": lambda: testing.assert_passive(
        lambda x, u: (overflow(x), x), lambda x: x.sum(1), X, X, h=1.0
    ),
    "contracting": lambda: testing.assert_contracting(lambda x, u: (overflow(x), x), X, X),
    "consistent": lambda: testing.assert_consistent(overflow, torch.sin, X),
    "order": lambda: testing.assert_order(overflow, X, 1),
    "adjoint": lambda: testing.assert_adjoint(overflow, torch.sin, X),
    "gradients": lambda: testing.assert_gradients(overflow, X),
    "same map": lambda: testing.assert_same_map(overflow, X),
}


@pytest.mark.parametrize("what", OVERFLOWS)
def test_what_overflows_fails(what: str) -> None:
    with pytest.raises(AssertionError, match=r"not .*(inf|nan) > .*(diverges, or overflows|nan)$"):
        OVERFLOWS[what]()


# --- random modules -------------------------------------------------------------------------------


def drawn(claim: str, seed: int, wrong: str = "") -> nn.Module:
    """A random module for a claim, of random size, scale of parameters, depth and activation."""
    torch.manual_seed(seed)
    make, g = TABLE[claim][0], torch.Generator().manual_seed(seed)

    def one_of(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=g))]

    options = {"scale": one_of(0.5, 0.8) if "along" in claim else one_of(0.3, 0.5, 0.8)}
    kind = make.func if isinstance(make, partial) else make
    if kind is Network:
        options |= {"dof": one_of(2, 3, 5), "steps": one_of(1, 2, 3)}
        if "conserving" not in claim and "order" not in claim:
            options["sigma"] = one_of(torch.tanh, torch.sin, torch.relu, nn.functional.softplus)
    else:
        options["nodes" if kind is Edges else "n"] = one_of(4, 5, 8)
    return make(wrong, **options)


@pytest.mark.slow
@pytest.mark.parametrize("claim", TABLE)
def test_no_false_alarm_and_no_miss_in_random_modules(claim: str) -> None:
    """504 right modules and 504 wrong ones, 42 of each for every assertion."""
    _, check, mistakes = TABLE[claim]
    for seed in range(42):
        check(drawn(claim, seed))
        wrong = list(mistakes)[seed % len(mistakes)]
        with pytest.raises(AssertionError, match=f"^not {claim.removesuffix(' along steps')}"):
            check(drawn(claim, seed, wrong))
