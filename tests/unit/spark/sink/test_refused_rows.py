"""The errors of rows that a broker refuses name the first of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import BrokerError, DeliveryError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.spark.refused_rows import refusal_of

LARGE = bytes(6_000)


@pytest.fixture
def broker():
    with DevBroker(topics={"t": 1, "u": 1}, max_message_bytes=5_000) as started:
        yield started


@pytest.mark.parametrize("name", ["a b", ""])
def test_an_invalid_topic_of_a_row_is_reported_with_its_row(broker, name):
    """The error names the first row with the invalid name."""
    error = refusal_of(broker.bootstrap_servers, ["t", "t", "t", name, name])
    assert (BrokerError, "INVALID_TOPIC_EXCEPTION", name) == (type(error), error.name, error.topic)
    assert str(error).startswith("row 3: ")
    assert f"topic {name!r}" in str(error)
    assert str(error).endswith(". Check the topic's name")


def test_an_invalid_topic_of_a_table_is_reported_with_its_row(broker):
    """It is named for a column, and not if one topic was given for all rows."""
    rows = pa.table({"value": ["a", "b"], "topic": ["t", "a b"]})
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        with pytest.raises(BrokerError, match=r"^row 1: .*topic 'a b'"):
            producer.send_arrow(rows)
        with pytest.raises(BrokerError, match=r"^127\.0\.0\.1.*topic 'a b'"):
            producer.send_arrow(rows, topic="a b")


@pytest.mark.parametrize(
    ("topics", "values", "row"),
    [
        # Alone in its batch, which is closed only after many others.
        (["t"] * 4 + ["u"] + ["t"] * 995, [b"v"] * 4 + [LARGE] + [b"v"] * 995, 4),
        # In a batch with others, which is split until it is alone.
        (["t"] * 20, [b"v"] * 13 + [LARGE] + [b"v"] * 6, 13),
    ],
    ids=["alone", "split"],
)
def test_a_record_that_is_too_large_for_its_topic_is_reported_with_its_row(
    broker, topics, values, row
):
    """A record beyond max.message.bytes is named by its row, wherever it is."""
    error = refusal_of(broker.bootstrap_servers, topics, values, rows_per_batch=1_000)
    place = (topics[row], 0)
    assert (DeliveryError, *place) == (type(error), error.topic, error.partition)
    assert str(error).startswith(f"1 record for {topics[row]}-0, row {row}, was not delivered: ")
    assert "MESSAGE_TOO_LARGE" in str(error)


def test_a_topic_that_may_not_be_written_is_reported_with_its_first_row(broker):
    """The batch may have records of many rows; its first is named as well."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    error = refusal_of(broker.bootstrap_servers, ["u"] * 7, rows_per_batch=1_000)
    assert str(error).startswith("7 records for u-0, among rows 0 to 6 were not delivered: ")
    assert "The first of them is row 0. Grant this user WRITE on the topic" in str(error)
