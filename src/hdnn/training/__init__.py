"""How a model is trained: settings, objective, loops, the Trainer, run folders, the recorder."""

import hdnn.application  # noqa: F401 (first: it names the packages that are missing)

# isort: split
from hdnn.config import TrainingConfig
from hdnn.errors import DivergenceError
from hdnn.training.ensemble import train_ensemble
from hdnn.training.recorder import Recorder, Recording
from hdnn.training.trainer import Callback, EpochRecord, Trainer, load_state

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
