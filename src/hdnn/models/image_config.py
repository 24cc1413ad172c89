"""What an image classifier is made of: frozen records, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hdnn.errors import HdnnError, unknown_name
from hdnn.zoo import architecture

BLOCKS = ("hamiltonian", "convolution")
CONNECTORS = ("pool", "stride")
NORMS = ("none", "batch", "group")
HEADS = ("linear", "pool")


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The architecture, whatever the images; the defaults are section 4.2 of the paper.

    Args:
        architecture: of the Hamiltonian blocks: MS1, MS2, MS3, H1, H2, HS (or a baseline).
        widths, layers: channels and depth of every stage; depth 0 is a stage without a block.
        step, T: the step h, or the final time of every block (h = T / layers): one of the two.
        kernel: of K: 1 mixes the channels at every pixel, 3 (5, ...) is a convolution.
        block: "hamiltonian", or "convolution": plain layers y = relu(conv(y)) in its place.
        connector: from one stage to the next, half the resolution: "pool" (convolution, then
            2x2 maxima) or "stride" (a strided convolution).
        norm: after the opening convolution, in the connectors and before pooling: "none" (then the
            opening is linear, as the paper's), "batch" or "group".
        head: "linear" on all values (the paper's) or "pool": average over pixels, then linear.
        scale: of the initial K and b.
        time_invariant: the layers of a stage share their weights.

    Raises:
        HdnnError: a name is unknown, or widths, layers, steps do not fit.

    >>> from hdnn.models import ImageOptions
    >>> ImageOptions(architecture="MS1", widths=(16, 32), layers=(2, 2), kernel=3, step=0.3).widths
    (16, 32)
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "architecture", architecture(self.architecture).name)
        for name in ("widths", "layers"):
            given = getattr(self, name)
            given = (given,) if isinstance(given, int) else given
            low = 1 if name == "widths" else 0
            if (
                not isinstance(given, list | tuple)
                or not given
                or not all(_is_integer(value, low) for value in given)
            ):
                raise HdnnError(f"{name} are integers of at least {low}, got {given!r}")
            object.__setattr__(self, name, tuple(given))
        if len(self.widths) != len(self.layers):
            raise HdnnError(
                f"every stage has a width and a depth, got {len(self.widths)} widths "
                f"{self.widths} and {len(self.layers)} depths {self.layers}"
            )
        for name, known in (
            ("block", BLOCKS),
            ("connector", CONNECTORS),
            ("norm", NORMS),
            ("head", HEADS),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if not _is_integer(self.kernel, 1) or self.kernel % 2 == 0:
            raise HdnnError(f"kernel is an odd positive integer, got {self.kernel!r}")
        for name in ("step", "T", "scale"):
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise HdnnError(f"{name} is a positive number, got {value!r}")
        if not isinstance(self.time_invariant, bool):
            raise HdnnError(f"time_invariant is true or false, got {self.time_invariant!r}")
        self._check_step()

    def _check_step(self) -> None:
        if self.block == "convolution" or not architecture(self.architecture).scheme.uses_step:
            if self.step is not None or self.T is not None:
                raise HdnnError("these blocks have no step size: leave out step and T")
        elif self.step is not None and self.T is not None:
            raise HdnnError("give step (h) or T (h = T / layers), not both")
        elif self.step is None and self.T is None:
            # The paper's h; other networks are as sensitive as H2.
            object.__setattr__(self, "step", 0.4 if self.architecture == "MS1" else 0.05)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, without those that are None.

        Returns:
            Settings by name, for TOML or JSON.
        """
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ImageConfig(ImageOptions):
    """An architecture for certain images.

    Args:
        channels, size: of the images: C, and (H, W).
        classes: how many.
        mean, std: of the channels of images scaled to [0, 1]; empty for 0 and 1.
        architecture, widths, layers, step, T, kernel: as in `ImageOptions`.
        block, connector, norm, head, scale, time_invariant: as in `ImageOptions`.

    Raises:
        HdnnError: the shape of the images or the number of classes is impossible.

    >>> ImageConfig(architecture="MS1", layers=16).step
    0.4
    """

    channels: int = 1
    size: tuple[int, int] = (28, 28)
    classes: int = 10
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("size", "mean", "std"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise HdnnError(f"{name} is a sequence of numbers, got {given!r}")
            object.__setattr__(self, name, tuple(given))
        if not _is_integer(self.channels, 1) or not _is_integer(self.classes, 2):
            raise HdnnError(
                f"channels is at least 1 and classes at least 2, got {self.channels!r} and "
                f"{self.classes!r}"
            )
        if len(self.size) != 2 or not all(_is_integer(value, 1) for value in self.size):
            raise HdnnError(f"size is (height, width) in pixels, got {self.size!r}")
        if min(self.final_size) < 1:
            raise HdnnError(
                f"{len(self.widths)} stages halve {self.size} pixels too often; use fewer stages"
            )
        for name in ("mean", "std"):
            values = getattr(self, name)
            good = len(values) in (0, self.channels) and all(_is_number(v) for v in values)
            if not good or (name == "std" and not all(v > 0 for v in values)):
                raise HdnnError(
                    f"{name} has a number for each of {self.channels} channels, got {values!r}"
                )

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
        """How many values the output layer takes."""
        last = self.widths[-1]
        return last if self.head == "pool" else last * math.prod(self.final_size)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ImageConfig:
        """The config of plain values; an unknown name is an error that names the nearest.

        Args:
            values: settings by name.

        Returns:
            The config.

        Raises:
            HdnnError: a name is unknown, or a value impossible.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_name("image setting", name, known)
        return cls(**values)


def _is_integer(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: object) -> bool:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return good and math.isfinite(value)  # type: ignore[arg-type]


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]
