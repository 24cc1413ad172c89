"""Hamiltonian fields and baselines: the right-hand side of the ODE that a network discretizes.

    y' = (J - R) dH/dy,      H(y) = 1' E(K y + b),      dH/dy = K' sigma(K y + b)

With J constant or one for every layer the field is *one hidden layer*, and schemes lower it to
stages; with J(y, t) it is just a velocity. No step size in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.activations import Activation, activation
from hdnn.fields.field import Field, InterconnectedField
from hdnn.fields.interconnection import (
    GivenJ,
    InverseTranspose,
    StateDependent,
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

    weights: Weights
    activation: Activation

    def _set_weights(self, weights: Weights, sigma: str | Activation) -> None:
        self.weights = weights
        self.activation = activation(sigma)
        self.layout, self.layers = weights.layout, weights.layers
        self.couples_pixels = self.layout.channels and not isinstance(weights.map, Matrix)

    def extra_repr(self) -> str:
        return self.activation.name

    def units_fn(self) -> Callable[[int, Tensor], Tensor]:
        """K_j x + b_j of canonical states, with the weights assembled once.

        Returns:
            A function of layer and canonical state.
        """
        axis = self.layout.axis - 1
        K, b = self.weights.assembled.unbind(axis), self.weights.b.unbind(axis)
        return lambda j, x: affine(self.weights.map, K[j], b[j], x)

    def hidden_fn(self) -> Callable[[int, Tensor], Tensor]:
        """sigma(K_j x + b_j) of canonical states.

        Returns:
            A function of layer and canonical state.
        """
        units, sigma = self.units_fn(), self.activation.function
        return lambda j, x: sigma(units(j, x))


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
        super().__init__()
        self._set_weights(weights, activation)

    def values(self, h: Step) -> Values:
        return Values(h, self.weights.theta, self.weights.beta)

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        weights, everything = self.weights, (0, self.layout.width)
        if part is not None:
            return None
        ends = (everything, everything, weights.map, weights.bias)
        return Stage(*ends, self.activation, False, factor, carry)

    def velocity_fn(self) -> Velocity:
        hidden = self.hidden_fn()
        return lambda j, t, x: hidden(j, x)


class HamiltonianField(WeightedField, InterconnectedField):
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

    def __init__(
        self,
        J: GivenJ,
        weights: Weights,
        *,
        activation: str | Activation = "tanh",
        dissipation: Tensor | npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(weights.layout, J, dissipation, weights.theta)
        self._set_weights(weights, activation)
        self._check_interconnection()
        self._halves = _halves(self)
        self.separable = self._halves is not None

    def _check_interconnection(self) -> None:
        J = self.interconnection
        if isinstance(J, InverseTranspose) and self.R is not None:
            raise HdnnError("dissipation needs J itself, but here J K' = I; give J")
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

    def energy_fn(self) -> Callable[[int, Time, Tensor], Tensor]:
        units, E, axis = self.units_fn(), self.activation.energy, self.layout.axis
        return lambda j, t, x: E(units(j, x)).flatten(axis).sum(-1)

    def gradient_fn(self) -> Velocity:
        K, hidden = self.weights.assembled.unbind(self.layout.axis - 1), self.hidden_fn()
        return lambda j, t, x: self.weights.map.adjoint(K[j], hidden(j, x))

    def values(self, h: Step) -> Values:
        weights, J = self.weights, self.interconnection
        # A tuple is three times as fast as | in isinstance, and this is read at every call.
        no_matrix = isinstance(J, (InverseTranspose, StateDependent))
        return Values(h, weights.theta, weights.beta, None if no_matrix else self.effective())

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        J, weights, everything = self.interconnection, self.weights, (0, self.layout.width)
        if isinstance(J, StateDependent) or (part is not None and self._halves is None):
            return None
        whole = Half(everything, everything, weights.map, weights.bias)
        half = whole if part is None or self._halves is None else self._halves[part]
        adjoint = not isinstance(J, InverseTranspose)
        return Stage(*half, self.activation, adjoint, factor, carry)

    def velocity_fn(self) -> Velocity:
        if not isinstance(self.interconnection, InverseTranspose):
            return self.interconnected_fn()
        hidden = self.hidden_fn()
        return lambda j, t, x: hidden(j, x)


class LayerField(NamedTuple):
    """The general (J, K, b) of one layer: y' = J K' sigma(K y + b).

    Args:
        J: ``(n, n)``.
        K: ``(m, n)``.
        b: ``(m,)``.

    >>> import hdnn
    >>> J, K, b = hdnn.network("MS1", features=4, layers=3, T=1.0).field_at(0)
    >>> J.shape, K.shape, b.shape
    (torch.Size([4, 4]), torch.Size([4, 4]), torch.Size([4]))
    """

    J: Tensor
    K: Tensor
    b: Tensor


def _halves(field: HamiltonianField) -> dict[str, Half] | None:
    """The two halves of a field in which y' depends on z only and z' on y only, or None."""
    J = field.interconnection
    weights, n, K = field.weights, field.layout.width, field.weights.map.support
    if n % 2 or isinstance(J, StateDependent):
        return None
    gain = np.eye(n, dtype=bool)
    if not isinstance(J, InverseTranspose):
        # Of floats: products of integers take ten times as long.
        gain = (field.support.astype(np.float32) @ K.T.astype(np.float32)) > 0
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
