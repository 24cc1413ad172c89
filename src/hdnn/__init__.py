"""hdnn: Hamiltonian deep neural networks, very deep residual networks whose gradients stay alive.

>>> import hdnn, torch
>>> net = hdnn.network("H1", features=4, layers=64, T=1.2)
>>> net(torch.zeros(10, 4)).shape
torch.Size([10, 4])
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from hdnn.errors import HdnnError

if TYPE_CHECKING:
    from hdnn import fields, schemes, zoo
    from hdnn.estimators import HDNNClassifier, HDNNRegressor
    from hdnn.identification import SystemIdentifier
    from hdnn.models import Model, Padding, Scaler, image_model, load, save
    from hdnn.models.onnx_export import export_onnx
    from hdnn.networks import HamiltonianNetwork
    from hdnn.refinement import coarsen, refine
    from hdnn.reports import report
    from hdnn.statespace import StateSpace
    from hdnn.zoo import network

__version__ = "0.3.0"

__all__ = [
    "HDNNClassifier",
    "HDNNRegressor",
    "HamiltonianNetwork",
    "HdnnError",
    "Model",
    "Padding",
    "Scaler",
    "StateSpace",
    "SystemIdentifier",
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

# Loaded when first used: `hdnn --help` needs no torch, and `import hdnn` no scikit-learn.
_LAZY = {
    "estimators": ("HDNNClassifier", "HDNNRegressor"),
    "identification": ("SystemIdentifier",),
    "models": ("Padding", "Model", "Scaler", "image_model", "load", "save"),
    "models.onnx_export": ("export_onnx",),
    "networks": ("HamiltonianNetwork",),
    "refinement": ("coarsen", "refine"),
    "reports": ("report",),
    "statespace": ("StateSpace",),
    "zoo": ("network",),
}
_MODULES = {module.name for module in pkgutil.iter_modules(__path__)} - {"__main__"}
_INTERNAL = {"application", "cli", "errors", "files", "kernels", "networks", "notebooks"}
_INTERNAL |= {"playground", "progress", "refinement", "reports", "robots", "threads"}
"""Modules of which users need no more than what is listed above: completion leaves them out."""


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"hdnn.{module}"), name)
    if name in _MODULES:
        return importlib.import_module(f"hdnn.{name}")
    raise AttributeError(f"module 'hdnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *_MODULES - _INTERNAL})
