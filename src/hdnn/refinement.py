"""Depth as a dial: the same ODE with more layers or fewer, weights interpolated in time.

    K_j = K(t_j),    t_j = h_0 + ... + h_{j-1}

The weights of a network are samples of functions of time. A change of depth samples them anew, on
a grid with the same final time T: steps are split and joined, and every array with one entry for
each layer is multiplied by one matrix ``(new layers, old layers)``, the same for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, is_count, unknown_name
from hdnn.fields import EnergyField, Field, Fixed, Interconnection, Learned, Weights
from hdnn.fields.hamiltonian import WeightedField
from hdnn.networks import HamiltonianNetwork

__all__ = ["INTERPOLATIONS", "coarsen", "refine"]

INTERPOLATIONS = ("constant", "linear")
ModuleT = TypeVar("ModuleT", bound=nn.Module)
Depth = int | Sequence[int]


def refine(module: ModuleT, layers: Depth, interpolation: str = "constant") -> ModuleT:
    """A copy with more layers and the same final time T.

    "constant" keeps the ODE: with more layers the network converges to its flow with the scheme's
    order. "linear" takes K_j for K(t_j) and joins these by straight lines.

    Args:
        module: a network, a model, or any module with Hamiltonian networks inside.
        layers: the new depth, of several networks possibly one for each.
        interpolation: "constant" or "linear", for K, b and J(t).

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
    integral of K and b over time stays what it was. "linear" gives it K at the time at which it
    begins.

    Args:
        module: as for `refine`.
        layers: the new depth, of several networks possibly one for each.
        interpolation: "constant" or "linear".

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
    copied = copy.deepcopy(module)
    nets = [part for part in copied.modules() if isinstance(part, HamiltonianNetwork)]
    if not nets:
        raise HdnnError(f"{type(module).__name__} has no Hamiltonian network whose depth to change")
    depths = list(layers) if isinstance(layers, Sequence) else [layers] * len(nets)
    if len(depths) != len(nets):
        raise HdnnError(f"{len(nets)} networks take one depth or {len(nets)}, got {depths!r:.60}")
    for net, depth in zip(nets, depths, strict=True):
        _check(net, depth, sign)
        _resample(net, depth, interpolation)
    return copied


def _check(net: HamiltonianNetwork, layers: int, sign: int) -> None:
    """Raise HdnnError where the depth of a network cannot be changed to this one."""
    title = net.name or type(net).__name__
    if not is_count(layers):
        raise HdnnError(f"layers is a positive integer, got {layers!r:.40}")
    if not net.scheme.uses_step or not net.layers:
        raise HdnnError(
            f"{title} with {net.scheme} and {net.layers} layers discretizes no ODE, so its depth "
            "cannot change; use ResNet, or a Hamiltonian network"
        )
    if sign * (layers - net.layers) < 0:
        other = "coarsen" if sign > 0 else "refine"
        raise HdnnError(f"{title} has {net.layers} layers, got layers={layers}; use hdnn.{other}")
    known = WeightedField | EnergyField | Learned | Fixed
    for part in net.field.modules():
        custom = isinstance(part, Field | Interconnection) and not isinstance(part, known)
        if custom and part.layers is not None:
            raise HdnnError(f"{type(part).__name__} has layers, which hdnn cannot interpolate")


@torch.no_grad()
def _resample(net: HamiltonianNetwork, layers: int, interpolation: str) -> None:
    """Change the depth of a network, in place."""
    old, h = net.layers, torch.as_tensor(net.h, dtype=torch.float64).detach().cpu()
    h = h.expand(old) if h.ndim == 0 else h
    shares = _overlaps(old, layers)
    held = shares * h.unsqueeze(-2)  # how long an old layer holds within a new one
    mean = held / held.sum(-1, keepdim=True)
    mix = mean if interpolation == "constant" else _lines(old, layers)
    for part in net.field.modules():
        _resample_part(part, layers, mix)
    if net.field.layers is not None:
        net.field.layers = layers
    net.layers = layers
    net.lower()  # the program holds the number of layers
    if net._step is not None:
        net._step = net._step * old / layers
    else:
        steps = h @ shares.mT
        learned = net.learn_steps
        _replace(net, "log_steps" if learned else "steps", steps.log() if learned else steps)


def _overlaps(old: int, new: int) -> Tensor:
    """``(new, old)``: how much of an old layer lies in a new one, from 0 to 1."""
    # In units of 1 / (old new) all boundaries are integers, so nested grids give exact numbers.
    i, j = torch.arange(new).unsqueeze(1), torch.arange(old)
    shared = torch.minimum((i + 1) * old, (j + 1) * new) - torch.maximum(i * old, j * new)
    return shared.clamp_min(0).to(torch.float64) / new


def _lines(old: int, new: int) -> Tensor:
    """``(new, old)``: straight lines between old layers, where new ones begin."""
    position = torch.arange(new) * old
    layer, rest = position // new, (position % new).to(torch.float64) / new
    rows = torch.zeros(new, old, dtype=torch.float64)
    for offset, share in ((0, 1 - rest), (1, rest)):
        column = (layer + offset).clamp(0, old - 1)  # beyond the end the weights stay as they are
        rows.scatter_add_(1, column.unsqueeze(1), share.unsqueeze(1))
    return rows


def _resample_part(part: nn.Module, layers: int, mix: Tensor) -> None:
    """Change the depth of a part of a field; most have none."""
    if isinstance(part, Weights):
        if nn.utils.parametrize.is_parametrized(part):
            raise HdnnError("the weights are parametrized; remove that before changing the depth")
        names = [] if part.time_invariant else ["theta", "beta"]
    elif isinstance(part, Learned | Fixed) and part.layers is not None:
        names = ["theta"] if isinstance(part, Learned) else ["J"]
    else:
        return
    part.layers = layers
    for name in names:
        stack: Tensor = getattr(part, name)
        flat = stack.flatten(1) if name == "J" else stack  # others are ([E,] L, .)
        # Members of an ensemble with steps of their own may share an array: their mean.
        matrix = mix.mean(0) if mix.ndim > flat.ndim else mix
        # In float64, so that coarsening a refined network gives back the same float32 numbers.
        new = matrix @ flat.detach().cpu().to(torch.float64)
        _replace(part, name, new.unflatten(1, stack.shape[1:]) if name == "J" else new)


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    """Put another tensor in the place of a parameter or a buffer."""
    old: Tensor = getattr(module, name)
    value = value.to(old)
    trained = isinstance(old, nn.Parameter)
    setattr(module, name, nn.Parameter(value, old.requires_grad) if trained else value)
