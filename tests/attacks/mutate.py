"""Seeded mutations of files: of their bytes, and of what JSON, TOML and safetensors hold."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]
"""mutation(data, rng, others): a changed copy; ``others`` are files of the same kind."""

NUMBERS: tuple[float, ...] = (
    *(0, 1, 2, 3, 7, 8, 16, 255, 256, 999, 65_535, 10**5, 10**6, 10**9, 10**12, 10**400),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -1, -2, -(2**31), -(2**63)),
    *(0.5, 1.5, 1e-300, 5e-324, 1e38, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
)
VALUES = (
    *(None, True, False, "", "x", "0", "nan", "\0", "\ud800", "é" * 40, "9" * 5000, "a" * 100_000),
    *("../../x", "H1", "MS1", "float64", "custom", "learned", [], {}, [[]], [0], [1, 2, 3], [None]),
    *([1] * 1000, {"": 0}, {"type": "RK4"}, [10**9] * 4),
)
TOKENS = (
    *(b"", b"\0", b"\xff", b"\xff" * 8, b"\n", b"\r\n", b'"', b"'", b",", b";", b"{", b"}", b"="),
    *(b"null", b"NaN", b"inf", b"-1", b"1e999", b"0x10", b"#", b"\xef\xbb\xbf", b"\xc3"),
    b"\\ud800",
    *(b"9" * 4301, b"9" * 5001, b"a" * 200_000, b"[" * 9999, b'{"a":' * 999),
    *(b"\x1f\x8b", b"PK\x03\x04", b"PAR1"),
)


def bytewise(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """One to four changes of bits, bytes, numbers and stretches, whatever they mean."""
    whole = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(whole) + 1)
        match rng.randrange(8):
            case 0 if place < len(whole):
                whole[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(whole):
                whole[place] = rng.randrange(256)
            case 2:
                del whole[place:]
            case 3:
                del whole[place : place + rng.choice((1, 4, 64, 1000))]
            case 4:
                piece = whole[place : place + rng.choice((1, 8, 100))]
                whole[place:place] = piece * rng.choice((1, 9))
            case 5:
                whole[place : place + rng.choice((0, 1, 8))] = rng.choice(TOKENS)
            case 6:
                number = int(rng.choice(NUMBERS[:27])) % 2**64
                form = rng.choice("<>") + rng.choice("HIQ")
                packed = struct.pack(form, number % 256 ** struct.calcsize(form))
                whole[place : place + len(packed)] = packed
            case _:
                other = rng.choice(others) if others else data
                start = rng.randrange(len(other) + 1)
                whole[place:] = other[start : start + rng.choice((16, 1000, len(other)))]
    return bytes(whole)


# --- JSON and what holds JSON ---------------------------------------------------------------------


def value(old: Any, rng: Random) -> Any:
    """Something else in place of a value; near it, far from it, or of another type."""
    if isinstance(old, int | float) and not isinstance(old, bool) and rng.random() < 0.8:
        near = [old + 1, old - 1, -old, old * 2, old * 1000, float(old), str(old)]
        return rng.choice([*near, *NUMBERS]) if abs(old) < 1e300 else rng.choice(NUMBERS)
    if isinstance(old, list) and old and rng.random() < 0.5:
        return rng.choice([old[:-1], [*old, old[-1]], old[::-1], old * 99, [old]])
    return rng.choice((*VALUES, *NUMBERS))


def tree(node: Any, rng: Random) -> Any:
    """A copy of a JSON value with one place changed, lost or added."""
    if not isinstance(node, dict | list) or not node or rng.random() < 0.1:
        return value(node, rng)
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    chosen, copied = rng.choice(keys), node.copy()
    match rng.randrange(12):
        case 0:
            del copied[chosen]
        case 1 if isinstance(copied, dict):
            copied[rng.choice(["x", "", "type", f"{chosen} ", "é", *keys])] = rng.choice(VALUES)
        case _:
            copied[chosen] = tree(node[chosen], rng)
    return copied


def as_json(node: Any) -> bytes:
    """JSON as Python writes it, NaN and lone surrogates included."""
    return json.dumps(node).encode()


def json_lines(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """A file of JSON lines, one of them changed, lost, doubled or moved."""
    lines = data.splitlines()
    if not lines or rng.random() < 0.4:
        return bytewise(data, rng, others)
    place = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(rng.randrange(len(lines)), lines[place])
        case 2:
            lines[place] = bytewise(lines[place], rng)
        case _:
            lines[place] = as_json(tree(json.loads(lines[place]), rng))
    return b"\n".join(lines) + b"\n"


def toml(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """TOML, the value or the name of one setting changed."""
    lines = data.splitlines()
    settings = [k for k, line in enumerate(lines) if b" = " in line]
    if not settings or rng.random() < 0.3:
        return bytewise(data, rng, others)
    place = rng.choice(settings)
    name, _, old = lines[place].partition(b" = ")
    match rng.randrange(8):
        case 0:
            lines.append(lines[place])
        case 1:
            name = rng.choice([b"[" * 9999, b"x" + name, b'"" ', b"a" + b".a" * 2000])
        case 2:
            old = rng.choice([b"[" * 5000 + b"]" * 5000, b"9" * 5001, b"{}", b"[[x]]"])
        case _:
            new = value(json.loads(old) if re.fullmatch(rb"-?\d+(\.\d+)?", old) else None, rng)
            old = as_json("" if new is None else new)
            old = old.replace(b"NaN", b"nan").replace(b"Infinity", b"inf")
    lines[place] = name + b" = " + old
    return b"\n".join(lines) + b"\n"


# --- safetensors, with its JSON header and the description in it ----------------------------------


def safetensors(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """A safetensors file: its header, the description in it, perhaps its tensors changed."""
    if rng.random() < 0.3:
        return bytewise(data, rng, others)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    if rng.random() < 0.75:
        description = json.loads(header["__metadata__"]["hdnn"])
        header["__metadata__"]["hdnn"] = json.dumps(tree(description, rng))
    else:
        header = tree(header, rng)
    if rng.random() < 0.2:
        body = bytewise(body, rng)
    text = as_json(header)
    return len(text).to_bytes(8, "little") + text + body
