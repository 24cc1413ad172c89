"""Where the width n of a state lives, and what a layer's K is to it.

A layout brings a state of any batch shape to a canonical one and applies linear maps to it:

    Features      (..., n)              <->  ([E,] B, n)       K is a matrix
    Channels      ([E,] B, n, *spatial) <->  ([E,] B, n, S)    K is a matrix, at every pixel
    Convolution   (B, n, height, width)                        K is a kernel (o, i, k, k)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from hdnn.errors import HdnnError

Restore = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout(ABC):
    """The width of a state, and the size of an ensemble, if any.

    Args:
        width: n.
        ensemble: E, the number of networks that run side by side, or None.

    Attributes:
        channels: whether the width is a channel axis, ``(B, n, *spatial)``, or the last one.
        axis: the axis of the width in the canonical form.
        kernel: k, the side of a convolution's kernel; 1 where K is a matrix.

    >>> import hdnn
    >>> hdnn.network("H1", channels=8, kernel=3, layers=2, T=1.0).field.layout
    Convolution(width=8, ensemble=None, side=3)
    """

    width: int
    ensemble: int | None = None
    channels: ClassVar[bool] = False
    axis: ClassVar[int] = -1

    @property
    @abstractmethod
    def kernel(self) -> int: ...

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse a state that does not have this layout.

        Args:
            x: the state.

        Raises:
            HdnnError: its shape is another.
        """

    @abstractmethod
    def flatten(self, x: Tensor) -> tuple[Tensor, Restore]:
        """The canonical form of a state, and the function that undoes it.

        Args:
            x: a state as the user gives it.

        Returns:
            The canonical state, and a function that brings one back to the shape of x.
        """

    @abstractmethod
    def linear(self, A: Tensor, x: Tensor) -> Tensor:
        """A x on canonical states; A is ``([E,] out, in)``, or a kernel ``(out, in, k, k)``.

        Args:
            A: the matrix or kernel.
            x: a canonical state.

        Returns:
            A canonical state.
        """

    @abstractmethod
    def affine(self, W: Tensor, b: Tensor, x: Tensor) -> Tensor:
        """W x + b on canonical states.

        Args:
            W: as A in `linear`.
            b: ``([E,] out)``.
            x: a canonical state.

        Returns:
            A canonical state.
        """

    @abstractmethod
    def add_linear(self, y: Tensor, A: Tensor, x: Tensor) -> Tensor:
        """y + A x on canonical states.

        Args:
            y: a canonical state.
            A: as in `linear`.
            x: a canonical state.

        Returns:
            A canonical state, as y.
        """

    @abstractmethod
    def adjoint(self, K: Tensor) -> Tensor:
        """K' of a stack: <K x, y> = <x, K' y>.

        Args:
            K: ``([E,] L, m, n)``, or kernels ``(L, m, n, k, k)``.

        Returns:
            ``([E,] L, n, m)``, or kernels ``(L, n, m, k, k)``.
        """

    @abstractmethod
    def mixed(self, S: Tensor, K: Tensor) -> Tensor:
        """S K of a stack, where the matrix S ``(..., w, m)`` acts on the width, pixel by pixel.

        Args:
            S: ``(..., w, m)``.
            K: ``([E,] L, m, n)``, or kernels ``(L, m, n, k, k)``.

        Returns:
            ``([E,] L, w, n)``, or kernels ``(L, w, n, k, k)``.
        """

    @abstractmethod
    def vectors(self, x: Tensor) -> tuple[Tensor, Restore]:
        """A canonical state as vectors ``(..., m)`` of what K couples, and how to undo it.

        Args:
            x: a canonical state.

        Returns:
            The vectors, and a function that undoes it.
        """

    @abstractmethod
    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        """One number for every sample, ``([E,] B)``, in the batch shape of the state y.

        Args:
            values: ``([E,] B)``.
            y: a state, as the user gave it.

        Returns:
            The batch shape of y.
        """

    @abstractmethod
    def sum(self, x: Tensor) -> Tensor:
        """The sum over width and space of a canonical state: ``([E,] B)``.

        Args:
            x: a canonical state.

        Returns:
            One number for every sample.
        """

    def _check_ensemble(self, x: Tensor) -> None:
        if self.ensemble is not None and x.shape[0] not in (1, self.ensemble):
            raise HdnnError(
                f"the first axis is the ensemble of {self.ensemble} (or 1: one batch for all), "
                f"got {tuple(x.shape)}; for a shared batch pass y.unsqueeze(0)"
            )

    def _spread(self, x: Tensor) -> Tensor:
        """One batch for all, given to each."""
        if x.shape[0] == self.ensemble:
            return x
        return x.expand(self.ensemble or 1, *x.shape[1:])

    def _shape_error(self, shape: str, x: Tensor) -> HdnnError:
        if self.ensemble is not None:
            shape = f"({self.ensemble} or 1, {shape[1:]}"
        return HdnnError(f"the state must have shape {shape}, got {tuple(x.shape)}")

    def _named(self, text: str) -> str:
        return text if self.ensemble is None else f"{text}, ensemble={self.ensemble}"


@dataclass(frozen=True)
class Matrices(Layout, ABC):
    """What layouts share in which K is a matrix."""

    @property
    def kernel(self) -> int:
        return 1

    def adjoint(self, K: Tensor) -> Tensor:
        return K.mT

    def mixed(self, S: Tensor, K: Tensor) -> Tensor:
        return S @ K


@dataclass(frozen=True)
class Features(Matrices):
    """States ``(..., n)``.

    Args:
        width: n.
        ensemble: E networks side by side, states ``(E, ..., n)``; None for one.

    >>> from hdnn.fields import Features
    >>> Features(8).channels, Features(8, ensemble=5).ensemble
    (False, 5)
    """

    def __str__(self) -> str:
        return self._named(f"features={self.width}")

    def check(self, x: Tensor) -> None:
        needed = 1 if self.ensemble is None else 2
        if x.ndim < needed or x.shape[-1] != self.width:
            raise self._shape_error(f"(..., {self.width})", x)
        self._check_ensemble(x)

    def flatten(self, x: Tensor) -> tuple[Tensor, Restore]:
        self.check(x)
        lead: tuple[int, ...] = ()
        if self.ensemble is not None:
            x, lead = self._spread(x), (self.ensemble,)
        shape = x.shape
        if x.ndim == len(lead) + 2:
            return x, _same
        return x.reshape(*lead, -1, self.width), lambda z: z.reshape(shape)

    def linear(self, A: Tensor, x: Tensor) -> Tensor:
        return x @ A.mT

    def affine(self, W: Tensor, b: Tensor, x: Tensor) -> Tensor:
        if self.ensemble is None:
            return F.linear(x, W, b)
        return torch.baddbmm(b.unsqueeze(-2), x, W.mT)

    def add_linear(self, y: Tensor, A: Tensor, x: Tensor) -> Tensor:
        return torch.addmm(y, x, A.mT) if self.ensemble is None else torch.baddbmm(y, x, A.mT)

    def vectors(self, x: Tensor) -> tuple[Tensor, Restore]:
        return x, _same

    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        lead = () if self.ensemble is None else (self.ensemble,)
        return values.reshape((*lead, *y.shape[len(lead) : -1]))

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(-1)


@dataclass(frozen=True)
class Channels(Matrices):
    """States ``(B, n, *spatial)``; K acts on channels, the same at every pixel.

    Args:
        width: n, the channels.
        ensemble: E networks side by side, states ``(E, B, n, *spatial)``; None for one.

    >>> from hdnn.fields import Channels
    >>> Channels(8).channels, Channels(8).kernel
    (True, 1)
    """

    channels: ClassVar[bool] = True
    axis: ClassVar[int] = -2

    def __str__(self) -> str:
        return self._named(f"channels={self.width}")

    def check(self, x: Tensor) -> None:
        place = 1 if self.ensemble is None else 2
        if x.ndim <= place or x.shape[place] != self.width:
            raise self._shape_error(f"(B, {self.width}, *spatial)", x)
        self._check_ensemble(x)

    def flatten(self, x: Tensor) -> tuple[Tensor, Restore]:
        self.check(x)
        place = 1
        if self.ensemble is not None:
            x, place = self._spread(x), 2
        shape = x.shape
        flat = x.flatten(place + 1) if x.ndim > place + 1 else x.unsqueeze(-1)
        return flat, lambda z: z.reshape(shape)

    def linear(self, A: Tensor, x: Tensor) -> Tensor:
        return torch.matmul(A if A.ndim == 2 else A.unsqueeze(1), x)

    def affine(self, W: Tensor, b: Tensor, x: Tensor) -> Tensor:
        column = b.unsqueeze(-1)
        return self.linear(W, x) + (column if self.ensemble is None else column.unsqueeze(1))

    def add_linear(self, y: Tensor, A: Tensor, x: Tensor) -> Tensor:
        return y + self.linear(A, x)

    def vectors(self, x: Tensor) -> tuple[Tensor, Restore]:
        return x.mT, lambda v: v.mT

    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        return values

    def sum(self, x: Tensor) -> Tensor:
        return x.sum((-2, -1))


@dataclass(frozen=True)
class Convolution(Layout):
    """States ``(B, n, height, width)``; K is a convolution: stride 1, zeros beyond the edges.

        (K x)[o, p, q] = sum_{i, u, v} K[o, i, u, v] x[i, p + u, q + v],   u, v = -k//2 .. k//2

    With zeros around the image its exact adjoint is the convolution with K'[i, o, u, v] =
    K[o, i, -u, -v], so both are one call of ``conv2d``.

    Args:
        width: n.
        side: k, odd.
        ensemble: None; convolutions do not run side by side.

    >>> from hdnn.fields import Convolution
    >>> Convolution(8, side=3).kernel
    3
    """

    side: int = 3
    channels: ClassVar[bool] = True
    axis: ClassVar[int] = -3

    @property
    def kernel(self) -> int:
        return self.side

    def __str__(self) -> str:
        return f"channels={self.width}, kernel={self.side}"

    def check(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.width:
            raise self._shape_error(f"(B, {self.width}, height, width)", x)

    def flatten(self, x: Tensor) -> tuple[Tensor, Restore]:
        self.check(x)
        # With the channels of a pixel side by side, oneDNN computes convolutions faster: above all
        # their gradients, and above all with few channels.
        served = x.device.type == "cpu" and x.dtype is torch.float32
        if not served or torch._C._are_functorch_transforms_active():
            return x, _same
        if x.is_contiguous(memory_format=torch.channels_last):
            return x, _same
        return x.contiguous(memory_format=torch.channels_last), Tensor.contiguous

    def linear(self, A: Tensor, x: Tensor) -> Tensor:
        if A.ndim == 2:  # a matrix acts on channels, pixel by pixel
            A = A[..., None, None]
        return F.conv2d(x, A, padding=A.shape[-1] // 2)

    def affine(self, W: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, W, b, padding=self.side // 2)

    def add_linear(self, y: Tensor, A: Tensor, x: Tensor) -> Tensor:
        return y + self.linear(A, x)

    def adjoint(self, K: Tensor) -> Tensor:
        return K.transpose(-4, -3).flip(-2, -1)

    def mixed(self, S: Tensor, K: Tensor) -> Tensor:
        return (S @ K.flatten(-3)).unflatten(-1, K.shape[-3:])

    def vectors(self, x: Tensor) -> tuple[Tensor, Restore]:
        return x.flatten(-3), lambda v: v.unflatten(-1, x.shape[-3:])

    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        return values

    def sum(self, x: Tensor) -> Tensor:
        return x.sum((-3, -2, -1))


def _same(x: Tensor) -> Tensor:
    return x


def layout_of(
    features: int | None, channels: int | None, ensemble: int | None = None, kernel: int = 1
) -> Layout:
    """The layout of ``features=n`` or ``channels=n``: exactly one of the two is given."""
    if (features is None) == (channels is None):
        raise HdnnError(
            "give exactly one of features, states (..., n), and channels, states (B, n, *spatial); "
            f"got features={features}, channels={channels}"
        )
    width = features if features is not None else channels
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise HdnnError(f"a width is a positive integer, got {width!r}")
    if ensemble is not None and (
        not isinstance(ensemble, int) or isinstance(ensemble, bool) or ensemble < 1
    ):
        raise HdnnError(f"ensemble is a positive integer or None, got {ensemble!r}")
    if not isinstance(kernel, int) or isinstance(kernel, bool) or kernel < 1 or kernel % 2 == 0:
        raise HdnnError(
            f"kernel is an odd positive integer (1: no convolution), got {kernel!r:.40}"
        )
    if kernel == 1:
        return Features(width, ensemble) if channels is None else Channels(width, ensemble)
    if channels is None:
        raise HdnnError(
            f"kernel={kernel} is a convolution over images (B, n, height, width); "
            "give channels=n instead of features, or kernel=1"
        )
    if ensemble is not None:
        raise HdnnError(
            f"ensembles have matrices only, got kernel={kernel} with ensemble={ensemble}; "
            "use kernel=1, or one network after the other"
        )
    return Convolution(width, side=kernel)
