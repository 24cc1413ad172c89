"""The theory as checks: each measures one statement and says what follows from it.

A check is a function of a `Context` that returns what it `Measured`: a number and the tolerance it
is compared with, or why the statement does not apply to the network. The decorator `check` adds
the words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hdnn.analysis.context import Context
from hdnn.analysis.norms import singular_values, spectral_norm
from hdnn.program import signed
from hdnn.testing import form_defect

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
        if math.isnan(self.value):
            return "by structure" if self.holds else ""
        if self.value == self.tolerance == 0:
            return ""
        if math.isnan(self.tolerance):
            return f"{self.value:.3g}"
        opposite = ">" if self.relation == "<=" else "<"
        text = f"{self.value:.3g} {self.relation if self.holds else opposite} {self.tolerance:.3g}"
        return f"{text} (estimated)" if self.detail.get("estimated") else text


class Measured(NamedTuple):
    """What a check has measured.

    Args:
        value: compared with the tolerance; NaN where nothing was measured.
        tolerance: None where nothing is promised, and the value, if any, is only shown.
        detail: further numbers.
        why: why nothing is promised.
        proved: False where the statement is no theorem for this network.
    """

    value: float
    tolerance: float | None
    detail: Mapping[str, Any] = {}
    why: str = ""
    proved: bool = True


BY_STRUCTURE = Measured(math.nan, math.nan)
"""A theorem that follows from how the network is built, where nothing can be measured."""
CHECKS: list[Callable[[Context], Check]] = []
"""What is examined, in order; the first, `finite`, before anything else."""


def not_applicable(why: str = "") -> Measured:
    """Nothing to measure, and why."""
    return Measured(math.nan, None, why=why)


def check(
    name: str,
    statement: str,
    reference: str,
    *,
    holds: str,
    fails: str,
    relation: str = "<=",
    proved: bool = True,
) -> Callable[[Callable[[Context], Measured]], Callable[[Context], Check]]:
    """Make a check of a function that measures, and add it to `CHECKS`.

    Args:
        name, statement, reference, relation, proved: of the `Check`.
        holds, fails: its consequence, where it holds or fails.
    """

    def decorate(measure: Callable[[Context], Measured]) -> Callable[[Context], Check]:
        def run(context: Context) -> Check:
            measured = measure(context)
            value, limit, theorem = measured.value, measured.tolerance, proved and measured.proved
            verdict: bool | None = None
            if measured is BY_STRUCTURE:
                verdict = True
            elif limit is not None:
                verdict = value <= limit if relation == "<=" else value >= limit
            words = {True: holds, False: fails, None: measured.why}[verdict]
            limit = math.nan if limit is None else limit
            detail = measured.detail
            return Check(
                name, verdict, value, limit, statement, words, reference, relation, detail, theorem
            )

        CHECKS.append(run)
        return run

    return decorate


def _no_units(context: Context) -> str:
    return "a custom energy has no weights" if context.field.hamiltonian else BASELINE


def worst_place(badness: Tensor) -> dict[str, Any]:
    """The layer and the sample of the largest entry of ``(layers, samples)``."""
    place = int(badness.argmax())
    return {"layer": place // badness.shape[1], "sample": place % badness.shape[1]}


ESTIMATED = 0.9
"""An estimated norm is at least that large where the norm is at least 1."""
BASELINE = "a baseline has neither J nor an energy"
NO_PROMISE = "this scheme promises nothing here; splitting schemes and ImplicitMidpoint() do"
LARGE = "it needs whole Jacobians, and those of images of this size are too large"

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
    bad = (~context.own_states_finite).flatten(2).any(-1).sum(1)
    return Measured(float(bad.max()), 0.0, {"layer": int(bad.nonzero()[0])} if bad.any() else {})


# --- the ODE: J, R, and the premises and statements of Lemmas 2 and 3 -----------------------------


@check(
    "interconnection",
    "J = -J'",
    "equation (7)",
    holds="J itself neither adds nor takes energy",
    fails="there is no skew J: the energy is not constant along the ODE, and Lemmas 2 and 3 do not "
    "apply",
)
def interconnection(context: Context) -> Measured:
    """||J + J'|| / ||J||; where J is the inverse of K', of K."""
    if not context.field.hamiltonian:
        return not_applicable(BASELINE)
    if context.implied and context.large:
        return BY_STRUCTURE  # parameters fill the upper half of K, and the lower one with a minus
    J = context.J
    defect = spectral_norm(J + J.mT) / spectral_norm(J).clamp_min(1e-300)
    return Measured(float(defect.max()), 8 * EPS)


@check(
    "dissipation",
    "R = R' >= 0",
    "not in the paper",
    holds="the energy cannot grow along the ODE",
    fails="the energy grows in some direction",
)
def dissipation(context: Context) -> Measured:
    """-(the smallest eigenvalue of R) / ||R||, or its asymmetry."""
    R = context.R
    if R is None:
        return not_applicable()
    size = spectral_norm(R).clamp_min(1e-300)
    least = torch.linalg.eigvalsh((R + R.mT) / 2)[..., 0]
    defect = torch.maximum(-least, spectral_norm(R - R.mT)) / size
    return Measured(float(defect.max()), 8 * len(R) * EPS)


@check(
    "energy",
    "dH/dt <= 0, and 0 without R",
    "equation (7)",
    holds="along the ODE with frozen weights the energy is constant, or falls if there is "
    "dissipation",
    fails="the energy is not constant along the ODE, or grows in spite of dissipation",
)
def energy(context: Context) -> Measured:
    """dH/dt = g' f with g = dH/dy and f = (J - R) g, relative to (||J|| + ||R||) |g|^2."""
    if not context.field.hamiltonian:
        return not_applicable(BASELINE)
    g, f = context.gradients_and_velocities
    rate, R = (g * f).sum(-1), context.R
    # Where J K' = I, f is sigma(..) and g = K' f.
    size = (f if context.implied else g).square().sum(-1)
    size = size * (context.J_size if R is None else context.J_size + R.norm())
    ratio = (rate.abs() if R is None else rate) / size.clamp_min(1e-300)
    return Measured(float(ratio.max()), 8 * context.n * EPS, worst_place(ratio))


@check(
    "full-rank",
    "K has full column rank",
    "premise of Lemma 3",
    holds="Lemma 3 may hold",
    fails="Lemma 3 does not apply: gradients can grow linearly in time",
    relation=">=",
    proved=False,
)
def full_rank(context: Context) -> Measured:
    """Smallest singular value of K, relative to the largest; of a custom H, of its Hessian."""
    if context.no_lemma_3 or context.implied or context.large:
        return not_applicable(context.no_lemma_3 or (LARGE if context.large else "J K' = I"))
    if context.D is None:
        values = context.hessian_eigenvalues
        smallest, largest = values[..., 0], values.abs().amax(-1)
    else:
        s = singular_values(context.K)
        wide = context.K.shape[-2] < context.n  # more columns than rows
        smallest, largest = (0.0 if wide else 1.0) * s[:, -1], s[:, 0]
    return Measured(float((smallest / largest.clamp_min(1e-300)).min()), context.n * EPS)


@check(
    "unsaturated",
    "D = sigma'(K y + b) > 0",
    "premise of Lemma 3",
    holds="Lemma 3 may hold",
    fails="Lemma 3 does not apply: saturated units pass no gradient",
    relation=">=",
    proved=False,
)
def unsaturated(context: Context) -> Measured:
    """D > 0 fails where units are saturated: 1 - tanh^2 is 0 in floating point."""
    if context.no_lemma_3 or context.D is None:
        return not_applicable(context.no_lemma_3 or _no_units(context))
    return Measured(float(context.D.min()), 4 * EPS, worst_place(-context.D.amin(-1)))


@check(
    "imaginary-spectrum",
    "eigenvalues of df/dy imaginary",
    "Lemma 2",
    holds="no mode of the ODE with frozen coefficients grows or decays",
    fails="modes of the ODE itself grow or decay exponentially, whatever the step",
)
def imaginary_spectrum(context: Context) -> Measured:
    """max |Re lambda| / ||df/dy||, from the actual Jacobian."""
    return _real_parts(context, context.obstacle, torch.abs)


@check(
    "no-growing-mode",
    "Re(eigenvalues of df/dy) <= 0",
    "not in the paper",
    holds="no mode of the ODE with frozen coefficients grows",
    fails="modes of the ODE itself grow exponentially, whatever the step",
)
def no_growing_mode(context: Context) -> Measured:
    """max Re lambda / ||df/dy||: (J - R) P has the eigenvalues of P^(1/2) (J - R) P^(1/2)."""
    if context.R is None:
        return not_applicable()
    why = context.obstacle if context.state_dependent else ""
    return _real_parts(context, why, torch.Tensor.clone)


def _real_parts(context: Context, why: str, of: Callable[[Tensor], Tensor]) -> Measured:
    """The largest real part of an eigenvalue of df/dy, relative to its norm.

    A product of a skew and a positive semidefinite matrix has Jordan blocks of at most 2 x 2. So
    rounding moves its eigenvalues by at most about sqrt(eps), and by kappa eps where its
    eigenvectors have condition number kappa.
    """
    if why or not context.stepped:
        return not_applicable(why)
    if context.large:
        return BY_STRUCTURE if context.convex else not_applicable(LARGE)
    real = of(context.spectrum[0].real).amax(-1)
    kappa = torch.full_like(real, torch.inf) if context.obstacle else context.kappa
    limit = 16 * context.n * (kappa * EPS).clamp(max=EPS**0.5)
    place = worst_place(real / limit)
    at = place["layer"], place["sample"]
    return Measured(float(real[at]), float(limit[at]), place, proved=context.convex)


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
def diagonalizable(context: Context) -> Measured:
    """kappa <= sqrt(cond(K'DK)), see `Context.kappa`; Lemma 3 needs K'DK > 0."""
    if context.no_lemma_3 or context.large:
        return not_applicable(context.no_lemma_3 or LARGE)
    kappa = context.kappa
    return Measured(float(kappa.max()), (context.n * EPS) ** -0.5, worst_place(kappa))


@check(
    "smooth-weights",
    "K, b change slowly: rate",
    "section 3.4, equation (13)",
    holds="coefficients vary slowly: what holds for frozen ones speaks of the whole network",
    fails="weights change faster than the dynamics: what holds for frozen coefficients speaks of "
    "single layers only; a larger alpha (smoothness penalty), or time_invariant, helps",
    proved=False,
)
def smooth_weights(context: Context) -> Measured:
    """Relative change of K and b while the fastest mode turns by one radian."""
    if context.standard is None:
        return not_applicable(_no_units(context))
    both = torch.cat([context.net.K.flatten(1), context.net.b.flatten(1)], 1)
    change, size = both.diff(dim=0).norm(dim=1), both.norm(dim=1)
    if not bool(change.any()):
        return Measured(0.0, 1.0)
    if context.large:
        return not_applicable(LARGE)
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
def marginal_growth(context: Context) -> Measured:
    """max(||M||, 1 / ||M||) / kappa, sample by sample, with the kappa of its worst layer."""
    if context.no_lemma_3 or context.large:
        return not_applicable(context.no_lemma_3 or LARGE)
    kappa = context.kappa
    if not bool(kappa.isfinite().any()):
        return not_applicable("kappa is infinite")
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
)
def structure(context: Context) -> Measured:
    """`form_defect` of M and J, of the network or, for MS1 and J(t), of every layer."""
    where = context.preserves
    if where is None:
        return not_applicable(context.obstacle or NO_PROMISE)
    # Where J K' = I, M J M' = J without the inverse: M' J^-1 M = J^-1.
    if context.large:
        layers = range(context.layers)
        spans = [layers] if where == "network" else [range(j, j + 1) for j in layers]
        defect = torch.stack([form_defect(*context.directions(span)) for span in spans])
    else:
        M = context.M if where == "network" else context.factors
        M, J = M.mT if context.implied else M, context.of_sample(context.J)
        J = J.unsqueeze(1) if J.ndim == 3 else J
        defect = form_defect(M, M @ J.mT, torch.eye(context.n).to(M), J.mT)
    depth = context.layers if where == "network" else 1
    allowed = 32 * depth * EPS
    return Measured(float(defect.max()), allowed, {"within": where, **worst_place(defect)})


@check(
    "layer-energy",
    "no layer adds energy",
    "not in the paper",
    holds="a layer leaves its energy as it is (with dissipation it takes some), whatever the step",
    fails="a layer adds energy although its scheme cannot",
)
def layer_energy(context: Context) -> Measured:
    """H_l(y_{l+1}) - H_l(y_l), relative to the sum of the energies of all hidden units."""
    if not context.net.scheme.energy_preserving:
        return not_applicable()
    assert context.standard is not None  # the scheme needs hidden units
    units, sigma = context.standard.units_fn(), context.standard.activation
    after = torch.stack([units(j, x) for j, x in enumerate(context.path[1:])])
    old = sigma.energy(context.units(range(context.layers)))
    new = sigma.energy(context.samples_of(after))
    change = signed(context.standard.signs, new - old, 2).sum(-1)
    change = change.abs() if context.R is None else change
    change = change / (1 + (old.abs() + new.abs()).sum(-1))
    return Measured(float(change.max()), 32 * context.n * EPS, worst_place(change))


@check(
    "reciprocal-pairs",
    "singular values of M: s, 1/s",
    "follows from M J M' = J",
    holds="for every direction that shrinks another grows as much",
    fails="M is not symplectic",
)
def reciprocal_pairs(context: Context) -> Measured:
    """|s s' - 1| / ||M||^2 of the pairs of singular values of a symplectic M."""
    symplectic = context.preserves == "network" and _is_scaled_orthogonal(context.J)
    if not symplectic:
        return not_applicable(context.obstacle or "only where J^2 = -c I and M J M' = J")
    if context.large:
        return BY_STRUCTURE
    s = singular_values(context.M)
    # A small singular value carries an error of eps ||M||, so its product with the large one
    # carries eps ||M||^2.
    defect = ((s * s.flip(-1) - 1).abs() / s[..., :1].square().clamp_min(1)).amax(-1)
    allowed = 32 * context.n * context.layers * EPS
    return Measured(float(defect.max()), allowed, worst_place(defect))


def _is_scaled_orthogonal(J: Tensor) -> bool:
    """Whether J^2 = -c I: J is J1, up to a rotation and a scale."""
    square = -J @ J
    multiple = square[0, 0] * torch.eye(len(square)).to(square)
    return torch.allclose(square, multiple) and bool(square[0, 0] > 0)


@check(
    "volume",
    "det of every layer >= 1",
    "docs/why-not-a-resnet.md",
    holds="no layer shrinks volumes, whatever the weights and the step",
    fails="a layer shrinks volumes although its scheme cannot",
    relation=">=",
)
def volume(context: Context) -> Measured:
    """The least determinant of d y_{l+1} / d y_l, of those that are known to some digits."""
    if not context.keeps_volume:
        return not_applicable(context.obstacle or NO_PROMISE)
    if context.large:
        return BY_STRUCTURE
    sign, log = torch.linalg.slogdet(context.factors)
    s = singular_values(context.factors)
    # A relative error of n eps ||F|| in F changes det F by n times as much, times ||F^-1||.
    error = 32 * context.n**2 * EPS * s[..., 0] / s[..., -1].clamp_min(1e-300)
    det = torch.where(error < 0.01, sign * log.exp(), torch.inf)
    if not bool(det.isfinite().any()):
        return BY_STRUCTURE
    place = worst_place(-det - error)
    at = place["layer"], place["sample"]
    return Measured(float(det[at]), 1 - float(error[at]), place)


@check(
    "norm-at-least-one",
    "||M|| >= 1 at every depth",
    "follows from det M >= 1",
    holds="gradients cannot vanish, whatever the weights and the step",
    fails="gradients shrink although no layer can shrink volumes",
    relation=">=",
)
def norm_at_least_one(context: Context) -> Measured:
    """1 <= det M <= ||M||^n, for every sample; the norm at the last depth is that of the identity.

    Estimates are from below: what they miss of 1 by some percent, the norm need not.
    """
    if context.large:
        smallest, limit = context.profile.minimum[:-1], 1.0
        value, layer = float(smallest.min()), context.profile.depths[smallest.argmin()]
        place: dict[str, Any] = {"layer": layer, "estimated": True}
        if context.keeps_volume and ESTIMATED <= value < limit:
            return BY_STRUCTURE
    else:
        size, limit = context.M_norm[:-1], 1 - 32 * context.n * context.layers * EPS
        value, place = float(size.min()), worst_place(-size)
    why = "" if context.keeps_volume else "nothing promises it: the smallest norm is a measurement"
    return Measured(value, None if why else limit, place, why)


@check(
    "bounded-states",
    "||K y_l + b||_1 <= H + m log 2",
    "section 3.1, equation (8)",
    holds="the forward pass stays bounded at any depth, as in continuous time",
    fails="the scheme adds energy: states leave the level set of the ODE",
    proved=False,
)
def bounded_states(context: Context) -> Measured:
    """log cosh x >= |x| - log 2, so constant energy bounds the forward pass; as a ratio."""
    if context.standard is None:
        return not_applicable(_no_units(context))
    sigma = context.standard.activation
    if sigma.name != "tanh" or not context.net.time_invariant or context.standard.signs is not None:
        return not_applicable("it needs time-invariant weights and tanh, without signs")
    z = context.units([0] * (context.layers + 1))
    H = sigma.energy(z).sum(-1)
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
def scheme_drift(context: Context) -> Measured:
    """Norms of the network's gradients against those of its ODE, for some samples."""
    if not context.stepped or context.large:
        return not_applicable(LARGE if context.stepped else "there is no step")
    detail, exact = {"step": float(context.h.max())}, context.ode_sensitivities()
    if exact is None:  # a step turns modes by several full turns
        return Measured(math.inf, DRIFT, detail)
    M = context.sensitivities_with(context.net.program)
    size = spectral_norm(exact)
    ratio, deviation = spectral_norm(M) / size, spectral_norm(M - exact) / size
    value = float(torch.maximum(ratio, 1 / ratio).max())
    return Measured(value, DRIFT, {**detail, "deviation": float(deviation.max())})
