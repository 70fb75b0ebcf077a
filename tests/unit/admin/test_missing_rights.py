"""Missing rights are reported before a job runs, or with the records that they affect."""

from __future__ import annotations

import pytest

from spark_kafka_sink import AdminClient, KafkaConsumer, KafkaProducer
from spark_kafka_sink.admin.cluster_check import TopicDescription, describe_topics
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import AdminError, BrokerError, DeliveryError, KafkaError
from tests.support.devbroker.broker_rights import allow, guarded_broker
from tests.support.producer.producing import append_all, producer_for
from tests.support.record.rows import Row, arrow_batch


@pytest.fixture
def broker():
    with guarded_broker("t", "other") as broker:
        yield broker


def describe(broker):
    config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    return describe_topics(config, ["t"], is_dry_run=True, timeout=60)["t"]


@pytest.mark.parametrize(("operation", "can_write"), [("WRITE", True), ("DESCRIBE", False)])
def test_the_write_permission_is_known_before_a_job_runs(broker, operation, can_write):
    """The description of a topic says whether the client may write to it."""
    allow(broker, (operation, "TOPIC", "t"))

    assert TopicDescription("t", 2, can_write=can_write) == describe(broker)


def test_a_topic_that_may_not_be_described_is_an_error_at_once(broker):
    """The broker's refusal to describe a topic raises an error that names it, without a retry."""
    with pytest.raises(BrokerError, match=r"'?t'?.*TOPIC_AUTHORIZATION_FAILED"):
        describe(broker)


def test_a_rejected_batch_names_its_rows_and_the_missing_permission(broker):
    """A write rejected by the broker for a missing right fails with what to do."""
    allow(broker, ("DESCRIBE", "TOPIC", "t"), ("IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster"))
    producer = producer_for(broker)
    append_all(producer, [arrow_batch([Row(value=b"v")] * 3)], topic="t")

    with pytest.raises(
        DeliveryError, match=r"3 records for t-.*rows 0 to 2.*Grant this user WRITE"
    ):
        producer.flush()
    producer.close(0)


def test_a_right_to_write_any_topic_suffices_for_idempotence(broker):
    """A producer needs no right on the cluster (KIP-679)."""
    allow(broker, ("WRITE", "TOPIC", "t"))

    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("t", b"v").result(timeout=60)

    assert 1 == sum(map(len, broker.records("t").values()))


def test_a_missing_right_on_a_transactional_id_is_named(broker):
    """A transactional producer that may not use its id fails with the code."""
    allow(broker, ("WRITE", "TOPIC", "t"))
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"}

    with (
        KafkaProducer(settings) as producer,
        pytest.raises(KafkaError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ):
        producer.init_transactions()


def test_a_missing_right_on_a_group_is_named(broker):
    """A consumer that may not join its group fails with the code."""
    allow(broker, ("READ", "TOPIC", "t"))
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}

    with KafkaConsumer(settings) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            consumer.poll(60.0)


def test_an_administrator_without_rights_sees_what_it_may(broker):
    """Lists leave out what the client may not see, and a change is refused by name."""
    allow(broker, ("DESCRIBE", "TOPIC", "t"))

    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert ["t"] == sorted(admin.list_topics())
        with pytest.raises(AdminError, match="TOPIC_AUTHORIZATION_FAILED"):
            admin.delete_topics(["t"])
