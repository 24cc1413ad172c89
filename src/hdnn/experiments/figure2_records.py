"""Records of Figure 2: one training a line, and the curves of one seed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdnn.errors import FileFormatError, HdnnError
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

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the record of one training."""
        return (
            self.network, self.method, self.layers, self.T, self.alpha, self.every, self.seed,
        )  # fmt: skip


class Records:
    """``records.jsonl`` and ``curves.json`` of a folder; a training is done once."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path, self.curves = self.folder / "records.jsonl", self.folder / "curves.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HdnnError(f"cannot make {folder}: {error.strerror or error}") from error

    def read(self) -> dict[tuple[Any, ...], GradientRecord]:
        """All records by key; a last line that was cut off does not count."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = {}
        for number, line in enumerate(lines, 1):
            try:
                record = GradientRecord(**json.loads(line))
            except (ValueError, TypeError) as error:
                if number == len(lines):
                    break
                raise FileFormatError(f"{self.path}, line {number}: {error}") from error
            found[record.key] = record
        return found

    def add(self, records: Iterable[GradientRecord]) -> None:
        """Add records; the file is replaced whole."""
        found = {record.key: record for record in records} | self.read()
        ordered = sorted(found.values(), key=lambda record: record.key)
        with atomic(self.path) as temporary:
            temporary.write_text("".join(json.dumps(asdict(r)) + "\n" for r in ordered))

    def read_curves(self) -> dict[str, Any]:
        """Curves of the first seed by network: norms by iteration, for l = 1, 11, ..."""
        found: dict[str, Any] = json.loads(self.curves.read_text()) if self.curves.exists() else {}
        return found

    def add_curves(
        self, network: str, layers: int, seed: int, shown: list[int],
        norms: dict[str, np.ndarray], slopes: np.ndarray,
    ) -> None:  # fmt: skip
        """Add the curves of a network: norms ``(looks, layers)`` and slopes ``(looks,)``."""
        columns = {
            name: [[float(f"{x:.4g}") for x in row] for row in part[:, shown].T]
            for name, part in norms.items()
        }
        slope = [float(f"{x:.4g}") for x in slopes]
        entry = {"layers": layers, "seed": seed, "shown": shown, "gradient": slope, **columns}
        with atomic(self.curves) as temporary:
            temporary.write_text(json.dumps(self.read_curves() | {network: entry}) + "\n")
