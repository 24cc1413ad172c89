"""Measures cases with all their peers in one interleaved run, and what is no case."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hdnn
from hdnn.errors import HdnnError
from speed import plain
from speed.cases import Case
from speed.peers import PEERS, loop
from speed.timing import Work, interleave, repeat
from speed.worker import Worker

Record = dict[str, Any]
Report = Callable[[str], None]


def silent(line: str) -> None:
    """A report that nobody reads."""


def measure(
    case: Case, seconds: float = 2.0, report: Report = silent, jax: Sequence[str] = ()
) -> Record:
    """One case: seconds of every peer.

    Args:
        case: with its peers.
        seconds: of the interleaved run.
        report: gets a line for every peer.
        jax: interpreters with JAX; each is a peer named by its version.

    Raises:
        HdnnError: the kernels are missing, or a peer in JAX computes other gradients.
    """
    works: dict[str, Work] = {}
    forms = {}
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
        report(f"{case.name:44} {name:15} {timing.median * 1e3:9.3f} ms   {ratio:6.2f} x {first}")
    record = {"case": asdict(case), "seconds": {k: v._asdict() for k, v in timings.items()}}
    return record | ({"jax": forms} if forms else {})


def jax_worker(python: str) -> Worker:
    """A process with JAX, with a device for every thread."""
    devices = f"--xla_force_host_platform_device_count={torch.get_num_threads()}"
    return Worker(python, "speed.jax_peer", XLA_FLAGS=devices, JAX_PLATFORMS="cpu")


def prepare_jax(worker: Worker, case: Case) -> Record:
    """Prepare a case's strongest form in JAX; its gradients must be those of the plain loop."""

    def columns(x: torch.Tensor) -> torch.Tensor:
        """Samples last: (..., n, samples)."""
        return x.flatten(2).transpose(0, 1).flatten(1) if case.pixels else x.mT

    K, b = plain.parameters(case)
    arrays = {"y": columns(case.state()), "K": K, "b": b, "g": columns(case.state(seed=2))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **{name: array.detach().numpy() for name, array in arrays.items()})
        answer = worker.ask({"case": asdict(case), "arrays": str(path)})
        with np.load(path) as file:
            results = [torch.from_numpy(file[name]) for name in ("y", "K", "b")]
    grad_y, *gradients = loop(case)()
    for result, exact in zip(results, (columns(grad_y), *gradients), strict=True):
        error = float((result - exact).norm() / exact.norm())
        if not error < 1e-4:
            raise HdnnError(f"{case.name}: gradients of {answer['form']} deviate by {error:.1e}")
    return answer


def machine() -> Record:
    """What the numbers were measured on."""
    facts: Record = {"hdnn": hdnn.__version__, "python": platform.python_version()}
    facts |= {package: metadata.version(package) for package in ("torch", "numpy")}
    facts |= {"threads": torch.get_num_threads(), "cpu": _cpu()}
    return facts | {"date": time.strftime("%Y-%m-%d")}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
