"""The logs and high watermarks of one broker of a cluster, in memory or in its own directory.

    meta.properties                    the cluster and the broker that the directory belongs to
    replication-offset-checkpoint      high watermark of each log

and what `data_directory` has for logs. In memory they live as long as this object, so it outlives
the processes of the broker that a test ends; on disk each process opens the directory again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.timers import Timers
from spark_kafka_sink.devbroker.log.log_manager import LogManager
from spark_kafka_sink.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.data_directory import MetaProperties
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition

logger = logging.getLogger(__name__)

_HIGH_WATERMARKS = "replication-offset-checkpoint"


class BrokerLogs:
    """What a broker keeps when its process ends (`ReplicaLogs`)."""

    def __init__(
        self,
        settings: BrokerSettings,
        owner: MetaProperties,
        *,
        path: Path | None = None,
    ) -> None:
        """Keep logs in memory or, with a `path`, in that directory once it is started."""
        #: What the logs do by themselves: retention, compaction, flushes, checkpoints.
        self.timers = Timers()
        #: The logs; `open` and `delete` are those of this object.
        self.manager = LogManager(settings, self.timers, path=path, owner=owner)
        self._partitions: dict[TopicIdPartition, TopicPartition] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        #: The epoch of the last process that opened a log, if that was closed in order; else -1.
        self.previous_epoch = -1

    def start(self, now: float) -> None:
        """Lock and check the directory. Raises OSError, ConfigError.

        In memory there is nothing to check.
        """
        self.timers.now = max(self.timers.now, now)
        self.manager.open(now)
        data = self.manager.data
        if data is not None:
            self.previous_epoch = self.manager.previous_epoch
            self._high_watermarks = data.read_checkpoint(_HIGH_WATERMARKS)

    def close(self, broker_epoch: int, now: float) -> None:
        """Flush and close all logs, and record the epoch, -1 for none. Raises OSError.

        A process that was not registered, and has opened no log, leaves the epoch as it was: the
        broker still has all that it had (the marker of LogManager.shutdown).
        """
        if broker_epoch >= 0:
            self.previous_epoch = broker_epoch
        if self.manager.is_durable:
            try:
                self.manager.close(now, broker_epoch=self.previous_epoch)
            finally:
                self._forget()

    def abandon(self) -> None:
        """Leave everything as it is, as the end of a killed process does."""
        if self.manager.is_durable:
            self.manager.abandon()
            self._forget()

    def _forget(self) -> None:
        self.timers.clear()
        self._partitions.clear()
        self._high_watermarks.clear()

    # The logs.

    def open(self, partition: TopicIdPartition, topic: str, config: TopicConfig) -> PartitionLog:
        """Load the log of a partition, or create it. Raises OSError."""
        self.previous_epoch = -1
        topic_partition = self._partitions.get(partition)
        if topic_partition is not None:
            self.manager.configure(topic_partition, config, self.timers.now)
            return self.manager.existing(topic_partition)
        topic_partition = TopicPartition(topic, partition.partition)
        for other, name in self._partitions.items():
            if name == topic_partition:
                # The topic was deleted and created again while this broker was away.
                self.delete(other)
                break
        log = self.manager.log(topic_partition, partition.topic_id, config, self.timers.now)
        self._partitions[partition] = topic_partition
        if not log.log_end_offset:
            # The stored one may be that of an earlier topic with this name.
            self._high_watermarks.pop(topic_partition, None)
        return log

    def delete(self, partition: TopicIdPartition) -> None:
        """Delete the log of a partition; files that cannot be removed now are removed later."""
        topic_partition = self._partitions.pop(partition, None)
        if topic_partition is not None:
            self._high_watermarks.pop(topic_partition, None)
            self.manager.delete([topic_partition])

    def remove_others(self, partitions: Collection[TopicIdPartition]) -> None:
        """Delete the logs of all other partitions, which this broker is not to have any more."""
        for partition in self._partitions.keys() - set(partitions):
            self.delete(partition)
        self.manager.remove_strays()

    def truncated(self) -> None:
        """Store where logs end that were truncated. Raises OSError.

        Otherwise the stored recovery point of a log could be after records that are appended now,
        and these would not be checked after a crash (LogManager.truncateTo).
        """
        self.manager.checkpoint()

    # High watermarks.

    def high_watermark(self, partition: TopicIdPartition) -> int:
        """Return the stored high watermark of a partition; 0 if there is none."""
        topic_partition = self._partitions.get(partition)
        return 0 if topic_partition is None else self._high_watermarks.get(topic_partition, 0)

    def store_high_watermarks(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Store all high watermarks; on an error, the last ones remain."""
        self._high_watermarks = {
            topic_partition: offsets[partition]
            for partition, topic_partition in self._partitions.items()
            if partition in offsets
        }
        data = self.manager.data
        if data is not None:
            try:
                data.write_checkpoint(_HIGH_WATERMARKS, self._high_watermarks)
            except OSError as error:
                logger.warning("cannot write the high watermarks: %s", error)
