"""The same ODE with more layers or fewer: networks and models of another depth."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from typing import TypeVar

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields import EnergyField, Fixed, Interconnection, Learned, Weights, limits
from hdnn.fields.hamiltonian import WeightedField
from hdnn.models import ImageConfig, ImageStem
from hdnn.networks import HamiltonianNetwork
from hdnn.refinement.interpolation import INTERPOLATIONS, mixed, overlaps

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Depth = int | Sequence[int]


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


def set_depth(module: nn.Module, layers: Depth, interpolation: str = "constant") -> None:
    """Change the depth of a module in place, to more layers or fewer; its parameters are new ones.

    Args:
        module: as for `refine`.
        layers: the new depth, of several networks possibly one for each.
        interpolation: "constant", "linear" or "cubic".

    Raises:
        HdnnError: there is no ODE behind it.

    >>> import hdnn
    >>> net = hdnn.network("H1", features=4, layers=4, T=1.0)
    >>> set_depth(net, 8)
    >>> net.layers, net.h
    (8, 0.125)
    """
    _set_depth(module, layers, interpolation, 0)


def _changed(module: ModuleT, layers: Depth, interpolation: str, sign: int) -> ModuleT:
    copied = copy.deepcopy(module)
    _set_depth(copied, layers, interpolation, sign)
    return copied


def _set_depth(module: nn.Module, layers: Depth, interpolation: str, sign: int) -> None:
    if interpolation not in INTERPOLATIONS:
        raise unknown_name("interpolation", interpolation, INTERPOLATIONS)
    nets = networks_in(module)
    if not nets:
        raise HdnnError(f"{type(module).__name__} has no Hamiltonian network whose depth to change")
    depths = list(layers) if isinstance(layers, Sequence) else [layers] * len(nets)
    if len(depths) != len(nets):
        raise HdnnError(f"{len(nets)} networks take one depth or {len(nets)}, got {depths!r:.60}")
    for net, depth in zip(nets, depths, strict=True):
        _check(net, depth, sign)
    for net, depth in zip(nets, depths, strict=True):
        _resample(net, depth, interpolation)
    for stem in module.modules():
        if isinstance(stem, ImageStem):
            stem.config = _config(stem.config, nets)


def networks_in(module: nn.Module) -> list[HamiltonianNetwork]:
    """The Hamiltonian networks in a module, in order."""
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


def steps_of(net: HamiltonianNetwork) -> Tensor:
    """``([E,] L)``: the steps, in float64."""
    h = net.h
    if isinstance(h, Tensor):
        return h.detach().to("cpu", torch.float64)
    return torch.full((net.layers,), h, dtype=torch.float64)


@torch.no_grad()
def _resample(net: HamiltonianNetwork, layers: int, interpolation: str) -> None:
    """Change the depth of a network, in place."""
    old, h = net.layers, steps_of(net)
    mix = INTERPOLATIONS[interpolation](old, layers, h)
    for part in net.field.modules():
        _resample_part(part, layers, mix)
    if net.field.layers is not None:
        net.field.layers = layers
    net.layers, net._lowered = layers, None
    steps = h @ overlaps(old, layers).mT
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
            _replace(part, name, mixed(mix, getattr(part, name)))


@_resample_part.register
def _(part: Learned, layers: int, mix: Tensor) -> None:
    if part.layers is not None:
        part.layers = layers
        _replace(part, "theta", mixed(mix, part.theta))


@_resample_part.register
def _(part: Fixed, layers: int, mix: Tensor) -> None:
    if part.layers is not None:
        part.layers = layers
        _replace(part, "J", mixed(mix, part.J.flatten(1)).unflatten(1, part.J.shape[1:]))


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
