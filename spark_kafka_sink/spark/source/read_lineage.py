"""The lineage events of reads, on the driver.

Spark tells a source what to plan, and nothing about the end of what it has planned. So the run of a
batch is its planning: COMPLETE means that the offsets to read are known, and FAIL that they cannot
be read. A stream has START and RUNNING with its first micro-batch, RUNNING at most once a minute,
and COMPLETE if Spark tells the source to stop, which it does not always do.

What was planned is also kept for the write that reads it (`LineageStore`), which has it among its
inputs.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyspark

from spark_kafka_sink.config.offset_specs import Assign, Subscribe
from spark_kafka_sink.spark.lineage import (
    WAIT_SECONDS,
    LineageStore,
    PlannedRead,
    best_effort,
    send,
)
from spark_kafka_sink.spark.lineage_events import (
    COMPLETE,
    FAIL,
    RUNNING,
    START,
    LineageRun,
    OffsetRange,
    input_dataset,
    namespace_of,
    schema_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.errors import KafkaError

#: The seconds between two events of a stream.
EVERY_SECONDS: Final = 60.0


class ReadLineage:
    """The events of one read; its methods never raise.

    `clock` returns seconds since 1970.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: StructType,
        *,
        is_stream: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._namespace = namespace_of(options.consumer.bootstrap_servers)
        self._selected = _selected_topics(options)
        self._job = None if options.lineage is None else options.lineage.job
        name = f"{self._job}.read" if self._job else _named("pykafka_read", self._selected)
        self._run = LineageRun(str(uuid.uuid4()), name, is_stream=is_stream)
        self._fields = schema_fields(columns)
        self._clock = clock
        self._started_at = clock()
        #: When a stream's last event was sent.
        self._sent_at: float | None = None
        self._store = LineageStore.of_driver()

    def planned(self, partitions: Sequence[InputPartition]) -> None:
        """Handle a batch whose offsets are known."""
        with best_effort():
            inputs = self._inputs(self._selected, partitions)
            if self._store is not None:
                self._store.add_read(PlannedRead(self._job, inputs, self._clock()))
            self._send(START, inputs, at=self._started_at)
            self._send(COMPLETE, inputs)

    def refused(self, error: KafkaError) -> None:
        """Handle a batch whose offsets cannot be read."""
        with best_effort():
            inputs = self._inputs(self._selected, ())
            self._send(START, inputs, at=self._started_at)
            self._send(FAIL, inputs, error=str(error))

    def planned_micro_batch(
        self, topics: Iterable[str], partitions: Sequence[InputPartition]
    ) -> None:
        """Handle a micro-batch of a stream, which Spark may plan several times."""
        with best_effort():
            now = self._clock()
            inputs = self._inputs(sorted(set(topics)), partitions)
            if self._store is not None:
                read = PlannedRead(self._job, inputs, now, os.getpid())
                self._store.set_stream(self._run.run_id, read)
            is_first = self._sent_at is None
            if self._sent_at is not None and 0 <= now - self._sent_at < EVERY_SECONDS:
                return
            self._sent_at = now
            if is_first:
                self._send(START, inputs, at=self._started_at)
            # Spark ends this process with the stream, which may be soon.
            self._send(RUNNING, inputs, wait=WAIT_SECONDS if is_first else 0.0)

    def stop(self) -> None:
        """Handle the end of a stream."""
        with best_effort():
            if self._store is not None:
                self._store.remove_stream(self._run.run_id)
            if self._sent_at is not None:
                self._send(COMPLETE, self._inputs(self._selected, ()), wait=WAIT_SECONDS)

    def _inputs(
        self, topics: Iterable[str], partitions: Iterable[InputPartition]
    ) -> list[dict[str, Any]]:
        """Return the datasets of topics, and of those that partitions are of."""
        ranges: dict[str, dict[int, OffsetRange]] = {topic: {} for topic in topics}
        for partition in partitions:
            planned = partition.value
            of_topic = ranges.setdefault(planned.topic, {})
            # Several tasks may read parts of one partition.
            _, start, end = of_topic.get(planned.partition, (0, planned.start, planned.end))
            of_topic[planned.partition] = OffsetRange(
                planned.partition, min(start, planned.start), max(end, planned.end)
            )
        return [
            input_dataset(self._namespace, topic, self._fields, of_topic.values())
            for topic, of_topic in ranges.items()
        ]

    def _send(
        self,
        kind: str,
        inputs: Sequence[dict[str, Any]],
        *,
        at: float | None = None,
        error: str | None = None,
        wait: float = 0.0,
    ) -> None:
        event = self._run.event(
            kind,
            at=self._clock() if at is None else at,
            environ=os.environ,
            inputs=inputs,
            error=error,
            spark_version=pyspark.__version__,
        )
        send(event, wait)


def _selected_topics(options: SourceOptions) -> list[str]:
    """Return the topics that a read names; none if a pattern chooses them."""
    match options.selection:
        case Subscribe(topics):
            return list(dict.fromkeys(topics))
        case Assign(partitions):
            return list(dict.fromkeys(partition.topic for partition in partitions))
    return []


def _named(kind: str, topics: Sequence[str]) -> str:
    return f"{kind}.{topics[0]}" if len(topics) == 1 else kind
