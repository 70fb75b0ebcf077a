"""All of buffer.memory is free again, however a write ends."""

from __future__ import annotations

import os
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.batch import buffer_pool
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records import batch_builder, open_batches
from spark_kafka_sink.producer.records.record_gatherer import CHUNK_RECORDS
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.record.record_columns import columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.producer.threaded_core import ThreadedCore

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
        producer = _producer(broker, codec, **settings)
        if fault is not None:
            hook = broker.on(ApiKey.PRODUCE, fault)
            # A record that expires on a slow machine before it is sent does not count.
            while not hook.fired:
                producer.send("t", b"v")
                producer.flush()
        with suppress(DeliveryError):
            producer.append(columns([os.urandom(100) for _ in range(2_000)]))
            producer.flush()
        producer.close(0)
    assert producer._core._config.buffer_memory == _free_bytes(producer)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_close_that_times_out_releases_the_memory(codec):
    """Batches that are queued or in flight when the producer is closed release their memory."""
    with DevBroker(topics={"t": 2}) as broker:
        hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
        producer = _producer(broker, codec)
        producer.append(columns([os.urandom(100) for _ in range(2_000)]))
        wait_until_injected(hook)
        producer.close(0)
    assert producer._core._config.buffer_memory == _free_bytes(producer)


def _producer(broker: DevBroker, codec: str, **settings: object) -> KafkaProducer:
    given = {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec}
    settings = {**given, "batch.size": 20_000, **settings}
    return KafkaProducer(ProducerConfig.from_mapping(settings), lingers=False)


def _free_bytes(producer: KafkaProducer) -> int:
    """Count the free bytes, and those of batches that were never closed."""
    builder = producer._core.gatherer._builder
    return builder._pool.available_bytes + builder._open.allocated_bytes


def _without_memory(*_: object, **__: object) -> NoReturn:
    raise MemoryError("out of it")


#: What may fail on the way of a record to a queue, in this order.
STEPS: dict[str, tuple[Callable[[ThreadedCore], object], str]] = {
    "allocate": (lambda _: buffer_pool.np, "empty"),
    "open": (lambda core: core.gatherer._open, "open"),
    "close": (lambda _: open_batches, "FilledBlock"),
    "create": (lambda _: batch_builder, "ProducerBatch"),
    "compress": (lambda core: core._compression._compressor, "compress"),
    "queue": (lambda core: core.accumulator, "_add_incomplete"),
}


@pytest.mark.parametrize("step", STEPS)
def test_memory_is_given_back_by_a_send_that_fails(monkeypatch, step):
    """A lack of memory on the way to a queue fails records, and takes nothing of buffer.memory."""
    with DevBroker(topics={"t": 1}) as broker:
        producer = KafkaProducer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "linger.ms": 600_000,
                "batch.size": 1_000,
            }
        )
        producer.send("t", b"before")
        producer.flush(120)
        with monkeypatch.context() as patch:
            # The rest of the program still has memory.
            patch.setattr(buffer_pool, "np", SimpleNamespace(empty=np.empty, uint8=np.uint8))
            owner, name = STEPS[step]
            patch.setattr(owner(producer._core), name, _without_memory)
            # A full chunk is written by the caller.
            futures = [producer.send("t", b"%0100d" % n) for n in range(CHUNK_RECORDS)]
        producer.flush(120)
        errors = [future.exception(0) for future in futures]
        assert any("MemoryError" in str(error) for error in errors)
        pool = producer._core.accumulator._pool
        assert pool.total_bytes == pool.available_bytes
        after = producer.send("t", b"after")
        producer.close(120)
        assert after.exception(0) is None
