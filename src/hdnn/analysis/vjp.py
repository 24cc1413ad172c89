"""Jacobians between kept states of a torch model: all directions, or norms by power iteration."""

from __future__ import annotations

import torch
from torch import Tensor

from hdnn.analysis.gradient_norms import LEVELS, Norms, singular_values
from hdnn.errors import HdnnError

MAX_NUMBERS = 2**25
"""Numbers that batched vector-Jacobian products may hold at once."""


class FlatState:
    """A state as rows ``(samples, size)``, while gradients are taken of the state itself."""

    def __init__(self, state: Tensor, axis: int | None) -> None:
        self.state, self.axis = state, axis
        self.samples = 1 if axis is None else state.shape[axis]
        self.size = state.numel() // max(self.samples, 1)

    def flat(self, x: Tensor) -> Tensor:
        """``(..., *shape)`` to ``(..., samples, size)``."""
        lead = x.shape[: x.ndim - self.state.ndim]
        if self.axis is not None:
            x = x.movedim(len(lead) + self.axis % self.state.ndim, len(lead))
        return x.reshape(*lead, self.samples, self.size)

    def full(self, rows: Tensor) -> Tensor:
        """The inverse of `flat`."""
        lead = rows.shape[:-2]
        if self.axis is None:
            return rows.reshape(*lead, *self.state.shape)
        axis = self.axis % self.state.ndim
        shape = list(self.state.shape)
        rest = shape[:axis] + shape[axis + 1 :]
        return rows.reshape(*lead, self.samples, *rest).movedim(len(lead), len(lead) + axis)


def check_mixing(rows: list[FlatState], names: tuple[str, ...]) -> None:
    """The vjp of one direction of the first sample must be zero for all other samples."""
    last = rows[-1]
    direction = torch.zeros(
        last.samples, last.size, dtype=last.state.dtype, device=last.state.device
    )
    direction[0] = torch.linspace(0.5, 1.5, last.size)
    cotangents = _vjp(rows[:-1], last.state, last.full(direction))
    for row, name, g in zip(rows, names, cotangents, strict=False):
        if bool((row.flat(g)[1:] != 0).any()):
            raise HdnnError(
                f"samples mix after {name!r}: batch normalization in training mode (use "
                "module.eval()), or the batch is on another axis (batch_axis=...); per_sample="
                "False takes the whole batch as one state"
            )


def _vjp(
    rows: list[FlatState], out: Tensor, cotangent: Tensor, batched: bool = False
) -> list[Tensor]:
    """Vector-Jacobian products with all states; zeros where ``out`` does not depend on one."""
    grads = torch.autograd.grad(
        out,
        [row.state for row in rows],
        cotangent,
        retain_graph=True,
        allow_unused=True,
        is_grads_batched=batched,
    )
    lead = cotangent.shape[: cotangent.ndim - out.ndim]
    return [
        row.state.new_zeros(*lead, *row.state.shape) if g is None else g
        for row, g in zip(rows, grads, strict=True)
    ]


def jacobians(rows: list[FlatState]) -> list[Tensor]:
    """M_l ``(samples, m_N, m_l)`` for every state, a few directions of h_N at a time."""
    last = rows[-1]
    n, samples = last.size, last.samples
    matrices = [row.state.new_empty(n, samples, row.size) for row in rows[:-1]]
    most = MAX_NUMBERS // max(1, samples * sum(row.size for row in rows))
    chunk = max(1, min(n, most))
    eye = torch.eye(n, dtype=last.state.dtype, device=last.state.device)
    for start in range(0, n, chunk):
        stop = min(n, start + chunk)
        directions = last.full(eye[start:stop, None].expand(stop - start, samples, n))
        vjps = _batched_vjp(rows[:-1], last.state, directions)
        for M, g, row in zip(matrices, vjps, rows[:-1], strict=True):
            M[start:stop] = row.flat(g)
    identity = eye.expand(samples, n, n)
    return [*(M.movedim(0, 1) for M in matrices), identity]


def _batched_vjp(rows: list[FlatState], out: Tensor, directions: Tensor) -> list[Tensor]:
    """Products with a stack of directions: at once, or one by one where a layer cannot do that."""
    try:
        return _vjp(rows, out, directions, batched=True)
    except (RuntimeError, HdnnError):
        each = [_vjp(rows, out, direction) for direction in directions]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]


def power(
    row: FlatState, last: FlatState, iterations: int, tolerance: float, shared: bool
) -> Tensor:
    """The norm of M of every sample (or of the mean of M), by power iteration on M M'.

    u -> v = M' u / ||M' u|| -> u = M v, and ||M v|| grows to the norm. M v is the derivative of
    <M' u, v> along u: M' u is linear in u.
    """
    generator = torch.Generator().manual_seed(0)  # the same estimate every time
    count = 1 if shared else last.samples
    u = torch.randn(count, last.size, generator=generator, dtype=torch.float64).to(last.state)
    u = u / u.norm(dim=1, keepdim=True)
    norms = u.new_zeros(count)
    for _ in range(iterations):
        slack = last.full(u.expand(last.samples, -1)).requires_grad_()
        (g,) = torch.autograd.grad(
            last.state, row.state, slack, create_graph=True, allow_unused=True
        )
        if g is None:
            return torch.zeros(count, dtype=torch.float64)
        vjp = row.flat(g)
        v = vjp.detach().mean(0, keepdim=True) if shared else vjp.detach()
        v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
        (image,) = torch.autograd.grad(
            vjp, slack, v.expand_as(vjp), retain_graph=True, allow_unused=True
        )
        image = last.flat(image)
        u = image.mean(0, keepdim=True) if shared else image
        before, norms = norms, u.norm(dim=1)
        u = u / norms[:, None].clamp_min(torch.finfo(u.dtype).tiny)
        if bool((norms <= before * (1 + tolerance)).all()):
            break
    return norms.detach().double().cpu()


def norms_of(M: Tensor) -> Norms:
    """Norms of one layer's Jacobians ``(samples, m_N, m_l)``."""
    values = singular_values(M).cpu()
    of_mean = singular_values(M.double().mean(0))[0].cpu()
    return summary(values[:, 0], values[:, -1].min(), of_mean)


def summary(largest: Tensor, smallest: Tensor, of_mean: Tensor) -> Norms:
    """The record of one layer, from the norms of its samples."""
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return Norms(
        largest.mean(), largest.amin(), largest.amax(), largest.quantile(levels), smallest, of_mean
    )


def stack(parts: list[Norms]) -> Norms:
    """One record of all layers."""

    def column(name: str) -> Tensor:
        return torch.stack([getattr(part, name) for part in parts], -1)

    names = ("mean", "minimum", "maximum", "quantiles", "smallest", "of_mean")
    return Norms(*(column(name) for name in names))  # type: ignore[arg-type]
