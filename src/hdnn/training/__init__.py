"""How a model is trained: resolved settings, objective, loops, the Trainer, run folders."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hdnn.application  # noqa: F401
from hdnn.errors import DivergenceError

if TYPE_CHECKING:
    from hdnn.config import TrainingConfig
    from hdnn.training.ensemble import Ensemble
    from hdnn.training.trainer import Callback, EpochRecord, Snapshot, Trainer

_LAZY = {
    "Callback": "hdnn.training.trainer",
    "Ensemble": "hdnn.training.ensemble",
    "EpochRecord": "hdnn.training.trainer",
    "Snapshot": "hdnn.training.trainer",
    "Trainer": "hdnn.training.trainer",
    "TrainingConfig": "hdnn.config",
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
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hdnn.training' has no attribute {name!r}")
