"""Hamiltonian fields and baselines: the right-hand side of the ODE that a network discretizes.

    y' = (J - R) dH/dy,      H(y) = 1' E(K y + b),      dH/dy = K' sigma(K y + b)

With J constant or one for every layer the field is *one hidden layer*, and schemes lower it to
stages; with J(y, t) it is just a velocity. No step size in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.activations import Activation, activation
from hdnn.fields.field import (
    Field,
    check_dissipation,
    effective_interconnection,
    interconnect,
)
from hdnn.fields.interconnection import (
    Interconnection,
    InverseTranspose,
    StateDependent,
    StateFunction,
    interconnection,
    inverse_transpose,
)
from hdnn.fields.maps import Assembly, LinearMap, Matrix, affine
from hdnn.fields.weights import Weights
from hdnn.program import Stage, Step, Time, Values, Velocity


class Half(NamedTuple):
    """One half of a separable field: the hidden units that drive it, and what they read."""

    read: tuple[int, int]
    write: tuple[int, int]
    W: LinearMap
    b: Assembly


class WeightedField(Field):
    """A field whose parameters are `Weights`: Hamiltonian or a baseline."""

    def __init__(self, weights: Weights, sigma: str | Activation) -> None:
        super().__init__()
        self.weights = weights
        self.activation = activation(sigma)
        self.layout, self.layers = weights.layout, weights.layers
        self.couples_pixels = self.layout.channels and not isinstance(weights.map, Matrix)

    def extra_repr(self) -> str:
        return self.activation.name

    def _layers(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What the map takes as K, and b, of every layer."""
        axis = self.layout.axis - 1
        return self.weights.assembled.unbind(axis), self.weights.b.unbind(axis)

    def _hidden_fn(self) -> Callable[[int, Tensor], Tensor]:
        """sigma(K_j x + b_j) of canonical states, with the weights assembled once."""
        (K, b), sigma = self._layers(), self.activation.function
        return lambda j, x: sigma(affine(self.weights.map, K[j], b[j], x))


class ActivationField(WeightedField):
    """y' = sigma(K y + b) with any K: the baselines ResNet and FCNN. Not Hamiltonian.

    Args:
        weights: K and b of every layer.
        activation: sigma, a name of `ACTIVATIONS` or an `Activation`.

    >>> import hdnn, torch
    >>> from hdnn import fields
    >>> weights = fields.Weights("dense", features=4, layers=3)
    >>> fields.ActivationField(weights).velocity(torch.zeros(2, 4), layer=0).shape
    torch.Size([2, 4])
    """

    def __init__(self, weights: Weights, *, activation: str | Activation = "tanh") -> None:
        super().__init__(weights, activation)

    def values(self, h: Step) -> Values:
        return Values(h, self.weights.theta, self.weights.beta)

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        weights, everything = self.weights, (0, self.layout.width)
        if part is not None:
            return None
        ends = (everything, everything, weights.map, weights.bias)
        return Stage(*ends, self.activation, False, factor, carry)

    def velocity_fn(self) -> Velocity:
        hidden = self._hidden_fn()
        return lambda j, t, x: hidden(j, x)


class HamiltonianField(WeightedField):
    """y' = (J - R) dH/dy with H(y) = 1' E(K y + b): equations (7) to (10) of the paper.

    Args:
        J: a name ("J1", "J2"), a skew matrix ``(n, n)``, a stack ``(L, n, n)`` for J(t), a callable
            J(y, t), or an `Interconnection` (`Learned`, `InverseTranspose`, ...).
        weights: K and b.
        activation: sigma, by name; E is its energy (log cosh for tanh).
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.

    Raises:
        HdnnError: J, dissipation and weights do not suit each other.

    >>> import torch
    >>> field = HamiltonianField("J1", Weights("dense", features=4, layers=16))
    >>> field.velocity(torch.zeros(3, 4), layer=5).shape
    torch.Size([3, 4])
    """

    R: Tensor | None

    def __init__(
        self,
        J: str | Tensor | npt.ArrayLike | StateFunction | Interconnection,
        weights: Weights,
        *,
        activation: str | Activation = "tanh",
        dissipation: Tensor | npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(weights, activation)
        self.interconnection = interconnection(J, self.layout.width).to(weights.theta)
        self._check_interconnection()
        R = None if dissipation is None else check_dissipation(dissipation, self.layout.width)
        if R is not None and isinstance(self.interconnection, InverseTranspose):
            raise HdnnError("dissipation needs J itself, but here J K' = I; give J")
        self.register_buffer("R", None if R is None else R.to(weights.theta))
        self._halves = _halves(self, R)
        self.separable = self._halves is not None

    def _check_interconnection(self) -> None:
        J = self.interconnection
        if isinstance(J, InverseTranspose) and not self.weights.pattern.is_skew:
            raise HdnnError(
                f"J K' = I makes J skew only where K is skew, but K is {self.weights.structure!r}; "
                "use the structure 'skew' or 'off-diagonal-skew'"
            )
        if not self.activation.odd and (self.weights.bias_pattern.sign < 0).any():
            raise HdnnError(
                "the layer equation of MS1 is of the form sigma(K s + b) only for odd activations, "
                f"and {self.activation.name!r} is not; use tanh, arctan, softsign, sin or erf"
            )
        if J.layers is not None and J.layers != self.layers:
            raise HdnnError(f"J(t) has {J.layers} layers, but the weights have {self.layers}")

    def extra_repr(self) -> str:
        return self.activation.name + ("" if self.R is None else ", with dissipation")

    @property
    def J(self) -> Tensor:
        """``(n, n)`` where constant, ``([E,] L, n, n)`` for J(t) and where J K' = I."""
        if isinstance(self.interconnection, InverseTranspose):
            if self.weights.kernel > 1:
                raise HdnnError(
                    "J_j is the inverse of K_j', and that of a convolution is no convolution; "
                    "the layer equation needs no J: use net.K, or an architecture with J1 or J2"
                )
            return inverse_transpose(self.weights.K)
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
        return self.J if self.interconnection.constant else self.J[..., layer, :, :]

    def _S(self) -> Tensor | None:
        """J - R where it is a matrix or a stack; None where J K' = I, and for J(y, t)."""
        J = self.interconnection
        if isinstance(J, (InverseTranspose, StateDependent)):  # a tuple is three times as fast as |
            return None
        return effective_interconnection(J, self.R)

    def energy(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """H(y) = 1' E(K y + b): one number for every sample.

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time; a layer's energy does not depend on it.

        Returns:
            ``(...)``, the batch shape of y.
        """
        x, _ = self.layout.flatten(y)
        K, b = self._layers()
        H = self.activation.energy(affine(self.weights.map, K[layer], b[layer], x))
        return self.layout.of_samples(H.flatten(self.layout.axis).sum(-1), y)

    def gradient(self, y: Tensor, layer: int = 0, t: Time = 0.0) -> Tensor:
        """dH/dy = K' sigma(K y + b), equation (9).

        Args:
            y: states ``(..., n)`` or ``(B, n, *spatial)``.
            layer: j, from 0.
            t: the time; a layer's energy does not depend on it.

        Returns:
            The shape of y.
        """
        x, restore = self.layout.flatten(y)
        return restore(self._gradient_fn()(layer, x))

    def _gradient_fn(self) -> Callable[[int, Tensor], Tensor]:
        """dH/dy of canonical states, with the weights assembled once."""
        K, hidden = self.weights.assembled.unbind(self.layout.axis - 1), self._hidden_fn()
        return lambda j, x: self.weights.map.adjoint(K[j], hidden(j, x))

    def values(self, h: Step) -> Values:
        weights = self.weights
        return Values(h, weights.theta, weights.beta, self._S())

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        J, weights, everything = self.interconnection, self.weights, (0, self.layout.width)
        if isinstance(J, StateDependent) or (part is not None and self._halves is None):
            return None
        whole = Half(everything, everything, weights.map, weights.bias)
        half = whole if part is None or self._halves is None else self._halves[part]
        adjoint = not isinstance(J, InverseTranspose)
        return Stage(*half, self.activation, adjoint, factor, carry)

    def velocity_fn(self) -> Velocity:
        if isinstance(self.interconnection, InverseTranspose):
            hidden = self._hidden_fn()
            return lambda j, t, x: hidden(j, x)
        gradient = self._gradient_fn()
        apply = interconnect(self.interconnection, self.R, self.layout)
        return lambda j, t, x: apply(j, t, x, gradient(j, x))


@dataclass(frozen=True)
class LayerField:
    """The general (J, K, b) of one layer: y' = J K' sigma(K y + b). Unpacks as ``J, K, b``.

    Args:
        J: ``(n, n)``.
        K: ``(m, n)``.
        b: ``(m,)``.
        activation: sigma, with its antiderivative E.

    >>> import hdnn
    >>> J, K, b = hdnn.network("MS1", features=4, layers=3, T=1.0).field_at(0)
    >>> J.shape, K.shape, b.shape
    (torch.Size([4, 4]), torch.Size([4, 4]), torch.Size([4]))
    """

    J: Tensor
    K: Tensor
    b: Tensor
    activation: Activation

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.J, self.K, self.b))

    def energy(self, y: Tensor) -> Tensor:
        """H(y) = 1' E(K y + b) for states ``(..., n)``.

        Args:
            y: ``(..., n)``.

        Returns:
            ``(...)``.
        """
        return self.activation.energy(y @ self.K.mT + self.b).sum(-1)

    def gradient(self, y: Tensor) -> Tensor:
        """dH/dy = K' sigma(K y + b) for states ``(..., n)``.

        Args:
            y: ``(..., n)``.

        Returns:
            ``(..., n)``.
        """
        return self.activation.function(y @ self.K.mT + self.b) @ self.K

    def velocity(self, y: Tensor) -> Tensor:
        """J dH/dy for states ``(..., n)``.

        Args:
            y: ``(..., n)``.

        Returns:
            ``(..., n)``.
        """
        return self.gradient(y) @ self.J.mT


def _halves(field: HamiltonianField, R: Tensor | None) -> dict[str, Half] | None:
    """The two halves of a field in which y' depends on z only and z' on y only, or None."""
    J, weights, n = field.interconnection, field.weights, field.layout.width
    K = weights.map.support
    if n % 2 or isinstance(J, StateDependent):
        return None
    gain = np.eye(n, dtype=bool)
    if not isinstance(J, InverseTranspose):
        S = J.support(n)
        if R is not None:  # on the device meta it has no numbers, so it may be anything
            S = S | (np.ones_like(S) if R.is_meta else (R != 0).cpu().numpy())
        # Of floats: products of integers take ten times as long.
        gain = (S.astype(np.float32) @ K.T.astype(np.float32)) > 0
    elif K.shape[0] != n:
        return None
    y, z = (0, n // 2), (n // 2, n)
    halves = {}
    for part, write, read in (("y", y, z), ("z", z, y)):
        units = np.flatnonzero(gain[slice(*write)].any(axis=0))
        block = None
        if not K[units][:, slice(*write)].any():
            block = weights.block(units, np.arange(*read))
        if block is None:
            return None
        halves[part] = Half(read, write, *block)
    return halves
