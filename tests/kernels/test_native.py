"""The library through ctypes: loading, singular values, output layers, whole trainings.

`test_variants` runs this file once more for every other instruction set that the machine has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import hdnn.kernels
from catalogue import build
from hdnn.kernels import native
from skips import needs_kernels

pytestmark = needs_kernels
Array = np.ndarray


# --- the library ----------------------------------------------------------------------------------


def forget() -> None:
    native.library.cache_clear()
    native.obstacle.cache_clear()


@pytest.fixture
def fresh() -> Iterator[None]:
    """The library is looked for anew, and once more after the test."""
    forget()
    yield
    forget()


def test_the_instruction_set_is_the_requested_one() -> None:
    requested = os.environ.get("HDNN_ISA")
    assert native.instruction_set() in ("baseline", "avx2", "avx512")
    assert requested in (None, native.instruction_set())


@pytest.mark.usefixtures("fresh")
def test_a_missing_library_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDNN_LIBRARY", raising=False)
    monkeypatch.setattr(hdnn.kernels, "__path__", [])
    assert "installed without a compiler" in str(native.obstacle())
    assert "install a C++ compiler" in str(native.obstacle())


@pytest.mark.usefixtures("fresh")
def test_hdnn_library_names_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is not there, one that is not a library, and one of other sources."""
    own, path = native.library()._name, tmp_path / "libhdnn.so"
    monkeypatch.setenv("HDNN_LIBRARY", str(path))
    forget()
    assert f"no file {path}" in str(native.obstacle())
    path.write_text("text")
    forget()
    assert str(path) in str(native.obstacle())
    shutil.copy(own, path)
    forget()
    assert native.obstacle() is None
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    forget()
    assert f"{path} was built from other sources" in str(native.obstacle())


def test_a_kernel_without_memory_raises() -> None:
    with pytest.raises(MemoryError, match="no memory"):
        native.check(1)


# --- singular values ------------------------------------------------------------------------------


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

LOSSES = [("logistic", 1), ("softmax", 3), ("squared", 2)]
every_loss = pytest.mark.parametrize(("loss", "outputs"), LOSSES)


def problem(loss: str, samples: int, outputs: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features with a last column of ones, targets, and weights with sum 1."""
    Z = torch.cat([torch.randn(samples, n), torch.ones(samples, 1)], 1)
    classes = torch.randint(max(2, outputs), (samples, 1)).double()
    weight = torch.rand(samples) + 0.1
    target = torch.randn(samples, outputs) if loss == "squared" else classes
    return Z, target, weight / weight.sum()


def losses(loss: str, logits: Tensor, target: Tensor) -> Tensor:
    if loss == "squared":
        return (logits - target).square().sum(1) / 2
    if loss == "logistic":
        return F.binary_cross_entropy_with_logits(logits[:, 0], target[:, 0], reduction="none")
    return F.cross_entropy(logits, target[:, 0].long(), reduction="none")


@pytest.mark.parametrize("samples", [5, 64, 200])
@every_loss
def test_newton_finds_the_minimum(loss: str, outputs: int, samples: int) -> None:
    Z, target, weight = problem(loss, samples, outputs, 6)
    W = torch.zeros(outputs, 7)
    arrays = (t.numpy() for t in (Z, target, weight, W))
    iterations = native.output_layer(*arrays, loss, 1e-3, native.SolverOptions())
    W.requires_grad_()
    objective = weight @ losses(loss, Z @ W.mT, target) + 1e-3 * W.square().sum()
    (g,) = torch.autograd.grad(objective, W)
    assert float(g.abs().max()) < 1e-8  # and the objective is strictly convex
    assert 0 < iterations < 20


@every_loss
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

SETTINGS = {"alpha": 0.05, "clip": 0.0, "weight_decay": 0.0, "decoupled": 0}
ALPHA_C, RATE, SAMPLES, BATCH = 0.01, 0.02, 50, 16  # the last of four batches is smaller


class Twin:
    """A training in the library, and the same one in torch.

    Args:
        net: the network, or an ensemble of them.
        loss, outputs: of the output layers.
        joint: whether the output layers are trained, too, else they are solved for.
        inputs: of a projection that is trained; 0: none.
        settings: other than `SETTINGS`.
    """

    def __init__(
        self,
        net: hdnn.HamiltonianNetwork,
        loss: str,
        outputs: int,
        joint: bool = True,
        inputs: int = 0,
        **settings: Any,
    ) -> None:
        self.net, self.loss, self.joint, self.inputs = net, loss, joint, inputs
        self.settings = SETTINGS | settings
        E, n, weights = net.ensemble or 1, net.field.layout.width, net.field.weights
        self.X, self.target = torch.randn(E, SAMPLES, inputs or n), torch.randn(E, SAMPLES, outputs)
        if loss != "squared":
            self.target = torch.randint(max(outputs, 2), (E, SAMPLES, 1)).double()
        self.weight = torch.rand(E, SAMPLES)
        self.order = torch.stack([torch.randperm(SAMPLES) for _ in range(E)])
        head = [torch.randn(E, outputs, n), torch.randn(E, outputs)] if joint else []
        head += [torch.randn(E, n, inputs), torch.randn(E, n)] if inputs else []
        body = [p.detach().reshape(E, *p.shape[-2:]) for p in (weights.theta, weights.beta)]
        self.parts = [p.clone() for p in (*body, *head)]
        self.V = torch.zeros(E, outputs, n + 1)

    def smoothness(self, theta: Tensor, beta: Tensor) -> Tensor:
        """alpha h/2 sum_j ||K_j - K_{j-1}||^2, and of b, on what is assembled."""
        weights, h = self.net.field.weights, self.net.h
        K, b = weights.map.assemble(theta), weights.bias.assemble(beta)
        change = K.diff(dim=0).square().sum() + b.diff(dim=0).square().sum()
        return self.settings["alpha"] * h / 2 * change

    def features(self, e: int, parts: list[Tensor], batch: Tensor) -> Tensor:
        """(y_N, 1) of a batch."""
        theta, beta, *head = parts
        x = self.X[e, batch]
        x = x @ head[-2].mT + head[-1] if self.inputs else x
        single = build(self.net.name, features=self.net.features, layers=self.net.layers)
        named = {"field.weights.theta": theta, "field.weights.beta": beta}
        y = torch.func.functional_call(single, named, (x,))
        return torch.cat([y, torch.ones(len(y), 1)], 1)

    def objective(self, e: int, parts: list[Tensor], batch: Tensor) -> tuple[Tensor, ...]:
        """Plain and penalized loss of a batch, and how many samples are classified correctly."""
        target, weight = self.target[e, batch], self.weight[e, batch]
        weight, Z = weight / weight.sum(), self.features(e, parts, batch)
        if self.joint:
            V = torch.cat([parts[2], parts[3][:, None]], 1)
        else:  # sum_i w_i/2 |V z - t|^2 + alpha_c |V|^2 in closed form, and no way back through it
            D = Z.detach() * weight[:, None]
            H = Z.detach().mT @ D + 2 * ALPHA_C * torch.eye(Z.shape[1])
            V = self.V[e] = torch.linalg.solve(H, D.mT @ target).mT
        logits = Z @ V.mT
        plain = weight @ losses(self.loss, logits, target)
        penalty = ALPHA_C * V.square().sum() + self.smoothness(*parts[:2])
        classes = (logits > 0).long() if len(V) == 1 else logits.argmax(1, keepdim=True)
        correct = (classes == target).sum() if self.loss != "squared" else torch.zeros(())
        return plain, plain + penalty, correct

    def by_torch(self, steps: int) -> tuple[Array, Array]:
        values, records = [], []
        kind = torch.optim.AdamW if self.settings["decoupled"] else torch.optim.Adam
        for e in range(len(self.X)):
            parts = [p[e].clone().requires_grad_() for p in self.parts]
            optimizer = kind(parts, RATE, weight_decay=self.settings["weight_decay"])
            for batch in self.order[e].split(BATCH)[:steps]:
                record = self.objective(e, parts, batch)
                optimizer.zero_grad()
                record[1].backward()
                if self.settings["clip"]:
                    torch.nn.utils.clip_grad_norm_(parts, self.settings["clip"])
                optimizer.step()
                records.append([float(number.detach()) for number in record])
            values.append(torch.cat([p.detach().ravel() for p in parts]).numpy())
        return np.stack(values), np.array(records).reshape(len(self.X), steps, 3)

    def by_library(self, calls: tuple[int, ...], threads: int = 1) -> tuple[Array, Array]:
        """So many steps in each call."""
        net, weights = self.net, self.net.field.weights
        E, n = len(self.X), net.field.layout.width
        values = torch.cat([p.reshape(E, -1) for p in self.parts], 1).numpy()
        self.solved = np.zeros(self.V.shape)
        arrays = {
            "X": self.X.numpy(),
            "target": self.target.numpy(),
            "weight": self.weight.numpy(),
            "steps": np.full((E, net.layers), net.h),
            "repeats": np.concatenate([weights.pattern.repeats, weights.bias_pattern.repeats]),
            "values": values,
            **{name: np.zeros_like(values) for name in ("first", "second", "gradients")},
            "V": self.solved,
        }
        settings = {
            "coordinate": int(not self.joint),
            "loss": native.LOSSES.index(self.loss),
            "outputs": self.V.shape[1],
            "inputs": self.inputs,
            "batch": BATCH,
            "count": SAMPLES,
            "shared_data": int(E == 1),
            "output": native.SolverOptions(tolerance=1e-13).with_penalty(ALPHA_C),
            **self.settings,
        }
        plan = native.Plan(net.program, 8, (*net.field.layout.lead, BATCH, n), net.time_invariant)
        training, S = native.Training(plan, arrays, settings), net.values().S
        addresses = native.Addresses(S=None if S is None else S.data_ptr(), h=net.h)
        self.taken, records, first = np.zeros(E, np.int64), [], 0
        for steps in calls:
            rates, order = np.full(steps, RATE), self.order.numpy()
            records.append(training.steps(addresses, order, first, rates, self.taken, threads))
            first += steps
        return values, np.concatenate(records, 1)


TRAININGS: dict[str, Any] = {
    "joint, logistic": lambda: Twin(build("H1", layers=4), "logistic", 1),
    "joint, softmax": lambda: Twin(build("MS3", layers=4), "softmax", 3),
    "joint, squared": lambda: Twin(build("MS1", layers=4), "squared", 2),
    "joint, projection": lambda: Twin(build("H2", layers=4), "softmax", 3, inputs=3),
    "joint, baseline": lambda: Twin(build("ResNet", layers=4), "logistic", 1),
    "joint, AdamW": lambda: Twin(
        build("H1", layers=4), "logistic", 1, weight_decay=0.1, decoupled=1
    ),
    "joint, decay and clipping": lambda: Twin(
        build("MS2", layers=4), "logistic", 1, weight_decay=0.1, clip=0.05
    ),
    "coordinate": lambda: Twin(build("H1", layers=4), "squared", 2, joint=False),
    "coordinate, MS3": lambda: Twin(build("MS3", layers=4), "squared", 1, joint=False),
    "coordinate, ensemble": lambda: Twin(
        build("H1", layers=4, ensemble=3), "squared", 1, joint=False
    ),
    "coordinate, not smooth": lambda: Twin(
        build("MS2", layers=4), "squared", 1, joint=False, alpha=0.0
    ),
}


@pytest.mark.parametrize("kind", TRAININGS)
def test_training_is_adam_on_the_objective(kind: str) -> None:
    twin = TRAININGS[kind]()
    values, records = twin.by_library((4,))
    expected, exact = twin.by_torch(4)
    assert (twin.taken == 4).all()
    np.testing.assert_allclose(records, exact, rtol=1e-9)
    np.testing.assert_allclose(values, expected, rtol=1e-7, atol=1e-8)
    if not twin.joint:
        np.testing.assert_allclose(twin.solved, twin.V.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", TRAININGS)
def test_training_has_the_same_bits_however_it_is_cut(kind: str) -> None:
    twin = TRAININGS[kind]()
    values, records = twin.by_library((4,))
    for threads, calls in ((1, (1, 3)), (2, (4,)), (2, (3, 1)), (16, (4,))):
        again, other = twin.by_library(calls, threads)
        np.testing.assert_array_equal(again, values)
        np.testing.assert_array_equal(other, records)


def test_a_batch_without_weight_is_no_step() -> None:
    twin = Twin(build("H1", layers=4), "squared", 1)
    twin.weight[0, twin.order[0, BATCH : 2 * BATCH]] = 0.0
    values, _ = twin.by_library((1,))
    again, records = twin.by_library((2,))
    np.testing.assert_array_equal(again, values)
    assert (twin.taken[0], *records[0, 1]) == (1, 0, 0, 0)


def test_a_loss_that_is_not_finite_stops_its_network_only() -> None:
    twin = Twin(build("H1", layers=4, ensemble=3), "squared", 1)
    expected, exact = twin.by_library((3,))
    twin.X[1, twin.order[1, BATCH]] = torch.nan  # in the second batch
    values, records = twin.by_library((3,))
    assert twin.taken.tolist() == [3, 1, 3]
    for e in (0, 2):
        np.testing.assert_array_equal(values[e], expected[e])
        np.testing.assert_array_equal(records[e], exact[e])
    np.testing.assert_array_equal(records[1, 0], exact[1, 0])
    assert np.isnan(records[1, 1:, :2]).all()
    assert np.isfinite(values[1]).all()  # those after the first step
