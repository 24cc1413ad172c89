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
from hdnn.errors import HdnnError, unknown_name
from hdnn.networks import HamiltonianNetwork

WIDTH = 80
"""Columns of a printed certificate."""


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


def certify(net: HamiltonianNetwork, y: Tensor, *, tolerance: float | None = None) -> Certificate:
    """What the theory says of a network, checked on states: each line with number and consequence.

    Everything is computed from the actual Jacobians of a copy in float64, so premises that the
    paper uses silently (K of full column rank, no saturated units) are checked, not assumed.

    Args:
        net: the network to examine, over features, or over channels without convolution; no
            ensemble.
        y: states ``(..., n)`` or ``(B, n, *spatial)`` to examine it on, as they enter the network
            (of a model: ``model.preprocess(X)``). Statements about all weights and states are
            proved anyway; the others hold on these.
        tolerance: relative tolerance of equations such as M J M' = J; None: from rounding, the
            size of the matrices and the condition of their eigenvectors.

    Returns:
        One check for every statement; only the first where states are not finite.

    Raises:
        HdnnError: an ensemble, a convolution, or no layers or samples to examine.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=8, T=0.5, time_invariant=True)
    >>> certificate = certify(net, torch.randn(20, 4))
    >>> check = certificate["norm-at-least-one"]
    >>> check.verdict, check.comparison, check.consequence
    ('holds', '1... >= 1', 'gradients cannot vanish, whatever the weights and the step')
    """
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise HdnnError(f"tolerance is a nonnegative number or None, got {tolerance!r}")
    context = Context(net, y, tolerance)
    finite, *others = CHECKS
    checks = [finite(context)]
    if checks[0].holds:
        checks += [check(context) for check in others]
    title = " ".join(net.extra_repr().split())
    dtype = str(context.dtype).removeprefix("torch.")
    return Certificate(title, context.states.shape[1], dtype, tuple(checks))
