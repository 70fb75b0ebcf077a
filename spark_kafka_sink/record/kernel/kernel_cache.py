"""The cache of compiled kernels: a machine compiles them once (1-6 s), not in every worker.

numba's own cache does not suit Spark workers: it fails at import if neither site-packages nor the
home directory is writable, it is useless for applications that ship this package with `--py-files`
(each has another path of the zip file), and it does not detect changes in a module that a kernel
calls. So the directory of this cache is named by a hash of everything that the machine code depends
on: the sources of this package's kernels, numba, Python and the processor. Any number of workers
may write to it at the same time: they all write the same files, each by an atomic rename.

The locations, in order of preference: NUMBA_CACHE_DIR; the user's cache directory; the directory
for temporary files. Loading a cached kernel runs code, so a location is used only if no other user
can change it (`private_directory`). Without a usable location, or if a cached file is broken,
kernels are compiled in memory: slower, but never wrong.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, Final

import numba
from llvmlite import binding
from numba.core import caching

from spark_kafka_sink.record.kernel.private_directory import (
    UnsafeDirectoryError,
    check_private_files,
    make_private_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG: Final = logging.getLogger(__name__)
_DIRECTORY: Final = "spark_kafka_sink"
#: Constants and layouts from `columns` and `key_hashes` are compiled into the kernels, too.
_KERNEL_SOURCES: Final = (
    "kernel/decode_headers.py",
    "kernel/decode_kernel.py",
    "kernel/decode_records.py",
    "kernel/decode_state.py",
    "kernel/kernel.py",
    "kernel/kernel_crc32c.py",
    "kernel/kernel_hashes.py",
    "kernel/kernel_objects.py",
    "kernel/kernel_support.py",
    "kernel/kernel_unpack.py",
    "kernel/kernel_utf8.py",
    "columns.py",
    "key_hashes.py",
)


def enable_cache(dispatcher: Any) -> None:
    """Make a kernel load its machine code from disk, or store it there after compiling it."""
    if cache_directory() is not None:
        # Like `@njit(cache=True)`, with our cache in place of numba's.
        dispatcher._cache = _KernelCache(dispatcher.py_func)  # type: ignore[no-untyped-call]  # noqa: SLF001


@cache
def cache_directory() -> str | None:
    """Return the directory for the kernels of this exact version on this machine.

    Returns None if no location is usable.
    """
    name = _fingerprint()
    if name is None:
        return None
    for place in _places():
        try:
            directory = place.absolute() / name
            make_private_directory(directory.parent)
            make_private_directory(directory)
            check_private_files(directory)
            tempfile.TemporaryFile(dir=directory).close()
        except UnsafeDirectoryError as error:
            _LOG.warning(
                "%s: compiled kernels are not cached in %s, since other users could replace them",
                error,
                place,
            )
        except OSError as error:
            _LOG.debug("kernels cannot be cached in %s: %s", place, error)
        else:
            return str(directory)
    _LOG.debug("there is no directory for compiled kernels: each process compiles its own")
    return None


def _places() -> Iterator[Path]:
    """Yield the locations to try."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / _DIRECTORY
    if user_cache := os.environ.get("XDG_CACHE_HOME"):
        yield Path(user_cache) / _DIRECTORY
    else:
        # A user without an entry in the password file, as in some containers, has no home.
        with suppress(RuntimeError):
            yield Path.home() / ".cache" / _DIRECTORY
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"{_DIRECTORY}-{os.geteuid()}"


def _fingerprint() -> str | None:
    """Return a hash of all that the machine code depends on; None if the sources are missing."""
    try:
        sources = [get_data("spark_kafka_sink.record", source) or b"" for source in _KERNEL_SOURCES]
    except OSError:
        return None
    digest = hashlib.sha256()
    for part in (
        *sources,
        numba.__version__.encode(),
        platform.python_version().encode(),
        binding.get_process_triple().encode(),
        binding.get_host_cpu_name().encode(),
        binding.get_host_cpu_features().flatten().encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:32]


class _Locator(caching._CacheLocator):  # noqa: SLF001
    """A locator with our directory, whose name already identifies the version of the sources."""

    def __init__(self, directory: str, first_line: int) -> None:
        self._directory = directory
        self._first_line = first_line

    def get_cache_path(self) -> str:
        return self._directory

    def get_source_stamp(self) -> str:
        return "the directory's name is the stamp"

    def get_disambiguator(self) -> str:
        return str(self._first_line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], _py_file: str) -> _Locator | None:
        directory = cache_directory()
        return None if directory is None else cls(directory, py_func.__code__.co_firstlineno)


class _KernelCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: list[type[object]] = [_Locator]  # noqa: RUF012  as the base class has it


class _KernelCache(caching.FunctionCache):
    """numba's cache of one function; any failure only leads to a compilation."""

    _impl_class = _KernelCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  unpickling a broken file may raise anything
            _LOG.warning("a cached kernel in %s is unusable: %r", self.cache_path, error)
        # Saving reads the index first, which may be the broken file.
        with suppress(OSError):
            self.flush()  # type: ignore[no-untyped-call]
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _LOG.warning("a kernel cannot be cached in %s: %s", self.cache_path, error)
