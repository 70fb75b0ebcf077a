"""The files of an Apache Kafka release, fetched from Maven repositories and cached.

Each version has its own directory, since a class path with the jars of two versions fails in odd
ways. A directory is filled under another name and renamed when complete, so an interrupted download
is never mistaken for a release. Only one process downloads at a time, since Maven's local
repository is not safe for concurrent use. Jars are used only with the contents that `jars.lock`
records, which has the form of `sha256sum`: for another version, append what that command prints.
The cache is in $XDG_CACHE_HOME/spark-kafka-sink/kafka, by default below ~/.cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import selectors
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_unavailable import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The only version to test on, if the environment has it: see `make test-kafka`.
ONLY_KAFKA = os.environ.get("ONLY_KAFKA", "")
#: The newest version.
KAFKA_4 = ONLY_KAFKA or "4.4.0"
KAFKA_3 = "3.9.1"

#: The longest time between two messages of Maven, which has one for each file; by itself, it waits
#: for minutes for a repository that does not answer.
_SILENT_SECONDS = 45
_LOCK = Path(__file__).with_name("jars.lock")
_COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# Kafka 4 includes no slf4j binding; without one, a failing broker would log nothing.
_LOGGING = {"4": "org.slf4j:slf4j-simple:1.7.36"}


def is_older(version: str, than: str) -> bool:
    """Return whether a version of Kafka is older than another one; "given" is not."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(".")]

    return version[0].isdigit() and numbers(version) < numbers(than)


@cache
def kafka_jars(version: str) -> Path:
    """Return the directory that contains all jars of an Apache Kafka version.

    Raises KafkaUnavailableError if they are neither cached nor available from Maven.
    """
    directory = cache_directory() / version
    if not directory.is_dir():
        artifacts = [
            f"org.apache.kafka:kafka_2.13:{version}",
            f"org.apache.kafka:kafka-tools:{version}",
        ]
        logging = _LOGGING.get(version.partition(".")[0])
        copy_with_maven([*artifacts, logging] if logging else artifacts, directory)
    return directory


def copy_with_maven(
    artifacts: list[str], directory: Path, *, alone: bool = False, lock: Path = _LOCK
) -> None:
    """Copy artifacts (`group:artifact:version`) with their runtime dependencies to a new directory.

    With `alone`, copy only the artifacts. Raises KafkaUnavailableError if Maven is missing or
    fails, or if it copies a jar that the lock file does not have, or has with another hash.
    """
    if shutil.which("mvn") is None:
        raise KafkaUnavailableError("Maven (mvn) is not installed")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent):
        # Another process may have copied the same files while this one waited for the lock.
        if not directory.is_dir():
            _copy(artifacts, directory, alone=alone, lock=lock)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock out other processes; the lock ends with its process, however that ends."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _copy(artifacts: list[str], directory: Path, *, alone: bool, lock: Path) -> None:
    with tempfile.TemporaryDirectory(
        prefix=f"{directory.name}.partial-", dir=directory.parent
    ) as partial:
        jars = Path(partial, "jars")
        Path(partial, "pom.xml").write_text(_pom(artifacts, alone=alone))
        command = ["mvn", "-B", "-f", f"{partial}/pom.xml", _COPY_DEPENDENCIES]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        done, output = _run(command)
        if not done:
            raise KafkaUnavailableError(
                f"Maven could not fetch {', '.join(artifacts)}:\n{output[-2000:]}"
            )
        check_jars(jars, lock)
        jars.rename(directory)


def check_jars(jars: Path, lock: Path = _LOCK) -> None:
    """Raise KafkaUnavailableError if a directory has a jar with other contents than recorded."""
    lines = [line.split("  ") for line in lock.read_text().splitlines()]
    expected = {name: digest for digest, name in lines}
    for jar in sorted(jars.iterdir()):
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != expected.get(jar.name):
            raise KafkaUnavailableError(
                f"{jar} has the SHA-256 {found}, but {lock.name} has "
                f"{expected.get(jar.name, 'none')}"
            )


def _run(command: list[str]) -> tuple[bool, str]:
    """Run a command until it ends or is silent; return whether it succeeded, and its output.

    Without stdin, a prompt cannot block it.
    """
    output = bytearray()
    with (
        subprocess.Popen(  # noqa: S603  # our own command
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(_SILENT_SECONDS):
            if not (read := os.read(process.stdout.fileno(), 65536)):
                break
            output += read
        else:
            process.kill()
            output += f"\nno message in {_SILENT_SECONDS} s, so it was ended".encode()
    return process.returncode == 0, output.decode(errors="replace")


def java_command() -> str:
    """Return the `java` to run, from JAVA_HOME or the PATH.

    Raises KafkaUnavailableError if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(f"{home}/bin/java" if home else "java")
    if command is None:
        raise KafkaUnavailableError("Java 17 or newer is neither in JAVA_HOME nor on the PATH")
    return command


def cache_directory() -> Path:
    """Return the cache directory, which has one directory for each set of files."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "spark-kafka-sink", "kafka")


def _pom(artifacts: list[str], *, alone: bool) -> str:
    every = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    excluded = f"<exclusions>{every}</exclusions>" if alone else ""
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}"
        "</dependency>".format(*artifact.split(":"), excluded)
        for artifact in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>local</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
