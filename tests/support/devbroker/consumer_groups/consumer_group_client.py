"""Requests of members of the new consumer protocol (KIP-848), for embedded and other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping, Sequence

#: The versions of these tests' requests.
HEARTBEAT, DESCRIBE, COMMIT, FETCH_OFFSETS = 1, 1, 9, 9


def consumer_heartbeat(
    group_id: str,
    member_id: str,
    epoch: int,
    *,
    owned: Mapping[uuid.UUID, Iterable[int]] | None = None,
    topics: Sequence[str] | None = None,
    regex: str | None = None,
    timeout_ms: int = -1,
    instance_id: str | None = None,
    rack_id: str | None = None,
    assignor: str | None = None,
) -> ConsumerGroupHeartbeatRequest:
    """Create a heartbeat with only the given fields."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=timeout_ms,
        subscribed_topic_names=None if topics is None else tuple(topics),
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=None
        if owned is None
        else tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in owned.items()
        ),
    )


def joining(group_id: str, member_id: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    """Create the first heartbeat of a member, which subscribes to nothing unless told otherwise."""
    subscription = {} if "regex" in fields else {"topics": ()}
    return consumer_heartbeat(
        group_id, member_id, 0, **{"owned": {}, "timeout_ms": 30_000} | subscription | fields
    )
