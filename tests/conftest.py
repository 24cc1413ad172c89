"""The strict environment of every test: float64, fixed seeds, reproducible Hypothesis examples."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from hdnn.kernels import native

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and lines would be broken there
settings.register_profile("hdnn", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("hdnn")

if native.obstacle() is not None:
    from hdnn.cli.base import note_kernels

    note_kernels()  # which is said once a process: now, so that no test meets it


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    torch.set_warn_always(True)  # else a warning is an error in the first test only
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)
