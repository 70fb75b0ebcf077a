"""The rows of a write that could not be sent, as tasks report them and as the report shows them.

The module imports nothing that only tasks need: the driver reads the tasks' messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_kafka_sink import display
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryError,
    KafkaError,
    PayloadError,
    RecordError,
)
from spark_kafka_sink.record.bad_row_limit import MOST_SHOWN, too_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.config.sink_options import OnErrorOptions
    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage


class BadRow(NamedTuple):
    """One of the first rows of a write that could not be sent, and where its dead letter is.

    >>> BadRow(task=0, row=4, kind="size", topic="orders", error="row 4: ...").offset is None
    True
    """

    #: The index of the Spark partition.
    task: int
    #: The index of the row in its task.
    row: int
    #: What is wrong: the value of a `RowErrorKind`.
    kind: str
    #: The topic that it was for; None if it has none.
    topic: str | None
    error: str
    #: The partition and the offset of the dead letter; None if there is none, or no answer.
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows:
    """How many rows of a write could not be sent, and the first of them.

    `lines` has a line for each of the first, and `as_dict` is for JSON.

    >>> bad = BadRows(counts=(("size", 2), ("topic", 1)), first=(), dlq_topic="dead-letters")
    >>> bad.count
    3
    """

    #: By kind, the most frequent one first.
    counts: tuple[tuple[str, int], ...]
    #: At most `MOST_SHOWN`.
    first: tuple[BadRow, ...]
    #: None if the rows were left out.
    dlq_topic: str | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.counts)

    def to_line(self) -> str:
        """Return how many there are of each kind, and where they are."""
        where = "left out" if self.dlq_topic is None else f"dead letters in {self.dlq_topic}"
        return f"{display.counted(self.count, 'bad row')}, {where} ({self.kinds()})"

    def kinds(self) -> str:
        """Return how many there are of each kind."""
        return display.listed([f"{kind} {count:,}" for kind, count in self.counts], most=10)

    def lines(self) -> list[str]:
        """Return a line for each of the first."""
        lines = []
        for bad in self.first:
            known = bad.partition is not None and bad.offset is not None
            letter = f" [{self.dlq_topic}-{bad.partition} offset {bad.offset}]" if known else ""
            lines.append(f"task {bad.task}, {bad.error}{letter}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a dict for JSON."""
        return {
            "count": self.count,
            "counts": dict(self.counts),
            "dlq_topic": self.dlq_topic,
            "first": [bad._asdict() for bad in self.first],
        }


def bad_rows_of(
    counts: Mapping[str, int], first: Iterable[BadRow], dlq_topic: str | None
) -> BadRows | None:
    """Return the bad rows by these counts; None if there are none."""
    if not counts:
        return None
    return BadRows(
        counts=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        first=tuple(first)[:MOST_SHOWN],
        dlq_topic=dlq_topic,
    )


def merged_bad_rows(parts: Iterable[BadRows | None]) -> BadRows | None:
    """Return the bad rows of several tasks, or of one micro-batch after another."""
    found = [part for part in parts if part is not None]
    counts: Counter[str] = Counter()
    for part in found:
        counts.update(dict(part.counts))
    first = [row for part in found for row in part.first]
    return bad_rows_of(counts, first, found[-1].dlq_topic if found else None)


def restored_bad_rows(values: Mapping[str, Any] | None) -> BadRows | None:
    """Return the bad rows that `as_dict` was called on; None for None."""
    if values is None:
        return None
    first = [BadRow(**bad) for bad in values["first"]]
    return bad_rows_of(values["counts"], first, values["dlq_topic"])


def mention_on_error(error: KafkaError, options: OnErrorOptions | None) -> None:
    """Add to an error, which ends its task, what onError has to do with it.

    The option would go on without a bad row; with it, what was refused may be a dead letter.
    """
    more = None
    if options is None:
        if _is_of_row(error):
            more = "To go on without such rows, set onError=skip or onError=dlq"
    elif isinstance(error, DeliveryError) and error.topic in {options.dlq_topic} - {None}:
        more = (
            "It is a dead letter, which is never left out: let dlqTopic take what the rows have "
            "(max.message.bytes, no key, old timestamps), or choose another one"
        )
    if more and error.args:
        error.args = (f"{error.args[0]}. {more}", *error.args[1:])


def _is_of_row(error: KafkaError) -> bool:
    """Return whether an error is one of those that onError takes."""
    if isinstance(error, RecordError | PayloadError):
        return error.row is not None
    refused = error.__cause__
    if not (isinstance(error, DeliveryError) and isinstance(refused, BrokerError)):
        return False
    # Loaded here, as the driver needs none of it.
    from spark_kafka_sink.producer.batch.set_aside import OF_ROWS

    return refused.code in OF_ROWS


def check_bad_rows(options: OnErrorOptions | None, messages: Iterable[KafkaCommitMessage]) -> None:
    """Raise KafkaError if the tasks together have more bad rows than the write may have."""
    finished = list(messages)
    bad = merged_bad_rows(message.bad_rows for message in finished)
    if options is None or bad is None:
        return
    rows = bad.count + sum(message.rows for message in finished)
    if options.limit.is_exceeded(bad.count, rows):
        raise too_many(
            f"{bad.count:,} of {display.counted(rows, 'row')} cannot be written", bad.lines()
        )
