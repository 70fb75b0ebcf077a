"""Calls about consumer groups, and the way to their coordinators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import Call, GroupCoordinatorOf
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.group_offsets import (
    LAST_COMMIT_WITH_NAMES,
    commit_codes,
    commit_topics,
)
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.admin.item_requests import Routes
    from spark_kafka_sink.errors import BrokerError
    from spark_kafka_sink.model import Node, OffsetAndMetadata, TopicPartition
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse

#: A response has all members of each group.
_GROUPS_PER_REQUEST: Final = 100


@dataclass(frozen=True, slots=True)
class ItsCoordinator(GroupCoordinatorOf):
    """The coordinator of the only group of a call, which the call's own description names."""

    def __str__(self) -> str:
        """Return the broker's description for an error, which names the group already."""
        return "its coordinator"


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
        destination=ItsCoordinator(group_id),
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


# --- destinations


async def to_group_coordinators(
    calls: ClusterCalls, group_ids: Sequence[str], deadline: float
) -> Routes[str]:
    """Send groups to their coordinators, several with one request.

    A group whose coordinator is not found at once has a request of its own, so that others do not
    wait for it, and an error of its own.
    """
    coordinators = await calls.group_coordinators(group_ids, deadline)
    routes: list[tuple[Destination, list[str]]] = [
        (GroupCoordinatorOf(name), [name]) for name in group_ids if name not in coordinators
    ]
    by_node: dict[Node, list[str]] = {}
    for name, node in coordinators.items():
        by_node.setdefault(node, []).append(name)
    routes += [
        (node, names[start : start + _GROUPS_PER_REQUEST])
        for node, names in by_node.items()
        for start in range(0, len(names), _GROUPS_PER_REQUEST)
    ]
    return routes, {}


def forget_group_coordinators(calls: ClusterCalls, group_ids: Sequence[str]) -> None:
    """Look up the coordinators of groups again when they are needed."""
    for group_id in group_ids:
        calls.look_up_again(GroupCoordinatorOf(group_id))
