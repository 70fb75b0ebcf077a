"""Frames: on a connection, every message is prefixed with its size in four bytes.

`FrameDecoder` receives bytes as they arrive, in chunks of any length, and returns complete frames.
Large frames are received in place, in memory that it provides (`room`). It allocates little more
than was received, and rejects a size that is negative or above the limit as soon as it has read it.
After that the connection cannot be read any further: every later call raises the same error.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from spark_kafka_sink.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.protocol.primitives import Buffer

_SIZE = struct.Struct(">i")
#: The bytes that a frame must lack for receiving in place to be worthwhile.
LEAST_ROOM = 65_536
#: The memory for a large frame of which less has arrived.
MOST_ROOM_IN_ADVANCE = 1 << 20


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
        #: Its first `_filled` bytes were received; the others are room for a large frame.
        self._received = bytearray()
        self._filled = 0

    def receive_data(self, data: Buffer | bytearray) -> None:
        """Add bytes received from the connection."""
        # Usually there is no room, and this appends.
        end = self._filled + memoryview(data).nbytes
        self._received[self._filled : end] = data
        self._filled = end

    def room(self) -> memoryview | None:
        """Return writable memory for the next bytes of a large frame; None if there is no need.

        The caller may write any number of bytes to it, and passes the number to `received`. This
        saves a copy of each byte. It never reaches beyond the frame, and is released before any
        other call.
        """
        if len(self._received) == self._filled:
            if self._filled < _SIZE.size:
                return None
            missing = _SIZE.size + self._frame_size() - self._filled
            if missing < LEAST_ROOM:
                return None
            # A peer that lies about the size costs at most as much memory again as it has sent.
            self._received.extend(bytes(min(missing, max(MOST_ROOM_IN_ADVANCE, self._filled))))
        return memoryview(self._received)[self._filled :]

    def received(self, count: int) -> None:
        """Add the first `count` bytes of `room`."""
        self._filled += count

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its size, or None if more bytes are needed.

        The frame is read-only and remains valid. Raises DecodeError if the size is out of range.
        """
        if self._filled < _SIZE.size:
            return None
        end = _SIZE.size + self._frame_size()
        if self._filled < end:
            return None
        received = self._received
        if len(received) == end:
            # The common case: pass the buffer on instead of copying it.
            self._received = bytearray()
            self._filled = 0
            return memoryview(received)[_SIZE.size :].toreadonly()
        frame = bytes(memoryview(received)[_SIZE.size : end])
        del received[:end]
        self._filled -= end
        return memoryview(frame)

    def _frame_size(self) -> int:
        (size,) = _SIZE.unpack_from(self._received)
        if not 0 <= size <= self.max_frame_bytes:
            raise DecodeError(f"a frame of {size} bytes; the limit is {self.max_frame_bytes}")
        return int(size)
