"""Where the width n of a state lives, and how a state of any batch shape becomes a canonical one.

    features   (..., n)               ->  ([E,] B, n)
    channels   ([E,] B, n, *spatial)  ->  itself

So the width of a canonical state always comes right after its samples: fields, schemes and backends
need no other distinction between features and channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hdnn.errors import HdnnError, is_count

Restore = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """The width of a state, and the size of an ensemble, if any.

    Args:
        width: the number n of features or channels of a state.
        channels: True for states ``(B, n, *spatial)``, False for states ``(..., n)``.
        ensemble: the number E of networks that run side by side, or None for a single network.
        spatial: the number of axes after the channels; None allows any number.

    >>> import hdnn
    >>> print(hdnn.network("H1", channels=8, layers=2, T=1.0).field.layout)
    channels=8
    """

    width: int
    channels: bool = False
    ensemble: int | None = None
    spatial: int | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """``(E,)``, or nothing for a single network."""
        return () if self.ensemble is None else (self.ensemble,)

    @property
    def axis(self) -> int:
        """The axis of the width in a canonical state."""
        return 1 if self.ensemble is None else 2

    def check(self, y: Tensor) -> None:
        """Raise for a state of another shape.

        Args:
            y: a state.

        Raises:
            HdnnError: its shape is not this layout's.
        """
        least = len(self.lead) + (2 if self.channels else 1)
        place = self.axis if self.channels else -1
        fits = y.ndim >= least and y.shape[place] == self.width
        fits = fits and (self.spatial is None or y.ndim == least + self.spatial)
        if not fits or (self.ensemble is not None and y.shape[0] not in (1, self.ensemble)):
            spatial = "*spatial" if self.spatial is None else "height, width"
            own = f"B, {self.width}, {spatial}" if self.channels else f"..., {self.width}"
            if self.ensemble is not None:
                own = f"{self.ensemble}, {own}), or for one batch for all networks (1, {own}"
            raise HdnnError(f"the state must have shape ({own}), got {tuple(y.shape)}")

    def flatten(self, y: Tensor) -> tuple[Tensor, Restore]:
        """The canonical form of a state, and the function that undoes it.

        Args:
            y: a state as the user gives it.

        Returns:
            The canonical state, and a function that brings one back to the shape of y.

        Raises:
            HdnnError: the shape of y is not this layout's.
        """
        if y.ndim == 2 and self.ensemble is None and not self.channels and y.shape[1] == self.width:
            return y, unchanged  # the most frequent case first: this runs at every call
        self.check(y)
        if self.ensemble is not None and y.shape[0] != self.ensemble:
            y = y.expand(self.ensemble, *y.shape[1:])  # one batch for all
        shape = y.shape
        if self.channels or y.ndim == len(self.lead) + 2:
            return y, unchanged
        return y.reshape(*self.lead, -1, self.width), lambda x: x.reshape(shape)

    def of_samples(self, values: Tensor, y: Tensor) -> Tensor:
        """One number for every sample, in the batch shape of a state.

        Args:
            values: ``([E,] B)``.
            y: the state.

        Returns:
            ``([E,] ...)``.
        """
        lead = self.lead
        return values if self.channels else values.reshape((*lead, *y.shape[len(lead) : -1]))

    def __str__(self) -> str:
        text = f"{'channels' if self.channels else 'features'}={self.width}"
        return text if self.ensemble is None else f"{text}, ensemble={self.ensemble}"


def unchanged(x: Tensor) -> Tensor:
    """The identity: what undoes `Layout.flatten` where a state was canonical."""
    return x


def layout_of(
    features: int | None,
    channels: int | None,
    ensemble: int | None = None,
    spatial: int | None = None,
) -> Layout:
    """The layout of ``features=n`` or ``channels=n``: exactly one of the two is given."""
    if (features is None) == (channels is None):
        raise HdnnError(
            "give exactly one of features, states (..., n), and channels, states (B, n, *spatial); "
            f"got features={features}, channels={channels}"
        )
    sizes = {"features": features, "channels": channels, "ensemble": ensemble}
    for name, size in sizes.items():
        if size is not None and not is_count(size):
            raise HdnnError(f"{name} must be a positive integer, got {size!r:.40}")
    return Layout(features or channels or 0, features is None, ensemble, spatial)
