"""The bytes that a connection has received, as the frames of responses.

Until the broker has authenticated, frames must be small; see `response_limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.network.connection.response_limits import FIRST_RESPONSES, LATER_RESPONSES
from spark_kafka_sink.network.transport.tls_errors import looks_like_tls, peer_speaks_tls
from spark_kafka_sink.protocol.frame import FrameDecoder

if TYPE_CHECKING:
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.transport.transport import Transport


class IncomingFrames:
    """The frames that one connection receives."""

    def __init__(self, node: Node, transport: Transport) -> None:
        """Begin with no data, and with the limits of first responses."""
        self._node = node
        self._transport = transport
        self._decoder = FrameDecoder(FIRST_RESPONSES.frame_bytes)
        #: Returns the next complete frame; see `FrameDecoder.next_frame`.
        self.next_frame = self._decoder.next_frame
        #: The limit of array elements and tagged fields in a response.
        self.max_elements = FIRST_RESPONSES.elements
        #: Whether nothing has been received.
        self.is_first = True

    def allow_large(self) -> None:
        """Accept responses up to the limits of later ones."""
        self._decoder.max_frame_bytes = LATER_RESPONSES.frame_bytes
        self.max_elements = LATER_RESPONSES.elements

    def read(self) -> int | None:
        """Read once; return the number of bytes, None without any, 0 at the stream's end.

        Raises AuthenticationError if the peer speaks TLS on a connection without it.
        """
        decoder = self._decoder
        if room := decoder.room():
            with room:
                count = self._transport.read_into(room)
            decoder.received(count or 0)
            return count
        data = self._transport.read()
        if data:
            if self.is_first and looks_like_tls(data):
                raise peer_speaks_tls(self._node)
            self.is_first = False
            decoder.receive_data(data)
        return None if data is None else len(data)
