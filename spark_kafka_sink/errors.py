"""Errors, as a small tree plus data.

There are three branches: mistakes of the caller (`ConfigError`, `SchemaError`, `PayloadError`,
`SerializationError`, `RecordError`, `ProducerClosedError`), invalid bytes from the network
(`DecodeError`), and error codes from a broker (`BrokerError`, which keeps the code even if it is
unknown). Beside them are the transient conditions, `NetworkError` and `KafkaTimeoutError`,
`AuthenticationError`, which may come from either side, `SchemaRegistryError`, whose attributes are
those of the registry's response, and what happens to a consumer: its group rebalances
(`CommitFailedError`, `RebalanceInProgressError`), or its position is not in the log
(`NoOffsetForPartitionError`, `OffsetOutOfRangeError`).

Whether a retry may help is an attribute, `retriable`, and does not depend on the error's type.
Messages say what happened, where, and what to do; they never contain a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

__all__ = [
    "AdminError",
    "AuthenticationError",
    "BrokerError",
    "BufferExhaustedError",
    "CommitFailedError",
    "ConfigError",
    "CorruptRecordError",
    "DataLossError",
    "DecodeError",
    "DeliveryError",
    "DeliveryTimeoutError",
    "FatalProducerError",
    "IllegalStateError",
    "InvalidPartitionError",
    "InvalidTopicError",
    "KafkaError",
    "KafkaTimeoutError",
    "LogTruncationError",
    "NetworkError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
    "PayloadError",
    "ProducerClosedError",
    "ProducerFencedError",
    "RebalanceInProgressError",
    "RecordDeserializationError",
    "RecordError",
    "RecordTooLargeError",
    "SchemaError",
    "SchemaRegistryError",
    "SerializationError",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "UnsupportedVersionError",
    "WakeupError",
]

#: The number of errors that a message has, and of items that it names with each.
_NAMED_ITEMS = 5


class KafkaError(Exception):
    """The base class of every error that this package raises deliberately.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     try:
    ...         producer.send("orders", b"x" * 2_000_000).result(timeout=30)
    ...     except KafkaError as error:
    ...         print(type(error).__name__, error.retriable)
    RecordTooLargeError False
    """

    #: Whether the same request may succeed when it is retried.
    retriable: bool = False
    #: Whether a user's function failed, such as one that provides tokens: `__cause__` says why.
    is_from_user_code: bool = False

    def __str__(self) -> str:
        """Return the message with control characters escaped: a peer may have sent parts of it."""
        from spark_kafka_sink.display import printable  # noqa: PLC0415 - as in `_failed_items`

        return printable(super().__str__())

    def __reduce__(self) -> tuple[Callable[..., KafkaError], tuple[object, ...]]:
        """Pickle and copy the message and the attributes, whatever the constructor takes."""
        return _restored, (type(self), self.args, vars(self))


def _restored(
    kind: type[KafkaError], args: tuple[object, ...], state: Mapping[str, Any]
) -> KafkaError:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


class ConfigError(KafkaError, ValueError):
    """A setting is unknown, malformed, out of range, or in conflict with another setting.

    >>> KafkaProducer({"bootstrap.servers": "localhost:9092", "akcs": "all"})
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.ConfigError: ...
    """


class SerializationError(KafkaError, ValueError):
    """A key or a value cannot be serialized, or its bytes cannot be deserialized.

    The message names the topic, the field (key or value) and its type, but never the content. The
    exception of the serializer or deserializer is in `__cause__`.

    >>> settings = {"bootstrap.servers": "localhost:9092", "value.serializer": "string"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.send("orders", 12.5)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.SerializationError: topic 'orders': the serializer 'string' ...
    """


class IllegalStateError(KafkaError, RuntimeError):
    """The producer's state does not allow the call, which changed nothing.

    >>> settings = {"bootstrap.servers": "localhost:9092", "transactional.id": "orders-1"}
    >>> with KafkaProducer(settings) as producer:
    ...     producer.init_transactions()
    ...     producer.commit_transaction()
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.IllegalStateError: ...
    """


class KafkaTimeoutError(KafkaError, TimeoutError):
    """An operation did not finish within its timeout.

    >>> with DevBroker(auto_create_topics=False) as broker:
    ...     settings = {"bootstrap.servers": broker.bootstrap_servers, "max.block.ms": 1000}
    ...     with KafkaProducer(settings) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> isinstance(error, KafkaTimeoutError), error.retriable
    (True, True)
    """

    retriable = True


class NetworkError(KafkaError, ConnectionError):
    """A connection was refused or lost, or the broker never answered.

    >>> with KafkaProducer({"bootstrap.servers": "localhost:1", "max.block.ms": 1000}) as producer:
    ...     producer.send("orders", b"a book").result(timeout=30)
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.NetworkError: ...
    """

    retriable = True


class AuthenticationError(KafkaError):
    """Authentication failed: a password, token, certificate or host name was not accepted.

    It is fatal to the producer, since a retry would fail the same way. The message names the
    broker, the mechanism and the user, but never a secret.

    >>> sasl = SaslSettings(users={"alice": "her password"})
    >>> listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    >>> with DevBroker(listeners=[listener]) as broker:
    ...     settings = {
    ...         "bootstrap.servers": broker.bootstrap_servers,
    ...         "security.protocol": "SASL_PLAINTEXT",
    ...         "sasl.mechanism": "SCRAM-SHA-256",
    ...         "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
    ...         'required username="alice" password="a guess";',
    ...     }
    ...     producer = KafkaProducer(settings)
    ...     error = producer.send("orders", b"a book").exception(timeout=30)
    ...     producer.close(0)
    >>> isinstance(error, AuthenticationError)
    True
    """


class DecodeError(KafkaError):
    """Bytes from the network do not follow the protocol.

    >>> error = DecodeError("broker 1: the response ends in the middle of an array")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class CorruptRecordError(DecodeError):
    """A record batch has a wrong checksum or inconsistent sizes.

    >>> error = CorruptRecordError("orders-0, offset 7: the checksum is wrong")
    >>> isinstance(error, DecodeError)
    True
    """


class SchemaRegistryError(KafkaError):
    """A Schema Registry refused a request, cannot be reached, or holds what cannot be used.

    `status` is the status of its response, and `error_code` the code of Confluent's registry in it;
    each is None if there is none. 40401 means that the registry does not know the subject, 40402
    the version, and 40403 the schema. `retriable` says whether the same request may succeed later.
    The message names the request, but never credentials.

    >>> error = SchemaRegistryError("there is no schema 7", status=404, error_code=40403)
    >>> error.status, error.error_code, error.retriable
    (404, 40403, False)
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_code: int | None = None,
        retriable: bool = False,
    ) -> None:
        """Store what the registry answered beside the message."""
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.retriable = retriable

    def with_message(self, message: str) -> Self:
        """Return the same answer of a registry with another message."""
        return type(self)(
            message, status=self.status, error_code=self.error_code, retriable=self.retriable
        )


class UnsupportedVersionError(KafkaError):
    """Client and broker support no common version of an API.

    >>> error = UnsupportedVersionError("broker 1: there is no common version of Produce")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class BrokerError(KafkaError):
    """A broker answered with an error code.

    `code` and `name` are Kafka's own; an unknown code keeps its number. `message` is the
    human-readable text. `retriable` says whether the same request may succeed later, and
    `invalid_metadata` whether the client must refresh its metadata first. `topic` is the topic that
    the broker refused as a whole, if it is known.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     hook = broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         error = producer.send("orders", b"a book").exception(timeout=30)
    >>> error.__cause__.code, error.__cause__.name
    (29, 'TOPIC_AUTHORIZATION_FAILED')
    """

    def __init__(
        self,
        message: str,
        *,
        code: int,
        name: str,
        retriable: bool = False,
        invalid_metadata: bool = False,
    ) -> None:
        """Store the broker's code and name beside the message made from them."""
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable
        #: Whether the error shows that our metadata is stale.
        self.invalid_metadata = invalid_metadata
        self.topic: str | None = None


class AdminError(KafkaError):
    """Some of the items that a call of `AdminClient` was about have failed.

    `what` is the request. `errors` has the error of each item that failed; `results` has the result
    of each other item, for which the call was successful. Retrying may help if it may help for each
    of the errors.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     try:
    ...         admin.create_topics([NewTopic("orders"), NewTopic("invoices")])
    ...     except AdminError as error:
    ...         print({topic: it.name for topic, it in error.errors.items()}, list(error.results))
    {'orders': 'TOPIC_ALREADY_EXISTS'} ['invoices']
    """

    def __init__(
        self, what: str, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]
    ) -> None:
        """Build the message, which names the items with the same error together."""
        super().__init__(_failed_items(what, errors, results))
        self.what = what
        self.errors = dict(errors)
        self.results = dict(results)
        self.retriable = all(error.retriable for error in errors.values())


def _failed_items(what: str, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]) -> str:
    from spark_kafka_sink.display import printable  # noqa: PLC0415 - importing an error loads no more

    by_text: dict[str, list[str]] = {}
    for item, error in errors.items():
        by_text.setdefault(str(error), []).append(str(item) or "''")
    texts = []
    for text, items in list(by_text.items())[:_NAMED_ITEMS]:
        texts.append(f"{listed(items)}: {text}")
    if len(by_text) > _NAMED_ITEMS:
        texts.append(f"and {len(by_text) - _NAMED_ITEMS} more errors, see `errors`")
    counts = f"{len(errors)} of {len(errors) + len(results)}"
    # Names may be those that others have given, and contain control characters.
    return printable(f"{what} failed for {counts}: {'; '.join(texts)}")


def listed(items: Sequence[object]) -> str:
    """Return the first of some items, and how many more there are."""
    rest = len(items) - _NAMED_ITEMS
    return ", ".join(map(str, items[:_NAMED_ITEMS])) + (f" and {rest} more" if rest > 0 else "")


# --- consumers: their positions, their records and their groups


class DataLossError(KafkaError):
    """Offsets that were to be read are no longer in the log.

    `wanted` is the offset that was asked for, `available` the nearest one that there is, -1 if
    there is none, and `lost` the number of offsets that cannot be read. The remedies are to read
    from another offset on, or to accept the loss (`failOnDataLoss=false` in Spark).

    The parameters are the message, and the attributes of the error by name.

    >>> error = DataLossError(
    ...     "orders-0: 10 offsets are lost",
    ...     topic="orders",
    ...     partition=0,
    ...     wanted=0,
    ...     available=10,
    ...     lost=10,
    ... )
    >>> isinstance(error, KafkaError), error.lost, error.retriable
    (True, 10, False)
    """

    def __init__(
        self, message: str, *, topic: str, partition: int, wanted: int, available: int, lost: int
    ) -> None:
        """Store the place beside the message."""
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.available = available
        self.lost = lost


class RecordDeserializationError(SerializationError):
    """A deserializer cannot read the key or the value of a record (KIP-334).

    `record` is the record with its key and value as bytes, so that it can be kept elsewhere before
    the consumer seeks past it (KIP-1036). `part` is "key" or "value". The deserializer's own
    exception is in `__cause__`.

    >>> record = ConsumerRecord("orders", 0, 42, value=b"not JSON")
    >>> error = RecordDeserializationError("the value is not JSON", record=record, part="value")
    >>> isinstance(error, SerializationError), error.record.offset, error.part
    (True, 42, 'value')
    """

    def __init__(self, message: str, *, record: Any, part: str) -> None:
        """Store the record beside the message, which does not contain its content."""
        super().__init__(message)
        self.record = record
        self.part = part


class CommitFailedError(KafkaError):
    """A consumer's offsets were not committed, because it is no longer a member of its group.

    The group has given the partitions to another member, which will read the records again that
    were returned since the last commit. Retrying does not help; the next `poll` joins the group
    again.

    >>> error = CommitFailedError("OffsetCommit of group 'orders': the member was removed")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


class RebalanceInProgressError(KafkaError):
    """A consumer's offsets were not committed, because its group rebalances.

    Call `poll`, which completes the rebalance, then commit again: what was assigned to another
    member in the meantime is not to be committed.

    >>> error = RebalanceInProgressError("OffsetCommit of group 'orders': the group rebalances")
    >>> isinstance(error, KafkaError), error.retriable
    (True, True)
    """

    retriable = True


class NoOffsetForPartitionError(KafkaError):
    """A consumer has no position in some partitions, and auto.offset.reset does not say where.

    `partitions` are those for which the group has committed no offset. The remedies are to `seek`,
    or to set auto.offset.reset to `earliest` or `latest`.

    >>> error = NoOffsetForPartitionError([TopicPartition("orders", 0)])
    >>> error.partitions, error.retriable
    ((TopicPartition(topic='orders', partition=0),), False)
    """

    def __init__(self, partitions: Iterable[Any]) -> None:
        """Build the message from the partitions."""
        self.partitions = tuple(sorted(partitions))
        super().__init__(
            f"{listed(self.partitions)}: no offset is committed, and auto.offset.reset is none. "
            "Call seek with the offset to begin with, or set auto.offset.reset to earliest or "
            "latest"
        )


class OffsetOutOfRangeError(KafkaError):
    """The positions of a consumer are not in the log, and auto.offset.reset is `none`.

    `offsets` has the position in each of these partitions: their records were deleted, or never
    existed. The remedies are to `seek`, or to set auto.offset.reset.

    >>> error = OffsetOutOfRangeError({TopicPartition("orders", 0): 42})
    >>> error.offsets, error.retriable
    ({TopicPartition(topic='orders', partition=0): 42}, False)
    """

    _cause = "the log does not have this offset, and auto.offset.reset is none"

    def __init__(self, offsets: Mapping[Any, int]) -> None:
        """Build the message from the partitions and their offsets."""
        self.offsets = dict(offsets)
        places = [
            f"{partition} at offset {offset}" for partition, offset in sorted(self.offsets.items())
        ]
        super().__init__(
            f"{listed(places)}: {self._cause}. Call seek with another offset, or set "
            "auto.offset.reset to earliest or latest"
        )


class LogTruncationError(OffsetOutOfRangeError):
    """A log was truncated below a consumer's position after an unclean leader election (KIP-320).

    Records that the consumer has read are no longer in the log. `offsets` has its position in each
    partition, and `divergent_offsets` the first offset at which the log differs from what was read,
    as OffsetAndMetadata; partitions whose leader does not know it are not there.

    >>> orders = TopicPartition("orders", 0)
    >>> error = LogTruncationError({orders: 42}, {orders: OffsetAndMetadata(40, 3)})
    >>> isinstance(error, OffsetOutOfRangeError), error.divergent_offsets[orders].offset
    (True, 40)
    """

    _cause = "the log was truncated, so that records read before this offset are lost"

    def __init__(self, offsets: Mapping[Any, int], divergent_offsets: Mapping[Any, Any]) -> None:
        """Build the message from the positions; store where the logs differ."""
        super().__init__(offsets)
        self.divergent_offsets = dict(divergent_offsets)


class WakeupError(KafkaError):
    """A consumer's call was interrupted by `wakeup`, which another thread called.

    >>> error = WakeupError("poll was interrupted by wakeup")
    >>> isinstance(error, KafkaError), error.retriable
    (True, False)
    """


# --- producers: records that cannot be sent, deliveries and transactions that failed


class SchemaError(KafkaError, ValueError):
    """The columns of a DataFrame or table do not match the fields of a Kafka record.

    >>> import pyarrow as pa
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     producer.send_arrow(pa.table({"price": [12.5]}), topic="orders")
    Traceback (most recent call last):
        ...
    spark_kafka_sink.errors.SchemaError: ...
    """


class PayloadError(KafkaError, ValueError):
    """A key or a value cannot be encoded as its schema demands, or not be decoded.

    Retrying does not help. What is known of the place is in the attributes, and None stands for
    the rest: `row` is the index of a written row, counted from 0, in the table or, under Spark, in
    the task; `topic`, `partition` and `offset` are those of a record that was read; `schema_id` is
    the id of the schema in the registry; `field` is the path of the field, such as
    `value.lines[].price`.

    The message consists of the place, `cause`, which says what is wrong, and `advice`, which says
    what to do. It never contains the value.

    >>> error = PayloadError("it is not UTF-8", field="value.name", advice="Correct it")
    >>> print(error.about(topic="orders", partition=0, offset=42, schema_id=7))
    topic 'orders', partition 0, offset 42, schema 7, value.name: it is not UTF-8. Correct it
    """

    def __init__(
        self,
        cause: str,
        *,
        row: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        schema_id: int | None = None,
        field: str | None = None,
        advice: str,
    ) -> None:
        """Build the message from the place, the cause and the advice."""
        known = {
            "row": row,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "schema": schema_id,
        }
        places = [f"{name} {value!r}" for name, value in known.items() if value is not None]
        location = ", ".join([*places, field] if field else places)
        super().__init__(f"{location}: {cause}. {advice}" if location else f"{cause}. {advice}")
        self.cause = cause
        self.row = row
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.schema_id = schema_id
        self.field = field
        self.advice = advice

    def about(
        self,
        *,
        row: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        schema_id: int | None = None,
    ) -> Self:
        """Return the same error with more of its place; what is None remains as it is."""
        return type(self)(
            self.cause,
            row=self.row if row is None else row,
            topic=self.topic if topic is None else topic,
            partition=self.partition if partition is None else partition,
            offset=self.offset if offset is None else offset,
            schema_id=self.schema_id if schema_id is None else schema_id,
            field=self.field,
            advice=self.advice,
        )


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


def shown_reason(error: Exception) -> str:
    """Return what a message says of the error of a serializer or deserializer.

    Any error but these may quote the data, which must not be logged: of others only the type is
    named.
    """
    if isinstance(error, PayloadError):
        return str(error).removesuffix(f". {error.advice}")
    if isinstance(error, SchemaError | SchemaRegistryError | ConfigError):
        return str(error)
    return type(error).__name__
