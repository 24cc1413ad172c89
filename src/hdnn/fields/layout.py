"""Where the width n of a state lives: the last axis (features), or after the batch (channels).

A layout brings a state of any batch shape to a canonical one and applies matrices to its width:

    features   (..., n)              <->  ([E,] B, n)
    channels   ([E,] B, n, *spatial) <->  ([E,] B, n, S)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.errors import HdnnError

Restore = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """The width of a state, the axis that holds it, and the size of an ensemble, if any.

    Args:
        width: n.
        channels: whether the width is a channel axis, ``(B, n, *spatial)``, or the last one.
        ensemble: E, the number of networks that run side by side, or None.
    """

    width: int
    channels: bool = False
    ensemble: int | None = None

    @property
    def axis(self) -> int:
        """The axis of the width in the canonical form."""
        return -2 if self.channels else -1

    def __str__(self) -> str:
        text = f"{'channels' if self.channels else 'features'}={self.width}"
        return text if self.ensemble is None else f"{text}, ensemble={self.ensemble}"

    def check(self, x: Tensor) -> None:
        """Refuse a state that does not have this layout."""
        lead = 0 if self.ensemble is None else 1
        place = lead + 1 if self.channels else x.ndim - 1
        needed = lead + (2 if self.channels else 1)
        if x.ndim < needed or x.shape[place] != self.width:
            shape = f"(B, {self.width}, *spatial)" if self.channels else f"(..., {self.width})"
            if lead:
                shape = f"({self.ensemble} or 1, {shape[1:]}"
            raise HdnnError(f"the state must have shape {shape}, got {tuple(x.shape)}")
        if lead and x.shape[0] not in (1, self.ensemble):
            raise HdnnError(
                f"the first axis is the ensemble of {self.ensemble} (or 1: one batch for all), "
                f"got {tuple(x.shape)}; for a shared batch pass y.unsqueeze(0)"
            )

    def flatten(self, x: Tensor) -> tuple[Tensor, Restore]:
        """The canonical form of a state, and the function that undoes it."""
        self.check(x)
        lead: tuple[int, ...] = ()
        if self.ensemble is not None:
            x = x.expand(self.ensemble, *x.shape[1:])
            lead = (self.ensemble,)
        shape = x.shape
        if not self.channels:
            if x.ndim == len(lead) + 2:
                return x, _same
            return x.reshape(*lead, -1, self.width), lambda z: z.reshape(shape)
        flat = x.flatten(len(lead) + 2) if x.ndim > len(lead) + 2 else x.unsqueeze(-1)
        return flat, lambda z: z.reshape(shape)

    def linear(self, A: Tensor, x: Tensor) -> Tensor:
        """A x on canonical states; A is ``(out, in)``, or ``(E, out, in)`` for an ensemble."""
        if self.channels:
            return torch.matmul(A if A.ndim == 2 else A.unsqueeze(1), x)
        return x @ A.mT

    def affine(self, W: Tensor, b: Tensor, x: Tensor) -> Tensor:
        """W x + b on canonical states."""
        if self.channels:
            column = b.unsqueeze(-1)
            return self.linear(W, x) + (column if self.ensemble is None else column.unsqueeze(1))
        if self.ensemble is None:
            return F.linear(x, W, b)
        return torch.baddbmm(b.unsqueeze(-2), x, W.mT)

    def add_linear(self, y: Tensor, A: Tensor, x: Tensor) -> Tensor:
        """y + A x on canonical states."""
        if self.channels:
            return y + self.linear(A, x)
        return torch.addmm(y, x, A.mT) if self.ensemble is None else torch.baddbmm(y, x, A.mT)

    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        """One number for every sample, ``([E,] B)``, in the batch shape of the state y."""
        if self.channels:
            return values
        lead = () if self.ensemble is None else (self.ensemble,)
        return values.reshape((*lead, *y.shape[len(lead) : -1]))

    def sum(self, x: Tensor) -> Tensor:
        """The sum over width and space of a canonical state: ``([E,] B)``."""
        return x.sum((-2, -1)) if self.channels else x.sum(-1)


def _same(x: Tensor) -> Tensor:
    return x


def layout_of(features: int | None, channels: int | None, ensemble: int | None = None) -> Layout:
    """The layout of ``features=n`` or ``channels=n``: exactly one of the two is given."""
    if (features is None) == (channels is None):
        raise HdnnError(
            "give exactly one of features, states (..., n), and channels, states (B, n, *spatial); "
            f"got features={features}, channels={channels}"
        )
    width = features if features is not None else channels
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise HdnnError(f"a width is a positive integer, got {width!r}")
    if ensemble is not None and (not isinstance(ensemble, int) or ensemble < 1):
        raise HdnnError(f"ensemble is a positive integer or None, got {ensemble!r}")
    return Layout(width, channels is not None, ensemble)
