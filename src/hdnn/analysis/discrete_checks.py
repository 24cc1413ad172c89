"""Checks of the discrete network: structure, norms, bounds, and what its scheme adds."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hdnn.analysis.check import Check
from hdnn.analysis.context import Context
from hdnn.analysis.continuous import refined, states_and_sensitivities
from hdnn.analysis.continuous_checks import NAN, worst_place
from hdnn.analysis.gradient_norms import product_bound
from hdnn.analysis.spectra import EPS
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField

DRIFT = 2.0
"""The factor by which a scheme may change the norm of gradients."""


def finite(context: Context, tolerance: float | None) -> Check:
    """All states are numbers."""
    bad = (~torch.isfinite(context.states)).any(-1).sum(1)
    detail = {} if context.finite else {"layer": int(bad.nonzero()[0])}
    return Check(
        "finite",
        context.finite,
        float(bad.max()),
        0.0,
        "samples whose state is not finite",
        "the forward pass can be computed"
        if context.finite
        else f"states overflow at layer {detail.get('layer')}: the step or the weights are too "
        "large; nothing else can be examined",
        "section 2.2",
        detail=detail,
    )


def _preserves(context: Context) -> str | None:
    """Where M J M' = J is promised: in the "network", within a "layer", or nowhere."""
    field = context.hamiltonian
    if field is None or field.R is not None or context.state_dependent:
        return None
    if not context.net.scheme.structure_preserving:
        return None
    return "network" if field.interconnection.constant else "layer"


def structure(context: Context, tolerance: float | None) -> Check:
    """M J M' = J; where J_j K_j' = I it is written D' K D = K, which needs no inverse."""
    where, value, detail = _preserves(context), NAN, {}
    limit = 32 * context.n * (context.layers if where == "network" else 1) * EPS
    statement = "M J M' = J: defect / (||M||^2 ||J||)"
    if where is not None:
        statement += ", whole network" if where == "network" else ", within every layer"
        M = context.M if where == "network" else context.factors
        defect = _defect(context, M) / _norm(M).square()
        value, detail = float(defect.max()), worst_place(defect)
    allowed = limit if tolerance is None else tolerance
    holds = None if where is None else value <= allowed
    return Check(
        "structure",
        holds,
        value,
        allowed,
        statement,
        "the scheme keeps the geometry of the ODE at any step"
        if holds
        else "the discrete network does not keep the structure it promises"
        if where
        else "the scheme promises nothing here; splitting schemes and ImplicitMidpoint() do",
        "section 2.3 (Verlet); not proved in the paper",
        detail=detail,
    )


def _defect(context: Context, M: Tensor) -> Tensor:
    field = context.hamiltonian
    assert field is not None
    if context.inverse:
        assert isinstance(field, HamiltonianField)
        K = field.weights.K.unsqueeze(1)
        return _norm(M.mT @ K @ M - K) / _norm(K)
    J = field.J if field.interconnection.constant else field.J.unsqueeze(1)
    return _norm(M @ J @ M.mT - J) / _norm(J).clamp_min(1e-300)


def _norm(M: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(M, 2)


def reciprocal(context: Context, tolerance: float | None) -> Check:
    """Singular values of a symplectic M come in pairs s, 1/s."""
    value, detail, field = NAN, {}, context.hamiltonian
    applies = _preserves(context) == "network" and field is not None
    if applies and field is not None:
        square = -field.J @ field.J  # a multiple of J1, up to a rotation
        applies = bool(torch.allclose(square, square[0, 0] * torch.eye(len(square)).to(square)))
        applies = applies and bool(square[0, 0] > 0)
    if applies:
        s = context.singular
        # A small singular value carries an error of eps ||M||, so its product with the large one
        # carries eps ||M||^2.
        defect = ((s * s.flip(-1) - 1).abs() / s[..., :1].square().clamp_min(1)).amax(-1)
        value, detail = float(defect.max()), worst_place(defect)
    allowed = 32 * context.n * context.layers * EPS if tolerance is None else tolerance
    holds = value <= allowed if applies else None
    return Check(
        "reciprocal-pairs",
        holds,
        value,
        allowed,
        "singular values of M in pairs s, 1/s: |s s' - 1| / ||M||^2",
        "for every direction that shrinks another grows as much"
        if holds
        else "M is not symplectic"
        if applies
        else "only where J^2 = -c I and the structure is kept",
        "follows from M J M' = J",
        detail=detail,
    )


def norm_at_least_one(context: Context, tolerance: float | None) -> Check:
    """||J|| = ||M J M'|| <= ||M||^2 ||J||, hence ||M|| >= 1."""
    size = context.singular[:-1, :, 0]  # the last is that of the identity
    slack = 32 * context.n * context.layers * EPS if tolerance is None else tolerance
    value, field = float(size.min()), context.hamiltonian
    applies = _preserves(context) == "network" and field is not None and bool(field.J.any())
    holds = value >= 1 - slack if applies else None
    return Check(
        "norm-at-least-one",
        holds,
        value,
        1 - slack,
        "||d y_N / d y_l|| >= 1 at every depth, for every sample",
        "gradients cannot vanish, whatever the weights and the step"
        if holds
        else "gradients shrink although the scheme keeps the structure"
        if applies
        else "not promised by this scheme: the smallest norm is a measurement",
        "follows from M J M' = J",
        ">=",
        worst_place(-size),
    )


def upper_bound(context: Context, tolerance: float | None) -> Check:
    """The product of Lipschitz constants of the stages; `value` is how tight it is at l = 0."""
    value, holds, detail = NAN, None, {}
    try:
        bound = product_bound(context.net)
    except HdnnError:
        pass
    else:
        size = context.singular[..., 0]
        ratio = size / bound[:, None]
        value, holds = float(ratio[0].max()), bool((ratio <= 1 + 1e-9).all())
        detail = {"bound": float(bound[0]), "largest": float(size.max())}
    return Check(
        "upper-bound",
        holds,
        value,
        1.0,
        "||d y_N / d y_l|| / product of (1 + ||A|| ||W|| sup |sigma'|)",
        "the weights alone bound the gradients"
        if holds is not False
        else "a sample exceeds the bound: sup |sigma'| is declared too small",
        "section 2.2",
        detail=detail,
    )


def bounded_states(context: Context, tolerance: float | None) -> Check:
    """log cosh x >= |x| - log 2, so constant energy bounds the forward pass."""
    field, value, holds, detail = context.hamiltonian, NAN, None, {}
    tanh = isinstance(field, HamiltonianField) and field.activation.name == "tanh"
    if tanh and isinstance(field, HamiltonianField) and context.net.time_invariant:
        z = context.states @ field.weights.K[0].mT + field.weights.b[0]
        H = field.activation.energy(z).sum(-1)
        size = z.abs().sum(-1) / (H[0] + z.shape[-1] * math.log(2))
        value, detail = float(size.max()), worst_place(size)
        holds = value <= 1 + 1e-9
        drift = float(((H - H[0]) / (1 + H[0])).abs().max())
        detail = {**detail, "energy drift": drift}
    return Check(
        "bounded-states",
        holds,
        value,
        1.0,
        "||K y_l + b||_1 / (H(y_0) + m log 2), time-invariant weights",
        "the forward pass stays bounded at any depth, as in continuous time"
        if holds
        else "the scheme adds energy: states leave the level set of the ODE"
        if holds is False
        else "it needs time-invariant weights and tanh",
        "section 3.1, equation (8)",
        detail=detail,
        proved=False,
    )


@torch.no_grad()
def scheme_drift(context: Context, tolerance: float | None) -> Check:
    """How the norms of the network's gradients differ from those of its ODE, at h, h/2 and h/4."""
    value, holds, detail = NAN, None, {}
    if context.stepped:
        try:
            exact = context.solution.sensitivities
            # With explicit time the substeps of a layer would begin at other times.
            parts = (1, 2, 4) if context.weighted and not context.state_dependent else (1,)
            deviations = []
            for k in parts:
                lower = partial(refined, substeps=k, own=True)
                M = states_and_sensitivities(context.net, context.few, lower)[1]
                ratio = _norm(M) / _norm(exact)
                factor = float(torch.maximum(ratio, 1 / ratio).max())
                detail["h" if k == 1 else f"h/{k}"] = factor
                deviations.append(float((_norm(M - exact) / _norm(exact)).max()))
            value = detail["h"]
            if len(parts) > 1 and deviations[1] > 0:
                detail["order"] = math.log2(deviations[0] / deviations[1])
            detail["deviation"] = deviations[0]
        except HdnnError:
            value = math.inf  # a step turns modes by several full turns
        holds = value <= DRIFT
    return Check(
        "scheme-drift",
        holds,
        value,
        DRIFT,
        f"{context.net.scheme} changes norms of gradients by a factor, at h = {_step(context)}",
        "the network behaves as its ODE; halving h shows the order"
        if holds is not False
        else "the step is too large for what the ODE promises; see hdnn.analysis.advise",
        "section 3.2, Remark 1",
        detail=detail,
        proved=False,
    )


def _step(context: Context) -> str:
    return f"{float(context.h.max()):.3g}"
