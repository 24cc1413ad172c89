"""Spectra of velocity Jacobians: purely imaginary or not, diagonalisable or how nearly not.

For y' = J K' sigma(K y + b) the Jacobian is A = J K' D K with D = diag sigma'(K y + b), the
transpose of the paper's K' D K J' (equation 16). A product of a skew and a positive semidefinite
matrix has Jordan blocks of at most 2 x 2, and those only for the eigenvalue 0. So an eigenvalue of
A is computed with an error of at most about sqrt(eps) ||A||, and of kappa eps ||A|| where its
eigenvectors have condition number kappa.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hdnn.analysis.sensitivity import (
    batched_jacobians,
    check_no_convolution,
    jacobians,
    layers_side_by_side,
)
from hdnn.errors import HdnnError
from hdnn.networks import HamiltonianNetwork, own_precision
from hdnn.program import times

EPS = torch.finfo(torch.float64).eps
_CLEAR = 1e3  # below this condition number of computed eigenvectors there is nothing to look into
_EXAMINED = 256  # how many of the worst are looked into


@own_precision
@torch.no_grad()
def velocity_jacobians(net: HamiltonianNetwork, y: Tensor) -> Tensor:
    """d f_j / d y at the state y_j of every layer: the Jacobians of the underlying ODE.

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
    check_no_convolution(net)
    states = [net.field.layout.flatten(state)[0] for state in net.trajectory(y)[:-1]]
    return velocity_jacobians_at(net, states)


def velocity_jacobians_at(net: HamiltonianNetwork, states: Sequence[Tensor]) -> Tensor:
    """The same at given canonical states, one for every layer."""
    axis, layers = net.field.layout.axis, layers_side_by_side(net)
    if layers is not None:
        of_all = partial(layers.field.velocity_fn(), 0, 0.0)
        return batched_jacobians(of_all, torch.stack(tuple(states)), axis)
    velocity, t = net.field.velocity_fn(), times(net.h, net.layers)
    return torch.stack(
        [jacobians(partial(velocity, j, t[j]), x, axis) for j, x in enumerate(states)]
    )


@dataclass(frozen=True)
class Spectrum:
    """What the eigenvalues of matrices ``(..., n, n)`` are like, in float64.

    Args:
        eigenvalues: ``(..., n)``.
        size: ``(...)``, the spectral norm of A.
        real: ``(...)``, max |Re lambda| / ||A||.
        rounding: ``(...)``, how large `real` may be by rounding alone.
        condition: ``(...)``, the condition number kappa of a basis of eigenvectors; infinite where
            there is none, to working precision. With imaginary eigenvalues, ||exp(t A)|| <= kappa.

    >>> import hdnn, torch
    >>> rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> found = hdnn.analysis.spectrum(rotation)
    >>> float(found.real), round(float(found.condition), 6)
    (0.0, 1.0)
    """

    eigenvalues: Tensor
    size: Tensor
    real: Tensor
    rounding: Tensor
    condition: Tensor


def spectrum(A: Tensor) -> Spectrum:
    """Eigenvalues of matrices ``(..., n, n)`` and how far they are from defective.

    Args:
        A: ``(..., n, n)``.

    Returns:
        Eigenvalues ``(..., n)``, and numbers ``(...)`` for every matrix.

    >>> nilpotent = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> float(spectrum(nilpotent).condition)
    inf
    >>> float(spectrum(torch.tensor([[0.0, 4.0], [-1.0, 0.0]])).condition)
    2.0
    """
    n = A.shape[-1]
    wide = A.detach().to(torch.float64)
    size = torch.linalg.matrix_norm(wide, 2)
    safe = torch.where(size > 0, size, 1.0)
    unit = _scaled(wide, safe)
    values, vectors = torch.linalg.eig(unit)
    condition, unit = _condition(vectors).reshape(-1), unit.reshape(-1, n, n)
    for k in condition.argsort(descending=True)[:_EXAMINED].tolist():
        if condition[k] < _CLEAR:
            break
        condition[k] = _clustered_condition(unit[k])
    condition = condition.reshape(size.shape)
    rounding = 16 * n * (condition * EPS).clamp(max=EPS**0.5)
    return Spectrum(values * safe[..., None], size, values.real.abs().amax(-1), rounding, condition)


def _scaled(A: Tensor, size: Tensor) -> Tensor:
    """A / size without entries that nearly underflow, on which LAPACK can fail."""
    unit = A / size[..., None, None]
    return torch.where(unit.abs() > EPS**4, unit, 0.0)


def spectral_radius(A: Tensor) -> Tensor:
    """``(...)``: the largest |eigenvalue| of matrices ``(..., n, n)``."""
    size = torch.linalg.matrix_norm(A, 2)
    safe = torch.where(size > 0, size, 1.0)
    return torch.linalg.eigvals(_scaled(A, safe)).abs().amax(-1) * safe


def _condition(vectors: Tensor) -> Tensor:
    singular = torch.linalg.svdvals(vectors)
    return singular[..., 0] / singular[..., -1].clamp_min(EPS**2)


def _clustered_condition(A: Tensor) -> float:
    """The condition number of eigenvectors that are chosen orthogonal within equal eigenvalues.

    Rounding splits an m-fold eigenvalue, and computed eigenvectors of the pieces are arbitrary. So
    eigenvalues that rounding cannot tell apart are taken together. They are semisimple where
    A - lambda I has m singular values that are zero up to rounding. Else, with s the largest of
    the m and d the spread of the pieces, s / d bounds the condition number from below, and a matrix
    that differs from A by about d^2 / s has a Jordan block: infinite, if that is rounding.
    ||A|| = 1.
    """
    n = len(A)
    rounding = 16 * n * EPS
    values, vectors = torch.linalg.eig(A)
    near = (values[:, None] - values[None]).abs() <= 4 * (n * EPS) ** 0.5
    for _ in range(n.bit_length()):  # chains of neighbors
        near = (near.double() @ near.double()) > 0
    bases, worst = [], 1.0
    for k in range(n):
        group = near[k].nonzero()[:, 0]
        if len(group) == 1:
            bases.append(vectors[:, k : k + 1])
        if len(group) == 1 or int(group[0]) < k:
            continue
        center, m = values[group].mean(), len(group)
        eye = torch.eye(n, dtype=values.dtype)
        _, singular, right = torch.linalg.svd(A.to(values.dtype) - center * eye)
        bases.append(right[n - m :].mH)
        s, d = float(singular[n - m]), float((values[group] - center).abs().max())
        if s > rounding:
            worst = max(worst, s / max(d, EPS) if d**2 / s > rounding else torch.inf)
    return max(worst, float(_condition(torch.cat(bases, 1))))
