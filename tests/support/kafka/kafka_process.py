"""Brokers as Java processes on loopback, from the files of a release."""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_files import java_command, kafka_jars
from tests.support.kafka.kafka_properties import Listener, node_properties, to_text
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError
from tests.support.kafka.process_leash import ProcessLeash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STOP_SECONDS = 60
_FORMAT_SECONDS = 60
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
        cluster_id: uuid.UUID,
        command: list[str],
        proxied_address: str | None = None,
        secured_addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Prepare a node; `directory` holds server.properties, `command` runs Kafka's classes."""
        self.node_id = node_id
        self.address = address
        self.proxied_address = proxied_address
        self.secured_addresses = secured_addresses
        self._directory = directory
        self._cluster_id = cluster_id
        self._command = command
        self._is_formatted = False
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
        """Format the storage the first time, and start the process; does not wait for readiness."""
        properties = self._directory / "server.properties"
        if not self._is_formatted:
            _format_storage(self._command, properties, self._cluster_id)
            self._is_formatted = True
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
        """Stop the broker cleanly: it hands over its leadership and flushes its logs."""
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
        if self._process.poll() is None:
            os.killpg(process_group, signal_number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process_group, signal.SIGKILL)
                self._process.wait()
        process_leash().release(process_group)
        self._process = None


class ProcessNodes:
    """All nodes of one cluster, and the directory with their data and logs."""

    def __init__(
        self,
        version: str,
        count: int,
        *,
        overrides: dict[str, str],
        java_options: list[str],
        proxies: Sequence[str] = (),
        secured: Mapping[str, str] = MappingProxyType({}),
        parent: Path | None = None,
    ) -> None:
        """Choose ports and write the configuration of `count` nodes, without starting them.

        `parent` is where their directory is created, if not where all temporary files are.
        """
        jars = kafka_jars(version)
        java = java_command()
        cluster_id = uuid.uuid4()
        ports = free_ports((3 + len(secured)) * count)
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-", dir=parent))
        voters = {i + 1: f"127.0.0.1:{ports[count + i]}" for i in range(count)}
        self.nodes = []
        for node_id, controller in voters.items():
            directory = self._directory / f"node-{node_id}"
            directory.mkdir()
            (directory / "log4j.properties").write_text(_LOG4J)
            command = [
                java,
                *java_options,
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                f"-Dlog4j.configuration=file:{directory}/log4j.properties",
                "-cp",
                f"{jars}/*",
            ]
            address = f"127.0.0.1:{ports[node_id - 1]}"
            listener = Listener("CLIENTS", address, address)
            proxied = None
            if proxies:
                bind = f"127.0.0.1:{ports[2 * count + node_id - 1]}"
                proxied = Listener("PROXIED", bind, proxies[node_id - 1])
            more = [
                Listener(name, f"127.0.0.1:{port}", f"localhost:{port}", protocol)
                for (name, protocol), port in zip(
                    secured.items(), ports[3 * count + node_id - 1 :: count], strict=True
                )
            ]
            (directory / "server.properties").write_text(
                to_text(
                    node_properties(
                        node_id=node_id,
                        clients=listener,
                        brokers=listener,
                        controller=controller,
                        voters=voters,
                        overrides={"log.dirs": f"{directory}/data", **overrides},
                        proxied=proxied,
                        secured=more,
                    )
                )
            )
            self.nodes.append(
                KafkaProcess(
                    node_id=node_id,
                    address=address,
                    directory=directory,
                    cluster_id=cluster_id,
                    command=command,
                    proxied_address=proxied.bind if proxied else None,
                    secured_addresses={at.name: at.advertised for at in more},
                )
            )

    def close(self) -> None:
        """Kill every node and remove all data."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._directory)


def _format_storage(command: list[str], properties: Path, cluster_id: uuid.UUID) -> None:
    # An id may begin with a dash, so it must be in one argument with its option.
    identity = f"--cluster-id={_base64(cluster_id)}"
    tool = ["kafka.tools.StorageTool", "format", identity, f"--config={properties}"]
    done = subprocess.run(  # noqa: S603  # our own command
        [*command, *tool],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_FORMAT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaUnavailableError(f"formatting the storage failed:\n{done.stdout}{done.stderr}")


def _base64(cluster_id: uuid.UUID) -> str:
    """Encode an id as Kafka does (Uuid.toString)."""
    return base64.urlsafe_b64encode(cluster_id.bytes).rstrip(b"=").decode()


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
