"""Models for images: the paper's network longhand, stages, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hdnn.errors import HdnnError
from hdnn.models import Model, image_model
from hdnn.zoo import ARCHITECTURES

BLOCK = {"MS1": 16 + 8, "MS2": 28 + 8, "MS3": 32 + 8, "H1": 64 + 8, "H2": 64 + 8}
"""Parameters of a layer of width 8, last row of Table 1."""


def model_of(**options: Any) -> Model:
    return image_model(**{"channels": 1, "size": (28, 28), "classes": 10} | options)


def images(count: int = 3, size: tuple[int, int] = (28, 28), channels: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, *size), dtype=torch.uint8)


@pytest.mark.parametrize("name", BLOCK)
def test_parameters_of_the_papers_network(name: str) -> None:
    opening, output = 8 * 9 + 8, 8 * 28 * 28 * 10 + 10
    for layers in (0, 16):
        model = model_of(architecture=name, layers=layers)
        count = sum(p.numel() for p in model.parameters())
        assert count == opening + layers * BLOCK[name] + output


def test_H2_longhand() -> None:
    mean, std, h = 0.13, 0.31, 0.05
    model = model_of(architecture="H2", layers=3, step=h, mean=(mean,), std=(std,))
    x = images()
    opening = model.stem.opening[0]
    y = F.conv2d((x / 255.0 - mean) / std, opening.weight, opening.bias, padding=1)
    net = model.networks[0]
    J2 = torch.triu(torch.ones(8, 8), 1)
    J2 = J2 - J2.mT
    for K, b in zip(net.K, net.b, strict=True):
        inner = torch.tanh(torch.einsum("ij,bjuv->biuv", K, y) + b[:, None, None])
        y = y + h * torch.einsum("ij,bjuv->biuv", J2 @ K.mT, inner)
    logits = y.flatten(1) @ model.head.weight.mT + model.head.bias
    torch.testing.assert_close(model(x), logits, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(model(x / 255.0), logits, rtol=1e-11, atol=1e-11)


def test_the_default_step_is_the_papers() -> None:
    assert [model_of(architecture=name).network.h for name in ("MS1", "H2")] == [0.4, 0.05]
    assert model_of(T=2.0, layers=4).network.h == 0.5


def test_plain_convolutions_in_place_of_the_block() -> None:
    model = model_of(block="convolution", kernel=3, layers=2)
    y = model.preprocess(x := images())
    for k in (0, 2):
        part = model.blocks[0][k]
        y = F.relu(F.conv2d(y, part.weight, part.bias, padding=1))
    torch.testing.assert_close(model(x), model.head(y.flatten(1)))


# --- stages ---------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {
    "widths": (4, 8),
    "layers": (1, 2),
    "kernel": 3,
    "size": (9, 7),
    "channels": 3,
    "classes": 5,
}


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_architecture_classifies(name: str) -> None:
    model = model_of(architecture=name, **DEEP)
    model(images(4, (9, 7), 3)).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_every_stage_has_half_the_resolution(norm: str) -> None:
    model = model_of(**DEEP | {"widths": (4, 8, 6), "layers": (1, 2, 1)}, norm=norm)
    x = images(2, (9, 7), 3)
    shapes = [tuple(y.shape) for _, y in model.block_inputs(x)]
    assert shapes == [(2, 4, 9, 7), (2, 8, 5, 4), (2, 6, 3, 2)]
    assert model(x).shape == (2, 5)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (8, 16)}, "2 widths .* 1 depths"),
        ({"layers": (-1,)}, "layers is an integer of at least 0"),
        ({"kernel": 2}, "kernel is an odd positive integer, got 2"),
        ({"step": 0.1, "T": 1.0}, "exactly one of T .* and step"),
        ({"block": "convolution", "step": 0.1}, "leave out step and T"),
        ({"norm": "bach"}, "did you mean 'batch'"),
        ({"architecture": "H9"}, "unknown architecture"),
        ({"std": (0.0,)}, "std has a number for each of 1 channels"),
        ({"mean": (0.1, 0.2)}, "mean has a number for each of 1 channels"),
    ],
)
def test_options_that_do_not_fit_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HdnnError, match=message):
        model_of(**options)


def test_images_of_another_shape_or_dtype_raise() -> None:
    model = model_of()
    with pytest.raises(HdnnError, match=r"expected images \(B, 1, 28, 28\), got \(2, 1, 8, 8\)"):
        model(images(2, (8, 8)))
    with pytest.raises(HdnnError, match=r"uint8 .* or torch\.float64"):
        model(images().float())
