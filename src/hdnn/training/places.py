"""Where the data of a run are: what its folder may tell others, and what this machine remembers.

A run folder holds the digest of its data and a path relative to the folder, never an absolute one:
a shared folder tells nothing of its owner's disk, and folder and data that are moved together stay
together. Where the data were read last is remembered by their digest, in the user's cache.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import platformdirs

from hdnn.errors import HdnnError
from hdnn.files import atomic

FOLDER = Path(platformdirs.user_cache_dir("hdnn", appauthor=False)) / "places"
"""Where it is remembered: a file for every digest, which holds a path."""


def portable(source: str, folder: Path) -> str:
    """The path of data as a run stores it.

    Relative to the folder of the run where both are in a common place; where they share no more
    than the disk, or a folder above the user's home, only the name.

    Args:
        source: an absolute path.
        folder: of the run.
    """
    home = Path(os.path.expanduser("~")).resolve()
    try:
        common = Path(os.path.commonpath([source, folder.resolve()]))
    except ValueError:  # two drives of Windows
        return Path(source).name
    if common == Path(common.anchor) or (common != home and home.is_relative_to(common)):
        return Path(source).name
    return Path(os.path.relpath(source, folder.resolve())).as_posix()


def locate(source: str, folder: Path, digest: str) -> str:
    """The path where stored data are, or would be expected.

    Args:
        source: as `portable` gave it; an absolute path is good as well.
        folder: of the run.
        digest: of the data.
    """
    near = os.path.normpath(folder.resolve() / source)
    remembered = _place(digest)
    if os.path.exists(near) or remembered is None:
        return near
    with suppress(OSError, ValueError):
        last = remembered.read_text(encoding="utf-8")
        return last if os.path.exists(last) else near
    return near


def remember(source: str, digest: str) -> None:
    """Remember where data are; a cache that cannot be written is no obstacle."""
    place = _place(digest)
    with suppress(OSError, HdnnError):
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic(place) as temporary:
                temporary.write_text(source, encoding="utf-8")


def _place(digest: str) -> Path | None:
    if not re.fullmatch("[0-9a-f]{64}", digest):
        return None
    return FOLDER / digest
