"""Members of a group of the new consumer protocol (KIP-848), for embedded brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    consumer_heartbeat,
    joining,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.broker import Broker

GROUP = "g"
#: The session timeout, in seconds.
SESSION = 45.0

#: Error code, member epoch and assigned partitions, or None if the assignment has not changed.
Answer: TypeAlias = tuple[int, int, "list[int] | None"]


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
