"""The order of every scheme: errors and drifts under refinement, on problems with exact answers."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalogue import skew
from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields import ActivationField, HamiltonianField, Learned, Weights, canonical
from hdnn.schemes import SCHEMES, Scheme, Splitting, Yoshida4
from problems import PROBLEMS, Problem

RUTH3 = Splitting((7 / 24, 2 / 3, 3 / 4, -2 / 3, -1 / 24, 1.0))


def fits(scheme: Scheme, problem: Problem) -> bool:
    return problem.separable or not scheme.needs_separable


METHODS: dict[str, Scheme] = {**{s: SCHEMES[s]() for s in SCHEMES}, "Ruth3": RUTH3}
FITTING = [(p, s) for p in PROBLEMS for s in METHODS if fits(METHODS[s], PROBLEMS[p])]
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
    given, method, T = PROBLEMS[problem], METHODS[scheme], 1.5
    exact = torch.from_numpy(given.exact(T))
    errors = [
        float((solve(given, method, T, N)[-1] - exact).norm()) for N in refinements(method.order)
    ]
    assert slope(errors) == pytest.approx(method.order, abs=0.15)


@every_fitting
def test_the_drift_of_the_energy_shrinks_with_the_order(problem: str, scheme: str) -> None:
    given, method = PROBLEMS[problem], METHODS[scheme]
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


@pytest.mark.parametrize("coefficients", [(), (1.0,), (1.0, 0.5), (0.5, 1.0, 0.6)], ids=str)
def test_coefficients_that_do_not_sum_to_one_raise(coefficients: tuple[float, ...]) -> None:
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


@pytest.mark.parametrize("structure", ["dense", "block-diagonal"])
@pytest.mark.parametrize("kind", FIELDS)
def test_every_scheme_moves_along_the_velocity_of_the_field(kind: str, structure: str) -> None:
    """(y_{j+1} - y_j) / h tends to (J - R) dH/dy of layer j, however the field was lowered."""
    field = FIELDS[kind](Weights(structure, features=4, layers=2))
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
