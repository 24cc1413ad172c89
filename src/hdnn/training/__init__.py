"""How a model is trained: objective, output-layer solver, coordinate and joint descent."""

from hdnn.training.ensemble import CompiledEnsemble
from hdnn.training.ensembles import Ensemble
from hdnn.training.settings import TrainingConfig
from hdnn.training.trainer import Callback, DivergenceError, Entry, Snapshot, Trainer

__all__ = [
    "Callback",
    "CompiledEnsemble",
    "DivergenceError",
    "Ensemble",
    "Entry",
    "Snapshot",
    "Trainer",
    "TrainingConfig",
]
