"""The lemmas of the paper over random J, K, b and y; and what checks say where a premise fails."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from torch import Tensor

import hdnn
from catalog import OWN, PAIRS, build
from hdnn.analysis import certify, norms, sensitivities, velocity_jacobians
from hdnn.analysis.context import Context
from hdnn.fields import EnergyField, HamiltonianField, Weights
from hdnn.program import Flow
from hdnn.schemes import ForwardEuler, ImplicitMidpoint, Scheme

SIZES = st.integers(2, 6)
SEEDS = st.integers(0, 2**32 - 1)
ROOT = Path(hdnn.__file__).parents[2]
J1 = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])


@dataclass(frozen=True)
class Boastful(ForwardEuler):
    """It claims what it does not keep."""

    structure_preserving: ClassVar[bool] = True


def failing(net: hdnn.HamiltonianNetwork, y: Tensor) -> set[str]:
    return {check.name for check in certify(net, y).failed}


def general(
    J: Tensor,
    K: Tensor,
    b: Tensor,
    layers: int = 1,
    T: float = 0.1,
    scheme: Scheme | None = None,
    dissipation: Tensor | None = None,
) -> hdnn.HamiltonianNetwork:
    """A time-invariant network of any J, K and b."""
    pattern = np.ones(K.shape, dtype=bool)
    weights = Weights(pattern, features=len(J), layers=layers, time_invariant=True)
    with torch.no_grad():
        weights.theta.copy_(K.reshape(1, -1))
        weights.beta.copy_(b.reshape(1, -1))
    field = HamiltonianField(J.to(K), weights, dissipation=dissipation)
    return hdnn.HamiltonianNetwork(field, scheme, T=T)


def drawn(seed: int, n: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """J skew ``(n, n)``, K ``(rows, n)``, b, and states ``(5, n)``."""
    g = torch.Generator().manual_seed(seed)
    X, K = torch.randn(n, n, generator=g), torch.randn(rows, n, generator=g)
    return X - X.mT, K, torch.randn(rows, generator=g), torch.randn(5, n, generator=g)


# --- the lemmas -----------------------------------------------------------------------------------


@settings(max_examples=6)
@given(n=st.integers(2, 5), rows=st.integers(1, 6), seed=SEEDS, T=st.floats(0.1, 1.0))
def test_lemma_1_as_the_paper_writes_it(n: int, rows: int, seed: int, T: float) -> None:
    """phi' = K' D K J' phi backwards in time, in the paper's convention, by scipy."""
    J, K, b, y = drawn(seed, n, rows)
    context = Context(general(J, K, b, layers=4, T=T), y[:1])
    M = context.ode_sensitivities()
    assert M is not None
    J_, K_, b_ = J.numpy(), K.numpy(), b.numpy()
    options: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-11, "method": "DOP853"}

    def forwards(_: float, y: np.ndarray) -> np.ndarray:
        return J_ @ K_.T @ np.tanh(K_ @ y + b_)

    def backwards(_: float, s: np.ndarray) -> np.ndarray:
        state, phi = s[:n], s[n:].reshape(n, n)
        D = np.diag(1 - np.tanh(K_ @ state + b_) ** 2)
        return np.concatenate([-forwards(0, state), (K_.T @ D @ K_ @ J_.T @ phi).ravel()])

    end = solve_ivp(forwards, (0, T), y[0].numpy(), **options).y[:, -1]
    start, moments = np.concatenate([end, np.eye(n).ravel()]), [l * T / 4 for l in range(5)]
    exact = solve_ivp(backwards, (0, T), start, t_eval=moments, **options).y
    for l in range(5):
        phi = torch.from_numpy(exact[n:, 4 - l].reshape(n, n))
        torch.testing.assert_close(M[l, 0].mT, phi, rtol=1e-4, atol=1e-4 * float(phi.abs().max()))


@settings(max_examples=60)
@given(n=SIZES, more=st.integers(-3, 2), seed=SEEDS, scale=st.sampled_from((1e-4, 1.0, 1e4)))
def test_lemma_2_the_spectrum_is_imaginary_whatever_the_rank(
    n: int, more: int, seed: int, scale: float
) -> None:
    J, K, b, y = drawn(seed, n, max(1, n + more))
    assert certify(general(scale * J, K, b, T=0.1 / scale), y)["imaginary-spectrum"].holds


@given(n=SIZES, rank=st.integers(1, 6), seed=SEEDS, share=st.floats(0.01, 10.0))
def test_with_dissipation_no_mode_grows(n: int, rank: int, seed: int, share: float) -> None:
    """(J - R) P has eigenvalues with real parts of at most 0 for any R >= 0, of any rank."""
    J, K, b, y = drawn(seed, n, n)
    L = torch.randn(n, min(rank, n), generator=torch.Generator().manual_seed(seed))
    certificate = certify(general(J, K, b, T=0.01, dissipation=share * L @ L.mT), y)
    assert certificate.ok
    theorems = ["interconnection", "dissipation", "energy", "no-growing-mode"]
    assert [check.name for check in certificate.theorems] == theorems
    assert certificate["energy"].value <= 0  # it falls
    # Premises and consequences of Lemma 3, and the bounds of a flow that keeps volume, do not.
    others = ("imaginary-spectrum", "unsaturated", "diagonalizable", "volume", "norm-at-least-one")
    assert {certificate[name].holds for name in others} == {None}
    assert certificate["imaginary-spectrum"].consequence == "there is dissipation"


def test_what_dissipation_must_not_be() -> None:
    """R with a negative eigenvalue: the energy grows, and so do modes."""
    J, K, b, y = drawn(0, 2, 2)
    net = general(J, K, b, T=0.01, dissipation=torch.eye(2))
    net.field.R.copy_(torch.diag(torch.tensor([1.0, -2.0])))
    certificate = certify(net, y)
    assert {"dissipation", "energy", "no-growing-mode"} <= {c.name for c in certificate.failed}
    assert certificate["dissipation"].value == 1.0
    assert not certificate.ok
    net.field.R.copy_(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    assert not certify(net, y)["dissipation"].holds  # not symmetric
    net.field.R.copy_(torch.zeros(2, 2))
    assert certify(net, y).ok


@settings(max_examples=60)
@given(n=SIZES, more=st.integers(0, 2), seed=SEEDS, t=st.floats(0, 50))
def test_lemma_3_frozen_gradients_stay_below_kappa(n: int, more: int, seed: int, t: float) -> None:
    """kappa = sqrt(cond(K'DK)) bounds exp(t df/dy) for all t, and the basis of eigenvectors."""
    J, K, b, y = drawn(seed, n, n + more)
    net = general(J, K, b)
    kappa = Context(net, y[:1]).kappa
    assert kappa is not None
    assume(float(kappa) < 1e3)
    A = velocity_jacobians(net, y[:1])[0, 0].detach()
    size = np.linalg.norm(expm(t * A.numpy()), 2)
    assert 1 / float(kappa) - 1e-6 <= size <= float(kappa) * (1 + 1e-6)
    check = certify(net, y[:1])["diagonalizable"]
    assert check.holds
    assert check.value == pytest.approx(float(kappa))


@pytest.mark.parametrize("name", ["MS1", "MS2"])
def test_lemma_3_where_J_is_the_inverse_of_K(name: str) -> None:
    """df/dy = D K with K skew: sqrt(cond(D)), also for an odd width, where K is singular."""
    net, y = build(name, layers=2, T=0.3), torch.randn(5, 4)
    context = Context(net, y)
    D, kappa = context.D, context.kappa
    assert D is not None
    assert kappa is not None
    torch.testing.assert_close(kappa, (D.amax(-1) / D.amin(-1)).sqrt())
    flows = torch.linalg.matrix_exp(30 * velocity_jacobians(net, y))
    assert bool((torch.linalg.matrix_norm(flows, 2) <= kappa * (1 + 1e-6)).all())
    odd = certify(build("MS2", features=3, T=0.3), torch.randn(3, 3))
    assert odd["full-rank"].holds is None
    assert odd["diagonalizable"].holds


@given(
    pair=st.sampled_from([pair for pair in PAIRS if build(*pair).scheme.structure_preserving]),
    seed=SEEDS,
    h=st.floats(0.01, 1.0),
    layers=st.integers(1, 6),
)
def test_structure_is_preserved_at_any_step(
    pair: tuple[str, str], seed: int, h: float, layers: int
) -> None:
    assume(pair[1] != "ImplicitMidpoint" or h < 0.2)  # Newton needs a start
    g = torch.Generator().manual_seed(seed)
    net = build(*pair, layers=layers, step=h, scale=0.7, generator=g)
    y = torch.randn(5, 4, generator=g)
    certificate = certify(net, y)
    assert certificate["structure"].holds
    symplectic = pair[0] in ("MS3", "HS", "H1")
    assert certificate["reciprocal-pairs"].holds is (True if symplectic else None)
    assert certificate["volume"].value == pytest.approx(1.0)
    assert certificate["norm-at-least-one"].holds


@given(n=SIZES, seed=SEEDS, h=st.floats(0.01, 0.3))
def test_a_J_of_every_layer_is_preserved_within_it(n: int, seed: int, h: float) -> None:
    """By the implicit midpoint, also a singular J, of odd width; no layer changes volumes."""
    X = torch.randn(3, n, n, generator=torch.Generator().manual_seed(seed))
    weights = Weights("dense", features=n, layers=3, scale=0.5)
    field = HamiltonianField((X - X.mT) / n, weights)
    net = hdnn.HamiltonianNetwork(field, ImplicitMidpoint(), step=h)
    certificate = certify(net, torch.randn(4, n))
    assert certificate.ok
    assert certificate["structure"].detail["within"] == "layer"
    assert certificate["volume"].value == pytest.approx(1.0)
    assert certificate["norm-at-least-one"].holds


# --- premises that fail ---------------------------------------------------------------------------


def test_a_singular_K_with_J1_is_nilpotent() -> None:
    """K'DK = diag(1, 0): y' = z-part only, so d y_N / d y_0 grows linearly with T."""
    net = general(J1, torch.diag(torch.tensor([1.0, 0.0])), torch.zeros(2), layers=4, T=2.0)
    certificate = certify(net, torch.zeros(3, 2))
    assert certificate["imaginary-spectrum"].holds
    assert certificate["full-rank"].holds is certificate["diagonalizable"].holds is False
    assert certificate["diagonalizable"].value == float("inf")
    assert "linearly" in certificate["diagonalizable"].consequence
    assert float(norms(sensitivities(net, torch.zeros(1, 2))).maximum[0]) > 2.0  # 1 + T, sheared
    wide = general(J1, torch.ones(1, 2), torch.zeros(1))  # more columns than rows
    assert certify(wide, torch.zeros(3, 2))["full-rank"].value == 0.0


def test_saturated_units_are_detected() -> None:
    net = general(J1, torch.eye(2), torch.tensor([40.0, 0.0]), layers=2, T=0.5)
    certificate = certify(net, torch.randn(3, 2))
    assert {"unsaturated", "diagonalizable"} <= {check.name for check in certificate.failed}
    assert certificate["unsaturated"].value == 0.0


def test_a_J_that_is_not_skew_everywhere() -> None:
    def J(y: Tensor, t: Any) -> Tensor:
        far = 0.3 * (y.norm(dim=-1) > 2).to(y)[..., None, None]  # not where fields check it
        return J1.to(y) + far * torch.eye(2)

    field = HamiltonianField(J, Weights("dense", features=2, layers=3))
    net = hdnn.HamiltonianNetwork(field, step=0.05)
    certificate = certify(net, 5 + torch.rand(4, 2))
    assert certificate["interconnection"].value == pytest.approx(0.6 / (1.09) ** 0.5)
    assert {"interconnection", "energy"} <= {c.name for c in certificate.failed}
    near = certify(net, torch.rand(4, 2) / 10)  # skew there
    assert near["interconnection"].holds
    assert near["energy"].holds


def test_a_J_that_depends_on_the_state_has_no_spectrum_to_prove() -> None:
    """The energy is constant, but the derivative of J(y) is a part of df/dy."""
    field = HamiltonianField(
        lambda y, t: y.square().sum(-1)[..., None, None] * J1.to(y),
        Weights("dense", features=2, layers=3),
    )
    net, y = hdnn.HamiltonianNetwork(field, step=0.05), torch.randn(4, 2)
    assert float(torch.linalg.eigvals(velocity_jacobians(net, y)).real.abs().max()) > 0.01
    certificate = certify(net, y)
    assert certificate.ok
    assert [check.name for check in certificate.theorems] == ["interconnection", "energy"]
    for name in ("imaginary-spectrum", "diagonalizable", "structure", "volume"):
        assert certificate[name].consequence == "df/dy has a term with the derivative of J(y, t)"


def test_an_energy_that_is_not_convex() -> None:
    """The inverted pendulum: a saddle, with real eigenvalues."""
    field = EnergyField("J1", lambda x, t: x[..., 1] ** 2 / 2 - x[..., 0].cos(), features=2)
    net = hdnn.HamiltonianNetwork(field, ImplicitMidpoint(), layers=3, step=0.1)
    up = certify(net, torch.tensor([[3.1, 0.0]]))
    assert {"full-rank", "imaginary-spectrum", "diagonalizable"} <= {c.name for c in up.failed}
    assert up["imaginary-spectrum"].verdict == "not met"  # no theorem, where H is not convex
    assert up["structure"].holds  # symplectic in any case
    assert up.ok
    hanging = certify(net, torch.tensor([[0.1, 0.0]]))
    assert all(hanging[name].holds for name in ("full-rank", "imaginary-spectrum"))
    assert hanging["diagonalizable"].value == pytest.approx(1.0, abs=0.01)  # P = diag(cos q, 1)


def test_a_step_that_is_too_large() -> None:
    y, net = torch.randn(6, 4), build("H1", layers=16, T=1.0)
    for step, fails in ((1e-4, False), (0.3, True), (50.0, True)):
        large = build("H1", layers=16, step=step)
        large.load_state_dict(net.state_dict())
        assert ("scheme-drift" in failing(large, y)) is fails
    assert "bounded-states" in failing(build("H1", layers=40, step=0.5, time_invariant=True), y)
    overflow = certify(build("H1", layers=80, step=1e5, activation="relu"), y)
    assert [check.name for check in overflow.checks] == ["finite"]
    assert not overflow.ok
    assert overflow["finite"].detail["layer"] > 0


@pytest.mark.parametrize(
    ("name", "scheme", "order"), [("H1", "ForwardEuler", 1), ("MS3", "Leapfrog", 2)]
)
def test_deviation_from_the_ODE_falls_with_the_order(name: str, scheme: str, order: int) -> None:
    y = torch.randn(5, 4)
    net = build(name, scheme, layers=8, T=0.4, scale=0.7, time_invariant=True)
    finer = build(name, scheme, layers=16, T=0.4, time_invariant=True)
    finer.load_state_dict(net.state_dict())
    first, second = (certify(each, y)["scheme-drift"] for each in (net, finer))
    ratio = first.detail["deviation"] / second.detail["deviation"]
    assert ratio == pytest.approx(2**order, rel=0.2)
    assert 1 <= second.value <= first.value


def test_a_scheme_that_breaks_its_promise_is_detected() -> None:
    boast = hdnn.network("H1", features=4, layers=4, T=1.0, scheme=Boastful())
    assert "structure" in failing(boast, torch.randn(5, 4))


def test_a_scheme_that_shrinks_volumes_is_detected() -> None:
    @dataclass(frozen=True)
    class Shrinking(ForwardEuler):
        """It claims to keep the structure, and scales every state."""

        structure_preserving: ClassVar[bool] = True

        def lower(self, field: Any) -> Any:
            return (Flow(lambda f, x, h, layout: 0.9 * (x + h * f(x))),)

    y = torch.randn(5, 4)
    net = hdnn.network("H1", features=4, layers=4, step=1e-3, scheme=Shrinking())
    certificate = certify(net, y)
    assert certificate["volume"].verdict == certificate["norm-at-least-one"].verdict == "FAILS"
    assert certificate["volume"].value == pytest.approx(0.9**4, rel=1e-3)
    assert not certificate.ok
    images = hdnn.network("H1", channels=4, kernel=3, layers=4, step=1e-3, scheme=Shrinking())
    estimated = certify(images, torch.randn(1, 4, 17, 17))["norm-at-least-one"]
    assert (estimated.verdict, estimated.detail["estimated"]) == ("FAILS", True)


# --- convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H1", "H2", "MS1", "MS2", "MS3", "HS"])
def test_images_too_large_for_Jacobians_have_the_same_theorems(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates against the exact numbers, on images that are just small enough for both."""
    options = {"channels": 2, "kernel": 3, "layers": 3, "T": 0.7}
    net, y = build(name, **options), torch.randn(3, 2, 4, 4)
    exact = certify(net, y)
    monkeypatch.setattr("hdnn.analysis.jacobians.LARGEST", 31)
    large = certify(net, y)
    assert large.ok
    assert [c.name for c in large.theorems] == [c.name for c in exact.theorems]
    for check in large.checks:
        assert check.holds in (exact[check.name].holds, None)
    norm, estimate = (c["norm-at-least-one"] for c in (exact, large))
    if estimate.comparison != "by structure":
        assert 1 <= norm.value * 0.98 <= estimate.value <= norm.value * (1 + 1e-12)
        assert "(estimated)" in estimate.comparison
    assert large["volume"].comparison == "by structure"
    if net.scheme.structure_preserving:
        assert large["structure"].value < 1e-13
    else:
        assert large["structure"].holds is None
    assert "too large" in large["full-rank"].consequence


@pytest.mark.parametrize("name", ["H1", "MS2"])
def test_broken_promises_are_detected_without_Jacobians(name: str) -> None:
    """M J M' u and, where J is the inverse of K', M' K M u, for a random u."""
    y = torch.randn(2, 2, 24, 24)
    for scheme, holds in ((Boastful(), False), (ImplicitMidpoint("fixed-point"), True)):
        net = hdnn.network(name, channels=2, kernel=3, layers=2, T=0.4, scheme=scheme)
        assert certify(net, y)["structure"].holds is holds
        assert certify(net, y)["structure"].detail["within"] == (
            "layer" if name == "MS2" else "network"
        )


def test_few_large_images_are_examined() -> None:
    net = build("H1", channels=2, kernel=3, layers=1, T=0.1)
    assert certify(net, torch.randn(30, 2, 24, 24)).samples == 4
    assert certify(net, torch.randn(30, 2, 4, 4)).samples == 16
    assert certify(net, torch.randn(30, 2, 20, 20)).samples == 1  # 800 numbers each


def test_slow_states_with_growing_gradients() -> None:
    """y' = eps J tanh(y): Lemmas 2 and 3 hold everywhere, yet gradients grow with eps T."""
    example = runpy.run_path(str(ROOT / "examples" / "slow_state.py"))
    early, late, slow = (example["examine"](*v) for v in ((1.0, 0.5), (1.0, 20.0), (1e-3, 20.0)))
    assert early.ok
    for certificate in (late, slow):
        assert [check.name for check in certificate.failed] == ["marginal-growth"]
    assert late["marginal-growth"].detail["largest"] > 5
    assert slow["marginal-growth"].value == pytest.approx(late["marginal-growth"].value, rel=1e-6)


@pytest.mark.parametrize("scheme", [OWN, "ForwardEuler"])
@given(seed=SEEDS)
def test_with_signs_what_needs_a_convex_energy_is_not_promised(scheme: str, seed: int) -> None:
    """K'DK is indefinite: no lemma about growth applies, and what the scheme keeps still holds."""
    g = torch.Generator().manual_seed(seed)
    signs, y = [1, -1] * 4, torch.randn(5, 4, generator=g)
    options = {"units": 8, "layers": 4, "time_invariant": True, "generator": g}
    context = Context(build("HS", scheme, signs=signs, **options), y)
    assert not context.convex
    s, K = torch.tensor(signs) * 1.0, context.K[0]
    D = s * (1 - torch.tanh(y @ K.mT + context.net.b[0]) ** 2)
    P = torch.einsum("mi,bm,mk->bik", K, D, K)
    torch.testing.assert_close(context.hessian_eigenvalues[0], torch.linalg.eigvalsh(P))
    certificate = certify(context.net, y)
    assert certificate.ok
    for name in ("full-rank", "unsaturated", "diagonalizable", "marginal-growth"):
        assert certificate[name].holds is None
        assert "convex" in certificate[name].consequence
    assert certificate["bounded-states"].holds is None
    assert certificate["energy"].holds
    assert not certificate["imaginary-spectrum"].proved
    kept = True if scheme == OWN else None
    assert certificate["structure"].holds is kept
    assert certificate["volume"].holds is kept
    assert certificate["norm-at-least-one"].holds is kept


def test_the_energy_of_a_depth_profile_has_the_signs_of_units() -> None:
    net = build("H1", signs=[1, -1, -1, 1], layers=5)
    y = torch.randn(7, 4)
    path = net.trajectory(y)
    expected = [net.field.energy(path[l], min(l, 4)).mean() for l in range(6)]
    torch.testing.assert_close(hdnn.analysis.profile(net, y).energy, torch.stack(expected).detach())
