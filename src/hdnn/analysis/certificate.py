"""The certificate: what holds for a network, line by line, with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hdnn.errors import unknown_name
from hdnn.notebook import table


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

    @property
    def verdict(self) -> str:
        """In one word: "holds", "FAILS" or "n/a"."""
        return "n/a" if self.holds is None else "holds" if self.holds else "FAILS"

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


@dataclass(frozen=True)
class Certificate:
    """What holds for a network on given states; see `certify`.

    Args:
        network: its specification, as `repr` shows it.
        samples: how many states were examined.
        dtype: of the network; the examination itself is always in float64.
        checks: line by line.
    """

    network: str
    samples: int
    dtype: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything holds that applies."""
        return all(check.holds is not False for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if check.holds is False)

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise unknown_name("check", name, [check.name for check in self.checks])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "network": self.network,
            "samples": self.samples,
            "dtype": self.dtype,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
        }

    def _repr_html_(self) -> str:
        rows = [(c.verdict, c.statement, c.comparison, c.consequence) for c in self.checks]
        return table(self.network, rows, ("verdict", "statement", "measured", "so"))

    def __str__(self) -> str:
        head = f"{self.network}\n{self.samples} samples, {self.dtype} examined in float64"
        rows = [
            f"{check.verdict:6}{check.name:19}{check.comparison:22}{check.statement}"
            for check in self.checks
        ]
        notes = [f"{check.name}: {check.consequence}" for check in self.failed]
        verdict = "everything that applies holds" if self.ok else "what fails, and what it means:"
        return "\n".join([head, *rows, verdict, *notes])
