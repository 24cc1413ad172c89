"""Checks of the ODE behind a network: J, the premises and statements of Lemmas 1, 2 and 3."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis.check import Check, follows
from hdnn.analysis.context import Context
from hdnn.analysis.continuous import backward_dynamics
from hdnn.analysis.sensitivity import jacobians
from hdnn.analysis.spectra import EPS
from hdnn.errors import HdnnError
from hdnn.fields import EnergyField, HamiltonianField
from hdnn.fields.field import effective_interconnection
from hdnn.program import times

NAN = math.nan


def worst_place(badness: Tensor) -> dict[str, Any]:
    """The layer and the sample of the largest entry of ``(layers, samples)``."""
    place = int(badness.argmax())
    return {"layer": place // badness.shape[1], "sample": place % badness.shape[1]}


def interconnection(context: Context, tolerance: float | None) -> Check:
    """J = -J' (equation 7)."""
    S, statement = _interconnection(context)
    allowed = 8 * EPS if tolerance is None else tolerance
    if S is None:
        value, holds = NAN, False
    else:
        size = torch.linalg.matrix_norm(S, 2)
        value = float((torch.linalg.matrix_norm(S + S.mT, 2) / size.clamp_min(1e-300)).max())
        holds = value <= allowed
    return Check(
        "interconnection",
        holds,
        value,
        allowed,
        statement,
        "the energy is constant along the ODE"
        if holds
        else "the energy is not constant along the ODE, and Lemmas 2 and 3 do not apply",
        "equation (7)",
    )


def _interconnection(context: Context) -> tuple[Tensor | None, str]:
    field = context.hamiltonian
    if field is None:
        return None, "J = -J': this is a baseline without J"
    if context.inverse:
        assert isinstance(field, HamiltonianField)
        return field.weights.K, "K = -K', hence J = -J' for J K' = I"
    if not context.state_dependent:
        what = "J = -J'" if field.R is None else "J - R is skew (it has dissipation R)"
        return effective_interconnection(field.interconnection, field.R), what
    t = times(context.net.h, context.layers)
    J = torch.stack([field.J_at(context.states[j], j, t[j]) for j in range(context.layers)])
    return J if field.R is None else J - field.R, "J(y, t) = -J(y, t)' at all states"


def full_rank(context: Context, tolerance: float | None) -> Check:
    """K' D K > 0 needs K of full column rank; an energy of one's own needs a positive Hessian."""
    field = context.hamiltonian
    allowed = context.n * EPS
    value, statement = NAN, "K has full column rank"
    if isinstance(field, EnergyField):
        statement = "the Hessian of H is positive definite"
        values = torch.linalg.eigvalsh(_hessians(context, field))
        value = float((values[..., 0] / values.abs().amax(-1).clamp_min(1e-300)).min())
    elif field is not None and not context.inverse:
        K = field.weights.K
        value = 0.0
        if K.shape[-2] >= K.shape[-1]:
            singular = torch.linalg.svdvals(K)
            value = float((singular[:, -1] / singular[:, 0].clamp_min(1e-300)).min())
    elif context.inverse:
        statement += " (the Jacobian D K of MS1 and MS2 needs no inverse)"
    holds = None if math.isnan(value) else value > allowed
    return Check(
        "full-rank",
        holds,
        value,
        allowed,
        statement,
        follows(
            holds,
            "a premise of Lemma 3 holds",
            "a premise of Lemma 3 fails: gradients can grow linearly in time; see `diagonalisable`",
        ),
        "Lemma 3 (its proof)",
        ">=",
        proved=False,
    )


def _hessians(context: Context, field: EnergyField) -> Tensor:
    t, layout = times(context.net.h, context.layers), field.layout
    states = context.states[:-1].unsqueeze(-1) if layout.channels else context.states[:-1]
    return torch.stack(
        [
            jacobians(partial(field.gradient, layer=j, t=t[j]), states[j], layout.axis)
            for j in range(context.layers)
        ]
    )


def slopes(context: Context) -> Tensor | None:
    """D = sigma'(K y_j + b) of every layer, ``(layers, samples, m)``."""
    field = context.hamiltonian
    if not isinstance(field, HamiltonianField):
        return None
    z = context.states[:-1] @ field.weights.K.mT + field.weights.b.unsqueeze(-2)
    # Plain autograd: torch.func.grad would import the compiler of torch, which takes seconds.
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (derivative,) = torch.autograd.grad(field.activation.function(z).sum(), z)
    return derivative


def positive_slope(context: Context, tolerance: float | None) -> Check:
    """D > 0 fails where units are saturated: 1 - tanh^2 is 0 in floating point."""
    D, value, allowed, detail = slopes(context), NAN, 4 * EPS, {}
    if D is not None:
        value, detail = float(D.min()), worst_place(-D.amin(-1))
    holds = None if D is None else value > allowed
    return Check(
        "unsaturated",
        holds,
        value,
        allowed,
        "D = diag sigma'(K y + b) is positive",
        follows(
            holds,
            "a premise of Lemma 3 holds",
            "a premise of Lemma 3 fails: saturated units pass no gradient; see `diagonalisable`",
        ),
        "Lemma 3 (its proof)",
        ">=",
        detail,
        proved=False,
    )


def imaginary(context: Context, tolerance: float | None) -> Check:
    """Lemma 2, from the actual Jacobian."""
    value, allowed, holds, detail = NAN, NAN, None, {}
    if context.stepped:
        spectrum = context.spectrum
        limit = (
            spectrum.rounding if tolerance is None else torch.full_like(spectrum.real, tolerance)
        )
        detail = worst_place(spectrum.real / limit.clamp_min(1e-300))
        at = detail["layer"], detail["sample"]
        value, allowed = float(spectrum.real[at]), float(limit[at])
        holds = value <= allowed
    return Check(
        "imaginary-spectrum",
        holds,
        value,
        allowed,
        "eigenvalues of df/dy are imaginary: |Re| / ||df/dy||",
        follows(
            holds,
            "no mode of the ODE with frozen coefficients grows or decays",
            "modes of the ODE itself grow or decay exponentially, whatever the step",
        ),
        "Lemma 2",
        detail=detail,
    )


def diagonalisable(context: Context, tolerance: float | None) -> Check:
    """Lemma 3, from the actual Jacobian.

    Its premises may hold by less than rounding can tell, so that it is not met is no contradiction.
    """
    value, holds, detail = NAN, None, {}
    if context.stepped:
        condition = context.spectrum.condition
        value, detail = float(condition.max()), worst_place(condition)
        holds = math.isfinite(value)
    return Check(
        "diagonalisable",
        holds,
        value,
        (16 * context.n * EPS) ** -0.5,
        "eigenvectors of df/dy form a basis: its condition number kappa",
        follows(
            holds,
            "with frozen coefficients gradients stay below kappa for all time",
            "a Jordan block: gradients grow linearly in time, even with frozen coefficients",
        ),
        "Lemma 3",
        detail=detail,
        proved=False,
    )


def gradient_dynamics(context: Context, tolerance: float | None) -> Check:
    """Lemma 1: d y(T)/d y(T - t) from its own differential equation, and by differentiation."""
    value, allowed, holds, detail = NAN, NAN, None, {}
    solution = _solved(context)
    if solution is not None and solution.error < 1e-3:
        M = solution.sensitivities
        mine = backward_dynamics(context.net, solution.states, solution.substeps)
        value = float((_norm(mine - M) / _norm(M)).max())
        allowed = 20 * solution.error + 1e-9 if tolerance is None else tolerance
        holds = value <= allowed
        detail = {"samples": M.shape[1], "substeps": solution.substeps}
    return Check(
        "gradient-dynamics",
        holds,
        value,
        allowed,
        "d/dt d y(T)/d y(T - t) is df/dy times it: integrated and differentiated",
        follows(
            holds,
            "gradients of the ODE obey the equation that Lemmas 2 and 3 are about",
            "the two computations disagree: the velocity is not differentiable there, or a defect",
        ),
        "Lemma 1",
        detail=detail,
    )


def _solved(context: Context) -> Any:
    if not context.stepped:
        return None
    try:
        return context.solution
    except HdnnError:  # the step is too large to follow the ODE; `scheme-drift` says so
        return None


def _norm(M: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(M, 2)


def smooth_weights(context: Context, tolerance: float | None) -> Check:
    """K and b must vary slowly against the dynamics: their change over 1 / ||df/dy||."""
    field, value, holds, detail = context.weighted, NAN, None, {}
    if field is not None and context.stepped:
        both = torch.cat([field.weights.K, field.weights.b.unsqueeze(-1)], -1).flatten(1)
        change, size = both.diff(dim=0).norm(dim=1), both.norm(dim=1)
        turn = context.h * context.spectrum.size.amax(1)
        scale = torch.maximum(size[1:], size[:-1]) * torch.maximum(turn[1:], turn[:-1])
        rate = torch.where(change > 0, change / scale, 0.0)
        value = float(rate.max()) if len(rate) else 0.0
        detail = {"layer": int(rate.argmax()) + 1} if len(rate) else {}
        holds = value <= 1
    return Check(
        "smooth-weights",
        holds,
        value,
        1.0,
        "relative change of K, b while the fastest mode turns by one radian",
        follows(
            holds,
            "coefficients vary slowly: Lemmas 2 and 3 speak of the whole network",
            "weights change faster than the dynamics: Lemmas 2 and 3 speak of single layers only; "
            "a larger alpha (smoothness penalty), or time_invariant, helps",
        ),
        "section 3.4, equation (13)",
        detail=detail,
        proved=False,
    )


def marginal_growth(context: Context, tolerance: float | None) -> Check:
    """What Lemmas 2 and 3 are used for: ||M|| within [1 / kappa, kappa], sample by sample."""
    value, holds, detail = NAN, None, {}
    if context.stepped:
        size = context.singular[..., 0]
        both = torch.maximum(size, 1 / size)
        ratio = both / context.spectrum.condition.amax(0)
        value, detail = float(ratio.max()), worst_place(ratio)
        detail = {**detail, "largest": float(size.max()), "smallest": float(size.min())}
        holds = value <= 1 + 1e-9 if bool(context.spectrum.condition.isfinite().any()) else None
    return Check(
        "marginal-growth",
        holds,
        value,
        1.0,
        "||d y_N / d y_l|| within [1/kappa, kappa], as with frozen coefficients",
        follows(
            holds,
            "gradients neither vanish nor explode beyond what Lemmas 2 and 3 give",
            "gradients grow (or vanish) beyond what frozen coefficients allow: D, K or b change "
            "along the trajectory, or the step adds to it",
        ),
        "section 3.4",
        detail=detail,
        proved=False,
    )
