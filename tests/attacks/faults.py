"""Every write failing in turn: a full disk, a broken one, a closed one.

Promised: a `StorageError` or another `HdnnError` (of the command line, its exit code), what was
there before is untouched, no temporary file is left, and a run goes on to the same bits.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from safetensors import SafetensorError

import hdnn
from attacks import kills
from attacks.children import judged, new_folder
from attacks.tally import HELD, Tally, tally
from hdnn.cli import app
from hdnn.paper.records import Records
from hdnn.training.runs import Run

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
CALLS = ("replace", "rename", "fsync", "mkdir", "write", "truncate", "ftruncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """A disk whose n-th write fails, and perhaps all that follow.

    Args:
        number: of the call that fails, from 1; 0: none does, and they are counted.
        code: the error.
        lasting: whether later calls fail too.
    """

    def __init__(self, number: int = 0, code: int = errno.ENOSPC, lasting: bool = False) -> None:
        self.number, self.code, self.lasting, self.calls = number, code, lasting, 0

    def pass_or_fail(self) -> None:
        """Count a call; fail where it is its turn."""
        self.calls += 1
        if self.calls == self.number or (self.lasting and 0 < self.number < self.calls):
            raise OSError(self.code, os.strerror(self.code))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of the functions that write."""
        with (
            mock.patch.multiple(os, open=self._os_open, **{n: self._failing(n) for n in CALLS}),
            mock.patch.object(builtins, "open", self._open),
            mock.patch.object(io, "open", self._open),
            mock.patch.object(safetensors.torch, "serialize_file", self._serialize),
        ):
            yield

    def _failing(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.pass_or_fail()
            return real(*arguments, **options)

        return call

    _real_open, _real_os_open = staticmethod(builtins.open), staticmethod(os.open)
    _real_serialize = staticmethod(safetensors.torch.serialize_file)

    def _os_open(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & WRITING:
            self.pass_or_fail()
        return self._real_os_open(path, flags, *rest, **options)

    def _serialize(self, *arguments: Any, **options: Any) -> None:
        try:
            self.pass_or_fail()
        except OSError as error:  # as the Rust library says it
            raise SafetensorError(f"Error while serializing: I/O error: {error}") from None
        self._real_serialize(*arguments, **options)

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return self._real_open(
                file, mode, buffering, encoding, errors, newline, closefd, opener
            )
        self.pass_or_fail()
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.disk = self
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class _Raw(io.FileIO):
    """A file on such a disk."""

    disk: Disk

    def write(self, data: Any) -> int:
        self.disk.pass_or_fail()
        return super().write(data)


# --- what is written ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """Something that writes.

    Args:
        prepare: fills a folder with what is there before.
        act: writes in the folder.
        resumable: whether doing it again goes on with what was done; else all stays as it was.
    """

    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    resumable: bool = False


def _command(*words: object) -> None:
    """A command; a failure that it reports by its exit code is an `HdnnError`."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = app([str(word) for word in words], standalone_mode=False)
    if code:
        raise hdnn.HdnnError(f"exit {code}")


@functools.cache
def _nets() -> tuple[Any, Any]:
    return hdnn.network("H1", features=4, layers=2, T=1.0), hdnn.network(
        "MS1", features=4, layers=2, T=1.0
    )


def _train(folder: Path) -> None:
    words = [kills.table(), "--target", "label", "--layers", 1, "--epochs", 2, "--record", 2]
    if not Run(folder / "run").finished:
        _command("train", *words, "--checkpoint-seconds", 0, "--out", folder / "run")


def _begin(folder: Path) -> None:
    """A run that was interrupted at its end."""
    _train(folder)
    for name in ("model.safetensors", "metrics.json"):
        (folder / "run" / name).unlink()


def _predict(folder: Path) -> None:
    _command("predict", folder / "run", kills.table(), "--out", folder / "predictions.csv")


def _finished(folder: Path) -> None:
    _train(folder)
    _predict(folder)


def _add(folder: Path, seed: int) -> None:
    """A record of an experiment."""
    Records(folder / "records", ("layers",)).add([{"layers": 4, "seed": seed, "accuracy": 0.5}])


OPERATIONS: dict[str, Operation] = {
    "save": Operation(
        lambda folder: hdnn.save(_nets()[0], folder / "net"),
        lambda folder: hdnn.save(_nets()[1], folder / "net"),
    ),
    "predict": Operation(_finished, _predict),
    "record": Operation(lambda folder: _add(folder, 1), lambda folder: _add(folder, 2), True),
    "train": Operation(lambda folder: None, _train, True),
    "resume": Operation(_begin, _train, True),
}


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _timeless(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Without the seconds in history and checkpoint, and where the data are, seen from here."""
    return {
        name: re.sub(rb'"seconds": [^,}]*', b"", data)
        for name, data in contents.items()
        if not name.endswith(("checkpoint", "config.toml"))
    }


@functools.cache
def _prepared(name: str) -> tuple[Path, dict[str, bytes], int]:
    """A folder before an operation, what is in it after, and how many writes that takes."""
    before, after = new_folder(), new_folder()
    OPERATIONS[name].prepare(before)
    shutil.copytree(before, after, dirs_exist_ok=True)
    disk = Disk()
    with disk.installed():
        OPERATIONS[name].act(after)
    return before, _contents(after), disk.calls


def verdict_on(name: str, disk: Disk, folder: Path) -> str:
    """Do an operation on a failing disk, and then on a good one."""
    operation, (before, after, _) = OPERATIONS[name], _prepared(name)
    shutil.copytree(before, folder, dirs_exist_ok=True)
    try:
        with disk.installed():
            operation.act(folder)
    except hdnn.HdnnError:
        pass
    except BaseException as error:
        return f"foreign {type(error).__name__} in {name}: {error}"
    found = _contents(folder)
    if not operation.resumable and found not in (_contents(before), after):
        return f"what was there is lost in {name}: {sorted(found)}"
    operation.act(folder)
    if _timeless(_contents(folder)) != _timeless(after):
        return f"another end of {name}: {sorted(_contents(folder))}"
    return HELD


def run(count: int, seed: int, start: int = 0) -> Tally:
    """Every write of every operation failing in turn, or ``count`` of these cases."""
    torch.set_num_threads(1)
    cases = [
        (name, number, code, lasting)
        for name in OPERATIONS
        for number in range(1, 1 + _prepared(name)[2])
        for code in ERRORS
        for lasting in (False, True)
    ]
    Random(seed).shuffle(cases)

    def judge(number: int, folder: Path) -> str:
        name, place, code, lasting = cases[number]
        part = folder / str(number)
        part.mkdir()
        found = verdict_on(name, Disk(place, code, lasting), part)
        return found and f"{found} ({errno.errorcode[code]}, write {place})"

    last = min(start + count, len(cases))
    return tally("failing writes", judged(judge, range(start, last), batch=50))
