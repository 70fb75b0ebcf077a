"""How a member of a classic group stays in its group, and how it leaves."""

from __future__ import annotations

from math import inf

import pytest

from spark_kafka_sink.consumer.group.classic_membership import ClassicMemberState
from spark_kafka_sink.consumer.group.group_requests import (
    NO_GENERATION,
    CompleteJoin,
    FindCoordinator,
    Generation,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveOperation,
    PrepareJoin,
    SyncGroup,
    Wait,
)
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.classic_script import (
    BACKOFF,
    COORDINATOR,
    INTERVAL,
    REBALANCE,
    SESSION,
    ClassicScript,
    join_response,
    sync_response,
)

_S, _E = ClassicMemberState, ErrorCode
FIRST = Generation(1, "me", "range")


@pytest.fixture
def found() -> ClassicScript:
    script = ClassicScript()
    script.find()
    return script


@pytest.fixture
def stable() -> ClassicScript:
    script = ClassicScript()
    script.become_stable()
    return script


def test_heartbeats_begin_with_the_answer_to_the_join(found):
    """Heartbeats are sent while the assignment is awaited, and not before."""
    join = found.start_join()
    assert Wait(inf) == found.step(may_join=False)
    found.now = 20.0
    found.join_answer(join)
    found.expect(SyncGroup)
    assert FIRST == found.heartbeat().generation
    assert 20 + INTERVAL == found.now


def test_heartbeats_follow_each_other_at_the_interval(stable):
    """A heartbeat is sent an interval after the last one was, whether or not `poll` is called."""
    times = []
    for _ in range(3):
        beat = stable.heartbeat()
        times.append(stable.now)
        stable.now += 0.5
        stable.member.heartbeat_answered(beat, 0, stable.now)
    assert [INTERVAL, 2 * INTERVAL, 3 * INTERVAL] == times


def test_one_heartbeat_is_in_flight_at_a_time(stable):
    """While an answer is late, no other heartbeat is sent; the session ends at its time."""
    stable.heartbeat()
    assert Wait(SESSION) == stable.step()


def test_a_coordinator_that_does_not_answer_is_searched_anew(stable):
    """At the end of the session the coordinator is searched, and heartbeats go on from there."""
    late = stable.heartbeat()
    stable.now = SESSION
    search = stable.expect(FindCoordinator, may_join=False)
    assert stable.member.coordinator is None
    stable.member.heartbeat_answered(late, _E.UNKNOWN_MEMBER_ID, stable.now)
    assert (_S.STABLE, FIRST) == (stable.member.state, stable.member.generation)
    stable.member.coordinator_found(search, object(), stable.now + 1)
    assert FIRST == stable.heartbeat().generation
    assert Wait(stable.now + SESSION) != stable.step()
    assert Wait(SESSION + 1 + SESSION) == stable.step()


@pytest.mark.parametrize("code", [_E.NOT_COORDINATOR, _E.COORDINATOR_NOT_AVAILABLE])
def test_another_coordinator_gets_the_heartbeats(stable, code):
    """The coordinator is searched at once, and the heartbeat repeated after a back-off."""
    stable.member.heartbeat_answered(stable.heartbeat(), code, stable.now)
    before = stable.now
    stable.find()
    stable.heartbeat()
    assert before + BACKOFF == pytest.approx(stable.now)
    assert not stable.member.is_rejoin_needed


def test_a_lost_heartbeat_is_repeated_after_a_back_off(stable):
    """A connection that ends costs neither generation nor member id."""
    stable.heartbeat()
    stable.member.coordinator_lost(stable.now)
    before = stable.now
    stable.find()
    assert FIRST == stable.heartbeat().generation
    assert before + BACKOFF == pytest.approx(stable.now)


@pytest.mark.parametrize(
    "code", [_E.GROUP_AUTHORIZATION_FAILED, _E.COORDINATOR_LOAD_IN_PROGRESS, 999]
)
def test_other_errors_of_heartbeats_are_retried(stable, code):
    """A heartbeat that fails is repeated after a growing back-off, as long as the session lasts."""
    delays = []
    for _ in range(2):
        stable.member.heartbeat_answered(stable.heartbeat(), code, stable.now)
        before = stable.now
        beat = stable.heartbeat()
        delays.append(stable.now - before)
        stable.member.heartbeat_answered(beat, code, stable.now)
    assert [BACKOFF, 4 * BACKOFF] == pytest.approx(delays)
    assert stable.member.failure is None


def test_a_rebalance_of_the_group_leads_to_a_join(stable):
    """After REBALANCE_IN_PROGRESS a stable member sends heartbeats until `poll` joins anew."""
    stable.member.heartbeat_answered(stable.heartbeat(), _E.REBALANCE_IN_PROGRESS, stable.now)
    assert stable.member.is_rejoin_needed
    stable.heartbeat()
    join = stable.start_join()
    assert (FIRST, "group is already rebalancing") == (join.generation, join.reason)


def test_a_rebalance_is_no_news_while_the_member_takes_part_in_it(found):
    """During a rebalance REBALANCE_IN_PROGRESS extends the session, and nothing else."""
    sync = found.join()
    found.member.heartbeat_answered(found.heartbeat(), _E.REBALANCE_IN_PROGRESS, found.now)
    assert _S.COMPLETING_REBALANCE is found.member.state
    found.heartbeat()
    assert Wait(INTERVAL + SESSION) == found.step()
    found.member.sync_answered(sync, sync_response(0), found.now)
    assert _S.STABLE is found.member.state


def test_a_heartbeat_that_is_answered_during_a_join_does_not_disturb_it(stable):
    """REBALANCE_IN_PROGRESS keeps the generation while JoinGroup waits for its answer."""
    beat = stable.heartbeat()
    stable.member.request_rejoin("changed")
    join = stable.start_join()
    stable.member.heartbeat_answered(beat, _E.REBALANCE_IN_PROGRESS, stable.now)
    assert (_S.PREPARING_REBALANCE, FIRST) == (stable.member.state, stable.member.generation)
    stable.join_answer(join, 2)
    stable.member.sync_answered(stable.expect(SyncGroup), sync_response(0), stable.now)
    stable.member.join_completed(stable.expect(CompleteJoin))
    assert not stable.member.is_rejoin_needed


@pytest.mark.parametrize(
    ("code", "kept"), [(_E.ILLEGAL_GENERATION, "me"), (_E.UNKNOWN_MEMBER_ID, "")]
)
def test_a_member_that_the_group_has_lost_joins_again(stable, code, kept):
    """ILLEGAL_GENERATION costs the generation, UNKNOWN_MEMBER_ID also the member id."""
    stable.member.heartbeat_answered(stable.heartbeat(), code, stable.now)
    left = Generation(member_id=kept)
    assert (_S.UNJOINED, left) == (stable.member.state, stable.member.generation)
    assert stable.member.stable_generation is None
    prepare = stable.expect(PrepareJoin)
    assert left == prepare.generation
    stable.member.join_prepared(prepare)
    join = stable.expect(JoinGroup)
    assert f"encountered {code.name} from HEARTBEAT response" == join.reason


def test_a_fenced_instance_fails_the_next_poll():
    """Another member with the same group.instance.id ends this membership with an error."""
    script = ClassicScript(group_instance_id="cashier-1")
    script.become_stable()
    script.member.heartbeat_answered(script.heartbeat(), _E.FENCED_INSTANCE_ID, script.now)
    assert (_S.UNJOINED, NO_GENERATION) == (script.member.state, script.member.generation)
    assert Wait(inf) == script.step()
    with pytest.raises(BrokerError, match=r"'cashier-1'.*group\.instance\.id of its own"):
        script.member.poll(script.now)


@pytest.mark.parametrize(
    "code", [_E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID]
)
def test_an_error_of_an_old_heartbeat_is_ignored(stable, code):
    """A heartbeat of another generation says nothing about the present one."""
    beat = stable.heartbeat()
    newer = Generation(2, "me", "range")
    stable.member.generation = newer
    stable.member.heartbeat_answered(beat, code, stable.now)
    assert (_S.STABLE, newer) == (stable.member.state, stable.member.generation)
    assert stable.member.failure is None
    stable.heartbeat()
    assert Wait(INTERVAL + SESSION) == stable.step()


# Leaving


def test_a_member_leaves_if_poll_is_not_called_in_time(stable):
    """After max.poll.interval.ms the member leaves by itself, and joins again with `poll`."""
    for _ in range(int(REBALANCE / INTERVAL) - 1):
        stable.member.heartbeat_answered(stable.heartbeat(), 0, stable.now)
    stable.now = REBALANCE
    leave = stable.expect(LeaveGroup, may_join=False)
    assert LeaveGroup("me", "consumer poll timeout has expired.") == leave
    assert (_S.UNJOINED, NO_GENERATION) == (stable.member.state, stable.member.generation)
    assert Wait(inf) == stable.step(may_join=False)
    assert NO_GENERATION == stable.expect(PrepareJoin).generation


def test_calls_of_poll_keep_the_member(stable):
    """With each `poll` the interval starts anew."""
    while stable.now < 2 * REBALANCE:
        stable.member.heartbeat_answered(stable.heartbeat(), 0, stable.now)
        stable.member.poll(stable.now)
    assert _S.STABLE is stable.member.state


def test_calls_of_poll_keep_the_member_while_the_coordinator_is_not_known(stable):
    """The interval starts anew also without a coordinator."""
    stable.member.heartbeat_answered(stable.heartbeat(), _E.NOT_COORDINATOR, stable.now)
    search = stable.expect(FindCoordinator)
    polled = REBALANCE - 1
    stable.member.poll(polled)
    stable.now = polled + REBALANCE - 1
    stable.member.coordinator_found(search, COORDINATOR, stable.now)
    stable.expect(Heartbeat, may_join=False)
    stable.now = polled + REBALANCE
    stable.expect(LeaveGroup, may_join=False)


def test_a_static_member_gives_up_its_generation_without_leaving():
    """A static member that does not poll sends nothing, and stays until its session ends."""
    script = ClassicScript(group_instance_id="cashier-1")
    script.become_stable()
    script.member.heartbeat_answered(script.heartbeat(), 0, script.now)
    script.now = REBALANCE
    script.member._timer.reset_session(script.now)
    assert Wait(inf) == script.step(may_join=False)
    assert (_S.UNJOINED, NO_GENERATION) == (script.member.state, script.member.generation)


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("operation", LeaveOperation, ids=lambda operation: operation.name)
def test_leaving_depends_on_the_member_and_the_operation(is_static, operation):
    """A dynamic member leaves unless it is to remain; a static one only if it is to leave."""
    script = ClassicScript(group_instance_id="cashier-1" if is_static else None)
    script.become_stable()
    leave = script.member.leave("the consumer is being closed", operation)
    leaves = operation is LeaveOperation.LEAVE_GROUP or (
        operation is LeaveOperation.DEFAULT and not is_static
    )
    assert leaves == (leave is not None)
    assert leave in {None, LeaveGroup("me", "the consumer is being closed")}
    assert (_S.UNJOINED, NO_GENERATION) == (script.member.state, script.member.generation)


def test_a_long_reason_to_leave_is_cut(stable):
    """Brokers accept a reason of 255 characters."""
    leave = stable.member.leave("x" * 300, LeaveOperation.DEFAULT)
    assert LeaveGroup("me", "x" * 255) == leave


def test_a_member_that_was_only_given_an_id_leaves(found):
    """The coordinator waits for its next JoinGroup otherwise."""
    required = {"error_code": _E.MEMBER_ID_REQUIRED, "member_id": "assigned"}
    found.join_answer(found.start_join(), **required)
    assert LeaveGroup("assigned", "bye") == found.member.leave("bye", LeaveOperation.DEFAULT)


def test_there_is_nothing_to_leave_without_a_coordinator_or_a_member_id(stable):
    """No request is sent if there is none to send it to, or nothing to leave."""
    stable.member.coordinator_lost(stable.now)
    assert stable.member.leave("", LeaveOperation.LEAVE_GROUP) is None
    assert stable.member.leave("", LeaveOperation.LEAVE_GROUP) is None
    script = ClassicScript()
    script.find()
    script.start_join()
    assert script.member.leave("", LeaveOperation.LEAVE_GROUP) is None


@pytest.mark.parametrize("code", [_E.MEMBER_ID_REQUIRED, _E.NONE], ids=lambda code: code.name)
def test_a_member_leaves_with_the_id_that_it_is_given_afterwards(found, code):
    """The coordinator would wait for it until its session ends; the next join is a new member's."""
    join = found.start_join()
    assert found.member.leave("bye", LeaveOperation.DEFAULT) is None
    assert found.member.awaits_id_to_leave
    response = join_response(error_code=code, member_id="assigned")
    assert LeaveGroup("assigned", "bye") == found.member.join_answered(join, response, found.now)
    assert not found.member.awaits_id_to_leave
    found.now += BACKOFF
    assert NO_GENERATION == found.start_join().generation


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_member_that_is_given_no_id_leaves_nothing(found, is_lost):
    """The coordinator has refused to let it join, or is lost."""
    join = found.start_join()
    found.member.leave("bye", LeaveOperation.DEFAULT)
    if is_lost:
        found.member.coordinator_lost(found.now)
    else:
        response = join_response(error_code=_E.COORDINATOR_LOAD_IN_PROGRESS, member_id="")
        assert found.member.join_answered(join, response, found.now) is None
    assert not found.member.awaits_id_to_leave


def test_a_static_member_without_an_id_stays():
    """It returns within its session."""
    script = ClassicScript(group_instance_id="cashier-1")
    script.find()
    join = script.start_join()
    script.member.leave("bye", LeaveOperation.DEFAULT)
    response = join_response(error_code=_E.NONE, member_id="assigned")
    assert script.member.join_answered(join, response, script.now) is None


def test_a_member_can_join_again_after_it_left(stable):
    """Leaving is no end: the next `poll` with a subscription joins as a new member."""
    stable.member.leave("", LeaveOperation.DEFAULT)
    assert NO_GENERATION == stable.start_join().generation


def test_a_heartbeat_of_a_member_that_left_is_ignored(stable):
    """A late answer does not reset what a new join has brought."""
    beat = stable.heartbeat()
    stable.member.leave("", LeaveOperation.DEFAULT)
    stable.member.heartbeat_answered(beat, _E.UNKNOWN_MEMBER_ID, stable.now)
    stable.become_stable(2)
    stable.member.heartbeat_answered(beat, _E.FENCED_INSTANCE_ID, stable.now)
    assert _S.STABLE is stable.member.state
    assert isinstance(stable.heartbeat(), Heartbeat)
