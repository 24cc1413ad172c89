"""Real processes that do some work with everything imported."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator

import pytest


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


class Beats:
    """A pipe on which processes that are forked later tell of something, a byte each time."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def wait(self, count: int) -> None:
        """Wait for so many, from children that hold the writing end alone; then close the pipe."""
        os.close(self.writer)
        with open(self.reader, "rb", buffering=0) as file:
            heard = b""
            while len(heard) < count and (more := file.read(count - len(heard))):
                heard += more
        assert len(heard) == count, "the processes ended before that"


@contextlib.contextmanager
def epoch_beats() -> Iterator[Beats]:
    """A beat whenever a process that is forked inside has written an epoch to its history."""
    beats, extend = Beats(), EpochLog.extend

    def beating(log: EpochLog, epoch: int, text: str) -> None:
        extend(log, epoch, text)
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            os.write(beats.writer, b".")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpochLog, "extend", beating)
        yield beats
