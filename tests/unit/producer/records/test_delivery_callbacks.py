"""Callbacks and time limits of a producer with little memory, against the embedded broker."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BufferExhaustedError, KafkaTimeoutError, RecordTooLargeError
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from tests.support.producer.gatherer_harness import GathererHarness, held, held_elsewhere
from tests.support.producer.producing import patiently
from tests.support.producer.sending import LONG_LINGER, PARTITIONS, TIMEOUT, sending_producer
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer

SHORT_MEMORY = {
    "buffer.memory": 40_000,
    "max.request.size": 10_000,
    "batch.size": 2_000,
    "compression.type": "none",
}


class _Ends:
    """What callbacks received, on which threads, and how often two ran at once."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.overlaps = 0
        self._running = threading.Lock()

    def __call__(self, metadata, error) -> None:
        """Record the outcome of one record."""
        if not self._running.acquire(blocking=False):
            self.overlaps += 1
            return
        self.threads.add(threading.current_thread().name.partition(" ")[0])
        if error is None:
            self.offsets[metadata.partition].append(metadata.offset)
        else:
            self.errors.append(error)
        self._running.release()


def test_callbacks_run_in_order_on_the_network_thread_despite_a_lack_of_memory(broker):
    """Batches are acknowledged in order while the rest of their chunk waits for memory."""
    ends = _Ends()
    count = 3 * CHUNK_RECORDS
    with sending_producer(broker, **SHORT_MEMORY) as producer:
        for number in range(count):
            producer.send("t", bytes(100), partition=number % PARTITIONS, on_delivery=ends)
        producer.flush()
    assert {"kafka-producer-network-thread"} == ends.threads
    assert 0 == ends.overlaps
    assert [] == ends.errors
    for partition in range(PARTITIONS):
        assert list(range(count // PARTITIONS)) == ends.offsets[partition]


@pytest.mark.parametrize("size", [2_000, 20_000], ids=["in its chunk", "at once"])
def test_a_callback_can_take_a_lock_held_around_send(broker, size):
    """The network thread calls the callback, so a lock held around `send` cannot deadlock."""
    lock = threading.Lock()
    outcomes = []

    def on_delivery(metadata, error) -> None:
        with lock:
            outcomes.append((type(error), threading.current_thread().name.partition(" ")[0]))

    with sending_producer(broker, **{"max.request.size": 1_000}, **LONG_LINGER) as producer:
        producer.partitions_for("one")
        producer._staging._preparation._max_record_bytes = 10_000

        def send() -> None:
            with lock:
                producer.send("one", bytes(size), on_delivery=on_delivery)
                producer._gatherer.write_staged()

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        sending.join(TIMEOUT)
        assert not sending.is_alive()
        producer.flush()
    assert [(RecordTooLargeError, "kafka-producer-network-thread")] == outcomes


def test_a_flush_waits_for_the_callbacks_of_records_without_a_batch(broker):
    """After a flush the callbacks of all records have run."""
    outcomes = []
    with sending_producer(broker, **{"max.request.size": 1_000}) as producer:
        producer.partitions_for("one")
        for _ in range(20):
            producer.send("one", bytes(2_000), on_delivery=lambda m, e: outcomes.append(e))
            producer.flush()
            assert isinstance(outcomes.pop(), RecordTooLargeError)


# --- what the network thread sends


def test_the_network_thread_stages_only_records_that_fit_into_memory(broker):
    """No memory is freed during a callback, so records beyond the bound fail at once."""
    futures = []
    staged = []

    def send_many(metadata, error) -> None:
        for _ in range(10 * CHUNK_RECORDS):
            futures.append(producer.send("one", bytes(100)))
            staged.append(len(producer._gatherer.staged))

    with sending_producer(broker, **SHORT_MEMORY) as producer:
        producer.send("one", b"first", on_delivery=send_many).result(TIMEOUT)
        producer.flush()
        assert 10 * CHUNK_RECORDS == len(futures)
        failed = [future for future in futures if future.exception(TIMEOUT) is not None]
    assert max(staged) <= CHUNK_RECORDS + 1
    assert len(futures) - len(failed) < 2 * CHUNK_RECORDS
    assert {BufferExhaustedError} == {type(future.exception(0)) for future in failed}
    assert failed == futures[-len(failed) :]


def test_large_records_of_the_network_thread_are_bounded_by_their_bytes(broker):
    """Large records from a callback are limited by their bytes, because a few fill a chunk."""
    futures = []
    sizes = []

    def send_many(metadata, error) -> None:
        for _ in range(1_000):
            futures.append(producer.send("one", bytes(8_000)))
            sizes.append(sum(len(value) for value in producer._gatherer.staged.items[3::4]))

    with sending_producer(broker, **SHORT_MEMORY) as producer:
        producer.send("one", b"first", on_delivery=send_many).result(TIMEOUT)
        producer.flush()
        failed = [future for future in futures if future.exception(TIMEOUT) is not None]
    assert max(sizes) <= 1_048_576 + 3 * 8_000
    assert {BufferExhaustedError} == {type(future.exception(0)) for future in failed}


def test_records_of_callbacks_wait_for_a_writer_while_memory_is_free():
    """Records wait for a thread that holds the batches, unless it waits for memory itself."""
    harness = GathererHarness(**{"linger.ms": 5_000})
    for _ in range(CHUNK_RECORDS):
        harness.stage(b"v")
    gatherer = harness.gatherer
    with held(gatherer._lock):
        gatherer.check_may_stage()
        harness.pool._waiting.append((1, threading.Lock()))
        with pytest.raises(BufferExhaustedError, match="from another thread"):
            gatherer.check_may_stage()
    harness.pool._waiting.clear()
    gatherer.check_may_stage()
    assert 0 == len(gatherer.staged)


def test_a_full_chunk_is_retried_only_if_more_memory_is_free():
    """A full chunk is checked again only if more memory is free, because a check takes long."""
    harness = GathererHarness(**{"linger.ms": 5_000})
    gatherer, append = harness.gatherer, harness.builder.append
    tries = []
    harness.builder.append = lambda *given, **named: (tries.append(1), append(*given, **named))
    held = harness.hold_memory()
    harness.pool.release(1)
    for _ in range(CHUNK_RECORDS):
        harness.stage(b"v")
    for _ in range(2):
        with pytest.raises(BufferExhaustedError):
            gatherer.check_may_stage()
    harness.hold_memory()
    with pytest.raises(BufferExhaustedError):
        gatherer.check_may_stage()
    assert 1 == len(tries)
    harness.pool.release(held)
    for _ in range(2):
        gatherer.check_may_stage()
        assert 0 == len(gatherer.staged)
        for _ in range(CHUNK_RECORDS):
            harness.stage(b"v")


def test_only_records_of_callbacks_fail_at_the_bound(broker):
    """Records of other threads stay staged, because those have waited for max.block.ms."""
    with sending_producer(broker, **{"max.block.ms": 0}, **LONG_LINGER) as producer:
        patiently(lambda: producer.partitions_for("one"))
        pool = producer._core.accumulator._pool
        held = pool.available_bytes
        pool.reserve(held)
        with held_elsewhere(producer._gatherer._lock):
            futures = [producer.send("one", b"v", partition=0) for _ in range(CHUNK_RECORDS + 2)]
        assert not any(future.done() for future in futures)
        pool.release(held)
        producer.flush()
    assert list(range(CHUNK_RECORDS + 2)) == [future.result(0).offset for future in futures]


# --- one deadline for each call


class _Waits:
    """A producer with a fake clock: metadata takes 2.5 s, and memory is never freed."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.now = 100.0
        #: The timeout of each call's wait for memory.
        self.for_memory: list[float] = []
        self._core = core = producer._core
        core.clock = core.gatherer._clock = core.gatherer._builder._clock = lambda: self.now
        self._await = core.await_partition
        core.await_partition = self._await_partition
        pool = core.accumulator._pool
        pool.reserve(pool.available_bytes)
        pool.wait_for = self._wait_for

    def _await_partition(self, *arguments, **limits) -> int:
        self.now += 2.5
        return self._await(*arguments)

    def _wait_for(self, size: int, timeout: float) -> bool:
        # The network thread checks as well, but with a timeout of 0.
        if timeout:
            self.for_memory.append(timeout)
            self.now += timeout
        return False


def _blocking_producer(broker) -> tuple[KafkaProducer, _Waits]:
    producer = sending_producer(broker, **{"max.block.ms": 3_000}, **LONG_LINGER)
    patiently(lambda: producer.partitions_for("one"))
    return producer, _Waits(producer)


def test_max_block_ms_limits_the_total_wait_of_a_send(broker):
    """As with Java's remainingWaitMs, only the record of that call fails, not earlier ones."""
    producer, waits = _blocking_producer(broker)
    before = producer.send("one", b"v")
    waits.now = 200.0
    future = producer.send("one", bytes(5_000))
    assert 203.0 == waits.now
    assert [0.5] == waits.for_memory
    assert isinstance(future.exception(0), BufferExhaustedError)
    assert not before.done()
    producer.close(0)


def test_max_block_ms_limits_the_total_wait_of_an_append(broker):
    """A call that exceeds max.block.ms in total raises, and none of its rows is written."""
    producer, waits = _blocking_producer(broker)
    with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms"):
        producer.append(columns([b"v"], topics=["one"]))
    assert 103.0 == waits.now
    with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms"):
        producer.send_arrow(pa.table({"value": [b"v"]}), topic="one")
    assert 106.0 == waits.now
    producer.close(0)


def test_freed_memory_restarts_the_timeout_of_later_rows():
    """A large table does not time out with slow brokers as long as it makes progress."""
    harness = GathererHarness(
        **{"buffer.memory": 2_000, "max.request.size": 1_000, "batch.size": 600},
        **{"max.block.ms": 3_000},
    )
    waits = []

    def wait(size: int, timeout: float) -> bool:
        waits.append(timeout)
        if len(waits) == 2:
            return False
        harness.pool.release(size)
        return True

    harness.pool.wait_for = wait
    harness.hold_memory()
    with pytest.raises(BufferExhaustedError):
        harness.gatherer.write_columns(columns([bytes(450)] * 3), [1], 0, give_up_at=0.5)
    assert [0.5, 3.0] == waits


@pytest.mark.parametrize("call", ["columns", "commit", "abort", "begin"])
def test_the_timeout_of_a_call_includes_waiting_for_another_thread(call):
    """If the batches are not free in time, the call raises and has done nothing."""
    harness = GathererHarness()
    gatherer = harness.gatherer
    done = []
    calls = {
        "columns": lambda: gatherer.write_columns(columns([b"v"]), [1], 0, 0.0),
        "commit": lambda: gatherer.end_transaction(lambda: done.append(1), 0.0),
        "abort": lambda: gatherer.abort(KafkaTimeoutError("aborted"), 0.0),
        "begin": lambda: gatherer.begin_transaction(lambda: done.append(1), ValueError(), 0.0),
    }
    with (
        held_elsewhere(gatherer._lock),
        pytest.raises(KafkaTimeoutError, match=r"max\.block\.ms"),
    ):
        calls[call]()
    assert [] == done


def test_a_commit_without_memory_for_its_last_records_can_be_repeated():
    """The records stay staged, and a second call continues to wait for them."""
    harness = GathererHarness(**{"max.block.ms": 3_000})
    harness.pool.wait_for = lambda size, timeout: False
    held = harness.hold_memory()
    harness.stage(b"v")
    ended = []
    with pytest.raises(BufferExhaustedError):
        harness.gatherer.end_transaction(lambda: ended.append(1), 2.0)
    assert [] == ended
    harness.pool.release(held)
    harness.gatherer.end_transaction(lambda: ended.append(1), 2.0)
    assert ([1], [b"v"]) == (ended, harness.values())
