"""What a task does with rows that can never be sent: count them, and write dead letters.

- A bad row stays in its batch and is skipped (`record.refused_rows`); after each batch its dead
  letter is written with the same producer, so in the same transaction.
- A dead letter has the row's key and value, its headers and its timestamp, and what is wrong with
  it in headers: those of Kafka Connect's dead letters (`DeadLetterQueueReporter`), as far as they
  mean something here, and some of our own.
- A topic in the column that does not exist costs max.block.ms once in a process. Later tasks only
  look whether it has been created.

Objects per row are created for bad rows only.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink import display
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordError
from spark_kafka_sink.model import known_offset
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.columns import NULL_TIMESTAMP, NULL_TOPIC_INDEX
from spark_kafka_sink.record.refused_rows import MOST_SHOWN, RefusedRows, RowErrorKind
from spark_kafka_sink.spark.sink.bad_rows import BadRow, BadRows, bad_rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.config.sink_options import OnErrorOptions
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.producer.records.record_futures import FutureTableMetadata
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import RefusedRow

logger = logging.getLogger(__name__)

#: Kafka Connect's headers, and ours.
CONNECT: Final = "__connect.errors."
OWN: Final = "__pykafka.errors."
#: The names of Connect's stages at which a row fails.
_STAGES: Final = {
    RowErrorKind.KEY: "KEY_CONVERTER",
    RowErrorKind.VALUE: "VALUE_CONVERTER",
    RowErrorKind.HEADERS: "HEADER_CONVERTER",
}
_PRODUCE: Final = "KAFKA_PRODUCE"
#: The bytes that a record and its batch take beside keys, values and headers, at most.
_OVERHEAD: Final = 256
#: The most bytes of a text in a header.
_MOST_TEXT: Final = 2_000
#: The lengths of a header's name and value.
_HEADER_OVERHEAD: Final = 10
_MOST_MISSING: Final = 1_000
#: The topics for which a task of this process has waited in vain: brokers and name. The values mean
#: nothing; the order is that of arrival.
_missing: dict[tuple[object, str], None] = {}


class RowOrigin(NamedTuple):
    """Where the rows of a task come from."""

    task: int
    query_id: str | None = None
    batch_id: int | None = None


class _Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: list[tuple[str, bytes | None]]


def _batch_of(letters: list[_Letter]) -> pa.RecordBatch:
    """Return letters as columns, which is faster than from rows with nested values."""
    offsets = np.zeros(len(letters) + 1, np.int32)
    np.cumsum([len(letter.headers) for letter in letters], out=offsets[1:])
    starts: Any = pa.array(offsets)
    headers = [header for letter in letters for header in letter.headers]
    elements: Any = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in headers], pa.string()),
            pa.array([value for _, value in headers], pa.binary()),
        ],
        names=["key", "value"],
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array([letter.key for letter in letters], pa.binary()),
            pa.array([letter.value for letter in letters], pa.binary()),
            pa.array([letter.timestamp for letter in letters], pa.timestamp("ms")),
            pa.ListArray.from_arrays(starts, elements),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


class BadRowWriter:
    """The bad rows of one task."""

    def __init__(
        self, options: OnErrorOptions, origin: RowOrigin, config: ProducerConfig, topic: str | None
    ) -> None:
        """Set what happens to them; `topic` is None if a column names the topics."""
        self.refused = RefusedRows(options.limit.count)
        self._dlq_topic = options.dlq_topic
        self._origin = origin
        self._config = config
        self._topic = topic
        #: A dead letter is at most this large.
        self._most_bytes = min(config.max_request_size, config.buffer_memory) - _OVERHEAD
        known = {
            f"{CONNECT}connector.name": "pykafka",
            f"{CONNECT}task.id": origin.task,
            f"{OWN}query.id": origin.query_id,
            f"{OWN}batch.id": origin.batch_id,
            f"{OWN}task": origin.task,
        }
        self._fixed_headers: list[tuple[str, bytes | None]] = [
            (name, str(value).encode()) for name, value in known.items() if value is not None
        ]
        self._counts: Counter[str] = Counter()
        self._first: list[tuple[BadRow, FutureTableMetadata | None]] = []
        #: Topics that do not exist, and those that this task has looked for.
        self._absent: set[str] = set()
        self._looked_for: set[str] = set()

    def append(
        self,
        producer: KafkaProducer,
        batch: pa.RecordBatch,
        columns: RecordColumns,
        first_row: int,
        missing: Callable[[KafkaTimeoutError, RecordColumns], set[str]],
    ) -> None:
        """Append the good rows of a batch, and the dead letters of the others.

        `missing` returns which topics do not exist after one was waited for, or raises the error.
        """
        self._look_for_missing(columns)
        columns = self._without_absent(columns, first_row)
        while True:
            try:
                producer.append_good(columns, first_row=first_row, refused=self.refused)
                break
            except KafkaTimeoutError as error:
                absent = missing(error, columns)
                if not absent:
                    raise
                self._remember(absent)
                columns = self._without_absent(columns, first_row)
        stop = first_row + batch.num_rows
        rows = self.refused.between(first_row, stop)
        if rows:
            self._write(producer, rows, batch, columns, first_row)
            self.refused.forget(stop)

    @property
    def count(self) -> int:
        """How many rows were bad."""
        return self._counts.total()

    @property
    def letters(self) -> int:
        """How many dead letters were written."""
        return 0 if self._dlq_topic is None else self.count

    def found(self) -> BadRows | None:
        """Return the bad rows once all dead letters are acknowledged; None if there are none."""
        return bad_rows_of(
            self._counts, [_placed(row, letter) for row, letter in self._first], self._dlq_topic
        )

    def finish(self) -> BadRows | None:
        """Return the bad rows as `found` does, and log a line about them."""
        bad = self.found()
        if bad is not None:
            logger.warning(
                "Kafka: task %d has %s; the first: %s",
                self._origin.task,
                bad.to_line(),
                bad.first[0].error,
            )
        return bad

    def _write(
        self,
        producer: KafkaProducer,
        rows: list[RefusedRow],
        batch: pa.RecordBatch,
        columns: RecordColumns,
        first_row: int,
    ) -> None:
        self._counts.update(refused.kind.value for refused in rows)
        shown = max(MOST_SHOWN - len(self._first), 0)
        letters = None
        if self._dlq_topic is not None:
            made = [self._letter(refused, batch, columns, first_row) for refused in rows]
            letters = _batch_of(made)
        for index, refused in enumerate(rows[:shown]):
            bad = BadRow(
                self._origin.task,
                refused.row,
                refused.kind.value,
                _shown(self._topic_of(batch, refused.row - first_row)),
                str(refused.error),
            )
            # Alone, so that its offset is known.
            one = None if letters is None else letters.slice(index, 1)
            self._first.append((bad, None if one is None else self._send(producer, one)))
        if letters is not None and len(rows) > shown:
            self._send(producer, letters.slice(shown))

    def _send(self, producer: KafkaProducer, letters: pa.RecordBatch) -> FutureTableMetadata:
        return producer.append_unnumbered(record_columns(letters, topic=self._dlq_topic))

    def _letter(
        self, refused: RefusedRow, batch: pa.RecordBatch, columns: RecordColumns, first_row: int
    ) -> _Letter:
        """Return the dead letter of a row."""
        row = refused.row - first_row
        headers = self._headers(refused, _shown(self._topic_of(batch, row)))
        room = self._most_bytes - _size_of(headers) - len(OWN) - _HEADER_OVERHEAD - 30
        cut = []
        original = _headers_of(batch, row)
        if _size_of(original) > room:
            cut.append("headers")
            original = []
        room -= _size_of(original)
        payloads: list[bytes | None] = []
        for side in ("key", "value"):
            payload = refused.payloads.get(side) or _payload_of(batch, side, row)
            if payload is not None and len(payload) > room:
                cut.append(side)
                payload = payload[: max(room, 0)]
            room -= len(payload or b"")
            payloads.append(payload)
        if cut:
            headers.append((f"{OWN}truncated", ",".join(cut).encode()))
        timestamp = int(columns.timestamp[row])
        has_time = refused.kind is not RowErrorKind.TIMESTAMP and timestamp != NULL_TIMESTAMP
        key, value = payloads
        return _Letter(key, value, timestamp if has_time else None, original + headers)

    def _headers(self, refused: RefusedRow, topic: str | None) -> list[tuple[str, bytes | None]]:
        error = refused.error
        kind = type(error)
        known = {
            f"{CONNECT}topic": topic,
            f"{CONNECT}partition": error.partition,
            f"{CONNECT}stage": _STAGES.get(refused.kind, _PRODUCE),
            f"{CONNECT}exception.class.name": f"{kind.__module__}.{kind.__qualname__}",
            f"{CONNECT}exception.message": _shown(str(error)),
            f"{OWN}kind": refused.kind.value,
            f"{OWN}row": refused.row,
        }
        headers: list[tuple[str, bytes | None]] = [
            (name, str(value).encode()) for name, value in known.items() if value is not None
        ]
        return headers + self._fixed_headers

    def _topic_of(self, batch: pa.RecordBatch, row: int) -> str | None:
        """Return the topic of a row, even if it is not the name of one."""
        if self._topic is not None:
            return self._topic
        name = _payload_of(batch, "topic", row)
        return None if name is None else name.decode(errors="replace")

    # --- topics in the column that do not exist

    def _look_for_missing(self, columns: RecordColumns) -> None:
        """Look whether topics that were missing earlier in this process exist by now."""
        if self._topic is not None or not _missing:
            return
        servers = self._config.bootstrap_servers
        doubtful = {
            topic
            for topic in columns.topics
            if (servers, topic) in _missing and topic not in self._looked_for
        }
        if not doubtful:
            return
        self._looked_for |= doubtful
        from spark_kafka_sink.admin.cluster_check import list_topics

        try:
            existing = set(list_topics(self._config))
        except KafkaError as error:
            logger.info("the topics could not be listed, and are waited for: %s", error)
            return
        self._absent |= doubtful - existing
        for topic in doubtful & existing:
            _missing.pop((servers, topic), None)

    def _remember(self, absent: set[str]) -> None:
        self._absent |= absent
        self._looked_for |= absent
        for topic in absent:
            _missing[self._config.bootstrap_servers, topic] = None
        while len(_missing) > _MOST_MISSING:
            del _missing[next(iter(_missing))]

    def _without_absent(self, columns: RecordColumns, first_row: int) -> RecordColumns:
        """Return columns without the topics that do not exist, whose rows are refused."""
        absent = [topic in self._absent for topic in columns.topics]
        if not any(absent):
            return columns
        for number in np.flatnonzero(absent).tolist():
            for row in np.flatnonzero(columns.topic_index == number).tolist():
                self.refused.add(
                    RowErrorKind.TOPIC,
                    RecordError(
                        "the topic does not exist",
                        row=first_row + row,
                        topic=columns.topics[number],
                        advice=(
                            "Create it, correct its name, or set autoCreateTopics=true to let the "
                            "brokers create it"
                        ),
                    ),
                )
        kept = np.flatnonzero(np.logical_not(absent))
        # One more, for the rows that have no topic anyway.
        moved = np.full(len(absent) + 1, NULL_TOPIC_INDEX, np.int32)
        moved[kept] = np.arange(len(kept))
        return replace(
            columns,
            topics=tuple(columns.topics[number] for number in kept.tolist()),
            topic_index=moved[columns.topic_index],
        )


def _placed(row: BadRow, letter: FutureTableMetadata | None) -> BadRow:
    """Return a row with the place of its dead letter, which is acknowledged."""
    if letter is None:
        return row
    [(place, acks)] = letter.result(timeout=0).items()
    return row._replace(partition=place.partition, offset=known_offset(acks.first_offset))


def _shown(text: str | None) -> str | None:
    return None if text is None else display.shortened(text, _MOST_TEXT)


def _size_of(headers: list[tuple[str, bytes | None]]) -> int:
    return sum(len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD for name, value in headers)


def _payload_of(batch: pa.RecordBatch, name: str, row: int) -> bytes | None:
    """Return a text or bytes of a row; None if it is null, or if there is no such column."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else _bytes_of(batch.column(index)[row])


def _headers_of(batch: pa.RecordBatch, row: int) -> list[tuple[str, bytes | None]]:
    """Return the headers of a row, without those that have no name."""
    index = batch.schema.get_field_index("headers")
    listed = None if index < 0 else _plain(batch.column(index)[row])
    if listed is None or not listed.is_valid:
        return []
    headers = []
    for header in listed.values:
        name = _bytes_of(header["key"]) if header.is_valid else None
        if name is not None:
            headers.append((name.decode(errors="replace"), _bytes_of(header["value"])))
    return headers


def _bytes_of(scalar: Any) -> bytes | None:
    plain = _plain(scalar)
    if not plain.is_valid or not hasattr(plain, "as_buffer"):
        return None
    content: bytes = plain.as_buffer().to_pybytes()
    return content


def _plain(scalar: Any) -> Any:
    """Return the value of a scalar that is encoded by a dictionary or by run ends."""
    while pa.types.is_dictionary(scalar.type) or pa.types.is_run_end_encoded(scalar.type):
        scalar = scalar.value
    return scalar
