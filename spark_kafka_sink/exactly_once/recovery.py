"""Finish transactions that others began: roll forward, find outcomes, abort, resolve.

Any driver may commit a decided transaction, not only the one that decided it, and several may do so
at once: EndTxn names the producer id and epoch, so it cannot affect another transaction.

A refused commit means that the transaction is over, but not how it ended: EndTxn and
DescribeTransactions do not distinguish "committed, and the producer moved on" from "aborted". The
log does: the first marker of the producer id after the winner's last record belongs to its
transaction, and is the same in every partition. The coordinator may still be writing that marker,
so the search waits for it. It fences no producer: a later generation may be using the winner's id
by now, and InitProducerId would abort its transaction.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.admin.records import EndMarker
from spark_kafka_sink.admin.transaction_values import ONGOING, EndOutcome, TransactionEnd
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.exactly_once.errors import CommitPendingError
from spark_kafka_sink.exactly_once.ledger import Budget
from spark_kafka_sink.exactly_once.markers import Ended, ensure_markers, next_epoch
from spark_kafka_sink.exactly_once.transactional_ids import is_worker_id_of, worker_id_pattern
from spark_kafka_sink.exactly_once.transitions import Fate, WriteState, end_of, ended
from spark_kafka_sink.model import UNKNOWN_OFFSET, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.admin.driver_client import DriverClient
    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.ledger_records import OffsetRange, Winner, WriteRecord

logger = logging.getLogger(__name__)

#: Seconds to wait for the marker of an ended transaction; brokers usually write it within moments.
MARKER_TIMEOUT: Final = 15.0
#: The number of attempts of a step while other drivers write the ledger at the same time.
MAX_STARTS: Final = 8
_LISTING: Final = "listing open transactions"


class OpenTransaction(NamedTuple):
    """An open transaction, as it was listed."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...] = ()


# --- roll forward


def roll_forward(
    admin: DriverClient, records: Mapping[str, WriteRecord], *, now_ms: int, budget: Budget
) -> dict[str, WriteRecord]:
    """Commit every winner of decided writes; return the records with their outcomes.

    Every winner is attempted, even if others fail. Raises CommitPendingError if one of them gets no
    final answer: no outcome is returned then, and the writes remain decided.
    """
    winners = [winner for record in records.values() for winner in record.winners]
    fates = iter(winner_fates(admin, winners, budget))
    return {
        write_id: with_fates(record, [next(fates) for _ in record.winners], now_ms=now_ms)
        for write_id, record in records.items()
    }


def winner_fates(admin: DriverClient, winners: Sequence[Winner], budget: Budget) -> list[Fate]:
    """Commit the winners of a decision concurrently; return the fate of each.

    Raises CommitPendingError, after attempting all of them, if one got no final answer or if the
    markers could not be checked.
    """
    ends = [
        TransactionEnd(winner.transactional_id, winner.producer, True, winner.transaction_version)
        for winner in winners
    ]
    answers = admin.end_transactions(ends, timeout=budget.left("committing decided transactions"))
    failed = [answer for answer in answers if isinstance(answer, KafkaError)]
    if failed:
        raise CommitPendingError(
            f"the batch is decided, but {len(failed)} of its {len(winners)} transactions are not "
            "committed yet. The next query or job to start under this prefix commits them, or "
            f"fails like this until the cause is resolved: {failed[0]}"
        ) from failed[0]
    fates: list[tuple[str, Fate]] = []
    committed = []
    for winner, end, answer in zip(winners, ends, answers, strict=True):
        fate, after = Fate.COMMITTED, None
        if isinstance(answer, KafkaError) or answer.outcome is not EndOutcome.ENDED:
            logger.warning("the commit of %s was %s", winner.transactional_id, answer)
            fate = _fate_of_refused(admin, winner, end, budget)
        else:
            after = answer.producer
        fates.append((winner.transactional_id, fate))
        if fate is Fate.COMMITTED:
            written = {
                offset_range.topic_partition: offset_range.last_offset + 1
                for offset_range in winner.ranges
            }
            committed.append(Ended(end, next_epoch(end, after), written))
    try:
        lost = ensure_markers(admin, committed, budget)
    except KafkaError as error:
        raise CommitPendingError(
            "the batch is decided, but it is unknown whether all of it is visible. The next query "
            f"or job to start under this prefix checks again: {error}"
        ) from error
    ids = {transaction.end.transactional_id for transaction in lost}
    return [Fate.UNKNOWN if transactional_id in ids else fate for transactional_id, fate in fates]


def _fate_of_refused(
    admin: DriverClient, winner: Winner, end: TransactionEnd, budget: Budget
) -> Fate:
    """Return the fate of a winner whose commit was refused.

    A driver may have died while rewriting the winner's lost markers. The transaction it left open
    has no records and the next epoch, which nothing else uses, and must be committed.
    """
    after = next_epoch(end, None)
    if after != end.producer:
        by_next_epoch = end._replace(producer=after, transaction_version=0)
        [answer] = admin.end_transactions(
            [by_next_epoch], timeout=budget.left("committing decided transactions")
        )
        if not isinstance(answer, KafkaError) and answer.outcome is EndOutcome.ENDED:
            return Fate.COMMITTED
    return fate_by_marker(admin, winner, budget)


def with_fates(record: WriteRecord, fates: Sequence[Fate], *, now_ms: int) -> WriteRecord:
    """Return a decided record with its outcome; a mixed one keeps its winners and their fates."""
    state = end_of(fates)
    winners: tuple[Winner, ...] = ()
    if state is WriteState.MIXED:
        winners = tuple(
            winner._replace(fate=fate) for winner, fate in zip(record.winners, fates, strict=True)
        )
    return replace(record, write=ended(record.write, state), updated_at_ms=now_ms, winners=winners)


def fate_by_marker(admin: DriverClient, winner: Winner, budget: Budget) -> Fate:
    """Return a winner's fate by the marker after its last record in any readable partition."""
    for written in winner.ranges:
        if written.last_offset == UNKNOWN_OFFSET:
            continue
        try:
            marker = _marker_behind(admin, winner.producer, written, budget)
        except KafkaError as error:
            logger.warning("could not read the transaction marker of %s: %s", written, error)
            continue
        if marker is not None:
            return Fate.COMMITTED if marker.committed else Fate.ABORTED
    return Fate.UNKNOWN


def _marker_behind(
    admin: DriverClient, producer: ProducerIdAndEpoch, written: OffsetRange, budget: Budget
) -> EndMarker | None:
    """Return the marker of the transaction, or None if it has been compacted away.

    Raises KafkaTimeoutError if no marker appears in time, and BrokerError if the partition cannot
    be read.
    """
    search = Budget.of(
        budget.clock, min(MARKER_TIMEOUT, budget.left("looking for transaction markers"))
    )
    offset = written.last_offset + 1
    what = f"looking for the transaction marker after {written}"
    while True:
        # At the end of the log the broker delays its answer (max_wait_ms), so this does not spin.
        chunk = admin.read_partition(
            written.topic_partition, offset, timeout=search.left(what), markers_only=True
        )
        for event in chunk.events:
            if isinstance(event, EndMarker) and event.producer_id == producer.producer_id:
                # TV2 and timeouts end a transaction with the next epoch. A still later epoch
                # belongs to another transaction: our marker has been compacted away.
                if producer.epoch <= event.producer_epoch <= producer.epoch + 1:
                    return event
                return None
        offset = chunk.next_offset


# --- open transactions


def list_open(admin: DriverClient, prefix: str, budget: Budget) -> list[OpenTransaction]:
    """Return the open transactions of a prefix's tasks, with the ids and epochs to end them."""
    listed = admin.list_transactions(
        lambda transactional_id: is_worker_id_of(prefix, transactional_id),
        states=(ONGOING,),
        pattern=worker_id_pattern(prefix),
        timeout=budget.left(_LISTING),
    )
    return _describe_open(admin, [each.transactional_id for each in listed], budget)


def describe_and_list_open(
    admin: DriverClient, prefix: str, transactional_ids: Sequence[str], budget: Budget
) -> tuple[dict[str, TransactionDescription | None], list[OpenTransaction]]:
    """Describe some of a prefix's transactions, and list the other open ones, as `list_open` does.

    A description is None if no coordinator knows its transactional id.
    """
    described, listed = admin.describe_and_list(
        transactional_ids,
        lambda transactional_id: is_worker_id_of(prefix, transactional_id),
        states=(ONGOING,),
        pattern=worker_id_pattern(prefix),
        timeout=budget.left(_LISTING),
    )
    others = [each.transactional_id for each in listed if each.transactional_id not in described]
    return described, _describe_open(admin, others, budget)


def _describe_open(
    admin: DriverClient, transactional_ids: Sequence[str], budget: Budget
) -> list[OpenTransaction]:
    if not transactional_ids:
        return []
    described = admin.describe_transactions(
        transactional_ids, timeout=budget.left("describing transactions")
    )
    return [
        OpenTransaction(transaction.transactional_id, transaction.producer, transaction.partitions)
        for transaction in described.values()
        if transaction is not None and transaction.is_open
    ]


def abort_exactly(
    admin: DriverClient, transactions: Iterable[OpenTransaction], budget: Budget
) -> dict[OpenTransaction, KafkaError]:
    """Abort exactly these transactions; a later one of the same id has another epoch.

    Returns the error of each transaction that could not be aborted, and logs it as a warning: such
    a transaction ends at its timeout, and holds back read_committed consumers until then.
    """
    todo = list(transactions)
    ends = [
        TransactionEnd(transaction.transactional_id, transaction.producer, committed=False)
        for transaction in todo
    ]
    answers = admin.end_transactions(ends, timeout=budget.left("aborting transactions"))
    errors = {}
    aborted = []
    for transaction, end, answer in zip(todo, ends, answers, strict=True):
        if isinstance(answer, KafkaError):
            errors[transaction] = answer
            logger.warning(
                "could not abort transaction %s; it remains open, and read_committed consumers "
                "wait for it, until it times out: %s",
                transaction.transactional_id,
                answer,
            )
        elif answer.outcome is EndOutcome.ENDED:
            aborted.append((transaction, end, next_epoch(end, answer.producer)))
    _ensure_abort_markers(admin, aborted, budget)
    return errors


def _ensure_abort_markers(
    admin: DriverClient,
    aborted: Sequence[tuple[OpenTransaction, TransactionEnd, ProducerIdAndEpoch]],
    budget: Budget,
) -> None:
    """Write the missing markers of aborted transactions; log a warning if that fails.

    The offsets of their last records are unknown, but lie below the current end offsets.
    """
    try:
        behind = {
            partition: admin.end_offset(partition, timeout=budget.left("reading end offsets"))
            for partition in {
                partition for transaction, *_ in aborted for partition in transaction.partitions
            }
        }
        ended = [
            Ended(
                end, after, {partition: behind[partition] for partition in transaction.partitions}
            )
            for transaction, end, after in aborted
        ]
        lost = ensure_markers(admin, ended, budget)
    except KafkaError as error:
        logger.warning("could not verify the markers of aborted transactions: %s", error)
        return
    for transaction in lost:
        logger.error(
            "transaction %s has ended, but some of its records are neither committed nor aborted",
            transaction.end.transactional_id,
        )


# --- mixed batches


def describe_mixed(write_id: str, record: WriteRecord) -> str:
    """Return a text with the visible and missing offsets of a mixed batch, and what to do."""
    parts = [f"batch {record.write.batch_id} of {write_id!r} is only partly visible"]
    for fate, words in (
        (Fate.COMMITTED, "committed"),
        (Fate.ABORTED, "aborted"),
        (Fate.UNKNOWN, "unknown"),
    ):
        ranges = [
            str(written)
            for winner in record.winners
            if winner.fate is fate
            for written in winner.ranges
        ]
        if ranges:
            parts.append(f"{words}: {', '.join(ranges)}")
    parts.append(
        "nothing more is written until an operator resolves it with `pykafka-transactions "
        "resolve`: --skip accepts the batch as it is, --replay writes it again, so that its "
        "committed rows appear twice"
    )
    return "; ".join(parts)
