"""Connections to the brokers that a call needs; lives on the loop of its NetworkClient."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import KafkaTimeoutError, NetworkError
from spark_kafka_sink.network.base.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.node_connections import connection_to

if TYPE_CHECKING:
    from spark_kafka_sink.config.client_config import ClientConfig
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.network_client import NetworkClient
    from spark_kafka_sink.protocol.schema import ApiRequest, ResponseT


class BrokerRequests:
    """Requests to given brokers or to any; times are seconds of the loop's clock."""

    def __init__(self, client: NetworkClient, config: ClientConfig, changed: asyncio.Event) -> None:
        """Use a client that sets `changed` when a node or the metadata may have changed."""
        self.client = client
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )

    async def connection_to(self, node: Node, deadline: float) -> BrokerConnection:
        """Return a connection to a node that can take a request; see `connection_to`."""
        return await connection_to(self.client, node, deadline, self._changed)

    async def ask(
        self,
        node: Node | None,
        request: ApiRequest[ResponseT],
        deadline: float,
        *,
        max_version: int | None = None,
    ) -> ResponseT:
        """Send a request to a node, or to any if it is None, and return the response.

        Raises NetworkError if there is none by the deadline, and what `connection_to` raises.
        """
        if node is None:
            connection = await self.client.least_loaded_connection(deadline)
        else:
            connection = await self.connection_to(node, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                return await connection.send(request, max_version=max_version)
        except TimeoutError:
            name = request.api_key.name
            raise NetworkError(f"{connection.node} has not answered {name} yet") from None

    async def back_off(self, attempts: int, deadline: float, what: str, cause: KafkaError) -> None:
        """Wait before the next attempt; raise KafkaTimeoutError if there is no time for one."""
        delay = self._backoff.delay(attempts)
        if self._loop.time() + delay >= deadline:
            raise KafkaTimeoutError(f"{what}: no final answer in time; last cause: {cause}") from (
                cause
            )
        await asyncio.sleep(delay)
