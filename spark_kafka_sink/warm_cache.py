"""Compile the kernels ahead of time, for container images and new machines.

This is `pykafka-warm-cache`, or `python -m spark_kafka_sink.warm_cache`. It loads all kernels, of
writes and of reads, compiles those that are not cached, and prints the directory of the cache. It
connects to nothing and needs no Spark. A later process loads them from there if it has the same
versions of this package, Python, numba and llvmlite, and the same processor: compile for
NUMBA_CPU_NAME=generic, and set it in later processes as well, if that is another one.

Exit codes: 0 all kernels are cached; 1 they cannot be cached, or not compiled; 2 wrong usage;
130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.record.kernel.kernel_cache import find_directory, processor_name, read_code
from spark_kafka_sink.record.kernel.kernel_support import KERNELS
from spark_kafka_sink.version import add_version, program_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OK: Final = 0
REFUSED: Final = 1
#: The shell's exit code for a command that Ctrl-C ended.
INTERRUPTED: Final = 130
#: The modules that have kernels.
_MODULES: Final = (
    "formats.avro.decode_kernel",
    "formats.avro.encode_kernel",
    "formats.columnar.output_kernel",
    "formats.json.decode_kernel",
    "formats.json.encode_kernel",
    "record.kernel.decode_kernel",
    "record.kernel.divide_kernel",
    "record.kernel.kernel",
    "record.kernel.kernel_objects",
    "record.kernel.take_kernel",
    "record.kernel.validate_kernel",
    "record.kernel.view_kernel",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile what is not cached, and return the exit code."""
    _parser().parse_args(arguments)
    logging.basicConfig()
    with _ended_by_interrupt():
        return _warm()


def _warm() -> int:
    # Without `cache_directory`, which logs what is reported here as an error.
    directory, refused = find_directory()
    if directory is None or (refused and os.environ.get("NUMBA_CACHE_DIR")):
        places = "; ".join(f"{path}: {reason}" for path, reason in refused.items())
        return _fail(
            f"compiled kernels cannot be cached in {places}. Set NUMBA_CACHE_DIR to a directory "
            "that this user can write to, and nobody else"
        )
    started = time.monotonic()
    try:
        for name in _MODULES:
            import_module(f"spark_kafka_sink.{name}")
    except ImportError as error:
        return _fail(str(error))
    seconds = time.monotonic() - started
    missing = [kernel.name for kernel in KERNELS if read_code(kernel.name) is None]
    if missing:
        return _fail(f"{len(missing)} of {len(KERNELS)} kernels could not be stored in {directory}")
    compiled = sum(kernel.was_compiled for kernel in KERNELS)
    sys.stdout.write(
        f"{len(KERNELS)} kernels for the processor {processor_name()} are in {directory}: "
        f"{compiled} compiled, {len(KERNELS) - compiled} already there, {seconds:.1f} s\n"
    )
    return OK


def _fail(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return REFUSED


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """End the process at once on Ctrl-C, with one line.

    A KeyboardInterrupt would not do: in one of llvmlite's destructors, it is printed and ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # It is ignored, as in a background job, or handled by another part of the process.
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(*_: object) -> None:
    # Not through sys.stderr, which the interrupted code may just be writing to.
    os.write(2, b"error: interrupted; the kernels compiled so far are cached\n")
    os._exit(INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("pykafka-warm-cache", "spark_kafka_sink.warm_cache"),
        description="Compile the kernels that write and read records, unless they are cached.",
        epilog="The environment variable NUMBA_CACHE_DIR moves the cache. With "
        "NUMBA_CPU_NAME=generic, the kernels run on any processor of this kind. "
        "Exit codes: 0 all kernels are cached, 1 they cannot be cached or compiled, 2 wrong usage, "
        "130 interrupted.",
    )
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
