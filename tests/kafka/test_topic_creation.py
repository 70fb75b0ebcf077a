"""Topics that do not exist yet, or were just created."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import BrokerError, ConfigError, DeliveryError, KafkaTimeoutError
from spark_kafka_sink.spark.sink.driver_checks import check_cluster
from tests.support.producer.producing import (
    append_all,
    produce,
    producer_for,
    refusal_after_patience,
)
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.record.rows import Row, arrow_batch
from tests.support.record.text_rows import numbered_batches
from tests.support.spark.missing_topics import MissingTopics
from tests.support.spark.refused_rows import refusal_of, set_aside


def test_a_topic_is_created_if_the_broker_allows_it(own_kafka):
    """Writing to a missing topic creates it with auto.create.topics.enable, as in Java."""
    topic = f"created-{uuid.uuid4().hex}"
    produce(own_kafka, numbered_batches(1000), topic=topic)
    assert RowCheck() == check_rows(read_numbers(own_kafka.bootstrap_servers, topic), 1000)


def test_a_missing_topic_is_an_error_without_auto_creation(kafka):
    """Without auto-creation, the first write to a missing topic raises an error that names it."""
    topic = f"missing-{uuid.uuid4().hex}"
    with producer_for(kafka, **{"max.block.ms": 1500}) as producer:
        refusal_after_patience(
            lambda: append_all(producer, [arrow_batch([Row(value=b"v")])], topic=topic),
            topic,
            KafkaTimeoutError,
        )


def test_newly_created_topics_keep_their_order(own_kafka):
    """Leaders not yet ready for a new topic reject its first batches, but no row is lost."""
    settings = {
        "batch.size": 16_384,
        "request.timeout.ms": 10_000,
        "delivery.timeout.ms": 120_000,
    }
    for _ in range(20):
        topic = own_kafka.create_topic(3, wait=False)
        produce(own_kafka, numbered_batches(5_000), topic=topic, **settings)
        assert RowCheck() == check_rows(read_numbers(own_kafka.bootstrap_servers, topic), 5_000)
        own_kafka.delete_topics([topic])


@pytest.mark.parametrize(
    "scenario",
    [
        MissingTopics.check_misspelled_name_is_rejected,
        MissingTopics.check_dry_run_creates_nothing,
        MissingTopics.check_misspelled_name_is_reported_with_its_row,
        MissingTopics.check_topic_of_row_is_created_only_with_option,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_a_spark_write_creates_topics_only_with_the_option(own_kafka, scenario):
    """A Spark write creates topics only with autoCreateTopics=true, and a check never does so."""

    def create_topic(name: str) -> None:
        own_kafka.create_topic(name=name)

    scenario(MissingTopics(own_kafka.bootstrap_servers, create_topic))


@pytest.mark.parametrize("name", ["a b", ""])
def test_an_invalid_topic_of_a_row_is_reported_with_its_row(kafka, name):
    """The error of a task names the first row with an invalid topic."""
    topic = kafka.create_topic(1)
    error = refusal_of(kafka.bootstrap_servers, [topic] * 3 + [name] * 2)
    assert (BrokerError, "INVALID_TOPIC_EXCEPTION", name) == (type(error), error.name, error.topic)
    assert str(error).startswith("row 3: ")


def test_rows_that_kafka_refuses_end_the_task_or_are_set_aside(kafka):
    """The row that is too large, and those without keys, are known by their numbers either way."""
    large, other, compacted, letters = (
        kafka.create_topic(1, config={"max.message.bytes": "5000"}),
        kafka.create_topic(1),
        kafka.create_topic(1, config={"cleanup.policy": "compact"}),
        kafka.create_topic(1, config={"max.message.bytes": "5000"}),
    )
    topics = [other] * 4 + [large] + [other] * 995
    values = [b"v"] * 4 + [bytes(6_000)] + [b"v"] * 995
    error = refusal_of(kafka.bootstrap_servers, topics, values, rows_per_batch=1_000)
    assert (DeliveryError, large, 0) == (type(error), error.topic, error.partition)
    assert str(error).startswith(f"1 record for {large}-0, row 4, was not delivered: ")

    options = SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "onError": "dlq",
            "dlqTopic": compacted,
        }
    )
    with pytest.raises(ConfigError, match=f"dlqTopic '{compacted}' has cleanup.policy=compact"):
        check_cluster(options, None, is_dry_run=True)

    topics[10:20] = [compacted] * 10
    keys = [None if row in {12, 17} else b"k" for row in range(1_000)]
    for transactional_id in (None, f"rows-{letters}"):
        written = set_aside(
            kafka.bootstrap_servers,
            topics,
            values,
            keys,
            dlq_topic=letters,
            transactional_id=transactional_id,
        )
        found = {place.topic: acks.records for place, acks in written.acks}
        assert {other: 989, compacted: 8, letters: 3} == found
        assert {"size": 1, "broker": 2} == dict(written.bad_rows.counts)
        first = {bad.row: bad.error for bad in written.bad_rows.first}
        assert {4, 12, 17} == set(first)
        assert "MESSAGE_TOO_LARGE" in first[4]
        assert "Compacted topic cannot accept message without key" in first[12]
