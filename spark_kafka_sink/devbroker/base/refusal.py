"""The two ways in which the broker rejects a request.

`RefusedError` becomes a response: the request, or one partition of it, fails with Kafka's error
code. With `CloseConnectionError` there is no response: Kafka closes the connection where it cannot
write one or the client expects none (an unsupported API or version, an error with acks=0).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Maximum length of a message in a response: it may quote a name of any length that the client has
#: sent, and be repeated for each partition.
_MAX_MESSAGE_LENGTH = 300


class RefusedRecord(NamedTuple):
    """A record that caused its whole batch to be rejected (KIP-467).

    `message` is the reason.

    >>> RefusedRecord(0, "the record has no key").message
    'the record has no key'
    """

    #: Position in the batch, from 0.
    batch_index: int
    message: str


class RefusedError(KafkaError):
    """A rejection of a request, or a part of it, with one of Kafka's error codes.

    `error_code` is an `ErrorCode`, `message` is the human-readable text, and `record_errors` lists
    the records that caused their batch to be rejected.

    >>> with DevBroker() as broker:
    ...     broker.create_topic("not a name")
    Traceback (most recent call last):
        ...
    spark_kafka_sink.devbroker.base.refusal.RefusedError: ...
    """

    def __init__(
        self,
        error_code: ErrorCode,
        message: str,
        *,
        record_errors: Sequence[RefusedRecord] = (),
    ) -> None:
        """Store the error code, and the message for responses that have a field for it."""
        if len(message) > _MAX_MESSAGE_LENGTH:
            message = message[:_MAX_MESSAGE_LENGTH] + "..."
        super().__init__(message)
        self.error_code = error_code
        self.message = message
        self.record_errors = tuple(record_errors)


class CloseConnectionError(KafkaError):
    """A rejection of a request by closing the connection."""


class IllegalTransitionError(KafkaError):
    """A transition that the table of states does not allow."""


def check_leader_epoch(requested: int, current: int) -> None:
    """Raise RefusedError if a request names another leader epoch than the partition's (KIP-320).

    FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one; -1 means that the
    client knows none.
    """
    if requested in {NO_LEADER_EPOCH, current}:
        return
    raise RefusedError(
        ErrorCode.FENCED_LEADER_EPOCH if requested < current else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the request has leader epoch {requested}, the partition has {current}",
    )


@contextmanager
def refused_if_disk_fails(what: str) -> Iterator[None]:
    """Convert an OSError into RefusedError with KAFKA_STORAGE_ERROR; `what` says what failed."""
    try:
        yield
    except OSError as error:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}") from error
