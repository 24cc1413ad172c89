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
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdnn.analysis.jacobians import (
    batch_jacobian,
    check_single_network,
    factors_of,
    velocity_jacobians_at,
)
from hdnn.analysis.norms import spectral_norm, unit_eigenvalues
from hdnn.backends import reference
from hdnn.fields import HamiltonianField, Weights
from hdnn.networks import HamiltonianNetwork, without_autocast
from hdnn.program import Program
from hdnn.schemes import Scheme

FACTOR = 2.0
"""What a scheme may add to the gradients over the whole depth."""
TURN = 2.0
"""Radians by which a step may turn the fastest mode: the limit of semi-implicit Euler."""
EXPLODES, VANISHES = 1e3, 1e-3
"""Beyond these norms of d y_l / d y_0 a layer counts as broken."""
LARGEST = 1e200
"""A mode that would turn by more has no frequency that numbers can hold."""
MOST_LAYERS = 10**15
"""The largest number of layers that is reported."""
WIDTH, LABEL = 80, 20
"""Columns of printed advice, and of the labels at its left."""


@dataclass(frozen=True, eq=False)
class Advice:
    """How gradients grow, where they break, and steps that keep what the scheme adds small.

    Args:
        network: its specification.
        layer_norms: ``(layers,)``, the largest norm of d y_{l+1} / d y_l over the samples.
        forward_norms: ``(layers + 1,)``, the largest norm of d y_l / d y_0.
        breaks: the first layer with weights that are not finite, or after which a state is not
            finite, or gradients exceed 1e3 or fall below 1e-3 altogether; None if there is none.
        reason: what breaks there.
        turns: ``(layers,)``, the largest h w: radians that the fastest mode turns in a step. This
            and the following are None where there is no step, or nothing finite to tell it from.
        added: G, the factor that the scheme adds over the whole depth.
        T_range: at this number of layers: from where the fastest mode turns by one radian in all (a
            shorter network is close to the identity) to where G = 2 or a step turns a mode by 2
            radians. Only the second, twice, where that comes first: then more layers are needed.
        layers: the smallest number of layers that the present T allows.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("MS3", features=4, layers=6, T=1.0)
    >>> advice = hdnn.analysis.advise(net, torch.randn(8, 4))
    >>> advice.layer_norms.shape, advice.forward_norms.shape
    (torch.Size([6]), torch.Size([7]))
    >>> advice.layers, [round(T, 2) for T in advice.T_range]
    (2, [1.88, 5.45])
    """

    network: str
    layer_norms: Tensor
    forward_norms: Tensor
    breaks: int | None
    reason: str | None
    turns: Tensor | None = None
    added: float | None = None
    T_range: tuple[float, float] | None = None
    layers: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing breaks and the step is not too large."""
        return self.breaks is None and (self.layers or 0) <= len(self.layer_norms)

    @property
    def step_range(self) -> tuple[float, float] | None:
        """The range of T divided by the number of layers."""
        if self.T_range is None:
            return None
        low, high = (T / len(self.layer_norms) for T in self.T_range)
        return low, high

    @property
    def worst(self) -> int:
        """The layer whose Jacobian is largest."""
        return int(torch.nan_to_num(self.layer_norms, nan=math.inf, posinf=math.inf).argmax())

    @property
    def remedy(self) -> str:
        """What to do, in a sentence."""
        parts = [] if self.reason is None else [self.reason]
        if self.T_range is not None and self.layers is not None:
            low, high = self.T_range
            h = high / len(self.layer_norms)
            parts.append(f"the scheme adds a factor of about {self.added:.3g} to the gradients")
            if self.layers <= len(self.layer_norms):
                parts.append(f"T may be up to {high:.3g} (h up to {h:.3g}) at this depth")
            else:
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
        plain = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in vars(self).items()}
        more = {"step_range": self.step_range, "worst": self.worst, "ok": self.ok}
        return {**plain, **more, "remedy": self.remedy}

    def __str__(self) -> str:
        rows = [
            ("norm of a layer", f"{_span(self.layer_norms)}; largest in layer {self.worst}"),
            ("norm from the input", _span(self.forward_norms)),
        ]
        if self.turns is not None and self.T_range is not None and self.step_range is not None:
            rows += [
                ("turn per step", f"{_span(self.turns)} radians of the fastest mode"),
                ("T at this depth", _between(*self.T_range)),
                ("step h", _between(*self.step_range)),
                ("layers at this T", f"at least {self.layers:.7g}"),
            ]
        lines = textwrap.wrap(self.network, WIDTH)
        for label, text in [*rows, ("advice", self.remedy)]:
            first, rest = f"{label:{LABEL}}", " " * LABEL
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
            )
        return "\n".join(lines)


def _between(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}" if low < high else f"at most {high:.3g}"


def _span(values: Tensor) -> str:
    known = values[values.isfinite()]
    return f"{float(known.min()):.3g} to {float(known.max()):.3g}" if len(known) else "not finite"


@without_autocast
def advise(net: HamiltonianNetwork, y: Tensor) -> Advice:
    """Growth of gradients layer by layer, and the steps that a network's scheme allows.

    The range of T is that of the *present* weights at the states that the network reaches now; it
    is a first guess, not a theorem. Spectra are computed in float64, states in the network's dtype.
    After a training that has ended in NaN it tells which layer breaks first, and what to do.

    Args:
        net: the network, with initial or trained weights; no ensemble, no convolution.
        y: states that enter it, ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        Limits of T and of the step, and where gradients break.

    Raises:
        HdnnError: an ensemble, a convolution, or no layers or samples to examine.

    >>> import hdnn, torch
    >>> _ = torch.manual_seed(0)
    >>> net = hdnn.network("H1", features=4, layers=16, T=20.0, dtype=torch.float64)
    >>> print(advise(net, torch.randn(50, 4, dtype=torch.float64)))
    H1, features=4, layers=16, h=1.25, T=20, ForwardEuler()
    norm of a layer     1.01 to 16.6; largest in layer 10
    norm from the input 1 to 608
    turn per step       0.000476 to 5.11 radians of the fastest mode
    T at this depth     at most 6.35
    step h              at most 0.397
    layers at this T    at least 297
    advice              the scheme adds a factor of about 20.1 to the gradients; use
                        T <= 6.35 (h <= 0.397) at this depth, or at least 297
                        layers; so small a T hardly moves the data: use more layers,
                        or smaller weights
    """
    check_single_network(net, y)
    with torch.no_grad():
        states = torch.stack([net.field.layout.flatten(s)[0] for s in net.trajectory(y)])
    factors = factors_of(net, y)
    identity = torch.eye(net.field.layout.width).to(factors).expand_as(factors[0])
    from_input = accumulate(factors, lambda M, factor: factor @ M, initial=identity)
    layer_norms, forward_norms = (
        spectral_norm(M).amax(1) for M in (factors, torch.stack([*from_input]))
    )
    breaks, reason = _diagnose(net, states, forward_norms)
    limits = _limits(net, states)
    return Advice(net.extra_repr(), layer_norms, forward_norms, breaks, reason, **limits)


def _diagnose(
    net: HamiltonianNetwork, states: Tensor, forward_norms: Tensor
) -> tuple[int | None, str | None]:
    """The first layer that breaks, and what there is to say about it."""
    finite = torch.isfinite(states).flatten(2).all(2)  # (layers + 1, samples)
    values = net.values()
    weights = [v for v in (values.theta, values.beta) if v is not None]
    bad_weights = [j for w in weights for j in (~w.isfinite().all(-1)).nonzero()[:, 0].tolist()]
    if bad_weights:  # first, since then the layers before the network have NaN weights, too
        first = min(bad_weights)
        what = f"the weights of layer {first} are not finite: the training has diverged"
        return first, f"{what}; build the model again, and advise on it before the first step"
    if not bool(finite[0].all()):
        count = f"{int((~finite[0]).sum())} of {finite.shape[1]} samples are not finite"
        where = "before the first layer: fill in or drop missing values of the data"
        return 0, f"{count} {where}, and look for NaN in the weights before the network"
    if not bool(finite.all()):
        first = int((~finite.all(1)).nonzero()[0]) - 1
        return first, f"layer {first} breaks first: its state is not finite"
    exploding, vanishing = ~(forward_norms <= EXPLODES), forward_norms < VANISHES  # NaN explodes
    for what, bad in (("explode", exploding), ("vanish", vanishing)):
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            size = f"{float(forward_norms[first]):.3g} from the input on"
            return first - 1, f"layer {first - 1} breaks first: gradients {what} ({size})"
    return None, None


def _limits(net: HamiltonianNetwork, states: Tensor) -> dict[str, Any]:
    """The limits of the step, as `Advice` has them."""
    if not net.scheme.uses_step:
        return {}
    turns = _turns(net, states)
    if not bool(turns.any()):
        return {}
    added, turn = _added(net.scheme, turns), float(turns.max())
    most = TURN / turn
    # A smaller T has steps c h in as many layers; more layers have steps c h, 1 / c times as many.
    high = _largest(lambda c: added(c, 1.0) <= math.log(FACTOR), most)
    finer = _largest(lambda c: added(c, 1 / c) <= math.log(FACTOR), min(most, net.layers))
    low = min(1.0 / float(turns.sum(0).median().clamp_min(1e-300)), high)
    layers = math.ceil(min(net.layers / finer, MOST_LAYERS) - 1e-9)  # 16.000000001 are 16
    factor = math.exp(min(added(1.0, 1.0), 700.0))  # exp(710) overflows
    T_range = (low * net.T, high * net.T)
    return {"turns": turns.amax(1), "added": factor, "T_range": T_range, "layers": layers}


def _turns(net: HamiltonianNetwork, states: Tensor) -> Tensor:
    """``(layers, samples)``: h w of the fastest mode, 0 if there is none."""
    wide = copy.deepcopy(net).to(torch.float64)
    finite = torch.nan_to_num(states[:-1].to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
    with torch.no_grad():
        A = velocity_jacobians_at(wide, finite.unbind())
        h = torch.as_tensor(wide.h, dtype=torch.float64).expand(net.layers)
    good = torch.isfinite(A).flatten(2).all(2)
    A = torch.where(good[..., None, None], A, 0.0)
    values, size = unit_eigenvalues(A)
    turns = h[:, None] * values.abs().amax(-1) * size
    return torch.where(turns < LARGEST, turns, 0.0)


def _added(scheme: Scheme, turns: Tensor) -> Callable[[float, float], float]:
    """log G with steps c h and as many times more layers, from log rho(z) on a grid of z = h w."""
    # Below 1e-3 no scheme adds what would show over 10,000 layers; beyond 100 all is lost anyway.
    z = torch.logspace(-3, 2, 101, dtype=torch.float64)
    rates = _amplification(scheme, z)

    def log_factor(c: float, more: float) -> float:
        return more * float(np.interp(c * turns, z, rates).sum(0).max())

    return log_factor


@torch.no_grad()
def _amplification(scheme: Scheme, z: Tensor) -> Tensor:
    """log rho(z) of a scheme, from its own step on the oscillator: layer j has the step z_j."""
    weights = Weights(
        "block-diagonal", features=2, layers=len(z), time_invariant=True, dtype=torch.float64
    )
    weights.theta.fill_(1.0)
    weights.beta.zero_()
    field = HamiltonianField("J1", weights, activation="identity")
    program = Program(len(z), scheme.lower(field), field.layout, field.sizes)
    values = field.values(z)._replace(velocity=field.velocity_fn())
    advance = reference.layer_map(program, values, 2)
    origin = torch.zeros(1, 2, dtype=torch.float64)
    steps = [batch_jacobian(partial(advance, j), origin, 1)[1][0] for j in range(len(z))]
    radius = torch.linalg.eigvals(torch.stack(steps)).abs().amax(-1)
    # A scheme that keeps amplitudes does so up to rounding, which must not add up over layers.
    return torch.where(radius > 1 + 1e-6, radius.log(), 0.0)


def _largest(allowed: Callable[[float], bool], most: float) -> float:
    """The largest c up to `most` that is allowed, for conditions that fail for large c."""
    if allowed(most):
        return most
    # Bisection of log c: 50 halvings of 40, 17 powers of ten, leave 13 digits.
    low, high = math.log(most) - 40.0, math.log(most)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(math.exp(middle)) else (low, middle)
    return math.exp(low)
