from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from spark_kafka_sink.admin import cluster_check
from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import BrokerError, KafkaTimeoutError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.sink.driver_checks import check_cluster
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from tests.support.network.leaps import SECONDS, leap, leap_at_first_contact
from tests.support.spark.missing_topics import MissingTopics, impatient_producers


@pytest.fixture
def broker():
    with DevBroker(auto_create_topics=True) as started:
        yield started


@pytest.fixture
def leaping(monkeypatch):
    """Make the driver's check give up as soon as a broker has said that the topic is missing."""
    leap_at_first_contact(monkeypatch)


@pytest.fixture
def missing_topics(broker, leaping):
    return MissingTopics(broker.bootstrap_servers, broker.create_topic)


def options(broker, **more):
    return SinkOptions.from_mapping(
        {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders", **more}
    )


def test_a_misspelled_topic_is_rejected(missing_topics):
    """A missing topic is an error that lists similar names, and is not created."""
    missing_topics.check_misspelled_name_is_rejected()


def test_a_check_has_no_side_effects(missing_topics):
    """`KafkaSink.check` creates no topic, even where the write would."""
    missing_topics.check_dry_run_creates_nothing()


def test_a_misspelled_topic_of_a_row_is_reported_with_its_row(missing_topics):
    """The error names the row, its topic and similar names."""
    missing_topics.check_misspelled_name_is_reported_with_its_row()


def test_a_misspelled_topic_of_a_row_is_an_error_even_if_topics_cannot_be_listed(broker):
    """The error names the topic and says why it suggests no similar names."""

    def refuse_lists(request, _):
        return AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR) if request.topics is None else None

    broker.on(ApiKey.METADATA, refuse_lists, expect=True)
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], "topic": ["unheard-of"]})
    config = options(broker).producer
    producers = impatient_producers(config, "unheard-of")
    with pytest.raises(
        KafkaTimeoutError, match=r"topic 'unheard-of' is not known.*not be listed \("
    ):
        write_rows([batch], producers=producers, topic=None, config=config)


def test_a_topic_created_meanwhile_does_not_change_the_error(broker, monkeypatch):
    """If the topic was created meanwhile, the original error and its cause are raised."""
    monkeypatch.setattr(cluster_check, "list_topics", lambda _: {"late"})
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], "topic": ["late"]})
    config = options(broker).producer
    producers = impatient_producers(config, "late")
    with pytest.raises(KafkaTimeoutError, match=r"^topic 'late' is not known") as caught:
        write_rows([batch], producers=producers, topic=None, config=config)
    assert isinstance(caught.value.__cause__, BrokerError)
    assert caught.value.__cause__.__cause__ is None


def test_tasks_respect_auto_create_topics_too(missing_topics):
    """A topic named by a row is created only with autoCreateTopics=true."""
    missing_topics.check_topic_of_row_is_created_only_with_option()


@pytest.mark.usefixtures("leaping")
def test_a_name_unlike_any_other_is_rejected_without_suggestions(broker):
    """The error says that no topic has a similar name."""
    with pytest.raises(BrokerError, match=r"'orders' does not exist.*no topic has a similar name"):
        check_cluster(options(broker), "orders", is_dry_run=True)


@pytest.mark.usefixtures("leaping")
def test_a_missing_topic_is_an_error_even_if_topics_cannot_be_listed(broker):
    """The error names the topic and says why it suggests no similar names."""

    def refuse_lists(request, _):
        return AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR) if request.topics is None else None

    broker.on(ApiKey.METADATA, refuse_lists, expect=True)
    with pytest.raises(BrokerError, match=r"'orders' does not exist.*could not be listed"):
        check_cluster(options(broker), "orders", is_dry_run=True)


def test_a_topic_created_during_the_check_is_found(broker):
    """The check retries, since a new topic is not known to all brokers at once."""
    broker.create_topic("orders", partitions=2)
    broker.on(ApiKey.METADATA, AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), times=2)
    assert 2 == check_cluster(options(broker), "orders", is_dry_run=True)


def test_the_option_survives_pickling_with_references(monkeypatch):
    """A configuration with references is resolved again when unpickled, and keeps the option."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    monkeypatch.setenv("LOGIN", f'{module} required username="u" password="p";')
    given = {
        "kafka.bootstrap.servers": "localhost:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "${env:LOGIN}",
        "topic": "events",
    }
    for value in (True, False):
        parsed = SinkOptions.from_mapping({**given, "autoCreateTopics": str(value)})
        again = pickle.loads(pickle.dumps(parsed))  # noqa: S301 -- our own bytes
        assert value is again.producer.allow_auto_create_topics


def test_describing_a_topic_does_not_create_it(broker):
    """The admin client never creates the topics that it queries, even if producers may."""
    config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    assert config.allow_auto_create_topics
    with DriverClient(config) as admin:
        questions = []

        def leap_after_an_answer(request, _):
            if request.topics:
                questions.append(request)
                if len(questions) == 2:
                    leap(admin)

        broker.on(ApiKey.METADATA, leap_after_an_answer)
        with pytest.raises(KafkaTimeoutError, match="the timeout of this call"):
            admin.partition_count("orders", timeout=SECONDS)
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            admin.topic_configs("orders", timeout=60)
