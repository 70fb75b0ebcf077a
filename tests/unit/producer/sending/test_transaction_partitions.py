"""Which partitions a transaction includes, and whether it has begun on the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.transaction_state import (
    TransactionPartitions,
    TransactionState,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.producer.sender_harness import place
from tests.support.producer.transaction_managers import manager_in_state, waiting

if TYPE_CHECKING:
    from spark_kafka_sink.model import TopicPartition

ONE, OTHER = place(0), place(1)


def _request_new(partitions: TransactionPartitions) -> frozenset[TopicPartition]:
    new = partitions.new
    partitions.requested(new)
    return new


def test_a_partition_is_added_once_the_coordinator_has_accepted_it():
    """Before that nothing can be sent to it, and the coordinator may know of no transaction."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    assert {ONE} == _request_new(partitions)
    assert (False, False) == (ONE in partitions, partitions.is_started)
    partitions.accepted(frozenset({ONE}))
    assert (True, True) == (ONE in partitions, partitions.is_started)
    assert (True, False) == (partitions.has_added, OTHER in partitions)


def test_a_partition_is_requested_once():
    """A partition that is pending or added is not requested for later batches."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    _request_new(partitions)
    partitions.request(ONE)
    assert not _request_new(partitions)
    partitions.accepted(frozenset({ONE}))
    partitions.request(ONE)
    assert not _request_new(partitions)


def test_a_rejected_partition_can_be_requested_again():
    """It is neither pending nor added, and other partitions keep their place."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    partitions.request(OTHER)
    _request_new(partitions)
    partitions.refused(frozenset({ONE}))
    partitions.request(ONE)
    partitions.request(OTHER)
    assert {ONE} == _request_new(partitions)
    assert not partitions.has_added


def test_a_partition_is_added_at_once_if_produce_adds_it():
    """Under TV2 a batch may be sent at once, after which the coordinator knows the transaction."""
    partitions = TransactionPartitions()
    partitions.add(ONE)
    assert (True, True) == (ONE in partitions, partitions.is_started)
    assert not _request_new(partitions)


def test_new_partitions_of_an_aborted_transaction_are_dropped():
    """They are not requested, while those requested before stay pending."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    _request_new(partitions)
    partitions.request(OTHER)
    partitions.drop_new()
    partitions.request(ONE)
    assert not _request_new(partitions)


def test_the_next_transaction_starts_empty():
    """No partition counts as requested or added from an earlier transaction."""
    partitions = TransactionPartitions()
    partitions.add(ONE)
    partitions.request(OTHER)
    _request_new(partitions)
    partitions.is_started = True
    partitions.clear()
    assert (False, False) == (partitions.is_started, partitions.has_added)
    partitions.request(ONE)
    partitions.request(OTHER)
    assert {ONE, OTHER} == _request_new(partitions)


def test_new_partitions_are_requested_again_after_an_interrupt(monkeypatch):
    """A caller who is interrupted before the request is queued leaves them new, not pending."""
    manager = manager_in_state(ProducerIdAndEpoch(7, 0), TransactionState.IN_TRANSACTION)
    manager._partitions.request(ONE)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(manager._queue, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager._request_new_partitions()

    manager._request_new_partitions()

    assert [ApiKey.ADD_PARTITIONS_TO_TXN] == waiting(manager)
