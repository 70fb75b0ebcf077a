"""Transactions in which an interrupt, or a lack of memory, strikes while a record is sent at once."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import TransactionAbortableError
from spark_kafka_sink.producer.gathering.batch_builder import BatchBuilder
from spark_kafka_sink.producer.kafka_producer import KafkaProducer


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", ["fill_single", "enqueue"])
def test_a_transaction_that_has_lost_a_record_cannot_be_committed(monkeypatch, step, error):
    """Whether the record was in a batch already or not, the transaction can only be aborted."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with DevBroker(topics={"t": 1}) as broker:
        producer = KafkaProducer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "orders.1",
                "linger.ms": 0,
            }
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"kept").result(30)
        with monkeypatch.context() as interrupted, pytest.raises(error):
            interrupted.setattr(BatchBuilder, step, fail)
            producer.send("t", b"lost")
        with pytest.raises(TransactionAbortableError, match="can only be aborted"):
            producer.commit_transaction()
        producer.close(0)
