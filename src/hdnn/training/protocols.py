"""Protocols: named defaults for settings that are not set, from protocols.toml."""

from __future__ import annotations

import functools
import math
import tomllib
from pathlib import Path
from typing import Any, NamedTuple


class Protocol(NamedTuple):
    """How the networks of a table, or of a kind of data, are trained.

    Args:
        summary: what it is for, or what differs from the paper.
        model, training: settings of `ModelConfig` and `TrainingConfig` that differ from their
            defaults.
        cells: T, learning rate and padding by data/architecture/layers.
        restarts: initializations of a seed, of which the one with the lowest training loss is
            kept.
    """

    summary: str
    model: dict[str, Any]
    training: dict[str, Any]
    cells: dict[str, dict[str, Any]]
    restarts: int = 1

    def nearest(self, data: str, architecture: str, layers: int) -> dict[str, Any]:
        """The cell of these data and this architecture that is nearest in depth, or no settings.

        >>> protocols("table1")["tuned"].nearest("swiss-roll", "H1", 7)
        {'T': 0.4, 'learning_rate': 0.1, 'padding': 'append'}
        """
        depths = [
            int(depth)
            for name, network, depth in (cell.split("/") for cell in self.cells)
            if (name, network) == (data, architecture)
        ]
        if not depths:
            return {}
        depth = min(depths, key=lambda depth: abs(math.log2(depth / layers)))
        return self.cells[f"{data}/{architecture}/{depth}"]


@functools.cache
def protocols(table: str) -> dict[str, Protocol]:
    """The protocols of a table by name.

    Args:
        table: "table1", "table2", or "images" for those of `hdnn train`.

    >>> list(protocols("images"))
    ['paper', 'convolutional', 'convolutional-flipped']
    """
    entries = tomllib.loads(Path(__file__).with_name("protocols.toml").read_text("utf-8"))

    def protocol(entry: dict[str, Any]) -> Protocol:
        parts: dict[str, Any] = {"summary": "", "model": {}, "training": {}, "cells": {}}
        if "like" in entry:
            other, name = entry["like"].split(".")
            parts = protocol(entries[other][name])._asdict()
        for name in entry.keys() - {"like"}:
            value = entry[name]
            parts[name] = {**parts[name], **value} if isinstance(value, dict) else value
        return Protocol(**parts)

    return {name: protocol(entry) for name, entry in entries[table].items()}
