"""The kernels as a library of arrays, against the same formulas written with numpy and torch.

`test_variants` runs this file once more for every other instruction set that the machine has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import hdnn
from catalogue import build
from hdnn.fields import HamiltonianField, Weights
from hdnn.kernels import native
from hdnn.program import Program, Stage
from skips import needs_kernels

pytestmark = needs_kernels
Array = np.ndarray

SIGMA = {
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "sigmoid": (lambda u: 1 / (1 + np.exp(-u)), lambda u: np.exp(-u) / (1 + np.exp(-u)) ** 2),
    "relu": (lambda u: np.maximum(u, 0), lambda u: (u > 0) * 1.0),
    "identity": (lambda u: u, np.ones_like),
    "softsign": (lambda u: u / (1 + abs(u)), lambda u: 1 / (1 + abs(u)) ** 2),
}


# --- stages with numpy ----------------------------------------------------------------------------


class Numbers(NamedTuple):
    """The values of one network: theta and beta ``(L or 1, .)``, S, and h of every layer."""

    theta: Array
    beta: Array
    S: Array | None
    h: Array


class Applied(NamedTuple):
    """A stage of a layer, and what it read."""

    stage: Stage
    rows: tuple[Array, Array]
    A: Array
    x: Array
    place: int  # of its parameters
    h: float


def assembled(pattern: Any, parameters: Array) -> Array:
    return (pattern.sign * parameters[pattern.index]).reshape(pattern.shape)


def applied(program: Program, v: Numbers, x: Array, first: int = 0) -> Iterator[Applied]:
    """Every stage of layers ``first`` and on, changing rows ``(B, n)`` in place as it goes."""
    for j in range(first, program.layers):
        place = 0 if len(v.theta) == 1 else j
        for stage in program.stages:
            W = assembled(stage.W.pattern, v.theta[place])
            b = assembled(stage.b.pattern, v.beta[place])
            A = stage.factor * v.h[j] * np.eye(len(W))
            if stage.adjoint:
                A = stage.factor * v.h[j] * v.S[slice(*stage.write), slice(*stage.read)] @ W.T
            done = Applied(stage, (W, b), A, x[:, slice(*stage.read)].copy(), place, v.h[j])
            s = SIGMA[stage.activation.name][0](done.x @ W.T + b)
            write = slice(*stage.write)
            x[:, write] = stage.carry * x[:, write] + s @ A.T
            yield done


def forward(program: Program, v: Numbers, x: Array, first: int = 0) -> Array:
    x = x.copy()
    for _ in applied(program, v, x, first):
        pass
    return x


def backward(
    program: Program, v: Numbers, x: Array, g: Array, first: int = 0
) -> tuple[Array, Array, Array]:
    """The gradients of <g, y_N> by the chain rule, stage by stage."""
    g, gtheta, gbeta = g.copy(), np.zeros_like(v.theta), np.zeros_like(v.beta)
    for stage, (W, b), A, read, place, h in reversed([*applied(program, v, x.copy(), first)]):
        sigma, slope = SIGMA[stage.activation.name]
        u, write = read @ W.T + b, slice(*stage.write)
        gs = g[:, write] @ A
        gu = gs * slope(u)
        gain = gu.T @ read
        if stage.adjoint:  # A depends on W, too
            S = v.S[write, slice(*stage.read)]
            gain += stage.factor * h * sigma(u).T @ (g[:, write] @ S)
        g[:, write] *= stage.carry
        g[:, slice(*stage.read)] += gu @ W
        for total, pattern, part in (
            (gtheta, stage.W.pattern, gain),
            (gbeta, stage.b.pattern, gu.sum(0)),
        ):
            np.add.at(total[place], pattern.index, pattern.sign * part.ravel())
    return g, gtheta, gbeta


# --- the same by the library ----------------------------------------------------------------------


class Case(NamedTuple):
    """A network with its numbers as arrays, and states."""

    program: Program
    theta: Array  # (E, L or 1, .)
    beta: Array
    S: Array | None
    h: Array  # (E, L)
    x: Array  # (E, B, n) or (E, B, n, pixels)
    plan: native.Plan

    @classmethod
    def of(cls, net: hdnn.HamiltonianNetwork, batch: int, pixels: int = 0, dtype: Any = float):
        E, n = net.ensemble or 1, net.field.layout.width
        values, random = net.values(), np.random.default_rng(0)
        theta, beta = (t.detach().numpy().astype(dtype) for t in (values.theta, values.beta))
        S = None if values.S is None else np.ascontiguousarray(values.S.numpy().astype(dtype))
        lead = () if net.ensemble is None else (E,)
        h = np.ascontiguousarray(np.broadcast_to(np.asarray(values.h, float), (E, net.layers)))
        x = random.normal(size=(E, batch, n, *((pixels,) if pixels else ()))).astype(dtype)
        shape = (*lead, *x.shape[1:])
        shared = net.time_invariant and net.layers > 1
        plan = native.Plan(net.program, x.itemsize, shape, shared)
        theta, beta = (a.reshape(E, *a.shape[-2:]) for a in (theta, beta))
        return cls(net.program, theta, beta, S, h, x, plan)

    @property
    def addresses(self) -> native.Addresses:
        S = None if self.S is None else self.S.ctypes.data
        return native.Addresses(
            self.theta.ctypes.data, self.beta.ctypes.data, S, 0.0, self.h.ctypes.data
        )

    def forward(self, threads: int = 1) -> Array:
        out = np.full_like(self.x, np.nan)
        data = (self.x.ctypes.data, out.ctypes.data)
        native.check(
            native.library().hdnn_forward(self.plan.handle, *self.addresses, *data, threads)
        )
        return out

    def backward(self, g: Array, threads: int = 1) -> list[Array]:
        found = [np.full_like(a, np.nan) for a in (self.x, self.theta, self.beta)]
        data = [a.ctypes.data for a in (self.x, g, *found)]
        native.check(
            native.library().hdnn_backward(self.plan.handle, *self.addresses, *data, threads)
        )
        return found

    def members(self) -> Iterator[tuple[Numbers, Array]]:
        """The numbers of every network in float64, and its states as rows."""
        for e in range(len(self.x)):
            S = None if self.S is None else self.S.astype(float)
            v = Numbers(self.theta[e].astype(float), self.beta[e].astype(float), S, self.h[e])
            yield v, rows(self.x[e]).astype(float)


def rows(x: Array) -> Array:
    return x if x.ndim == 2 else np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def close(found: Array, expected: Array, dtype: Any, factor: float = 1.0) -> None:
    tolerance = factor * (1e-12 if np.dtype(dtype) == np.float64 else 2e-5)
    assert found.shape == expected.shape
    error = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-300)
    assert error < tolerance


def graph(units: int, n: int) -> hdnn.HamiltonianNetwork:
    mask = np.random.default_rng(1).random((units, n)) < 0.7
    R = torch.eye(n) / 10
    field = HamiltonianField("J2", Weights(mask, features=n, layers=3), dissipation=R)
    return hdnn.HamiltonianNetwork(field, T=1.0)


NETS: dict[str, Any] = {
    **{name: lambda n=name: build(n, features=6, layers=5) for name in hdnn.zoo.ARCHITECTURES},
    "MS3 Leapfrog": lambda: build("MS3", "Leapfrog"),
    "MS1 Yoshida4": lambda: build("MS1", "Yoshida4"),
    "HS X": lambda: build("HS", X=torch.randn(2, 2)),
    "graph, more units": lambda: graph(9, 5),
    "graph, fewer units": lambda: graph(2, 7),
    "H1 wide": lambda: build("H1", features=38, layers=3, scale=0.2),
    "H2 deep": lambda: build("H2", layers=70),
    "MS3 steps": lambda: build("MS3", step=[0.1, 0.4, 0.2]),
    "H2 ensemble": lambda: build("H2", ensemble=3),
    "MS1 ensemble, steps": lambda: build("MS1", ensemble=2, step=0.1 + torch.rand(2, 3)),
    "MS3 time-invariant": lambda: build("MS3", layers=9, time_invariant=True),
    "H1 ensemble, time-invariant": lambda: build("H1", ensemble=2, time_invariant=True),
    **{sigma: lambda s=sigma: build("H1", activation=s) for sigma in SIGMA},
}
every_net = pytest.mark.parametrize("kind", NETS)
every_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def test_the_instruction_set_is_the_one_asked_for() -> None:
    asked = os.environ.get("HDNN_ISA")
    assert native.instruction_set() in ("baseline", "avx2", "avx512")
    assert asked is None or native.instruction_set() == asked


@every_dtype
@pytest.mark.parametrize("batch", [1, 7, 125])
@every_net
def test_passes_follow_the_stages(kind: str, batch: int, dtype: Any) -> None:
    case = Case.of(NETS[kind](), batch, dtype=dtype)
    g = np.random.default_rng(2).normal(size=case.x.shape).astype(dtype)
    out, (gx, gtheta, gbeta) = case.forward(), case.backward(g)
    for e, (v, x) in enumerate(case.members()):
        close(out[e], forward(case.program, v, x), dtype)
        expected = backward(case.program, v, x, g[e].astype(float))
        for found, exact in zip((gx[e], gtheta[e], gbeta[e]), expected, strict=True):
            close(found, exact, dtype, 5)


@every_dtype
@pytest.mark.parametrize("name", ["H1", "MS1", "FCNN"])
def test_pixels_are_samples(name: str, dtype: Any) -> None:
    case = Case.of(build(name, channels=4, ensemble=2), 3, pixels=35, dtype=dtype)
    g = np.random.default_rng(2).normal(size=case.x.shape).astype(dtype)
    out, (gx, gtheta, gbeta) = case.forward(), case.backward(g)
    for e, (v, x) in enumerate(case.members()):
        close(rows(out[e]), forward(case.program, v, x), dtype)
        exact = backward(case.program, v, x, rows(g[e]).astype(float))
        for found, part in zip((rows(gx[e]), gtheta[e], gbeta[e]), exact, strict=True):
            close(found, part, dtype, 5)


# --- Jacobians ------------------------------------------------------------------------------------


def exact_jacobians(program: Program, v: Numbers, x: Array, depth: int) -> tuple[Array, Array]:
    """y_l ``(B, n)`` and d y_N / d y_l ``(B, n, n)``, row by row."""
    shallow = Program(depth, program.steps, program.layout)
    state = forward(shallow, v, x)
    eye = np.eye(x.shape[1])
    parts = [backward(program, v, state, np.tile(e, (len(x), 1)), depth)[0] for e in eye]
    return state, np.stack(parts, 1)


@every_dtype
@every_net
def test_jacobians_at_every_depth(kind: str, dtype: Any) -> None:
    case = Case.of(NETS[kind](), 11, dtype=dtype)
    depths = np.unique(np.linspace(0, case.program.layers, 4).astype(np.int64))
    matrices, states = native.jacobians(
        case.plan, case.addresses, case.x, depths.tolist(), len(case.x), 1
    )
    for e, (v, x) in enumerate(case.members()):
        for d, depth in enumerate(depths):
            state, M = exact_jacobians(case.program, v, x, int(depth))
            close(matrices[e, :, d], M, dtype, 20)
            close(states[e, d], state, dtype)


@given(
    n=st.integers(1, 12),
    count=st.integers(1, 20),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from((0, 3, 12)),
)
def test_singular_values(n: int, count: int, seed: int, spread: int) -> None:
    """Of matrices of any condition, up to the rounding of the largest one."""
    random = np.random.default_rng(seed)
    scale = 10.0 ** -np.linspace(0, spread, n)
    M = random.normal(size=(count, n, n)) * scale @ random.normal(size=(n, n))
    largest, smallest = native.singular_values(M)
    exact = np.linalg.svd(M, compute_uv=False)
    np.testing.assert_allclose(largest, exact[:, 0], rtol=1e-12)
    np.testing.assert_allclose(smallest, exact[:, -1], rtol=0, atol=1e-13 * exact[:, 0].max())


def test_singular_values_of_special_matrices() -> None:
    zero, eye = np.zeros((4, 4)), np.eye(4)
    lone = np.diag([1e-200, 1.0, 2.0, 3.0])
    nan, infinite = eye.copy(), eye.copy()
    nan[2, 1], infinite[0, 3] = np.nan, np.inf
    largest, smallest = native.singular_values(np.stack([zero, eye, lone, nan, infinite, -2 * eye]))
    np.testing.assert_array_equal(largest[[0, 1, 5]], [0, 1, 2])
    np.testing.assert_array_equal(smallest[[0, 1, 5]], [0, 1, 2])
    assert largest[2] == pytest.approx(3, rel=1e-14)
    assert smallest[2] <= 1e-15
    assert np.isnan([largest[3], smallest[3], largest[4], smallest[4]]).all()


# --- the output layer -----------------------------------------------------------------------------


def problem(loss: str, samples: int, outputs: int, n: int) -> tuple[torch.Tensor, ...]:
    random = np.random.default_rng(3)
    Z = np.concatenate([random.normal(size=(samples, n)), np.ones((samples, 1))], 1)
    classes = random.integers(0, max(2, outputs), size=(samples, 1)).astype(float)
    target = random.normal(size=(samples, outputs)) if loss == "squared" else classes
    weight = random.random(samples) + 0.1
    return tuple(map(torch.from_numpy, (Z, target, weight / weight.sum())))


def losses(loss: str, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if loss == "squared":
        return (logits - target).square().sum(1) / 2
    if loss == "logistic":
        return F.binary_cross_entropy_with_logits(logits[:, 0], target[:, 0], reduction="none")
    return F.cross_entropy(logits, target[:, 0].long(), reduction="none")


LOSSES = [("logistic", 1), ("softmax", 3), ("squared", 2)]


@pytest.mark.parametrize("samples", [5, 64, 200])
@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_newton_finds_the_minimum(loss: str, outputs: int, samples: int) -> None:
    Z, target, weight = problem(loss, samples, outputs, 6)
    V = np.zeros((outputs, 7))
    taken = native.output_layer(
        Z.numpy(), target.numpy(), weight.numpy(), V, loss, 1e-3, native.SolverOptions()
    )
    W = torch.from_numpy(V).requires_grad_()
    objective = weight @ losses(loss, Z @ W.mT, target) + 1e-3 * W.square().sum()
    (g,) = torch.autograd.grad(objective, W)
    assert float(g.abs().max()) < 1e-8  # and the objective is strictly convex
    assert 0 < taken < 20


@pytest.mark.parametrize(("loss", "outputs"), LOSSES)
def test_adam_is_torchs(loss: str, outputs: int) -> None:
    Z, target, weight = problem(loss, 30, outputs, 4)
    V = np.ones((outputs, 5))
    options = native.SolverOptions("adam", iterations=10, learning_rate=0.1)
    native.output_layer(Z.numpy(), target.numpy(), weight.numpy(), V, loss, 0.01, options)
    W = torch.zeros(outputs, 5, requires_grad=True)
    optimizer = torch.optim.Adam([W], 0.1)
    for _ in range(10):
        optimizer.zero_grad()
        (weight @ losses(loss, Z @ W.mT, target) + 0.01 * W.square().sum()).backward()
        optimizer.step()
    np.testing.assert_allclose(V, W.detach(), rtol=1e-10, atol=1e-12)


# --- training -------------------------------------------------------------------------------------

SETTINGS = {"alpha": 0.05, "alpha_c": 0.01, "clip": 0.0, "weight_decay": 0.0, "decoupled": 0}


class Twin:
    """A training in the library, and the same one in torch.

    Args:
        net: the network, or an ensemble of them.
        loss, outputs: of the output layers.
        joint: whether the output layers are trained, too, else they are solved for.
        inputs: of a projection that is trained; 0: none.
        settings: other than `SETTINGS`.
    """

    samples, batch = 50, 16  # the last batch is smaller

    def __init__(
        self,
        net: hdnn.HamiltonianNetwork,
        loss: str,
        outputs: int,
        joint: bool,
        inputs: int = 0,
        **settings: Any,
    ) -> None:
        self.net, self.loss, self.joint = net, loss, joint
        self.settings = SETTINGS | settings
        E, n, weights = net.ensemble or 1, net.field.layout.width, net.field.weights
        random = torch.Generator().manual_seed(4)
        draw = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731
        self.X = draw(E, self.samples, inputs or n)
        self.target = draw(E, self.samples, outputs)
        if loss != "squared":
            self.target = (draw(E, self.samples, 1) * 10).long().remainder(max(outputs, 2)).double()
        self.weight = torch.rand(E, self.samples, generator=random)
        head = [draw(E, outputs, n), draw(E, outputs)] if joint else []
        head += [draw(E, n, inputs), draw(E, n)] if inputs else []
        lead = (E, *weights.theta.shape[-2:])
        body = [weights.theta.detach().reshape(lead), weights.beta.detach().reshape(E, lead[1], -1)]
        self.parts = [p.clone() for p in (*body, *head)]
        self.V = torch.zeros(E, outputs, n + 1)

    def smoothness(self, theta: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """alpha h/2 sum_j ||K_j - K_{j-1}||^2, and of b, on what is assembled."""
        weights, h = self.net.field.weights, self.net.h
        K, b = weights.map.assemble(theta), weights.bias.assemble(beta)
        change = K.diff(dim=0).square().sum() + b.diff(dim=0).square().sum()
        return self.settings["alpha"] * h / 2 * change

    def objective(self, e: int, parts: list[torch.Tensor], chosen: torch.Tensor) -> Any:
        """Penalized and plain loss of a batch, and its features."""
        x, target, weight = self.X[e, chosen], self.target[e, chosen], self.weight[e, chosen]
        theta, beta, *head = parts
        if len(head) in (2, 4) and self.X.shape[2] != self.net.field.layout.width:
            x = x @ head[-2].mT + head[-1]
        given = {"field.weights.theta": theta, "field.weights.beta": beta}
        single = build(self.net.name, features=self.net.features, layers=self.net.layers)
        y = torch.func.functional_call(single, given, (x,))
        weight = weight / weight.sum()
        Z = torch.cat([y, torch.ones(len(y), 1)], 1)
        if self.joint:
            V = torch.cat([head[0], head[1][:, None]], 1)
        else:  # sum_i w_i/2 |V z - t|^2 + alpha_c |V|^2 in closed form, and no way back through it
            D = Z.detach() * weight[:, None]
            H = Z.detach().mT @ D + 2 * self.settings["alpha_c"] * torch.eye(Z.shape[1])
            V = torch.linalg.solve(H, D.mT @ target).mT
            self.V[e] = V
        plain = weight @ losses(self.loss, Z @ V.mT, target)
        penalty = self.settings["alpha_c"] * V.square().sum() + self.smoothness(theta, beta)
        return plain + penalty, plain

    def by_torch(self, order: torch.Tensor, steps: int, rate: float) -> tuple[Array, Array]:
        values, records = [], []
        kind = torch.optim.AdamW if self.settings["decoupled"] else torch.optim.Adam
        for e in range(len(self.X)):
            parts = [p[e].clone().requires_grad_() for p in self.parts]
            optimizer = kind(parts, rate, weight_decay=self.settings["weight_decay"])
            for k in range(steps):
                chosen = order[e, k * self.batch : (k + 1) * self.batch]
                penalized, plain = self.objective(e, parts, chosen)
                optimizer.zero_grad()
                penalized.backward()
                if self.settings["clip"]:
                    torch.nn.utils.clip_grad_norm_(parts, self.settings["clip"])
                optimizer.step()
                records.append((float(plain.detach()), float(penalized.detach())))
            values.append(torch.cat([p.detach().ravel() for p in parts]).numpy())
        return np.stack(values), np.array(records).reshape(len(self.X), steps, 2)

    def by_library(
        self,
        order: torch.Tensor,
        steps: int,
        rate: float,
        threads: int = 1,
        cut: int = 0,
        taken: tuple[int, ...] | None = None,
    ) -> tuple[Array, Array]:
        """All steps in one call, or in two; so many are taken by each network."""
        net, weights = self.net, self.net.field.weights
        E, n = len(self.X), net.field.layout.width
        values = np.ascontiguousarray(torch.cat([p.reshape(E, -1) for p in self.parts], 1).numpy())
        patterns = weights.pattern, weights.bias_pattern
        arrays = {
            "X": self.X.numpy(),
            "target": self.target.numpy(),
            "weight": self.weight.numpy(),
            "steps": np.full((1, net.layers), net.h),
            "repeats": np.concatenate([p.repeats for p in patterns]),
            "values": values,
            **{name: np.zeros_like(values) for name in ("first", "second", "gradients")},
            "V": np.zeros(self.V.shape),
        }
        settings = {
            "coordinate": int(not self.joint),
            "loss": native.LOSSES.index(self.loss),
            "outputs": self.V.shape[1],
            "inputs": self.X.shape[2] if self.X.shape[2] != n else 0,
            "batch": self.batch,
            "count": self.samples,
            "shared_data": int(E == 1),
            "solver": 0,
            "solver_iterations": 50,
            "beta1": 0.9,
            "beta2": 0.999,
            "tolerance": 1e-13,
            "solver_rate": 0.0,
            "steps_networks": 1,
            **self.settings,
        }
        shape = (*net.field.layout.lead, self.batch, n)
        plan = native.Plan(net.program, 8, shape, net.time_invariant)
        training = native.Training(plan, arrays, settings)
        S = net.values().S
        addresses = native.Addresses(0, 0, None if S is None else S.data_ptr(), net.h, None)
        count, turns = np.zeros(E, np.int64), np.ascontiguousarray(order.numpy())
        parts = [(0, cut), (cut, steps)] if cut else [(0, steps)]
        found = [
            training.steps(addresses, turns, a, np.full(b - a, rate), count, threads)
            for a, b in parts
        ]
        assert tuple(count) == (taken or (steps,) * E)
        self.found_V = arrays["V"]
        return values, np.concatenate(found, 1)


TRAININGS: dict[str, Any] = {
    "joint, logistic": lambda: Twin(build("H1", layers=4), "logistic", 1, True),
    "joint, softmax": lambda: Twin(build("MS3", layers=4), "softmax", 3, True),
    "joint, squared": lambda: Twin(build("MS1", layers=4), "squared", 2, True),
    "joint, projection": lambda: Twin(build("H2", layers=4), "softmax", 3, True, inputs=3),
    "joint, baseline": lambda: Twin(build("ResNet", layers=4), "logistic", 1, True),
    "joint, AdamW": lambda: Twin(
        build("H1", layers=4), "logistic", 1, True, weight_decay=0.1, decoupled=1
    ),
    "joint, decay and clipping": lambda: Twin(
        build("MS2", layers=4), "logistic", 1, True, weight_decay=0.1, clip=0.05
    ),
    "coordinate": lambda: Twin(build("H1", layers=4), "squared", 2, False),
    "coordinate, MS3": lambda: Twin(build("MS3", layers=4), "squared", 1, False),
    "coordinate, ensemble": lambda: Twin(build("H1", layers=4, ensemble=3), "squared", 1, False),
    "coordinate, not smooth": lambda: Twin(build("MS2", layers=4), "squared", 1, False, alpha=0.0),
}


def orders(twin: Twin) -> torch.Tensor:
    random = torch.Generator().manual_seed(5)
    rows = [torch.randperm(twin.samples, generator=random) for _ in range(len(twin.X))]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", TRAININGS)
def test_training_is_adam_on_the_objective(kind: str) -> None:
    twin = TRAININGS[kind]()
    order = orders(twin)
    values, records = twin.by_library(order, 4, 0.02)
    expected, exact = twin.by_torch(order, 4, 0.02)
    np.testing.assert_allclose(records[..., :2], exact, rtol=1e-9)
    np.testing.assert_allclose(values, expected, rtol=1e-7, atol=1e-8)
    if not twin.joint:
        np.testing.assert_allclose(twin.found_V, twin.V.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", TRAININGS)
def test_training_has_the_same_bits_however_it_is_cut(kind: str) -> None:
    twin = TRAININGS[kind]()
    order = orders(twin)
    values, records = twin.by_library(order, 4, 0.02)
    for threads, cut in ((1, 1), (2, 0), (2, 3), (16, 0)):
        again, other = twin.by_library(order, 4, 0.02, threads, cut)
        np.testing.assert_array_equal(again, values)
        np.testing.assert_array_equal(other, records)


def test_correct_answers_are_counted() -> None:
    twin = TRAININGS["joint, softmax"]()
    order = orders(twin)
    _, records = twin.by_library(order, 1, 0.02)
    theta, beta, W, mu = (p[0] for p in twin.parts)
    chosen = order[0, : twin.batch]
    given = {"field.weights.theta": theta, "field.weights.beta": beta}
    y = torch.func.functional_call(build("MS3", layers=4), given, (twin.X[0, chosen],))
    right = (y @ W.mT + mu).argmax(1) == twin.target[0, chosen, 0]
    assert records[0, 0, 2] == int(right.sum())


def test_a_loss_that_is_not_finite_stops_its_network_only() -> None:
    twin = Twin(build("H1", layers=4, ensemble=3), "squared", 1, True)
    order = orders(twin)
    expected, exact = twin.by_library(order, 3, 0.02)
    twin.X[1, order[1, twin.batch]] = torch.nan  # in the second batch
    values, records = twin.by_library(order, 3, 0.02, taken=(3, 1, 3))
    for e in (0, 2):
        np.testing.assert_array_equal(values[e], expected[e])
        np.testing.assert_array_equal(records[e], exact[e])
    np.testing.assert_array_equal(records[1, 0], exact[1, 0])
    assert np.isnan(records[1, 1:, :2]).all()
    assert np.isfinite(values[1]).all()  # those after the first step
