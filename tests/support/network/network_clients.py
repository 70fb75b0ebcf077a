"""Network clients for tests: over sockets, or in memory on a simulated clock."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.network_client import NetworkClient
from tests.support.network.scripted_transport import AnsweringTransport, run_without_waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spark_kafka_sink.network.connection.host_resolver import HostResolver
    from spark_kafka_sink.network.connection.transport import Transport
    from tests.support.network.recording_listener import RecordingListener

FAST = {
    "retry.backoff.ms": 5,
    "retry.backoff.max.ms": 10,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 10,
    "request.timeout.ms": 20_000,
    "linger.ms": 0,
}
NODE = Node(7, "h.example", 9092)
#: Long enough for a busy machine, in seconds.
PATIENCE = 120.0


def address(node: Node) -> str:
    """Return a node's address in the form of bootstrap.servers."""
    return f"{node.host}:{node.port}"


def run_client(
    servers: str,
    act: Callable[[NetworkClient], Awaitable[object]],
    *,
    listener: RecordingListener | None = None,
    resolver: HostResolver | None = None,
    **settings: object,
) -> object:
    """Run an action with a client, and close the client whatever happens."""

    async def run() -> object:
        config = ProducerConfig.from_mapping({"bootstrap.servers": servers, **FAST, **settings})
        client = NetworkClient(config, listener=listener, resolver=resolver)
        try:
            return await act(client)
        finally:
            await client.close()

    return asyncio.run(run())


def run_in_memory(
    connect: Callable[[Node], Transport],
    act: Callable[[NetworkClient], Awaitable[object]],
    *,
    listener: RecordingListener | None = None,
    **settings: object,
) -> object:
    """Run an action with a client whose connections are in memory, on a simulated clock."""

    async def connect_at_once(node: Node, _timeout: float) -> Transport:
        return connect(node)

    async def run() -> object:
        config = ProducerConfig.from_mapping(
            {"bootstrap.servers": address(NODE), **FAST, **settings}
        )
        client = NetworkClient(config, listener=listener)
        client._dialer.connect = connect_at_once
        try:
            return await act(client)
        finally:
            await client.close()

    return run_without_waiting(run)


def answering(
    script: Callable[[bytes], bytes | None], *absent: Node
) -> Callable[[Node], Transport]:
    """Return a function that connects to any node except the absent ones."""

    def connect(node: Node) -> Transport:
        if node in absent:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "")
        return AnsweringTransport(script)

    return connect


async def wait_for(
    client: NetworkClient, *topics: str, within: float = PATIENCE, **more: int
) -> None:
    """Wait for at most `within` seconds until a client has the metadata of topics."""
    await client.wait_for_topics(topics, asyncio.get_running_loop().time() + within, **more)


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  any step of the loop may cause it
            await asyncio.sleep(0.001)
