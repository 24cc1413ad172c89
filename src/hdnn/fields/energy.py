"""Fields of any energy H(y, t): its gradient comes from autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields.field import InterconnectedField
from hdnn.fields.interconnection import GivenJ, InverseTranspose
from hdnn.fields.layout import layout_of
from hdnn.program import Time, Velocity

Energy = Callable[[Tensor, Time], Tensor]


class EnergyField(InterconnectedField):
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

    function: Energy

    def __init__(
        self,
        J: GivenJ,
        energy: Energy,
        *,
        features: int | None = None,
        channels: int | None = None,
        ensemble: int | None = None,
        separable: bool = False,
        dissipation: Tensor | npt.ArrayLike | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(J, InverseTranspose):
            raise HdnnError("J K' = I needs weights K; give J itself for an energy of your own")
        layout = layout_of(features, channels, ensemble)
        super().__init__(layout, J, dissipation, torch.empty(0, dtype=dtype))
        self.layers = self.interconnection.layers
        self.function = energy
        self.separable = separable
        half = layout.width // 2
        inside = self.support[:half, :half].any() or self.support[half:, half:].any()
        if separable and (layout.width % 2 or inside):
            raise IncompatibleError(
                "a separable field needs J = [0 X; -X' 0] and no dissipation inside the halves"
            )

    @property
    def J(self) -> Tensor:
        return self.interconnection.matrix()

    def energy_fn(self) -> Callable[[int, Time, Tensor], Tensor]:
        return lambda j, t, x: self.function(x, t)

    def gradient_fn(self) -> Velocity:
        return lambda j, t, x: torch.func.grad(lambda v: self.function(v, t).sum())(x)

    def velocity_fn(self) -> Velocity:
        return self.interconnected_fn()
