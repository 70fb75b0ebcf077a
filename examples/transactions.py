"""Write in transactions: consumers see committed records, and no aborted ones.

    python examples/transactions.py [--bootstrap-servers HOST:PORT]

A consumer of another client (confluent-kafka, if it is installed) reads the records with
isolation.level=read_committed.
"""

from __future__ import annotations

import importlib.util
import uuid
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import FatalProducerError, KafkaError, KafkaProducer, ProducerFencedError

if TYPE_CHECKING:
    from spark_kafka_sink import RecordMetadata

TOPIC = "payments"
TRANSACTIONS = [
    ("first", ["pay 10", "pay 20"]),
    ("second", ["pay 30", "not an amount"]),
    ("third", ["pay 40"]),
]


class RefusedPaymentError(Exception):
    """An invalid payment, as an example of an error of the application itself."""


def checked(payment: str) -> str:
    """Return the payment, or raise RefusedPaymentError."""
    if not payment.startswith("pay "):
        raise RefusedPaymentError(payment)
    return payment


def write(producer: KafkaProducer, payments: list[str]) -> RecordMetadata:
    """Write all payments in one transaction, or none; return the metadata of the first."""
    producer.begin_transaction()
    try:
        sent = [producer.send(TOPIC, checked(payment), partition=0) for payment in payments]
        producer.commit_transaction()
        return sent[0].result()
    except (ProducerFencedError, FatalProducerError):
        # Fenced by another producer, or failed for good: the producer can only be closed.
        raise
    except (RefusedPaymentError, KafkaError):
        producer.abort_transaction()
        raise


def read_committed(bootstrap_servers: str, first_offset: int) -> list[str]:
    """Read the committed records of the partition, from an offset on."""
    import confluent_kafka  # noqa: PLC0415 - only where it is installed

    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "not-used",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    values = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, first_offset)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            values.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return values


def write_all(producer: KafkaProducer, bootstrap_servers: str) -> None:
    """Write three transactions, one of which is aborted, and read the committed records."""
    offsets = []
    for name, payments in TRANSACTIONS:
        try:
            offsets.append(write(producer, payments).offset)
            print(f"the {name} transaction is committed")
        except RefusedPaymentError as error:
            print(f"the {name} transaction is aborted: {str(error)!r} was refused")
    if importlib.util.find_spec("confluent_kafka") is None:
        print("install confluent-kafka to read the committed records")
    else:
        print(f"committed: {read_committed(bootstrap_servers, offsets[0])}")


def main() -> None:
    """Write transactions until another producer takes over."""
    with kafka_for(TOPIC, partitions=1) as bootstrap_servers:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": f"payments-{uuid.uuid4().hex[:8]}",
            "value.serializer": "string",
        }
        try:
            with KafkaProducer(settings) as producer:
                producer.init_transactions()
                write_all(producer, bootstrap_servers)
                # A second producer with the same transactional.id fences the first one.
                with KafkaProducer(settings) as successor:
                    successor.init_transactions()
                    write(successor, ["pay 50"])
                write(producer, ["pay 60"])
        except ProducerFencedError:
            print("the first producer was fenced: it wrote nothing after its successor")


if __name__ == "__main__":
    main()
