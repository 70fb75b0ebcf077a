"""The wait for a connection to a given node, for callers that have nothing else to do meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.network.first_contact import UnreachedError

if TYPE_CHECKING:
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient

#: Seconds between two checks of a connection that cannot take a request now.
_LOOK_AGAIN: Final = 0.1


async def connection_to(
    client: NetworkClient, node: Node, deadline: float, changed: asyncio.Event
) -> BrokerConnection:
    """Return a connection to a node that can take a request, opening it if necessary.

    The client's `on_change` must set `changed`. Raises NetworkError if the node cannot be reached,
    or not by the deadline, UnreachedError if no broker can be reached at its address, and
    AuthenticationError or ConfigError if no further attempt would help.
    """
    loop = asyncio.get_running_loop()
    began = False
    while True:
        changed.clear()
        connection = client.ready_connection(node)
        if connection is not None:
            return connection
        now = loop.time()
        ready_at = client.ready_at(node)
        throttled = client.throttled_until(node) > now
        refusal = client.refusal_of(node)
        if began and refusal is not None:
            raise refusal
        if now >= deadline or (began and ready_at > now and not throttled):
            # Its back-off has begun; when that ends, another broker may be the one to send to.
            if client.isolation is not None:
                raise UnreachedError(client.isolation)
            cause = client.cause(node)
            raise NetworkError(f"{node} cannot be reached: {cause}") from cause
        began = ready_at <= now
        pause = ready_at - now if ready_at > now else _LOOK_AGAIN
        await _wait_for(changed, min(pause, deadline - now))


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
