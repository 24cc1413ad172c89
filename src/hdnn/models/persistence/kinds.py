"""What files hold, as schemas: networks with their schemes, fields and J, and models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hdnn import schemes
from hdnn.data import ColumnEncoder
from hdnn.errors import FileFormatError, HdnnError
from hdnn.fields import (
    ACTIVATIONS,
    STRUCTURES,
    ActivationField,
    Field,
    Fixed,
    HamiltonianField,
    Interconnection,
    InverseTranspose,
    Learned,
    Pattern,
    Weights,
)
from hdnn.fields.hamiltonian import WeightedField
from hdnn.fields.weights import structure_of
from hdnn.models.image_config import ImageConfig
from hdnn.models.model import ImageClassifier, Model
from hdnn.models.persistence.checks import (
    Tensors,
    count,
    expect,
    flag,
    floating,
    optional,
    short,
    text,
    whole,
)
from hdnn.models.persistence.schema import Argument, Choice, Schema, attribute, of_dataclass
from hdnn.models.projection import Projection
from hdnn.models.stems import Augmentation, Scaler
from hdnn.networks import HamiltonianNetwork

# --- schemes --------------------------------------------------------------------------------------


def _schemes() -> dict[str, tuple[type, Schema]]:
    named = [kind for kind in schemes.SCHEMES.values() if isinstance(kind, type)]
    types = [*named, schemes.DirectMap, schemes.Splitting]
    return {t.__name__: (t, of_dataclass(t)) for t in types if dataclasses.is_dataclass(t)}


def _refuse_scheme(scheme: schemes.Scheme) -> str:
    name = type(scheme).__name__
    return (
        f"{name} is not in hdnn.schemes.SCHEMES, so a file could not name it; "
        f"register it there: SCHEMES[{name!r}] = {name}"
    )


SCHEME = Choice("scheme", _schemes, _refuse_scheme)

# --- J: as a function of the weights, whose width and dtype it has --------------------------------

MakeInterconnection = Callable[[Weights], Interconnection]


def _make_fixed(tensors: Tensors, *, name: str) -> MakeInterconnection:
    J = floating(tensors["field.interconnection.J"], "J")
    return lambda weights: Fixed(J, name=name)


def _make_learned(
    tensors: Tensors, *, structure: str, layers: int | None, ensemble: bool
) -> MakeInterconnection:
    def make(weights: Weights) -> Learned:
        width, members = weights.layout.width, weights.layout.ensemble if ensemble else None
        lead = (layers or 1,) if members is None else (members, layers or 1)
        size = structure_of(structure, width).size
        expect(tensors, "field.interconnection.theta", (*lead, size), "J")
        return Learned(width, structure, layers=layers, ensemble=members, dtype=weights.theta.dtype)

    return make


INTERCONNECTION = Choice(
    "interconnection",
    lambda: {
        "fixed": (Fixed, Schema(_make_fixed, {"name": attribute("name", text)})),
        "learned": (
            Learned,
            Schema(
                _make_learned,
                {
                    "structure": attribute("structure", text),
                    "layers": attribute("layers", optional(count)),
                    "ensemble": Argument(lambda J: J.theta.ndim == 3, flag),
                },
            ),
        ),
        "inverse": (InverseTranspose, Schema(lambda _: lambda weights: InverseTranspose(), {})),
    },
    lambda J: (
        "J(y, t) is a function of yours, and files never hold code; "
        "save net.state_dict() with torch.save instead"
    ),
)

# --- fields ---------------------------------------------------------------------------------------


def _activation_name(field: WeightedField) -> str:
    if field.activation.name not in ACTIVATIONS:
        raise HdnnError(f"the activation {field.activation.name!r} is not in the catalogue")
    return field.activation.name


def _patterns(field: WeightedField) -> Tensors:
    """Tables of parameter numbers that no name stands for."""
    weights, tables = field.weights, {}
    if weights.structure == "custom":
        tables["pattern.K"] = torch.from_numpy(weights.pattern.code)
    if not weights.bias_pattern.is_plain:
        tables["pattern.b"] = torch.from_numpy(weights.bias_pattern.code)
    return tables


def _width(channels: bool) -> Argument:
    def of(field: WeightedField) -> int | None:
        layout = field.weights.layout
        return layout.width if bool(layout.channels) == channels else None

    return Argument(of, count, optional=True)


_WEIGHTED = {
    "activation": Argument(_activation_name),
    "structure": attribute("weights.structure", text),
    "channels": _width(True),
    "features": _width(False),
    "kernel": attribute("weights.layout.kernel", count),
    "layers": attribute("weights.layers", whole),
    "time_invariant": attribute("weights.time_invariant", flag),
    "ensemble": attribute("weights.layout.ensemble", optional(count)),
}


def _make_weights(
    tensors: Tensors,
    *,
    structure: str,
    kernel: int,
    layers: int,
    time_invariant: bool,
    ensemble: int | None,
    features: int | None = None,
    channels: int | None = None,
) -> Weights:
    """Weights whose tensors have the shapes of the file, so that no larger ones are ever made."""
    if structure == "custom":
        pattern = Pattern.of(tensors["pattern.K"].numpy())
    elif structure in STRUCTURES:
        width = count(channels if features is None else features, "width")
        pattern = structure_of(structure, width, kernel)
    else:
        known = ", ".join(STRUCTURES)
        raise FileFormatError(f"unknown structure {short(structure)}; known are {known}")
    bias = Pattern.of(tensors["pattern.b"].numpy()) if "pattern.b" in tensors else None
    lead = () if ensemble is None else (ensemble,)
    lead = (*lead, 1 if time_invariant else layers)
    theta = floating(expect(tensors, "field.weights.theta", (*lead, pattern.size), "K"), "K")
    biases = pattern.shape[0] if bias is None else bias.size
    expect(tensors, "field.weights.beta", (*lead, biases), "b")
    return Weights(
        pattern if structure == "custom" else structure,
        features=features,
        channels=channels,
        kernel=kernel,
        layers=layers,
        time_invariant=time_invariant,
        ensemble=ensemble,
        bias=bias,
        init="zeros",
        dtype=theta.dtype,
    )


def _make_activation_field(tensors: Tensors, *, activation: str, **weights: Any) -> ActivationField:
    return ActivationField(_make_weights(tensors, **weights), activation=activation)


def _make_hamiltonian_field(
    tensors: Tensors, *, activation: str, J: MakeInterconnection, **given: Any
) -> HamiltonianField:
    weights = _make_weights(tensors, **given)
    R = floating(tensors["field.R"], "R") if "field.R" in tensors else None
    return HamiltonianField(J(weights), weights, activation=activation, dissipation=R)


_HAMILTONIAN = {**_WEIGHTED, "J": attribute("interconnection", part=INTERCONNECTION)}
FIELD = Choice(
    "kind of field",
    lambda: {
        "activation": (ActivationField, Schema(_make_activation_field, _WEIGHTED, _patterns)),
        "hamiltonian": (
            HamiltonianField,
            Schema(_make_hamiltonian_field, _HAMILTONIAN, _patterns),
        ),
    },
    lambda field: (
        f"{type(field).__name__} holds a function of yours, and files never hold code; "
        "save net.state_dict() with torch.save and build the network in your own code"
    ),
)

# --- networks -------------------------------------------------------------------------------------


def _step(network: HamiltonianNetwork) -> float | None:
    """The step size, where it is one number; others are among the tensors."""
    return network.h if network.scheme.uses_step and isinstance(network.h, float) else None


def _make_network(
    tensors: Tensors, *, field: Field, scheme: schemes.Scheme, step: float | None, **given: Any
) -> HamiltonianNetwork:
    steps = _steps(tensors, field, step, given["learn_steps"])
    return HamiltonianNetwork(field, scheme, step=steps, **given)


def _steps(
    tensors: Tensors, field: Field, step: float | None, learned: bool
) -> float | Tensor | None:
    """The step size: a number of the description, or a tensor of the file."""
    ensemble, layers = field.layout.ensemble, whole(field.layers, "layers")
    shape = (layers,) if ensemble is None else (ensemble, layers)
    for name in ("steps", "log_steps"):
        if name in tensors:
            if step is not None:
                raise FileFormatError(f"it has a step size and a tensor {name}, one is allowed")
            steps = expect(tensors, name, shape, name)
            return steps.exp() if name == "log_steps" else steps
    if learned:
        raise FileFormatError("the steps are learned, but the tensor log_steps is absent")
    return step


NETWORK = Schema(
    _make_network,
    {
        "name": attribute("name", optional(text)),
        "layers": attribute("layers", whole),
        "step": Argument(_step),
        "learn_steps": attribute("learn_steps", flag),
        "backend": attribute("backend"),
        "memory": attribute("memory"),
        "scheme": attribute("scheme", part=SCHEME),
        "field": attribute("field", part=FIELD),
    },
)

# --- models ---------------------------------------------------------------------------------------


def _make_model(
    tensors: Tensors,
    *,
    network: HamiltonianNetwork,
    outputs: int,
    columns: ColumnEncoder | None = None,
    **given: Any,
) -> Model:
    expect(tensors, "head.weight", (outputs, network.field.layout.width), "the head")
    scaler = None
    if "scaler.mean" in tensors:
        mean, scale = (floating(tensors[f"scaler.{k}"], "the scaler") for k in ("mean", "scale"))
        scaler = Scaler(mean.clone(), scale.clone())
    projection = None
    if "projection.weight" in tensors:
        P = floating(tensors["projection.weight"], "the projection")
        shape = network.field.layout.width, P.shape[-1]
        expect(tensors, "projection.weight", shape, "the projection")
        projection = Projection(shape[1], shape[0], dtype=P.dtype)
    made = Model(network, outputs, scaler=scaler, encoder=columns, projection=projection, **given)
    return made.eval()


def _make_image_classifier(
    tensors: Tensors, *, config: ImageConfig, classes: list[Any] | None
) -> Model:
    shape = (config.classes, config.features)
    head = floating(expect(tensors, "head.weight", shape, "the head"), "the head")
    return ImageClassifier(config, classes=classes, dtype=head.dtype).eval()


_AUGMENTATION = Schema(
    lambda _, **given: Augmentation(**given),
    {name: attribute(name) for name in ("features", "width", "mode")},
)
_TABLE_MODEL = Schema(
    _make_model,
    {
        "network": attribute("network", part=NETWORK, prefix="network."),
        "outputs": attribute("head.out_features", count),
        "task": attribute("task"),
        "classes": attribute("classes"),
        "feature_names": attribute("feature_names"),
        "target_names": attribute("target_names", optional=True),
        "augmentation": attribute("augmentation", part=_AUGMENTATION),
        "columns": Argument(
            lambda model: None if model.encoder is None else model.encoder.to_list(),
            lambda described, _: ColumnEncoder.from_list(described),
            optional=True,
        ),
    },
)
_IMAGE_MODEL = Schema(
    _make_image_classifier,
    {
        "config": attribute("config", part=of_dataclass(ImageConfig, optional=True)),
        "classes": attribute("classes"),
    },
)

KINDS = {"network": NETWORK, "model": _TABLE_MODEL, "images": _IMAGE_MODEL}
"""What a file may hold, by the name that it gives it."""


def kind_of(thing: HamiltonianNetwork | Model) -> str:
    """The name of what a thing is, in a file."""
    if isinstance(thing, HamiltonianNetwork):
        return "network"
    return "images" if thing.stem.takes_images else "model"
