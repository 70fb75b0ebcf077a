"""What `KafkaSink.check` with a sample finds: sizes, partitions, and the rows that would fail.

The tasks of a dry run write with a producer that sends nothing (`dry_run_task`), and what they have
measured is put together here. The module imports nothing that only tasks need.

Sizes are counted in classes: up to 1024 bytes by the byte, above by ten significant bits. So the
counts of a task are few for any number of rows, and those of several tasks can be added up; a
median is wrong by 0.2 % at most.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import display
from spark_kafka_sink.config.sink_options import KEY_ORDER_FAIL
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.report_store import (
    FORMAT,
    driver_directory,
    oldest_first,
    replace_file,
)
from spark_kafka_sink.spark.sink.bad_rows import BadRows, restored_bad_rows
from spark_kafka_sink.spark.sink.write_report import (
    MAX_LINES,
    SpreadKeys,
    WriteReport,
    rest_lines,
    text_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from spark_kafka_sink.config.sink_options import SinkOptions

#: The option of a write that makes it a dry run, and of a read that asks for the result; its value
#: is the name of the result.
DRY_RUN_OPTION: Final = "__dryRun"
#: The column with the Spark partition in which a row was before the sample was taken.
TASK_COLUMN: Final = "__pykafka_task"
#: The most rows of a sample: Spark's limit is a 32-bit number.
_MOST_ROWS: Final = 2**31 - 1
#: Below this, each size is counted by itself.
_EXACT: Final = 1 << 10
_ANSWER: Final = "dryRun"
_DIRECTORY: Final = "spark-kafka-sink-dry-runs"
_MOST_RESULTS: Final = 50
_NAME: Final = re.compile(r"[0-9a-f]{32}")
#: Sides and their sizes, in the order in which they are shown.
SIDES: Final = ("key", "value", "record")
_Counts: TypeAlias = "Mapping[int, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSummary:
    """The sizes of keys, values or records, in bytes.

    `count` is how many were measured; `nulls` is how many more are null, and have no size. `median`
    and `p99` are exact up to 1024, and too small by at most 0.2 % above.

    >>> sizes = SizeSummary(count=3, minimum=1, median=5, p99=12, maximum=12, nulls=0)
    >>> sizes.maximum
    12
    """

    count: int
    minimum: int
    median: int
    #: 99 % are not larger.
    p99: int
    maximum: int
    nulls: int = 0


class SizeCounts(NamedTuple):
    """The sizes of one side, by `size_class`: what tasks pass to the driver."""

    counts: _Counts
    minimum: int = 0
    maximum: int = 0
    nulls: int = 0

    def merged(self, other: SizeCounts) -> SizeCounts:
        """Return the counts of both."""
        nulls = self.nulls + other.nulls
        if not self.counts or not other.counts:
            return (self if self.counts else other)._replace(nulls=nulls)
        return SizeCounts(
            Counter(self.counts) + Counter(other.counts),
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            nulls,
        )

    def summary(self) -> SizeSummary | None:
        """Return what users see; None if there is nothing."""
        if not self.counts:
            return None
        return SizeSummary(
            count=sum(self.counts.values()),
            minimum=self.minimum,
            median=self._quantile(50),
            p99=self._quantile(99),
            maximum=self.maximum,
            nulls=self.nulls,
        )

    def _quantile(self, percent: int) -> int:
        """Return the smallest size that `percent` of the sizes do not exceed."""
        wanted = -(-sum(self.counts.values()) * percent // 100)
        for size in sorted(self.counts):
            wanted -= self.counts[size]
            if wanted <= 0:
                break
        return max(size, self.minimum)


def size_class(size: int) -> int:
    """Return the smallest size that is counted together with this one."""
    shift = max(size.bit_length() - _EXACT.bit_length() + 1, 0)
    return size >> shift << shift


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DryRun:
    """What a write would do with a sample of its rows: `KafkaSink.check` returns it.

    `rows` were encoded, of at most `sample`, from `tasks` tasks of the write; nothing was sent.
    `failures` says why the write would fail, and is empty if it would not; `bad_rows` has the rows
    that cannot be sent. `rows_by_partition` and `bytes_by_partition` also have the partitions that
    get none. `bytes` are those of record batches as sent, of which there are `batches`; the topic
    would have refused `split_batches` others as too large, and got them in halves.
    `uncompressed_bytes` and `compressed_bytes` are those of the records in them. `key_sizes`,
    `value_sizes` and `record_sizes` are None if there are none. `max_message_bytes` has the limits
    of topics, as far as the brokers tell this client. Of `sampled_keys` keys, `spread_keys` are in
    more than one task.

    `to_text` has at most `max_lines` partitions. `to_record` returns a `record` for JSON, from
    which `from_record` restores the result.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}
    >>> checked = KafkaSink.check(df, options, sample=1000)
    >>> checked.dry_run.rows, checked.dry_run.failures
    (1, ())
    """

    sample: int
    rows: int
    tasks: int
    rows_by_partition: Mapping[TopicPartition, int]
    bytes_by_partition: Mapping[TopicPartition, int]
    #: The name of the codec.
    compression: str
    batches: int
    split_batches: int
    #: The records before and after compression, without the headers of their batches.
    uncompressed_bytes: int
    compressed_bytes: int
    key_sizes: SizeSummary | None
    value_sizes: SizeSummary | None
    record_sizes: SizeSummary | None
    max_message_bytes: Mapping[str, int]
    #: By kind, with the first of them; None if there are none.
    bad_rows: BadRows | None
    failures: tuple[str, ...]
    #: What else there is to know.
    notes: tuple[str, ...]
    sampled_keys: int
    spread_keys: int

    @property
    def bytes(self) -> int:
        """The size of all record batches."""
        return sum(self.bytes_by_partition.values())

    @property
    def compression_ratio(self) -> float | None:
        """The compressed size divided by the uncompressed size; None without rows."""
        return self.compressed_bytes / self.uncompressed_bytes if self.uncompressed_bytes else None

    def to_line(self) -> str:
        """Return a summary in one line."""
        rows = display.counted(self.rows, "row")
        which = f"all {rows}" if 0 < self.rows < self.sample else rows
        line = f"dry run of {which} from {display.counted(self.tasks, 'task')}"
        if self.batches:
            batches = display.counted(self.batches, "batch", "batches")
            line += f": {display.size(self.bytes)} in {batches}"
        if self.compression_ratio is not None and self.compression != "none":
            line += f", compressed to {self.compression_ratio:.0%} ({self.compression})"
        return line

    def to_text(self, max_lines: int = MAX_LINES) -> str:
        """Return tables of at most `max_lines` partitions, of sizes and of what is wrong."""
        lines = [self.to_line()]
        rows = [tuple(map(_shown, row)) for row in self._partition_rows(max_lines)]
        if rows:
            lines += text_table(_PARTITION_HEADINGS, rows)
            lines += rest_lines(len(self.rows_by_partition) - max_lines, "partition")
        sizes = [tuple(map(_shown, row)) for row in self._size_rows()]
        if sizes:
            lines += text_table(_SIZE_HEADINGS, sizes)
        lines += [f"  {line}" for line in self._lines()]
        return "\n".join(lines)

    def _lines(self) -> list[str]:
        """Return what is wrong, what is bad, and what to know."""
        lines = [f"the write would fail: {failure}" for failure in self.failures]
        if self.bad_rows is not None:
            count = display.counted(self.bad_rows.count, "row")
            lines.append(f"{count} cannot be written ({self.bad_rows.kinds()})")
            lines += [f"  {line}" for line in self.bad_rows.lines()]
        return [*lines, *self.notes]

    def _partition_rows(self, most: int) -> list[tuple[object, ...]]:
        written = sum(self.rows_by_partition.values())
        return [
            (
                place.topic,
                place.partition,
                rows,
                f"{rows / written if written else 0:.1%}",
                self.bytes_by_partition[place],
            )
            for place, rows in list(self.rows_by_partition.items())[:most]
        ]

    def _size_rows(self) -> list[tuple[object, ...]]:
        sizes = (self.key_sizes, self.value_sizes, self.record_sizes)
        return [
            (side, each.minimum, each.median, each.p99, each.maximum, each.nulls)
            for side, each in zip(SIDES, sizes, strict=True)
            if each is not None
        ]

    def __repr__(self) -> str:
        """Return the tables."""
        return f"<DryRun: {self.to_text()}>"

    def _repr_html_(self) -> str:
        """Show the same as tables, with a bar for the rows of each partition."""
        return display.block(self.to_line(), *self.html_tables(), notes=self._lines())

    def html_tables(self) -> list[str]:
        """Return HTML tables of partitions and sizes."""
        partitions = display.table(
            _PARTITION_HEADINGS,
            self._partition_rows(display.MAX_ROWS),
            count=len(self.rows_by_partition),
            things=("partition", "partitions"),
            bars=2,
            plain={0},
        )
        sizes = self._size_rows()
        return [
            *([partitions] if self.rows_by_partition else []),
            *([display.table(_SIZE_HEADINGS, sizes, count=len(sizes))] if sizes else []),
        ]

    def to_record(self) -> dict[str, Any]:
        """Return all fields as values for JSON."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in _SIZES:
            record[name] = None if record[name] is None else asdict(record[name])
        for name in _BY_PARTITION:
            record[name] = [[*place, count] for place, count in record[name].items()]
        record["bad_rows"] = None if self.bad_rows is None else self.bad_rows.as_dict()
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DryRun:
        """Return the result that `to_record` was called on."""
        known = {each.name for each in fields(cls)}
        # A server may have a newer version than its client.
        values = {name: value for name, value in record.items() if name in known}
        for name in _SIZES:
            values[name] = None if values[name] is None else SizeSummary(**values[name])
        for name in _BY_PARTITION:
            values[name] = {
                TopicPartition(topic, number): count for topic, number, count in values[name]
            }
        values["bad_rows"] = restored_bad_rows(values["bad_rows"])
        return cls(**{**values, **{name: tuple(values[name]) for name in ("failures", "notes")}})


_PARTITION_HEADINGS: Final = ("topic", "partition", "rows", "of all rows", "bytes")
_SIZE_HEADINGS: Final = ("bytes of", "minimum", "median", "99 % up to", "maximum", "null")
_ONE_TASK: Final = (
    "all rows of the sample are from one task: keys that other tasks have, too, are not found"
)
_SIZES: Final = tuple(f"{side}_sizes" for side in SIDES)
_BY_PARTITION: Final = ("rows_by_partition", "bytes_by_partition")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- on the driver, after the tasks


class Measured(NamedTuple):
    """What one task of a dry run has measured beside what a report has."""

    #: The batches that would have been accepted.
    batches: int
    uncompressed_bytes: int
    compressed_bytes: int
    #: By side.
    sizes: Mapping[str, SizeCounts]
    #: The number of partitions of each topic that has rows.
    partition_counts: Mapping[str, int]
    #: Of the topics for which it is known.
    max_message_bytes: Mapping[str, int]


def dry_run_of(
    report: WriteReport, measured: Iterable[Measured], options: SinkOptions, sample: int
) -> DryRun:
    """Put together what the tasks have written and measured."""
    tasks = list(measured)
    sizes = {side: SizeCounts({}) for side in SIDES}
    partition_counts: dict[str, int] = {}
    limits: dict[str, int] = {}
    for task in tasks:
        sizes = {side: sizes[side].merged(task.sizes[side]) for side in SIDES}
        partition_counts.update(task.partition_counts)
        limits.update(task.max_message_bytes)
    written = dict(report.partitions)
    places = sorted(
        {*written}
        | {
            TopicPartition(topic, number)
            for topic, count in partition_counts.items()
            for number in range(count)
        }
    )
    rows = report.rows + (0 if report.bad_rows is None else report.bad_rows.count)
    may_hide_keys = report.tasks == 1 and rows == sample and report.sampled_keys
    return DryRun(
        sample=sample,
        rows=rows,
        tasks=report.tasks,
        rows_by_partition={
            place: written[place].records if place in written else 0 for place in places
        },
        bytes_by_partition={
            place: written[place].bytes if place in written else 0 for place in places
        },
        compression=options.producer.compression_type,
        batches=sum(task.batches for task in tasks),
        split_batches=report.metrics.batch_split_total,
        uncompressed_bytes=sum(task.uncompressed_bytes for task in tasks),
        compressed_bytes=sum(task.compressed_bytes for task in tasks),
        key_sizes=sizes["key"].summary(),
        value_sizes=sizes["value"].summary(),
        record_sizes=sizes["record"].summary(),
        max_message_bytes=limits,
        bad_rows=report.bad_rows,
        failures=tuple(_failures(report, options)),
        notes=(
            *_notes(report, options, [*partition_counts], limits),
            *([_ONE_TASK] if may_hide_keys else []),
        ),
        sampled_keys=report.sampled_keys,
        spread_keys=report.spread_keys,
    )


def _failures(report: WriteReport, options: SinkOptions) -> list[str]:
    """Return why the write would fail."""
    failures = []
    bad = 0 if report.bad_rows is None else report.bad_rows.count
    if options.on_error is None and bad:
        failures.append(
            "a row that cannot be written ends it, unless onError is skip or dlq"
            if bad == 1
            else "the first row that cannot be written ends it, unless onError is skip or dlq"
        )
    elif options.on_error is not None and options.on_error.limit.is_exceeded(
        bad, report.rows + bad
    ):
        failures.append(f"{display.counted(bad, 'bad row')}, which is more than maxErrors allows")
    if report.spread_keys and options.key_order == KEY_ORDER_FAIL:
        failures.append(f"keyOrder=fail: {_spread(report)}")
    return failures


def _notes(
    report: WriteReport, options: SinkOptions, topics: Sequence[str], limits: Mapping[str, int]
) -> list[str]:
    notes = []
    if report.metrics.batch_split_total:
        notes.append(
            f"{display.counted(report.metrics.batch_split_total, 'batch', 'batches')} would be "
            "refused as larger than max.message.bytes of the topic and sent again in halves: lower "
            "kafka.batch.size, or raise it"
        )
    unknown = [topic for topic in topics if topic not in limits]
    if unknown:
        notes.append(
            f"max.message.bytes of {display.listed(unknown)} is unknown, so that records may be "
            "too large: grant this user DESCRIBE_CONFIGS on the topic to have it checked"
        )
    if options.producer.allow_auto_create_topics and options.topic is None and report.bad_rows:
        notes.append(
            "a topic that does not exist counts as wrong here: autoCreateTopics=true would create "
            "it in a write"
        )
    if report.spread_keys and options.key_order != KEY_ORDER_FAIL:
        notes.append(_spread(report))
    return notes


def _spread(report: WriteReport) -> str:
    return str(SpreadKeys(report.sampled_keys, report.spread_keys))


# --- the way of the result, from the process that commits to the user's


def keep_result(name: str, result: DryRun) -> None:
    """Keep a result on the driver's machine until it is asked for; raises OSError or KafkaError."""
    directory = driver_directory(_DIRECTORY)
    if directory is None:
        raise KafkaError("the result of a dry run can only be kept in a process of Spark's driver")
    directory.mkdir(mode=0o700, exist_ok=True)
    replace_file(_path(directory, name), json.dumps(result.to_record()), durable=False)
    for path in oldest_first(directory)[:-_MOST_RESULTS]:
        path.unlink(missing_ok=True)


def result_schema(name: str) -> StructType:
    """Return the answer to a request for a result, which is removed (on the driver)."""
    directory = driver_directory(_DIRECTORY)
    answer = "null"
    if directory is not None:
        with suppress(FileNotFoundError):
            path = _path(directory, name)
            answer = path.read_text("utf-8")
            path.unlink()
    return StructType(
        [StructField(_ANSWER, StringType(), nullable=True, metadata={_ANSWER: answer})]
    )


def _path(directory: Path, name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a dry run")
    return directory / f"{name}.json"


# --- in the user's process


def check_sample(df: DataFrame, sample: object) -> int:
    """Return the number of rows of a dry run of a DataFrame; raises ConfigError."""
    if isinstance(sample, bool) or not isinstance(sample, int) or not 0 < sample <= _MOST_ROWS:
        raise ConfigError(
            f"sample must be how many rows to try, from 1 to {_MOST_ROWS}, not {sample!r}"
        )
    if df.isStreaming:
        raise ConfigError(
            "a dry run needs the rows of a batch, and this DataFrame is a stream: leave out "
            "sample, or check a batch of the same rows (spark.read instead of spark.readStream)"
        )
    return sample


def check_destination(topic: str | None, partitions: int | None) -> None:
    """Raise ConfigError unless the partitions of the write are known, or a column says which."""
    if topic is not None and partitions is None:
        raise ConfigError(
            f"topic {topic!r} does not exist, so a dry run cannot know its partitions: create it, "
            "or leave out sample"
        )


def try_rows(df: DataFrame, options: Mapping[str, object], sample: int) -> DryRun:
    """Run a job that writes a sample nowhere, and return what it has found."""
    name = uuid.uuid4().hex
    # Before the limit, which has all rows of the sample in one task.
    rows = df.selectExpr("*", f"spark_partition_id() AS {TASK_COLUMN}").limit(sample)
    given: dict[str, Any] = {**options, DRY_RUN_OPTION: f"{name}{sample}"}
    rows.write.format(FORMAT).options(**given).mode("append").save()
    return _ask(df.sparkSession, name)


def parse_request(value: str) -> tuple[str, int]:
    """Return the name of a result, and the number of rows, of the option of a write."""
    return value[:32], int(value[32:])


def _ask(session: SparkSession, name: str) -> DryRun:
    schema = session.read.format(FORMAT).option(DRY_RUN_OPTION, name).load().schema
    record = json.loads(schema[_ANSWER].metadata[_ANSWER])
    if record is None:
        raise KafkaError(
            "the dry run has ended, but its result is not on the driver's machine any more: run it "
            "again"
        )
    return DryRun.from_record(record)
