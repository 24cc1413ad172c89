"""Image models as one call of a kernel, with everything assembled beforehand.

`ImagePlan` takes the parts of a model one after the other and turns them into the operations of
`hdnn.kernels.predict_images`; `ImagePredictor` runs them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hdnn.backends.predict import SERIAL, RowConstants, thread_scratch
from hdnn.backends.selection import ACTIVATIONS
from hdnn.backends.threads import parallel_for, thread_count
from hdnn.kernels import predict_images as kernels
from hdnn.kernels.predict_images import Images, predict_images_kernel
from hdnn.kernels.row_products import ADD, BIAS, FRESH
from hdnn.kernels.team import Team, new_team
from hdnn.program import Program, at_layer

KNOWN = ("tanh", "identity", "relu", "softsign")
"""Activations with sigma(0) = 0: what is around an image stays 0."""

IDENTITY, RELU = ACTIVATIONS.index("identity"), ACTIVATIONS.index("relu")

LARGEST = 4 * 2**20
"""Bytes of an image's planes up to which one image at a time is the best order."""


def is_served(program: Program) -> bool:
    """Whether the kernel knows a program of convolutions.

    Args:
        program: of a network over channels.

    Returns:
        Whether `ImagePlan.block` takes it.
    """
    stages, layout = program.stages, program.layout
    if stages is None or layout.kernel == 1:
        return False
    whole = (0, layout.width)
    known = all(stage.activation.name in KNOWN for stage in stages)
    return known and all(stage.carry or stage.write == whole for stage in stages)


class ImagePlan:
    """A list of operations that grows by one part of a model after the other.

    Args:
        shape: channels, height and width of an image.
        edge: zeros around images: half the side of the largest kernel, and at least 1.
        dtype: of the numbers.
    """

    def __init__(self, shape: tuple[int, ...], edge: int, dtype: torch.dtype) -> None:
        channels, height, width = shape
        self.dtype, self.edge, self.channels = dtype, max(1, edge), channels
        self.constants = RowConstants(dtype)
        self.planes: list[tuple[int, ...]] = []
        self.operations: list[tuple[int, ...]] = []
        self.size = 0
        self.last = self._plane(channels, height, width, channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what the last part gives."""
        _, height, width, _, _ = self.planes[self.last]
        return self.channels, height, width

    @property
    def products(self) -> int:
        """Multiplications of an image."""
        total = 0
        for row in self.operations:
            _, height, width, _, _ = self.planes[row[kernels.TARGET]]
            taps = row[kernels.SIDE] ** 2 * row[kernels.R]
            total += height * width * taps * row[kernels.WIDE]
        return total

    @property
    def bytes(self) -> int:
        """Of the planes of an image."""
        return self.size * self.constants.dtype.itemsize

    def _plane(self, channels: int, height: int, width: int, pitch: int | None = None) -> int:
        """Add a plane; returns its number."""
        pitch = self.constants.fill(channels) if pitch is None else pitch
        self.planes.append((self.size, height, width, self.edge, pitch))
        self.size += (height + 2 * self.edge) * (width + 2 * self.edge) * pitch
        self.channels = channels
        return len(self.planes) - 1

    def _add(self, kind: int, source: int, target: int, **entries: int) -> None:
        row = [0] * kernels.COLUMNS
        row[kernels.KIND], row[kernels.SOURCE], row[kernels.TARGET] = kind, source, target
        row[kernels.SIGMA] = IDENTITY
        for name, value in entries.items():
            row[getattr(kernels, name)] = value
        self.operations.append(tuple(row))

    def _kernel(self, W: Tensor) -> dict[str, int]:
        """The entries of a convolution with a kernel ``(out, in, k, k)``."""
        out, inside, side, _ = W.shape
        at = self.constants.rows(W.permute(2, 3, 1, 0).reshape(-1, out))
        return {"AT": at, "R": inside, "SIDE": side, "STRIDE": 1, "WIDE": self.constants.fill(out)}

    def convolution(self, W: Tensor, b: Tensor | None, stride: int, relu: bool) -> None:
        """Add y = W * x + b, with zeros around x so that a stride of 1 keeps the size.

        Args:
            W: ``(out, in, k, k)``, k odd.
            b: ``(out,)``, or None.
            stride: in both directions.
            relu: whether negative numbers become 0.
        """
        source = self.last
        _, height, width, _, _ = self.planes[source]
        target = self.last = self._plane(len(W), -(-height // stride), -(-width // stride))
        bias = {} if b is None else {"BIAS_AT": self.constants.row(b)}
        start, sigma = FRESH if b is None else BIAS, RELU if relu else IDENTITY
        entries = {**self._kernel(W), "STRIDE": stride, "START": start, "SIGMA": sigma, **bias}
        self._add(kernels.CONVOLVE, source, target, **entries)

    def affine(self, scale: Tensor, shift: Tensor, relu: bool) -> None:
        """Add x = scale x + shift, channel by channel.

        Args:
            scale, shift: ``(channels,)``.
            relu: whether negative numbers become 0.
        """
        last = self.last
        at, bias_at = self.constants.row(scale), self.constants.row(shift)
        sigma = RELU if relu else IDENTITY
        entries = {"AT": at, "BIAS_AT": bias_at, "SIGMA": sigma, "W": self.channels}
        self._add(kernels.AFFINE, last, last, **entries)

    def pool(self) -> None:
        """Add the largest of 2 x 2 pixels."""
        source = self.last
        _, height, width, _, _ = self.planes[source]
        target = self.last = self._plane(self.channels, height // 2, width // 2)
        self._add(kernels.POOL, source, target, W=self.channels)

    def block(self, program: Program) -> None:
        """Add all layers of a Hamiltonian block.

        Args:
            program: which `is_served`.
        """
        stages, fill = program.stages or (), self.constants.fill
        state = self.last
        _, height, width, _, pitch = self.planes[state]
        room = self._plane(max(stage.W.pattern.shape[0] for stage in stages), height, width)
        # What a stage writes ends at a whole vector, in the plane of the state too.
        needed = fill(max(s.write[0] + fill(s.write[1] - s.write[0]) for s in stages))
        if needed > pitch:
            state = self._plane(program.layout.width, height, width, needed)
            one = self.constants.row(torch.ones(1, dtype=self.dtype))
            self._add(kernels.SCALE, self.last, state, W=program.layout.width, AT=one)
        self.last, self.channels = state, program.layout.width
        arrays = []
        for stage in stages:
            W = stage.W.tensor()
            arrays.append((stage, W, stage.b.tensor(), stage.gain(W, program.layout)))
        for layer in range(program.layers):
            for stage, W, b, A in arrays:
                first = {**self._kernel(W[layer]), "START": BIAS, "R0": stage.read[0]}
                first |= {"SIGMA": ACTIVATIONS.index(stage.activation.name)}
                first |= {"BIAS_AT": self.constants.row(b[layer])}
                self._add(kernels.CONVOLVE, state, room, **first)
                begin, size = stage.write[0], stage.write[1] - stage.write[0]
                if isinstance(A, Tensor) and A.ndim == W.ndim:
                    start = ADD if stage.carry else FRESH
                    second = {**self._kernel(A[layer]), "START": start, "W0": begin}
                    self._add(kernels.CONVOLVE, room, state, **second)
                    continue
                factor = torch.as_tensor(at_layer(A, layer), dtype=self.dtype).reshape(1)
                at = self.constants.row(factor)
                entries = {"W0": begin, "W": size, "AT": at, "CARRY": stage.carry}
                self._add(kernels.SCALE, room, state, **entries)


class ImagePredictor:
    """The operations of a plan on batches of images.

    Args:
        plan: which is complete.
        mean: whether the result is the mean over the pixels, or the last plane.
    """

    def __init__(self, plan: ImagePlan, mean: bool) -> None:
        self.dtype, self.mean = plan.dtype, mean
        self.operations = np.array(plan.operations, np.int64)
        self.planes = np.array(plan.planes, np.int64)
        self.constants = plan.constants.array()
        self.outputs, self.last = plan.channels, plan.last
        # Behind the planes, room for a vector: activations are computed two at a time.
        self.scratch = plan.size + plan.constants.lanes
        self.products = plan.products
        self.kernel = predict_images_kernel(self.constants.dtype.name)

    def __call__(self, x: Tensor) -> Tensor:
        """The last plane of images, or its mean.

        Args:
            x: images ``(B, C, H, W)`` of the dtype of the plan.

        Returns:
            ``(B, channels, height, width)``, or ``(B, channels)``.
        """
        count, channels = x.shape[:2]
        _, height, width, _, _ = self.planes[self.last].tolist()
        shape = (count, self.outputs) if self.mean else (count, self.outputs, height, width)
        out = torch.empty(shape, dtype=self.dtype)
        to = (self.outputs, 1, 0) if self.mean else (*out.stride()[:2], 1)
        place = x.data_ptr(), *x.stride(), out.data_ptr(), *to
        images = Images(*place, int(self.mean), channels, self.outputs, self.last)  # type: ignore[call-arg]

        def work(team: Team, caller: bool) -> None:
            scratch = thread_scratch(self.scratch, self.constants.dtype)[: self.scratch]
            rest = self.operations, self.planes, self.constants, scratch
            self.kernel(images, *rest, team, caller)

        if count == 1 or count * self.products < SERIAL:
            work(new_team(count), True)
        else:
            parallel_for(work, count, thread_count())
        return out
