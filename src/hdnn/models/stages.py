"""Stages: Hamiltonian blocks one after the other, and what joins them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hdnn.models.image_config import ImageConfig
from hdnn.models.stems import normalization
from hdnn.networks import HamiltonianNetwork
from hdnn.zoo import network


class Stages(nn.Module):
    """y_0 to what the head takes: blocks, a connector between any two, and a closing.

    Args:
        blocks: at least one; Hamiltonian networks, or what stands in their place.
        connectors: one fewer than blocks.
        closing: layers after the last block.
        features: how many values a sample has in the end.

    >>> import hdnn, torch
    >>> block = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> hdnn.models.Stages([block], features=4)(torch.zeros(5, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        connectors: Sequence[nn.Module] = (),
        closing: Sequence[nn.Module] = (),
        *,
        features: int,
    ) -> None:
        super().__init__()
        self.blocks, self.connectors = nn.ModuleList(blocks), nn.ModuleList(connectors)
        self.closing, self.features = nn.Sequential(*closing), features
        self.closes = bool(closing)  # the call of an empty module takes a tenth of a small network

    @property
    def networks(self) -> tuple[HamiltonianNetwork, ...]:
        """The Hamiltonian blocks, in order."""
        return tuple(block for block in self.blocks if isinstance(block, HamiltonianNetwork))

    def block_inputs(self, y: Tensor) -> list[tuple[HamiltonianNetwork, Tensor]]:
        """Every Hamiltonian block with the state that enters it, given y_0.

        Args:
            y: y_0, ``(..., n)`` or ``(B, channels, H, W)``.

        Returns:
            Pairs of a block and its state.
        """
        inputs = []
        for number, block in enumerate(self.blocks):
            if number:
                y = self.connectors[number - 1](self.blocks[number - 1](y))
            if isinstance(block, HamiltonianNetwork):
                inputs.append((block, y))
        return inputs

    def forward(self, y: Tensor) -> Tensor:
        """``(..., features)`` of y_0.

        Args:
            y: y_0, ``(..., n)`` or ``(B, channels, H, W)``.

        Returns:
            ``(..., features)``: what the head takes.
        """
        blocks: Any = self._modules["blocks"]  # see `Model.logits`
        for number, block in enumerate(blocks):
            if number:
                y = self.connectors[number - 1](y)
            y = block(y)
        return self.closing(y) if self.closes else y


class PixelMean(nn.Module):
    """``(B, C, H, W)`` to ``(B, C)``: the mean over the pixels."""

    def forward(self, y: Tensor) -> Tensor:
        """The mean of every channel."""
        return y.mean((-2, -1))


def image_stages(
    config: ImageConfig, generator: torch.Generator | None, dtype: torch.dtype, backend: str
) -> Stages:
    """The stages of an image classifier, each at half the resolution of the one before.

    Args:
        config: widths, depths and kinds of blocks and connectors.
        generator: draws the initial weights of Hamiltonian blocks.
        dtype: of the weights.
        backend: of the Hamiltonian blocks.
    """
    widths = config.widths
    blocks = [_block(config, k, generator, dtype, backend) for k in range(len(widths))]
    connectors = [_connector(config, a, b, dtype) for a, b in pairwise(widths)]
    closing: Sequence[nn.Module] = [nn.Flatten()]
    if config.head == "pool":
        closing = [*normalization(config, widths[-1], dtype), PixelMean()]
    return Stages(blocks, connectors, closing, features=config.features)


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


def _connector(config: ImageConfig, width: int, wider: int, dtype: torch.dtype) -> nn.Module:
    stride = 2 if config.connector == "stride" else 1
    parts: list[nn.Module] = [
        nn.Conv2d(width, wider, 3, stride=stride, padding=1, dtype=dtype),
        *(normalization(config, wider, dtype) or (nn.ReLU(),)),
    ]
    if config.connector == "pool":
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts)
