"""An operator's view of exactly-once writes: their ledger, open transactions, blocked consumers.

Read-only: it fences no producer and ends no transaction. A read_committed consumer cannot read past
the last stable offset (LSO) of a partition, where the oldest open transaction begins. A partition
whose LSO is below its high watermark therefore holds such consumers back, and the cause is the
producer whose transaction begins at the LSO. The partition does not know that producer's
transactional id; only the coordinator does. So the transactions of all brokers are listed,
including those of other applications.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger.ledger import unreadable_entries
from spark_kafka_sink.exactly_once.ledger.transitions import WriteState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.ledger.budget import Budget
    from spark_kafka_sink.exactly_once.ledger.ledger import UnreadableEntry
    from spark_kafka_sink.exactly_once.ledger.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger.ledger_records import Claim, WriteRecord
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

_UNFINISHED = (WriteState.DECIDED, WriteState.MIXED)
_PREPARING = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Holder(NamedTuple):
    """A producer whose open transaction holds back a partition's read_committed consumers."""

    producer: ProducerIdAndEpoch
    #: The offset at which its transaction begins in the partition.
    start_offset: int
    #: None if no coordinator lists it, or not to this user.
    transactional_id: str | None
    #: Seconds since the transaction began, by the coordinator's start time; None if unknown.
    open_seconds: float | None


class HeldBack(NamedTuple):
    """A partition whose read_committed consumers are held back."""

    topic_partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    #: Oldest first; empty if the transaction has just ended.
    holders: tuple[Holder, ...]


class PrefixReport(NamedTuple):
    """The ledger entries and open transactions of a prefix."""

    prefix: str
    #: Whether the ledger has entries of the prefix.
    is_known: bool
    #: None before the first claim, or if it cannot be read.
    claim: Claim | None
    #: The readable writes.
    writes: Mapping[str, WriteRecord]
    unreadable: Sequence[UnreadableEntry]
    #: The open transactions of its tasks.
    open_transactions: tuple[TransactionDescription, ...]

    @property
    def needs_an_operator(self) -> bool:
        """Whether a partly visible write is waiting for an operator to resolve it."""
        return any(record.write.state is WriteState.MIXED for record in self.writes.values())

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions of open transactions, and of decided or mixed batches."""
        open_ones = {
            partition
            for transaction in self.open_transactions
            for partition in transaction.partitions
        }
        return open_ones | {
            written.topic_partition
            for record in self.writes.values()
            if record.write.state in _UNFINISHED
            for winner in record.winners
            for written in winner.ranges
        }


def inspect(
    admin: DriverClient, prefix: str, state: LedgerState, *, ledger_topic: str, budget: Budget
) -> PrefixReport:
    """Build a report from the ledger entries of a prefix and its tasks' open transactions."""
    contents = state.decode_all()
    unreadable = unreadable_entries(admin, ledger_topic, contents.unreadable, budget)
    ids = [
        transaction.transactional_id for transaction in recovery.list_open(admin, prefix, budget)
    ]
    described = admin.describe_transactions(ids, timeout=budget.left("describing transactions"))
    return PrefixReport(
        prefix,
        not state.is_empty,
        contents.claim,
        contents.writes,
        unreadable,
        tuple(
            transaction
            for transaction in described.values()
            if transaction is not None and transaction.is_open
        ),
    )


def held_back(
    admin: DriverClient, partitions: Iterable[TopicPartition], *, now_ms: int, budget: Budget
) -> list[HeldBack]:
    """Return those of the partitions that hold back read_committed consumers, with the producers.

    Raises BrokerError if the user may not read a partition.
    """
    what = "comparing offsets"
    waiting = []
    for partition in sorted(set(partitions)):
        # The high watermark first: records written between the two requests would otherwise make
        # the partition look held back.
        high_watermark = admin.end_offset(partition, timeout=budget.left(what))
        stable = admin.last_stable_offset(partition, timeout=budget.left(what))
        if stable < high_watermark:
            producers = admin.open_producers(partition, timeout=budget.left(what))
            waiting.append((partition, stable, high_watermark, producers))
    if not waiting:
        return []
    owners = _owners(admin, budget)
    return [
        HeldBack(
            partition,
            stable,
            high_watermark,
            tuple(
                _holder(producer.producer, producer.start_offset, owners, now_ms)
                for producer in producers
            ),
        )
        for partition, stable, high_watermark, producers in waiting
    ]


def _owners(admin: DriverClient, budget: Budget) -> Mapping[int, TransactionDescription]:
    """Return all open transactions of the cluster by producer id."""
    what = "listing transactions"
    listed = admin.list_transactions(lambda _: True, states=_PREPARING, timeout=budget.left(what))
    described = admin.describe_transactions(
        [transaction.transactional_id for transaction in listed], timeout=budget.left(what)
    )
    return {
        transaction.producer.producer_id: transaction
        for transaction in described.values()
        if transaction is not None
    }


def _holder(
    producer: ProducerIdAndEpoch,
    start_offset: int,
    owners: Mapping[int, TransactionDescription],
    now_ms: int,
) -> Holder:
    owner = owners.get(producer.producer_id)
    if owner is None:
        return Holder(producer, start_offset, None, None)
    return Holder(producer, start_offset, owner.transactional_id, open_seconds(owner, now_ms))


def open_seconds(transaction: TransactionDescription, now_ms: int) -> float | None:
    """Return how many seconds a transaction has been open; None if its coordinator does not say."""
    if transaction.start_time_ms is None:
        return None
    return max(now_ms - transaction.start_time_ms, 0) / 1000
