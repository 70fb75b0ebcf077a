"""The worker compresses batches that the network thread closes, and they keep their place."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import DeliveryError, DeliveryTimeoutError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.batch_compression import (
    BatchCompression,
    BatchSizes,
    batches_of,
)
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD
from tests.support.producer.producer_batches import NODES, batch, halves_of, snapshot
from tests.support.producer.sender_harness import LATER, PLAIN, SenderHarness, numbers
from tests.support.producer.transactions_over_mock import TRANSACTIONAL
from tests.support.record.plain_batches import plain_batch

TIMEOUT = 120
DELIVERY_TIMEOUT = 120.0
BLOCK_BYTES = 4_096


def _close_on_network_thread(harness: SenderHarness, partition: int = 0, *, records: int = 1):
    """Append a batch uncompressed in its block, and submit it for compression."""
    closed = batch(partition, records=records, created_at=harness.now)
    closed.block = harness.accumulator._pool.try_allocate(BLOCK_BYTES)
    closed.is_compressed = False
    if harness.manager is not None:
        harness.manager.maybe_add_partition(closed.topic_partition)
    harness.accumulator.enqueue(closed)
    harness.sender.completion.compress(closed)
    return closed


def _used_bytes(harness: SenderHarness) -> int:
    pool = harness.accumulator._pool
    return pool.total_bytes - pool.available_bytes


@pytest.fixture
def busy():
    """Yield a producer without idempotence whose worker is busy."""
    with SenderHarness(**PLAIN) as harness:
        harness.is_busy = True
        yield harness


def test_without_batching_an_oversized_batch_is_split_into_single_records():
    """With batch.size=0 each batch has one record."""
    records = plain_batch(3)[RECORD_BATCH_OVERHEAD:]
    whole = SimpleNamespace(
        topic_partition=TopicPartition("t", 0),
        payload=memoryview(records),
        uncompressed_bytes=len(records),
        record_count=3,
        base_timestamp=0,
        max_timestamp=2,
    )
    compression = BatchCompression(Compressor(CompressionType.LZ4), BatchSizes(0))
    assert [1, 1, 1] == [part.record_count for part in compression.compressed(whole)]


# --- the place in the queue


def test_a_batch_being_compressed_delays_the_batches_behind_it(busy):
    """Batches behind it wait until it is compressed, while other partitions continue."""
    first = _close_on_network_thread(busy)
    second, other = busy.add(0), busy.add(1)
    busy.step()
    assert [False, False, True] == [each.is_in_flight for each in (first, second, other)]
    busy.do_jobs()
    busy.step()
    assert [[other], [first], [second]] == [drained for drained, _ in busy.events.drained]


def test_the_parts_of_a_batch_take_its_place(busy, monkeypatch):
    """A batch that compresses badly is split in place, before the batches behind it."""
    monkeypatch.setattr(BatchCompression, "compressed", halves_of(2, 1))
    whole = _close_on_network_thread(busy, records=3)
    behind = busy.add(0)
    busy.do_jobs()
    assert whole not in busy.accumulator._incomplete
    assert [2, 1, 1] == [each.record_count for each in busy.accumulator._in_order()]
    busy.step()
    sent = [each for drained, _ in busy.events.drained for each in drained]
    assert [2, 1, 1] == [each.record_count for each in sent]
    assert behind is sent[-1]
    assert 3 == len({*sent})


class _Partition:
    """An accumulator of one partition with a worker and a broker that act on command."""

    def __init__(self) -> None:
        self.pool = BufferPool(10_000_000)
        self.accumulator = RecordAccumulator(
            pool=self.pool,
            delivery_timeout=DELIVERY_TIMEOUT,
            transaction_manager=None,
            guarantee_order=False,
        )
        self.row_count = 0
        self.sent_rows: list[int] = []
        self._jobs = []

    def enqueue(self, record_count: int, *, is_aside: bool) -> None:
        added = batch(records=record_count)
        added.first_row = self.row_count
        self.row_count += record_count
        if is_aside:
            added.is_compressed = False
            added.block = self.pool.try_allocate(BLOCK_BYTES)
            self._jobs.append(added)
        else:
            self.pool.reserve(added.size_bytes)
        self.accumulator.enqueue(added)

    def work(self) -> None:
        """Compress the oldest batch into one part for each record."""
        if self._jobs:
            whole = self._jobs.pop(0)
            first_row = whole.first_row
            parts = batches_of(whole, halves_of(*[1] * whole.record_count)())
            for row, part in enumerate(parts, first_row):
                part.first_row = row
            self.accumulator.put_compressed(whole, parts)

    def send(self) -> None:
        for each in self.accumulator.drain(snapshot({0: 0}), NODES[0], 10_000, 0.0):
            self.sent_rows += range(each.first_row, each.first_row + each.record_count)
            self.accumulator.no_longer_held([each])
            self.accumulator.complete(each)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=8), st.randoms())
def test_records_keep_their_order(closed, rng):
    """The records of a partition stay in order whenever and however many batches are compressed."""
    partition = _Partition()
    for is_aside, record_count in closed:
        partition.enqueue(record_count, is_aside=is_aside)
        for step in rng.sample([partition.work, partition.send], rng.randrange(3)):
            step()
    for _ in range(partition.row_count):
        partition.work()
    for _ in range(partition.row_count):
        partition.send()
    assert list(range(partition.row_count)) == partition.sent_rows
    assert not partition.accumulator.has_incomplete
    assert 10_000_000 == partition.pool.available_bytes


def test_the_parts_of_a_split_batch_fail_in_record_order(busy, monkeypatch):
    """When the producer ends, callbacks are called in the order of the records."""
    monkeypatch.setattr(BatchCompression, "compressed", halves_of(1, 1))
    calls = []
    whole = _close_on_network_thread(busy, records=2)
    behind = busy.add(0)
    for index in range(2):
        whole.result.call_when_done(index, lambda index=index: calls.append(index))
    behind.result.call_when_done(0, lambda: calls.append(2))
    busy.do_jobs()
    busy.sender.fail(KafkaError("ended"))
    assert [0, 1, 2] == calls


# --- memory


def test_compression_replaces_the_block_with_the_compressed_bytes(busy):
    """A batch counts with its block during compression, and then with the bytes to be sent."""
    closed = _close_on_network_thread(busy)
    assert BLOCK_BYTES == _used_bytes(busy)
    busy.do_jobs()
    assert closed.size_bytes == _used_bytes(busy)
    busy.step()
    busy.produce()
    assert 0 == _used_bytes(busy)


@pytest.mark.parametrize("end", ["expired", "the producer ended"])
def test_a_batch_that_fails_during_compression_keeps_its_block(busy, end):
    """A batch that fails during compression keeps its block until the worker has read it."""
    closed = _close_on_network_thread(busy)
    if end == "expired":
        busy.step(DELIVERY_TIMEOUT)
        assert isinstance(closed.result.error.__cause__, DeliveryTimeoutError)
    else:
        busy.sender.fail(KafkaError("ended"))
    assert (True, BLOCK_BYTES) == (closed.is_done, _used_bytes(busy))
    busy.do_jobs()
    busy.step()
    assert (0, []) == (_used_bytes(busy), busy.network.sent)
    assert not busy.accumulator.has_incomplete


def test_a_batch_that_cannot_be_compressed_fails(busy, monkeypatch):
    """The batch's error reports the loss, its memory is freed, and the next batch is sent."""
    monkeypatch.setattr(BatchCompression, "compressed", lambda *_: 1 // 0)
    closed = _close_on_network_thread(busy)
    behind = busy.add()
    busy.do_jobs()
    assert isinstance(closed.result.error, DeliveryError)
    assert "ZeroDivisionError" in str(closed.result.error)
    assert 0 == _used_bytes(busy)
    busy.step()
    assert behind.is_in_flight


def test_a_batch_that_cannot_be_compressed_makes_its_transaction_abortable(monkeypatch):
    """If a batch cannot be compressed, its transaction can only be aborted."""
    monkeypatch.setattr(BatchCompression, "compressed", lambda *_: 1 // 0)
    with SenderHarness(**TRANSACTIONAL) as harness:
        harness.begin()
        _close_on_network_thread(harness)
        assert harness.manager.state.has_abortable_error


def test_a_commit_waits_for_batches_being_compressed():
    """A commit sends EndTxn after batches still being compressed have been acknowledged."""
    with SenderHarness(**TRANSACTIONAL) as harness:
        harness.is_busy = True
        harness.begin()
        _close_on_network_thread(harness)
        commit = harness.manager.begin_commit()
        harness.step()
        assert [] == harness.network.sent
        harness.do_jobs()
        harness.step()
        harness.produce()
        harness.end_txn(epoch=1)
        commit.wait(0)


# --- batches refused as too large


def test_a_rejected_batch_is_halved_on_the_worker_thread(idempotent, monkeypatch):
    """A refused batch's partition pauses until its halves are sent in its place."""
    monkeypatch.setattr(BatchCompression, "halves", halves_of(1, 1))
    idempotent.is_busy = True
    refused = idempotent.add(records=2)
    idempotent.step()
    idempotent.produce(ErrorCode.MESSAGE_TOO_LARGE)
    behind = idempotent.add()
    idempotent.step()
    assert [] == idempotent.network.sent
    idempotent.do_jobs()
    for _ in range(3):
        idempotent.step()
        idempotent.produce()
    sent = [each for drained, _ in idempotent.events.drained for each in drained][-3:]
    assert [1, 2, 3] == [each.base_sequence for each in sent]
    assert behind is sent[-1]
    assert refused not in sent


def test_the_halves_of_a_rejected_batch_that_has_expired_are_dropped(plain, monkeypatch):
    """The halves of an expired batch are dropped, and its partition continues."""
    monkeypatch.setattr(BatchCompression, "halves", halves_of(1, 1))
    plain.is_busy = True
    refused = plain.add(records=2)
    plain.step()
    plain.produce(ErrorCode.MESSAGE_TOO_LARGE)
    plain.step(DELIVERY_TIMEOUT)
    assert refused.is_done
    plain.do_jobs()
    behind = plain.add()
    plain.step(LATER)
    assert behind.is_in_flight
    assert [behind] == plain.accumulator._in_order()


def test_batches_behind_one_that_cannot_be_split_are_renumbered(idempotent, monkeypatch):
    """The batch was refused, so its followers were not appended and get new sequence numbers."""
    monkeypatch.setattr(BatchCompression, "halves", lambda *_: 1 / 0)
    refused, follower = idempotent.add(records=2), idempotent.add()
    idempotent.step()
    first, second = idempotent.take(), idempotent.take()
    second.disconnect()
    idempotent.answer_produce(first, ErrorCode.MESSAGE_TOO_LARGE)
    assert "ZeroDivisionError" in str(refused.result.error)
    idempotent.step(LATER)
    idempotent.produce()
    assert (None, (1, 0)) == (follower.result.error, numbers(follower))


# --- with a whole producer


@pytest.fixture
def one_partition():
    with DevBroker(topics={"t": 1}) as broker:
        yield broker


def _producer(broker: DevBroker, **settings: object) -> KafkaProducer:
    return KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": "gzip", **settings}
    )


def _watch(producer: KafkaProducer, monkeypatch, hook=lambda: None) -> list[str]:
    """Record the names of the threads that compress."""
    compressor, names = producer._core._compression._compressor, []
    compress = compressor.compress

    def watched(payload: object) -> object:
        names.append(threading.current_thread().name)
        hook()
        return compress(payload)

    monkeypatch.setattr(compressor, "compress", watched)
    return names


def test_the_network_thread_compresses_nothing(one_partition, monkeypatch):
    """The worker compresses a batch that linger.ms closes, and the batch is delivered."""
    with _producer(one_partition, **{"linger.ms": 1}) as producer:
        names = _watch(producer, monkeypatch)
        assert [0, 1, 2] == [
            producer.send("t", b"%d" % number).result(TIMEOUT).offset for number in range(3)
        ]
    assert {"kafka-producer-worker-thread"} == {name.partition(" | ")[0] for name in names}


def test_a_writing_thread_compresses_the_batches_it_closes(one_partition, monkeypatch):
    """A flush closes batches on its own thread, so that a slow codec slows down the writer."""
    with _producer(one_partition, **{"linger.ms": 60_000, "delivery.timeout.ms": 200_000}) as it:
        names = _watch(it, monkeypatch)
        it.send("t", b"v")
        it.flush()
    assert [threading.current_thread().name] == names


def test_a_thread_that_sends_a_single_record_compresses_it(one_partition, monkeypatch):
    """With linger.ms=0 a record that finds nothing on its way needs no other thread to be ready."""
    with _producer(one_partition, **{"linger.ms": 0}) as producer:
        producer.send("t", b"first").result(TIMEOUT)
        names = _watch(producer, monkeypatch)
        assert 1 == producer.send("t", b"second").result(TIMEOUT).offset
    assert [threading.current_thread().name] == names


def test_close_waits_for_batches_being_compressed(one_partition, monkeypatch):
    """Closing at once waits for the worker, so no thread and no memory remain in use."""
    started, may_continue = threading.Event(), threading.Event()
    producer = _producer(one_partition, **{"linger.ms": 1})
    _watch(producer, monkeypatch, lambda: (started.set(), may_continue.wait(TIMEOUT)))
    future = producer.send("t", b"v")
    assert started.wait(TIMEOUT)
    closing = threading.Thread(target=producer.close, args=(0,))
    closing.start()
    with pytest.raises(KafkaError):
        future.result(TIMEOUT)
    may_continue.set()
    closing.join(TIMEOUT)
    assert not producer._core._worker._thread.is_alive()
    pool = producer._core.gatherer._builder._pool
    assert pool.total_bytes == pool.available_bytes
