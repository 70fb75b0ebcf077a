"""The findings of `operations` as text and as JSON values.

Pure functions. Time arguments are milliseconds since 1970; the text shows times in UTC, and JSON
names contain the unit. Ledger entries and broker answers contain text written by others:
the command escapes it (`display.printable`), so that a terminal displays it without interpreting
control characters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.exactly_once.errors import LedgerFormatError
from spark_kafka_sink.exactly_once.operations import HeldBack, Holder, PrefixReport, open_seconds
from spark_kafka_sink.exactly_once.recovery import describe_mixed
from spark_kafka_sink.exactly_once.transitions import WriteState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_kafka_sink.admin.transaction_values import TransactionDescription
    from spark_kafka_sink.exactly_once.ledger import UnreadableEntry
    from spark_kafka_sink.exactly_once.ledger_records import Winner, WriteRecord
    from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


UNKNOWN_PREFIX: Final = "the ledger has no entries of this prefix (`list` shows all prefixes)"


def as_text(
    reports: Sequence[PrefixReport],
    held: Sequence[HeldBack],
    *,
    now_ms: int,
    details: bool,
    topics: Sequence[str] = (),
) -> list[str]:
    """Return the report as lines; with `details`, every transaction of decided and mixed batches.

    `topics` are those whose transactions were all inspected.
    """
    lines = [] if reports else ["no exactly-once writes are recorded"]
    for report in reports:
        lines += _prefix(report, now_ms=now_ms, details=details)
    if not held:
        others = (
            f", nor do other transactions in {', '.join(topics)}"
            if topics
            else "; --topic checks all transactions in a topic"
        )
        return [*lines, f"these writes hold back no read_committed consumers{others}"]
    plural = "" if len(held) == 1 else "s"
    lines.append(f"read_committed consumers are held back in {len(held)} partition{plural}:")
    return lines + [_held(partition) for partition in held]


def _prefix(report: PrefixReport, *, now_ms: int, details: bool) -> list[str]:
    lines = [f"prefix {report.prefix}: {_claim(report)}"]
    if report.unreadable:
        lines.append(f"  unreadable entries, not shown: {len(report.unreadable)}")
    for write_id, record in report.writes.items():
        lines.append(f"  write {write_id}: {_write(write_id, record)}")
        if details:
            lines += [f"    {_winner(winner)}" for winner in record.winners]
    if not report.open_transactions:
        return [*lines, "  no open transactions"]
    lines.append(f"  open transactions: {len(report.open_transactions)}")
    return lines + [f"    {_open(transaction, now_ms)}" for transaction in report.open_transactions]


def _claim(report: PrefixReport) -> str:
    if report.claim is not None:
        return (
            f"generation {report.claim.generation}, claimed by {report.claim.claimed_by} at "
            f"{_time(report.claim.claimed_at_ms)}"
        )
    if any(entry.write_id is None for entry in report.unreadable):
        return "its claim cannot be read"
    return "not claimed" if report.is_known else f"not claimed; {UNKNOWN_PREFIX}"


def _write(write_id: str, record: WriteRecord) -> str:
    if record.write.state is WriteState.MIXED:
        return describe_mixed(write_id, record)
    said = f"batch {record.write.batch_id} is {record.write.state.value}"
    if record.write.state is WriteState.DECIDED:
        said += f", with {len(record.winners)} transactions to be committed"
    return f"{said} (since {_time(record.updated_at_ms)})"


def _winner(winner: Winner) -> str:
    fate = "decided" if winner.fate is None else winner.fate.value
    places = ", ".join(map(str, winner.ranges))
    return f"{winner.transactional_id} ({describe_producer(winner.producer)}): {fate}; {places}"


def _open(transaction: TransactionDescription, now_ms: int) -> str:
    return (
        f"{transaction.transactional_id} ({describe_producer(transaction.producer)}), open for "
        f"{_seconds(open_seconds(transaction, now_ms))} of at most "
        f"{transaction.timeout_ms / 1000:.0f} s, in {_places(transaction.partitions)}"
    )


def _held(partition: HeldBack) -> str:
    by = (
        ", ".join(map(_holder, partition.holders))
        or "a transaction that has just ended (run this again)"
    )
    behind = partition.high_watermark - partition.last_stable_offset
    return (
        f"  {partition.topic_partition} at offset {partition.last_stable_offset} of "
        f"{partition.high_watermark} ({behind} behind) by {by}"
    )


def _holder(holder: Holder) -> str:
    name = holder.transactional_id or "a transactional id that no coordinator lists for this user"
    return (
        f"{name} ({describe_producer(holder.producer)}), open for {_seconds(holder.open_seconds)}"
    )


def describe_producer(producer: ProducerIdAndEpoch) -> str:
    """Return a producer's id and epoch in words, as in broker logs."""
    return f"producer id {producer.producer_id}, epoch {producer.epoch}"


def _places(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "no partition yet"


def _seconds(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds:.0f} s"


def _time(milliseconds: int) -> str:
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise LedgerFormatError(
            f"a ledger entry has {milliseconds!r} instead of milliseconds since 1970"
        ) from error
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- as JSON


def report_json(report: PrefixReport, *, now_ms: int) -> dict[str, Any]:
    """Return the report of a prefix as JSON values."""
    return {
        "prefix": report.prefix,
        "claim": None if report.claim is None else report.claim._asdict(),
        "writes": [
            {
                "write_id": write_id,
                "batch_id": record.write.batch_id,
                "generation": record.write.generation,
                "state": record.write.state.value,
                "updated_at_ms": record.updated_at_ms,
                "winners": [_winner_json(winner) for winner in record.winners],
            }
            for write_id, record in report.writes.items()
        ],
        "open_transactions": [
            {
                "transactional_id": transaction.transactional_id,
                "producer_id": transaction.producer.producer_id,
                "producer_epoch": transaction.producer.epoch,
                "open_seconds": open_seconds(transaction, now_ms),
                "timeout_ms": transaction.timeout_ms,
                "partitions": [
                    _place_json(partition) for partition in sorted(transaction.partitions)
                ],
            }
            for transaction in report.open_transactions
        ],
    }


def held_back_json(partition: HeldBack) -> dict[str, Any]:
    """Return a partition that holds back consumers as JSON values."""
    return {
        **_place_json(partition.topic_partition),
        "last_stable_offset": partition.last_stable_offset,
        "high_watermark": partition.high_watermark,
        "holders": [
            {
                "transactional_id": holder.transactional_id,
                "producer_id": holder.producer.producer_id,
                "producer_epoch": holder.producer.epoch,
                "start_offset": holder.start_offset,
                "open_seconds": holder.open_seconds,
            }
            for holder in partition.holders
        ],
    }


def unreadable_json(prefix: str, entry: UnreadableEntry) -> dict[str, Any]:
    """Return an unreadable entry as JSON values."""
    return {
        "prefix": prefix,
        **_place_json(entry.topic_partition),
        "offset": entry.offset,
        "write_id": entry.write_id,
        "reason": entry.reason,
    }


def _winner_json(winner: Winner) -> dict[str, Any]:
    return {
        "transactional_id": winner.transactional_id,
        "producer_id": winner.producer.producer_id,
        "producer_epoch": winner.producer.epoch,
        "fate": None if winner.fate is None else winner.fate.value,
        "ranges": [
            {
                **_place_json(written.topic_partition),
                "first_offset": written.first_offset,
                "last_offset": written.last_offset,
                "records": written.records,
            }
            for written in winner.ranges
        ],
    }


def _place_json(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}
