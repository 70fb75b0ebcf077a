"""Frames received in place.

A request with a megabyte of records should be in memory once, where the log then keeps it.
`FrameReceiver` therefore provides the buffer for the next bytes (asyncio's BufferedProtocol):
small frames are received into a shared buffer and copied out of it; a frame that does not fit gets
its own buffer as soon as its size is known, and is received straight into it. Frames are writable
and belong to the caller.

A size is trusted step by step: the buffer of a large frame starts small and grows as bytes arrive,
so that a header alone cannot claim memory. After a large frame the next buffer of the connection
starts that large, because growing takes time. A frame that is not a Produce request has a lower
limit. The other rules are those of `protocol.frame.FrameDecoder`.
"""

from __future__ import annotations

import struct

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey

_SIZE = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_SMALL_BUFFER_BYTES = 64 * 1024
#: Initial size of the first large frame's buffer; a full buffer doubles.
_FIRST_BUFFER_BYTES = 128 * 1024
#: Maximum initial size of a buffer, after frames of that size.
_MAX_FIRST_BUFFER_BYTES = 4 * 1024 * 1024


class FrameReceiver:
    """Splits received bytes into frames."""

    def __init__(self, max_frame_bytes: int, max_control_bytes: int) -> None:
        """Set the limits of a Produce request and of any other, without the size's four bytes.

        The second limit cannot raise the first.
        """
        #: May change between frames.
        self.max_frame_bytes = max_frame_bytes
        self._max_control_bytes = max_control_bytes
        #: Allocated on first use: a client that sends nothing costs no memory.
        self._small = memoryview(bytearray())
        #: The part of the small buffer that was received but not returned yet.
        self._begin = 0
        self._end = 0
        #: A frame too large for the small buffer: its bytes, its size, the number received.
        self._large: bytearray | None = None
        self._large_size = 0
        self._large_received = 0
        self._first_buffer_bytes = _FIRST_BUFFER_BYTES

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; it is never empty.

        Call `next_frame` until it returns None first.
        """
        if self._large is None:
            if not self._small:
                self._small = memoryview(bytearray(_SMALL_BUFFER_BYTES))
            return self._small[self._end :]
        capacity = len(self._large)
        if self._large_received == capacity:
            self._large.extend(bytes(min(capacity, self._large_size - capacity)))
        return memoryview(self._large)[self._large_received :]

    def received(self, count: int) -> None:
        """Record that this number of bytes was written to `buffer`."""
        if self._large is None:
            self._end += count
        else:
            self._large_received += count

    @property
    def is_partial(self) -> bool:
        """Whether a frame has been received in part."""
        return self._large is not None or self._begin != self._end

    @property
    def has_frame(self) -> bool:
        """Whether `next_frame` returns a frame or raises an error now, before more bytes arrive."""
        if self._large is not None:
            return self._large_received == self._large_size
        available = self._end - self._begin - _SIZE.size
        if available < 0:
            return False
        (size,) = _SIZE.unpack_from(self._small, self._begin)
        return bool(size <= available)

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its size, or None if more bytes are needed.

        Raises DecodeError for a size that cannot be right; nothing further can be read.
        """
        if self._large is not None:
            return self._next_large()
        available = self._end - self._begin
        if available < _SIZE.size:
            self._compact()
            return None
        (size,) = _SIZE.unpack_from(self._small, self._begin)
        if not 0 <= size <= self.max_frame_bytes:
            raise DecodeError(f"a frame of {size} bytes; the limit is {self.max_frame_bytes}")
        start = self._begin + _SIZE.size
        if size > self._max_control_bytes:
            if available < _SIZE.size + _API_KEY.size:
                self._compact()
                return None
            (api_key,) = _API_KEY.unpack_from(self._small, start)
            if api_key != ApiKey.PRODUCE:
                raise DecodeError(
                    f"a frame of {size} bytes with API key {api_key}; the limit is "
                    f"{self._max_control_bytes} for all but Produce requests"
                )
        if available - _SIZE.size >= size:
            self._begin = start + size
            return memoryview(bytearray(self._small[start : self._begin]))
        if size + _SIZE.size > _SMALL_BUFFER_BYTES:
            self._begin_large(start, size)
        else:
            self._compact()
        return None

    def _begin_large(self, start: int, size: int) -> None:
        self._large = bytearray(min(size, self._first_buffer_bytes))
        self._large_size = size
        self._large_received = self._end - start
        self._large[: self._large_received] = self._small[start : self._end]
        self._begin = self._end = 0

    def _next_large(self) -> memoryview | None:
        if self._large is None or self._large_received < self._large_size:
            return None
        frame, self._large = memoryview(self._large), None
        self._first_buffer_bytes = min(
            max(self._first_buffer_bytes, len(frame)), _MAX_FIRST_BUFFER_BYTES
        )
        return frame

    def _compact(self) -> None:
        """Move the remaining bytes to the front, to make room behind them."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin > 0:
            rest = bytes(self._small[self._begin : self._end])
            self._small[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
