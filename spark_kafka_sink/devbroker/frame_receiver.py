"""Frames received in place.

A request of a megabyte of records should lie in memory once, where the log then keeps it.
`FrameReceiver` therefore says where the next bytes are to be written (asyncio's BufferedProtocol):
small frames go through one buffer and are copied out of it; a frame that does not fit is given a
buffer of its own as soon as its size is known, and received straight into it. Frames are writable
and belong to whoever takes them.

A size is believed step by step: the buffer of a large frame begins small and grows as bytes arrive,
so that nobody claims memory by a header alone. Who has sent a large frame is believed as much of
the next one: growing costs time. A frame that is not a Produce request has a lower limit. Rules are
otherwise those of `protocol.frame.FrameDecoder`.
"""

from __future__ import annotations

import struct

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey

_SIZE = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_SMALL_BUFFER_BYTES = 64 * 1024
#: What the first large frame's buffer begins with; it doubles when it is full.
_FIRST_BUFFER_BYTES = 128 * 1024
#: What a buffer begins with at most, where such frames have come before.
_MAX_FIRST_BUFFER_BYTES = 4 * 1024 * 1024


class FrameReceiver:
    """Cuts received bytes into frames."""

    def __init__(self, max_frame_bytes: int, max_control_bytes: int) -> None:
        """Take the limits of a Produce request and of any other; the size's four bytes are extra.

        The second cannot raise the first.
        """
        #: May change between two frames.
        self.max_frame_bytes = max_frame_bytes
        self._max_control_bytes = max_control_bytes
        #: Made when it is first needed: a client that says nothing costs nothing.
        self._small = memoryview(bytearray())
        #: What of the small buffer is received and not yet taken.
        self._begin = 0
        self._end = 0
        #: A frame too large for the small buffer: its bytes so far, its size, how many are there.
        self._large: bytearray | None = None
        self._large_size = 0
        self._large_received = 0
        self._believed = _FIRST_BUFFER_BYTES

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be written; never empty.

        Every frame must have been taken by `next_frame`, until it gave None.
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
        """Take note that so many bytes have been written to `buffer`."""
        if self._large is None:
            self._end += count
        else:
            self._large_received += count

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._large is not None or self._begin != self._end

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its size, or None when more bytes are needed.

        Raises DecodeError when the size cannot be right; the connection cannot be read further.
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
        self._large = bytearray(min(size, self._believed))
        self._large_size = size
        self._large_received = self._end - start
        self._large[: self._large_received] = self._small[start : self._end]
        self._begin = self._end = 0

    def _next_large(self) -> memoryview | None:
        if self._large is None or self._large_received < self._large_size:
            return None
        frame, self._large = memoryview(self._large), None
        self._believed = min(max(self._believed, len(frame)), _MAX_FIRST_BUFFER_BYTES)
        return frame

    def _compact(self) -> None:
        """Move what is there to the front, so that there is room behind it."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin > 0:
            rest = bytes(self._small[self._begin : self._end])
            self._small[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
