"""What is measured: networks and batches. Uses the public interface only, as versions share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hdnn


@dataclass(frozen=True)
class Case:
    """Forward and backward of one network, with all parameter gradients.

    Args:
        group: the part of the comparison that it belongs to.
        architecture, width, layers, ensemble: the network; ``width`` is channels for images.
        batch: samples (of every network of an ensemble); for images also ``pixels``.
        peers: what computes it, by name in `peers.PEERS`; "jax" is every worker with JAX.
    """

    group: str
    architecture: str
    width: int
    layers: int
    batch: int
    ensemble: int | None = None
    pixels: tuple[int, int] | None = None
    peers: tuple[str, ...] = ("fused", "reference")

    @property
    def name(self) -> str:
        """In words."""
        batch = f"batch {self.batch}"
        if self.pixels:
            batch = f"{self.batch} images of {' x '.join(map(str, self.pixels))}"
        many = f", {self.ensemble} networks" if self.ensemble else ""
        return f"{self.architecture}, n = {self.width}, {batch}, {self.layers} layers{many}"

    def network(self, **options: Any) -> hdnn.HamiltonianNetwork:
        """The network, always with the same parameters."""
        return hdnn.network(
            self.architecture,
            features=None if self.pixels else self.width,
            channels=self.width if self.pixels else None,
            layers=self.layers,
            T=1.2,
            ensemble=self.ensemble,
            generator=torch.Generator().manual_seed(0),
            scale=self.width**-0.5,
            dtype=torch.float32,
            **options,
        )

    def state(self, seed: int = 1) -> Tensor:
        """y_0, or with another seed a gradient with respect to y_N."""
        lead = () if self.ensemble is None else (self.ensemble,)
        shape = (*lead, self.batch, self.width, *(self.pixels or ()))
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float32)


_SMALL = ("fused", "jax", "loop", "reference")
_COMPILED = ("fused", "fused compiled", "compile")
CASES = (
    *(Case("small", a, 4, 64, 125, peers=_SMALL) for a in ("H1", "MS1", "MS3")),
    *(Case("ensemble", a, 4, 64, 125, ensemble=16, peers=_SMALL) for a in ("H1", "MS1", "MS3")),
    *(Case("shallow", "H1", 4, layers, 125, peers=_SMALL) for layers in (4, 16)),
    Case("shallow", "H1", 8, 16, 32, peers=_SMALL),
    Case("few", "H1", 64, 64, 1, peers=_SMALL),
    Case("medium", "H1", 32, 64, 125, peers=_SMALL),
    *(Case("images", a, 8, 16, 100, pixels=(28, 28), peers=_SMALL) for a in ("H2", "MS1")),
    Case("wide", "H1", 64, 64, 4096, peers=("auto", "loop", "reference")),
    Case("wide", "H1", 128, 16, 1000, peers=("auto", "jax", "loop", "reference")),
    Case("wide", "H1", 256, 16, 4096, peers=("auto", "loop", "reference", "lean")),
    # Apart: the fewer peers in a round, the closer in time they are measured.
    Case("compiled", "H1", 4, 64, 125, peers=_COMPILED),
    Case("compiled", "H2", 8, 16, 100, pixels=(28, 28), peers=_COMPILED),
)
"""The rows of the table in docs/performance.md."""

SWEEP = (
    *(Case("depth", "H1", 4, layers, 125) for layers in (4, 16, 64, 256, 1024)),
    *(Case("width", "H1", n, 16, 1024) for n in (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)),
)
"""Time against depth and width, for the figure."""

CROSSOVERS = tuple(
    Case("crossovers", architecture, n, layers, batch)
    for architecture in ("H1", "MS1", "H2")
    for batch, layers in ((125, 64), (1024, 16))
    for n in (64, 96, 128, 256, 512)
)
"""Up to which width the kernels win: the numbers behind the choice of `backend="auto"`."""
