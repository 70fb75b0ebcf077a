"""The rows of a task that cannot be sent, where they do not end the write.

What finds bad rows either raises the error of the first, or adds them here and goes on. A refused
row stays in its columns, so that rows keep their numbers and no good row is copied; it is skipped
when the rows are written. Only errors of rows themselves are added, never those of a cluster or of
its state.

Rows are kept as arrays of numbers, by what is wrong with them: an error is created for a reason,
and not for a row.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import RecordError
from spark_kafka_sink.record.bad_row_limit import MOST_SHOWN, too_many

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from spark_kafka_sink.errors import PayloadError
    from spark_kafka_sink.record.columns import Int64Array


class RowErrorKind(StrEnum):
    """What is wrong with a row; reports count rows by these words."""

    #: The schema of its key does not have it.
    KEY = "key"
    #: The schema of its value does not have it.
    VALUE = "value"
    #: It is larger than max.request.size, or than its topic's max.message.bytes.
    SIZE = "size"
    #: It has no topic, or one that does not exist or has an illegal name.
    TOPIC = "topic"
    PARTITION = "partition"
    TIMESTAMP = "timestamp"
    HEADERS = "headers"
    #: Its broker refuses it for another reason.
    BROKER = "broker"


class Refusal(NamedTuple):
    """Rows that cannot be sent for the same reason."""

    kind: RowErrorKind
    #: The error of each, without its number.
    reason: RecordError | PayloadError
    #: Their numbers in the task, in order.
    rows: Int64Array

    def error(self, row: int) -> RecordError | PayloadError:
        """Return the error of one row."""
        if isinstance(self.reason, RecordError):
            return self.reason.about_row(row)
        return self.reason.about(row=row)

    def has_same_reason(self, other: Refusal) -> bool:
        """Return whether the errors of both differ in the number of the row only."""
        return (
            self.kind is other.kind
            and type(self.reason) is type(other.reason)
            and vars(self.reason) == vars(other.reason)
        )


class RefusedPayloads(NamedTuple):
    """Keys or values that could not be encoded, which dead letters have as text."""

    #: `key` or `value`.
    side: str
    rows: Int64Array
    #: The `pyarrow.Array` that has them, among others.
    values: Any
    #: Returns a `pyarrow.BinaryArray`, with an item for each of `rows`; raises PayloadError for
    #: values that cannot be read.
    texts: Callable[[], Any]


class RefusedRows:
    """The refused rows of a task, by their numbers. Not thread-safe."""

    def __init__(self, most: int | None = None, *, keeps_payloads: bool = True) -> None:
        """Accept `most` rows, or any number of them; `keeps_payloads` if there are dead letters."""
        self._most = most
        self.keeps_payloads = keeps_payloads
        self._refusals: list[Refusal] = []
        #: The rows of `_refusals`, if there are several of these; else nothing.
        self._known: set[int] = set()
        self._payloads: list[RefusedPayloads] = []
        #: All rows that were ever added.
        self.count = 0
        self._first: list[tuple[int, Refusal]] = []
        #: Whether the partitions of the topics were counted since the task began.
        self.has_fresh_partitions = False

    def add(
        self,
        kind: RowErrorKind,
        reason: RecordError | PayloadError,
        rows: Int64Array,
    ) -> None:
        """Add rows, in order, with the same error; the first error of a row counts.

        Raises KafkaError if there are too many, which shows the first of them.
        """
        if self._refusals:
            if not self._known:
                for earlier in self._refusals:
                    self._known.update(earlier.rows.tolist())
            rows = rows[[row not in self._known for row in rows.tolist()]]
            self._known.update(rows.tolist())
        if not rows.size:
            return
        refusal = Refusal(kind, reason, rows)
        self._refusals.append(refusal)
        self.count_rows(refusal)

    def count_rows(self, refusal: Refusal) -> None:
        """Count rows that nothing has to skip, because they were sent, and refused by their broker.

        Raises KafkaError if there are too many, as `add` does.
        """
        rows = refusal.rows
        self.count += rows.size
        shown = MOST_SHOWN - len(self._first)
        if shown > 0:
            self._first += [(row, refusal) for row in rows[:shown].tolist()]
        if self._most is not None and self.count > self._most:
            raise too_many(
                f"more than {counted(self._most, 'row')} of this task cannot be written",
                [str(refusal.error(row)) for row, refusal in self._first],
            ) from refusal.error(int(rows[0]))

    def add_row(self, kind: RowErrorKind, error: RecordError) -> None:
        """Add the row of an error."""
        self.add(kind, error.about_row(None), np.array([error.row or 0], np.int64))

    def keep(self, payloads: RefusedPayloads) -> None:
        """Keep payloads that could not be encoded, of rows that are refused, until `forget`."""
        self._payloads.append(payloads)

    def between(self, first_row: int, stop: int) -> list[Refusal]:
        """Return the rows from `first_row` to `stop`, exclusive, by their reasons."""
        found = []
        for refusal in self._refusals:
            rows = refusal.rows
            if rows[0] < first_row or rows[-1] >= stop:
                rows = rows[(rows >= first_row) & (rows < stop)]
                refusal = refusal._replace(rows=rows)  # noqa: PLW2901
            if rows.size:
                found.append(refusal)
        return found

    @property
    def payloads(self) -> list[RefusedPayloads]:
        """Payloads that could not be encoded, perhaps also of rows that are dealt with later."""
        return self._payloads

    def forget(self, stop: int) -> None:
        """Remove the rows before `stop`, which were dealt with."""
        later = [refusal for refusal in self._refusals if refusal.rows[-1] >= stop]
        self._refusals = [
            refusal._replace(rows=refusal.rows[refusal.rows >= stop]) for refusal in later
        ]
        self._known.clear()
        self._payloads = [kept for kept in self._payloads if kept.rows[-1] >= stop]


def groups(*keys: npt.NDArray[Any]) -> list[npt.NDArray[np.intp]]:
    """Return the positions with equal keys, for each combination that is there."""
    if all((key == key[:1]).all() for key in keys):
        return [np.arange(keys[0].size)] if keys[0].size else []
    order = np.lexsort(keys[::-1])
    is_new = np.zeros(order.size, bool)
    for key in keys:
        ordered = key[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    return np.split(order, np.flatnonzero(is_new))
