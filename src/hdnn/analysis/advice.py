"""The step advisor: how much a scheme adds to the gradients, and which step keeps that small.

On a mode of frequency w, one step of a scheme multiplies amplitudes by rho(h w), the spectral
radius of its step matrix for the harmonic oscillator: sqrt(1 + (h w)^2) for forward Euler, 1 for
splitting schemes up to h w = 2. Over all layers the scheme adds the factor

    G = max over samples of product over layers of rho(h_j w_j),   w_j = max |eigenvalue of df_j/dy|

which the exact flow of a Hamiltonian network does not have. Besides, a step that turns a mode by
more than about 2 radians no longer follows it, whatever the scheme.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hdnn.analysis.gradient_norms import singular_values
from hdnn.analysis.sensitivity import (
    check_no_convolution,
    forward_sensitivities,
    jacobians,
    layer_factors,
)
from hdnn.analysis.spectra import spectral_radius, velocity_jacobians_at
from hdnn.backends import reference
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, Weights
from hdnn.networks import HamiltonianNetwork
from hdnn.notebook import curve, table
from hdnn.schemes import Scheme

FACTOR = 2.0
"""What a scheme may add to the gradients over the whole depth."""
TURN = 2.0
"""Radians by which a step may turn the fastest mode: the limit of semi-implicit Euler."""
EXPLODES, VANISHES = 1e3, 1e-3
"""Beyond these norms of d y_l / d y_0 a layer counts as broken."""
SHORTEST, LONGEST = 1e-100, 1e100
"""Times T beyond these are taken for these: the advice is the same, and nothing overflows."""
LARGEST = 1e200
"""A mode that would turn by more has no frequency that numbers can hold."""
MOST_LAYERS = 10**15
"""The largest number of layers that is told."""


@dataclass(frozen=True)
class Advice:
    """How gradients grow, and steps that keep what the scheme adds below a factor 2.

    Args:
        network: its specification.
        growth: ``(layers,)``, the largest norm of d y_{l+1} / d y_l over the samples.
        cumulative: ``(layers + 1,)``, the largest norm of d y_l / d y_0.
        turns: ``(layers,)``, the largest h w: radians that the fastest mode turns in a step.
        added: G, the factor that the scheme adds over the whole depth.
        T_range: at this number of layers: from where the fastest mode turns by one radian in all (a
            shorter network is close to the identity) to where G = 2 or a step turns a mode by 2
            radians. Only the second, twice, where that comes first: then more layers are needed.
            None where there is no step, or nothing finite.
        step_range: the same divided by the number of layers.
        layers: the smallest number of layers that the present T allows.
        breaks: the first layer after which a state is not finite, or gradients exceed 1e3 or fall
            below 1e-3 altogether; None if there is none.
        reason: what breaks there.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> advice = hdnn.analysis.advise(net, torch.randn(8, 4))
    >>> advice.growth.shape, advice.cumulative.shape
    (torch.Size([6]), torch.Size([7]))
    """

    network: str
    growth: Tensor
    cumulative: Tensor
    turns: Tensor
    added: float
    T_range: tuple[float, float] | None
    step_range: tuple[float, float] | None
    layers: int | None
    breaks: int | None
    reason: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing breaks and the step is not too large."""
        return self.breaks is None and (self.layers is None or self.layers <= len(self.growth))

    @property
    def worst(self) -> int:
        """The layer whose Jacobian is largest."""
        return int(torch.nan_to_num(self.growth, nan=math.inf, posinf=math.inf).argmax())

    @property
    def remedy(self) -> str:
        """What to do, in a sentence."""
        parts = [] if self.breaks is None else [f"layer {self.breaks} breaks first: {self.reason}"]
        if self.T_range is not None and self.layers is not None:
            low, high = self.T_range
            parts.append(f"the scheme adds a factor of about {self.added:.3g} to the gradients")
            if self.layers <= len(self.growth):
                parts.append(f"T may be up to {high:.3g} at this depth")
            else:
                h = high / len(self.growth)
                deeper = f", or at least {self.layers} layers" if self.layers < 10**6 else ""
                parts.append(f"use T <= {high:.3g} (h <= {h:.3g}) at this depth{deeper}")
            if low >= high:
                parts.append(
                    "so small a T hardly moves the data: use more layers, or smaller weights"
                )
        return "; ".join(parts) or "nothing to change"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON.

        Returns:
            Numbers, strings, lists and dictionaries only.
        """
        plain = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return {**plain, "worst": self.worst, "ok": self.ok, "remedy": self.remedy}

    def _repr_html_(self) -> str:
        rows = [
            ("what to do", self.remedy),
            ("growth per layer", f"{_span(self.growth)}, largest in layer {self.worst}"),
            ("norm of dy_l/dy_0", _span(self.cumulative)),
        ]
        chart = curve("largest norm of dy_l/dy_0 by layer", self.cumulative.tolist())
        return chart + table(self.network, rows)

    def __str__(self) -> str:
        lines = [
            self.network,
            f"growth per layer    {_span(self.growth)}, largest in layer {self.worst}",
            f"norm of dy_l/dy_0   {_span(self.cumulative)}",
        ]
        if self.T_range is not None and self.step_range is not None:
            lines += [
                f"turn per step       {_span(self.turns)} radians of the fastest mode",
                f"T at this depth     {_between(*self.T_range)}",
                f"step h              {_between(*self.step_range)}",
                f"layers at this T    at least {self.layers:.7g}",
            ]
        return "\n".join([*lines, f"advice              {self.remedy}"])


def _between(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}" if low < high else f"at most {high:.3g}"


def _span(values: Tensor) -> str:
    return f"{float(values.min()):.3g} to {float(values.max()):.3g}"


def advise(net: HamiltonianNetwork, y: Tensor) -> Advice:
    """Growth of gradients layer by layer, and the steps that a network's scheme allows.

    The range of T is that of the *present* weights at the states that the network reaches now; it
    is a first guess, not a theorem. Spectra are computed in float64, states in the network's dtype.

    Args:
        net: one network; initial or trained weights.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Raises:
        HdnnError: the network or the states cannot be examined.

    Returns:
        Ranges of T and of the step, a number of layers, and where gradients break.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=16, T=20.0)
    >>> advise(net, torch.randn(50, 4)).ok
    False
    """
    net.check_state(y)
    check_no_convolution(net)
    if net.ensemble is not None:
        raise HdnnError("an ensemble holds several networks; ask for one of them")
    if not net.layers or not y.numel():
        raise HdnnError("there is nothing to advise on: no layers or no samples")
    try:
        return _advise(net, y)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise HdnnError(f"there is no advice: {str(error)[:80]}; use smaller weights") from error


def _advise(net: HamiltonianNetwork, y: Tensor) -> Advice:
    with torch.no_grad():
        states = torch.stack([net.field.layout.flatten(s)[0] for s in net.trajectory(y)])
    growth, cumulative = (
        singular_values(M)[..., 0].reshape(len(M), -1).amax(1)
        for M in (layer_factors(net, y), forward_sensitivities(net, y))
    )
    breaks, reason = _break(states, cumulative)
    nothing = torch.full((net.layers,), math.nan)
    title = net.extra_repr()
    if not net.scheme.uses_step:
        return Advice(title, growth, cumulative, nothing, 1.0, None, None, None, breaks, reason)
    T = min(max(net.T, SHORTEST), LONGEST)
    turns = _turns(net, states, T / net.T)
    if not turns.numel() or not bool(turns.any()):
        return Advice(title, growth, cumulative, nothing, 1.0, None, None, None, breaks, reason)
    added, turn = _added(net.scheme, turns), float(turns.max())
    most = TURN / turn
    high = _largest(lambda c: added(c, 1.0) <= math.log(FACTOR), most)
    finer = _largest(lambda c: added(c, 1 / c) <= math.log(FACTOR), min(most, net.layers))
    low = min(1.0 / float(turns.sum(0).median().clamp_min(1e-300)), high)
    layers = math.ceil(min(net.layers / finer, MOST_LAYERS) - 1e-9)
    T_range = low * T, high * T
    return Advice(
        title,
        growth,
        cumulative,
        turns.amax(1),
        math.exp(min(added(1.0, 1.0), 700.0)),
        T_range,
        (T_range[0] / net.layers, T_range[1] / net.layers),
        layers,
        breaks,
        reason,
    )


def _break(states: Tensor, cumulative: Tensor) -> tuple[int | None, str | None]:
    finite = torch.isfinite(states).flatten(1).all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        return max(first - 1, 0), "its state is not finite" if first else "the data are not finite"
    # Norms that overflow are not numbers.
    for what, bad in (("explode", ~(cumulative <= EXPLODES)), ("vanish", cumulative < VANISHES)):
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            return first - 1, f"gradients {what} ({float(cumulative[first]):.3g} from the input on)"
    return None, None


def _turns(net: HamiltonianNetwork, states: Tensor, share: float) -> Tensor:
    """``(layers, samples)``: h w of the fastest mode with that share of h, 0 if there is none."""
    wide = copy.deepcopy(net).to(torch.float64)
    finite = torch.nan_to_num(states[:-1].to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
    with torch.no_grad():
        A = velocity_jacobians_at(wide, finite.unbind())
        h = torch.as_tensor(wide.h, dtype=torch.float64).expand(net.layers)
    good = torch.isfinite(A).flatten(2).all(2)
    A = torch.where(good[..., None, None], A, 0.0)
    turns = share * h[:, None] * spectral_radius(A)
    return torch.where(turns < LARGEST, turns, 0.0)


def _added(scheme: Scheme, turns: Tensor) -> Callable[[float, float], float]:
    """log G with steps c h and as many times more layers."""
    grid, rates = _amplification(scheme)

    def log_factor(c: float, more: float) -> float:
        z = (c * turns).clamp(float(grid[0]), float(grid[-1]))
        above = torch.searchsorted(grid, z).clamp(1, len(grid) - 1)
        share = (z - grid[above - 1]) / (grid[above] - grid[above - 1])
        rate = rates[above - 1] + share * (rates[above] - rates[above - 1])
        return more * float(rate.sum(0).max())

    return log_factor


@torch.no_grad()
def _amplification(scheme: Scheme) -> tuple[Tensor, Tensor]:
    """log rho(z) of a scheme on a grid of z = h w, from its own step on the oscillator."""
    grid = torch.logspace(-3, 2, 101, dtype=torch.float64)
    weights = Weights(
        "block-diagonal", features=2, layers=len(grid), time_invariant=True, dtype=torch.float64
    )
    weights.theta.fill_(1.0)
    weights.beta.zero_()
    field = HamiltonianField("J1", weights, activation="identity")
    advance = reference.layer_map(scheme.lower(field, grid, len(grid)))
    origin = torch.zeros(1, 2, dtype=torch.float64)
    steps = torch.stack([jacobians(partial(advance, j), origin, -1)[0] for j in range(len(grid))])
    radius = torch.linalg.eigvals(steps).abs().amax(-1)
    return grid, torch.where(radius > 1 + 1e-6, radius.log(), 0.0)


def _largest(allowed: Callable[[float], bool], most: float) -> float:
    """The largest c up to `most` that is allowed, for conditions that fail for large c."""
    if allowed(most):
        return most
    low, high = math.log(most) - 40.0, math.log(most)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(math.exp(middle)) else (low, middle)
    return math.exp(low)
