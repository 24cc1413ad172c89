"""The theory as checks: each measures one statement and says what follows from it.

A check is a function of a `Context` that returns what it measured, the tolerance it is compared
with, and further numbers; or None where the statement does not apply to the network. The decorator
`check` adds the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hdnn.analysis.context import Context
from hdnn.analysis.jacobians import factors_of
from hdnn.analysis.norms import singular_values, spectral_norm
from hdnn.fields.hamiltonian import WeightedField
from hdnn.program import times

EPS = torch.finfo(torch.float64).eps
DRIFT = 2.0
"""The factor by which a scheme may change the norm of gradients: that of the step advisor."""
SLACK = 1 + 1e-9
"""Bounds that can hold with equality are compared up to this factor, because of rounding."""


@dataclass(frozen=True)
class Check:
    """One line of a certificate: a statement, whether it holds, and what follows.

    Args:
        name: short name, the same for all networks; the key in ``certificate[name]``.
        holds: whether the statement holds; None where it does not apply to this network.
        value: what was measured, the worst over layers and samples; NaN where nothing was.
        tolerance: what the value is compared with; NaN where nothing is promised.
        statement: what should hold; M is d y_N / d y_l.
        consequence: what follows where it holds, or what it means that it does not.
        reference: where the paper says so.
        relation: how value and tolerance are compared, "<=" or ">=".
        detail: further numbers, such as the layer and the sample of the worst value.
        proved: whether it is a theorem for such a network; else it is a premise of one or an
            expectation, and where it is not met, nothing is proved, but nothing is broken either.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> check = hdnn.analysis.certify(net, torch.randn(8, 4))["norm-at-least-one"]
    >>> check.verdict, check.comparison, check.detail
    ('holds', '1.03 >= 1', {'layer': 5, 'sample': 1})
    """

    name: str
    holds: bool | None
    value: float
    tolerance: float
    statement: str
    consequence: str
    reference: str
    relation: str = "<="
    detail: Mapping[str, Any] = field(default_factory=dict)
    proved: bool = True

    @property
    def verdict(self) -> str:
        """In a word or two: "holds", "FAILS", "not met" (where it is not proved) or "n/a"."""
        if self.holds is None:
            return "n/a"
        return "holds" if self.holds else "FAILS" if self.proved else "not met"

    @property
    def comparison(self) -> str:
        """The value beside its tolerance; empty where there is nothing to compare."""
        if math.isnan(self.value) or self.value == self.tolerance == 0:
            return ""
        if math.isnan(self.tolerance):
            return f"{self.value:.3g}"
        opposite = ">" if self.relation == "<=" else "<"
        return f"{self.value:.3g} {self.relation if self.holds else opposite} {self.tolerance:.3g}"


class Measured(NamedTuple):
    """What a check has measured.

    Args:
        value: compared with the tolerance.
        tolerance: None where nothing is promised, and the value is only shown.
        detail: further numbers.
    """

    value: float
    tolerance: float | None
    detail: Mapping[str, Any] = {}


CHECKS: list[Callable[[Context], Check]] = []
"""What is examined, in order; the first, `finite`, before anything else."""


def check(
    name: str,
    statement: str,
    reference: str,
    *,
    holds: str,
    fails: str,
    idle: str = "",
    relation: str = "<=",
    proved: bool = True,
) -> Callable[[Callable[[Context], Measured | None]], Callable[[Context], Check]]:
    """Make a check of a function that measures, and add it to `CHECKS`.

    Args:
        name, statement, reference, relation, proved: of the `Check`.
        holds, fails, idle: its consequence, where it holds, fails or does not apply.
    """

    def decorate(measure: Callable[[Context], Measured | None]) -> Callable[[Context], Check]:
        def run(context: Context) -> Check:
            value, tolerance, detail = measure(context) or Measured(math.nan, None)
            verdict = None
            if tolerance is not None:
                verdict = value <= tolerance if relation == "<=" else value >= tolerance
            words = {True: holds, False: fails, None: idle}[verdict]
            limit = math.nan if tolerance is None else tolerance
            return Check(
                name, verdict, value, limit, statement, words, reference, relation, detail, proved
            )

        CHECKS.append(run)
        return run

    return decorate


def worst_place(badness: Tensor) -> dict[str, Any]:
    """The layer and the sample of the largest entry of ``(layers, samples)``."""
    place = int(badness.argmax())
    return {"layer": place // badness.shape[1], "sample": place % badness.shape[1]}


# Tolerances of equations are multiples of n eps, times the depth where errors add up over layers;
# 1e-300 in denominators keeps 0 / 0 from being NaN.


@check(
    "finite",
    "every state is finite",
    "section 2.2",
    holds="the forward pass can be computed",
    fails="states overflow: the step or the weights are too large; nothing else can be examined, "
    "see hdnn.analysis.advise",
)
def finite(context: Context) -> Measured:
    """The largest number of samples in a layer whose state is not finite."""
    bad = (~context.own_states_finite).any(-1).sum(1)
    return Measured(float(bad.max()), 0.0, {"layer": int(bad.nonzero()[0])} if bad.any() else {})


# --- the ODE: J, and the premises and statements of Lemmas 2 and 3 --------------------------------


@check(
    "interconnection",
    "J = -J'",
    "equation (7)",
    holds="the energy is constant along the ODE",
    fails="there is no skew J: the energy is not constant along the ODE, and Lemmas 2 and 3 do not "
    "apply",
)
def interconnection(context: Context) -> Measured:
    """||J + J'|| / ||J||, of J - R where there is dissipation; of K where J K' = I."""
    field, allowed = context.hamiltonian, 8 * EPS
    if field is None:  # a baseline
        return Measured(math.nan, allowed)
    if context.inverse and context.standard is not None:
        S = context.standard.K
    elif context.state_dependent:
        t = times(context.net.h, context.layers)
        J = [field.J_at(context.states[j], j, t[j]) for j in range(context.layers)]
        S = torch.stack(J) if field.R is None else torch.stack(J) - field.R
    else:
        S = field.J if field.R is None else field.J - field.R
    defect = spectral_norm(S + S.mT) / spectral_norm(S).clamp_min(1e-300)
    return Measured(float(defect.max()), allowed)


@check(
    "full-rank",
    "K has full column rank",
    "premise of Lemma 3",
    holds="Lemma 3 may hold",
    fails="Lemma 3 does not apply: gradients can grow linearly in time",
    relation=">=",
    proved=False,
)
def full_rank(context: Context) -> Measured | None:
    """Smallest singular value of K, relative to the largest; of a custom H, of its Hessian."""
    field, allowed = context.hamiltonian, context.n * EPS
    if field is None or context.inverse:  # df/dy = D K of MS1 and MS2 needs no inverse
        return None
    if context.standard is None:
        values = context.hessian_eigenvalues(field)
        smallest, largest = values[..., 0], values.abs().amax(-1)
    else:
        K = context.standard.K
        s = singular_values(K)
        wide = K.shape[-2] < K.shape[-1]  # more columns than rows
        smallest, largest = (0.0 if wide else 1.0) * s[:, -1], s[:, 0]
    return Measured(float((smallest / largest.clamp_min(1e-300)).min()), allowed)


@check(
    "unsaturated",
    "D = sigma'(K y + b) > 0",
    "premise of Lemma 3",
    holds="Lemma 3 may hold",
    fails="Lemma 3 does not apply: saturated units pass no gradient",
    relation=">=",
    proved=False,
)
def unsaturated(context: Context) -> Measured | None:
    """D > 0 fails where units are saturated: 1 - tanh^2 is 0 in floating point."""
    D = context.D
    return None if D is None else Measured(float(D.min()), 4 * EPS, worst_place(-D.amin(-1)))


@check(
    "imaginary-spectrum",
    "eigenvalues of df/dy imaginary",
    "Lemma 2",
    holds="no mode of the ODE with frozen coefficients grows or decays",
    fails="modes of the ODE itself grow or decay exponentially, whatever the step",
)
def imaginary_spectrum(context: Context) -> Measured | None:
    """max |Re lambda| / ||df/dy||, from the actual Jacobian.

    A product of a skew and a positive semidefinite matrix has Jordan blocks of at most 2 x 2. So
    rounding moves its eigenvalues by at most about sqrt(eps), and by kappa eps where its
    eigenvectors have condition number kappa.
    """
    if not context.stepped:
        return None
    real = context.spectrum[0].real.abs().amax(-1)
    kappa = torch.full_like(real, torch.inf) if context.kappa is None else context.kappa
    limit = 16 * context.n * (kappa * EPS).clamp(max=EPS**0.5)
    place = worst_place(real / limit)
    at = place["layer"], place["sample"]
    return Measured(float(real[at]), float(limit[at]), place)


@check(
    "diagonalizable",
    "df/dy diagonalizable: kappa",
    "Lemma 3",
    holds="with frozen coefficients gradients stay below kappa, a bound on the condition number of "
    "the eigenvectors, for all time",
    fails="K'DK is singular to working precision: nothing excludes a Jordan block, with gradients "
    "that grow linearly in time",
    proved=False,
)
def diagonalizable(context: Context) -> Measured | None:
    """kappa <= sqrt(cond(K'DK)), see `Context.kappa`; Lemma 3 needs K'DK > 0."""
    kappa = context.kappa
    if kappa is None:
        return None
    return Measured(float(kappa.max()), (context.n * EPS) ** -0.5, worst_place(kappa))


@check(
    "smooth-weights",
    "K, b change slowly: rate",
    "section 3.4, equation (13)",
    holds="coefficients vary slowly: Lemmas 2 and 3 speak of the whole network",
    fails="weights change faster than the dynamics: Lemmas 2 and 3 speak of single layers only; a "
    "larger alpha (smoothness penalty), or time_invariant, helps",
    proved=False,
)
def smooth_weights(context: Context) -> Measured | None:
    """Relative change of K and b while the fastest mode turns by one radian."""
    field = context.field
    if not isinstance(field, WeightedField) or not context.stepped:
        return None
    both = torch.cat([field.weights.K, field.weights.b.unsqueeze(-1)], -1).flatten(1)
    change, size = both.diff(dim=0).norm(dim=1), both.norm(dim=1)
    if not len(change):
        return Measured(0.0, 1.0)
    turn = context.h * context.spectrum[1].amax(1)
    scale = torch.maximum(size[1:], size[:-1]) * torch.maximum(turn[1:], turn[:-1])
    rate = torch.where(change > 0, change / scale, 0.0)
    return Measured(float(rate.max()), 1.0, {"layer": int(rate.argmax()) + 1})


@check(
    "marginal-growth",
    "||M|| within [1/kappa, kappa]",
    "section 3.4",
    holds="gradients neither vanish nor explode beyond what Lemmas 2 and 3 give",
    fails="gradients grow (or vanish) beyond what frozen coefficients allow: D, K or b change "
    "along the trajectory, or the step adds to it",
    proved=False,
)
def marginal_growth(context: Context) -> Measured | None:
    """max(||M||, 1 / ||M||) / kappa, sample by sample, with the kappa of its worst layer."""
    kappa = context.kappa
    if kappa is None or not bool(kappa.isfinite().any()):
        return None
    size = context.M_norm
    ratio = torch.maximum(size, 1 / size) / kappa.amax(0)
    extremes = {"largest": float(size.max()), "smallest": float(size.min())}
    return Measured(float(ratio.max()), SLACK, {**worst_place(ratio), **extremes})


# --- the network: structure, norms, bounds, and what the scheme adds ------------------------------


@check(
    "structure",
    "M J M' = J",
    "section 2.3 (Verlet); not proved in the paper",
    holds="the scheme keeps the geometry of the ODE at any step",
    fails="the discrete network does not keep the structure it promises",
    idle="the scheme promises nothing here; splitting schemes and ImplicitMidpoint() do",
)
def structure(context: Context) -> Measured | None:
    """||M J M' - J|| / (||M||^2 ||J||), of the network or, for MS1, of every layer."""
    where, field = context.preserves, context.conservative
    if where is None or field is None:
        return None
    M = context.M if where == "network" else factors_of(context.net, context.y)
    if context.inverse and context.standard is not None:  # M J M' = J without J = K^-T
        J = context.standard.K.unsqueeze(1)
        defect = M.mT @ J @ M - J
    else:
        J = field.J if where == "network" else field.J.unsqueeze(1)
        defect = M @ J @ M.mT - J
    size = spectral_norm(M).square() * spectral_norm(J).clamp_min(1e-300)
    defect = spectral_norm(defect) / size
    depth = context.layers if where == "network" else 1
    allowed = 32 * context.n * depth * EPS
    return Measured(float(defect.max()), allowed, {"within": where, **worst_place(defect)})


@check(
    "reciprocal-pairs",
    "singular values of M: s, 1/s",
    "follows from M J M' = J",
    holds="for every direction that shrinks another grows as much",
    fails="M is not symplectic",
    idle="only where J^2 = -c I and the structure is kept",
)
def reciprocal_pairs(context: Context) -> Measured | None:
    """|s s' - 1| / ||M||^2 of the pairs of singular values of a symplectic M."""
    field = context.conservative
    if context.preserves != "network" or field is None:
        return None
    square = -field.J @ field.J  # a multiple of the identity where J is J1, up to a rotation
    multiple = square[0, 0] * torch.eye(len(square)).to(square)
    if not torch.allclose(square, multiple) or not bool(square[0, 0] > 0):
        return None
    s = singular_values(context.M)
    # A small singular value carries an error of eps ||M||, so its product with the large one
    # carries eps ||M||^2.
    defect = ((s * s.flip(-1) - 1).abs() / s[..., :1].square().clamp_min(1)).amax(-1)
    allowed = 32 * context.n * context.layers * EPS
    return Measured(float(defect.max()), allowed, worst_place(defect))


@check(
    "norm-at-least-one",
    "||M|| >= 1 at every depth",
    "follows from M J M' = J, or from det M >= 1",
    holds="gradients cannot vanish, whatever the weights and the step",
    fails="gradients shrink although no layer can shrink volumes",
    idle="not promised by this scheme: the smallest norm is a measurement",
    relation=">=",
)
def norm_at_least_one(context: Context) -> Measured:
    """||J|| = ||M J M'|| <= ||M||^2 ||J||, or 1 <= det M <= ||M||^n; for every sample."""
    size, field = context.M_norm[:-1], context.conservative  # the last is that of the identity
    preserves = context.preserves == "network" and field is not None and bool(field.J.any())
    applies = preserves or context.keeps_volume
    limit = 1 - 32 * context.n * context.layers * EPS
    return Measured(float(size.min()), limit if applies else None, worst_place(-size))


@check(
    "bounded-states",
    "||K y_l + b||_1 <= H + m log 2",
    "section 3.1, equation (8)",
    holds="the forward pass stays bounded at any depth, as in continuous time",
    fails="the scheme adds energy: states leave the level set of the ODE",
    idle="it needs time-invariant weights and tanh",
    proved=False,
)
def bounded_states(context: Context) -> Measured | None:
    """log cosh x >= |x| - log 2, so constant energy bounds the forward pass; as a ratio."""
    field = context.standard
    if field is None or field.activation.name != "tanh" or not context.net.time_invariant:
        return None
    z = context.states @ field.K[0].mT + field.b[0]
    H = field.activation.energy(z).sum(-1)
    size = z.abs().sum(-1) / (H[0] + z.shape[-1] * math.log(2))
    drift = float(((H - H[0]) / (1 + H[0])).abs().max())
    return Measured(float(size.max()), SLACK, {**worst_place(size), "energy drift": drift})


@check(
    "scheme-drift",
    "scheme changes ||M|| by factor",
    "section 3.2, Remark 1",
    holds="the network behaves as its ODE",
    fails="the step is too large for what the ODE promises; see hdnn.analysis.advise",
    proved=False,
)
@torch.no_grad()
def scheme_drift(context: Context) -> Measured | None:
    """Norms of the network's gradients against those of its ODE, for some samples."""
    if not context.stepped:
        return None
    detail, exact = {"step": float(context.h.max())}, context.ode_sensitivities()
    if exact is None:  # a step turns modes by several full turns
        return Measured(math.inf, DRIFT, detail)
    M = context.sensitivities_with(context.net.program)
    size = spectral_norm(exact)
    ratio, deviation = spectral_norm(M) / size, spectral_norm(M - exact) / size
    value = float(torch.maximum(ratio, 1 / ratio).max())
    return Measured(value, DRIFT, {**detail, "deviation": float(deviation.max())})
