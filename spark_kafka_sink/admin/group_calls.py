"""Calls about consumer groups: pure descriptions, like those in `transaction_calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.admin.cluster_calls import Call, GroupCoordinatorOf
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.group_offsets import (
    LAST_COMMIT_WITH_NAMES,
    commit_codes,
    commit_topics,
)
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse


def commit_offsets_call(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Call[OffsetCommitResponse]:
    """Build the call that commits offsets of a group from outside the group.

    Kafka accepts them as long as the group has no members, and creates a group that does not exist.
    """
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=commit_topics(offsets),
    )
    return Call(
        destination=GroupCoordinatorOf(group_id),
        build=lambda _: (request, LAST_COMMIT_WITH_NAMES),
        error_codes=lambda answer: [code for _, code in commit_codes(answer)],
        what=f"OffsetCommit of group {group_id!r}",
        # The topics existed when they were read: waiting does not bring back one that was deleted
        # or that is in another cluster.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def refused_offsets(response: OffsetCommitResponse, what: str) -> dict[TopicPartition, BrokerError]:
    """Return the partitions whose offsets were refused, and why."""
    return {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, code in commit_codes(response)
        if code
    }
