"""The lemmas of the paper, and what fails with their premises, over random J, K, b and y."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torch import Tensor

import hdnn
from catalogue import HAMILTONIAN, PAIRS, build
from hdnn.analysis import (
    discrete_checks,
    norms,
    sensitivities,
    spectrum,
    velocity_jacobians,
)
from hdnn.analysis.context import Context
from hdnn.analysis.continuous import backward_dynamics, solve
from hdnn.fields import HamiltonianField, Weights, canonical
from hdnn.schemes import ImplicitMidpoint

SIZES = st.integers(2, 6)
SEEDS = st.integers(0, 2**32 - 1)


def numbers(shape: tuple[int, ...], size: float = 3.0) -> st.SearchStrategy[Tensor]:
    """Matrices of any numbers, also of equal, tiny and zero ones."""
    return arrays(np.float64, shape, elements=st.floats(-size, size)).map(torch.from_numpy)


@st.composite
def systems(draw: Any, K_rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """J skew, K (m, n) with m from 1 to n + 2, b, y."""
    n = draw(SIZES)
    m = draw(st.integers(1, n + K_rows))
    X = draw(numbers((n, n)))
    return X - X.mT, draw(numbers((m, n))), draw(numbers((m,))), draw(numbers((n,)))


def slope(z: Tensor) -> Tensor:
    return 1 - z.tanh() ** 2


# --- Lemma 2 --------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(system=systems(), scale=st.sampled_from((1e-6, 1.0, 1e6)))
def test_lemma_2_the_spectrum_is_imaginary_whatever_the_rank(system: Any, scale: float) -> None:
    J, K, b, y = system
    found = spectrum(scale * J @ K.mT @ torch.diag(slope(K @ y + b)) @ K)
    assert float(found.real) <= float(found.rounding)


@settings(max_examples=100)
@given(n=SIZES, seed=SEEDS, saturation=st.floats(0, 40))
def test_lemma_2_of_MS1_and_MS2(n: int, seed: int, saturation: float) -> None:
    """D K with K skew and D >= 0; no inverse of K, which is singular for odd n."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, n, generator=g)
    found = spectrum(torch.diag(slope(saturation * torch.randn(n, generator=g))) @ (X - X.mT))
    assert float(found.real) <= float(found.rounding)


@given(n=SIZES, seed=SEEDS, share=st.floats(1e-6, 1.0))
def test_lemma_2_fails_and_is_seen_to_fail_where_J_is_not_skew(
    n: int, seed: int, share: float
) -> None:
    """(J + s I) P has eigenvalues with positive real parts where P is positive definite."""
    g = torch.Generator().manual_seed(seed)
    X, Y = torch.randn(2, n, n, generator=g)
    J, P = (X - X.mT) / torch.linalg.matrix_norm(X - X.mT, 2), Y @ Y.mT + torch.eye(n)
    found = spectrum((J + share * torch.eye(n)) @ P)
    assert float(found.real) > float(found.rounding)
    assert bool((found.eigenvalues.real > 0).all())


# --- Lemma 3 --------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(system=systems())
def test_lemma_3_a_basis_of_eigenvectors_as_good_as_the_root_of_K_D_K(system: Any) -> None:
    J, K, b, y = system
    P = K.mT @ torch.diag(slope(K @ y + b)) @ K
    values = torch.linalg.eigvalsh(P)
    assume(float(values[0]) > 1e-9 * float(values[-1]) > 0)  # full column rank and D > 0
    kappa = float((values[-1] / values[0]).sqrt())
    # Eigenvectors of unit length are at most n times worse than the best basis there is.
    assert float(spectrum(J @ P).condition) <= 10 * len(J) * kappa


def rank(A: list[list[int]]) -> int:
    """By elimination in exact arithmetic."""
    rows, found = [[Fraction(x) for x in row] for row in A], 0
    for column in range(len(A[0])):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] / rows[found][column]
            rows[i] = [x - factor * p for x, p in zip(rows[i], rows[found], strict=True)]
        found += 1
    return found


INTEGERS = st.integers(-2, 2)


@settings(max_examples=120)
@example(n=2, J=[[0, 1], [0, 0]], K=[[1, 0], [0, 0]])  # K'DK = diag(1, 0): nilpotent
@example(n=4, J=canonical(4).triu().int().tolist(), K=torch.diag(torch.tensor([1, 0, 1, 0])))
@given(
    n=st.just(4),
    J=arrays(np.int64, (4, 4), elements=INTEGERS),
    K=arrays(np.int64, (3, 4), elements=INTEGERS),
)
def test_defective_exactly_where_the_rank_of_A_squared_is_less(n: int, J: Any, K: Any) -> None:
    """With D = I and a singular K'K, in exact integers: the Jordan blocks are those of 0."""
    upper, K = np.triu(np.asarray(J), 1), np.asarray(K)
    A = (upper - upper.T) @ K.T @ K
    semisimple = rank((A @ A).tolist()) == rank(A.tolist())
    found = spectrum(torch.from_numpy(A).double())
    assert bool(found.condition.isfinite()) == semisimple
    assert float(found.real) <= float(found.rounding)


@given(system=systems(), t=st.floats(0, 50))
def test_frozen_gradients_stay_below_kappa(system: Any, t: float) -> None:
    J, K, b, y = system
    A = J @ K.mT @ torch.diag(slope(K @ y + b)) @ K
    found = spectrum(A)
    assume(float(found.condition) < 1e3 and float(found.size) < 50)
    size = torch.linalg.matrix_norm(torch.from_numpy(expm(t * A.numpy())), 2)
    assert 1 - 1e-6 <= float(size) <= float(found.condition) * (1 + 1e-6)


def test_a_jordan_block_makes_them_grow() -> None:
    A = canonical(2) @ torch.diag(torch.tensor([1.0, 0.0]))
    assert spectrum(A).condition.isinf()
    assert float(torch.linalg.matrix_norm(torch.from_numpy(expm(100 * A.numpy())), 2)) > 99


# --- Lemma 1 --------------------------------------------------------------------------------------


def general(J: Tensor, K: Tensor, b: Tensor, layers: int, T: float) -> hdnn.HamiltonianNetwork:
    """A time-invariant network of any J, K and b, with implicit midpoint."""
    pattern = np.ones(K.shape, dtype=bool)
    weights = Weights(pattern, features=len(J), layers=layers, time_invariant=True)
    with torch.no_grad():
        weights.theta.copy_(K.reshape(1, -1))
        weights.beta.copy_(b.reshape(1, -1))
    return hdnn.HamiltonianNetwork(HamiltonianField(J, weights), ImplicitMidpoint(), T=T)


@settings(max_examples=6)
@given(n=st.integers(2, 5), rows=st.integers(1, 6), seed=SEEDS, T=st.floats(0.1, 1.0))
def test_lemma_1_as_the_paper_writes_it(n: int, rows: int, seed: int, T: float) -> None:
    """phi' = K' D K J' phi backwards in time, in the paper's convention, by scipy."""
    g = torch.Generator().manual_seed(seed)
    X, K = torch.randn(n, n, generator=g), torch.randn(rows, n, generator=g)
    J, b, y = X - X.mT, torch.randn(rows, generator=g), torch.randn(1, n, generator=g)
    net = general(J, K, b, layers=4, T=T)
    solution = solve(net, y)
    J_, K_, b_ = J.numpy(), K.numpy(), b.numpy()

    def backwards(_: float, s: np.ndarray) -> np.ndarray:
        state, phi = s[:n], s[n:].reshape(n, n)
        z = K_ @ state + b_
        D = np.diag(1 - np.tanh(z) ** 2)
        return np.concatenate([-J_ @ K_.T @ np.tanh(z), (K_.T @ D @ K_ @ J_.T @ phi).ravel()])

    start = np.concatenate([solution.states[-1, 0].numpy(), np.eye(n).ravel()])
    exact = solve_ivp(
        backwards,
        (0, T),
        start,
        rtol=1e-10,
        atol=1e-11,
        method="DOP853",
        t_eval=[T - l * T / 4 for l in (4, 3, 2, 1, 0)],
    ).y
    mine = backward_dynamics(net, solution.states, 3 * solution.substeps)
    for l in range(5):
        phi = torch.from_numpy(exact[n:, 4 - l].reshape(n, n))
        for found in (mine[l, 0], solution.sensitivities[l, 0]):
            torch.testing.assert_close(found.mT, phi, rtol=1e-4, atol=1e-4 * float(phi.abs().max()))


# --- structure ------------------------------------------------------------------------------------

CHECKS = (discrete_checks.structure, discrete_checks.norm_at_least_one, discrete_checks.reciprocal)


def structural(net: hdnn.HamiltonianNetwork, y: Tensor) -> dict[str, bool | None]:
    """Those checks of a certificate that are about structure."""
    context = Context(net, y)
    return {found.name: found.holds for found in (check(context, None) for check in CHECKS)}


KEEPING = [
    (name, s)
    for name, s in PAIRS
    if name in HAMILTONIAN and build(name, s).scheme.structure_preserving
]


@settings(max_examples=30)
@given(pair=st.sampled_from(KEEPING), seed=SEEDS, h=st.floats(0.01, 1.0), layers=st.integers(1, 6))
def test_structure_is_kept_at_any_step(
    pair: tuple[str, str], seed: int, h: float, layers: int
) -> None:
    assume(pair[1] != "ImplicitMidpoint" or h < 0.2)  # Newton needs a start
    g = torch.Generator().manual_seed(seed)
    net = build(*pair, layers=layers, step=h, scale=0.7, generator=g)
    y = torch.randn(5, 4, generator=g)
    found = structural(net, y)
    assert found["structure"]
    whole = net.structure_preserving
    assert found["norm-at-least-one"] is (True if whole else None)
    assert found["reciprocal-pairs"] is (True if pair[0] in ("MS3", "HS", "H1") else None)
    if whole:
        assert float(norms(sensitivities(net, y)).minimum.min()) >= 1 - 1e-10


@settings(max_examples=15)
@given(n=SIZES, seed=SEEDS)
def test_implicit_midpoint_keeps_any_J_also_a_singular_one(n: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    X, K = torch.randn(2, n, n, generator=g) / 2
    J = X - X.mT
    J[:, 0] = J[0] = 0  # singular
    net = general(J, K, torch.randn(n, generator=g), layers=5, T=0.5)
    found = structural(net, torch.randn(3, n, generator=g))
    assert found["structure"]
    assert found["norm-at-least-one"] is (True if bool(J.any()) else None)


# --- energy ---------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(n=st.integers(2, 5), rows=st.integers(1, 6), seed=SEEDS)
def test_constant_energy_bounds_the_states_of_the_ODE(n: int, rows: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    X, K = torch.randn(n, n, generator=g), torch.randn(rows, n, generator=g)
    b, y = torch.randn(rows, generator=g), 2 * torch.randn(4, n, generator=g)
    net = general((X - X.mT) / 2, K, b, layers=4, T=1.0)
    z = solve(net, y).states @ K.mT + b
    H = (z.abs() + torch.log1p(torch.exp(-2 * z.abs())) - np.log(2)).sum(-1)
    torch.testing.assert_close(H, H[:1].expand_as(H), rtol=1e-4, atol=1e-5)
    assert bool((z.abs().sum(-1) <= H[0] + rows * np.log(2) + 1e-3).all())


def test_jacobians_of_velocities_are_the_formula_of_the_paper() -> None:
    for name in ("H1", "H2", "MS3", "MS1", "MS2"):
        net, y = build(name, layers=3), torch.randn(4, 4)
        found, states = velocity_jacobians(net, y), net.trajectory(y).detach()
        for j in range(3):
            J, K, b = (x.detach() for x in net.field_at(j))
            for k in range(4):
                D = torch.diag(slope(K @ states[j, k] + b))
                torch.testing.assert_close(found[j, k], (K.mT @ D @ K @ J.mT).mT)
                if name in ("MS1", "MS2"):
                    torch.testing.assert_close(found[j, k], D @ K)
