"""How a member applies its target assignment: commit, revoke, assign, acknowledge."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.group.group_member import (
    TRANSITIONS,
    Assign,
    CommitBeforeRevocation,
    Lose,
    MemberState,
    RefreshMetadata,
    Revoke,
    SendHeartbeat,
)
from spark_kafka_sink.consumer.group.group_requests import Wait
from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.consumer.member_script import (
    BACKOFF,
    NAMES,
    ORDERS,
    PAYMENTS,
    POLL_INTERVAL,
    UNKNOWN,
    MemberScript,
    orders,
)

_S, _E = MemberState, ErrorCode
ERROR = ValueError("the callback raised")


@pytest.fixture
def script() -> MemberScript:
    return MemberScript()


def owned(step: SendHeartbeat) -> dict[object, tuple[int, ...]]:
    """Return the partitions that a heartbeat acknowledges."""
    assert step.request.topic_partitions is not None
    return {each.topic_id: each.partitions for each in step.request.topic_partitions}


@pytest.mark.parametrize("source", _S, ids=lambda state: state.name)
@pytest.mark.parametrize("target", _S, ids=lambda state: state.name)
def test_only_transitions_of_the_table_are_possible(script, source, target):
    """A transition that is not in the table raises and changes nothing."""
    member = script.member._member
    member.state = source
    if target in TRANSITIONS[source]:
        member._transition(target)
        assert target is member.state
    else:
        with pytest.raises(IllegalStateError, match=f"'shop' from {source.name} to {target.name}"):
            member._transition(target)
        assert source is member.state


# Assignments


def test_the_first_assignment_is_assigned_and_acknowledged(script):
    """Partitions are assigned when the callback is returned, and fetched when it has ended."""
    script.join({ORDERS: (1, 0), PAYMENTS: (5,)})
    assert _S.RECONCILING is script.member.state
    assert () == script.assigned
    step = script.expect(Assign)
    partitions = (*orders(0, 1), TopicPartition("payments", 5))
    assert (partitions, partitions) == (step.partitions, step.added)
    assert partitions == script.assigned
    script.subscriptions.seek(partitions[0], 7)
    assert not script.subscriptions.is_fetchable(partitions[0])
    assert _S.RECONCILING is script.member.state
    script.member.callback_done(step)
    assert script.subscriptions.is_fetchable(partitions[0])
    assert _S.ACKNOWLEDGING is script.member.state
    heartbeat = script.expect(SendHeartbeat)
    assert {ORDERS: (0, 1), PAYMENTS: (5,)} == owned(heartbeat)
    assert _S.STABLE is script.member.state
    assert {ORDERS, PAYMENTS} == script.subscriptions.subscription.assigned_topic_ids


def test_an_empty_first_assignment_is_called_back_and_acknowledged(script):
    """The user learns that there are no partitions, and the coordinator that they are none."""
    script.join({})
    step = script.assign()
    assert ((), ()) == (step.partitions, step.added)
    assert () == script.acknowledge().request.topic_partitions
    assert _S.STABLE is script.member.state


def test_new_partitions_are_added_to_owned_ones(script):
    """Only the new ones are called back; the others keep their positions."""
    script.become_stable(0)
    script.subscriptions.seek(orders(0)[0], 7)
    script.receive({ORDERS: (0, 1)})
    step = script.assign()
    assert (orders(0, 1), orders(1)) == (step.partitions, step.added)
    assert FetchPosition(7) == script.subscriptions.position(orders(0)[0])
    assert {ORDERS: (0, 1)} == owned(script.acknowledge())


def test_partitions_are_revoked_before_others_are_assigned(script):
    """A revoked partition is assigned, but not fetched, until its callback has ended."""
    script.become_stable(0, 1)
    script.subscriptions.seek(orders(0)[0], 7)
    script.receive({ORDERS: (1, 2)})
    step = script.expect(Revoke)
    assert orders(0) == step.partitions
    assert orders(0, 1) == script.assigned
    assert not script.subscriptions.is_fetchable(orders(0)[0])
    assert isinstance(script.step(), Wait)
    script.member.callback_done(step)
    assert orders(1) == script.assigned
    assert _S.RECONCILING is script.member.state
    step = script.assign()
    assert (orders(1, 2), orders(2)) == (step.partitions, step.added)
    assert {ORDERS: (1, 2)} == owned(script.acknowledge())
    assert _S.STABLE is script.member.state


def test_without_a_listener_only_the_assignment_is_returned():
    """Nobody has to be called before partitions are revoked."""
    script = MemberScript(has_listener=False)
    script.become_stable(0, 1)
    script.receive({ORDERS: (1,)})
    step = script.assign()
    assert (orders(1), ()) == (step.partitions, step.added)
    assert orders(1) == script.assigned


def test_only_the_users_thread_starts_a_revocation(script):
    """It might be returning records of the partitions to be revoked."""
    script.become_stable(0)
    script.subscriptions.seek(orders(0)[0], 7)
    script.receive({ORDERS: (1,)})
    assert isinstance(script.step(may_call_back=False), Wait)
    assert script.subscriptions.is_fetchable(orders(0)[0])
    script.expect(Revoke)


def test_no_callback_is_returned_outside_of_poll(script):
    """New partitions are assigned within `poll`, too."""
    script.join({ORDERS: (0,)})
    assert isinstance(script.step(may_call_back=False), Wait)
    assert () == script.assigned
    script.expect(Assign)


def test_the_same_assignment_is_not_reconciled_again(script):
    """A coordinator may repeat the assignment."""
    script.become_stable(0)
    script.receive({ORDERS: (0,)})
    assert _S.STABLE is script.member.state
    assert isinstance(script.step(), Wait)


def test_an_answer_without_an_assignment_changes_only_the_epoch(script):
    """None means that the assignment has not changed."""
    script.become_stable(0)
    script.answer(script.sleep_until(SendHeartbeat), epoch=4)
    assert (4, _S.STABLE) == (script.member.member_epoch, script.member.state)
    assert orders(0) == script.assigned


# Commits


@pytest.fixture
def committing() -> MemberScript:
    script = MemberScript(is_auto_commit=True)
    script.join({ORDERS: (0, 1)})
    script.member.commit_done(script.expect(CommitBeforeRevocation))
    script.assign()
    script.acknowledge()
    return script


def test_positions_are_committed_before_a_revocation(committing):
    """Fetching stops first, so that no position exceeds the committed one."""
    committing.subscriptions.seek(orders(0)[0], 7)
    committing.receive({ORDERS: (1,)})
    assert isinstance(committing.step(may_call_back=False), Wait)
    step = committing.expect(CommitBeforeRevocation)
    assert committing.now + POLL_INTERVAL == step.until
    assert not committing.subscriptions.is_fetchable(orders(0)[0])
    assert isinstance(committing.step(), Wait)
    committing.member.commit_done(step)
    assert orders(0) == committing.revoke().partitions
    committing.assign()


def test_positions_are_also_committed_before_new_partitions(committing):
    """As in Java, every reconciliation begins with a commit."""
    committing.receive({ORDERS: (0, 1, 2)})
    committing.member.commit_done(committing.expect(CommitBeforeRevocation))
    assert orders(2) == committing.assign().added


def test_a_commit_is_reported_once(committing):
    """A second report does not revoke a second time."""
    committing.receive({ORDERS: (1,)})
    commit = committing.expect(CommitBeforeRevocation)
    committing.member.commit_done(commit)
    step = committing.expect(Revoke)
    committing.member.commit_done(commit)
    assert isinstance(committing.step(), Wait)
    committing.member.callback_done(step)
    committing.expect(Assign)


# Topic ids


def test_an_assignment_waits_for_the_names_of_its_topics(script):
    """Receiving it is acknowledged; it is reconciled as soon as the metadata have the name."""
    script.become_stable()
    script.receive({UNKNOWN: (0,)})
    assert RefreshMetadata(frozenset({UNKNOWN})) == script.expect(RefreshMetadata)
    assert {} == owned(script.acknowledge())
    script.member.topic_names_changed({**NAMES, UNKNOWN: "orders"}, script.now)
    assert orders(0) == script.assign().added
    assert {UNKNOWN: (0,)} == owned(script.acknowledge())
    assert _S.STABLE is script.member.state


def test_known_topics_are_reconciled_before_unknown_ones(script):
    """The rest keeps waiting after the acknowledgment."""
    script.become_stable()
    script.receive({ORDERS: (0,), UNKNOWN: (1,)})
    assert orders(0) == script.assign().added
    script.expect(RefreshMetadata)
    assert {ORDERS: (0,)} == owned(script.acknowledge())
    assert _S.RECONCILING is script.member.state
    assert isinstance(script.step(), Wait)
    script.member.topic_names_changed({**NAMES, UNKNOWN: "payments"}, script.now)
    assert (TopicPartition("payments", 1),) == script.assign().added
    assert {ORDERS: (0,), UNKNOWN: (1,)} == owned(script.acknowledge())
    assert _S.STABLE is script.member.state


def test_metadata_are_requested_after_a_growing_back_off(script):
    """A topic without a name causes no busy loop; another topic is requested at once."""
    script.become_stable()
    script.receive({UNKNOWN: (0,)})
    delays = []
    script.expect(RefreshMetadata)
    script.acknowledge()
    for _ in range(3):
        assert not isinstance(script.step(), RefreshMetadata)
        before = script.now
        script.member.topic_names_changed(NAMES, script.now)
        script.sleep_until(RefreshMetadata)
        delays.append(script.now - before)
    assert [BACKOFF, 2 * BACKOFF, 4 * BACKOFF] == pytest.approx(delays)
    other = UUID(int=9)
    script.receive({UNKNOWN: (0,), other: (0,)})
    assert RefreshMetadata(frozenset({UNKNOWN, other})) == script.expect(RefreshMetadata)
    script.member.topic_names_changed(NAMES, script.now)
    assert isinstance(script.step(), SendHeartbeat)
    assert script.now + BACKOFF == pytest.approx(script.expect(Wait).until)


def test_unexpected_metadata_do_not_delay_a_request(script):
    """Only the outcome of a request starts a back-off."""
    script.become_stable()
    script.member.topic_names_changed(NAMES, script.now)
    script.receive({UNKNOWN: (0,)})
    script.expect(RefreshMetadata)


def test_names_of_owned_topics_are_kept(script):
    """A topic can be revoked in part even if the metadata no longer have it."""
    script.become_stable(0, 1)
    script.member.topic_names_changed({}, script.now)
    script.receive({ORDERS: (1,)})
    assert orders(0) == script.revoke().partitions
    assert orders(1) == script.assign().partitions


def test_names_of_topics_that_are_no_longer_owned_are_forgotten(script):
    """A topic of the same id may have been deleted meanwhile."""
    script.become_stable(0)
    script.receive({})
    script.revoke()
    script.assign()
    script.acknowledge()
    script.member.topic_names_changed({}, script.now)
    script.receive({ORDERS: (0,)})
    script.expect(RefreshMetadata)


@pytest.mark.parametrize("target", [{}, {PAYMENTS: (0,)}])
def test_a_new_target_replaces_one_that_waits_for_metadata(script, target):
    """What is no longer assigned is not waited for."""
    script.become_stable(0)
    script.receive({ORDERS: (0,), UNKNOWN: (0,)})
    script.expect(RefreshMetadata)
    script.acknowledge()
    script.receive({ORDERS: (0,), **target})
    if target:
        script.assign()
    assert {ORDERS: (0,), **target} == owned(script.acknowledge())
    assert _S.STABLE is script.member.state


def test_a_target_that_reverts_while_a_topic_is_unknown_is_acknowledged_once(script):
    """The coordinator waits for an acknowledgment of each target, though nothing changes."""
    script.become_stable(0, 1)
    script.receive({ORDERS: (0, 1), UNKNOWN: (0,)})
    script.expect(RefreshMetadata)
    script.acknowledge()
    script.receive({ORDERS: (0,), UNKNOWN: (0,)})
    script.receive({ORDERS: (0, 1), UNKNOWN: (0,)})
    assert {ORDERS: (0, 1)} == owned(script.acknowledge())
    assert _S.RECONCILING is script.member.state
    assert isinstance(script.step(), Wait)


# A target that changes meanwhile


def test_a_second_target_is_reconciled_after_the_first(script):
    """What has begun is completed and acknowledged, and then the next one begins."""
    script.become_stable(0)
    script.receive({ORDERS: (1,)})
    revocation = script.expect(Revoke)
    script.receive({ORDERS: (2,)})
    script.member.callback_done(revocation)
    assert orders(1) == script.assign().partitions
    assert {ORDERS: (1,)} == owned(script.acknowledge())
    assert _S.RECONCILING is script.member.state
    assert orders(1) == script.revoke().partitions
    assert orders(2) == script.assign().partitions
    assert {ORDERS: (2,)} == owned(script.acknowledge())
    assert _S.STABLE is script.member.state


def test_a_target_that_arrives_with_an_acknowledgment_is_reconciled(script):
    """The answer to the acknowledgment may have the next target."""
    script.become_stable(0)
    script.receive({ORDERS: (0, 1)})
    script.assign()
    script.answer(script.expect(SendHeartbeat), epoch=3, target={ORDERS: (0,)})
    assert orders(1) == script.revoke().partitions


# Callbacks that raise


def test_a_revocation_that_raised_is_called_again_after_the_next_poll(script):
    """Nothing is acknowledged, and the partition is neither fetched nor removed."""
    script.become_stable(0)
    script.receive({ORDERS: (1,)})
    script.member.callback_done(script.expect(Revoke), ERROR)
    assert _S.RECONCILING is script.member.state
    assert orders(0) == script.assigned
    assert isinstance(script.step(), Wait)
    script.member.poll(script.now)
    assert orders(0) == script.revoke().partitions
    script.assign()
    assert _S.ACKNOWLEDGING is script.member.state


def test_an_assignment_that_raised_is_called_again_after_the_next_poll(script):
    """By then the partitions are no longer new, as in Java."""
    script.join({ORDERS: (0,)})
    step = script.expect(Assign)
    script.subscriptions.seek(orders(0)[0], 7)
    script.member.callback_done(step, ERROR)
    assert not script.subscriptions.is_fetchable(orders(0)[0])
    assert isinstance(script.step(), Wait)
    script.member.poll(script.now)
    step = script.assign()
    assert (orders(0), ()) == (step.partitions, step.added)
    assert script.subscriptions.is_fetchable(orders(0)[0])


def test_a_partition_whose_revocation_raised_may_be_assigned_again(script):
    """It starts as a new one, and is fetched."""
    script.become_stable(0, 1)
    script.receive({ORDERS: (1,)})
    script.member.callback_done(script.expect(Revoke), ERROR)
    script.receive({ORDERS: (0, 1)})
    script.member.poll(script.now)
    assert isinstance(script.step(may_call_back=False), Wait)
    step = script.assign()
    assert (orders(0, 1), orders(0)) == (step.partitions, step.added)
    script.subscriptions.seek(orders(0)[0], 7)
    assert script.subscriptions.is_fetchable(orders(0)[0])
    assert {ORDERS: (0, 1)} == owned(script.acknowledge())


def test_partitions_whose_assignment_raised_may_be_taken_away(script):
    """They are revoked, although the coordinator never knew of them."""
    script.become_stable(0)
    script.receive({ORDERS: (0, 1)})
    script.member.callback_done(script.expect(Assign), ERROR)
    script.receive({ORDERS: (0,)})
    script.member.poll(script.now)
    assert orders(1) == script.revoke().partitions
    script.assign()
    assert orders(0) == script.assigned


def test_a_callback_is_reported_once(script):
    """A second report changes nothing."""
    script.become_stable(0)
    script.receive({ORDERS: (1,)})
    step = script.revoke()
    script.member.callback_done(step)
    assignment = script.expect(Assign)
    script.member.callback_done(step)
    assert _S.RECONCILING is script.member.state
    script.member.callback_done(assignment)
    assert _S.ACKNOWLEDGING is script.member.state


# Members that are fenced meanwhile


FENCED = pytest.mark.parametrize("code", [_E.UNKNOWN_MEMBER_ID, _E.FENCED_MEMBER_EPOCH])


@FENCED
def test_a_fenced_member_loses_its_partitions_and_joins_again(script, code):
    """Fetching stops at once; heartbeats stop until the callback has ended."""
    script.become_stable(0)
    script.subscriptions.seek(orders(0)[0], 7)
    script.fence(code)
    assert _S.FENCED is script.member.state
    assert script.member.member_epoch is None
    assert not script.subscriptions.is_fetchable(orders(0)[0])
    assert isinstance(script.step(may_call_back=False), Wait)
    assert orders(0) == script.lose().partitions
    assert () == script.assigned
    assert _S.JOINING is script.member.state
    step = script.expect(SendHeartbeat)
    assert (0, ()) == (step.request.member_epoch, step.request.topic_partitions)


def test_a_fenced_member_joins_again_even_if_its_callback_raised(script):
    """The partitions are lost whatever the user says."""
    script.become_stable(0)
    script.fence(_E.FENCED_MEMBER_EPOCH)
    script.member.callback_done(script.expect(Lose), ERROR)
    assert (_S.JOINING, ()) == (script.member.state, script.assigned)


@pytest.mark.parametrize("has_listener", [True, False])
def test_a_fenced_member_without_callbacks_joins_at_once(has_listener):
    """Without partitions or without a listener there is nothing to wait for."""
    script = MemberScript(has_listener=has_listener)
    script.become_stable(*(() if has_listener else (0,)))
    script.fence(_E.FENCED_MEMBER_EPOCH)
    assert (_S.JOINING, ()) == (script.member.state, script.assigned)
    script.expect(SendHeartbeat, may_call_back=False)


def test_the_same_assignment_is_reconciled_again_after_a_fence(script):
    """A member that joins again owns nothing."""
    script.become_stable(0)
    script.fence(_E.UNKNOWN_MEMBER_ID)
    script.lose()
    script.answer(script.expect(SendHeartbeat), epoch=7, target={ORDERS: (0,)})
    assert orders(0) == script.assign().added
    assert {ORDERS: (0,)} == owned(script.acknowledge())


def test_a_fence_during_a_revocation_waits_for_the_callback(script):
    """What was revoked is not lost as well, and the old target is not applied."""
    script.become_stable(0, 1)
    script.receive({ORDERS: (1, 2)})
    revocation = script.expect(Revoke)
    script.fence(_E.FENCED_MEMBER_EPOCH)
    assert isinstance(script.step(), Wait)
    script.member.callback_done(revocation)
    assert orders(1) == script.lose().partitions
    assert _S.JOINING is script.member.state


def test_a_fence_during_a_revocation_that_raises_loses_all_partitions(script):
    """The user has not released them."""
    script.become_stable(0, 1)
    script.receive({ORDERS: (1,)})
    revocation = script.expect(Revoke)
    script.fence(_E.FENCED_MEMBER_EPOCH)
    script.member.callback_done(revocation, ERROR)
    assert orders(0, 1) == script.lose().partitions


def test_a_fence_during_an_assignment_loses_the_new_partitions_too(script):
    """They are lost after the callback that has assigned them, and never acknowledged."""
    script.become_stable(0)
    script.receive({ORDERS: (0, 1)})
    assignment = script.expect(Assign)
    script.fence(_E.FENCED_MEMBER_EPOCH)
    script.member.callback_done(assignment)
    assert orders(0, 1) == script.lose().partitions
    assert (_S.JOINING, ()) == (script.member.state, script.assigned)


def test_a_fence_before_an_assignment_discards_it(script):
    """An assignment that was not returned yet is never applied."""
    script.become_stable(0)
    script.receive({ORDERS: (0, 1)})
    assert isinstance(script.step(may_call_back=False), Wait)
    script.fence(_E.FENCED_MEMBER_EPOCH)
    assert orders(0) == script.lose().partitions
    script.expect(SendHeartbeat)


def test_a_fence_during_a_commit_ends_the_reconciliation(committing):
    """The end of the commit revokes nothing, also not for the target after that."""
    committing.receive({ORDERS: (1,)})
    commit = committing.expect(CommitBeforeRevocation)
    committing.fence(_E.UNKNOWN_MEMBER_ID)
    assert orders(0, 1) == committing.lose().partitions
    committing.answer(committing.expect(SendHeartbeat), epoch=9, target={ORDERS: (5,)})
    committing.member.commit_done(commit)
    assert _S.RECONCILING is committing.member.state
    committing.member.commit_done(committing.expect(CommitBeforeRevocation))
    assert orders(5) == committing.assign().added


def test_a_fatal_error_during_a_commit_loses_the_partitions(committing):
    """There is no revocation after it."""
    committing.receive({ORDERS: (1,)})
    commit = committing.expect(CommitBeforeRevocation)
    committing.fence(_E.FENCED_INSTANCE_ID)
    committing.member.commit_done(commit)
    assert orders(0, 1) == committing.lose().partitions
    assert (_S.FATAL, ()) == (committing.member.state, committing.assigned)
    assert isinstance(committing.step(), Wait)
