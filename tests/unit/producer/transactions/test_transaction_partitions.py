"""Which partitions a transaction includes, and whether it has begun on the brokers."""

from __future__ import annotations

from spark_kafka_sink.producer.transactions.transaction_partitions import TransactionPartitions
from tests.support.producer.sender_harness import place

ONE, OTHER = place(0), place(1)


def test_a_partition_is_added_once_the_coordinator_has_accepted_it():
    """Before that nothing can be sent to it, and the coordinator may know of no transaction."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    assert {ONE} == partitions.take_new()
    assert (False, False) == (ONE in partitions, partitions.is_started)
    partitions.accepted(frozenset({ONE}))
    assert (True, True) == (ONE in partitions, partitions.is_started)
    assert (True, False) == (partitions.has_added, OTHER in partitions)


def test_a_partition_is_requested_once():
    """A partition that is pending or added is not requested for later batches."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    partitions.take_new()
    partitions.request(ONE)
    assert not partitions.take_new()
    partitions.accepted(frozenset({ONE}))
    partitions.request(ONE)
    assert not partitions.take_new()


def test_a_rejected_partition_can_be_requested_again():
    """It is neither pending nor added, and other partitions keep their place."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    partitions.request(OTHER)
    partitions.take_new()
    partitions.refused(frozenset({ONE}))
    partitions.request(ONE)
    partitions.request(OTHER)
    assert {ONE} == partitions.take_new()
    assert not partitions.has_added


def test_a_partition_is_added_at_once_if_produce_adds_it():
    """Under TV2 a batch may be sent at once, after which the coordinator knows the transaction."""
    partitions = TransactionPartitions()
    partitions.add(ONE)
    assert (True, True) == (ONE in partitions, partitions.is_started)
    assert not partitions.take_new()


def test_new_partitions_of_an_aborted_transaction_are_dropped():
    """They are not requested, while those requested before stay pending."""
    partitions = TransactionPartitions()
    partitions.request(ONE)
    partitions.take_new()
    partitions.request(OTHER)
    partitions.drop_new()
    partitions.request(ONE)
    assert not partitions.take_new()


def test_the_next_transaction_starts_empty():
    """No partition counts as requested or added from an earlier transaction."""
    partitions = TransactionPartitions()
    partitions.add(ONE)
    partitions.request(OTHER)
    partitions.take_new()
    partitions.note_started()
    partitions.clear()
    assert (False, False) == (partitions.is_started, partitions.has_added)
    partitions.request(ONE)
    partitions.request(OTHER)
    assert {ONE, OTHER} == partitions.take_new()
