"""Small operations of torch run on one thread; large operations keep theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hdnn
from catalog import build
from hdnn import analysis
from hdnn.config import TrainingConfig
from hdnn.data import Dataset
from hdnn.models import image_model
from hdnn.threads import LARGE, _setters, one_thread
from hdnn.training import Trainer, loops, objective
from hdnn.training.output_solver import OutputProblem, SolverOptions, newton, solve


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before, (set_openmp, _) = torch.get_num_threads(), _setters()
    set_openmp(2)
    yield
    assert torch.get_num_threads() == 2
    set_openmp(before)


def test_large_operations_keep_their_threads() -> None:
    for work, inside in ((0, 1), (LARGE - 1, 1), (LARGE, 2)):
        with one_thread(work):
            assert torch.get_num_threads() == inside
    with one_thread(100, large=100):
        assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), one_thread():
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def test_sections_nest() -> None:
    with one_thread():
        with one_thread(), one_thread(LARGE):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_other_threads_are_left_alone() -> None:
    counts = []

    def work() -> None:
        counts.append(torch.get_num_threads())

    for section in (nullcontext(), one_thread()):
        with section:
            other = threading.Thread(target=work)
            other.start()
            other.join()
    assert counts[0] == counts[1] >= 1


FRESH = """
import torch
from hdnn.threads import one_thread

with one_thread():
    torch.linalg.svdvals(torch.randn(8, 8))
A, b = torch.randn(2, 300, 300, dtype=torch.float64), torch.randn(2, 300, 1, dtype=torch.float64)
torch.testing.assert_close(A @ torch.linalg.solve(A, b), b, rtol=0, atol=1e-7)
"""


def test_a_section_leaves_the_decompositions_of_MKL_right() -> None:
    """After `torch.set_num_threads(1)` and (2) those of 300 rows are wrong, in torch 2.13.

    In a process of its own: another test may have called that.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", FRESH], check=True, env=environment)


def used(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[int]:
    """The number of threads at every call of functions of torch from now on."""
    counts: list[int] = []

    def watched(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            counts.append(torch.get_num_threads())
            return function(*args, **options)

        return call

    for name in names:
        owner, _, function = name.rpartition(".")
        place: Any = torch
        for part in owner.split(".")[1:]:
            place = getattr(place, part)
        monkeypatch.setattr(place, function, watched(getattr(place, function)))
    return counts


DECOMPOSITIONS = [
    *(f"torch.linalg.{name}" for name in ("svdvals", "eigvals", "eigvalsh", "slogdet")),
    "torch.autograd.grad",
]
wide = {"features": 32, "layers": 2, "T": 0.1}  # too wide for the kernel of small matrices
images = {"channels": 2, "kernel": 3, "layers": 2, "T": 0.1}
MEASUREMENTS = {
    "certify": lambda: analysis.certify(build("H1", **wide), torch.randn(3, 32)),
    "certify images": lambda: analysis.certify(build("H1", **images), torch.randn(2, 2, 24, 24)),
    "profile": lambda: analysis.profile(build("H1", **wide), torch.randn(3, 32)),
    "advise": lambda: analysis.advise(build("H1", **wide), torch.randn(3, 32)),
    "factors": lambda: analysis.layer_factors(build("H1", **wide), torch.randn(3, 32)),
    "velocity": lambda: analysis.velocity_jacobians(build("H1", **wide), torch.randn(3, 32)),
    "norms": lambda: analysis.norms(torch.randn(2, 3, 32, 32)),
    "model": lambda: analysis.certify(
        image_model(channels=1, size=(6, 6), classes=2, layers=1, widths=2, kernel=3),
        torch.zeros(2, 1, 6, 6, dtype=torch.uint8),
    ),
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_measurements_decompose_on_one_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32 if name == "model" else torch.float64)
    counts = used(monkeypatch, *DECOMPOSITIONS)
    MEASUREMENTS[name]()
    assert {*counts} == {1}


def test_watch_differentiates_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(40, 40), nn.Tanh()) for _ in range(2)))
    counts = used(monkeypatch, "torch.linalg.svdvals")
    analysis.watch(model)(torch.randn(5, 40))
    assert {*counts} == {1}


def test_the_reference_computes_jacobians_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = used(monkeypatch, "torch.func.vmap")
    analysis.sensitivities(build("H1", **wide, backend="reference"), torch.randn(3, 32))
    assert {*counts} == {1}


def test_newton_solves_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    counts = used(monkeypatch, "torch.mm", "torch.linalg.cholesky_ex")
    Z, target = rng.normal(size=(50, 200)), rng.integers(0, 2, (50, 1)).astype(float)
    problem = OutputProblem(Z, target, np.full(50, 0.02), "logistic", 0.1)
    V = np.zeros((1, 200))
    assert solve(problem, V, SolverOptions("newton", 20, 1e-10, 0.1)) < 20
    assert {*counts} == {1}
    alone = np.zeros((1, 200))
    newton(problem, alone, 20, 1e-10)
    np.testing.assert_allclose(V, alone, atol=1e-12)


@pytest.mark.parametrize(("width", "expected"), [(4, 1), (512, 2)])
def test_steps_of_a_small_reference_training_use_one_thread(
    width: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.from_arrays(np.random.default_rng(0).normal(size=(40, 4)), [0, 1] * 20)
    counts: list[int] = []

    def penalty(*args: Any) -> torch.Tensor:
        counts.append(torch.get_num_threads())
        return objective.penalty(*args)

    monkeypatch.setattr(loops, "penalty", penalty)
    block = hdnn.network("H1", features=width, layers=1, T=0.1, backend="reference")
    model = hdnn.Model(block, 1, hdnn.Padding(4, width))
    Trainer(model, TrainingConfig(epochs=1, batch_size=40)).fit(data)
    assert counts == [expected]
