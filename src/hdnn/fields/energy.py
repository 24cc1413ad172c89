"""Fields of any energy H(y, t): its gradient comes from autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields.field import Field, check_dissipation, interconnect
from hdnn.fields.interconnection import (
    Interconnection,
    InverseTranspose,
    StateDependent,
    StateFunction,
    interconnection,
)
from hdnn.fields.layout import layout_of
from hdnn.program import Time, Velocity

Energy = Callable[[Tensor, Time], Tensor]


class EnergyField(Field):
    """y' = (J - R) dH/dy for any energy H(y, t), a torch callable; the gradient is autograd's.

    Args:
        J: as in `HamiltonianField` (a constant one, J(t) or J(y, t)).
        energy: ``(canonical state, t) -> (..)``, one number for every sample; possibly a module
            with parameters of its own.
        features, channels, ensemble: the layout of the state.
        separable: promise that H(y, z) = V(y) + U(z), so that splitting schemes apply.
        dissipation: R, symmetric positive semidefinite.
        dtype: of J and R; None is torch's default.

    Raises:
        HdnnError: the width is impossible, or J does not suit it.

    >>> pendulum = EnergyField("J1", lambda x, t: x[..., 1] ** 2 / 2 - x[..., 0].cos(), features=2)
    >>> pendulum.velocity(torch.tensor([0.0, 1.0]))
    tensor([1., -0.])
    """

    R: Tensor | None

    def __init__(
        self,
        J: str | Tensor | npt.ArrayLike | StateFunction | Interconnection,
        energy: Energy,
        *,
        features: int | None = None,
        channels: int | None = None,
        ensemble: int | None = None,
        separable: bool = False,
        dissipation: Tensor | npt.ArrayLike | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.layout = layout_of(features, channels, ensemble)
        dtype = dtype or torch.get_default_dtype()
        self.interconnection = interconnection(J, self.layout.width).to(dtype=dtype)
        if isinstance(self.interconnection, InverseTranspose):
            raise HdnnError("J K' = I needs weights K; give J itself for an energy of your own")
        self.layers = self.interconnection.layers
        self.function = energy
        R = (
            None
            if dissipation is None
            else check_dissipation(dissipation, self.layout.width).to(dtype)
        )
        self.register_buffer("R", R)
        self.separable = separable
        if separable and not _couples_halves_only(self.interconnection, R, self.layout.width):
            raise IncompatibleError(
                "a separable field needs J = [0 X; -X' 0] and no dissipation inside the halves"
            )

    @property
    def J(self) -> Tensor:
        """``(n, n)`` where constant, ``(L, n, n)`` for J(t)."""
        return self.interconnection.matrix()

    def J_at(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """J of a layer at the state y: ``(n, n)``, or ``(..., n, n)`` for J(y, t).

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time.

        Returns:
            The matrix J.
        """
        if isinstance(self.interconnection, StateDependent):
            return self.interconnection.at(y, t)
        return self.J if self.interconnection.constant else self.J[layer]

    def energy(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """H(y, t): one number for every sample.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: is not used: one energy holds for all layers.
            t: the time.

        Returns:
            ``(...)``, the batch shape of y.
        """
        x, _ = self.layout.flatten(y)
        return self.layout.of_samples(self.function(x, t), y)

    def gradient(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """dH/dy, by autograd.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: is not used: one energy holds for all layers.
            t: the time.

        Returns:
            The shape of y.
        """
        x, restore = self.layout.flatten(y)
        return restore(self._gradient(x, t))

    def _gradient(self, x: Tensor, t: Time) -> Tensor:
        return torch.func.grad(lambda v: self.function(v, t).sum())(x)

    def velocity_fn(self) -> Velocity:
        apply = interconnect(self.interconnection, self.R, self.layout)
        return lambda j, t, x: apply(j, t, x, self._gradient(x, t))


def _couples_halves_only(J: Interconnection, R: Tensor | None, n: int) -> bool:
    if n % 2:
        return False
    S = J.support(n) if R is None else J.support(n) | (R != 0).cpu().numpy()
    return not (S[: n // 2, : n // 2].any() or S[n // 2 :, n // 2 :].any())
