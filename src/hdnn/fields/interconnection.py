"""The interconnection J: what makes y' = J dH/dy Hamiltonian. J = -J' always.

A J(y, t) is no module of this file but a function, which the field calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields.patterns import STRUCTURES

StateFunction = Callable[[Tensor, Tensor | float], Tensor]
"""J(y, t): ``(..., n), t -> (..., n, n)``, skew for every y and t.

Whether it is skew is checked on a few states when a field is built; `hdnn.analysis.certify` checks
it on given ones.
"""


def canonical(n: int, X: Tensor | None = None) -> Tensor:
    """J1 = [0 I; -I 0], or [0 X; -X' 0] for a given square X.

    Args:
        n: the width, an even number.
        X: the upper right block ``(n/2, n/2)``; None is the identity.

    Returns:
        ``(n, n)``, in float64 or the dtype of X.

    Raises:
        HdnnError: n is odd, or X has another shape.

    >>> canonical(2)
    tensor([[ 0.,  1.],
            [-1.,  0.]], dtype=torch.float64)
    """
    if n % 2:
        raise HdnnError(f"J1 = [0 I; -I 0] needs an even width, got {n}; augment it to {n + 1}")
    half = n // 2
    block = torch.eye(half, dtype=torch.float64, device="cpu") if X is None else as_values(X)
    if block.shape != (half, half):
        raise HdnnError(f"X must be ({half}, {half}) for width {n}, got {tuple(block.shape)}")
    zero = torch.zeros_like(block)
    return torch.cat([torch.cat([zero, block], 1), torch.cat([-block.mT, zero], 1)])


def signs(n: int) -> Tensor:
    """J2: +1 above the diagonal, -1 below.

    Args:
        n: the width, even or odd.

    Returns:
        ``(n, n)`` in float64.

    >>> signs(3)
    tensor([[ 0.,  1.,  1.],
            [-1.,  0.,  1.],
            [-1., -1.,  0.]], dtype=torch.float64)
    """
    upper = torch.ones(n, n, dtype=torch.float64, device="cpu").triu(1)
    return upper - upper.mT


def as_values(numbers: Tensor | npt.ArrayLike) -> Tensor:
    """Numbers as a tensor; of lists, on the CPU: another default device may have no float64."""
    return numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, device="cpu")


MATRICES: dict[str, Callable[[int], Tensor]] = {"J1": canonical, "J2": signs}
"""The named constant interconnections: a function of the width that gives the matrix."""


class Interconnection(nn.Module, ABC):
    """J of every layer.

    Attributes:
        constant: one matrix serves all layers.
        layers: the number of layers of J(t), or None.
        width: n, or None where any will do.
        bipartite: J = [0 X; -X' 0], so that y' depends on dH/dz only and z' on dH/dy only.

    >>> import hdnn
    >>> J = hdnn.network("H2", features=4, layers=3, T=1.0).field.interconnection
    >>> J.constant, J.width, J.bipartite
    (True, 4, False)
    """

    constant: bool = False
    layers: int | None = None
    width: int | None = None
    bipartite: bool = False

    @abstractmethod
    def matrix(self) -> Tensor:
        """``([E,] n, n)`` where constant, else ``([E,] L, n, n)``.

        Returns:
            J as it is now.
        """


GivenJ = str | Tensor | npt.ArrayLike | StateFunction | Interconnection
"""What J may be given as: a name, a matrix, a stack for J(t), J(y, t), or an interconnection."""


def check_skew(name: str, J: Tensor, tolerance: float) -> None:
    """Raise for matrices ``(..., n, n)`` that are not finite or not skew-symmetric."""
    size, defect = float(J.abs().max()), float((J + J.mT).abs().max())
    # Written so that NaN raises too.
    if not (size < torch.inf and defect <= tolerance * max(1.0, size)):
        raise HdnnError(
            f"{name} must be finite and skew-symmetric (J = -J'), but |J + J'| reaches "
            f"{defect:.3g}; use (J - J') / 2"
        )


def _is_bipartite(J: Tensor) -> bool:
    """Whether matrices ``(..., n, n)`` are zero inside both halves of the state."""
    half, odd = divmod(J.shape[-1], 2)
    return not (odd or J[..., :half, :half].any() or J[..., half:, half:].any())


class Fixed(Interconnection):
    """A given J: ``(n, n)``, or J(t) as ``(L, n, n)``, one for every layer.

    Args:
        J: the skew matrix ``(n, n)``, or a stack ``(L, n, n)`` with one for every layer.
        name: what `repr` calls it.

    Raises:
        HdnnError: J is not square, not skew or not finite.

    >>> import torch
    >>> from hdnn.fields import Fixed
    >>> Fixed(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])).matrix()
    tensor([[ 0.,  2.],
            [-2.,  0.]])
    """

    J: Tensor

    def __init__(self, J: Tensor | npt.ArrayLike, name: str = "given") -> None:
        super().__init__()
        matrix = as_values(J)
        if matrix.ndim not in (2, 3) or matrix.shape[-1] != matrix.shape[-2]:
            raise HdnnError(f"J must be (n, n), or (L, n, n) for J(t), got {tuple(matrix.shape)}")
        if not matrix.is_floating_point():
            matrix = matrix.to(torch.get_default_dtype())
        check_skew("J", matrix, 1e-6)
        self.name, self.width = name, matrix.shape[-1]
        self.constant = matrix.ndim == 2
        self.layers = None if self.constant else len(matrix)
        self.bipartite = _is_bipartite(matrix)
        # Exactly skew: what the tolerance let pass would break M J M' = J at the last digits.
        self.register_buffer("J", (matrix - matrix.mT) / 2)

    def matrix(self) -> Tensor:
        J = self._buffers.get("J")  # as in `Weights.values`
        return self.J if J is None else J

    def extra_repr(self) -> str:
        return self.name if self.constant else f"{self.name} for each of {self.layers} layers"


class Learned(Interconnection):
    """A J that is trained: skew by construction, whatever the parameters.

    Args:
        width: the number n of features or channels.
        structure: "skew" for any skew J, "off-diagonal-skew" for J = [0 X; -X' 0].
        layers: None for one J in all layers; L for J(t), with a J for every layer.
        ensemble: the number E of networks, each with a J of its own; None for a single network.
        init: the skew matrix ``(n, n)`` to start from; None is J1, or J2 for odd n.
        dtype: of the parameters, until a field gives them that of its weights; None is torch's
            default dtype.

    Raises:
        HdnnError: the structure is unknown, or needs an even width.

    >>> import torch
    >>> from hdnn import fields
    >>> weights = fields.Weights("dense", features=4, layers=3)
    >>> field = fields.HamiltonianField(J=fields.Learned(4), weights=weights)
    >>> sum(p.numel() for p in field.interconnection.parameters())  # the entries above the diagonal
    6
    """

    def __init__(
        self,
        width: int,
        structure: str = "skew",
        *,
        layers: int | None = None,
        ensemble: int | None = None,
        init: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if structure not in ("skew", "off-diagonal-skew"):
            raise unknown_name("structure of J", structure, ("skew", "off-diagonal-skew"))
        self.structure, self.layers, self.constant = structure, layers, layers is None
        self.width = width
        pattern = STRUCTURES[structure](width)
        self.bipartite = _is_bipartite(torch.from_numpy(pattern.code))
        if init is None:
            init = signs(width) if width % 2 else canonical(width)
        # Codes 1 to size come last in order, each at the one place where theta has the sign +.
        _, places = np.unique(pattern.code, return_index=True)
        start = Fixed(init).J.flatten()[torch.from_numpy(places[len(places) - pattern.size :])]
        lead = (layers or 1,) if ensemble is None else (ensemble, layers or 1)
        self.theta = nn.Parameter(torch.empty(*lead, pattern.size, dtype=dtype))
        with torch.no_grad():
            self.theta.copy_(start)
        self.pattern = pattern

    def matrix(self) -> Tensor:
        stack = self.pattern.assemble(self.theta)
        return stack.squeeze(-3) if self.constant else stack

    def extra_repr(self) -> str:
        return f"learned, {self.structure}" + ("" if self.constant else f", layers={self.layers}")


def check_function(function: StateFunction, y: Tensor) -> None:
    """Raise unless J(y, t) is a finite skew matrix at given states ``(..., n)``."""
    J, n = function(y, 0.0), y.shape[-1]
    shape = tuple(J.shape) if isinstance(J, Tensor) else type(J).__name__
    if shape not in ((n, n), (*y.shape, n)):
        raise HdnnError(
            f"J(y, t) must have shape {(*y.shape, n)} for states {tuple(y.shape)}, got {shape}"
        )
    check_skew("J(y, t)", J.detach(), max(1e-6, 8 * n * torch.finfo(J.dtype).eps))


def inverse_transpose(K: Tensor) -> Tensor:
    """J_j = (K_j')^{-1} for a stack of skew matrices; raises where one is singular."""
    singular = torch.linalg.svdvals(K.detach())
    smallest, largest = singular[..., -1], singular[..., 0]
    bad = smallest <= torch.finfo(K.dtype).eps * K.shape[-1] * largest
    if bool(bad.any()):
        layer = int(bad.nonzero()[0][-1])
        odd = " (a skew matrix of odd width always is)" if K.shape[-1] % 2 else ""
        raise HdnnError(
            f"J_j is the inverse of K_j', but K_{layer} is singular{odd}: its smallest singular "
            f"value is {float(smallest[bad][0]):.3g}; the layer equation itself needs no inverse, "
            "or augment the features to an even width"
        )
    return torch.linalg.inv(K.mT)


def interconnection(J: GivenJ, width: int) -> Interconnection | None:
    """What a name, a matrix, a stack or a module stands for; None for a function J(y, t)."""
    if isinstance(J, str):
        if J not in MATRICES:
            raise unknown_name("interconnection", J, MATRICES)
        return Fixed(MATRICES[J](width), name=J)
    if not isinstance(J, Interconnection):
        if callable(J):
            return None
        J = Fixed(J)
    if J.width not in (None, width):
        raise HdnnError(f"J must be ({width}, {width}), got one of width {J.width}")
    return J
