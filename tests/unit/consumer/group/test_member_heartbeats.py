"""When a member of a KIP-848 group sends heartbeats, and what their answers do."""

from __future__ import annotations

from math import inf

import pytest

from spark_kafka_sink.consumer.group.consumer_membership import (
    HEARTBEAT_ADVICE,
    HEARTBEAT_RULES,
    HeartbeatAction,
)
from spark_kafka_sink.consumer.group.group_member import (
    Assign,
    LocalAssignment,
    MemberState,
    SendHeartbeat,
)
from spark_kafka_sink.consumer.group.group_requests import FindCoordinator, Wait
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.member_script import (
    BACKOFF,
    COORDINATOR,
    INTERVAL,
    MEMBER_ID,
    ORDERS,
    MemberScript,
    orders,
    response,
)

_S, _E = MemberState, ErrorCode
FATAL = [code for code, action in HEARTBEAT_RULES.items() if action is HeartbeatAction.FATAL]


@pytest.fixture
def script() -> MemberScript:
    return MemberScript()


@pytest.fixture
def stable(script) -> MemberScript:
    script.become_stable(0)
    return script


# The coordinator


def test_the_coordinator_is_searched_when_it_is_needed(script):
    """Outside of the group nothing is searched unless something else needs the coordinator."""
    assert Wait(inf) == script.step()
    step = script.member.next_step(0.0, may_call_back=False, needs_coordinator=True)
    assert isinstance(step, FindCoordinator)
    assert Wait(inf) == script.member.next_step(0.0, may_call_back=True, needs_coordinator=True)
    script.member.coordinator_found(step, COORDINATOR, script.now)
    assert COORDINATOR == script.member.coordinator


@pytest.mark.parametrize("code", [None, _E.COORDINATOR_NOT_AVAILABLE, _E.REQUEST_TIMED_OUT])
def test_the_search_is_repeated_after_a_growing_back_off(script, code):
    """After each failure the search waits longer, also outside of `poll`."""
    script.member.poll(script.now)
    delays = []
    step = script.expect(FindCoordinator)
    for _ in range(3):
        before = script.now
        script.member.coordinator_not_found(step, code, script.now)
        step = script.sleep_until(FindCoordinator, may_call_back=False)
        delays.append(script.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF] == pytest.approx(delays)
    script.member.poll(script.now)


def test_a_search_that_is_not_allowed_fails_the_next_poll(script):
    """The error is raised once; the search goes on, and the member stays as it is."""
    script.member.poll(script.now)
    step = script.expect(FindCoordinator)
    script.member.coordinator_not_found(step, _E.GROUP_AUTHORIZATION_FAILED, 0.0)
    assert script.member.failure is not None
    with pytest.raises(BrokerError, match=r"FIND_COORDINATOR of group 'shop'.*READ") as raised:
        script.member.poll(0.0)
    assert _E.GROUP_AUTHORIZATION_FAILED == raised.value.code
    script.member.poll(0.0)
    assert _S.JOINING is script.member.state
    script.sleep_until(FindCoordinator)


def test_late_answers_to_a_search_are_ignored(script):
    """Only the answer to the current request counts."""
    script.member.poll(script.now)
    first = script.expect(FindCoordinator)
    script.member.coordinator_not_found(first, None, 0.0)
    script.member.coordinator_found(first, COORDINATOR, script.now)
    assert script.member.coordinator is None
    second = script.sleep_until(FindCoordinator)
    script.member.coordinator_not_found(first, _E.GROUP_AUTHORIZATION_FAILED, script.now)
    assert script.member.failure is None
    script.member.coordinator_found(second, COORDINATOR, script.now)
    script.member.coordinator_found(first, Node(2, "two", 9092), script.now)
    assert COORDINATOR == script.member.coordinator


def test_a_lost_coordinator_is_searched_at_once(stable):
    """The heartbeat in flight has failed, and is sent again to the new coordinator."""
    step = stable.sleep_until(SendHeartbeat)
    stable.member.coordinator_lost(stable.now)
    stable.find()
    again = stable.sleep_until(SendHeartbeat)
    assert again.request.topic_partitions is not None
    stable.answer(step, epoch=9)
    assert 1 == stable.member.member_epoch


def test_a_coordinator_that_cannot_be_reached_is_searched_after_a_back_off(stable):
    """Finding a broker that is down again and again is no busy loop."""
    delays = []
    for _ in range(3):
        before = stable.now
        stable.member.coordinator_lost(stable.now, was_reached=False)
        step = stable.sleep_until(FindCoordinator)
        stable.member.coordinator_found(step, COORDINATOR, stable.now)
        delays.append(stable.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF] == pytest.approx(delays)


# When heartbeats are sent


def test_a_member_joins_at_once_with_epoch_0(script):
    """The id is that of the client, and one heartbeat is in flight at a time."""
    step = script.start_joining()
    assert (MEMBER_ID, 0) == (step.request.member_id, step.request.member_epoch)
    assert script.member.member_epoch is None
    assert isinstance(script.step(), Wait)
    script.answer(step, epoch=1, target={ORDERS: (0,)})
    assert 1 == script.member.member_epoch


def test_heartbeats_have_the_interval_of_the_answer(stable):
    """An answer that comes late does not delay the next heartbeat."""
    start = stable.now
    step = stable.sleep_until(SendHeartbeat, may_call_back=False)
    assert start + INTERVAL == stable.now
    assert isinstance(stable.step(), Wait)
    stable.now += 1
    stable.answer(step, heartbeat_interval_ms=2000)
    step = stable.sleep_until(SendHeartbeat)
    assert start + INTERVAL + 3 == stable.now
    stable.answer(step, heartbeat_interval_ms=2000)
    stable.sleep_until(SendHeartbeat)
    assert start + INTERVAL + 5 == stable.now


def test_a_heartbeat_in_flight_delays_an_acknowledgment(script):
    """The acknowledgment follows as soon as there is an answer."""
    script.become_stable()
    script.receive({ORDERS: (0,)})
    step = script.sleep_until(SendHeartbeat, may_call_back=False)
    script.assign()
    assert _S.ACKNOWLEDGING is script.member.state
    assert isinstance(script.step(), Wait)
    script.answer(step)
    assert script.expect(SendHeartbeat).request.topic_partitions


def test_an_epoch_is_sent_with_the_next_heartbeat(stable):
    """An answer without an assignment still has an epoch."""
    stable.answer(stable.sleep_until(SendHeartbeat), epoch=2)
    assert 2 == stable.sleep_until(SendHeartbeat).request.member_epoch


def test_an_answer_with_a_negative_epoch_is_ignored(stable):
    """Only the answer to a heartbeat that leaves has one."""
    stable.answer(stable.sleep_until(SendHeartbeat), epoch=-1, target={})
    assert (1, _S.STABLE) == (stable.member.member_epoch, stable.member.state)


def test_a_second_answer_is_ignored(stable):
    """Each heartbeat has one outcome."""
    step = stable.sleep_until(SendHeartbeat)
    stable.answer(step)
    stable.answer(step, code=_E.UNKNOWN_MEMBER_ID)
    stable.member.heartbeat_failed(step, stable.now)
    assert _S.STABLE is stable.member.state
    assert stable.now + INTERVAL == stable.expect(Wait).until


# Errors


def test_a_heartbeat_without_an_answer_is_repeated_with_all_fields(stable):
    """So an acknowledgment that was lost is sent again, after the back-off."""
    stable.receive({ORDERS: (0, 1)})
    stable.assign()
    step = stable.expect(SendHeartbeat)
    assert _S.STABLE is stable.member.state
    stable.member.heartbeat_failed(step, stable.now)
    before = stable.now
    again = stable.sleep_until(SendHeartbeat)
    assert before + BACKOFF == pytest.approx(stable.now)
    assert COORDINATOR == stable.member.coordinator
    assert step.request.topic_partitions == again.request.topic_partitions
    assert ("orders", "payments") == again.request.subscribed_topic_names


@pytest.mark.parametrize("code", [_E.COORDINATOR_LOAD_IN_PROGRESS, _E.REQUEST_TIMED_OUT])
def test_a_retriable_error_has_a_back_off_even_for_a_member_that_joins(script, code):
    """Java sends the next request at once in this state; the coordinator is kept."""
    step = script.start_joining()
    delays = []
    for _ in range(3):
        before = script.now
        script.answer(step, code=code)
        step = script.sleep_until(SendHeartbeat)
        assert step.request.subscribed_topic_names
        delays.append(script.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF] == pytest.approx(delays)
    script.member.poll(script.now)


@pytest.mark.parametrize("answer", [{"epoch": -5, "target": {}}, {"epoch": 0}, {"epoch": 1}])
def test_an_answer_after_which_the_member_still_joins_is_followed_by_a_back_off(script, answer):
    """An answer without an epoch or without an assignment does not make the next one urgent."""
    step = script.start_joining()
    before = script.now
    script.answer(step, **answer)
    assert _S.JOINING is script.member.state
    script.sleep_until(SendHeartbeat)
    assert pytest.approx(BACKOFF) == script.now - before


@pytest.mark.parametrize("code", [_E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR])
def test_another_coordinator_gets_the_heartbeat_at_once(stable, code):
    """The second time in a row both the search and the heartbeat wait."""
    stable.fence(code)
    assert stable.member.coordinator is None
    stable.find()
    step = stable.expect(SendHeartbeat)
    assert step.request.subscribed_topic_names
    stable.answer(step, code=code)
    before = stable.now
    step = stable.sleep_until(FindCoordinator)
    assert before + BACKOFF == pytest.approx(stable.now)
    stable.member.coordinator_found(step, COORDINATOR, stable.now)
    stable.sleep_until(SendHeartbeat)
    assert before + 2 * BACKOFF == pytest.approx(stable.now)
    assert _S.STABLE is stable.member.state


def test_missing_rights_on_topics_are_raised_and_retried(stable):
    """The member keeps its partitions, and goes on if the rights are granted in time."""
    stable.fence(_E.TOPIC_AUTHORIZATION_FAILED)
    assert (_S.STABLE, orders(0)) == (stable.member.state, stable.assigned)
    with pytest.raises(BrokerError, match="Grant this user DESCRIBE"):
        stable.member.poll(stable.now)
    stable.member.poll(stable.now)
    stable.answer(stable.sleep_until(SendHeartbeat))
    assert _S.STABLE is stable.member.state


@pytest.mark.parametrize("code", [*FATAL, _E.GROUP_ID_NOT_FOUND, _E.UNKNOWN_SERVER_ERROR, 999])
def test_a_fatal_error_ends_the_membership(stable, code):
    """All partitions are lost, `poll` raises once, and nothing is sent any more."""
    stable.subscriptions.seek(orders(0)[0], 7)
    stable.fence(code)
    assert _S.FATAL is stable.member.state
    assert stable.member.member_epoch is None
    assert not stable.subscriptions.is_fetchable(orders(0)[0])
    with pytest.raises(BrokerError, match="CONSUMER_GROUP_HEARTBEAT of group 'shop': ") as raised:
        stable.member.poll(stable.now)
    assert code == raised.value.code
    assert HEARTBEAT_ADVICE.get(code, "") in str(raised.value)
    stable.member.poll(stable.now)
    assert orders(0) == stable.lose().partitions
    assert () == stable.assigned
    stable.subscribe("invoices")
    stable.member.poll(stable.now)
    assert Wait(inf) == stable.step()


def test_a_member_may_fail_while_it_joins(script):
    """There are no partitions to lose."""
    script.answer(script.start_joining(), code=_E.GROUP_MAX_SIZE_REACHED)
    assert Wait(inf) == script.step()
    with pytest.raises(BrokerError, match="Start fewer consumers"):
        script.member.poll(script.now)


def test_an_error_names_the_instance_and_what_the_broker_says():
    """Both help to find the other member."""
    script = MemberScript(group_instance_id="till")
    step = script.start_joining()
    answer = response(error_code=_E.UNRELEASED_INSTANCE_ID, error_message="till is in use")
    script.member.heartbeat_answered(step, answer, script.now)
    expected = r"group.instance.id 'till'.*The broker says 'till is in use'. Close the other"
    with pytest.raises(BrokerError, match=expected):
        script.member.poll(script.now)


def test_an_unknown_error_says_what_the_broker_says(stable):
    """There is no advice for it."""
    stable.answer(stable.sleep_until(SendHeartbeat), code=999, error_message="no disk")
    with pytest.raises(BrokerError, match=r"The broker says 'no disk'$"):
        stable.member.poll(stable.now)


@pytest.mark.parametrize("has_pattern", [True, False])
def test_an_old_broker_is_named_as_such(script, has_pattern):
    """What to do depends on whether the subscription is a pattern that the broker evaluates."""
    if has_pattern:
        script.subscriptions.unsubscribe()
        script.subscriptions.subscribe_broker_pattern("ord.*")
    step = script.start_joining()
    assert ("ord.*" if has_pattern else None) == step.request.subscribed_topic_regex
    script.answer(step, code=_E.UNSUPPORTED_VERSION)
    expected = "compiled pattern of Python" if has_pattern else "Set group.protocol=classic"
    with pytest.raises(BrokerError, match=expected):
        script.member.poll(script.now)


def test_an_assignment_is_numbered_from_0_on():
    """No assignment differs from an empty one."""
    assert LocalAssignment().is_none
    assert not LocalAssignment(0, {}).is_none
    assert LocalAssignment() != LocalAssignment(0, {})


def test_callbacks_precede_heartbeats(script):
    """Within `poll` the user is called first."""
    script.become_stable()
    script.receive({ORDERS: (0,)})
    script.now += INTERVAL
    script.expect(Assign)
    script.expect(SendHeartbeat)
