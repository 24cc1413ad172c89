"""An input projection: a learned linear map in front of the network, for tables of many columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hdnn.errors import HdnnError

CHOICES = ("auto", "on", "off")
MOST_PADDED = 64
"""The most features that a network takes as they are, unless its width is given."""


class Projection(nn.Linear):
    """y_0 = P x + nu, so that the width of a network does not depend on the number of features.

    P starts as normal numbers of variance 1 / features (standardized columns give states of
    variance 1) and nu as 0.

    Args:
        features: width of the data.
        width: width of the network; an odd one is made even, as `Augmentation` does.
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
        for name, value in (("features", features), ("width", width)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise HdnnError(f"{name} is a positive integer, got {value!r}")
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

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to ``(..., width)``.

        Args:
            x: ``(..., features)``.

        Returns:
            ``(..., width)``.

        Raises:
            HdnnError: the last axis of ``x`` is not the features.
        """
        if x.ndim < 1 or x.shape[-1] != self.features:
            raise HdnnError(f"expected (..., {self.features}) features, got {tuple(x.shape)}")
        return super().forward(x)


def default_width(features: int, choice: str = "auto") -> int:
    """The width of a network that is not given one: the features and as many zeros, at most 32.

    Above 64 features, unless there is to be no projection, it stays at 64.

    >>> default_width(2), default_width(50), default_width(20_000)
    (4, 82, 64)
    """
    if features > MOST_PADDED and choice != "off":
        return MOST_PADDED
    return features + min(features, 32)


def needs_projection(choice: str, features: int, width: int) -> bool:
    """Whether a table of so many features enters a network through a projection.

    Args:
        choice: "auto" (where the features exceed the width), "on" or "off".
        features: width of the data.
        width: width of the network.

    >>> needs_projection("auto", 50, 16), needs_projection("auto", 2, 4)
    (True, False)
    """
    return choice == "on" or (choice == "auto" and features > width)
