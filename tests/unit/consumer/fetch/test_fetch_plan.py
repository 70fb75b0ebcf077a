"""Which partitions are fetched from which brokers."""

from __future__ import annotations

from uuid import UUID

import pytest

from spark_kafka_sink.consumer.fetch.fetch_sessions import PartitionToFetch
from spark_kafka_sink.consumer.fetch.fetcher import FetchPlan, plan_fetches
from spark_kafka_sink.consumer.subscription.partition_state import (
    EARLIEST,
    FetchPosition,
    LeaderAndEpoch,
)
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.network.metadata import MetadataSnapshot, TopicMetadata
from spark_kafka_sink.protocol.primitives import ZERO_UUID

TP0, TP1, TP2 = (TopicPartition("t", index) for index in range(3))
NODES = {each: Node(each, f"h{each}", 9092) for each in (1, 2, 3)}
TOPIC_ID = UUID(int=5)
SNAPSHOT = MetadataSnapshot(nodes=NODES, topics={"t": TopicMetadata("t", TOPIC_ID, 0, ())})
NOW = 100.0


def at(offset: int, leader: int | None = 1, epoch: int = 7) -> FetchPosition:
    """Return a position whose leader is the node with an id."""
    node = None if leader is None else NODES[leader]
    return FetchPosition(offset, 3, LeaderAndEpoch(node, epoch))


def consumer(**positions: FetchPosition) -> SubscriptionState:
    """Return partitions of the topic by their positions: `tp0`, `tp1` and so on."""
    state = SubscriptionState(EARLIEST)
    partitions = {TopicPartition("t", int(name[2:])): each for name, each in positions.items()}
    state.assign_from_user(partitions)
    for partition, position in partitions.items():
        state.seek_validated(partition, position)
    return state


def plan(
    state: SubscriptionState,
    *,
    snapshot: MetadataSnapshot = SNAPSHOT,
    unavailable: set[int] = frozenset(),
    in_flight: set[int] = frozenset(),
    buffered: set[TopicPartition] = frozenset(),
) -> FetchPlan:
    return plan_fetches(
        state,
        snapshot,
        NOW,
        is_unavailable=lambda node: node.node_id in unavailable,
        in_flight=in_flight,
        buffered=buffered,
        max_partition_bytes=1000,
    )


def places(found: FetchPlan) -> dict[int, list[TopicPartition]]:
    """Return the partitions to fetch by the ids of the brokers."""
    return {node.node_id: list(partitions) for node, partitions in found.requests.items()}


def test_each_leader_gets_its_partitions():
    """Partitions are grouped by leader, in the order of fetching."""
    state = consumer(tp0=at(10), tp1=at(20, leader=2), tp2=at(30))

    found = plan(state)
    state.move_to_end(TP0)

    assert {1: [TP0, TP2], 2: [TP1]} == places(found)
    assert {1: [TP2, TP0], 2: [TP1]} == places(plan(state))
    assert not found.needs_metadata


def test_a_partition_is_fetched_from_its_position():
    """The request has the topic's id, the offset and the leader's epoch, but no record's epoch."""
    found = plan(consumer(tp0=at(10, epoch=8)))

    expected = PartitionToFetch(TOPIC_ID, 10, 8, NO_LEADER_EPOCH, 1000)
    assert {NODES[1]: {TP0: expected}} == found.requests


def test_a_topic_id_may_be_unknown():
    """A topic without an id is fetched by its name."""
    found = plan(consumer(tp0=at(10)), snapshot=MetadataSnapshot(nodes=NODES))

    assert ZERO_UUID == found.requests[NODES[1]][TP0].topic_id


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pause(TP0),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.seek_unvalidated(TP0, at(10)),
        lambda state: state.mark_pending_revocation([TP0]),
    ],
    ids=["paused", "reset", "in validation", "revoked"],
)
def test_partitions_that_are_not_fetchable_are_left_out(change):
    """The other partitions of the broker are fetched."""
    state = consumer(tp0=at(10), tp1=at(20))

    change(state)

    assert {1: [TP1]} == places(plan(state))


def test_a_partition_without_a_leader_needs_metadata():
    """The others are fetched meanwhile."""
    found = plan(consumer(tp0=at(10, leader=None), tp1=at(20)))

    assert {1: [TP1]} == places(found)
    assert found.needs_metadata


def test_a_preferred_follower_is_used_while_its_lease_lasts():
    """After the lease, the leader is asked again (KIP-392)."""
    state = consumer(tp0=at(10), tp1=at(20))
    state.update_preferred_read_replica(TP0, 2, NOW)
    state.update_preferred_read_replica(TP1, 2, NOW - 1)

    found = plan(state)

    assert {2: [TP0], 1: [TP1]} == places(found)
    assert not found.needs_metadata


def test_a_follower_that_is_gone_is_given_up():
    """The leader is used instead, and the metadata may be old."""
    state = consumer(tp0=at(10))
    state.update_preferred_read_replica(TP0, 9, NOW)

    found = plan(state)

    assert {1: [TP0]} == places(found)
    assert found.needs_metadata
    assert state.preferred_read_replica(TP0, NOW) is None
    assert not plan(state).needs_metadata


def test_brokers_that_cannot_be_reached_are_skipped():
    """Nothing is sent during the back-off before a reconnection."""
    state = consumer(tp0=at(10), tp1=at(20, leader=2))

    found = plan(state, unavailable={1})

    assert {2: [TP1]} == places(found)
    assert not found.needs_metadata


def test_a_broker_gets_one_request_at_a_time():
    """A broker with a Fetch in flight is skipped."""
    state = consumer(tp0=at(10), tp1=at(20, leader=2))

    assert {2: [TP1]} == places(plan(state, in_flight={1, 3}))


def test_the_error_of_an_authentication_is_raised():
    """It is raised even if a Fetch is in flight, because no later one would succeed."""

    def fail(_node: Node) -> bool:
        raise AuthenticationError("no")

    with pytest.raises(AuthenticationError):
        plan_fetches(
            consumer(tp0=at(10)),
            SNAPSHOT,
            NOW,
            is_unavailable=fail,
            in_flight={1},
            buffered=(),
            max_partition_bytes=1000,
        )


def test_brokers_of_buffered_partitions_are_skipped():
    """While records of a broker wait, nothing else is fetched from it (KAFKA-17182)."""
    state = consumer(tp0=at(10), tp1=at(20), tp2=at(30, leader=2))

    assert {2: [TP2]} == places(plan(state, buffered={TP0}))


def test_a_buffered_partition_counts_for_its_follower():
    """The broker that is skipped is the one that the partition is read from."""
    state = consumer(tp0=at(10), tp1=at(20), tp2=at(30, leader=2))
    state.update_preferred_read_replica(TP0, 2, NOW)

    assert {1: [TP1]} == places(plan(state, buffered={TP0}))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pause(TP0),
        lambda state: state.request_offset_reset(TP0),
        lambda state: state.seek_unvalidated(TP0, at(10)),
        lambda state: state.mark_pending_revocation([TP0]),
        lambda state: state.assign_from_user([TP1]),
    ],
    ids=["paused", "reset", "in validation", "revoked", "unassigned"],
)
def test_buffered_partitions_that_cannot_be_returned_block_nothing(change):
    """A paused partition with records does not stop the others of its broker."""
    state = consumer(tp0=at(10), tp1=at(20))

    change(state)

    assert {1: [TP1]} == places(plan(state, buffered={TP0}))


def test_a_buffered_partition_without_a_leader_needs_metadata():
    """It blocks no broker, because none is known to hold it."""
    found = plan(consumer(tp0=at(10, leader=None), tp1=at(20)), buffered={TP0})

    assert {1: [TP1]} == places(found)
    assert found.needs_metadata


def test_nothing_is_planned_while_all_partitions_are_buffered():
    """Not even metadata are needed as long as there are records to return."""
    state = consumer(tp0=at(10, leader=None), tp1=at(20))
    state.update_preferred_read_replica(TP1, 9, NOW)

    assert FetchPlan({}, needs_metadata=False) == plan(state, buffered={TP0, TP1})
    assert 9 == state.preferred_read_replica(TP1, NOW)


def test_a_broker_that_has_moved_gets_one_request():
    """A leader is reached at the address of the metadata, together with other partitions."""
    moved = Node(1, "elsewhere", 9092)
    snapshot = MetadataSnapshot(nodes={**NODES, 1: moved})
    state = consumer(tp0=at(10), tp1=at(20, leader=2))
    state.update_preferred_read_replica(TP1, 1, NOW)

    assert [moved] == list(plan(state, snapshot=snapshot).requests)


def test_a_leader_that_the_metadata_have_lost_is_still_asked():
    """A broker that is missing from the metadata may only be restarting."""
    assert {1: [TP0]} == places(plan(consumer(tp0=at(10)), snapshot=MetadataSnapshot()))
