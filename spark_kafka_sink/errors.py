"""Errors, as a small tree plus data.

There are three branches: mistakes of the caller (`ConfigError`, `SchemaError`,
`SerializationError`, `RecordError`, `ProducerClosedError`), invalid bytes from the network
(`DecodeError`), and error codes from a broker (`BrokerError`, which keeps the code even if it is
unknown). Beside them are the transient conditions, `NetworkError` and `KafkaTimeoutError`, and
`AuthenticationError`, which may come from either side.

Whether a retry may help is an attribute, `retriable`, and does not depend on the error's type.
Messages say what happened, where, and what to do; they never contain a secret.
"""

from __future__ import annotations

from typing import Self


class KafkaError(Exception):
    """The base class of every error that this package raises deliberately."""

    #: Whether the same request may succeed when it is retried.
    retriable: bool = False


class ConfigError(KafkaError, ValueError):
    """A setting is unknown, malformed, out of range, or in conflict with another setting."""


class SchemaError(KafkaError, ValueError):
    """The columns of a DataFrame or table do not match the fields of a Kafka record."""


class ProducerClosedError(KafkaError):
    """The producer was used after `close`, or after a fatal error closed it."""


class SerializationError(KafkaError, ValueError):
    """A key or a value cannot be serialized.

    The message names the topic, the field (key or value) and its type, but never the content. The
    serializer's own exception is in `__cause__`.
    """


class RecordError(KafkaError):
    """A record can never be sent; retrying does not help.

    `row` is the index of the row, counted from 0, in the table or, under Spark, in the task. It is
    None for a single record. `topic` and `partition` are None if they are not known.
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
        place = ", ".join(f"{name} {it!r}" for name, it in known.items() if it is not None)
        super().__init__(f"{place}: {cause}. {advice}" if place else f"{cause}. {advice}")
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
    """A record is larger than max.request.size or buffer.memory."""


class InvalidPartitionError(RecordError):
    """A record specifies a partition that its topic does not have."""


class InvalidTopicError(RecordError):
    """A record has no topic."""


class KafkaTimeoutError(KafkaError, TimeoutError):
    """An operation did not finish within its timeout."""

    retriable = True


class BufferExhaustedError(KafkaTimeoutError):
    """No buffer memory became free within max.block.ms."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """A batch was not acknowledged within delivery.timeout.ms after it was closed."""


class NetworkError(KafkaError, ConnectionError):
    """A connection was refused or lost, or the broker never answered."""

    retriable = True


class AuthenticationError(KafkaError):
    """Authentication failed: a password, token, certificate or host name was not accepted.

    It is fatal to the producer, since a retry would fail the same way. The message names the
    broker, the mechanism and the user, but never a secret.
    """


class DecodeError(KafkaError):
    """Bytes from the network do not follow the protocol."""


class CorruptRecordError(DecodeError):
    """A record batch has a wrong checksum or inconsistent sizes."""


class UnsupportedVersionError(KafkaError):
    """Client and broker support no common version of an API."""


class BrokerError(KafkaError):
    """A broker answered with an error code.

    `code` and `name` are Kafka's own; an unknown code keeps its number.
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


class ProducerFencedError(BrokerError):
    """A newer producer took over the transactional id, or the coordinator fenced this producer.

    The only remedy is to close this producer.
    """


class IllegalStateError(KafkaError, RuntimeError):
    """The producer's state does not allow the call, which changed nothing."""


class TransactionAbortableError(KafkaError):
    """The transaction cannot be committed: abort it, then keep using the same producer."""


class TransactionAbortedError(KafkaError):
    """A record was not sent because its transaction was aborted."""


class FatalProducerError(KafkaError):
    """An earlier fatal error, the cause, ended this producer: close it and create another."""


class DeliveryError(KafkaError):
    """Records were accepted from the caller but could not be delivered.

    The message says as much as is known: how many records, which partition, which input rows, the
    cause (also in `__cause__`), and what to do.
    """
