"""Patterns: every structure of K (and of a learned J) is one table of signed parameter numbers.

    K[i, k] = sign(code[i, k]) * theta[|code[i, k]| - 1],      code = 0: a structural zero

Dense, skew-symmetric, block, masked and convolutional structures differ only in this table, so
assembling is one gather, parameter counts are exact, and a sub-block of K is a sub-block of the
table over the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A table of signed parameter numbers, starting at 1; 0 marks a structural zero.

    Args:
        code: the table: ``(rows, columns)`` for matrices, ``(n,)`` for biases, ``(o, i, u, v)`` for
            kernels.
        size: the number of parameters; a block of a pattern may use only some of them.

    >>> from hdnn.fields import Pattern
    >>> skew = Pattern.of([[0, 1], [-1, 0]])
    >>> skew.size, skew.repeats.tolist()  # one parameter, which stands in two places
    (1, [2.0])
    """

    code: Codes
    size: int
    _gather: tuple[Tensor, Tensor, Tensor, int | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Constants of `assemble`, made once; on the CPU, whatever torch's default device is, and
        # fit for gradients also where the network was built in inference mode.
        index, code = np.maximum(np.abs(self.code) - 1, 0).ravel(), self.code.ravel()
        with torch.inference_mode(False):
            tensors = [torch.from_numpy(array) for array in (index, code < 0, code == 0)]
        object.__setattr__(self, "_gather", (*tensors, self.first))

    def __reduce__(self) -> Any:  # constants are not stored, and a copy is the same value
        return Pattern, (self.code, self.size)

    def __deepcopy__(self, memo: object) -> Pattern:
        return self

    def assemble(self, theta: Tensor) -> Tensor:
        """The array from its parameters, of all layers in one gather.

        Args:
            theta: ``(..., size)``.

        Returns:
            ``(..., *shape)``.

        >>> import torch
        >>> Pattern.of([[0, 1], [-1, 0]]).assemble(torch.tensor([[3.0]]))
        tensor([[[ 0.,  3.],
                 [-3.,  0.]]])
        """
        index, negative, zero, first = self._gather
        if first is not None:  # parameters in their own order: a view
            return theta.narrow(-1, first, len(index)).unflatten(-1, self.shape)
        if not self.size:  # nothing to gather from: the sum over no parameters is 0
            flat = theta.sum(-1, keepdim=True).expand(*theta.shape[:-1], len(index))
            return flat.unflatten(-1, self.shape)
        index, negative, zero = (t.to(theta.device) for t in (index, negative, zero))
        flat = theta.index_select(-1, index)
        # Zeros of the structure stay zeros, whatever number stands first (NaN * 0 is NaN).
        return torch.where(zero, 0.0, torch.where(negative, -flat, flat)).unflatten(-1, self.shape)

    @classmethod
    def of(cls, code: npt.ArrayLike) -> Pattern:
        """The pattern of a table, checked: its numbers are 1 to their largest, without gaps.

        Args:
            code: ``(m, n)`` or ``(m, n, k, k)``, whole numbers: 0 is a zero, k parameter k, -k its
                negative.

        Returns:
            The pattern.

        Raises:
            HdnnError: the numbers have gaps, or are no whole numbers.
        """
        table = np.asarray(code)
        if not np.issubdtype(table.dtype, np.integer):
            raise HdnnError(
                f"a pattern holds signed integers (0: zero, +-k: +-parameter k), got {table.dtype}"
            )
        numbers = np.unique(np.abs(table))
        numbers = numbers[numbers != 0]
        if not np.array_equal(numbers, np.arange(1, len(numbers) + 1)):
            raise HdnnError("a pattern must use every parameter number from 1 to the largest one")
        return cls(table.astype(np.int64), len(numbers))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.code.shape

    @property
    def support(self) -> npt.NDArray[np.bool_]:
        """``(rows, columns)``: where an entry can be other than zero."""
        return (self.code != 0).reshape(*self.shape[:2], -1).any(axis=-1)

    @property
    def first(self) -> int | None:
        """The first parameter, if the entries are parameters in their own order, else None."""
        # Then assembling is a view instead of a gather: free, forward and backward.
        flat = self.code.ravel()
        first = int(flat[0]) if flat.size else 1
        run = first > 0 and np.array_equal(flat, np.arange(first, first + flat.size))
        return first - 1 if run else None

    @property
    def repeats(self) -> npt.NDArray[np.float64]:
        """``(size,)``: how often every parameter stands in the assembled array."""
        counts = np.bincount(np.abs(self.code.ravel()), minlength=self.size + 1)
        return counts[1:].astype(np.float64)

    @property
    def is_skew(self) -> bool:
        """Whether K = -K' for every theta."""
        square = len(self.shape) > 1 and self.shape[0] == self.shape[1]
        return square and np.array_equal(self.code, -_adjoint(self.code))

    def block(self, rows: Codes, columns: Codes | None = None) -> Pattern:
        """The sub-block of the given rows and columns, over the same parameters.

        Args:
            rows: numbers of the rows.
            columns: numbers of the columns; None takes all.

        Returns:
            The pattern of the block.
        """
        code = self.code[rows]
        return Pattern(code if columns is None else code[:, columns], self.size)


def _numbered(*shape: int) -> Codes:
    """1, 2, 3, ... in reading order."""
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def _adjoint(code: Codes) -> Codes:
    """K': rows and columns change places, kernels turn by 180 degrees."""
    return np.flip(code.swapaxes(0, 1), axis=tuple(range(2, code.ndim)))


def _blocks(*rows: tuple[Codes, Codes]) -> Pattern:
    """[A B; C D], of matrices or of kernels: np.block, but over the first two axes."""
    return Pattern.of(np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0))


def space_of(kernel: int) -> tuple[int, ...]:
    """The axes of a structure after rows and columns: none for matrices."""
    return () if kernel == 1 else (kernel, kernel)


def _half_blocks(n: int, kernel: int, units: int | None = None) -> tuple[Codes, Codes, Codes]:
    """K1 and K2, which map one half of the state each, and a block of zeros."""
    if n % 2:
        raise HdnnError(
            f"this structure splits the state into halves (y, z) and needs an even width, got {n}; "
            f"augment the features by one to {n + 1}"
        )
    m = n if units is None else units
    if m % 2:
        raise HdnnError(f"each half of the state has half of the units: units are even, got {m}")
    K1, K2 = _numbered(2, m // 2, n // 2, *space_of(kernel))
    return K1, K2, np.zeros_like(K1)


def plain(*shape: int) -> Pattern:
    """Every entry is a parameter of its own."""
    return Pattern.of(_numbered(*shape))


def dense(n: int, kernel: int = 1, units: int | None = None) -> Pattern:
    """Anything: n^2 k^2 parameters; with m units m n k^2.

    >>> dense(2, units=3).shape
    (3, 2)
    """
    return plain(n if units is None else units, n, *space_of(kernel))


def skew(n: int, kernel: int = 1) -> Pattern:
    """K = -K': (n^2 k^2 - n)/2 parameters; for matrices n(n-1)/2, row by row above the diagonal.

    A kernel has K[o, i, u, v] = -K[i, o, -u, -v]: those on the diagonal are odd functions.

    >>> skew(3).code.tolist()
    [[0, 1, 2], [-1, 0, 3], [-2, -3, 0]]
    >>> skew(1, kernel=3).code.tolist()
    [[[[1, 2, 3], [4, 0, -4], [-3, -2, -1]]]]
    """
    # An entry before its adjoint in reading order is a parameter; one that is its own adjoint, 0.
    place = _numbered(n, n, *space_of(kernel))
    code = np.where(place < _adjoint(place), 1, 0)
    code[code > 0] = _numbered(int(code.sum()))
    return Pattern.of(code - _adjoint(code))


def off_diagonal_skew(n: int, kernel: int = 1) -> Pattern:
    """[0 K0; -K0' 0]: n^2 k^2/4 parameters (MS1; with K0 = X also the J of HS)."""
    K0, _, zero = _half_blocks(n, kernel)
    return _blocks((zero, K0), (-_adjoint(K0), zero))


def off_diagonal(n: int, kernel: int = 1, units: int | None = None) -> Pattern:
    """[0 K1; K2 0]: n^2 k^2/2 parameters (MS3); with m units m n k^2/2."""
    K1, K2, zero = _half_blocks(n, kernel, units)
    return _blocks((zero, K1), (K2, zero))


def block_diagonal(n: int, kernel: int = 1, units: int | None = None) -> Pattern:
    """[K1 0; 0 K2]: n^2 k^2/2 parameters (HS); with m units m n k^2/2."""
    K1, K2, zero = _half_blocks(n, kernel, units)
    return _blocks((K1, zero), (zero, K2))


def block_adjoint(n: int, kernel: int = 1) -> Pattern:
    """[K0' 0; 0 K0]: n^2 k^2/4 parameters (MS1, whose units read y first and then z)."""
    K0, _, zero = _half_blocks(n, kernel)
    return _blocks((_adjoint(K0), zero), (zero, K0))


def masked(graph: npt.ArrayLike, kernel: int = 1) -> Pattern:
    """One parameter wherever the graph (a boolean matrix) has an edge: sparse, distributed H-DNNs.

    With a kernel of side k an edge has k^2 parameters.

    >>> masked([[True, False], [True, True]]).code.tolist()
    [[1, 0], [2, 3]]
    """
    mask = np.asarray(graph)
    if mask.ndim != 2 or not np.isin(mask, (0, 1)).all():
        raise HdnnError(f"a graph is a matrix of booleans, got shape {mask.shape}, {mask.dtype}")
    code = np.zeros((*mask.shape, *space_of(kernel)), dtype=np.int64)
    code[mask.astype(bool)] = _numbered(int(mask.sum()), *space_of(kernel))
    return Pattern.of(code)


STRUCTURES: dict[str, Callable[..., Pattern]] = {
    "dense": dense,
    "skew": skew,
    "off-diagonal-skew": off_diagonal_skew,
    "off-diagonal": off_diagonal,
    "block-diagonal": block_diagonal,
    "block-adjoint": block_adjoint,
}
"""The named structures of K: a function of the width that gives the pattern.

One that serves convolutions takes the side of the kernel as its second argument.
"""

RECTANGULAR = ("dense", "off-diagonal", "block-diagonal")
"""The named structures that take any number of units as their third argument; others are square."""
