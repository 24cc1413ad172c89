"""The weights of all layers: K with any structure and b, as stacks with the layer axis first."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.fields import limits
from hdnn.fields.layout import layout_of
from hdnn.fields.patterns import STRUCTURES, Codes, Pattern, masked, plain

Generators = torch.Generator | Sequence[torch.Generator] | None
Structure = str | Pattern | Callable[..., Pattern] | npt.ArrayLike
Draw = Callable[[Tensor, torch.Generator | None], Tensor]

INITIALIZERS: dict[str, Draw] = {
    "normal": lambda t, g: t.normal_(generator=g),
    "uniform": lambda t, g: t.uniform_(-1.0, 1.0, generator=g),
    "zeros": lambda t, g: t.zero_(),
}
"""Ways to draw parameters, all of scale 1; `reset_parameters(scale=...)` multiplies."""


Span = tuple[int, int] | Tensor
"""Chosen rows or columns: a range ``(start, stop)``, or a list of indices."""


def span(indices: Codes) -> Span:
    """The shortest form of a list of indices."""
    first = int(indices[0]) if len(indices) else 0
    if np.array_equal(indices, np.arange(first, first + len(indices))):
        return first, first + len(indices)
    return torch.from_numpy(indices)


class Stack:
    """A stack of arrays, one for every layer, given by its parameters and their pattern.

    It assembles itself when asked to, so that a backend which reads parameters through the pattern
    pays nothing.

    Args:
        theta: ``([E,] L or 1, P)``; 1 means that all layers share it.
        pattern: how the entries follow from the parameters.
        layers: L.
        gather: index and sign of every entry as tensors, or None where the pattern is plain.

    >>> import hdnn
    >>> stage = hdnn.network("MS3", features=4, layers=3, T=1.0).program().stages[0]
    >>> stage.W.stack.theta.shape, stage.W.stack.layers
    (torch.Size([3, 8]), 3)
    """

    def __init__(
        self,
        theta: Tensor,
        pattern: Pattern,
        layers: int,
        gather: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.theta, self.pattern, self.layers, self.gather = theta, pattern, layers, gather

    @classmethod
    def of(cls, tensor: Tensor, ndim: int) -> Stack:
        """The stack that a plain tensor ``([E,] L, *shape)`` with ``ndim`` axes a layer is.

        Args:
            tensor: ``([E,] L, *shape)``.
            ndim: axes of ``shape``.

        Returns:
            The stack, whose parameters are the entries.
        """
        lead, shape = tensor.shape[: tensor.ndim - ndim], tensor.shape[tensor.ndim - ndim :]
        return cls(tensor.reshape(*lead, -1), plain(*shape), lead[-1])

    def tensor(self) -> Tensor:
        """``([E,] L, *shape)``.

        Returns:
            All layers, assembled.
        """
        flat = self.theta
        if self.pattern.size == 0:
            flat = flat.new_zeros(*flat.shape[:-1], self.pattern.code.size)
        elif self.gather is not None:
            index, sign = self.gather
            # Zeros of the structure stay zeros, whatever number stands first.
            flat = torch.where(sign == 0, 0.0, flat.index_select(-1, index) * sign)
        shaped = flat.reshape(*flat.shape[:-1], *self.pattern.shape)
        size = list(shaped.shape)
        size[flat.ndim - 2] = self.layers
        return shaped.expand(size)


@dataclass(frozen=True, eq=False)
class Block:
    """The rows and columns of a stack that a stage uses.

    Args:
        stack: the whole stack.
        pattern: the pattern of the block, over the parameters of the stack.
        rows, columns: which; None means all.

    >>> import hdnn
    >>> stage = hdnn.network("MS3", features=4, layers=3, T=1.0).program().stages[0]
    >>> type(stage.W).__name__, stage.W.rows, stage.W.columns
    ('Block', (0, 2), (2, 4))
    """

    stack: Stack
    pattern: Pattern
    rows: Span | None = None
    columns: Span | None = None

    @classmethod
    def whole(cls, stack: Stack) -> Block:
        """The block that is the stack itself.

        Args:
            stack: the weights or biases of all layers.

        Returns:
            The block.
        """
        return cls(stack, stack.pattern)

    def tensor(self, assembled: Tensor | None = None) -> Tensor:
        """``([E,] L, *block)``, from the assembled stack where that is at hand.

        Args:
            assembled: ``([E,] L, *shape)``, the stack's own tensor; None assembles it.

        Returns:
            The entries of the block.
        """
        full = self.stack.tensor() if assembled is None else assembled
        first = self.stack.theta.ndim - 1
        for axis, indices in ((first, self.rows), (first + 1, self.columns)):
            if indices is not None:
                full = _take(full, axis, indices)
        return full


def _take(x: Tensor, axis: int, indices: Span) -> Tensor:
    if isinstance(indices, Tensor):
        return x.index_select(axis, indices.to(x.device))
    return x.narrow(axis, indices[0], indices[1] - indices[0])


class Weights(nn.Module):
    """K and b of every layer: K_j of a given structure, the energy is H = 1' E(K_j y + b_j).

    Args:
        structure: a name of `STRUCTURES`, a boolean graph ``(m, n)``, a `Pattern`, or a function
            of the width (and of the kernel) that gives one.
        features, channels: the width n; exactly one of the two.
        kernel: k, odd: with channels, K is a convolution with a kernel of k x k pixels.
        layers: L.
        time_invariant: all layers share K and b.
        ensemble: E networks side by side: every array gets a leading axis E.
        bias: pattern of b in the general form, over the biases of the layer equations
            (None: the same); MS1 needs it.
        generator, scale, init: see `reset_parameters`.
        dtype: of the parameters; None is torch's default.
        device: of the parameters.

    Raises:
        HdnnError: sizes or patterns do not fit.

    >>> weights = Weights("skew", features=4, layers=16)
    >>> weights.K.shape, weights.b.shape, weights.parameters_per_layer
    (torch.Size([16, 4, 4]), torch.Size([16, 4]), 10)
    """

    index: Tensor
    sign: Tensor
    bias_index: Tensor
    bias_sign: Tensor

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
        init: str = "normal",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layers, int) or isinstance(layers, bool) or layers < 0:
            raise HdnnError(f"layers is an integer of at least 0, got {layers!r}")
        self.layout = layout_of(features, channels, ensemble, kernel)
        self.layers, self.time_invariant = layers, time_invariant
        self.structure = structure if isinstance(structure, str) else "custom"
        entries = self.layout.width**2 * kernel**2 if isinstance(structure, str) else 0
        with limits.allocation(f"K of {self.layout}", entries * limits.TABLE):
            self.pattern = structure_of(structure, self.layout.width, kernel)
            rows = self.pattern.shape[0]
            self.bias_pattern = bias if isinstance(bias, Pattern) else (bias or plain)(rows)
        if self.bias_pattern.shape != self.pattern.shape[:1]:
            raise HdnnError(
                f"the pattern of the bias has shape {self.bias_pattern.shape}, "
                f"but K has {rows} rows"
            )
        self._plain = self.pattern.is_plain, self.bias_pattern.is_plain
        lead = (() if ensemble is None else (ensemble,)) + (1 if time_invariant else layers,)
        count = math.prod(lead) * self.parameters_per_layer
        with self._allocation(count, dtype, device):
            empty = torch.empty(*lead, self.pattern.size, dtype=dtype, device=device)
            self.theta = nn.Parameter(empty)
            self.beta = nn.Parameter(self.theta.new_empty(*lead, self.bias_pattern.size))
            for name, pattern in (("", self.pattern), ("bias_", self.bias_pattern)):
                index, sign = torch.from_numpy(pattern.index), torch.from_numpy(pattern.sign)
                self.register_buffer(f"{name}index", index.to(device), persistent=False)
                self.register_buffer(f"{name}sign", sign.to(self.theta), persistent=False)
            self.reset_parameters(generator, scale=scale, init=init)

    def _allocation(
        self, count: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> AbstractContextManager[None]:
        """Room for so many parameters, and for drawing them."""
        kind = torch.zeros(0, dtype=dtype, device=device)
        limit = None if kind.is_cpu else limits.ADDRESSABLE
        what = f"the parameters of {reprlib.repr(self.layers)} layers of {self.layout}"
        return limits.allocation(what, 2 * count * kind.element_size(), limit)

    @property
    def parameters_per_layer(self) -> int:
        """The last row of the paper's Table 1."""
        return self.pattern.size + self.bias_pattern.size

    @torch.no_grad()
    def reset_parameters(
        self, generator: Generators = None, *, scale: float = 1.0, init: str = "normal"
    ) -> None:
        """Draw K and b anew; standard normal by default, as in the paper's own code.

        A convolution sums n k^2 numbers, so that its parameters are drawn 1 / sqrt(n k^2) times
        as large.

        Args:
            generator: source of random numbers (None: torch's default); for an ensemble possibly
                one for every member, which is then drawn as that member alone would be.
            scale: factor on every parameter, beside that one.
            init: "normal", "uniform" (on [-1, 1]) or "zeros".

        Raises:
            HdnnError: the initializer is unknown.
        """
        if init not in INITIALIZERS:
            raise unknown_name("initializer", init, INITIALIZERS)
        scale = limits.number("scale", scale)
        if self.theta.is_meta:
            return
        kernel = self.layout.kernel
        if kernel > 1:
            scale /= math.sqrt(self.layout.width * kernel**2)
        for member, source in self._members(generator):
            for parameter in (self.theta, self.beta):
                target = parameter if member is None else parameter[member]
                device = "cpu" if source is None else source.device
                fresh = torch.empty_like(target, device=device).contiguous()
                target.copy_(INITIALIZERS[init](fresh, source).mul_(scale))

    def _members(self, generator: Generators) -> list[tuple[int | None, torch.Generator | None]]:
        if generator is None or isinstance(generator, torch.Generator):
            return [(None, generator)]
        if len(generator) != self.layout.ensemble:
            raise HdnnError(
                f"got {len(generator)} generators for an ensemble of {self.layout.ensemble}; "
                "give one for every member, or a single one"
            )
        return list(enumerate(generator))

    def tensors(self) -> tuple[Tensor, ...]:
        """What its stacks refer to.

        Returns:
            The parameters of K and b, and their signs.
        """
        return self.theta, self.beta, self.sign, self.bias_sign

    def stack(self) -> Stack:
        """K of all layers, not yet assembled.

        Returns:
            Parameters with their pattern.
        """
        gather = None if self._plain[0] else (self.index, self.sign)
        return Stack(self.theta, self.pattern, self.layers, gather)

    def bias_stack(self) -> Stack:
        """b of all layers in the general form, not yet assembled.

        Returns:
            Parameters with their pattern.
        """
        gather = None if self._plain[1] else (self.bias_index, self.bias_sign)
        return Stack(self.beta, self.bias_pattern, self.layers, gather)

    @property
    def K(self) -> Tensor:
        """``([E,] L, m, n)``, of convolutions ``(L, m, n, k, k)``: K of every layer."""
        return self.stack().tensor()

    @property
    def b(self) -> Tensor:
        """``([E,] L, m)``: the bias of the general form sigma(K y + b)."""
        return self.bias_stack().tensor()

    @property
    def layer_b(self) -> Tensor:
        """``([E,] L, m)``: the bias as the layer equations of section 2.3 write it."""
        # The pattern of the general form is a signed permutation, so the shape is the same.
        return Stack(self.beta, self.bias_pattern, self.layers).tensor()

    def extra_repr(self) -> str:
        shared = ", time_invariant=True" if self.time_invariant else ""
        return f"{self.structure!r}, {self.layout}, layers={self.layers}{shared}"


def structure_of(structure: Structure, width: int, kernel: int = 1) -> Pattern:
    """The pattern that a name, a graph, a pattern or a function of the width stands for."""
    if isinstance(structure, str):
        if structure not in STRUCTURES:
            raise unknown_name("structure", structure, STRUCTURES)
        structure = STRUCTURES[structure]
    if callable(structure):
        with_kernel = kernel > 1 and len(inspect.signature(structure).parameters) > 1
        structure = structure(width, kernel) if with_kernel else structure(width)
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
