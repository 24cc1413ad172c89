"""Measures cases with all their peers in one interleaved run, and what is no case."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

import hdnn
from speed import plain
from speed.cases import Case
from speed.peers import PEERS, loop
from speed.timing import Work, interleave, repeat
from speed.worker import Record, Worker


def measure(case: Case, seconds: float = 2.0, jax: Sequence[str] = ()) -> Record:
    """One case: seconds of every peer.

    Args:
        case: with its peers.
        seconds: of the interleaved run.
        jax: interpreters with JAX; each is a peer named by its version.

    Raises:
        HdnnError: the kernels are missing.
        EOFError: a peer in JAX computes other gradients.
    """
    works: dict[str, Work] = {}
    forms: Record = {}
    with ExitStack() as stack:
        for peer in case.peers:
            if peer == "jax":
                for python in jax:
                    worker = stack.enter_context(jax_worker(python))
                    answer = prepare_jax(worker, case)
                    name = f"jax {answer['version']}"
                    works[name], forms[name] = worker.work, answer
                continue
            works[peer] = repeat(PEERS[peer](case))
            works[peer](1)
        # Threads of eager peers spin on the cores that the strongest peers need next.
        eager = {"loop", "reference"} if "jax" in case.peers else set()
        timings = interleave({k: w for k, w in works.items() if k not in eager}, seconds=seconds)
        timings |= interleave({k: w for k, w in works.items() if k in eager}, seconds=seconds)
    first = next(iter(timings))
    for name, timing in timings.items():
        ratio = timing.median / timings[first].median
        line = f"{case.name:44} {name:15} {timing.median * 1e3:9.3f} ms   {ratio:6.2f} x {first}"
        print(line, file=sys.stderr)
    record = {"case": asdict(case), "seconds": {k: v._asdict() for k, v in timings.items()}}
    return record | ({"jax": forms} if forms else {})


def jax_worker(python: str) -> Worker:
    """A process with JAX, with a device for every thread."""
    devices = f"--xla_force_host_platform_device_count={torch.get_num_threads()}"
    return Worker(python, "speed.jax_peer", XLA_FLAGS=devices, JAX_PLATFORMS="cpu")


def prepare_jax(worker: Worker, case: Case) -> Record:
    """Prepare a case's strongest form in JAX; all forms must give the plain loop's gradients."""

    def columns(x: torch.Tensor) -> torch.Tensor:
        """Samples last: (..., n, samples)."""
        return x.flatten(2).transpose(0, 1).flatten(1) if case.pixels else x.mT

    K, b = plain.parameters(case)
    grad_y, *gradients = loop(case)()
    arrays = {"y": columns(case.state()), "K": K, "b": b, "g": columns(case.state(seed=2))}
    arrays |= dict(zip(("grad_y", "grad_K", "grad_b"), (columns(grad_y), *gradients), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **{name: array.detach().numpy() for name, array in arrays.items()})
        return worker.ask({"case": asdict(case), "arrays": str(path)})


def machine() -> Record:
    """What the numbers were measured on."""
    return {
        "hdnn": hdnn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cpu": _cpu(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    """The processor's name, where Linux tells it."""
    info = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return name[1] if name else platform.processor()
