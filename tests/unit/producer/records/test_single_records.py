"""Records that are sent alone, and at once: linger.ms=0, and no other record on its way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import KafkaError, RecordTooLargeError
from spark_kafka_sink.producer.records.record_futures import FutureRecordMetadata
from spark_kafka_sink.producer.records.staged_records import StagedRecords
from tests.support.producer.gatherer_harness import (
    NOW_MS,
    GathererHarness,
    acknowledge,
    held_elsewhere,
)
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

NO_LINGER = {"linger.ms": 0}
CONTENT = st.none() | st.binary(max_size=5)
KEY_RULES = ["default", "murmur2_consistent", "crc32", "consistent", "fnv1a", "round_robin"]


@pytest.fixture
def harness() -> GathererHarness:
    return GathererHarness(**NO_LINGER)


def _wire(batch: ProducerBatch) -> tuple[int, bytes]:
    return batch.topic_partition.partition, b"".join(map(bytes, batch.buffers()))


# --- when


def test_a_record_that_finds_nothing_on_its_way_is_sent_at_once(harness):
    """The thread that sends the record closes its batch; the network thread has only to send it."""
    future = harness.stage_plain(b"v")
    assert [b"v"] == harness.values()
    assert not future.done()
    acknowledge(harness.batches[0], base_offset=7)
    assert 7 == future.result(120).offset
    assert 0 == harness.wakeups  # besides that of the queue itself


def test_a_large_record_is_sent_at_once(harness):
    """The weight of a record that is sent alone is not counted any more."""
    harness.gatherer.staged.weigh(4_000)
    harness.stage_plain(bytes(4_000))
    assert ([bytes(4_000)], 0) == (harness.values(), harness.gatherer.staged.heavy_bytes)


def test_a_record_of_another_type_is_sent_at_once(harness):
    """A serializer may return any object that has bytes."""
    future = harness.stage(bytearray(b"v"), key=memoryview(b"k"))
    acknowledge(harness.batches[0])
    assert ([b"v"], 1) == (harness.values(), future.result(120).serialized_key_size)


def test_a_record_with_more_than_key_and_value_is_sent_at_once(harness):
    """Headers, a timestamp and a callback make no difference."""
    called = []
    future = harness.stage(b"v", headers=[("name", b"h")], timestamp=5, callback=called.append)
    (record,) = harness.records()
    assert (b"v", 5, ("name", b"h")) == (record.value, record.timestamp, tuple(record.headers[0]))
    acknowledge(harness.batches[0])
    assert [future] == called


@pytest.mark.parametrize("settings", [{"linger.ms": 5}, {"linger.ms": 0, "lingers": False}])
def test_a_record_that_may_linger_is_staged(settings):
    """With linger.ms, and without the network thread's help, a record waits for others."""
    lingers = settings.pop("lingers", True)
    harness = GathererHarness(lingers=lingers, **settings)
    harness.stage_plain(b"v")
    assert [] == harness.batches
    assert 1 == len(harness.gatherer.staged)


def test_a_record_is_staged_while_a_batch_is_on_its_way(harness):
    """Until the batch is acknowledged, records gather for the next one."""
    harness.has_incomplete = True
    harness.stage_plain(b"a")
    harness.stage_plain(b"b")
    assert ([], 1) == (harness.batches, harness.wakeups)
    harness.gather()
    assert ([b"a", b"b"], 1) == (harness.values(), len(harness.batches))


def test_a_record_is_staged_while_a_batch_is_open(harness):
    """A record never overtakes those in an open batch."""
    harness.has_incomplete = True
    harness.stage_plain(b"a")
    harness.gatherer.write_staged()
    harness.has_incomplete = False
    harness.stage_plain(b"b")
    assert [] == harness.batches
    harness.gather()
    assert [b"a", b"b"] == harness.values()


def test_a_record_is_sent_after_one_that_was_staged_before(harness):
    """A record that could not be sent at once is sent with the next one, and before it."""
    with held_elsewhere(harness.gatherer._lock):
        harness.stage_plain(b"a")
    assert ([], 1) == (harness.batches, harness.wakeups)
    harness.gatherer.staged_since = None
    harness.stage_plain(b"b")
    assert ([b"a", b"b"], 1) == (harness.values(), len(harness.batches))


def test_a_record_never_overtakes_one_that_gets_into_an_open_batch_meanwhile(harness):
    """Another thread may open a batch after the sender has seen that there is none."""
    append, begun, go_on = harness.builder.append, threading.Event(), threading.Event()

    def append_slowly(*arguments, **settings):
        begun.set()
        go_on.wait(120)
        append(*arguments, **settings)

    def wait_for_writer(_: GathererHarness) -> bool:
        go_on.set()
        writer.join()
        return False

    harness.builder.append = append_slowly
    writer = threading.Thread(
        target=harness.gatherer.write_columns, args=(columns([b"a"]), [harness.partitions], 0)
    )
    writer.start()
    begun.wait(120)
    # This is the last thing that the sender looks at before it takes the lock.
    with patch.object(GathererHarness, "is_network_thread", property(wait_for_writer)):
        harness.stage_plain(b"b")
    harness.gather()
    assert [b"a", b"b"] == harness.values()


def test_a_record_that_is_staged_while_none_is_left_is_not_sent_alone():
    """Another thread has written the sender's record, and a third one stages its own now."""

    class _Items(list):
        """A list to which another thread adds a record after the first look at it."""

        def __getitem__(self, place):
            found = super().__getitem__(place)
            self.extend((FutureRecordMetadata(), "t", None, b"v"))
            return found

    staged = StagedRecords()
    staged.items = _Items()
    assert staged.single() is None


def test_the_network_thread_stages_its_records(harness):
    """Records that callbacks send are gathered in the network thread's next turn."""
    harness.is_network_thread = True
    harness.stage_plain(b"v")
    assert ([], 1) == (harness.batches, harness.wakeups)


def test_a_network_thread_that_was_locked_out_is_not_woken_for_closed_batches(harness):
    """The network thread that came for the closed batch need not come a second time."""
    enqueue = harness.enqueue

    def gathered(batch: ProducerBatch) -> None:
        enqueue(batch)
        coming = threading.Thread(target=harness.gather)
        coming.start()
        coming.join()

    harness.enqueue = gathered
    harness.stage_plain(b"v")
    assert ([b"v"], 0) == (harness.values(), harness.wakeups)


# --- the same as other records


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "key": st.none() | st.binary(max_size=40),
                "value": st.none() | st.binary(max_size=300),
            },
            optional={
                "headers": st.lists(st.tuples(st.text(max_size=5), CONTENT), min_size=1),
                "partition": st.integers(0, 6),
                "timestamp": st.integers(0, 2**63 - 1),
            },
        ),
        max_size=20,
    ),
    st.sampled_from(KEY_RULES),
    st.booleans(),
)
def test_it_becomes_the_same_batch_as_by_the_kernels(records, rule, ignores_keys):
    """A single record has the partition and the bytes that the kernels give it."""
    settings = {
        **NO_LINGER,
        "partitioner.class": rule,
        "partitioner.ignore.keys": ignores_keys,
        "batch.size": 500,
    }
    alone = GathererHarness(partitions=7, **settings)
    by_kernels = GathererHarness(partitions=7, **settings)
    by_kernels.builder.fill_single = lambda *_, **__: None
    for record in records:
        futures = [alone.stage(**record), by_kernels.stage(**record)]
        for harness in alone, by_kernels:
            acknowledge(harness.batches[-1])
        assert futures[0].result() == futures[1].result()
    assert len(records) == len(alone.batches)
    assert list(map(_wire, by_kernels.batches)) == list(map(_wire, alone.batches))


def test_its_metadata_is_complete(harness):
    """The metadata has the time of sending, and the sizes of key and value."""
    future = harness.stage_plain(b"value", key=b"k")
    acknowledge(harness.batches[0], base_offset=3)
    metadata = future.result(120)
    assert (3, NOW_MS, 1, 5) == (
        metadata.offset,
        metadata.timestamp,
        metadata.serialized_key_size,
        metadata.serialized_value_size,
    )


def test_it_takes_memory_until_it_is_released(harness):
    """A single record counts towards buffer.memory as long as its batch has its block."""
    harness.stage_plain(b"v")
    (batch,) = harness.batches
    assert harness.pool.total_bytes - batch.block.nbytes == harness.pool.available_bytes


# --- records that cannot be sent


def test_without_memory_it_remains_staged(harness):
    """A record for which there is no memory wakes the network thread, and is sent later."""
    held = harness.hold_memory()
    harness.stage_plain(b"v")
    assert ([], 1, 1) == (harness.batches, len(harness.gatherer.staged), harness.wakeups)
    harness.pool.release(held)
    harness.gather()
    assert [b"v"] == harness.values()


def test_a_record_that_is_too_large_fails():
    """A record above max.request.size is refused, and does not end the producer."""
    harness = GathererHarness(**NO_LINGER, **{"max.request.size": 200})
    too_large = harness.stage_plain(bytes(200))
    assert isinstance(too_large.exception(120), RecordTooLargeError)
    harness.stage_plain(b"v")
    assert ([b"v"], []) == (harness.values(), harness.broken)


@pytest.mark.parametrize("stage", [GathererHarness.stage_plain, GathererHarness.stage])
def test_a_producer_that_ends_meanwhile_fails_it(harness, stage):
    """The error that ended the producer is that of the record, and the call does not raise."""
    ended = KafkaError("the producer has ended")

    def refuse(batch: ProducerBatch) -> None:
        raise ended

    harness.enqueue = refuse
    future = stage(harness, b"v")
    assert (ended, [ended]) == (future.exception(120), harness.broken)


def test_a_transaction_that_is_not_ready_fails_it(harness):
    """A record outside of a transaction is in no batch."""
    not_ready = KafkaError("no transaction is open")

    def refuse() -> None:
        raise not_ready

    harness.fail_if_transaction_not_ready = refuse
    future = harness.stage_plain(b"v")
    assert ([], not_ready) == (harness.batches, future.exception(120))
