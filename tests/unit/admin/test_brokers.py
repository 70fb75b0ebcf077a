"""Directories, leaders, replicas and controllers, in the public admin client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink import (
    AdminClient,
    AdminError,
    AlterConfigOp,
    BrokerError,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ElectionType,
    IllegalStateError,
    NetworkError,
    PartitionReassignment,
    TopicPartition,
    TopicPartitionReplica,
)
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AlterResponse, AnswerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.admin.admin_errors import failed
from tests.support.admin.late_calls import end_at_back_off

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)
MISSING = TopicPartition("missing", 0)


@pytest.fixture
def cluster():
    """Yield three brokers; each partition has two replicas."""
    with DevBroker(brokers=3) as started:
        started.create_topic("data", partitions=2, replication_factor=2)
        yield started


@pytest.fixture
def their_admin(cluster):
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "retry.backoff.ms": 10}
    with AdminClient(settings) as client:
        yield client


# --- directories


def test_each_broker_describes_its_own_replicas(their_admin):
    """The directories of several brokers are asked from each of them."""
    described = their_admin.describe_log_dirs([1, 2, 3])

    assert {1: {FIRST}, 2: {FIRST, SECOND}, 3: {SECOND}} == {
        broker: set(directory.replica_infos)
        for broker, directories in described.items()
        for directory in directories.values()
    }
    [directory] = described[1].values()
    info = directory.replica_infos[FIRST]
    assert (0, 0, False) == (info.size, info.offset_lag, info.is_future)
    assert (None, None, None, False) == (
        directory.error,
        directory.total_bytes,
        directory.usable_bytes,
        directory.is_cordoned,
    )


def test_a_directory_that_cannot_be_used_says_why(broker, admin):
    """The error of a directory does not keep others from being described."""

    def damaged(response):
        [directory] = response.results
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return replace(response, results=(replace(directory, error_code=code),))

    broker.on(ApiKey.DESCRIBE_LOG_DIRS, AlterResponse(damaged))

    [directory] = admin.describe_log_dirs([1])[1].values()

    assert "KAFKA_STORAGE_ERROR" == directory.error.name


def test_a_broker_that_is_not_running_has_no_directories(admin, monkeypatch):
    """Only the broker itself knows them, so it is waited for until the timeout."""
    end_at_back_off(monkeypatch)
    with pytest.raises(AdminError) as caught:
        admin.describe_log_dirs([1, 7])

    assert ({1}, {7}) == (caught.value.results.keys(), caught.value.errors.keys())
    cause = caught.value.errors[7].__cause__
    assert isinstance(cause, NetworkError)
    assert "broker 7 is not running" in str(cause)


def test_replicas_are_moved_to_directories(their_admin, monkeypatch):
    """Each broker gets its own replicas; a directory that it does not have is an error."""
    end_at_back_off(monkeypatch)
    [path] = their_admin.describe_log_dirs([1])[1]
    replicas = [TopicPartitionReplica("data", 0, broker) for broker in (1, 2, 3, 9)]

    with pytest.raises(AdminError) as caught:
        their_admin.alter_replica_log_dirs(
            {replicas[0]: path, replicas[1]: "/no-such", replicas[2]: path, replicas[3]: path}
        )

    assert {replicas[0]: None} == caught.value.results
    errors = caught.value.errors
    assert "LOG_DIR_NOT_FOUND" == errors[replicas[1]].name
    # A broker may be about to get a replica, or to start.
    assert "REPLICA_NOT_AVAILABLE" == errors[replicas[2]].__cause__.name
    assert isinstance(errors[replicas[3]].__cause__, NetworkError)


# --- leaders and replicas


def test_a_preferred_leader_leads_again(cluster, their_admin):
    """An election returns whether the leader has changed, for all partitions or for some."""
    cluster.stop(1)
    cluster.start(1)

    assert {FIRST: True} == their_admin.elect_leaders(ElectionType.PREFERRED)
    assert {} == their_admin.elect_leaders(ElectionType.PREFERRED)
    assert {FIRST: False, SECOND: False} == their_admin.elect_leaders(
        ElectionType.UNCLEAN, [FIRST, SECOND]
    )
    assert 1 == cluster.leader("data", 0)


def test_an_election_that_cannot_be_is_an_error_of_its_partition(cluster, their_admin):
    """The error of a stopped leader is final, and so is a partition that does not exist."""
    cluster.stop(1)

    with pytest.raises(AdminError) as caught:
        their_admin.elect_leaders(ElectionType.PREFERRED, [FIRST, SECOND, MISSING])

    assert {
        FIRST: "PREFERRED_LEADER_NOT_AVAILABLE",
        MISSING: "UNKNOWN_TOPIC_OR_PARTITION",
    } == failed(caught)
    assert {SECOND: False} == caught.value.results


def test_partitions_move_to_other_brokers(cluster, their_admin):
    """A move waits for a stopped broker, is listed until it ends, and can be cancelled."""
    cluster.stop(3)
    their_admin.alter_partition_reassignments({FIRST: [3, 2]})
    moving = PartitionReassignment(replicas=(3, 2, 1), adding_replicas=(3,), removing_replicas=(1,))
    assert {FIRST: moving} == their_admin.list_partition_reassignments()
    assert {} == their_admin.list_partition_reassignments([SECOND, MISSING])

    their_admin.alter_partition_reassignments({FIRST: None})
    assert {} == their_admin.list_partition_reassignments([FIRST])

    their_admin.alter_partition_reassignments({FIRST: [2]})
    [partition, _] = their_admin.describe_topics(["data"])["data"].partitions
    assert [2] == [node.node_id for node in partition.replicas]


def test_a_wrong_move_is_an_error_of_its_partition(admin):
    """The other partitions are moved."""
    with pytest.raises(AdminError) as caught:
        admin.alter_partition_reassignments({FIRST: [7], SECOND: [1], MISSING: None})

    assert {
        FIRST: "INVALID_REPLICA_ASSIGNMENT",
        MISSING: "UNKNOWN_TOPIC_OR_PARTITION",
    } == failed(caught)
    assert {SECOND: None} == caught.value.results


def test_a_refused_request_is_an_error_of_each_move(broker, admin):
    """An error of the whole request is that of all its partitions."""
    broker.on(ApiKey.ALTER_PARTITION_REASSIGNMENTS, AnswerError(ErrorCode.POLICY_VIOLATION))

    with pytest.raises(AdminError) as caught:
        admin.alter_partition_reassignments({FIRST: [1], SECOND: [1]})

    assert {FIRST: "POLICY_VIOLATION", SECOND: "POLICY_VIOLATION"} == failed(caught)


# --- controllers and settings


def test_the_controllers_are_described(cluster, their_admin):
    """Each broker votes, and one of them leads."""
    cluster.stop(1)

    quorum = their_admin.describe_metadata_quorum()

    # Any broker may have been the first leader.
    assert quorum.leader_id in {2, 3}
    assert quorum.leader_epoch > 0
    assert ([1, 2, 3], ()) == ([voter.replica_id for voter in quorum.voters], quorum.observers)
    assert [None, quorum.high_watermark] == [it.log_end_offset for it in quorum.voters[:2]]
    assert {2, 3} == quorum.addresses.keys()
    assert quorum.addresses[2] == (f"PLAINTEXT://{cluster.addresses[2]}",)


@pytest.mark.parametrize(
    ("api_key", "call"),
    [
        (ApiKey.DESCRIBE_QUORUM, lambda admin: admin.describe_metadata_quorum()),
        (ApiKey.LIST_CONFIG_RESOURCES, lambda admin: admin.list_config_resources()),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, lambda admin: admin.list_partition_reassignments()),
        (ApiKey.ELECT_LEADERS, lambda admin: admin.elect_leaders(ElectionType.PREFERRED)),
    ],
)
def test_a_refused_request_is_one_error(broker, admin, api_key, call):
    """What is not about items raises the error of the broker itself."""
    broker.on(api_key, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    with pytest.raises(BrokerError) as caught:
        call(admin)

    assert "CLUSTER_AUTHORIZATION_FAILED" == caught.value.name


def test_what_has_settings_is_listed(broker, admin):
    """Resources are listed by type; one of a newer type is left out."""
    broker_1 = ConfigResource(ConfigResourceType.BROKER, "1")
    topics = [ConfigResource(ConfigResourceType.TOPIC, name) for name in ("data", "more")]
    assert topics == admin.list_config_resources([ConfigResourceType.TOPIC])
    logger = ConfigResource(ConfigResourceType.BROKER_LOGGER, "1")
    assert [logger, broker_1, *topics] == admin.list_config_resources()

    def newer(response):
        resource = replace(response.config_resources[0], resource_type=99)
        return replace(response, config_resources=(resource,))

    broker.on(ApiKey.LIST_CONFIG_RESOURCES, AlterResponse(newer))
    assert [] == admin.list_config_resources()


def test_settings_of_all_brokers_are_changed(admin):
    """The empty name is every broker; topics have the new default."""
    brokers = ConfigResource(ConfigResourceType.BROKER, "")
    topic = ConfigResource(ConfigResourceType.TOPIC, "data")

    admin.incremental_alter_configs({brokers: [AlterConfigOp("log.retention.ms", "1000")]})

    entry = admin.describe_configs([topic])[topic]["retention.ms"]
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert ("1000", source) == (entry.value, entry.source)
    assert {"log.retention.ms"} == admin.describe_configs([brokers])[brokers].keys()


# --- arguments


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda admin: admin.describe_log_dirs("1"), "broker_ids are a list of broker ids"),
        (lambda admin: admin.describe_log_dirs(["1"]), "each of broker_ids is a number"),
        (lambda admin: admin.alter_replica_log_dirs({FIRST: "/x"}), "TopicPartitionReplica"),
        (
            lambda admin: admin.alter_replica_log_dirs({TopicPartitionReplica("data", 0, 1): 1}),
            "the directory of data-0 on broker 1",
        ),
        (lambda admin: admin.elect_leaders(0), "election_type must be of the type ElectionType"),
        (lambda admin: admin.elect_leaders(ElectionType.PREFERRED, "data"), "partitions are"),
        (lambda admin: admin.alter_partition_reassignments([FIRST]), "must be a mapping"),
        (lambda admin: admin.alter_partition_reassignments({FIRST: 1}), "list of broker ids"),
        (lambda admin: admin.list_config_resources([2]), "ConfigResourceType"),
        (lambda _: TopicPartitionReplica("data", "0", 1), "the partition of a TopicPartitionRe"),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(admin, call, message):
    """A value of a wrong type is an error that names the argument."""
    with pytest.raises(TypeError, match=message):
        call(admin)


def test_calls_about_nothing_need_no_broker():
    """A call without items returns nothing, and is an error only of a closed client."""
    with AdminClient({"bootstrap.servers": "localhost:1"}) as admin:
        assert {} == admin.describe_log_dirs([])
        assert {} == admin.elect_leaders(ElectionType.PREFERRED, [])
        assert {} == admin.list_partition_reassignments([])
        assert None is admin.alter_replica_log_dirs({})
        assert None is admin.alter_partition_reassignments({})
    with pytest.raises(IllegalStateError):
        admin.elect_leaders(ElectionType.PREFERRED, [])
