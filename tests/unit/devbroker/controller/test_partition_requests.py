"""Elections and reassignments as clients ask for them."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    TopicPartitions,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.support.devbroker.controlled_cluster import ControlledCluster


def out_of_balance() -> ControlledCluster:
    """Return a cluster in which broker 1 is in sync again, and leads nothing of topic "t"."""
    cluster = ControlledCluster()
    cluster.create((1, 2, 0), (2, 0, 1))
    cluster.create((0, 1, 2), name="u")
    cluster.fence(1)
    cluster.heartbeat(1)
    cluster.alter((2, 0, 1))
    return cluster


def elect(cluster: ControlledCluster, *topics: TopicPartitions, election: int = PREFERRED):
    """Elect leaders, of all partitions without topics, and return the results by partition."""
    request = ElectLeadersRequest(election_type=election, topic_partitions=topics or None)
    response = cluster.controller.handle(request, cluster.now)
    assert ErrorCode.NONE == response.error_code
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


def test_each_election_of_a_request_has_a_result():
    """Those that succeed are recorded, whatever the others do."""
    cluster = out_of_balance()
    results = elect(
        cluster,
        TopicPartitions(topic="t", partitions=(0, 1, 7)),
        TopicPartitions(topic="v", partitions=(0,)),
    )
    assert {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("v", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    } == results
    assert 1 == cluster.partition().leader


def test_an_election_for_all_leaves_out_those_that_need_none():
    """There may be very many of them."""
    cluster = out_of_balance()
    assert {("t", 0): ErrorCode.NONE} == elect(cluster)
    assert {} == elect(cluster)
    cluster.fence(0, 2)
    cluster.alter((1,))
    cluster.fence(1)
    cluster.heartbeat(0)
    every = dict.fromkeys([("t", 0), ("t", 1), ("u", 0)], ErrorCode.NONE)
    assert every == elect(cluster, election=UNCLEAN)
    assert {} == elect(cluster, election=UNCLEAN)
    assert 0 == cluster.partition().leader


def test_an_unknown_type_of_election_is_refused():
    """The response has no results then."""
    cluster = out_of_balance()
    request = ElectLeadersRequest(election_type=2, topic_partitions=None)
    response = cluster.controller.handle(request, cluster.now)
    assert ErrorCode.INVALID_REQUEST == response.error_code
    assert () == response.replica_election_results


def reassign(cluster: ControlledCluster, *moves: tuple[str, int, tuple[int, ...] | None]):
    """Move partitions and return the error codes."""
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=False,
        topics=tuple(
            ReassignableTopic(
                name=name,
                partitions=(ReassignablePartition(partition_index=index, replicas=replicas),),
            )
            for name, index, replicas in moves
        ),
    )
    response = cluster.controller.handle(request, cluster.now)
    assert ErrorCode.NONE == response.error_code
    assert not response.allow_replication_factor_change
    return [each.partitions[0].error_code for each in response.responses]


def moving(cluster: ControlledCluster, *topics: ListPartitionReassignmentsTopics):
    """Return what a list of reassignments has, of all topics without any."""
    request = ListPartitionReassignmentsRequest(topics=topics or None)
    response = cluster.controller.handle(request, cluster.now)
    return [
        (topic.name, each.partition_index, each.replicas, each.adding_replicas)
        for topic in response.topics
        for each in topic.partitions
    ]


def test_reassignments_begin_are_listed_and_are_cancelled():
    """Each partition has a result of its own."""
    cluster = ControlledCluster(brokers=4)
    cluster.create((0, 1), (1, 2))
    cluster.create((0, 1), name="u")
    assert [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ] == reassign(
        cluster,
        ("t", 0, (3, 1)),
        ("u", 0, (2, 3)),
        ("t", 1, (3,)),
        ("t", 1, None),
        ("v", 0, None),
        # The same replicas, so there is nothing to do.
        ("t", 1, (1, 2)),
    )
    t = ("t", 0, (3, 1, 0), (3,))
    u = ("u", 0, (2, 3, 0, 1), (2, 3))
    assert [t, u] == moving(cluster)
    asked = ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 1, 5))
    assert [t] == moving(cluster, asked)
    assert [ErrorCode.NONE] == reassign(cluster, ("u", 0, None))
    assert [t] == moving(cluster)


@pytest.mark.parametrize(
    "request_",
    [
        ElectLeadersRequest(topic_partitions=None),
        AlterPartitionReassignmentsRequest(topics=()),
        ListPartitionReassignmentsRequest(),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_controller_on_standby_refuses_them(request_):
    """The response has the error, and no results."""
    standby = ControlledCluster().new_controller(1)
    response = standby.handle(request_, 0.0)
    assert ErrorCode.NOT_CONTROLLER == response.error_code
