"""The report of a write: merged from the tasks' messages, printed as a table or as JSON.

It contains only what brokers acknowledged. It notes when they returned no offsets (acks=0), and
when a topic replaced the records' timestamps with its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.lookup.allow_lists import NotAllowedError, allow_lists
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.model import UNKNOWN_OFFSET
from spark_kafka_sink.spark.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_kafka_sink.model import PartitionAcks, TopicPartition
    from spark_kafka_sink.spark.sink.commit_message import KafkaCommitMessage

#: The maximum number of partition lines, and of topic lines, in the table.
MAX_LINES: Final = 20
_KILO: Final = 1000
_HEADINGS: Final = ("topic", "partition", "first offset", "last offset", "records", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The totals of one write over all of its tasks."""

    tasks: int
    rows: int
    #: Per topic-partition, in order.
    partitions: tuple[tuple[TopicPartition, PartitionAcks], ...]
    #: The merged metrics of the tasks' producers.
    metrics: MetricsSnapshot = field(default_factory=MetricsSnapshot)

    @classmethod
    def from_messages(cls, messages: Iterable[KafkaCommitMessage | None]) -> WriteReport:
        """Merge messages; None stands for a task that did not finish, and is ignored."""
        finished = [message for message in messages if message is not None]
        partitions: dict[TopicPartition, PartitionAcks] = {}
        for message in finished:
            for topic_partition, acks in message.acks:
                earlier = partitions.get(topic_partition)
                partitions[topic_partition] = acks if earlier is None else earlier.merged(acks)
        return cls(
            tasks=len(finished),
            rows=sum(message.rows for message in finished),
            partitions=tuple(sorted(partitions.items())),
            metrics=MetricsSnapshot.merge(message.metrics for message in finished),
        )

    @property
    def bytes(self) -> int:
        """The size of all record batches as sent."""
        return sum(acks.bytes for _, acks in self.partitions)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics written to."""
        return tuple(dict.fromkeys(written.topic for written, _ in self.partitions))

    @property
    def offsets_known(self) -> bool:
        """Whether brokers returned all offsets (with acks=0 there is no response)."""
        return all(acks.first_offset != UNKNOWN_OFFSET for _, acks in self.partitions)

    @property
    def log_append_time_topics(self) -> tuple[str, ...]:
        """The topics that replaced the records' timestamps with their own."""
        return tuple(
            dict.fromkeys(
                written.topic for written, acks in self.partitions if acks.log_append_time
            )
        )

    def to_text(self, max_lines: int = MAX_LINES) -> str:
        """Return a table of at most `max_lines` topics and as many partitions."""
        if not self.partitions:
            return f"Kafka: {self.to_line()}\n"
        topics = self.topics
        lines = [f"Kafka: {self.to_line()}"]
        if len(topics) > 1:
            totals = list(self._topic_totals())
            lines += _table(("topic", "partitions", "records", "bytes"), totals[:max_lines])
            lines += _more(len(totals) - max_lines, "topic")
        rows = [_row(*item) for item in self.partitions[:max_lines]]
        lines += _table(_HEADINGS, rows)
        lines += _more(len(self.partitions) - max_lines, "partition")
        lines += [f"  {line}" for line in self.metrics.describe()]
        if not self.offsets_known:
            lines.append("  acks=0: brokers acknowledged nothing and returned no offsets")
        lines += [
            f"  {topic}: the broker replaced all timestamps (message.timestamp.type=LogAppendTime)"
            for topic in self.log_append_time_topics[:max_lines]
        ]
        return "\n".join(lines) + "\n"

    def to_line(self) -> str:
        """Return a one-line summary."""
        if not self.partitions:
            return f"there were no rows to write ({_count(self.tasks, 'task')})"
        topics = self.topics
        named = f"topic {topics[0]}" if len(topics) == 1 else f"{len(topics):,} topics"
        return (
            f"wrote {_count(self.rows, 'row')} ({_size(self.bytes)}) to {named} "
            f"from {_count(self.tasks, 'task')}"
        )

    def _topic_totals(self) -> Iterator[tuple[str, ...]]:
        totals: dict[str, list[int]] = {}
        for written, acks in self.partitions:
            total = totals.setdefault(written.topic, [0, 0, 0])
            total[0] += 1
            total[1] += acks.records
            total[2] += acks.bytes
        for topic, numbers in totals.items():
            yield (topic, *(f"{number:,}" for number in numbers))

    def to_json(self) -> str:
        """Return everything as indented JSON."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a dict for JSON; unknown offsets are null."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for written, acks in self.partitions:
            topics.setdefault(written.topic, []).append(
                {
                    "partition": written.partition,
                    "first_offset": _offset(acks.first_offset),
                    "last_offset": _offset(acks.last_offset),
                    "records": acks.records,
                    "bytes": acks.bytes,
                    "log_append_time": acks.log_append_time,
                }
            )
        return {
            "tasks": self.tasks,
            "rows": self.rows,
            "bytes": self.bytes,
            "offsets_known": self.offsets_known,
            "topics": topics,
            "metrics": self.metrics.as_dict(),
        }

    def write_json(self, path: str) -> None:
        """Write the JSON atomically to a local file; raises OSError."""
        replace_file(Path(path), self.to_json())


def resolve_report_path(path: str) -> str:
    """Return `reportPath` as an absolute path; ConfigError if it cannot or may not be written."""
    if "://" in path:
        raise ConfigError(f"reportPath {path!r} must be a local path on the driver, not a URI")
    target = Path(path).absolute()
    try:
        allow_lists().check_path(str(target))
    except NotAllowedError as error:
        raise ConfigError(f"reportPath {path!r}: {error}") from None
    if target.is_dir():
        raise ConfigError(f"reportPath {path!r} is a directory: name a file in it")
    if not target.parent.is_dir():
        raise ConfigError(
            f"reportPath {path!r}: the directory {str(target.parent)!r} does not exist; create it"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ConfigError(
            f"reportPath {path!r}: this process has no permission to write to the directory "
            f"{str(target.parent)!r}"
        )
    return str(target)


def _offset(offset: int) -> int | None:
    return None if offset == UNKNOWN_OFFSET else offset


def _row(written: TopicPartition, acks: PartitionAcks) -> tuple[str, ...]:
    offsets = (_offset(acks.first_offset), _offset(acks.last_offset))
    return (
        written.topic,
        str(written.partition),
        *("unknown" if offset is None else str(offset) for offset in offsets),
        f"{acks.records:,}",
        f"{acks.bytes:,}",
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table, with the first column aligned left and the others right."""
    cells = [headings, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    return [
        "  "
        + "  ".join(
            row[column].rjust(width) if column else row[column].ljust(width)
            for column, width in enumerate(widths)
        )
        for row in cells
    ]


def _more(count: int, what: str) -> list[str]:
    return [f"  ... and {count:,} more {what}{'' if count == 1 else 's'}"] if count > 0 else []


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    """Format a number of bytes in a suitable unit (powers of 1000)."""
    units = iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while count >= _KILO and unit != "TB":
        count, unit = count / _KILO, next(units)
    return f"{count:,} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
