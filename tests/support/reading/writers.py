"""Write rows with clients that are not ours: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka

from tests.support.record.rows import place

with warnings.catch_warnings():
    # kafka-python reads its schemas with functions that Python 3.11 has deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import aiokafka
    import kafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.support.record.rows import Row

_SECONDS = 120


class RawName(str):
    """A header's name that clients write as the given bytes, though they are not UTF-8."""

    __slots__ = ("raw",)

    def __new__(cls, raw: bytes) -> Self:
        """Store the bytes."""
        made = super().__new__(cls, raw.decode("utf-8", "replace"))
        made.raw = raw
        return made

    def encode(self, *_: Any) -> bytes:
        """Return the bytes."""
        return self.raw


def write_with_librdkafka(
    bootstrap_servers: str, topic: str, rows: Iterable[Row], **settings: Any
) -> None:
    """Write rows; `settings` are librdkafka's, with underscores for dots."""
    producer = librdkafka_producer(bootstrap_servers, **settings)
    send_with_librdkafka(producer, topic, rows)
    flush(producer)


def librdkafka_producer(bootstrap_servers: str, **settings: Any) -> confluent_kafka.Producer:
    """Create a producer; `settings` are librdkafka's, with underscores for dots."""
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def send_with_librdkafka(
    producer: confluent_kafka.Producer, topic: str, rows: Iterable[Row]
) -> None:
    """Send rows, which have a key or a partition, without waiting for them."""
    for row in rows:
        more = {} if row.partition is None else {"partition": row.partition}
        if row.timestamp is not None:
            more["timestamp"] = row.timestamp // 1000
        producer.produce(topic, row.value, row.key, headers=row.headers, **more)


def flush(producer: confluent_kafka.Producer) -> None:
    """Wait until all rows are acknowledged."""
    left = producer.flush(_SECONDS)
    assert 0 == left


def write_with_kafka_python(
    bootstrap_servers: str, topic: str, rows: Iterable[Row], **settings: Any
) -> None:
    """Write rows; `settings` are kafka-python's.

    It refuses headers without a value, and rows with neither key nor value; both become empty.
    """
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap_servers, **settings)
    try:
        sent = [
            producer.send(
                topic,
                value=_value_of(row),
                key=row.key,
                headers=[(name, value or b"") for name, value in row.headers or ()],
                partition=row.partition,
                timestamp_ms=None if row.timestamp is None else row.timestamp // 1000,
            )
            for row in rows
        ]
        producer.flush(_SECONDS)
        for each in sent:
            each.get(_SECONDS)
    finally:
        producer.close()


def write_with_aiokafka(
    bootstrap_servers: str, topic: str, rows: Sequence[Row], *, partitions: int, **settings: Any
) -> None:
    """Write rows; `settings` are aiokafka's.

    It refuses rows with neither key nor value, whose value becomes empty.
    """

    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **settings)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=_value_of(row),
                    key=row.key,
                    headers=row.headers,
                    partition=place(row, partitions),
                    timestamp_ms=None if row.timestamp is None else row.timestamp // 1000,
                )
                for row in rows
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(write())


def _value_of(row: Row) -> bytes | None:
    return b"" if row.key is None and row.value is None else row.value


class LibrdkafkaTransactions:
    """A transactional producer of librdkafka; whatever it leaves open stays open."""

    def __init__(self, bootstrap_servers: str, topic: str, name: str) -> None:
        """Initialize transactions; the transactional id consists of the topic and the name."""
        self._topic = topic
        self._producer = librdkafka_producer(
            bootstrap_servers, transactional_id=f"{topic}-{name}", transaction_timeout_ms=900_000
        )
        self._producer.init_transactions(_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[LibrdkafkaTransactions]:
        """Commit what the block sends."""
        self._producer.begin_transaction()
        yield self
        self._producer.commit_transaction(_SECONDS)

    @contextmanager
    def aborted(self) -> Iterator[LibrdkafkaTransactions]:
        """Abort what the block sends, once it is in the log."""
        self._producer.begin_transaction()
        yield self
        self._producer.abort_transaction(_SECONDS)

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def send(self, rows: Iterable[Row]) -> None:
        """Send rows, and wait until they are in the log."""
        send_with_librdkafka(self._producer, self._topic, rows)
        flush(self._producer)
