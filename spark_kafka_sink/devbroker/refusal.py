"""How a part of the broker says no.

Two kinds only. `RefusedError` is an answer: the request, or one partition of it, gets Kafka's error
code. `CloseConnectionError` is the absence of one: Kafka cuts the connection where an answer cannot
be written or was not asked for (an API or version that it does not have, an error with acks=0).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Most characters of a sentence in an answer: it may name what a client has named, of any length,
#: and be said of each of its partitions.
_MAX_MESSAGE_LENGTH = 300


class RefusedRecord(NamedTuple):
    """A record that made its whole batch be refused (KIP-467)."""

    #: Place in the batch, from 0.
    batch_index: int
    message: str


class RefusedError(KafkaError):
    """The broker refuses something, with one of Kafka's error codes."""

    def __init__(
        self,
        error_code: ErrorCode,
        message: str,
        *,
        record_errors: Sequence[RefusedRecord] = (),
    ) -> None:
        """Keep the code for the answer, and the sentence for those fields that carry one."""
        if len(message) > _MAX_MESSAGE_LENGTH:
            message = message[:_MAX_MESSAGE_LENGTH] + "..."
        super().__init__(message)
        self.error_code = error_code
        self.message = message
        self.record_errors = tuple(record_errors)


class CloseConnectionError(KafkaError):
    """The broker answers by closing the connection."""


@contextmanager
def refused_if_disk_fails(what: str) -> Iterator[None]:
    """Raise RefusedError with KAFKA_STORAGE_ERROR for an OSError; `what` says what failed."""
    try:
        yield
    except OSError as error:
        raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}") from error
