"""Writing the small TOML files of runs; Python reads TOML itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from hdnn.errors import HdnnError


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
        lines += [f"{name} = {_value(v)}" for name, v in table.items() if v is not None]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _value(value: Any) -> str:
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
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case _:
            raise HdnnError(f"cannot write {value!r} as TOML")
