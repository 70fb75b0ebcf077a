"""Frames: on a connection, every message has its size in front, four bytes.

`FrameDecoder` is given bytes as they arrive, in pieces of any size, and gives whole frames. It
keeps no more than was received: a size is only believed once that many bytes are there, and one
that is negative or above the limit is refused as soon as it is seen. After a refusal the
connection cannot be read any further: every later call refuses too.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.protocol.primitives import Buffer

_SIZE = struct.Struct(">i")


def encode_frame(chunks: Sequence[Buffer]) -> list[Buffer]:
    """Put the size in front of a message; the message's own buffers stay as they are."""
    size = sum(memoryview(chunk).nbytes for chunk in chunks)
    return [_SIZE.pack(size), *chunks]


class FrameDecoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self, max_frame_bytes: int) -> None:
        """`max_frame_bytes` does not count the four bytes of the size."""
        #: May change between two frames.
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()

    def receive_data(self, data: Buffer | bytearray) -> None:
        """Take bytes from the connection."""
        self._received += data

    def next_frame(self) -> memoryview | None:
        """Give the next whole frame without its size, or None when more bytes are needed.

        The frame is read-only and stays valid. Raises DecodeError when the size cannot be right.
        """
        received = self._received
        if len(received) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(received)
        if not 0 <= size <= self.max_frame_bytes:
            raise DecodeError(f"a frame of {size} bytes; the limit is {self.max_frame_bytes}")
        end = _SIZE.size + size
        if len(received) < end:
            return None
        if len(received) == end:
            # The common case: hand the buffer over instead of copying it.
            self._received = bytearray()
            return memoryview(received)[_SIZE.size :].toreadonly()
        frame = bytes(memoryview(received)[_SIZE.size : end])
        del received[:end]
        return memoryview(frame)
