from __future__ import annotations

import sys
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import KafkaError, ProducerClosedError
from spark_kafka_sink.producer.batch.buffer_pool import MIN_BLOCK_BYTES, BufferPool, block_bytes
from tests.support.faults.interrupts import interrupted_anew

if TYPE_CHECKING:
    from types import FrameType


@given(st.integers(1, 2**31))
def test_a_block_size_is_rounded_up_by_at_most_a_quarter(wanted):
    """Rounding wastes at most a quarter above the smallest size."""
    size = block_bytes(wanted)
    assert wanted <= size
    assert size <= max(wanted * 1.25, MIN_BLOCK_BYTES)
    assert size == block_bytes(size)


def test_each_doubling_has_four_block_sizes():
    """With few block sizes, a returned block fits the next batch."""
    sizes = {block_bytes(wanted) for wanted in range(4097, 8193)}
    assert {5120, 6144, 7168, 8192} == sizes


@pytest.mark.parametrize(
    ("wanted", "size"),
    [
        (0, 512),
        (512, 512),
        (513, 640),
        (640, 640),
        (641, 768),
        (1_024, 1_024),
        (1_025, 1_280),
        (16_384, 16_384),
        (16_385, 20_480),
        (1_000_000, 1_048_576),
        (2**31, 2**31),
        (2**31 + 1, 2**31 + 2**29),
    ],
)
def test_a_block_has_the_smallest_size_that_fits(wanted, size):
    """A block has the smallest size that fits, and at least 512 bytes."""
    assert size == block_bytes(wanted)


def test_all_of_a_new_pool_can_be_allocated():
    """The whole of a new pool can be allocated, to the last byte."""
    pool = BufferPool(4_096)
    assert (4_096, 4_096, 0) == (pool.total_bytes, pool.available_bytes, pool.waiting_threads)
    assert pool.try_allocate(4_097) is None
    assert 4_096 == pool.try_allocate(4_096).nbytes
    assert 0 == pool.available_bytes


@pytest.mark.parametrize(("total", "is_kept"), [(9_216, True), (9_215, False)])
def test_a_cached_block_is_dropped_if_an_allocation_would_exceed_the_total(total, is_kept):
    """A cached block is dropped only if an allocation of another size would exceed the total."""
    pool = BufferPool(total)
    block = pool.try_allocate(4_096)
    kept = weakref.ref(block)
    pool.deallocate(block)
    del block
    other = pool.try_allocate(5_120)
    assert 5_120 == other.nbytes
    assert is_kept == (kept() is not None)


def test_an_allocation_beyond_the_total_returns_none():
    """An allocation that would exceed the total returns None."""
    pool = BufferPool(10_000)
    assert pool.try_allocate(8_000) is not None
    assert pool.try_allocate(2_048) is None
    assert 2_000 == pool.available_bytes


def test_a_returned_block_is_reused():
    """The next allocation of a returned block's size reuses its memory."""
    pool = BufferPool(10_000)
    block = pool.try_allocate(4_096)
    address = block.ctypes.data
    pool.deallocate(block)
    del block
    assert address == pool.try_allocate(4_096).ctypes.data


def test_a_closed_pool_caches_no_blocks():
    """A block that a connection returns after the producer has closed is not cached."""
    pool = BufferPool(10_000)
    block = pool.try_allocate(4_096)
    pool.close(KafkaError("closed"))
    pool.deallocate(block)
    assert (10_000, {}) == (pool.available_bytes, pool._cached_blocks)


def test_cached_blocks_are_evicted_for_another_size():
    """Blocks cached for reuse never prevent an allocation of another size."""
    pool = BufferPool(10_000)
    pool.deallocate(pool.try_allocate(8_192))
    assert pool.try_allocate(7_168) is not None


def test_a_reservation_never_blocks_and_counts_against_the_total():
    """Bytes that exist already are counted even beyond the total, and delay allocations."""
    pool = BufferPool(4_096)
    pool.reserve(5_000)
    assert -904 == pool.available_bytes
    assert pool.try_allocate(2_048) is None
    pool.release(5_000)
    assert pool.try_allocate(4_096) is not None


def test_a_wait_ends_when_memory_is_freed():
    """A thread that waits for memory continues as soon as there is enough."""
    pool = BufferPool(4_096)
    block = pool.try_allocate(4_096)
    releaser = threading.Timer(0.01, pool.deallocate, [block])
    releaser.start()
    assert pool.wait_for(4_096, timeout=120)
    releaser.join()


def test_a_wait_ends_at_its_timeout():
    """Waiting for memory returns False once the timeout has passed."""
    pool = BufferPool(4_096)
    pool.reserve(4_096)
    assert not pool.wait_for(1, timeout=0.001)


def test_closing_the_pool_raises_its_error_in_waiting_threads():
    """A thread that waits for memory raises the error that closed the pool."""
    pool = BufferPool(4_096)
    pool.reserve(4_096)
    closer = threading.Timer(0.01, pool.close, [ProducerClosedError("the network thread died")])
    closer.start()
    with pytest.raises(ProducerClosedError, match="the network thread died"):
        pool.wait_for(1, timeout=120)
    with pytest.raises(ProducerClosedError, match="the network thread died"):
        pool.try_allocate(2_048)
    closer.join()


def test_waiting_threads_are_counted():
    """The count is the metric waiting-threads, and what Kafka's ready() checks as `exhausted`."""
    pool = BufferPool(4_096)
    pool.reserve(4_096)
    assert 0 == pool.waiting_threads
    waits = [threading.Thread(target=pool.wait_for, args=(1, 120), daemon=True) for _ in range(2)]
    for wait in waits:
        wait.start()
    pause = threading.Event()
    assert any(pool.waiting_threads == 2 or pause.wait(0.001) for _ in range(60_000))
    pool.release(4_096)
    for wait in waits:
        wait.join()
    assert 0 == pool.waiting_threads


def test_a_failed_wait_is_no_longer_counted():
    """A wait that timed out or raised an error is no longer counted."""
    pool = BufferPool(4_096)
    pool.reserve(4_096)
    assert not pool.wait_for(1, timeout=0)
    pool.close(ProducerClosedError("closed"))
    with pytest.raises(ProducerClosedError):
        pool.wait_for(1, timeout=0)
    assert 0 == pool.waiting_threads


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.try_allocate(512),
        lambda pool: pool.deallocate(np.empty(512, np.uint8)),
        lambda pool: pool.reserve(1),
        lambda pool: pool.release(1),
        lambda pool: pool.close(KafkaError("closed")),
    ],
)
def test_an_interrupt_leaves_the_pool_unlocked(call):
    """Ctrl-C may strike a lock's Python code when it has the lock, and its caller cannot know."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == threading.__file__ and event == "return":
            raise KeyboardInterrupt
        return trace

    pool = BufferPool(10_000)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            call(pool)
    finally:
        sys.settrace(before)
    other = threading.Thread(target=pool.release, args=(0,), daemon=True)
    other.start()
    other.join(120)
    assert not other.is_alive()


@pytest.mark.parametrize("size", [1, 20_000], ids=["free memory", "none"])
def test_an_interrupt_anywhere_in_a_wait_leaves_nothing_behind(size):
    """The pool is unlocked, and the thread is not counted, wherever Ctrl-C strikes its wait."""
    seen = set()
    while True:
        pool = BufferPool(10_000)
        struck = interrupted_anew(seen, partial(pool.wait_for, size, timeout=0))
        if struck is None:
            break
        assert 0 == pool.waiting_threads, struck
        other = threading.Thread(target=pool.release, args=(0,), daemon=True)
        other.start()
        other.join(120)
        assert not other.is_alive(), struck
    assert 5 <= len(seen)


def test_an_interrupted_release_wakes_the_waiting_thread_the_next_time():
    """Whatever an interrupted call has done, the next one wakes the thread that waits."""
    seen = set()
    while True:
        pool = BufferPool(4_096)
        pool.reserve(4_096)
        found = []
        wait = threading.Thread(target=lambda: found.append(pool.wait_for(1, 120)), daemon=True)  # noqa: B023
        wait.start()
        pause = threading.Event()
        assert any(pool.waiting_threads == 1 or pause.wait(0.001) for _ in range(120_000))
        struck = interrupted_anew(seen, partial(pool.release, 4_096))
        pool.release(4_096 - pool.available_bytes)
        wait.join(120)
        assert [True] == found, struck
        if struck is None:
            break
