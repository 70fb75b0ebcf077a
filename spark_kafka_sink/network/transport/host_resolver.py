"""Host name lookups on daemon threads that are never joined (see `daemon_thread`).

A request for a name that is being looked up joins that lookup, so a hanging name service costs one
thread per name, however often the name is requested.
"""

from __future__ import annotations

import asyncio

# socket.getaddrinfo would import it on a thread of its own. A process forked at that moment could
# never look a name up: the lock of that import would stay taken in it.
import encodings.idna  # noqa: F401
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink.network.base.daemon_thread import in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.network.base.daemon_thread import Outcome

_THREAD = "kafka-host-resolver"


class Address(NamedTuple):
    """An address that a socket can connect to."""

    family: int
    protocol: int
    #: In the socket module's form for the family: host and port, for IPv6 two more numbers.
    socket_address: tuple[Any, ...]


class HostResolver:
    """A resolver of host names that does not block the event loop."""

    def __init__(
        self,
        *,
        getaddrinfo: Callable[..., list[tuple[Any, ...]]] = socket.getaddrinfo,
        getnameinfo: Callable[[tuple[Any, ...], int], tuple[str, str]] = socket.getnameinfo,
    ) -> None:
        """Set the two functions that query the system."""
        self._getaddrinfo = getaddrinfo
        self._getnameinfo = getnameinfo
        #: The lookups under way; each future yields an outcome and never raises.
        self._lookups: dict[tuple[object, ...], asyncio.Future[Outcome]] = {}

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Return all addresses of a host, in the system's order; OSError if there are none."""
        addresses: list[Address] = await self._look_up(self._resolve, host, port)
        return addresses

    async def canonical_names(self, host: str) -> list[str]:
        """Return the distinct canonical names of a host's addresses; OSError as for `addresses`.

        An address without a name is returned in numeric form
        (java.net.InetAddress.getCanonicalHostName).
        """
        names: list[str] = await self._look_up(self._resolve_canonical_names, host)
        return names

    def _resolve(self, host: str, port: int) -> list[Address]:
        found = self._getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [Address(family, protocol, where) for family, _, protocol, _, where in found]
        if not addresses:
            raise OSError(f"{host} has no address")
        return addresses

    def _resolve_canonical_names(self, host: str) -> list[str]:
        addresses = self._resolve(host, 0)
        names = (self._getnameinfo(it.socket_address, socket.NI_NUMERICSERV) for it in addresses)
        return list(dict.fromkeys(name for name, _ in names))

    async def _look_up(self, function: Callable[..., Any], *arguments: object) -> Any:
        key = (function.__name__, *arguments)
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = in_daemon_thread(_THREAD, function, *arguments)
            lookup.add_done_callback(lambda _: self._lookups.pop(key))
        # Other callers may be waiting for the same lookup, so it continues if this wait is
        # cancelled.
        await asyncio.wait({lookup})
        outcome = lookup.result()
        if isinstance(outcome.error, UnicodeError):
            # The name cannot be encoded as a host name.
            raise OSError(str(outcome.error)) from None
        return outcome.get()
