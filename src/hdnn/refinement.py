"""Depth as a dial: the same ODE with more layers or fewer, weights interpolated in time.

    K_j = K(t_j),    t_j = h_0 + ... + h_{j-1}

The weights of a network are samples of functions of time. A change of depth samples them anew, on
a grid with the same final time T: steps are split and joined, and every array with one entry for
each layer is multiplied by one matrix ``(new layers, old layers)``, the same for all of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields import EnergyField, Fixed, Interconnection, Learned, Weights, limits
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import ImageConfig, ImageStem
from hdnn.networks import HamiltonianNetwork

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Depth = int | Sequence[int]

# --- matrices (new, old): how new layers are made of old ones -------------------------------------


def _overlaps(old: int, new: int) -> Tensor:
    """``(new, old)``: how much of an old layer lies in a new one, from 0 to 1."""
    # In units of 1 / (old new) all boundaries are integers, so nested grids give exact numbers.
    i, j = torch.arange(new).unsqueeze(1), torch.arange(old)
    shared = torch.minimum((i + 1) * old, (j + 1) * new) - torch.maximum(i * old, j * new)
    return shared.clamp_min(0).to(torch.float64) / new


def _samples(
    old: int, new: int, coefficients: Callable[[Tensor], Sequence[Tensor]], first: int
) -> Tensor:
    """Row i holds the coefficients of the old layers around the time at which layer i begins."""
    position = torch.arange(new) * old
    layer, rest = position // new, (position % new).to(torch.float64) / new
    rows = torch.zeros(new, old, dtype=torch.float64)
    for offset, coefficient in enumerate(coefficients(rest), first):
        column = (layer + offset).clamp(0, old - 1)  # beyond the ends the weights stay as they are
        rows.scatter_add_(1, column.unsqueeze(1), coefficient.unsqueeze(1))
    return rows


def _linear(f: Tensor) -> Sequence[Tensor]:
    return 1 - f, f


def _cubic(f: Tensor) -> Sequence[Tensor]:
    """Catmull and Rom's: through all samples, with the slopes of central differences."""
    return (
        f * (-1 + f * (2 - f)) / 2,
        1 + f * f * (-5 + 3 * f) / 2,
        f * (1 + f * (4 - 3 * f)) / 2,
        f * f * (-1 + f) / 2,
    )


INTERPOLATIONS: dict[str, Callable[[int, int, Tensor], Tensor]] = {
    "constant": lambda old, new, h: _averages(_overlaps(old, new), h),
    "linear": lambda old, new, h: _samples(old, new, _linear, 0),
    "cubic": lambda old, new, h: _samples(old, new, _cubic, -1),
}
"""How weights follow between samples: a function of old and new depth and the old steps."""


def _averages(shares: Tensor, h: Tensor) -> Tensor:
    """The mean over time: entries weighted by how long they hold within a new layer."""
    weighted = shares * h.unsqueeze(-2)
    return weighted / weighted.sum(-1, keepdim=True)


# --- networks and models --------------------------------------------------------------------------


def refine(module: ModuleT, layers: Depth, interpolation: str = "constant") -> ModuleT:
    """A copy with more layers and the same final time T.

    "constant" keeps the ODE: with more layers the network converges to its flow with the scheme's
    order. "linear" and "cubic" take K_j for K(t_j) and smooth what lies between.

    Args:
        module: a network, a model, or any module with Hamiltonian networks inside.
        layers: the new depth, of several networks possibly one for each.
        interpolation: "constant", "linear" or "cubic", for K, b and J(t).

    Returns:
        The copy; `coarsen` takes it back to the same weights, where the new depth is a multiple of
        the old one.

    Raises:
        HdnnError: there are more layers already, or no ODE behind it (a plain FCNN).

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> fine = refine(net, 16)
    >>> fine.layers, fine.T, torch.equal(fine.K[::4], net.K)
    (16, 1.0, True)
    """
    return _changed(module, layers, interpolation, 1)


def coarsen(module: ModuleT, layers: Depth, interpolation: str = "constant") -> ModuleT:
    """A copy with fewer layers and the same final time T.

    "constant" gives a layer the mean over time of the weights that it replaces, so that the
    integral of K and b over time stays what it was. "linear" and "cubic" give it K at the time at
    which it begins.

    Args:
        module: as for `refine`.
        layers: the new depth, of several networks possibly one for each.
        interpolation: "constant", "linear" or "cubic".

    Returns:
        The copy.

    Raises:
        HdnnError: there are fewer layers already, or no ODE behind it (a plain FCNN).

    >>> import hdnn
    >>> net = hdnn.network("MS3", features=4, layers=16, T=1.0)
    >>> torch.allclose(coarsen(net, 4).K[0], net.K[:4].mean(0))
    True
    """
    return _changed(module, layers, interpolation, -1)


def _changed(module: ModuleT, layers: Depth, interpolation: str, sign: int) -> ModuleT:
    if interpolation not in INTERPOLATIONS:
        raise unknown_name("interpolation", interpolation, INTERPOLATIONS)
    nets = _networks(module)
    if not nets:
        raise HdnnError(f"{type(module).__name__} has no Hamiltonian network whose depth to change")
    depths = list(layers) if isinstance(layers, Sequence) else [layers] * len(nets)
    if len(depths) != len(nets):
        raise HdnnError(f"{len(nets)} networks take one depth or {len(nets)}, got {depths!r:.60}")
    for net, depth in zip(nets, depths, strict=True):
        _check(net, depth, sign)
    copied = copy.deepcopy(module)
    for net, depth in zip(_networks(copied), depths, strict=True):
        _resample(net, depth, interpolation)
    for stem in copied.modules():
        if isinstance(stem, ImageStem):
            stem.config = _config(stem.config, _networks(copied))
    return copied


def _networks(module: nn.Module) -> list[HamiltonianNetwork]:
    return [part for part in module.modules() if isinstance(part, HamiltonianNetwork)]


def _check(net: HamiltonianNetwork, layers: int, sign: int) -> None:
    """Raise HdnnError where the depth of a network cannot be changed to this one."""
    title = net.name or type(net).__name__
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise HdnnError(f"layers is a positive integer, got {layers!r:.40}")
    if not net.scheme.uses_step or not net.layers:
        raise HdnnError(
            f"{title} with {net.scheme} and {net.layers} layers discretizes no ODE, so its depth "
            "cannot change; use ResNet, or a Hamiltonian network"
        )
    if sign * (layers - net.layers) < 0:
        other = "coarsen" if sign > 0 else "refine"
        raise HdnnError(f"{title} has {net.layers} layers, got layers={layers}; use hdnn.{other}")
    if not isinstance(net.field, WeightedField | EnergyField) and net.field.layers is not None:
        raise HdnnError(
            f"{type(net.field).__name__} has layers of its own, which hdnn cannot interpolate"
        )
    limits.check(f"a network of {layers} layers", layers * (limits.LAYER + 8 * net.layers))


def _steps(net: HamiltonianNetwork) -> Tensor:
    """``([E,] L)``: the steps, in float64."""
    h = net.h
    if isinstance(h, Tensor):
        return h.detach().to("cpu", torch.float64)
    return torch.full((net.layers,), h, dtype=torch.float64)


@torch.no_grad()
def _resample(net: HamiltonianNetwork, layers: int, interpolation: str) -> None:
    """Change the depth of a network, in place."""
    old, h = net.layers, _steps(net)
    mix = INTERPOLATIONS[interpolation](old, layers, h)
    for part in net.field.modules():
        _resample_part(part, layers, mix)
    if net.field.layers is not None:
        net.field.layers = layers
    net.layers = layers
    steps = h @ _overlaps(old, layers).mT
    if net._step is not None:
        net._step = net._step * old / layers
    elif net.learn_steps:
        _replace(net, "log_steps", steps.log())
    else:
        _replace(net, "steps", steps)


@singledispatch
def _resample_part(part: nn.Module, layers: int, mix: Tensor) -> None:
    """Change the depth of a part of a field; most have none."""
    if isinstance(part, Interconnection) and part.layers is not None:
        raise HdnnError(
            f"{type(part).__name__} has layers of its own, which hdnn cannot interpolate"
        )


@_resample_part.register
def _(part: Weights, layers: int, mix: Tensor) -> None:
    part.layers = layers
    if nn.utils.parametrize.is_parametrized(part):
        raise HdnnError("the weights are parametrized; remove that before the depth is changed")
    if not part.time_invariant:
        for name in ("theta", "beta"):
            _replace(part, name, _mixed(mix, getattr(part, name)))


@_resample_part.register
def _(part: Learned, layers: int, mix: Tensor) -> None:
    if part.layers is not None:
        part.layers = layers
        _replace(part, "theta", _mixed(mix, part.theta))


@_resample_part.register
def _(part: Fixed, layers: int, mix: Tensor) -> None:
    if part.layers is not None:
        part.layers = layers
        _replace(part, "J", _mixed(mix, part.J.flatten(1)).unflatten(1, part.J.shape[1:]))


def _mixed(mix: Tensor, stack: Tensor) -> Tensor:
    """The new stack ``([E,] new, p)`` of an old one ``([E,] old, p)``, in float64."""
    if mix.ndim > stack.ndim:  # members with steps of their own share this array
        mix = mix.mean(0)
    return mix.to(stack.device) @ stack.detach().to(torch.float64)


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    """Put another tensor in the place of a parameter or a buffer."""
    old: Tensor = getattr(module, name)
    value = value.to(old)
    trained = isinstance(old, nn.Parameter)
    setattr(module, name, nn.Parameter(value, old.requires_grad) if trained else value)


def _config(config: ImageConfig, nets: Sequence[HamiltonianNetwork]) -> ImageConfig:
    """The description of an image model after its depths have changed; files are made from it."""
    depths = iter(net.layers for net in nets)
    layers = tuple(next(depths) if layers else 0 for layers in config.layers)
    if config.step is None:
        return replace(config, layers=layers)
    steps = [net._step for net in nets]
    if any(h is None or not math.isclose(h, steps[0] or 0.0, rel_tol=1e-12) for h in steps):
        raise HdnnError(
            f"the stages would have steps {steps!r:.60}, and an image model with step= has one for "
            "all; change all depths by the same factor"
        )
    return replace(config, layers=layers, step=steps[0])


# --- optimizers -----------------------------------------------------------------------------------

DEGREES: dict[str, int] = {
    "exp_avg": 1,
    "exp_inf": 1,
    "grad_avg": 1,
    "momentum_buffer": 1,
    "exp_avg_sq": 2,
    "max_exp_avg_sq": 2,
    "square_avg": 2,
    "sum": 2,
    "acc_delta": 0,
}
"""How the entries of torch's optimizers scale with the gradient, by name."""


def optimizer_state(
    optimizer: torch.optim.Optimizer, old: nn.Module, new: nn.Module
) -> dict[str, Any]:
    """The state of an optimizer for a copy with another depth, so that training goes on smoothly.

    A layer's gradient is proportional to its step, so moments are averaged over time and scaled by
    old depth / new depth (squares by its square); what has no layers is taken as it is.

    Args:
        optimizer: an optimizer of parameters of ``old``.
        old: what was trained.
        new: ``refine(old, ...)`` or ``coarsen(old, ...)``.

    Returns:
        A state dict, for an optimizer of the same kind over the same parameters of ``new``.

    Raises:
        HdnnError: the optimizer has other parameters, or entries that hdnn knows no rule for.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> adam = torch.optim.Adam(net.parameters())
    >>> fine = hdnn.refine(net, 16)
    >>> torch.optim.Adam(fine.parameters()).load_state_dict(optimizer_state(adam, net, fine))
    """
    mixes = _mixes(old, new)
    saved = optimizer.state_dict()
    given = [p for group in optimizer.param_groups for p in group["params"]]
    if unknown := sum(id(p) not in mixes for p in given):
        raise HdnnError(f"the optimizer has {unknown} parameters that the given module has not")
    degrees = DEGREES | ({"momentum_buffer": 0} if type(optimizer).__name__ == "RMSprop" else {})
    state = {
        number: {
            name: _carried(name, value, mixes[id(given[number])], degrees)
            for name, value in entries.items()
        }
        for number, entries in saved["state"].items()
    }
    return {**saved, "state": state}


class _Mix(NamedTuple):
    """The matrix that takes the layers of a parameter to the new ones, and the axis they are on."""

    matrix: Tensor
    axis: int

    def apply(self, stack: Tensor, degree: int) -> Tensor:
        """What an entry of an optimizer is for the new layers."""
        new, old = self.matrix.shape[-2:]
        columns = stack.unsqueeze(-1) if self.axis == -1 else stack
        mixed = _mixed(self.matrix, columns) * (old / new) ** degree
        return (mixed.squeeze(-1) if self.axis == -1 else mixed).to(stack)


def _mixes(old: nn.Module, new: nn.Module) -> dict[int, _Mix | None]:
    """For every parameter what takes its layers to the new ones; None where it has none."""
    found: dict[int, _Mix | None] = {id(p): None for p in old.parameters()}
    for before, after in zip(_networks(old), _networks(new), strict=True):
        matrix = INTERPOLATIONS["constant"](before.layers, after.layers, _steps(before))
        shapes = {name: p.shape for name, p in after.named_parameters()}
        for name, p in before.named_parameters():
            if shapes[name] != p.shape:
                found[id(p)] = _Mix(matrix, -1 if name == "log_steps" else -2)
    return found


def _carried(name: str, value: Any, mix: _Mix | None, degrees: dict[str, int]) -> Any:
    if mix is None or not isinstance(value, Tensor) or value.ndim == 0:
        return copy.deepcopy(value)
    if name not in degrees:
        raise HdnnError(
            f"the optimizer keeps {name!r}, which hdnn has no rule for; known are "
            f"{', '.join(degrees)}; begin with a new optimizer"
        )
    return mix.apply(value, degrees[name])
