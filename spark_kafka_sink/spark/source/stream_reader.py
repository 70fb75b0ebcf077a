"""The reader of a stream: plans micro-batches on the driver, reads them in tasks.

One Python process on the driver serves a stream from its start to its end, and calls one reader:
what must be remembered from one micro-batch to the next is in its `StreamDriver`. Spark pickles
another reader for the tasks, with plain data only.

PySpark 4.2 and later tell `latestOffset` the start and a limit. PySpark 4.1 looks at the signature
and calls it without arguments, and before `initialOffset`; it has no limits, and reads all
available data as one batch.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_kafka_sink.config.offset_specs import STREAM_START, listed
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.spark.announcements import advise_sockets
from spark_kafka_sink.spark.source.first_batch import FirstBatch, Phase, Start
from spark_kafka_sink.spark.source.offsets_json import StreamOffsets, offsets_json, parse_offsets
from spark_kafka_sink.spark.source.planning import (
    MinimumOffsets,
    limit_offsets,
    lost_with_topics,
    new_partitions,
    plan_ranges,
)
from spark_kafka_sink.spark.source.reader import TaskReader, input_partitions, lineage_of_read
from spark_kafka_sink.spark.source.source_cluster import SourceCluster, starting_offsets
from spark_kafka_sink.spark.source_offsets import refusals_text
from spark_kafka_sink.spark.user_errors import raising_for_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.config.source_options import SourceOptions
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.spark.source.offsets_json import Offsets
    from spark_kafka_sink.spark.source.read_lineage import ReadLineage

    Commit = Callable[[str, Offsets], Mapping[TopicPartition, KafkaError]]

logger = logging.getLogger(__name__)

#: The option that names the group.
OPTION = "commitGroup"
#: How long `stop` waits for the last commit to a group.
_STOP_SECONDS: Final = 1.0
#: How many partitions a warning names.
_MOST_NAMED: Final = 5


class GroupCommits:
    """The commits of one stream's progress to its `commitGroup`, for lag monitors.

    Nothing reads the group. So a commit never delays a micro-batch: a thread makes it, and if
    several come meanwhile, only the last counts. A failure is a warning, the same one only once.
    """

    def __init__(self, group_id: str, commit: Commit) -> None:
        self._group_id = group_id
        self._commit = commit
        self._lock = threading.Lock()
        self._next: Offsets | None = None
        self._thread: threading.Thread | None = None
        self._last_warning: str | None = None

    def put(self, offsets: Offsets) -> None:
        """Commit these offsets soon; never waits and never raises."""
        with self._lock:
            self._next = offsets
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kafka-commit-group", daemon=True
                )
                self._thread.start()

    def wait(self, timeout: float) -> None:
        """Wait until the last offsets are committed, at most `timeout` seconds."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                offsets, self._next = self._next, None
                if offsets is None:
                    self._thread = None
                    return
            try:
                cause = refusals_text(self._commit(self._group_id, offsets), OPTION)
            except Exception as error:  # noqa: BLE001 -- it must not end the thread
                cause = str(error) or type(error).__name__
            self._warn(cause)

    def _warn(self, cause: str) -> None:
        if cause and cause != self._last_warning:
            logger.warning(
                "the progress of the query was not committed to %s %r, which changes nothing else: "
                "%s",
                OPTION,
                self._group_id,
                cause,
            )
        self._last_warning = cause


class StreamDriver:
    """What the driver remembers of a stream; never pickled."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        cluster: SourceCluster | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._cluster = cluster or SourceCluster(options, is_stream=True)
        self._clock = clock
        self._first = FirstBatch()
        minimum = options.min_offsets_per_trigger
        self._minimum = (
            None
            if minimum is None
            else MinimumOffsets(minimum, options.max_trigger_delay_ms / 1000)
        )
        group = options.commit_group
        self._commits = None if group is None else GroupCommits(group, self._cluster.commit)
        #: The offsets that a batch has reached, for PySpark 4.1, which does not pass them.
        self._reached: StreamOffsets | None = None
        #: The latest offsets as last seen, for the progress of the query.
        self.latest: Offsets | None = None
        self.is_available_now = False
        #: With AvailableNow: the latest offsets of the first trigger, at which the query ends, of
        #: the partitions that there have been ever since.
        self._target: StreamOffsets | None = None
        for warning in options.warnings:
            logger.warning("Kafka: %s", warning)

    def initial(self) -> StreamOffsets:
        """Return the offsets at which a new query starts."""
        if self._first.start is None:
            return self._first.begin(self._start())
        return self._first.start.offsets

    def _start(self) -> Start:
        start = starting_offsets(
            self._options, self._cluster.partitions(), self._cluster, STREAM_START
        )
        offsets = start.offsets
        topic_ids = self._cluster.topic_ids(offsets)
        return start._replace(offsets=StreamOffsets(offsets, topic_ids, offsets.epochs))

    def next_end(
        self, start: StreamOffsets, *, max_offsets: int | None = None, reads_all: bool = False
    ) -> StreamOffsets:
        """Return where the batch from `start` ends; `start` itself if there is nothing to read.

        `reads_all` stands for a trigger that ignores all limits.
        """
        end = self._end(start, max_offsets=max_offsets, reads_all=reads_all)
        # Another text of the same offsets would count as new data.
        return start if end.is_still(start) else end

    def _end(
        self, start: StreamOffsets, *, max_offsets: int | None, reads_all: bool
    ) -> StreamOffsets:
        pinned = self._first.pinned(start)
        latest = self._latest(start)
        self._first.plan(latest)
        self.latest = latest
        end = latest
        if pinned is not None:
            end = StreamOffsets(
                {
                    partition: pinned.get(partition, latest[partition])
                    for partition in latest
                    if partition in start
                },
                # An offset goes with the log in which it was found.
                {**latest.topic_ids, **start.topic_ids},
                {**latest.epochs, **start.epochs},
            )
        if reads_all:
            return end
        # All of a topic that was created again is new.
        known = start.without(end.replaced(start))
        if (
            self._minimum is not None
            and pinned is None
            and not self.is_available_now
            and self._minimum.must_wait(known, end, self._clock())
        ):
            return start
        if max_offsets is None:
            return end
        earliest = self._cluster.earliest(new_partitions(known, end))
        return end.at(limit_offsets(max_offsets, known, end, earliest))

    def end_of_all(self) -> StreamOffsets:
        """Return the latest offsets, for PySpark 4.1, which tells neither start nor limit."""
        reached = self._reached
        self.latest = latest = self._latest(reached or {})
        self._first.plan(latest)
        return reached if reached is not None and latest.is_still(reached) else latest

    def _latest(self, known: Offsets) -> StreamOffsets:
        partitions = self._cluster.remaining_partitions()
        if self._target is not None:
            # Whatever is gone from now on is lost for this query, even if it comes back.
            self._target = self._target.remaining(partitions, self._cluster.topic_ids(partitions))
            return self._target
        latest = self._cluster.latest(partitions, known)
        if self.is_available_now:
            self._target = latest
        return latest

    def divide(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        """Return the input partitions of a batch, which may be one that Spark replays.

        Spark asks once for each time that a query uses the stream, and the answers must be equal.
        So they depend on the offsets only, and nothing is remembered that would change the next.
        """
        first = self._first.divide(start)
        self._reached = end
        if end.is_still(start):
            return []
        if first is not None and self._first.phase is Phase.REPLAYED:
            _warn_of_replay(first, end)
        replaced = end.replaced(start)
        losses = lost_with_topics(replaced, start)
        if first is not None:
            # Nothing has been read up to a start that was looked up.
            losses = tuple(loss for loss in losses if loss.topic_partition in first.given)
        known = start.without(replaced)
        planned = plan_ranges(
            known,
            end,
            self._earliest_of_new(known, end),
            first=first,
            # The start of a first batch is not stored, so nothing has been read up to there.
            cut={} if first is not None else self._cut_logs(known, end),
            epochs=known.epochs,
            is_committed=self._options.consumer.is_read_committed,
        )
        planned = planned._replace(losses=losses + planned.losses)
        return input_partitions(planned, self._options, self._cluster, end.topic_ids)

    def _cut_logs(self, start: StreamOffsets, end: StreamOffsets) -> Offsets:
        """Return where the logs were cut that no longer have all records before the start.

        The leader of a later epoch is asked where the log of the start's epoch ends (KIP-320).
        """
        ids = self._cluster.ids(
            partition for partition in start if partition in end and partition in start.epochs
        )
        newest = {
            partition: max(end.epochs.get(partition, -1), partition_ids.leader_epoch)
            for partition, partition_ids in ids.items()
        }
        ends = self._cluster.epoch_ends(
            {
                partition: start.epochs[partition]
                for partition in ids
                if newest[partition] > start.epochs[partition]
            }
        )
        return {
            partition: offset for partition, offset in ends.items() if offset < start[partition]
        }

    def _earliest_of_new(self, start: Offsets, end: Offsets) -> Offsets:
        new = new_partitions(start, end)
        if not new:
            return {}
        existing = set(self._cluster.remaining_partitions())
        return self._cluster.earliest([partition for partition in new if partition in existing])

    def commit(self, end: Offsets) -> None:
        """Commit the progress to commitGroup, if it is set."""
        if self._commits is not None:
            self._commits.put(end)

    def stop(self) -> None:
        """Wait a moment for the last commit; idle clients are closed by their cache."""
        if self._commits is not None:
            self._commits.wait(_STOP_SECONDS)


class KafkaStreamReader(TaskReader, DataSourceStreamReader):
    """The reader of a stream, without the method `latestOffset`, which depends on PySpark."""

    def __init__(
        self,
        options: SourceOptions,
        columns: StructType,
        schemas: Mapping[Side, PayloadSchema] | None = None,
    ) -> None:
        super().__init__(options, columns, schemas)
        self._driver_or_none: StreamDriver | None = None
        self._lineage: ReadLineage | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return plain data only: what the driver remembers stays there."""
        return {**vars(self), "_driver_or_none": None, "_lineage": None}

    @property
    def _driver(self) -> StreamDriver:
        if self._driver_or_none is None:
            self._driver_or_none = StreamDriver(self._options)
        return self._driver_or_none

    @raising_for_user
    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 -- Spark's name
        """Return where a new query starts (on the driver)."""
        return offsets_json(self._driver.initial())

    @raising_for_user
    def partitions(
        self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
    ) -> list[InputPartition]:
        """Divide a micro-batch among tasks (on the driver)."""
        offsets = parse_offsets(end)
        divided = self._driver.divide(parse_offsets(start), offsets)
        if self._lineage is None:
            self._lineage = lineage_of_read(self._options, self._columns, is_stream=True)
        if self._lineage is not None:
            topics = {partition.topic for partition in offsets}
            self._lineage.planned_micro_batch(topics, divided)
        advise_sockets(len(divided))
        return divided

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Commit the progress to commitGroup; never fails and never waits (on the driver)."""
        self._driver.commit(parse_offsets(end))

    def stop(self) -> None:
        """Stop; Spark does not always call it."""
        if self._driver_or_none is not None:
            self._driver_or_none.stop()
        if self._lineage is not None:
            self._lineage.stop()


class KafkaStreamReader41(KafkaStreamReader):
    """The reader of a stream in PySpark 4.1."""

    @raising_for_user
    def latestOffset(self) -> dict[str, dict[str, int]]:  # type: ignore[override]  # noqa: N802
        """Return the latest offsets (on the driver)."""
        return offsets_json(self._driver.end_of_all())


def check_no_limits(options: SourceOptions, version: str) -> None:
    """Raise ConfigError for options that PySpark 4.1 cannot support; `version` is PySpark's."""
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
    ):
        if value is not None:
            raise ConfigError(
                f"{name} requires PySpark 4.2 or later; this is PySpark {version}, which does not "
                "let Python data sources limit a batch: remove the option"
            )


def _warn_of_replay(first: Start, end: Offsets) -> None:
    """Log where the first batch begins now, if retention may have removed some of it meanwhile."""
    moved = [
        f"{partition} (offset {offset})"
        for partition, offset in sorted(first.offsets.items())
        if offset and partition in end and partition not in first.from_latest | first.given
    ]
    if moved:
        logger.warning(
            "the first micro-batch is replayed, and Spark has not stored where it started, so that "
            "was looked up again: %s. Records that were deleted since the first attempt are not "
            "read",
            listed(moved, _MOST_NAMED),
        )


class RefusedStreamReader(DataSourceStreamReader):
    """The reader of a stream that cannot run, because of its options or columns.

    PySpark hides an error that is raised while it creates a stream's reader behind one of its own
    (`UnboundLocalError`), so this reader raises the error when Spark asks it where to read, with
    whatever arguments this PySpark calls it. A restarted query may have a batch to replay.
    """

    def __init__(self, error: KafkaError) -> None:
        self.error = error

    @raising_for_user
    def _refuse(self, *_: object) -> NoReturn:
        raise self.error

    initialOffset = _refuse  # noqa: N815 -- Spark's name
    latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
