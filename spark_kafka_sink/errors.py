"""Errors, as a small tree plus data.

Three branches: what the caller did wrong (`ConfigError`, `SchemaError`, `SerializationError`,
`RecordError`, `ProducerClosedError`), what came over the network and cannot be right
(`DecodeError`), and what a broker answered (`BrokerError`, which keeps the code it was given, known
or not). Beside them stand the conditions that time brings, `NetworkError` and `KafkaTimeoutError`,
and `AuthenticationError`, which may come from either side.

Whether trying again may help is an attribute, `retriable`, never a matter of the error's type.
Messages say what happened, where, and what to do; they never hold a secret.
"""

from __future__ import annotations

from typing import Self


class KafkaError(Exception):
    """Root of every error that this package raises on purpose."""

    #: Whether the same request, sent again, may succeed.
    retriable: bool = False


class ConfigError(KafkaError, ValueError):
    """A setting is unknown, malformed, out of range, or contradicts another one."""


class SchemaError(KafkaError, ValueError):
    """A DataFrame's columns are not those of a Kafka record."""


class ProducerClosedError(KafkaError):
    """The producer was used after `close`, or after a fatal error closed it."""


class SerializationError(KafkaError, ValueError):
    """A key or a value cannot be made into bytes.

    The message names the topic, whether it is the key or the value, and its type, never the value
    itself. What the serializer raised is in `__cause__`.
    """


class RecordError(KafkaError):
    """One record cannot be sent, whatever is tried.

    `row` counts the rows given to the producer from 0: of a table, or under Spark of the task; it
    is None for a record by itself. `topic` and `partition` are None where they are not known.
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
        """Compose the message from the row's place, the cause, and what to do about it."""
        known = {"row": row, "topic": topic, "partition": partition}
        place = ", ".join(f"{name} {it!r}" for name, it in known.items() if it is not None)
        super().__init__(f"{place}: {cause}. {advice}" if place else f"{cause}. {advice}")
        self.cause = cause
        self.row = row
        self.topic = topic
        self.partition = partition
        self.advice = advice

    def about_row(self, row: int | None) -> Self:
        """Make the same error about another row, or none."""
        return type(self)(
            self.cause, row=row, topic=self.topic, partition=self.partition, advice=self.advice
        )


class RecordTooLargeError(RecordError):
    """A record is larger than max.request.size or buffer.memory allows."""


class InvalidPartitionError(RecordError):
    """A record asks for a partition that its topic does not have."""


class InvalidTopicError(RecordError):
    """A record names no topic."""


class KafkaTimeoutError(KafkaError, TimeoutError):
    """Something was not done within the time that its setting allows."""

    retriable = True


class BufferExhaustedError(KafkaTimeoutError):
    """No memory became free within max.block.ms."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """A batch was not acknowledged within delivery.timeout.ms of its closing."""


class NetworkError(KafkaError, ConnectionError):
    """A connection was refused, cut, or never answered."""

    retriable = True


class AuthenticationError(KafkaError):
    """Client and broker do not accept each other: password, token, certificate or host name.

    It ends the producer at once, since trying again gives the same answer. The message names the
    broker, the mechanism and the user, never a secret.
    """


class DecodeError(KafkaError):
    """Bytes from the network are not what the protocol says they must be."""


class CorruptRecordError(DecodeError):
    """A record batch has a wrong checksum, or sizes that contradict each other."""


class UnsupportedVersionError(KafkaError):
    """Client and broker have no version of an API in common."""


class BrokerError(KafkaError):
    """A broker answered with an error code.

    `code` and `name` are Kafka's own; a code that this package does not know keeps its number.
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
        """Keep what the broker said beside the sentence made of it."""
        super().__init__(message)
        self.code = code
        self.name = name
        self.retriable = retriable
        #: Whether the answer shows that our picture of the cluster is out of date.
        self.invalid_metadata = invalid_metadata


class ProducerFencedError(BrokerError):
    """A newer producer has taken over the transactional id, or the coordinator gave this one up.

    Nothing helps but closing this producer.
    """


class IllegalStateError(KafkaError, RuntimeError):
    """A call that the producer's state does not allow. Nothing has changed by it."""


class TransactionAbortableError(KafkaError):
    """The transaction cannot be committed: abort it, then go on with the same producer."""


class TransactionAbortedError(KafkaError):
    """A record was not sent because its transaction was aborted."""


class FatalProducerError(KafkaError):
    """An earlier error, which is the cause, ended this producer: close it and make another."""


class DeliveryError(KafkaError):
    """Records were accepted from the caller and could not be delivered.

    Everything that was known goes into the sentence: how many records, of which partition, among
    which input rows, the cause (also in `__cause__`), and what to do.
    """
