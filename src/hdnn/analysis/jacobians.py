"""Jacobians of a network: between its states, of single layers, and of the ODE behind it.

The paper writes Jacobians transposed (column convention). Here M_l = d y_N / d y_l is the usual
Jacobian, M_l[i, k] = d y_N[i] / d y_l[k].

Over channels every pixel is a sample with n numbers, but where K couples pixels (a convolution):
there a sample is an image with N numbers, those of channel 0 first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from hdnn.backends import choose, fused, reference
from hdnn.errors import HdnnError
from hdnn.fields import Field
from hdnn.networks import HamiltonianNetwork, without_autocast
from hdnn.program import Program, times
from hdnn.threads import one_thread

ENTRIES = 2_000_000
"""Entries of Jacobians that are computed at once: some tens of megabytes."""
LARGEST = 1024
"""Numbers of an image up to which a Jacobian that couples all its pixels is written out."""


@without_autocast
def sensitivities(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_N / d y_l for every layer l and every sample, in one backward sweep.

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers + 1, ..., n, n)``; for channels ``(layers + 1, B, *spatial, n, n)``, and where K
        is a convolution ``(layers + 1, B, N, N)`` with the N numbers of an image. The last one is
        the identity.

    Raises:
        HdnnError: y does not fit the network, or K is a convolution of images with more than 1024
            numbers.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> sensitivities(net, torch.zeros(5, 4)).shape
    torch.Size([9, 5, 4, 4])
    """
    check_matrices(net, y)
    return _shaped(net, y, jacobians_at(net, y, range(net.layers + 1))[0])


@torch.no_grad()
def jacobians_at(
    net: HamiltonianNetwork, y: Tensor, depths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """d y_N / d y_l and y_l at depths l: ``(D, [E,] samples, n, n)``, ``(D, [E,] samples, n)``.

    Args:
        net: the network.
        y: states.
        depths: l, increasing.
    """
    values, places = net.values(), list(depths)
    if net.field.couples_pixels:
        path = net.trajectory(y).flatten(net.field.layout.axis + 1)
        return products(factors_of(net, y))[places], path[places]
    if choose(net.program, values, y, net.backend).in_stages:
        return fused.jacobians(net.program, values, y, depths)
    with unless_large(net, y):
        return reference.jacobians(net.program, values, y, depths)


def unless_large(net: HamiltonianNetwork, y: Tensor) -> AbstractContextManager[None]:
    """One thread for Jacobians of a network at states y, unless these are many."""
    return one_thread(y.numel() * sample_size(net, y) * net.field.layout.width)


def products(factors: Tensor) -> Tensor:
    """d y_N / d y_l at every depth l, of the factors d y_{l+1} / d y_l."""
    start = torch.eye(factors.shape[-1]).to(factors).expand(factors.shape[1:])
    return torch.stack([*accumulate(factors.flip(0), torch.matmul, initial=start)]).flip(0)


@without_autocast
def layer_factors(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d y_{l+1} / d y_l of every layer: the factors of the product in equation (5).

    Args:
        net: the network.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers, ..., n, n)``; for channels ``(layers, B, *spatial, n, n)``, and where K is a
        convolution ``(layers, B, N, N)``.

    Raises:
        HdnnError: as `sensitivities`.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> layer_factors(net, torch.zeros(5, 4)).shape
    torch.Size([8, 5, 4, 4])
    """
    check_matrices(net, y)
    return _shaped(net, y, factors_of(net, y))


@without_autocast
@torch.no_grad()
def velocity_jacobians(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d f_j / d y at the state y_j of every layer: the Jacobians of the ODE y' = f_j(y).

        f_j(y) = J K_j' sigma(K_j y + b_j),      d f_j / d y = J K_j' D K_j   (equation 16)

    Args:
        net: the network; one with a step.
        y: states ``(..., n)`` or ``(B, n, *spatial)``.

    Returns:
        ``(layers, samples, n, n)``, for an ensemble ``(layers, E, samples, n, n)``; where K is a
        convolution ``(layers, B, N, N)``.

    Raises:
        HdnnError: the network has no step size, or as `sensitivities`.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=8, T=1.0)
    >>> velocity_jacobians(net, torch.zeros(5, 4)).shape
    torch.Size([8, 5, 4, 4])
    """
    if not net.scheme.uses_step:
        raise HdnnError(f"{net.name or 'this network'} discretizes no ODE: it has no step size")
    check_matrices(net, y)
    with unless_large(net, y):
        states = [net.field.layout.flatten(state)[0] for state in net.trajectory(y)[:-1]]
        return velocity_jacobians_at(net, states)


def velocity_jacobians_at(net: HamiltonianNetwork, states: Sequence[Tensor]) -> Tensor:
    """The same at given canonical states, one for every layer."""
    velocity, t = net.field.velocity_fn(), times(net.h, net.layers)
    return torch.stack(
        [jacobian_at(partial(velocity, j, t[j]), x, net.field)[1] for j, x in enumerate(states)]
    )


def jacobian_at(
    function: Callable[[Tensor], Tensor], x: Tensor, field: Field
) -> tuple[Tensor, Tensor]:
    """The value of a map of the canonical states of a field, and its Jacobian.

    Args:
        function: maps states to states, each sample by itself.
        x: canonical states.
        field: says whether pixels are samples, too.
    """
    if not field.couples_pixels:
        return batch_jacobian(function, x, field.layout.axis)
    axis, pixels = field.layout.axis, x.shape[field.layout.axis :]
    value, matrices = batch_jacobian(
        lambda v: function(v.unflatten(axis, pixels)).flatten(axis), x.flatten(axis), axis
    )
    return value.unflatten(axis, pixels), matrices


def batch_jacobian(
    function: Callable[[Tensor], Tensor], x: Tensor, axis: int
) -> tuple[Tensor, Tensor]:
    """The value of a map of states and its Jacobian ``([E,] samples, n, n)``.

    Args:
        function: maps states to states, each sample (and each pixel) by itself.
        x: states ``([E,] samples, n, *spatial)``.
        axis: of the width n; the samples are on the axis before it.
    """
    width, samples = x.shape[axis], max(1, x.shape[axis - 1])
    chunk = max(1, ENTRIES * samples // max(1, width * x.numel()))
    parts = [_batch_jacobian(function, part, axis) for part in x.split(chunk, axis - 1)]
    values, matrices = (torch.cat(tensors, axis - 1) for tensors in zip(*parts, strict=True))
    return values, matrices


def _batch_jacobian(
    function: Callable[[Tensor], Tensor], x: Tensor, axis: int
) -> tuple[Tensor, Tensor]:
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
    value, vjps = (v.detach().unflatten(batch, shape[batch : batch + 2]) for v in (value, vjps))
    matrices = vjps.movedim(axis + 1, -1).movedim(batch, -2).flatten(batch, -3)
    return value.select(batch, 0), matrices  # all n copies of a value are the same


@torch.no_grad()
def factors_of(net: HamiltonianNetwork, y: Tensor, program: Program | None = None) -> Tensor:
    """``(layers, [E,] samples, n, n)``: d y_{l+1} / d y_l.

    Args:
        net: the network.
        y: states.
        program: another program over the same parameters; None is the network's own.
    """
    x, _ = net.field.layout.flatten(y.detach())
    program = net.program if program is None else program
    values = net.values()
    if program.has_flows:
        values = values._replace(velocity=net.field.velocity_fn())
    advance, factors = reference.layer_map(program, values, x.ndim), []
    with unless_large(net, y):
        for layer in range(net.layers):
            x, factor = jacobian_at(partial(advance, layer), x, net.field)
            factors.append(factor)
    if factors:
        return torch.stack(factors)
    n = sample_size(net, y)
    samples = x.numel() // (n * (net.ensemble or 1))
    return x.new_empty(0, *net.field.layout.lead, samples, n, n)


def check_single_network(net: HamiltonianNetwork, y: Tensor) -> None:
    """Raise unless this is a single network, with layers and samples to examine."""
    check_network(net, y)
    if net.ensemble is not None:
        raise HdnnError("an ensemble holds several networks; examine them one by one")
    if not net.layers or not y.numel():
        raise HdnnError("there is nothing to examine: no layers or no samples")


def check_network(net: HamiltonianNetwork, y: Tensor) -> None:
    """Raise unless this is a network, and states that fit it."""
    if not isinstance(net, HamiltonianNetwork):
        raise HdnnError(
            f"this takes a Hamiltonian network and the states that enter it, got a "
            f"{type(net).__name__}; of a model, pass its block: model[1], model[0](x), or "
            "model.network, model.preprocess(X)"
        )
    net.check_state(y)


def sample_size(net: HamiltonianNetwork, y: Tensor) -> int:
    """n, the width; of images whose pixels are coupled all their numbers."""
    layout = net.field.layout
    return y.shape[layout.axis :].numel() if net.field.couples_pixels else layout.width


def too_large(net: HamiltonianNetwork, y: Tensor) -> bool:
    """Whether Jacobians couple so many pixels that they are not written out."""
    return net.field.couples_pixels and sample_size(net, y) > LARGEST


def check_matrices(net: HamiltonianNetwork, y: Tensor) -> None:
    """Raise unless the Jacobians of a network at states y can be written out."""
    check_network(net, y)
    if too_large(net, y):
        raise HdnnError(
            f"d y_N / d y_l of a convolution couples all {sample_size(net, y)} numbers of an "
            f"image, and is written out up to {LARGEST}; hdnn.analysis.profile estimates its norms"
        )


def _shaped(net: HamiltonianNetwork, y: Tensor, matrices: Tensor) -> Tensor:
    layout = net.field.layout
    if net.field.couples_pixels:
        return matrices
    rest = y.shape[len(layout.lead) :]
    samples = rest[:1] + rest[2:] if layout.channels else rest[:-1]
    return matrices.reshape(matrices.shape[0], *layout.lead, *samples, layout.width, layout.width)
