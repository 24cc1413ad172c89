"""Stems: raw data to the state y_0 of the first block, for tables and for images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.data import ColumnEncoder
from hdnn.errors import HdnnError, unknown_name
from hdnn.models.image_config import ImageConfig
from hdnn.models.projection import Projection

MODES = ("append", "spread")


class Augmentation(nn.Module):
    """Widen features with zeros, so that the network has room (section 4.1 of the paper).

        append: (x, y) -> (x, y, 0, 0)      the paper's words
        spread: (x, y) -> (x, 0, 0, y)      the paper's code: half the features at either end

    Args:
        features: width of the data.
        width: width of the network (default: twice the features); an odd one is made even.
        mode: "append" or "spread".

    Raises:
        HdnnError: the mode is unknown, or the width is smaller than the features.

    >>> import torch
    >>> Augmentation(2, 4)(torch.tensor([1.0, 2.0]))
    tensor([1., 2., 0., 0.])
    >>> Augmentation(2, 4, mode="spread")(torch.tensor([1.0, 2.0]))
    tensor([1., 0., 0., 2.])
    """

    def __init__(self, features: int, width: int | None = None, mode: str = "append") -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_name("augmentation", mode, MODES)
        width = 2 * features if width is None else width
        for name, value in (("features", features), ("width", width)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HdnnError(f"{name} is a positive integer, got {value!r}")
        if width < features:
            raise HdnnError(
                f"width={width} is too small for {features} features; use at least {features}"
            )
        self.features, self.width, self.mode = features, width + width % 2, mode

    @property
    def places(self) -> list[int]:
        """Which entry of the state each feature becomes."""
        front = self.features if self.mode == "append" else (self.features + 1) // 2
        extra = self.width - self.features
        return [f if f < front else f + extra for f in range(self.features)]

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to ``(..., width)``.

        Args:
            x: ``(..., features)``.

        Returns:
            ``(..., width)``: the features and zeros.

        Raises:
            HdnnError: the last axis of ``x`` is not the features.
        """
        if x.ndim < 1 or x.shape[-1] != self.features:
            raise HdnnError(f"expected (..., {self.features}) features, got {tuple(x.shape)}")
        extra = self.width - self.features
        if self.mode == "append":
            return F.pad(x, (0, extra))
        front = (self.features + 1) // 2
        return F.pad(x[..., :front], (0, extra + self.features - front)) + F.pad(
            x[..., front:], (front + extra, 0)
        )

    def extra_repr(self) -> str:
        return f"{self.features} -> {self.width}, {self.mode}"


class Scaler(nn.Module):
    """(x - mean) / scale, column by column; a missing value becomes the mean.

    Args:
        mean, scale: ``(features,)``; a constant column has scale 1.

    >>> Scaler.fit(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))(torch.tensor([2.0, 5.0]))
    tensor([1., 0.])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    @classmethod
    def fit(cls, x: Tensor, weight: Tensor | None = None) -> Scaler:
        """The scaler that standardizes ``(samples, features)``, each sample with its weight.

        Args:
            x: ``(samples, features)``; NaN is left out.
            weight: ``(samples,)``, of at least 0; None: all the same.

        Returns:
            The scaler.
        """
        wide = x.to(torch.float64)
        w = torch.ones(len(x), dtype=torch.float64) if weight is None else weight.to(torch.float64)
        known = torch.isfinite(wide)
        shares = known * w[:, None]
        total = shares.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
        filled = torch.where(known, wide, 0.0)
        mean = (shares * filled).sum(0) / total
        variance = (shares * (filled - mean).square()).sum(0) / total
        # A column is constant where its spread is only rounding.
        constant = variance <= (1e-12 * mean.abs().clamp_min(1e-150)).square()
        scale = torch.where(constant, 1.0, variance.sqrt())
        return cls(mean.to(x.dtype), scale.to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)``, standardized.

        Args:
            x: ``(..., features)``.

        Returns:
            The same shape, standardized.
        """
        return torch.where(torch.isnan(x), 0.0, (x - self.mean) / self.scale)

    def extra_repr(self) -> str:
        return f"{len(self.mean)} features"


class Stem(nn.Module, ABC):
    """Raw data to y_0, in two parts: what is computed once, and what every iteration computes.

    ``stem(stem.prepare(x))`` is y_0. Before a training `prepare` is called once with all data;
    `forward` then holds what is trained, or would take more memory than the data.

    Args:
        shape: of one sample: ``(features,)``, or ``(C, H, W)``.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> model = hdnn.Model(net, 3)
    >>> model.stem.shape, model.stem(model.stem.prepare(torch.zeros(5, 4))).shape
    ((4,), torch.Size([5, 4]))
    """

    takes_images: ClassVar[bool]
    prepares_all = False
    """Whether `prepare` returns y_0, so that `forward` changes nothing and need not be called."""
    names: ClassVar[dict[str, str]]
    """Prefixes of names in a state dict, which are shorter than those of the modules."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    @property
    @abstractmethod
    def expansion(self) -> int:
        """How many numbers `forward` makes of a number that `prepare` returned."""

    @abstractmethod
    def check(self, x: Tensor, dtype: torch.dtype) -> None:
        """Raise HdnnError where training data have another shape or type than the model's.

        Args:
            x: the data.
            dtype: of the model.
        """

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """What can be computed once, before the training.

        Args:
            x: the data, as they come.

        Returns:
            What `forward` takes: y_0 of a table, images as they are.
        """

    @abstractmethod
    def forward(self, states: Tensor) -> Tensor:
        """y_0 of data that `prepare` has seen.

        Args:
            states: what `prepare` gave.

        Returns:
            y_0, ``(..., width)`` or ``(B, channels, H, W)``.
        """


class TableStem(Stem):
    """Columns of a table, standardized, and augmented or projected to the width of the network.

    Args:
        width: width of the network.
        augmentation: widens the data to that width; None where they agree.
        scaler: standardizes the data; None for none.
        encoder: made numbers of the columns of the table; None where they were numbers.
        projection: instead of the augmentation; it alone is trained.

    Raises:
        HdnnError: the widths do not fit.

    >>> import torch
    >>> from hdnn.models import TableStem
    >>> TableStem(4).prepare(torch.zeros(5, 4)).shape
    torch.Size([5, 4])
    """

    takes_images = False
    names: ClassVar[dict[str, str]] = {
        "scaler.": "stem.scaler.",
        "projection.": "stem.projection.",
        "network.": "stages.blocks.0.",
    }
    expansion = 1

    def __init__(
        self,
        width: int,
        augmentation: Augmentation | None = None,
        scaler: Scaler | None = None,
        encoder: ColumnEncoder | None = None,
        projection: Projection | None = None,
    ) -> None:
        if augmentation is not None and projection is not None:
            raise HdnnError("give an augmentation or a projection, not both")
        widened = augmentation if projection is None else projection
        if widened is not None and widened.width != width:
            raise HdnnError(
                f"the {type(widened).__name__.lower()} gives {widened.width} features, but the "
                f"network takes {width}"
            )
        features = width if widened is None else widened.features
        if scaler is not None and (scaler.mean.shape, scaler.scale.shape) != ((features,),) * 2:
            raise HdnnError(f"the scaler has {len(scaler.mean)} features, the data {features}")
        if encoder is not None and len(encoder.feature_names) != features:
            raise HdnnError(
                f"the encoder gives {len(encoder.feature_names)} features, the data have {features}"
            )
        super().__init__((features,))
        self.augmentation, self.scaler = augmentation, scaler
        self.encoder, self.projection = encoder, projection
        self.prepares_all = projection is None

    def check(self, x: Tensor, dtype: torch.dtype) -> None:
        if x.ndim != 2 or x.shape[1:] != self.shape:
            raise HdnnError(
                f"X must have {self.shape[0]} features a sample for this model, "
                f"got {tuple(x.shape)}"
            )
        if x.dtype != dtype:
            raise HdnnError(f"X is {x.dtype} but the model is {dtype}; convert one of them")

    def prepare(self, x: Tensor) -> Tensor:
        x = x if self.scaler is None else self.scaler(x)
        return x if self.augmentation is None else self.augmentation(x)

    def forward(self, states: Tensor) -> Tensor:
        return states if self.projection is None else self.projection(states)


class ImageStem(Stem):
    """Images, normalized and through the opening convolution; they wait as uint8.

    Args:
        config: what the images are like, and the width of the first stage.
        dtype: of the weights.

    >>> import hdnn, torch
    >>> model = hdnn.ImageClassifier(hdnn.ImageConfig(layers=2, step=0.1, channels=1, size=(8, 8)))
    >>> model.stem(model.stem.prepare(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))).shape
    torch.Size([5, 8, 8, 8])
    """

    takes_images = True
    names: ClassVar[dict[str, str]] = {
        "opening.": "stem.opening.",
        "blocks.": "stages.blocks.",
        "connectors.": "stages.connectors.",
        "closing.": "stages.closing.",
    }
    offset: Tensor
    gain: Tensor

    def __init__(self, config: ImageConfig, dtype: torch.dtype) -> None:
        super().__init__((config.channels, *config.size))
        self.config = config
        width, one = config.widths[0], (config.channels, 1, 1)
        opening = nn.Conv2d(config.channels, width, 3, padding=1, dtype=dtype)
        self.opening = nn.Sequential(opening, *normalization(config, width, dtype))
        mean = torch.tensor(config.mean or (0.0,) * config.channels, dtype=dtype).reshape(one)
        std = torch.tensor(config.std or (1.0,) * config.channels, dtype=dtype).reshape(one)
        # Constants of the config, so no part of a file.
        self.register_buffer("offset", -mean / std, persistent=False)
        self.register_buffer("gain", 1 / std, persistent=False)

    @property
    def expansion(self) -> int:
        return self.config.widths[0]

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

    def forward(self, states: Tensor) -> Tensor:
        y: Tensor = self.opening[0](self.normalize(states))
        if self.config.kernel > 1:  # then all convolutions, and their gradients, are faster
            y = y.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.opening[1:](y)
        return out


def normalization(config: ImageConfig, width: int, dtype: torch.dtype) -> Sequence[nn.Module]:
    """The normalization that a config asks for, with its activation; nothing for "none"."""
    if config.norm == "none":
        return ()
    if config.norm == "batch":
        return nn.BatchNorm2d(width, dtype=dtype), nn.ReLU()
    return nn.GroupNorm(math.gcd(width, 8), width, dtype=dtype), nn.ReLU()
