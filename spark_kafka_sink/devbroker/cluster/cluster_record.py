"""What a cluster stores besides its logs: its id, its topics, and the producer ids used so far.

With a data directory it is stored in `cluster.json`, otherwise only in memory. Rules:

- Memory always matches the disk: if a write fails, nothing changes.
- A change takes effect, and is acknowledged, only after it has been written.
- A request causes one write, however much it changes, because every write is flushed to disk.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.log.storage.data_directory import StoredCluster, StoredTopic
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.log.log_manager import LogManager

#: How many producer ids are reserved at once (ProducerIdsBlock).
_PRODUCER_ID_BLOCK_SIZE = 1000


class ClusterRecord:
    """The record of a cluster; the counterpart of Kafka's metadata log."""

    def __init__(self, logs: LogManager, cluster_id: str | None) -> None:
        """Start without topics; a missing cluster id is generated."""
        self._logs = logs
        self._stored = StoredCluster(
            cluster_id=cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        )
        self._next_producer_id = 0

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self._stored.cluster_id

    @property
    def internal_topic_ids(self) -> Mapping[str, uuid.UUID]:
        """The ids of the internal topics, which `topics` does not include."""
        return self._stored.internal_topic_ids

    @property
    def topics(self) -> Iterable[StoredTopic]:
        """What is stored about each topic."""
        return self._stored.topics.values()

    def open(self, stored: StoredCluster | None, internal_topics: Iterable[str]) -> None:
        """Continue with what the data directory stores, or initialize an empty one.

        Producer ids continue with a new block. Raises RefusedError with KAFKA_STORAGE_ERROR.
        """
        if stored is None:
            ids = {name: uuid.uuid4() for name in internal_topics}
            self._write(StoredCluster(cluster_id=self.cluster_id, internal_topic_ids=ids))
        else:
            self._stored = stored
        # The unused ids of the last block are skipped.
        self._next_producer_id = self._stored.next_producer_id

    def write_topics(self, changed: Mapping[str, Topic | None]) -> None:
        """Store new or changed topics; None removes one.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        topics = dict(self._stored.topics)
        for name, topic in changed.items():
            if topic is None:
                topics.pop(name, None)
            else:
                topics[name] = StoredTopic(
                    name=name,
                    topic_id=topic.topic_id,
                    configs=topic.overrides,
                    replicas=tuple(partition.replicas for partition in topic.partitions),
                )
        self._write(replace(self._stored, topics=topics))

    def next_producer_id(self) -> int:
        """Return a producer id that was never used before.

        Raises RefusedError with COORDINATOR_LOAD_IN_PROGRESS if a new block cannot be stored.
        """
        producer_id = self._next_producer_id
        if producer_id >= self._stored.next_producer_id:
            block_end = producer_id + _PRODUCER_ID_BLOCK_SIZE
            try:
                self._write(replace(self._stored, next_producer_id=block_end))
            except RefusedError as refused:
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                raise RefusedError(code, refused.message) from refused
        self._next_producer_id += 1
        return producer_id

    def _write(self, stored: StoredCluster) -> None:
        if self._logs.data is not None:
            with refused_if_disk_fails("the topics of the cluster cannot be stored"):
                self._logs.data.write_cluster(stored)
        self._stored = stored
