"""Callbacks: what else may happen after an epoch."""

from __future__ import annotations

import csv
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from hdnn.errors import HdnnError
from hdnn.training.trainer import Entry, Trainer


class CsvLogger:
    """Appends every entry of the history to a CSV file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.columns = [field.name for field in fields(Entry)]

    def __call__(self, trainer: Trainer, entry: Entry) -> None:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        with open(self.path, "a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(self.columns)
            found: dict[str, Any] = entry.to_dict()
            writer.writerow([found.get(name, "") for name in self.columns])


class TensorBoardLogger:
    """Writes every entry of the history as TensorBoard scalars (package `tensorboard`)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise HdnnError("TensorBoard logging needs: pip install tensorboard") from error
        self.writer = SummaryWriter(str(folder))

    def __call__(self, trainer: Trainer, entry: Entry) -> None:
        for name, value in entry.to_dict().items():
            if name != "epoch":
                self.writer.add_scalar(name, value, entry.epoch)
        self.writer.flush()
