"""Where compiled kernels are kept: the first of these folders that can be written to.

    NUMBA_CACHE_DIR        if it is set
    __pycache__            beside the kernels
    the user's cache       hdnn/kernels in it
    a temporary folder     of this user, where nobody else can write
    none                   every process compiles anew

The last two are told. They are read from all of them: in an image of a container, kernels may have
been compiled into a folder that is not writable any more.

What is kept are pickles, which execute code when they are read: a temporary folder serves only if
it belongs to this user and nobody else can write to it. As a kernel calls functions of other
modules, it is valid until any file of this folder changes (numba by itself looks at the file of the
kernel only).
"""

import contextlib
import functools
import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
from numba import config, njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
)
from numba.core.registry import cpu_target

from hdnn.progress import note

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent
REMEDY = "set NUMBA_CACHE_DIR to a folder that lasts, or compile beforehand: hdnn info --warm"


def cached(**options: Any) -> Callable[[F], F]:
    """`numba.njit` for a function of this package, with its cache.

    Args:
        options: of numba.
    """

    def decorate(function: F) -> F:
        dispatcher = njit(**options)(function)
        dispatcher._cache = KernelCache(function)
        return dispatcher

    return decorate


class _Locator(_CacheLocator):
    """Tells numba what the files of a function are called, and when they are out of date."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        return str(PACKAGE / "__pycache__")  # until `KernelCache` knows better

    def ensure_cache_path(self) -> None:
        """`folder` has made it."""

    def get_source_stamp(self) -> str:
        return source_stamp()

    def get_disambiguator(self) -> str:
        return str(self.line)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_Locator":
        return cls(function)


class _Files(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class KernelCache(FunctionCache):
    """numba's cache in our folders; a file that cannot be read or written is no failure.

    Attributes:
        missing: called before something is compiled.
    """

    _impl_class = _Files
    missing: Callable[[], object] = staticmethod(lambda: None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        for path in folders():
            self._use(path)
            try:
                result = super().load_overload(sig, target_context)
            except (OSError, EOFError, pickle.UnpicklingError):
                continue
            if result is not None:
                return result
        self.missing()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        path = folder()
        if path is None:
            return
        self._use(path)
        try:
            super().save_overload(sig, data)
        except OSError as error:
            note(f"a compiled kernel is not kept: {error.strerror or error}: {path}")

    def _use(self, path: Path) -> None:
        self._cache_path = str(path)
        self._cache_file = IndexDataCacheFile(str(path), self._impl.filename_base, source_stamp())


def is_kept(function: Callable[..., Any], signature: Any) -> bool:
    """Whether what was compiled of a function for a signature is in one of the folders."""
    cache = KernelCache(function)
    key = cache._index_key(signature, cpu_target.target_context.codegen())
    for path in folders():
        cache._use(path)
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            if key in cache._cache_file._load_index():
                return True
    return False


@functools.cache
def source_stamp() -> str:
    """A hash of everything that is compiled."""
    files = sorted(PACKAGE.glob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


@functools.cache
def folder() -> Path | None:
    """Where this process keeps what it compiles; None if there is no place."""
    for path in _lasting():
        if _is_writable(path):
            return path
    path = _temporary()
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700)
    if _is_private(path) and _is_writable(path):
        note(f"compiled kernels are kept in {path} until it is cleaned; {REMEDY}")
        return path
    note(f"compiled kernels cannot be kept, so that every start compiles them; {REMEDY}")
    return None


def folders() -> list[Path]:
    """Every folder that may hold compiled kernels of this package."""
    return [path for path in (*_lasting(), *filter(_is_private, [_temporary()])) if path.is_dir()]


def _lasting() -> Iterator[Path]:
    # As there may be several installations, each has a folder of its own.
    own = f"hdnn_{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}"
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR) / own
    yield PACKAGE / "__pycache__"
    user = platformdirs.user_cache_path("hdnn", appauthor=False)
    if user.is_absolute():  # a user without a home gets "~/.cache", as seen from anywhere
        yield user / "kernels" / own


def _temporary() -> Path:
    name = f"hdnn-kernels-{os.getuid()}" if hasattr(os, "getuid") else "hdnn-kernels"
    return Path(tempfile.gettempdir()) / name


def _is_private(path: Path) -> bool:
    """Whether it is a folder of this user's, where nobody else can write."""
    try:
        found = path.lstat()  # not what a link of somebody else's points to
    except OSError:
        return False
    if not hasattr(os, "getuid"):  # Windows has a temporary folder for each user
        return True
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_own and not stat.S_IMODE(found.st_mode) & 0o077


def _is_writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError:
        return False
    return True
