"""The coordinators of brokers that replicate survive the broker that they are on."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    CoordinatorType,
    FindCoordinatorRequest,
)
from tests.support.devbroker.group_client import (
    COMMIT,
    FETCH_OFFSETS,
    JOIN,
    commit_request,
    fetch_offsets_request,
    fetched_offsets,
    join_request,
)
from tests.support.devbroker.replication.local_cluster import LocalCluster
from tests.support.devbroker.transactional_client import TransactionalRequests

#: Longer than a session of a broker, and than the lease of a controller.
FAIL_OVER = 13.0
OFFSET = {TopicPartition("t", 0): 7}


@pytest.fixture
def cluster():
    """Return three running brokers, which know the topic `t`."""
    cluster = LocalCluster()
    cluster.run(0.5)
    cluster.create_topic("t", ask=1)
    yield cluster
    cluster.close()


def coordinator(cluster, name, key_type=CoordinatorType.GROUP):
    """Return the coordinator of a name, by any broker that runs."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(name,))
    (found,) = cluster.ask(next(iter(cluster.cluster.nodes)), request).coordinators
    assert ErrorCode.NONE == found.error_code
    return found.node_id


def others(cluster, node_id):
    return [each for each in cluster.node_ids if each != node_id]


def commit(cluster, node_id, *, wait=0.0):
    """Commit an offset of the group `g`; return the error code, or Delayed."""
    response = cluster.ask(node_id, commit_request("g", OFFSET), COMMIT, wait=wait)
    if isinstance(response, Delayed):
        return response
    return response.topics[0].partitions[0].error_code


def committed(cluster, node_id):
    """Return the error code of the group and its offset."""
    response = cluster.ask(node_id, fetch_offsets_request("g", "t", 0), FETCH_OFFSETS)
    return response.groups[0].error_code, fetched_offsets(response)


class Producer(TransactionalRequests):
    """A transactional producer that sends its requests to the brokers that are in charge."""

    def __init__(self, cluster):
        """Look up the brokers with each request."""
        super().__init__("x", "t")
        self.cluster = cluster
        self.timestamp = int(cluster.now * 1000)

    @property
    def coordinator(self):
        """The coordinator of the transactional id."""
        return coordinator(self.cluster, self.transactional_id, CoordinatorType.TRANSACTION)

    @property
    def leader(self):
        """The leader of the partition."""
        broker = self.cluster.brokers[next(iter(self.cluster.cluster.nodes))]
        return broker.cluster.leader(TopicPartition("t", 0))

    def ask(self, request, version, **fields):
        """Send a request to the leader or to the coordinator."""
        leads = type(request).__name__.startswith(("Produce", "Fetch", "ListOffsets"))
        return self.cluster.ask(self.leader if leads else self.coordinator, request, version)


def begin(cluster):
    """Return a producer with an open transaction, and its identity."""
    producer = Producer(cluster)
    assert producer.coordinator in cluster.node_ids
    code, identity = producer.init()
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # The broker had no producer ids yet.
        code, identity = producer.init()
    assert ErrorCode.NONE == code
    assert [(ErrorCode.NONE, 0)] == producer.produce(identity, 0)
    return producer, identity


def test_all_brokers_agree_on_a_coordinator(cluster):
    """The partitions of the internal topic are created when one is looked up."""
    request = FindCoordinatorRequest(key_type=CoordinatorType.GROUP, coordinator_keys=("g",))

    found = {cluster.ask(each, request).coordinators[0].node_id for each in cluster.node_ids}

    assert 1 == len(found)
    topic = cluster.brokers[1].cluster.topic("__consumer_offsets")
    assert (50, 3) == (len(topic.partitions), topic.replication_factor)


def test_only_the_coordinator_commits(cluster):
    """The others say that they are not."""
    node_id = coordinator(cluster, "g")

    codes = {each: commit(cluster, each) for each in cluster.node_ids}

    assert ErrorCode.NONE == codes.pop(node_id)
    assert {ErrorCode.NOT_COORDINATOR} == set(codes.values())


def test_a_committed_offset_survives_its_coordinator(cluster):
    """The next leader of the partition has it."""
    first = coordinator(cluster, "g")
    assert ErrorCode.NONE == commit(cluster, first)

    cluster.kill(first)
    cluster.run(FAIL_OVER)

    second = coordinator(cluster, "g")
    assert second != first
    assert (ErrorCode.NONE, {("t", 0): (0, 7)}) == committed(cluster, second)


def test_a_commit_waits_for_the_replicas(cluster):
    """If they do not get it in time, it is an error, and clients try again."""
    node_id = coordinator(cluster, "g")
    for other in others(cluster, node_id):
        cluster.cluster.cut(node_id, other)

    assert isinstance(commit(cluster, node_id), Delayed)
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == commit(cluster, node_id, wait=6.0)


def test_an_offset_that_was_not_replicated_is_lost_with_its_coordinator(cluster):
    """It was not acknowledged either."""
    first = coordinator(cluster, "g")
    for other in others(cluster, first):
        cluster.cluster.cut(first, other)
    assert isinstance(commit(cluster, first), Delayed)
    cluster.run(FAIL_OVER)
    cluster.cluster.heal()
    cluster.run(2.0)

    second = coordinator(cluster, "g")

    assert second != first
    assert (ErrorCode.NONE, {("t", 0): (0, -1)}) == committed(cluster, second)
    assert ErrorCode.NOT_COORDINATOR == committed(cluster, first)[0]


def test_members_that_wait_learn_that_the_coordinator_has_moved(cluster):
    """Their requests fail, and they ask the next one."""
    first = coordinator(cluster, "g")
    broker = cluster.brokers[first]
    joining = cluster.ask(first, join_request("g"), JOIN)
    member_id = joining.member_id
    # Another member that has not joined again keeps the first one waiting.
    assert ErrorCode.NONE == cluster.ask(first, join_request("g", member_id), JOIN).error_code
    other = cluster.ask(first, join_request("g"), JOIN).member_id
    waiting = cluster.ask(first, join_request("g", other), JOIN)
    assert isinstance(waiting, Delayed)

    cluster.shut_down(first)

    assert waiting.watched <= broker.take_changed()


def test_a_transaction_is_committed_where_its_leader_is(cluster):
    """Its marker is written by the leader, and consumers see the record."""
    producer, identity = begin(cluster)
    assert 0 == producer.latest()

    code, following = producer.end(identity, committed=True)

    assert (ErrorCode.NONE, (identity[0], identity[1] + 1)) == (code, following)
    assert 2 == producer.latest()
    assert [b"v"] == producer.read_committed()
    assert [(ErrorCode.NONE, 2)] == producer.produce(following, 0)


def test_a_write_that_the_coordinator_does_not_know_is_refused(cluster):
    """Before transaction.version 2, a partition must be added first."""
    producer, identity = begin(cluster)
    assert ErrorCode.NONE == producer.end(identity, committed=True)[0]
    _, identity = producer.init()

    [(code, _)] = producer.produce(identity, 0, version=11)

    assert ErrorCode.TRANSACTION_ABORTABLE == code


def test_a_decided_transaction_is_completed_by_the_next_coordinator():
    """The first one has responded, and ends before it has written the markers."""
    cluster = LocalCluster(settings=BrokerSettings(transaction_marker_delay_ms=1_000))
    cluster.run(0.5)
    cluster.create_topic("t", ask=1)
    producer, identity = begin(cluster)
    assert ErrorCode.NONE == producer.end(identity, committed=True)[0]

    cluster.kill(producer.coordinator)
    cluster.run(FAIL_OVER)

    assert 2 == producer.latest()
    assert [b"v"] == producer.read_committed()
    cluster.close()


def test_a_transaction_that_takes_too_long_is_aborted(cluster):
    """The coordinator ends it by itself."""
    producer, _ = begin(cluster)
    assert 0 == producer.latest()

    cluster.run(80.0)

    assert 2 == producer.latest()
    assert [] == producer.read_committed()


def test_an_open_transaction_survives_its_coordinator(cluster):
    """The next one knows its producer, and ends it."""
    producer, identity = begin(cluster)
    first = producer.coordinator

    cluster.kill(first)
    cluster.run(FAIL_OVER)

    assert producer.coordinator != first
    assert ErrorCode.NONE == producer.end(identity, committed=False)[0]
    assert 2 == producer.latest()
    assert [] == producer.read_committed()


def test_the_offsets_of_a_deleted_topic_are_deleted(cluster):
    """Whoever coordinates their group."""
    node_id = coordinator(cluster, "g")
    assert ErrorCode.NONE == commit(cluster, node_id)

    cluster.delete_topic("t", ask=1)

    assert (ErrorCode.NONE, {("t", 0): (0, -1)}) == committed(cluster, node_id)


def test_brokers_trust_each_other_where_clients_need_rights():
    """A transaction ends although no ACL allows brokers to write its markers."""
    settings = BrokerSettings(authorizer=True, super_users=("User:ANONYMOUS",))
    cluster = LocalCluster(settings=settings)
    cluster.run(0.5)
    cluster.create_topic("t", ask=1)
    producer, identity = begin(cluster)

    assert ErrorCode.NONE == producer.end(identity, committed=True)[0]

    assert 2 == producer.latest()
    cluster.close()
