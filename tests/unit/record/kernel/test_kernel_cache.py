"""The kernel cache works wherever Spark starts a worker; tests run in separate processes."""

from __future__ import annotations

import grp
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import spark_kafka_sink
from spark_kafka_sink.record.kernel import kernel_cache
from tests.support.kafka.kafka_files import locked

PACKAGE = Path(spark_kafka_sink.__file__).parent
#: No user, not even root, can create a directory here.
NOWHERE = "/dev/null/nowhere"
TIMEOUT = 600
NOBODY = 65534

USE_KERNELS = """
import sys
import numpy as np
from spark_kafka_sink.record.kernel import kernel_cache
from spark_kafka_sink.record.kernel import kernel
from spark_kafka_sink.record.columns import (
    BytesColumn, RecordColumns, constant_topic, null_partitions, null_timestamps
)
column = BytesColumn(np.array([0, 1, 2]), np.frombuffer(b"ab", np.uint8))
columns = RecordColumns(
    num_rows=2, key=column, value=column, topics=("t",), topic_index=constant_topic(2),
    partition=null_partitions(2), timestamp=null_timestamps(2),
)
buffer = np.zeros(100, np.uint8)
slots, sticky = np.zeros(1, kernel.SLOT_DTYPE), np.zeros(1, kernel.STICKY_DTYPE)
slots[0] = (buffer.ctypes.data, 61, 100, 0, 0, 0, 0, 0)
row_slots = kernel.assign_slots(columns, np.zeros(1, np.int32), np.ones(1, np.int32)).row_slots
kernel.append_rows(columns, row_slots, 0, slots, sticky, 5, 100)
hits = [not function.was_compiled for function in (kernel._assign_slots, kernel._append_rows)]
if all(hits) and "numba" in sys.modules:
    raise RuntimeError("numba was imported although both kernels are cached")
print(bytes(buffer[61:79]).hex(), sum(hits), kernel_cache.cache_directory(), kernel.__file__)
"""
#: Two records: attributes 0, deltas, a key and a value of one byte each, no headers.
RECORDS = "10000000026102610010000002026202620000"[:36]


class Worker:
    """A new interpreter that uses the kernels, and its output."""

    def __init__(self, code: str, environment: dict[str, str], path: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and code
            [sys.executable, "-B", "-W", "error", "-c", code],
            env={"PYTHONPATH": str(path), "PATH": os.environ["PATH"]} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def output(self) -> list[str]:
        """Return the words that it has printed."""
        output, errors = self._process.communicate(timeout=TIMEOUT)
        assert 0 == self._process.returncode, errors
        return output.split()

    def result(self) -> tuple[int, str, str]:
        """Check the written records; return the cache hits, the directory and the module file."""
        records, hits, directory, module = self.output()
        assert RECORDS == records
        return int(hits), directory, module


def run(*, path: Path = PACKAGE.parent, before: str = "", **environment: str):
    return Worker(before + USE_KERNELS, environment, path).result()


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory):
    """Return a cache that a first worker has filled, for all processes of the test run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return _filled(tmp_path_factory.mktemp("cache"))
    # Compiling takes seconds. The directory of a process is in that of the run.
    cache = tmp_path_factory.getbasetemp().parent / "kernel-cache"
    cache.mkdir(exist_ok=True)
    with locked(cache):
        return cache if any(cache.iterdir()) else _filled(cache)


def _filled(cache):
    hits, directory, _ = run(NUMBA_CACHE_DIR=str(cache))
    assert (0, cache / "spark_kafka_sink") == (hits, Path(directory).parent)
    return cache


@pytest.fixture
def own_cache(warm_cache, tmp_path):
    """Return a copy of a filled cache, for a test to damage."""
    return shutil.copytree(warm_cache, tmp_path / "cache")


def test_a_second_worker_compiles_nothing(warm_cache):
    """A second worker loads both kernels from the cache."""
    hits, _, _ = run(NUMBA_CACHE_DIR=str(warm_cache))
    assert 2 == hits


def test_a_kernel_in_the_file_of_another_one_is_damaged(tmp_path, monkeypatch):
    """A copy under another name has valid code, but not the function that would be called."""
    monkeypatch.setattr(kernel_cache, "cache_directory", lambda: str(tmp_path))
    kernel_cache.write_code("one", b"code")
    shutil.copy(tmp_path / "one.kernel", tmp_path / "other.kernel")
    assert (b"code", None) == (kernel_cache.read_code("one"), kernel_cache.read_code("other"))


#: Makes two threads meet where LLVM's engine is made. One of them may have to compile first.
IMPORT_IN_TWO_THREADS = """
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from llvmlite import binding
make, engines = binding.create_mcjit_compiler, []
def make_slowly(*arguments, **of_numba):
    if not of_numba:
        engines.append(None)
        time.sleep(5)
    return make(*arguments, **of_numba)
binding.create_mcjit_compiler = make_slowly
modules = [f"spark_kafka_sink.record.kernel.{name}" for name in ("kernel", "kernel_objects")]
with ThreadPoolExecutor(2) as threads:
    list(threads.map(import_module, modules))
print(len(engines))
"""


@pytest.mark.slow
def test_threads_may_import_kernels_at_once(warm_cache):
    """They share one engine: the code of a second one would be released, but still be called."""
    worker = Worker(IMPORT_IN_TWO_THREADS, {"NUMBA_CACHE_DIR": str(warm_cache)}, PACKAGE.parent)
    assert ["1"] == worker.output()


def test_the_home_directory_is_not_required(warm_cache, tmp_path):
    """Without a writable home directory, the cache is in the directory for temporary files."""
    shutil.copytree(warm_cache / "spark_kafka_sink", tmp_path / f"spark_kafka_sink-{os.geteuid()}")
    hits, directory, _ = run(HOME=NOWHERE, TMPDIR=str(tmp_path))
    assert (2, tmp_path) == (hits, Path(directory).parent.parent)


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_the_users_cache_comes_first(warm_cache, tmp_path, variable):
    """Without NUMBA_CACHE_DIR, the cache is in the user's cache directory."""
    place = tmp_path / ".cache" if variable == "HOME" else tmp_path
    shutil.copytree(warm_cache, place, dirs_exist_ok=True)
    hits, directory, _ = run(**{variable: str(tmp_path)})
    assert (2, place / "spark_kafka_sink") == (hits, Path(directory).parent)


@pytest.mark.slow
def test_no_writable_directory_is_not_an_error():
    """Without any writable directory, kernels are compiled in memory."""
    hits, directory, _ = run(
        before=f"import tempfile; tempfile.tempdir = {NOWHERE!r}\n",
        HOME=NOWHERE,
        NUMBA_CACHE_DIR=NOWHERE,
    )
    assert (0, "None") == (hits, directory)


def test_a_missing_cache_is_a_warning(tmp_path, monkeypatch, caplog):
    """Without any writable directory, a warning names each one, its error and what to set."""
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr(tempfile, "tempdir", str(file))
    assert find_directory() is None
    [message] = caplog.messages
    assert message.startswith(f"compiled kernels cannot be cached in {file}/spark_kafka_sink: ")
    assert "Not a directory" in message
    assert message.endswith(
        "Set NUMBA_CACHE_DIR to a directory that this user can write to, and nobody else"
    )


def test_nothing_is_written_beside_the_package(warm_cache, tmp_path):
    """The package may be installed read-only and anywhere: nothing is written beside it."""
    installed = tmp_path / "site-packages"
    shutil.copytree(PACKAGE, installed / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(installed.rglob("*"))
    for path in before:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    hits, _, module = run(path=installed, NUMBA_CACHE_DIR=str(warm_cache))
    assert (2, True) == (hits, module.startswith(str(installed)))
    assert before == sorted(installed.rglob("*"))


@pytest.mark.parametrize("name", ["shipped.zip", "spark_kafka_sink-0.1.egg"])
def test_code_in_a_zip_uses_the_same_kernels(warm_cache, tmp_path, name):
    """Applications that ship the package in a zip file share the compiled kernels."""
    archive = tmp_path / name
    with zipfile.ZipFile(archive, "w") as zipped:
        for source in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")):
            zipped.write(source, source.relative_to(PACKAGE.parent))
    hits, _, module = run(path=archive, NUMBA_CACHE_DIR=str(warm_cache))
    assert (2, True) == (hits, module.startswith(str(archive)))


@pytest.mark.slow
def test_many_workers_repair_a_cache_at_once(own_cache):
    """A cut file and a missing one only cost a compilation, and are replaced by valid ones."""
    for number, file in enumerate(sorted(own_cache.rglob("*.kernel"))):
        if number % 2:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
    workers = [
        Worker(USE_KERNELS, {"NUMBA_CACHE_DIR": str(own_cache)}, PACKAGE.parent) for _ in range(2)
    ]
    for worker in workers:
        worker.result()
    assert 2 == run(NUMBA_CACHE_DIR=str(own_cache))[0]


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda _: b"no machine code", lambda code: code[:-1], lambda code: code[1:]],
    ids=["empty", "invalid", "cut", "without its first byte"],
)
def test_a_damaged_file_has_no_code(tmp_path, monkeypatch, caplog, damage):
    """An empty, invalid or cut file counts as missing, and a warning names it."""
    monkeypatch.setattr(kernel_cache, "cache_directory", lambda: str(tmp_path))
    assert kernel_cache.read_code("one") is None
    assert [] == caplog.messages
    kernel_cache.write_code("one", b"code" * 100)
    assert b"code" * 100 == kernel_cache.read_code("one")
    file = tmp_path / "one.kernel"
    file.write_bytes(damage(file.read_bytes()))
    assert kernel_cache.read_code("one") is None
    [message] = caplog.messages
    assert f"the cached kernel in {file} is damaged" in message


def test_without_compilation_there_are_no_kernels(tmp_path):
    """The import fails with the reason if NUMBA_DISABLE_JIT is set and nothing is cached."""
    failed = subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-c", USE_KERNELS],
        env={
            "PYTHONPATH": str(PACKAGE.parent),
            "NUMBA_CACHE_DIR": str(tmp_path),
            "NUMBA_DISABLE_JIT": "1",
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=TIMEOUT,
    )
    assert "ImportError: NUMBA_DISABLE_JIT is set" in failed.stderr


# --- the choice of a location

find_directory = kernel_cache.cache_directory.__wrapped__


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """Return the directory among the temporary files, after making all others unusable."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", NOWHERE)
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"spark_kafka_sink-{os.geteuid()}"


def test_a_new_directory_is_writable_only_by_this_user(shared):
    """Only this user can write to a new directory, since loading a kernel runs code."""
    assert shared == Path(find_directory()).parent
    assert 0o700 == stat.S_IMODE(shared.stat().st_mode)


PLACES = ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TMPDIR"]


@pytest.fixture(params=PLACES)
def place(request, tmp_path, monkeypatch):
    """Make exactly one location usable; return its directory for kernels."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", NOWHERE)
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "tempdir", NOWHERE)
    match request.param:
        case "HOME":
            monkeypatch.delenv("XDG_CACHE_HOME")
            monkeypatch.setenv("HOME", str(tmp_path))
            return tmp_path / ".cache" / "spark_kafka_sink"
        case "TMPDIR":
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
            return tmp_path / f"spark_kafka_sink-{os.geteuid()}"
        case variable:
            monkeypatch.setenv(variable, str(tmp_path))
            return tmp_path / "spark_kafka_sink"


@pytest.fixture
def disown(monkeypatch):
    """Return a function that makes a path appear to belong to another user."""
    read = Path.lstat
    disowned = set()

    def lstat(path):
        fields = list(read(path))
        if path in disowned:
            fields[stat.ST_UID] = NOBODY
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", lstat)
    return disowned.add


def test_every_location_is_used_if_it_is_private(place):
    """Each location is used, and its directories are created for this user only."""
    directory = Path(find_directory())
    assert place == directory.parent
    assert [0o700, 0o700] == [stat.S_IMODE(path.stat().st_mode) for path in (place, directory)]
    assert str(directory) == find_directory()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
@pytest.mark.parametrize("level", ["place", "fingerprint"])
def test_a_directory_that_others_can_write_to_is_not_used(place, caplog, monkeypatch, level, mode):
    """A directory that others can write to is not used, and the reason is logged once."""
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    directory = Path(find_directory())
    path = place if level == "place" else directory
    path.chmod(mode)
    assert find_directory() is None
    assert [True] == [
        message.startswith(f"other users can write to {path}: ") for message in caplog.messages
    ]


@pytest.mark.parametrize("level", ["place", "fingerprint", "file"])
def test_files_and_directories_of_other_users_are_not_used(place, disown, caplog, level):
    """A directory or file of another user is not used, since its owner can change it."""
    directory = Path(find_directory())
    file = directory / "append_rows.kernel"
    file.touch()
    path = {"place": place, "fingerprint": directory, "file": file}[level]
    disown(path)
    assert find_directory() is None
    assert [True] == [message.startswith(f"{path} belongs to") for message in caplog.messages]


@pytest.mark.parametrize("level", ["place", "fingerprint", "file"])
def test_a_link_is_not_used(place, tmp_path, level):
    """A symbolic link is not used, since it could lead anywhere."""
    directory = Path(find_directory())
    file = directory / "append_rows.kernel"
    file.touch()
    path = {"place": place, "fingerprint": directory, "file": file}[level]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert find_directory() is None


def test_a_file_that_others_can_write_to_is_not_used(place):
    """A file that others can write to is used only if they cannot enter the directory."""
    directory = Path(find_directory())
    (directory / "append_rows.kernel").touch()
    (directory / "append_rows.kernel").chmod(0o666)
    assert str(directory) == find_directory()
    directory.chmod(0o755)
    assert find_directory() is None


def test_an_ancestor_that_others_can_write_to_is_unsafe(place, tmp_path):
    """An ancestor that others can write to is safe only with the sticky bit."""
    directory = Path(find_directory())
    tmp_path.chmod(0o777)
    assert find_directory() is None
    tmp_path.chmod(0o1777)
    assert str(directory) == find_directory()


def test_an_ancestor_of_another_user_is_unsafe(place, tmp_path, disown):
    """The owner of an ancestor could replace the directory, whatever the ancestor's mode."""
    assert find_directory() is not None
    disown(tmp_path)
    assert find_directory() is None


def test_another_location_is_used_if_the_first_is_unsafe(tmp_path, monkeypatch, caplog):
    """If a location is unsafe, the next one is used, and a warning names the first."""
    planted, home = tmp_path / "planted", tmp_path / "home"
    planted.mkdir()
    home.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(planted))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert planted == Path(find_directory()).parent.parent
    planted.chmod(0o777)
    assert home == Path(find_directory()).parent.parent
    assert [f"other users can write to {planted}"] == [
        message.partition(":")[0] for message in caplog.messages
    ]


@pytest.mark.slow
def test_planted_code_is_not_run_even_if_the_disk_is_full(own_cache, tmp_path):
    """Machine code is never loaded from where others can write; one's own needs no storage."""
    for directory in (own_cache / "spark_kafka_sink").iterdir():
        directory.chmod(0o777)
    full = (
        "from pathlib import Path\n"
        "def replace(*_): raise OSError(28, 'No space left on device')\n"
        "Path.replace = replace\n"
    )
    place = tmp_path / "place"
    place.mkdir()
    hits, directory, _ = run(
        before=full, NUMBA_CACHE_DIR=str(own_cache), HOME=NOWHERE, TMPDIR=str(place)
    )
    assert (0, place) == (hits, Path(directory).parent.parent)
    assert [] == [file for file in place.rglob("*") if file.is_file()]


def test_a_user_without_a_home_directory_is_not_an_error(shared, monkeypatch):
    """A user without a home directory, as in some containers, is not an error."""

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert shared == Path(find_directory()).parent


def test_a_missing_temporary_directory_is_not_an_error(shared, monkeypatch):
    """A missing directory for temporary files is not an error."""

    def none_usable():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    assert find_directory() is None


def test_without_sources_nothing_is_cached(shared, monkeypatch):
    """Without its sources, nothing is cached, since versions could not be distinguished."""

    def no_sources(_package, resource):
        raise FileNotFoundError(2, "No such file", resource)

    monkeypatch.setattr(kernel_cache, "get_data", no_sources)
    assert find_directory() is None


def test_all_compiled_modules_are_sources():
    """The modules of the room are sources, except the cache, and so are all others with kernels."""
    package = Path(spark_kafka_sink.__file__).parent
    others = {"__init__", "kernel_cache"}
    expected = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if ("@kernel(" in path.read_text() or path.parent.name == "kernel")
        and path.stem not in others
    }
    assert expected <= set(kernel_cache._KERNEL_SOURCES)


@pytest.mark.parametrize(
    "source",
    [
        "record/kernel/kernel.py",
        "record/kernel/decode_records.py",
        "record/columns.py",
        "formats/avro/decode_kernel.py",
    ],
)
def test_a_change_of_any_source_changes_the_directory(shared, monkeypatch, source):
    """A change of any source, including called modules and layouts, changes the directory."""
    before = find_directory()
    read = kernel_cache.get_data

    def changed(package, resource):
        return read(package, resource) + (b"#" if resource == source else b"")

    monkeypatch.setattr(kernel_cache, "get_data", changed)
    assert before != find_directory()
    assert Path(before).parent == Path(find_directory()).parent


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (kernel_cache.binding, "get_host_cpu_name"),
        (kernel_cache.binding, "get_process_triple"),
        (kernel_cache.platform, "python_version"),
        (kernel_cache, "_configuration"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_another_machine_changes_the_directory(shared, monkeypatch, owner, name):
    """Another processor or Python version changes the directory, since homes may be shared."""
    before = find_directory()
    another = b"another" if name == "_configuration" else "another"
    monkeypatch.setattr(owner, name, lambda: another)
    assert before != find_directory()


@pytest.mark.parametrize(
    "name", ["NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_ENABLE_AVX"]
)
def test_other_settings_of_the_compiler_change_the_directory(shared, monkeypatch, name):
    """Code that numba is told to make differently is cached elsewhere."""
    monkeypatch.delenv(name, raising=False)
    before = find_directory()
    monkeypatch.setenv(name, "0")
    assert before != find_directory()


def test_generic_code_is_the_same_for_all_processors(shared, monkeypatch):
    """Code for the generic processor is cached in one place, whatever the processor at hand."""
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    before = find_directory()
    monkeypatch.setattr(kernel_cache.binding, "get_host_cpu_name", lambda: "another")
    monkeypatch.setattr(kernel_cache.binding, "get_host_cpu_features", dict)
    assert before == find_directory()
