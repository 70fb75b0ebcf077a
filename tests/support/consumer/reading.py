"""Topics of an embedded broker, and clients that read them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.range_reader import PartitionRange, read_range
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.record.arrow.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from spark_kafka_sink.devbroker import DevBroker

#: In seconds; more than a busy machine needs.
PATIENCE = 60.0
#: Small enough for several answers to one range.
SMALL = {"max.partition.fetch.bytes": 2_000}
#: Batches of about ten values, all of them full but the last, however slowly values are sent.
BATCHES = {"batch.size": 1000, "compression.type": "none", "linger.ms": 60_000}
FAST = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 5}
VALUES = arrow_schema(["offset", "value"])


def fill(
    servers: str,
    topic: str,
    values: Iterable[bytes],
    *,
    partition: int = 0,
    key: bytes | None = None,
    **settings: object,
) -> None:
    """Write values to a partition, in batches of at most a kilobyte."""
    given = {"bootstrap.servers": servers, **BATCHES, **settings}
    with KafkaProducer(given) as producer:
        send(producer, topic, values, partition=partition, key=key)


def send(producer: KafkaProducer, topic: str, values: Iterable[bytes], **more: object) -> None:
    """Send values, and wait until they are written."""
    futures = [producer.send(topic, value, **more) for value in values]
    producer.flush()
    for future in futures:
        future.result(PATIENCE)


@contextmanager
def open_transaction(servers: str, values: Iterable[bytes], *, topic: str = "t") -> Iterator[None]:
    """Write values to partition 0 in a transaction that is open for a while, and then aborted."""
    given = {"bootstrap.servers": servers, **BATCHES, "transactional.id": f"for {topic}"}
    with KafkaProducer(given) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        send(producer, topic, values, partition=0)
        yield
        producer.abort_transaction()


def abort_a_transaction(servers: str, values: Iterable[bytes], *, topic: str = "t") -> None:
    """Write values to partition 0 in a transaction that is aborted."""
    with open_transaction(servers, values, topic=topic):
        pass


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return values that tell each other apart, of about 100 bytes each."""
    return [b"%d " % n + b"x" * 90 for n in range(start, start + count)]


@contextmanager
def reading(servers: str, **settings: object) -> Iterator[ConsumerClient]:
    """Yield a client whose answers are small and whose back-offs are short."""
    given = {"bootstrap.servers": servers, **FAST, **SMALL, **settings}
    with ConsumerClient(ConsumerConfig.from_mapping(given)) as client:
        yield client


def range_of(client: ConsumerClient, topic: str = "t", partition: int = 0) -> PartitionRange:
    """Return the range from the first to the last offset that there is now."""
    place = TopicPartition(topic, partition)
    start = client.earliest_offsets([place], timeout=PATIENCE)[place]
    end = client.latest_offsets([place], timeout=PATIENCE)[place]
    ids = client.partition_ids([place])[place]
    return PartitionRange(topic, partition, start, end, ids.topic_id, ids.leader_epoch)


def values_of(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    """Return the values of record batches."""
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def offsets_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """Return the offsets of record batches."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def read_all(client: ConsumerClient, which: PartitionRange, **more: object) -> list[bytes]:
    """Return the values of a range."""
    return values_of(read_range(client, which, VALUES, **{"poll_timeout": PATIENCE, **more}))


def log_of(broker: DevBroker, topic: str = "t", partition: int = 0) -> object:
    """Return the log of a partition, to be changed by `DevBroker.call`."""
    return broker.call(lambda it: it.cluster.partition(TopicPartition(topic, partition)).log)


def delete_topic(broker: DevBroker, topic: str = "t") -> None:
    """Delete a topic."""
    broker.call(lambda it: it.cluster.delete_topic(it.cluster.topic(topic)))
