"""Which transactions of a prefix count as open."""

from __future__ import annotations

import pytest

from spark_kafka_sink.admin.transaction_values import TransactionDescription, TransactionListing
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger import Budget
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

PRODUCER = ProducerIdAndEpoch(4000, 0)
PARTITIONS = (TopicPartition("t", 0),)
WORKER = "0" * 32
OPEN, ENDED, GONE, OTHERS = (f"{name}.{WORKER}.{n}" for n, name in enumerate(["p", "p", "p", "q"]))


class _Admin:
    """Lists three ids as open, of which one has ended and one is gone when they are described."""

    def list_transactions(self, accepts, *, states, pattern, timeout):
        del states, pattern, timeout
        ids = [name for name in (OPEN, ENDED, GONE, OTHERS) if accepts(name)]
        return [TransactionListing(name, PRODUCER.producer_id, "Ongoing") for name in ids]

    def describe_transactions(self, ids, *, timeout):
        del timeout
        states = {OPEN: "Ongoing", ENDED: "CompleteCommit"}
        return {
            name: self._described(name, states[name]) if name in states else None for name in ids
        }

    def _described(self, name, state):
        return TransactionDescription(
            transactional_id=name,
            state=state,
            producer=PRODUCER,
            timeout_ms=60_000,
            start_time_ms=None,
            partitions=PARTITIONS,
        )


def test_a_transaction_that_has_ended_since_it_was_listed_is_not_open():
    """Neither one that was committed meanwhile, nor one whose id the coordinator has forgotten."""
    found = recovery.list_open(_Admin(), "p", Budget(lambda: 0.0, 1.0))
    assert [recovery.OpenTransaction(OPEN, PRODUCER, PARTITIONS)] == found


def test_transactions_that_are_left_out_are_not_described():
    """The driver has already described its own tasks' transactions when it lists the others."""
    admin = _Admin()
    admin.describe_transactions = lambda ids, *, timeout: dict.fromkeys(ids, pytest.fail)
    budget = Budget(lambda: 0.0, 1.0)
    assert [] == recovery.list_open(admin, "p", budget, without={OPEN, ENDED, GONE})
