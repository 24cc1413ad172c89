"""What the stress tests share: how many inputs, mutated bytes, data, and outcomes of a run."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image

from hdnn.training.runs import Run, read_history

SCALE = int(os.environ.get("HDNN_STRESS", "1"))
"""Times as many inputs as `make test-all` tries without it."""


def inputs(name: str, count: int) -> Iterator[Random]:
    """A generator of random numbers for each of so many inputs; the same in every run."""
    return (Random(f"{name} {number}") for number in range(SCALE * count))


MARKS = (b"\0", b"\n", b'"', b",", b"{", b"[" * 9999)
TOKENS = (b"", *MARKS, b"\xff" * 8, b"NaN", b"1e999", b"9" * 5001)


def mutate(data: bytes, rng: Random) -> bytes:
    """One to four changes of bits, bytes, numbers and stretches, whatever they mean."""
    whole = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(whole) + 1)
        match rng.randrange(6):
            case 0 if place < len(whole):
                whole[place] ^= 1 << rng.randrange(8)
            case 1:
                del whole[place:]
            case 2:
                del whole[place : place + rng.choice((1, 4, 64, 1000))]
            case 3:
                whole[place:place] = whole[place : place + 100] * rng.choice((1, 9))
            case 4:
                whole[place : place + rng.choice((0, 1, 8))] = rng.choice(TOKENS)
            case _:
                number = rng.choice((0, 1, 255, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
                form, size = rng.choice((("<I", 4), (">I", 4), ("<Q", 8)))
                whole[place : place + size] = struct.pack(form, number % 256**size)
    return bytes(whole)


def write_table(path: Path) -> Path:
    """A table with a label and a value to predict, categories, dates and gaps."""
    points = np.random.default_rng(0).normal(size=(120, 3))
    rows = [
        f"{a},{b if b < 2 else ''},{c},{'red' if c > 0 else 'blue'},2020-01-{number % 28 + 1:02},"
        f"{'yes' if a > b else 'no'},{a * b}"
        for number, (a, b, c) in enumerate(points)
    ]
    path.write_text("\n".join(["a,b,c,color,day,label,value", *rows, ""]))
    return path


def write_images(folder: Path) -> Path:
    """A folder of images of two classes."""
    rng = np.random.default_rng(0)
    for name, shade in (("dark", 0), ("light", 128)):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = shade + rng.integers(0, 128, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on interruptions: model, metrics, history but for its times, files."""
    run = Run(folder)
    return {
        "model": run.model_file.read_bytes(),
        "metrics": json.loads(run.metrics.read_text()),
        "history": [{**record, "seconds": None} for record in read_history(run.history)],
        "gradients": run.gradients.read_bytes() if run.gradients.exists() else b"",
        "files": sorted(path.name for path in folder.rglob("*")),
    }


def one_thread() -> None:
    """As users have it: float32; a child of fork has none of torch's threads, so use none."""
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
