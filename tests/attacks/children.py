"""Judging inputs in forked processes, so that a crash, a hang or a lost thread costs one input."""

from __future__ import annotations

import functools
import json
import os
import selectors
import shutil
import signal
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

Judge = Callable[[int, Path], str]
"""judge(number, folder): the verdict on an input; the folder is its process's own."""

PROCESSES = os.cpu_count() or 1


def judged(
    judge: Judge, numbers: Iterable[int], *, batch: int = 1000, seconds: float = 60.0
) -> Iterator[tuple[int, str]]:
    """Judge numbered inputs, each process a batch of them in order.

    Args:
        judge: called in the processes.
        numbers: of the inputs.
        batch: how many inputs a process judges before a new one takes over.
        seconds: after which an input is a hang.

    Yields:
        Numbers and verdicts. A process that dies gives "crash" for the input it was at, one that
        is silent for too long "hang", and a new one goes on with the rest.
    """
    left, todo = iter(numbers), deque[list[int]]()
    with selectors.DefaultSelector() as selector:
        while True:
            while len(selector.get_map()) < PROCESSES:
                part = todo.popleft() if todo else list(islice(left, batch))
                if not part:
                    break
                child = _Child(judge, part)
                selector.register(child.pipe, selectors.EVENT_READ, child)
            if not selector.get_map():
                return
            selector.select(timeout=1.0)
            for key in list(selector.get_map().values()):
                child = key.data
                yield from child.read()
                ending = child.ending(seconds)
                if ending is None:
                    continue
                selector.unregister(child.pipe)
                if child.todo:
                    yield child.todo.pop(0), ending
                    todo.append(child.todo)
                child.close()


class _Child:
    """A process that judges inputs."""

    def __init__(self, judge: Judge, numbers: list[int]) -> None:
        self.todo, self.heard = list(numbers), time.monotonic()
        self.folder = new_folder()
        reader, writer = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            _judge_all(judge, numbers, self.folder, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self.pipe: IO[bytes] = os.fdopen(reader, "rb", buffering=0)
        self.rest, self.ended = b"", False

    def read(self) -> Iterator[tuple[int, str]]:
        """What it has reported since last time."""
        while data := self.pipe.read(1 << 16):
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                self.heard = time.monotonic()
                yield self.todo.pop(0), json.loads(line)
        self.ended = data == b""  # and not None, which is nothing for the moment

    def ending(self, seconds: float) -> str | None:
        """How it ended, if it has, or is ended because it was silent for too long."""
        if not self.ended and time.monotonic() - self.heard < seconds:
            return None
        if not self.ended:
            os.kill(self.pid, signal.SIGABRT)  # faulthandler then says where it was
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        kind = f"crash ({_signal_name(code)})" if self.ended else "hang"
        return f"{kind}: {_last_words(self.folder / 'log')}"

    def close(self) -> None:
        """Forget it, its files, and the processes that it left behind."""
        self.pipe.close()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _workspace() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="hdnn-attack-")  # removed when this process exits


def new_folder() -> Path:
    """A folder for files that the processes to come share."""
    return Path(tempfile.mkdtemp(dir=_workspace().name))


def fork() -> int:
    """os.fork without Python 3.12's warning: hdnn's threads hold no lock that a child needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _judge_all(judge: Judge, numbers: list[int], folder: Path, writer: int) -> None:
    import faulthandler

    code = 1
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable(log)
        for number in numbers:
            verdict = judge(number, folder)
            os.write(writer, json.dumps(verdict[:400]).encode() + b"\n")
        code = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _last_words(log: Path) -> str:
    """Where a process died: what faulthandler says, else the end of its output."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    fatal = [k for k, line in enumerate(lines) if line.startswith("Current thread")]
    return " | ".join(line.strip() for line in (lines[fatal[-1] :][:10] if fatal else lines[-6:]))


def _signal_name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit {code}"
