"""The small TOML files of runs."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdnn.errors import HdnnError


def read(path: Path) -> dict[str, Any]:
    """The tables of a file.

    Raises:
        HdnnError: it cannot be read, or is not TOML.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HdnnError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise HdnnError(f"{path} is not TOML: it is not UTF-8: {error}") from error
    return loads(text, str(path))


def loads(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Args:
        text: TOML.
        where: what it is called in messages.

    Raises:
        HdnnError: it is not TOML, or has integers of more than 64 bits, which TOML has not.
    """
    try:
        tables = tomllib.loads(text)
        _check_integers(tables)
    except (ValueError, RecursionError) as error:
        raise HdnnError(f"{where} is not TOML: {str(error)[:200]}") from error
    return tables


def _check_integers(value: Any) -> None:
    match value:
        case dict():
            _check_integers(list(value.values()))
        case list():
            for item in value:
                _check_integers(item)
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError("it has an integer of more than 64 bits")


def dumps(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values as TOML.

    >>> print(dumps({"model": {"layers": 4, "T": 1.2, "name": "H1"}}), end="")
    [model]
    layers = 4
    T = 1.2
    name = "H1"
    """
    blocks = []
    for title, table in tables.items():
        lines = [f"[{title}]"]
        lines += [f"{name} = {dump_value(v)}" for name, v in table.items() if v is not None]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def dump_value(value: Any) -> str:
    """A plain value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            if not math.isfinite(value):
                return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
            text = repr(value)
            return text if "." in text or "e" in text else f"{text}.0"
        case list() | tuple():
            return "[" + ", ".join(dump_value(item) for item in value) + "]"
        case _:
            raise HdnnError(f"cannot write {str(value)[:80]} as TOML")
