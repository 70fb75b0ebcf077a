"""The memory for records that are not acknowledged yet (Kafka's BufferPool).

One number bounds it all: `buffer.memory`. Two kinds of users draw on it: *blocks*, writable arrays
that open batches are filled in, and *reservations*, bytes that closed (compressed) batches hold.
Blocks that come back are kept for the next batch of that size, since fresh memory costs a page
fault for every 4 KiB; kept blocks count as free and are given up when another size is wanted.

A reservation never waits: it replaces a block that was larger. Allocation waits, on the writing
thread, and is woken by memory that comes free or by the error that ended the producer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: No block is smaller; ten thousand partitions with one each take 5 MB.
MIN_BLOCK_BYTES = 512


def block_bytes(wanted: int) -> int:
    """Round a size up to one of few sizes (four to each doubling), so that blocks can be reused."""
    if wanted <= MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    step = 1 << (wanted - 1).bit_length() - 3
    return -(-wanted // step) * step


class BufferPool:
    """Hands out at most `total_bytes`; safe to use from any thread."""

    def __init__(self, total_bytes: int) -> None:
        """Allocate nothing yet."""
        self.total_bytes = total_bytes
        self._changed = threading.Condition()
        self._used_bytes = 0
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        self._kept_bytes = 0
        self._closed_by: Exception | None = None
        #: Threads in `wait_for` now.
        self.waiting_threads = 0

    @property
    def available_bytes(self) -> int:
        """Bytes that could be allocated now; negative while reservations overlap their blocks."""
        return self.total_bytes - self._used_bytes

    def try_allocate(self, size: int) -> NDArray[np.uint8] | None:
        """Give a block of exactly `size` bytes (best a value of `block_bytes`), or None for now."""
        with self._changed:
            if self._closed_by is not None:
                raise self._closed_by
            if size > self.available_bytes:
                return None
            self._used_bytes += size
            if kept := self._kept.get(size):
                self._kept_bytes -= size
                return kept.pop()
            self._give_up_kept_blocks()
        return np.empty(size, dtype=np.uint8)

    def _give_up_kept_blocks(self) -> None:
        while self._kept_bytes and self._used_bytes + self._kept_bytes > self.total_bytes:
            size, blocks = next(iter(self._kept.items()))
            if blocks:
                blocks.pop()
                self._kept_bytes -= size
            else:
                del self._kept[size]

    def deallocate(self, block: NDArray[np.uint8]) -> None:
        """Take a block back, which nobody reads any more."""
        with self._changed:
            size = block.nbytes
            self._used_bytes -= size
            if self._closed_by is None:
                self._kept.setdefault(size, []).append(block)
                self._kept_bytes += size
                self._give_up_kept_blocks()
            self._changed.notify_all()

    def reserve(self, size: int) -> None:
        """Count bytes that exist already; never waits."""
        with self._changed:
            self._used_bytes += size

    def release(self, size: int) -> None:
        """Take a reservation back."""
        with self._changed:
            self._used_bytes -= size
            self._changed.notify_all()

    def wait_for(self, size: int, timeout: float) -> bool:
        """Wait until `size` bytes are free; False when they are not within `timeout` seconds."""
        with self._changed:
            self.waiting_threads += 1
            try:
                enough = self._changed.wait_for(
                    lambda: self._closed_by is not None or size <= self.available_bytes, timeout
                )
            finally:
                self.waiting_threads -= 1
            if self._closed_by is not None:
                raise self._closed_by
            return enough

    def close(self, error: Exception) -> None:
        """Have every waiting and later allocation raise `error`."""
        with self._changed:
            self._closed_by = error
            self._kept.clear()
            self._changed.notify_all()
