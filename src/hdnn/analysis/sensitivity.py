"""Sensitivities: how the states of a network depend on each other.

The paper writes Jacobians transposed (column convention); here M_l = d y_N / d y_l is the usual
Jacobian, M[i, k] = d y_N[i] / d y_l[k].
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from hdnn.backends import choose, reference
from hdnn.errors import HdnnError
from hdnn.fields import HamiltonianField, InverseTranspose
from hdnn.fields.hamiltonian import ActivationField, WeightedField
from hdnn.networks import HamiltonianNetwork, own_precision
from hdnn.program import Program

ENTRIES = 2_000_000
"""Of Jacobians that are computed at once: some tens of megabytes."""
Lowering = Callable[[HamiltonianNetwork], Program]


@own_precision
def sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_N / d y_l for every layer l and every sample, in one backward sweep.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; for channels ``(layers + 1, B, *spatial, n, n)``. The last is
        the identity.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    net.check_state(y)
    check_no_convolution(net)
    program = net.program()
    if choose(program, y, net.backend).backend == "fused":
        from hdnn.backends import fused  # loads numba

        matrices = fused.sensitivities(program, y)
    else:
        matrices = reference.sensitivities(program, y)
    return _shaped(net, y, matrices)


@own_precision
def layer_factors(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_{l+1} / d y_l of every layer: the factors of the product in equation (5).

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers, ..., n, n)``; for channels ``(layers, B, *spatial, n, n)``.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> layer_factors(net, torch.zeros(5, 4)).shape
    torch.Size([8, 5, 4, 4])
    """
    net.check_state(y)
    check_no_convolution(net)
    x, _ = net.field.layout.flatten(y.detach())
    return _shaped(net, y, states_and_factors(net, x)[1])


@own_precision
def forward_sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_l / d y_0 for every layer l and every sample: how a change of the input travels on.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; the first is the identity, the last is
        ``sensitivities(net, y)[0]``.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> forward_sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    factors = layer_factors(net, y)
    matrices = [
        torch.eye(factors.shape[-1], dtype=y.dtype, device=y.device).expand(factors.shape[1:])
    ]
    for factor in factors:
        matrices.append(factor @ matrices[-1])
    return torch.stack(matrices)


def jacobians(function: Callable[[Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    """``([E,] samples, n, n)``: the Jacobian of a map of canonical states, sample by sample.

    The batch is repeated n times, once for every row; one backward pass then serves all, without
    the overhead of function transforms.
    """
    n, batch = x.shape[axis], x.ndim + axis - 1
    shape = (*x.shape[:batch], n, *x.shape[batch:])
    many = x.detach().unsqueeze(batch).expand(shape).flatten(batch, batch + 1).requires_grad_()
    eye = torch.eye(n, dtype=x.dtype, device=x.device)
    rows = eye.reshape(n, 1, n, *(1,) * (-axis - 1)).expand(shape).flatten(batch, batch + 1)
    with torch.enable_grad():
        value = function(many)
        if not value.requires_grad:  # a constant
            vjps = torch.zeros_like(many)
        else:
            # Of a sum: given the rows themselves, torch would import its symbolic shapes.
            (vjps,) = torch.autograd.grad((value * rows).sum(), many, materialize_grads=True)
    vjps = vjps.unflatten(batch, shape[batch : batch + 2]).movedim(axis, -1)
    vjps = vjps.movedim(batch, -2)
    return vjps.flatten(batch, -3) if axis == -2 else vjps


def states_and_factors(
    net: HamiltonianNetwork, x: Tensor, lower: Lowering = HamiltonianNetwork.program
) -> tuple[Tensor, Tensor]:
    """Canonical states y_0 ... y_N of a network, and d y_{l+1} / d y_l.

    Args:
        net: the network.
        x: canonical states.
        lower: the program to take, of the network itself and of its layers side by side.
    """
    states = [x]
    with torch.no_grad():
        advance = reference.layer_map(lower(net))
        for layer in range(net.layers):
            states.append(advance(layer, states[-1]))
        if not net.layers:
            return torch.stack(states), x.new_empty(0)
        axis, layers = net.field.layout.axis, layers_side_by_side(net)
        if layers is None:
            factors = [jacobians(partial(advance, j), y, axis) for j, y in enumerate(states[:-1])]
            return torch.stack(states), torch.stack(factors)
        advance = reference.layer_map(lower(layers))
        every = torch.stack(states)
        return every, batched_jacobians(partial(advance, 0), every[:-1], axis)


def batched_jacobians(function: Callable[[Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    """`jacobians` of an ensemble's states, some samples at a time where there are many."""
    some = max(1, ENTRIES // (x.shape[axis] * x[:, :1].numel()))
    return torch.cat([jacobians(function, part, axis) for part in x.split(some, 1)], 1)


def layers_side_by_side(net: HamiltonianNetwork) -> HamiltonianNetwork | None:
    """The layers of a network as an ensemble of networks of one layer; None where that cannot be.

    What is asked of every layer at given states is then asked of all at once, so that its cost
    does not grow with Python's overhead for every layer.
    """
    if type(net.field) not in (HamiltonianField, ActivationField) or net.ensemble is not None:
        return None
    J = getattr(net.field, "interconnection", None)
    if J is not None and not (J.constant or isinstance(J, InverseTranspose)):
        return None
    twin, layers = copy.deepcopy(net), net.layers
    field = twin.field
    assert isinstance(field, WeightedField)
    weights = field.weights
    if nn.utils.parametrize.is_parametrized(weights):
        return None
    weights.layout = field.layout = replace(field.layout, ensemble=layers)
    for name in ("theta", "beta"):
        values = getattr(weights, name).detach().expand(layers, -1).unsqueeze(1)
        setattr(weights, name, nn.Parameter(values, requires_grad=False))
    weights.layers = field.layers = twin.layers = 1
    if isinstance(net.h, Tensor):
        twin.learn_steps, twin.steps = False, net.h.detach().unsqueeze(-1)
    return twin


def products(factors: Tensor) -> Tensor:
    """d y_N / d y_l for every l, from the factors of the layers."""
    matrices = [torch.eye(factors.shape[-1]).to(factors).expand(factors.shape[1:])]
    for factor in factors.flip(0):
        matrices.append(matrices[-1] @ factor)
    return torch.stack(matrices[::-1])


def check_no_convolution(net: HamiltonianNetwork) -> None:
    """An error where the Jacobian of a sample couples all pixels."""
    if net.kernel > 1:
        raise HdnnError(
            f"d y_N / d y_l of a convolution (kernel={net.kernel}) couples all pixels and is too "
            "large to write out; hdnn.analysis.watch follows the norms of gradients instead"
        )


def _shaped(net: HamiltonianNetwork, y: Tensor, matrices: Tensor) -> Tensor:
    layout = net.field.layout
    lead = () if layout.ensemble is None else (layout.ensemble,)
    rest = y.shape[len(lead) :]
    samples = rest[:1] + rest[2:] if layout.channels else rest[:-1]
    return matrices.reshape(matrices.shape[0], *lead, *samples, layout.width, layout.width)
