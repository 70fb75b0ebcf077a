"""A member of a classic group, driven by a script: each step is expected, then answered."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from spark_kafka_sink.consumer.group.classic_membership import ClassicMembership
from spark_kafka_sink.consumer.group.group_requests import (
    CompleteJoin,
    FindCoordinator,
    GroupSettings,
    Heartbeat,
    JoinGroup,
    PrepareJoin,
    Step,
    SyncGroup,
    Wait,
)
from spark_kafka_sink.model import Node
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.messages.join_group import JoinGroupResponse
from spark_kafka_sink.protocol.messages.sync_group import SyncGroupResponse

COORDINATOR = Node(1, "one", 9092)
SESSION, REBALANCE, INTERVAL, BACKOFF = 10.0, 60.0, 3.0, 0.1
S = TypeVar("S", bound=Step)


class _NoJitter(Random):
    def uniform(self, a: float, b: float) -> float:
        """Return the middle."""
        return (a + b) / 2


def group_settings(**changes: Any) -> GroupSettings:
    """Return settings whose back-off has no jitter."""
    return GroupSettings(
        **{
            "group_id": "orders",
            "session_timeout": SESSION,
            "rebalance_timeout": REBALANCE,
            "heartbeat_interval": INTERVAL,
            "request_timeout": 30.0,
            "backoff": ExponentialBackoff(BACKOFF, 1.0, _NoJitter()),
            **changes,
        }
    )


def join_response(*, protocol: str | None = None, **fields: Any) -> JoinGroupResponse:
    """Return an answer to JoinGroup."""
    defaults = {"member_id": "", "leader": "", "members": ()}
    return JoinGroupResponse(**{**defaults, **fields, "protocol_name": protocol})


def sync_response(
    code: int = 0, *, assignment: bytes = b"", protocol: str | None = None, **fields: Any
) -> SyncGroupResponse:
    """Return an answer to SyncGroup."""
    return SyncGroupResponse(
        error_code=code, assignment=assignment, protocol_name=protocol, **fields
    )


class ClassicScript:
    """The member, and the time."""

    def __init__(self, **settings: Any) -> None:
        """Start at time 0."""
        self.now = 0.0
        self.member = ClassicMembership(group_settings(**settings), self.now)

    def step(self, *, may_join: bool = True) -> Step:
        """Return the next step."""
        return self.member.next_step(self.now, may_join=may_join)

    def expect(self, kind: type[S], *, may_join: bool = True) -> S:
        """Return the next step, which is of this kind."""
        step = self.step(may_join=may_join)
        assert isinstance(step, kind), step
        return step

    def sleep_until(self, kind: type[S], *, may_join: bool = True) -> S:
        """Wait once, then return the next step, which is of this kind."""
        self.now = self.expect(Wait, may_join=may_join).until
        return self.expect(kind, may_join=may_join)

    def find(self) -> None:
        """Find the coordinator."""
        self.member.coordinator_found(self.expect(FindCoordinator), COORDINATOR, self.now)

    def start_join(self) -> JoinGroup:
        """Return the next JoinGroup, after its preparation if it needs any."""
        step = self.step()
        if isinstance(step, PrepareJoin):
            self.member.join_prepared(step)
            step = self.step()
        assert isinstance(step, JoinGroup), step
        return step

    def join_answer(self, join: JoinGroup, generation: int = 1, **changes: Any) -> None:
        """Complete a JoinGroup; the member is not the leader."""
        fields = {"generation_id": generation, "member_id": "me", "protocol": "range"}
        self.member.join_answered(
            join, join_response(**{**fields, "leader": "another", **changes}), self.now
        )

    def join(self, generation: int = 1) -> SyncGroup:
        """Join the group as a follower, and return the SyncGroup that follows."""
        self.join_answer(self.start_join(), generation)
        return self.expect(SyncGroup)

    def become_stable(self, generation: int = 1) -> None:
        """Join the group, and apply the assignment."""
        if self.member.coordinator is None:
            self.find()
        sync = self.join(generation)
        self.member.sync_answered(sync, sync_response(0, assignment=b"assignment"), self.now)
        self.member.join_completed(self.expect(CompleteJoin))

    def heartbeat(self) -> Heartbeat:
        """Wait for the next heartbeat, and return it."""
        return self.sleep_until(Heartbeat, may_join=False)
