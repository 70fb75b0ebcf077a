import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.network.exponential_backoff import NEVER
from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
from spark_kafka_sink.producer.batch.producer_batch import BatchAlreadyDoneError, FinalState
from spark_kafka_sink.producer.sending.record_accumulator import RecordAccumulator
from tests.support.producer.producer_batches import NODES, batch, snapshot
from tests.support.producer.transaction_managers import manager_with_id

MAX = 1_000_000
ONE_NODE = snapshot({0: 0, 1: 0, 2: 0})


def _accumulator(*, idempotent: bool = True, guarantee_order: bool = False) -> RecordAccumulator:
    manager = manager_with_id(ProducerIdAndEpoch(1, 0)) if idempotent else None
    if manager is not None:
        for partition in range(3):
            # Until a partition's first batch is acknowledged no second one is sent.
            first = batch(partition)
            manager.sequences.assign(first)
            manager.sequences.acknowledge(first)
    return RecordAccumulator(
        pool=BufferPool(10_000_000),
        delivery_timeout=120.0,
        transaction_manager=manager,
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


def test_the_sender_must_look_for_the_first_batch_of_a_queue_only(accumulator):
    """What lets the first batch be sent also lets the sender go on with those behind it."""
    first, behind, other, next_one = batch(0), batch(0), batch(1), batch(0)
    answers = [accumulator.enqueue(each) for each in (first, behind, other)]
    assert [True, False, True] == answers
    for each in (first, behind):
        assert each in accumulator.drain(snapshot({0: 0, 1: 1}), NODES[0], 10_000, 0.0)
    assert accumulator.enqueue(next_one)


def test_the_leaders_of_queued_batches_are_ready(accumulator):
    """A node is ready only if it leads a partition with a queued batch."""
    _enqueue(accumulator, batch(0), batch(2))
    ready = accumulator.ready(snapshot({0: 0, 1: 1, 2: 2}), now=0.0)
    assert (NODES[0], NODES[2]) == ready.ready_nodes
    assert NEVER == ready.next_check_at
    assert frozenset() == ready.unknown_leader_topics


def test_a_partition_without_a_leader_is_reported_and_not_ready(accumulator):
    """A batch whose leader is unknown makes its topic's metadata wanted."""
    _enqueue(accumulator, batch(1))
    ready = accumulator.ready(snapshot({0: 0, 1: None}), now=0.0)
    assert () == ready.ready_nodes
    assert frozenset({"t"}) == ready.unknown_leader_topics


def test_a_batch_is_not_ready_during_its_backoff(accumulator):
    """A failed batch waits for its back-off, and the accumulator returns when that ends."""
    [first] = _enqueue(accumulator, batch())
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    first.retry_at = 5.0
    accumulator.reenqueue([first])
    waiting = accumulator.ready(ONE_NODE, now=4.9)
    assert ((), 5.0) == (waiting.ready_nodes, waiting.next_check_at)
    assert [] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=4.9)
    assert (NODES[0],) == accumulator.ready(ONE_NODE, now=5.0).ready_nodes
    assert [first] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=5.0)


def test_a_drain_takes_one_batch_of_each_partition(accumulator):
    """A request holds at most one batch of each partition, in queue order."""
    first, second, other = _enqueue(accumulator, batch(0), batch(0), batch(1))
    assert [first, other] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    assert [second] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    assert [] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)


def test_a_drain_takes_only_partitions_that_the_node_leads(accumulator):
    """Only batches whose partitions the node leads are drained."""
    mine, _ = _enqueue(accumulator, batch(0), batch(1))
    assert [mine] == accumulator.drain(snapshot({0: 0, 1: 1}), NODES[0], MAX, now=0.0)


def test_a_drain_stops_before_the_request_exceeds_its_limit(accumulator):
    """Batches are taken while they fit, and the next drain starts with the first one left."""
    batches = _enqueue(accumulator, *(batch(p, size=400) for p in range(3)))
    assert list(batches[:2]) == accumulator.drain(ONE_NODE, NODES[0], 1_000, now=0.0)
    assert [batches[2]] == accumulator.drain(ONE_NODE, NODES[0], 1_000, now=0.0)


def test_a_single_batch_over_the_limit_is_taken_alone(accumulator):
    """A batch larger than max.request.size is sent in a request of its own."""
    big, _ = _enqueue(accumulator, batch(0, size=5_000), batch(1))
    assert [big] == accumulator.drain(ONE_NODE, NODES[0], 1_000, now=0.0)


def test_no_partition_starves_when_requests_are_small(accumulator):
    """With room for one batch in a request, partitions take turns."""
    _enqueue(accumulator, *(batch(p) for _ in range(2) for p in range(3)))
    served = [
        accumulator.drain(ONE_NODE, NODES[0], 1, now=0.0)[0].topic_partition.partition
        for _ in range(6)
    ]
    assert [0, 1, 2, 0, 1, 2] == served


def test_retried_batches_precede_new_ones_in_sequence_order(accumulator):
    """Batches reenqueued in any order are drained in sequence order, before new ones."""
    a, b, c = _enqueue(accumulator, batch(), batch(), batch())
    for _ in range(2):
        accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.reenqueue([b])
    accumulator.reenqueue([a])
    drained = []
    for _ in range(3):
        [head] = accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
        drained.append(head)
        accumulator.complete(head)
    assert [a, b, c] == drained


def test_only_the_oldest_retried_batch_is_in_flight(accumulator):
    """While a batch is retried, the batches behind it wait for its response."""
    a, b = _enqueue(accumulator, batch(), batch())
    for _ in range(2):
        accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.reenqueue([a])
    accumulator.reenqueue([b])
    assert [a] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    assert [] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.complete(a)
    assert [b] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)


def test_with_one_request_in_flight_a_partition_waits_for_the_response():
    """With one request in flight and no idempotence, a partition is muted until the response."""
    accumulator = _accumulator(idempotent=False, guarantee_order=True)
    first, second = _enqueue(accumulator, batch(), batch())
    assert [first] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    assert () == accumulator.ready(ONE_NODE, now=0.0).ready_nodes
    assert [] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.reenqueue([first])
    assert [first] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.complete(first)
    assert [second] == accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)


def test_a_batch_expires_by_the_time_since_it_was_closed(accumulator):
    """delivery.timeout.ms counts from the closing of a batch."""
    first, _ = _enqueue(accumulator, batch(created_at=1.0), batch(created_at=2.0))
    assert 121.0 == accumulator.next_expiry_at()
    assert [] == accumulator.expired_batches(now=120.9)
    assert [first] == accumulator.expired_batches(now=121.0)


def test_a_completed_batch_releases_its_memory(accumulator):
    """The bytes of an acknowledged batch are free again."""
    before = accumulator._pool.available_bytes
    [first] = _enqueue(accumulator, batch(size=1_000))
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    assert before - 1_061 == accumulator._pool.available_bytes
    accumulator.no_longer_held([first])
    accumulator.complete(first)
    assert before == accumulator._pool.available_bytes
    assert not accumulator.has_incomplete


def test_completing_a_batch_twice_raises_an_error(accumulator):
    """Completing a batch twice is a bug in the producer, and raises an error."""
    [first] = _enqueue(accumulator, batch())
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.complete(first)
    with pytest.raises(
        BatchAlreadyDoneError, match="has already SUCCEEDED: it cannot become SUCCEEDED"
    ):
        accumulator.complete(first)


def test_a_flush_times_out_while_a_batch_is_unacknowledged(accumulator):
    """A flush waits for each batch that is not done, and returns False on a timeout."""
    done, waiting = _enqueue(accumulator, batch(0), batch(1))
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    accumulator.complete(done)
    results = accumulator.unsettled()
    assert [waiting.result] == results
    assert not results[0].wait_for_all(deadline=5.0, clock=lambda: 5.0)
    accumulator.complete(waiting)
    assert results[0].wait_for_all(deadline=5.0, clock=lambda: 5.0)


def test_a_failure_fails_all_batches_and_calls_with_the_first_error(accumulator):
    """After a failure all batches have failed, and all calls raise the first error."""
    [first] = _enqueue(accumulator, batch())
    accumulator.fail(DeliveryError("the first error"))
    accumulator.fail(DeliveryError("a later one"))
    assert FinalState.FAILED is first.final_state
    assert first.result.has_ended
    assert "the first error" == str(first.result.error)
    with pytest.raises(DeliveryError, match="the first error"):
        accumulator.raise_if_failed()
    with pytest.raises(DeliveryError, match="the first error"):
        accumulator.enqueue(batch())
    with pytest.raises(DeliveryError, match="the first error"):
        accumulator._pool.try_allocate(2_048)


def test_the_parts_of_a_split_batch_take_its_place(accumulator):
    """A batch that is too large is replaced by its parts, ahead of the batches that follow."""
    whole, follower = _enqueue(accumulator, batch(records=4, size=1_000), batch())
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    whole.is_in_flight = False
    halves = [batch(records=2, size=500), batch(records=2, size=500)]
    accumulator.replace(whole, halves)
    drained = []
    for _ in range(3):
        [head] = accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
        drained.append(head)
        accumulator.no_longer_held([head])
        accumulator.complete(head)
    assert [*halves, follower] == drained
    assert [1, 3, 5] == [b.base_sequence for b in drained]
    assert not accumulator.has_incomplete
    assert 10_000_000 == accumulator._pool.available_bytes


def test_the_parts_of_a_split_batch_expire_with_it(accumulator):
    """A split does not extend the deadline, and the parts come before younger batches."""
    [refused, later] = _enqueue(
        accumulator, batch(records=4, created_at=0.0), batch(1, created_at=100.0)
    )
    accumulator.drain(ONE_NODE, NODES[0], MAX, now=0.0)
    refused.is_in_flight = False
    parts = [batch(records=2, created_at=0.0) for _ in range(2)]
    accumulator.replace(refused, parts)
    assert 120.0 == accumulator.next_expiry_at()
    assert parts == accumulator.expired_batches(120.0)
    assert [*parts, later] == accumulator.expired_batches(220.0)
