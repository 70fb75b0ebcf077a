"""From a node to a connected transport: its name looked up, its addresses tried in turn.

All addresses of a name are tried (client.dns.lookup=use_all_dns_ips), and each attempt begins
behind the address that the last one ended with: a connection that was lost is not made again to the
same machine first (as ClusterConnectionStates.NodeConnectionState does). The name is looked up
anew each time, since the addresses behind it may have changed. What the look-up takes counts
towards the time for setting up the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.network.transport import PlaintextTransport, SocketOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.host_resolver import Address, HostResolver
    from spark_kafka_sink.network.transport import Transport


def addresses_in_turn(addresses: Sequence[Address], last: Address | None) -> list[Address]:
    """Put the addresses in the order of trying: first the one behind `last`, if that is there."""
    start = addresses.index(last) + 1 if last is not None and last in addresses else 0
    return [*addresses[start:], *addresses[:start]]


class Dialer:
    """Connects transports."""

    def __init__(self, resolver: HostResolver, options: SocketOptions | None = None) -> None:
        """Remember nothing of any node yet."""
        self._resolver = resolver
        self._options = options or SocketOptions()
        self._last_tried: dict[Node, Address] = {}

    async def connect(self, node: Node, timeout: float) -> Transport:  # noqa: ASYNC109  shared out among addresses
        """Connect to the first of the node's addresses that answers; OSError when none does.

        Each address has an equal share of `timeout` seconds, so that one behind a dead route does
        not keep the others from being tried.
        """
        found = await self._resolver.addresses(node.host, node.port)
        addresses = addresses_in_turn(found, self._last_tried.get(node))
        errors: list[OSError] = []
        for address in addresses:
            self._last_tried[node] = address
            try:
                async with asyncio.timeout(timeout / len(addresses)):
                    return await PlaintextTransport.connect(address, self._options)
            except OSError as error:
                errors.append(error)
        raise errors[-1]
