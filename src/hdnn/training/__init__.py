"""How a model is trained: objective, output-layer solver, coordinate and joint descent."""

from hdnn.training.ensemble import CompiledEnsemble
from hdnn.training.settings import TrainingConfig
from hdnn.training.trainer import Callback, DivergenceError, Entry, Snapshot, Trainer

__all__ = [
    "Callback",
    "CompiledEnsemble",
    "DivergenceError",
    "Entry",
    "Snapshot",
    "Trainer",
    "TrainingConfig",
]
