"""What stands around the network: feature augmentation."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.errors import HdnnError, unknown_name

MODES = ("append", "spread")


class Augmentation(nn.Module):
    """Widen features with zeros, so that the network has room (section 4.1 of the paper).

        append: (x, y) -> (x, y, 0, 0)      the paper's words
        spread: (x, y) -> (x, 0, 0, y)      the paper's code: half the features at either end

    Args:
        features: width of the data.
        width: width of the network (default: twice the features); an odd one is made even.
        mode: "append" or "spread".

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
        if features < 1:
            raise HdnnError(f"features is a positive integer, got {features}")
        width = 2 * features if width is None else width
        if width < features:
            raise HdnnError(
                f"width={width} is too small for {features} features; use at least {features}"
            )
        self.features, self.width, self.mode = features, width + width % 2, mode

    def forward(self, x: Tensor) -> Tensor:
        """``(..., features)`` to ``(..., width)``."""
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
