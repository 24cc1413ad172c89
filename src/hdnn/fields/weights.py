"""The weights of all layers: K with any structure and b, as stacks with the layer axis first."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, finite_number, is_count, unknown_name
from hdnn.fields.layout import layout_of
from hdnn.fields.maps import Convolution, LinearMap, Matrix, Patterned, matrices
from hdnn.fields.patterns import (
    RECTANGULAR,
    STRUCTURES,
    Codes,
    Pattern,
    masked,
    plain,
    space_of,
)

Generators = torch.Generator | Sequence[torch.Generator] | None
Structure = str | LinearMap | Pattern | Callable[..., Pattern] | npt.ArrayLike


class Weights(nn.Module):
    """K and b of every layer: K_j of a given structure, the energy is H = 1' E(K_j y + b_j).

    Args:
        structure: a name of `STRUCTURES`, a boolean graph ``(m, n)``, a `Pattern`, a function of
            the width (with a kernel, of width and kernel) that gives one, or any `LinearMap`.
        features: the width n of states ``(..., n)``.
        channels: instead of features, the width n of states ``(B, n, *spatial)``.
        kernel: the side k of the kernels, odd: with channels and k > 1, K is a convolution.
        units: the number m of hidden units, of the structures `RECTANGULAR`; None is n.
        layers: the number of layers L.
        time_invariant: True makes all layers share one K and b.
        inputs: the number d of inputs u, which move the biases to b + B u; with time-invariant
            matrices over features only.
        ensemble: the number E of networks side by side: every array gets a leading axis E.
        generator: the source of random numbers, see `reset_parameters`.
        scale: the standard deviation of the initial parameters, see `reset_parameters`.
        dtype: of the parameters; None is torch's default dtype.
        device: of the parameters; None is torch's default device.

    Attributes:
        map: K as a linear map of its parameters.
        bias: the pattern of b, whose entries are the parameters themselves.
        theta: ``([E,] L, .)``, the parameters of K; ``([E,] 1, .)`` where all layers share them.
        beta: ``([E,] L, .)``, the parameters of b.
        B: ``([E,] 1, m, d)``, or None without inputs.

    Raises:
        HdnnError: sizes or patterns do not fit.

    >>> weights = Weights("skew", features=4, layers=16)
    >>> weights.K.shape, weights.b.shape, weights.parameters_per_layer
    (torch.Size([16, 4, 4]), torch.Size([16, 4]), 10)
    """

    def __init__(
        self,
        structure: Structure = "dense",
        *,
        features: int | None = None,
        channels: int | None = None,
        kernel: int = 1,
        units: int | None = None,
        layers: int,
        time_invariant: bool = False,
        inputs: int = 0,
        ensemble: int | None = None,
        generator: Generators = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not is_count(layers, least=0):
            raise HdnnError(f"layers must be an integer of at least 0, got {reprlib.repr(layers)}")
        if not is_count(kernel) or kernel % 2 == 0:  # an even kernel has no center
            raise HdnnError(f"kernel must be odd and positive (1: a matrix), got {kernel!r:.40}")
        if kernel > 1 and (features is not None or ensemble is not None):
            raise HdnnError(
                f"kernel={kernel} is a convolution over images (B, n, height, width); "
                "give channels=n, without features and ensemble, or kernel=1"
            )
        self.layout = layout_of(features, channels, ensemble, 2 if kernel > 1 else None)
        self.layers, self.time_invariant, self.kernel = layers, time_invariant, kernel
        self.structure = structure if isinstance(structure, str) else "custom"
        self.map = map_of(structure, self.layout.width, kernel, units)
        self.bias = plain(self.map.units)
        lead = (*self.layout.lead, 1 if time_invariant else layers)
        empty = torch.empty(*lead, self.map.size, dtype=dtype, device=device)
        self.theta = nn.Parameter(empty)
        self.beta = nn.Parameter(empty.new_empty(*lead, self.bias.size))
        if not is_count(inputs, least=0):
            raise HdnnError(f"inputs must be an integer of at least 0, got {inputs!r:.40}")
        matrices_only = isinstance(self.map, Matrix) and not self.layout.channels
        if inputs and not (time_invariant and matrices_only):
            raise HdnnError(
                "a network with inputs repeats one layer over time: it needs time_invariant=True, "
                "features=n and K a matrix of a pattern"
            )
        self.inputs = inputs
        self.B: nn.Parameter | None = None
        if inputs:
            self.B = nn.Parameter(empty.new_empty(*lead, self.bias.size, inputs))
        self.to(empty)  # a map with tensors of its own
        self.reset_parameters(generator, scale=scale)

    @property
    def pattern(self) -> Pattern:
        """The structure of K, where K is a patterned matrix or convolution."""
        if not isinstance(self.map, Patterned):
            raise HdnnError(f"{type(self.map).__name__} is a custom map and has no pattern")
        return self.map.pattern

    @property
    def parameters_per_layer(self) -> int:
        """The last row of the paper's Table 1."""
        return self.map.size + self.bias.size

    @torch.no_grad()
    def reset_parameters(self, generator: Generators = None, *, scale: float = 1.0) -> None:
        """Draw K and b anew, standard normal times a scale; 1 is that of the paper's own code.

        A convolution sums n k^2 numbers, so that its parameters are drawn 1 / sqrt(n k^2) times
        as large.

        Args:
            generator: source of random numbers (None: torch's default); for an ensemble possibly
                one for every member, which is then drawn as that member alone would be.
            scale: factor on every parameter, beside that one.

        Raises:
            HdnnError: scale is no number, or an ensemble has another number of members.
        """
        scale = finite_number("scale", scale)
        if self.kernel > 1:
            scale /= math.sqrt(self.layout.width * self.kernel**2)
        parts: list[tuple[Any, torch.Generator | None]]
        if generator is None or isinstance(generator, torch.Generator):
            parts = [(..., generator)]
        elif len(generator) == self.layout.ensemble:
            parts = list(enumerate(generator))
        else:
            raise HdnnError(
                f"got {len(generator)} generators for an ensemble of {self.layout.ensemble}; "
                "give one for every member, or a single one"
            )
        own = [self.theta, self.beta] if self.B is None else [self.theta, self.beta, self.B]
        for index, source in parts:
            for parameter in own:
                # Drawn where the generator lives, so that a GPU starts from the same numbers, and
                # in one piece, so that a member of an ensemble gets those it would get alone.
                device = "cpu" if source is None else source.device
                fresh = torch.empty_like(parameter[index], device=device).contiguous()
                parameter[index] = fresh.normal_(generator=source).mul_(scale)

    def values(self) -> tuple[Tensor, Tensor]:
        """The parameters as they are now.

        Returns:
            theta and beta.
        """
        # `Module.__getattr__` takes 0.4 us; parametrized ones are no parameters but properties.
        own = self._parameters
        theta, beta = own.get("theta"), own.get("beta")
        return self.theta if theta is None else theta, self.beta if beta is None else beta

    def block(self, units: Codes, columns: Codes) -> tuple[LinearMap, Pattern] | None:
        """Some rows of K over some features, and their biases.

        Args:
            units: numbers of hidden units.
            columns: numbers of features.

        Returns:
            The map and the biases, or None where K has no such block.
        """
        W = self.map.block(units, columns)
        return None if W is None else (W, self.bias.block(units))

    def _of_layers(self, stack: Tensor) -> Tensor:
        """A stack with an entry for every layer, also where all share one."""
        axis = len(self.layout.lead)
        return stack.expand(*stack.shape[:axis], self.layers, *stack.shape[axis + 1 :])

    @property
    def assembled(self) -> Tensor:
        """``([E,] L, ...)``: what the map takes as K of every layer."""
        return self._of_layers(self.map.assemble(self.theta))

    @property
    def K(self) -> Tensor:
        """``([E,] L, m, n)``, of convolutions ``(L, m, n, k, k)``: K of every layer."""
        return self._of_layers(matrices(self.map, self.theta))

    @property
    def b(self) -> Tensor:
        """``([E,] L, m)``: the bias of every layer."""
        return self._of_layers(self.beta)

    def __repr__(self) -> str:  # one line: the map and the bias inside follow from it
        kernel = f", kernel={self.kernel}" if self.kernel > 1 else ""
        units = f", units={self.map.units}" if self.map.units != self.layout.width else ""
        shared = ", time_invariant=True" if self.time_invariant else ""
        state = f"{self.layout}{kernel}{units}, layers={self.layers}"
        return f"Weights({self.structure!r}, {state}{shared})"


def map_of(
    structure: Structure, width: int, kernel: int = 1, units: int | None = None
) -> LinearMap:
    """The map that a name, a graph, a pattern, a function of the width or a map stands for."""
    if isinstance(structure, str) and structure not in STRUCTURES:
        raise unknown_name("structure", structure, STRUCTURES)
    if units is not None:
        if not is_count(units):
            raise HdnnError(f"units must be a positive integer, got {reprlib.repr(units)}")
        if not isinstance(structure, str) or structure not in RECTANGULAR:
            kind = repr(structure) if isinstance(structure, str) else "a structure of your own"
            raise HdnnError(
                f"units={units} is for K of structure {', '.join(RECTANGULAR)} (H1, H2, MS3, HS); "
                f"{kind} says itself how many units it has, leave units out"
            )
        structure = STRUCTURES[structure](width, kernel, units)
    elif isinstance(structure, str):
        structure = STRUCTURES[structure]
    if callable(structure) and not isinstance(structure, LinearMap):  # a module is callable too
        structure = structure(width) if kernel == 1 else structure(width, kernel)
    if isinstance(structure, LinearMap):
        if structure.width != width:
            raise HdnnError(f"K must read {width} features, got a map of {structure.width}")
        return structure
    pattern = structure if isinstance(structure, Pattern) else masked(structure, kernel)
    expected = (width, *space_of(kernel))
    if pattern.shape[1:] != expected:
        raise HdnnError(f"a structure of K must have shape {('m', *expected)}, got {pattern.shape}")
    return Matrix(pattern) if kernel == 1 else Convolution(pattern)
