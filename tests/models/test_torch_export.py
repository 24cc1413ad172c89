"""torch.export of a whole model, and what a process without hdnn computes with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hdnn

BATCH = torch.export.Dim("batch", min=2)

ALONE = """
import sys
sys.modules["hdnn"] = None  # importing it raises
import torch
x = torch.load(sys.argv[2])
torch.save(torch.export.load(sys.argv[1]).module()(x), sys.argv[3])
"""


def alone(program: Path, x: Tensor) -> Tensor:
    """What a process without hdnn computes."""
    files = [program, program.with_name("x.pt"), program.with_name("y.pt")]
    torch.save(x, files[1])
    call = [sys.executable, "-W", "ignore", "-c", ALONE, *map(str, files)]
    subprocess.run(call, capture_output=True, check=True)
    return torch.load(files[2])


@pytest.mark.slow
def test_an_exported_model_runs_without_hdnn(tmp_path: Path) -> None:
    """Raw uint8 images to logits, the whole model."""
    given = {"channels": 1, "size": (9, 7), "classes": 10, "dtype": torch.float32}
    model = hdnn.image_model(**given, layers=3, kernel=3, norm="batch").eval()
    images = torch.randint(256, (6, 1, 9, 7), dtype=torch.uint8)
    exported = torch.export.export(model, (images,), dynamic_shapes=({0: BATCH},))
    torch.export.save(exported, tmp_path / "model.pt2")
    found = alone(tmp_path / "model.pt2", images[:2])
    torch.testing.assert_close(found, model(images[:2]).detach())
