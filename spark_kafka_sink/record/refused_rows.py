"""The rows of a task that cannot be sent, where they do not end the write.

What finds a bad row either raises its error, or adds it here and goes on. A refused row stays in
its columns, so that rows keep their numbers and no good row is copied; it is skipped when the rows
are written. Only errors of the row itself are added, never those of a cluster or of its state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.errors import PayloadError, RecordError

#: How many rows the errors and reports about many of them show.
MOST_SHOWN = 10


class RowErrorKind(StrEnum):
    """What is wrong with a row; reports count rows by these words."""

    #: The schema of its key does not have it.
    KEY = "key"
    #: The schema of its value does not have it.
    VALUE = "value"
    #: It is larger than max.request.size.
    SIZE = "size"
    #: It has no topic, or one that does not exist or has an illegal name.
    TOPIC = "topic"
    PARTITION = "partition"
    TIMESTAMP = "timestamp"
    HEADERS = "headers"


class RefusedRow(NamedTuple):
    """A row that cannot be sent, and why."""

    row: int
    kind: RowErrorKind
    error: RecordError | PayloadError
    #: Keys or values that are no bytes, as text: those that could not be encoded.
    payloads: Mapping[str, bytes]


class RefusedRows:
    """The refused rows of a task, by their numbers. Not thread-safe."""

    def __init__(self, most: int | None = None) -> None:
        """Accept `most` rows, or any number of them."""
        self._most = most
        self._rows: dict[int, RefusedRow] = {}
        #: All rows that were ever added.
        self.count = 0
        self._first: list[RefusedRow] = []
        #: Whether the partitions of the topics were counted since the task began.
        self.has_fresh_partitions = False

    def add(
        self,
        kind: RowErrorKind,
        error: RecordError | PayloadError,
        payloads: Mapping[str, bytes] | None = None,
    ) -> None:
        """Add the row of an error; the first error of a row counts.

        Raises KafkaError if there are too many, which shows the first of them.
        """
        row = error.row or 0
        if row in self._rows:
            return
        refused = RefusedRow(row, kind, error, payloads or {})
        self._rows[row] = refused
        self.count += 1
        if len(self._first) < MOST_SHOWN:
            self._first.append(refused)
        if self._most is not None and self.count > self._most:
            raise too_many(
                f"more than {counted(self._most, 'row')} of this task cannot be written",
                [str(refused.error) for refused in self._first],
            ) from error

    def between(self, first_row: int, stop: int) -> list[RefusedRow]:
        """Return the rows from `first_row` to `stop`, exclusive, in order."""
        return [self._rows[row] for row in sorted(self._rows) if first_row <= row < stop]

    def forget(self, stop: int) -> None:
        """Remove the rows before `stop`, which were dealt with."""
        self._rows = {row: refused for row, refused in self._rows.items() if row >= stop}


def too_many(what: str, errors: list[str]) -> KafkaError:
    """Return the error of a write with more bad rows than maxErrors; `errors` are the first."""
    return KafkaError(
        f"{what}, which is more than maxErrors allows. The first of them: {'; '.join(errors)}. "
        "Correct the rows, or raise maxErrors (a number, or a share of all rows such as 5%)"
    )
