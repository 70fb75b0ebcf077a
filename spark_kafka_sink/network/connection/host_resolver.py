"""Host name lookups on daemon threads that are never joined (see `daemon_thread`).

A request for a name that is being looked up joins that lookup, so a hanging name service costs one
thread per name, however often the name is requested. A client has at most `MAX_THREADS` of them,
whatever number of hosts a cluster advertises; further names wait for their turn.
"""

from __future__ import annotations

import asyncio

# socket.getaddrinfo would import it on a thread of its own. A process forked at that moment could
# never look a name up: the lock of that import would stay taken in it.
import encodings.idna  # noqa: F401
import socket
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.network.daemon_thread import Outcome, in_daemon_thread

if TYPE_CHECKING:
    from collections.abc import Callable


#: The most names that one client looks up at a time.
MAX_THREADS: Final = 16
_THREAD: Final = "kafka-host-resolver"


class Address(NamedTuple):
    """An address that a socket can connect to."""

    family: int
    protocol: int
    #: In the socket module's form for the family: host and port, for IPv6 two more numbers.
    socket_address: tuple[Any, ...]


@dataclass(slots=True, eq=False)
class _Lookup:
    """A lookup that is under way, or waits for its turn."""

    function: Callable[..., Any]
    arguments: tuple[object, ...]
    #: It yields an outcome and never raises.
    outcome: asyncio.Future[Outcome]
    #: How many callers wait for the outcome.
    waiters: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        return (self.function.__name__, *self.arguments)


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
        self._lookups: dict[tuple[object, ...], _Lookup] = {}
        #: Those of them that have no thread yet, in their order.
        self._queue: deque[_Lookup] = deque()
        self._threads = 0

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
        results = self._getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [Address(family, protocol, where) for family, _, protocol, _, where in results]
        if not addresses:
            raise OSError(f"{host} has no address")
        return addresses

    def _resolve_canonical_names(self, host: str) -> list[str]:
        addresses = self._resolve(host, 0)
        names = (
            self._getnameinfo(address.socket_address, socket.NI_NUMERICSERV)
            for address in addresses
        )
        return list(dict.fromkeys(name for name, _ in names))

    async def _look_up(self, function: Callable[..., Any], *arguments: object) -> Any:
        lookup = self._lookups.get((function.__name__, *arguments))
        if lookup is None:
            future = asyncio.get_running_loop().create_future()
            lookup = _Lookup(function, arguments, future)
            self._lookups[lookup.key] = lookup
            self._queue.append(lookup)
            self._start_next()
        lookup.waiters += 1
        try:
            # Other callers may be waiting for the same lookup, so it continues if this wait is
            # cancelled.
            await asyncio.wait({lookup.outcome})
        finally:
            lookup.waiters -= 1
            self._forget_unwanted(lookup)
        outcome = lookup.outcome.result()
        if isinstance(outcome.error, UnicodeError):
            # The name cannot be encoded as a host name.
            raise OSError(str(outcome.error)) from None
        return outcome.get()

    def _start_next(self) -> None:
        while self._queue and self._threads < MAX_THREADS:
            lookup = self._queue.popleft()
            self._threads += 1
            thread = in_daemon_thread(_THREAD, lookup.function, *lookup.arguments)
            thread.add_done_callback(partial(self._finish, lookup))

    def _finish(self, lookup: _Lookup, done: asyncio.Future[Outcome]) -> None:
        self._threads -= 1
        del self._lookups[lookup.key]
        if not done.cancelled():
            lookup.outcome.set_result(done.result())
        self._start_next()

    def _forget_unwanted(self, lookup: _Lookup) -> None:
        """Remove a lookup that waits for its turn if the last caller has given up."""
        if not lookup.waiters and lookup in self._queue:
            self._queue.remove(lookup)
            del self._lookups[lookup.key]
