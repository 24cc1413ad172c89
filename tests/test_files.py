"""Writing files: whole or not at all, also after a loss of power; lines of JSON."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hdnn
from hdnn.config import Config
from hdnn.data import read_table
from hdnn.data.images import read_idx, read_images
from hdnn.data.loading import data_digest
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.files import atomic, read_json, read_json_lines, write_json_lines
from hdnn.paper.records import Records
from hdnn.training.runs import Run

posix = pytest.mark.skipif(os.name != "posix", reason="devices and descriptors are POSIX")


def write(path: Path, text: str = "new") -> None:
    with atomic(path) as temporary:
        temporary.write_text(text)


def test_a_symlink_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    (tmp_path / "middle").symlink_to("deep/target")
    link.symlink_to(tmp_path / "middle")
    for text in ("first", "second"):  # a link to nothing, then to a file
        write(link, text)
        assert link.is_symlink()
        assert target.read_text() == text
        assert not target.is_symlink()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


@posix
def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    with atomic(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        temporary.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
def test_where_no_file_can_be_nothing_is_written(tmp_path: Path) -> None:
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(HdnnError, match="a folder or a device"):
            write(path)
    (tmp_path / "file").write_text("")
    for place in ("file/net", "/proc/my-net", "none/net"):
        with pytest.raises(StorageError, match=r"cannot write .*net: .*; choose a folder"):
            write(tmp_path / place)


@posix
def test_file_then_name_then_folder_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        calls.append(f"sync {kind}")
        fsync(descriptor)

    def spy_replace(a: Any, b: Any) -> None:
        calls.append("rename")
        rename(a, b)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write(tmp_path / "note")
    assert calls == ["sync file", "rename", "sync folder"]


@posix
def test_a_failing_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, fails = os.fsync, stat.S_ISDIR

    def failing(descriptor: int) -> None:
        if fails(os.fstat(descriptor).st_mode):
            raise OSError(5, os.strerror(5))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    write(tmp_path / "note")  # some file systems cannot sync folders: no error
    fails = stat.S_ISREG
    with pytest.raises(StorageError, match="Input/output error"):
        write(tmp_path / "note", "newer")
    assert (tmp_path / "note").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_json_lines_are_json(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "lines", [{"loss": float("nan"), "norms": [1.0, float("inf")]}])
    assert (tmp_path / "lines").read_text() == '{"loss": null, "norms": [1.0, null]}\n'


def test_a_torn_last_line_is_skipped_and_a_bad_other_raises(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    write_json_lines(path, [{"a": 1}, {"a": 2}])
    with open(path, "a") as file:
        file.write('{"a')
    assert read_json_lines(path, dict) == [{"a": 1}, {"a": 2}]
    for line in ('{"a', "5", "null"):
        path.write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
        with pytest.raises(FileFormatError, match=r"line 2 of .*lines"):
            read_json_lines(path, dict)
    with pytest.raises(FileFormatError, match="not a regular file"):
        read_json_lines(tmp_path, dict)


# --- files that are none --------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], object]] = {
    "model": hdnn.load,
    "config.toml": Config.from_toml,
    "metrics.json": read_json,
    "lines": lambda path: read_json_lines(path, dict),
    "checkpoint": lambda path: Run(path.parent)._read_checkpoint(),
    "history.jsonl": lambda path: Run(path.parent).failure,
    "gradients.jsonl": lambda path: Run(path.parent).read_gradients(),
    "model.safetensors": lambda path: Run(path.parent).load_model(),
    "records.jsonl": lambda path: Records(path.parent, ()).read(),
    "table": data_digest,
    "table.csv": read_table,
    "table.csv.gz": read_table,
    "table.parquet": read_table,
    "labels.idx": read_idx,
    "labels.idx.gz": read_idx,
    "image.png": lambda path: read_images([path]),
}


@pytest.fixture
def patience() -> Iterator[None]:
    """A reader that waits forever is a failure."""

    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@posix
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("name", READERS)
def test_fifos_devices_and_folders_raise(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    for number in range(3):
        if number:
            path.unlink()
            path.symlink_to("/dev/full" if number == 1 else tmp_path)  # /dev/zero has no end
        if name != "table" or number < 2:  # a folder of images is one
            with pytest.raises(FileFormatError, match="not a regular file"):
                READERS[name](path)


@pytest.mark.parametrize("name", ["model", "config.toml", "metrics.json", "table.csv", "table"])
def test_a_missing_file_is_a_file_not_found_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{name}: No such file") as caught:
        READERS[name](tmp_path / name)
    assert isinstance(caught.value, HdnnError)
    (tmp_path / "file").touch()
    with pytest.raises(HdnnError, match="Not a directory"):
        READERS[name](tmp_path / "file" / name)
    with pytest.raises(HdnnError, match="null"):
        READERS[name](tmp_path / f"\0{name}")


def test_json_that_is_no_object_raises(tmp_path: Path) -> None:
    for text in ("", "[", "5", "null", "[" * 10**5, "\xff"):
        (tmp_path / "file").write_text(text, encoding="latin-1")
        with pytest.raises(FileFormatError, match="is not a JSON object"):
            read_json(tmp_path / "file")
