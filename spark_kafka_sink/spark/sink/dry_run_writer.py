"""The writer of a dry run: its tasks write their rows with a producer that sends nothing.

The rows of a sample come to one task, although they are of many. Each row has the number of its own
(`TASK_COLUMN`), and the rows of each are written as a task of the write would: with their numbers
from 0 on, their own last batches, and their own sample of keys.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_kafka_sink.config.sink_options import KEY_ORDER_OFF, ErrorLimit, OnErrorOptions
from spark_kafka_sink.record.bad_row_limit import MOST_SHOWN
from spark_kafka_sink.record.refused_rows import RowErrorKind
from spark_kafka_sink.spark.sink.bad_rows import BadRow, bad_rows_of
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.dry_run import (
    SIDES,
    TASK_COLUMN,
    Measured,
    SizeCounts,
    dry_run_of,
    keep_result,
    size_class,
)
from spark_kafka_sink.spark.sink.partition_writer import (
    KafkaCommitMessage,
    close_quietly,
    write_rows,
)
from spark_kafka_sink.spark.sink.write_report import report_of
from spark_kafka_sink.spark.sink.writers import SinkWriter, task_context
from spark_kafka_sink.spark.user_errors import raising_for_user
from spark_kafka_sink.spark.worker import preparing_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.config.sink_options import SinkOptions
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.producer.dry_run import DryRunProducer, TooLargeRecord
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import RefusedRows
    from spark_kafka_sink.spark.sink.bad_rows import BadRows
    from spark_kafka_sink.spark.sink.partition_writer import Written

_EVERY_BAD_ROW: Final = OnErrorOptions(ErrorLimit(None), dlq_topic=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunMessage(WriterCommitMessage):
    """What a task of a dry run has found."""

    #: One for each task of the write that has rows here.
    tasks: tuple[KafkaCommitMessage, ...]
    measured: Measured


class DryRunWriter(SinkWriter, DataSourceArrowWriter):
    """The writer of a sample of at most `sample` rows; `topic` is None if a column names it."""

    def __init__(
        self,
        options: SinkOptions,
        *,
        topic: str | None,
        schemas: Mapping[Side, PayloadSchema],
        name: str,
        sample: int,
    ) -> None:
        """Write nothing; the result is kept by its `name`."""
        self._options = options
        self._topic = topic
        self._schemas = schemas
        self._name = name
        self._sample = sample

    @raising_for_user
    def write(  # type: ignore[override]  # as PySpark's own DataSourceArrowWriter.write
        self, iterator: Iterator[pa.RecordBatch]
    ) -> DryRunMessage:
        """Try a task's rows (in the worker)."""
        attempt = task_context().taskAttemptId()
        with preparing_writer():
            from spark_kafka_sink.producer.dry_run import dry_run_config
        producers = DryRunProducers(dry_run_config(self._options.producer))
        try:
            tasks = tuple(
                self._try_task(task, batches, producers, attempt)
                for task, batches in by_task(iterator)
            )
            return DryRunMessage(tasks=tasks, measured=producers.measured())
        finally:
            producers.close()

    def _try_task(
        self, task: int, batches: Iterator[pa.RecordBatch], producers: DryRunProducers, attempt: int
    ) -> KafkaCommitMessage:
        on_error = self._options.on_error
        bad_rows = _FoundRows(
            _EVERY_BAD_ROW,
            RowOrigin(task),
            producers.config,
            self._topic,
            reserved_topic=None if on_error is None else on_error.dlq_topic,
        )
        written = write_rows(
            self._encoded(batches, bad_rows),
            producers=producers,
            topic=self._topic,
            config=producers.config,
            bad_rows=bad_rows,
            samples_keys=self._options.key_order != KEY_ORDER_OFF,
        )
        written = without_too_large(written, task, producers.take_too_large())
        return KafkaCommitMessage(
            partition_id=task,
            task_attempt_id=attempt,
            rows=written.rows,
            acks=written.acks,
            metrics=written.metrics,
            bad_rows=written.bad_rows,
            keys=written.keys,
        )

    @raising_for_user
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Put the result together, and keep it (on the driver)."""
        ours = [message for message in messages if isinstance(message, DryRunMessage)]
        report = report_of(task for message in ours for task in message.tasks)
        measured = [message.measured for message in ours]
        keep_result(self._name, dry_run_of(report, measured, self._options, self._sample))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing was written."""


class _FoundRows(BadRowWriter):
    """The bad rows of a task that are only counted."""

    def finish(self) -> BadRows | None:
        """Return them; the result of the dry run shows them, and no line of the log."""
        return self.found()


class DryRunProducers:
    """The only producer of a task of a dry run; implements `Producers`. `close` it."""

    def __init__(self, config: ProducerConfig) -> None:
        """Start nothing yet; `config` has the settings of the producer."""
        self.config = config
        self._producer: DryRunProducer | None = None
        self._sizes = {side: SizeCounts({}) for side in SIDES}

    def take(self) -> KafkaProducer:
        """Return the producer, which is started once."""
        if self._producer is None:
            from spark_kafka_sink.admin.topic_settings import max_message_bytes
            from spark_kafka_sink.producer.dry_run import DryRunProducer

            self._producer = DryRunProducer(
                self.config,
                limits_of=lambda topics: max_message_bytes(self.config, topics),
                observe=self._observe,
            )
        return self._producer

    def finished(self, producer: KafkaProducer) -> None:
        """Keep the producer for the next task's rows."""

    def failed(self, producer: KafkaProducer) -> None:
        """Do nothing: the dry run ends with this error, and closes it."""

    def take_too_large(self) -> list[TooLargeRecord]:
        """Return the records of the last rows that are too large for their topics."""
        return [] if self._producer is None else self._producer.take_too_large()

    def measured(self) -> Measured:
        """Return what was measured so far."""
        producer = self._producer
        if producer is None:
            return Measured(0, 0, 0, self._sizes, {}, {})
        totals = producer.totals
        return Measured(
            totals.batches,
            totals.uncompressed_bytes,
            totals.compressed_bytes,
            self._sizes,
            {topic: len(producer.partitions_for(topic)) for topic in producer.topics},
            dict(producer.limits),
        )

    def close(self) -> None:
        """Close the producer, if there is one."""
        if self._producer is not None:
            close_quietly(self._producer)

    def _observe(self, columns: RecordColumns, first_row: int, refused: RefusedRows | None) -> None:
        from spark_kafka_sink.record.record_sizes import record_sizes

        bad = [] if refused is None else refused.between(first_row, first_row + columns.num_rows)
        good = np.ones(columns.num_rows, bool)
        for refusal in bad:
            good[refusal.rows - first_row] = False
        for side, sizes in zip(SIDES, record_sizes(columns), strict=True):
            self._sizes[side] = self._sizes[side].merged(counts_of(sizes[good]))


def by_task(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield the rows of one task of the write after another, without the column of the task."""
    parts = (part for batch in batches for part in _parts(batch))
    for task, own in groupby(parts, itemgetter(0)):
        yield task, (batch for _, batch in own)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    column = batch.schema.get_field_index(TASK_COLUMN)
    tasks = batch.column(column).to_numpy()
    rows: Any = batch.drop_columns([TASK_COLUMN])
    starts = [0, *(np.flatnonzero(np.diff(tasks)) + 1).tolist(), batch.num_rows]
    for start, stop in pairwise(starts):
        yield int(tasks[start]), rows.slice(start, stop - start)


def counts_of(sizes: npt.NDArray[np.int64]) -> SizeCounts:
    """Return the counts of sizes, of which the negative ones are null."""
    known = sizes[sizes >= 0]
    nulls = sizes.size - known.size
    if not known.size:
        return SizeCounts({}, nulls=nulls)
    counts: Counter[int] = Counter()
    for size, count in zip(*np.unique(known, return_counts=True), strict=True):
        counts[size_class(int(size))] += int(count)
    return SizeCounts(dict(counts), int(known.min()), int(known.max()), nulls)


def without_too_large(written: Written, task: int, records: list[TooLargeRecord]) -> Written:
    """Return what was written without the records that are too large for their topics."""
    if not records:
        return written
    acks = dict(written.acks)
    for record in records:
        whole = acks[record.topic_partition]
        acks[record.topic_partition] = replace(
            whole, records=whole.records - 1, bytes=whole.bytes - record.bytes
        )
    earlier = written.bad_rows
    counts = Counter({} if earlier is None else dict(earlier.counts))
    counts[RowErrorKind.SIZE.value] += len(records)
    found = [
        BadRow(
            task,
            record.row or 0,
            RowErrorKind.SIZE.value,
            record.topic_partition.topic,
            str(record.error),
        )
        for record in records
    ]
    first = sorted([*(() if earlier is None else earlier.first), *found], key=lambda bad: bad.row)
    return written._replace(
        rows=written.rows - len(records),
        acks=tuple(acks.items()),
        bad_rows=bad_rows_of(counts, first[:MOST_SHOWN], None),
    )
