"""What every field has, a velocity for each layer; and what those with an energy H share.

    y' = (J - R) dH/dy

`EnergyField` takes any H, whose gradient comes from autograd; the H of the paper, with weights K
and b, is in `hamiltonian`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, IncompatibleError
from hdnn.fields.interconnection import (
    GivenJ,
    Interconnection,
    StateFunction,
    as_values,
    check_function,
    interconnection,
)
from hdnn.fields.layout import Layout, layout_of
from hdnn.fields.maps import matrix_product
from hdnn.program import Stage, Step, Time, Values, Velocity

Energy = Callable[[Tensor, Time], Tensor]
LayerEnergy = Callable[[int, Time, Tensor], Tensor]


class Field(nn.Module, ABC):
    """What the dynamics are: a velocity for every layer; and, where there is one, the energy H.

        y' = (J - R) dH/dy

    Attributes:
        layout: width, and where it lives in a state.
        layers: number of layers it has parameters for, or None for any number.
        separable: whether y' depends on z only and z' on y only.
        couples_pixels: whether the velocity at a pixel depends on other pixels (convolutions).
        has_discrete_gradient: whether `velocity_fn` also takes two states x and `to`, and gives
            f(x, to) = (J - R) g, with the mean g of dH/dy on the line between them:
            g'(to - x) = H(to) - H(x), exactly.
        hamiltonian: whether there are a J and an energy H; baselines have none.
        interconnection: J as a module of its own; None where it depends on the state, follows from
            K, or does not exist.
        R: the dissipation ``(n, n)``, or None.

    >>> import hdnn, torch
    >>> field = hdnn.network("MS3", features=4, layers=3, T=1.0).field
    >>> field.separable, field.velocity(torch.zeros(2, 4), layer=0).shape
    (True, torch.Size([2, 4]))
    """

    layout: Layout
    layers: int | None = None
    separable: bool = False
    couples_pixels: bool = False
    hamiltonian: bool = False
    interconnection: Interconnection | None
    R: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.interconnection = None
        self.register_buffer("R", None)

    @property
    def conservative(self) -> bool:
        """Whether H is constant along the ODE: y' = J dH/dy without dissipation."""
        return self.hamiltonian and self.R is None

    @property
    def has_discrete_gradient(self) -> bool:
        return False

    @property
    def constant_interconnection(self) -> bool:
        """Whether one J serves all layers and states."""
        return self.interconnection is not None and self.interconnection.constant

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of its numbers, or None where it has none of its own."""
        tensors = [*self.parameters(), *self.buffers()]
        return next((t.dtype for t in tensors if t.is_floating_point()), None)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many numbers of theta and of beta a layer has."""
        return 0, 0

    @abstractmethod
    def velocity_fn(self) -> Velocity:
        """The velocity ``(layer, t, canonical state)``, with the weights assembled once.

        Returns:
            A function of layer, time and canonical state (or two of them, see
            `has_discrete_gradient`), which gives the shape of the state.
        """

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        """The field, or one half of a separable one, as a stage; None where it is just a velocity.

        Args:
            part: "y" or "z" moves that half of the state only, None all of it.
            factor: a number that multiplies the step.
            carry: 1 adds to the state, 0 replaces it.

        Returns:
            x[write] = carry x[write] + factor h f(x[read]).
        """
        return None

    def values(self, h: Step) -> Values:
        """The numbers that stages of this field need.

        Args:
            h: the step, one number or ``([E,] L)``.

        Returns:
            Parameters and J - R as they are now.
        """
        return Values(h)

    def velocity(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """The right-hand side of the ODE of a layer at time t.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: the number j of the layer, from 0.
            t: the time, for a J(y, t) or H(y, t) that depends on it.

        Returns:
            f(y), in the shape of y.
        """
        x, restore = self.layout.flatten(y)
        return restore(self.velocity_fn()(layer, t, x))

    @property
    def J(self) -> Tensor:
        """``(n, n)`` where constant, ``([E,] L, n, n)`` where every layer has its own."""
        raise HdnnError(f"this {type(self).__name__} is a baseline, not Hamiltonian: no J")

    def J_at(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """J of a layer at the state y.

        Args:
            y: states ``(..., n)``.
            layer: the number j of the layer, from 0.
            t: the time.

        Returns:
            ``(n, n)``, or ``(..., n, n)`` for J(y, t).

        Raises:
            HdnnError: the field is not Hamiltonian, or J is the inverse of a singular K'.
        """
        J = self.J
        return J if J.ndim == 2 else J[..., layer, :, :]

    def energy_fn(self) -> LayerEnergy:
        """H ``([E,] B)`` of canonical states, with the weights assembled once.

        Returns:
            A function of layer, time and canonical state.

        Raises:
            HdnnError: the field is not Hamiltonian.
        """
        raise HdnnError(f"this {type(self).__name__} is a baseline, not Hamiltonian: no energy")

    def gradient_fn(self) -> Velocity:
        """dH/dy of canonical states, with the weights assembled once; here by autograd.

        Returns:
            A function of layer, time and canonical state.
        """
        energy = self.energy_fn()
        return lambda j, t, x: torch.func.grad(lambda v: energy(j, t, v).sum())(x)

    def energy(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """H(y): one number for every sample.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: the number j of the layer, from 0.
            t: the time.

        Returns:
            ``(...)``, the batch shape of y.

        Raises:
            HdnnError: the field is not Hamiltonian.
        """
        x, _ = self.layout.flatten(y)
        return self.layout.of_samples(self.energy_fn()(layer, t, x), y)

    def gradient(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """dH/dy, equation (9).

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: the number j of the layer, from 0.
            t: the time.

        Returns:
            The gradient, in the shape of y.

        Raises:
            HdnnError: the field is not Hamiltonian.
        """
        x, restore = self.layout.flatten(y)
        return restore(self.gradient_fn()(layer, t, x))


class InterconnectedField(Field):
    """y' = (J - R) dH/dy with a J of one's own, whatever H is.

    Args:
        layout: of the states.
        J: as `interconnection` takes it.
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.
        like: a tensor of the dtype and device that J and R get.

    Attributes:
        interconnection: J of every layer; None where it is a function of the state.
        J_function: J(y, t), or None.
    """

    hamiltonian = True

    def __init__(
        self, layout: Layout, J: GivenJ, dissipation: Tensor | npt.ArrayLike | None, like: Tensor
    ) -> None:
        super().__init__()
        self.layout = layout
        self.interconnection = own = interconnection(J, layout.width)
        self.__dict__["interconnection"] = own  # see HamiltonianNetwork.field
        self.J_function = cast(StateFunction, J) if self.interconnection is None else None
        self.R = None if dissipation is None else _dissipation(dissipation, layout.width)
        self.to(like)
        if self.J_function is not None:
            # States without zeros: at 0 a J(y, t) often vanishes, and anything would pass.
            states = torch.linspace(-1, 1, 2 * layout.width).reshape(2, -1).to(like)
            check_function(self.J_function, states.expand(*layout.lead, 2, -1))

    @property
    def J(self) -> Tensor:
        """``(n, n)`` where constant, ``([E,] L, n, n)`` where every layer has its own."""
        if self.interconnection is None:
            raise HdnnError(
                "J(y, t) depends on the state, so there is no matrix J; "
                "evaluate it with field.J_at(y, layer, t)"
            )
        return self.interconnection.matrix()

    def J_at(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        if self.J_function is not None:
            return self.J_function(y, t)
        J = self.J
        return J if self.constant_interconnection else J[..., layer, :, :]

    def velocity_fn(self) -> Velocity:
        J, R, layout, gradient = self.J_function, self.R, self.layout, self.gradient_fn()
        if J is not None:
            axis = layout.axis

            def velocity(j: int, t: Time, x: Tensor, *to: Tensor) -> Tensor:
                g = gradient(j, t, x, *to).movedim(axis, -1).unsqueeze(-1)
                middle = (x + to[0]) / 2 if to else x
                S = J(middle.movedim(axis, -1), t)
                return ((S if R is None else S - R) @ g).squeeze(-1).movedim(-1, axis)

            return velocity
        S = self.J_minus_R()
        return lambda j, t, *x: matrix_product(of_layer(S, j, layout), gradient(j, t, *x))

    def J_minus_R(self) -> Tensor:
        """What multiplies dH/dy.

        Returns:
            ``(n, n)``, ``(L, n, n)``, or for an ensemble ``(E, L or 1, n, n)``.

        Raises:
            HdnnError: J depends on the state.
        """
        own, buffers = self.interconnection, self._buffers  # as in `Weights.values`
        parametrized = "R" not in buffers
        R = self.R if parametrized else buffers["R"]
        J = self.J if own is None else own.matrix()
        S = J if R is None else J - R
        # One J for every network: an axis of layers tells it from J(t), one for every layer.
        return S.unsqueeze(-3) if S.ndim == 3 and own is not None and own.constant else S


def of_layer(S: Tensor, layer: int, layout: Layout) -> Tensor:
    """J - R of a layer, ``([E,] n, n)``, from a matrix or a stack."""
    if S.ndim > 2:
        S = S[..., layer if S.shape[-3] > 1 else 0, :, :]
    return S if S.ndim == 2 + len(layout.lead) else S.expand(*layout.lead, *S.shape)


def _dissipation(numbers: Tensor | npt.ArrayLike, n: int) -> Tensor:
    """R as a tensor, checked to be symmetric and positive semidefinite."""
    R = as_values(numbers).to(torch.float64)
    if R.shape != (n, n):
        raise HdnnError(f"the dissipation R must be ({n}, {n}), got {tuple(R.shape)}")
    tolerance = 1e-6 * max(1.0, float(R.abs().max()))
    symmetric = bool((R - R.mT).abs().max() <= tolerance)  # also False for NaN and infinity
    if not symmetric or float(torch.linalg.eigvalsh(R)[0]) < -tolerance:
        raise HdnnError(
            "the dissipation R must be finite, symmetric and positive semidefinite; "
            "A @ A.T is, for any matrix A"
        )
    return (R + R.mT) / 2


class EnergyField(InterconnectedField):
    """y' = (J - R) dH/dy for any energy H(y, t), a torch callable; the gradient is autograd's.

    Args:
        J: a name ("J1", "J2"), a skew matrix ``(n, n)``, a stack ``(L, n, n)`` for J(t), a callable
            J(y, t), or an `Interconnection`.
        energy: H, ``(canonical state, t) -> (..)`` with one number for every sample. It may be a
            module with parameters, which are trained with the network.
        features: the width n of states ``(..., n)``.
        channels: instead of features, the width n of states ``(B, n, *spatial)``.
        separable: promise that H(y, z) = V(y) + U(z), so that splitting schemes apply.
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.
        dtype: of J and R; None is torch's default dtype.

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
        separable: bool = False,
        dissipation: Tensor | npt.ArrayLike | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        layout = layout_of(features, channels)
        super().__init__(layout, J, dissipation, torch.empty(0, dtype=dtype))
        own = self.interconnection
        self.layers = None if own is None else own.layers
        self.function, self.separable = energy, separable
        self.couples_pixels = layout.channels  # what H does with pixels is its own
        if separable and not (own is not None and own.bipartite and self.R is None):
            raise IncompatibleError("a separable field needs J = [0 X; -X' 0] and no dissipation")

    def energy_fn(self) -> LayerEnergy:
        return lambda j, t, x: self.function(x, t)
