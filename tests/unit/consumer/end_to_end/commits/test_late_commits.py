"""Commits that were called by a member, and are sent when it is a member no longer."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from spark_kafka_sink.consumer.consumer_context import finish
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import CommitFailedError
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.testing import ApiKey
from tests.support.consumer.embedded_consuming import PATIENCE, consuming, take, tp
from tests.support.consumer.reading import fill, numbered

BY_HAND = {"group.id": "g", "enable.auto.commit": False}
PROTOCOLS = ["classic", "consumer"]


@pytest.fixture
def broker():
    """Return a broker with topics of one partition each; `t` has ten records."""
    with DevBroker(topics={"t": 1, "u": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


@pytest.fixture(params=PROTOCOLS)
def member(broker, request):
    """Return a member of the group that has read four records."""
    settings = {**BY_HAND, "group.protocol": request.param}
    with consuming(broker, max_poll_records=4, **settings) as consumer:
        consumer.subscribe("t")
        take(consumer, 4)
        yield consumer


def committed(consumer):
    """Return the offset that the group has committed."""
    found = consumer.committed([tp()])[tp()]
    return None if found is None else found.offset


def send_late(consumer, prepared):
    """Commit what was prepared before, as after a search for the coordinator."""
    core = consumer._core
    commit = partial(core.offset_commits.commit, prepared, core.clock() + PATIENCE)
    finish(core.call(commit, PATIENCE, "commit"))


@pytest.mark.parametrize("is_of_user", [True, False])
def test_a_member_that_has_left_sends_no_commit(member, is_of_user):
    """The empty group would accept it from outside, although others may have read more since."""
    positions = {tp(): OffsetAndMetadata(4)}
    prepared = member._core.offset_commits.prepare(positions, is_of_user=is_of_user)
    member.unsubscribe()
    with pytest.raises(CommitFailedError, match="has left the group, or has joined it again"):
        send_late(member, prepared)
    assert committed(member) is None


@pytest.mark.parametrize("is_of_user", [True, False])
def test_a_member_that_has_left_sends_no_commit_from_an_assignment_by_hand(member, is_of_user):
    """Although it reads the same partition again, as one outside of the group."""
    positions = {tp(): OffsetAndMetadata(4)}
    prepared = member._core.offset_commits.prepare(positions, is_of_user=is_of_user)
    member.unsubscribe()
    member.assign([tp()])
    with pytest.raises(CommitFailedError, match="has left the group"):
        send_late(member, prepared)
    assert committed(member) is None


def test_a_member_that_has_lost_the_partition_sends_no_commit(member):
    """Another member may have read more since."""
    prepared = member._core.offset_commits.prepare({tp(): OffsetAndMetadata(4)})
    with member._context.lock:
        member._subscriptions.assign_from_subscribed(())
    with pytest.raises(CommitFailedError, match="has left the group"):
        send_late(member, prepared)
    assert committed(member) is None


def test_a_member_in_a_later_generation_sends_no_commit(broker, monkeypatch):
    """Another member of a classic group may have read more before this one joined again."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    with consuming(broker, group_protocol="classic", **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        core = consumer._core
        prepared = core.offset_commits.prepare({tp(): OffsetAndMetadata(4)})
        later = prepared.member._replace(generation_id=prepared.member.generation_id + 1)
        monkeypatch.setattr(core.coordinator, "committing_member", lambda: later)
        with pytest.raises(CommitFailedError, match="has left the group, or has joined it again"):
            send_late(consumer, prepared)
    assert 0 == hook.seen


def test_a_member_can_commit_what_it_does_not_read(member):
    """As in Java, the user may name any partition."""
    other = TopicPartition("u", 0)
    member.commit({other: 1})
    assert 1 == member.committed([other])[other].offset


def test_another_assignment_by_hand_does_not_revoke_a_commit(broker):
    """Nobody else is given the partitions of an assignment by hand."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        prepared = consumer._core.offset_commits.prepare({tp(): OffsetAndMetadata(4)})
        consumer.assign([TopicPartition("u", 0)])
        send_late(consumer, prepared)
        assert 4 == committed(consumer)


@pytest.mark.parametrize("leave", ["unsubscribe", "close"])
def test_an_asynchronous_commit_is_sent_before_its_member_leaves(broker, member, leave):
    """Even if the network thread has not begun with it when the member leaves."""
    resumed = threading.Event()

    async def block():
        assert resumed.wait(PATIENCE)

    errors = []
    member._core.submit(block)
    member.commit_async(callback=lambda _, error: errors.append(error))
    resumes = threading.Timer(0.2, resumed.set)
    resumes.start()
    getattr(member, leave)()
    resumes.join()
    with consuming(broker, **BY_HAND) as other:
        assert 4 == committed(other)
    if leave == "close":
        assert [None] == errors
