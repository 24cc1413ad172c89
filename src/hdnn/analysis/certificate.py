"""`certify`: the theory of the paper as checks of one network on given states, line by line."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from hdnn import notebooks
from hdnn.analysis.checks import CHECKS, Check
from hdnn.analysis.context import Context
from hdnn.analysis.jacobians import check_single_network, unless_large
from hdnn.analysis.recurrent import state_space_checks
from hdnn.analysis.watch import undisturbed
from hdnn.errors import HdnnError, unknown_name
from hdnn.networks import HamiltonianNetwork, without_autocast
from hdnn.progress import track
from hdnn.statespace import StateSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    def theorems(self) -> tuple[Check, ...]:
        """The checks of what is proved for this network; the first, "finite", is no theorem."""
        return tuple(c for c in self.checks[1:] if c.proved and c.holds is not None)

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        if not self.failed:
            return "everything that applies holds" if self.theorems else "no theorem applies here"
        if self.ok:
            return "everything that is proved holds; what is not met, and what it means:"
        return "what fails or is not met, and what it means:"

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise unknown_name("check", name, [check.name for check in self.checks])

    def plot(self, axis: Axes | None = None) -> Axes:
        """Draw by what factor each statement holds.

        Args:
            axis: where to draw; None: a new one, of pyplot.

        Returns:
            The axis; see `hdnn.plots.margins`.

        Raises:
            MissingPackageError: there is no matplotlib.

        >>> import hdnn, torch
        >>> net = hdnn.network("MS3", features=4, layers=6, T=0.5)
        >>> axis = hdnn.analysis.certify(net, torch.randn(8, 4)).plot()
        >>> axis.get_yticklabels()[0].get_text()
        'interconnection'
        """
        plots = notebooks.plots()
        drawn: Axes = plots.margins(plots.given_or_new(axis, 4.4), self)
        return drawn

    def _repr_html_(self) -> str:
        shown = [check for check in self.checks if check.holds is not None]
        rows = [[c.verdict, c.name, c.comparison, c.statement, c.consequence] for c in shown]
        header = ["verdict", "check", "measured", "statement", "meaning"]
        title = f"{self.network}; {self.samples} samples, {self.dtype}"
        verdict = "everything that is proved holds" if self.ok else "what is proved does not hold"
        return notebooks.table(title, header, rows, [verdict])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON.

        Returns:
            Numbers, strings, lists and dictionaries only.
        """
        return {**asdict(self), "ok": self.ok, "checks": [asdict(c) for c in self.checks]}

    def __str__(self) -> str:
        count = f"{self.samples} sample{'s' if self.samples > 1 else ''}"
        how = self.dtype if self.dtype == "float64" else f"{self.dtype} examined in float64"
        finite, *others = self.checks
        lines = [*_wrap(f"{self.network}; {count}, {how}"), _row(finite)]
        shown = [check for check in others if check.comparison]
        for title, proved in (("theorems:", True), ("not proved, but measured:", False)):
            rows = [_row(check) for check in shown if (check in self.theorems) is proved]
            lines += [title, *rows] if rows else []
        lines.append(self.summary)
        for check in self.failed:
            lines += _wrap(f"- {check.name} ({check.reference}): {check.consequence}")
        idle: dict[str, list[str]] = {}
        for check in others:
            if check.holds is None and check.consequence:
                idle.setdefault(check.consequence, []).append(check.name)
        for why, names in idle.items():
            lines += _wrap(f"n/a     {', '.join(names)}: {why}")
        return "\n".join(lines)


def _row(check: Check) -> str:
    row = f"{check.verdict:8}{check.name:19}{check.comparison:22}{check.statement}"
    return row.rstrip()


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


@dataclass(frozen=True)
class ModelCertificate:
    """What holds for the Hamiltonian networks in a model, and what nothing is proved about.

    Args:
        model: the class of the model.
        blocks: the certificates of its networks, by their names in ``named_modules``, in the order
            in which they ran; of one that ran twice the second is "name:2".
        others: the other parts of the model; M is never that of a whole model.

    >>> import hdnn, torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> block = hdnn.network("H1", features=4, layers=6, T=0.5)
    >>> certificate = certify(
    ...     nn.Sequential(nn.Linear(2, 4), block, nn.Linear(4, 1)), torch.ones(5, 2)
    ... )
    >>> certificate.ok, certificate.others
    (True, ('0 (Linear)', '2 (Linear)'))
    >>> certificate["1"]["norm-at-least-one"].verdict
    'holds'
    """

    model: str
    blocks: Mapping[str, Certificate]
    others: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything holds that is proved about the networks."""
        return all(certificate.ok for certificate in self.blocks.values())

    @property
    def scope(self) -> str:
        """What nothing is proved about, in a sentence."""
        if not self.others:
            return "nothing is proved about what the model computes between its networks"
        return f"nothing is proved about the rest of the model: {', '.join(self.others)}"

    def __getitem__(self, name: str) -> Certificate:
        if name not in self.blocks:
            raise unknown_name("network", name, self.blocks)
        return self.blocks[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON.

        Returns:
            Numbers, strings, lists and dictionaries only.
        """
        blocks = {name: block.to_dict() for name, block in self.blocks.items()}
        return {"model": self.model, "ok": self.ok, "blocks": blocks, "others": [*self.others]}

    def _repr_html_(self) -> str:
        parts = [
            f"<h4>{html.escape(name)}</h4>{certificate._repr_html_()}"
            for name, certificate in self.blocks.items()
        ]
        return "".join([*parts, f"<p>{html.escape(self.scope)}</p>"])

    def __str__(self) -> str:
        parts = [f"{name}:\n{certificate}" for name, certificate in self.blocks.items()]
        return "\n\n".join([*parts, "\n".join(_wrap(self.scope))])


@overload
def certify(net: HamiltonianNetwork, y: Tensor) -> Certificate: ...


@overload
def certify(net: StateSpace, y: Tensor) -> Certificate: ...


@overload
def certify(net: nn.Module, y: Any) -> ModelCertificate: ...


def certify(net: nn.Module, y: Any) -> Certificate | ModelCertificate:
    """What the theory says of a network, checked on states: each line with number and consequence.

    Everything is computed from the actual Jacobians of a copy in float64, so premises that the
    paper uses silently (K of full column rank, no saturated units) are checked, not assumed.

    Where a convolution couples more than 1024 numbers of an image, Jacobians are too large: what
    follows from the structure of the network is stated without them, norms are estimated from
    below, and the rest does not apply. Of such images at most 4 are examined, of smaller ones 16.

    Of a state-space network, what is proved for all weights stands beside what the given inputs
    reach: contraction, gradients through time, gain and, in passive mode, passivity.

    Args:
        net: The network to examine; of an ensemble, one network (``net.member(e)``). Or a model of
            any kind that contains such networks: each is examined on the states that enter it when
            the model, in evaluation mode, is called with y.
        y: The states ``(..., n)`` or ``(B, n, *spatial)`` that enter the network; the inputs
            ``(batch, time, inputs)`` of a state-space network; the input of a model. A theorem is
            checked on these, and holds for all others too; premises and expectations may be met on
            these and not on others.

    Returns:
        One check for every statement; only the first, "finite", where states are not finite. Of a
        model, that of every network, and the parts about which nothing is proved.

    Raises:
        HdnnError: an ensemble, no layers or samples to examine, or no network in a model.

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
    theorems:
    holds   interconnection    0 <= 1.78e-15         J = -J'
    holds   energy             ... <= 7.11e-15       dH/dt <= 0, and 0 without R
    holds   imaginary-spectrum ... <= ...            eigenvalues of df/dy imaginary
    holds   structure          ... <= 5.68e-14       M J M' = J
    holds   reciprocal-pairs   ... <= 2.27e-13       singular values of M: s, 1/s
    holds   volume             1 >= 1                det of every layer >= 1
    holds   norm-at-least-one  1.03 >= 1             ||M|| >= 1 at every depth
    not proved, but measured:
    holds   full-rank          0.0315 >= 8.88e-16    K has full column rank
    holds   unsaturated        0.000104 >= 8.88e-16  D = sigma'(K y + b) > 0
    holds   diagonalizable     841 <= 3.36e+07       df/dy diagonalizable: kappa
    holds   smooth-weights     0 <= 1                K, b change slowly: rate
    holds   marginal-growth    0.0711 <= 1           ||M|| within [1/kappa, kappa]
    holds   bounded-states     0.99 <= 1             ||K y_l + b||_1 <= H + m log 2
    holds   scheme-drift       1.04 <= 2             scheme changes ||M|| by factor
    everything that applies holds

    Each check also says what follows:

    >>> certificate["norm-at-least-one"].consequence
    'gradients cannot vanish, whatever the weights and the step'
    """
    if isinstance(net, HamiltonianNetwork):
        return _certify(net, y)
    if isinstance(net, StateSpace):
        sequences, checks = state_space_checks(net, y)
        title = f"StateSpace, {net.extra_repr()}"
        return Certificate(title, sequences, str(y.dtype).removeprefix("torch."), tuple(checks))
    if not isinstance(net, nn.Module):
        raise HdnnError(
            f"certify takes a network, or a model that contains one, got a {type(net).__name__}; "
            "of an estimator, pass estimator.model_"
        )
    blocks = {name: _certify(*pair) for name, pair in block_inputs(net, y).items()}
    return ModelCertificate(type(net).__name__, blocks, tuple(_other_parts(net)))


@without_autocast
def _certify(net: HamiltonianNetwork, y: Tensor) -> Certificate:
    check_single_network(net, y)
    finite, *others = CHECKS
    with unless_large(net, y):
        context = Context(net, y)
        checks = [finite(context)]
        if checks[0].holds:
            checks += [check(context) for check in track(others, "checking statements")]
    title = " ".join(net.extra_repr().split())
    dtype = str(context.dtype).removeprefix("torch.")
    return Certificate(title, context.samples, dtype, tuple(checks))


@torch.no_grad()
def block_inputs(model: nn.Module, x: Any) -> dict[str, tuple[HamiltonianNetwork, Tensor]]:
    """Every Hamiltonian network that runs in a model, by name, with the state that enters it."""
    networks = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, HamiltonianNetwork) and part.layers
    }
    if not networks:
        raise HdnnError(
            f"there is no Hamiltonian network with layers in this {type(model).__name__}; "
            "hdnn.analysis.watch measures gradients of any model"
        )
    pairs: dict[str, tuple[HamiltonianNetwork, Tensor]] = {}

    def before(name: str) -> Callable[..., None]:
        def record(net: HamiltonianNetwork, inputs: Any, keywords: Any) -> None:
            times = sum(known.split(":")[0] == name for known in pairs)
            y: Tensor = (*inputs, *keywords.values())[0]
            pairs[f"{name}:{times + 1}" if times else name] = net, y.detach()

        return record

    handles = [
        net.register_forward_pre_hook(before(name), with_kwargs=True)
        for name, net in networks.items()
    ]
    try:
        with undisturbed(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not pairs:
        raise HdnnError(f"no Hamiltonian network ran: {', '.join(networks)[:200]}")
    return pairs


def _other_parts(model: nn.Module, prefix: str = "") -> Iterator[str]:
    """The largest parts of a model without a Hamiltonian network, but those that only reshape."""
    for name, part in model.named_children():
        if isinstance(part, HamiltonianNetwork | nn.Identity | nn.Flatten | nn.Unflatten):
            continue
        if any(isinstance(inner, HamiltonianNetwork) for inner in part.modules()):
            yield from _other_parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} ({type(part).__name__})"
