"""A real Schema Registry: Apicurio 2.6, whose API `ccompat` is that of Confluent's.

Its archive, of 142 MB, comes from Maven's repository, and is kept in the cache of Kafka's files.
Confluent's own registry is not there.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import tarfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.devbroker.registry_calls import call
from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.kafka.kafka_files import cache_directory, java_command, locked
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "2.6.13.Final"
PATH = "/apis/ccompat/v7"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_DOWNLOAD_SECONDS = 900
_READY_SECONDS = 300.0


class ApicurioUnavailableError(KafkaUnavailableError):
    """The registry is not available; the message is Maven's."""

    ci_needs_it = False


@contextmanager
def running_apicurio() -> Iterator[str]:
    """Start an empty registry in memory, and yield the URL before its paths.

    Raises ApicurioUnavailableError if it is neither cached nor available from Maven.
    """
    directory = _files()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = ["-Xmx1g", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    runner = directory / f"apicurio-registry-app-{VERSION}-runner.jar"
    with subprocess.Popen(  # noqa: S603 - our own command
        [java_command(), *QUICK_OPTIONS, *options, "-jar", str(runner)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or _answers(url),
                seconds=_READY_SECONDS,
                what="Apicurio to start",
            )
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return call(url, f"GET {PATH}/subjects").status == 200
    except OSError:
        return False


def _files() -> Path:
    """Return the directory of the unpacked archive."""
    directory = cache_directory().parent / "apicurio" / VERSION
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent):
        if not directory.is_dir():
            _fetch(directory)
    return directory


def _fetch(directory: Path) -> None:
    if shutil.which("mvn") is None:
        raise ApicurioUnavailableError("Maven (mvn) is not installed")
    partial = directory.with_name(f"{VERSION}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    done = subprocess.run(  # noqa: S603 - our own command
        ["mvn", "-B", _COPY, f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={partial}"],  # noqa: S607
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=partial,
        timeout=_DOWNLOAD_SECONDS,
        check=False,
    )
    archives = list(partial.glob("*.tar.gz"))
    if done.returncode or len(archives) != 1:
        raise ApicurioUnavailableError(f"Maven could not fetch {_ARTIFACT}: {done.stdout[-2000:]}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != _SHA256:
        raise ApicurioUnavailableError(f"{archives[0]} has the SHA-256 {found}, not {_SHA256}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(partial, filter="data")
    archives[0].unlink()
    partial.rename(directory)
