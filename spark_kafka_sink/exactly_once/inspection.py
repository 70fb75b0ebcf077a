"""What an operator sees of exactly-once writes: their ledger, what is open, and who waits for it.

Only looks: nobody is fenced, nothing is ended. A read_committed consumer gets no further than the
last stable offset (LSO) of a partition, where the oldest open transaction begins. So a partition
whose LSO lies below its high watermark holds such consumers back, and the producer whose
transaction begins at the LSO is to blame. Its transactional id is not known to the partition, only
to its coordinator: the ids of all brokers' transactions are asked for, whoever owns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger import unreadable_entries
from spark_kafka_sink.exactly_once.transitions import WriteState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.admin_client import AdminClient
    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.budget import Budget
    from spark_kafka_sink.exactly_once.ledger import UnreadableEntry
    from spark_kafka_sink.exactly_once.ledger_entries import LedgerState
    from spark_kafka_sink.exactly_once.ledger_records import Claim, WriteRecord
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

_UNFINISHED = (WriteState.DECIDED, WriteState.MIXED)
_PREPARING = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Holder(NamedTuple):
    """Whom read_committed consumers of a partition wait for."""

    producer: ProducerIdAndEpoch
    #: Where its transaction begins in the partition.
    start_offset: int
    #: None where no coordinator lists one, or not to this user.
    transactional_id: str | None
    #: Seconds since the transaction began, by the coordinator's start time; None if not known.
    open_seconds: float | None


class HeldBack(NamedTuple):
    """A partition whose read_committed consumers wait."""

    topic_partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    #: Oldest first; empty where it has ended in this moment.
    holders: tuple[Holder, ...]


class PrefixReport(NamedTuple):
    """Everything about a prefix."""

    prefix: str
    #: Whether the ledger has anything of it.
    is_known: bool
    #: None before the first claim, and where it cannot be read.
    claim: Claim | None
    #: Those that can be read.
    writes: Mapping[str, WriteRecord]
    unreadable: Sequence[UnreadableEntry]
    #: The open transactions of its tasks.
    open_transactions: tuple[TransactionDescription, ...]

    @property
    def needs_an_operator(self) -> bool:
        """Whether a write is visible in part, and waits for somebody to resolve it."""
        return any(record.write.state is WriteState.MIXED for record in self.writes.values())

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions of what is open, and of what was decided and has not ended well."""
        open_ones = {place for one in self.open_transactions for place in one.partitions}
        return open_ones | {
            written.topic_partition
            for record in self.writes.values()
            if record.write.state in _UNFINISHED
            for winner in record.winners
            for written in winner.ranges
        }


def inspect(
    admin: AdminClient, prefix: str, state: LedgerState, *, ledger_topic: str, budget: Budget
) -> PrefixReport:
    """Look at what a ledger has of a prefix, and at the open transactions of its tasks."""
    contents = state.decode_all()
    unreadable = unreadable_entries(admin, ledger_topic, contents.unreadable, budget)
    ids = [one.transactional_id for one in recovery.list_open(admin, prefix, budget)]
    described = admin.describe_transactions(ids, timeout=budget.left("describing transactions"))
    return PrefixReport(
        prefix,
        not state.is_empty,
        contents.claim,
        contents.writes,
        unreadable,
        tuple(one for one in described.values() if one is not None and one.is_open),
    )


def held_back(
    admin: AdminClient, partitions: Iterable[TopicPartition], *, now_ms: int, budget: Budget
) -> list[HeldBack]:
    """Tell which of these partitions hold read_committed consumers back, and by whom.

    Raises BrokerError where a partition may not be read.
    """
    what = "comparing offsets"
    waiting = []
    for place in sorted(set(partitions)):
        # In this order: what is written meanwhile must not look like being held back.
        high_watermark = admin.end_offset(place, timeout=budget.left(what))
        stable = admin.last_stable_offset(place, timeout=budget.left(what))
        if stable < high_watermark:
            producers = admin.open_producers(place, timeout=budget.left(what))
            waiting.append((place, stable, high_watermark, producers))
    if not waiting:
        return []
    owners = _owners(admin, budget)
    return [
        HeldBack(
            place,
            stable,
            high_watermark,
            tuple(_holder(one.producer, one.start_offset, owners, now_ms) for one in producers),
        )
        for place, stable, high_watermark, producers in waiting
    ]


def _owners(admin: AdminClient, budget: Budget) -> Mapping[int, TransactionDescription]:
    """Find the open transactions of everybody, by producer id."""
    what = "listing transactions"
    listed = admin.list_transactions(lambda _: True, states=_PREPARING, timeout=budget.left(what))
    described = admin.describe_transactions(
        [one.transactional_id for one in listed], timeout=budget.left(what)
    )
    return {one.producer.producer_id: one for one in described.values() if one is not None}


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
    """Tell how long a transaction has been open; None where its coordinator does not say."""
    if transaction.start_time_ms is None:
        return None
    return max(now_ms - transaction.start_time_ms, 0) / 1000
