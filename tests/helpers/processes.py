"""Real processes that do some work with everything imported."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """A process that does some work and exits as a program would; its id."""
    child = os.fork()
    if child:
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
