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
from hdnn.fields.field import Field, InterconnectedField, LayerEnergy
from hdnn.fields.interconnection import GivenJ, InverseTranspose, StateDependent, inverse_transpose
from hdnn.fields.maps import Assembly, LinearMap, Matrix, affine
from hdnn.fields.weights import Weights
from hdnn.program import Stage, Step, Values, Velocity


class Part(NamedTuple):
    """A part of the state that a stage moves: the hidden units that drive it, what they read."""

    read: tuple[int, int]
    write: tuple[int, int]
    W: LinearMap
    b: Assembly


class WeightedField(Field):
    """A field whose parameters are `Weights`: Hamiltonian or a baseline.

    Attributes:
        weights: K and b of every layer.
        activation: sigma, with its energy.
        adjoint: whether sigma(K y + b) is multiplied by (J - R) K' in its stages.
        parts: what stages move: None is all of the state; "y" and "z" are halves of a separable
            field.
    """

    weights: Weights
    activation: Activation
    adjoint: bool = False
    parts: dict[str | None, Part]

    def _set_weights(self, weights: Weights, sigma: str | Activation) -> None:
        self.weights = weights
        self.activation = activation(sigma)
        self.layout, self.layers = weights.layout, weights.layers
        self.couples_pixels = self.layout.channels and not isinstance(weights.map, Matrix)
        everything = (0, self.layout.width)
        self.parts = {None: Part(everything, everything, weights.map, weights.bias)}

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        if part not in self.parts:
            return None
        return Stage(*self.parts[part], self.activation, self.adjoint, factor, carry)

    def units_fn(self) -> Callable[[int, Tensor], Tensor]:
        """K_j x + b_j of canonical states, with the weights assembled once.

        Returns:
            A function of layer and canonical state.
        """
        axis = self.layout.axis - 1
        K, b = self.weights.assembled.unbind(axis), self.weights.b.unbind(axis)
        return lambda j, x: affine(self.weights.map, K[j], b[j], x)

    def hidden_fn(self) -> Velocity:
        """sigma(K_j x + b_j) of canonical states.

        Returns:
            A function of layer, time and canonical state.
        """
        units, sigma = self.units_fn(), self.activation.function
        return lambda j, t, x: sigma(units(j, x))


class ActivationField(WeightedField):
    """y' = sigma(K y + b) with any K: the baselines ResNet and FCNN. Not Hamiltonian.

    Args:
        weights: K and b of every layer.
        activation: sigma, a name of `ACTIVATIONS` or an `Activation`.

    >>> import torch
    >>> from hdnn import fields
    >>> weights = fields.Weights("dense", features=2, layers=3, scale=0)  # K = 0, b = 0
    >>> fields.ActivationField(weights, activation="sigmoid").velocity(torch.zeros(2))
    tensor([0.5000, 0.5000], grad_fn=...)
    """

    def __init__(self, weights: Weights, *, activation: str | Activation = "tanh") -> None:
        super().__init__()
        self._set_weights(weights, activation)

    def extra_repr(self) -> str:
        return self.activation.name

    def values(self, h: Step) -> Values:
        return Values(h, self.weights.theta, self.weights.beta)

    def velocity_fn(self) -> Velocity:
        return self.hidden_fn()


class HamiltonianField(WeightedField, InterconnectedField):
    """y' = (J - R) dH/dy with H(y) = 1' E(K y + b): equations (7) to (10) of the paper.

    Args:
        J: a name ("J1", "J2"), a skew matrix ``(n, n)``, a stack ``(L, n, n)`` for J(t), a callable
            J(y, t), or an `Interconnection` (`Learned`, `InverseTranspose`, ...).
        weights: K and b of every layer.
        activation: sigma, a name of `ACTIVATIONS` or an `Activation`; E is its energy (log cosh
            for tanh).
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.

    Raises:
        HdnnError: J, dissipation and weights do not suit each other.

    >>> import torch
    >>> weights = Weights("dense", features=2, layers=1, dtype=torch.float64)
    >>> field = HamiltonianField("J1", weights)
    >>> y = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> (field.gradient(y) @ field.velocity(y)).abs().item()  # dH/dt: the energy is conserved
    0.0
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
        self.adjoint = not isinstance(self.interconnection, InverseTranspose | StateDependent)
        if isinstance(self.interconnection, StateDependent):
            self.parts = {}  # no stage: a velocity only
        self.parts.update(_halves(self))
        self.separable = "y" in self.parts

    def _check_interconnection(self) -> None:
        J = self.interconnection
        inverse = isinstance(J, InverseTranspose)
        if inverse and not (self.weights.pattern.is_skew and self.R is None):
            raise HdnnError(
                "J K' = I needs K of structure 'skew' or 'off-diagonal-skew' and no dissipation, "
                f"but K is {self.weights.structure!r}; give J itself"
            )
        # MS1 writes -sigma(x) as sigma(-x): its bias pattern has minus signs.
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
        if not isinstance(self.interconnection, InverseTranspose):
            return super().J
        if self.weights.kernel > 1:
            raise HdnnError(
                "J_j is the inverse of K_j', and that of a convolution is no convolution; "
                "the layer equation needs no J: use net.K, or an architecture with J1 or J2"
            )
        return inverse_transpose(self.weights.K)

    def energy_fn(self) -> LayerEnergy:
        units, E, axis = self.units_fn(), self.activation.energy, self.layout.axis
        return lambda j, t, x: E(units(j, x)).flatten(axis).sum(-1)

    def gradient_fn(self) -> Velocity:
        K, hidden = self.weights.assembled.unbind(self.layout.axis - 1), self.hidden_fn()
        return lambda j, t, x: self.weights.map.adjoint(K[j], hidden(j, t, x))

    def velocity_fn(self) -> Velocity:
        if isinstance(self.interconnection, InverseTranspose):
            return self.hidden_fn()  # J K' = I: nothing to multiply by
        return super().velocity_fn()

    def values(self, h: Step) -> Values:
        S = self.effective() if self.adjoint else None
        return Values(h, self.weights.theta, self.weights.beta, S)


class LayerField(NamedTuple):
    """The general (J, K, b) of one layer: y' = J K' sigma(K y + b).

    Args:
        J: the interconnection of the layer, ``(n, n)``.
        K: its weights, ``(m, n)``.
        b: its biases, ``(m,)``.

    >>> import hdnn
    >>> J, K, b = hdnn.network("MS1", features=4, layers=3, T=1.0).field_at(0)
    >>> J.shape, K.shape, b.shape
    (torch.Size([4, 4]), torch.Size([4, 4]), torch.Size([4]))
    """

    J: Tensor
    K: Tensor
    b: Tensor


def _halves(field: HamiltonianField) -> dict[str | None, Part]:
    """The halves of a field in which y' depends on z only and z' on y only; else nothing."""
    J, weights, K = field.interconnection, field.weights, field.weights.map.support
    half, odd = divmod(field.layout.width, 2)
    inverse = isinstance(J, InverseTranspose)
    # A semidefinite R that is not zero has a positive diagonal entry, so it never splits.
    if odd or not (inverse or (J.bipartite and field.R is None)):
        return {}
    y, z = (0, half), (half, 2 * half)
    halves: dict[str | None, Part] = {}
    for part, read, write in (("y", z, y), ("z", y, z)):
        # J = [0 X; -X' 0]: units that read z drive y. J K' = I: unit i drives feature i.
        units = np.arange(*write) if inverse else np.flatnonzero(K[:, slice(*read)].any(axis=1))
        split = not K[units][:, slice(*write)].any()
        block = weights.block(units, np.arange(*read)) if split else None
        if block is None:
            return {}
        halves[part] = Part(read, write, *block)
    return halves
