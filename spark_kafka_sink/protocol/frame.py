"""Frames: on a connection, every message is prefixed with its size in four bytes.

`FrameDecoder` receives bytes as they arrive, in chunks of any length, and returns complete frames.
It allocates no more than was received, and rejects a size that is negative or above the limit as
soon as it has read it. After that the connection cannot be read any further: every later call
raises the same error.
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
    """Prefix a message with its size; the message's buffers are not copied."""
    size = sum(memoryview(chunk).nbytes for chunk in chunks)
    return [_SIZE.pack(size), *chunks]


class FrameDecoder:
    """A splitter of a stream of bytes into frames."""

    def __init__(self, max_frame_bytes: int) -> None:
        """Start with no data; `max_frame_bytes` excludes the four bytes of the size."""
        #: May change between two frames.
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()

    def receive_data(self, data: Buffer | bytearray) -> None:
        """Add bytes received from the connection."""
        self._received += data

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its size, or None if more bytes are needed.

        The frame is read-only and remains valid. Raises DecodeError if the size is out of range.
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
            # The common case: pass the buffer on instead of copying it.
            self._received = bytearray()
            return memoryview(received)[_SIZE.size :].toreadonly()
        frame = bytes(memoryview(received)[_SIZE.size : end])
        del received[:end]
        return memoryview(frame)
