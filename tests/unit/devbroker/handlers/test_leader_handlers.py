"""Elections of leaders, and partitions that move to other brokers."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState
from spark_kafka_sink.model import Node
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.elect_leaders import PREFERRED, UNCLEAN
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.admin_requests import elect_leaders, list_reassignments, reassign
from tests.support.devbroker.broker_requests import NOW, ask, three_brokers
from tests.support.record.plain_batches import plain_batch

OK = ErrorCode.NONE
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


@pytest.fixture
def broker():
    """Return the first of three brokers; it leads the first of two partitions, and 2 the second."""
    return three_brokers({"t": 2})[0]


def elected(broker, topics, election_type=PREFERRED):
    """Request elections, and return the code of each partition."""
    response = ask(broker, elect_leaders(topics, election_type))
    assert OK == response.error_code
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


def start(broker, node_id):
    broker.cluster.register(Node(node_id, "127.0.0.1", 9091 + node_id), NOW)


def state(broker, index=0):
    leadership = broker.cluster.topic("t").partitions[index].leadership
    return leadership.leader_id, leadership.leader_epoch, leadership.replicas, leadership.isr


def append(broker, records=1):
    batch = plain_batch(records)
    log = broker.cluster.topic("t").partitions[0].log
    log.append(memoryview(batch), decode_header(batch))


class TestPreferredElections:
    """ElectLeaders with the type PREFERRED."""

    def test_a_returned_broker_leads_again(self, broker):
        """The preferred replica becomes the leader in a new epoch, and nothing else changes."""
        broker.cluster.fence(1, NOW)
        start(broker, 1)
        assert (2, 1, (1, 2, 3), (1, 2, 3)) == state(broker)

        assert {("t", 0): OK, ("t", 1): NOT_NEEDED} == elected(broker, {"t": [0, 1]})
        assert (1, 2, (1, 2, 3), (1, 2, 3)) == state(broker)

    def test_a_stopped_broker_cannot_lead(self, broker):
        """A preferred replica that is not in sync is not elected."""
        broker.cluster.fence(1, NOW)

        expected = {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert expected == elected(broker, {"t": [0]})
        assert (2, 1, (1, 2, 3), (2, 3)) == state(broker)

    def test_all_partitions_can_be_meant(self, broker):
        """Without topics, the partitions that needed an election are listed."""
        broker.cluster.fence(1, NOW)
        start(broker, 1)

        assert {("t", 0): OK} == elected(broker, None)
        assert {} == elected(broker, None)

    def test_missing_partitions_are_errors_of_their_own(self, broker):
        """Topics and partitions that do not exist do not keep others from an election."""
        expected = {("t", 0): NOT_NEEDED, ("t", 7): MISSING, ("no", 0): MISSING}
        assert expected == elected(broker, {"t": [0, 7], "no": [0]})

    @pytest.mark.parametrize("version", [1, 2])
    def test_another_type_of_election_is_refused(self, broker, version):
        """An unknown type is the error of the request and of each partition."""
        response = ask(broker, elect_leaders({"t": [0]}, 5), version)

        [topic] = response.replica_election_results
        assert [ErrorCode.INVALID_REQUEST] * 2 == [
            response.error_code,
            topic.partition_result[0].error_code,
        ]


class TestUncleanElections:
    """ElectLeaders with the type UNCLEAN."""

    def test_a_partition_with_a_leader_needs_none(self, broker):
        """Even a leader that is not the preferred one is not replaced."""
        broker.cluster.fence(1, NOW)
        start(broker, 1)

        assert {("t", 0): NOT_NEEDED} == elected(broker, {"t": [0]}, UNCLEAN)

    def test_a_replica_that_lacks_records_loses_them(self, broker):
        """A replica that stopped earlier than the last leader leads with the records it had."""
        append(broker)
        broker.cluster.fence(3, NOW)
        append(broker, 2)
        for node_id in (2, 1):
            broker.cluster.fence(node_id, NOW)
        start(broker, 3)
        log = broker.cluster.topic("t").partitions[0].log
        assert (-1, 3) == (state(broker)[0], log.log_end_offset)

        assert {("t", 0): OK} == elected(broker, {"t": [0]}, UNCLEAN)
        assert 1 == log.log_end_offset
        assert (3, (3,)) == (state(broker)[0], state(broker)[3])

    def test_nobody_runs(self, broker):
        """Without a running replica there is nothing to elect."""
        broker.cluster.create_topic("u", partitions=1, assignments=[(3,)])
        broker.cluster.fence(3, NOW)

        expected = {("u", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        assert expected == elected(broker, {"u": [0]}, UNCLEAN)


def moved(broker, *partitions, **more):
    response = ask(broker, reassign(*partitions, **more))
    return [partition.error_code for topic in response.responses for partition in topic.partitions]


def moving(broker, topics=None):
    return [
        (p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in ask(broker, list_reassignments(topics)).topics
        for p in topic.partitions
    ]


class TestReassignments:
    """AlterPartitionReassignments and ListPartitionReassignments."""

    def test_running_brokers_have_a_partition_at_once(self, broker):
        """The old replicas are gone, in a new leader epoch, and the leader remains if it can."""
        assert [OK, OK] == moved(broker, ("t", 0, [2, 1]), ("t", 1, [1, 3]))

        assert (1, 1, (2, 1), (2, 1)) == state(broker)
        assert (1, 1, (1, 3), (1, 3)) == state(broker, 1)
        assert [] == moving(broker)

    def test_the_order_of_replicas_can_change(self, broker):
        """Another preferred replica does not lead before an election."""
        assert [OK] == moved(broker, ("t", 0, [3, 2, 1]))
        assert (1, 0, (3, 2, 1), (3, 2, 1)) == state(broker)

        assert {("t", 0): OK} == elected(broker, {"t": [0]})
        assert 3 == state(broker)[0]

    def test_a_stopped_broker_is_waited_for(self, broker):
        """The old replicas remain until a new one has started."""
        assert [OK] == moved(broker, ("t", 0, [1, 2]))
        broker.cluster.fence(3, NOW)

        assert [OK] == moved(broker, ("t", 0, [2, 3]))
        assert [(0, (2, 3, 1), (3,), (1,))] == moving(broker)
        assert [(0, (2, 3, 1), (3,), (1,))] == moving(broker, {"t": [0, 9], "no": [0]})
        assert [] == moving(broker, {"t": [1]})

        start(broker, 3)
        assert [] == moving(broker)
        assert (2, (2, 3), (2, 3)) == (state(broker)[0], state(broker)[2], state(broker)[3])

    def test_an_old_replica_is_not_waited_for(self, broker):
        """Only new replicas must be in sync, and one that remains."""
        broker.cluster.fence(3, NOW)

        assert [OK] == moved(broker, ("t", 0, [1, 3]))

        assert (1, 1, (1, 3), (1,)) == state(broker)
        assert [] == moving(broker)

    def test_a_move_can_be_cancelled(self, broker):
        """The replicas are the old ones again; there is nothing to cancel afterwards."""
        moved(broker, ("t", 0, [1, 2]))
        broker.cluster.fence(3, NOW)
        moved(broker, ("t", 0, [3]))

        assert [OK] == moved(broker, ("t", 0, None))
        assert [(1, 2), (1, 2)] == [state(broker)[2], state(broker)[3]]
        assert [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS] == moved(broker, ("t", 0, None))

    @pytest.mark.parametrize(
        ("partition", "expected"),
        [
            (("no", 0, [1]), MISSING),
            (("t", 7, [1]), MISSING),
            (("t", -1, [1]), MISSING),
            (("t", 0, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (("t", 0, [1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (("t", 0, [1, 77]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_what_cannot_be_is_refused(self, broker, partition, expected):
        """A wrong move has an error of its own, and others are made."""
        assert [expected, OK] == moved(broker, partition, ("t", 1, [2]))
        assert (1, 0, (1, 2, 3), (1, 2, 3)) == state(broker)
        assert (2,) == state(broker, 1)[2]

    def test_the_number_of_replicas_can_be_kept(self, broker):
        """A request may say that a move must not change how many replicas there are (KIP-860)."""
        changed = moved(broker, ("t", 0, [3, 1]), ("t", 1, [3, 1, 2]), keep_factor=True)
        assert [ErrorCode.INVALID_REPLICATION_FACTOR, OK] == changed

    def test_replicas_are_stored(self, broker, tmp_path):
        """A restarted cluster has the replicas to which partitions were moved."""
        path = tmp_path / "data"

        def restarted():
            cluster = ClusterState(data_dir=path)
            brokers = [Broker(node_id=node_id, cluster=cluster) for node_id in (1, 2)]
            cluster.open(NOW)
            for each in brokers:
                start(each, each.node_id)
            return brokers[0]

        first = restarted()
        first.cluster.create_topic("t", partitions=1, assignments=[(1,)])
        assert [OK] == moved(first, ("t", 0, [2]))
        first.cluster.close(NOW)

        second = restarted()
        assert (2,) == state(second)[2]
        second.cluster.close(NOW)
