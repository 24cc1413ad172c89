"""Training on another device: the same numbers, nothing that assumes the CPU, portable state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import hdnn
from elsewhere import install
from hdnn.data import Dataset
from hdnn.errors import HdnnError
from hdnn.training import Trainer, TrainingConfig
from hdnn.training.trainer import choose_device
from tasks import make, moons, seeded


def image_model() -> hdnn.Model:
    stages = {"widths": (4, 6), "layers": (2, 2), "step": 0.1, "kernel": 3, "norm": "batch"}
    options = {"channels": 1, "size": (8, 8), "classes": 3, "backend": "reference"}
    return hdnn.image_model(**stages, **options, generator=seeded(3))


table_model = partial(make, backend="reference")
SHARED = {"batch_size": 16, "epochs": 3, "loop": "autograd", "validation": 0.2, "seed": 5}
TRAININGS: dict[str, tuple[Callable[[], hdnn.Model], dict[str, object]]] = {
    "joint": (table_model, {"method": "joint", "optimizer": "AdamW", "clip": 1.0}),
    "coordinate": (table_model, {"early_stopping": 5}),
    "images": (image_model, {"method": "joint", "rotate": 5.0, "flip": True, "averaging": 0.9}),
}


def data_of(name: str) -> Dataset:
    if name != "images":
        return moons(64)
    source = seeded(1)
    images = torch.randint(0, 256, (48, 1, 8, 8), generator=source, dtype=torch.uint8)
    return Dataset.from_arrays(images, torch.randint(0, 3, (48,), generator=source))


def trained(name: str, device: torch.device) -> tuple[list[float], dict[str, torch.Tensor]]:
    """A training that is interrupted after two epochs and goes on in another trainer."""
    build, options = TRAININGS[name]
    config = TrainingConfig(**{**SHARED, **options})  # type: ignore[arg-type]
    data, model = data_of(name), build()
    first = Trainer(model, config)
    devices: list[torch.device] = []
    first.callbacks.append(lambda trainer, _: devices.append(trainer.model.head.weight.device))
    first.callbacks.append(lambda trainer, r: setattr(trainer, "stopped", r.epoch == 2))
    first.fit(data)
    assert set(devices) == {device}
    assert model.head.weight.device.type == "cpu"  # where it was
    tensors = [t for t in tree_leaves(first.state) if isinstance(t, torch.Tensor)]
    assert {t.device.type for t in tensors} == {"cpu"}
    model = build()
    second = Trainer(model, config)
    second.fit(data, resume=first.state)
    history = [*first.history, *second.history]
    figures = [[r.loss, r.penalized, r.accuracy or 0.0, r.validation_loss] for r in history]
    return np.array(figures, dtype=float).ravel().tolist(), model.state_dict()


def compare_all() -> None:
    """In a process of its own: here, on the other device, and from there back here."""
    device = install()
    here = {name: trained(name, torch.device("cpu")) for name in TRAININGS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdnn.training.trainer.choose_device", lambda *_: device)
        with pytest.raises(RuntimeError, match="of the CPU"):  # the device is as strict as it says
            table_model().to(device)(torch.zeros(1, 2))
        for name, (figures, weights) in here.items():
            there = trained(name, device)
            np.testing.assert_allclose(there[0], figures, rtol=1e-6, err_msg=name)
            for key, value in weights.items():
                np.testing.assert_allclose(there[1][key], value, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.slow
def test_another_device_gives_the_numbers_of_the_cpu() -> None:
    command = [sys.executable, "-W", "error", __file__]
    around = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env=around
    )
    assert done.returncode == 0, done.stderr


def test_missing_device_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HdnnError, match=r"device='cuda' is not available.*use device="):
        hdnn.HDNNClassifier(device="cuda").fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("there", ["cuda", "mps"])
def test_auto_takes_an_accelerator_for_images_only(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there == "cuda")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there == "mps")
    assert choose_device("auto", images=True, dtype=torch.float32).type == there
    assert choose_device("auto", images=False, dtype=torch.float32).type == "cpu"
    assert choose_device(there, images=False, dtype=torch.float32).type == there
    if there == "mps":
        assert choose_device("auto", images=True, dtype=torch.float64).type == "cpu"
        with pytest.raises(HdnnError, match=r"for torch\.float64; use device=.cpu"):
            choose_device("mps", images=True, dtype=torch.float64)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    compare_all()
