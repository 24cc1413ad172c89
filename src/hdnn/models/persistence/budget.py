"""How much memory a file may take to load, and how much building what it describes will take.

A description of a few bytes can ask for terabytes: a width, a kernel, a number of layers. So the
memory is estimated from the description alone, before anything is built. Parameters are at most as
many as the file holds (the builders compare shapes first) or are counted here; the rest is tables
of parameter numbers (`hdnn.fields.Pattern`), J, and Python objects.
"""

from __future__ import annotations

from itertools import pairwise

from hdnn.errors import FileFormatError
from hdnn.models.image_config import ImageConfig
from hdnn.models.persistence.checks import Description, Tensors, whole
from hdnn.zoo import architecture

HEADER = 64
"""Bytes of memory for a byte of header: JSON and a tensor object for every few letters."""

# Measured at the peak of building, and rounded up (`tests/attacks/test_load.py` measures again).
_TABLE = 44  # bytes for an entry of a table
_MATRIX = 24  # bytes for an entry of a given J
_DISSIPATION = 48  # bytes for an entry of R: its eigenvalues are computed
_LAYER = 1024  # bytes for a layer that shares its weights, when the network is used
_MODULE = 8 * 1024  # bytes for a torch module
_STAGE = 64 * 1024  # bytes for a stage of an image classifier

_DENSITY = {"skew": 2, "off-diagonal-skew": 4, "off-diagonal": 2, "block-diagonal": 2}
"""Of how many entries of K one is a parameter, at least."""


def limit_of(size: int) -> int:
    """The memory in bytes that a file of this size may take."""
    return 10 * size + 64 * 2**20


def check(cost: int, limit: int) -> None:
    """Refuse to go on where more memory would be needed than is allowed."""
    if cost > limit:
        about = f"{cost / 1e6:.0f} MB" if cost < 10**15 else "more memory than there is"
        raise FileFormatError(
            f"building what it describes would take {about}, {limit / 1e6:.0f} MB are allowed for "
            "a file of its size: the widths, the kernel or the number of layers do not fit its "
            "tensors (if you trust the file, hdnn.load(path, limit=...) allows more)"
        )


def cost(description: Description, tensors: Tensors) -> int:
    """The memory in bytes that building takes, beside the tensors of the file."""
    if description["kind"] == "images":
        config = ImageConfig.from_dict(description["config"])
        return _images(config, tensors["head.weight"].element_size())
    network = description["network"] if description["kind"] == "model" else description
    field = network["field"]
    features = field.get("features")
    width = whole(field["channels"] if features is None else features, "width")
    kernel, layers = whole(field["kernel"], "kernel"), whole(field["layers"], "layers")
    table = tensors.get("pattern.K")
    entries = (width * kernel) ** 2 if table is None else table.numel()
    J = field.get("J") or {}
    needed = _TABLE * entries + (_LAYER * layers if field["time_invariant"] else 0)
    if J.get("type") == "learned":
        needed += _TABLE * width**2
    elif J.get("type") == "fixed":
        needed += _MATRIX * width**2
    if any(name.endswith("field.R") for name in tensors):
        needed += _DISSIPATION * width**2
    return needed


def _images(config: ImageConfig, item: int) -> int:
    row = architecture(config.architecture)
    density = _DENSITY.get(row.structure, 1) if isinstance(row.structure, str) else 1
    parameters = config.widths[0] * (9 * config.channels + 1)
    parameters += (config.features + 1) * config.classes
    parameters += sum((9 * a + 1) * b for a, b in pairwise(config.widths))
    needed = 128 * config.channels
    for width, layers in zip(config.widths, config.layers, strict=True):
        entries = (width * config.kernel) ** 2
        parameters += 10 * width  # normalizations
        needed += _STAGE
        if config.block == "convolution":
            parameters += layers * (entries + width)
            needed += 2 * _MODULE * layers
        elif layers:
            rows = 1 if config.time_invariant else layers
            parameters += rows * (entries // density + width) + width**2
            needed += _TABLE * entries + _MATRIX * width**2
            needed += _LAYER * layers if config.time_invariant else 0
    return needed + 2 * item * parameters
