"""Admin clients of other projects: brokers, leaders, replicas, directories and controllers."""

from __future__ import annotations

import warnings

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function of Python.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    from kafka.structs import TopicPartitionReplica

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),
    pytest.mark.usefixtures("kafka_python_sockets_closed"),
]

TIMEOUT = 60.0
TOPIC = "t"
FIRST = kafka.TopicPartition(TOPIC, 0)


@pytest.fixture
def cluster():
    """Yield three brokers; broker 1 leads the first of two partitions, and has been restarted."""
    with DevBroker(brokers=3, topics={TOPIC: 2}) as cluster:
        cluster.stop(1)
        cluster.start(1)
        yield cluster


@pytest.fixture
def admin(cluster):
    client = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    yield client
    client.close()


def test_kafka_python_infers_the_version(admin):
    """The versions of the broker's requests are those of Kafka 4."""
    assert admin.get_broker_version_data(1).broker_version >= (4, 2)


def test_kafka_python_describes_settings_of_a_broker(cluster, admin):
    """A broker's own settings are static, and cannot be changed."""
    broker = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.BROKER, 2)

    [described] = admin.describe_configs([broker], config_filter="all")["broker"].values()

    listeners = described["advertised.listeners"]
    assert ("STATIC_BROKER_CONFIG", True, "LIST", f"PLAINTEXT://{cluster.addresses[2]}") == (
        listeners["config_source"],
        listeners["read_only"],
        listeners["config_type"],
        listeners["value"],
    )


def test_kafka_python_elects_leaders(cluster, admin):
    """The preferred leader leads again; the other partition needs no election."""
    answer = admin.elect_leaders(0, {TOPIC: [0, 1]}, raise_errors=False)

    [result] = answer.replica_election_results
    assert [(0, 0), (1, ErrorCode.ELECTION_NOT_NEEDED)] == [
        (partition[0], partition[1]) for partition in result[1]
    ]
    assert 1 == cluster.leader(TOPIC, 0)


def test_kafka_python_moves_partitions(cluster, admin):
    """A move waits for a stopped broker, and is listed until then."""
    assert {FIRST: None} == admin.alter_partition_reassignments({FIRST: [1, 2]})
    cluster.stop(3)
    assert {FIRST: None} == admin.alter_partition_reassignments({FIRST: [3]})

    moving = {"replicas": [3, 1, 2], "adding_replicas": [3], "removing_replicas": [1, 2]}
    assert {FIRST: moving} == {
        place: {name: list(values) for name, values in found.items()}
        for place, found in admin.list_partition_reassignments().items()
    }
    cluster.start(3)
    assert {} == admin.list_partition_reassignments([FIRST])
    assert 3 == cluster.leader(TOPIC, 0)


def test_kafka_python_describes_directories(admin):
    """Each broker has one, in which its replicas stay."""
    described = {found["broker"]: found["log_dirs"] for found in admin.describe_log_dirs()}

    assert {1, 2, 3} == described.keys()
    assert {0} == {found["error_code"] for each in described.values() for found in each}
    replica = TopicPartitionReplica(TOPIC, 0, 2)
    moved = admin.alter_replica_log_dirs({replica: described[2][0]["log_dir"]})
    assert 0 == moved[replica].errno


def test_kafka_python_describes_the_quorum(admin):
    """The brokers are the voters, and one of them leads."""
    [topic] = admin.describe_metadata_quorum()["topics"]

    [partition] = topic["partitions"]
    assert ("__cluster_metadata", None, [1, 2, 3]) == (
        topic["topic_name"],
        partition["error"],
        [voter["replica_id"] for voter in partition["current_voters"]],
    )


def test_kafka_python_reads_pages_of_partitions(admin):
    """A page has as many partitions as requested, and a cursor of the next one."""
    page = admin.describe_topic_partitions([TOPIC], response_partition_limit=1)
    rest = admin.describe_topic_partitions([TOPIC], cursor=page["next_cursor"])

    assert [[0], [1]] == [
        [partition["partition_index"] for partition in found["topics"][0]["partitions"]]
        for found in (page, rest)
    ]
    assert None is rest["next_cursor"]


def test_kafka_python_lists_what_has_settings(admin):
    """Brokers and topics are among it."""
    listed = admin.list_config_resources()

    assert {"1", "2", "3"} == set(listed["broker"])
    assert [TOPIC] == list(listed["topic"])


def test_librdkafka_describes_settings_of_a_broker(cluster):
    """A setting of a broker that is the default of topics can be changed; others cannot."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    described = admin.describe_configs([ConfigResource("broker", "2")])

    [entries] = [future.result(TIMEOUT) for future in described.values()]
    values = {name: (entry.value, entry.is_read_only) for name, entry in entries.items()}
    assert ("2", True) == values["node.id"]
    assert ("1", True) == values["num.partitions"]
    assert ("delete", False) == values["log.cleanup.policy"]


def test_librdkafka_elects_leaders(cluster):
    """The preferred leader leads again."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    place = TopicPartition(TOPIC, 0)

    elected = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(TIMEOUT)

    assert {place: None} == elected
    assert 1 == cluster.leader(TOPIC, 0)
