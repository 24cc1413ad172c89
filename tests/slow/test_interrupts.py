"""An interrupt at any moment of a pass leaves nothing behind: the next call has the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import hdnn
from processes import ended, forked
from skips import needs_kernels
from stress import inputs

pytestmark = [
    needs_kernels,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]
PASSES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "threads": ("H1", (2000, 8), {"features": 8, "layers": 32}),
    "two halves": ("MS1", (600, 16), {"features": 16, "layers": 64}),
    "ensemble": ("MS3", (3, 400, 4), {"features": 4, "layers": 48, "ensemble": 3}),
    "images": ("H2", (6, 8, 14, 14), {"channels": 8, "layers": 12}),
    "small": ("HS", (64, 4), {"features": 4, "layers": 8}),
}


class Interrupt(Exception):  # noqa: N818 (it is no error)
    """Raised by the handler of SIGALRM, as a timeout does."""


def make(name: str) -> Callable[[], list[Tensor]]:
    """A forward and backward pass by the kernels; its results."""
    architecture, shape, options = PASSES[name]
    generator = torch.Generator().manual_seed(0)
    common = {"T": 1.0, "scale": 0.3, "dtype": torch.float32, "backend": "fused"}
    net = hdnn.network(architecture, generator=generator, **common, **options)
    y = torch.randn(shape, generator=generator, dtype=torch.float32, requires_grad=True)

    def compute() -> list[Tensor]:
        out = net(y)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [y, *net.parameters()])]

    return compute


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupt])
def test_the_next_result_has_the_same_bits(name: str, error: type[BaseException]) -> None:
    """In a process of its own, which a crash or a pass that hangs ends."""

    def work() -> None:
        compute, raised = make(name), 0

        def handler(number: int, frame: object) -> None:
            nonlocal raised
            raised += 1
            raise error

        expected, clock = compute(), time.perf_counter()
        compute()
        seconds = time.perf_counter() - clock
        signal.signal(signal.SIGALRM, handler)
        for rng in inputs(name, 60):
            torch.set_num_threads(rng.choice((1, 2, 4, 16)))
            before = raised
            # On its way through torch, the interrupt may have become another error.
            with suppress(BaseException):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1.5 * seconds))
                while raised == before:
                    compute()
            assert all(map(torch.equal, compute(), expected))
        assert raised

    assert ended(forked(work)) == 0
