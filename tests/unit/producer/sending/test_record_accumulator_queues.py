"""Which queued batches are ready, drained and dropped, on both sides of each limit."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.sending import record_accumulator
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from tests.support.producer.producer_batches import NODES, batch, snapshot

MAX = 1_000_000
TOTAL = 10_000_000
ONE_NODE = snapshot(dict.fromkeys(range(6), 0))


def _accumulator(*, guarantee_order: bool = False) -> RecordAccumulator:
    return RecordAccumulator(
        pool=BufferPool(TOTAL),
        delivery_timeout=120.0,
        transaction_manager=None,
        guarantee_order=guarantee_order,
    )


@pytest.fixture
def accumulator() -> RecordAccumulator:
    return _accumulator()


def _enqueue(accumulator, *batches):
    for each in batches:
        accumulator._pool.reserve(each.size_bytes)
        accumulator.enqueue(each)
    return batches


def _drain(accumulator, max_bytes: int = MAX, now: float = 0.0):
    return accumulator.drain(ONE_NODE, NODES[0], max_bytes, now)


# --- ready


def test_a_batch_is_ready_after_its_backoff(accumulator):
    """The earliest end of several back-offs is the time of the next check."""
    batches = _enqueue(accumulator, *(batch(partition) for partition in range(3)))
    for each, retry_at in zip(batches, (7.0, 5.0, 6.0), strict=True):
        each.retry_at = retry_at
    three = snapshot({0: 0, 1: 1, 2: 2})
    found = [accumulator.ready(three, now) for now in (4.9, 5.0, 6.5, 7.0)]
    assert [(), (NODES[1],), (NODES[1], NODES[2]), (NODES[0], NODES[1], NODES[2])] == [
        each.ready_nodes for each in found
    ]
    assert [5.0, 6.0, 7.0, NEVER] == [each.next_check_at for each in found]


def test_the_first_batch_of_a_partition_decides_whether_it_is_ready(accumulator):
    """The batches behind it wait with it, and none of them delays it."""
    first, second = _enqueue(accumulator, batch(0), batch(0))
    first.retry_at, second.retry_at = 5.0, 9.0
    assert 5.0 == accumulator.ready(ONE_NODE, 0.0).next_check_at
    assert (NODES[0],) == accumulator.ready(ONE_NODE, 5.0).ready_nodes
    assert [first] == _drain(accumulator, now=5.0)
    first, second = _enqueue(accumulator, batch(1), batch(1))
    second.is_compressed = False
    assert (NODES[0],) == accumulator.ready(ONE_NODE, 0.0).ready_nodes
    first.is_compressed, second.is_compressed = False, True
    assert () == accumulator.ready(ONE_NODE, 0.0).ready_nodes


def test_partitions_that_wait_for_a_response_do_not_delay_others():
    """With one batch per partition in flight, other partitions are still checked."""
    accumulator = _accumulator(guarantee_order=True)
    _enqueue(accumulator, batch(0), batch(0))
    _drain(accumulator)
    assert () == accumulator.ready(ONE_NODE, 0.0).ready_nodes
    later, last = _enqueue(accumulator, batch(1), batch(2))
    assert (NODES[0],) == accumulator.ready(ONE_NODE, 0.0).ready_nodes
    assert [later, last] == _drain(accumulator)


# --- drain


def test_a_partition_that_cannot_be_drained_does_not_delay_others(accumulator):
    """A partition that another node leads, or that is in its back-off, does not delay others."""
    waiting, elsewhere, mine = _enqueue(accumulator, batch(0), batch(1), batch(2))
    waiting.retry_at = 5.0
    leaders = snapshot({0: 0, 1: 1, 2: 0})
    assert [mine] == accumulator.drain(leaders, NODES[0], MAX, now=4.9)
    assert [waiting] == accumulator.drain(leaders, NODES[0], MAX, now=5.0)
    assert [elsewhere] == accumulator.drain(leaders, NODES[1], MAX, now=5.0)


@pytest.mark.parametrize(
    ("max_bytes", "drained"), [(1, 1), (321, 1), (322, 2), (482, 2), (483, 3), (MAX, 3)]
)
def test_a_request_can_be_filled_to_its_last_byte(accumulator, max_bytes, drained):
    """A batch takes 161 bytes with its header, and the first one is taken whatever its size."""
    batches = _enqueue(accumulator, *(batch(partition) for partition in range(3)))
    assert list(batches[:drained]) == _drain(accumulator, max_bytes)


def test_a_batch_that_does_not_fit_ends_the_request(accumulator):
    """A batch that does not fit starts the next request, so smaller ones cannot starve it."""
    first, large, small = _enqueue(accumulator, batch(0), batch(1, size=900), batch(2))
    assert [first] == _drain(accumulator, 1_000)
    assert [large] == _drain(accumulator, 1_000)
    assert [small] == _drain(accumulator, 1_000)


def test_a_drained_batch_is_in_flight_until_its_response(accumulator):
    """A drained batch stays in flight until its response, and other batches are not affected."""
    drained, queued = _enqueue(accumulator, batch(0), batch(0))
    _drain(accumulator)
    assert [(True, False), (False, False)] == [
        (each.is_in_flight, each.is_with_worker) for each in (drained, queued)
    ]
    drained.is_with_worker = True
    accumulator.no_longer_held([drained])
    assert (False, False) == (drained.is_in_flight, drained.is_with_worker)


# --- queues


def test_queued_batches_are_counted_by_partition_and_topic(accumulator):
    """Topics whose names sort next to it are not counted."""
    _enqueue(accumulator, batch(0), batch(0), batch(2))
    for topic in ("s", "u"):
        other = batch(1)
        other.topic_partition = TopicPartition(topic, 1)
        _enqueue(accumulator, other)
    assert [{0: 2, 2: 1}, {1: 1}, {1: 1}, {}] == [
        accumulator.queue_sizes(topic) for topic in ("t", "s", "u", "v")
    ]


def test_a_queue_is_empty_without_queued_or_unacknowledged_batches():
    """A partition's queue is empty only if a new batch would be the next to be sent."""
    accumulator = _accumulator(guarantee_order=True)
    place = TopicPartition("t", 0)
    assert accumulator.is_queue_empty(place)
    [first] = _enqueue(accumulator, batch(0))
    assert not accumulator.is_queue_empty(place)
    _drain(accumulator)
    assert not accumulator.is_queue_empty(place)
    accumulator.complete(first)
    assert accumulator.is_queue_empty(place)


# --- losses


def test_only_the_first_loss_is_raised(accumulator):
    """Only the first loss is raised, because later ones often follow from it."""
    errors = [DeliveryError(str(number)) for number in range(3)]
    accumulator.note_loss(errors[0])
    accumulator.raise_if_lost()
    assert not accumulator.has_failed
    accumulator.remember_losses()
    for error in errors[1:]:
        accumulator.note_loss(error)
        assert errors[1] is accumulator.failed_by
        with pytest.raises(DeliveryError, match="1"):
            accumulator.raise_if_lost()
        with pytest.raises(DeliveryError, match="1"):
            accumulator.raise_if_failed()


# --- expiry


def test_stale_expiries_are_dropped_once_they_are_the_majority(accumulator, monkeypatch):
    """Stale entries are dropped once all entries exceed 64 plus two per other batch."""
    queued: list[int] = []
    dropped_at: list[int] = []
    monkeypatch.setattr(record_accumulator, "heapify", lambda _: dropped_at.append(len(queued)))
    _enqueue(accumulator, batch(1), batch(2))
    for number in range(150):
        [each] = _enqueue(accumulator, batch(0, created_at=float(number)))
        queued.append(number)
        _drain(accumulator)
        accumulator.complete(each)
    assert [69, 138] == dropped_at
    assert 120.0 == accumulator.next_expiry_at()


@pytest.mark.parametrize("ended", range(4))
def test_the_oldest_unfinished_batch_is_the_next_to_expire(accumulator, ended):
    """Ended batches no longer expire, however many there were before."""
    batches = _enqueue(accumulator, *(batch(p, created_at=10.0 * p) for p in range(4)))
    assert [] == accumulator.expired_batches(119.9)
    _drain(accumulator)
    for each in batches[:ended]:
        accumulator.complete(each)
    assert 120.0 + 10.0 * ended == accumulator.next_expiry_at()
    for each in batches[ended:]:
        accumulator.complete(each)
    assert NEVER == accumulator.next_expiry_at()
    assert [] == accumulator.expired_batches(NEVER)


def test_an_expired_batch_is_listed_again(accumulator):
    """An expired batch may be spared, as during a throttle, and is listed again in order."""
    batches = _enqueue(accumulator, *(batch(p, created_at=30.0 - 10 * p) for p in range(4)))
    for _ in range(2):
        assert list(batches[:0:-1]) == accumulator.expired_batches(140.0)
        assert 120.0 == accumulator.next_expiry_at()
    assert [*batches[::-1]] == accumulator.expired_batches(150.0)
