"""Random answers and events against the invariants of a member of a classic group."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_kafka_sink.consumer.group.classic_membership import JOINED, ClassicMemberState
from spark_kafka_sink.consumer.group.group_requests import (
    GROUP_RULES,
    NO_GENERATION_ID,
    CompleteJoin,
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveOperation,
    PerformAssignment,
    PrepareJoin,
    SyncGroup,
    Wait,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.classic_script import (
    COORDINATOR,
    ClassicScript,
    join_response,
    sync_response,
)

#: Every code of the tables, and two that are in none.
CODES = st.sampled_from(
    [
        *sorted({code for rules in GROUP_RULES.values() for code in rules}),
        ErrorCode.REQUEST_TIMED_OUT,
        999,
    ]
)
MOSTLY_NONE = st.just(0) | CODES
JOINING = (PrepareJoin, JoinGroup, PerformAssignment, SyncGroup, CompleteJoin)


class ClassicEvents(RuleBasedStateMachine):
    """Any order of steps, answers, losses and calls of the user."""

    def __init__(self):
        super().__init__()
        self.script = ClassicScript(backoff=ExponentialBackoff(0.1, 1.0, Random(0)))
        self.member = self.script.member
        #: Steps whose outcome is open, and steps whose outcome is known.
        self.open, self.closed = [], []
        self.generations = 0

    @rule(may_join=st.booleans(), later=st.floats(0, 20))
    def take_step(self, may_join, later):
        """Take the next step, some time later."""
        self.script.now += later
        step = self.script.step(may_join=may_join)
        if isinstance(step, Wait):
            assert step.until > self.script.now
        elif not isinstance(step, LeaveGroup):
            self.check_step(step, may_join=may_join)
            self.open.append(step)

    def check_step(self, step, *, may_join):
        """Check that the step suits the state, and that no other of its kind is open."""
        kind = JOINING if isinstance(step, JOINING) else type(step)
        lost = self.member.coordinator is None
        if isinstance(step, FindCoordinator):
            assert lost
        else:
            assert not lost
        assert not [other for other in self.open if isinstance(other, kind)]
        if isinstance(step, PrepareJoin | JoinGroup | CompleteJoin):
            assert may_join
        if isinstance(step, Heartbeat):
            assert self.member.state in JOINED
            assert step.generation == self.member.generation
        if isinstance(step, SyncGroup | PerformAssignment):
            assert ClassicMemberState.COMPLETING_REBALANCE is self.member.state

    @rule(data=st.data(), code=MOSTLY_NONE, is_leader=st.booleans(), is_late=st.booleans())
    def answer(self, data, code, is_leader, is_late):
        """Report the outcome of a step, perhaps a second time."""
        steps = self.closed if is_late and self.closed else self.open
        if not steps:
            return
        step = data.draw(st.sampled_from(steps))
        if isinstance(step, SyncGroup | CompleteJoin | Heartbeat):
            self.answer_member(step, code)
        else:
            self.answer_joining(step, code, is_leader=is_leader)
        self.forget_requests(step)

    def answer_joining(self, step, code, *, is_leader):
        """Report the outcome of a step that leads to a generation."""
        now, is_done = self.script.now, code == 0
        match step:
            case FindCoordinator() if is_done:
                self.member.coordinator_found(step, COORDINATOR, now)
            case FindCoordinator():
                self.member.coordinator_not_found(step, code, now)
            case PrepareJoin():
                self.member.join_prepared(step, is_done=is_done)
            case JoinGroup():
                self.generations += 1
                fields = {"generation_id": self.generations, "member_id": "me"}
                leader = "me" if is_leader else "you"
                answer = join_response(error_code=code, protocol="range", leader=leader, **fields)
                self.member.join_answered(step, answer, now)
            case PerformAssignment() if is_done:
                self.member.assignment_performed(step, {"me": b""})
            case PerformAssignment():
                self.member.assignment_failed(step)

    def answer_member(self, step, code):
        """Report the outcome of a step within a generation."""
        now = self.script.now
        match step:
            case SyncGroup():
                self.member.sync_answered(step, sync_response(code), now)
            case CompleteJoin():
                self.member.join_completed(step, is_done=code == 0)
            case Heartbeat():
                self.member.heartbeat_answered(step, code, now)

    def forget_requests(self, *steps):
        """Move steps to those whose outcome is known; without a coordinator all requests are."""
        lost = self.member.coordinator is None
        ended = [
            step
            for step in self.open
            if step in steps or (lost and isinstance(step, JoinGroup | SyncGroup | Heartbeat))
        ]
        self.open = [step for step in self.open if step not in ended]
        self.closed += ended

    @rule(was_reached=st.booleans())
    def lose_coordinator(self, was_reached):
        """End the connection."""
        self.member.coordinator_lost(self.script.now, was_reached=was_reached)

    @rule()
    def poll(self):
        """Call `poll`, which raises an error at most once."""
        failure = self.member.failure
        if failure is None:
            self.member.poll(self.script.now)
        else:
            with pytest.raises(BrokerError) as raised:
                self.member.poll(self.script.now)
            assert failure is raised.value
        assert self.member.failure is None

    @rule()
    def request_rejoin(self):
        """Change the subscription."""
        self.member.request_rejoin("changed")
        assert self.member.is_rejoin_needed

    @rule(operation=st.sampled_from(LeaveOperation))
    def leave(self, operation):
        """Leave the group."""
        self.member.leave("left", operation)
        assert ClassicMemberState.UNJOINED is self.member.state

    @invariant()
    def members_are_in_one_generation_or_in_none(self):
        """Check that exactly a joined member has a generation, which is the newest one."""
        self.forget_requests()
        generation = self.member.generation
        if self.member.state in JOINED:
            assert 0 < generation.generation_id <= self.generations
            assert generation.member_id
        if ClassicMemberState.UNJOINED is self.member.state:
            assert NO_GENERATION_ID == generation.generation_id
            assert self.member.stable_generation is None
            assert self.member.is_rejoin_needed

    @invariant()
    def one_generation_is_being_joined(self):
        """Check that there is never more than one step of joining at a time."""
        assert 1 >= sum(isinstance(step, JOINING) for step in self.open)


TestClassicEvents = ClassicEvents.TestCase
