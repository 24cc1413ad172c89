"""The bytes of a file: a safetensors header with a JSON description, tensors, and a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hdnn.errors import FileFormatError
from hdnn.files import atomic
from hdnn.models.persistence import budget
from hdnn.models.persistence.checks import Description, Tensors, short

_CHECKSUM = "sha256"


def write(path: Path, description: Description, tensors: Tensors) -> None:
    """Write a description and tensors to one file, atomically."""
    # In the description, as safetensors writes several keys in any order, and the same model is
    # to give the same bytes.
    about = json.dumps({**description, _CHECKSUM: _checksum(description, tensors)})
    content = safetensors.torch.save(tensors, metadata={"hdnn": about})
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def read(path: Path, limit: int) -> tuple[Description, Tensors]:
    """The description and the tensors of a file, as its checksum says they were written.

    The whole file is read at once: what is checked is what is used, whoever writes to it.

    Args:
        path: the file.
        limit: the most bytes of memory that reading may take.

    Raises:
        FileFormatError: it is truncated, damaged or foreign.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise FileFormatError("it is truncated, or no safetensors file")
        budget.check(budget.HEADER * length + 3 * size, limit)
        metadata = _parse(file.read(length)).get("__metadata__")
        file.seek(0)
        tensors = safetensors.torch.load(file.read(size))
    if not isinstance(metadata, dict) or list(metadata) != ["hdnn"]:
        raise FileFormatError("it is a safetensors file, but hdnn did not write it")
    description = _parse(metadata["hdnn"])
    if _CHECKSUM in description and description.pop(_CHECKSUM) != _checksum(description, tensors):
        raise FileFormatError("it is damaged: its checksum is another than that of its content")
    return description, tensors


def _parse(text: str | bytes) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise FileFormatError(f"its description is no JSON object: {short(value)}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FileFormatError("a key of its description occurs twice")
    return found


def _checksum(description: Description, tensors: Tensors) -> str:
    whole = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        whole.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
