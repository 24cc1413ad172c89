"""K as a linear map with an exact adjoint, computed from the parameters theta of a layer.

A patterned matrix (over features, or over channels at every pixel) and a convolution are here; a
custom map is one more class (docs/extending.md). Nothing else in hdnn knows how K acts: a
scheme, the reference backend and the analysis only ask for K x and K' s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.errors import HdnnError
from hdnn.fields.patterns import Codes, Pattern


class LinearMap(ABC):
    """K as a function of its parameters: <K x, s> = <x, K' s> for every x and s.

    A map is a value. One with tensors of its own is a `torch.nn.Module` as well (``class Mine(
    LinearMap, nn.Module)``), so that they move and are trained with the network.

    States and hidden units are canonical, ``([E,] B, width, *spatial)`` and
    ``([E,] B, units, *spatial)``.

    Args:
        width: the number n of features or channels that it reads.
        units: the number m of hidden units that it writes.
        size: the number of parameters of a layer.

    >>> import torch
    >>> from hdnn.fields import Matrix, Pattern
    >>> K = Matrix(Pattern.of([[0, 1], [-1, 0]]))  # skew: one parameter
    >>> K.multiply(K.assemble(torch.tensor([3.0])), torch.tensor([[1.0, 2.0]]))
    tensor([[ 6., -3.]])
    """

    compiled: bool = False
    """Whether the kernels multiply by it."""

    def __init__(self, width: int, units: int, size: int) -> None:
        super().__init__()
        self.width, self.units, self.size = width, units, size
        self.name = type(self).__name__  # in messages

    def assemble(self, theta: Tensor) -> Tensor:
        """What `multiply` and `adjoint` take, of all layers at once; by default theta itself.

        Args:
            theta: ``([E,] L, size)``.

        Returns:
            ``([E,] L, ...)``.
        """
        return theta

    @abstractmethod
    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        """K x.

        Args:
            K: ``([E,] ...)``, one layer of what `assemble` returns.
            x: ``([E,] B, width, *spatial)``.

        Returns:
            ``([E,] B, units, *spatial)``.
        """

    @abstractmethod
    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        """K' s.

        Args:
            K: as in `multiply`.
            s: ``([E,] B, units, *spatial)``.

        Returns:
            ``([E,] B, width, *spatial)``.
        """

    def left_multiply(self, S: Tensor, K: Tensor) -> Tensor | None:
        """S K' of all layers as something that `multiply` takes, or None where that is no such map.

        A backend then applies one map instead of two.

        Args:
            S: ``([E,] [L,] w, width)``.
            K: ``([E,] L, ...)``, what `assemble` returns.

        Returns:
            ``([E,] L, ...)``, or None.
        """
        return None

    def block(self, units: Codes, columns: Codes) -> LinearMap | None:
        """These hidden units as a map of these features only, over the same parameters, or None.

        What splitting schemes need: one half of the units reads one half of the state.

        Args:
            units: numbers of hidden units.
            columns: numbers of features.

        Returns:
            The map, or None.
        """
        return None

    @property
    def support(self) -> npt.NDArray[np.bool_]:
        """``(units, width)``: which features a hidden unit can depend on."""
        return np.ones((self.units, self.width), dtype=bool)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, for `hdnn.save`.

        Returns:
            Numbers, texts, lists and maps by name.

        Raises:
            HdnnError: the class has not said what they are.
        """
        raise HdnnError(
            f"a file could not hold {type(self).__name__}: give it a method arguments() that "
            "returns the arguments of its constructor as numbers, text and lists"
        )


class Patterned(LinearMap):
    """A map whose entries are parameters by a pattern: a matrix or a convolution.

    Args:
        pattern: which parameter every entry is, ``(units, width, ...)``.
    """

    def __init__(self, pattern: Pattern) -> None:
        units, width = pattern.shape[:2]
        super().__init__(width, units, pattern.size)
        self.pattern = pattern

    @property
    def support(self) -> npt.NDArray[np.bool_]:
        return self.pattern.support

    def assemble(self, theta: Tensor) -> Tensor:
        return self.pattern.assemble(theta)

    def block(self, units: Codes, columns: Codes) -> LinearMap:
        return type(self)(self.pattern.block(units, columns))


class Matrix(Patterned):
    """A matrix of a given structure; over channels, the same matrix at every pixel.

    Args:
        pattern: which parameter every entry is, ``(units, width)``.

    >>> from hdnn.fields import STRUCTURES
    >>> K = Matrix(STRUCTURES["skew"](4))
    >>> K.units, K.width, K.size
    (4, 4, 6)
    """

    compiled = True

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        return matrix_product(K, x)

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        return matrix_product(K.mT, s)

    def left_multiply(self, S: Tensor, K: Tensor) -> Tensor:
        return S @ K.mT


def matrix_product(M: Tensor, x: Tensor) -> Tensor:
    """M x for a matrix ``([E,] out, in)`` and canonical states ``([E,] B, in, *spatial)``."""
    if x.ndim == M.ndim:  # no pixels: one product for all samples
        return x @ M.mT
    flat = x.flatten(M.ndim)  # pixels become one axis
    out = torch.matmul(M if M.ndim == 2 else M.unsqueeze(1), flat)
    return out.unflatten(-1, x.shape[M.ndim :])


def affine(linear_map: LinearMap, K: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """K x + b of canonical states; b is ``([E,] units)``."""
    b = b.unsqueeze(-2)  # samples come before the width, pixels after it
    return linear_map.multiply(K, x) + b[(..., *(None,) * (x.ndim - b.ndim))]


def matrices(linear_map: LinearMap, theta: Tensor) -> Tensor:
    """``(..., units, width)``: a map written out, for parameters ``(..., size)``.

    Of a convolution these are its kernels, ``(..., units, width, k, k)``.
    """
    K = linear_map.assemble(theta)
    if isinstance(linear_map, Patterned):
        return K
    lead = theta.shape[:-1]
    identity = torch.eye(linear_map.width, dtype=theta.dtype, device=theta.device)
    rows = [linear_map.multiply(layer, identity).mT for layer in K.flatten(0, len(lead) - 1)]
    return torch.stack(rows).unflatten(0, lead)


class Convolution(Patterned):
    """A convolution over images: stride 1, zeros beyond the edges.

        (K x)[o, p, q] = sum_{i, u, v} K[o, i, u, v] x[i, p + u, q + v],   u, v = -k//2 .. k//2

    With zeros around the image its exact adjoint is the convolution with K'[i, o, u, v] =
    K[o, i, -u, -v].

    Args:
        pattern: which parameter every entry of the kernels is, ``(units, width, k, k)``.

    >>> from hdnn.fields import STRUCTURES
    >>> K = Convolution(STRUCTURES["dense"](4, 3))
    >>> K.units, K.kernel
    (4, 3)
    """

    @property
    def kernel(self) -> int:
        """k, the side of a kernel."""
        return self.pattern.shape[2]

    def assemble(self, theta: Tensor) -> Tensor:
        # The channels of a pixel side by side in memory: oneDNN then computes convolutions faster,
        # above all their gradients, and above all with few channels.
        return super().assemble(theta).movedim(-3, -1).contiguous().movedim(-1, -3)

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, K, padding=self.kernel // 2)

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        return self.multiply(_turned(K), s)

    def left_multiply(self, S: Tensor, K: Tensor) -> Tensor:
        turned = _turned(K)
        return (S @ turned.flatten(-3)).unflatten(-1, turned.shape[-3:])


def _turned(K: Tensor) -> Tensor:
    """The kernels of K': rows and columns change places, kernels are turned by 180 degrees."""
    return K.transpose(-4, -3).flip(-2, -1)


class BlockDiagonal(LinearMap, nn.Module):
    """[K1 0; 0 K2] of any two maps: K1 reads y, K2 reads z, so that splitting schemes apply.

    Args:
        first: K1, which maps the first features (y) to the first units.
        second: K2, which maps the other features (z) to the other units.

    >>> from hdnn.fields import STRUCTURES
    >>> K = BlockDiagonal(Matrix(STRUCTURES["dense"](2)), Matrix(STRUCTURES["skew"](2)))
    >>> K.width, K.units, K.size
    (4, 4, 5)
    """

    def __init__(self, first: LinearMap, second: LinearMap) -> None:
        width, units = first.width + second.width, first.units + second.units
        super().__init__(width, units, first.size + second.size)
        self.first, self.second = _Part(first, 0), _Part(second, first.size)

    @property
    def support(self) -> npt.NDArray[np.bool_]:
        m, n = self.first.units, self.first.width
        mask = np.zeros((self.units, self.width), dtype=bool)
        mask[:m, :n], mask[m:, n:] = self.first.support, self.second.support
        return mask

    def _parts(self, K: Tensor, x: Tensor, cut: int) -> Iterator[tuple[LinearMap, Tensor, Tensor]]:
        """The two maps, their parameters, and what they are applied to."""
        y, z = x.tensor_split([cut], K.ndim)  # the axis right after the samples
        for part, v in ((self.first, y), (self.second, z)):
            yield part, part.assemble(K), v

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        parts = self._parts(K, x, self.first.width)
        return torch.cat([part.multiply(k, v) for part, k, v in parts], K.ndim)

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        parts = self._parts(K, s, self.first.units)
        return torch.cat([part.adjoint(k, v) for part, k, v in parts], K.ndim)

    def block(self, units: Codes, columns: Codes) -> LinearMap | None:
        first, second = self.first, self.second
        for part, unit, column in ((first, 0, 0), (second, first.units, first.width)):
            rows, own = np.arange(part.units) + unit, np.arange(part.width) + column
            if np.array_equal(units, rows) and np.array_equal(columns, own):
                return part
        return None


class _Part(LinearMap, nn.Module):
    """A map whose parameters are some of a larger one's."""

    def __init__(self, inner: LinearMap, start: int) -> None:
        super().__init__(inner.width, inner.units, inner.size)
        self.inner, self.start, self.name = inner, start, inner.name

    @property
    def support(self) -> npt.NDArray[np.bool_]:
        return self.inner.support

    def assemble(self, theta: Tensor) -> Tensor:
        return self.inner.assemble(theta.narrow(-1, self.start, self.size))

    def multiply(self, K: Tensor, x: Tensor) -> Tensor:
        return self.inner.multiply(K, x)

    def adjoint(self, K: Tensor, s: Tensor) -> Tensor:
        return self.inner.adjoint(K, s)
