"""The memory for records that are not acknowledged yet (Kafka's BufferPool).

One number limits it: `buffer.memory`. It is used in two ways: as *blocks*, writable arrays in which
open batches are filled, and as *reservations*, the bytes of closed (compressed) batches. Freed
blocks are cached for the next batch of that size, because fresh memory costs a page fault for every
4 KiB. Cached blocks count as free and are dropped when another size is needed.

A reservation never waits: it replaces a larger block. Allocation waits on the writing thread; freed
memory or the error that ended the producer wakes it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The smallest block size; ten thousand partitions with one such block each take 5 MB.
MIN_BLOCK_BYTES = 512


def block_bytes(size: int) -> int:
    """Round a size up to one of few sizes (four per doubling), so that blocks can be reused."""
    if size <= MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    step = 1 << (size - 1).bit_length() - 3
    return -(-size // step) * step


class Turn(Protocol):
    """What a caller waits for: a lock that it has taken, or the same for a task of a loop."""

    def locked(self) -> bool:
        """Return whether the caller still waits."""

    def release(self) -> None:
        """Wake the caller."""


class BufferPool:
    """An allocator of at most `total_bytes`. Thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        """Create the pool without allocating memory."""
        self.total_bytes = total_bytes
        #: Reentrant, so that an interrupted thread can give memory back.
        self._lock = threading.RLock()
        self._used_bytes = 0
        self._cached_blocks: dict[int, list[NDArray[np.uint8]]] = {}
        self._cached_bytes = 0
        self._closed_by: Exception | None = None
        #: Of each thread in `wait_for` the bytes that it needs, and the lock that it waits for. A
        #: threading.Condition would do the same by Python functions: an interrupt of these leaves
        #: its lock released, or held for good.
        self._waiting: list[tuple[int, Turn]] = []

    @property
    def waiting_threads(self) -> int:
        """The number of threads in `wait_for` now."""
        return len(self._waiting)

    @property
    def available_bytes(self) -> int:
        """Bytes that can be allocated now; negative while reservations overlap their blocks."""
        return self.total_bytes - self._used_bytes

    def try_allocate(self, size: int) -> NDArray[np.uint8] | None:
        """Return a block of `size` bytes (best from `block_bytes`), or None if memory is short."""
        lent: NDArray[np.uint8] | None = None
        try:
            with self._lock:
                self._raise_if_closed()
                if size > self.available_bytes:
                    return None
                if cached := self._cached_blocks.get(size):
                    self._cached_bytes -= size
                    block = cached.pop()
                else:
                    self._evict_cached_blocks(size)
                    block = np.empty(size, dtype=np.uint8)
                # In one step: what is counted can be given back.
                self._used_bytes, lent = self._used_bytes + size, block
            return lent  # noqa: TRY300  an interrupt may strike here, too
        except BaseException:
            if lent is not None:
                self.deallocate(lent)
            raise

    def _evict_cached_blocks(self, needed: int = 0) -> None:
        max_cached = self.total_bytes - self._used_bytes - needed
        while self._cached_bytes and self._cached_bytes > max_cached:
            size, blocks = next(iter(self._cached_blocks.items()))
            if blocks:
                blocks.pop()
                self._cached_bytes -= size
            else:
                del self._cached_blocks[size]

    def deallocate(self, block: NDArray[np.uint8]) -> None:
        """Return a block to the pool; nothing may read it any more."""
        with self._lock:
            size = block.nbytes
            self._used_bytes -= size
            if self._closed_by is None:
                self._cached_blocks.setdefault(size, []).append(block)
                self._cached_bytes += size
                self._evict_cached_blocks()
            self._wake_waiting()

    def reserve(self, size: int) -> None:
        """Count bytes that are allocated already; never waits."""
        with self._lock:
            self._used_bytes += size

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._used_bytes -= size
            self._wake_waiting()

    def replace(self, block: NDArray[np.uint8], size: int) -> None:
        """Return a block, and reserve `size` bytes, which hold its contents now."""
        self.reserve(size)
        self.deallocate(block)

    def _wake_waiting(self) -> None:
        # Rarely anybody waits, and every batch returns its memory.
        for size, turn in self._waiting:
            is_over = self._closed_by is not None or size <= self.available_bytes
            # It is not locked if an interrupted call has released it.
            if is_over and turn.locked():
                turn.release()

    def wait_for(self, size: int, timeout: float) -> bool:
        """Wait until `size` bytes are free; return False after `timeout` seconds.

        Other threads may have allocated them again before the caller does.
        """
        turn = threading.Lock()
        turn.acquire()
        waiter = size, turn
        try:
            with self._lock:
                self._raise_if_closed()
                self._waiting.append(waiter)
                self._wake_waiting()
            enough = turn.acquire(timeout=min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            # Not `remove_waiter`: an interrupt may strike at the start of any function.
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        self._raise_if_closed()
        return enough

    def add_waiter(self, size: int, turn: Turn) -> None:
        """Release `turn`, which is locked, once `size` bytes are free or the pool is closed.

        This is for a task of a loop, which no interrupt strikes. Raises the error that has closed
        the pool.
        """
        with self._lock:
            self._raise_if_closed()
            self._waiting.append((size, turn))
            self._wake_waiting()

    def remove_waiter(self, size: int, turn: Turn) -> None:
        """Forget a waiter, if it was added."""
        with self._lock:
            if (size, turn) in self._waiting:
                self._waiting.remove((size, turn))

    def _raise_if_closed(self) -> None:
        if self._closed_by is not None:
            raise self._closed_by

    def close(self, error: Exception) -> None:
        """Make every waiting and later allocation raise `error`."""
        with self._lock:
            self._closed_by = error
            self._cached_blocks.clear()
            self._wake_waiting()
