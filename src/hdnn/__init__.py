"""hdnn: Hamiltonian deep neural networks, very deep residual networks whose gradients stay alive.

>>> import hdnn, torch
>>> net = hdnn.network("H1", features=4, layers=64, T=1.2)
>>> net(torch.zeros(10, 4)).shape
torch.Size([10, 4])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from hdnn import fields, schemes, zoo
    from hdnn.estimators import HDNNClassifier, HDNNRegressor
    from hdnn.models import (
        Augmentation,
        Model,
        Scaler,
        image_model,
        load,
        save,
    )
    from hdnn.models.export import export_onnx
    from hdnn.networks import HamiltonianNetwork
    from hdnn.refinement import coarsen, refine
    from hdnn.reports import report
    from hdnn.zoo import network

__version__ = "0.2.0"

# Loaded when first used: `hdnn --help` needs no torch, and `import hdnn` no scikit-learn.
_LAZY = {
    "Augmentation": "models",
    "HDNNClassifier": "estimators",
    "HDNNRegressor": "estimators",
    "HamiltonianNetwork": "networks",
    "Model": "models",
    "Scaler": "models",
    "coarsen": "refinement",
    "export_onnx": "models.export",
    "image_model": "models",
    "load": "models",
    "network": "zoo",
    "refine": "refinement",
    "report": "reports",
    "save": "models",
}
_MODULES = (
    "analysis",
    "backends",
    "data",
    "estimators",
    "fields",
    "models",
    "plots",
    "program",
    "schemes",
    "refinement",
    "reports",
    "training",
    "zoo",
)

__all__ = [
    "Augmentation",
    "HDNNClassifier",
    "HDNNRegressor",
    "HamiltonianNetwork",
    "HdnnError",
    "Model",
    "Scaler",
    "coarsen",
    "export_onnx",
    "fields",
    "image_model",
    "load",
    "network",
    "refine",
    "report",
    "save",
    "schemes",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"hdnn.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"hdnn.{name}")
    raise AttributeError(f"module 'hdnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
