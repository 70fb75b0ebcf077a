"""A broker as a Java process on loopback, from the files of a release."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import time
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_unavailable import KafkaFailedError, KafkaUnavailableError
from tests.support.kafka.process_leash import ProcessLeash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.kafka.real_kafka import Broker

_STOP_SECONDS = 120
_POLL_SECONDS = 0.1
_API_VERSIONS_V0 = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: These ports are below the range that systems use for outgoing connections, so a chosen port is
#: still free when its broker restarts after a kill.
_PORTS = range(20_000, 32_000)
#: The number of parallel test processes with disjoint ports, so that no other process takes the
#: port of a killed broker.
_SHARES = 16

_LOG4J = """\
log4j.rootLogger=INFO, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %m (%c)%n
"""


@cache
def process_leash() -> ProcessLeash:
    """Return the helper that kills all brokers if the test run dies; it is started once."""
    return ProcessLeash()


class KafkaProcess:
    """One node: its directory, its address, and the Java process while it runs."""

    def __init__(
        self,
        *,
        node_id: int,
        address: str,
        directory: Path,
        command: list[str],
        proxied_address: str | None = None,
        secured_addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Prepare a node whose storage is formatted.

        `directory` holds server.properties, `command` runs Kafka's classes.
        """
        self.node_id = node_id
        self.address = address
        self.proxied_address = proxied_address
        self.secured_addresses = secured_addresses
        self._directory = directory
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """The id of the running process, for measurements."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does not wait for readiness."""
        properties = self._directory / "server.properties"
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                [*self._command, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process_leash().hold(self._process.pid, self._directory.parent)

    def stop(self) -> None:
        """Stop the broker cleanly: it hands over its leadership and flushes its logs.

        Raises KafkaFailedError if it does not end in time and had to be killed.
        """
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Freeze the process, with its connections open, until it is thawed."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen process."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the last lines of the log, for error messages."""
        lines = (self._directory / "broker.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-40:])

    def _end(self, signal_number: int) -> None:
        if self._process is None:
            return
        process_group = self._process.pid
        try:
            if self._process.poll() is None:
                os.killpg(process_group, signal_number)
                self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(process_group, signal.SIGKILL)
            self._process.wait()
            raise KafkaFailedError(
                f"a broker did not end in {_STOP_SECONDS} s and was killed:\n{self.log_tail()}"
            ) from error
        finally:
            process_leash().release(process_group)
            self._process = None


def kafka_command(java: str, jars: Path, directory: Path, options: Sequence[str]) -> list[str]:
    """Return the command of Kafka's classes, whose logs go to stderr."""
    (directory / "log4j.properties").write_text(_LOG4J)
    return [
        java,
        *options,
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        f"-Dlog4j.configuration=file:{directory}/log4j.properties",
        "-cp",
        f"{jars}/*",
    ]


def wait_for_answer(broker: Broker, seconds: float) -> None:
    """Wait until a started broker answers.

    Raises KafkaFailedError, with the end of the log, if it exits or does not answer in time.
    """
    deadline = time.monotonic() + seconds
    while not answers(broker.address):
        if not broker.is_running:
            raise KafkaFailedError(f"a broker exited:\n{broker.log_tail()}")
        if time.monotonic() > deadline:
            raise KafkaFailedError(f"a broker was not ready in {seconds} s:\n{broker.log_tail()}")
        time.sleep(_POLL_SECONDS)


def answers(address: str) -> bool:
    """Return whether a broker at an address answers ApiVersions (v0) without an error."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(_API_VERSIONS_V0)
            with connection.makefile("rb") as reader:
                answer = reader.read(10)
    except OSError:
        return False
    return len(answer) == 10 and struct.unpack(">iih", answer)[2] == 0


def free_ports(count: int) -> list[int]:
    """Find unused ports of 127.0.0.1."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    choice = _PORTS[int(worker.removeprefix("gw")) % _SHARES :: _SHARES] if worker else _PORTS
    ports: list[int] = []
    for port in random.Random().sample(choice, len(choice)):  # not pytest-randomly's seed
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        if len(ports) == count:
            return ports
    raise KafkaUnavailableError(f"no {count} free ports in {choice}")
