"""Batches whose broker has stopped reading: a batch reported as failed is never sent."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.batch.producer_batch import FinalState
from tests.support.producer.sender_harness import LATER, PLAIN, SenderHarness

DELIVERY_TIMEOUT = 120.0
BOTH = pytest.mark.parametrize("acks", ["0", "1"])


def _harness(acks: str) -> SenderHarness:
    return SenderHarness(acks=acks, **PLAIN)


def _add(harness: SenderHarness, partition: int = 0):
    added = harness.add(partition)
    harness.accumulator._pool.reserve(added.size_bytes)
    return added


def _free_bytes(harness: SenderHarness) -> int:
    return harness.accumulator._pool.available_bytes


@BOTH
def test_only_one_request_at_a_time_waits_for_the_socket(acks):
    """Queued batches, which can expire, wait until the request before them is sent in full."""
    with _harness(acks) as harness:
        harness.network.stalled = {0}
        first, second = _add(harness), _add(harness)
        harness.step()
        assert [True, False] == [first.is_in_flight, second.is_in_flight]


@BOTH
def test_an_expired_batch_that_was_partly_sent_closes_its_connection(acks):
    """The connection of an expired batch is closed first, so no byte is sent after it fails."""
    with _harness(acks) as harness:
        free = _free_bytes(harness)
        harness.network.stalled = {0}
        expired = _add(harness)
        harness.step()
        [sent] = harness.network.sent
        harness.step(DELIVERY_TIMEOUT)
        assert sent._future.done()
        harness.step(LATER)
        assert isinstance(expired.result.error.__cause__, DeliveryTimeoutError)
        assert "had not yet read" in str(expired.result.error)
        assert free == _free_bytes(harness)


@BOTH
def test_other_batches_of_the_closed_connection_are_resent(acks):
    """A batch of the same request that has not expired is resent over the next connection."""
    with SenderHarness(acks=acks, leaders={0: 0, 1: 0}, **PLAIN) as harness:
        harness.network.stalled = {0}
        expired = _add(harness, 0)
        harness.network.down = {0}
        harness.step(DELIVERY_TIMEOUT - 1)
        younger = _add(harness, 1)
        harness.network.down = set()
        harness.step()
        harness.step(1)
        harness.step(LATER)
        assert [FinalState.FAILED, None] == [expired.final_state, younger.final_state]
        assert [1] == [
            data.index
            for sent in harness.network.sent
            if not sent._future.done()
            for data in sent.request.topic_data[0].partition_data
        ]


def test_a_batch_sent_just_before_it_expires_succeeds():
    """A batch that the socket took before it could expire succeeds."""
    with _harness("0") as harness:
        sent = _add(harness)
        harness.step()
        harness.network.sent[0].answer(None)
        harness.now += DELIVERY_TIMEOUT
        # This runs before the loop has called back about the future.
        harness.sender.run_once(harness.now)
        assert not sent.is_done
        harness.step()
        assert FinalState.SUCCEEDED is sent.final_state


def test_a_batch_in_flight_expires_and_keeps_its_memory():
    """The batch may have been appended, so it fails at once and counts until the response."""
    with _harness("1") as harness:
        free = _free_bytes(harness)
        expired = _add(harness)
        harness.step()
        harness.step(DELIVERY_TIMEOUT)
        assert FinalState.FAILED is expired.final_state
        assert free > _free_bytes(harness)
        harness.produce()
        assert free == _free_bytes(harness)
