"""`certify`: the theory of the paper as checks of one network on given states, line by line."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from hdnn.analysis.checks import CHECKS, Check
from hdnn.analysis.context import Context
from hdnn.errors import unknown_name
from hdnn.networks import HamiltonianNetwork, without_autocast

WIDTH = 80
"""Columns of a printed certificate."""


@dataclass(frozen=True)
class Certificate:
    """What holds for a network on given states; see `certify`.

    Printed, it is a table with a line for every check. ``certificate["structure"]`` is the check of
    that name.

    Args:
        network: specification of the network, as `repr` shows it.
        samples: number of states that were examined.
        dtype: dtype of the states; the examination itself is always in float64.
        checks: the lines, in the order in which they are printed.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("H1", features=4, layers=6, T=2.0)
    >>> certificate = hdnn.analysis.certify(net, torch.randn(8, 4))
    >>> [(check.name, check.comparison) for check in certificate.failed], certificate.ok
    ([('scheme-drift', '2.93 > 2')], True)
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
        return {**asdict(self), "ok": self.ok, "checks": [asdict(c) for c in self.checks]}

    def __str__(self) -> str:
        count = f"{self.samples} sample{'s' if self.samples > 1 else ''}"
        how = self.dtype if self.dtype == "float64" else f"{self.dtype} examined in float64"
        head = f"{self.network}; {count}, {how}"
        rows = [f"{c.verdict:8}{c.name:19}{c.comparison:22}{c.statement}" for c in self.checks]
        notes = [f"- {c.name} ({c.reference}): {c.consequence}" for c in self.failed]
        wrap = partial(textwrap.wrap, width=WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        lines = [*wrap(head), *(row.rstrip() for row in rows), self.summary]
        return "\n".join([*lines, *chain.from_iterable(map(wrap, notes))])


@without_autocast
def certify(net: HamiltonianNetwork, y: Tensor) -> Certificate:
    """What the theory says of a network, checked on states: each line with number and consequence.

    Everything is computed from the actual Jacobians of a copy in float64, so premises that the
    paper uses silently (K of full column rank, no saturated units) are checked, not assumed.

    Args:
        net: The network to examine, over features, or over channels without convolution; of an
            ensemble, one network (``net.member(e)``).
        y: The states ``(..., n)`` or ``(B, n, *spatial)`` that enter the network; of a model,
            ``model.preprocess(X)``. A theorem is checked on these, and holds for all others too;
            premises and expectations may be met on these and not on others.

    Returns:
        One check for every statement; only the first, "finite", where states are not finite.

    Raises:
        HdnnError: an ensemble, a convolution, or no layers or samples to examine.

    A line has the verdict, the name of the check, the measured number and what it is compared with,
    and the statement, in which M is d y_N / d y_l. Rounding errors are shown as ``...`` here.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> options = {"time_invariant": True, "dtype": torch.float64}
    >>> net = hdnn.network("MS3", features=4, layers=8, T=0.5, **options)
    >>> certificate = certify(net, torch.randn(20, 4, dtype=torch.float64))
    >>> print(certificate)
    MS3, features=4, layers=8, h=0.0625, T=0.5, Verlet(first='y'), time-invariant;
      20 samples, float64
    holds   finite                                   every state is finite
    holds   interconnection    0 <= 1.78e-15         J = -J'
    holds   full-rank          0.0315 >= 8.88e-16    K has full column rank
    holds   unsaturated        0.000104 >= 8.88e-16  D = sigma'(K y + b) > 0
    holds   imaginary-spectrum ... <= ...            eigenvalues of df/dy imaginary
    holds   diagonalizable     841 <= 3.36e+07       df/dy diagonalizable: kappa
    holds   smooth-weights     0 <= 1                K, b change slowly: rate
    holds   marginal-growth    0.0711 <= 1           ||M|| within [1/kappa, kappa]
    holds   structure          ... <= 2.27e-13       M J M' = J
    holds   reciprocal-pairs   ... <= 2.27e-13       singular values of M: s, 1/s
    holds   norm-at-least-one  1.03 >= 1             ||M|| >= 1 at every depth
    holds   bounded-states     0.99 <= 1             ||K y_l + b||_1 <= H + m log 2
    holds   scheme-drift       1.04 <= 2             scheme changes ||M|| by factor
    everything that applies holds

    Each check also says what follows:

    >>> certificate["norm-at-least-one"].consequence
    'gradients cannot vanish, whatever the weights and the step'
    """
    context = Context(net, y)
    finite, *others = CHECKS
    checks = [finite(context)]
    if checks[0].holds:
        checks += [check(context) for check in others]
    title = " ".join(net.extra_repr().split())
    dtype = str(context.dtype).removeprefix("torch.")
    return Certificate(title, context.states.shape[1], dtype, tuple(checks))
