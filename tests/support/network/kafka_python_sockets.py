"""The sockets of kafka-python, which its `close()` does not always close.

kafka-python 3.0.12 ends its loop by cancelling what still runs. A socket that is connecting then,
or that has bytes to send, remains open until it is garbage-collected, which is an error
(ResourceWarning) in whichever test runs at that time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from kafka.net.inet import KafkaNetSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@contextmanager
def sockets_closed() -> Iterator[None]:
    """Close the sockets that kafka-python creates in the block, which must close its clients."""
    created: list[socket.socket] = []
    create_one = KafkaNetSocket.socket

    def create(self: KafkaNetSocket, *args: Any) -> socket.socket:
        created.append(create_one(self, *args))
        return created[-1]

    with patch.object(KafkaNetSocket, "socket", create):
        try:
            yield
        finally:
            for each in created:
                each.close()
