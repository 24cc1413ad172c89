"""`certify`: the theory of the paper as checks of one network on given states."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hdnn.analysis import continuous_checks as continuous
from hdnn.analysis import discrete_checks as discrete
from hdnn.analysis.certificate import Certificate, Check
from hdnn.analysis.context import Context
from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork

CHECKS: tuple[Callable[[Context, float | None], Check], ...] = (
    continuous.interconnection,
    continuous.full_rank,
    continuous.positive_slope,
    continuous.imaginary,
    continuous.diagonalisable,
    continuous.gradient_dynamics,
    continuous.smooth_weights,
    continuous.marginal_growth,
    discrete.structure,
    discrete.reciprocal,
    discrete.norm_at_least_one,
    discrete.upper_bound,
    discrete.bounded_states,
    discrete.scheme_drift,
)
"""What is examined, in order, after the states were found to be finite."""


def certify(net: HamiltonianNetwork, y: Tensor, *, tolerance: float | None = None) -> Certificate:
    """What the theory says of a network, checked on states: each line with number and consequence.

    Everything is computed from the actual Jacobians of a copy in float64, so premises that the
    paper uses silently (K of full column rank, no saturated units) are checked, not assumed.

    Args:
        net: one network over features, or over channels without convolution.
        y: states ``(..., n)`` or ``(B, n, *spatial)`` to examine it on.
        tolerance: relative tolerance of equations; None: from rounding, the size of the matrices
            and the condition of their eigenvectors.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=0.5, time_invariant=True)
    >>> found = certify(net, torch.randn(20, 4))
    >>> found["structure"].holds, found["norm-at-least-one"].holds
    (True, True)
    """
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise HdnnError(f"tolerance is a nonnegative number or None, got {tolerance!r}")
    context = Context(net, y)
    checks = [discrete.finite(context, tolerance)]
    if context.finite:
        checks += [check(context, tolerance) for check in CHECKS]
    title = " ".join(net.extra_repr().split())
    dtype = str(context.dtype).removeprefix("torch.")
    return Certificate(title, context.states.shape[1], dtype, tuple(checks))
