"""Saving and loading: one safetensors file with a JSON description of what its tensors belong to.

A thing is described by its class and the arguments of its constructor, these again down to plain
values:

    {"class": "Verlet", "arguments": {"first": "y"}}     an object of a class in `_CLASSES`
    {"tensor": "stem.scaler.mean"}, {"dtype": "float32"}

Nothing of a file is trusted. Classes come from a fixed list, so no code of a file is ever run. And
what the description asks for is first built without memory, on torch's device "meta", and compared
with the tensors that are in the file; so a small file cannot make `load` allocate much.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from hdnn import fields, schemes
from hdnn.errors import FileFormatError, HdnnError
from hdnn.fields import ACTIVATIONS, STRUCTURES
from hdnn.files import atomic
from hdnn.models.images import ImageStem, PixelMean
from hdnn.models.model import Blocks, Model
from hdnn.models.stems import Augmentation, Projection, Scaler, TableStem
from hdnn.networks import HamiltonianNetwork

FORMAT = 1
"""The version of the description; a higher one in a file asks for a newer hdnn."""

Arguments = dict[str, Any]
Tensors = dict[str, Tensor]


def save(thing: HamiltonianNetwork | Model, path: str | os.PathLike[str]) -> None:
    """Write a network or a model to one file, atomically.

    Args:
        thing: a network or a model; one that holds functions of yours cannot be saved.
        path: the file.

    Raises:
        HdnnError: it cannot be described by names and numbers.
        StorageError: it cannot be written there; an old file is as it was.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> path = Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> save(net, path)
    >>> torch.equal(load(path).K, net.K)
    True
    """
    if not isinstance(thing, HamiltonianNetwork | Model):
        raise HdnnError(f"save takes a network or a model, got {type(thing).__name__}")
    description, tensors = _describe(thing)
    _check(description, tensors)
    about = json.dumps({"format": FORMAT, "thing": description})
    # Copies: safetensors takes no two tensors of the same memory.
    copies = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(copies, metadata={"hdnn": about})
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def load(path: str | os.PathLike[str]) -> Any:
    """Build the network or model of a file that `save` wrote; no code of the file is run.

    Args:
        path: the file.

    Returns:
        A `HamiltonianNetwork` or a `Model`, in evaluation mode.

    Raises:
        FileFormatError: there is no such file, or it is damaged, foreign or too new.

    >>> import tempfile, pathlib, hdnn, torch
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> hdnn.save(net, path)
    >>> torch.equal(hdnn.load(path).K, net.K)
    True
    """
    try:
        if not Path(path).is_file():
            raise HdnnError("there is no such file")
        description, tensors = _read(Path(path))
        _check(description, tensors)
        with torch.random.fork_rng(devices=[]):  # what a user draws next stays the same
            thing = _restore(description, tensors)
        if _describe(thing)[0] != description:
            raise FileFormatError("its description leaves out arguments, or has others than used")
        thing.load_state_dict({name: tensors[name] for name in thing.state_dict()})
    except Exception as error:  # whatever a file holds, this is the error that a caller handles
        reason = str(error) if isinstance(error, HdnnError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"cannot load {path}: {_short(reason, 300)}") from error
    return thing.eval()


def _read(path: Path) -> tuple[Any, Tensors]:
    """The description and the tensors of a file."""
    content = path.read_bytes()  # at once: what is checked is what is used, whoever writes to it
    try:
        tensors = safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"it is no safetensors file, or damaged ({error})") from error
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    if "hdnn" not in metadata:
        raise FileFormatError("it is a safetensors file, but hdnn did not write it")
    about = json.loads(metadata["hdnn"])
    if about["format"] != FORMAT:
        raise FileFormatError(
            f"it has format {_short(about['format'])}, this hdnn reads {FORMAT}; update hdnn"
        )
    return about["thing"], tensors


def _check(description: Any, tensors: Tensors) -> None:
    """Check that the tensors are those of what is described, before that takes any memory."""
    _check_widths(description, tensors)
    with torch.device("meta"):
        thing = _restore(description, tensors)
    if not isinstance(thing, HamiltonianNetwork | Model):
        raise FileFormatError(f"it holds a {type(thing).__name__}, no network and no model")
    used = {each["tensor"] for each in _nodes(description) if "tensor" in each}
    expected = {**{name: tensors[name] for name in used}, **thing.state_dict()}
    for name in {**expected, **tensors}:
        found, wanted = (_kind(each.get(name)) for each in (tensors, expected))
        if found != wanted:
            raise FileFormatError(f"tensor {_short(name)} is {found}, but should be {wanted}")


def _kind(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


SMALL = 2**16
"""Entries of K, b and J that a file may always ask for; a network without layers has no others."""


def _check_widths(description: Any, tensors: Tensors) -> None:
    """Check the widths in a description: tables of n^2 k^2 entries take memory on any device.

    In all named structures at least every fourth entry is a parameter, so is in the file.
    """
    entries = 0
    for each in _nodes(description):
        given = each.get("arguments", {})
        if each.get("class") in ("Weights", "Learned"):
            width = max(given.get(name, 0) for name in ("width", "features", "channels"))
            named = isinstance(given.get("structure"), str)
            entries += (width * given.get("kernel", 1)) ** 2 if named else width
        if each.get("class") == "HamiltonianField" and isinstance(given.get("J"), str):
            raise FileFormatError("J is given by its name instead of its matrix")
    if entries > 4 * sum(tensor.numel() for tensor in tensors.values()) + SMALL:
        raise FileFormatError("its widths do not fit its tensors, which are too few")


def _nodes(description: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a description."""
    if isinstance(description, dict):
        yield description
    children = description.values() if isinstance(description, dict) else description
    for child in children if isinstance(description, dict | list) else ():
        yield from _nodes(child)


# --- descriptions ---------------------------------------------------------------------------------


def _describe(thing: nn.Module) -> tuple[Any, Tensors]:
    """The description of a thing, and its tensors: those of its state, and others in arguments."""
    state = thing.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in state.items()}
    tensors = {name: tensor.detach() for name, tensor in state.items()}

    def describe(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return [describe(each) for each in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, Tensor):
            name = names.get(id(value))
            if name is None:
                name = f"arguments.{len(tensors) - len(state)}"
                tensors[name] = value.detach()
            return {"tensor": name}
        arguments = {name: describe(each) for name, each in _arguments(value).items()}
        return {"class": type(value).__name__, "arguments": arguments}

    return describe(thing), tensors


def _restore(description: Any, tensors: Tensors) -> Any:
    """What a description describes."""
    if isinstance(description, list):
        return [_restore(each, tensors) for each in description]
    if not isinstance(description, dict):
        return description
    if "tensor" in description:
        return tensors[description["tensor"]]
    if "dtype" in description:
        return _DTYPES[description["dtype"]]
    name, known = description["class"], _known_classes()
    if name not in known:
        raise FileFormatError(
            f"it names an unknown class {_short(name)}; if that is a map or a scheme of yours, "
            "import the module that defines it first"
        )
    arguments = {k: _restore(each, tensors) for k, each in description["arguments"].items()}
    make = _CONSTRUCTORS.get(name, known[name])
    return make(**arguments)


def _known_classes() -> dict[str, type]:
    """The classes that a file may name; own schemes and linear maps must have been imported."""
    own = (*schemes.SCHEMES.values(), *_subclasses(fields.LinearMap))
    return {kind.__name__: kind for kind in (*own, *_CLASSES) if isinstance(kind, type)}


def _subclasses(kind: Any) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _arguments(value: Any) -> Arguments:
    """The arguments with which a constructor makes a thing again, apart from its state."""
    kind = type(value)
    if kind in _CLASSES:  # no subclasses, of which only their own code knows what they are
        return _CLASSES[kind](value)
    if isinstance(value, fields.LinearMap):
        return value.arguments()
    if kind in schemes.SCHEMES.values():
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, schemes.Scheme):
        raise HdnnError(
            f"a file cannot name the scheme {kind.__name__}: register it first, "
            f"hdnn.schemes.SCHEMES[{kind.__name__!r}] = {kind.__name__}"
        )
    raise HdnnError(
        f"{kind.__name__} is not of hdnn, and files never hold code; save state_dict() with "
        "torch.save, and build the rest in your own code"
    )


# --- the classes ----------------------------------------------------------------------------------


def _attributes(names: str) -> Callable[[Any], Arguments]:
    """Arguments that are attributes; `dtype` is that of the parameters."""

    def read(thing: Any) -> Arguments:
        return {k: _dtype(thing) if k == "dtype" else getattr(thing, k) for k in names.split()}

    return read


def _dtype(thing: nn.Module) -> torch.dtype:
    return next(thing.parameters()).dtype


def _activation(field: fields.ActivationField | fields.HamiltonianField) -> str:
    name = field.activation.name
    if ACTIVATIONS.get(name) != field.activation:
        raise HdnnError(
            f"the activation {name!r} is a function of yours, and files never hold code; save "
            "state_dict() with torch.save, and build the rest in your own code"
        )
    return name


def _network(net: HamiltonianNetwork) -> Arguments:
    step: Any = None
    if net.scheme.uses_step:  # learned steps are part of the state, whatever they start from
        step = 1.0 if net.learn_steps else net.h
    rest = _attributes("field scheme layers learn_steps backend memory name")
    return {**rest(net), "step": step}


def _weights(weights: fields.Weights) -> Arguments:
    layout, structure = weights.layout, weights.structure
    custom: Any = weights.map
    if isinstance(custom, fields.Matrix | fields.Convolution):
        custom = custom.pattern
    plain = weights.bias_pattern.first == 0
    return {
        "structure": structure if structure in STRUCTURES else custom,
        "channels" if layout.channels else "features": layout.width,
        "bias": None if plain else weights.bias_pattern,
        "ensemble": layout.ensemble,
        "scale": 0.0,
        **_attributes("kernel layers time_invariant dtype")(weights),
    }


def _learned(J: fields.Learned) -> Arguments:
    ensemble = len(J.theta) if J.theta.ndim == 3 else None
    return {**_attributes("width structure layers dtype")(J), "ensemble": ensemble}


def _model(model: Model) -> Arguments:
    rest = _attributes("stem task classes feature_names target_names columns")
    return {"network": model.blocks, "outputs": model.head.out_features, **rest(model)}


def _image_stem(stem: ImageStem) -> Arguments:
    rest = _attributes("width mean std norm channels_last dtype")
    return {"channels": stem.shape[0], "size": stem.shape[1:], **rest(stem)}


def _convolution(conv: nn.Conv2d) -> Arguments:
    shape = "in_channels out_channels kernel_size stride padding dilation groups padding_mode dtype"
    return {**_attributes(shape)(conv), "bias": conv.bias is not None}


_CLASSES: dict[type, Callable[[Any], Arguments]] = {
    HamiltonianNetwork: _network,
    schemes.DirectMap: _attributes(""),
    schemes.Splitting: _attributes("coefficients first name"),
    fields.ActivationField: lambda field: {
        "weights": field.weights,
        "activation": _activation(field),
    },
    fields.HamiltonianField: lambda field: {
        "J": field.interconnection,
        "weights": field.weights,
        "activation": _activation(field),
        "dissipation": field.R,
    },
    fields.Weights: _weights,
    fields.Fixed: _attributes("J name"),
    fields.Learned: _learned,
    fields.InverseTranspose: _attributes(""),
    fields.Pattern: lambda pattern: {"code": torch.from_numpy(pattern.code)},
    fields.Matrix: _attributes("pattern"),
    fields.Convolution: _attributes("pattern"),
    fields.BlockDiagonal: lambda both: {"first": both.first.inner, "second": both.second.inner},
    Model: _model,
    TableStem: _attributes("width augmentation scaler projection"),
    Augmentation: _attributes("features width mode"),
    Scaler: _attributes("mean scale"),
    Projection: _attributes("features width dtype"),
    ImageStem: _image_stem,
    Blocks: lambda blocks: {"modules": list(blocks), "features": blocks.features},
    nn.Sequential: lambda modules: {"modules": list(modules)},
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _attributes("num_features eps momentum affine track_running_stats dtype"),
    nn.GroupNorm: _attributes("num_groups num_channels eps affine dtype"),
    nn.MaxPool2d: _attributes("kernel_size stride padding dilation return_indices ceil_mode"),
    nn.Flatten: _attributes("start_dim end_dim"),
    nn.ReLU: _attributes("inplace"),
    nn.Identity: _attributes(""),
    PixelMean: _attributes(""),
    dict: dict,
}
"""The classes that a file may name, each with a function that tells the arguments of a thing."""

_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "Pattern": lambda code: fields.Pattern.of(code.numpy()),
    "Blocks": lambda modules, features: Blocks(*modules, features=features),
    "Sequential": lambda modules: nn.Sequential(*modules),
}
"""How to make what a constructor does not take by name."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def _short(value: object, room: int = 60) -> str:
    """A value in at most a line or two, as it can be printed."""
    text = str(value)
    text = text if len(text) <= room else f"{text[:room]}..."
    return text.encode("utf-8", "backslashreplace").decode()
