"""How a model is trained: settings, objective, loops, the Trainer, run folders, the recorder."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hdnn.application  # noqa: F401
from hdnn.errors import DivergenceError

if TYPE_CHECKING:
    from hdnn.training.ensemble import Ensemble
    from hdnn.training.settings import TrainingConfig
    from hdnn.training.trainer import Callback, EpochRecord, Snapshot, Trainer

_LAZY = {
    "Callback": "trainer",
    "Ensemble": "ensemble",
    "EpochRecord": "trainer",
    "Snapshot": "trainer",
    "Trainer": "trainer",
    "TrainingConfig": "settings",
}

__all__ = [
    "Callback",
    "DivergenceError",
    "Ensemble",
    "EpochRecord",
    "Snapshot",
    "Trainer",
    "TrainingConfig",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"hdnn.training.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'hdnn.training' has no attribute {name!r}")
