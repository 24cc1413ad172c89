"""Schemes have what they declare: order, structure (M J M' = J), inverse, needs, steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from catalog import (
    EACH,
    HAMILTONIAN,
    IMPLICIT,
    INCOMPATIBLE,
    PAIRS,
    as_function,
    build,
    every_pair,
    jacobian,
    skew,
    structure_defect,
)
from hdnn import fields
from hdnn.errors import ConvergenceError, HdnnError, IncompatibleError
from hdnn.fields import (
    ACTIVATIONS,
    Activation,
    ActivationField,
    EnergyField,
    HamiltonianField,
    Learned,
    Weights,
    canonical,
    signs,
)
from hdnn.program import Velocity
from hdnn.schemes import (
    SCHEMES,
    DirectMap,
    DiscreteGradient,
    ForwardEuler,
    ImplicitMidpoint,
    Leapfrog,
    Scheme,
    Splitting,
    Yoshida4,
)
from hdnn.testing import assert_invertible
from problems import PROBLEMS

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)

# --- structure ------------------------------------------------------------------------------------


SKEW = {
    "J1": lambda: (canonical(4), "dense"),
    "J2": lambda: (signs(4), "dense"),
    "random": lambda: (skew(4), "dense"),
    "singular": lambda: (torch.block_diag(canonical(2), torch.zeros(2, 2)), "dense"),
    "X": lambda: (canonical(4, torch.randn(2, 2)), "block-diagonal"),
}
"""Interconnections, each with a structure of K that fits it."""


@every_scheme
@pytest.mark.parametrize("kind", SKEW)
def test_structure_is_preserved_exactly_where_declared(scheme: str, kind: str) -> None:
    J, structure = SKEW[kind]()
    field = HamiltonianField(J, Weights(structure, features=4, layers=5))
    method = SCHEMES[scheme]()
    if method.needs_separable and kind != "X":
        with pytest.raises(IncompatibleError):
            method.check(field)
        return
    net = hdnn.HamiltonianNetwork(field, method, T=1.0)
    defect = structure_defect(net, torch.randn(4), J)
    assert net.structure_preserving is method.structure_preserving
    if method.structure_preserving:
        assert defect < 1e-13
    else:
        assert defect > {1: 1e-3, 2: 1e-5, 4: 1e-8}[method.order]


def test_MS1_preserves_the_J_of_its_layer_within_that_layer_only() -> None:
    net, y = build("MS1", layers=1), torch.randn(4)
    assert structure_defect(net, y, net.J[0]) < 1e-13
    deep = build("MS1", layers=2)
    assert not deep.structure_preserving
    assert all(structure_defect(deep, y, J) > 1e-3 for J in deep.J)


def test_dissipation_and_varying_J_void_the_promise() -> None:
    weights = Weights("dense", features=4, layers=2)
    for J, R in (("J1", torch.eye(4)), (skew(4, 2), None)):
        field = HamiltonianField(J, weights, dissipation=R)
        assert not hdnn.HamiltonianNetwork(field, ImplicitMidpoint(), T=1.0).structure_preserving


# --- inverse --------------------------------------------------------------------------------------

INVERTIBLE = [(name, s) for name, s in EACH if build(name, s, layers=1).invertible]


@pytest.mark.parametrize("layers", [1, 1000])
@every_pair(INVERTIBLE)
def test_the_inverse_undoes_the_network(name: str, scheme: str, layers: int) -> None:
    # An implicit step has one solution only where h |df/dy| < 2.
    layers, scale = (min(layers, 50), 0.3) if scheme in IMPLICIT else (layers, 1.0)
    net, y = build(name, scheme, layers=layers, T=1.2, scale=scale), torch.randn(3, 4)
    assert float((net(y) - y).detach().abs().max()) > 1e-2
    assert_invertible(net, net.inverse, y, tolerance=3e-13)


def test_inverse_of_what_cannot_be_undone_raises() -> None:
    for name, scheme in set(EACH) - set(INVERTIBLE):
        with pytest.raises(HdnnError, match="no exact inverse"):
            build(name, scheme).inverse(torch.randn(2, 4))


# --- implicit midpoint ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H2", "MS2"])
def test_fixed_point_and_newton_solve_the_midpoint_equation(name: str) -> None:
    newton, fixed = (
        hdnn.network(name, features=4, layers=20, T=0.7, scheme=ImplicitMidpoint(solver))
        for solver in ("newton", "fixed-point")
    )
    fixed.load_state_dict(newton.state_dict())
    y = torch.randn(5, 4, requires_grad=True)
    path = newton.trajectory(y)
    torch.testing.assert_close(fixed.trajectory(y), path, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(net(y).sum(), y)[0] for net in (newton, fixed)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-11, atol=1e-11)
    for j in range(newton.layers):
        step = newton.h * newton.field.velocity((path[j] + path[j + 1]) / 2, j)
        torch.testing.assert_close(path[j + 1] - path[j], step, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "scheme",
    [
        ImplicitMidpoint("fixed-point"),
        ImplicitMidpoint("newton", max_iterations=1),
        ImplicitMidpoint("newton", tolerance=1e-30),
    ],
    ids=str,
)
def test_a_solve_that_cannot_converge_raises(scheme: Scheme) -> None:
    net = hdnn.network("H1", features=4, layers=1, step=20.0, scheme=scheme)
    with pytest.raises(ConvergenceError, match="did not converge"):
        net(3 * torch.randn(20, 4))


# --- discrete gradient ----------------------------------------------------------------------------

STEPS = (0.01, 0.1, 1.0, 10.0)
CONVEX = [name for name in ACTIVATIONS if name != "sin"]


def energies(net: hdnn.HamiltonianNetwork, y: Tensor) -> tuple[Tensor, Tensor]:
    """H of every layer before and after it, ``(layers, ...)`` each."""
    with torch.no_grad():
        path = net.trajectory(y)
        before = [net.field.energy(path[j], j) for j in range(net.layers)]
        after = [net.field.energy(path[j + 1], j) for j in range(net.layers)]
    return torch.stack(before), torch.stack(after)


def check_conserved(net: hdnn.HamiltonianNetwork, y: Tensor) -> None:
    before, after = energies(net, y)
    eps = torch.finfo(y.dtype).eps
    # The sum of m terms, each of an argument with rounding errors of its own.
    assert float(((after - before).abs() / (1 + before.abs())).max()) < 1000 * eps


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0, 10.0])
def test_the_discrete_gradient_conserves_the_energy_whatever_weights_and_step(
    scale: float, step: float
) -> None:
    """Of 80 networks for each step and scale, with weights that differ from layer to layer."""
    for J in ("H1", "H2"):
        net = build(J, "DiscreteGradient", ensemble=40, scale=scale, step=step, layers=2)
        check_conserved(net, 3 * torch.randn(40, 2, 4))


@pytest.mark.parametrize("activation", CONVEX)
@pytest.mark.parametrize("name", HAMILTONIAN)
def test_it_conserves_the_energy_of_every_architecture(name: str, activation: str) -> None:
    for options, shape in (({}, (7, 4)), ({"channels": 4, "kernel": 3}, (2, 4, 3, 2))):
        net = build(name, "DiscreteGradient", step=2.0, activation=activation, **options)
        check_conserved(net, 2 * torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_conserves_energies_that_are_not_convex_and_with_a_J_of_the_state(
    dtype: torch.dtype,
) -> None:
    weights = Weights("dense", features=4, units=10, layers=5, scale=0.5, dtype=dtype)
    wells = HamiltonianField("J2", weights, signs=[1, -1] * 5)
    periodic = HamiltonianField("J2", weights, activation="sin")
    moving = HamiltonianField(lambda y, t: y[..., :1, None].cos() * signs(4).to(y), weights)
    for field in (wells, periodic, moving):
        net = hdnn.HamiltonianNetwork(field, DiscreteGradient(), step=0.1)
        check_conserved(net, torch.randn(20, 4, dtype=dtype))


@pytest.mark.parametrize("step", STEPS)
def test_with_dissipation_it_loses_what_the_balance_says(step: float) -> None:
    """H(y_1) - H(y_0) = -h g' R g, with (J - R) g = (y_1 - y_0) / h."""
    for _ in range(30):
        L, J = torch.randn(4, 4), skew(4)
        field = HamiltonianField(J, Weights(features=4, layers=3), dissipation=L @ L.mT)
        net = hdnn.HamiltonianNetwork(field, DiscreteGradient(), step=step)
        y = 2 * torch.randn(10, 4)
        before, after = energies(net, y)
        change = net.trajectory(y).diff(dim=0).detach()
        g = torch.linalg.solve(J - field.R, change.unsqueeze(-1)).squeeze(-1) / step
        lost = step * torch.einsum("lbi,ij,lbj->lb", g, L @ L.mT, g)
        torch.testing.assert_close(before - after, lost, rtol=1e-7, atol=1e-11)
        assert bool((after < before).all())


class DrivenField(HamiltonianField):
    """y' = (J - R) dH/dy + G u with an input u that is held for a step."""

    G: Tensor
    u: Tensor

    def velocity_fn(self) -> Velocity:
        f = super().velocity_fn()
        return lambda j, t, *y: f(j, t, *y) + self.u @ self.G.mT


@pytest.mark.parametrize("step", STEPS)
def test_with_an_input_it_is_passive(step: float) -> None:
    """H(y_1) - H(y_0) = h u' G'g - h g' R g, with the discrete gradient g: for every input."""
    for _ in range(10):
        L = torch.randn(4, 2)
        field = DrivenField(skew(4), Weights(features=4, layers=1), dissipation=L @ L.mT)
        field.G, y = torch.randn(4, 2), 2 * torch.randn(10, 4)
        net = hdnn.HamiltonianNetwork(field, DiscreteGradient(), step=step)
        for _ in range(10):
            field.u = torch.randn(10, 2)
            with torch.no_grad():
                after = net(y)
                g = field.gradient_fn()(0, 0.0, y, after)
                gained = field.energy(after) - field.energy(y)
            supplied = step * (field.u * (g @ field.G)).sum(-1)
            lost = step * (g @ L).square().sum(-1)
            torch.testing.assert_close(gained, supplied - lost, rtol=1e-9, atol=1e-8 * step)
            y = after


def test_for_quadratic_energies_it_is_the_implicit_midpoint_rule() -> None:
    options = {"activation": "identity", "step": 1.5}
    nets = [build("H2", scheme, **options) for scheme in ("DiscreteGradient", "ImplicitMidpoint")]
    nets[1].load_state_dict(nets[0].state_dict())
    y = torch.randn(6, 4)
    torch.testing.assert_close(nets[0](y), nets[1](y), rtol=1e-12, atol=1e-12)
    curved = [build("H2", scheme, step=0.5) for scheme in ("DiscreteGradient", "ImplicitMidpoint")]
    curved[1].load_state_dict(curved[0].state_dict())
    assert not torch.allclose(curved[0](y), curved[1](y), atol=1e-4)


def test_a_step_of_minus_h_undoes_one_of_h_of_any_size() -> None:
    for step in STEPS:
        net, y = build("H2", "DiscreteGradient", step=step, ensemble=20), torch.randn(20, 5, 4)
        torch.testing.assert_close(net.inverse(net(y)), y, rtol=0, atol=1e-9)


def test_derivatives_of_the_discrete_gradient() -> None:
    weights = Weights("dense", features=2, units=3, layers=2)
    field = HamiltonianField(Learned(2), weights, dissipation=0.3 * torch.eye(2))
    net = hdnn.HamiltonianNetwork(field, DiscreteGradient(), step=[0.7, 0.5], learn_steps=True)
    function, parameters = as_function(net)
    y = torch.randn(2, 2, requires_grad=True)
    assert torch.autograd.gradcheck(function, (y, *parameters))
    assert torch.autograd.gradgradcheck(function, (y, *parameters))
    single = torch.func.vmap(torch.func.jacrev(net))(y)
    expected = torch.stack([jacobian(net, row) for row in y.detach()])
    torch.testing.assert_close(single, expected)


def test_a_discrete_gradient_that_cannot_be_found_raises() -> None:
    net = build("H1", step=20.0, scheme="DiscreteGradient")
    net.scheme = DiscreteGradient(max_iterations=1)
    net.lower()
    with pytest.raises(ConvergenceError, match="after 1 iteration"):
        net(3 * torch.randn(20, 4))
    with pytest.raises(ConvergenceError, match="did not converge"):
        build("H1", "DiscreteGradient")(torch.full((4,), torch.nan))


def test_the_discrete_gradient_needs_the_mean_of_an_activation() -> None:
    cube = Activation("cube", lambda x: x**3, lambda x: x**4 / 4)
    weights, energy = Weights(features=4, layers=2), EnergyField("J1", torch.sum, features=4)
    for field in (HamiltonianField("J1", weights, activation=cube), energy, build("ResNet").field):
        with pytest.raises(IncompatibleError, match=r"Activation\.mean.*ImplicitMidpoint\(\)"):
            DiscreteGradient().check(field)
    mean = fields.analytic_mean(cube.function, cube.energy)
    known = Activation("cube", cube.function, cube.energy, mean=mean)
    field = HamiltonianField("J1", weights, activation=known)
    check_conserved(hdnn.HamiltonianNetwork(field, DiscreteGradient(), step=0.1), torch.randn(4, 4))


# --- what fits, and steps -------------------------------------------------------------------------


def test_the_networks_that_split_are_MS1_MS3_and_HS() -> None:
    assert {name for name, s in PAIRS if s == "Leapfrog"} == {"MS1", "MS3", "HS"}
    for name, scheme in INCOMPATIBLE:
        with pytest.raises(IncompatibleError, match=rf"{scheme}.*ForwardEuler\(\).*MS3"):
            build(name, scheme)


@every_scheme
def test_equal_steps_are_a_uniform_step_and_learned_ones_start_there(scheme: str) -> None:
    uniform = build("MS3", scheme, layers=4, T=1.0)
    y = torch.randn(3, 4)
    for step, learn in (([0.25] * 4, False), (torch.full((4,), 0.25), True), (0.25, True)):
        net = build("MS3", scheme, layers=4, step=step, learn_steps=learn)
        net.load_state_dict(uniform.state_dict(), strict=False)
        torch.testing.assert_close(net(y), uniform(y), rtol=1e-13, atol=1e-13)
        assert float(net.T) == pytest.approx(1.0)
    net.log_steps.data.sub_(100.0 * torch.rand(4))
    assert bool((net.h > 0).all())


def test_a_scheme_is_a_value() -> None:
    assert ForwardEuler() == ForwardEuler()
    assert Leapfrog("z") != Leapfrog("y")
    with pytest.raises(HdnnError, match="'y' or 'z'"):
        Leapfrog("x")
    with pytest.raises(HdnnError, match="newton"):
        ImplicitMidpoint("bisection")
    with pytest.raises(IncompatibleError, match="fits y' = sigma"):
        DirectMap().check(build("H1").field)


# --- order ----------------------------------------------------------------------------------------

RUTH3 = Splitting((7 / 24, 2 / 3, 3 / 4, -2 / 3, -1 / 24, 1.0))


METHODS: dict[str, Scheme] = {**{s: SCHEMES[s]() for s in SCHEMES}, "Ruth3": RUTH3}
FITTING = [
    (problem, scheme)
    for problem in PROBLEMS
    for scheme in METHODS
    if (PROBLEMS[problem].separable or not METHODS[scheme].needs_separable)
    and (PROBLEMS[problem].field(1).has_discrete_gradient or scheme != "DiscreteGradient")
]


@pytest.mark.parametrize(("problem", "scheme"), FITTING)
def test_errors_and_drifts_of_the_energy_shrink_with_the_declared_order(
    problem: str, scheme: str
) -> None:
    case, method = PROBLEMS[problem], METHODS[scheme]
    exact = torch.from_numpy(case.exact(1.5))
    errors, drifts = [], []
    # Fine enough to be asymptotic, coarse enough that rounding does not show.
    for layers in {1: (256, 512), 2: (48, 96)}.get(method.order, (24, 48)):
        net = hdnn.HamiltonianNetwork(case.field(layers), method, layers=layers, T=1.5)
        with torch.no_grad():
            path = net.trajectory(torch.tensor(case.start))
            H = net.field.energy(path)
        errors.append(float((path[-1] - exact).norm()))
        drifts.append(float((H - H[0]).abs().max()))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(method.order, abs=0.15)
    assert drifts[1] < 1e-13 or math.log2(drifts[0] / drifts[1]) > method.order - 0.15
    assert drifts[0] < 0.2


def test_the_order_of_any_coefficients_is_computed() -> None:
    assert [Splitting((1, 1)).order, Splitting((0.25, 0.5, 0.5, 0.5, 0.25)).order] == [1, 2]
    assert [RUTH3.order, Yoshida4().order] == [3, 4]


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
        splits = field.separable or not scheme.needs_separable
        if not splits or (kind == "baseline" and scheme == DiscreteGradient()):
            with pytest.raises(IncompatibleError):
                hdnn.HamiltonianNetwork(field, scheme, step=1e-7)
            continue
        net = hdnn.HamiltonianNetwork(field, scheme, step=1e-7)
        path = net.trajectory(torch.randn(3, 4)).detach()
        for j in range(2):
            change = (path[j + 1] - path[j]) / 1e-7
            expected = field.velocity(path[j], j, j * 1e-7).detach()
            torch.testing.assert_close(change, expected, rtol=1e-5, atol=1e-5)
