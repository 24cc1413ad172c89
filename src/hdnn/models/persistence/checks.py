"""What a description may say: small checks, with errors of a line or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hdnn.errors import FileFormatError, HdnnError

Description = dict[str, Any]
Tensors = dict[str, Tensor]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def whole(value: object, name: str, low: int = 0) -> int:
    """An integer of at least ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise FileFormatError(f"{name} is an integer of at least {low}, got {short(value)}")
    return value


def flag(value: object, name: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise FileFormatError(f"{name} is true or false, got {short(value)}")
    return value


def count(value: object, name: str) -> int:
    """An integer of at least 1."""
    return whole(value, name, 1)


def text(value: object, name: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise FileFormatError(f"{name} is a string, got {short(value)}")
    return value


def optional(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """A check of what may also be None."""
    return lambda value, name: None if value is None else read(value, name)


def expect(tensors: Tensors, name: str, shape: tuple[int, ...], title: str) -> Tensor:
    """The tensor of a name, which must have this shape, so that no larger one is ever made."""
    if name not in tensors:
        raise FileFormatError(f"the tensor {name} is absent")
    tensor = tensors[name]
    if tuple(tensor.shape) != shape:
        raise FileFormatError(
            f"{title} has shape {tuple(tensor.shape)} in the file, expected {short(shape)}"
        )
    return tensor


def floating(tensor: Tensor, title: str) -> Tensor:
    """The tensor itself, which must hold floating-point numbers that a network computes with."""
    if tensor.dtype not in _FLOATS:
        raise FileFormatError(f"{title} has floating-point numbers, got {tensor.dtype}")
    return tensor


def short(value: object) -> str:
    """A value, or what an error says, in at most a line or two."""
    if isinstance(value, HdnnError):
        text, room = str(value), 300
    elif isinstance(value, BaseException):
        text, room = f"{type(value).__name__}: {value}".removesuffix(": "), 300
    else:
        text, room = value if isinstance(value, str) else repr(value), 60
    text = text if len(text) <= room else f"{text[:room]}..."
    return text.encode("utf-8", "backslashreplace").decode()  # half a character cannot be printed
