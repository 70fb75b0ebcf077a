"""Frames: on a connection, every message is prefixed with its size in four bytes.

`FrameDecoder` receives bytes as they arrive, in chunks of any length, and returns complete frames.
Large frames are received in place, in memory that it provides (`room`), and that it uses again when
nothing refers to the frame any more: new memory costs the operating system more than the bytes cost
that are received. It allocates little more than was received, and rejects a size that is negative
or above the limit as soon as it has read it. After that the connection cannot be read any further:
every later call raises the same error.
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
MOST_ROOM_IN_ADVANCE = 2 << 20
#: How many buffers are kept, and up to which size: a reader decodes one answer while it receives
#: another.
_MOST_SPARE = 2
MOST_SPARE_BYTES = 16 << 20


def encode_frame(chunks: Sequence[Buffer]) -> list[Buffer]:
    """Prefix a message with its size; the message's buffers are not copied."""
    size = sum([memoryview(chunk).nbytes for chunk in chunks])
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
        #: The buffers of the last large frames, which may still be referred to.
        self._spare: list[bytearray] = []

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
        if self._filled < _SIZE.size:
            return None
        end = _SIZE.size + self._frame_size()
        if len(self._received) == self._filled:
            if end - self._filled < LEAST_ROOM:
                return None
            buffer = self._spare_buffer(end)
            if buffer is not None:
                buffer[: self._filled] = self._received
                self._received = buffer
            else:
                # A peer that lies about the size costs at most as much memory again as it has sent.
                more = min(end - self._filled, max(MOST_ROOM_IN_ADVANCE, self._filled))
                self._received.extend(bytes(more))
        return memoryview(self._received)[self._filled : end]

    def _spare_buffer(self, size: int) -> bytearray | None:
        """Return a buffer of at least this size, one that was used before if possible.

        Returns None if there is none, and the size is too large to believe it.
        """
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size and _is_free(buffer):
                return self._spare.pop(number)
        # The next frame may be a little larger.
        return bytearray(1 << (size - 1).bit_length()) if size <= MOST_ROOM_IN_ADVANCE else None

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
        if self._filled == end:
            # The common case: pass the buffer on instead of copying it.
            self._received = bytearray()
            self._filled = 0
            if LEAST_ROOM <= len(received) <= MOST_SPARE_BYTES:
                self._spare = [received, *self._spare][:_MOST_SPARE]
            return memoryview(received)[_SIZE.size : end].toreadonly()
        frame = bytes(memoryview(received)[_SIZE.size : end])
        del received[:end]
        self._filled -= end
        return memoryview(frame)

    def _frame_size(self) -> int:
        (size,) = _SIZE.unpack_from(self._received)
        if not 0 <= size <= self.max_frame_bytes:
            raise DecodeError(f"a frame of {size} bytes; the limit is {self.max_frame_bytes}")
        return int(size)


def _is_free(buffer: bytearray) -> bool:
    """Return whether nothing refers to the contents: only then may a bytearray be resized."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
