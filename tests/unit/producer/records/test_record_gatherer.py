"""When gathered records are written, when their batches close, and how each future ends."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest

from spark_kafka_sink.errors import (
    BufferExhaustedError,
    DeliveryError,
    InvalidPartitionError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS, EXHAUSTED_PAUSE
from tests.support.producer.gatherer_harness import (
    NOW_MS,
    GathererHarness,
    acknowledge,
    held,
    held_elsewhere,
    records_of,
)
from tests.support.record.record_columns import columns

LINGER = {"linger.ms": 5_000}
#: The default of delivery.timeout.ms, in seconds.
DELIVERY_TIMEOUT = 120.0
TINY_MEMORY = {"buffer.memory": 2_000, "max.request.size": 1_000, "batch.size": 600}
ENDED = DeliveryError("the producer has ended")


@pytest.fixture
def harness() -> GathererHarness:
    return GathererHarness(**LINGER)


def _append(harness: GathererHarness, *values: bytes, first_row: int = 0) -> None:
    harness.gatherer.write_columns(columns(values), [harness.partitions], first_row)


def _in_time(call) -> None:
    """Run a call on a thread of its own, and fail if it hangs."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "the call waits for itself"


# --- flushes


@pytest.mark.parametrize("lingers", [False, True], ids="lingers {}".format)
def test_turns_are_short_again_after_a_flush_unless_batches_linger(lingers):
    """A task's first rows reach all partitions; batches that linger stay as large as they were."""
    harness = GathererHarness(partitions=3, lingers=lingers)
    for first_row in (0, 10_000):
        _append(harness, *[bytes(1_000)] * 10_000, first_row=first_row)
    harness.gatherer.close_batches()
    harness.batches.clear()
    _append(harness, *[bytes(1_000)] * 100, first_row=20_000)
    harness.gatherer.close_batches()
    reached = {batch.topic_partition.partition for batch in harness.batches}
    assert lingers == (len(reached) < 3)


# --- lingering


def test_a_staged_record_waits_for_linger_ms(harness):
    """A staged record is written after linger.ms, and its batch does not linger again."""
    harness.stage(b"v")
    harness.now = 4.9
    assert 5.0 == harness.gather()
    assert [] == harness.batches
    harness.now = 5.0
    assert NEVER == harness.gather()
    assert [b"v"] == harness.values()


def test_without_linger_a_record_is_sent_at_the_next_check():
    """linger.ms=0 sends the records that are there."""
    harness = GathererHarness(**{"linger.ms": 0})
    harness.stage(b"v")
    assert NEVER == harness.gather()
    assert [b"v"] == harness.values()


def test_only_the_first_record_schedules_a_check(harness):
    """The network thread is woken once, and then knows when to check."""
    harness.stage(b"a")
    assert 1 == harness.wakeups
    harness.stage(b"b")
    assert 1 == harness.wakeups
    assert 5.0 == harness.gather()
    harness.gatherer.write_staged()
    harness.stage(b"c")
    assert 1 == harness.wakeups


def test_a_record_that_would_be_checked_too_late_schedules_a_check(harness):
    """The network thread is woken if it would check too late for a new record or batch."""
    assert NEVER == harness.gather()
    _append(harness, b"a")
    assert 1 == harness.wakeups
    assert 5.0 == harness.gather()
    harness.now = 1.0
    _append(harness, b"b")
    assert 1 == harness.wakeups
    harness.now = 5.0
    assert NEVER == harness.gather()
    harness.now = 6.0
    harness.stage(b"c")
    assert 2 == harness.wakeups


def test_a_record_without_memory_schedules_a_check():
    """A record that stays staged for lack of memory wakes the network thread."""
    harness = GathererHarness(**LINGER, **TINY_MEMORY)
    harness.pool.try_allocate(2_000)
    assert NEVER == harness.gather()
    harness.stage(b"v")
    assert 1 == harness.wakeups
    harness.gatherer.write_staged(give_up_at=0.0)
    assert 2 == harness.wakeups
    assert 5.0 == harness.gather()
    assert [] == harness.batches


def test_a_check_without_memory_is_followed_by_a_pause():
    """After a check without memory the network thread pauses, even without linger.ms."""
    harness = GathererHarness(**TINY_MEMORY, **{"linger.ms": 0})
    harness.hold_memory()
    harness.stage(b"v")
    assert EXHAUSTED_PAUSE == harness.gather()
    assert 1 == harness.wakeups


def test_an_open_batch_of_rows_waits_for_linger_ms(harness):
    """The time of a batch counts from its opening, whichever call opened it."""
    harness.now = 1.0
    _append(harness, b"a")
    assert 6.0 == harness.gather()
    harness.now = 6.0
    assert NEVER == harness.gather()
    assert [b"a"] == harness.values()


def test_the_error_of_a_lingering_batch_names_its_rows(harness):
    """The error of a lingering batch can name the range of its rows."""
    _append(harness, b"a", b"b", first_row=70)
    harness.now = 5.0
    harness.gather()
    assert [(70, 71)] == [(batch.first_row, batch.last_row) for batch in harness.batches]


def test_a_batch_that_cannot_be_sent_stays_open(harness):
    """A batch that cannot be sent yet stays open, as it would only wait in the queue."""
    _append(harness, b"a")
    harness.now = 6.0
    assert DELIVERY_TIMEOUT == harness.gather(lambda topic_partition: False)
    _append(harness, b"b")
    assert [] == harness.batches
    assert NEVER == harness.gather()
    assert [b"a", b"b"] == harness.values()
    assert 1 == len(harness.batches)


def test_an_open_batch_expires_after_delivery_timeout_ms(harness):
    """An open batch expires like a queued one, after delivery.timeout.ms."""
    _append(harness, b"a")
    harness.now = harness.config.delivery_timeout_ms / 1000
    harness.gather(lambda topic_partition: False)
    assert [b"a"] == harness.values()
    assert 0.0 == harness.batches[0].created_at


def test_only_batches_that_can_be_sent_are_closed():
    """Only the batches that could be sent are closed."""
    harness = GathererHarness(partitions=2, **LINGER)
    harness.stage(b"a", partition=0)
    harness.stage(b"b", partition=1)
    harness.gatherer.write_staged()
    harness.now = 5.0
    harness.gather(lambda topic_partition: topic_partition == TopicPartition("t", 1))
    assert [b"b"] == harness.values()


def test_without_lingering_only_the_caller_closes_batches():
    """The bulk form leaves batches open until they are full or flushed."""
    harness = GathererHarness(lingers=False, **LINGER)
    _append(harness, b"a")
    harness.now = 1_000.0
    assert NEVER == harness.gather()
    assert [] == harness.batches
    harness.gatherer.close_batches()
    assert [b"a"] == harness.values()
    assert 1_000.0 == harness.batches[0].created_at


def test_a_full_batch_does_not_linger(harness):
    """batch.size closes a batch before linger.ms does."""
    harness = GathererHarness(**LINGER, **{"batch.size": 1_000})
    for number in range(100):
        harness.stage(b"%064d" % number)
    harness.gatherer.write_staged()
    assert harness.batches
    assert all(batch.size_bytes <= 1_000 for batch in harness.batches)


# --- order


def test_records_are_written_before_later_rows(harness):
    """All that a caller sends has one order, in whichever form."""
    harness.stage(b"a")
    _append(harness, b"b")
    harness.stage(b"c")
    parts = harness.gatherer.write_table(columns([b"d", b"e"]), [1], 0)
    harness.stage(b"f")
    harness.gatherer.close_batches()
    assert [b"a", b"b", b"c", b"d", b"e", b"f"] == harness.values()
    assert [(3, 2)] == [(part.first_index, part.record_count) for part in parts]


def test_more_than_a_chunk_is_written_in_order(harness):
    """Chunks follow each other in order."""
    count = 2 * CHUNK_RECORDS + 1
    futures = [harness.stage(b"%d" % number) for number in range(count)]
    harness.gatherer.close_batches()
    assert [b"%d" % number for number in range(count)] == harness.values()
    acknowledge(harness.batches[0], 1_000)
    assert [1_000, 1_000 + count - 1] == [f.result(0).offset for f in (futures[0], futures[-1])]


def test_a_record_without_a_timestamp_gets_the_time_of_writing(harness):
    """The wall clock is read once for each chunk."""
    future = harness.stage(b"a")
    given = harness.stage(b"b", timestamp=5)
    harness.gatherer.close_batches()
    assert [NOW_MS, 5] == [record.timestamp for record in harness.records()]
    acknowledge(harness.batches[0])
    assert [NOW_MS, 5] == [future.result(0).timestamp, given.result(0).timestamp]


# --- the lock


def test_the_network_thread_never_waits_for_the_lock(harness):
    """The network thread does not wait for the lock, whose holder wakes it afterwards."""
    future = harness.stage(b"v")
    harness.gather()
    harness.now = 5.0
    with held(harness.gatherer._lock):
        assert NEVER == harness.gather()
        assert future.chunk is None
        assert 1 == harness.wakeups
    assert 2 == harness.wakeups
    harness.gather()
    assert future.chunk is not None


def test_a_check_that_finds_the_lock_held_is_repeated(harness):
    """A due batch has no timer while the lock is held, so the release of the lock wakes it."""
    _append(harness, b"v")
    harness.now = 5.0
    assert DELIVERY_TIMEOUT == harness.gather(lambda topic_partition: False)
    wakeups = harness.wakeups
    with held(harness.gatherer._lock):
        assert NEVER == harness.gather()
    assert wakeups + 1 == harness.wakeups
    assert NEVER == harness.gather()
    assert [b"v"] == harness.values()
    with held(harness.gatherer._lock):
        pass
    assert wakeups + 1 == harness.wakeups


def test_a_caller_waits_for_the_lock_for_max_block_ms():
    """max.block.ms limits the wait, and the error names its cause."""
    harness = GathererHarness(**{"max.block.ms": 0})
    future = harness.stage(b"v")
    harness.gatherer._max_block = -1.0
    with (
        held_elsewhere(harness.gatherer._lock),
        pytest.raises(KafkaTimeoutError, match=r"max\.block\.ms"),
    ):
        harness.gatherer.write_staged()
    harness.gatherer.write_staged()
    assert future.chunk is not None


def test_a_callback_can_send_while_records_are_written(harness):
    """The callback of a record that fails in its chunk runs meanwhile, and can send records."""
    harness = GathererHarness(**LINGER, **TINY_MEMORY)
    sent = []

    def send_again(future: object) -> None:
        sent.append(harness.stage(b"again"))
        harness.gatherer.write_staged()

    harness.stage(bytes(1_500), callback=send_again)
    last = harness.stage(b"last")
    _in_time(harness.gatherer.close_batches)
    assert [b"last", b"again"] == harness.values()
    for batch in harness.batches:
        acknowledge(batch)
    assert [True, True] == [last.done(), sent[0].done()]


# --- memory


def test_the_network_thread_restages_records_without_memory():
    """Only this thread frees memory, so it does not wait; order is kept, and linger restarts."""
    harness = GathererHarness(**TINY_MEMORY, **LINGER)
    futures = [harness.stage(b"%0100d" % number) for number in range(8)]
    held = harness.pool.available_bytes - 700
    harness.pool.reserve(held)
    harness.now = 5.0
    harness.gather(lambda topic_partition: False)
    written = [future.chunk is not None for future in futures]
    assert sorted(written, reverse=True) == written
    assert 0 < sum(written) < 8
    assert not any(future.done() for future in futures)
    late = harness.stage(b"%0100d" % 8)
    harness.pool.release(held)
    while late.chunk is None:
        harness.now += 5.0
        harness.gather()
    harness.gatherer.close_batches()
    assert [b"%0100d" % number for number in range(9)] == harness.values()


def test_a_caller_that_gets_no_memory_fails_its_remaining_records():
    """After max.block.ms the records behind fail without more waiting, and none stays pending."""
    harness = GathererHarness(**TINY_MEMORY, **LINGER, **{"max.block.ms": 0})
    called = []
    held = harness.hold_memory()
    futures = [harness.stage(b"v", callback=called.append) for _ in range(5)]
    harness.gatherer.write_staged()
    assert futures == called
    for future in futures:
        with pytest.raises(BufferExhaustedError, match=r"buffer\.memory"):
            future.result(0)
    harness.pool.release(held)
    harness.stage(b"later")
    harness.gatherer.close_batches()
    assert [b"later"] == harness.values()


def test_an_oversized_record_fails_alone():
    """Only the record that is too large fails, and the records around it are written."""
    harness = GathererHarness(**TINY_MEMORY, **LINGER)
    before, wrong, after = (harness.stage(value) for value in (b"a", bytes(1_500), b"b"))
    harness.gatherer.close_batches()
    assert [b"a", b"b"] == harness.values()
    assert isinstance(wrong.exception(0), RecordTooLargeError)
    acknowledge(harness.batches[0], 7)
    assert [7, 8] == [before.result(0).offset, after.result(0).offset]


def test_a_record_for_a_deleted_partition_fails_alone():
    """Only records of deleted partitions fail, and the others are sent in order."""
    harness = GathererHarness(**LINGER, partitions=4)
    called = []
    others = [harness.stage(b"a", partition=1), harness.stage(b"b", topic="other", partition=0)]
    deleted = [harness.stage(b"%d" % n, partition=n, callback=called.append) for n in (3, 2)]
    others += [harness.stage(b"c", partition=1), harness.stage(b"d", key=b"key")]
    harness.partitions = 2
    harness.gatherer.close_batches()
    assert {b"a", b"b", b"c", b"d"} == set(harness.values())
    assert [b"a", b"c"] == [value for value in harness.values() if value in {b"a", b"c"}]
    assert [None] * 4 == [future.error for future in others]
    assert deleted == called
    errors = [future.exception(0) for future in deleted]
    assert [InvalidPartitionError] * 2 == [type(error) for error in errors]
    assert [("t", 3), ("t", 2)] == [(error.topic, error.partition) for error in errors]
    assert "it now has 2" in str(errors[0])
    assert [(error, 1) for error in errors] == harness.refused
    assert [] == harness.broken


def test_a_chunk_of_records_for_deleted_partitions_leaves_nothing_staged():
    """If no record of a chunk is left, nothing stays staged."""
    harness = GathererHarness(**LINGER, partitions=2)
    futures = [harness.stage(b"v", partition=1) for _ in range(3)]
    harness.partitions = 1
    harness.gatherer.close_batches()
    assert [InvalidPartitionError] * 3 == [type(future.exception(0)) for future in futures]
    assert 0 == len(harness.gatherer.staged)
    assert [] == harness.batches


# --- interrupted writes


@pytest.mark.parametrize("error", [MemoryError("out of it"), KafkaError("refused")], ids=repr)
def test_an_error_in_a_write_leaves_no_future_pending(harness, error):
    """Any error while a chunk is written fails all records of the chunk."""
    harness = GathererHarness(**LINGER, **{"batch.size": 1_000})

    def refuse(batch: object) -> None:
        raise error

    harness.enqueue = refuse
    futures = [harness.stage(b"%0100d" % number) for number in range(30)]
    harness.gatherer.write_staged()
    assert [True] * 30 == [future.done() for future in futures]
    for future in futures:
        assert error in {future.exception(0), future.exception(0).__cause__}


def test_an_interrupt_is_not_swallowed(harness):
    """KeyboardInterrupt is raised, and the records being written fail because of it."""
    harness = GathererHarness(**LINGER, **{"batch.size": 1_000})

    def interrupt(batch: object) -> None:
        raise KeyboardInterrupt

    harness.enqueue = interrupt
    futures = [harness.stage(b"%0100d" % number) for number in range(30)]
    with pytest.raises(KeyboardInterrupt):
        harness.gatherer.write_staged()
    assert [True] * 30 == [future.done() for future in futures]
    assert "KeyboardInterrupt" in str(futures[-1].exception(0))


def test_rows_lost_by_an_interrupt_are_reported(harness):
    """Rows that an interrupt lost are reported, so that a later flush does not miss them."""
    harness.builder.history = None
    with pytest.raises(AttributeError):
        _append(harness, b"a")
    [broken] = harness.broken
    assert "in the middle of a batch" in str(broken)


# --- the end


def test_the_end_of_the_producer_fails_all_unclosed_records(harness):
    """Staged records, open batches, and records sent later all fail."""
    called = []
    written = harness.stage(b"a", callback=called.append)
    harness.gatherer.write_staged()
    staged = harness.stage(b"b", callback=called.append)
    harness.gatherer.fail_all(ENDED)
    late = harness.stage(b"c", callback=called.append)
    assert {written, staged, late} == set(called)
    assert [ENDED] * 3 == [future.exception(0) for future in (written, staged, late)]
    assert harness.config.buffer_memory == harness.pool.available_bytes
    assert NEVER == harness.gather()
    assert [] == harness.batches


def test_a_record_staged_as_the_producer_ends_fails(harness):
    """A record staged as the producer ends fails, although no check was scheduled for it."""
    harness.stage(b"a")
    harness.gatherer.fail_all(ENDED)
    # `send` checks this before it leaves a record to the next scheduled check.
    assert harness.gatherer.staged_since is None
    late = harness.stage(b"b")
    assert ENDED is late.exception(0)


def test_a_record_being_written_as_the_producer_ends_fails(harness):
    """A thread that writes after the end fails its records."""
    future = harness.stage(b"a")
    harness.gatherer._failed_by = ENDED
    harness.gatherer.write_staged()
    assert ENDED is future.exception(0)


def test_an_abort_fails_open_records_and_accepts_new_ones(harness):
    """Later records are accepted, and the memory of the aborted ones is free."""
    aborted = TransactionAbortedError("aborted")
    called = []
    written = harness.stage(b"a", callback=called.append)
    harness.gatherer.write_staged()
    staged = harness.stage(b"b", callback=called.append)
    harness.gatherer.abort(aborted)
    assert [aborted, aborted] == [written.exception(0), staged.exception(0)]
    assert {written, staged} == set(called)
    assert harness.config.buffer_memory == harness.pool.available_bytes
    harness.stage(b"c")
    harness.gatherer.close_batches()
    assert [b"c"] == harness.values()


def test_several_threads_can_send_and_write_concurrently(harness):
    """Each record is written once, in its thread's order, whichever thread writes it."""
    harness = GathererHarness(**LINGER, **{"batch.size": 2_000})

    def send(thread: int) -> None:
        for number in range(1_000):
            harness.stage(b"%d %06d" % (thread, number))
            if number % 100 == 0:
                harness.gatherer.write_staged()

    threads = [threading.Thread(target=partial(send, number), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    harness.gatherer.close_batches()
    values = harness.values()
    expected = [[b"%d %06d" % (t, number) for number in range(1_000)] for t in range(4)]
    assert expected == [[v for v in values if v.startswith(b"%d " % t)] for t in range(4)]


def test_a_batch_that_compresses_badly_keeps_its_futures():
    """The records of a batch that is split before it is sent are found in the parts."""
    harness = GathererHarness(**LINGER, **{"batch.size": 2_000, "compression.type": "lz4"})
    compression = harness.builder._compression
    compression._ratios.set_estimation("t", compression.codec, 0.1)
    values = [os.urandom(500) for _ in range(20)]
    futures = [harness.stage(value) for value in values]
    harness.gatherer.close_batches()
    assert len(harness.batches) > 1
    assert values == harness.values()
    offset = 0
    for batch in harness.batches:
        acknowledge(batch, offset)
        offset += len(records_of(batch))
    assert list(range(20)) == [future.result(0).offset for future in futures]


def test_staged_records_and_open_batches_are_seen_without_the_lock(harness):
    """The sender checks for them after a response, also while a caller holds the lock."""
    assert not harness.gatherer.has_open()
    harness.stage(b"a")
    with held(harness.gatherer._lock):
        assert harness.gatherer.has_open()
    harness.gatherer.write_staged()
    with held(harness.gatherer._lock):
        assert harness.gatherer.has_open()
    harness.gatherer.close_batches()
    assert not harness.gatherer.has_open()


def test_without_lingering_the_sender_need_not_look_for_open_batches():
    """Only the caller closes batches then, so no response makes one sendable."""
    harness = GathererHarness(lingers=False)
    harness.stage(b"a")
    harness.gatherer.write_staged()
    assert not harness.gatherer.has_open()
