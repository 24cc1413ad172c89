"""The state of an optimizer for a network of another depth."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.refinement.depth import networks_in, steps_of
from hdnn.refinement.interpolation import INTERPOLATIONS, mixed

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
    mixes = layer_mixes(old, new)
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


class LayerMix(NamedTuple):
    """The matrix that takes the layers of a parameter to the new ones, and the axis they are on."""

    matrix: Tensor
    axis: int

    def apply(self, stack: Tensor, degree: int) -> Tensor:
        """What an entry of an optimizer is for the new layers."""
        new, old = self.matrix.shape[-2:]
        columns = stack.unsqueeze(-1) if self.axis == -1 else stack
        layers = mixed(self.matrix, columns) * (old / new) ** degree
        return (layers.squeeze(-1) if self.axis == -1 else layers).to(stack)


def layer_mixes(old: nn.Module, new: nn.Module) -> dict[int, LayerMix | None]:
    """For every parameter what takes its layers to the new ones; None where it has none."""
    found: dict[int, LayerMix | None] = {id(p): None for p in old.parameters()}
    for before, after in zip(networks_in(old), networks_in(new), strict=True):
        matrix = INTERPOLATIONS["constant"](before.layers, after.layers, steps_of(before))
        shapes = {name: p.shape for name, p in after.named_parameters()}
        for name, p in before.named_parameters():
            if shapes[name] != p.shape:
                found[id(p)] = LayerMix(matrix, -1 if name == "log_steps" else -2)
    return found


def _carried(name: str, value: Any, mix: LayerMix | None, degrees: dict[str, int]) -> Any:
    if mix is None or not isinstance(value, Tensor) or value.ndim == 0:
        return copy.deepcopy(value)
    if name not in degrees:
        raise HdnnError(
            f"the optimizer keeps {name!r}, which hdnn has no rule for; known are "
            f"{', '.join(degrees)}; begin with a new optimizer"
        )
    return mix.apply(value, degrees[name])
