"""What every field has: a velocity for each layer, and perhaps the form of one hidden layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.fields.interconnection import GivenJ, StateDependent, as_values, interconnection
from hdnn.fields.layout import Layout
from hdnn.fields.maps import matrix_product
from hdnn.program import Stage, Step, Time, Values, Velocity


def listed(thing: object, names: Iterable[str], optional: Collection[str]) -> list[str]:
    """Names of attributes, without the optional ones that this thing does not have.

    Tools ask for every name that `dir` gives: an editor's completion, torch.jit.trace.

    Args:
        thing: whose attributes they are.
        names: all of them.
        optional: properties that may raise HdnnError.
    """

    def has(name: str) -> bool:
        try:
            getattr(thing, name)
        except HdnnError:
            return False
        return True

    return [name for name in names if name not in optional or has(name)]


class Field(nn.Module, ABC):
    """What the dynamics are: a velocity for every layer.

    Attributes:
        layout: width, and where it lives in a state.
        layers: number of layers it has parameters for, or None for any number.
        separable: whether y' depends on z only and z' on y only.
        couples_pixels: whether the velocity at a pixel depends on other pixels (convolutions).

    >>> import hdnn, torch
    >>> field = hdnn.network("MS3", features=4, layers=3, T=1.0).field
    >>> field.separable, field.velocity(torch.zeros(2, 4), layer=0).shape
    (True, torch.Size([2, 4]))
    """

    layout: Layout
    layers: int | None = None
    separable: bool = False
    couples_pixels: bool = False

    def __dir__(self) -> list[str]:
        return listed(self, super().__dir__(), ("J",))

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of its numbers, or None where it has none of its own."""
        tensors = [*self.parameters(), *self.buffers()]
        return next((t.dtype for t in tensors if t.is_floating_point()), None)

    @abstractmethod
    def velocity_fn(self) -> Velocity:
        """The velocity ``(layer, t, canonical state)``, with the weights assembled once.

        Returns:
            A function of layer, time and canonical state, which gives the shape of the state.
        """

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        """The field, or one half of a separable one, as a stage; None where it is just a velocity.

        Args:
            part: "y" or "z" moves that half of the state only, None all of it.
            factor: on the step.
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
        """The right-hand side of the ODE of a layer at time t, in the shape of y.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time.

        Returns:
            The shape of y.
        """
        x, restore = self.layout.flatten(y)
        return restore(self.velocity_fn()(layer, t, x))


class InterconnectedField(Field):
    """y' = (J - R) dH/dy: what fields with an energy H share, whatever H is.

    Args:
        layout: of the states.
        J: as `interconnection` takes it.
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.
        like: a tensor of the dtype and device that J and R get.

    Attributes:
        interconnection: J of every layer.
        R: the dissipation, or None.
        support: ``(n, n)``, where J - R can be other than zero.
    """

    R: Tensor | None

    def __init__(
        self, layout: Layout, J: GivenJ, dissipation: Tensor | npt.ArrayLike | None, like: Tensor
    ) -> None:
        super().__init__()
        self.layout = layout
        self.interconnection = interconnection(J, layout.width).to(like)
        if isinstance(self.interconnection, StateDependent) and not like.is_meta:
            size = 2 * layout.width
            some = torch.linspace(-1, 1, size).reshape(2, -1).to(like)
            self.interconnection.check(some.expand(*layout.lead, 2, -1))
        R = None if dissipation is None else check_dissipation(dissipation, layout.width)
        self.support = self.interconnection.support(layout.width)
        if R is not None:
            # On the device meta it has no numbers, so it may be anything.
            own = np.ones_like(self.support) if R.is_meta else (R != 0).cpu().numpy()
            self.support = self.support | own
        self.register_buffer("R", None if R is None else R.to(like))

    @property
    @abstractmethod
    def J(self) -> Tensor:
        """``(n, n)`` where constant, ``([E,] L, n, n)`` where every layer has its own."""

    @abstractmethod
    def energy_fn(self) -> Callable[[int, Time, Tensor], Tensor]:
        """H ``([E,] B)`` of canonical states, with the weights assembled once.

        Returns:
            A function of layer, time and canonical state.
        """

    @abstractmethod
    def gradient_fn(self) -> Velocity:
        """dH/dy of canonical states, with the weights assembled once.

        Returns:
            A function of layer, time and canonical state.
        """

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
        return self.J if self.interconnection.constant else self.J[..., layer, :, :]

    def energy(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """H(y): one number for every sample.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time.

        Returns:
            ``(...)``, the batch shape of y.
        """
        x, _ = self.layout.flatten(y)
        return self.layout.of_samples(self.energy_fn()(layer, t, x), y)

    def gradient(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """dH/dy, equation (9).

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time.

        Returns:
            The shape of y.
        """
        x, restore = self.layout.flatten(y)
        return restore(self.gradient_fn()(layer, t, x))

    def interconnected_fn(self) -> Velocity:
        """(J - R) dH/dy of canonical states.

        Returns:
            A function of layer, time and canonical state.
        """
        J, R, layout, gradient = self.interconnection, self.R, self.layout, self.gradient_fn()
        if isinstance(J, StateDependent):
            axis = layout.axis

            def velocity(j: int, t: Time, x: Tensor) -> Tensor:
                g = gradient(j, t, x).movedim(axis, -1).unsqueeze(-1)
                S = J.at(x.movedim(axis, -1), t)
                return ((S if R is None else S - R) @ g).squeeze(-1).movedim(-1, axis)

            return velocity
        S = self.effective()
        return lambda j, t, x: matrix_product(of_layer(S, j, layout), gradient(j, t, x))

    def effective(self) -> Tensor:
        """J - R: ``(n, n)``, ``(L, n, n)``, or for an ensemble ``(E, L or 1, n, n)``.

        Returns:
            What multiplies dH/dy.

        Raises:
            HdnnError: J depends on the state, or is the inverse of K'.
        """
        J = self.interconnection
        S = J.matrix() if self.R is None else J.matrix() - self.R
        return S.unsqueeze(-3) if J.constant and S.ndim == 3 else S


def of_layer(S: Tensor, layer: int, layout: Layout) -> Tensor:
    """J - R of a layer, ``([E,] n, n)``, from a matrix or a stack."""
    if S.ndim > 2:
        S = S[..., layer if S.shape[-3] > 1 else 0, :, :]
    return S if S.ndim == 2 + len(layout.lead) else S.expand(*layout.lead, *S.shape)


def check_dissipation(dissipation: Tensor | npt.ArrayLike, n: int) -> Tensor:
    """R as a tensor, checked to be symmetric and positive semidefinite."""
    R = as_values(dissipation).to(torch.float64)
    if R.shape != (n, n):
        raise HdnnError(f"the dissipation R must be ({n}, {n}), got {tuple(R.shape)}")
    if R.is_meta:  # a shape without numbers
        return R
    if not bool(torch.isfinite(R).all()):
        raise HdnnError("the dissipation R must be finite")
    scale = max(1.0, float(R.abs().max()))
    if float((R - R.mT).abs().max()) > 1e-6 * scale:
        raise HdnnError("the dissipation R must be symmetric; use (R + R') / 2")
    smallest = float(torch.linalg.eigvalsh((R + R.mT) / 2)[0])
    if smallest < -1e-6 * scale:
        raise HdnnError(
            f"the dissipation R must be positive semidefinite, but has eigenvalue {smallest:.3g}"
        )
    return (R + R.mT) / 2
