"""Writing: links, FIFOs and devices stay what they are; kills and lost power leave no debris."""

from __future__ import annotations

import os
import socket
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
from hdnn.errors import FileFormatError, HdnnError, StorageError
from hdnn.files import atomic, read_json_lines, remove_stale, replace, sync_folder, write_json_lines

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


@posix
def test_nothing_of_an_unfinished_block_reaches_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(KeyError), atomic(fifo) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise KeyError
    assert os.read(reader, 100) == b""
    os.close(reader)


@posix
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("device nodes cannot be made here")
    write(device)
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


@posix
def test_a_socket_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as held:
        held.bind("socket")
        with pytest.raises(HdnnError, match="cannot write socket"):
            write(Path("socket"))
        assert stat.S_ISSOCK(os.stat("socket").st_mode)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
@pytest.mark.parametrize("deep", [False, True])
def test_an_open_descriptor_is_written_to_where_it_stands(deep: bool, tmp_path: Path) -> None:
    """As /dev/stdout is: what was appended before stays, what is written later comes after."""
    log, link = tmp_path / "log", tmp_path / "link"
    log.write_text("before,")
    with open(log, "a") as file:
        given = f"/proc/self/fd/{file.fileno()}"
        if deep:
            link.symlink_to(given)
        write(link if deep else Path(given), "new,")
        file.write("after")
    assert log.read_text() == "before,new,after"
    assert link.is_symlink() == deep


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


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(HdnnError, match="cannot write"):
        write(tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


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


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120)
    write(path)
    assert path.read_text() == "new"


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
def test_a_folder_appears_with_all_that_is_in_it(calls: list[str], tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "a").write_text("a")
    (fresh / "b").write_text("b")
    replace(fresh, tmp_path / "folder")
    assert calls == ["sync file", "sync file", "sync folder", "rename", "sync folder"]
    assert (tmp_path / "folder" / "b").read_text() == "b"


@posix
def test_folders_that_cannot_be_synced_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, number = os.fsync, [22]

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number[0], os.strerror(number[0]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    sync_folder(tmp_path)  # EINVAL: a file system that has no such thing
    number[0] = 5
    with pytest.raises(StorageError, match="Input/output error"):
        write(tmp_path / "note")


# --- temporary files ------------------------------------------------------------------------------

KILLED = """
import os, sys
from hdnn.files import atomic
with atomic(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os._exit(9)
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "note.jsonl"
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    assert killed.wait() == 9
    (left,) = tmp_path.iterdir()
    mine = [tmp_path / name for name in (".note.jsonl.swp", ".note.tmp", "a.1-abcdef01.tmp")]
    for other in mine:
        other.write_text("mine")
    with atomic(path) as temporary:
        temporary.write_text("new")
        reused = tmp_path / left.name.replace(str(killed.pid), str(os.getpid()))
        reused.write_text("left by a process that had this one's number")
        alive = tmp_path / left.name.replace(str(killed.pid), str(os.getppid()))
        alive.write_text("of a living process")
        remove_stale(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([*mine, temporary, alive])
    assert path.read_text() == "new"
    remove_stale(tmp_path / "nowhere")


# --- lines of JSON --------------------------------------------------------------------------------


def test_damaged_lines_are_set_aside_once_and_whole(tmp_path: Path) -> None:
    path, aside = tmp_path / "lines", tmp_path / "lines.damaged"
    for _ in range(2):  # killed after the first file was written, it does the same again
        write_json_lines(path, [{"a": 1}], [b"\xff\r", b"{"])
    write_json_lines(path, [{"a": 1}], [b"null"])
    assert aside.read_bytes() == b"\xff\r\n{\nnull\n"
    assert read_json_lines(path, dict).objects == [{"a": 1}]


def test_damaged_lines_that_cannot_be_kept_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"{\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match=r"lines\.damaged.*No space left"):
        write_json_lines(path, [{"a": 1}], [b"{"])
    assert [p.name for p in tmp_path.iterdir()] == ["lines"]
    with open(path, "rb") as file:
        assert file.read() == b"{\n"


@posix
def test_a_fifo_is_not_read_for_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileFormatError, match="not a file"):
        read_json_lines(tmp_path / "fifo", dict)
