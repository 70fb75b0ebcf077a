"""All logs of a cluster: where they are stored, and their periodic maintenance.

The counterpart of Kafka's LogManager. Without a data directory logs are in memory. With one, `open`
locks the directory, `close` releases it, and in between:

- recovery points are written every minute (log.flush.offset.checkpoint.interval.ms);
- logs are flushed when their `flush.ms` have passed;
- the start of a log is written as soon as it changes.

A failure for one log is logged, and retried the next time; the other logs are still handled.

In memory and on disk alike, old segments are deleted every five minutes
(log.retention.check.interval.ms), logs with enough new records are compacted every 15 seconds
(log.cleaner.backoff.ms), and expired producers are removed every ten minutes
(producer.id.expiration.check.interval.ms). After a jump of the clock each of these waits for a full
interval again; none of them wakes an idle broker in memory.

After anything but a successful `close`, every log is recovered from its recovery point when it is
opened. A process that ends before it has opened a log leaves the directory as it was.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from spark_kafka_sink.devbroker.log.data_directory import (
    CLEANER_OFFSETS,
    LOG_STARTS,
    RECOVERY_POINTS,
    DataDirectory,
)
from spark_kafka_sink.devbroker.log.log_cleaner import clean, needs_cleaning
from spark_kafka_sink.devbroker.log.log_loader import load_log
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.errors import CorruptRecordError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.timers import Timer, Timers
    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.data_directory import MetaProperties, StoredCluster
    from spark_kafka_sink.model import TopicPartition

logger = logging.getLogger(__name__)

_RESTORE = "To recover them, stop the broker and restore the file from a backup."
#: What is lost with the end of a file, by topic.
_LOST = {
    GROUP_METADATA_TOPIC: f"Later offset commits are lost: check where groups resume. {_RESTORE}",
    TRANSACTION_STATE_TOPIC: f"Later changes of transactional ids are lost. {_RESTORE}",
}
#: The name of the directory of a broker that has none.
IN_MEMORY = "/memory"
_CHECKPOINT_INTERVAL_MS = 60_000
_MIN_FLUSH_INTERVAL_MS = 10
_RETENTION_INTERVAL_SECONDS = 300.0
_CLEANER_INTERVAL_SECONDS = 15.0


class LogManager:
    """The logs of all partitions."""

    def __init__(
        self,
        settings: BrokerSettings,
        timers: Timers,
        *,
        path: Path | None = None,
        owner: MetaProperties | None = None,
    ) -> None:
        """Keep logs in memory or in a directory: a cluster's or, with an `owner`, a broker's."""
        self._settings = settings
        self._owner = owner
        #: The epoch of the broker that had closed the directory before it was opened, -1 for none.
        self.previous_epoch = -1
        self._timers = timers
        self._path = path
        #: The directory, while it is open.
        self.data: DataDirectory | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        #: Whether the logs that are not open were closed in order.
        self._clean = True
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._cleaner_offsets: dict[TopicPartition, int] = {}
        self._flush_timer: Timer | None = None
        self._cleans_up = False

    @property
    def is_durable(self) -> bool:
        """Whether logs are stored in a directory."""
        return self._path is not None

    @property
    def location(self) -> str:
        """The absolute path of the directory, or what stands for it in memory."""
        return IN_MEMORY if self._path is None else str(self._path.absolute())

    def space(self) -> tuple[int, int]:
        """Return the total and the usable bytes of the disk; -1 for both in memory.

        Raises OSError.
        """
        if self._path is None:
            return -1, -1
        space = os.statvfs(self._path)
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have a log, including those of internal topics."""
        return set(self._logs)

    def open(self, now: float) -> StoredCluster | None:
        """Lock the directory; return the cluster stored in it. Raises OSError, ConfigError."""
        if self._path is None:
            return None
        data = DataDirectory(self._path, self._owner)
        try:
            stored = None if self._owner is not None else data.read_cluster()
            self.previous_epoch = data.read_clean_shutdown()
            self._recovery_points = data.read_checkpoint(RECOVERY_POINTS)
            self._log_starts = data.read_checkpoint(LOG_STARTS)
            self._cleaner_offsets = data.read_checkpoint(CLEANER_OFFSETS)
            data.remove_deleted()
            self._clean = data.was_shut_down_cleanly()
        except BaseException:
            data.close()
            raise
        self.data = data
        self._schedule_checkpoint(now)
        return stored

    def close(self, now: float, *, broker_epoch: int = -1) -> None:
        """Flush and close every log, and release the directory.

        Raises OSError if that fails for any of them; then the next `open` recovers all logs.
        """
        data, self.data = self.data, None
        if data is None:
            return
        # `StandaloneCluster` clears the timers whenever it closes the logs.
        self._cleans_up = False
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        try:
            failed = self._each_log("cannot be closed", lambda log: log.close(int(now * 1000)))
            if failed is not None:
                raise failed
            self._checkpoint(data)
            # As in Kafka, logs that were to be recovered and were not even opened are not clean.
            if self._clean or self._logs.keys() >= data.logs():
                data.mark_clean_shutdown(broker_epoch)
        finally:
            self._logs.clear()
            data.close()

    def abandon(self) -> None:
        """Release the directory as it is; the next `open` recovers all logs."""
        data, self.data = self.data, None
        self._cleans_up = False
        self._logs.clear()
        if data is not None:
            data.close()

    def log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, config: TopicConfig, now: float
    ) -> PartitionLog:
        """Open the log of a partition, or create it. Raises OSError."""
        if self.data is None:
            log = PartitionLog(config=config)
        else:
            now_ms = int(now * 1000)
            if not self._logs:
                # After a crash from here on, all logs must be recovered (KAFKA-10471).
                self.data.remove_clean_shutdown()
            if self.data.is_of_another_topic(topic_partition, topic_id):
                self._forget_offsets(topic_partition)
                for error in self.data.delete_logs([topic_partition]):
                    raise error
            directory = self.data.log_directory(topic_partition, topic_id)
            loaded = load_log(
                directory,
                config,
                log_start_offset=self._log_starts.get(topic_partition, 0),
                recovery_point=self._recovery_points.get(topic_partition, 0),
                clean=self._clean,
                now_ms=now_ms,
                producer_id_expiration_ms=self._settings.producer_id_expiration_ms,
            )
            if loaded.truncated_bytes:
                logger.warning(
                    "truncated %s: the %d bytes from there on were not valid batches. %s",
                    loaded.truncated_at,
                    loaded.truncated_bytes,
                    _LOST.get(topic_partition.topic, "The records after it are lost."),
                )
            log = PartitionLog(config=config, directory=directory, loaded=loaded, now_ms=now_ms)
            log.first_dirty_offset = self._cleaner_offsets.get(topic_partition, 0)
        self._logs[topic_partition] = log
        self._schedule_flush(config, now)
        if not self._cleans_up:
            self._cleans_up = True
            self._repeat(_RETENTION_INTERVAL_SECONDS, self.delete_old_segments)
            self._repeat(_CLEANER_INTERVAL_SECONDS, self.clean)
            interval_ms = self._settings.producer_id_expiration_check_interval_ms
            self._repeat(interval_ms / 1000, self.expire_producers)
        return log

    def existing(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return a log that was opened."""
        return self._logs[topic_partition]

    def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Delete logs; files that cannot be removed now are removed later."""
        present = []
        for topic_partition in topic_partitions:
            if self._logs.pop(topic_partition, None) is not None:
                present.append(topic_partition)
            self._forget_offsets(topic_partition)
        self._delete_files(present)

    def _forget_offsets(self, topic_partition: TopicPartition) -> None:
        for offsets in self._stored_offsets:
            offsets.pop(topic_partition, None)

    def _delete_files(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self.data is not None:
            for error in self.data.delete_logs(topic_partitions):
                logger.warning("cannot remove the files of deleted topics yet: %s", error)

    def configure(self, topic_partition: TopicPartition, config: TopicConfig, now: float) -> None:
        """Change the settings of a log."""
        self._logs[topic_partition].config = config
        self._schedule_flush(config, now)

    def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, RefusedError]:
        """Move the starts of logs for good; return an error for each that could not be moved.

        Whole segments are removed first, which needs no disk space. If that fails, the log fails
        with KAFKA_STORAGE_ERROR. The other starts are stored with one write; if it fails, they all
        fail.
        """
        failed: dict[TopicPartition, RefusedError] = {}
        starts: dict[TopicPartition, int] = {}
        for topic_partition, offset in offsets.items():
            log = self._logs[topic_partition]
            try:
                with refused_if_disk_fails(f"records of {topic_partition} cannot be deleted"):
                    log.delete_segments_before(offset)
            except RefusedError as refused:
                failed[topic_partition] = refused
            else:
                if offset > log.log_start_offset:
                    starts[topic_partition] = offset
        try:
            if self.data is not None and starts:
                with refused_if_disk_fails("the log start offsets cannot be stored"):
                    self._write_log_starts(self.data, starts)
        except RefusedError as refused:
            return failed | dict.fromkeys(starts, refused)
        for topic_partition, offset in starts.items():
            self._logs[topic_partition].delete_records(offset)
        return failed

    def truncate(self, topic_partition: TopicPartition, offset: int) -> None:
        """Truncate a log; see `PartitionLog.truncate_to`. Raises RefusedError."""
        with refused_if_disk_fails(f"{topic_partition} cannot be truncated"):
            self._logs[topic_partition].truncate_to(offset)
            if self.data is not None:
                # The stored recovery point may be after the end of the log now.
                self._checkpoint(self.data)

    def checkpoint(self) -> None:
        """Store the recovery points and starts of all logs now. Raises OSError."""
        if self.data is not None:
            self._checkpoint(self.data)

    def delete_old_segments(self, now: float) -> None:
        """Delete segments that exceed the topics' retention (LogManager.cleanupLogs)."""

        def delete(log: PartitionLog) -> None:
            if log.config.deletes:
                count = log.delete_old_segments(int(now * 1000))
                if count:
                    logger.info(
                        "deleted %d segments; the log now starts at offset %d",
                        count,
                        log.log_start_offset,
                    )

        self._each_log("old segments cannot be deleted", delete)
        self.remove_strays()

    def clean(self, now: float) -> None:
        """Compact the logs that need it (LogCleaner)."""
        now_ms = int(now * 1000)
        cleaned = False
        for topic_partition, log in self._logs.items():
            try:
                if not log.config.compact or not needs_cleaning(log, now_ms):
                    continue
                clean(log, now_ms)
            except (OSError, CorruptRecordError) as error:
                logger.warning("%s cannot be compacted: %s", topic_partition, error)
                continue
            self._cleaner_offsets[topic_partition] = log.first_dirty_offset
            cleaned = True
        if cleaned and self.data is not None:
            try:
                self.data.write_checkpoint(CLEANER_OFFSETS, self._cleaner_offsets)
            except OSError as error:
                logger.warning("cannot write the cleaner checkpoint: %s", error)

    def compact(self, topic_partition: TopicPartition, now: float) -> None:
        """Compact the whole log of a partition now, however little of it is dirty.

        Raises RefusedError with KAFKA_STORAGE_ERROR.
        """
        now_ms = int(now * 1000)
        log = self._logs[topic_partition]
        with refused_if_disk_fails(f"{topic_partition} cannot be compacted"):
            log.roll(now_ms)
            clean(log, now_ms)
        self._cleaner_offsets[topic_partition] = log.first_dirty_offset

    def expire_producers(self, now: float) -> None:
        """Remove producers that have been idle for too long (PeriodicProducerExpirationCheck)."""
        for log in self._logs.values():
            log.producer_state.remove_expired(
                int(now * 1000), self._settings.producer_id_expiration_ms
            )

    def _each_log(self, problem: str, action: Callable[[PartitionLog], None]) -> OSError | None:
        """Apply an action to every log; log all errors and return the last one."""
        failed = None
        for topic_partition, log in list(self._logs.items()):
            try:
                action(log)
            except OSError as error:
                logger.warning("%s: %s: %s", topic_partition, problem, error)
                failed = error
        return failed

    def _repeat(self, interval: float, action: Callable[[float], None]) -> None:
        def run(then: float) -> None:
            self._repeat(interval, action)
            now = self._timers.now
            # The first tick sets the clock, which starts at 0; no time has passed by that.
            if now < then + interval:
                action(now)

        self._timers.schedule_in_background(self._timers.now + interval, run)

    @property
    def _stored_offsets(self) -> tuple[dict[TopicPartition, int], ...]:
        return self._recovery_points, self._log_starts, self._cleaner_offsets

    def remove_strays(self) -> None:
        """Remove the files of deleted topics, or as many as can be removed now.

        Call this only once all logs are open that the broker is to have.
        """
        if self.data is None:
            return
        try:
            self.data.remove_deleted()
            strays = self.data.logs().difference(self._logs)
        except OSError as error:
            logger.warning("cannot remove the files of deleted topics: %s", error)
            return
        for topic_partition in strays:
            logger.info("removing %s, which belongs to no topic", topic_partition)
        self._delete_files(strays)
        for offsets in self._stored_offsets:
            for topic_partition in offsets.keys() - self._logs.keys():
                # It has no directory.
                del offsets[topic_partition]

    def _write_log_starts(
        self, data: DataDirectory, later: dict[TopicPartition, int] | None = None
    ) -> None:
        # A log that starts with its first segment needs no entry.
        starts = {
            topic_partition: log.log_start_offset
            for topic_partition, log in self._logs.items()
            if log.log_start_offset > log.segments[0].base_offset
        }
        data.write_checkpoint(
            LOG_STARTS, self._of_unopened(self._log_starts) | starts | (later or {})
        )

    def _checkpoint(self, data: DataDirectory) -> None:
        points = {
            topic_partition: log.recovery_point for topic_partition, log in self._logs.items()
        }
        data.write_checkpoint(RECOVERY_POINTS, self._of_unopened(self._recovery_points) | points)
        self._write_log_starts(data)

    def _of_unopened(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the stored offsets of the logs that were not opened yet."""
        return {key: offset for key, offset in offsets.items() if key not in self._logs}

    def _schedule_checkpoint(self, now: float) -> None:
        data = self.data

        def checkpoint(then: float) -> None:
            if data is None or data is not self.data:
                return
            self._schedule_checkpoint(then)
            self._each_log("cannot be flushed", lambda log: log.maybe_flush(int(then * 1000)))
            try:
                self._checkpoint(data)
            except OSError as error:
                logger.warning("cannot write the checkpoints of the logs: %s", error)

        self._timers.schedule(now + _CHECKPOINT_INTERVAL_MS / 1000, checkpoint)

    def _schedule_flush(self, config: TopicConfig, now: float) -> None:
        """Schedule the next flush, if a topic with these settings requires one."""
        interval_ms = max(config.flush_ms, _MIN_FLUSH_INTERVAL_MS)
        if self.data is None or interval_ms > _CHECKPOINT_INTERVAL_MS:
            # Longer intervals are handled with the checkpoints.
            return
        deadline = now + interval_ms / 1000
        timer = self._flush_timer
        if timer is not None and timer.is_pending and timer.deadline <= deadline:
            return
        if timer is not None:
            timer.cancel()
        self._flush_timer = self._timers.schedule(deadline, self._flush)

    def _flush(self, now: float) -> None:
        for log in self._logs.values():
            self._schedule_flush(log.config, now)
        self._each_log("cannot be flushed", lambda log: log.maybe_flush(int(now * 1000)))
