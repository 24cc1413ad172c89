"""Idle threads of torch's OpenMP are to sleep soon; imported before torch is.

By default GNU's library lets them spin for milliseconds, on a core that somebody else wants next:
the threads of the fused backend, or another process, beside which a step of a small network between
two `nn.Linear` takes 100 times as long. It reads how long they may spin when it is loaded, with
torch. Where that has happened before, `calm` finds another way. Nothing is done where the user has
said what to do (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
"""

import os
import sys
import threading

_SETTINGS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"

came_late = "torch" in sys.modules and not any(name in os.environ for name in _SETTINGS)
"""Whether torch's OpenMP was loaded before it could be told anything."""

if not any(name in os.environ for name in _SETTINGS):
    os.environ["GOMP_SPINCOUNT"] = "1000"


def calm() -> None:
    """Let idle threads sleep soon, also where torch came first.

    GNU's library gives up spinning as soon as it manages more threads than there are cores. So one
    more thread of ours, which then sleeps for good, has threads of OpenMP of its own.
    """
    global came_late  # noqa: PLW0603 (once for the process)
    if came_late and sys.platform == "linux":
        came_late = False
        ready = threading.Event()
        threading.Thread(
            target=_own_threads, args=(ready,), name="hdnn-openmp", daemon=True
        ).start()
        ready.wait()  # a process that ends while a thread is inside torch aborts


def _own_threads(ready: threading.Event) -> None:
    import torch

    try:
        torch.zeros(1 << 20).add_(1)  # large enough for torch to share it among threads
    finally:
        ready.set()
    threading.Event().wait()  # its threads are dropped with it
