"""What assignors, listeners and pending rebalances do to a classic member."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from spark_kafka_sink.consumer.assignors.partition_assignor import Assignment, GroupAssignment
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.consumer.topic_updates import TopicUpdates
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.testing import ApiKey
from tests.support.consumer.embedded_consuming import (
    GROUP,
    PATIENCE,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
    wait_until,
)
from tests.support.consumer.reading import fill, numbered

COOPERATIVE = {**GROUP, "partition.assignment.strategy": "cooperative-sticky"}


@pytest.fixture
def broker():
    """Return a broker with three records in topic `t` of four partitions, and topic `u`."""
    with DevBroker(topics={"t": 4, "u": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(3))
        yield broker


class RaisingOnce(RangeAssignor):
    """An assignor one of whose methods raises at its first call."""

    method = ""
    calls = 0

    def _maybe_raise(self, method: str) -> None:
        if method == RaisingOnce.method:
            RaisingOnce.calls += 1
            if RaisingOnce.calls == 1:
                raise RuntimeError(f"once in {method}")

    def on_assignment(self, assignment, metadata):
        """Implement the assignor."""
        self._maybe_raise("on_assignment")
        return super().on_assignment(assignment, metadata)

    def subscription_user_data(self, topics):
        """Implement the assignor."""
        self._maybe_raise("subscription_user_data")
        return super().subscription_user_data(topics)

    def assign(self, metadata, group_subscription):
        """Implement the assignor."""
        self._maybe_raise("assign")
        return super().assign(metadata, group_subscription)


@pytest.mark.parametrize("method", ["on_assignment", "subscription_user_data", "assign"])
def test_an_assignor_that_raises_once_is_survived(broker, method, monkeypatch):
    """Poll raises its error once; then the records come."""
    monkeypatch.setattr(RaisingOnce, "method", method)
    monkeypatch.setattr(RaisingOnce, "calls", 0)
    settings = {**GROUP, "partition.assignment.strategy": [RaisingOnce]}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        with pytest.raises(Exception, match=f"once in {method}"):
            poll_until(consumer, lambda: False)
        assert numbered(3) == values(take(consumer, 3))
        assert 4 == len(consumer.assignment())


class Forgetting(RangeAssignor):
    """An assignor that forgets all members."""

    def assign(self, cluster, group_subscription):
        """Assign nothing to nobody."""
        return GroupAssignment({})


def test_a_member_that_the_assignor_left_out_is_told(broker):
    """The error says who has made the mistake, rather than that a message cannot be read."""
    with consuming(broker, **GROUP | {"partition.assignment.strategy": [Forgetting]}) as consumer:
        consumer.subscribe("t")
        with pytest.raises(DecodeError, match="leader has no assignment for this member"):
            poll_until(consumer, lambda: False)


class Impossible(RangeAssignor):
    """An assignor of a leader that assigns a partition with a negative number."""

    number = 0

    def assign(self, cluster, group_subscription):
        """Assign it to all members."""
        assignment = Assignment((tp(self.number),))
        return GroupAssignment(dict.fromkeys(group_subscription.subscriptions, assignment))


@pytest.mark.parametrize("number", [-5, -1])
def test_a_partition_that_cannot_exist_is_refused(broker, monkeypatch, number):
    """The error names it and its origin; -1 is not taken for the last partition."""
    monkeypatch.setattr(Impossible, "number", number)
    with consuming(broker, **GROUP | {"partition.assignment.strategy": [Impossible]}) as consumer:
        consumer.subscribe("t")
        with pytest.raises(DecodeError, match=f"leader has assigned partition {number} of"):
            poll_until(consumer, lambda: False)
        assert frozenset() == consumer.assignment()


class Careless(RangeAssignor):
    """An assignor whose methods return values of wrong types."""

    def subscription_user_data(self, topics):
        """Return a text, unless it is for `assign`."""
        return "two" if self.careless == "subscription_user_data" else None

    def assign(self, cluster, group_subscription):
        """Return the assignments without their class."""
        return dict(super().assign(cluster, group_subscription).assignments)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("assign", "assign of the assignor 'range' returned no GroupAssignment: {"),
        ("subscription_user_data", "are bytes or None, not 'two'"),
    ],
)
def test_an_assignor_that_returns_a_wrong_type_is_told(broker, method, message, monkeypatch):
    """The error names the method and the value."""
    monkeypatch.setattr(Careless, "careless", method, raising=False)
    with consuming(broker, **GROUP | {"partition.assignment.strategy": [Careless]}) as consumer:
        consumer.subscribe("t")
        with pytest.raises(TypeError, match=message):
            poll_until(consumer, lambda: False)


def test_requests_go_on_while_an_assignor_works(broker, monkeypatch):
    """A slow `assign` of the leader does not occupy the network thread, which sends heartbeats."""

    def slow(assignor, metadata, group_subscription):
        before = hook.seen
        wait_until(lambda: before + 3 <= hook.seen)
        return original(assignor, metadata, group_subscription)

    hook = broker.on(ApiKey.METADATA, lambda *_: None)
    original = RangeAssignor.assign
    monkeypatch.setattr(RangeAssignor, "assign", slow)
    settings = {**GROUP, "partition.assignment.strategy": "range", "metadata.max.age.ms": 50}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)


def test_close_does_not_wait_for_an_assignor(broker, monkeypatch):
    """A plan that is not ready in time is dropped."""
    may_end, is_called = threading.Event(), threading.Event()
    waited = []

    def endless(assignor, metadata, group_subscription):
        is_called.set()
        waited.append(may_end.wait(PATIENCE))
        return original(assignor, metadata, group_subscription)

    original = RangeAssignor.assign
    monkeypatch.setattr(RangeAssignor, "assign", endless)
    settings = {**GROUP, "partition.assignment.strategy": "range"}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, is_called.is_set)
        consumer.close(1)
        assert [] == waited
    may_end.set()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_unsubscribe_in_a_revocation_calls_the_listener_once(broker, protocol):
    """The revocation that is running is that of all partitions."""
    settings = {"group.id": "g", "group.protocol": protocol, "enable.auto.commit": False}
    with consuming(broker, **settings) as consumer:

        def unsubscribe(what, _):
            if what == "revoked":
                consumer.unsubscribe()

        listener = Recording(unsubscribe)
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        consumer.subscribe("u", listener=listener)
        # Without a subscription there is nothing to poll.
        with pytest.raises(Exception, match="subscribe to topics"):
            poll_until(consumer, lambda: False)
        assert frozenset() == consumer.assignment() == consumer.subscription()
        assert ["assigned", "revoked"] == [
            what for what, partitions in listener.calls if partitions
        ]


def pending_rebalance(one, two, three, listener):
    """Make `one` wait in a rebalance for `two`, which does not poll."""
    one.subscribe("t", listener=listener)
    two.subscribe("t")
    poll_until(
        one,
        lambda: (
            2 == len(one.assignment()) == len(two.assignment())
            and one.group_metadata().generation_id == two.group_metadata().generation_id
        ),
        two,
    )
    three.subscribe("t")
    poll_until(three, lambda: one._core.coordinator.member.awaits_others, one)


def test_a_pending_rebalance_floods_no_log_and_close_loses_its_partitions(broker, caplog):
    """No commit is tried until it has ended; another member may get what it owns."""
    settings = {**COOPERATIVE, "auto.commit.interval.ms": 50, "retry.backoff.ms": 5}
    listener = Recording()
    with (
        consuming(broker, **settings) as one,
        consuming(broker, **settings) as two,
        consuming(broker, **settings) as three,
    ):
        pending_rebalance(one, two, three, listener)
        caplog.set_level(logging.WARNING, "spark_kafka_sink.consumer")
        caplog.clear()
        until = time.monotonic() + 0.6
        poll_until(one, lambda: time.monotonic() > until)
        assert one._core.coordinator.member.awaits_others
        warnings = [each for each in caplog.records if "automatic commit" in each.getMessage()]
        assert len(warnings) <= 1
        listener.calls.clear()
        owned = tuple(sorted(one.assignment()))
        assert 2 == len(owned)
        one.close(2)
        assert [("lost", owned)] == listener.calls


def test_look_ups_do_not_wait_for_a_rebalance(broker):
    """OffsetFetch is not queued behind a JoinGroup that waits for other members."""
    settings = {**COOPERATIVE, "enable.auto.commit": False}
    with (
        consuming(broker, **settings) as one,
        consuming(broker, **settings) as two,
        consuming(broker, **settings) as three,
    ):
        pending_rebalance(one, two, three, Recording())
        assert {tp(): None} == one.committed([tp()], timeout=PATIENCE)
        assert one._core.coordinator.member.awaits_others


def test_an_error_of_one_part_stops_no_heartbeats(broker, monkeypatch):
    """The member stays in its group, while poll raises the error of another part."""
    settings = {**GROUP, "reconnect.backoff.max.ms": 20}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("u")
        poll_until(consumer, consumer.assignment)
        hook = broker.on(ApiKey.HEARTBEAT, lambda *_: None)

        def broken(*_):
            raise RuntimeError("broken")

        with monkeypatch.context() as patched:
            patched.setattr(TopicUpdates, "advance", broken)
            with pytest.raises(RuntimeError, match="broken"):
                poll_until(consumer, lambda: False)
            before = hook.seen
            wait_until(lambda: before + 4 <= hook.seen)
        fill(broker.bootstrap_servers, "u", [b"later"])
        with pytest.raises(RuntimeError, match="broken"):
            consumer.poll(0)
        assert [b"later"] == values(take(consumer, 1))
        assert 1 == consumer.group_metadata().generation_id
