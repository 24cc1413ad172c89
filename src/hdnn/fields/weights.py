"""The weights of all layers: K with any structure and b, as stacks with the layer axis first."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Sequence
from numbers import Real

import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields.layout import is_count, layout_of
from hdnn.fields.maps import Assembly, Convolution, LinearMap, Matrix, Patterned, matrices
from hdnn.fields.patterns import STRUCTURES, Codes, Pattern, masked, plain

Generators = torch.Generator | Sequence[torch.Generator] | None
Structure = str | LinearMap | Pattern | Callable[..., Pattern] | npt.ArrayLike


class Weights(nn.Module):
    """K and b of every layer: K_j of a given structure, the energy is H = 1' E(K_j y + b_j).

    Args:
        structure: a name of `STRUCTURES`, a boolean graph ``(m, n)``, a `Pattern`, a function of
            the width (and of the kernel) that gives one, or any `LinearMap`.
        features, channels: the width n; exactly one of the two.
        kernel: k, odd: with channels, K is a convolution with a kernel of k x k pixels.
        layers: L.
        time_invariant: all layers share K and b.
        ensemble: E networks side by side: every array gets a leading axis E.
        bias: pattern of b in the general form, over the biases of the layer equations
            (None: the same); MS1 needs it.
        generator, scale: see `reset_parameters`.
        dtype: of the parameters; None is torch's default.
        device: of the parameters.

    Attributes:
        map: K as a linear map of its parameters.
        theta: ``([E,] L, .)``, the parameters of K; ``([E,] 1, .)`` where all layers share them.
        beta: ``([E,] L, .)``, the parameters of b.

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
        layers: int,
        time_invariant: bool = False,
        ensemble: int | None = None,
        bias: Pattern | Callable[[int], Pattern] | None = None,
        generator: Generators = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not is_count(layers, least=0):
            raise HdnnError(f"layers is an integer of at least 0, got {reprlib.repr(layers)}")
        _check_kernel(kernel, features, ensemble)
        self.layout = layout_of(features, channels, ensemble, 2 if kernel > 1 else None)
        self.layers, self.time_invariant, self.kernel = layers, time_invariant, kernel
        self.structure = structure if isinstance(structure, str) else "custom"
        self.map = map_of(structure, self.layout.width, kernel)
        made = bias(self.map.units) if callable(bias) else bias
        self.bias_pattern = plain(self.map.units) if made is None else made
        if self.bias_pattern.shape != (self.map.units,):
            raise HdnnError(
                f"the pattern of the bias has shape {self.bias_pattern.shape}, "
                f"but K has {self.map.units} rows"
            )
        self.bias = Assembly(self.bias_pattern)
        self._blocks = nn.ModuleList()  # parts of the map and the bias that stages use
        lead = (*self.layout.lead, 1 if time_invariant else layers)
        empty = torch.empty(*lead, self.map.size, dtype=dtype, device=device)
        self.theta = nn.Parameter(empty)
        self.beta = nn.Parameter(empty.new_empty(*lead, self.bias_pattern.size))
        self.to(empty)
        self.reset_parameters(generator, scale=scale)

    @property
    def pattern(self) -> Pattern:
        """The structure of K, where K is a patterned matrix or convolution."""
        if not isinstance(self.map, Patterned):
            raise HdnnError(f"{type(self.map).__name__} is a map of its own and has no pattern")
        return self.map.pattern

    @property
    def parameters_per_layer(self) -> int:
        """The last row of the paper's Table 1."""
        return self.map.size + self.bias_pattern.size

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
        if self.theta.is_meta:
            return
        if self.kernel > 1:
            scale /= math.sqrt(self.layout.width * self.kernel**2)
        for member, source in self._members(generator):
            for parameter in (self.theta, self.beta):
                target = parameter if member is None else parameter[member]
                device = "cpu" if source is None else source.device
                fresh = torch.empty_like(target, device=device).contiguous()
                target.copy_(fresh.normal_(generator=source).mul_(scale))

    def _members(self, generator: Generators) -> list[tuple[int | None, torch.Generator | None]]:
        if generator is None or isinstance(generator, torch.Generator):
            return [(None, generator)]
        if len(generator) != self.layout.ensemble:
            raise HdnnError(
                f"got {len(generator)} generators for an ensemble of {self.layout.ensemble}; "
                "give one for every member, or a single one"
            )
        return list(enumerate(generator))

    def block(self, units: Codes, columns: Codes) -> tuple[LinearMap, Assembly] | None:
        """Some rows of K over some features, and their biases.

        Args:
            units: numbers of hidden units.
            columns: numbers of features.

        Returns:
            The map and the biases, or None where K has no such block.
        """
        W = self.map.block(units, columns)
        if W is None:
            return None
        b = Assembly(self.bias_pattern.block(units))
        self._blocks.extend([W, b])  # so that they move with the weights
        self._blocks.to(self.theta)
        return W, b

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
        """``([E,] L, m)``: the bias of the general form sigma(K y + b)."""
        return self._of_layers(self.bias.assemble(self.beta))

    @property
    def layer_b(self) -> Tensor:
        """``([E,] L, m)``: the bias as the layer equations of section 2.3 write it."""
        return self._of_layers(self.beta)

    def extra_repr(self) -> str:
        kernel = f", kernel={self.kernel}" if self.kernel > 1 else ""
        shared = ", time_invariant=True" if self.time_invariant else ""
        return f"{self.structure!r}, {self.layout}{kernel}, layers={self.layers}{shared}"

    def __repr__(self) -> str:  # one line: what is inside follows from it
        return f"Weights({self.extra_repr()})"


def map_of(structure: Structure, width: int, kernel: int = 1) -> LinearMap:
    """The map that a name, a graph, a pattern, a function of the width or a map stands for."""
    if isinstance(structure, LinearMap):
        if structure.width != width:
            raise HdnnError(f"K must read {width} features, got a map of {structure.width}")
        return structure
    pattern = pattern_of(structure, width, kernel)
    return Matrix(pattern) if kernel == 1 else Convolution(pattern)


def pattern_of(structure: Structure, width: int, kernel: int = 1) -> Pattern:
    """The pattern that a name, a graph, a pattern or a function of the width stands for."""
    if isinstance(structure, str):
        if structure not in STRUCTURES:
            raise unknown_name("structure", structure, STRUCTURES)
        structure = STRUCTURES[structure]
    if callable(structure):
        with_kernel = kernel > 1 and len(inspect.signature(structure).parameters) > 1
        structure = structure(width, kernel) if with_kernel else structure(width)
    assert not isinstance(structure, LinearMap)
    pattern = structure if isinstance(structure, Pattern) else masked(structure, kernel)
    if len(pattern.shape) < 2 or pattern.shape[1] != width:
        raise HdnnError(f"K must have {width} columns, got a structure of shape {pattern.shape}")
    space = () if kernel == 1 else (kernel, kernel)
    if pattern.shape[2:] != space:
        raise HdnnError(
            f"with kernel={kernel} a structure has shape {('m', width, *space)}, "
            f"got {pattern.shape}; give a table of that shape, or a function of (n, kernel)"
        )
    return pattern


def _check_kernel(kernel: int, features: int | None, ensemble: int | None) -> None:
    if not is_count(kernel) or kernel % 2 == 0:
        raise HdnnError(
            f"kernel is an odd positive integer (1: no convolution), got {kernel!r:.40}"
        )
    if kernel > 1 and features is not None:
        raise HdnnError(
            f"kernel={kernel} is a convolution over images (B, n, height, width); "
            "give channels=n instead of features, or kernel=1"
        )
    if kernel > 1 and ensemble is not None:
        raise HdnnError(
            f"ensembles have matrices only, got kernel={kernel} with ensemble={ensemble}; "
            "use kernel=1, or one network after the other"
        )


def finite_number(name: str, value: object, *, positive: bool = False) -> float:
    """A finite number, as a float; an integer of hundreds of digits is none."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if isinstance(value, bool) or not math.isfinite(number) or (positive and number <= 0):
        kind = "positive and finite" if positive else "a finite number"
        raise HdnnError(f"{name} must be {kind}, got {reprlib.repr(value)}")
    return number
