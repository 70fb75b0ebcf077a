"""bootstrap.servers as nodes with negative ids, until the cluster's own nodes are known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.model import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.network.transport.host_resolver import HostResolver


class BootstrapNodes:
    """The nodes to start from.

    With client.dns.lookup=resolve_canonical_bootstrap_servers_only, each address of a server
    becomes a node under its canonical name. That is the name in a certificate or a Kerberos
    principal if the configured server is an alias for all of them (KIP-235).
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], *, resolver: HostResolver, canonical: bool
    ) -> None:
        """Create the nodes without looking up any name."""
        self._servers = servers
        self._resolver = resolver
        self._canonical = canonical
        self._is_resolved = not canonical
        self.nodes = self._numbered(servers)

    @staticmethod
    def _numbered(servers: Sequence[tuple[str, int]]) -> tuple[Node, ...]:
        return tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(servers))

    async def resolve_once(self, deadline: float) -> None:
        """Look up the canonical names, if they are needed and not known yet.

        A server whose name is not found by the deadline remains as configured: connecting to it
        will show why. The next call looks it up again.
        """
        if self._is_resolved:
            return
        try:
            async with asyncio.timeout_at(deadline):
                found = await asyncio.gather(*(self._resolve(*server) for server in self._servers))
        except TimeoutError:
            return
        self._is_resolved = all(is_found for _, is_found in found)
        self.nodes = self._numbered(
            list(dict.fromkeys(server for servers, _ in found for server in servers))
        )

    async def _resolve(self, host: str, port: int) -> tuple[list[tuple[str, int]], bool]:
        """Return the servers that a server stands for, and whether its name was found."""
        try:
            names = await self._resolver.canonical_names(host)
        except OSError:
            return [(host, port)], False
        return [(name, port) for name in names or [host]], True

    def forget(self) -> None:
        """Look up the names again next time, since their addresses may have changed."""
        self._is_resolved = not self._canonical
