"""What a cluster consists of: directories, controllers, pages of partitions, and resources."""

from __future__ import annotations

import os

import pytest

from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_config_resources import ListConfigResourcesRequest
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.admin_requests import (
    BROKER,
    BROKER_LOGGER,
    TOPIC,
    alter_replica_log_dirs,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
)
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.record.plain_batches import plain_batch

OK = ErrorCode.NONE
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD = ErrorCode.INVALID_REQUEST
BATCH = plain_batch(2)


@pytest.fixture
def broker():
    return broker_with({"t": 2, "u": 1})


class TestLogDirs:
    """DescribeLogDirs and AlterReplicaLogDirs."""

    def sizes(self, directory):
        """Return the size of each replica."""
        return {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in directory.topics
            for partition in topic.partitions
        }

    def test_a_directory_lists_its_replicas(self, broker):
        """Every partition has the size of its log in bytes, and nothing lags."""
        log = broker.cluster.topic("t").partitions[1].log
        log.append(memoryview(BATCH), decode_header(BATCH))

        [directory] = ask(broker, describe_log_dirs()).results

        expected = {("t", 0): 0, ("t", 1): len(BATCH), ("u", 0): 0}
        assert expected == self.sizes(directory)
        assert (OK, "/memory", -1, -1) == (
            directory.error_code,
            directory.log_dir,
            directory.total_bytes,
            directory.usable_bytes,
        )

    @pytest.mark.parametrize("version", [1, 5])
    def test_partitions_are_chosen(self, broker, version):
        """Only the requested partitions are listed, those that exist."""
        request = describe_log_dirs({"t": [1, 1, 7], "no": [0]})

        [directory] = ask(broker, request, version).results

        assert {("t", 1): 0} == self.sizes(directory)
        assert () == ask(broker, describe_log_dirs({})).results[0].topics

    def test_a_directory_on_disk_has_a_path_and_a_size(self, tmp_path):
        """The directory is the data directory, and the sizes are those of its disk."""
        cluster = StandaloneCluster(data_dir=tmp_path / "data")
        broker = Broker(cluster=cluster)
        cluster.open(NOW)
        try:
            [directory] = ask(broker, describe_log_dirs()).results
        finally:
            cluster.close(NOW)

        disk = os.statvfs(tmp_path)
        assert str(tmp_path / "data") == directory.log_dir
        assert disk.f_blocks * disk.f_frsize == directory.total_bytes
        assert 0 < directory.usable_bytes <= directory.total_bytes

    @pytest.mark.parametrize(
        ("path", "partition", "expected"),
        [
            ("/memory", ("t", 0), OK),
            ("/memory", ("t", 7), MISSING),
            ("/memory", ("no", 0), MISSING),
            ("/elsewhere", ("t", 0), ErrorCode.LOG_DIR_NOT_FOUND),
            ("/memory", ("x" * 230, 0), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ],
    )
    def test_replicas_stay_in_the_only_directory(self, broker, path, partition, expected):
        """A move to where a replica is succeeds, and there is no other directory."""
        topic, index = partition

        [result] = ask(broker, alter_replica_log_dirs(path, {topic: [index]})).results

        assert (topic, [(index, expected)]) == (
            result.topic_name,
            [(p.partition_index, p.error_code) for p in result.partitions],
        )


class TestQuorum:
    """DescribeQuorum."""

    def test_the_only_broker_leads(self, broker):
        """It votes for itself, and its metadata are written at once."""
        [partition] = ask(broker, describe_quorum()).topics[0].partitions
        [voter] = partition.current_voters

        assert (1, 1, 1) == (partition.leader_id, partition.leader_epoch, voter.replica_id)
        assert partition.high_watermark == voter.log_end_offset > 0

    @pytest.mark.parametrize("version", range(3))
    def test_every_version_has_voters(self, broker, version):
        """Version 1 adds times, which are those of the request, and version 2 addresses."""
        response = ask(broker, describe_quorum(), version)

        [voter] = response.topics[0].partitions[0].current_voters
        assert (int(NOW * 1000) if version else -1) == voter.last_caught_up_timestamp
        assert (1 if version > 1 else 0) == len(response.nodes)

    def test_other_partitions_have_no_quorum(self, broker):
        """Only the partition of the metadata is described."""
        for request in (describe_quorum("t", 0, 1), describe_quorum("__cluster_metadata", 1)):
            partitions = ask(broker, request).topics[0].partitions
            assert {MISSING} == {partition.error_code for partition in partitions}


class TestTopicPartitions:
    """DescribeTopicPartitions."""

    def page(self, broker, *topics, **more):
        """Return the topics of a page with their partitions, and the cursor of the next one."""
        response = ask(broker, describe_topic_partitions(*topics, **more))
        cursor = response.next_cursor
        return [
            (topic.name, topic.error_code, [p.partition_index for p in topic.partitions])
            for topic in response.topics
        ], cursor and (cursor.topic_name, cursor.partition_index)

    def test_topics_are_in_the_order_of_their_names(self, broker):
        """Each requested topic is there once, and all topics without a request for some."""
        everything = ([("t", OK, [0, 1]), ("u", OK, [0])], None)

        assert everything == self.page(broker, "u", "t", "u")
        assert everything == self.page(broker)

    def test_a_page_ends_within_a_topic_or_after_it(self, broker):
        """The cursor of one page is where the next one begins."""
        assert ([("t", OK, [0])], ("t", 1)) == self.page(broker, most=1)
        rest = ([("t", OK, [1]), ("u", OK, [0])], None)
        assert rest == self.page(broker, most=2, cursor=("t", 1))
        assert ([("t", OK, [0, 1])], ("u", 0)) == self.page(broker, "u", "t", most=2)
        assert ([("u", OK, [0])], None) == self.page(broker, most=0, cursor=("tt", 0))
        assert ([("t", OK, [])], None) == self.page(broker, "t", cursor=("t", 9))

    def test_missing_topics_are_on_the_page(self, broker):
        """A topic that does not exist takes no place of partitions."""
        expected = [
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
            ("no", MISSING, []),
            ("t", OK, [0]),
        ]
        assert (expected, ("t", 1)) == self.page(broker, "no", "t", "a b", most=1)

    @pytest.mark.parametrize("cursor", [("u", 0), ("t", -1)])
    def test_a_cursor_elsewhere_is_refused(self, broker, cursor):
        """A cursor is on one of the topics, and not before its first partition."""
        assert ([("t", BAD, [])], None) == self.page(broker, "t", cursor=cursor)


class TestConfigResources:
    """ListConfigResources."""

    def listed(self, broker, *types, version=1):
        """Return the error code, and the types and names of the resources."""
        response = ask(broker, ListConfigResourcesRequest(resource_types=types), version)
        return response.error_code, [
            (resource.resource_type, resource.resource_name)
            for resource in response.config_resources
        ]

    def test_brokers_loggers_and_topics_have_settings(self, broker):
        """Without types, all resources are listed, and otherwise those of the types."""
        everything = [(BROKER_LOGGER, "1"), (BROKER, "1"), (TOPIC, "t"), (TOPIC, "u")]

        assert (OK, everything) == self.listed(broker)
        assert (OK, [(TOPIC, "t"), (TOPIC, "u")]) == self.listed(broker, TOPIC)
        assert (OK, []) == self.listed(broker, 16, 32)
        assert (OK, []) == self.listed(broker, version=0)

    def test_an_unknown_type_is_refused(self, broker):
        """Kafka answers a type that it does not know as a version that it does not have."""
        assert (ErrorCode.UNSUPPORTED_VERSION, []) == self.listed(broker, TOPIC, 99)
