"""What rebalances of a group do to listeners, assignors, commits and transactions."""

from __future__ import annotations

import time

import pytest

from spark_kafka_sink.consumer.assignors.partition_assignor import Assignment, GroupAssignment
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import OffsetAndMetadata
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import AnswerError, ApiKey, CloseConnection, Delay, ErrorCode
from tests.support.consumer.embedded_consuming import GROUP as _GROUP
from tests.support.consumer.embedded_consuming import (
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill

#: A member that forgot its id is out of the group after a moment.
GROUP = {**_GROUP, "session.timeout.ms": 1000}
EAGER = {**GROUP, "partition.assignment.strategy": "range"}
COOPERATIVE = {**GROUP, "partition.assignment.strategy": "cooperative-sticky"}
NEW_PROTOCOL = {"group.id": "g", "group.protocol": "consumer"}
ALL = (tp(0), tp(1))


@pytest.fixture
def broker():
    """Return a broker with topic `t` of two partitions, and topic `u` of one."""
    settings = {
        "group_min_session_timeout_ms": 100,
        "group_consumer_heartbeat_interval_ms": 50,
    }
    with DevBroker(topics={"t": 2, "u": 1}, **settings) as broker:
        yield broker


# Transactions


@pytest.mark.parametrize("settings", [EAGER, NEW_PROTOCOL], ids=["classic", "consumer"])
def test_a_member_that_is_out_cannot_commit_in_a_transaction(broker, settings):
    """It names its last generation, so that the coordinator refuses its offsets (KIP-447)."""
    with (
        consuming(
            broker, max_poll_interval_ms=300, enable_auto_commit=False, **settings
        ) as consumer,
        KafkaProducer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}
        ) as producer,
    ):
        assert -1 == consumer.group_metadata().generation_id
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        last = consumer.group_metadata()
        assert 0 < last.generation_id
        time.sleep(0.8)
        assert last == consumer.group_metadata()
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(KafkaError):
            producer.send_offsets_to_transaction({tp(): OffsetAndMetadata(1)}, last)
        producer.abort_transaction()
        assert consumer.committed([tp()])[tp()] is None
        poll_until(consumer, lambda: last != consumer.group_metadata())


# Listeners and assignors


class Forgetful(RangeAssignor):
    """An assignor that cannot remember its first assignment."""

    calls = 0

    def on_assignment(self, assignment, metadata):
        """Raise, once."""
        type(self).calls += 1
        if self.calls == 1:
            raise ValueError("no memory")


@pytest.mark.parametrize("listener_raises", [False, True])
def test_an_assignor_that_raises_afterwards_does_not_stop_the_rebalance(broker, listener_raises):
    """The listener is called all the same, the first error is raised, and reading begins."""

    def fail(what, _):
        if what == "assigned" and listener_raises:
            raise RuntimeError("broken")

    Forgetful.calls = 0
    listener = Recording(fail)
    fill(broker.bootstrap_servers, "t", [b"a"])
    settings = {**GROUP, "partition.assignment.strategy": [Forgetful]}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t", listener=listener)
        with pytest.raises(KafkaError, match="on_assignment raised ValueError: no memory"):
            poll_until(consumer, lambda: False)
        assert [("assigned", ALL)] == listener.calls
        assert [b"a"] == values(take(consumer, 1))


@pytest.mark.parametrize("is_rebalancing", [False, True])
def test_what_is_given_up_during_a_rebalance_is_lost(broker, is_rebalancing):
    """A consumer that is closed before the group has answered may have lost it to another."""
    listener = Recording()
    with consuming(broker, **COOPERATIVE) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        if is_rebalancing:
            hook = broker.on(ApiKey.JOIN_GROUP, Delay(1.0), times=1)
            consumer.subscribe(["t", "u"], listener=listener)
            poll_until(consumer, lambda: hook.fired)
    assert [("assigned", ALL), ("lost" if is_rebalancing else "revoked", ALL)] == listener.calls


# Patterns


def test_all_members_find_a_new_topic_before_they_join_again(broker):
    """One rebalance is enough, however old the other members' metadata may become."""
    listener = Recording()
    with (
        consuming(broker, metadata_max_age_ms=100, **EAGER) as one,
        consuming(broker, **EAGER) as two,
    ):
        one.subscribe(pattern="[tv]")
        two.subscribe(pattern="[tv]", listener=listener)
        poll_until(one, lambda: one.assignment() and two.assignment(), two)
        generation = two.group_metadata().generation_id
        broker.create_topic("v", partitions=2)
        poll_until(one, lambda: "v" in {each.topic for each in two.assignment()}, two)
        assert generation + 1 == two.group_metadata().generation_id
        assert frozenset({"t", "v"}) == two.subscription()


def test_a_pattern_is_matched_again_after_a_back_off_before_a_join(broker):
    """A broker that does not answer delays the join, and is not asked in a busy loop."""
    with consuming(broker, retry_backoff_ms=50, **EAGER) as consumer:
        consumer.subscribe(pattern="[tv]")
        poll_until(consumer, consumer.assignment)
        hook = broker.on(ApiKey.METADATA, CloseConnection(), times=3)
        broker.on(ApiKey.HEARTBEAT, AnswerError(ErrorCode.ILLEGAL_GENERATION), times=1)
        broker.create_topic("v")
        poll_until(consumer, lambda: tp(0, "v") in consumer.assignment())
        assert 3 == hook.fired


def test_a_deleted_topic_of_a_pattern_is_given_up(broker):
    """It is no longer subscribed to, and the others are read."""
    broker.create_topic("v")
    with consuming(broker, metadata_max_age_ms=100, **EAGER) as consumer:
        consumer.subscribe(pattern="[tv]")
        poll_until(consumer, lambda: 3 == len(consumer.assignment()))
        broker.delete_topic("v")
        poll_until(consumer, lambda: consumer.assignment() == frozenset(ALL))
        assert frozenset({"t"}) == consumer.subscription()


@pytest.mark.parametrize("is_excluded", [True, False])
def test_internal_topics_match_a_pattern_unless_they_are_excluded(broker, is_excluded):
    """exclude.internal.topics says so."""
    broker.create_topic("__consumer_offsets")
    settings = {**GROUP, "exclude.internal.topics": is_excluded}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe(pattern=".*")
        poll_until(consumer, lambda: set(ALL) <= consumer.assignment())
        assert is_excluded != ("__consumer_offsets" in consumer.subscription())


class Generous(RangeAssignor):
    """An assignor that adds a partition of a topic that nobody has found yet."""

    before = staticmethod(lambda: None)

    def assign(self, cluster, group_subscription):
        """Add it for each member."""
        self.before()
        assigned = super().assign(cluster, group_subscription)
        return GroupAssignment(
            {
                member: Assignment((*it.partitions, tp(0, "v")))
                for member, it in assigned.assignments.items()
            }
        )


def test_a_topic_that_only_the_leader_knows_is_subscribed_to(broker, monkeypatch):
    """If it matches the pattern, it is kept without another rebalance."""
    monkeypatch.setattr(Generous, "before", staticmethod(lambda: broker.create_topic("v")))
    settings = {**GROUP, "partition.assignment.strategy": [Generous]}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe(pattern="[tv]")
        poll_until(consumer, consumer.assignment)
        until = time.monotonic() + 0.3
        poll_until(consumer, lambda: time.monotonic() > until)
        assert frozenset({"t", "v"}) == consumer.subscription()
        assert {*ALL, tp(0, "v")} == consumer.assignment()
        assert 1 == consumer.group_metadata().generation_id
