"""Consume, transform, produce: each record of one topic leads to one record of another, once.

    python examples/consume_transform_produce.py [--bootstrap-servers HOST:PORT]

Each transaction has the new records and the consumer's offsets: both are committed, or none. If
this program is killed and started again, it goes on after the last transaction that was committed.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cluster import kafka_for

from spark_kafka_sink import (
    FatalProducerError,
    KafkaConsumer,
    KafkaError,
    KafkaProducer,
    ProducerFencedError,
    TopicPartition,
)

if TYPE_CHECKING:
    from spark_kafka_sink import ConsumerRecords

ORDERS = "orders"
INVOICES = "invoices"
COUNT = 1000


def invoice(order: str) -> str:
    """Return the invoice of an order: here, its price with tax."""
    name, price = order.split()
    return f"{name} {int(price) * 1.2:.2f}"


def copy(consumer: KafkaConsumer, producer: KafkaProducer, records: ConsumerRecords) -> None:
    """Write the invoices of some orders, and commit the orders' offsets, in one transaction."""
    producer.begin_transaction()
    try:
        for record in records.records():
            producer.send(INVOICES, invoice(record.value), key=record.key)
        producer.send_offsets_to_transaction(records.next_offsets, consumer.group_metadata())
        producer.commit_transaction()
    except (ProducerFencedError, FatalProducerError):
        # Another instance has taken over, or the producer has failed for good: it can be closed.
        raise
    except KafkaError as error:
        print(f"a transaction is aborted, and its orders are read again: {error}")
        producer.abort_transaction()
        go_back(consumer)


def go_back(consumer: KafkaConsumer) -> None:
    """Read on from what has been committed."""
    for partition, committed in consumer.committed(consumer.assignment()).items():
        if committed is None:
            consumer.seek_to_beginning([partition])
        else:
            consumer.seek(partition, committed)


def run(bootstrap_servers: str, run_id: str, count: int) -> int:
    """Write the invoices of at least `count` orders; return of how many."""
    consumes = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"billing-{run_id}",
        "auto.offset.reset": "earliest",
        # The offsets are committed by the transactions.
        "enable.auto.commit": False,
        # Orders of aborted transactions are skipped.
        "isolation.level": "read_committed",
        "value.deserializer": "string",
        "max.poll.records": 100,
    }
    produces = {
        "bootstrap.servers": bootstrap_servers,
        # Instances that run at the same time need different ids, and a restarted one its own.
        "transactional.id": f"billing-{run_id}-0",
        "value.serializer": "string",
    }
    done = 0
    with KafkaProducer(produces) as producer, KafkaConsumer(consumes) as consumer:
        # Ends the transaction of an instance with this id that was killed.
        producer.init_transactions()
        consumer.subscribe([ORDERS])
        while done < count:
            records = consumer.poll()
            if not records.is_empty:
                copy(consumer, producer, records)
                done += records.count
    return done


def read_invoices(bootstrap_servers: str) -> list[str]:
    """Return all committed invoices."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "value.deserializer": "string",
    }
    found: list[str] = []
    with KafkaConsumer(settings) as consumer:
        partitions = consumer.partitions_for(INVOICES)
        places = [TopicPartition(INVOICES, each.partition) for each in partitions]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(each) < end for each, end in ends.items()):
            found += [record.value for record in consumer.poll().records()]
    return found


def main() -> None:
    """Write orders, and their invoices in two runs, as if the program had been restarted."""
    with kafka_for(ORDERS, INVOICES, partitions=3) as bootstrap_servers:
        settings = {"bootstrap.servers": bootstrap_servers, "value.serializer": "string"}
        run_id = uuid.uuid4().hex[:8]
        with KafkaProducer(settings) as producer:
            for number in range(COUNT):
                producer.send(ORDERS, f"order-{run_id}-{number} {number % 50}", key=b"%d" % number)
        first = run(bootstrap_servers, run_id, COUNT // 2)
        print(f"the first run has stopped in the middle: {COUNT // 2 <= first < COUNT}")
        run(bootstrap_servers, run_id, COUNT - first)
        found = [it for it in read_invoices(bootstrap_servers) if run_id in it]
        print(f"{len(found)} invoices of {len(set(found))} orders")


if __name__ == "__main__":
    main()
