"""Kernels can be compiled ahead of time, by a command that says what it did."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from llvmlite import binding

import spark_kafka_sink
from spark_kafka_sink import warm_cache
from spark_kafka_sink.record.kernel import kernel_cache, kernel_compiler, kernel_support

PACKAGE = Path(spark_kafka_sink.__file__).parent
NOWHERE = "/dev/null/nowhere"
TIMEOUT = 600
#: How many kernels the command compiles.
KERNELS = 19
#: How a process that writes, reads and validates got its kernels.
USE_ALL = """
import spark_kafka_sink.formats.avro.decode_kernel
import spark_kafka_sink.formats.avro.encode_kernel
import spark_kafka_sink.formats.json.decode_kernel
import spark_kafka_sink.formats.json.encode_kernel
from spark_kafka_sink.record.kernel import kernel_support
from spark_kafka_sink.record.kernel import decode_kernel, kernel, kernel_objects, validate_kernel
from spark_kafka_sink.record.kernel import divide_kernel, take_kernel, view_kernel
print([kernel.was_compiled for kernel in kernel_support.KERNELS])
"""

#: The same of one kernel.
USE_ONE = """
from spark_kafka_sink.record.kernel import kernel_objects
print(kernel_objects._find_held.was_compiled)
"""

#: Ctrl-C strikes while a destructor runs, where Python ignores a KeyboardInterrupt.
INTERRUPTED = """
import signal
from spark_kafka_sink import warm_cache

class Compiling:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
warm_cache.import_module = lambda _name: Compiling()
warm_cache.main([])
"""


def run(*arguments: str, **environment: str):
    return subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-B", "-W", "error", *arguments],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT,
        cwd="/",
    )


def warm(**environment: str):
    return run("-m", "spark_kafka_sink.warm_cache", **environment)


def said(output: str) -> tuple[str, str, Path, int, int]:
    """Return the numbers of kernels and the names in the command's report."""
    kernels, processor, directory, compiled, cached = re.fullmatch(
        r"(\d+) kernels for the processor (\S+) are in (\S+): (\d+) compiled, "
        r"(\d+) already there, \d+\.\d s\n",
        output,
    ).groups()
    return kernels, processor, Path(directory).parent.parent, int(compiled), int(cached)


@pytest.fixture(scope="module")
def generic_cache(tmp_path_factory):
    """Return a cache that the command has filled for any processor."""
    cache = tmp_path_factory.mktemp("cache")
    done = warm(NUMBA_CACHE_DIR=str(cache), NUMBA_CPU_NAME="generic")
    assert ("", 0) == (done.stderr, done.returncode)
    assert (str(KERNELS), "generic", cache, KERNELS, 0) == said(done.stdout)
    return cache


@pytest.mark.slow
def test_a_second_run_compiles_nothing(generic_cache):
    """The command finds all kernels of an earlier run."""
    done = warm(NUMBA_CACHE_DIR=str(generic_cache), NUMBA_CPU_NAME="generic")
    assert (str(KERNELS), "generic", generic_cache, 0, KERNELS) == said(done.stdout)


@pytest.mark.slow
def test_a_later_process_compiles_nothing(generic_cache):
    """A process that uses all kernels loads those that the command has compiled."""
    done = run("-c", USE_ALL, NUMBA_CACHE_DIR=str(generic_cache), NUMBA_CPU_NAME="generic")
    assert f"{[False] * KERNELS}\n" == done.stdout, done.stderr


@pytest.mark.slow
def test_another_processor_compiles_its_own(generic_cache):
    """A process for another processor than the command's compiles its kernels, and works."""
    done = run("-c", USE_ONE, NUMBA_CACHE_DIR=str(generic_cache))
    assert "True\n" == done.stdout, done.stderr


def test_a_given_directory_that_is_not_writable_is_an_error(tmp_path):
    """The command fails if the directory that it was given is not usable, even if another is."""
    done = warm(NUMBA_CACHE_DIR=NOWHERE, XDG_CACHE_HOME=str(tmp_path))
    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(
        f"error: compiled kernels cannot be cached in {NOWHERE}/spark_kafka_sink: "
    )
    assert "Set NUMBA_CACHE_DIR" in done.stderr


def test_a_disabled_compiler_is_an_error(tmp_path):
    """The command fails with the reason if numba's compiler is disabled."""
    done = warm(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_DISABLE_JIT="1")
    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("error: NUMBA_DISABLE_JIT is set")


@pytest.mark.parametrize("name", ["bogus", "Generic", "help"])
def test_an_unknown_processor_is_an_error(tmp_path, name):
    """The command fails with one sentence if LLVM does not know the processor's name."""
    done = warm(NUMBA_CACHE_DIR=str(tmp_path), NUMBA_CPU_NAME=name)
    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert done.stderr.startswith(f"error: LLVM does not know the processor {name!r}")
    assert [] == list(tmp_path.rglob("*.kernel"))


def test_a_producer_is_not_compiled_for_an_unknown_processor(tmp_path):
    """A process that writes fails with the same sentence, and LLVM writes nothing."""
    failed = run(
        "-c",
        "from spark_kafka_sink.record.kernel import kernel",
        NUMBA_CACHE_DIR=str(tmp_path),
        NUMBA_CPU_NAME="bogus",
    )
    *_, last = failed.stderr.splitlines()
    assert last.startswith("ImportError: LLVM does not know the processor 'bogus'")
    assert "not a recognized processor" not in failed.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [("generic", True), ("bogus", False), (binding.get_host_cpu_name(), True)],
)
def test_llvm_is_asked_for_the_processor(name, expected):
    """LLVM knows its generic processor and that of this machine, but no other name."""
    assert expected == kernel_compiler._is_known(name)


def test_a_processor_is_known_if_llvm_cannot_be_asked(monkeypatch):
    """Without an interpreter that could ask LLVM, any name is accepted."""
    monkeypatch.setattr("sys.executable", None)
    assert kernel_compiler._is_known("bogus")


def test_an_interrupt_ends_the_command_with_one_line(tmp_path):
    """Ctrl-C ends the command with one line and the exit code 130, even within a destructor."""
    done = run("-c", INTERRUPTED, NUMBA_CACHE_DIR=str(tmp_path))
    assert (130, "", "error: interrupted; the kernels compiled so far are cached\n") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )


def test_an_ignored_interrupt_stays_ignored(monkeypatch):
    """The command leaves Ctrl-C to a process that ignores it, and to Python after its end."""
    for handler in (signal.SIG_IGN, signal.default_int_handler):
        seen = []
        monkeypatch.setattr(
            warm_cache, "_warm", lambda seen=seen: seen.append(signal.getsignal(signal.SIGINT))
        )
        previous = signal.signal(signal.SIGINT, handler)
        try:
            warm_cache.main([])
            assert handler == signal.getsignal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, previous)
        assert (handler is signal.SIG_IGN) == (seen == [signal.SIG_IGN])


def test_an_unsafe_directory_is_reported_once(tmp_path):
    """The command names a directory that others can write to in its error, and only there."""
    tmp_path.chmod(0o777)
    done = warm(NUMBA_CACHE_DIR=str(tmp_path))
    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert f"{tmp_path}/spark_kafka_sink: other users can write to {tmp_path}" in done.stderr


def test_kernels_that_cannot_be_stored_are_an_error(monkeypatch, capsys):
    """The command fails if kernels are compiled but not stored, as on a full disk."""
    monkeypatch.setattr(warm_cache, "read_code", lambda _name: None)
    assert 1 == warm_cache.main([])
    assert "kernels could not be stored in" in capsys.readouterr().err


def test_an_unknown_argument_is_wrong_usage():
    """The exit code of wrong usage is 2."""
    with pytest.raises(SystemExit) as ended:
        warm_cache.main(["--unknown"])
    assert 2 == ended.value.code


def test_all_kernels_are_compiled():
    """The command knows each module that has kernels."""
    for name in warm_cache._MODULES:
        import_module(f"spark_kafka_sink.{name}")
    declared = sum(
        len(re.findall(r"^@kernel\(", path.read_text(), re.MULTILINE))
        for path in Path(spark_kafka_sink.__file__).parent.rglob("*.py")
    )
    names = [kernel.name for kernel in kernel_support.KERNELS if "spark_kafka" in kernel.name]
    assert declared == len(names)


def test_a_read_only_cache_with_kernels_is_used(tmp_path, monkeypatch):
    """A directory on a read-only file system is used if it holds kernels, and only then."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    find_directory = kernel_cache.cache_directory.__wrapped__
    directory = Path(find_directory())

    def read_only(**_options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(kernel_cache.tempfile, "TemporaryFile", read_only)
    assert str(directory) != find_directory()
    (directory / "append_rows.kernel").touch()
    assert str(directory) == find_directory()
