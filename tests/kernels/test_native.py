"""The library through ctypes: loading, singular values, output layers, whole trainings.

`test_variants` runs this file once more for every other instruction set that the machine has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import hdnn.kernels
from catalog import build
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


@pytest.mark.parametrize("wish", ["AVX2", "sse", "avx512 ", "neon"])
@pytest.mark.usefixtures("fresh")
def test_an_unknown_instruction_set_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wish: str
) -> None:
    """Never another one in silence: the reference computes, and who insists on kernels is told."""
    known, copied = native.instruction_sets(), tmp_path / "libhdnn.so"
    assert known[-1] == "baseline"
    shutil.copy(native.library()._name, copied)  # a library looks at HDNN_ISA when it is loaded
    monkeypatch.setenv("HDNN_LIBRARY", str(copied))
    monkeypatch.setenv("HDNN_ISA", wish)
    forget()
    message = f"HDNN_ISA={wish!r} is not one of {', '.join(known)}"
    assert message in str(native.obstacle())
    net = build("H1")
    assert message in str(net.explain_backend(torch.ones(2, 4)))
    net.backend = "fused"
    with pytest.raises(hdnn.errors.IncompatibleError, match="HDNN_ISA"):
        net(torch.ones(2, 4))


@pytest.mark.usefixtures("fresh")
def test_an_empty_wish_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copied = tmp_path / "libhdnn.so"
    shutil.copy(native.library()._name, copied)
    monkeypatch.setenv("HDNN_LIBRARY", str(copied))
    monkeypatch.setenv("HDNN_ISA", "")
    forget()
    assert native.obstacle() is None
    assert native.instruction_set() == native.instruction_sets()[0]


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
    assert smallest[2] == pytest.approx(1e-200, rel=1e-14)
    assert np.isnan([largest[3], smallest[3], largest[4], smallest[4]]).all()


@given(
    n=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    spread=st.sampled_from((0, 30, 160, 300)),
    side=st.sampled_from(("rows", "columns", "both")),
)
def test_tiny_singular_values_have_small_relative_errors(
    n: int, seed: int, spread: int, side: str
) -> None:
    """Of D Q, Q D and D, where Q is orthogonal: the entries of D, whose squares may be nothing."""
    random = np.random.default_rng(seed)
    D = 10.0 ** -random.permutation(np.linspace(0, spread, n))
    Q = np.linalg.qr(random.normal(size=(n, n)))[0]
    M = {"rows": D[:, None] * Q, "columns": Q * D, "both": np.diag(D)}[side]
    largest, smallest = native.singular_values(M[None])
    assert largest[0] == pytest.approx(D.max(), rel=1e-13, abs=0)
    assert smallest[0] == pytest.approx(D.min(), rel=1e-13, abs=0)


@pytest.mark.parametrize("t", [1e-20, 1e-160, 1e-250])
def test_rows_and_columns_of_any_size_are_made_orthogonal(t: float) -> None:
    """The larger value is 2^(1/2), as t^2 is nothing beside it, and their product is |det| = t."""
    rows = np.array([[1.0, 1.0], [t, 2 * t]])
    largest, smallest = native.singular_values(np.stack([rows, rows[::-1], rows.T, 1e-50 * rows]))
    np.testing.assert_allclose(largest, np.sqrt(2) * np.array([1, 1, 1, 1e-50]), rtol=1e-15)
    np.testing.assert_allclose(smallest, t / np.sqrt(2) * np.array([1, 1, 1, 1e-50]), rtol=1e-15)


def test_singular_values_of_singular_matrices() -> None:
    """Rows of zeros, equal rows, and numbers near the ends of the range."""
    zeros, equal = np.diag([0.0, 0.0, 1e-300, 2.0]), np.ones((4, 4))
    largest, smallest = native.singular_values(
        np.stack([zeros, equal, 1e300 * equal, 1e-310 * np.eye(4)])
    )
    np.testing.assert_allclose(largest, [2, 4, 4e300, 1e-310], rtol=1e-13)
    assert smallest[0] == 0
    assert smallest[1] <= 1e-15
    assert smallest[2] <= 1e285
    np.testing.assert_allclose(smallest[3], 1e-310, rtol=1e-12)


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


# --- training: tests/training/test_compiled.py walks losses, methods and settings -----------------

ALPHA, ALPHA_C, CLIP, RATE, SAMPLES, BATCH = 0.05, 0.01, 0.5, 0.02, 50, 16


class Joint:
    """Joint descent of two networks, with samples of their own and three classes."""

    def __init__(self) -> None:
        self.net = build("MS2", layers=4, ensemble=2)
        self.X, self.target = torch.randn(2, SAMPLES, 4), torch.randint(3, (2, SAMPLES, 1)).double()
        self.weight = torch.rand(2, SAMPLES)
        self.order = torch.stack([torch.randperm(SAMPLES) for _ in range(2)])
        body = [p.detach() for p in self.net.field.weights.parameters()]
        self.parts = [*body, torch.randn(2, 3, 4), torch.randn(2, 3)]  # theta, beta, W, mu

    def objective(self, e: int, batch: Tensor, parts: list[Tensor]) -> tuple[Tensor, ...]:
        """Plain and penalized loss of a batch, and how many samples are classified correctly."""
        (theta, beta, W, mu), weight = parts, self.weight[e, batch] / self.weight[e, batch].sum()
        named = {"field.weights.theta": theta, "field.weights.beta": beta}
        y = torch.func.functional_call(build("MS2", layers=4), named, (self.X[e, batch],))
        logits, target = y @ W.mT + mu, self.target[e, batch]
        plain = weight @ losses("softmax", logits, target)
        K = self.net.field.weights.map.assemble(theta)
        change = K.diff(dim=0).square().sum() + beta.diff(dim=0).square().sum()
        penalty = ALPHA_C * (W.square().sum() + mu.square().sum())
        correct = (logits.argmax(1) == target[:, 0]).sum()
        return plain, plain + penalty + ALPHA * self.net.h / 2 * change, correct

    def by_torch(self, e: int, steps: int) -> tuple[Array, list[list[float]]]:
        parts, records = [p[e].clone().requires_grad_() for p in self.parts], []
        optimizer = torch.optim.Adam(parts, RATE)
        for batch in self.order[e].split(BATCH)[:steps]:
            record = self.objective(e, batch, parts)
            optimizer.zero_grad()
            record[1].backward()
            torch.nn.utils.clip_grad_norm_(parts, CLIP)
            optimizer.step()
            records.append([float(number.detach()) for number in record])
        return torch.cat([p.detach().ravel() for p in parts]).numpy(), records

    def by_library(self, calls: tuple[int, ...], threads: int = 1) -> tuple[Array, Array]:
        """So many steps in each call."""
        weights = self.net.field.weights
        values = torch.cat([p.reshape(2, -1) for p in self.parts], 1).numpy()
        arrays = {
            "X": self.X.numpy(),
            "target": self.target.numpy(),
            "weight": self.weight.numpy(),
            "smoothness": np.full((2, 4), self.net.h),
            "repeats": np.concatenate([weights.pattern.repeats, weights.bias.repeats]),
            "parameters": values,
            **{name: np.zeros_like(values) for name in ("first", "second", "gradients")},
        }
        settings = {"loss": native.LOSSES.index("softmax"), "outputs": 3, "alpha": ALPHA}
        settings |= {"batch": BATCH, "count": SAMPLES, "clip": CLIP}
        settings["output"] = native.SolverOptions().with_penalty(ALPHA_C)
        plan = native.Plan(self.net.program, 8, (2, BATCH, 4), 4)
        training = native.Training(plan, arrays, settings)
        self.updates, records, first = np.zeros(2, np.int64), [], 0
        for steps in calls:
            rates, addresses = np.full(steps, RATE), native.Addresses(h=self.net.h)
            turns = (self.order.numpy(), first, rates, self.updates)
            records.append(training.run(addresses, *turns, threads))
            first += steps
        return values, np.concatenate(records, 1)


def test_training_is_adam_on_the_objective() -> None:
    joint = Joint()
    values, records = joint.by_library((4,))
    assert joint.updates.tolist() == [4, 4]
    for e in range(2):
        expected, exact = joint.by_torch(e, 4)
        np.testing.assert_allclose(records[e], exact, rtol=1e-9)
        np.testing.assert_allclose(values[e], expected, rtol=1e-7, atol=1e-8)


def test_training_has_the_same_bits_however_it_is_cut() -> None:
    joint = Joint()
    values, records = joint.by_library((4,))
    for threads, calls in ((1, (1, 3)), (2, (4,)), (2, (3, 1)), (16, (4,))):
        again, other = joint.by_library(calls, threads)
        np.testing.assert_array_equal(again, values)
        np.testing.assert_array_equal(other, records)


def test_a_loss_that_is_not_finite_stops_its_network_only() -> None:
    joint = Joint()
    expected, exact = joint.by_library((3,))
    joint.X[1, joint.order[1, BATCH]] = torch.nan  # in the second batch
    values, records = joint.by_library((3,))
    assert joint.updates.tolist() == [3, 1]
    np.testing.assert_array_equal(values[0], expected[0])
    np.testing.assert_array_equal(records[0], exact[0])
    np.testing.assert_array_equal(records[1, 0], exact[1, 0])
    assert np.isnan(records[1, 1:, :2]).all()
    assert np.isfinite(values[1]).all()  # those after the first step
