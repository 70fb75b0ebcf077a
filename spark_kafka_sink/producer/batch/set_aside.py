"""The rows that brokers refuse for themselves, while the others of their batches are sent again.

A broker that refuses a record refuses its whole batch, and names the record (KIP-467). So the batch
was not appended, and can be sent again without the records named. That is done for rows only, and
only if their caller asks for it and takes them: a record that is set aside is neither acknowledged
nor failed.

A record is refused for itself if the broker names it, or if it is alone in its batch and too large.
Other errors are those of the whole batch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch
    from spark_kafka_sink.record.columns import Int64Array
    from spark_kafka_sink.record.default_record import PayloadPart

#: Error codes that a broker has for a batch because of single records, which it names.
_OF_RECORDS = frozenset({ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP})
#: Error codes that are a record's own if it is alone in its batch.
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
#: The error codes for which rows may be set aside.
OF_ROWS = _OF_RECORDS | TOO_LARGE


def own_errors(
    batch: ProducerBatch, code: int, reason: str, messages: Mapping[int, str]
) -> dict[int, str]:
    """Return why records of a refused batch are refused for themselves, by index in the batch.

    `reason` is the broker's message for the batch, and `messages` are those for single records.
    """
    if code in TOO_LARGE:
        return {0: reason} if batch.record_count == 1 else {}
    if code in _OF_RECORDS:
        return {
            index: messages[index] for index in sorted(messages) if 0 <= index < batch.record_count
        }
    return {}


class SetAsideRows(NamedTuple):
    """The rows of a batch that its broker refused for themselves."""

    topic_partition: TopicPartition
    #: The error code of the batch.
    code: int
    #: The broker's message for each row.
    messages: Sequence[str]
    #: The number of each row.
    rows: Int64Array
    #: Their records, not compressed.
    records: PayloadPart


class SetAsideTray:
    """The rows that were set aside, on their way from the network thread to their caller."""

    def __init__(self) -> None:
        #: Whether rows may be set aside; otherwise their batches fail.
        self.is_open = False
        self._rows: deque[SetAsideRows] = deque()

    def add(self, rows: SetAsideRows) -> None:
        """Add the rows of a batch, before its result ends."""
        self._rows.append(rows)

    def take(self) -> list[SetAsideRows]:
        """Return the rows that were added since the last call."""
        taken = []
        while self._rows:
            taken.append(self._rows.popleft())
        return taken

    def close(self) -> None:
        """Set no rows aside any longer, and forget those that were not taken."""
        self.is_open = False
        self._rows.clear()
