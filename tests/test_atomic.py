"""Writing: links, FIFOs and devices stay what they are; files are whole after a loss of power."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hdnn
from catalogue import build
from hdnn.errors import FileFormatError, StorageError
from hdnn.files import atomic, read_json_lines, write_json_lines

posix = pytest.mark.skipif(os.name != "posix", reason="FIFOs, devices and descriptors are POSIX")


def write(path: Path, text: str = "new") -> None:
    with atomic(path) as temporary:
        temporary.write_text(text)


def read_in_thread(path: Path) -> Callable[[], bytes]:
    """Read a FIFO while something else writes to it."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()

    def result() -> bytes:
        thread.join(timeout=30)
        return found[0]

    return result


# --- what is not a regular file -------------------------------------------------------------------


@posix
def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    result = read_in_thread(fifo)
    hdnn.save(build("H1"), fifo)
    (tmp_path / "net").write_bytes(result())
    assert isinstance(hdnn.load(tmp_path / "net"), hdnn.HamiltonianNetwork)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "net"]


STDOUT = """
import os
from hdnn.files import atomic
with atomic("/dev/stdout") as temporary:
    temporary.write_text("new,")
os.write(1, b"after")
"""


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
@pytest.mark.slow
def test_standard_output_is_appended_to(tmp_path: Path) -> None:
    """What was written before stays, what is written later comes after."""
    log = tmp_path / "log"
    log.write_text("before,")
    with open(log, "a") as file:
        subprocess.run([sys.executable, "-c", STDOUT], stdout=file, check=True)
    assert log.read_text() == "before,new,after"


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
    (tmp_path / "plain").write_text("")
    write(tmp_path / "fresh")
    assert (tmp_path / "fresh").stat().st_mode == (tmp_path / "plain").stat().st_mode


# --- durability -----------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and renamed, in order."""
    found: list[str] = []
    fsync, rename = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        found.append(f"sync {kind}")
        fsync(descriptor)

    def spy_replace(a: Any, b: Any) -> None:
        found.append("rename")
        rename(a, b)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    return found


@posix
def test_file_then_name_then_folder_reach_the_disk(calls: list[str], tmp_path: Path) -> None:
    write(tmp_path / "note")
    assert calls == ["sync file", "rename", "sync folder"]


@posix
def test_folders_that_cannot_be_synced_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, fails = os.fsync, stat.S_ISDIR

    def failing(descriptor: int) -> None:
        if fails(os.fstat(descriptor).st_mode):
            raise OSError(5, os.strerror(5))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    write(tmp_path / "note")
    fails = stat.S_ISREG
    with pytest.raises(StorageError, match="Input/output error"):
        write(tmp_path / "note", "newer")
    assert (tmp_path / "note").read_text() == "new"


# --- lines of JSON --------------------------------------------------------------------------------


@posix
def test_reading_lines_from_a_fifo_raises(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileFormatError, match="not a file"):
        read_json_lines(tmp_path / "fifo", dict)


def test_a_torn_last_line_is_skipped_and_a_bad_other_raises(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    write_json_lines(path, [{"a": 1}, {"a": 2}])
    with open(path, "a") as file:
        file.write('{"a')
    assert read_json_lines(path, dict) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a\n{"a": 2}\n')
    with pytest.raises(FileFormatError, match=r"line 2 of .*lines"):
        read_json_lines(path, dict)
