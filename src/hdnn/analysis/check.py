"""One line of a certificate: a statement, whether it holds, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One line: a statement, whether it holds, and what follows.

    Args:
        name: short, fixed.
        holds: None where it does not apply to this network.
        value, tolerance: what was measured, and what it is compared with.
        statement: what should hold.
        consequence: what follows where it holds, or what it means that it does not.
        reference: where the paper says so.
        relation: how value and tolerance are compared, "<=" or ">=".
        detail: further numbers, such as the layer where the worst value is.
        proved: whether it is a theorem for such a network; else it is a premise of one or an
            expectation, and where it is not met, nothing is proved, but nothing is broken either.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> check = hdnn.analysis.certify(net, torch.randn(8, 4))["norm-at-least-one"]
    >>> check.holds, check.relation, check.tolerance
    (True, '>=', 1.0)
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
        """The value beside its tolerance, for people."""
        if self.value != self.value:
            return ""
        if self.tolerance != self.tolerance:
            return f"{self.value:.3g}"
        opposite = ">" if self.relation == "<=" else "<"
        sign = {True: self.relation, False: opposite, None: "/"}[self.holds]
        return f"{self.value:.3g} {sign} {self.tolerance:.3g}"


def follows(holds: bool | None, yes: str, no: str) -> str:
    """What follows where a statement holds or does not apply, and where it fails."""
    return no if holds is False else yes
