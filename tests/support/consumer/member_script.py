"""A member of a KIP-848 group, driven by a script: each step is expected, then answered."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar
from uuid import UUID

from spark_kafka_sink.consumer.group.consumer_membership import ConsumerMembership
from spark_kafka_sink.consumer.group.group_member import (
    Assign,
    Lose,
    MemberSettings,
    Revoke,
    SendHeartbeat,
    Step,
)
from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, Wait
from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

COORDINATOR = Node(1, "one", 9092)
POLL_INTERVAL, INTERVAL, BACKOFF = 60.0, 5.0, 0.1
MEMBER_ID = "AbCdEfGhIjKlMnOpQrStUv"
#: Two topics with known names, and one without.
ORDERS, PAYMENTS, UNKNOWN = (UUID(int=each) for each in (1, 2, 3))
NAMES = {ORDERS: "orders", PAYMENTS: "payments"}
S = TypeVar("S", bound=Step)


class NoJitter(Random):
    """The middle of each interval."""

    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2


def member_settings(**changes: Any) -> MemberSettings:
    """Return settings whose back-off has no jitter."""
    return MemberSettings(
        **{
            "group_id": "shop",
            "member_id": MEMBER_ID,
            "rebalance_timeout": POLL_INTERVAL,
            "backoff": ExponentialBackoff(BACKOFF, 1.0, NoJitter()),
            **changes,
        }
    )


def orders(*numbers: int) -> tuple[TopicPartition, ...]:
    """Return partitions of the topic `orders`."""
    return tuple(TopicPartition("orders", number) for number in numbers)


def response(
    epoch: int = 1, target: dict[UUID, tuple[int, ...]] | None = None, **changes: Any
) -> ConsumerGroupHeartbeatResponse:
    """Return an answer; without a target the assignment has not changed."""
    assignment = target and Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in target.items()
        )
    )
    if target == {}:
        assignment = Assignment(topic_partitions=())
    return ConsumerGroupHeartbeatResponse(
        **{
            "member_epoch": epoch,
            "heartbeat_interval_ms": int(INTERVAL * 1000),
            "assignment": assignment or None,
            **changes,
        }
    )


class MemberScript:
    """The member, its subscription and the time."""

    def __init__(self, *, has_listener: bool = True, **settings: Any) -> None:
        """Start at time 0 with a subscription, before the first `poll`."""
        self.now = 0.0
        self.epoch = 0
        self.subscriptions = SubscriptionState(EARLIEST)
        self.member = ConsumerMembership(member_settings(**settings), self.subscriptions, self.now)
        self.member.topic_names_changed(NAMES, self.now)
        self.subscribe(listener=object() if has_listener else None)

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions, sorted."""
        return tuple(sorted(self.subscriptions.assigned_partitions))

    def subscribe(self, *topics: str, listener: object | None = None) -> None:
        """Subscribe to `orders` and `payments`, or to other topics."""
        self.subscriptions.subscribe(topics or ("payments", "orders"), listener)
        self.member.subscription_changed()

    def step(self, *, may_call_back: bool = True) -> Step:
        """Return the next step."""
        return self.member.next_step(self.now, may_call_back=may_call_back)

    def expect(self, kind: type[S], *, may_call_back: bool = True) -> S:
        """Return the next step, which is of this kind."""
        step = self.step(may_call_back=may_call_back)
        assert isinstance(step, kind), step
        return step

    def sleep_until(self, kind: type[S], *, may_call_back: bool = True) -> S:
        """Wait once, then return the next step, which is of this kind."""
        self.now = self.expect(Wait, may_call_back=may_call_back).until
        return self.expect(kind, may_call_back=may_call_back)

    def find(self) -> None:
        """Find the coordinator."""
        self.member.coordinator_found(self.expect(FindCoordinator), COORDINATOR, self.now)

    def answer(self, step: SendHeartbeat, *, code: int = 0, **changes: Any) -> None:
        """Respond to a heartbeat with the epoch of the member, or with another one."""
        self.epoch = changes.pop("epoch", self.epoch)
        answer = response(self.epoch, error_code=code, **changes)
        self.member.heartbeat_answered(step, answer, self.now)

    def start_joining(self) -> SendHeartbeat:
        """Call `poll`, find the coordinator and return the first heartbeat."""
        self.member.poll(self.now)
        self.find()
        return self.expect(SendHeartbeat)

    def receive(self, target: dict[UUID, tuple[int, ...]]) -> None:
        """Receive a target assignment in the next epoch, with the next heartbeat."""
        step = self.sleep_until(SendHeartbeat, may_call_back=False)
        self.answer(step, epoch=self.epoch + 1, target=target)

    def assign(self) -> Assign:
        """Call on_partitions_assigned."""
        step = self.expect(Assign)
        self.member.callback_done(step)
        return step

    def revoke(self) -> Revoke:
        """Call on_partitions_revoked."""
        step = self.expect(Revoke)
        self.member.callback_done(step)
        return step

    def lose(self) -> Lose:
        """Call on_partitions_lost."""
        step = self.expect(Lose)
        self.member.callback_done(step)
        return step

    def acknowledge(self) -> SendHeartbeat:
        """Send the acknowledgment, and answer it."""
        step = self.expect(SendHeartbeat)
        self.answer(step)
        return step

    def join(self, target: dict[UUID, tuple[int, ...]]) -> None:
        """Join the group, and receive the first target assignment."""
        self.answer(self.start_joining(), epoch=1, target=target)

    def become_stable(self, *numbers: int) -> None:
        """Join the group, and own these partitions of `orders`."""
        self.join({ORDERS: numbers} if numbers else {})
        self.assign()
        self.acknowledge()

    def fence(self, code: int) -> None:
        """Respond to the next heartbeat with an error."""
        self.answer(self.sleep_until(SendHeartbeat, may_call_back=False), code=code)
