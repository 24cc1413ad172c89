"""The order of every scheme: errors and drifts under refinement, on problems with exact answers."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import Tensor

import hdnn
from catalogue import skew
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import ActivationField, HamiltonianField, Learned, Weights, canonical
from hdnn.schemes import SCHEMES, Scheme, Splitting, Yoshida4
from problems import PROBLEMS, Problem

every_problem = pytest.mark.parametrize("problem", PROBLEMS)
RUTH3 = Splitting((7 / 24, 2 / 3, 3 / 4, -2 / 3, -1 / 24, 1.0))


def fits(scheme: Scheme, problem: Problem) -> bool:
    return problem.separable or not scheme.needs_separable


FITTING = [(p, s) for p in PROBLEMS for s in SCHEMES if fits(SCHEMES[s](), PROBLEMS[p])]
every_fitting = pytest.mark.parametrize(("problem", "scheme"), FITTING)


@functools.cache  # two tests look at the same trajectories
def solve(problem: Problem, scheme: Scheme, T: float, layers: int) -> Tensor:
    net = hdnn.HamiltonianNetwork(problem.field(layers), scheme, layers=layers, T=T)
    with torch.no_grad():
        return net.trajectory(torch.tensor(problem.start))


def slope(errors: list[float]) -> float:
    coarse, fine = errors
    return math.log2(coarse / fine)


def refinements(order: int) -> tuple[int, int]:
    # Fine enough to be asymptotic, coarse enough that rounding does not show.
    return {1: (256, 512), 2: (48, 96)}.get(order, (24, 48))


@every_fitting
def test_the_error_shrinks_with_the_declared_order(problem: str, scheme: str) -> None:
    given, method, T = PROBLEMS[problem], SCHEMES[scheme](), 1.5
    exact = torch.from_numpy(given.exact(T))
    errors = [
        float((solve(given, method, T, N)[-1] - exact).norm()) for N in refinements(method.order)
    ]
    assert slope(errors) == pytest.approx(method.order, abs=0.15)


@every_problem
def test_the_energy_is_conserved_along_the_exact_flow(problem: str) -> None:
    given = PROBLEMS[problem]
    field = given.field(1)
    path = solve_ivp(
        lambda t, y: field.velocity(torch.from_numpy(y)).detach().numpy(),
        (0.0, 5.0),
        given.start,
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
    ).y.T
    H = field.energy(torch.from_numpy(path))
    assert float(H.detach().std()) < 1e-11
    expected = torch.from_numpy(given.exact(5.0))
    torch.testing.assert_close(torch.from_numpy(path[-1]), expected, rtol=1e-9, atol=1e-9)


@every_fitting
def test_the_drift_of_the_energy_shrinks_with_the_order(problem: str, scheme: str) -> None:
    given, method = PROBLEMS[problem], SCHEMES[scheme]()
    drifts = []
    for N in refinements(method.order):
        H = given.field(N).energy(solve(given, method, 1.5, N)).detach()
        drifts.append(float((H - H[0]).abs().max()))
    assert drifts[-1] < 1e-13 or slope(drifts) > method.order - 0.15
    assert drifts[0] < 0.2


def test_the_order_of_any_coefficients_is_computed() -> None:
    jump = 1 / (2 - 2 ** (1 / 5))
    inner = Yoshida4().coefficients
    scaled = [[w * c for c in inner] for w in (jump, 1 - 2 * jump, jump)]
    sixth = [
        *scaled[0][:-1],
        scaled[0][-1] + scaled[1][0],
        *scaled[1][1:-1],
        scaled[1][-1] + scaled[2][0],
        *scaled[2][1:],
    ]
    assert [Splitting((1, 1)).order, Splitting((0.25, 0.5, 0.5, 0.5, 0.25)).order] == [1, 2]
    assert [RUTH3.order, Yoshida4().order, Splitting(tuple(sixth)).order] == [3, 4, 6]


def test_the_computed_order_is_the_measured_one() -> None:
    given = PROBLEMS["separable"]
    exact = torch.from_numpy(given.exact(1.5))
    errors = [float((solve(given, RUTH3, 1.5, N)[-1] - exact).norm()) for N in (64, 128)]
    assert slope(errors) == pytest.approx(3, abs=0.15)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=3), st.floats(-2, 2))
def test_symmetric_coefficients_have_even_order(left: list[float], middle: float) -> None:
    half = [*left, middle]
    y, z = half[::2], half[1::2]
    # The last entry is the middle of the palindrome, the others count twice.
    if len(half) % 2:
        y[-1], z[-1] = 1 - 2 * sum(y[:-1]), 0.5 - sum(z[:-1])
    else:
        y[-1], z[-1] = 0.5 - sum(y[:-1]), 1 - 2 * sum(z[:-1])
    half[::2], half[1::2] = y, z
    order = Splitting((*half, *half[-2::-1])).order
    assert order >= 2
    assert order % 2 == 0


@pytest.mark.parametrize("coefficients", [(), (1.0,), (1.0, 0.5), (0.5, 1.0, 0.6)], ids=str)
def test_coefficients_of_each_half_sum_to_one(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(HdnnError, match="sum to 1"):
        Splitting(coefficients)


FIELDS: dict[str, Any] = {
    "J(t)": lambda w: HamiltonianField(skew(4, 2), w),
    "learned J(t)": lambda w: HamiltonianField(Learned(4, layers=2, init=skew(4)), w),
    "J(y,t)": lambda w: HamiltonianField(
        lambda y, t: torch.cosh(y[..., :1, None] + t) * canonical(4), w
    ),
    "damped": lambda w: HamiltonianField("J2", w, dissipation=torch.diag(torch.rand(4))),
    "damped halves": lambda w: HamiltonianField("J1", w, dissipation=torch.ones(4, 4)),
    "X": lambda w: HamiltonianField(canonical(4, torch.randn(2, 2)), w),
    "X learned": lambda w: HamiltonianField(Learned(4, "off-diagonal-skew"), w),
    "baseline": lambda w: ActivationField(w, activation="softsign"),
}


@pytest.mark.parametrize("structure", ["dense", "block-diagonal", "graph"])
@pytest.mark.parametrize("kind", FIELDS)
def test_every_scheme_moves_along_the_velocity_of_the_field(kind: str, structure: str) -> None:
    """(y_{j+1} - y_j) / h tends to (J - R) dH/dy of layer j, however the field was lowered."""
    graph = torch.rand(4, 4) < 0.6
    given = graph.tolist() if structure == "graph" else structure
    field = FIELDS[kind](Weights(given, features=4, layers=2))
    for scheme in (make() for make in SCHEMES.values()):
        if scheme.needs_separable and not field.separable:
            with pytest.raises(IncompatibleError):
                hdnn.HamiltonianNetwork(field, scheme, step=1e-7)
            continue
        net = hdnn.HamiltonianNetwork(field, scheme, step=1e-7)
        path = net.trajectory(torch.randn(3, 4)).detach()
        for j in range(2):
            change = (path[j + 1] - path[j]) / 1e-7
            expected = field.velocity(path[j], j, j * 1e-7).detach()
            torch.testing.assert_close(change, expected, rtol=1e-5, atol=1e-5)
