"""Presets for images: settings of model and training by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hdnn.errors import unknown_name

PAPER = {
    "method": "joint",
    "epochs": 40,
    "batch_size": 100,
    "learning_rate": 0.04,
    "schedule": "exponential",
    "decay": 0.8,
    "alpha": 1e-3,
    "alpha_c": 2e-4,
}
"""Appendix B.2; the weight decay is the output layer's, see docs/reproducing.md."""

_CONVOLUTIONAL = {
    "architecture": "MS1",
    "widths": [16, 32, 64],
    "layers": [0, 2, 2],
    "step": 0.5,
    "kernel": 3,
    "connector": "stride",
    "norm": "batch",
    "head": "linear",
}
_ONE_CYCLE = {
    "method": "joint",
    "epochs": 10,
    "batch_size": 100,
    "learning_rate": 0.005,
    "schedule": "one-cycle",
    "warmup": 1.0,
    "optimizer": "AdamW",
    "weight_decay": 0.01,
    "alpha": 0.0,
    "alpha_c": 0.0,
    "averaging": 0.999,
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"model": {}, "training": PAPER},
    # For images in which left and right mean something, as digits ...
    "convolutional": {
        "model": _CONVOLUTIONAL,
        "training": {**_ONE_CYCLE, "shift": 2, "rotate": 10.0, "zoom": 0.1},
    },
    # ... and for those that may be mirrored, as clothes.
    "convolutional-flipped": {
        "model": {**_CONVOLUTIONAL, "layers": [0, 3, 3]},
        "training": {**_ONE_CYCLE, "epochs": 8, "shift": 1, "flip": True},
    },
}
"""Settings of model and training by name; what is given besides replaces them."""


def with_preset(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a run config with the settings of their preset, "paper" where they name none."""
    model = dict(tables.get("model", {}))
    name = model.pop("preset", "paper")
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    preset = {**PRESETS[name]["model"]}
    if {"step", "T"} & model.keys() or model.get("block") == "convolution":
        preset.pop("step", None)
    training = {**PRESETS[name]["training"], **tables.get("training", {})}
    return {**tables, "model": {**preset, **model}, "training": training}
