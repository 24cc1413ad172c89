"""Where a training computes: the device that a setting asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hdnn.errors import HdnnError

DEVICES = ("cpu", "cuda", "mps", "auto")


def available_accelerator() -> str | None:
    """The accelerator of this machine, "cuda" or "mps"; None where there is none."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def choose_device(asked: str, images: bool, dtype: torch.dtype) -> torch.device:
    """The device that a training asks for.

    Args:
        asked: "cpu", "cuda", "mps", or "auto": an accelerator for images, if there is one. Planar
            networks and tables stay on the CPU, where whole epochs run in compiled code.
        images: whether the model takes images.
        dtype: of the model.

    Returns:
        The device.

    Raises:
        HdnnError: it is not there, or does not know the dtype.

    >>> choose_device("auto", images=False, dtype=torch.float32)
    device(type='cpu')
    """
    there = available_accelerator()
    if asked == "auto":
        fits = there is not None and not (there == "mps" and dtype == torch.float64)
        return torch.device(there if images and fits and there is not None else "cpu")
    if asked == "cpu":
        return torch.device("cpu")
    if asked != there:
        raise HdnnError(
            f"device={asked!r} is not available to this installation of torch; use device='cpu'"
            + ("" if there is None else f", or {there!r}, which is there")
        )
    if asked == "mps" and dtype == torch.float64:
        raise HdnnError("device='mps' has no float64; use dtype='float32', or device='cpu'")
    return torch.device(asked)


@contextmanager
def placed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """A module on a device for a while, and then back where it was.

    Args:
        module: whose parameters and buffers are all on one device.
        device: where they are inside.
    """
    before = next((p.device for p in module.parameters()), device)
    if before == device:
        yield
        return
    module.to(device)
    try:
        yield
    finally:
        module.to(before)
