"""The calls that concern consumer groups: pure descriptions, as `transaction_calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin.cluster_calls import Call, GroupCoordinatorOf
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.errors import BrokerError

#: The last version of OffsetCommit that names topics; later ones have their ids.
_LAST_COMMIT_WITH_NAMES: Final = 9


def commit_offsets_call(group_id: str, offsets: Mapping[TopicPartition, int]) -> Call:
    """Ask a group's coordinator to remember offsets, as one who is no member of the group.

    Kafka takes them while the group has no members, and makes a group that there is not.
    """
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
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
        # What has been read was there: waiting does not bring a topic that is gone, or elsewhere.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def refused_offsets(response: Any, what: str) -> dict[TopicPartition, BrokerError]:
    """Give the partitions whose offsets were not taken, and why."""
    return {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, code in _codes(response)
        if code
    }


def _codes(response: Any) -> list[tuple[TopicPartition, int]]:
    return [
        (TopicPartition(topic.name, partition.partition_index), partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    ]
