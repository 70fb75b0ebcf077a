"""Missing rights are reported before a job runs, or with the records that they affect."""

from __future__ import annotations

import re

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from spark_kafka_sink.admin.cluster_check import TopicDescription, describe_topics
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import BrokerError, DeliveryError
from spark_kafka_sink.spark.data_source import KafkaSink
from tests.support.kafka.kafka_rights import Rights
from tests.support.producer.producing import append_all, producer_for
from tests.support.record.rows import Row, arrow_batch
from tests.support.spark.refused_rows import refusal_of


def _restricted_topic(kafka, *allowed: AclOperation) -> str:
    """Create a topic on which clients other than its owner may do only what is `allowed`."""
    topic = kafka.create_topic(2)
    Rights(kafka).only(ResourceType.TOPIC, topic, *allowed)
    return topic


def _describe(kafka, topic: str) -> TopicDescription:
    config = ProducerConfig.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    return describe_topics(config, [topic], is_dry_run=True, timeout=60)[topic]


def test_the_write_permission_is_known_before_a_job_runs(kafka_with_acls):
    """The description of a topic says that the client may write to it."""
    topic = _restricted_topic(kafka_with_acls, AclOperation.DESCRIBE, AclOperation.WRITE)
    assert TopicDescription(topic, 2, can_write=True) == _describe(kafka_with_acls, topic)


def test_a_missing_write_permission_is_known_before_a_job_runs(kafka_with_acls):
    """The description of a topic says that the client may not write to it."""
    topic = _restricted_topic(kafka_with_acls, AclOperation.DESCRIBE)
    assert TopicDescription(topic, 2, can_write=False) == _describe(kafka_with_acls, topic)


def test_a_topic_that_may_not_be_described_is_an_error_at_once(kafka_with_acls):
    """The broker's refusal to describe a topic raises an error that names it, without a retry."""
    topic = _restricted_topic(kafka_with_acls)
    with pytest.raises(BrokerError, match=rf"{topic}.*TOPIC_AUTHORIZATION_FAILED"):
        _describe(kafka_with_acls, topic)


def test_a_check_names_the_missing_permission(kafka_with_acls, spark):
    """`KafkaSink.check` raises an error that names the missing right and the topic."""
    topic = _restricted_topic(kafka_with_acls, AclOperation.DESCRIBE)
    options = {"kafka.bootstrap.servers": kafka_with_acls.bootstrap_servers, "topic": topic}
    with pytest.raises(BrokerError, match=rf"{topic}.*not authorized to write.*WRITE"):
        KafkaSink.check(spark.range(1).selectExpr("string(id) value"), options)


def test_a_rejected_batch_names_its_rows_and_the_missing_permission(kafka_with_acls):
    """A write rejected by the broker for a missing right fails with what to do."""
    topic = _restricted_topic(kafka_with_acls, AclOperation.DESCRIBE)
    producer = producer_for(kafka_with_acls)
    append_all(producer, [arrow_batch([Row(value=b"v")] * 3)], topic=topic)
    with pytest.raises(
        DeliveryError, match=rf"3 records for {topic}-.*rows 0 to 2.*Grant this user WRITE"
    ):
        producer.flush()
    producer.close(0)


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ((), r"row 3: .*topic '{topic}': .*TOPIC_AUTHORIZATION_FAILED.* Grant this user WRITE"),
        (
            (AclOperation.DESCRIBE,),
            r"2 records for {topic}-0, .*TOPIC_AUTHORIZATION_FAILED.* The first of them is row 3\.",
        ),
    ],
    ids=["no DESCRIBE", "no WRITE"],
)
def test_a_forbidden_topic_of_a_row_is_reported_with_its_row(kafka_with_acls, allowed, message):
    """The error of a task names the first row whose topic may not be described, or not written."""
    topic, other = _restricted_topic(kafka_with_acls, *allowed), kafka_with_acls.create_topic(1)
    error = refusal_of(kafka_with_acls.bootstrap_servers, [other] * 3 + [topic] * 2)
    assert re.match(message.format(topic=topic), str(error)), error
    assert topic == error.topic
