"""A model for predictions: everything that does not depend on the data is computed once.

`frozen(model, x)` gives the `FrozenModel` of a model in evaluation mode, without gradients, on the
CPU: for a table one call of a kernel, for images a short list of functions with W and A assembled,
batch norm folded into convolutions and images taken by the chunk that stays in the cache. It agrees
with the model up to rounding.

It is made when first needed and kept while nothing has changed. To be sure of that, every call
compares the tensors whose numbers it holds with a copy, byte by byte: versions of tensors do not
tell of writes through `.data`, numpy or a kernel, and comparing takes a small part of the time of
using them. A hook, a module in training mode, autocast, torch.func, a tracer: then there is none,
and the model goes its plain way.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from hdnn.backends.assembled import assemble
from hdnn.backends.selection import DTYPES
from hdnn.fields.surroundings import active_transform
from hdnn.models.stages import PixelMean, Stages
from hdnn.models.stems import ImageStem, TableStem
from hdnn.networks import HamiltonianNetwork

if TYPE_CHECKING:
    from hdnn.backends.predict import TablePredictor
    from hdnn.models.model import Model

Step = Callable[[Tensor], Tensor]

LARGEST = 64 * 2**20
"""Bytes of parameters above which a model is not frozen: it would be in memory three times."""

WIDEST = 256
"""The widest network that the kernel for tables takes; beyond, a library's products win."""

FEW = 256
"""Samples of a narrow network up to which the kernel for tables wins: it leaves lanes idle."""

FEWEST_CHANNELS = 8
"""Channels that a convolution reads from which on the kernel for images is faster than torch."""

CHUNK = 1 << 20
"""Numbers of an image model's widest state that are computed at once, on every thread."""


def frozen(model: Model, x: Tensor) -> FrozenModel | None:
    """The frozen form of a model for data, or None where the model itself must compute them.

    Args:
        model: any.
        x: raw data: ``(samples, features)`` or images ``(B, C, H, W)``.

    Returns:
        A form that is up to date.
    """
    if torch.is_grad_enabled() or model.training or torch.compiler.is_compiling():
        return None
    if type(x) is not Tensor or not x.is_cpu or x.layout is not torch.strided or x.is_neg():
        return None
    if torch._C._is_any_autocast_enabled() or active_transform() is not None:
        return None
    if _is_hooked(model) or torch_module._global_forward_hooks:
        return None
    form = model._frozen
    if form is not None and form.is_slower(x):
        return None
    if form is None or not form.is_current():
        form = model._frozen = FrozenModel(model)
    return form if form.takes(x) and not form.is_observed() else None


class FrozenModel:
    """What a model computes in evaluation mode, with its parameters as they are now.

    Args:
        model: the model.
    """

    def __init__(self, model: Model) -> None:
        _, *self._modules = model.modules()  # not the model, which holds this
        entries = [
            held
            for module in (model, *self._modules)
            for held in (module._modules, module._parameters, module._buffers)
        ]
        self._sizes = [(held, len(held)) for held in entries]
        self._places = [(held, *item) for held in entries for item in held.items()]
        self._networks = [(n, n.backend, n.memory) for n in model.networks]
        self._contents: list[_Content] = []
        dtype, self.shape = model.head.weight.dtype, model.stem.shape
        self._dtypes = (dtype, torch.uint8) if model.stem.takes_images else (dtype,)
        self._table: TablePredictor | None = None
        self._steps: list[Step] | None = None
        self._chunk = 0
        self._is_narrow = False
        tensors = [*model.parameters(), *model.buffers()]
        if dtype not in DTYPES or not _are_plain(tensors):
            return
        with torch.inference_mode(False), torch.no_grad():
            self._table = _table_predictor(model)
            if self._table is not None:
                self._is_narrow = self._table.form.wide >= 2 * self._table.form.width
                self._contents = _contents(tensors)
                return
            self._steps, folded = _steps(model)
            self._contents = _contents(
                [t for part in folded for t in (*part.parameters(), *part.buffers())]
            )
        if isinstance(model.stem, ImageStem):
            self._chunk = max(1, CHUNK // (model.stem.expansion * math.prod(self.shape)))

    def is_current(self) -> bool:
        """Whether the model is still the same, and so are all its numbers."""
        for held, size in self._sizes:
            if len(held) != size:
                return False
        for held, name, entry in self._places:
            if held.get(name) is not entry:
                return False
        for tensor, address, view, copy in self._contents:
            if tensor.data_ptr() != address or copy != view:
                return False
        for network, backend, memory in self._networks:
            if network.backend != backend or network.memory != memory:
                return False
        return True

    def is_observed(self) -> bool:
        """Whether a part is in training mode, or somebody looks at what it computes."""
        return any(module.training or _is_hooked(module) for module in self._modules)

    def takes(self, x: Tensor) -> bool:
        """Whether it computes such data, rather than the model itself.

        Args:
            x: raw data.

        Returns:
            Whether shape and dtype are the model's, and it is not slower.
        """
        if x.shape[1:] != self.shape or x.dtype not in self._dtypes:
            return False
        served = self._table is not None or self._steps is not None
        return served and len(x) > 0 and not self.is_slower(x)

    def is_slower(self, x: Tensor) -> bool:
        """Whether the kernel for tables, which leaves lanes idle, is slower than the model.

        Args:
            x: raw data.

        Returns:
            Whether the network is narrow and the samples are many.
        """
        return self._is_narrow and x.ndim > 0 and len(x) > FEW

    def logits(self, x: Tensor) -> Tensor:
        """``(samples, outputs)``: the values of the head, of data that it takes.

        Args:
            x: raw data.

        Returns:
            One number for every sample and output.
        """
        if self._table is not None:
            return self._table(x)
        size = self._chunk * torch.get_num_threads()
        if not size or len(x) <= size:
            return self._run(x)
        return torch.cat([self._run(part) for part in x.split(size)])

    def probabilities(self, x: Tensor) -> Tensor:
        """``(samples, classes)``, as `Model.probabilities`.

        Args:
            x: raw data that it takes.

        Returns:
            Numbers in [0, 1] that sum to 1 over the classes.
        """
        if self._table is not None and self._table.form.outputs == 1:
            return self._table(x, mirrored=True).sigmoid_()
        return probabilities(self.logits(x))

    def _run(self, y: Tensor) -> Tensor:
        return functools.reduce(_apply, self._steps or (), y)


def _is_hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def probabilities(logits: Tensor) -> Tensor:
    """Logistic for a single output, softmax for more.

    Args:
        logits: ``(..., outputs)``.

    Returns:
        ``(..., classes)``.
    """
    if logits.shape[-1] > 1:
        return logits.softmax(-1)
    return torch.cat([-logits, logits], -1).sigmoid()


# --- whether anything has changed -----------------------------------------------------------------


class _Content(NamedTuple):
    """A tensor, its address, a view of its bytes, and a copy of them."""

    tensor: Tensor
    address: int
    view: memoryview
    copy: bytearray


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether their bytes can be looked at, and are not too many."""
    plain = all(
        type(t) in (Tensor, nn.Parameter) and t.is_cpu and t.is_contiguous() for t in tensors
    )
    return plain and sum(t.nbytes for t in tensors) <= LARGEST


def _contents(tensors: list[Tensor]) -> list[_Content]:
    """What these tensors hold now."""
    found = []
    for tensor in filter(Tensor.numel, tensors):
        numbers: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        view = memoryview(numbers)
        # A bytearray compares itself with any memory as C's memcmp does.
        found.append(_Content(tensor, tensor.data_ptr(), view, bytearray(view)))
    return found


# --- tables ---------------------------------------------------------------------------------------


def _table_predictor(model: Model) -> TablePredictor | None:
    """A model for tables as one call of a kernel, where there is a kernel for it."""
    stem, stages, head = model.stem, model.stages, model.head
    if type(stem) is not TableStem or type(stages) is not Stages or type(head) is not nn.Linear:
        return None
    (net, *others), kept = stages.blocks, (stem.scaler, stem.augmentation, stem.projection)
    if others or stages.closes or {*stem.children()} - {*kept}:
        return None
    if type(net) is not HamiltonianNetwork or not net.keeps_program:
        return None
    program = net.program()
    if net.backend == "reference" or program.layout.width > WIDEST:
        return None
    from hdnn.backends.predict import TableLayers, TablePredictor, is_served  # loads numba

    if not is_served(program):
        return None
    scaler, augmentation, projection = kept
    around = TableLayers(
        model.features,
        None if augmentation is None else augmentation.places,
        None if scaler is None else (scaler.mean, scaler.scale),
        None if projection is None else (projection.weight, projection.bias),
        (head.weight, head.bias),
    )
    return TablePredictor(program, around)


# --- images, and lists of functions ---------------------------------------------------------------


class _Part(NamedTuple):
    """A module, with the batch norm and the activation that follow it."""

    module: nn.Module
    norm: nn.BatchNorm2d | None = None
    relu: bool = False


def _parts(model: Model) -> list[_Part]:
    """What follows the normalization of images, or the stem of a table, in order."""
    opening = model.stem.opening if type(model.stem) is ImageStem else ()
    modules = [*opening, *_flat(model.stages), model.head]
    parts: list[_Part] = []
    for module in modules:
        part = parts[-1] if parts else None
        if part is not None and not part.relu:
            convolves = type(part.module) is nn.Conv2d
            if convolves and part.norm is None and _has_statistics(module):
                parts[-1] = part._replace(norm=module)
                continue
            if type(module) is nn.ReLU and (convolves or _has_statistics(part.module)):
                parts[-1] = part._replace(relu=True)
                continue
        parts.append(_Part(module))
    return parts


def _has_statistics(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d and module.track_running_stats


def _steps(model: Model) -> tuple[list[Step], list[nn.Module]]:
    """The parts of a model one after the other, and the modules whose numbers are folded into them.

    What is not known is called as it is.
    """
    stem, parts = model.stem, _parts(model)
    steps: list[Step]
    if type(stem) is not ImageStem:
        steps = [lambda x: stem(stem.prepare(x)), *map(_step, parts)]
        return steps, [part.module for part in parts if _is_folded(part)]
    steps = [_normalization(stem)]
    folded: list[nn.Module] = [stem]
    shape: tuple[int, ...] | None = stem.shape
    while parts:
        run = list(itertools.takewhile(_is_drawn, parts)) if shape is not None else []
        if not any(map(_is_wide, run)):
            run = []
        if shape is None or not run:
            part = parts.pop(0)
            steps.append(_step(part))
            folded += [part.module, *filter(None, [part.norm])] if _is_folded(part) else []
            shape = None if shape is None else _shape(part, shape)
            continue
        del parts[: len(run)]
        mean = bool(parts) and type(parts[0].module) is PixelMean
        step, shape = _drawn(run, shape, mean, model.head.weight.dtype)
        steps.append(step)
        folded += [one for p in run for one in (p.module, p.norm) if one is not None]
        if mean:
            parts.pop(0)
    return steps, folded


def _is_folded(part: _Part) -> bool:
    """Whether the function of a part holds numbers that were computed of its own."""
    return part.norm is not None or type(part.module) in (nn.BatchNorm2d, HamiltonianNetwork)


def _is_wide(part: _Part) -> bool:
    """Whether the kernel for images is faster than torch's convolutions."""
    module = part.module
    if isinstance(module, nn.Conv2d):
        return module.in_channels >= FEWEST_CHANNELS
    return isinstance(module, HamiltonianNetwork)


def _shape(part: _Part, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Of an image behind a part; None where that is not known."""
    module = part.module
    if isinstance(module, nn.Conv2d) and _is_ordinary(module):
        _, height, width = shape
        down, across = module.stride
        return module.out_channels, -(-height // down), -(-width // across)
    keeps = isinstance(module, HamiltonianNetwork | nn.GroupNorm | nn.BatchNorm2d | nn.ReLU)
    return shape if keeps else None


def _drawn(
    parts: list[_Part], shape: tuple[int, ...], mean: bool, dtype: torch.dtype
) -> tuple[Step, tuple[int, ...]]:
    """Parts that the kernel for images knows, as one call of it, and the shape of what it gives."""
    from hdnn.backends.predict_images import LARGEST, ImagePlan, ImagePredictor  # loads numba

    kernels = [p.module.kernel for p in parts if isinstance(p.module, HamiltonianNetwork)]
    kernels += [p.module.kernel_size[0] for p in parts if isinstance(p.module, nn.Conv2d)]
    plan = ImagePlan(shape, max(kernels, default=1) // 2, dtype)
    for part in parts:
        module = part.module
        if isinstance(module, nn.Conv2d):
            plan.convolution(*_folded(part), module.stride[0], part.relu)
        elif isinstance(module, nn.BatchNorm2d):
            plan.affine(*_affine(module), part.relu)
        elif isinstance(module, HamiltonianNetwork):
            plan.block(module.program())
        else:
            plan.pool()
    if plan.bytes <= LARGEST:
        return ImagePredictor(plan, mean), plan.shape
    plain = [_step(part) for part in parts]
    if mean:
        plain.append(PixelMean())
    return lambda y: functools.reduce(_apply, plain, y), plan.shape


def _apply(y: Tensor, step: Step) -> Tensor:
    return step(y)


def _is_drawn(part: _Part) -> bool:
    """Whether the kernel for images knows a part."""
    from hdnn.backends.predict_images import is_served

    module = part.module
    if type(module) is nn.Conv2d:
        return _is_ordinary(module) and module.stride[0] == module.stride[1]
    if type(module) is nn.MaxPool2d:
        pooling = module.kernel_size, module.stride, module.padding, module.dilation
        return pooling == (2, 2, 0, 1) and not module.ceil_mode
    if type(module) is HamiltonianNetwork:
        backend = module.backend == "auto"
        return backend and module.keeps_program and is_served(module.program())
    return _has_statistics(module)


def _flat(part: nn.Module) -> Iterator[nn.Module]:
    """The parts of stages and sequences, in order."""
    if type(part) is Stages:
        for number, block in enumerate(part.blocks):
            if number:
                yield from _flat(part.connectors[number - 1])
            yield from _flat(block)
        yield from _flat(part.closing)
    elif type(part) is nn.Sequential:
        for one in part:
            yield from _flat(one)
    elif type(part) is not nn.Identity:
        yield part


def _step(part: _Part) -> Step:
    """The function of a part."""
    module, relu = part.module, part.relu
    if type(module) is nn.Conv2d and _is_ordinary(module):
        W, b = _folded(part)
        stride, padding = module.stride, _padding(module)
        if relu:
            return lambda y: F.conv2d(y, W, b, stride, padding).relu_()
        return lambda y: F.conv2d(y, W, b, stride, padding)
    if _has_statistics(module):
        scale, shift = (t[:, None, None] for t in _affine(module))
        if relu:
            return lambda y: torch.addcmul(shift, y, scale).relu_()
        return lambda y: torch.addcmul(shift, y, scale)
    if type(module) is nn.Linear:
        weight, bias = module.weight, module.bias
        return lambda y: F.linear(y, weight, bias)
    if type(module) is HamiltonianNetwork and module.keeps_program:
        return assemble(module.program(), module.backend, module.memory)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return lambda y: y.flatten(1)
    following = [one for one in (module, part.norm, nn.ReLU() if relu else None) if one is not None]
    return nn.Sequential(*following) if len(following) > 1 else module


def _is_ordinary(part: nn.Conv2d) -> bool:
    """Whether it is a convolution with an odd kernel and half of it around the image."""
    odd = all(k % 2 for k in part.kernel_size) and part.kernel_size[0] == part.kernel_size[1]
    halves = part.padding == "same" or part.padding == _padding(part)
    kind = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
    return odd and halves and kind


def _padding(part: nn.Conv2d) -> tuple[int, ...]:
    return tuple(k // 2 for k in part.kernel_size)


def _normalization(stem: ImageStem) -> Step:
    """`ImageStem.normalize`, in one operation where the mean is 0."""
    if bool(stem.offset.any()):
        return stem.normalize
    gain, of_bytes = stem.gain, stem.gain / 255
    return lambda x: x * (of_bytes if x.dtype == torch.uint8 else gain)


def _affine(norm: Any) -> tuple[Tensor, Tensor]:
    """Batch norm with its running statistics: the factor and the summand of every channel."""
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def _folded(part: _Part) -> tuple[Tensor, Tensor | None]:
    """The kernel and the bias of a convolution, with the batch norm behind it in them."""
    module: Any = part.module
    W, b = module.weight, module.bias
    if part.norm is None:
        return W, b
    scale, shift = _affine(part.norm)
    return W * scale[:, None, None, None], shift if b is None else b * scale + shift
