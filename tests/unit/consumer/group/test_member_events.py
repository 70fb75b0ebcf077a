"""Random answers and events against the invariants of a member of a KIP-848 group."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_kafka_sink.consumer.group.consumer_membership import HEARTBEAT_RULES
from spark_kafka_sink.consumer.group.group_member import (
    NOT_IN_GROUP,
    Assign,
    CommitBeforeRevocation,
    Lose,
    MemberState,
    RefreshMetadata,
    Revoke,
    SendHeartbeat,
)
from spark_kafka_sink.consumer.group.group_requests import (
    FindCoordinator,
    LeaveOperation,
    Wait,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.member_script import (
    COORDINATOR,
    NAMES,
    ORDERS,
    PAYMENTS,
    UNKNOWN,
    MemberScript,
    response,
)

_S = MemberState
ALL_NAMES = {**NAMES, UNKNOWN: "invoices"}
#: Every code of the table, and two that are not in it; most of them are fatal.
ANY_CODE = st.sampled_from([*sorted(HEARTBEAT_RULES), ErrorCode.REQUEST_TIMED_OUT, 999])
FENCED = st.sampled_from([ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
CODES = FENCED | st.sampled_from([ErrorCode.NOT_COORDINATOR, 14]) | ANY_CODE
MOSTLY_NONE = st.just(0) | FENCED | CODES
TARGETS = st.dictionaries(
    st.sampled_from([ORDERS, PAYMENTS, UNKNOWN]),
    st.sets(st.integers(0, 2), min_size=1).map(lambda numbers: tuple(sorted(numbers))),
)
ERROR = ValueError("the callback raised")


def by_name(target):
    """Return the partitions of a target assignment."""
    return {
        TopicPartition(ALL_NAMES[topic_id], number)
        for topic_id, numbers in target.items()
        for number in numbers
    }


class MemberEvents(RuleBasedStateMachine):
    """Any order of steps, answers, losses and calls of the user."""

    @initialize(is_committing=st.booleans(), has_listener=st.booleans(), is_static=st.booleans())
    def start(self, is_committing, has_listener, is_static):
        """Start outside of the group."""
        self.has_listener = has_listener
        self.script = MemberScript(
            has_listener=has_listener,
            is_auto_commit=is_committing,
            group_instance_id="till" if is_static else None,
            backoff=ExponentialBackoff(0.1, 1.0, Random(0)),
        )
        self.member = self.script.member
        self.names = NAMES
        #: The callback, the heartbeat, the commit and the search whose outcome is open.
        self.callback = self.heartbeat = self.commit = self.search = None
        #: Steps whose outcome is known or no longer of interest.
        self.closed = []
        #: What the user holds, and those of it whose on_partitions_revoked has raised.
        self.held, self.half_revoked = set(), set()
        #: All targets of this membership, and the epoch of the group.
        self.targets, self.epoch, self.sent_epoch = [], 0, 0
        self.was_fatal = False

    # Steps

    @rule(may_call_back=st.booleans(), later=st.sampled_from([0, 0.1, 1, 5, 61]))
    def take_steps(self, may_call_back, later):
        """Take all steps that are due some time later, and find the coordinator."""
        self.script.now += later
        for _ in range(10):
            step = self.take(may_call_back=may_call_back)
            if isinstance(step, FindCoordinator):
                self.end_search(0)
            if isinstance(step, Wait):
                return
        raise AssertionError(f"no end of steps: {step}")

    def take(self, *, may_call_back):
        """Take the next step, and check it."""
        before = self.member.state
        assigned = set(self.script.assigned)
        step = self.script.step(may_call_back=may_call_back)
        match step:
            case Wait():
                assert step.until > self.script.now
            case FindCoordinator():
                assert self.search is None
                assert self.member.coordinator is None
                self.search = step
            case CommitBeforeRevocation():
                assert may_call_back
                self.commit = step
            case RefreshMetadata():
                assert step.topic_ids
                assert not step.topic_ids & self.names.keys()
            case SendHeartbeat():
                self.check_heartbeat(step, before)
            case _:
                assert may_call_back
                assert self.callback is None
                self.check_callback(step, assigned)
                self.callback = step
        return step

    def check_callback(self, step, assigned):
        """Check that the user is told of what is true."""
        partitions = set(step.partitions)
        match step:
            case Assign():
                added = set(step.added)
                if not self.has_listener:
                    self.held &= partitions
                assert partitions - added <= self.held
                assert not added & (self.held - self.half_revoked)
                known = [by_name({**target}) for target in self.targets]
                assert any(partitions <= target for target in known)
                assert partitions == set(self.script.assigned)
                assert self.held - self.half_revoked <= partitions
                self.held = partitions
                self.half_revoked = set()
            case Revoke() | Lose():
                assert self.has_listener
                assert partitions
                assert partitions <= self.held
                assert partitions <= assigned

    def check_heartbeat(self, step, before):
        """Check that the heartbeat says what the member owns, and that no other is in flight."""
        epoch, leaves = step.request.member_epoch, step.request.member_epoch < 0
        assert before not in NOT_IN_GROUP
        assert self.member.coordinator is not None
        if self.heartbeat is not None:
            assert leaves
            self.closed.append(self.heartbeat)
        self.heartbeat = step
        if self.member.state is _S.STALE:
            self.heartbeat = None
            self.closed.append(step)
        if before is _S.JOINING:
            # It may also be late for `poll`, and then leaves.
            assert epoch <= 0
            assert leaves or () == step.request.topic_partitions
            self.targets = [] if epoch == 0 else self.targets
            self.sent_epoch = 0
        elif not leaves:
            assert self.sent_epoch <= epoch
            self.sent_epoch = epoch
        if before is _S.ACKNOWLEDGING and not leaves:
            owned = {each.topic_id: each.partitions for each in step.request.topic_partitions}
            assert self.held == by_name(owned)
            assert self.callback is None

    # Outcomes

    @precondition(lambda self: self.heartbeat is not None)
    @rule(code=MOSTLY_NONE, wanted=st.none() | TARGETS, is_new_epoch=st.booleans())
    def answer_heartbeat(self, code, wanted, is_new_epoch):
        """Respond to the heartbeat in flight."""
        step, self.heartbeat = self.heartbeat, None
        self.closed.append(step)
        self.answer(step, code, wanted, is_new_epoch=is_new_epoch)

    def answer(self, step, code, target, *, is_new_epoch):
        """Respond to a heartbeat; a member that joins gets its assignment."""
        if step.request.member_epoch == 0 and target is None:
            target = {}
        self.epoch += is_new_epoch or self.epoch == 0 or target is not None
        epoch = -1 if step.request.member_epoch < 0 else self.epoch
        if target is not None:
            self.targets.append(target)
        answer = response(epoch, target, error_code=code)
        self.member.heartbeat_answered(step, answer, self.script.now)
        if code == 0 and epoch > 0 and self.member.state is _S.STABLE:
            assert epoch == self.member.member_epoch

    @precondition(lambda self: self.closed)
    @rule(data=st.data(), code=MOSTLY_NONE)
    def answer_again(self, data, code):
        """Report an outcome once more, or too late, which changes nothing."""
        step = data.draw(st.sampled_from(self.closed))
        before = (self.member.state, self.script.assigned, self.member.is_leaving)
        match step:
            case SendHeartbeat():
                answer = response(99, {ORDERS: (0, 1, 2)}, error_code=code)
                self.member.heartbeat_answered(step, answer, self.script.now)
                self.member.heartbeat_failed(step, self.script.now)
            case CommitBeforeRevocation():
                self.member.commit_done(step)
            case FindCoordinator():
                self.member.coordinator_not_found(step, code, self.script.now)
            case _:
                self.member.callback_done(step, ERROR if code else None)
        assert before == (self.member.state, self.script.assigned, self.member.is_leaving)

    @precondition(lambda self: self.callback is not None)
    @rule(is_done=st.booleans() | st.just(True))
    def end_callback(self, is_done):
        """Return from the callback, or raise an error."""
        if self.callback is None:
            return
        step, self.callback = self.callback, None
        self.member.callback_done(step, None if is_done else ERROR)
        self.closed.append(step)
        if isinstance(step, Revoke | Lose):
            removed = set(step.partitions) - set(self.script.assigned)
            if is_done:
                assert removed == set(step.partitions)
            else:
                assert not removed or removed == set(step.partitions)
                self.half_revoked |= set(step.partitions) - removed
            self.held -= removed

    @precondition(lambda self: self.commit is not None)
    @rule()
    def end_commit(self):
        """Commit."""
        if self.commit is not None:
            self.member.commit_done(self.commit)
            self.closed.append(self.commit)
            self.commit = None

    def end_search(self, code):
        """Find the coordinator, or not."""
        if self.search is None:
            return
        step, self.search = self.search, None
        self.closed.append(step)
        if code == 0:
            self.member.coordinator_found(step, COORDINATOR, self.script.now)
        else:
            self.member.coordinator_not_found(step, code, self.script.now)

    @rule(
        names=st.sampled_from([NAMES, ALL_NAMES, {}, {ORDERS: "orders"}]),
        event=st.sampled_from(["names", "time-out", "lost", "unreachable", "search"]),
        code=st.sampled_from([None, ErrorCode.COORDINATOR_NOT_AVAILABLE, 30]),
    )
    def disturb(self, names, event, code):
        """Change the metadata, or interrupt the connection to the coordinator."""
        if event == "names":
            self.change_names(names)
        elif event == "time-out" and self.heartbeat is not None:
            step, self.heartbeat = self.heartbeat, None
            self.member.heartbeat_failed(step, self.script.now)
        elif event in {"lost", "unreachable"}:
            self.member.coordinator_lost(self.script.now, was_reached=event == "lost")
        elif event == "search":
            self.take(may_call_back=False)
            self.end_search(code)

    def change_names(self, names):
        """Receive metadata."""
        self.names = names
        self.member.topic_names_changed(names, self.script.now)

    # The user

    @rule(
        event=st.sampled_from(["poll", "subscribe", "leave"]),
        topics=st.sampled_from([("orders",), ("payments", "invoices")]),
        operation=st.sampled_from(LeaveOperation),
        runs_callbacks=st.booleans() | st.just(True),
    )
    def use(self, event, topics, operation, runs_callbacks):
        """Call a method of the consumer."""
        if event == "poll":
            self.poll()
        elif event == "subscribe":
            self.script.subscribe(*topics, listener=object() if self.has_listener else None)
        else:
            self.member.leave(operation, runs_callbacks=runs_callbacks)
            if not runs_callbacks:
                assert () == self.script.assigned
                self.held, self.half_revoked = set(), set()

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

    # Invariants

    @invariant()
    def the_user_holds_what_is_assigned(self):
        """Check that nothing was assigned or removed without a word to the user."""
        if not hasattr(self, "script"):
            return
        assigned = set(self.script.assigned)
        if not self.has_listener:
            assert assigned <= self.held
            self.held = assigned
        assert assigned <= self.held
        assert self.held - assigned <= self.half_revoked

    @invariant()
    def requests_in_flight_end_with_their_coordinator(self):
        """Forget the heartbeat of a coordinator that is lost; a failed member stays failed."""
        if not hasattr(self, "script"):
            return
        if self.member.coordinator is None and self.heartbeat is not None:
            self.closed.append(self.heartbeat)
            self.heartbeat = None
        assert not self.was_fatal or self.member.state is _S.FATAL
        self.was_fatal = self.member.state is _S.FATAL
        assert (self.member.member_epoch is None) or self.member.member_epoch > 0
        if self.member.state in NOT_IN_GROUP:
            assert self.member.member_epoch is None

    @rule(
        wanted=TARGETS,
        rounds=st.integers(1, 20),
        code=CODES,
        event=st.sampled_from(["steps", "refused", "raised"]),
    )
    def succeed(self, wanted, rounds, code, event):
        """Run without failures for a while; then something may be open, or fail."""
        for _ in range(rounds):
            self.succeed_once(wanted)
        self.take_steps(may_call_back=True, later=5)
        if event == "refused" and self.heartbeat is not None:
            self.answer_heartbeat(code, wanted, is_new_epoch=False)
        if event == "raised" and self.callback is not None:
            self.end_callback(is_done=False)

    def succeed_once(self, wanted):
        """Take a step, and report success for all that is open if there is nothing else to do."""
        with suppress(BrokerError):
            self.member.poll(self.script.now)
        step = self.take(may_call_back=True)
        if isinstance(step, Wait):
            self.end_commit()
            self.end_callback(True)
            self.end_search(0)
            self.script.now = min(step.until, self.script.now + 5)
        if self.heartbeat is not None:
            step, self.heartbeat = self.heartbeat, None
            self.answer(step, 0, wanted, is_new_epoch=False)
        self.the_user_holds_what_is_assigned()

    def teardown(self):
        """Run without failures: the member owns what it is assigned, or has left."""
        if not hasattr(self, "script"):
            return
        self.change_names(ALL_NAMES)
        wanted = {ORDERS: (1, 2), UNKNOWN: (0,)}
        for _ in range(60):
            self.succeed_once(wanted)
        assert not self.member.is_leaving
        is_subscribed = self.script.subscriptions.subscription.is_auto_assigned
        if self.member.state not in NOT_IN_GROUP:
            assert is_subscribed
            assert by_name(wanted) == self.held == set(self.script.assigned)
        else:
            assert not self.held
            assert self.was_fatal or not is_subscribed


TestMemberEvents = MemberEvents.TestCase
