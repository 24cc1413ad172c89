"""Kernels that another process compiles, while this one compiles what it needs first.

numba compiles one function at a time in a process. Of the kernels that a training needs, the first
is compiled here and the others by a child; they meet on disk (see `hdnn.kernels.cache`), where they
also find the functions that several kernels have in common. A child is a matter of time only:
without one, or where it fails, everything is compiled here, to the same bits.

There is none where a process has one core, where compiled kernels cannot be kept, in a program that
is no Python interpreter (as frozen ones), and with ``HDNN_COMPILE_JOBS=1`` in the environment.
"""

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path

from hdnn.kernels.cache import folder

JOBS = "HDNN_COMPILE_JOBS"
BESIDE = {
    "joint_steps": ("product", "forward", "advance"),
    "epoch": ("product", "forward"),
}
"""What evaluation needs, and parts of the kernel itself, in the order in which it gets there."""
FIRST = "gram", "scatter_gradients"
"""Parts of those kernels that the child does not compile."""

# The child looks for modules where this process does, and ends with it: its input ends then.
_CODE = """
import sys
sys.path[:] = sys.argv[1].split("\\n")
import os, threading
def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
from hdnn.kernels import catalogue
for name in sys.argv[3:]:
    catalogue.compile_one(name, sys.argv[2])
    print(name, flush=True)
os._exit(0)
"""

_children: dict[tuple[str, str], "_Child"] = {}


class _Child:
    """A process that compiles kernels, one after the other; it tells their names as it does."""

    def __init__(self, names: tuple[str, ...], dtype: str) -> None:
        self.over = {name: threading.Event() for name in names}
        self.parent = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, "\n".join(sys.path), dtype, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, JOBS: "1"},
        )
        self.listener = threading.Thread(target=self._listen, name="hdnn-compiling", daemon=True)
        self.listener.start()
        atexit.register(self.stop)

    def _listen(self) -> None:
        try:
            with self.process:  # waits for its end, so that no zombie is left
                for line in self.process.stdout or ():
                    if line.strip() in self.over:
                        self.over[line.strip()].set()
        finally:
            for event in self.over.values():  # what it has not compiled will be compiled here
                event.set()

    def stop(self) -> None:
        """End it, wherever it is."""
        if os.getpid() == self.parent:  # else this process was forked from that of the child
            self.process.kill()
            self.listener.join()


def begin(*names: str, dtype: str) -> bool:
    """Let a child compile those kernels that are not on disk yet, in this order.

    Args:
        names: of kernels, or of their parts: see `hdnn.kernels.catalogue`.
        dtype: "float32" or "float64".

    Returns:
        Whether there is a child; none is needed for parts alone.
    """
    from hdnn.kernels import catalogue  # knows all kernels, which know this module

    names = tuple(
        name
        for name in names
        if (name, dtype) not in _children and catalogue.is_missing(name, dtype)
    )
    if not set(names) & set(catalogue.KERNELS) or not _can_serve():
        return False
    try:
        child = _Child(names, dtype)
    except OSError:
        return False
    _children.update(((name, dtype), child) for name in names)
    return True


def begin_beside(name: str, dtype: str) -> None:
    """Let a child compile what a training needs beside a kernel that is compiled here now.

    Args:
        name: of the kernel.
        dtype: "float32" or "float64".
    """
    from hdnn.kernels import catalogue

    if begin(*BESIDE.get(name, ()), dtype=dtype):
        for part in FIRST:  # meanwhile the child gets to what both have in common
            catalogue.compile_one(part, dtype)


def is_busy(name: str, dtype: str) -> bool:
    """Whether a kernel is still to come from a child."""
    child = _children.get((name, dtype))
    return child is not None and not child.over[name].is_set()


def wait(name: str, dtype: str) -> None:
    """Until a child has compiled a kernel, or has ended."""
    child = _children.get((name, dtype))
    if child is not None:
        child.over[name].wait()


def _can_serve() -> bool:
    text = os.environ.get(JOBS, "")
    jobs = int(text) if text.isdigit() else _cores()
    is_python = Path(sys.executable or "").name.lower().startswith(("python", "pypy"))
    is_frozen = getattr(sys, "frozen", False)
    return jobs > 1 and is_python and not is_frozen and folder() is not None


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if hasattr(os, "register_at_fork"):  # the children of the parent are not ours
    os.register_at_fork(after_in_child=_children.clear)
