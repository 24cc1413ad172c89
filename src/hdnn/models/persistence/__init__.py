"""Saving and loading: one safetensors file whose header carries a JSON description.

Loading rebuilds the network from names and numbers; it never executes code from the file, never
takes much more memory than the file has bytes, and builds exactly what the file says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hdnn.errors import FileFormatError, HdnnError
from hdnn.fields import MATRICES, Fixed
from hdnn.models.model import Model
from hdnn.models.persistence import budget, container
from hdnn.models.persistence.checks import Description, Tensors, short
from hdnn.models.persistence.kinds import KINDS, kind_of
from hdnn.models.persistence.schema import is_table
from hdnn.networks import HamiltonianNetwork

FORMAT = 1
"""The version of the description; a higher one in a file asks for a newer hdnn."""


def save(thing: HamiltonianNetwork | Model, path: str | os.PathLike[str]) -> None:
    """Write a network or a model to one file, atomically, with a checksum.

    Args:
        thing: a network or a model; one that holds functions of yours cannot be saved.
        path: the file.

    Raises:
        HdnnError: it cannot be described by names and numbers, or not be written there.
        StorageError: the disk is full or broken; the old file is as it was.

    >>> import hdnn, tempfile
    >>> net = hdnn.network("MS3", features=4, layers=8, T=1.0)
    >>> path = Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> save(net, path)
    >>> torch.equal(load(path).K, net.K)
    True
    """
    if not isinstance(thing, HamiltonianNetwork | Model):
        raise HdnnError(f"save takes a network or a model, got {type(thing).__name__}")
    container.write(Path(path), *_describe(thing))


def load(path: str | os.PathLike[str], *, limit: int | None = None) -> Any:
    """Build the network or model of a file that `save` wrote.

    The checksum of tensors and description is compared (files from before there was one have
    none), the memory that building takes is estimated from the description before anything is
    built, and what was built must describe itself as the file does, down to the names, shapes and
    dtypes of all tensors.

    Args:
        path: the file.
        limit: the most bytes of memory that building may take; by default ten times the file's
            size and 64 MB, which only a very wide network of one or a few layers exceeds.

    Returns:
        A `HamiltonianNetwork` or a `Model`.

    Raises:
        HdnnError: there is no such file.
        FileFormatError: the file is damaged, foreign, too new, or says what is not so.

    >>> import tempfile, pathlib, hdnn, torch
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "net.safetensors"
    >>> net = hdnn.network("H1", features=4, layers=3, T=1.0)
    >>> hdnn.save(net, path)
    >>> torch.equal(hdnn.load(path).K, net.K)
    True
    """
    place = Path(path)
    if not place.is_file():
        raise HdnnError(f"there is no file {path}")
    try:
        # Building draws initial weights, which must not change what a user draws next.
        with torch.random.fork_rng(devices=[]):
            return _load(place, limit)
    except Exception as error:  # whatever a file holds, this is the error that a caller handles
        raise FileFormatError(f"cannot load {path}: {short(error)}") from error


def _load(path: Path, limit: int | None) -> Any:
    size = path.stat().st_size
    limit = budget.limit_of(size) if limit is None else limit
    description, tensors = container.read(path, limit)
    if description.get("kind") not in list(KINDS):
        raise FileFormatError("it is a safetensors file, but hdnn did not write it")
    if description.get("format") != FORMAT:
        raise FileFormatError(
            f"it has format {short(description.get('format'))}, this hdnn reads {FORMAT}; "
            "update hdnn, or save the network again with this one"
        )
    if description["kind"] != "images":  # files of before convolutions do not name the kernel
        network = description["network"] if description["kind"] == "model" else description
        network["field"].setdefault("kernel", 1)
    budget.check(budget.cost(description, tensors) + 3 * size, limit)
    thing = KINDS[description["kind"]].build(description, tensors)
    _compare(thing, description, tensors)
    supports = [part.support(part.J.shape[-1]) for part in _fixed(thing)]
    thing.load_state_dict({k: v for k, v in tensors.items() if not is_table(k)})
    for part, support in zip(_fixed(thing), supports, strict=True):
        _check_interconnection(part, support)
    return thing


def _describe(thing: HamiltonianNetwork | Model) -> tuple[Description, Tensors]:
    tensors = {name: t.detach().cpu().contiguous() for name, t in thing.state_dict().items()}
    kind = kind_of(thing)
    return {"format": FORMAT, "kind": kind, **KINDS[kind].describe(thing, tensors)}, tensors


def _compare(thing: Any, description: Description, tensors: Tensors) -> None:
    """Check that what was built is what the file says, and nothing was left out or converted."""
    built, expected = _describe(thing)
    for key in {**built, **description}:
        texts = [json.dumps(d.get(key, "absent"), sort_keys=True) for d in (description, built)]
        if texts[0] != texts[1]:
            raise FileFormatError(
                f"its description is not that of what it describes: {short(key)} is "
                f"{short(texts[0])}, built is {short(texts[1])}"
            )
    for name in {**expected, **tensors}:
        kinds = [_kind(d.get(name)) for d in (tensors, expected)]
        if kinds[0] != kinds[1]:
            raise FileFormatError(
                f"the tensor {short(name)} is {kinds[0]} in the file, expected is {kinds[1]}"
            )


def _kind(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def _fixed(thing: nn.Module) -> list[Fixed]:
    return [part for part in thing.modules() if isinstance(part, Fixed)]


def _check_interconnection(part: Fixed, support: np.ndarray) -> None:
    """Check that a loaded J is skew, finite, and the one that its name says."""
    J = Fixed(part.J, part.name)
    n = J.J.shape[-1]
    same = np.array_equal(J.support(n), support)
    if same and part.name in MATRICES:
        # Converted to a coarser dtype and back, the numbers differ a little.
        named = MATRICES[part.name](n).to(J.J)
        same = bool(torch.allclose(J.J, named, rtol=1e-2, atol=0))
    if not same:
        raise FileFormatError(f"J is called {short(part.name)}, but is another matrix")
