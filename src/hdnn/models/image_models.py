"""Models for images: an opening convolution, stages of Hamiltonian blocks, a linear head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, is_count, unknown_name
from hdnn.fields import Activation
from hdnn.models.model import Blocks, Label, Model
from hdnn.models.stems import Stem
from hdnn.schemes import Scheme, named_scheme
from hdnn.zoo import architecture as named_architecture
from hdnn.zoo import network

BLOCKS = ("hamiltonian", "convolution")
NORMS = ("none", "batch")


class ImageStem(Stem):
    """Images, normalized and through the opening convolution.

        y_0 = conv((x - mean) / std)

    Args:
        channels: C of the images.
        size: (H, W) of the images.
        width: channels of y_0.
        mean: of every channel of images scaled to [0, 1]; empty for 0.
        std: standard deviation of every channel of images scaled to [0, 1]; empty for 1.
        norm: after the convolution: "none", or "batch" for batch norm and ReLU.
        channels_last: memory layout of y_0; faster where the blocks are convolutions.
        dtype: of the weights.

    Raises:
        HdnnError: mean or std does not fit the channels.

    >>> import torch
    >>> stem = ImageStem(1, (8, 8), 4)
    >>> stem(stem.prepare(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))).shape
    torch.Size([5, 4, 8, 8])
    """

    takes_images = True
    offset: Tensor
    gain: Tensor

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        width: int,
        *,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        norm: str = "none",
        channels_last: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (0, channels) or (
                name == "std" and min(numbers, default=1) <= 0
            ):
                raise HdnnError(
                    f"{name} has a number for each of {channels} channels, got {numbers!r:.100}"
                )
        super().__init__((channels, *size))
        self.expansion = self.width = width
        self.mean, self.std, self.norm, self.channels_last = mean, std, norm, channels_last
        opening = nn.Conv2d(channels, width, 3, padding=1, dtype=dtype)
        self.opening = nn.Sequential(opening, *_normalization(norm, width, opening.weight.dtype))
        shape, weight = (channels, 1, 1), opening.weight
        center = weight.new_tensor(mean or [0.0] * channels).reshape(shape)
        spread = weight.new_tensor(std or [1.0] * channels).reshape(shape)
        # Constants that follow from the arguments, so no part of a file.
        self.register_buffer("offset", -center / spread, persistent=False)
        self.register_buffer("gain", 1 / spread, persistent=False)

    def check(self, x: Tensor, dtype: torch.dtype) -> None:
        if x.ndim != 4 or tuple(x.shape[1:]) != self.shape:
            expected = ", ".join(map(str, self.shape))
            raise HdnnError(f"expected images (B, {expected}), got {tuple(x.shape)}")
        if x.dtype not in (torch.uint8, dtype):
            raise HdnnError(f"images are uint8 (0 to 255) or {dtype} (0 to 1), got {x.dtype}")

    def prepare(self, x: Tensor) -> Tensor:
        return x  # as uint8: y_0 of the paper's network would take 32 times the memory

    def forward(self, prepared: Tensor) -> Tensor:
        x, gain = prepared, self.gain
        if x.dtype == torch.uint8:
            x, gain = x.to(gain.dtype), gain / 255
        y: Tensor = self.opening[0](torch.addcmul(self.offset, x, gain))
        if self.channels_last:  # then all convolutions, and their gradients, are faster
            y = y.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.opening[1:](y)
        return out


def image_model(
    *,
    channels: int,
    size: tuple[int, int],
    classes: int | Sequence[Label],
    architecture: str = "H2",
    widths: int | Sequence[int] = 8,
    layers: int | Sequence[int] = 4,
    step: float | None = None,
    T: float | None = None,
    scheme: str | Scheme | None = None,
    activation: str | Activation = "tanh",
    kernel: int = 1,
    block: str = "hamiltonian",
    norm: str = "none",
    scale: float = 1.0,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    time_invariant: bool = False,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Model:
    """A model for images: opening convolution, stages of Hamiltonian blocks, linear head.

        y_0 = conv(x),   y_N = blocks(y_0),   logits = W y_N + mu

    The defaults are the paper's network (section 4.2): a 3x3 convolution to 8 channels (zero
    padding, with a bias), a block that mixes the channels at every pixel, and a linear head on all
    8 x 28 x 28 values. Convolutions and head start as torch starts them. Between two stages, a 3x3
    convolution of stride 2 halves the resolution.

    Args:
        channels: C of the images.
        size: (H, W) of the images.
        classes: how many, or the labels in the order of the outputs.
        architecture: of the Hamiltonian blocks: MS1, MS2, MS3, H1, H2, HS (or a baseline).
        widths: channels of every stage.
        layers: depth of every stage; 0 is a stage without a block.
        step: step h of the blocks; with neither step nor T, 0.4 for MS1 and 0.05 for the others.
        T: final time of every block (h = T / layers), instead of step.
        scheme: a time-stepping scheme, or its name, in place of the architecture's own.
        activation: of the Hamiltonian blocks: a name, or an activation of your own.
        kernel: of K: 1 mixes the channels at every pixel, 3 (5, ...) is a convolution.
        block: "hamiltonian", or "convolution": plain layers y = relu(conv(y)) in its place.
        norm: after the opening convolution and those between stages: "none" (the opening is linear,
            as the paper's, and ReLU follows the others) or "batch" (batch norm and ReLU).
        scale: of the initial K and b.
        mean: of every channel of images scaled to [0, 1]; empty for 0.
        std: standard deviation of every channel of images scaled to [0, 1]; empty for 1.
        time_invariant: the layers of a stage share their weights.
        dtype: of the weights; None is torch's default.
        generator: draws the initial weights; None is torch's default generator.
        backend: of the Hamiltonian blocks, see `hdnn.HamiltonianNetwork`.

    Returns:
        A `Model` that takes images ``(B, C, H, W)``, uint8 (0 to 255) or of its dtype (0 to 1).

    Raises:
        HdnnError: a name is unknown, or sizes do not fit.

    >>> model = image_model(channels=1, size=(28, 28), classes=10, layers=4, step=0.05)
    >>> model(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([5, 10])
    >>> sum(p.numel() for p in model.parameters()), 80 + 4 * (64 + 8) + 62730
    (63098, 63098)
    """
    for name, value, known in (("block", block, BLOCKS), ("norm", norm, NORMS)):
        if value not in known:
            raise unknown_name(name, value, known)
    widths, layers = _integers("widths", widths), _integers("layers", layers, least=0)
    if len(widths) != len(layers):
        raise HdnnError(
            f"every stage has a width and a depth, got {len(widths)} widths {widths} and "
            f"{len(layers)} depths {layers}"
        )
    if kernel % 2 == 0:
        raise HdnnError(f"kernel is an odd positive integer, got {kernel!r}")
    labels = None if isinstance(classes, int) else list(classes)
    row = named_architecture(architecture)
    if block == "convolution" and (step is not None or T is not None):
        raise HdnnError("plain convolutions have no step size: leave out step and T")
    uses_step = (row.scheme if scheme is None else named_scheme(scheme)).uses_step
    if step is None and T is None and uses_step:
        step = 0.4 if row.name == "MS1" else 0.05  # the paper's; the others are as sensitive as H2
    dtype = torch.get_default_dtype() if dtype is None else dtype

    def make_block(width: int, depth: int) -> nn.Module:
        if depth == 0:
            return nn.Identity()
        if block == "convolution":
            parts: list[nn.Module] = []
            for _ in range(depth):
                conv = nn.Conv2d(width, width, kernel, padding=kernel // 2, dtype=dtype)
                parts += [conv, nn.ReLU()]
            return nn.Sequential(*parts)
        return network(
            architecture,
            channels=width,
            layers=depth,
            step=step,
            T=T,
            scheme=scheme,
            activation=activation,
            time_invariant=time_invariant,
            backend=backend,
            generator=generator,
            scale=scale,
            dtype=dtype,
            kernel=kernel,
        )

    stem = ImageStem(
        channels,
        size,
        widths[0],
        mean=mean,
        std=std,
        norm=norm,
        channels_last=kernel > 1,
        dtype=dtype,
    )
    blocks = [make_block(*stage) for stage in zip(widths, layers, strict=True)]
    connectors = [_connector(norm, *pair, dtype) for pair in pairwise(widths)]
    joined = [part for pair in zip(connectors, blocks[1:], strict=True) for part in pair]
    halvings = len(widths) - 1
    pixels = math.prod(math.ceil(side / 2**halvings) for side in size)
    body = Blocks(blocks[0], *joined, nn.Flatten(), features=widths[-1] * pixels)
    outputs = classes if isinstance(classes, int) else len(classes)
    model = Model(body, outputs, classes=labels, stem=stem)
    # Blocks before connectors: the order of the draws, not that of the layers.
    for part in (stem, *blocks, *connectors, model.head):
        _initialize(part, generator)
    return model


def _integers(name: str, numbers: int | Sequence[int], least: int = 1) -> tuple[int, ...]:
    values = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    if not values or not all(is_count(value, least) for value in values):
        raise HdnnError(f"{name} is an integer of at least {least}, or several, got {numbers!r}")
    return values


@torch.no_grad()
def _initialize(module: nn.Module, generator: torch.Generator | None) -> None:
    """The initial values of torch's `reset_parameters`, which takes no generator."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(part.weight[0].numel())
            assert part.bias is not None
            nn.init.uniform_(part.bias, -bound, bound, generator=generator)


def _connector(norm: str, width: int, wider: int, dtype: torch.dtype) -> nn.Module:
    """From one stage to the next: half the resolution, other channels."""
    conv = nn.Conv2d(width, wider, 3, stride=2, padding=1, dtype=dtype)
    return nn.Sequential(conv, *(_normalization(norm, wider, dtype) or (nn.ReLU(),)))


def _normalization(norm: str, width: int, dtype: torch.dtype) -> Sequence[nn.Module]:
    """Batch norm with its activation; nothing for "none"."""
    return (nn.BatchNorm2d(width, dtype=dtype), nn.ReLU()) if norm == "batch" else ()
