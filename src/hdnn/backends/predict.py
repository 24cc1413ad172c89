"""Models for tables as one call of a kernel, with everything assembled beforehand.

Raw columns go in, the values of the output layer come out; see `hdnn.kernels.predict`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hdnn.backends.selection import ACTIVATIONS, obstacle_of_form
from hdnn.backends.threads import parallel_for, thread_count
from hdnn.kernels.build import aligned
from hdnn.kernels.predict import BLOCK, COLUMNS, Form, predict_kernel, scratch_size
from hdnn.kernels.team import Team, new_team
from hdnn.kernels.vectors import VECTOR_BYTES
from hdnn.program import Program

SERIAL = 3e6
"""Multiplications below which a second thread is not worth it, as in `fused`."""

Array = np.ndarray


@dataclass(frozen=True)
class TableLayers:
    """What surrounds the block of a model for tables.

    Args:
        features: numbers of a sample.
        places: which entry of y_0 each feature becomes; None with a projection.
        scaler: mean and scale ``(features,)``, or None.
        projection: P ``(n, features)`` and nu ``(n,)``, or None.
        head: W ``(outputs, n)`` and mu ``(outputs,)``.
    """

    features: int
    places: Sequence[int] | None
    scaler: tuple[Tensor, Tensor] | None
    projection: tuple[Tensor, Tensor] | None
    head: tuple[Tensor, Tensor]


def is_served(program: Program) -> bool:
    """Whether the kernel knows a program: stages over features, whole or residual.

    Args:
        program: of a network.

    Returns:
        Whether `TablePredictor` takes it.
    """
    layout = program.layout
    if layout.channels or layout.ensemble is not None or obstacle_of_form(program) is not None:
        return False
    whole = (0, layout.width)
    return all(stage.carry or stage.write == whole for stage in program.stages or ())


class TablePredictor:
    """A model for tables, its parameters as they are now.

    Args:
        program: of its only block, which `is_served`.
        around: what is before and after it.
    """

    def __init__(self, program: Program, around: TableLayers) -> None:
        self.dtype = around.head[0].dtype
        constants = RowConstants(self.dtype)
        width, fill = program.layout.width, constants.fill
        outputs = len(around.head[1])
        mean, scale = (-1, -1) if around.scaler is None else map(constants.row, around.scaler)
        projection = offset = -1
        if around.projection is not None:
            P, nu = around.projection
            projection, offset = constants.rows(P.mT), constants.rows(nu[None])
        head, bias = constants.rows(around.head[0].mT), constants.rows(around.head[1][None])
        first = constants.size
        self.stages, layer_size = _assemble(program, constants)
        self.form = Form(
            features=around.features,
            outputs=outputs,
            wide_outputs=fill(outputs),
            layers=program.layers,
            layer_size=layer_size,
            activation=ACTIVATIONS.index(program.stages[0].activation.name),  # type: ignore[index]
            pitch=max(fill(width), *(int(row[2] + row[6]) for row in self.stages)),
            hidden=max(fill(outputs), *(int(row[5]) for row in self.stages)),
            width=width,
            wide=fill(width),
            mean=mean,
            scale=scale,
            projection=projection,
            offset=offset,
            first=first,
            head=head,
            bias=bias,
        )
        places = range(around.features) if around.places is None else around.places
        self.places = np.array(list(places), np.int64)
        self.constants = constants.array()
        self.scratch = scratch_size(self.form)
        self.kernel = predict_kernel(self.constants.dtype.name)

    def __call__(self, x: Tensor, mirrored: bool = False) -> Tensor:
        """``(samples, outputs)``: the values of the output layer.

        Args:
            x: ``(samples, features)``, raw columns of the model's dtype.
            mirrored: of one output v, ``(-v, v)``.

        Returns:
            ``(samples, outputs)``, or ``(samples, 2)`` if mirrored.
        """
        samples = len(x)
        out = torch.empty((samples, 2 if mirrored else self.form.outputs), dtype=self.dtype)
        source, strides, target = x.data_ptr(), x.stride(), out.data_ptr()
        kernel, form, places = self.kernel, self.form, self.places
        stages, constants = self.stages, self.constants

        def work(team: Team, caller: bool) -> None:
            scratch = thread_scratch(self.scratch, constants.dtype)
            kernel(
                source,
                strides,
                samples,
                target,
                mirrored,
                form,
                places,
                stages,
                constants,
                scratch,
                team,
                caller,
            )

        if samples <= BLOCK or samples * constants.size < SERIAL:
            work(new_team(-(-samples // BLOCK)), True)
        else:
            parallel_for(work, -(-samples // BLOCK), thread_count())
        return out


class RowConstants:
    """Numbers one after the other, each part from the start of a vector on.

    Args:
        dtype: of the numbers.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.size = np.dtype(str(dtype).removeprefix("torch.")), 0
        self.lanes = VECTOR_BYTES // self.dtype.itemsize
        self._parts: list[Array] = []

    def fill(self, count: int) -> int:
        """Rounded up to whole vectors, which is what a product writes."""
        return -(-count // self.lanes) * self.lanes

    def rows(self, matrix: Tensor) -> int:
        """Add a matrix, its rows filled up with zeros; returns where it begins."""
        rows, columns = matrix.shape
        wide = np.zeros((rows, self.fill(columns)), self.dtype)
        wide[:, :columns] = matrix.detach().numpy()
        return self._add(wide)

    def row(self, vector: Tensor) -> int:
        """Add a vector."""
        return self.rows(vector[None])

    def layers(self, parts: list[Array]) -> int:
        """Add arrays ``(L, .)``, those of every layer side by side; returns the size of a layer."""
        joined = np.concatenate(parts, 1)
        self._add(joined)
        return joined.shape[1]

    def _add(self, part: Array) -> int:
        self._parts.append(part.ravel())
        begin, self.size = self.size, self.size + part.size
        return begin

    def array(self) -> Array:
        """All of them, from a cache line on."""
        whole = aligned(self.size, self.dtype)
        np.concatenate(self._parts, out=whole)
        return whole


def _assemble(program: Program, constants: RowConstants) -> tuple[Array, int]:
    """The table of the stages, and the size of a layer, whose constants are added."""
    table = np.zeros((len(program.stages or ()), COLUMNS), np.int64)
    parts: list[Array] = []
    at = 0

    def put(stack: Tensor) -> int:
        """Add matrices ``(L, rows, columns)``, their rows filled up with zeros."""
        nonlocal at
        layers, rows, columns = stack.shape
        wide = np.zeros((layers, rows, constants.fill(columns)), constants.dtype)
        wide[:, :, :columns] = stack.detach().numpy()
        parts.append(wide.reshape(layers, -1))
        begin, at = at, at + parts[-1].shape[1]
        return begin

    for row, stage in zip(table, program.stages or (), strict=True):
        W, b = stage.W.tensor(), stage.b.tensor()
        A = stage.gain(W, program.layout)
        dense = isinstance(A, Tensor) and A.ndim == 3
        m, w = W.shape[1], stage.write[1] - stage.write[0]
        places = put(W.mT), put(b[:, None])
        if isinstance(A, Tensor):
            gain = put(A.mT if dense else A[:, None, None])
        else:
            gain = put(W.new_full((program.layers, 1, 1), A))
        wide = constants.fill(m), constants.fill(w)
        row[:] = (
            *_span(stage.read),
            *_span(stage.write),
            m,
            *wide,
            *places,
            gain,
            not dense,
            stage.carry,
        )
    return table, constants.layers(parts)


def _span(ends: tuple[int, int]) -> tuple[int, int]:
    return ends[0], ends[1] - ends[0]


_local = threading.local()


def thread_scratch(size: int, dtype: np.dtype) -> Array:
    """Room of this thread, kept from call to call."""
    room: Array | None = _local.__dict__.get(dtype.name)
    if room is None or room.size < size:
        room = _local.__dict__[dtype.name] = aligned(size, dtype)
    return room
