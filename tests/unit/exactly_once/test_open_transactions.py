"""Which transactions of a prefix count as open."""

from __future__ import annotations

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

    def describe_and_list(self, ids, accepts, **others):
        described = self.describe_transactions(ids, timeout=others["timeout"])
        return described, self.list_transactions(accepts, **others)

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


def test_described_transactions_are_not_listed_as_well():
    """The driver describes its own tasks' transactions, and lists only the others."""
    found = recovery.describe_and_list_open(_Admin(), "p", [ENDED, GONE], Budget(lambda: 0.0, 1.0))
    described = {ENDED: "CompleteCommit", GONE: None}
    assert (described, [recovery.OpenTransaction(OPEN, PRODUCER, PARTITIONS)]) == (
        {name: each and each.state for name, each in found[0].items()},
        found[1],
    )


def test_without_others_nothing_is_described_twice():
    """A commit whose tasks' transactions are the only open ones asks once."""
    admin = _Admin()
    asked = []
    describe = admin.describe_transactions
    admin.describe_transactions = lambda ids, **others: asked.append(ids) or describe(ids, **others)
    recovery.describe_and_list_open(admin, "p", [OPEN, ENDED, GONE], Budget(lambda: 0.0, 1.0))
    assert [[OPEN, ENDED, GONE]] == asked
