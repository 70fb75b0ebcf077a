"""All of buffer.memory is free again, however a write ends."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.record.record_columns import columns

REFUSAL = AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
SHORT = {"delivery.timeout.ms": 300, "request.timeout.ms": 200, "linger.ms": 0}


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize(
    ("fault", "settings", "max_message_bytes"),
    [
        (None, {}, 1_000_000),
        (None, {}, 5_000),
        (REFUSAL, {}, 1_000_000),
        (NeverAnswer(), SHORT, 1_000_000),
    ],
    ids=["acknowledged", "split", "refused", "expired"],
)
def test_all_memory_is_released(codec, fault, settings, max_message_bytes):
    """Every block and reservation is released once, whatever the outcome of its batch."""
    with DevBroker(topics={"t": 2}, max_message_bytes=max_message_bytes) as broker:
        if fault is not None:
            broker.on(ApiKey.PRODUCE, fault)
        producer = _producer(broker, codec, **settings)
        with suppress(DeliveryError):
            producer.append(columns([os.urandom(100) for _ in range(2_000)]))
            producer.flush()
        producer.close(0)
    assert producer._core._config.buffer_memory == _free_bytes(producer)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_close_that_times_out_releases_the_memory(codec):
    """Batches that are queued or in flight when the producer is closed release their memory."""
    with DevBroker(topics={"t": 2}) as broker:
        broker.on(ApiKey.PRODUCE, NeverAnswer())
        producer = _producer(broker, codec)
        producer.append(columns([os.urandom(100) for _ in range(2_000)]))
        producer.close(0)
    assert producer._core._config.buffer_memory == _free_bytes(producer)


def _producer(broker: DevBroker, codec: str, **settings: object) -> KafkaProducer:
    given = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec}
    settings = {**given, "batch.size": 20_000, **settings}
    return KafkaProducer(ProducerConfig.from_mapping(settings), lingers=False)


def _free_bytes(producer: KafkaProducer) -> int:
    """Count the free bytes, and those of batches that were never closed."""
    builder = producer._core.gatherer._builder
    return builder._pool.available_bytes + builder._open_bytes
