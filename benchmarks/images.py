"""A training step of the paper's image network against the same in eager PyTorch.

Both do one step of appendix B.2 on a batch of 100 images: gather uint8, normalize, 3x3
convolution, 16 layers of width 8 at every pixel, output layer on all values, cross-entropy and both
penalties, Adam. The peers loop over the layers in Python, with 1x1 convolutions or with linear maps
on images whose channels come last. Medians of interleaved bursts in one process.

    python benchmarks/images.py --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from speed.timing import interleave, repeat
from torch import Tensor, nn
from torch.nn import functional as F

from hdnn.models import image_model
from hdnn.training import TrainingConfig
from hdnn.training.batches import Batches
from hdnn.training.loops import AutogradLoop

BATCH, STEPS = 100, {"MS1": 0.4, "H2": 0.05}
MEAN, STD, ALPHA, ALPHA_C = 0.1307, 0.3081, 1e-3, 2e-4
Step = Callable[[], None]


class Eager(nn.Module):
    """The paper's network, layer by layer; `last`: channels last and linear maps."""

    def __init__(self, name: str, layers: int, last: bool) -> None:
        super().__init__()
        self.name, self.h, self.last = name, STEPS[name], last
        n = 4 if name == "MS1" else 8
        self.opening = nn.Conv2d(1, 8, 3, padding=1)
        self.K = nn.Parameter(torch.randn(layers, n, n))
        self.b = nn.Parameter(torch.randn(layers, 8))
        self.head = nn.Linear(8 * 784, 10)
        J = torch.triu(torch.ones(8, 8), 1)
        self.register_buffer("J", J - J.T)

    def mix(self, K: Tensor, y: Tensor, b: Tensor | None = None) -> Tensor:
        return F.linear(y, K, b) if self.last else F.conv2d(y, K[:, :, None, None], b)

    def forward(self, x: Tensor) -> Tensor:
        y = self.opening((x.float() / 255 - MEAN) / STD)
        y = y.permute(0, 2, 3, 1).contiguous() if self.last else y
        for K, b in zip(self.K.unbind(), self.b.unbind(), strict=True):
            y = self.layer(K, b, y)
        y = y.permute(0, 3, 1, 2) if self.last else y
        out: Tensor = self.head(y.flatten(1))
        return out

    def layer(self, K: Tensor, b: Tensor, y: Tensor) -> Tensor:
        if self.name == "H2":
            return y + self.h * self.mix(self.J @ K.T, torch.tanh(self.mix(K, y, b)))
        axis = 3 if self.last else 1
        y, z = y.split(4, axis)
        z = z - self.h * torch.tanh(self.mix(K.T, y, b[:4]))
        y = y + self.h * torch.tanh(self.mix(K, z, b[4:]))
        return torch.cat([y, z], axis)

    def penalty(self) -> Tensor:
        # MS1's assembled K holds K0 twice.
        times = 2 if self.name == "MS1" else 1
        changes = times * self.K.diff(dim=0).square().sum() + self.b.diff(dim=0).square().sum()
        size = self.head.weight.square().sum() + self.head.bias.square().sum()
        return ALPHA * self.h / 2 * changes + ALPHA_C * size


def eager_step(name: str, layers: int, X: Tensor, target: Tensor, last: bool) -> Step:
    """One step of the peer."""
    model = Eager(name, layers, last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        chosen = torch.randint(0, len(X), (BATCH,))
        loss = F.cross_entropy(model(X[chosen]), target[chosen]) + model.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def hdnn_step(name: str, layers: int, X: Tensor, target: Tensor) -> Step:
    """One step of hdnn's training loop."""
    options = {"architecture": name, "step": STEPS[name]} if layers else {}
    images = {"channels": 1, "size": (28, 28), "classes": 10, "mean": (MEAN,), "std": (STD,)}
    model = image_model(layers=layers, **images, **options)  # type: ignore[arg-type]
    training = TrainingConfig(
        method="joint", learning_rate=1e-4, batch_size=BATCH, alpha=ALPHA, alpha_c=ALPHA_C
    )
    loop = AutogradLoop(model, Batches(X, target, torch.ones(len(X))), training)

    def step() -> None:
        loop.gradients(torch.randint(0, len(X), (BATCH,)), 0, 0, 1)
        loop.optimizer.step()

    return step


def data() -> tuple[Tensor, Tensor]:
    """As many images as MNIST has; what they show does not matter for the time."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(0, 256, (60_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return X, torch.randint(0, 10, (60_000,), generator=generator)


def speed(name: str, seconds: float) -> dict[str, float | str]:
    """Milliseconds a step, and the ratio to the faster peer."""
    X, target = data()
    found = interleave(
        {
            "hdnn": repeat(hdnn_step(name, 16, X, target)),
            "eager, 1x1 convolutions": repeat(eager_step(name, 16, X, target, last=False)),
            "eager, channels last": repeat(eager_step(name, 16, X, target, last=True)),
        },
        seconds=seconds,
    )
    times = {title: 1000 * timing.median for title, timing in found.items()}
    peer = min(value for title, value in times.items() if title != "hdnn")
    return {"network": name, **times, "ratio": peer / times["hdnn"]}


def peak(kind: str, name: str, layers: int) -> float:
    """Megabytes that three steps take at the largest, in a process that has only seen one layer."""
    code = f"import images; images.measure_peak({kind!r}, {name!r}, {layers})"
    run = [sys.executable, "-c", code]
    folder = Path(__file__).parent
    return float(subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout)


def measure_peak(kind: str, name: str, layers: int) -> None:
    """Print what `peak` reads."""
    X, target = (part[:1000] for part in data())
    # Compiles and warms up, outside of what is measured.
    hdnn_step(name, 1, X, target)()
    eager_step(name, 1, X, target, last=False)()
    step = (
        hdnn_step(name, layers, X, target)
        if kind == "hdnn"
        else eager_step(name, layers, X, target, last=False)
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew (Linux)
    before = _kilobytes("VmRSS")
    for _ in range(3):
        step()
    print((_kilobytes("VmHWM") - before) / 1024)


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    steps = [speed(name, given.seconds) for name in STEPS]
    memory = [
        {"kind": kind, "network": "H2", "layers": layers, "MB": round(peak(kind, "H2", layers), 1)}
        for kind in ("hdnn", "eager")
        for layers in (4, 16, 64)
    ]
    if given.json:
        print(json.dumps({"threads": given.threads, "steps": steps, "memory": memory}, indent=1))
        return
    for row in (*steps, *memory):
        print(
            ", ".join(
                f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )


if __name__ == "__main__":
    main()
