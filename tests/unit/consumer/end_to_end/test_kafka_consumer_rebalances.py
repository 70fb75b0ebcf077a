"""What rebalances of a group do to listeners, assignors, commits and transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewPartitions
from spark_kafka_sink.consumer.assignors.cooperative_sticky_assignor import (
    CooperativeStickyAssignor,
)
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment,
    GroupAssignment,
    RebalanceProtocol,
)
from spark_kafka_sink.consumer.assignors.range_assignor import RangeAssignor
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError, KafkaError, WakeupError
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import (
    AlterResponse,
    AnswerError,
    ApiKey,
    CloseConnection,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.embedded_consuming import (
    ENDLESS_SESSION,
    Recording,
    consuming,
    poll_until,
    refuse_and_forget,
    take,
    tp,
    values,
    wait_until,
)
from tests.support.consumer.embedded_consuming import SHORT_SESSION as GROUP
from tests.support.consumer.reading import fill
from tests.support.network.leaps import leap

EAGER = {**GROUP, "partition.assignment.strategy": "range"}
#: Neither the member nor the broker ends a session when a clock leaps.
ENDLESS_EAGER = {**ENDLESS_SESSION, "partition.assignment.strategy": "range"}
COOPERATIVE = {**GROUP, "partition.assignment.strategy": "cooperative-sticky"}
NEW_PROTOCOL = {"group.id": "g", "group.protocol": "consumer"}
ALL = (tp(0), tp(1))


@pytest.fixture
def broker():
    """Return a broker with topic `t` of two partitions, and topic `u` of one."""
    with DevBroker(topics={"t": 2, "u": 1}, group_consumer_heartbeat_interval_ms=50) as broker:
        yield broker


# Transactions


@pytest.mark.parametrize("settings", [ENDLESS_EAGER, NEW_PROTOCOL], ids=["classic", "consumer"])
def test_a_member_that_is_out_cannot_commit_in_a_transaction(broker, settings):
    """It names its last generation, so that the coordinator refuses its offsets (KIP-447)."""
    with (
        consuming(
            broker, max_poll_interval_ms=15_000, enable_auto_commit=False, **settings
        ) as consumer,
        KafkaProducer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}
        ) as producer,
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin,
    ):
        assert -1 == consumer.group_metadata().generation_id
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        last = consumer.group_metadata()
        assert 0 < last.generation_id
        leap(consumer)
        wait_until(lambda: not admin.describe_consumer_groups(["g"])["g"].members)
        assert last == consumer.group_metadata()
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(KafkaError):
            producer.send_offsets_to_transaction({tp(): OffsetAndMetadata(1)}, last)
        producer.abort_transaction()
        assert consumer.committed([tp()])[tp()] is None
        poll_until(consumer, lambda: last != consumer.group_metadata())


def test_group_metadata_name_the_instance(broker):
    """From the beginning on; the member is named once it has joined."""
    with consuming(broker, group_instance_id="i", **EAGER) as consumer:
        assert ConsumerGroupMetadata("g", -1, "", "i") == consumer.group_metadata()
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        found = consumer.group_metadata()
        assert ("g", 1, "i") == (found.group_id, found.generation_id, found.group_instance_id)
        assert found.member_id


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
            hook = broker.on(ApiKey.JOIN_GROUP, NeverAnswer(), times=1)
            consumer.subscribe(["t", "u"], listener=listener)
            poll_until(consumer, lambda: hook.fired)
    assert [("assigned", ALL), ("lost" if is_rebalancing else "revoked", ALL)] == listener.calls


def test_each_error_of_a_listener_leaves_the_others_to_be_called(broker):
    """A cooperative member that gives something up raises the first error, with its cause."""

    def fail(what, partitions):
        if (partitions and what == "revoked") or not partitions:
            raise ValueError(what)

    listener = Recording(fail)
    with consuming(broker, **COOPERATIVE) as one, consuming(broker, **COOPERATIVE) as two:
        one.subscribe("t", listener=listener)
        poll_until(one, one.assignment)
        two.subscribe("t")
        with pytest.raises(KafkaError, match="on_partitions_revoked raised ValueError") as caught:
            poll_until(one, lambda: False, two)
        assert "revoked" == str(caught.value.__cause__)
        assert ["assigned", "revoked", "assigned"] == [what for what, _ in listener.calls]
        assert () == listener.calls[-1][1]
        one.subscribe("t")
        poll_until(one, two.assignment, two)


def test_a_listener_finds_the_new_generation(broker):
    """What a cooperative member gives up is revoked after the join, in its generation."""
    found = []
    with consuming(broker, **COOPERATIVE) as one, consuming(broker, **COOPERATIVE) as two:

        def note(what, partitions):
            if partitions:
                found.append((what, one.group_metadata().generation_id))

        one.subscribe("t", listener=Recording(note))
        poll_until(one, one.assignment)
        two.subscribe("t")
        poll_until(one, two.assignment, two)
        assert [("assigned", 1), ("revoked", 2)] == found


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
@pytest.mark.parametrize("api", [ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP], ids=lambda api: api.name)
def test_a_member_that_is_out_loses_what_it_has(broker, settings, api, code):
    """An eager one has nothing left during a join; the group is joined again."""
    listener = Recording()
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        forgets = code is ErrorCode.UNKNOWN_MEMBER_ID
        refusal = refuse_and_forget(broker, code) if forgets else AnswerError(code)
        broker.on(api, refusal, times=1, expect=True)
        if api is ApiKey.SYNC_GROUP:
            consumer.subscribe(["t", "u"], listener=listener)
        gives_up_before = api is ApiKey.SYNC_GROUP and settings is EAGER
        ended = ("revoked" if gives_up_before else "lost", ALL)
        poll_until(consumer, lambda: 3 == len([call for call in listener.calls if call[1]]))
        assert ended == [call for call in listener.calls if call[1]][1]
        assert set(ALL) <= consumer.assignment()


def test_what_a_member_that_is_out_unsubscribes_from_is_lost(broker):
    """It has no generation in which it could give it up."""
    listener = Recording()
    leave = broker.on(ApiKey.LEAVE_GROUP, lambda *_: None)
    with consuming(broker, max_poll_interval_ms=15_000, **ENDLESS_EAGER) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        leap(consumer)
        wait_until(lambda: leave.seen)
        consumer.unsubscribe()
        assert [("assigned", ALL), ("lost", ALL)] == listener.calls


def test_an_assignment_of_an_old_subscription_is_not_applied(broker):
    """The topics have changed since the group was joined, so it is joined again."""
    listener = Recording()
    with consuming(broker, **EAGER) as consumer:
        # Poll ends before it applies the assignment.
        broker.on(ApiKey.SYNC_GROUP, lambda _, it: consumer.wakeup() if it.number == 1 else None)
        consumer.subscribe("t", listener=listener)
        with pytest.raises(WakeupError):
            poll_until(consumer, lambda: False)
        consumer.subscribe("u", listener=listener)
        poll_until(consumer, consumer.assignment)
        u = (tp(0, "u"),)
        assert [("assigned", u)] == [call for call in listener.calls if call[1]]
        assert 2 == consumer.group_metadata().generation_id


def test_a_subscription_can_change_after_a_refused_join(broker):
    """Nothing of the former topics is left, although the next join is not prepared again."""
    refusal = AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    broker.on(ApiKey.JOIN_GROUP, refusal, times=1, expect=True)
    with consuming(broker, **EAGER) as consumer:
        consumer.subscribe(["t", "u"])
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            poll_until(consumer, lambda: False)
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        assert frozenset(ALL) == consumer.assignment()
        assert frozenset({"t"}) == consumer._subscriptions.subscription.metadata_topics


class Counting(RangeAssignor):
    """An assignor that counts its assignments."""

    calls = 0

    def assign(self, cluster, group_subscription):
        """Count the call."""
        type(self).calls += 1
        return super().assign(cluster, group_subscription)


def test_a_static_leader_that_returns_notices_new_partitions(broker):
    """It assigns nothing when it returns, but watches the topics of all members (KIP-814)."""
    Counting.calls = 0
    settings = {
        **GROUP,
        "metadata.max.age.ms": 100,
        "partition.assignment.strategy": [Counting],
    }
    with consuming(broker, **settings) as other:
        with consuming(broker, group_instance_id="i", **settings) as leader:
            leader.subscribe("t")
            poll_until(leader, leader.assignment)
            other.subscribe("u")
            poll_until(leader, lambda: leader.assignment() and other.assignment(), other)
        before = Counting.calls
        with consuming(broker, group_instance_id="i", **settings) as leader:
            leader.subscribe("t")
            poll_until(leader, leader.assignment, other)
            assert before == Counting.calls
            with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
                admin.create_partitions({"u": NewPartitions(3)})
            poll_until(leader, lambda: 3 == len(other.assignment()), other)
            assert before + 1 == Counting.calls


class Noting(RangeAssignor):
    """An assignor that notes the racks of the members."""

    racks: ClassVar[list[str | None]] = []

    def assign(self, cluster, group_subscription):
        """Record them."""
        self.racks.extend(it.rack_id for it in group_subscription.subscriptions.values())
        return super().assign(cluster, group_subscription)


@pytest.mark.parametrize("rack", ["west", ""])
def test_an_assignor_gets_the_rack_of_each_member(broker, monkeypatch, rack):
    """client.rack is a part of the subscription (KIP-881)."""
    monkeypatch.setattr(Noting, "racks", [])
    settings = {**GROUP, "partition.assignment.strategy": [Noting], "client.rack": rack}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
    assert [rack or None] == Noting.racks


def with_replicas(replicas):
    """Return a function that replaces the replicas of the partitions of `t` in a response."""

    def alter(response):
        return replace(
            response,
            topics=tuple(
                replace(
                    topic,
                    partitions=tuple(
                        replace(each, replica_nodes=replicas.get(each.partition_index, ()))
                        for each in topic.partitions
                    ),
                )
                for topic in response.topics
            ),
        )

    return AlterResponse(alter)


@pytest.mark.parametrize(
    ("replicas", "rack", "is_joined"),
    [
        ({0: (1, 3), 1: (2, 3)}, "a", True),
        ({0: (1, 2, 3), 1: (2, 3)}, "a", True),
        ({0: (1,), 1: (2, 3)}, "a", True),
        ({0: (1, 2), 1: (2, 3)}, "a", False),
        ({0: (4, 5), 1: (5, 6)}, "a", False),
        ({0: (1, 2, 4), 1: (2, 3, 6)}, "a", False),
        ({0: (1, 3), 1: (2, 3)}, "", False),
    ],
)
def test_a_leader_with_a_rack_joins_again_when_racks_change(replicas, rack, is_joined):
    """Neither other brokers in the same racks nor further ones there matter."""
    settings = {**EAGER, "metadata.max.age.ms": 50, "client.rack": rack}
    with (
        DevBroker(
            topics={"t": 2},
            brokers=6,
            racks=("a", "b", "c") * 2,
        ) as broker,
        consuming(broker, **settings) as consumer,
    ):
        before = broker.on(ApiKey.METADATA, with_replicas({0: (1, 2), 1: (2, 3)}))
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        joins = broker.on(ApiKey.JOIN_GROUP, lambda *_: None)
        before.remove()
        after = broker.on(ApiKey.METADATA, with_replicas(replicas))
        poll_until(consumer, lambda: joins.seen or (3 <= after.seen and not is_joined))
        seen = after.seen
        poll_until(consumer, lambda: seen + 3 <= after.seen)
        assert (1 if is_joined else 0) == joins.seen


class Moving(CooperativeStickyAssignor):
    """An assignor that gives everything to the last member at once."""

    def assign(self, cluster, group_subscription):
        """Assign everything to one member."""
        del cluster
        *_, last = sorted(group_subscription.subscriptions)
        nothing = dict.fromkeys(group_subscription.subscriptions, Assignment(()))
        return GroupAssignment({**nothing, last: Assignment(ALL)})


class Reckless:
    """Moving, which is not known to be right."""

    name, version = "reckless", 0
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)

    def __init__(self):
        """Use the other one."""
        self.assign = Moving().assign

    def subscription_user_data(self, topics):
        """Return nothing."""

    def on_assignment(self, assignment, metadata):
        """Do nothing."""


@pytest.mark.parametrize(("assignor", "is_checked"), [(Moving, False), (Reckless, True)])
def test_an_assignment_is_checked_if_the_assignor_is_not_ours(broker, assignor, is_checked):
    """A cooperative assignor must not move what its owner has not given up."""
    settings = {**GROUP, "partition.assignment.strategy": [assignor]}
    with consuming(broker, client_id="a", **settings) as one:
        one.subscribe("t")
        poll_until(one, one.assignment)
        with consuming(broker, client_id="b", **settings) as two:
            two.subscribe("t")
            if is_checked:
                with pytest.raises(ValueError, match="before their owners have given them up"):
                    poll_until(one, lambda: False, two)
            else:
                poll_until(one, lambda: two.assignment() == frozenset(ALL), two)


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


@pytest.mark.parametrize("settings", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_a_deleted_topic_ends_neither_the_group_nor_its_rebalances(broker, settings):
    """The others are read, the generation stays, and the topic is read again once it exists."""
    with consuming(broker, metadata_max_age_ms=100, **settings) as consumer:
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 3 == len(consumer.assignment()))
        broker.delete_topic("u")
        poll_until(consumer, lambda: consumer.assignment() == frozenset(ALL))
        before = consumer.group_metadata().generation_id
        consumer.enforce_rebalance("another member could join as well")
        poll_until(consumer, lambda: before < consumer.group_metadata().generation_id)
        poll_until(consumer, consumer.assignment)
        generation = consumer.group_metadata().generation_id
        heartbeats = broker.on(ApiKey.HEARTBEAT, lambda *_: None)
        poll_until(consumer, lambda: 4 <= heartbeats.seen)
        assert generation == consumer.group_metadata().generation_id
        assert frozenset(ALL) == consumer.assignment()

        fill(broker.bootstrap_servers, "t", [b"1", b"2", b"3"])
        assert 3 == len(take(consumer, 3))
        broker.create_topic("u")
        poll_until(consumer, lambda: {*ALL, tp(0, "u")} == consumer.assignment())


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
        heartbeats = broker.on(ApiKey.HEARTBEAT, lambda *_: None)
        poll_until(consumer, lambda: 4 <= heartbeats.seen)
        assert frozenset({"t", "v"}) == consumer.subscription()
        assert {*ALL, tp(0, "v")} == consumer.assignment()
        assert 1 == consumer.group_metadata().generation_id
