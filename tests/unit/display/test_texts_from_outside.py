"""What brokers and other clients choose cannot control a terminal or forge a line of a log."""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace

import pytest

from spark_kafka_sink import errors
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, KafkaError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import AlterResponse, ApiKey, ErrorCode

HOSTILE = "a\x1b[31m\nERROR forged \u202e\ud800"
ESCAPED = r"a\x1b[31m\nERROR forged \u202e\ud800"


@pytest.mark.parametrize("kind", [KafkaError, ConfigError, KafkaTimeoutError, NetworkError])
def test_an_error_escapes_what_is_not_printable(kind):
    """Its text and its traceback are printable; an escaped text stays as it is."""
    error = kind(HOSTILE)
    assert ESCAPED == str(error)
    assert ESCAPED == str(kind(str(error)))
    assert "".join(traceback.format_exception(error)).removesuffix("\n").isprintable()
    assert "plain: \u00e4" == str(kind("plain: \u00e4"))


def test_no_error_replaces_the_escaped_text():
    """No error of the package has a text of its own."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert kinds
    assert {KafkaError.__str__} == {kind.__str__ for kind in kinds if issubclass(kind, KafkaError)}


def test_addresses_and_partitions_are_printable():
    """A broker advertises its host, and a leader of a group assigns topics."""
    assert f"{ESCAPED}:1 (id 7)" == str(Node(7, HOSTILE, 1))
    assert f"{ESCAPED}:1" == str(Node(-1, HOSTILE, 1))
    assert f"{ESCAPED}-2" == str(TopicPartition(HOSTILE, 2))


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.PRODUCE])
def test_what_a_broker_answers_is_escaped(caplog, api_key):
    """Neither an error nor a line of the log shows the host or message of a broker as it is."""
    caplog.set_level(logging.DEBUG, "spark_kafka_sink")
    hostile = HOSTILE.replace("\ud800", "")

    def with_host(response):
        return replace(
            response, brokers=tuple(replace(broker, host=hostile) for broker in response.brokers)
        )

    def with_message(response):
        [topic] = response.responses
        [partition] = topic.partition_responses
        refused = replace(
            partition,
            error_code=ErrorCode.INVALID_RECORD,
            error_message=hostile,
        )
        return replace(response, responses=(replace(topic, partition_responses=(refused,)),))

    alter = with_host if api_key is ApiKey.METADATA else with_message
    with DevBroker(topics={"t": 1}) as broker:
        broker.on(api_key, AlterResponse(alter))
        settings = {"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": 2000}
        settings |= {"delivery.timeout.ms": 2000, "request.timeout.ms": 1000, "linger.ms": 0}
        producer = KafkaProducer(settings)
        try:
            error = producer.send("t", b"v").exception(120)
        finally:
            producer.close(0)
    assert error is not None
    assert str(error).isprintable()
    if api_key is ApiKey.PRODUCE:
        assert r"a\x1b[31m\nERROR forged" in str(error)
    lines = [line for record in caplog.records for line in record.getMessage().split("\n")]
    assert [] == [line for line in lines if not line.isprintable() or line.startswith("ERROR")]
