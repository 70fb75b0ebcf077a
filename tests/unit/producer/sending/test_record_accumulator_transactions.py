"""Batches of a transaction in the accumulator, whatever the outcome of the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.errors import KafkaError, TransactionAbortedError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.sender_harness import BACKOFF, SenderHarness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def either(request: pytest.FixtureRequest) -> Iterator[SenderHarness]:
    """Yield a transactional producer, once under each transaction.version (KIP-890)."""
    with SenderHarness(transaction_version=request.param, transactional_id="orders.7") as harness:
        yield harness


def test_a_sent_batch_is_retried_although_its_transaction_failed(either):
    """A batch that the broker may have must be settled, and ends as the broker responds."""
    [added] = either.begin(0)
    either.produce(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    either.manager.maybe_transition_to_error_state(KafkaError("elsewhere"))
    assert either.manager.state.has_abortable_error
    either.step(2 * BACKOFF)
    either.produce(offset=7)
    assert (None, 7) == (added.result.error, added.result.base_offset)


def test_an_unsent_batch_is_dropped_by_the_abort(either):
    """The record of a dropped batch fails with the abort, and its memory is freed."""
    either.begin(0)
    either.produce()
    unsent = either.add(0)
    either.manager.begin_abort()
    either.step()
    assert isinstance(unsent.result.error, TransactionAbortedError)
    assert not either.accumulator.has_incomplete
