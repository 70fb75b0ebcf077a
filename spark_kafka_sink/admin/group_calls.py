"""Calls about consumer groups: pure descriptions, like those in `transaction_calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import Call, GroupCoordinatorOf
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse

#: The last OffsetCommit version that names topics; later ones use topic ids.
_LAST_COMMIT_WITH_NAMES: Final = 9


def commit_offsets_call(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Call[OffsetCommitResponse]:
    """Build the call that commits offsets of a group from outside the group.

    Kafka accepts them as long as the group has no members, and creates a group that does not exist.
    """
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), committed in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
    )
    return Call(
        destination=GroupCoordinatorOf(group_id),
        build=lambda _: (request, _LAST_COMMIT_WITH_NAMES),
        error_codes=lambda answer: [code for _, code in _codes(answer)],
        what=f"OffsetCommit of group {group_id!r}",
        # The topics existed when they were read: waiting does not bring back one that was deleted
        # or that is in another cluster.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def refused_offsets(response: OffsetCommitResponse, what: str) -> dict[TopicPartition, BrokerError]:
    """Return the partitions whose offsets were refused, and why."""
    return {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, code in _codes(response)
        if code
    }


def _codes(response: OffsetCommitResponse) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic.name, partition.partition_index), partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    ]
