"""Real processes that do some work with everything imported, and the memory that work takes."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in /proc")


def forked(work: Callable[[], object]) -> int:
    """A process that does some work and exits as a program would; its id."""
    # What earlier tests left in cycles must not be collected in the child: a session of onnxruntime
    # waits there for its threads, which have not come along.
    gc.collect()
    gc.freeze()
    child = os.fork()
    if child:
        gc.unfreeze()
        return child
    status = 1
    try:
        work()
        status = 0
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int:
    """Wait for a process; its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def memory_growth(work: Callable[[], object]) -> int:
    """By how many bytes the peak of memory rises in some work, on Linux."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    # Pages of libraries come back one by one after a fork; they do not count.
    before = _status("VmRSS") - _status("RssFile")
    work()
    return _status("VmHWM") - _status("RssFile") - before


def _status(field: str) -> int:
    """A size of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))
