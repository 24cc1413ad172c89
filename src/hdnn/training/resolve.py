"""Defaults that depend on the data: for a planar problem, a table, a set of images.

With protocols.toml, the only place that has them, for the command line and the estimators alike.
docs/tables.md explains how the rules for tables were measured.
"""

from __future__ import annotations

import math
from typing import Any

from hdnn import zoo
from hdnn.config import (
    KINDS,
    PROTOCOLS,
    Config,
    ModelConfig,
    TrainingConfig,
    check_applies,
    complete,
)
from hdnn.data import Dataset
from hdnn.errors import HdnnError, shown, unknown_name
from hdnn.models import Scaler
from hdnn.schemes import named_scheme
from hdnn.training.build import is_projected
from hdnn.training.loops import check_settings
from hdnn.training.protocols import protocols

Values = dict[str, Any]
Pair = tuple[Values, Values]
"""Settings of model and training, by name."""

TIME = 1.2
"""The final time of the paper's planar networks, and of tables but for `TABLE_TIMES`."""

MOST_PADDED = 64
"""More features are projected to this width: up to it, a whole epoch runs in compiled code."""


def resolve(config: Config, data: Dataset) -> Config:
    """Choose the settings that were not set.

    Args:
        config: with the settings that a user set.
        data: what is trained on.

    Returns:
        A config with all settings that apply, and with place and digest of the data. Resolving it
        once more changes nothing.

    Raises:
        HdnnError: a setting that was set does not apply to these data.
    """
    names = PROTOCOLS[data.kind]
    protocol = config.protocol or names[0]
    if protocol not in names:
        raise unknown_name(f"protocol for {KINDS[data.kind]}", protocol, names)
    model, training = config.model.to_dict(), config.training.to_dict()
    if data.kind == "images":
        if config.record is not None:
            raise HdnnError("gradients are recorded for tables; see hdnn.analysis.watch for images")
        model, training = _images(model, training, protocol)
    else:
        for name in ("layers", "width"):
            if isinstance(model.get(name), tuple):
                value = shown(model[name])
                raise HdnnError(f"{name} is one number here, got {value}: lists are for images")
        rules = _planar if data.kind == "planar" else _table
        model, training = rules(model, training, protocol, data)
        model = {**_column_defaults(model, data), **model}
        projected = is_projected(model.get("projection", "auto"), data.X.shape[1], model["width"])
        model["projection"] = "on" if projected else "off"
    chosen_model = ModelConfig(**model)
    chosen_training = _smoothness(config, chosen_model, TrainingConfig(**training))
    check_applies(config.data, data.kind)
    check_applies(chosen_model, data.kind, config.model.model_fields_set)
    check_applies(chosen_training, data.kind, config.training.model_fields_set)
    described = config.data.replace(source=data.source, digest=data.digest)
    chosen_training = complete(chosen_training, data.kind)
    check_settings(chosen_training, data.kind)
    return Config(
        data=complete(described, data.kind),
        model=complete(chosen_model, data.kind),
        training=chosen_training,
        record=None if config.record is None else complete(config.record, data.kind),
    )


def _smoothness(config: Config, model: ModelConfig, training: TrainingConfig) -> TrainingConfig:
    """With alpha = 0 where no layers are kept alike; an error if another alpha was set.

    FCNN may have any: networks that are compared share their objective, whose penalty is 0 there.
    """
    convolution = model.block == "convolution"
    if not (convolution or model.time_invariant):
        return training
    if config.training.to_dict().get("alpha"):
        what = "has plain convolutions" if convolution else "shares its weights"
        raise HdnnError(
            "alpha (--alpha) is for Hamiltonian layers with weights of their own, and this network "
            f"{what}: leave it out"
        )
    return training.replace(alpha=0.0)


def _timed(model: Values) -> bool:
    """Whether T or step are set, or the architecture has no time."""
    scheme = named_scheme(
        model.get("scheme") or zoo.architecture(model.get("architecture", "H1")).scheme
    )
    return "T" in model or "step" in model or not scheme.uses_step


def default_width(features: int, projection: str) -> int:
    """The features and at most 32 zeros; more than 64 are projected, unless that is "off".

    >>> default_width(2, "auto"), default_width(50, "auto"), default_width(20_000, "auto")
    (4, 82, 64)
    """
    if features > MOST_PADDED and projection != "off":
        return MOST_PADDED
    return features + min(features, 32)


def _column_defaults(model: Values, data: Dataset) -> Values:
    """What planar problems and tables have in common."""
    return {
        "width": default_width(data.X.shape[1], model.get("projection", "auto")),
        "standardize": data.kind == "table",
        **({} if _timed(model) else {"T": TIME}),
    }


# --- planar problems ------------------------------------------------------------------------------


def _planar(model: Values, training: Values, protocol: str, data: Dataset) -> Pair:
    """As Table 1, whose protocols are of coordinate descent."""
    if training.get("method", "coordinate") != "coordinate":
        return model, training
    row, chosen = zoo.architecture(model.get("architecture", "H1")), protocols("table1")[protocol]
    # A network that Table 1 does not have takes the settings of the one nearest to it in depth.
    own = chosen.nearest(data.source, row.name, model.get("layers", ModelConfig().layers))
    rate = {"learning_rate": own["learning_rate"]} if own else {}
    names = {"padding"} if _timed(model) else {"padding", "T"}
    defaults = {name: own[name] for name in names & own.keys()}
    return {**defaults, **model}, {**chosen.training, **rate, **training}


# --- tables ---------------------------------------------------------------------------------------

TABLE_LAYERS = 8
TABLE_TIMES = {("H1", "classification"): 2.0}
"""The final time where it is not 1.2, by architecture and task; others were not tried on tables.

With 8 layers, H1 predicts as well at T = 3, where `hdnn advise` finds the steps too large.
"""

NARROW, WIDE = 400, 800
"""Between so many rows, the width rises from twice to four times the features."""

SMALL = 1000
"""Up to so many rows, numbers are float64."""

FULL_BATCH = {"coordinate": 500, "joint": 200}
"""Up to so many rows, they are one batch, ..."""

BATCH = 200
"""... and beyond in batches of so many."""

RATES = {"classification": 0.3, "regression": 0.4}
"""Times 1 / width: the learning rate of Adam, which the schedule brings to 0, ..."""

STEADY = 2 / 3
"""... and that part of it where the learning rate stays constant."""

FEW, MANY = 10, 100
"""Rows per feature. With few, a network learns a table by heart, and is too sure: ..."""

EPOCHS, LEAST_PENALTY, LARGEST_PENALTY = (35, 50), 0.01, 1.0
"""... so a classification has fewer epochs, and a larger penalty on the output layer."""


def table_width(rows: int, features: int) -> int:
    """Twice the features, from 8 to 64, up to 400 rows; from 800 on four times, from 32 to 64.

    It rises with the logarithm of the rows in between. More than 64 features are projected to 64.
    Up to 64 a whole epoch runs in compiled code, and a width of 96 predicts no better.

    >>> [table_width(rows, 6) for rows in (400, 600, 800)]
    [12, 18, 32]
    """
    share = between(rows, NARROW, WIDE)
    least, factor = 8 * 4**share, 2 * 2**share
    return 2 * round(max(least, min(factor * features, MOST_PADDED)) / 2)


def table_epochs(rows_per_feature: float) -> int:
    """35 epochs up to 10 rows per feature, 50 from 100 on, with the logarithm in between."""
    few, many = EPOCHS
    return round(few + (many - few) * between(rows_per_feature, FEW, MANY))


def table_penalty(rows_per_feature: float) -> float:
    """alpha_c: features per row, from 0.01 to 1, as of a normal prior of the same variance."""
    return max(LEAST_PENALTY, min(1 / rows_per_feature, LARGEST_PENALTY))


def between(value: float, low: float, high: float) -> float:
    """Where a value is on a logarithmic scale: 0 up to `low`, 1 from `high` on."""
    return min(max(math.log(value / low) / math.log(high / low), 0.0), 1.0)


def _table(model: Values, training: Values, protocol: str, data: Dataset) -> Pair:
    if protocol == "paper":
        return model, training
    rows, features = len(data.X), data.X.shape[1]
    case = str(model.get("architecture", "H1")), data.task
    defaults: Values = {"layers": TABLE_LAYERS}
    projected = model.get("projection") != "off"
    defaults["width"] = table_width(rows, features) if projected else default_width(features, "off")
    if not _timed(model) and case in TABLE_TIMES:
        defaults["T"] = TABLE_TIMES[case]
    model = {**defaults, **model}
    even = model["width"] + model["width"] % 2
    # 1 / sqrt(width) keeps K y as large as y.
    model = {"scale": float(even**-0.5), "dtype": _table_dtype(data), **model}
    # Solving the output layer for every batch, as the paper does, overfits small noisy tables.
    training = {"method": "joint", **training}
    cosine = training["method"] == "joint"
    training = {"schedule": "cosine" if cosine else "constant", **training}
    # A step of Adam moves every entry of K alike, so its norm by width times the learning rate.
    rate = RATES[data.task] / even * (STEADY if training["schedule"] == "constant" else 1)
    classifies = data.task == "classification"
    rules = {
        "batch_size": rows if rows <= FULL_BATCH[training["method"]] else BATCH,
        "learning_rate": rate,
        "alpha": 1e-3,
        "epochs": table_epochs(rows / features) if classifies else EPOCHS[1],
        "alpha_c": table_penalty(rows / features) if classifies else LEAST_PENALTY,
    }
    return model, {**rules, **training}


def _table_dtype(data: Dataset) -> str:
    """float64 for few rows, or where a column's mean would swallow its spread in float32."""
    scalers = [Scaler.fit(data.X, data.weight)]
    if data.task == "regression":
        scalers.append(Scaler.fit(data.y.double().reshape(len(data.y), -1), data.weight))
    offset = any(bool((s.mean.abs() > 1e3 * s.scale).any()) for s in scalers)
    return "float64" if len(data.X) <= SMALL or offset else "float32"


# --- images ---------------------------------------------------------------------------------------


def _images(model: Values, training: Values, protocol: str) -> Pair:
    chosen = protocols("images")[protocol]
    defaults = {"standardize": True, **chosen.model}
    for name in {"layers", "width"} & model.keys():
        if isinstance(model[name], int):
            model = {**model, name: (model[name],)}
    if {"step", "T"} & model.keys():
        defaults.pop("step", None)
    model = {**defaults, **model}
    if not _timed(model):
        model["step"] = 0.4 if model["architecture"] == "MS1" else 0.05  # section 4.2
    return model, {**chosen.training, **training}
