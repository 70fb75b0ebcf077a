"""Members of a group: rebalances, listeners and how they leave."""

from __future__ import annotations

import threading
import time

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewPartitions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError, KafkaError, WakeupError
from spark_kafka_sink.testing import ApiKey, Delay
from tests.support.consumer.embedded_consuming import ENDLESS_SESSION as GROUP
from tests.support.consumer.embedded_consuming import (
    PATIENCE,
    Background,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
    wait_until,
)
from tests.support.consumer.reading import fill, numbered
from tests.support.network.leaps import leap

COOPERATIVE = {**GROUP, "partition.assignment.strategy": "cooperative-sticky"}
EAGER = {**GROUP, "partition.assignment.strategy": "range"}
ALL = tuple(tp(number) for number in range(4))


@pytest.fixture
def broker():
    """Return a broker with topic `t` of four partitions, and topic `u`."""
    with DevBroker(topics={"t": 4, "u": 1}) as broker:
        yield broker


def seen(broker, api):
    """Count the requests of an API."""
    return broker.on(api, lambda *_: None)


def test_one_member_joins_once(broker):
    """Its assignment is complete with the first generation, and stays as it is."""
    listener = Recording()
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        heartbeats = seen(broker, ApiKey.HEARTBEAT)
        poll_until(consumer, lambda: 4 <= heartbeats.seen)
        assert frozenset(ALL) == consumer.assignment()
        assert 1 == consumer.group_metadata().generation_id
    assert [("assigned", ALL), ("revoked", ALL)] == listener.calls


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_three_members_share_the_partitions(broker, settings):
    """Each partition has one owner; those who stay take over from the one that leaves."""
    with (
        consuming(broker, **settings) as one,
        consuming(broker, **settings) as two,
    ):
        with consuming(broker, **settings) as three:
            members = (one, two, three)
            for each in members:
                each.subscribe("t")
            poll_until(one, lambda: all(each.assignment() for each in members), two, three)
            poll_until(
                one, lambda: 4 == sum(len(each.assignment()) for each in members), two, three
            )
            owned = [each.assignment() for each in members]
            assert frozenset(ALL) == frozenset().union(*owned)
        poll_until(one, lambda: 4 == len(one.assignment() | two.assignment()), two)
        assert not one.assignment() & two.assignment()


def test_an_eager_member_gives_up_everything_before_it_joins_again(broker):
    """Its listener hears of the revocation of all, then of what it has next."""
    listener = Recording()
    with consuming(broker, **EAGER) as one, consuming(broker, **EAGER) as two:
        one.subscribe("t", listener=listener)
        poll_until(one, one.assignment)
        two.subscribe("t")
        poll_until(one, lambda: 2 == len(one.assignment()) and two.assignment(), two)
        half = tuple(sorted(one.assignment()))
    calls = [call for call in listener.calls if call[1]]
    assert [("assigned", ALL), ("revoked", ALL), ("assigned", half), ("revoked", half)] == calls
    assert {threading.current_thread().name} == listener.threads


def test_a_cooperative_member_gives_up_only_what_moves(broker):
    """It goes on reading what it keeps."""
    listener = Recording()
    with consuming(broker, **COOPERATIVE) as one, consuming(broker, **COOPERATIVE) as two:
        one.subscribe("t", listener=listener)
        poll_until(one, one.assignment)
        two.subscribe("t")
        poll_until(one, two.assignment, two)
        kept = tuple(sorted(one.assignment()))
        moved = tuple(sorted(two.assignment()))
    calls = [call for call in listener.calls if call[1]]
    assert [("assigned", ALL), ("revoked", moved), ("revoked", kept)] == calls


def test_no_record_is_lost_or_read_twice_in_a_cooperative_rebalance(broker):
    """With commits before revocations, each record has one reader."""
    for number in range(4):
        fill(broker.bootstrap_servers, "t", numbered(50, 50 * number), partition=number)
    with consuming(broker, max_poll_records=7, **COOPERATIVE) as one:
        one.subscribe("t")
        got = take(one, 20)
        with consuming(broker, max_poll_records=7, **COOPERATIVE) as two:
            two.subscribe("t")
            with Background(two) as background:
                deadline = time.monotonic() + PATIENCE
                while len(got) + len(background.records) < 200 and time.monotonic() < deadline:
                    got += [each for some in one.poll(0.05).values() for each in some]
            got += background.records
    assert sorted(numbered(200)) == sorted(values(got))


def test_a_rebalance_is_noticed_while_poll_waits(broker):
    """A long poll does not keep the group waiting."""
    with consuming(broker, **EAGER) as one, consuming(broker, **EAGER) as two:
        one.subscribe("t")
        poll_until(one, one.assignment)

        def wait():
            with pytest.raises(WakeupError):
                one.poll(2 * PATIENCE)

        thread = threading.Thread(target=wait)
        thread.start()
        two.subscribe("t")
        poll_until(two, two.assignment)
        assert thread.is_alive()
        one.wakeup()
        thread.join()


def test_heartbeats_continue_while_the_user_works(broker):
    """The member stays in its generation."""
    hook = seen(broker, ApiKey.HEARTBEAT)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        before, begin = hook.seen, time.monotonic()
        wait_until(lambda: 10 <= hook.seen - before)
        # Nine times heartbeat.interval.ms, except that the first ones may have been on their way.
        assert 0.3 < time.monotonic() - begin
        consumer.poll(0)
        assert 1 == consumer.group_metadata().generation_id


def test_a_member_that_does_not_poll_is_out(broker):
    """After max.poll.interval.ms it leaves; its next poll loses everything and joins again."""
    listener = Recording()
    with consuming(broker, max_poll_interval_ms=15_000, **GROUP) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        leave = seen(broker, ApiKey.LEAVE_GROUP)
        leap(consumer)
        wait_until(lambda: leave.seen)
        poll_until(consumer, lambda: ("lost", ALL) in listener.calls)
        poll_until(consumer, lambda: 2 == listener.calls.count(("assigned", ALL)))


def test_a_listener_that_raises_does_not_stop_the_rebalance(broker):
    """The error is raised by poll, and the partitions are assigned."""

    def fail(what, partitions):
        if what == "assigned":
            raise ValueError("broken")

    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t", listener=Recording(fail))
        with pytest.raises(KafkaError, match="on_partitions_assigned raised ValueError"):
            poll_until(consumer, lambda: False)
        assert frozenset(ALL) == consumer.assignment()
        fill(broker.bootstrap_servers, "t", [b"a"])
        assert [b"a"] == values(take(consumer, 1))


def test_wakeup_in_a_listener_is_raised_as_such(broker):
    """A user who waits for WakeupError gets it, whatever was running."""
    with consuming(broker, enable_auto_commit=False, **GROUP) as consumer:

        def commit(what, partitions):
            if what == "assigned":
                consumer.wakeup()
                consumer.commit({tp(): 0})

        consumer.subscribe("t", listener=Recording(commit))
        with pytest.raises(WakeupError):
            poll_until(consumer, lambda: False)
        consumer.poll(0)
        assert frozenset(ALL) == consumer.assignment()


def test_wakeup_is_not_lost_by_an_automatic_commit(broker):
    """The commit before the rebalance goes on, and poll raises WakeupError afterwards."""
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        poll_until(consumer, lambda: all(0 == consumer.position(each) for each in ALL))
        hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: consumer.wakeup())
        consumer.subscribe("u")
        with pytest.raises(WakeupError):
            poll_until(consumer, lambda: tp(0, "u") in consumer.assignment())
        assert 1 <= hook.seen
        assert dict.fromkeys(ALL, 0) == {
            each: found and found.offset for each, found in consumer.committed(ALL).items()
        }


def test_a_change_of_the_subscription(broker):
    """The topics of the old one are revoked, also if both are cooperative."""
    listener = Recording()
    with consuming(broker, **COOPERATIVE) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        consumer.subscribe("u", listener=listener)
        assert frozenset({"u"}) == consumer.subscription()
        poll_until(consumer, lambda: consumer.assignment() == {tp(0, "u")})
    u = (tp(0, "u"),)
    calls = [call for call in listener.calls if call[1]]
    assert [("assigned", ALL), ("revoked", ALL), ("assigned", u), ("revoked", u)] == calls


def test_unsubscribe_leaves_the_group(broker):
    """Everything is revoked at once; the consumer can subscribe again, or assign."""
    listener = Recording()
    hook = seen(broker, ApiKey.LEAVE_GROUP)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        consumer.unsubscribe()
        assert frozenset() == consumer.assignment() == consumer.subscription()
        assert ("revoked", ALL) == listener.calls[-1]
        consumer.subscribe("u")
        poll_until(consumer, lambda: consumer.assignment() == {tp(0, "u")})
        assert 1 == hook.seen
        consumer.subscribe([])
        consumer.assign([tp(0, "u")])
        fill(broker.bootstrap_servers, "u", [b"a"])
        assert [b"a"] == values(take(consumer, 1))


def test_a_pattern_subscribes_to_what_matches(broker):
    """A topic that is created later is read too; the same pattern works a second time."""
    with consuming(broker, metadata_max_age_ms=100, **GROUP) as consumer:
        consumer.subscribe(pattern="[tv]")
        poll_until(consumer, lambda: consumer.assignment() == frozenset(ALL))
        broker.create_topic("v")
        poll_until(consumer, lambda: tp(0, "v") in consumer.assignment())
        assert frozenset({"t", "v"}) == consumer.subscription()


def test_the_same_pattern_can_be_subscribed_to_again(broker):
    """Its topics are found at once, not when the metadata are old."""
    with consuming(broker, **GROUP) as consumer:
        for _ in range(2):
            consumer.subscribe(pattern="[tv]")
            poll_until(consumer, lambda: consumer.assignment() == frozenset(ALL))
            consumer.unsubscribe()


def test_new_partitions_are_assigned(broker):
    """The leader notices them with the metadata, and joins again."""
    with consuming(broker, metadata_max_age_ms=100, **GROUP) as consumer:
        consumer.subscribe("u")
        poll_until(consumer, consumer.assignment)
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_partitions({"u": NewPartitions(3)})
        poll_until(consumer, lambda: 3 == len(consumer.assignment()))


def test_a_member_that_closes_leaves_at_once(broker):
    """The other member gets everything long before the session timeout."""
    with consuming(broker, **EAGER) as one:
        with consuming(broker, **EAGER) as two:
            for each in (one, two):
                each.subscribe("t")
            poll_until(one, lambda: one.assignment() and two.assignment(), two)
        poll_until(one, lambda: 4 == len(one.assignment()))


def test_a_static_member_stays_when_it_closes(broker):
    """It returns with the same partitions, and without a rebalance."""
    hook = seen(broker, ApiKey.LEAVE_GROUP)
    generations = []
    for _ in range(2):
        with consuming(broker, group_instance_id="i", **GROUP) as consumer:
            consumer.subscribe("t")
            poll_until(consumer, consumer.assignment)
            generations.append(consumer.group_metadata().generation_id)
    assert [1, 1] == generations
    assert 0 == hook.seen


def test_a_second_static_member_fences_the_first(broker):
    """The first one's poll raises the error, naming the instance."""
    with (
        consuming(broker, group_instance_id="i", **GROUP) as one,
        consuming(broker, group_instance_id="i", **GROUP) as two,
    ):
        one.subscribe("t")
        poll_until(one, one.assignment)
        two.subscribe("t")
        poll_until(two, two.assignment)
        with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
            poll_until(one, lambda: False)


def test_a_member_that_waits_for_others_leaves_at_once(broker):
    """JoinGroup has no answer while another member works; LeaveGroup overtakes it."""
    for leave in (lambda it: it.close(), lambda it: it.unsubscribe()):
        with (
            consuming(broker, **EAGER) as one,
            consuming(broker, **EAGER) as two,
            AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin,
        ):
            one.subscribe("t")
            poll_until(one, one.assignment)
            two.subscribe("t")

            def members(admin=admin):
                return len(admin.describe_consumer_groups(["g"])["g"].members)

            poll_until(two, lambda members=members: 2 == members())
            # The other member goes on working.
            leave(two)
            wait_until(lambda members=members: 1 == members())
            poll_until(one, lambda it=one: 4 == len(it.assignment()))


def test_a_member_without_an_id_leaves_with_the_one_that_it_gets(broker):
    """Otherwise nobody could join until its session ends, since the group waits for it."""
    joins = broker.on(ApiKey.JOIN_GROUP, Delay(0.2), times=1)
    leaves = seen(broker, ApiKey.LEAVE_GROUP)
    with consuming(broker, **EAGER) as gone:
        gone.subscribe("t")
        poll_until(gone, lambda: joins.fired)
    assert 1 == leaves.seen
    with consuming(broker, **EAGER) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
