"""The topics of a cluster, and the changes to them that one request plans, writes and applies.

`TopicChanges` is the counterpart of Kafka's MetadataDelta, with the partitions' logs attached. An
invalid change, such as a second topic of the same name, is rejected when it is planned; the other
changes continue.
A plan changes each topic of the cluster at most once. `commit` writes the whole plan to disk with
one write; only then does it become visible. If the write fails, nothing has changed, and the logs
that were created for the plan are removed: it is all or nothing.

The logs of a new topic are created when it is planned, so that a disk without space for the logs of
one topic rejects only that topic.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.base.topic_names import collision_key, validate_topic_name
from spark_kafka_sink.devbroker.cluster.partition import Leadership, Partition, Topic
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster


CLUSTER_METADATA_TOPIC = "__cluster_metadata"


def creation_prohibited(name: str) -> RefusedError:
    """Return the refusal of the topic that no client may create."""
    return RefusedError(
        ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
    )


class Topics:
    """The topics by name and by id; no two names differ only in dots and underscores."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._by_collision_key: dict[str, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over all topics in the order of their creation."""
        return iter(self._by_name.values())

    @property
    def names(self) -> set[str]:
        """The names of all topics."""
        return set(self._by_name)

    def find(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""
        return self._by_name.get(name)

    def find_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id (KIP-516), or None."""
        return self._by_id.get(topic_id)

    def find_colliding(self, name: str) -> Topic | None:
        """Return the topic with this name, or one whose metrics would collide with it, or None."""
        return self._by_collision_key.get(collision_key(name))

    def add(self, topic: Topic) -> None:
        """Add a topic; its name must not collide with another."""
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_collision_key[collision_key(topic.name)] = topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic, which must exist."""
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        del self._by_collision_key[collision_key(topic.name)]

    def clear(self) -> None:
        """Remove all topics."""
        self._by_name.clear()
        self._by_id.clear()
        self._by_collision_key.clear()


class TopicChanges:
    """A plan of changes; `StandaloneCluster.change_topics` creates, commits and discards it."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self._cluster = cluster
        #: The topics as planned, by name; None for one to delete.
        self._planned: dict[str, Topic | None] = {}
        self._new_by_collision_key: dict[str, Topic] = {}
        #: Partitions whose logs were created for the plan.
        self._made: list[Partition] = []

    def check_new_topic_name(self, name: str) -> None:
        """Raise RefusedError unless a topic with this name may be created.

        The code is INVALID_TOPIC_EXCEPTION (invalid, or colliding with another topic's name),
        TOPIC_ALREADY_EXISTS, or INVALID_REQUEST for the topic that no client may create.
        """
        if name == CLUSTER_METADATA_TOPIC:
            raise creation_prohibited(name)
        validate_topic_name(name)
        existing = self._cluster.topic_index.find_colliding(name)
        if existing is None:
            existing = self._new_by_collision_key.get(collision_key(name))
        if existing is None:
            return
        if existing.name == name:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {existing.name}",
        )

    def check_replication_factor(self, replication_factor: int) -> None:
        """Raise RefusedError with INVALID_REPLICATION_FACTOR if there are fewer brokers."""
        if replication_factor > 1:
            problem = "the cluster has only 1 broker(s)"
        elif not self._cluster.nodes:
            problem = "no broker is running"
        else:
            return
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {problem}.",
        )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: TopicConfig,
        overrides: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> Topic:
        """Plan a new topic.

        `overrides` are those settings of `config` that were set for this topic. Each partition gets
        `replication_factor` replicas, by default that of the settings.

        Raises RefusedError as `check_new_topic_name` does, with INVALID_PARTITIONS for a number
        below 1, with INVALID_REPLICATION_FACTOR for more replicas than there are brokers, and with
        KAFKA_STORAGE_ERROR.
        """
        self.check_new_topic_name(name)
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        self._cluster.groups.check_new_topic()
        if replication_factor is None:
            replication_factor = self._cluster.settings.default_replication_factor
        self.check_replication_factor(replication_factor)
        topic = Topic(
            name=name, topic_id=uuid.uuid4(), config=config, overrides=dict(overrides or {})
        )
        topic.partitions.extend(self._new_partitions(topic, partitions))
        self._planned[name] = topic
        self._new_by_collision_key[collision_key(name)] = topic
        return topic

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Plan to grow a topic to `count` partitions.

        Raises RefusedError with KAFKA_STORAGE_ERROR.
        """
        new_partitions = self._new_partitions(topic, count)
        self._planned[topic.name] = replace(topic, partitions=[*topic.partitions, *new_partitions])

    def configure_topic(
        self, topic: Topic, config: TopicConfig, overrides: Mapping[str, str]
    ) -> None:
        """Plan to replace a topic's settings; `overrides` are those that were set explicitly."""
        self._planned[topic.name] = replace(topic, config=config, overrides=dict(overrides))

    def delete_topic(self, topic: Topic) -> None:
        """Plan to delete a topic and its records; files may be removed later."""
        self._planned[topic.name] = None

    def commit(self) -> list[Topic]:
        """Write the plan to disk and apply it; return the deleted topics.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        if self._planned:
            self._cluster.write_topics(self._planned)
        self._made.clear()
        topics, logs = self._cluster.topic_index, self._cluster.logs
        deleted: list[Topic] = []
        for name, planned in self._planned.items():
            topic = topics.find(name)
            if topic is None:
                if planned is not None:
                    topics.add(planned)
            elif planned is None:
                topics.remove(topic)
                deleted.append(topic)
            else:
                topic.partitions.extend(planned.partitions[len(topic.partitions) :])
                topic.overrides = planned.overrides
                if topic.config != planned.config:
                    topic.config = planned.config
                    for partition in topic.partitions:
                        logs.configure(
                            partition.topic_partition, topic.config, self._cluster.timers.now
                        )
        logs.delete(
            partition.topic_partition for topic in deleted for partition in topic.partitions
        )
        return deleted

    def discard(self) -> None:
        """Remove the logs that were created for the plan."""
        self._cluster.logs.delete(partition.topic_partition for partition in self._made)

    def _new_partitions(self, topic: Topic, count: int) -> list[Partition]:
        """Create a topic's partitions up to `count`; after an error their logs are removed."""
        cluster, before = self._cluster, len(self._made)
        try:
            with refused_if_disk_fails(f"the logs of topic {topic.name} cannot be created"):
                for index in range(len(topic.partitions), count):
                    log = cluster.logs.log(
                        TopicPartition(topic.name, index),
                        topic.topic_id,
                        topic.config,
                        cluster.timers.now,
                    )
                    leadership = Leadership.of_only(cluster.node_id)
                    self._made.append(
                        Partition(topic=topic, index=index, leadership=leadership, log=log)
                    )
        except RefusedError:
            cluster.logs.delete(partition.topic_partition for partition in self._made[before:])
            del self._made[before:]
            raise
        return self._made[before:]
