"""The examples in other people's loops: they run, and they learn."""

from __future__ import annotations

import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdnn

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str, package: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's, about what else is installed
        pytest.importorskip(package, reason=f"needs {package}")
        return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_trains_a_block_and_logs_its_gradients(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mixed precision the linear layers are lower, the block is not; and it learns."""
    torch.set_default_dtype(torch.float32)
    seen: set[tuple[str, torch.dtype]] = set()
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, _, out: seen.add((type(module).__name__, out.dtype))
    )
    scripts = example("with_lightning.py", "lightning")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            accuracy = scripts["train"](tmp_path, epochs=8, precision=precision)
    finally:
        hook.remove()
    assert accuracy > 0.85
    lower = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    assert ("HamiltonianNetwork", torch.float32) in seen
    assert ("HamiltonianNetwork", torch.bfloat16) not in seen
    assert ("Linear", lower) in seen
    (table,) = tmp_path.rglob("metrics.csv")
    assert "gradient_norm/1" in table.read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "with_torchrun.py"),
        ("-W", "ignore", "with_lightning.py", "--processes=2"),
    ],
    ids=["torchrun", "Lightning"],
)
def test_two_processes_train_one_model(command: tuple[str, ...], tmp_path: Path) -> None:
    """On the CPU, with gloo; they end with the same weights, which predict."""
    if "with_lightning.py" in command:
        pytest.importorskip("lightning", reason="needs lightning")
    words = [str(EXAMPLES / word) if word.endswith(".py") else word for word in command]
    done = subprocess.run(
        [sys.executable, *words, "--epochs=4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("test accuracy ")[1][:6])
    assert accuracy > 0.8
    if "with_torchrun.py" in command:
        assert "2 processes" in done.stdout
        assert isinstance(hdnn.load(tmp_path / "model.safetensors"), hdnn.Model)


def test_skorch_searches_architectures() -> None:
    scripts = example("with_skorch.py", "skorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best, accuracy = scripts["search"](epochs=6, size=800)
    assert set(best) == {"architecture", "layers"}
    assert accuracy > 0.8


def test_torchinfo_counts_parameters_and_torch_counts_operations() -> None:
    """torchinfo sees no products inside a block; docs/depth.md says what to use instead."""
    torchinfo = pytest.importorskip("torchinfo", reason="needs torchinfo")
    from torch.utils.flop_counter import FlopCounterMode

    block = hdnn.network("H1", features=8, layers=16, T=1.0)
    model = nn.Sequential(nn.Linear(30, 8), block, nn.Linear(8, 3))
    summary = torchinfo.summary(model, input_data=torch.randn(32, 30), verbose=0)
    assert summary.total_params == sum(p.numel() for p in model.parameters())
    linear = 32 * (30 * 8 + 8 * 3)
    assert linear <= summary.total_mult_adds < linear + 32 * 16  # of the linear layers only
    block.backend = "reference"  # torch sees no products inside a kernel
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(32, 30))
    per_layer = 2 * 32 * 8**2 + 8**3  # K y and (J K') s of every sample, and J K' once
    assert counter.get_total_flops() == 2 * (linear + 16 * per_layer)
