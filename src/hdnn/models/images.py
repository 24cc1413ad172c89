"""Models for images: an opening convolution, stages of Hamiltonian blocks, a linear head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, unknown_name
from hdnn.models.model import Blocks, Label, Model
from hdnn.models.stems import Stem
from hdnn.zoo import architecture, network

BLOCKS = ("hamiltonian", "convolution")
CONNECTORS = ("pool", "stride")
NORMS = ("none", "batch", "group")
HEADS = ("linear", "pool")


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The architecture of an image classifier; the defaults are section 4.2 of the paper.

    Args:
        architecture: of the Hamiltonian blocks: MS1, MS2, MS3, H1, H2, HS (or a baseline).
        widths, layers: channels and depth of every stage; depth 0 is a stage without a block.
        step, T: the step h, or the final time of every block (h = T / layers): one of the two;
            neither: h = 0.4 for MS1 and 0.05 for the others.
        kernel: of K: 1 mixes the channels at every pixel, 3 (5, ...) is a convolution.
        block: "hamiltonian", or "convolution": plain layers y = relu(conv(y)) in its place.
        connector: from one stage to the next, half the resolution: "pool" (convolution, then
            2x2 maxima) or "stride" (a strided convolution).
        norm: after the opening convolution, in the connectors and before pooling: "none" (then the
            opening is linear, as the paper's), "batch" or "group".
        head: "linear" on all values (the paper's) or "pool": average over pixels, then linear.
        scale: of the initial K and b.
        time_invariant: the layers of a stage share their weights.
        channels, size: of the images: C, and (H, W).
        classes: how many.
        mean, std: of the channels of images scaled to [0, 1]; empty for 0 and 1.

    Raises:
        HdnnError: a name is unknown, or sizes do not fit.

    >>> ImageConfig(architecture="MS1", widths=(16, 32), layers=(2, 2), kernel=3).step
    0.4
    """

    architecture: str = "H2"
    widths: tuple[int, ...] = (8,)
    layers: tuple[int, ...] = (4,)
    step: float | None = None
    T: float | None = None
    kernel: int = 1
    block: str = "hamiltonian"
    connector: str = "pool"
    norm: str = "none"
    head: str = "linear"
    scale: float = 1.0
    time_invariant: bool = False
    channels: int = 1
    size: tuple[int, int] = (28, 28)
    classes: int = 10
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("architecture", architecture(self.architecture).name)
        for name, known in (
            ("block", BLOCKS),
            ("connector", CONNECTORS),
            ("norm", NORMS),
            ("head", HEADS),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name, low in (("widths", 1), ("layers", 0), ("size", 1)):
            put(name, _integers(name, getattr(self, name), low))
        for name, low in (("kernel", 1), ("channels", 1), ("classes", 2)):
            _integers(name, getattr(self, name), low)
        for name in ("step", "T", "scale"):
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise HdnnError(f"{name} is a positive number, got {value!r}")
        put("step", self._checked_step())
        self._check_stages()
        for name in ("mean", "std"):
            put(name, self._statistics(name))

    def _checked_step(self) -> float | None:
        if self.block == "convolution" or not architecture(self.architecture).scheme.uses_step:
            if self.step is not None or self.T is not None:
                raise HdnnError("these blocks have no step size: leave out step and T")
        elif self.step is not None and self.T is not None:
            raise HdnnError("give step (h) or T (h = T / layers), not both")
        elif self.T is None and self.step is None:
            # The paper's h; other networks are as sensitive as H2.
            return 0.4 if self.architecture == "MS1" else 0.05
        return self.step

    def _check_stages(self) -> None:
        if len(self.widths) != len(self.layers):
            raise HdnnError(
                f"every stage has a width and a depth, got {len(self.widths)} widths "
                f"{self.widths} and {len(self.layers)} depths {self.layers}"
            )
        if self.kernel % 2 == 0:
            raise HdnnError(f"kernel is an odd positive integer, got {self.kernel!r}")
        if len(self.size) != 2:
            raise HdnnError(f"size is (height, width) in pixels, got {self.size!r}")
        if min(self.final_size) < 1:
            raise HdnnError(
                f"{len(self.widths)} stages halve {self.size} pixels too often; use fewer stages"
            )

    def _statistics(self, name: str) -> tuple[float, ...]:
        values = tuple(getattr(self, name))
        good = _is_positive if name == "std" else _is_number
        if len(values) not in (0, self.channels) or not all(good(value) for value in values):
            raise HdnnError(
                f"{name} has a number for each of {self.channels} channels, got {values!r}"
            )
        return values

    @property
    def final_size(self) -> tuple[int, int]:
        """(H, W) of the last stage; every connector halves, an odd rest is dropped by pooling."""
        height, width = self.size
        for _ in self.widths[1:]:
            up = self.connector == "stride"
            height, width = (height + up) // 2, (width + up) // 2
        return height, width

    @property
    def features(self) -> int:
        """How many values the head takes."""
        last = self.widths[-1]
        return last if self.head == "pool" else last * math.prod(self.final_size)


def _integers(name: str, given: object, low: int) -> tuple[int, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < low for v in values):
        raise HdnnError(f"{name} is an integer of at least {low}, or several, got {given!r}")
    return values


def _is_number(value: object) -> bool:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return good and math.isfinite(value)  # type: ignore[arg-type]


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


class ImageStem(Stem):
    """Images, normalized and through the opening convolution; they wait as uint8.

        y_0 = conv((x - mean) / std)

    Args:
        channels, size: of the images: C, and (H, W).
        width: channels of y_0.
        mean, std: of the channels of images scaled to [0, 1]; empty for 0 and 1.
        norm: after the convolution: "none", "batch" or "group".
        channels_last: how y_0 lies in memory: right where blocks are convolutions.
        dtype: of the weights.

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
        super().__init__((channels, *size))
        self.expansion = self.width = width
        self.mean, self.std, self.norm, self.channels_last = mean, std, norm, channels_last
        opening = nn.Conv2d(channels, width, 3, padding=1, dtype=dtype)
        self.opening = nn.Sequential(opening, *_normalization(norm, width, opening.weight.dtype))
        shape, weight = (channels, 1, 1), opening.weight
        center = weight.new_tensor(mean).reshape(shape) if mean else weight.new_zeros(shape)
        spread = weight.new_tensor(std).reshape(shape) if std else weight.new_ones(shape)
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
        self.check(x, self.gain.dtype)
        return x

    def normalize(self, x: Tensor) -> Tensor:
        """Images as uint8 (0 to 255) or numbers (0 to 1), to numbers of mean 0 and spread 1.

        Args:
            x: images ``(B, C, H, W)``.

        Returns:
            ``(B, C, H, W)`` in the model's dtype.
        """
        gain = self.gain
        if x.dtype == torch.uint8:
            x, gain = x.to(gain.dtype), gain / 255
        return torch.addcmul(self.offset, x, gain)

    def forward(self, prepared: Tensor) -> Tensor:
        y: Tensor = self.opening[0](self.normalize(prepared))
        if self.channels_last:  # then all convolutions, and their gradients, are faster
            y = y.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.opening[1:](y)
        return out


class PixelMean(nn.Module):
    """``(B, C, H, W)`` to ``(B, C)``: the mean over the pixels."""

    def forward(self, y: Tensor) -> Tensor:
        """The mean of every channel."""
        return y.mean((-2, -1))


def ImageClassifier(  # noqa: N802 (a constructor of Model)
    config: ImageConfig | None = None,
    *,
    classes: Sequence[Label] | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Model:
    """A model for images: opening convolution, stages of Hamiltonian blocks, linear head.

        y_0 = conv(x),   y_N = blocks(y_0),   logits = W y_N + mu

    The defaults are the paper's network (section 4.2): a 3x3 convolution to 8 channels (zero
    padding, with a bias), a block that mixes the channels at every pixel, and a linear head on all
    8 x 28 x 28 values. Convolutions and head start as torch starts them.

    Args:
        config: the architecture, and what the images are like.
        classes: the labels, in the order of the outputs.
        generator: draws the initial weights; None is torch's default generator.
        dtype: of the weights.
        backend: of the Hamiltonian blocks, see `hdnn.HamiltonianNetwork`.

    Returns:
        A `Model` that takes images ``(B, C, H, W)``, uint8 (0 to 255) or of its dtype (0 to 1).

    Raises:
        HdnnError: the labels do not fit the config.

    >>> model = ImageClassifier(ImageConfig(architecture="H2", layers=4, step=0.05))
    >>> model(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([5, 10])
    >>> sum(p.numel() for p in model.parameters()) == 80 + 4 * (64 + 8) + 62730
    True
    """
    config = ImageConfig() if config is None else config
    dtype = torch.get_default_dtype() if dtype is None else dtype
    widths = config.widths
    stem = ImageStem(
        config.channels,
        config.size,
        widths[0],
        mean=config.mean,
        std=config.std,
        norm=config.norm,
        channels_last=config.kernel > 1,
        dtype=dtype,
    )
    blocks = [_block(config, stage, generator, dtype, backend) for stage in range(len(widths))]
    connectors = [_connector(config, *pair, dtype) for pair in pairwise(widths)]
    closing: list[nn.Module] = [nn.Flatten()]
    if config.head == "pool":
        closing = [*_normalization(config.norm, widths[-1], dtype), PixelMean()]
    joined = [part for pair in zip(blocks, connectors, strict=False) for part in pair]
    body = Blocks(*joined, blocks[-1], *closing, features=config.features)
    model = Model(body, config.classes, classes=classes, stem=stem)
    # Blocks before connectors: the order of the draws, not that of the layers.
    for part in (stem, *blocks, *connectors, model.head):
        _initialize(part, generator)
    return model


@torch.no_grad()
def _initialize(module: nn.Module, generator: torch.Generator | None) -> None:
    """Torch's own initial values of convolutions and linear maps, from a generator."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(part.weight[0].numel())
            assert part.bias is not None
            nn.init.uniform_(part.bias, -bound, bound, generator=generator)


def _block(
    config: ImageConfig,
    stage: int,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    backend: str,
) -> nn.Module:
    width, layers = config.widths[stage], config.layers[stage]
    if layers == 0:
        return nn.Identity()
    if config.block == "convolution":
        parts: list[nn.Module] = []
        for _ in range(layers):
            conv = nn.Conv2d(width, width, config.kernel, padding=config.kernel // 2, dtype=dtype)
            parts += [conv, nn.ReLU()]
        return nn.Sequential(*parts)
    return network(
        config.architecture,
        channels=width,
        layers=layers,
        step=config.step,
        T=config.T,
        time_invariant=config.time_invariant,
        backend=backend,
        generator=generator,
        scale=config.scale,
        dtype=dtype,
        kernel=config.kernel,
    )


def _connector(config: ImageConfig, width: int, wider: int, dtype: torch.dtype) -> nn.Module:
    stride = 2 if config.connector == "stride" else 1
    parts: list[nn.Module] = [
        nn.Conv2d(width, wider, 3, stride=stride, padding=1, dtype=dtype),
        *(_normalization(config.norm, wider, dtype) or (nn.ReLU(),)),
    ]
    if config.connector == "pool":
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts)


def _normalization(norm: str, width: int, dtype: torch.dtype) -> Sequence[nn.Module]:
    """A normalization with its activation; nothing for "none"."""
    if norm == "none":
        return ()
    if norm == "batch":
        return nn.BatchNorm2d(width, dtype=dtype), nn.ReLU()
    return nn.GroupNorm(math.gcd(width, 8), width, dtype=dtype), nn.ReLU()
