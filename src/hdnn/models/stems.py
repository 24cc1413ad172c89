"""Stems: raw data to the state y_0 of the first block; those of tables are here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError, is_count, unknown_name

MODES = ("append", "spread")


class Padding(nn.Module):
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
    >>> Padding(2, 4)(torch.tensor([1.0, 2.0]))
    tensor([1., 2., 0., 0.])
    >>> Padding(2, 4, mode="spread")(torch.tensor([1.0, 2.0]))
    tensor([1., 0., 0., 2.])
    """

    def __init__(self, features: int, width: int | None = None, mode: str = "append") -> None:
        super().__init__()
        if mode not in MODES:
            raise unknown_name("padding", mode, MODES)
        width = 2 * features if width is None else width
        _check_counts(features=features, width=width)
        if width < features:
            raise HdnnError(
                f"width={width} is too small for {features} features; use at least {features}"
            )
        self.features, self.width, self.mode = features, width + width % 2, mode

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to ``(..., width)``.

        Args:
            x: ``(..., features)``.

        Returns:
            ``(..., width)``: the features and zeros.

        Raises:
            HdnnError: the last axis of ``x`` is not the features.
        """
        _check_last_axis(x, self.features)
        front = self.features if self.mode == "append" else (self.features + 1) // 2
        zeros = x.new_zeros(*x.shape[:-1], self.width - self.features)
        return torch.cat([x[..., :front], zeros, x[..., front:]], -1)

    def extra_repr(self) -> str:
        return f"{self.features} -> {self.width}, {self.mode}"


class Scaler(nn.Module):
    """(x - mean) / scale, column by column; a missing value becomes the mean.

    Args:
        mean: ``(features,)``.
        scale: the standard deviations, ``(features,)``; 1 for a constant column.

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
        mean = (shares * torch.where(known, wide, 0.0)).sum(0) / total
        # 0 where missing: a huge mean, squared, is infinite, and 0 times that NaN.
        centered = torch.where(known, wide - mean, 0.0)
        variance = (shares * centered.square()).sum(0) / total
        # A column is constant where its spread is only the rounding of its mean: of a sum of n
        # numbers, log2(n) bits. 9e15 + 7 i, the numbers of orders, is not.
        rounding = 32 * torch.finfo(torch.float64).eps
        constant = variance <= (rounding * mean.abs().clamp_min(1e-150)).square()
        scale = torch.where(constant, 1.0, variance.sqrt())
        # A huge constant less its rounded mean is no small number: so its mean must be exact.
        mean += torch.where(constant, (shares * centered).sum(0) / total, 0.0)
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


class Projection(nn.Linear):
    """y_0 = P x + nu, so that the width of a network does not depend on the number of features.

    P starts as normal numbers of variance 1 / features (standardized columns give states of
    variance 1) and nu as 0.

    Args:
        features: width of the data.
        width: width of the network; an odd one is made even, as `Padding` does.
        generator: draws P; None is torch's default generator.
        dtype: of the weights.

    Raises:
        HdnnError: features or width is no positive integer.

    >>> Projection(50, 16)(torch.zeros(10, 50)).shape
    torch.Size([10, 16])
    """

    def __init__(
        self,
        features: int,
        width: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_counts(features=features, width=width)
        super().__init__(features, width + width % 2, dtype=dtype)
        with torch.no_grad():
            self.weight.normal_(std=1 / math.sqrt(features), generator=generator)
            self.bias.zero_()

    @property
    def features(self) -> int:
        """Width of the data."""
        return self.in_features

    @property
    def width(self) -> int:
        """Width of the network."""
        return self.out_features


class Stem(nn.Module, ABC):
    """From raw data to y_0 in two parts: what is computed once, and what in every iteration.

    ``stem(stem.prepare(x))`` is y_0. Training calls `prepare` once with all data; `forward` holds
    what is trained, or what would take more memory than the data.

    Args:
        shape: of one sample: ``(features,)``, or ``(C, H, W)``.

    Attributes:
        takes_images: whether the data are images.
        expansion: how many numbers `forward` makes of a number that `prepare` returned.

    >>> import hdnn, torch
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> model = hdnn.Model(net, 3)
    >>> model.stem.shape, model.stem(model.stem.prepare(torch.zeros(5, 4))).shape
    ((4,), torch.Size([5, 4]))
    """

    takes_images: bool = False
    expansion: int = 1

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    @abstractmethod
    def check(self, x: Tensor, dtype: torch.dtype) -> None:
        """Raise HdnnError for data of another shape or dtype than the model's.

        Args:
            x: the data.
            dtype: of the model.
        """

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """Compute what needs computing only once, before training.

        Args:
            x: the data.

        Returns:
            What `forward` takes: y_0 of a table, images as they are.
        """

    @abstractmethod
    def forward(self, prepared: Tensor) -> Tensor:
        """y_0 of prepared data.

        Args:
            prepared: what `prepare` gave.

        Returns:
            y_0, ``(..., width)`` or ``(B, channels, H, W)``.
        """


class TableStem(Stem):
    """Features of a table, standardized, and padded or projected to the width of the network.

    Args:
        width: width of the network.
        padding: widens the data with zeros to that width; None where they agree.
        scaler: standardizes the data; None leaves them as they are.
        projection: a learned linear map to that width, instead of padding.

    Raises:
        HdnnError: the widths do not fit.

    >>> import torch
    >>> from hdnn.models import TableStem
    >>> TableStem(4).prepare(torch.zeros(5, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        width: int,
        padding: Padding | None = None,
        scaler: Scaler | None = None,
        projection: Projection | None = None,
    ) -> None:
        if padding is not None and projection is not None:
            raise HdnnError("give padding or a projection, not both")
        widened = padding if projection is None else projection
        if widened is not None and widened.width != width:
            raise HdnnError(
                f"the {type(widened).__name__.lower()} gives {widened.width} features, but the "
                f"network takes {width}"
            )
        features = width if widened is None else widened.features
        if scaler is not None and (scaler.mean.shape, scaler.scale.shape) != ((features,),) * 2:
            raise HdnnError(f"the scaler has {len(scaler.mean)} features, the data {features}")
        super().__init__((features,))
        self.width = width
        self.padding, self.scaler, self.projection = padding, scaler, projection

    def check(self, x: Tensor, dtype: torch.dtype) -> None:
        _check_last_axis(x, *self.shape)
        if x.dtype != dtype:
            raise HdnnError(f"X is {x.dtype} but the model is {dtype}; convert one of them")

    def prepare(self, x: Tensor) -> Tensor:
        # The projection is not here: it is trained.
        x = x if self.scaler is None else self.scaler(x)
        return x if self.padding is None else self.padding(x)

    def forward(self, prepared: Tensor) -> Tensor:
        return prepared if self.projection is None else self.projection(prepared)


def _check_counts(**counts: object) -> None:
    for name, value in counts.items():
        if not is_count(value):
            raise HdnnError(f"{name} is a positive integer, got {value!r}")


def _check_last_axis(x: Tensor, features: int) -> None:
    if x.ndim < 1 or x.shape[-1] != features:
        raise HdnnError(f"expected (..., {features}) features, got {tuple(x.shape)}")
