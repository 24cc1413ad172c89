"""Saving and loading: one safetensors file with a JSON description of what its tensors belong to.

A network or model is described by its class and the arguments of its constructor, these again down
to plain values:

    {"class": "Padding", "arguments": {"features": 2, "width": 4, "mode": "append"}}
    {"tensor": "stem.scaler.mean"}, {"dtype": "float32"}

Classes come from a fixed list, so loading executes no code of the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from hdnn import fields, schemes
from hdnn.errors import FileFormatError, HdnnError
from hdnn.fields import ACTIVATIONS, STRUCTURES
from hdnn.files import atomic, read_bytes
from hdnn.models.image_models import ImageStem
from hdnn.models.model import Blocks, Model
from hdnn.models.stems import Padding, Projection, Scaler, TableStem
from hdnn.networks import HamiltonianNetwork
from hdnn.statespace import LayerWeights, StateSpace

FORMAT = 1
"""The version of the description; a file with a higher one needs a newer hdnn."""

FREE = 2**14
"""Numbers that may be described beyond those of the tensors: a network without layers has none."""

EXTRA = "arguments."
"""What names of tensors begin with that belong to a description, not to the state."""

SAVED = (HamiltonianNetwork, StateSpace, Model)
"""What a file holds."""

Arguments = dict[str, Any]
Tensors = dict[str, Tensor]


def save(thing: Any, path: str | os.PathLike[str]) -> None:
    """Write a network or a model to one safetensors file, atomically.

    The file holds the weights and a description in JSON, from which `load` builds the same object.
    What cannot be loaded again is not written.

    Args:
        thing: the network, model or fitted estimator; without Python functions of your own.
        path: the file; an existing one is replaced.

    Raises:
        HdnnError: a part cannot be described by names and numbers.
        StorageError: the file cannot be written; an existing one stays as it was.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> path = Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> hdnn.save(net, path)
    >>> (hdnn.load(path).K - net.K).abs().max().item()
    0.0
    """
    thing = getattr(thing, "model_", thing)
    if not isinstance(thing, SAVED):
        raise HdnnError(
            f"save takes a network, a model or a fitted estimator, got {type(thing).__name__}"
        )
    description, tensors = _describe(thing)
    about = json.dumps({"format": FORMAT, "thing": description})
    # Copies: safetensors takes no two tensors of the same memory.
    copies = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(copies, metadata={"hdnn": about})
    try:
        _parse(content)  # a custom map may describe itself wrongly
    except MemoryError:
        raise
    except Exception as error:
        raise HdnnError(f"not saved, as the file could not be loaded: {error!s:.300}") from error
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def load(path: str | os.PathLike[str]) -> Any:
    """Build the network or model of a file that `save` wrote; no code of the file is executed.

    Args:
        path: the file.

    Returns:
        A `HamiltonianNetwork`, a `StateSpace` or a `Model`, on the CPU and in evaluation mode.

    Raises:
        MissingFileError: there is no such file; it is a `FileNotFoundError`, too.
        FileFormatError: it is damaged, hdnn did not write it, or a newer hdnn did.

    >>> import hdnn, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> hdnn.save(hdnn.network("H1", features=4, layers=3, T=1.5), path)
    >>> net = hdnn.load(path)
    >>> net.layers, net.h
    (3, 0.5)
    """
    content = read_bytes(Path(path))
    try:
        return _parse(content)
    except MemoryError:
        raise
    except Exception as error:  # whatever a file holds, this is the error that a caller handles
        reason = str(error) if isinstance(error, HdnnError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"cannot load {path}: {reason:.300}") from error


def _parse(content: bytes) -> HamiltonianNetwork | StateSpace | Model:
    """The network or model in the content of a file."""
    try:
        tensors = safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"it is no safetensors file, or damaged ({error})") from error
    length = int.from_bytes(content[:8], "little")  # of the header, which load leaves out
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    if "hdnn" not in metadata:
        raise FileFormatError("it is a safetensors file, but hdnn did not write it")
    about = json.loads(metadata["hdnn"])
    if about["format"] != FORMAT:
        raise FileFormatError(f"it has format {about['format']}, this hdnn reads {FORMAT}")
    with torch.random.fork_rng(devices=[]):  # what a user draws next stays the same
        thing = _Builder(tensors).build(about["thing"])
    if not isinstance(thing, SAVED):
        raise FileFormatError(f"it holds a {type(thing).__name__}, no network and no model")
    # Strictly, beside the tensors in arguments: torch names what is missing or has another shape.
    extra = {name for name in tensors if name.startswith(EXTRA)}
    thing.load_state_dict({name: tensors[name] for name in tensors.keys() - extra})
    return thing.eval()


# --- descriptions ---------------------------------------------------------------------------------


def _describe(thing: nn.Module) -> tuple[Any, Tensors]:
    """The description, and the tensors: those of the state, and others that are arguments."""
    # By identity, so that an argument that is also part of the state is stored once.
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
        if isinstance(value, fields.Activation) and ACTIVATIONS.get(value.name) == value:
            return value.name
        if isinstance(value, Tensor):
            name = names.get(id(value))
            if name is None:
                name = f"{EXTRA}{len(tensors) - len(state)}"
                tensors[name] = value.detach()
            return {"tensor": name}
        arguments = {name: describe(each) for name, each in _arguments(value).items()}
        return {"class": type(value).__name__, "arguments": arguments}

    return describe(thing), tensors


class _Builder:
    """Builds what a description describes, if the tensors of the file can be those of it.

    A few bytes can describe what fits into no memory. So the numbers that a part holds or makes are
    counted before it is built, and all of them together are at most those of the tensors.

    Args:
        tensors: of the file.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.classes = tensors, _known_classes()
        # In bytes, too: a number that `save` writes has at least two of them.
        self.room = FREE + sum(min(t.numel(), t.nbytes // 2) for t in tensors.values())

    def build(self, description: Any) -> Any:
        """Build an object from its description, parts first."""
        if isinstance(description, list):
            return [self.build(each) for each in description]
        if not isinstance(description, dict):
            return description
        if "tensor" in description:
            tensor = self.tensors[description["tensor"]]
            self.take(tensor.numel())
            return tensor
        if "dtype" in description:
            return _DTYPES[description["dtype"]]
        name = description["class"]
        if name not in self.classes:
            raise FileFormatError(
                f"it names an unknown class {name!r:.60}; if that is a map or a scheme of yours, "
                "import the module that defines it first"
            )
        arguments = {k: self.build(each) for k, each in description["arguments"].items()}
        if name in _NUMBERS:
            self.take(_NUMBERS[name](arguments))
        return _CONSTRUCTORS.get(name, self.classes[name])(**arguments)

    def take(self, numbers: int) -> None:
        """Count numbers of a part that is to be built."""
        self.room -= numbers
        if self.room < 0:
            raise FileFormatError("it describes more numbers than its tensors have")


def _known_classes() -> dict[str, type]:
    """The classes that a file may name; own schemes and linear maps must have been imported."""
    own = (*schemes.SCHEMES.values(), *_subclasses(fields.LinearMap))
    return {kind.__name__: kind for kind in (*own, *_CLASSES) if isinstance(kind, type)}


def _subclasses(kind: Any) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _arguments(value: Any) -> Arguments:
    """The arguments with which the constructor makes the object again, apart from its state."""
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
        f"{kind.__name__} may hold code of yours, which no file does; save state_dict() with "
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
    named = structure in STRUCTURES
    return {
        "structure": structure if named else custom,
        "units": weights.map.units if named and weights.map.units != layout.width else None,
        "channels" if layout.channels else "features": layout.width,
        "ensemble": layout.ensemble,
        "scale": 0.0,  # K and b are in the state
        **_attributes("kernel layers time_invariant inputs dtype")(weights),
    }


def _state_space(model: StateSpace) -> Arguments:
    patterns = cast(LayerWeights, model.weights[0]).patterns
    structure = {k: v if isinstance(v, str) else patterns[k] for k, v in model.structure.items()}
    names = "inputs outputs states units mu passive layers learn_initial activation ensemble"
    return {
        "step": model.h,
        "gain": model.gain_bound,
        "structure": structure,
        "scale": 0.0,  # the parameters are in the state
        **_attributes(f"{names} backend dtype")(model),
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
    StateSpace: _state_space,
    schemes.DirectMap: _attributes(""),
    schemes.Splitting: _attributes("coefficients first name"),
    fields.ActivationField: _attributes("weights activation turn"),
    fields.HamiltonianField: lambda field: {
        "J": field.interconnection or field.J_function,
        "weights": field.weights,
        "activation": field.activation,
        "dissipation": field.R,
        "signs": field.signs,
    },
    fields.Weights: _weights,
    fields.Fixed: _attributes("J name"),
    fields.Learned: _learned,
    fields.Pattern: lambda pattern: {"code": torch.from_numpy(pattern.code)},
    fields.Matrix: _attributes("pattern"),
    fields.Convolution: _attributes("pattern"),
    fields.BlockDiagonal: lambda both: {"first": both.first.inner, "second": both.second.inner},
    Model: _model,
    TableStem: _attributes("width padding scaler projection"),
    Padding: _attributes("features width mode"),
    Scaler: _attributes("mean scale"),
    Projection: _attributes("features width dtype"),
    ImageStem: _image_stem,
    Blocks: lambda blocks: {"modules": list(blocks), "features": blocks.features},
    nn.Sequential: lambda modules: {"modules": list(modules)},
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _attributes("num_features eps momentum affine track_running_stats dtype"),
    nn.Flatten: _attributes("start_dim end_dim"),
    nn.ReLU: _attributes("inplace"),
    nn.Identity: _attributes(""),
    dict: dict,
}
"""The classes that a file may name, each with a function that gives the arguments of an object."""


def _product(*sizes: Any) -> int:
    """The product of sizes that a file names, whatever they are; None and 0 count as 1."""
    if not all(size is None or isinstance(size, int) for size in sizes):
        raise FileFormatError(f"sizes are integers, got {reprlib.repr(sizes)}")
    return math.prod(abs(size or 1) for size in sizes)


def _network_numbers(a: Arguments) -> int:
    """The steps, where every layer has its own."""
    given = isinstance(a["step"], Tensor | list) or a["learn_steps"]
    return _product(a["layers"], a["field"].layout.ensemble) if given else 0


def _weights_numbers(a: Arguments) -> int:
    """The parameters, or a quarter of the entries of K, of which a named structure has a table."""
    structure, width = a["structure"], a.get("features") or a.get("channels")
    sets = _product(a["ensemble"], 1 if a["time_invariant"] else a["layers"])
    if isinstance(structure, str):
        units = a["units"] or width
        size = _product(width, units, a["kernel"], a["kernel"]) // 4
    else:
        units = structure.units if isinstance(structure, fields.LinearMap) else len(structure.code)
        size = structure.size + units
    return sets * (size + _product(units, a["inputs"]) * bool(a["inputs"]))


def _state_space_numbers(a: Arguments) -> int:
    """The biases, and of each layer's matrices those without a pattern, which is counted itself."""
    n, m = a["states"], a["units"]
    sizes = {"K": (n, m), "L": (n, n), "A": (n, n), "G": (n, a["inputs"])}
    own = sum(_product(*size) for name, size in sizes.items() if name not in a["structure"])
    return _product(a["ensemble"], a["layers"]) * own // 2


def _field_numbers(a: Arguments) -> int:
    """A J that is made by its name; `save` writes a tensor, which is counted as one."""
    width = a["weights"].layout.width
    return _product(width, width) if isinstance(a["J"], str) else 0


_NUMBERS: dict[str, Callable[[Arguments], int]] = {
    "HamiltonianNetwork": _network_numbers,
    "StateSpace": _state_space_numbers,
    "HamiltonianField": _field_numbers,
    "Weights": _weights_numbers,
    "Learned": lambda a: _product(a["width"], a["width"], a["layers"], a["ensemble"]) // 4,
    "Model": lambda a: _product(a["outputs"], a["network"].features),
    "Projection": lambda a: _product(a["features"], a["width"]),
    "ImageStem": lambda a: 9 * _product(a["channels"], a["width"]),
    "Conv2d": lambda a: (
        _product(a["in_channels"], a["out_channels"], *a["kernel_size"]) // _product(a["groups"])
    ),
    "BatchNorm2d": lambda a: _product(a["num_features"]),
}
"""By class, how many numbers its tensors have at least, and so a file of it, given the arguments.

A class that is not here has no sizes, or none that costs memory.
"""

_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "Pattern": lambda code: fields.Pattern.of(code.numpy()),
    "Blocks": lambda modules, features: Blocks(*modules, features=features),
    "Sequential": lambda modules: nn.Sequential(*modules),
}
"""Classes whose arguments are not all passed by name."""

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
