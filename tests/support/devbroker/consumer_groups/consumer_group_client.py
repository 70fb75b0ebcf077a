"""Requests of members of the new consumer protocol (KIP-848), for embedded and other brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tests.support.devbroker.broker_requests import NOW, ask

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.broker import Broker

#: The versions of these tests' requests.
HEARTBEAT, DESCRIBE, COMMIT, FETCH_OFFSETS = 1, 1, 9, 9

GROUP = "g"
#: The session timeout of an embedded broker's members, in seconds.
SESSION = 45.0

#: Error code, member epoch and assigned partitions, or None if the assignment has not changed.
Answer: TypeAlias = tuple[int, int, "list[int] | None"]


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


class Members:
    """The members of one group, which send heartbeats to an embedded broker."""

    def __init__(self, broker: Broker, topic: str = "t") -> None:
        """Send requests to a broker about a topic, which need not exist yet."""
        self.broker = broker
        self.topic = topic
        self.now = NOW
        known = broker.cluster.topic(topic)
        self.topic_id = None if known is None else known.topic_id

    def join(self, member_id: str, **fields: Any) -> Answer:
        """Send a member's first heartbeat."""
        if "regex" not in fields:
            fields = {"topics": [self.topic]} | fields
        return self.ask(joining(GROUP, member_id, **fields))

    def beat(
        self, member_id: str, epoch: int, owned: Iterable[int] | None = None, **fields: Any
    ) -> Answer:
        """Send a heartbeat; `owned` are partitions of the topic."""
        if owned is not None:
            fields["owned"] = {self.topic_id: owned} if owned else {}
        return self.ask(consumer_heartbeat(GROUP, member_id, epoch, **fields))

    def ask(self, request: Any, version: int | None = None) -> Answer:
        """Send a request; return error code, epoch and assigned partitions of the answer."""
        answer = ask(self.broker, request, version, now=self.now)
        assigned = None
        if answer.assignment is not None:
            assigned = [p for topic in answer.assignment.topic_partitions for p in topic.partitions]
        return answer.error_code, answer.member_epoch, assigned

    def two(self) -> None:
        """Add two members, which then have two partitions each in epoch 3."""
        self.join("a")
        self.join("b")
        self.beat("a", 2)
        self.beat("a", 2, [0, 1])
        assert (0, 3, [2, 3]) == self.beat("b", 3)
