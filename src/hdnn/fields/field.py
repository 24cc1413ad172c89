"""What every field has: a velocity for each layer, and perhaps the form of one hidden layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.fields.activations import Activation
from hdnn.fields.interconnection import Interconnection, StateDependent
from hdnn.fields.layout import Layout
from hdnn.fields.weights import Block

Time = Tensor | float
Velocity = Callable[[int, Time, Tensor], Tensor]


@dataclass(frozen=True)
class HiddenLayer:
    """A velocity that is one hidden layer: G sigma(W x + b), with G = S W' or G = I.

    Args:
        W, b: blocks of the stacks of K and b.
        activation: sigma.
        adjoint: whether G = S W' (Hamiltonian) or the identity (MS1, MS2, baselines).
        S: J - R, or a block of it: ``(w, r)`` or ``(L, w, r)``.

    >>> import hdnn
    >>> layer = hdnn.network("H1", features=4, layers=3, T=1.0).field.as_layer()
    >>> layer.adjoint, layer.S.shape
    (True, torch.Size([4, 4]))
    """

    W: Block
    b: Block
    activation: Activation
    adjoint: bool = False
    S: Tensor | None = None


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

    >>> import hdnn, torch
    >>> field = hdnn.network("MS3", features=4, layers=3, T=1.0).field
    >>> field.separable, field.velocity(torch.zeros(2, 4), layer=0).shape
    (True, torch.Size([2, 4]))
    """

    layout: Layout
    layers: int | None = None
    separable: bool = False

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

    def as_layer(self) -> HiddenLayer | None:
        """The field as one hidden layer, or None.

        Returns:
            W, A, b and the activation; None where the field is no hidden layer.
        """
        return None

    def tensors(self) -> tuple[Tensor | None, ...] | None:
        """The tensors that a program refers to, if it refers to nothing that is computed anew.

        Returns:
            The parameters; None where a program must be made anew for every call.
        """
        return None

    def half_layer(self, part: str) -> HiddenLayer | None:
        """The hidden layer that moves ``"y"`` or ``"z"`` of a separable field, or None.

        Args:
            part: "y" (the first half of the state) or "z".

        Returns:
            W, A, b and the activation; None where the field is not separable.
        """
        return None

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


def interconnect(
    J: Interconnection, R: Tensor | None, layout: Layout
) -> Callable[[int, Time, Tensor, Tensor], Tensor]:
    """The map (layer, t, state, dH/dy) -> (J - R) dH/dy."""
    if isinstance(J, StateDependent):

        def apply(j: int, t: Time, x: Tensor, g: Tensor) -> Tensor:
            x, g = x.movedim(layout.axis, -1), g.movedim(layout.axis, -1)
            S = J.at(x, t) if R is None else J.at(x, t) - R
            return (S @ g.unsqueeze(-1)).squeeze(-1).movedim(-1, layout.axis)

        return apply
    S = effective_interconnection(J, R)
    if S.ndim == 2:
        return lambda j, t, x, g: layout.linear(S, g)
    return lambda j, t, x, g: layout.linear(S[..., j if S.shape[-3] > 1 else 0, :, :], g)


def effective_interconnection(J: Interconnection, R: Tensor | None) -> Tensor:
    """J - R: ``(n, n)``, ``(L, n, n)``, or for an ensemble ``(E, L or 1, n, n)``."""
    S = J.matrix() if R is None else J.matrix() - R
    return S.unsqueeze(-3) if J.constant and S.ndim == 3 else S


def check_dissipation(dissipation: Tensor | npt.ArrayLike, n: int) -> Tensor:
    """R as a tensor, checked to be symmetric and positive semidefinite."""
    R = torch.as_tensor(dissipation).to(torch.float64)
    if R.shape != (n, n):
        raise HdnnError(f"the dissipation R must be ({n}, {n}), got {tuple(R.shape)}")
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
