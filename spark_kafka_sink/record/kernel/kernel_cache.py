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
from importlib import metadata
from pathlib import Path
from pkgutil import get_data
from typing import TYPE_CHECKING, Final

from llvmlite import binding

from spark_kafka_sink.record.private_directory import (
    UnsafeDirectoryError,
    check_private_files,
    make_private_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG: Final = logging.getLogger(__name__)
_DIRECTORY: Final = "spark_kafka_sink"
_CHECKSUM_BYTES: Final = 32
#: numba's variables that change the code, beside the processor's.
_COMPILER_VARIABLES: Final = (
    "NUMBA_BOUNDSCHECK",
    "NUMBA_ENABLE_AVX",
    "NUMBA_LOOP_VECTORIZE",
    "NUMBA_OPT",
    "NUMBA_SLP_VECTORIZE",
)
#: Constants and layouts from `columns`, `key_hashes` and the plans are compiled in, too.
_KERNEL_SOURCES: Final = (
    "formats/avro/decode_kernel.py",
    "formats/avro/encode_kernel.py",
    "formats/avro/encode_plan.py",
    "formats/avro/plan.py",
    "formats/avro/problems.py",
    "formats/columnar/output_kernel.py",
    "formats/columnar/source_kernel.py",
    "formats/json/decode_kernel.py",
    "formats/json/encode_kernel.py",
    "formats/json/encode_plan.py",
    "formats/json/number_kernel.py",
    "formats/json/plan.py",
    "formats/json/problems.py",
    "formats/json/text_kernel.py",
    "record/columns.py",
    "record/kernel/decode_headers.py",
    "record/kernel/decode_kernel.py",
    "record/kernel/decode_records.py",
    "record/kernel/decode_state.py",
    "record/kernel/divide_kernel.py",
    "record/kernel/kernel.py",
    "record/kernel/kernel_compiler.py",
    "record/kernel/kernel_crc32c.py",
    "record/kernel/kernel_hashes.py",
    "record/kernel/kernel_objects.py",
    "record/kernel/kernel_support.py",
    "record/kernel/kernel_unpack.py",
    "record/kernel/kernel_utf8.py",
    "record/kernel/kernel_varint.py",
    "record/kernel/key_sample.py",
    "record/kernel/take_kernel.py",
    "record/kernel/validate_kernel.py",
    "record/kernel/validation_values.py",
    "record/kernel/view_kernel.py",
    "record/key_hashes.py",
)


def read_code(name: str) -> bytes | None:
    """Return a kernel's machine code; None if it is not cached, or damaged."""
    directory = cache_directory()
    if directory is None:
        return None
    path = _file(directory, name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("a cached kernel cannot be read: %s", error)
        return None
    checksum, code = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if _checksum(name, code) != checksum:
        _LOG.warning("the cached kernel in %s is damaged, and is compiled again", path)
        return None
    return code


def write_code(name: str, code: bytes) -> None:
    """Store a kernel's machine code; a failure is only logged."""
    directory = cache_directory()
    if directory is None:
        return
    path = _file(directory, name)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_bytes(_checksum(name, code) + code)
        part.replace(path)
    except OSError as error:
        _LOG.warning("a kernel cannot be cached: %s", error)
        with suppress(OSError):
            part.unlink()


def _file(directory: str, name: str) -> Path:
    return Path(directory, f"{name}.kernel")


def _checksum(name: str, code: bytes) -> bytes:
    # With the name, since a kernel in the file of another one lacks the function that is called.
    return hashlib.sha256(name.encode() + b"\0" + code).digest()


@cache
def cache_directory() -> str | None:
    """Return the directory for the kernels of this exact version on this machine.

    Returns None if no location is usable.
    """
    directory, refused = find_directory()
    for location, error in refused.items():
        if isinstance(error, UnsafeDirectoryError):
            _LOG.warning(
                "%s: compiled kernels are not cached in %s. They are code, so nobody but this user "
                "may be able to change them: remove what is there, or set NUMBA_CACHE_DIR to a "
                "directory of this user",
                error,
                location,
            )
        else:
            _LOG.debug("kernels cannot be cached in %s: %s", location, error)
    if directory is None and not _has_unsafe(refused):
        _LOG.warning(
            "compiled kernels cannot be cached in %s: each Python worker compiles its own, which "
            "takes seconds. Set NUMBA_CACHE_DIR to a directory that this user can write to, and "
            "nobody else",
            "; ".join(f"{location}: {reason}" for location, reason in refused.items()),
        )
    return directory


def _has_unsafe(refused: dict[Path, OSError]) -> bool:
    """Return whether a location was refused, and logged, because others can write to it."""
    return any(isinstance(error, UnsafeDirectoryError) for error in refused.values())


def find_directory() -> tuple[str | None, dict[Path, OSError]]:
    """Return the directory for kernels, and the locations before it, each with its error.

    The directory is None if no location is usable.
    """
    refused: dict[Path, OSError] = {}
    name = _fingerprint()
    for location in _locations():
        if name is None:
            refused[location] = FileNotFoundError("the sources of the kernels are missing")
            continue
        try:
            return str(_usable(location, name)), refused
        except OSError as error:
            refused[location] = error
    return None, refused


def _usable(location: Path, name: str) -> Path:
    """Return a location's directory, which others cannot write to; OSError if unusable."""
    directory = location.absolute() / name
    make_private_directory(directory.parent)
    make_private_directory(directory)
    check_private_files(directory)
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        # The file system of a container may be read-only, and hold kernels that were made before.
        if not any(directory.glob(_file("", "*").name)):
            raise
    return directory


def _locations() -> Iterator[Path]:
    if numba_cache := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(numba_cache) / _DIRECTORY
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
        sources = [get_data("spark_kafka_sink", source) or b"" for source in _KERNEL_SOURCES]
    except OSError:
        return None
    digest = hashlib.sha256()
    for part in (
        *sources,
        metadata.version("numba").encode(),
        metadata.version("llvmlite").encode(),
        platform.python_version().encode(),
        binding.get_process_triple().encode(),
        *(text.encode() for text in _processor()),
        *(os.environ.get(name, "").encode() for name in _COMPILER_VARIABLES),
        _configuration(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:32]


def processor_name() -> str:
    """Return the name of the processor for which numba compiles."""
    return _processor()[0]


def is_for_this_processor() -> bool:
    """Return whether numba compiles for the processor at hand, and is not told another one."""
    overrides = os.environ.keys() & {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    return not overrides and not _configuration()


def _processor() -> tuple[str, str]:
    """Return the name and the features of the processor for which numba compiles."""
    name, features = (os.environ.get(f"NUMBA_CPU_{part}") for part in ("NAME", "FEATURES"))
    if features is None and name is not None and name.lower() == "generic":
        features = ""
    return (
        binding.get_host_cpu_name() if name is None else name,
        binding.get_host_cpu_features().flatten() if features is None else features,
    )


def _configuration() -> bytes:
    """Return the content of numba's configuration file, which is in the working directory."""
    try:
        return Path(".numba_config.yaml").read_bytes()
    except OSError:
        return b""
