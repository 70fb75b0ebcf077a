"""How batches end in the accumulator: alone, all together, by timeout, or without a queue."""

from __future__ import annotations

import gc
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DeliveryError, ProducerClosedError
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.produce_result import RefusedRecord
from spark_kafka_sink.producer.batch.producer_batch import FinalState, ProducerBatch
from spark_kafka_sink.producer.sending.record_accumulator import MAX_STALE, RecordAccumulator
from tests.support.producer.producer_batches import NODES, batch, snapshot

MAX = 1_000_000
TOTAL = 10_000_000
TIMEOUT = 120.0
ONE_NODE = snapshot({0: 0, 1: 0, 2: 0})
REFUSED = DeliveryError("refused")


@pytest.fixture
def ended() -> list[Exception]:
    return []


@pytest.fixture
def accumulator(ended) -> RecordAccumulator:
    return RecordAccumulator(
        pool=BufferPool(TOTAL),
        delivery_timeout=TIMEOUT,
        transaction_manager=None,
        guarantee_order=True,
        on_failed=ended.append,
    )


def _enqueue(accumulator, *batches):
    for each in batches:
        accumulator._pool.reserve(each.size_bytes)
        accumulator.enqueue(each)
    return batches


def _drain(accumulator, now: float = 0.0):
    return accumulator.drain(ONE_NODE, NODES[0], MAX, now=now)


# --- one batch fails


def test_a_failed_batch_does_not_affect_the_others(accumulator, caplog):
    """The batch fails, its memory is freed, its partition continues, and a debug line says so."""
    wrong, next_one, other = _enqueue(accumulator, batch(0), batch(0), batch(1))
    assert [wrong, other] == _drain(accumulator)
    with caplog.at_level(logging.DEBUG):
        accumulator.no_longer_held([wrong, other])
        accumulator.fail_batch(wrong, REFUSED)
    assert FinalState.FAILED is wrong.final_state
    assert REFUSED is wrong.result.error
    assert [("DEBUG", "refused")] == [(e.levelname, e.message) for e in caplog.records]
    assert [next_one] == _drain(accumulator)
    accumulator.no_longer_held([next_one])
    accumulator.complete(next_one)
    accumulator.complete(other)
    assert TOTAL == accumulator._pool.available_bytes
    accumulator.raise_if_failed()


def test_a_queued_batch_can_fail(accumulator):
    """A batch that expires before it was sent leaves its queue."""
    first, second = _enqueue(accumulator, batch(0), batch(0))
    accumulator.fail_batch(first, REFUSED)
    assert [second] == _drain(accumulator)
    accumulator.fail_batch(second, REFUSED)
    assert {} == accumulator.queue_sizes("t")
    assert () == accumulator.ready(ONE_NODE, now=0.0).ready_nodes
    assert not accumulator.has_incomplete


def test_the_rejected_records_are_recorded(accumulator):
    """The broker's errors about single records are stored in the result (KIP-467)."""
    [wrong] = _enqueue(accumulator, batch(records=2))
    _drain(accumulator)
    accumulator.fail_batch(wrong, REFUSED, refused={1: RefusedRecord("has no key")})
    assert "has no key" in str(wrong.result.error_of(1))
    assert "has no key" not in str(wrong.result.error_of(0))


def test_lost_rows_without_a_future_are_remembered(accumulator, caplog):
    """The first loss is raised from then on, without a logged warning."""
    accumulator.remember_losses()
    first, second = _enqueue(accumulator, batch(0), batch(1))
    with caplog.at_level(logging.WARNING):
        accumulator.fail_batch(first, REFUSED)
        accumulator.fail_batch(second, DeliveryError("a later one"))
    assert [] == caplog.records
    assert accumulator.has_failed
    for use in (accumulator.raise_if_failed, lambda: accumulator.enqueue(batch())):
        with pytest.raises(DeliveryError, match="refused"):
            use()


def test_earlier_losses_are_not_remembered(accumulator):
    """Losses before `remember_losses` are not raised, because futures reported them."""
    [lost] = _enqueue(accumulator, batch())
    accumulator.fail_batch(lost, REFUSED)
    accumulator.remember_losses()
    accumulator.raise_if_failed()


def test_refuse_does_not_affect_queued_batches(accumulator, ended):
    """`refuse` affects only writing threads, and the network thread continues to the end."""
    [queued] = _enqueue(accumulator, batch())
    accumulator.refuse(REFUSED)
    accumulator.refuse(DeliveryError("a later one"))
    with pytest.raises(DeliveryError, match="refused"):
        accumulator.enqueue(batch())
    assert [queued] == _drain(accumulator)
    accumulator.complete(queued, base_offset=7)
    assert 7 == queued.result.base_offset
    assert [] == ended


def test_a_batch_refused_by_an_ended_transaction_fails(accumulator):
    """An ended transaction refuses the batch, which frees its memory and fails its futures."""
    refused = batch()
    accumulator._pool.reserve(refused.size_bytes)
    accumulator.refuse_batch(refused, REFUSED)
    assert FinalState.FAILED is refused.final_state
    assert REFUSED is refused.result.error
    assert TOTAL == accumulator._pool.available_bytes
    assert not accumulator.has_incomplete


# --- all batches fail


def test_an_abort_fails_every_batch_and_accepts_new_ones(accumulator, ended):
    """Every batch that was never sent fails once, and the producer continues."""
    batches = _enqueue(accumulator, batch(0), batch(1))
    accumulator.abort_undrained_batches(REFUSED)
    assert [REFUSED] * 2 == [each.result.error for each in batches]
    assert TOTAL == accumulator._pool.available_bytes
    assert not accumulator.has_incomplete
    assert [] == ended
    [later] = _enqueue(accumulator, batch(0))
    assert [later] == _drain(accumulator)


def test_an_abort_of_unsent_batches_keeps_those_in_flight(accumulator):
    """An abort keeps batches with sequence numbers, which must be settled with the broker."""
    sent, unsent = _enqueue(accumulator, batch(0), batch(1))
    sent.base_sequence = 0
    accumulator.abort_undrained_batches(REFUSED)
    assert (None, REFUSED) == (sent.result.error, unsent.result.error)
    assert [sent] == _drain(accumulator)


def test_the_end_of_the_producer_is_reported_once_with_its_first_error(accumulator, ended):
    """All results and waits for memory raise the first error, whatever errors come later."""
    batches = _enqueue(accumulator, batch(0), batch(0), batch(1))
    _drain(accumulator)
    accumulator.fail(REFUSED)
    accumulator.fail(ProducerClosedError("closed"))
    assert [REFUSED] * 3 == [each.result.error for each in batches]
    assert {REFUSED} == set(ended)
    assert NEVER == accumulator.next_expiry_at()
    with pytest.raises(DeliveryError, match="refused"):
        accumulator._pool.wait_for(TOTAL + 1, timeout=0)


# --- flush


def test_a_flush_without_batches_returns_at_once(accumulator):
    """Without batches a flush returns at once."""
    assert [] == accumulator.unsettled()


def test_a_flush_waits_only_for_batches_already_queued(accumulator):
    """A flush does not wait for later batches."""
    before = _enqueue(accumulator, batch(0), batch(1))
    results = accumulator.unsettled()
    _enqueue(accumulator, batch(2))
    assert [each.result for each in before] == results


def test_a_flush_waits_for_running_callbacks(accumulator):
    """A flush waits for a batch that is done but not settled, which is then forgotten."""
    [first] = _enqueue(accumulator, batch(0))
    _drain(accumulator)
    flushed = []
    first.result.call_when_done(0, lambda: flushed.extend(accumulator.unsettled()))
    accumulator.complete(first)
    assert [first.result] == flushed
    assert [] == accumulator.unsettled()


# --- expiry


def _batches_in_memory() -> list[ProducerBatch]:
    gc.collect()
    # `isinstance` would ask a weak proxy for the class of its object, which may be gone.
    return [each for each in gc.get_objects() if issubclass(type(each), ProducerBatch)]


def test_a_batch_that_cannot_be_sent_keeps_no_others_in_memory(accumulator):
    """Acknowledged batches are freed, however many there were since the unsent one was created."""
    others = {id(each) for each in _batches_in_memory()}
    [stuck] = _enqueue(accumulator, batch(0, created_at=0.0))
    for number in range(1_000):
        [done] = _enqueue(accumulator, batch(1, created_at=1.0 + number))
        accumulator.drain(ONE_NODE, NODES[0], MAX, now=2_000.0)
        accumulator.complete(done)
    del done
    assert [stuck] == [each for each in _batches_in_memory() if id(each) not in others]
    assert len(accumulator._expiries) <= MAX_STALE + 4
    assert TIMEOUT == accumulator.next_expiry_at()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.data())
def test_batches_expire_in_the_order_of_their_deadlines(times, data):
    """Exactly the batches that are due are listed, in whatever order they were created or ended."""
    accumulator = RecordAccumulator(
        pool=BufferPool(TOTAL),
        delivery_timeout=TIMEOUT,
        transaction_manager=None,
        guarantee_order=False,
    )
    batches = _enqueue(accumulator, *(batch(created_at=float(time)) for time in times))
    done = data.draw(st.sets(st.sampled_from(range(len(times)))))
    for number in done:
        accumulator.fail_batch(batches[number], REFUSED)
    left = sorted(
        (each for number, each in enumerate(batches) if number not in done),
        key=lambda each: each.created_at,
    )
    now = TIMEOUT + data.draw(st.integers(-1, 51))
    due = [each for each in left if each.created_at + TIMEOUT <= now]
    assert due == accumulator.expired_batches(now)
    assert due == accumulator.expired_batches(now)
    first = left[0].created_at + TIMEOUT if left else NEVER
    assert first == accumulator.next_expiry_at()


def test_a_batch_expires_wherever_it_is(accumulator):
    """A batch expires whether queued, in flight, muted, in its back-off or without a leader."""
    in_flight, muted = _enqueue(accumulator, batch(0), batch(0))
    _drain(accumulator)
    retried, leaderless = _enqueue(accumulator, batch(1), batch(2))
    retried.retry_at = 1_000.0
    expected = [in_flight, muted, retried, leaderless]
    assert expected == accumulator.expired_batches(TIMEOUT)


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("end", ["fail_batch", "fail"])
def test_the_memory_of_a_batch_in_flight_stays_in_use(accumulator, end, is_compressed):
    """The memory counts until no connection holds the bytes of the batch (KAFKA-19012)."""
    expired = batch(0)
    pool = accumulator._pool
    if is_compressed:
        pool.reserve(expired.size_bytes)
    else:
        expired.block = pool.try_allocate(4_096)
    taken = pool.available_bytes
    accumulator.enqueue(expired)
    _drain(accumulator)
    getattr(accumulator, end)(*([expired] if end == "fail_batch" else []), REFUSED)
    assert taken == pool.available_bytes
    accumulator.no_longer_held([expired])
    assert TOTAL == pool.available_bytes


def test_the_block_of_an_unsent_batch_is_reused(accumulator):
    """The block of a batch that was never sent is reused at once, because nothing reads it."""
    expired = batch(0)
    pool = accumulator._pool
    expired.block = block = pool.try_allocate(4_096)
    accumulator.enqueue(expired)
    accumulator.fail_batch(expired, REFUSED)
    assert pool.try_allocate(4_096) is block


def test_the_largest_delivery_timeout_does_not_overflow(ended):
    """The largest delivery.timeout.ms does not overflow."""
    accumulator = RecordAccumulator(
        pool=BufferPool(TOTAL),
        delivery_timeout=(2**31 - 1) / 1000,
        transaction_manager=None,
        guarantee_order=False,
    )
    _enqueue(accumulator, batch())
    assert [] == accumulator.expired_batches(1e6)
    assert (2**31 - 1) / 1000 == accumulator.next_expiry_at()


# --- ready and drain


def test_nothing_is_drained_for_a_node_without_partitions(accumulator):
    """Queued batches of other leaders stay queued."""
    _enqueue(accumulator, batch(0))
    assert [] == accumulator.drain(ONE_NODE, NODES[2], MAX, now=0.0)


def test_a_muted_partition_is_neither_ready_nor_drained(accumulator):
    """A muted partition waits, while other partitions of its node continue."""
    first, second, other = _enqueue(accumulator, batch(0), batch(0), batch(1))
    assert [first, other] == _drain(accumulator)
    assert () == accumulator.ready(ONE_NODE, now=0.0).ready_nodes
    assert not accumulator.is_queue_empty(first.topic_partition)
    assert [] == _drain(accumulator)
    accumulator.complete(first)
    assert [second] == _drain(accumulator)


def test_a_retried_batch_goes_to_the_new_leader(accumulator):
    """The leader at the time of the drain counts."""
    [first] = _enqueue(accumulator, batch(0))
    _drain(accumulator)
    first.retry_at = 5.0
    accumulator.reenqueue([first])
    moved = snapshot({0: 1})
    assert 5.0 == accumulator.ready(moved, now=0.0).next_check_at
    assert (NODES[1],) == accumulator.ready(moved, now=5.0).ready_nodes
    assert [] == accumulator.drain(moved, NODES[0], MAX, now=5.0)
    assert [first] == accumulator.drain(moved, NODES[1], MAX, now=5.0)


def test_a_batch_in_its_backoff_delays_the_batches_behind_it(accumulator):
    """No batch overtakes one of its partition that is in its back-off."""
    first, _, other = _enqueue(accumulator, batch(0), batch(0), batch(1))
    _drain(accumulator)
    accumulator.complete(other)
    first.retry_at = 5.0
    accumulator.reenqueue([first])
    assert [] == _drain(accumulator, now=4.0)
    assert [first] == _drain(accumulator, now=5.0)


def test_the_queues_are_counted_per_topic(accumulator):
    """Queue sizes are counted per topic; partitioners use them as weights (KIP-794)."""
    _enqueue(accumulator, batch(0), batch(0), batch(2))
    assert {0: 2, 2: 1} == accumulator.queue_sizes("t")
    assert {} == accumulator.queue_sizes("another")
