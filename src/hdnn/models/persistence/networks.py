"""Networks, fields and schemes as descriptions of names and numbers, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from hdnn import schemes
from hdnn.errors import FileFormatError, HdnnError
from hdnn.fields import (
    ACTIVATIONS,
    STRUCTURES,
    ActivationField,
    EnergyField,
    Field,
    Fixed,
    HamiltonianField,
    Interconnection,
    InverseTranspose,
    Learned,
    Pattern,
    Weights,
)
from hdnn.fields.weights import structure_of
from hdnn.models.persistence.checks import (
    Description,
    Tensors,
    expect,
    flag,
    floating,
    short,
    whole,
)
from hdnn.network import HamiltonianNetwork


def is_pattern(name: str) -> bool:
    """Whether a tensor of a file is a table of parameter numbers, no part of the state."""
    return name.startswith("pattern.")


def describe(network: HamiltonianNetwork, tensors: Tensors) -> Description:
    """What a network is; tables of parameter numbers are added to its tensors."""
    step = network.h if isinstance(network.h, float) else None
    return {
        "name": network.name,
        "layers": network.layers,
        "step": step if network.scheme.uses_step else None,
        "learn_steps": network.learn_steps,
        "backend": network.backend,
        "memory": network.memory,
        "scheme": _describe_scheme(network.scheme),
        "field": _describe_field(network.field, tensors),
    }


def build(description: Description, tensors: Tensors) -> HamiltonianNetwork:
    """The network of a description, with weights still to be loaded."""
    name = description["name"]
    if not isinstance(name, str | None):
        raise FileFormatError(f"the name of a network is a string, got {short(name)}")
    field = _build_field(description["field"], tensors)
    return HamiltonianNetwork(
        field,
        _build_scheme(description["scheme"]),
        layers=description["layers"],
        step=_steps(description, tensors, field),
        learn_steps=flag(description["learn_steps"], "learn_steps"),
        backend=description["backend"],
        memory=description["memory"],
        name=name,
    )


def _steps(description: Description, tensors: Tensors, field: Field) -> float | Tensor | None:
    """The step size: a number of the description, or a tensor of the file."""
    step: float | None = description["step"]
    ensemble, layers = field.layout.ensemble, whole(field.layers, "layers")
    shape = (layers,) if ensemble is None else (ensemble, layers)
    for name in ("steps", "log_steps"):
        if name in tensors:
            if step is not None:
                raise FileFormatError(f"it has a step size and a tensor {name}, one is allowed")
            steps = expect(tensors, name, shape, name)
            return steps.exp() if name == "log_steps" else steps
    if description["learn_steps"]:
        raise FileFormatError("the steps are learned, but the tensor log_steps is absent")
    return step


# --- schemes --------------------------------------------------------------------------------------


def _scheme_types() -> dict[str, Callable[..., schemes.Scheme]]:
    types: dict[str, Callable[..., schemes.Scheme]] = {
        name: kind for name, kind in schemes.SCHEMES.items() if isinstance(kind, type)
    }
    return types | {"DirectMap": schemes.DirectMap, "Splitting": schemes.Splitting}


def _describe_scheme(scheme: schemes.Scheme) -> Description:
    name = type(scheme).__name__
    if name not in _scheme_types() or not dataclasses.is_dataclass(scheme):
        raise HdnnError(
            f"{name} is not in hdnn.schemes.SCHEMES, so a file could not name it; "
            f"register it there: SCHEMES[{name!r}] = {name}"
        )
    return {"type": name, **dataclasses.asdict(scheme)}


def _build_scheme(description: Description) -> schemes.Scheme:
    arguments = dict(description)
    known, name = _scheme_types(), arguments.pop("type")
    if not isinstance(name, str) or name not in known:
        raise FileFormatError(f"unknown scheme {short(name)}; known are {', '.join(known)}")
    if not isinstance(arguments.get("name", ""), str):
        raise FileFormatError(f"the name of a scheme is a string, got {short(arguments['name'])}")
    if "coefficients" in arguments:
        arguments["coefficients"] = tuple(arguments["coefficients"])
    return known[name](**arguments)


# --- fields ---------------------------------------------------------------------------------------


def _describe_field(field: Field, tensors: Tensors) -> Description:
    if isinstance(field, EnergyField) or not isinstance(field, ActivationField | HamiltonianField):
        raise HdnnError(
            f"{type(field).__name__} holds a function of yours, and files never hold code; "
            "save net.state_dict() with torch.save and build the network in your own code"
        )
    if field.activation.name not in ACTIVATIONS:
        raise HdnnError(f"the activation {field.activation.name!r} is not in the catalogue")
    weights = field.weights
    description: Description = {
        "type": "activation" if isinstance(field, ActivationField) else "hamiltonian",
        "activation": field.activation.name,
        "structure": weights.structure,
        "channels" if weights.layout.channels else "features": weights.layout.width,
        "kernel": weights.layout.kernel,
        "layers": weights.layers,
        "time_invariant": weights.time_invariant,
        "ensemble": weights.layout.ensemble,
    }
    if weights.structure == "custom":
        tensors["pattern.K"] = torch.from_numpy(weights.pattern.code)
    if not weights.bias_pattern.is_plain:
        tensors["pattern.b"] = torch.from_numpy(weights.bias_pattern.code)
    if isinstance(field, HamiltonianField):
        description["J"] = _describe_interconnection(field.interconnection)
    return description


def _build_field(description: Description, tensors: Tensors) -> Field:
    weights = _build_weights(description, tensors)
    if description["type"] == "activation":
        return ActivationField(weights, activation=description["activation"])
    if description["type"] != "hamiltonian":
        raise FileFormatError(f"unknown kind of field {short(description['type'])}")
    J = _build_interconnection(description["J"], tensors, weights)
    R = floating(tensors["field.R"], "R") if "field.R" in tensors else None
    return HamiltonianField(J, weights, activation=description["activation"], dissipation=R)


def _build_weights(description: Description, tensors: Tensors) -> Weights:
    features, channels = description.get("features"), description.get("channels")
    width = whole(channels if features is None else features, "width", 1)
    kernel, layers = whole(description["kernel"], "kernel", 1), description["layers"]
    structure, ensemble = description["structure"], description["ensemble"]
    if structure == "custom":
        pattern = Pattern.of(tensors["pattern.K"].numpy())
    elif isinstance(structure, str) and structure in STRUCTURES:
        pattern = structure_of(structure, width, kernel)
    else:
        known = ", ".join(STRUCTURES)
        raise FileFormatError(f"unknown structure {short(structure)}; known are {known}")
    bias = Pattern.of(tensors["pattern.b"].numpy()) if "pattern.b" in tensors else None
    shared = flag(description["time_invariant"], "time_invariant")
    lead = () if ensemble is None else (whole(ensemble, "ensemble", 1),)
    lead = (*lead, 1 if shared else whole(layers, "layers"))
    theta = floating(expect(tensors, "field.weights.theta", (*lead, pattern.size), "K"), "K")
    biases = pattern.shape[0] if bias is None else bias.size
    expect(tensors, "field.weights.beta", (*lead, biases), "b")
    return Weights(
        pattern if structure == "custom" else structure,
        features=features,
        channels=channels,
        kernel=kernel,
        layers=layers,
        time_invariant=shared,
        ensemble=ensemble,
        bias=bias,
        init="zeros",
        dtype=theta.dtype,
    )


def _describe_interconnection(J: Interconnection) -> Description:
    match J:
        case Fixed():
            return {"type": "fixed", "name": J.name}
        case Learned():
            members = J.theta.ndim == 3
            return {
                "type": "learned",
                "structure": J.structure,
                "layers": J.layers,
                "ensemble": members,
            }
        case InverseTranspose():
            return {"type": "inverse"}
        case _:
            raise HdnnError(
                "J(y, t) is a function of yours, and files never hold code; "
                "save net.state_dict() with torch.save instead"
            )


def _build_interconnection(
    description: Description, tensors: Tensors, weights: Weights
) -> Interconnection:
    match description["type"]:
        case "fixed":
            J = floating(tensors["field.interconnection.J"], "J")
            return Fixed(J, name=str(description["name"]))
        case "learned":
            return _build_learned(description, tensors, weights)
        case "inverse":
            return InverseTranspose()
        case kind:
            raise FileFormatError(f"unknown interconnection {short(kind)}")


def _build_learned(description: Description, tensors: Tensors, weights: Weights) -> Learned:
    width, structure = weights.layout.width, description["structure"]
    layers = None if description["layers"] is None else whole(description["layers"], "layers", 1)
    ensemble = weights.layout.ensemble if flag(description["ensemble"], "ensemble") else None
    lead = (layers or 1,) if ensemble is None else (ensemble, layers or 1)
    pattern = structure_of(structure, width)
    expect(tensors, "field.interconnection.theta", (*lead, pattern.size), "J")
    return Learned(width, structure, layers=layers, ensemble=ensemble, dtype=weights.theta.dtype)
