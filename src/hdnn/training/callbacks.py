"""Callbacks: what else may happen after an epoch."""

from __future__ import annotations

import csv
import functools
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from hdnn.errors import HdnnError, StorageError
from hdnn.training.trainer import EpochRecord, Trainer


class CsvLogger:
    """Appends the record of every epoch to a CSV file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.columns = [field.name for field in fields(EpochRecord)]
        self.fresh = True

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        try:
            if self.fresh:
                self._begin(record.epoch)
            with open(self.path, "a", newline="") as file:
                found: dict[str, Any] = record.to_dict()
                csv.writer(file).writerow([found.get(name, "") for name in self.columns])
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _begin(self, epoch: int) -> None:
        """Write the header, and of an earlier log what came before this epoch."""
        kept: list[list[str]] = []
        if self.path.exists():
            with open(self.path, newline="") as file:
                rows = list(csv.reader(file))[1:]
            kept = [row for row in rows if row and row[0].isdigit() and int(row[0]) < epoch]
        with open(self.path, "w", newline="") as file:
            csv.writer(file).writerows([self.columns, *kept])
        self.fresh = False


class TensorBoardLogger:
    """Writes the record of every epoch as TensorBoard scalars (package `tensorboard`)."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise HdnnError("TensorBoard logging needs: pip install tensorboard") from error
        self.open = functools.cache(lambda: SummaryWriter(str(folder)))  # with the first entry

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        writer = self.open()
        for name, value in record.to_dict().items():
            if name != "epoch":
                writer.add_scalar(name, value, record.epoch)
        writer.flush()
