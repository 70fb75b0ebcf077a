"""`sourceConsumerGroup` on Apache Kafka: groups, rights, and the offsets that Spark recorded."""

from __future__ import annotations

import logging
import uuid

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.support.kafka.kafka_rights import Rights
from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.micro_batches import process_of_its_own
from tests.support.spark.source_groups import SourceStream, committed_offsets, joined_consumer
from tests.support.spark.streams import Checkpoint, run_to_end, to_kafka

_SECONDS = 120
WARNING = "not all of its source offsets were committed"


@pytest.fixture
def group():
    return f"lag-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def _own_process():
    with process_of_its_own():
        yield


def test_offsets_are_committed_for_each_batch(kafka, create_topic, tmp_path, caplog, group):
    """The offsets of each finished batch are committed to the group, also after a replay."""
    options = {
        "deliveryGuarantee": "exactly_once",
        "transactionalIdPrefix": group,
        "ledgerTopic": f"ledger-{group}",
    }
    topic, source = create_topic(), create_topic(2)
    stream = SourceStream(kafka.bootstrap_servers, tmp_path / "c", group, topic=topic, **options)
    with caplog.at_level(logging.WARNING):
        stream.note(0, f'{{"{source}":{{"0":2}}}}')
        stream.run(0, "a", "b")
        assert {(source, 0): 2} == committed_offsets(kafka.bootstrap_servers, group)
        stream.note(1, f'{{"{source}":{{"1":1,"0":4}}}}')
        for _ in range(2):
            stream.run(1, "c")
            expected = {(source, 0): 4, (source, 1): 1}
            assert expected == committed_offsets(kafka.bootstrap_servers, group)
    assert [] == [text for text in caplog.messages if WARNING in text]


def test_a_group_with_members_rejects_the_commit(kafka, create_topic, tmp_path, caplog, group):
    """While the group has a consumer, commits fail with a warning; the next batch catches up."""
    reject_and_catch_up(kafka, create_topic(2), tmp_path, caplog, group)


def test_a_group_of_the_new_protocol_rejects_the_commit_as_well(kafka_4, tmp_path, caplog, group):
    """While the group has a member with the new protocol (KIP-848), commits fail as well."""
    topic = kafka_4.create_topic(2)
    reject_and_catch_up(kafka_4, topic, tmp_path, caplog, group, group_protocol="consumer")


def reject_and_catch_up(kafka, topic, tmp_path, caplog, group, **settings):
    stream = SourceStream(kafka.bootstrap_servers, tmp_path / "c", group, topic=topic)
    stream.note(0, f'{{"{topic}":{{"0":0,"1":0}}}}')
    with (
        joined_consumer(kafka.bootstrap_servers, group, topic, **settings),
        caplog.at_level(logging.WARNING),
    ):
        stream.run(0, "a")
    [warned] = [text for text in caplog.messages if WARNING in text]
    assert "UNKNOWN_MEMBER_ID" in warned
    stream.note(1, f'{{"{topic}":{{"0":1,"1":1}}}}')
    stream.run(1, "b")
    expected = {(topic, 0): 1, (topic, 1): 1}
    assert expected == committed_offsets(kafka.bootstrap_servers, group)


def test_a_topic_unknown_to_the_cluster_is_named(kafka, create_topic, tmp_path, caplog, group):
    """An unknown topic is named in a warning; the offsets of other topics are committed."""
    topic = create_topic()
    stream = SourceStream(kafka.bootstrap_servers, tmp_path / "c", group, topic=topic)
    stream.note(0, f'{{"elsewhere-{group}":{{"0":7}},"{topic}":{{"0":1}}}}')
    with caplog.at_level(logging.WARNING):
        stream.run(0, "a")
    [warned] = [text for text in caplog.messages if WARNING in text]
    assert f"for elsewhere-{group}-0: " in warned
    assert "UNKNOWN_TOPIC_OR_PARTITION" in warned
    assert {(topic, 0): 1} == committed_offsets(kafka.bootstrap_servers, group)


def test_the_documented_permissions_are_necessary_and_sufficient(
    kafka_with_acls, tmp_path, caplog, group
):
    """READ on the group and on the source topics is enough; a warning names a missing right."""
    kafka = kafka_with_acls
    topic, source = kafka.create_topic(), kafka.create_topic()
    stream = SourceStream(kafka.bootstrap_servers, tmp_path / "c", group, topic=topic)
    stream.note(0, f'{{"{source}":{{"0":0}}}}')

    def warned(*parts):
        caplog.clear()
        stream.writer().commit([], 0)
        found = [text for text in caplog.messages if WARNING in text]
        return all(any(part in text for text in found) for part in parts) and (
            bool(parts) or not found
        )

    rights = Rights(kafka)
    try:
        rights.only(ResourceType.GROUP, group, AclOperation.DESCRIBE)
        with caplog.at_level(logging.WARNING):
            wait_for(lambda: warned("GROUP_AUTHORIZATION_FAILED", "requires READ on the group"))
            rights.only(ResourceType.GROUP, group, AclOperation.READ)
            rights.only(ResourceType.TOPIC, source, AclOperation.DESCRIBE)
            wait_for(lambda: warned("TOPIC_AUTHORIZATION_FAILED", "requires READ on the topics"))
            rights.only(ResourceType.TOPIC, source, AclOperation.READ)
            wait_for(warned)
    finally:
        rights.give_back()
    wait_for(lambda: {(source, 0): 0} == committed_offsets(kafka.bootstrap_servers, group))


def wait_for(is_so):
    wait_until(is_so, seconds=_SECONDS, what="rights to be known")


@pytest.mark.spark
def test_offsets_recorded_by_spark_are_committed(spark, kafka_4, tmp_path, group):
    """The group's offsets are those that Spark itself has recorded for the stream's source."""
    from pyspark.sql.datasource import (  # noqa: PLC0415 -- most runs start no Spark
        DataSource,
        DataSourceStreamReader,
        InputPartition,
    )

    topic, source = kafka_4.create_topic(), kafka_4.create_topic(2)

    # Spark's own Kafka source is not part of PySpark; this one has offsets in the same format.
    class Reader(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802 -- Spark's name
            return {source: {"0": 0, "1": 0}}

        def latestOffset(self):  # noqa: N802 -- Spark's name
            return {source: {"0": 3, "1": 4}}

        def partitions(self, start, end):
            return [InputPartition((start[source], end[source]))]

        def read(self, partition):
            start, end = partition.value
            for number in sorted(end):
                for offset in range(start[number], end[number]):
                    yield (f"{number}.{offset}",)

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "offsets_like_kafkas"

        def schema(self):
            return "value string"

        def streamReader(self, schema):  # noqa: N802 -- Spark's name
            return Reader()

    spark.dataSource.register(Source)
    df = spark.readStream.format("offsets_like_kafkas").load()
    options = {
        "kafka.bootstrap.servers": kafka_4.bootstrap_servers,
        "topic": topic,
        "sourceConsumerGroup": group,
    }
    run_to_end(to_kafka(df, Checkpoint(tmp_path), **options))
    assert 7 == sum(kafka_4.end_offsets(topic).values())
    expected = {(source, 0): 3, (source, 1): 4}
    assert expected == committed_offsets(kafka_4.bootstrap_servers, group)
