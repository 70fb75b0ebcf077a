"""The report of a write: merged from the tasks' messages, printed as a table or as JSON.

It contains only what brokers acknowledged. It notes when they returned no offsets (acks=0), and
when a topic replaced the records' timestamps with its own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink import display
from spark_kafka_sink.config.allow_lists import NotAllowedError, allow_lists, pinned_target
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition, known_offset
from spark_kafka_sink.spark.report_store import replace_file
from spark_kafka_sink.spark.sink.bad_rows import BadRows, merged_bad_rows, restored_bad_rows
from spark_kafka_sink.spark.task_costs import TaskCosts, costs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage

#: The maximum number of partition lines, and of topic lines, in the table.
MAX_LINES: Final = 20
#: The fields of a partition's acknowledgements.
_ACKS: Final = tuple(attribute.name for attribute in fields(PartitionAcks))
_HEADINGS: Final = ("topic", "partition", "first offset", "last offset", "records", "bytes")


class SpreadKeys(NamedTuple):
    """How many keys the tasks of a write have sampled, and how many of them are in several."""

    sampled: int
    spread: int

    def __str__(self) -> str:
        return (
            f"{self.spread:,} of {self.sampled:,} sampled keys are in more than one task, "
            "so the order of their records is not defined: if it matters, write "
            'df.repartition("key"), otherwise set keyOrder=off'
        )


def spread_keys(samples: Iterable[Sequence[int]]) -> SpreadKeys:
    """Compare the samples of tasks, as hashes.

    Tasks sample the same keys, those with the lowest hashes, so a hash in two samples is a key in
    two tasks.
    """
    counts = Counter(hashed for sample in samples for hashed in sample)
    return SpreadKeys(len(counts), sum(count > 1 for count in counts.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The totals of one write over all of its tasks: `KafkaSink.last_report` returns it.

    `partitions` has first and last offset, records and bytes of each partition, and `metrics` the
    sums of the tasks' producers. `bytes` is the size of the record batches as sent, and `elapsed`
    the seconds from the end of the driver's checks (in a stream, their beginning) to the end of the
    commit: they include the computation of the rows. `merged` adds the report of a `later` batch of
    the same stream. `timed` adds the times, `started_at` and `ended_at` in seconds since 1970;
    `to_text` has at most `max_lines` topics and partitions; `write_json` writes to the file `path`.
    `to_record` returns a `record` for JSON, from which `from_record` restores the report.

    >>> report = WriteReport(tasks=2, rows=1000, partitions=(), elapsed=4.0)
    >>> report.rows_per_second
    250.0
    """

    tasks: int
    rows: int
    #: Per topic-partition, in order.
    partitions: tuple[tuple[TopicPartition, PartitionAcks], ...]
    #: The merged metrics of the tasks' producers.
    metrics: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    #: In seconds; None if it was not measured.
    elapsed: float | None = None
    #: Seconds since 1970, by the driver's clock; None if it was not measured.
    ended_at: float | None = None
    #: The option `reportId` of the write.
    report_id: str | None = None
    #: The id of the stream's query; None for a batch write.
    query_id: str | None = None
    #: The number of the stream's micro-batch; None for a batch write.
    batch_id: int | None = None
    #: Whether tasks wrote nothing because the batch was already committed.
    replayed: bool = False
    #: The seconds of `elapsed` that starting and ending the tasks took; None if it is unknown.
    task_seconds: float | None = None
    #: How many tasks ran side by side; None if it is unknown.
    task_slots: int | None = None
    #: The schemas of keys and values that have a format: "values by schema 7 (subject ...)".
    schemas: tuple[str, ...] = ()
    #: How long tasks paused for maxBytesPerSecond and maxRecordsPerSecond, the sum of all of them;
    #: None without a limit.
    paced_seconds: float | None = None
    #: The rows that could not be sent, by kind, with the first of them; None if there are none.
    bad_rows: BadRows | None = None
    #: How many keys the tasks sampled (`keyOrder`).
    sampled_keys: int = 0
    #: How many of the sampled keys more than one task has written.
    spread_keys: int = 0

    def timed(self, started_at: float | None, ended_at: float) -> WriteReport:
        """Return the report with `started_at` and `ended_at`, in seconds since 1970."""
        elapsed = None if started_at is None else max(ended_at - started_at, 0.0)
        return replace(self, elapsed=elapsed, ended_at=ended_at)

    @property
    def bytes(self) -> int:
        """The size of all record batches as sent."""
        return sum(acks.bytes for _, acks in self.partitions)

    @property
    def rows_per_second(self) -> float | None:
        """The rows divided by the elapsed time; None if that was not measured."""
        return self.rows / self.elapsed if self.elapsed else None

    @property
    def bytes_per_second(self) -> float | None:
        """The bytes divided by the elapsed time; None if that was not measured."""
        return self.bytes / self.elapsed if self.elapsed else None

    @property
    def retries(self) -> int:
        """How many records were sent again, because a broker had not accepted them at first."""
        return self.metrics.record_retry_total

    @property
    def throttled_seconds(self) -> float:
        """How long brokers throttled the producers of the tasks, the sum of all responses."""
        return self.metrics.produce_throttle_time_ms.total / 1000

    @property
    def advice(self) -> str | None:
        """What fewer tasks would save; None if it is little, or unknown."""
        if self.task_seconds is None or self.task_slots is None:
            return None
        costs = TaskCosts(self.task_seconds, self.task_slots)
        return costs.advice(tasks=self.tasks, rows=self.rows, elapsed=self.elapsed)

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

    def merged(self, later: WriteReport) -> WriteReport:
        """Return the totals of both; the time is what both took, without that between them."""
        known = self.elapsed is not None and later.elapsed is not None
        return replace(
            later,
            tasks=self.tasks + later.tasks,
            rows=self.rows + later.rows,
            partitions=_merged((*self.partitions, *later.partitions)),
            metrics=self.metrics.merged(later.metrics),
            elapsed=(self.elapsed or 0.0) + (later.elapsed or 0.0) if known else None,
            replayed=self.replayed or later.replayed,
            schemas=tuple(dict.fromkeys((*self.schemas, *later.schemas))),
            paced_seconds=_sum_of_known((self.paced_seconds, later.paced_seconds)),
            bad_rows=merged_bad_rows((self.bad_rows, later.bad_rows)),
            sampled_keys=self.sampled_keys + later.sampled_keys,
            spread_keys=self.spread_keys + later.spread_keys,
            # How many tasks there are is a question about each batch.
            task_seconds=None,
            task_slots=None,
        )

    def condensed(self) -> WriteReport:
        """Return the report with one partition for each topic, 0, which stands for all of it.

        Its `summary` is the same, and its size does not depend on the number of partitions.
        """
        by_topic: dict[str, list[PartitionAcks]] = {}
        for written, acks in self.partitions:
            by_topic.setdefault(written.topic, []).append(acks)
        partitions = tuple(
            (
                TopicPartition(topic, 0),
                PartitionAcks(
                    # It is unknown if any is, as `offsets_known` says.
                    first_offset=min(partition.first_offset for partition in acks),
                    last_offset=max(partition.last_offset for partition in acks),
                    records=sum(partition.records for partition in acks),
                    bytes=sum(partition.bytes for partition in acks),
                    log_append_time=any(partition.log_append_time for partition in acks),
                ),
            )
            for topic, acks in by_topic.items()
        )
        return replace(self, partitions=partitions)

    def to_text(self, max_lines: int = MAX_LINES) -> str:
        """Return a table of at most `max_lines` topics and as many partitions."""
        if not self.partitions and self.bad_rows is None:
            return f"Kafka: {self.to_line()}\n"
        topics = self.topics
        lines = [f"Kafka: {self.to_line()}"]
        if len(topics) > 1:
            totals = list(self._topic_totals())
            lines += text_table(("topic", "partitions", "records", "bytes"), totals[:max_lines])
            lines += rest_lines(len(totals) - max_lines, "topic")
        rows = [_row(*item) for item in self.partitions[:max_lines]]
        lines += text_table(_HEADINGS, rows)
        lines += rest_lines(len(self.partitions) - max_lines, "partition")
        lines += [f"  {line}" for line in (*self.metrics.describe(), *self._notes())]
        lines += [f"    {line}" for line in self._bad_lines()]
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Return one line for users, and more if there was trouble or something to know."""
        troubles = (*self.metrics.describe()[1:], *self._notes())
        return "\n".join([f"Kafka: {self.to_line()}", *(f"  {line}" for line in troubles)])

    def _notes(self) -> list[str]:
        """Return what is true of these offsets and timestamps, and of few others."""
        notes = [] if self.bad_rows is None else [self.bad_rows.to_line()]
        notes += self.schemas
        if self.paced_seconds:
            notes.append(
                f"paced by maxBytesPerSecond or maxRecordsPerSecond: the tasks paused for "
                f"{self.paced_seconds:,.1f} s in all"
            )
        if self.spread_keys:
            notes.append(str(SpreadKeys(self.sampled_keys, self.spread_keys)))
        if not self.offsets_known:
            notes.append("acks=0: brokers acknowledged nothing and returned no offsets")
        topics = self.log_append_time_topics
        notes += [
            f"{topic}: the broker replaced all timestamps (message.timestamp.type=LogAppendTime)"
            for topic in topics[:MAX_LINES]
        ]
        return [*notes, self.advice] if self.advice else notes

    def to_line(self) -> str:
        """Return a one-line summary."""
        if self.replayed and not self.partitions:
            return "wrote nothing: this write was committed before"
        if not self.partitions and self.bad_rows is None:
            return f"there were no rows to write ({display.counted(self.tasks, 'task')})"
        # Dead letters are not what was to be written.
        letters = None if self.bad_rows is None else self.bad_rows.dlq_topic
        topics = [topic for topic in self.topics if topic != letters]
        if not topics:
            return f"wrote no rows ({display.counted(self.tasks, 'task')})"
        named = f"topic {topics[0]}" if len(topics) == 1 else f"{len(topics):,} topics"
        size = sum(acks.bytes for written, acks in self.partitions if written.topic != letters)
        return (
            f"wrote {display.counted(self.rows, 'row')} ({display.size(size)}) to {named} "
            f"from {display.counted(self.tasks, 'task')}{self._speed()}"
        )

    def _speed(self) -> str:
        if self.elapsed is None:
            return ""
        taken = f" in {self.elapsed:,.1f} s"
        rows, sent = self.rows_per_second, self.bytes_per_second
        if rows is None or sent is None:
            return taken
        return f"{taken} ({rows:,.0f} rows/s, {sent / 1e6:,.1f} MB/s)"

    def __repr__(self) -> str:
        """Return the summary and the partitions' offsets, as lines of text."""
        return f"<WriteReport: {self.to_text().removeprefix('Kafka: ').rstrip()}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the totals, and a bar for the records of each partition."""
        rates = (self.rows_per_second, self.bytes_per_second)
        totals = {
            "rows": self.rows,
            "bytes as sent": display.size(self.bytes),
            "tasks": self.tasks,
            "starting and ending tasks": (
                None if self.task_seconds is None else f"{self.task_seconds:,.1f} s"
            ),
            "elapsed": None if self.elapsed is None else f"{self.elapsed:,.1f} s",
            "rows per second": None if rates[0] is None else round(rates[0]),
            "sent per second": None if rates[1] is None else display.size(rates[1]),
            "sampled keys in several tasks": (
                f"{self.spread_keys:,} of {self.sampled_keys:,}" if self.spread_keys else None
            ),
            "paused to keep the pace, all tasks": (
                None if self.paced_seconds is None else f"{self.paced_seconds:,.1f} s"
            ),
            "throttled by brokers, all tasks": (
                f"{self.throttled_seconds:,.1f} s" if self.throttled_seconds else None
            ),
            "records retried": self.retries or None,
            "bad rows": None if self.bad_rows is None else self.bad_rows.count,
            "query": self.query_id,
            "micro-batch": self.batch_id,
            "reportId": self.report_id,
        }
        rows = [
            (
                written.topic,
                written.partition,
                acks.records,
                known_offset(acks.first_offset),
                known_offset(acks.last_offset),
                acks.bytes,
            )
            for written, acks in self.partitions
        ]
        headings = ("topic", "partition", "records", "first offset", "last offset", "bytes")
        partitions = display.table(
            headings, rows, count=len(rows), things=("partition", "partitions"), bars=2
        )
        return display.block(
            f"Kafka: {self.to_line()}",
            display.facts(totals),
            *([partitions] if rows else []),
            notes=[*self.metrics.describe(), *self._notes(), *self._bad_lines()],
        )

    def _bad_lines(self) -> list[str]:
        return [] if self.bad_rows is None else self.bad_rows.lines()

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
                    "first_offset": known_offset(acks.first_offset),
                    "last_offset": known_offset(acks.last_offset),
                    "records": acks.records,
                    "bytes": acks.bytes,
                    "log_append_time": acks.log_append_time,
                }
            )
        return {
            "tasks": self.tasks,
            "rows": self.rows,
            "bytes": self.bytes,
            "elapsed_seconds": self.elapsed,
            "task_seconds": self.task_seconds,
            "paced_seconds": self.paced_seconds,
            "throttled_seconds": self.throttled_seconds,
            "sampled_keys": self.sampled_keys,
            "spread_keys": self.spread_keys,
            "rows_per_second": self.rows_per_second,
            "bytes_per_second": self.bytes_per_second,
            "offsets_known": self.offsets_known,
            "schemas": list(self.schemas),
            "bad_rows": None if self.bad_rows is None else self.bad_rows.as_dict(),
            "topics": topics,
            "metrics": self.metrics.as_dict(),
        }

    def to_record(self) -> dict[str, Any]:
        """Return all fields as values for JSON, from which `from_record` restores the report."""
        record = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return {
            **record,
            "partitions": [
                [written.topic, written.partition, *(getattr(acks, name) for name in _ACKS)]
                for written, acks in self.partitions
            ],
            "metrics": asdict(self.metrics),
            "bad_rows": None if self.bad_rows is None else self.bad_rows.as_dict(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WriteReport:
        """Return the report that `to_record` was called on."""
        metrics: dict[str, Any] = {
            name: Summary(**value) if isinstance(value, dict) else value
            for name, value in record["metrics"].items()
        }
        partitions = tuple(
            (TopicPartition(topic, number), PartitionAcks(**dict(zip(_ACKS, acks, strict=True))))
            for topic, number, *acks in record["partitions"]
        )
        known = {attribute.name for attribute in fields(cls)}
        return cls(
            **{
                # A server may have a newer version than its client.
                **{name: value for name, value in record.items() if name in known},
                "partitions": partitions,
                "schemas": tuple(record.get("schemas", ())),
                "metrics": MetricsSnapshot(**metrics),
                "bad_rows": restored_bad_rows(record.get("bad_rows")),
            }
        )

    def write_json(self, path: str) -> None:
        """Write the JSON atomically to a local file; raises OSError."""
        with pinned_target(Path(path)) as target:
            replace_file(target, self.to_json())


def report_of(messages: Iterable[KafkaCommitMessage | None]) -> WriteReport:
    """Merge messages; None stands for a task that did not finish, and is ignored."""
    finished = [message for message in messages if message is not None]
    keys = spread_keys(message.keys for message in finished)
    costs = costs_of(message.times for message in finished if message.times is not None)
    return WriteReport(
        tasks=len(finished),
        rows=sum(message.rows for message in finished),
        partitions=_merged(acks for message in finished for acks in message.acks),
        metrics=MetricsSnapshot.merge(message.metrics for message in finished),
        task_seconds=None if costs is None else costs.seconds,
        task_slots=None if costs is None else costs.slots,
        schemas=tuple(dict.fromkeys(each for message in finished for each in message.schemas)),
        paced_seconds=_sum_of_known(message.paced_seconds for message in finished),
        bad_rows=merged_bad_rows(message.bad_rows for message in finished),
        sampled_keys=keys.sampled,
        spread_keys=keys.spread,
    )


def _sum_of_known(numbers: Iterable[float | None]) -> float | None:
    """Return the sum without the unknown ones; None if there is no other."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _merged(
    acks_of_partitions: Iterable[tuple[TopicPartition, PartitionAcks]],
) -> tuple[tuple[TopicPartition, PartitionAcks], ...]:
    """Return the acknowledgements of each partition together, in order."""
    partitions: dict[TopicPartition, PartitionAcks] = {}
    for topic_partition, acks in acks_of_partitions:
        earlier = partitions.get(topic_partition)
        partitions[topic_partition] = acks if earlier is None else earlier.merged(acks)
    return tuple(sorted(partitions.items()))


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


def _row(written: TopicPartition, acks: PartitionAcks) -> tuple[str, ...]:
    offsets = (known_offset(acks.first_offset), known_offset(acks.last_offset))
    return (
        written.topic,
        str(written.partition),
        *("unknown" if offset is None else str(offset) for offset in offsets),
        f"{acks.records:,}",
        f"{acks.bytes:,}",
    )


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
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


def rest_lines(count: int, what: str) -> list[str]:
    """Return a line about what a table does not show, or none."""
    return [f"  {display.more(count, (what, f'{what}s'))}"] if count > 0 else []
