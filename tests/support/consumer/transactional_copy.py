"""A process that copies a topic in transactions (consume-transform-produce), to be killed.

    python -m tests.support.consumer.transactional_copy '{"bootstrap.servers": ...}'

It writes a line after each step of a transaction, so that it can be killed between any two of them,
and ends when its standard input is closed.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.errors import FatalProducerError, KafkaError, ProducerFencedError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer

if TYPE_CHECKING:
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecords

#: The lines of one transaction, in order.
STEPS = ("begun", "sent", "flushed", "offsets sent", "committed")
_POLL_SECONDS = 0.2


def copy(
    consumer: KafkaConsumer, producer: KafkaProducer, topic: str, ended: threading.Event
) -> None:
    """Copy until `ended` is set: in each transaction what one poll has returned."""
    while not ended.is_set():
        records = consumer.poll(_POLL_SECONDS)
        if records.is_empty:
            continue
        producer.begin_transaction()
        try:
            _write(consumer, producer, topic, records)
        except (ProducerFencedError, FatalProducerError):
            raise
        except KafkaError as error:
            print(f"aborted: {error}", flush=True)  # noqa: T201  # the parent reads it
            producer.abort_transaction()
            _go_back(consumer)


def _write(
    consumer: KafkaConsumer, producer: KafkaProducer, topic: str, records: ConsumerRecords
) -> None:
    print("begun", flush=True)  # noqa: T201
    for record in records.records():
        producer.send(topic, b"copy of " + record.value, key=record.value)
    print("sent", flush=True)  # noqa: T201
    producer.flush()
    print("flushed", flush=True)  # noqa: T201
    producer.send_offsets_to_transaction(records.next_offsets, consumer.group_metadata())
    print("offsets sent", flush=True)  # noqa: T201
    producer.commit_transaction()
    print("committed", flush=True)  # noqa: T201


def _go_back(consumer: KafkaConsumer) -> None:
    """Read again what the aborted transaction was to copy."""
    for partition, committed in consumer.committed(consumer.assignment()).items():
        if committed is None:
            consumer.seek_to_beginning([partition])
        else:
            consumer.seek(partition, committed)


def main() -> None:
    """Copy until the standard input is closed."""
    settings = json.loads(sys.argv[1])
    common = {"bootstrap.servers": settings["bootstrap.servers"], "retry.backoff.ms": 20}
    name = settings["name"]
    consumes = {
        "group.id": settings["group"],
        "group.instance.id": name,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "max.poll.records": settings["most"],
        "heartbeat.interval.ms": 200,
    }
    ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    produces = {"transactional.id": f"{settings['group']}-{name}"}
    with KafkaProducer(common | produces) as producer, KafkaConsumer(common | consumes) as consumer:
        producer.init_transactions()
        consumer.subscribe([settings["source"]])
        copy(consumer, producer, settings["target"], ended)


if __name__ == "__main__":
    main()
