"""Jacobians of a network: between its states, of single layers, and of the ODE behind it.

The paper writes Jacobians transposed (column convention). Here M_l = d y_N / d y_l is the usual
Jacobian, M_l[i, k] = d y_N[i] / d y_l[k].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hdnn.backends import choose, fused, reference
from hdnn.errors import HdnnError
from hdnn.fields import Matrix
from hdnn.networks import HamiltonianNetwork
from hdnn.program import Program, Values, times

ENTRIES = 2_000_000
"""Entries of Jacobians that are computed at once: some tens of megabytes."""


def sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_N / d y_l for every layer l and every sample, in one backward sweep.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; for channels ``(layers + 1, B, *spatial, n, n)``. The last one
        is the identity.

    Raises:
        HdnnError: y does not fit the network, or K is a convolution.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    _check(net, y)
    program, values = net.program, net.values()
    compiled = choose(program, values, y, net.backend).backend == "fused"
    compute = fused.sensitivities if compiled else reference.sensitivities
    return _shaped(net, y, compute(program, values, y))


def layer_factors(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_{l+1} / d y_l of every layer: the factors of the product in equation (5).

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers, ..., n, n)``; for channels ``(layers, B, *spatial, n, n)``.

    Raises:
        HdnnError: y does not fit the network, or K is a convolution.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> layer_factors(net, torch.zeros(5, 4)).shape
    torch.Size([8, 5, 4, 4])
    """
    _check(net, y)
    x, _ = net.field.layout.flatten(y.detach())
    return _shaped(net, y, states_and_factors(net, x)[1])


def forward_sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_l / d y_0 for every layer l and every sample: how a change of the input travels on.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; the first is the identity, the last is
        ``sensitivities(net, y)[0]``.

    Raises:
        HdnnError: y does not fit the network, or K is a convolution.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> forward_sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    factors = layer_factors(net, y)
    matrices = [_identity(factors)]
    for factor in factors:
        matrices.append(factor @ matrices[-1])
    return torch.stack(matrices)


@torch.no_grad()
def velocity_jacobians(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d f_j / d y at the state y_j of every layer: the Jacobians of the ODE y' = f_j(y).

        f_j(y) = J K_j' sigma(K_j y + b_j),      d f_j / d y = J K_j' D K_j   (equation 16)

    Args:
        net: the network; one with a step.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers, samples, n, n)``, for an ensemble ``(layers, E, samples, n, n)``.

    Raises:
        HdnnError: the network has no step size, or K is a convolution.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> velocity_jacobians(net, torch.zeros(5, 4)).shape
    torch.Size([8, 5, 4, 4])
    """
    if not net.scheme.uses_step:
        raise HdnnError(f"{net.name or 'this network'} discretizes no ODE: it has no step size")
    _check(net, y)
    states = [net.field.layout.flatten(state)[0] for state in net.trajectory(y)[:-1]]
    return velocity_jacobians_at(net, states)


def velocity_jacobians_at(net: HamiltonianNetwork, states: Sequence[Tensor]) -> Tensor:
    """The same at given canonical states, one for every layer."""
    axis, layers = net.field.layout.axis, layers_as_ensemble(net, net.program, states[0].ndim)
    if layers is not None:
        velocity_of_all = layers[1].velocity
        assert velocity_of_all is not None
        stacked = torch.stack(tuple(states))
        return batch_jacobian(partial(velocity_of_all, 0, 0.0), stacked, axis + 1)
    velocity, t = net.field.velocity_fn(), times(net.h, net.layers)
    return torch.stack(
        [batch_jacobian(partial(velocity, j, t[j]), x, axis) for j, x in enumerate(states)]
    )


def batch_jacobian(function: Callable[[Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    """``([E,] samples, n, n)``: the Jacobian of a map of canonical states, sample by sample.

    Args:
        function: maps states to states, each sample (and each pixel) by itself.
        x: canonical states.
        axis: of the width n; the samples are on the axis before it.
    """
    width, samples = x.shape[axis], max(1, x.shape[axis - 1])
    chunk = max(1, ENTRIES * samples // max(1, width * x.numel()))
    parts = [_batch_jacobian(function, part, axis) for part in x.split(chunk, axis - 1)]
    return torch.cat(parts, axis - 1)


def _batch_jacobian(function: Callable[[Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    # The batch is repeated n times, once for each row of the Jacobian; one backward pass serves
    # all of them, without the overhead of function transforms.
    n, batch = x.shape[axis], axis - 1
    shape = (*x.shape[:batch], n, *x.shape[batch:])
    many = x.detach().unsqueeze(batch).expand(shape).flatten(batch, batch + 1).requires_grad_()
    eye = torch.eye(n, dtype=x.dtype, device=x.device)
    rows = eye.reshape(n, 1, n, *(1,) * (x.ndim - axis - 1)).expand(shape).flatten(batch, batch + 1)
    with torch.enable_grad():
        value = function(many)
        if not value.requires_grad:  # a constant
            vjps = torch.zeros_like(many)
        else:
            # Of a sum: given the rows themselves, torch would import its symbolic shapes.
            (vjps,) = torch.autograd.grad((value * rows).sum(), many, materialize_grads=True)
    vjps = vjps.unflatten(batch, shape[batch : batch + 2]).movedim(axis + 1, -1)
    return vjps.movedim(batch, -2).flatten(batch, -3)


@torch.no_grad()
def states_and_factors(
    net: HamiltonianNetwork, x: Tensor, program: Program | None = None
) -> tuple[Tensor, Tensor]:
    """Canonical states y_0 ... y_N of a network, and d y_{l+1} / d y_l.

    Args:
        net: the network.
        x: canonical states.
        program: another program over the same parameters; None is the network's own.
    """
    program = net.program if program is None else program
    values, axis, states = net.values(), net.field.layout.axis, [x]
    values = values._replace(velocity=net.field.velocity_fn() if program.has_flows else None)
    advance = reference.layer_map(program, values, x.ndim)
    for layer in range(net.layers):
        states.append(advance(layer, states[-1]))
    path = torch.stack(states)
    if not net.layers:
        return path, x.new_empty(0)
    layers = layers_as_ensemble(net, program, x.ndim)
    if layers is not None:
        advance_all = reference.layer_map(*layers, x.ndim + 1)
        return path, batch_jacobian(partial(advance_all, 0), path[:-1], axis + 1)
    factors = [batch_jacobian(partial(advance, j), y, axis) for j, y in enumerate(states[:-1])]
    return path, torch.stack(factors)


def layers_as_ensemble(
    net: HamiltonianNetwork, program: Program, ndim: int
) -> tuple[Program, Values] | None:
    """The layers of a network as an ensemble of networks of one layer; None where that cannot be.

    What is asked of every layer at known states is then asked of all at once, so that deep networks
    do not pay Python's overhead for each layer.

    Args:
        net: a single network.
        program: its own, or another over its parameters.
        ndim: axes of its canonical states; those of the ensemble have one more.
    """
    stage, values = net.field.stage(carry=0), net.values()
    if stage is None or not isinstance(stage.W, Matrix) or net.ensemble is not None:
        return None
    assert values.theta is not None
    assert values.beta is not None
    theta, beta = (
        t.detach().expand(net.layers, -1).unsqueeze(1) for t in (values.theta, values.beta)
    )
    S, h = values.S, values.h
    S = S.detach().unsqueeze(1) if S is not None and S.ndim == 3 else S
    h = h.detach().unsqueeze(-1) if isinstance(h, Tensor) else h
    layout = replace(program.layout, ensemble=net.layers)
    # f(x) = A sigma(W x + b) is what a stage gives that carries nothing over, with a step of 1.
    once = reference.layer_map(Program(1, (stage,), layout), Values(1.0, theta, beta, S), ndim + 1)
    values = Values(h, theta, beta, S, lambda layer, t, x: once(0, x))
    return replace(program, layers=1, layout=layout), values


def products(factors: Tensor) -> Tensor:
    """d y_N / d y_l for every l, from the factors of the layers."""
    matrices = [_identity(factors)]
    for factor in factors.flip(0):
        matrices.append(matrices[-1] @ factor)
    return torch.stack(matrices[::-1])


def _identity(factors: Tensor) -> Tensor:
    eye = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
    return eye.expand(factors.shape[1:])


def check_no_convolution(net: HamiltonianNetwork) -> None:
    """An error where the Jacobian of a sample couples all pixels."""
    if net.kernel > 1:
        raise HdnnError(
            f"d y_N / d y_l of a convolution (kernel={net.kernel}) couples all pixels and is too "
            "large to write out; hdnn.analysis.watch estimates its norms instead"
        )


def _check(net: HamiltonianNetwork, y: Tensor) -> None:
    net.check_state(y)
    check_no_convolution(net)


def _shaped(net: HamiltonianNetwork, y: Tensor, matrices: Tensor) -> Tensor:
    layout = net.field.layout
    rest = y.shape[len(layout.lead) :]
    samples = rest[:1] + rest[2:] if layout.channels else rest[:-1]
    return matrices.reshape(matrices.shape[0], *layout.lead, *samples, layout.width, layout.width)
