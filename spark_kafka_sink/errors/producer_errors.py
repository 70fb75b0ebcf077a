"""The errors of producers: records that cannot be sent, deliveries and transactions that failed."""

from __future__ import annotations

from typing import Self

from spark_kafka_sink.errors.base_errors import BrokerError, KafkaError, KafkaTimeoutError


class SchemaError(KafkaError, ValueError):
    """The columns of a DataFrame or table do not match the fields of a Kafka record.

    >>> import pyarrow as pa
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     producer.send_arrow(pa.table({"price": [12.5]}), topic="orders")
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.SchemaError: ...
    """


class ProducerClosedError(KafkaError):
    """The producer was used after `close`, or after a fatal error closed it.

    >>> producer = KafkaProducer({"bootstrap.servers": "localhost:9092"})
    >>> producer.close()
    >>> producer.send("orders", b"a book")
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.ProducerClosedError: the producer is closed
    """


class RecordError(KafkaError):
    """A record can never be sent; retrying does not help.

    `row` is the index of the row, counted from 0, in the table or, under Spark, in the task. It is
    None for a single record. `topic` and `partition` are None if they are not known.

    The message consists of `cause`, which says what is wrong, and `advice`, which says what to do.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     error = producer.send("orders", b"x" * 2_000_000).exception(timeout=30)
    >>> isinstance(error, RecordError), error.topic, error.row
    (True, 'orders', None)
    """

    def __init__(
        self,
        cause: str,
        *,
        row: int | None,
        topic: str | None = None,
        partition: int | None = None,
        advice: str,
    ) -> None:
        """Build the message from the row's place, the cause and the advice."""
        known = {"row": row, "topic": topic, "partition": partition}
        location = ", ".join(
            f"{name} {value!r}" for name, value in known.items() if value is not None
        )
        super().__init__(f"{location}: {cause}. {advice}" if location else f"{cause}. {advice}")
        self.cause = cause
        self.row = row
        self.topic = topic
        self.partition = partition
        self.advice = advice

    def about_row(self, row: int | None) -> Self:
        """Return the same error for another row, or for none."""
        return type(self)(
            self.cause, row=row, topic=self.topic, partition=self.partition, advice=self.advice
        )


class RecordTooLargeError(RecordError):
    """A record is larger than max.request.size or buffer.memory.

    The parameters are those of `RecordError`: cause, row, topic, partition, advice.

    >>> settings = {"bootstrap.servers": "localhost:9092", "max.request.size": 1000}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", b"x" * 2000).result(timeout=30)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.RecordTooLargeError: ...
    """


class InvalidPartitionError(RecordError):
    """A record specifies a partition that its topic does not have.

    The parameters are those of `RecordError`: cause, row, topic, partition, advice.

    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "partitioner.class": lambda topic, key, value, partition_count, available: 99,
    ... }
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.InvalidPartitionError: ...
    """


class InvalidTopicError(RecordError):
    """A record has no topic.

    The parameters are those of `RecordError`: cause, row, topic, partition, advice.

    >>> import pyarrow as pa
    >>> rows = pa.table({"topic": pa.array(["orders", None]), "value": ["a book", "a pen"]})
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     producer.send_arrow(rows)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.InvalidTopicError: row 1...
    """


class BufferExhaustedError(KafkaTimeoutError):
    """No buffer memory became free within max.block.ms.

    Send less at a time, or increase buffer.memory or max.block.ms.

    >>> error = BufferExhaustedError("no memory became free within 60 s (max.block.ms)")
    >>> isinstance(error, KafkaTimeoutError), error.retriable
    (True, True)
    """


class DeliveryTimeoutError(KafkaTimeoutError):
    """A batch was not acknowledged within delivery.timeout.ms.

    The time runs from the opening of the batch, in a Spark write from its closing. The error is the
    cause of a `DeliveryError`. The records may have been written nevertheless.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    ...     settings = {
    ...         "bootstrap.servers": broker.bootstrap_servers,
    ...         "linger.ms": 0,
    ...         "request.timeout.ms": 200,
    ...         "delivery.timeout.ms": 300,
    ...     }
    ...     with KafkaProducer(settings) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> isinstance(error.__cause__, DeliveryTimeoutError)
    True
    """


class ProducerFencedError(BrokerError):
    """A newer producer took over the transactional id, or the coordinator fenced this producer.

    The only remedy is to close this producer.

    The parameters are those of `BrokerError`: message, code, name, retriable, invalid_metadata.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as old, KafkaProducer(settings) as new:
    ...     old.init_transactions()
    ...     new.init_transactions()
    ...     old.begin_transaction()
    ...     error = old.send("orders", b"a book").exception(timeout=30)
    ...     try:
    ...         old.abort_transaction()
    ...     except ProducerFencedError:
    ...         print("another producer has taken over")
    another producer has taken over
    """


class TransactionAbortableError(KafkaError):
    """The transaction cannot be committed: abort it, then keep using the same producer.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     try:
    ...         future = producer.send("orders", b"a book")
    ...         producer.commit_transaction()
    ...     except TransactionAbortableError:
    ...         producer.abort_transaction()
    """


class TransactionAbortedError(KafkaError):
    """A record was not sent because its transaction was aborted.

    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "transactional.id": "orders-1",
    ...     "linger.ms": 10_000,
    ... }
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     future = producer.send("orders", b"a book")
    ...     producer.abort_transaction()
    >>> isinstance(future.exception(), TransactionAbortedError)
    True
    """


class FatalProducerError(KafkaError):
    """An earlier fatal error, the cause, ended this producer: close it and create another.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> producer = KafkaProducer(settings)
    >>> try:
    ...     producer.init_transactions()
    ...     producer.begin_transaction()
    ...     producer.commit_transaction()
    ... except (FatalProducerError, ProducerFencedError):
    ...     print("make another producer")
    ... finally:
    ...     producer.close()
    """


class DeliveryError(KafkaError):
    """Records were accepted from the caller but could not be delivered.

    The message says as much as is known: how many records, which partition, which input rows, the
    cause (also in `__cause__`), and what to do. `topic` and `partition` are those of the records.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.MESSAGE_TOO_LARGE))
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> isinstance(error, DeliveryError), error.__cause__.name, error.topic, error.partition
    (True, 'MESSAGE_TOO_LARGE', 'orders', 0)
    """

    topic: str | None = None
    partition: int | None = None
