"""How a member leaves its group: unsubscribe, close, and a `poll` that comes too late."""

from __future__ import annotations

from math import inf

import pytest

from spark_kafka_sink.consumer.group.group_member import (
    Assign,
    CommitBeforeRevocation,
    Lose,
    MemberState,
    Revoke,
    SendHeartbeat,
)
from spark_kafka_sink.consumer.group.group_requests import (
    FindCoordinator,
    LeaveOperation,
    Wait,
)
from spark_kafka_sink.consumer.subscription.subscription import SubscriptionType
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.member_script import (
    BACKOFF,
    INTERVAL,
    ORDERS,
    POLL_INTERVAL,
    MemberScript,
    orders,
)

_S, _E, _L = MemberState, ErrorCode, LeaveOperation
ERROR = ValueError("the callback raised")


@pytest.fixture
def script() -> MemberScript:
    return MemberScript()


@pytest.fixture
def stable(script) -> MemberScript:
    script.become_stable(0)
    return script


def subscription_type(script: MemberScript) -> SubscriptionType:
    return script.subscriptions.subscription.type


# Leaving


def test_a_member_revokes_its_partitions_and_then_leaves(stable):
    """The heartbeats go on until the callback has ended, and the last one does not wait."""
    stable.subscriptions.seek(orders(0)[0], 7)
    stable.member.leave()
    assert _S.PREPARE_LEAVING is stable.member.state
    assert not stable.subscriptions.is_fetchable(orders(0)[0])
    step = stable.expect(Revoke)
    assert orders(0) == step.partitions
    assert orders(0) == stable.assigned
    heartbeat = stable.sleep_until(SendHeartbeat)
    assert 1 == heartbeat.request.member_epoch
    stable.member.callback_done(step)
    assert (_S.LEAVING, ()) == (stable.member.state, stable.assigned)
    assert SubscriptionType.NONE is subscription_type(stable)
    last = stable.expect(SendHeartbeat)
    assert (-1, ()) == (last.request.member_epoch, last.request.topic_partitions)
    assert _S.UNSUBSCRIBED is stable.member.state
    assert stable.member.member_epoch is None
    assert stable.member.is_leaving
    stable.answer(last, epoch=-1)
    assert not stable.member.is_leaving
    assert Wait(inf) == stable.step()


def test_a_member_leaves_even_if_its_callback_raised(stable):
    """Its partitions are given up in any case."""
    stable.member.leave()
    stable.member.callback_done(stable.expect(Revoke), ERROR)
    assert -1 == stable.expect(SendHeartbeat).request.member_epoch
    assert () == stable.assigned


@pytest.mark.parametrize("has_listener", [True, False])
def test_a_member_without_callbacks_leaves_at_once(has_listener):
    """Without partitions or without a listener there is nothing to wait for."""
    script = MemberScript(has_listener=has_listener)
    script.become_stable(*(() if has_listener else (0,)))
    script.member.leave()
    assert (_S.LEAVING, ()) == (script.member.state, script.assigned)
    assert -1 == script.expect(SendHeartbeat, may_call_back=False).request.member_epoch


def test_a_close_may_leave_without_callbacks(stable):
    """The caller has no time for them, or has called them itself."""
    stable.member.leave(runs_callbacks=False)
    assert (_S.LEAVING, ()) == (stable.member.state, stable.assigned)
    assert -1 == stable.expect(SendHeartbeat).request.member_epoch


def test_a_close_ends_the_wait_for_callbacks(stable):
    """A callback that runs too long does not keep the member in the group."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.member.leave(runs_callbacks=False)
    assert -1 == stable.expect(SendHeartbeat).request.member_epoch
    stable.member.callback_done(step)
    assert _S.UNSUBSCRIBED is stable.member.state


def test_leaving_twice_leaves_once(stable):
    """Each callback and the last heartbeat are returned once."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.member.leave()
    assert isinstance(stable.step(), Wait)
    stable.member.callback_done(step)
    stable.member.leave()
    last = stable.expect(SendHeartbeat)
    stable.member.leave()
    assert isinstance(stable.step(), Wait)
    assert stable.member.is_leaving
    stable.answer(last, epoch=-1)
    stable.member.leave()
    assert not stable.member.is_leaving
    assert isinstance(stable.step(), Wait)


def test_leaving_without_a_membership_ends_the_subscription(script):
    """There is nothing to leave."""
    script.member.leave()
    assert (_S.UNSUBSCRIBED, False) == (script.member.state, script.member.is_leaving)
    assert SubscriptionType.NONE is subscription_type(script)
    script.member.poll(script.now)
    assert _S.UNSUBSCRIBED is script.member.state


def test_a_joining_member_leaves(script):
    """The last heartbeat does not wait for the answer to the one that joins."""
    joining = script.start_joining()
    script.member.leave()
    last = script.expect(SendHeartbeat)
    assert -1 == last.request.member_epoch
    script.answer(joining, epoch=1, target={ORDERS: (0,)})
    assert _S.UNSUBSCRIBED is script.member.state
    assert script.member.is_leaving
    script.answer(last, epoch=-1)
    assert not script.member.is_leaving


@pytest.mark.parametrize("is_committing", [True, False])
def test_leaving_ends_a_reconciliation(is_committing):
    """What is not assigned yet is discarded, and all that is owned is revoked."""
    script = MemberScript(is_auto_commit=is_committing)
    script.join({ORDERS: (0,)})
    if is_committing:
        script.member.commit_done(script.expect(CommitBeforeRevocation))
    script.assign()
    script.acknowledge()
    script.receive({ORDERS: (0, 1)})
    if is_committing:
        commit = script.expect(CommitBeforeRevocation)
        script.member.leave()
        script.member.commit_done(commit)
    else:
        assert isinstance(script.step(may_call_back=False), Wait)
        script.member.leave()
    assert orders(0) == script.revoke().partitions
    assert -1 == script.expect(SendHeartbeat).request.member_epoch


def test_leaving_within_a_callback_waits_for_its_end(script):
    """New partitions are revoked after the callback that has assigned them."""
    script.become_stable(0)
    script.receive({ORDERS: (0, 1)})
    step = script.expect(Assign)
    script.member.leave()
    assert isinstance(script.step(), Wait)
    script.member.callback_done(step)
    assert orders(0, 1) == script.revoke().partitions
    script.expect(SendHeartbeat)


def test_a_new_assignment_is_ignored_while_a_member_leaves(stable):
    """Only its epoch is of use."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.receive({ORDERS: (0, 1)})
    assert _S.PREPARE_LEAVING is stable.member.state
    assert 2 == stable.member.member_epoch
    stable.member.callback_done(step)
    stable.expect(SendHeartbeat)


@pytest.mark.parametrize("code", [_E.NOT_COORDINATOR, _E.UNKNOWN_MEMBER_ID, None])
def test_the_last_heartbeat_is_not_repeated(stable, code):
    """Whatever the answer is, the member has left."""
    stable.member.leave()
    stable.revoke()
    last = stable.expect(SendHeartbeat)
    if code is None:
        stable.member.heartbeat_failed(last, stable.now)
    else:
        stable.answer(last, code=code)
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)
    assert Wait(inf) == stable.step()
    stable.member.poll(stable.now)


def test_a_group_that_is_gone_needs_no_leaving(stable):
    """GROUP_ID_NOT_FOUND is an error only for a member of the group."""
    stable.member.leave()
    stable.revoke()
    stable.answer(stable.expect(SendHeartbeat), code=_E.GROUP_ID_NOT_FOUND)
    stable.member.poll(stable.now)
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)


def test_without_a_coordinator_nothing_is_sent(stable):
    """The session ends without the member."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.member.coordinator_lost(stable.now)
    stable.member.callback_done(step)
    assert stable.member.is_leaving
    assert Wait(inf) == stable.step()
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)


def test_the_coordinator_is_searched_while_callbacks_run(stable):
    """The heartbeats go on until the member leaves."""
    stable.member.leave()
    stable.expect(Revoke)
    stable.member.coordinator_lost(stable.now)
    stable.expect(FindCoordinator)


EPOCHS = [
    (None, _L.DEFAULT, -1),
    (None, _L.LEAVE_GROUP, -1),
    ("till", _L.DEFAULT, -2),
    ("till", _L.LEAVE_GROUP, -1),
    ("till", _L.REMAIN_IN_GROUP, -2),
]


@pytest.mark.parametrize(("instance", "operation", "epoch"), EPOCHS)
def test_the_last_epoch_says_whether_the_member_will_return(instance, operation, epoch):
    """A static member may return within its session, unless it leaves for good."""
    script = MemberScript(group_instance_id=instance)
    script.become_stable()
    script.member.leave(operation)
    request = script.expect(SendHeartbeat).request
    assert (epoch, instance) == (request.member_epoch, request.instance_id)


def test_a_dynamic_member_that_remains_in_the_group_sends_nothing(stable):
    """An answer to an earlier heartbeat does not concern the member that has left."""
    before = stable.sleep_until(SendHeartbeat)
    stable.member.leave(_L.REMAIN_IN_GROUP)
    stable.revoke()
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)
    assert Wait(inf) == stable.step()
    stable.subscribe()
    stable.member.poll(stable.now)
    stable.answer(before, epoch=5)
    assert 0 == stable.expect(SendHeartbeat).request.member_epoch


# Joining again


def test_a_member_that_has_left_joins_again_with_a_new_subscription(stable):
    """The heartbeat that joins follows the one that leaves, once that has an answer."""
    stable.member.leave()
    stable.revoke()
    last = stable.expect(SendHeartbeat)
    stable.subscribe("invoices")
    assert _S.UNSUBSCRIBED is stable.member.state
    stable.member.poll(stable.now)
    assert _S.JOINING is stable.member.state
    assert isinstance(stable.step(), Wait)
    stable.answer(last, epoch=-1)
    request = stable.expect(SendHeartbeat).request
    assert (0, ("invoices",)) == (request.member_epoch, request.subscribed_topic_names)


@pytest.mark.parametrize("code", [_E.UNKNOWN_MEMBER_ID, _E.GROUP_ID_NOT_FOUND])
def test_a_refused_leaving_does_not_concern_the_next_membership(stable, code):
    """A group that has forgotten the member has nothing against it."""
    stable.member.leave()
    stable.revoke()
    last = stable.expect(SendHeartbeat)
    stable.subscribe()
    stable.member.poll(stable.now)
    stable.answer(last, code=code)
    assert _S.JOINING is stable.member.state
    stable.now += BACKOFF
    stable.expect(SendHeartbeat)


def test_a_subscription_that_is_made_while_callbacks_run_is_kept(stable):
    """The end of the old one does not end it."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.subscribe("invoices")
    stable.member.poll(stable.now)
    assert _S.PREPARE_LEAVING is stable.member.state
    stable.member.callback_done(step)
    assert frozenset({"invoices"}) == stable.subscriptions.subscription.topics
    assert () == stable.assigned
    stable.answer(stable.expect(SendHeartbeat), epoch=-1)
    stable.member.poll(stable.now)
    assert 0 == stable.expect(SendHeartbeat).request.member_epoch


def test_a_subscription_joins_within_poll(script):
    """A new subscription alone sends nothing; in the group it goes with the next heartbeat."""
    assert Wait(inf) == script.step()
    script.member.poll(script.now)
    assert _S.JOINING is script.member.state
    script.find()
    script.answer(script.expect(SendHeartbeat), epoch=1, target={})
    script.assign()
    script.acknowledge()
    script.subscribe("invoices")
    script.member.poll(script.now)
    assert _S.STABLE is script.member.state
    step = script.sleep_until(SendHeartbeat)
    assert ("invoices",) == step.request.subscribed_topic_names
    script.answer(step)
    script.member.leave()
    script.member.poll(script.now)
    script.expect(SendHeartbeat)
    script.member.poll(script.now)
    assert _S.UNSUBSCRIBED is script.member.state


# Fenced and failed members that leave


@pytest.mark.parametrize("is_running", [True, False])
def test_a_member_that_is_fenced_while_it_leaves_joins_no_more(stable, is_running):
    """Its partitions are lost, unless they are being revoked already."""
    stable.member.leave()
    step = stable.expect(Revoke) if is_running else None
    stable.fence(_E.FENCED_MEMBER_EPOCH)
    assert _S.UNSUBSCRIBED is stable.member.state
    assert stable.member.is_leaving
    if step is None:
        stable.lose()
    else:
        assert Wait(inf) == stable.step()
        stable.member.callback_done(step)
    assert SubscriptionType.NONE is subscription_type(stable)
    assert not stable.member.is_leaving
    assert Wait(inf) == stable.step()


def test_a_dynamic_member_that_remains_may_be_fenced(stable):
    """There is nothing to send in this case either."""
    stable.member.leave(_L.REMAIN_IN_GROUP)
    stable.fence(_E.UNKNOWN_MEMBER_ID)
    stable.lose()
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)


def test_a_member_that_leaves_and_subscribes_again_waits_for_its_callbacks(stable):
    """It was fenced, and does not join before its partitions are released."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.fence(_E.FENCED_MEMBER_EPOCH)
    stable.subscribe("invoices")
    stable.member.poll(stable.now)
    assert _S.UNSUBSCRIBED is stable.member.state
    stable.member.callback_done(step)
    stable.member.poll(stable.now)
    assert _S.JOINING is stable.member.state
    assert frozenset({"invoices"}) == stable.subscriptions.subscription.topics


@pytest.mark.parametrize("is_running", [True, False])
def test_a_fenced_member_that_leaves_loses_its_partitions_once(stable, is_running):
    """The user is told of the loss, and the member does not join."""
    stable.fence(_E.FENCED_MEMBER_EPOCH)
    step = stable.expect(Lose) if is_running else None
    stable.member.leave()
    assert (_S.UNSUBSCRIBED, True) == (stable.member.state, stable.member.is_leaving)
    if step is None:
        stable.lose()
    else:
        stable.member.callback_done(step)
    assert (_S.UNSUBSCRIBED, False) == (stable.member.state, stable.member.is_leaving)
    assert SubscriptionType.NONE is subscription_type(stable)
    assert Wait(inf) == stable.step()


def test_a_fenced_member_may_leave_without_callbacks(stable):
    """A close drops what was not called yet."""
    stable.fence(_E.FENCED_MEMBER_EPOCH)
    stable.member.leave(runs_callbacks=False)
    assert () == stable.assigned
    assert Wait(inf) == stable.step()


@pytest.mark.parametrize("is_running", [True, False])
def test_a_member_that_fails_while_it_leaves_stays_failed(stable, is_running):
    """Nothing is sent; the callback ends the subscription, and `poll` raises the error."""
    stable.member.leave()
    step = stable.expect(Revoke) if is_running else None
    stable.fence(_E.INVALID_REQUEST)
    assert _S.FATAL is stable.member.state
    if step is None:
        stable.lose()
    else:
        stable.member.callback_done(step)
    assert (_S.FATAL, False) == (stable.member.state, stable.member.is_leaving)
    assert SubscriptionType.NONE is subscription_type(stable)
    assert Wait(inf) == stable.step()
    with pytest.raises(BrokerError):
        stable.member.poll(stable.now)


def test_a_failed_member_can_be_closed(stable):
    """There is nothing to send, and the partitions are lost once."""
    stable.fence(_E.INVALID_REQUEST)
    stable.member.leave()
    assert stable.member.is_leaving
    assert orders(0) == stable.lose().partitions
    stable.member.leave()
    assert (_S.FATAL, False) == (stable.member.state, stable.member.is_leaving)
    assert Wait(inf) == stable.step()


def test_a_fatal_answer_to_the_last_heartbeat_is_raised(stable):
    """The member has left, but cannot join again."""
    stable.member.leave()
    stable.revoke()
    stable.answer(stable.expect(SendHeartbeat), code=_E.GROUP_AUTHORIZATION_FAILED)
    assert (_S.FATAL, False) == (stable.member.state, stable.member.is_leaving)
    with pytest.raises(BrokerError, match="Grant this user READ on the group"):
        stable.member.poll(stable.now)


# A poll that comes too late


def miss_poll(script: MemberScript) -> SendHeartbeat:
    """Return the heartbeat with which a member leaves, as the user does not call `poll`."""
    while script.now < POLL_INTERVAL:
        step = script.sleep_until(SendHeartbeat, may_call_back=False)
        if script.now < POLL_INTERVAL:
            script.answer(step)
    return step


def test_a_member_whose_poll_is_late_leaves_and_loses_its_partitions(stable):
    """Others are waiting for its partitions; it joins again with the next `poll`."""
    stable.subscriptions.seek(orders(0)[0], 7)
    step = miss_poll(stable)
    assert (POLL_INTERVAL, -1) == (stable.now, step.request.member_epoch)
    assert _S.STALE is stable.member.state
    assert not stable.member.is_leaving
    assert not stable.subscriptions.is_fetchable(orders(0)[0])
    assert Wait(inf) == stable.step(may_call_back=False)
    stable.now += 10
    stable.member.poll(stable.now)
    assert _S.STALE is stable.member.state
    assert orders(0) == stable.lose().partitions
    assert _S.JOINING is stable.member.state
    request = stable.expect(SendHeartbeat).request
    assert (0, ("orders", "payments")) == (request.member_epoch, request.subscribed_topic_names)
    stable.answer(step, epoch=-1)
    assert isinstance(stable.step(), Wait)
    assert stable.now + POLL_INTERVAL == stable.step().until


def test_a_stale_member_stays_out_of_the_group_until_poll():
    """Without a listener its partitions are released at once."""
    script = MemberScript(has_listener=False)
    script.become_stable(0)
    miss_poll(script)
    assert (_S.STALE, ()) == (script.member.state, script.assigned)
    assert Wait(inf) == script.step()
    script.member.poll(script.now)
    assert _S.JOINING is script.member.state


def test_a_member_that_was_stale_leaves_like_any_other(stable):
    """Its next leaving waits for an answer, and it does not join again."""
    miss_poll(stable)
    stable.member.poll(stable.now)
    stable.lose()
    stable.answer(stable.expect(SendHeartbeat), epoch=2, target={})
    stable.member.leave()
    last = stable.expect(SendHeartbeat)
    assert (_S.UNSUBSCRIBED, True) == (stable.member.state, stable.member.is_leaving)
    stable.answer(last, epoch=-1)
    assert not stable.member.is_leaving


def test_a_stale_member_joins_even_if_its_callback_raised(stable):
    """The partitions are lost whatever the user says."""
    miss_poll(stable)
    stable.member.poll(stable.now)
    stable.member.callback_done(stable.expect(Lose), ERROR)
    assert (_S.JOINING, ()) == (stable.member.state, stable.assigned)


def test_a_stale_static_member_may_return():
    """Its partitions are kept for it until its session ends."""
    script = MemberScript(group_instance_id="till", has_listener=False)
    script.become_stable(0)
    assert -2 == miss_poll(script).request.member_epoch


def test_a_stale_member_that_unsubscribes_does_not_join(stable):
    """It has left already, and joins with its next subscription."""
    miss_poll(stable)
    stable.member.poll(stable.now)
    stable.member.leave()
    assert stable.member.is_leaving
    stable.member.poll(stable.now)
    stable.lose()
    assert not stable.member.is_leaving
    assert _S.STALE is stable.member.state
    stable.member.poll(stable.now)
    assert Wait(inf) == stable.step()
    stable.subscribe()
    stable.member.poll(stable.now)
    assert _S.JOINING is stable.member.state


def test_a_late_poll_ends_a_reconciliation(script):
    """A callback that takes too long costs the membership."""
    script.become_stable(0)
    script.receive({ORDERS: (1,)})
    step = script.expect(Revoke)
    miss_poll(script)
    assert _S.STALE is script.member.state
    script.member.callback_done(step)
    script.member.poll(script.now)
    assert (_S.JOINING, ()) == (script.member.state, script.assigned)


@pytest.mark.parametrize("state", [_S.JOINING, _S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE])
def test_a_late_poll_ends_each_membership(script, state):
    """Whatever the member does, it leaves."""
    script.start_joining()
    if state is not _S.JOINING:
        script = MemberScript()
        script.become_stable()
        if state is not _S.STABLE:
            script.receive({ORDERS: (0,)})
        if state is _S.ACKNOWLEDGING:
            script.assign()
    assert state is script.member.state
    script.now = POLL_INTERVAL
    assert -1 == script.expect(SendHeartbeat, may_call_back=False).request.member_epoch
    assert _S.STALE is script.member.state


def test_a_late_poll_changes_nothing_while_a_member_leaves(stable):
    """It leaves anyway, once its callback has ended."""
    stable.member.leave()
    step = stable.expect(Revoke)
    stable.now = POLL_INTERVAL + INTERVAL
    assert 1 == stable.expect(SendHeartbeat).request.member_epoch
    stable.member.callback_done(step)
    stable.expect(SendHeartbeat)
    assert _S.UNSUBSCRIBED is stable.member.state


def test_a_poll_in_time_extends_the_membership(stable):
    """The time starts again with each call."""
    stable.now = POLL_INTERVAL - 1
    stable.member.poll(stable.now)
    stable.now = POLL_INTERVAL + 1
    assert 1 == stable.expect(SendHeartbeat).request.member_epoch
    assert _S.STABLE is stable.member.state
