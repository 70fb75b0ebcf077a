"""The responses that clients have not read yet, over all brokers of a cluster.

A connection handles no further request until its client has read the last response. But a thousand
clients that read nothing would still hold a thousand large responses in memory. So all connections
share a budget: once it is used up, requests with large responses wait until others have been read.
A client that then reads nothing for some seconds is disconnected.

Sockets and the event loop are not used here: time is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.net.connection import Connection

#: The key that connections watch which wait for others to be read.
ROOM: Final = "room for unread answers"
#: How long a client may read nothing while others wait for room.
STALLED_SECONDS: Final = 5.0


class _Unread(NamedTuple):
    bytes: int
    #: When the client last read something, or was sent its first response.
    progressed_at: float


class UnreadAnswers:
    """The connections with unread responses."""

    def __init__(self, max_bytes: int, stalled_seconds: float = STALLED_SECONDS) -> None:
        """Set the budget in bytes, and how long a client may stall once it is used up."""
        self._max_bytes = max_bytes
        self._stalled_seconds = stalled_seconds
        self._connections: dict[Connection, _Unread] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The bytes of all unread responses."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether the budget is used up."""
        return self._bytes > self._max_bytes

    def update(self, connection: Connection, now: float) -> bool:
        """Count what a connection has to send now; return whether that makes room."""
        was_full = self.is_full
        unread = connection.unread_bytes
        before = self._connections.get(connection)
        if before is not None and unread >= before.bytes:
            self._bytes += unread - before.bytes
            self._connections[connection] = before._replace(bytes=unread)
        else:
            self._remove(connection)
            if unread:
                self._bytes += unread
                self._connections[connection] = _Unread(unread, now)
        return was_full and not self.is_full

    def remove(self, connection: Connection) -> bool:
        """Forget a closed connection; return whether that makes room."""
        was_full = self.is_full
        self._remove(connection)
        return was_full and not self.is_full

    def has_room(self, now: float) -> bool:
        """Return whether the budget allows another large response.

        If not, disconnect all clients that have stalled for too long first.
        """
        if not self.is_full:
            return True
        for connection in list(self._connections):
            self.update(connection, now)
            unread = self._connections.get(connection)
            if unread is not None and now - unread.progressed_at >= self._stalled_seconds:
                self._remove(connection)
                connection.abort()
        return not self.is_full

    def _remove(self, connection: Connection) -> None:
        removed = self._connections.pop(connection, None)
        if removed is not None:
            self._bytes -= removed.bytes
