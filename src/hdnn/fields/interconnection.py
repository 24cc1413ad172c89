"""The interconnection J: what makes y' = J dH/dy Hamiltonian. J = -J' always."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields.maps import Assembly
from hdnn.fields.patterns import STRUCTURES, Pattern

StateFunction = Callable[[Tensor, Tensor | float], Tensor]


def canonical(n: int, X: Tensor | None = None) -> Tensor:
    """J1 = [0 I; -I 0], or [0 X; -X' 0] for a given square X.

    Args:
        n: the width, even.
        X: ``(n/2, n/2)``; None is the identity.

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
    try:
        identity = torch.eye(half, dtype=torch.float64, device="cpu")
        block = identity if X is None else as_values(X)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise HdnnError(f"X must be a matrix of numbers, got {reprlib.repr(X)}") from error
    if block.shape != (half, half):
        raise HdnnError(f"X must be ({half}, {half}) for width {n}, got {tuple(block.shape)}")
    if not block.is_meta and not bool(torch.isfinite(block).all()):
        raise HdnnError("X must be finite")
    zero = torch.zeros_like(block)
    return torch.cat([torch.cat([zero, block], 1), torch.cat([-block.mT, zero], 1)])


def signs(n: int) -> Tensor:
    """J2: +1 above the diagonal, -1 below.

    Args:
        n: the width.

    Returns:
        ``(n, n)`` in float64.

    >>> signs(3)
    tensor([[ 0.,  1.,  1.],
            [-1.,  0.,  1.],
            [-1., -1.,  0.]], dtype=torch.float64)
    """
    upper = torch.ones(n, n, dtype=torch.float64, device="cpu").triu(1)
    return upper - upper.mT


def as_values(given: Tensor | npt.ArrayLike) -> Tensor:
    """A tensor as it is, other numbers on the CPU: also under `torch.device("meta")` they count."""
    return given if isinstance(given, Tensor) else torch.as_tensor(given, device="cpu")


MATRICES: dict[str, Callable[[int], Tensor]] = {"J1": canonical, "J2": signs}
"""The named constant interconnections: a function of the width that gives the matrix."""


class Interconnection(nn.Module, ABC):
    """J of every layer.

    Attributes:
        constant: one matrix serves all layers.
        layers: the number of layers of J(t), or None.
        width: n, or None where any will do.

    >>> import hdnn
    >>> J = hdnn.network("H2", features=4, layers=3, T=1.0).field.interconnection
    >>> J.constant, J.width
    (True, 4)
    """

    constant: bool = False
    layers: int | None = None
    width: int | None = None

    @abstractmethod
    def matrix(self) -> Tensor:
        """``([E,] n, n)`` where constant, else ``([E,] L, n, n)``.

        Returns:
            J as it is now.
        """

    @abstractmethod
    def support(self, n: int) -> npt.NDArray[np.bool_]:
        """``(n, n)``: where J can be other than zero.

        Args:
            n: the width.

        Returns:
            A mask.
        """


GivenJ = str | Tensor | npt.ArrayLike | StateFunction | Interconnection
"""What J may be given as: a name, a matrix, a stack for J(t), J(y, t), or an interconnection."""


def check_skew(name: str, J: Tensor, tolerance: float) -> None:
    """Raise for matrices ``(..., n, n)`` that are not finite or not skew-symmetric."""
    if J.is_meta:  # a shape without numbers
        return
    size = float(J.abs().max()) if J.numel() else 0.0
    if not size < torch.inf:
        raise HdnnError(f"{name} must be finite and skew-symmetric, got an entry that is {size}")
    defect = float((J + J.mT).abs().max()) if J.numel() else 0.0
    if not defect <= tolerance * max(1.0, size):
        raise HdnnError(
            f"{name} must be skew-symmetric (J = -J'), but |J + J'| reaches {defect:.3g}; "
            "use (J - J') / 2"
        )


class Fixed(Interconnection):
    """A given J: ``(n, n)``, or J(t) as ``(L, n, n)``, one for every layer.

    Args:
        J: the matrix, or one for every layer.
        name: how it shows itself.
        support: where J can be other than zero (default: where it is).

    Raises:
        HdnnError: J is not square, not skew or not finite.

    >>> import torch
    >>> from hdnn.fields import Fixed
    >>> Fixed(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])).width
    2
    """

    J: Tensor

    def __init__(
        self,
        J: Tensor | npt.ArrayLike,
        name: str = "given",
        support: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        super().__init__()
        try:
            matrix = as_values(J)
        except (TypeError, ValueError) as error:
            raise HdnnError(f"J must be a matrix of numbers, got {J!r}") from error
        if matrix.ndim not in (2, 3) or matrix.shape[-1] != matrix.shape[-2]:
            raise HdnnError(f"J must be (n, n), or (L, n, n) for J(t), got {tuple(matrix.shape)}")
        if not matrix.is_floating_point():
            matrix = matrix.to(torch.get_default_dtype())
        check_skew("J", matrix, 1e-6)
        self.name, self.width = name, matrix.shape[-1]
        self.constant = matrix.ndim == 2
        self.layers = None if self.constant else len(matrix)
        if support is None and matrix.is_meta:
            support = np.ones(matrix.shape[-2:], dtype=bool)
        elif support is None:
            support = np.asarray((matrix != 0).reshape(-1, *matrix.shape[-2:]).any(0).cpu())
        self._support = support
        self.register_buffer("J", (matrix - matrix.mT) / 2)

    def matrix(self) -> Tensor:
        return self.J

    def support(self, n: int) -> npt.NDArray[np.bool_]:
        return self._support

    def extra_repr(self) -> str:
        return self.name if self.constant else f"{self.name} for each of {len(self.J)} layers"


class Learned(Interconnection):
    """A J that is trained: skew by construction, whatever the parameters.

    Args:
        width: n.
        structure: "skew" (any skew J) or "off-diagonal-skew" ([0 X; -X' 0]).
        layers: None for one J in all layers, L for J(t).
        ensemble: E, a J for every network of an ensemble.
        init: start from this matrix (default: J1 where the structure allows, J2 for odd n).
        dtype: of the parameters; None is torch's default.
        device: of the parameters.

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
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if structure not in ("skew", "off-diagonal-skew"):
            raise unknown_name("structure of J", structure, ("skew", "off-diagonal-skew"))
        self.structure, self.layers, self.constant = structure, layers, layers is None
        self.width = width
        self.pattern: Pattern = STRUCTURES[structure](width)
        start = Fixed(init if init is not None else _default_start(width)).J.reshape(-1)
        # The first entry of theta number k in reading order carries the + sign.
        _, place = np.unique(np.abs(self.pattern.code.ravel()), return_index=True)
        place = place[-self.pattern.size :] if self.pattern.size else place[:0]
        first = torch.from_numpy(place)
        theta = start[first] * torch.from_numpy(self.pattern.sign)[first].to(start.device)
        lead = (layers or 1,) if ensemble is None else (ensemble, layers or 1)
        self.theta = nn.Parameter(torch.empty(*lead, len(theta), dtype=dtype, device=device))
        with torch.no_grad():
            self.theta.copy_(theta)
        self.entries = Assembly(self.pattern).to(self.theta)

    def matrix(self) -> Tensor:
        stack: Tensor = self.entries.assemble(self.theta)
        return stack.squeeze(-3) if self.constant else stack

    def support(self, n: int) -> npt.NDArray[np.bool_]:
        return self.pattern.support

    def extra_repr(self) -> str:
        return f"learned, {self.structure}" + ("" if self.constant else f", layers={self.layers}")


def _default_start(width: int) -> Tensor:
    return signs(width) if width % 2 else canonical(width)


class StateDependent(Interconnection):
    """J(y, t) as a callable: ``(..., n), t -> (..., n, n)``, skew for every y and t.

    Whether it is skew is checked on a few states when a field is built; `hdnn.analysis.certify`
    checks it on given ones.

    Args:
        function: J(y, t), of states ``(..., n)`` and a time.

    >>> import torch
    >>> from hdnn.fields import StateDependent
    >>> turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> StateDependent(lambda y, t: y.square().sum(-1)[..., None, None] * turn).constant
    False
    """

    def __init__(self, function: StateFunction) -> None:
        super().__init__()
        self.function = function

    def at(self, y: Tensor, t: Tensor | float) -> Tensor:
        """J at states ``(..., n)`` and time t: ``(..., n, n)``.

        Args:
            y: states ``(..., n)``.
            t: the time.

        Returns:
            One skew matrix for every state.
        """
        return self.function(y, t)

    def check(self, y: Tensor) -> None:
        """Raise unless J is a finite skew matrix at states ``(..., n)``.

        Args:
            y: states ``(..., n)``.

        Raises:
            HdnnError: it has another shape, is not finite, or not skew.
        """
        J, n = self.at(y, 0.0), y.shape[-1]
        if not isinstance(J, Tensor) or J.shape not in ((n, n), (*y.shape, n)):
            shape = tuple(J.shape) if isinstance(J, Tensor) else type(J).__name__
            raise HdnnError(
                f"J(y, t) must be a tensor of shape {(*y.shape, n)} for states {tuple(y.shape)}, "
                f"got {shape}"
            )
        check_skew("J(y, t)", J.detach(), max(1e-6, 8 * n * torch.finfo(J.dtype).eps))

    def matrix(self) -> Tensor:
        raise HdnnError(
            "J(y, t) depends on the state, so there is no matrix J; "
            "evaluate it with field.J_at(y, layer, t)"
        )

    def support(self, n: int) -> npt.NDArray[np.bool_]:
        return np.ones((n, n), dtype=bool)

    def extra_repr(self) -> str:
        return f"J(y, t) = {getattr(self.function, '__name__', type(self.function).__name__)}"


class InverseTranspose(Interconnection):
    """J_j K_j' = I, the case of MS1 and MS2: y' = sigma(K y + b) with K skew and invertible.

    >>> import hdnn, torch
    >>> net = hdnn.network("MS2", features=4, layers=3, T=1.0, dtype=torch.float64)
    >>> torch.allclose(net.J @ net.K.mT, torch.eye(4, dtype=torch.float64))
    True
    """

    def matrix(self) -> Tensor:
        raise HdnnError("J is the inverse of K', so it needs K: use field.J or net.J")

    def support(self, n: int) -> npt.NDArray[np.bool_]:
        return np.ones((n, n), dtype=bool)

    def extra_repr(self) -> str:
        return "J K' = I"


def inverse_transpose(K: Tensor) -> Tensor:
    """J_j = (K_j')^{-1} for a stack of skew matrices; an error where one is singular."""
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


def interconnection(J: GivenJ, width: int) -> Interconnection:
    """The interconnection that a name, a matrix, a stack, a callable or a module stands for."""
    if isinstance(J, Interconnection):
        if J.width not in (None, width):
            raise HdnnError(f"J must be ({width}, {width}), got one of width {J.width}")
        return J
    if isinstance(J, str):
        if J not in MATRICES:
            raise unknown_name("interconnection", J, MATRICES)
        return Fixed(MATRICES[J](width), name=J)
    if callable(J) and not isinstance(J, Tensor | np.ndarray):
        return StateDependent(J)
    fixed = Fixed(J)
    if fixed.J.shape[-1] != width:
        raise HdnnError(f"J must be ({width}, {width}), got {tuple(fixed.J.shape)}")
    return fixed
