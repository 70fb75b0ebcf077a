"""How a member of a classic group finds its coordinator, joins, and gets its assignment."""

from __future__ import annotations

from math import inf

import pytest

from spark_kafka_sink.consumer.group.classic_membership import (
    CLASSIC_TRANSITIONS,
    ClassicMemberState,
)
from spark_kafka_sink.consumer.group.group_requests import (
    NO_GENERATION,
    CompleteJoin,
    FindCoordinator,
    Generation,
    Heartbeat,
    JoinGroup,
    PerformAssignment,
    PrepareJoin,
    SyncGroup,
    Wait,
    join_request,
)
from spark_kafka_sink.errors import BrokerError, IllegalStateError
from spark_kafka_sink.protocol.codec import decode, encode_bytes
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponseMember
from tests.support.consumer.classic_script import (
    BACKOFF,
    COORDINATOR,
    REBALANCE,
    ClassicScript,
    group_settings,
    sync_response,
)

_S, _E = ClassicMemberState, ErrorCode
FIRST = Generation(1, "me", "range")
MEMBERS = (
    JoinGroupResponseMember(member_id="me", metadata=b"mine"),
    JoinGroupResponseMember(member_id="you", group_instance_id="static", metadata=b"yours"),
)


@pytest.fixture
def script() -> ClassicScript:
    return ClassicScript()


@pytest.fixture
def found(script) -> ClassicScript:
    script.find()
    return script


@pytest.mark.parametrize("source", _S, ids=lambda state: state.name)
@pytest.mark.parametrize("target", _S, ids=lambda state: state.name)
def test_only_transitions_of_the_table_are_possible(script, source, target):
    """A transition that is not in the table raises and changes nothing."""
    script.member.state = source
    if target in CLASSIC_TRANSITIONS[source]:
        script.member._transition(target)
        assert target is script.member.state
    else:
        with pytest.raises(IllegalStateError, match=f"{source.name} to {target.name}"):
            script.member._transition(target)
        assert source is script.member.state


# The coordinator


def test_the_coordinator_is_searched_when_it_is_needed(script):
    """Outside of `poll` nothing is searched unless something else needs the coordinator."""
    assert Wait(inf) == script.step(may_join=False)
    step = script.member.next_step(0.0, may_join=False, needs_coordinator=True)
    assert isinstance(step, FindCoordinator)
    assert Wait(inf) == script.step()
    script.member.coordinator_found(step, COORDINATOR, 0.0)
    assert COORDINATOR == script.member.coordinator


@pytest.mark.parametrize("code", [None, _E.COORDINATOR_NOT_AVAILABLE, _E.REQUEST_TIMED_OUT])
def test_the_search_is_repeated_after_a_growing_back_off(script, code):
    """After each failure the search waits longer."""
    delays = []
    step = script.expect(FindCoordinator)
    for _ in range(5):
        before = script.now
        script.member.coordinator_not_found(step, code, script.now)
        step = script.sleep_until(FindCoordinator)
        delays.append(script.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF, 8 * BACKOFF, 1.0] == pytest.approx(delays)


def test_a_coordinator_that_cannot_be_reached_is_searched_after_a_growing_back_off(script):
    """Finding a broker that is down again and again is no busy loop; an answer ends that."""
    delays = []
    for _ in range(3):
        script.find()
        before = script.now
        script.member.coordinator_lost(script.now, was_reached=False)
        script.now = script.expect(Wait).until
        delays.append(script.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF] == pytest.approx(delays)
    script.become_stable()
    script.member.coordinator_lost(script.now, was_reached=False)
    assert BACKOFF == pytest.approx(script.expect(Wait).until - script.now)


def test_a_search_that_is_not_allowed_fails_the_next_poll(script):
    """The error is raised once, names the group and what to do; then the search is repeated."""
    step = script.expect(FindCoordinator)
    script.member.coordinator_not_found(step, _E.GROUP_AUTHORIZATION_FAILED, 0.0)
    assert Wait(inf) == script.step()
    with pytest.raises(BrokerError, match=r"'orders'.*Grant this user READ") as raised:
        script.member.poll(0.0)
    assert _E.GROUP_AUTHORIZATION_FAILED == raised.value.code
    script.member.poll(0.0)
    script.expect(FindCoordinator)


def test_late_answers_to_a_search_are_ignored(script):
    """Only the answer to the current request counts."""
    first = script.expect(FindCoordinator)
    script.member.coordinator_not_found(first, None, 0.0)
    script.member.coordinator_found(first, COORDINATOR, 0.0)
    assert script.member.coordinator is None
    second = script.sleep_until(FindCoordinator)
    script.member.coordinator_not_found(first, _E.GROUP_AUTHORIZATION_FAILED, 0.0)
    assert script.member.failure is None
    script.member.coordinator_found(second, COORDINATOR, script.now)
    assert COORDINATOR == script.member.coordinator


# Joining


def test_a_follower_joins_and_gets_its_assignment(found):
    """The steps are prepare, JoinGroup, SyncGroup and complete; then nothing is left to join."""
    prepare = found.expect(PrepareJoin)
    assert NO_GENERATION == prepare.generation
    assert Wait(inf) == found.step()
    found.member.join_prepared(prepare)
    join = found.expect(JoinGroup)
    assert (NO_GENERATION, "") == (join.generation, join.reason)
    assert _S.PREPARING_REBALANCE is found.member.state
    assert Wait(inf) == found.step()
    found.join_answer(join)
    assert (_S.COMPLETING_REBALANCE, FIRST) == (found.member.state, found.member.generation)
    assert found.member.stable_generation is None
    sync = found.expect(SyncGroup)
    assert (FIRST, {}) == (sync.generation, dict(sync.assignments))
    found.member.sync_answered(sync, sync_response(0, assignment=b"all", protocol="range"), 0.0)
    assert (_S.STABLE, FIRST) == (found.member.state, found.member.stable_generation)
    complete = found.expect(CompleteJoin)
    assert (FIRST, b"all") == (complete.generation, complete.assignment)
    assert found.member.is_rejoin_needed
    found.member.join_completed(complete)
    assert not found.member.is_rejoin_needed
    found.expect(Wait)


def test_the_leader_sends_the_assignments(found):
    """The leader gets the metadata of all members, and sends what the assignor has made of it."""
    found.join_answer(found.start_join(), leader="me", members=MEMBERS, skip_assignment=True)
    perform = found.expect(PerformAssignment, may_join=False)
    assert (FIRST, MEMBERS, True) == (
        perform.generation,
        perform.members,
        perform.skip_assignment,
    )
    found.expect(Wait)
    found.member.assignment_performed(perform, {"me": b"1", "you": b"2"})
    sync = found.expect(SyncGroup, may_join=False)
    assert {"me": b"1", "you": b"2"} == sync.assignments


def test_an_assignor_that_fails_ends_the_join(found):
    """After an error of the assignor the group is joined again, in the same generation."""
    found.join_answer(found.start_join(), leader="me")
    found.member.assignment_failed(found.expect(PerformAssignment))
    assert FIRST == found.start_join().generation


def test_a_join_begins_within_poll_only(found):
    """Without `poll` the group is neither joined nor is its assignment applied."""
    assert Wait(inf) == found.step(may_join=False)
    join = found.start_join()
    found.join_answer(join)
    sync = found.expect(SyncGroup, may_join=False)
    found.member.sync_answered(sync, sync_response(0), 0.0)
    found.expect(Wait, may_join=False)
    found.expect(CompleteJoin)


def test_a_preparation_is_repeated_until_it_is_done(found):
    """While offsets are being committed the preparation goes on, and JoinGroup has to wait."""
    found.member.join_prepared(found.expect(PrepareJoin), is_done=False)
    found.member.join_prepared(found.expect(PrepareJoin))
    found.expect(JoinGroup)


def test_an_assignment_is_applied_until_that_succeeds(found):
    """If the callback is interrupted, the same assignment is applied within the next `poll`."""
    found.member.sync_answered(found.join(), sync_response(0, assignment=b"x"), 0.0)
    first = found.expect(CompleteJoin)
    found.expect(Wait)
    found.member.join_completed(first, is_done=False)
    assert first == found.expect(CompleteJoin)


@pytest.mark.parametrize(
    ("request_timeout", "expected"), [(30.0, REBALANCE + 5), (90.0, 90.0), (65.0, 65.0)]
)
def test_a_join_may_take_as_long_as_a_rebalance(request_timeout, expected):
    """JoinGroup times out five seconds after the rebalance timeout, not before other requests."""
    script = ClassicScript(request_timeout=request_timeout)
    script.find()
    assert expected == script.start_join().timeout


def test_the_longest_rebalance_does_not_overflow():
    """The largest max.poll.interval.ms can be waited for, and fits into the request."""
    script = ClassicScript(rebalance_timeout=2_147_483.647)
    script.find()
    join = script.start_join()
    assert 2_147_488.647 == pytest.approx(join.timeout)
    settings = group_settings(rebalance_timeout=2_147_483.647)
    request = join_request(join, settings, [("range", b"")], 9)
    assert 2_147_483_647 == request.rebalance_timeout_ms
    assert request == decode(JoinGroupRequest, encode_bytes(request, 9), 9)


def test_the_reason_for_a_join_is_sent_once(found):
    """A reason is sent until a join succeeds; a long one is cut to what brokers accept."""
    found.become_stable()
    found.member.request_rejoin("x" * 300)
    join = found.start_join()
    assert "x" * 255 == join.reason
    found.join_answer(join, error_code=_E.GROUP_MAX_SIZE_REACHED)
    with pytest.raises(BrokerError, match="group is full"):
        found.member.poll(0.0)
    join = found.start_join()
    assert "rebalance failed due to GROUP_MAX_SIZE_REACHED" == join.reason
    found.join_answer(join, 2)
    found.member.sync_answered(found.expect(SyncGroup), sync_response(0), 0.0)
    found.member.join_completed(found.expect(CompleteJoin))
    found.member.request_rejoin("")
    assert "" == found.start_join().reason


def test_a_rejoin_is_prepared_with_the_generation_that_ends(found):
    """A stable member prepares for the next join in its generation, and keeps its member id."""
    found.become_stable()
    found.member.request_rejoin("the topics have changed")
    prepare = found.expect(PrepareJoin)
    assert FIRST == prepare.generation
    found.member.join_prepared(prepare)
    assert FIRST == found.expect(JoinGroup).generation


# Errors of JoinGroup


def test_a_member_takes_the_id_that_the_coordinator_requires(found):
    """After MEMBER_ID_REQUIRED the group is joined at once, with that id and no generation."""
    found.join_answer(found.start_join(), error_code=_E.MEMBER_ID_REQUIRED, member_id="assigned")
    join = found.expect(JoinGroup)
    assert Generation(member_id="assigned") == join.generation
    assert "need to re-join with the given member-id: assigned" == join.reason


@pytest.mark.parametrize(
    "code", [_E.MEMBER_ID_REQUIRED, _E.UNKNOWN_MEMBER_ID, _E.REBALANCE_IN_PROGRESS]
)
def test_a_coordinator_that_never_lets_a_member_in_is_asked_less_often(found, code):
    """Only the first joins that fail are repeated at once; one that succeeds ends the back-off."""
    for _ in range(4):
        found.join_answer(found.start_join(), error_code=code, member_id="assigned")
    found.now = found.expect(Wait).until
    assert BACKOFF == found.now
    found.become_stable()
    found.member.request_rejoin("")
    found.join_answer(found.start_join(), error_code=code, member_id="assigned")
    found.start_join()
    assert BACKOFF == found.now


def test_an_unknown_member_joins_as_a_new_one(found):
    """After UNKNOWN_MEMBER_ID the member prepares anew, and joins without an id."""
    found.become_stable()
    found.member.request_rejoin("")
    found.join_answer(found.start_join(), error_code=_E.UNKNOWN_MEMBER_ID)
    assert (_S.UNJOINED, NO_GENERATION) == (found.member.state, found.member.generation)
    assert NO_GENERATION == found.expect(PrepareJoin).generation


def test_an_unknown_member_of_an_old_generation_keeps_the_new_one(found):
    """UNKNOWN_MEMBER_ID does not reset a generation other than the one that was sent."""
    join = found.start_join()
    found.member.generation = Generation(9, "newer", "range")
    found.join_answer(join, error_code=_E.UNKNOWN_MEMBER_ID)
    assert Generation(9, "newer", "range") == found.member.generation
    assert Generation(9, "newer", "range") == found.expect(JoinGroup).generation


@pytest.mark.parametrize("code", [_E.COORDINATOR_LOAD_IN_PROGRESS, _E.REQUEST_TIMED_OUT])
def test_a_join_is_repeated_after_a_back_off(found, code):
    """A retriable error is followed by the next JoinGroup after retry.backoff.ms."""
    found.join_answer(found.start_join(), error_code=code)
    assert COORDINATOR == found.member.coordinator
    found.sleep_until(JoinGroup)
    assert BACKOFF == found.now


def test_a_join_during_a_rebalance_is_repeated_at_once(found):
    """REBALANCE_IN_PROGRESS changes nothing about the member."""
    found.join_answer(found.start_join(), error_code=_E.REBALANCE_IN_PROGRESS)
    assert "rebalance failed due to REBALANCE_IN_PROGRESS" == found.expect(JoinGroup).reason


@pytest.mark.parametrize("code", [_E.NOT_COORDINATOR, _E.COORDINATOR_NOT_AVAILABLE])
@pytest.mark.parametrize("of_sync", [False, True], ids=["join", "sync"])
def test_another_coordinator_is_asked_to_join(found, code, of_sync):
    """The coordinator is searched, and the group joined with the same member id."""
    if of_sync:
        found.member.sync_answered(found.join(), sync_response(code), found.now)
    else:
        found.join_answer(found.start_join(), error_code=code)
    assert found.member.coordinator is None
    found.find()
    found.sleep_until(JoinGroup)
    assert BACKOFF == found.now


FATAL = [
    _E.FENCED_INSTANCE_ID,
    _E.INCONSISTENT_GROUP_PROTOCOL,
    _E.INVALID_SESSION_TIMEOUT,
    _E.INVALID_GROUP_ID,
    _E.GROUP_AUTHORIZATION_FAILED,
    _E.GROUP_MAX_SIZE_REACHED,
    _E.UNSUPPORTED_VERSION,
    _E.UNKNOWN_SERVER_ERROR,
]


@pytest.mark.parametrize("code", FATAL, ids=lambda code: code.name)
def test_a_refused_join_fails_the_next_poll(code):
    """The error names group and instance; the group is joined again if `poll` is called again."""
    script = ClassicScript(group_instance_id="cashier-1")
    script.find()
    script.join_answer(script.start_join(), error_code=code)
    assert Wait(inf) == script.step()
    with pytest.raises(BrokerError, match=r"JOIN_GROUP of group 'orders'.*'cashier-1'") as raised:
        script.member.poll(0.0)
    assert code == raised.value.code
    script.expect(JoinGroup)


def test_the_type_of_the_protocol_has_to_be_ours(found):
    """A group of another type than "consumer" is refused; brokers may omit the type."""
    found.join_answer(found.start_join(), protocol_type="connect")
    with pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
        found.member.poll(0.0)
    found.join_answer(found.expect(JoinGroup), protocol_type="consumer")
    found.expect(SyncGroup)


def test_the_same_member_joins_after_the_loss_of_a_connection(found):
    """A connection that ends during a join does not cost the member its id."""
    found.join_answer(found.start_join(), error_code=_E.MEMBER_ID_REQUIRED, member_id="assigned")
    join = found.expect(JoinGroup)
    found.member.coordinator_lost(found.now)
    found.find()
    again = found.sleep_until(JoinGroup)
    assert Generation(member_id="assigned") == again.generation
    found.join_answer(join, 7)
    assert _S.PREPARING_REBALANCE is found.member.state
    found.join_answer(again, 8)
    assert 8 == found.expect(SyncGroup).generation.generation_id


def test_a_connection_lost_during_a_sync_is_followed_by_a_join(found):
    """The member joins again with its id, and a late answer to the SyncGroup is ignored."""
    sync = found.join()
    found.member.coordinator_lost(found.now)
    found.find()
    again = found.sleep_until(JoinGroup)
    assert (FIRST, BACKOFF) == (again.generation, found.now)
    found.member.sync_answered(sync, sync_response(0, assignment=b"late"), found.now)
    assert _S.PREPARING_REBALANCE is found.member.state
    found.join_answer(again, 2)
    assert Generation(2, "me", "range") == found.expect(SyncGroup).generation


def test_a_join_that_the_user_has_left_does_not_count(found):
    """A member that leaves while it joins ignores the answer, and joins anew."""
    join = found.start_join()
    found.member._reset("left", keeps_member_id=False)
    found.expect(Wait)
    found.join_answer(join)
    assert (_S.UNJOINED, NO_GENERATION) == (found.member.state, found.member.generation)
    found.sleep_until(PrepareJoin)


# Errors of SyncGroup


@pytest.mark.parametrize(
    ("code", "kept"), [(_E.ILLEGAL_GENERATION, "me"), (_E.UNKNOWN_MEMBER_ID, "")]
)
def test_a_member_of_a_past_generation_joins_at_once(found, code, kept):
    """ILLEGAL_GENERATION costs the generation, UNKNOWN_MEMBER_ID also the member id."""
    found.member.sync_answered(found.join(), sync_response(code), 0.0)
    assert (_S.UNJOINED, Generation(member_id=kept)) == (
        found.member.state,
        found.member.generation,
    )
    found.expect(PrepareJoin)


@pytest.mark.parametrize("code", [_E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID])
def test_a_late_error_of_a_sync_keeps_the_new_generation(found, code):
    """An error of a SyncGroup that was sent in another generation resets nothing."""
    sync = found.join()
    newer = Generation(9, "newer", "range")
    found.member.generation = newer
    found.member.sync_answered(sync, sync_response(code), 0.0)
    assert newer == found.member.generation
    assert newer == found.expect(JoinGroup).generation


def test_a_sync_during_a_rebalance_is_followed_by_a_join(found):
    """REBALANCE_IN_PROGRESS keeps generation and heartbeats, and joins at once."""
    found.member.sync_answered(found.join(), sync_response(_E.REBALANCE_IN_PROGRESS), 0.0)
    assert (_S.COMPLETING_REBALANCE, FIRST) == (found.member.state, found.member.generation)
    assert FIRST == found.expect(JoinGroup).generation


@pytest.mark.parametrize(
    "code",
    [
        _E.FENCED_INSTANCE_ID,
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.INCONSISTENT_GROUP_PROTOCOL,
        _E.UNKNOWN_SERVER_ERROR,
    ],
    ids=lambda code: code.name,
)
def test_a_refused_sync_fails_the_next_poll(found, code):
    """The member goes on with heartbeats, and joins again if `poll` is called again."""
    found.member.sync_answered(found.join(), sync_response(code), 0.0)
    assert found.now < found.expect(Wait).until
    found.heartbeat()
    with pytest.raises(BrokerError, match="SYNC_GROUP") as raised:
        found.member.poll(found.now)
    assert code == raised.value.code
    found.expect(JoinGroup)


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol": "sticky"}])
def test_an_assignment_has_to_be_of_the_agreed_protocol(found, wrong):
    """An assignment of another type or assignor is refused; brokers may omit both."""
    sync = found.join()
    found.member.sync_answered(sync, sync_response(0, **wrong), 0.0)
    with pytest.raises(BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
        found.member.poll(0.0)


def test_an_assignment_without_a_generation_does_not_count(found):
    """If the generation was given up meanwhile, its protocol is not compared; join again."""
    sync = found.join()
    found.member._reset("left", keeps_member_id=False)
    found.member.sync_answered(sync, sync_response(0, protocol="sticky"), 0.0)
    assert found.member.failure is None
    found.expect(PrepareJoin)


@pytest.mark.parametrize("is_done", [False, True])
def test_an_assignment_of_a_past_generation_is_not_applied_again(found, is_done):
    """If the generation ends while its assignment is applied, the group is joined after that."""
    found.member.sync_answered(found.join(), sync_response(0), 0.0)
    complete = found.expect(CompleteJoin)
    heartbeat = found.heartbeat()
    found.member.heartbeat_answered(heartbeat, _E.ILLEGAL_GENERATION, found.now)
    found.expect(Wait)
    found.member.join_completed(complete, is_done=is_done)
    assert Generation(member_id="me") == found.expect(PrepareJoin).generation


def test_an_assignment_that_was_not_applied_yet_ends_with_its_generation(found):
    """An assignment that waits for `poll` is dropped when its generation ends."""
    found.member.sync_answered(found.join(), sync_response(0), 0.0)
    heartbeat = found.heartbeat()
    found.member.heartbeat_answered(heartbeat, _E.UNKNOWN_MEMBER_ID, found.now)
    found.expect(PrepareJoin)


def test_a_preparation_is_repeated_if_the_generation_has_changed(found):
    """What was prepared for one generation does not count for what is left of it."""
    found.become_stable()
    found.member.request_rejoin("")
    prepare = found.expect(PrepareJoin)
    heartbeat = found.heartbeat()
    found.member.heartbeat_answered(heartbeat, _E.ILLEGAL_GENERATION, found.now)
    found.member.join_prepared(prepare)
    assert Generation(member_id="me") == found.expect(PrepareJoin).generation


def test_assignments_for_a_past_generation_are_not_sent(found):
    """If the generation ends while the leader computes, the group is joined anew."""
    found.join_answer(found.start_join(), leader="me", members=MEMBERS)
    perform = found.expect(PerformAssignment)
    found.member.heartbeat_answered(found.heartbeat(), _E.ILLEGAL_GENERATION, found.now)
    found.member.assignment_performed(perform, {"me": b""})
    found.expect(PrepareJoin)


def test_late_outcomes_of_joining_are_ignored(found):
    """The outcome of a step that is no longer current changes nothing."""
    join = found.start_join()
    found.join_answer(join)
    sync = found.expect(SyncGroup)
    found.member.sync_answered(sync, sync_response(0), 0.0)
    complete = found.expect(CompleteJoin)
    found.member.join_completed(complete)
    before = (found.member.state, found.member.generation, found.member.is_rejoin_needed)
    prepare = PrepareJoin(1, NO_GENERATION)
    found.member.join_prepared(prepare, is_done=False)
    found.join_answer(join, 9)
    found.member.assignment_performed(PerformAssignment(3, FIRST, (), skip_assignment=False), {})
    found.member.assignment_failed(PerformAssignment(3, FIRST, (), skip_assignment=False))
    found.member.sync_answered(sync, sync_response(_E.UNKNOWN_MEMBER_ID), 0.0)
    found.member.join_completed(complete, is_done=False)
    assert before == (found.member.state, found.member.generation, found.member.is_rejoin_needed)
    assert isinstance(found.heartbeat(), Heartbeat)
