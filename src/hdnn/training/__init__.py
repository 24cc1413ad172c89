"""How a model is trained: settings, objective, loops, the Trainer, run folders, the recorder."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import hdnn.application  # noqa: F401
from hdnn.config import TrainingConfig
from hdnn.errors import DivergenceError

if TYPE_CHECKING:
    from hdnn.training.ensemble import train_ensemble
    from hdnn.training.recorder import Recorder, Recording
    from hdnn.training.trainer import Callback, EpochRecord, Trainer, load_state

_LAZY = {
    "Callback": "trainer",
    "EpochRecord": "trainer",
    "Recorder": "recorder",
    "Recording": "recorder",
    "Trainer": "trainer",
    "load_state": "trainer",
    "train_ensemble": "ensemble",
}

__all__ = [
    "Callback",
    "DivergenceError",
    "EpochRecord",
    "Recorder",
    "Recording",
    "Trainer",
    "TrainingConfig",
    "load_state",
    "train_ensemble",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"hdnn.training.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'hdnn.training' has no attribute {name!r}")
