"""Records of Figure 2: one training a line, and the curves of one seed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdnn.data.reading import reading, short
from hdnn.experiments.records import Store, is_of_type
from hdnn.files import atomic


@dataclass(frozen=True)
class GradientRecord:
    """One training.

    Args:
        network, layers, alpha, T, method, seed: which.
        every, looks: iterations between looks, and how many.
        minimum, maximum: of the norm of d y_N / d y_l of *single samples*, over all samples of the
            batches, looks and layers l = 0 .. N - 1.
        of_mean_minimum, of_mean_maximum: the same for the norm of the *mean* of d y_N / d y_l over
            a batch, which the paper's own code plots.
        smallest: the smallest singular value that occurred.
        shown: l = 1, 11, ...; for these, over samples and looks:
        shown_minimum, shown_maximum, shown_of_mean_maximum: the same intervals by l.
        shown_last: largest norm of a sample at the last look, by l.
        gradient: norm of the gradient of the objective, mean over the looks of every epoch.
        train_accuracy, test_accuracy: in the end, fractions.
        spread: how much weights vary over layers, mean_j ||K_j - mean K|| / ||mean K||.
        seconds: wall time a network.
    """

    network: str
    layers: int
    alpha: float
    T: float
    method: str
    seed: int
    every: int
    looks: int
    minimum: float
    maximum: float
    of_mean_minimum: float
    of_mean_maximum: float
    smallest: float
    shown: list[int]
    shown_minimum: list[float]
    shown_maximum: list[float]
    shown_of_mean_maximum: list[float]
    shown_last: list[float]
    gradient: list[float]
    train_accuracy: float
    test_accuracy: float
    spread: float
    seconds: float
    version: str

    def __post_init__(self) -> None:
        by_layer = (
            self.shown_minimum,
            self.shown_maximum,
            self.shown_of_mean_maximum,
            self.shown_last,
        )
        if any(len(values) != len(self.shown) for values in by_layer):
            raise ValueError("there is not one value for every layer that is shown")

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the record of one training."""
        return (self.network, self.method, self.layers, self.T, self.alpha, self.every, self.seed)


class Records(Store[GradientRecord]):
    """``records.jsonl`` and ``curves.json`` of a folder; a training is done once."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder, GradientRecord)
        self.curves = self.folder / "curves.json"

    def read_curves(self) -> dict[str, Any]:
        """Curves of the first seed by network: norms by iteration, for l = 1, 11, ...

        Raises:
            FileFormatError: the file is damaged.
        """
        if not self.curves.exists():
            return {}
        remedy = "remove it, and `hdnn reproduce figure2` will make it again"
        with reading(self.curves, "curves", remedy):
            curves: dict[str, Any] = json.loads(self.curves.read_bytes())
            for entry in curves.values():
                _check_curves(entry)
        return curves

    def add_curves(
        self,
        network: str,
        layers: int,
        seed: int,
        shown: list[int],
        norms: dict[str, np.ndarray],
        slopes: np.ndarray,
    ) -> None:
        """Add the curves of a network: norms ``(looks, layers)`` and slopes ``(looks,)``."""
        columns = {
            name: [[float(f"{x:.4g}") for x in row] for row in part[:, shown].T]
            for name, part in norms.items()
        }
        slope = [float(f"{x:.4g}") for x in slopes]
        entry = {"layers": layers, "seed": seed, "shown": shown, "gradient": slope, **columns}
        with self.locked():
            curves = self.read_curves() | {network: entry}
            with atomic(self.curves) as temporary:
                temporary.write_text(json.dumps(curves) + "\n")


def _check_curves(entry: Any) -> None:
    """Raise an error where an entry of curves.json is not what `add_curves` writes."""
    lines = list[list[float]]
    types = {
        "layers": int,
        "seed": int,
        "shown": list[int],
        "gradient": list[float],
        "mean": lines,
        "of_mean": lines,
    }
    for name, kind in types.items():
        if not is_of_type(entry[name], kind):
            raise TypeError(f"{name} is {short(entry[name])}")
    if not len(entry["shown"]) == len(entry["mean"]) == len(entry["of_mean"]):
        raise ValueError("there is not one curve for every layer that is shown")
