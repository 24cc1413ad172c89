"""The image classifier: what one trains and saves for pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError
from hdnn.models.image_config import ImageConfig
from hdnn.models.model import check_classes
from hdnn.network import HamiltonianNetwork
from hdnn.zoo import network

Label = str | int | float | bool


class ImageClassifier(nn.Module):
    """Pictures to classes: opening convolution, stages of Hamiltonian blocks, output layer.

        y_0 = conv(x),   y_N = stages(y_0),   logits = W y_N + mu

    The defaults are the paper's network (section 4.2): a 3x3 convolution to 8 channels (zero
    padding, with a bias), a block that mixes the channels at every pixel, and a linear output
    layer on all 8 x 28 x 28 values. Convolutions and output layer start as torch starts them.

    Args:
        config: the architecture, and what the pictures are like.
        classes: the labels, in the order of the outputs.
        generator: draws the initial weights; None is torch's default generator.
        dtype: of the weights.
        backend: of the Hamiltonian blocks, see `hdnn.HamiltonianNetwork`.

    >>> model = ImageClassifier(ImageConfig(architecture="H2", layers=4, step=0.05))
    >>> model(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([5, 10])
    >>> sum(p.numel() for p in model.parameters()) == 80 + 4 * (64 + 8) + 62730
    True
    """

    offset: Tensor
    gain: Tensor
    task = "classification"

    def __init__(
        self,
        config: ImageConfig | None = None,
        *,
        classes: Sequence[Label] | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.config = config = ImageConfig() if config is None else config
        if classes is not None and len(classes) != config.classes:
            raise HdnnError(f"{len(classes)} labels do not fit {config.classes} classes")
        check_classes(classes)
        self.classes = None if classes is None else list(classes)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        opening = nn.Conv2d(config.channels, config.widths[0], 3, padding=1, dtype=dtype)
        self.opening = nn.Sequential(opening, *_normalised(config, config.widths[0], dtype))
        self.blocks = nn.ModuleList(
            _block(config, stage, generator, dtype, backend) for stage in range(len(config.widths))
        )
        self.connectors = nn.ModuleList(
            _connector(config, a, b, dtype)
            for a, b in zip(config.widths, config.widths[1:], strict=False)
        )
        closing = _normalised(config, config.widths[-1], dtype) if config.head == "pool" else ()
        self.closing = nn.Sequential(*closing)
        self.head = nn.Linear(config.features, config.classes, dtype=dtype)
        one = (config.channels, 1, 1)
        mean = torch.tensor(config.mean or (0.0,) * config.channels, dtype=dtype).reshape(one)
        std = torch.tensor(config.std or (1.0,) * config.channels, dtype=dtype).reshape(one)
        # Constants of the config, so no part of a file.
        self.register_buffer("offset", -mean / std, persistent=False)
        self.register_buffer("gain", 1 / std, persistent=False)
        _initialise(self, generator)

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian blocks, in order."""
        return tuple(block for block in self.blocks if isinstance(block, HamiltonianNetwork))

    def check(self, x: Tensor) -> None:
        """Refuse pictures of another shape or type than the model's."""
        expected = (self.config.channels, *self.config.size)
        if x.ndim != 4 or tuple(x.shape[1:]) != expected:
            raise HdnnError(
                f"expected pictures (B, {', '.join(map(str, expected))}), got {tuple(x.shape)}"
            )
        if x.dtype not in (torch.uint8, self.head.weight.dtype):
            raise HdnnError(
                f"pictures are uint8 (0 to 255) or {self.head.weight.dtype} (0 to 1), got {x.dtype}"
            )

    def normalise(self, x: Tensor) -> Tensor:
        """Pictures as uint8 (0 to 255) or numbers (0 to 1), to numbers of mean 0 and spread 1."""
        gain = self.gain
        if x.dtype == torch.uint8:
            x, gain = x.to(gain.dtype), gain / 255
        return torch.addcmul(self.offset, x, gain)

    def ready(self, x: Tensor) -> Tensor:
        """What can be computed once, before the training: nothing, pictures stay uint8."""
        self.check(x)
        return x

    def enter(self, x: Tensor) -> Tensor:
        """y_0: pictures, normalised and through the opening convolution."""
        y: Tensor = self.opening[0](self.normalise(x))
        if self.config.kernel > 1:  # then all convolutions, and their gradients, are faster
            y = y.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.opening[1:](y)
        return out

    def entering(self, x: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian block with the state that enters it."""
        found, y = [], self.enter(x)
        for stage, block in enumerate(self.blocks):
            if isinstance(block, HamiltonianNetwork):
                found.append((block, y))
            y = block(y)
            y = self.connectors[stage](y) if stage < len(self.connectors) else y
        return found

    def values(self, x: Tensor) -> Tensor:
        """``(B, classes)``: logits of pictures that `ready` has seen."""
        y = self.enter(x)
        for stage, block in enumerate(self.blocks):
            y = block(y)
            y = self.connectors[stage](y) if stage < len(self.connectors) else y
        y = self.closing(y)
        y = y.mean((-2, -1)) if self.config.head == "pool" else y.flatten(1)
        out: Tensor = self.head(y)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """``(B, classes)``: logits of pictures ``(B, C, H, W)``."""
        self.check(x)
        return self.values(x)

    def probabilities(self, x: Tensor) -> Tensor:
        """``(B, classes)``: softmax of the logits."""
        logits: Tensor = self(x)
        return logits.softmax(-1)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class numbers ``(B,)``."""
        logits: Tensor = self(x)
        return logits.argmax(-1)

    def extra_repr(self) -> str:
        given = self.config
        shape = "x".join(map(str, (given.channels, *given.size)))
        stages = ", ".join(
            f"{w} channels x {n} layers" for w, n in zip(given.widths, given.layers, strict=True)
        )
        what = given.architecture if given.block == "hamiltonian" else "convolution"
        count = sum(p.numel() for p in self.parameters())
        return f"{shape} -> {given.classes}, {what}: {stages}, {count} parameters"


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
            parts += [
                nn.Conv2d(width, width, config.kernel, padding="same", dtype=dtype),
                nn.ReLU(),
            ]
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


def _normalised(config: ImageConfig, width: int, dtype: torch.dtype) -> tuple[nn.Module, ...]:
    if config.norm == "none":
        return ()
    if config.norm == "batch":
        return nn.BatchNorm2d(width, dtype=dtype), nn.ReLU()
    return nn.GroupNorm(math.gcd(width, 8), width, dtype=dtype), nn.ReLU()


def _connector(config: ImageConfig, width: int, wider: int, dtype: torch.dtype) -> nn.Module:
    stride = 2 if config.connector == "stride" else 1
    parts: list[nn.Module] = [
        nn.Conv2d(width, wider, 3, stride=stride, padding=1, dtype=dtype),
        *(_normalised(config, wider, dtype) or (nn.ReLU(),)),
    ]
    if config.connector == "pool":
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts)


@torch.no_grad()
def _initialise(model: ImageClassifier, generator: torch.Generator | None) -> None:
    """Torch's own initial values of convolutions and linear maps, from a generator."""
    for part in model.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5), generator=generator)
            bound = 1 / math.sqrt(part.weight[0].numel())
            assert part.bias is not None
            nn.init.uniform_(part.bias, -bound, bound, generator=generator)
