"""An operator's view of a prefix, and the repairs that an operator can make.

Inspecting is read-only: it fences no producer and ends no transaction. A read_committed consumer
cannot read past the last stable offset (LSO) of a partition, where the oldest open transaction
begins. A partition whose LSO is below its high watermark therefore holds such consumers back, and
the cause is the producer whose transaction begins at the LSO. The partition does not know that
producer's transactional id; only the coordinator does. So the transactions of all brokers are
listed, including those of other applications.

Rolling forward, aborting and resolving follow the same rules as a driver: they fence the ledger and
read it first. Rolling forward is also the first step of every plan. Aborting claims a generation
before it ends any transaction, so that a running driver can no longer decide the transactions being
aborted. Decided transactions are never aborted, only rolled forward. Listed transactions are ended
by producer id and epoch, so later ones are not affected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.errors import (
    ExactlyOnceError,
    LedgerFencedError,
    LedgerOutcomeUnknownError,
)
from spark_kafka_sink.exactly_once.ledger import LedgerChanges, unreadable_entries
from spark_kafka_sink.exactly_once.ledger_entries import LedgerState, decided_writes
from spark_kafka_sink.exactly_once.ledger_records import Claim, WriteRecord
from spark_kafka_sink.exactly_once.transitions import WriteState, next_generation, resolved

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.ledger import Budget, Ledger, UnreadableEntry
    from spark_kafka_sink.exactly_once.recovery import OpenTransaction
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


_UNFINISHED = (WriteState.DECIDED, WriteState.MIXED)
_PREPARING = ("Ongoing", "PrepareCommit", "PrepareAbort")
_RETRIABLE = (LedgerFencedError, LedgerOutcomeUnknownError)


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


def undecided_open(
    admin: DriverClient, prefix: str, state: LedgerState, budget: Budget
) -> list[OpenTransaction]:
    """Return the open transactions of a prefix that belong to no decision."""
    winners = {
        (winner.transactional_id, winner.producer)
        for record in decided_writes(state).values()
        for winner in record.winners
    }
    listed = recovery.list_open(admin, prefix, budget)
    return [
        transaction
        for transaction in listed
        if (transaction.transactional_id, transaction.producer) not in winners
    ]


def roll_forward(
    admin: DriverClient, ledger: Ledger, *, now_ms: int, budget: Budget
) -> Mapping[str, WriteRecord]:
    """Commit the decided writes of the prefix; record and return their outcomes.

    Raises CommitPendingError if a transaction's EndTxn got no final answer.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        pending = decided_writes(ledger.fence_and_read(budget))
        if not pending:
            return {}
        ends = recovery.roll_forward(admin, pending, now_ms=now_ms, budget=budget)
        try:
            ledger.append(LedgerChanges(writes=ends), budget)
        except _RETRIABLE as error:
            last = error
        else:
            return ends
    raise last or KafkaTimeoutError("rolling forward was not attempted")


class Aborted(NamedTuple):
    """The outcome of aborting a transaction for an operator."""

    transaction: OpenTransaction
    #: None if it was aborted; otherwise why it remains open until its timeout.
    error: KafkaError | None


def abort(
    admin: DriverClient, ledger: Ledger, *, now_ms: int, name: str, budget: Budget
) -> list[Aborted]:
    """Abort the open transactions of a prefix that belong to no decision.

    A driver still running under the prefix can no longer commit its batch; its error message
    contains `name`. If there is nothing to abort, no generation is claimed.
    """
    last: KafkaError | None = None
    for _ in range(recovery.MAX_STARTS):
        state = ledger.fence_and_read(budget)
        # List before the claim, so that only transactions of older generations are listed.
        listed = undecided_open(admin, ledger.prefix, state, budget)
        if not listed:
            return []
        claim = Claim(next_generation(state.generation, now_ms), now_ms, name)
        try:
            ledger.append(LedgerChanges(claim=claim), budget)
        except _RETRIABLE as error:
            last = error
            continue
        errors = recovery.abort_exactly(admin, listed, budget)
        return [Aborted(transaction, errors.get(transaction)) for transaction in listed]
    raise last or KafkaTimeoutError("aborting was not attempted")


def resolve(
    ledger: Ledger, write_id: str, *, skip: bool, now_ms: int, budget: Budget
) -> WriteRecord:
    """Resolve a mixed batch as an operator chose; return its new record.

    Raises IllegalStateError if the write is not mixed, and ExactlyOnceError if the ledger does not
    contain it.
    """
    last: ExactlyOnceError | None = None
    for _ in range(recovery.MAX_STARTS):
        record = ledger.fence_and_read(budget).writes.get(write_id)
        if record is None:
            raise ExactlyOnceError(
                f"the ledger has no write {write_id!r} under prefix {ledger.prefix!r}"
            )
        if last is not None and record.write.state is not WriteState.MIXED:
            return record
        after = WriteRecord(
            write=resolved(record.write, skip=skip),
            updated_at_ms=now_ms,
            expires_at_ms=record.expires_at_ms,
        )
        try:
            ledger.append(LedgerChanges(writes={write_id: after}), budget)
        except _RETRIABLE as error:
            last = error
        else:
            return after
    raise last or KafkaTimeoutError("resolving was not attempted")
