"""bootstrap.servers as nodes, with negative ids, until the cluster names its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spark_kafka_sink.model import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.network.host_resolver import HostResolver


class BootstrapNodes:
    """The nodes to begin with.

    With client.dns.lookup=resolve_canonical_bootstrap_servers_only each address of a server becomes
    a node, under its canonical name: what a certificate or a Kerberos principal names where the
    server given is an alias for all of them (KIP-235).
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]], *, resolver: HostResolver, canonical: bool
    ) -> None:
        """Look nothing up yet."""
        self._servers = servers
        self._resolver = resolver
        self._canonical = canonical
        self._is_resolved = not canonical
        self.nodes = self._numbered(servers)

    @staticmethod
    def _numbered(servers: Sequence[tuple[str, int]]) -> tuple[Node, ...]:
        return tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(servers))

    async def resolve_once(self, deadline: float) -> None:
        """Find the canonical names, where they are wanted and not known yet.

        A server whose name is not found by the deadline stays what it is: to connect to it tells
        why. It is asked for again the next time.
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
        """Return what a server stands for, and whether its name was found."""
        try:
            names = await self._resolver.canonical_names(host)
        except OSError:
            return [(host, port)], False
        return [(name, port) for name in names or [host]], True

    def forget(self) -> None:
        """Look the names up anew the next time: the addresses behind them may have changed."""
        self._is_resolved = not self._canonical
