"""`certify`: the theory of the paper as checks of one network on given states, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from hdnn.analysis import continuous_checks as continuous
from hdnn.analysis import discrete_checks as discrete
from hdnn.analysis.check import Check
from hdnn.analysis.context import Context
from hdnn.errors import HdnnError, unknown_name
from hdnn.networks import HamiltonianNetwork
from hdnn.notebook import table


@dataclass(frozen=True)
class Certificate:
    """What holds for a network on given states; see `certify`.

    Args:
        network: its specification, as `repr` shows it.
        samples: how many states were examined.
        dtype: of the network; the examination itself is always in float64.
        checks: line by line.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> certificate = hdnn.analysis.certify(net, torch.randn(8, 4))
    >>> certificate.ok, certificate["structure"].holds
    (True, True)
    """

    network: str
    samples: int
    dtype: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything holds that is proved; premises and expectations may be unmet."""
        return not any(check.proved for check in self.failed)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold, proved or not."""
        return tuple(check for check in self.checks if check.holds is False)

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        if not self.failed:
            return "everything that applies holds"
        if self.ok:
            return "everything that is proved holds; what is not met, and what it means:"
        return "what fails or is not met, and what it means:"

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise unknown_name("check", name, [check.name for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON.

        Returns:
            Numbers, strings, lists and dictionaries only.
        """
        return {
            "network": self.network,
            "samples": self.samples,
            "dtype": self.dtype,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
        }

    def _repr_html_(self) -> str:
        rows = [(c.verdict, c.statement, c.comparison, c.consequence) for c in self.checks]
        return table(self.network, rows, ("verdict", "statement", "measured", "meaning"))

    def __str__(self) -> str:
        head = f"{self.network}\n{self.samples} samples, {self.dtype} examined in float64"
        rows = [
            f"{check.verdict:8}{check.name:19}{check.comparison:22}{check.statement}"
            for check in self.checks
        ]
        notes = [f"{check.name}: {check.consequence}" for check in self.failed]
        return "\n".join([head, *rows, self.summary, *notes])


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

    Returns:
        One check for every statement, in the order of `CHECKS`.

    Raises:
        HdnnError: an ensemble, a convolution, or no layers or samples to examine.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=0.5, time_invariant=True)
    >>> certificate = certify(net, torch.randn(20, 4))
    >>> certificate["structure"].holds, certificate["norm-at-least-one"].holds
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
