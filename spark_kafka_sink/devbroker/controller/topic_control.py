"""The creation, growth and deletion of topics: the rules of ReplicationControlManager.

Each topic of a request succeeds or fails by itself, with an error of its own. As in
`replication_control`, records are returned, and nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.base.new_topics import (
    check_assigned_by_hand,
    partitions_and_replicas,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import (
    UNCLEAN_LEADER_ELECTION,
    TopicConfig,
    without_controllers,
)
from spark_kafka_sink.devbroker.base.topic_names import collision_key, validate_topic_name
from spark_kafka_sink.devbroker.controller.replica_placer import place_replicas
from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    RemoveTopic,
    TopicRecord,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsTopicResult
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopicResult
from spark_kafka_sink.protocol.messages.delete_topics import DeletableTopicResult
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    import random
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.controller.replication_control import (
        ControllerSettings,
        ReplicationControl,
    )
    from spark_kafka_sink.devbroker.metadata.image import MetadataImage, TopicImage
    from spark_kafka_sink.protocol.messages.create_partitions import CreatePartitionsTopic
    from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic
    from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest

#: The number of partitions or replicas that requests the default.
_BOOLEANS: Final = frozenset({"true", "false"})


def check_topic_settings(values: Mapping[str, str]) -> None:
    """Raise RefusedError with INVALID_CONFIG for a setting that a topic cannot have."""
    unclean = values.get(UNCLEAN_LEADER_ELECTION, "false")
    if unclean.lower() not in _BOOLEANS:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {unclean} for configuration {UNCLEAN_LEADER_ELECTION}: "
            "Expected value to be either true or false",
        )
    TopicConfig().with_values(without_controllers(values))


@dataclass(slots=True, kw_only=True)
class TopicControl:
    """The rules of topics, by an image."""

    image: MetadataImage
    replication: ReplicationControl
    settings: ControllerSettings
    new_uuid: Callable[[], uuid.UUID]
    rng: random.Random

    def create(
        self, topics: Sequence[CreatableTopic], records: list[MetadataRecord]
    ) -> tuple[CreatableTopicResult, ...]:
        """Add the records of new topics; return a result for each (CreateTopics)."""
        times = Counter(topic.name for topic in topics)
        taken = {collision_key(topic.name): topic.name for topic in self.image.topics.values()}
        results = []
        for topic in topics:
            try:
                _check_single(times[topic.name])
                result, new_records = self._create(topic, taken)
            except RefusedError as refused:
                result, new_records = (
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=refused.error_code,
                        error_message=refused.message,
                    ),
                    [],
                )
            else:
                taken[collision_key(topic.name)] = topic.name
            records += new_records
            results.append(result)
        return tuple(results)

    def _create(
        self, topic: CreatableTopic, taken: Mapping[str, str]
    ) -> tuple[CreatableTopicResult, list[MetadataRecord]]:
        validate_topic_name(topic.name)
        existing = taken.get(collision_key(topic.name))
        if existing == topic.name:
            raise RefusedError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
            )
        if existing is not None:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{topic.name}' collides with existing topic: {existing}",
            )
        values = _settings_of(topic)
        check_topic_settings(values)
        assignments = self._assignments(topic)
        topic_id = self.new_uuid()
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
        )
        resource = ConfigResource(TOPIC_RESOURCE, topic.name)
        # As in Kafka, settings come before partitions: brokers create logs with them.
        return result, [
            TopicRecord(topic_id=topic_id, name=topic.name),
            *(
                ConfigRecord(resource=resource, name=name, value=value)
                for name, value in values.items()
            ),
            *self._new_partitions(topic_id, 0, assignments, is_manual=bool(topic.assignments)),
        ]

    def _assignments(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        """Return the replicas of each partition of a new topic."""
        if topic.assignments:
            check_assigned_by_hand(topic)
            in_order = sorted(topic.assignments, key=lambda each: each.partition_index)
            if [each.partition_index for each in in_order] != list(range(len(in_order))):
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "partitions should be a consecutive 0-based integer sequence",
                )
            factor = len(in_order[0].broker_ids)
            for assignment in in_order:
                self.replication.check_assignment(assignment.broker_ids, factor)
            return [tuple(each.broker_ids) for each in in_order]
        count, factor = partitions_and_replicas(
            topic,
            num_partitions=self.settings.num_partitions,
            default_replication_factor=self.settings.default_replication_factor,
        )
        return place_replicas(
            count,
            factor,
            self.image.brokers.values(),
            self.rng,
        )

    def _new_partitions(
        self,
        topic_id: uuid.UUID,
        first: int,
        assignments: Iterable[tuple[int, ...]],
        *,
        is_manual: bool,
    ) -> list[PartitionRecord]:
        """Return new partitions, whose replicas are in sync on all brokers that are active."""
        records = []
        for index, replicas in enumerate(assignments, start=first):
            isr = tuple(each for each in replicas if self.image.is_active(each))
            if not isr:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT
                    if is_manual
                    else ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"All brokers for partition {index} are fenced or in controlled shutdown.",
                )
            records.append(
                PartitionRecord(
                    topic_id=topic_id, partition=index, replicas=replicas, isr=isr, leader=isr[0]
                )
            )
        return records

    def grow(
        self, topics: Sequence[CreatePartitionsTopic], records: list[MetadataRecord]
    ) -> tuple[CreatePartitionsTopicResult, ...]:
        """Add the records of new partitions; return a result for each topic (CreatePartitions)."""
        times = Counter(topic.name for topic in topics)
        results = []
        for topic in topics:
            try:
                _check_single(times[topic.name])
                records += self._grow(topic)
            except RefusedError as refused:
                result = CreatePartitionsTopicResult(
                    name=topic.name, error_code=refused.error_code, error_message=refused.message
                )
            else:
                result = CreatePartitionsTopicResult(name=topic.name)
            results.append(result)
        return tuple(results)

    def _grow(self, topic: CreatePartitionsTopic) -> list[PartitionRecord]:
        existing = self.image.find_topic(topic.name)
        if existing is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.meaning
            )
        count = len(existing.partitions)
        if topic.count <= count:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic already has {count} partition(s)."
                if topic.count == count
                else f"The topic {topic.name} currently has {count} partition(s); {topic.count} "
                "would not be an increase.",
            )
        factor = len(existing.partitions[0].replicas)
        if topic.assignments is None:
            assignments = place_replicas(
                topic.count - count, factor, self.image.brokers.values(), self.rng
            )
        else:
            if len(topic.assignments) != topic.count - count:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {topic.count - count} additional partition(s), but only "
                    f"{len(topic.assignments)} assignment(s) were specified.",
                )
            assignments = [tuple(each.broker_ids) for each in topic.assignments]
            for replicas in assignments:
                self.replication.check_assignment(replicas, factor)
        return self._new_partitions(
            existing.topic_id, count, assignments, is_manual=topic.assignments is not None
        )

    def delete(
        self, request: DeleteTopicsRequest, records: list[MetadataRecord]
    ) -> tuple[DeletableTopicResult, ...]:
        """Add the records that delete topics; return a result for each (DeleteTopics)."""
        wishes = [(each.name, each.topic_id) for each in request.topics]
        wishes += [(name, ZERO_UUID) for name in request.topic_names]
        found = [self._find(*wish) for wish in wishes]
        times = Counter(topic.topic_id for topic in found if topic is not None)
        results = []
        for (name, topic_id), topic in zip(wishes, found, strict=True):
            if topic is None:
                code = (
                    ErrorCode.UNKNOWN_TOPIC_ID
                    if name is None
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
            elif times[topic.topic_id] > 1 or (name is not None and topic_id != ZERO_UUID):
                code = ErrorCode.INVALID_REQUEST
            else:
                code = ErrorCode.NONE
                records.append(RemoveTopic(topic_id=topic.topic_id))
            results.append(
                DeletableTopicResult(
                    name=topic.name if topic else name,
                    topic_id=topic.topic_id if topic else topic_id,
                    error_code=code,
                    error_message=code.meaning if code else None,
                )
            )
        return tuple(results)

    def _find(self, name: str | None, topic_id: uuid.UUID) -> TopicImage | None:
        return self.image.topics.get(topic_id) if name is None else self.image.find_topic(name)


def _check_single(times: int) -> None:
    if times > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def _settings_of(topic: CreatableTopic) -> dict[str, str]:
    values = {each.name: each.value for each in topic.configs if each.value is not None}
    if len(values) < len(topic.configs):
        nulls = ",".join(each.name for each in topic.configs if each.value is None)
        raise RefusedError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {nulls}"
        )
    return values
