"""Saving and loading: one safetensors file whose header carries a JSON description.

Loading rebuilds the network from names and numbers; it never executes code from the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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
from hdnn.files import atomic
from hdnn.images import ImageClassifier, ImageConfig
from hdnn.model import Augmentation, Model, Scaler
from hdnn.network import HamiltonianNetwork

FORMAT = 1
"""The version of the description; a higher one in a file asks for a newer hdnn."""

Description = dict[str, Any]
Tensors = dict[str, Tensor]


def save(thing: HamiltonianNetwork | Model | ImageClassifier, path: str | os.PathLike[str]) -> None:
    """Write a network or a model to one file, atomically.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> path = Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> save(net, path)
    >>> torch.equal(load(path).K, net.K)
    True
    """
    if not isinstance(thing, HamiltonianNetwork | Model | ImageClassifier):
        raise HdnnError(f"save takes a network or a model, got {type(thing).__name__}")
    tensors = {name: t.detach().contiguous() for name, t in thing.state_dict().items()}
    if isinstance(thing, ImageClassifier):
        description = {"format": FORMAT, "kind": "images", **_describe_classifier(thing)}
    elif isinstance(thing, Model):
        description = {"format": FORMAT, "kind": "model", **_describe_model(thing, tensors)}
    else:
        description = {"format": FORMAT, "kind": "network", **_describe(thing, tensors)}
    with atomic(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={"hdnn": json.dumps(description)})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load(path: str | os.PathLike[str]) -> Any:
    """The network or model of a file that `save` wrote; a `FileFormatError` for anything else."""
    description, tensors = _read(Path(path))
    try:
        return _KINDS[description["kind"]](description, tensors)
    except FileFormatError:
        raise
    except (HdnnError, LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise FileFormatError(f"{path} does not describe what it holds: {error}") from error


def _read(path: Path) -> tuple[Description, Tensors]:
    if not path.is_file():
        raise HdnnError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("hdnn")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is truncated, corrupted or foreign: {error}") from error
    try:
        description = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"the description in {path} is not JSON: {error}") from error
    if not isinstance(description, dict) or str(description.get("kind")) not in _KINDS:
        raise FileFormatError(f"{path} is a safetensors file, but hdnn did not write it")
    if description.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} has format {description.get('format')!r}, this hdnn reads {FORMAT}; "
            "update hdnn, or save the network again with this one"
        )
    return description, tensors


# --- networks -------------------------------------------------------------------------------------


def _describe(network: HamiltonianNetwork, tensors: Tensors) -> Description:
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


def _build(description: Description, tensors: Tensors) -> HamiltonianNetwork:
    if not isinstance(description["name"], str | None):
        raise FileFormatError(f"the name of a network is a string, got {description['name']!r}")
    field = _build_field(description["field"], tensors)
    step: float | Tensor | None = description["step"]
    if step is None and "steps" in tensors:
        step = tensors["steps"]
    elif step is None and "log_steps" in tensors:
        step = tensors["log_steps"].exp()
    network = HamiltonianNetwork(
        field,
        _build_scheme(description["scheme"]),
        layers=description["layers"],
        step=step,
        learn_steps=description["learn_steps"],
        backend=description["backend"],
        memory=description["memory"],
        name=description["name"],
    )
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pattern.")}
    network.load_state_dict(kept)
    return network


# --- models ---------------------------------------------------------------------------------------


def _describe_model(model: Model, tensors: Tensors) -> Description:
    augmentation = model.augmentation
    return {
        "network": _describe(model.network, tensors),
        "outputs": model.head.out_features,
        "task": model.task,
        "classes": model.classes,
        "feature_names": model.feature_names,
        "augmentation": None if augmentation is None else {
            "features": augmentation.features,
            "width": augmentation.width,
            "mode": augmentation.mode,
        },
    }  # fmt: skip


def _build_model(description: Description, tensors: Tensors) -> Model:
    patterns = {name: tensor for name, tensor in tensors.items() if name.startswith("pattern.")}
    inner = {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
    network = _build(description["network"], inner | patterns)
    given = description["augmentation"]
    scaler = None
    if "scaler.mean" in tensors:
        scaler = Scaler(tensors["scaler.mean"], tensors["scaler.scale"])
    if tensors["head.weight"].shape[0] != description["outputs"]:
        raise FileFormatError("the output layer in the file does not fit its description")
    model = Model(
        network, description["outputs"], None if given is None else Augmentation(**given), scaler,
        task=description["task"], classes=description["classes"],
        feature_names=description["feature_names"],
    )  # fmt: skip
    kept = {name: tensor for name, tensor in tensors.items() if name not in patterns}
    model.load_state_dict(kept)
    return model


def _describe_classifier(model: ImageClassifier) -> Description:
    return {"config": model.config.to_dict(), "classes": model.classes}


def _build_classifier(description: Description, tensors: Tensors) -> ImageClassifier:
    config = ImageConfig.from_dict(description["config"])
    weight, opening = tensors["head.weight"], tensors["opening.0.weight"]
    # A file says how large it is; nothing larger than that is ever built for it.
    expected = (config.classes, config.features), (config.widths[0], config.channels, 3, 3)
    elements = sum(tensor.numel() for tensor in tensors.values())
    deep = 0 if config.time_invariant else sum(config.layers)
    if (tuple(weight.shape), tuple(opening.shape)) != expected or (
        max(deep, len(config.widths), *config.widths) > elements
    ):
        raise FileFormatError("the layers in the file do not fit their description")
    model = ImageClassifier(config, classes=description["classes"], dtype=weight.dtype)
    model.load_state_dict(tensors)
    return model.eval()


_KINDS: dict[str, Callable[[Description, Tensors], Any]] = {
    "network": _build,
    "model": _build_model,
    "images": _build_classifier,
}


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
    if name not in known:
        raise FileFormatError(f"unknown scheme {name!r}; known are {', '.join(known)}")
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
        raise FileFormatError(f"unknown kind of field {description['type']!r}")
    J = _build_interconnection(description["J"], tensors, weights)
    R = tensors.get("field.R")
    return HamiltonianField(J, weights, activation=description["activation"], dissipation=R)


def _build_weights(description: Description, tensors: Tensors) -> Weights:
    theta, structure = tensors["field.weights.theta"], description["structure"]
    features, channels = description.get("features"), description.get("channels")
    width = features if features is not None else channels
    # A file says how large it is; nothing larger than that is ever allocated for it.
    elements = sum(tensor.numel() for tensor in tensors.values())
    if not isinstance(width, int) or width < 1 or width * width > 8 * elements + 64:
        raise FileFormatError(f"width {width!r} does not fit the tensors in the file")
    kernel = description.get("kernel", 1)  # files of before convolutions do not name it
    if not isinstance(kernel, int) or kernel < 1 or (width * kernel) ** 2 > 8 * elements + 64:
        raise FileFormatError(f"kernel {kernel!r} does not fit the tensors in the file")
    if structure == "custom":
        pattern = Pattern.of(tensors["pattern.K"].numpy())
    elif structure in STRUCTURES:
        pattern = structure_of(structure, width, kernel)
    else:
        raise FileFormatError(f"unknown structure {structure!r}; known are {', '.join(STRUCTURES)}")
    ensemble, layers = description["ensemble"], description["layers"]
    rows = 1 if description["time_invariant"] else layers
    expected = (rows, pattern.size) if ensemble is None else (ensemble, rows, pattern.size)
    if tuple(theta.shape) != expected:
        raise FileFormatError(f"K has shape {tuple(theta.shape)} in the file, expected {expected}")
    bias = Pattern.of(tensors["pattern.b"].numpy()) if "pattern.b" in tensors else None
    return Weights(
        pattern if structure == "custom" else structure,
        features=features, channels=channels, kernel=kernel, layers=layers,
        time_invariant=description["time_invariant"], ensemble=ensemble, bias=bias,
        init="zeros", dtype=theta.dtype,
    )  # fmt: skip


def _describe_interconnection(J: Interconnection) -> Description:
    match J:
        case Fixed():
            return {"type": "fixed", "name": J.name}
        case Learned():
            members = J.theta.ndim == 3
            return {
                "type": "learned", "structure": J.structure, "layers": J.layers,
                "ensemble": members,
            }  # fmt: skip
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
            return Fixed(tensors["field.interconnection.J"], name=str(description["name"]))
        case "learned":
            return Learned(
                weights.layout.width, description["structure"],
                layers=description["layers"] and weights.layers,
                ensemble=weights.layout.ensemble if description["ensemble"] else None,
                dtype=weights.theta.dtype,
            )  # fmt: skip
        case "inverse":
            return InverseTranspose()
        case kind:
            raise FileFormatError(f"unknown interconnection {kind!r}")
