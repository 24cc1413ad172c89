"""Mutated files for every reader: a clear error or the right thing, in little time and memory.

Promised for any bytes: an `HdnnError` with a short message, or a result; never another exception, a
crash, a hang, or more memory than ten times the file's size and 64 MB.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import hdnn
from attacks import mutate, samples
from attacks.children import judged
from attacks.mutate import Mutation
from attacks.tally import HELD, Tally, tally
from hdnn.training.recorder import read_recordings
from hdnn.training.runs import Run, prepare, read_history

ROOM = 64 * 2**20
FACTOR = 10
CEILING = 2 * 2**30  # of address space, so that the machine survives what a reader asks for
LONGEST = 1000  # characters of a message


class Altered(Exception):  # noqa: N818 (a verdict)
    """What was read is not what the file says."""


@dataclass(frozen=True)
class Reader:
    """How one kind of file is read.

    Args:
        file: its name; it is alone in a folder.
        samples: valid files to mutate.
        read: reads the file at a path.
        mutation: how samples are changed.
        bounded: whether memory is bounded by the file's size; what a config or the description of
            a model asks for may be large.
    """

    file: str
    samples: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    mutation: Mutation = mutate.bytewise
    bounded: bool = True


# --- reading --------------------------------------------------------------------------------------


def _config(path: Path) -> None:
    prepare(Run.open(path.parent).config)


def _resumed(name: str) -> Callable[[Path], None]:
    """Go on with a run one of whose files is the one at the path."""

    def read(path: Path) -> None:
        folder, files = path.with_name("run"), dict(samples.unfinished_run())
        expected = files.pop("model.safetensors")
        for other, data in {**files, name: path.read_bytes()}.items():
            (folder / other).parent.mkdir(parents=True, exist_ok=True)
            (folder / other).write_bytes(data)
        (folder / "model.safetensors").unlink(missing_ok=True)
        Run.open(folder).train()
        if (folder / "model.safetensors").read_bytes() != expected:
            raise Altered("the run ends with another model")

    return read


def _resume(name: str, mutation: Mutation) -> Reader:
    return Reader("file", lambda: [samples.unfinished_run()[name]], _resumed(name), mutation)


def _lines(name: str, read: Callable[[Path], object]) -> Reader:
    return Reader(name, lambda: [samples.unfinished_run()[name]], read, mutate.json_lines)


READERS: dict[str, Reader] = {
    "model": Reader(
        "net.safetensors", samples.models, hdnn.load, mutate.safetensors, bounded=False
    ),
    "config": Reader("config.toml", samples.configs, _config, mutate.toml, bounded=False),
    "history": _lines("history.jsonl", read_history),
    "gradients": _lines("gradients.jsonl", read_recordings),
    "checkpoint": _resume("checkpoint", mutate.bytewise),
    "history, resumed": _resume("history.jsonl", mutate.json_lines),
    "gradients, resumed": _resume("gradients.jsonl", mutate.json_lines),
}


# --- judging --------------------------------------------------------------------------------------


def _status() -> dict[str, int]:
    """Sizes of this process in bytes."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {row[0]: 1024 * int(row[1]) for row in rows if row[-1] == "kB"}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def verdict_on(reader: Reader, data: bytes, folder: Path) -> str:
    """Read a file of these bytes; what promise it breaks."""
    path = folder / reader.file
    path.write_bytes(data)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before = _status()
    resource.setrlimit(resource.RLIMIT_AS, (before["VmSize:"] + CEILING, resource.RLIM_INFINITY))
    verdict = _read(reader, path)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = _status()
    # Pages of libraries come back one by one after a fork, or when the system had taken them away.
    libraries = max(0, after["RssFile:"] - before["RssFile:"])
    growth = after["VmHWM:"] - before["VmRSS:"] - libraries
    if reader.bounded and growth > FACTOR * len(data) + ROOM:
        return f"allocation: {growth >> 20} MB for a file of {len(data) >> 10} KB; {verdict}"
    return verdict


def _read(reader: Reader, path: Path) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except hdnn.HdnnError as error:
        for cause in _causes(error):
            memory = isinstance(cause, MemoryError) or "can't allocate memory" in str(cause)
            if memory and not isinstance(cause, hdnn.HdnnError) and reader.bounded:
                return f"allocation: {cause}"
        return HELD if len(str(error)) <= LONGEST else f"long message: {len(str(error))} characters"
    except Altered as error:
        return f"altered: {error}"
    except BaseException as error:  # Rust's panics are no Exceptions
        return f"foreign {type(error).__name__}: {error}"
    return HELD


def run(name: str, count: int, seed: int, start: int = 0) -> Tally:
    """Mutated files for one reader."""
    reader = READERS[name]
    valid = reader.samples()

    def judge(number: int, folder: Path) -> str:
        rng = Random(f"{seed} {name} {number}")
        return verdict_on(reader, reader.mutation(rng.choice(valid), rng, valid), folder)

    return tally(f"mutated {name}", judged(judge, range(start, start + count), batch=2000))
