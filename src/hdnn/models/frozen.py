"""A model for predictions: everything that does not depend on the data is computed once.

`frozen(model, x)` gives the `FrozenModel` of a model in evaluation mode, without gradients, on the
CPU: for a table one call of a kernel, for images a short list of functions with W and A assembled,
batch norm folded into convolutions and images taken by the chunk that stays in the cache. It agrees
with the model up to rounding.

It is made when first needed and kept while nothing has changed. To be sure of that, every call
compares all parameters and buffers with a copy, byte by byte: versions of tensors do not tell of
writes through `.data`, numpy or a kernel, and comparing takes a small part of the time of using
them. A hook, a module in training mode, autocast, torch.func, a tracer: then there is none, and the
model goes its plain way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from hdnn.backends.assembled import assemble, convolution
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

CHUNK = 1 << 18
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
    if form is None or not form.is_current():
        form = model._frozen = FrozenModel(model)
    return form if form.takes(x) else None


class FrozenModel:
    """What a model computes in evaluation mode, with its parameters as they are now.

    Args:
        model: the model.
    """

    def __init__(self, model: Model) -> None:
        _, *self._modules = model.modules()  # not the model, which holds this
        self._places = [
            (held, name, entry)
            for module in (model, *self._modules)
            for held in (module._modules, module._parameters, module._buffers)
            for name, entry in held.items()
        ]
        self._networks = [(n, n.backend, n.memory) for n in model.networks]
        self._contents = _contents(model)
        self.dtype, self.shape = model.head.weight.dtype, model.stem.shape
        self._table: TablePredictor | None = None
        self._steps: list[Step] | None = None
        self._chunk = 0
        if self._contents is None or self.dtype not in DTYPES or self._is_observed():
            return
        with torch.inference_mode(False), torch.no_grad():
            self._table = _table_predictor(model)
            if self._table is None:
                self._steps = _steps(model)
        if isinstance(model.stem, ImageStem):
            height, width = model.stem.shape[1:]
            self._chunk = max(1, CHUNK // (model.stem.config.widths[0] * height * width))

    def is_current(self) -> bool:
        """Whether the model is still the same, and so are all its numbers."""
        for held, name, entry in self._places:
            if held.get(name) is not entry:
                return False
        for tensor, address, view, copy in self._contents or ():
            if tensor.data_ptr() != address or copy != view:
                return False
        for network, backend, memory in self._networks:
            if network.backend != backend or network.memory != memory:
                return False
        return True

    def _is_observed(self) -> bool:
        """Whether a part is in training mode, or somebody looks at what it computes."""
        return any(module.training or _is_hooked(module) for module in self._modules)

    def takes(self, x: Tensor) -> bool:
        """Whether it computes such data, rather than the model itself.

        Args:
            x: raw data.

        Returns:
            Whether shape and dtype are the model's, and there is a gain.
        """
        if self._is_observed():
            return False
        if self._table is not None:
            narrow = self._table.form.wide >= 2 * self._table.form.width
            fits = x.ndim == 2 and x.shape[1] == self.shape[0] and x.dtype is self.dtype
            return fits and 0 < len(x) <= (FEW if narrow else len(x))
        if self._steps is None or len(x) == 0:
            return False
        if self._chunk:
            return x.shape[1:] == self.shape and x.dtype in (torch.uint8, self.dtype)
        return x.ndim == 2 and x.shape[1] == self.shape[0] and x.dtype is self.dtype

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
        for step in self._steps or ():
            y = step(y)
        return y


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


def _contents(model: Model) -> list[_Content] | None:
    """The numbers of all parameters and buffers; None where they cannot be looked at."""
    found, size = [], 0
    tensors: Iterable[Tensor] = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        size += tensor.nbytes
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu
        if not plain or size > LARGEST or not tensor.is_contiguous():
            return None
        if tensor.numel():
            view = memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())
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


# --- lists of functions ---------------------------------------------------------------------------


def _steps(model: Model) -> list[Step]:
    """The parts of a model one after the other; those that are not known are called as they are."""
    stem, channels_last = model.stem, False
    parts: list[nn.Module] = []
    steps: list[Step] = []
    if type(stem) is ImageStem:
        steps.append(_normalization(stem))
        parts.extend(stem.opening)
        channels_last = stem.config.kernel > 1
    else:
        steps.append(lambda x: stem(stem.prepare(x)))
    parts += [*_flat(model.stages), model.head]
    while parts:
        part = parts.pop(0)
        norm = parts.pop(0) if type(part) is nn.Conv2d and _is_batch_norm(parts) else None
        foldable = type(part) in (nn.Conv2d, nn.BatchNorm2d)
        relu = foldable and bool(parts) and type(parts[0]) is nn.ReLU
        if relu:
            parts.pop(0)
        steps.append(_step(part, norm, relu, channels_last))
    return steps


def _is_batch_norm(parts: list[nn.Module]) -> bool:
    return bool(parts) and type(parts[0]) is nn.BatchNorm2d and parts[0].track_running_stats


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


def _step(part: nn.Module, norm: Any, relu: bool, channels_last: bool) -> Step:
    """The function of a part, with the batch norm and the activation that follow it."""
    if type(part) is nn.Conv2d and _is_ordinary(part):
        return _convolution(part, norm, relu, channels_last)
    if type(part) is nn.BatchNorm2d and part.track_running_stats:
        scale, shift = (t[:, None, None] for t in _affine(part))
        if relu:
            return lambda y: torch.addcmul(shift, y, scale).relu_()
        return lambda y: torch.addcmul(shift, y, scale)
    if type(part) is nn.Linear:
        weight, bias = part.weight, part.bias
        return lambda y: F.linear(y, weight, bias)
    if type(part) is HamiltonianNetwork and part.keeps_program:
        return assemble(part.program(), part.backend, part.memory)
    if type(part) is PixelMean:
        return part.forward
    following = [one for one in (part, norm, nn.ReLU() if relu else None) if one is not None]
    return nn.Sequential(*following) if len(following) > 1 else part


def _is_ordinary(part: nn.Conv2d) -> bool:
    odd = part.padding != "same" or all(k % 2 for k in part.kernel_size)
    return odd and part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"


def _normalization(stem: ImageStem) -> Step:
    """`ImageStem.normalize`, in one operation where the mean is 0."""
    if bool(stem.offset.any()):
        return stem.normalize
    gain, of_bytes = stem.gain, stem.gain / 255
    return lambda x: x * (of_bytes if x.dtype == torch.uint8 else gain)


def _affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Batch norm with its running statistics: the factor and the summand of every channel."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    scale = torch.rsqrt(variance + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def _convolution(
    part: nn.Conv2d, norm: nn.BatchNorm2d | None, relu: bool, channels_last: bool
) -> Step:
    W, b = part.weight.detach(), None if part.bias is None else part.bias.detach()
    if norm is not None:
        scale, shift = _affine(norm)
        W, b = W * scale[:, None, None, None], shift if b is None else b * scale + shift
    # "same" is written in our blocks for odd kernels only, where it is half of them on all sides.
    padding = (
        part.padding if isinstance(part.padding, tuple) else tuple(k // 2 for k in part.kernel_size)
    )
    unary = "relu" if relu else "none"
    return convolution(W, b, part.stride, padding, unary, channels_last)
