"""Clusters of Java processes on loopback, from the files of a release."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.support.kafka.kafka_files import java_command, kafka_jars
from tests.support.kafka.kafka_process import KafkaProcess, free_ports, kafka_command
from tests.support.kafka.kafka_properties import Listener, node_properties, to_text
from tests.support.kafka.prepared_release import format_storage, quick_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        is_measured: bool = False,
    ) -> None:
        """Choose ports, write the configuration of `count` nodes, and format their storage.

        `parent` is where their directory is created, if not where all temporary files are. Brokers
        whose speed `is_measured` get no options for a quick start.
        """
        jars = kafka_jars(version)
        java = java_command()
        options = [*([] if is_measured else quick_options(version)), *java_options]
        cluster_id = uuid.uuid4()
        ports = free_ports((3 + len(secured)) * count)
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-", dir=parent))
        voters = {i + 1: f"127.0.0.1:{ports[count + i]}" for i in range(count)}
        self.nodes = []
        for node_id, controller in voters.items():
            directory = self._directory / f"node-{node_id}"
            directory.mkdir()
            command = kafka_command(java, jars, directory, options)
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
            format_storage(version, directory / "data", node_id=node_id, cluster_id=cluster_id)
            self.nodes.append(
                KafkaProcess(
                    node_id=node_id,
                    address=address,
                    directory=directory,
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
