"""Fields with weights: the right-hand side of the ODE that a network of the paper discretizes.

    HamiltonianField    y' = (J - R) K' s sigma(K y + b),   H(y) = s' E(K y + b),  s_i = 1 or -1
    ActivationField     y' = P sigma(K y + b),              Hamiltonian where P K is skew

With J constant or one for every layer a field is *one hidden layer*, and schemes lower it to
stages; with J(y, t) it is just a velocity. No step size in here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hdnn.errors import HdnnError
from hdnn.fields.activations import Activation, activation
from hdnn.fields.field import Field, InterconnectedField, LayerEnergy
from hdnn.fields.interconnection import GivenJ, as_values, inverse_transpose
from hdnn.fields.maps import LinearMap, Matrix, Patterned, affine
from hdnn.fields.patterns import Codes, Pattern
from hdnn.fields.weights import Weights
from hdnn.program import Stage, Step, Time, Values, Velocity, signed


class Part(NamedTuple):
    """What a stage moves: the hidden units that drive it, and what they read.

    Args:
        read, write: ranges of the width.
        W, b: of the hidden units.
        sign: +1 or -1, with which they drive it.
        signs: +1 or -1, with which each of them counts in H; None is +1.
    """

    read: tuple[int, int]
    write: tuple[int, int]
    W: LinearMap
    b: Pattern
    sign: float = 1.0
    signs: tuple[int, ...] | None = None


class WeightedField(Field):
    """A field whose parameters are `Weights`: what both kinds share.

    Attributes:
        weights: K and b of every layer.
        activation: sigma, with its energy.
        signs: +1 or -1 for every hidden unit, with which it counts in H; None is +1.
        adjoint: whether sigma(K y + b) is multiplied by (J - R) K' in its stages.
        parts: what stages move: None is all of the state; "y" and "z" are halves of a separable
            field.
    """

    weights: Weights
    activation: Activation
    signs: tuple[int, ...] | None = None
    adjoint: bool = False
    parts: dict[str | None, Part]

    def _set_weights(self, weights: Weights, sigma: str | Activation) -> None:
        self.weights = weights
        self.__dict__["weights"] = weights  # see HamiltonianNetwork.field
        self.activation = activation(sigma)
        self.layout, self.layers = weights.layout, weights.layers
        self.couples_pixels = self.layout.channels and not isinstance(weights.map, Matrix)
        everything = (0, self.layout.width)
        whole = Part(everything, everything, weights.map, weights.bias, signs=self.signs)
        self.parts = {None: whole}

    @property
    def dtype(self) -> torch.dtype | None:
        return self.weights.theta.dtype

    @property
    def has_discrete_gradient(self) -> bool:
        return self.hamiltonian and self.activation.mean is not None

    @property
    def sizes(self) -> tuple[int, int]:
        return self.weights.map.size, self.weights.bias.size

    @property
    def K(self) -> Tensor:
        """``([E,] L, m, n)``: K of the general form y' = J K' sigma(K y + b)."""
        return self.weights.K

    @property
    def b(self) -> Tensor:
        """``([E,] L, m)``: b of the general form y' = J K' sigma(K y + b)."""
        return self.weights.b

    def stage(self, part: str | None = None, factor: float = 1.0, carry: int = 1) -> Stage | None:
        if part not in self.parts:
            return None
        read, write, W, b, sign, signs = self.parts[part]
        return Stage(read, write, W, b, self.activation, self.adjoint, sign * factor, carry, signs)

    def units_fn(self) -> Callable[[int, Tensor], Tensor]:
        """K_j x + b_j of canonical states, with the weights assembled once.

        Returns:
            A function of layer and canonical state.
        """
        axis = self.layout.axis - 1
        K, b = self.weights.assembled.unbind(axis), self.weights.b.unbind(axis)
        return lambda j, x: affine(self.weights.map, K[j], b[j], x)

    def hidden_fn(self) -> Velocity:
        """s sigma(K_j x + b_j) of canonical states; of two, s times the mean of sigma between them.

        Returns:
            A function of layer, time and canonical state, or two of them.
        """
        units, sigma, axis = self.units_fn(), self.activation, self.layout.axis

        def hidden(j: int, t: Time, x: Tensor, to: Tensor | None = None) -> Tensor:
            if to is None:
                return signed(self.signs, sigma.function(units(j, x)), axis)
            assert sigma.mean is not None  # `has_discrete_gradient`
            return signed(self.signs, sigma.mean(units(j, x), units(j, to)), axis)

        return hidden

    def energy_fn(self) -> LayerEnergy:
        if not self.hamiltonian:
            return super().energy_fn()
        units, E, axis = self.units_fn(), self.activation.energy, self.layout.axis
        return lambda j, t, x: signed(self.signs, E(units(j, x)), axis).flatten(axis).sum(-1)

    def gradient_fn(self) -> Velocity:
        if not self.hamiltonian:
            return super().gradient_fn()
        K, hidden = self.weights.assembled.unbind(self.layout.axis - 1), self.hidden_fn()
        return lambda j, t, *x: self.weights.map.adjoint(K[j], hidden(j, t, *x))


class ActivationField(WeightedField):
    """y' = P sigma(K y + b): the baselines ResNet and FCNN, and MS1 and MS2.

    Where P K is skew it is Hamiltonian: y' = J K' sigma(K y + b) with J = P (K')^-1, which needs no
    inverse to be computed. That is so for MS2 (P = I, K skew) and for MS1 (P = J1, K = [K0' 0;
    0 K0]); for a K without structure there is no J.

    Args:
        weights: K and b of every layer.
        activation: sigma, a name of `ACTIVATIONS` or an `Activation`.
        turn: whether P is J1 = [0 I; -I 0]; else it is the identity.

    Raises:
        HdnnError: with P = J1 there are not as many units as features.

    >>> import torch
    >>> from hdnn import fields
    >>> weights = fields.Weights("dense", features=2, layers=3, scale=0)  # K = 0, b = 0
    >>> fields.ActivationField(weights, activation="sigmoid").velocity(torch.zeros(2))
    tensor([0.5000, 0.5000], grad_fn=...)
    """

    def __init__(
        self, weights: Weights, *, activation: str | Activation = "tanh", turn: bool = False
    ) -> None:
        super().__init__()
        self._set_weights(weights, activation)
        self.turn, K, n = turn, weights.map, self.layout.width
        if K.units != n or (turn and n % 2):
            raise HdnnError(
                f"y' = P sigma(K y + b) needs as many units as features{', an even number' * turn},"
                f" but K has {K.units} for {n}; a HamiltonianField takes any number"
            )
        if isinstance(K, Patterned):
            pattern = _turn(K.pattern) if turn else K.pattern
            self.hamiltonian = pattern.is_skew
        if turn:
            del self.parts[None]  # its units are in another order than the features
            if isinstance(K, Patterned) and self.activation.odd:  # P sigma(x) = sigma(P x)
                whole = Part((0, n), (0, n), type(K)(pattern), _turn(weights.bias))
                self.parts[None] = whole
        if n % 2 == 0:
            first, second = np.arange(n).reshape(2, -1)
            units = ((second, 1.0), (first, -1.0)) if turn else ((first, 1.0), (second, 1.0))
            self.parts.update(_halves(self, units))
        self.separable = "y" in self.parts

    def extra_repr(self) -> str:
        return self.activation.name + (", turned by J1" if self.turn else "")

    def _turned(self, s: Tensor, axis: int) -> Tensor:
        """P s."""
        if not self.turn:
            return s
        upper, lower = s.chunk(2, axis)
        return torch.cat([lower, -upper], axis)

    @property
    def K(self) -> Tensor:
        """``([E,] L, n, n)``: P K, which with P b and J gives the general form, if sigma is odd."""
        return self._turned(self.weights.K, self.layout.axis)

    @property
    def b(self) -> Tensor:
        """``([E,] L, n)``: P b."""
        return self._turned(self.weights.b, self.layout.axis)

    @property
    def J(self) -> Tensor:
        """``([E,] L, n, n)``: P (K')^-1 of every layer."""
        if not self.hamiltonian:
            return super().J
        if self.weights.kernel > 1:
            raise HdnnError(
                "J_j is the inverse of K_j', and that of a convolution is no convolution; "
                "the layer equation needs no J: use net.K, or an architecture with J1 or J2"
            )
        return inverse_transpose(self.K)

    def values(self, h: Step) -> Values:
        return Values(h, *self.weights.values())

    def velocity_fn(self) -> Velocity:
        hidden, axis = self.hidden_fn(), self.layout.axis
        return lambda j, t, *x: self._turned(hidden(j, t, *x), axis)


def _turn(pattern: Pattern) -> Pattern:
    """P applied to the rows of a pattern."""
    upper, lower = np.split(pattern.code, 2)
    return Pattern(np.concatenate([lower, -upper]), pattern.size)


class HamiltonianField(WeightedField, InterconnectedField):
    """y' = (J - R) dH/dy with H(y) = 1' E(K y + b): equations (7) to (10) of the paper.

    With signs s of the hidden units, H(y) = s' E(K y + b) need not be convex: it can be that of a
    pendulum or a double well, and y' = (J - R) K' s sigma(K y + b).

    Args:
        J: a name ("J1", "J2"), a skew matrix ``(n, n)``, a stack ``(L, n, n)`` for J(t), a callable
            J(y, t), or an `Interconnection` (such as `Learned`).
        weights: K and b of every layer.
        activation: sigma, a name of `ACTIVATIONS` or an `Activation`; E is its energy (log cosh
            for tanh).
        dissipation: R, symmetric positive semidefinite ``(n, n)``; None is none.
        signs: s, +1 or -1 for every row of K ``(m,)``; None is +1.

    Raises:
        HdnnError: J, dissipation, signs and weights do not suit each other.

    >>> import torch
    >>> weights = Weights("dense", features=2, layers=1, dtype=torch.float64)
    >>> field = HamiltonianField("J1", weights)
    >>> y = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> (field.gradient(y) @ field.velocity(y)).abs().item()  # dH/dt: the energy is conserved
    0.0
    """

    adjoint = True

    def __init__(
        self,
        J: GivenJ,
        weights: Weights,
        *,
        activation: str | Activation = "tanh",
        dissipation: Tensor | npt.ArrayLike | None = None,
        signs: Tensor | npt.ArrayLike | None = None,
    ) -> None:
        InterconnectedField.__init__(self, weights.layout, J, dissipation, weights.theta)
        self.signs = None if signs is None else _signs(signs, weights.map.units)
        self._set_weights(weights, activation)
        own = self.interconnection
        if own is None:
            self.parts = {}  # J(y, t): no stage, a velocity only
        elif own.layers not in (None, self.layers):
            raise HdnnError(f"J(t) has {own.layers} layers, but the weights have {self.layers}")
        # A semidefinite R that is not zero has a positive diagonal entry, so it never splits.
        elif own.bipartite and self.R is None:
            # J = [0 X; -X' 0]: units that read z drive y.
            y, z = np.split(weights.map.support, 2, axis=1)
            units = (np.flatnonzero(half.any(1)) for half in (z, y))
            self.parts.update(_halves(self, [(numbers, 1.0) for numbers in units]))
        self.separable = "y" in self.parts

    def extra_repr(self) -> str:
        signs = "" if self.signs is None else ", with signs"
        return self.activation.name + signs + ("" if self.R is None else ", with dissipation")

    def values(self, h: Step) -> Values:
        S = self.J_minus_R() if self.parts else None
        return Values(h, *self.weights.values(), S)


def _signs(numbers: Tensor | npt.ArrayLike, units: int) -> tuple[int, ...] | None:
    """One sign for every unit, checked; None where all are +1."""
    signs = as_values(numbers)
    if signs.shape != (units,) or not bool((signs.abs() == 1).all()):
        raise HdnnError(
            f"signs must be +1 or -1 for each of {units} hidden units, got "
            f"{reprlib.repr(signs.tolist())}; scale the rows of K for other weights"
        )
    return _unless_all_positive(int(sign) for sign in signs.tolist())


def _unless_all_positive(signs: Iterable[int]) -> tuple[int, ...] | None:
    signs = tuple(signs)
    return signs if -1 in signs else None


class LayerField(NamedTuple):
    """The general (J, K, b) of one layer: y' = J K' sigma(K y + b), of units without signs.

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


def _halves(field: WeightedField, units: Sequence[tuple[Codes, float]]) -> dict[str | None, Part]:
    """The halves of a field in which y' depends on z only and z' on y only; else nothing.

    Args:
        field: of even width.
        units: the numbers of those that drive y and of those that drive z, with their signs.
    """
    K, half = field.weights.map.support, field.layout.width // 2
    y, z = (0, half), (half, 2 * half)
    halves: dict[str | None, Part] = {}
    for part, read, write, (numbers, sign) in zip("yz", (z, y), (y, z), units, strict=True):
        split = not K[numbers][:, slice(*write)].any()
        block = field.weights.block(numbers, np.arange(*read)) if split else None
        if block is None:
            return {}
        signs = field.signs and _unless_all_positive(field.signs[unit] for unit in numbers)
        halves[part] = Part(read, write, *block, sign, signs)
    return halves
