"""What a task does with rows that can never be sent: count them, and write dead letters.

- A bad row stays in its batch and is skipped (`record.refused_rows`). Its dead letter is written
  with those of a few later batches, by the same producer, so in the same transaction.
- A dead letter has the row's key and value, its headers and its timestamp, and what is wrong with
  it in headers: those of Kafka Connect's dead letters (`DeadLetterQueueReporter`), as far as they
  mean something here, and some of our own.
- A topic in the column that does not exist costs max.block.ms once in a process. Later tasks only
  look whether it has been created. So does the same task for other names, unless brokers may create
  topics: one wait shows that the cluster answers, and that the column has wrong names.

No Python objects are created per row, good or bad; `letter_columns` builds the letters.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from spark_kafka_sink import display
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, RecordError
from spark_kafka_sink.model import known_offset
from spark_kafka_sink.record.bad_row_limit import MOST_SHOWN
from spark_kafka_sink.record.columns import NULL_TOPIC_INDEX
from spark_kafka_sink.record.refused_rows import RefusedRows, RowErrorKind
from spark_kafka_sink.spark.sink.bad_rows import BadRow, BadRows, bad_rows_of
from spark_kafka_sink.spark.sink.broker_refusals import refused_batch
from spark_kafka_sink.spark.sink.letter_columns import (
    BadBatch,
    BadRowTable,
    Header,
    LetterBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.config.sink_options import OnErrorOptions
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.record.columns import RecordColumns
    from spark_kafka_sink.record.refused_rows import Refusal

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
#: What is wrong with the topic of a row, and what to do.
_NO_TOPIC: Final = (
    "the topic does not exist",
    "Create it, correct its name, or set autoCreateTopics=true to let the brokers create it",
)
_FOR_LETTERS: Final = (
    "the topic is dlqTopic, which only dead letters are written to",
    "Correct the topic, or choose another dlqTopic",
)
#: The bytes that a record and its batch take beside keys, values and headers, at most.
_OVERHEAD: Final = 256
#: The most bytes of a text in a header.
_MOST_TEXT: Final = 2_000
_TRUNCATED: Final = f"{OWN}truncated"
_TIMESTAMP: Final = f"{OWN}timestamp"
#: Letters are written together: so many, or those of batches with so many bytes. Each call takes a
#: tenth of a millisecond.
_MOST_WAITING: Final = 1_000
_MOST_WAITING_BYTES: Final = 16_000_000
#: How long a process trusts what it has been told about a topic of letters, in seconds.
_TRUST_SECONDS: Final = 300.0
_MOST_MISSING: Final = 1_000
#: The topics for which a task of this process has waited in vain: brokers, whether these might have
#: created them, and name. The values mean nothing; the order is that of arrival.
_missing: dict[tuple[object, ...], None] = {}
#: How many bytes topics of letters accept, and until when this is trusted: by brokers and name.
_accepted: dict[tuple[object, ...], tuple[int, float]] = {}


#: Returns the partition and the offset of an acknowledged letter.
Place: TypeAlias = "Callable[[], tuple[int, int]]"


class RowOrigin(NamedTuple):
    """Where the rows of a task come from."""

    task: int
    query_id: str | None = None
    batch_id: int | None = None


class BadRowWriter:
    """The bad rows of one task."""

    def __init__(
        self,
        options: OnErrorOptions,
        origin: RowOrigin,
        config: ProducerConfig,
        topic: str | None,
        *,
        reserved_topic: str | None = None,
    ) -> None:
        """Set what happens to them; `topic` is None if a column names the topics.

        A row of `reserved_topic`, by default the topic of the dead letters, is bad.
        """
        self.refused = RefusedRows(
            options.limit.count, keeps_payloads=options.dlq_topic is not None
        )
        self._dlq_topic = options.dlq_topic
        self._origin = origin
        self._config = config
        self._topic = topic
        self._fixed_headers: list[tuple[str, object]] = [
            (f"{CONNECT}connector.name", "pykafka"),
            (f"{CONNECT}task.id", origin.task),
            (f"{OWN}query.id", origin.query_id),
            (f"{OWN}batch.id", origin.batch_id),
        ]
        #: The most bytes of a letter without its batch, once there are letters.
        self._most_letter_bytes: int | None = None
        dlq = options.dlq_topic
        self._builder = (
            None
            if dlq is None
            else LetterBuilder(
                dlq,
                partial(self._most_bytes, dlq),
                self._headers,
                row=f"{OWN}row",
                truncated=_TRUNCATED,
                timestamp=_TIMESTAMP,
            )
        )
        self._counts: Counter[str] = Counter()
        #: Batches whose bad rows have no letters yet.
        self._waiting: list[BadBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._first: list[tuple[BadRow, Place | None]] = []
        self._reserved_topic = reserved_topic or dlq
        #: Topics that rows cannot have, since they do not exist or are for letters, and all that
        #: this task knows to exist or not.
        self._absent: set[str] = set() if self._reserved_topic is None else {self._reserved_topic}
        self._settled = set(self._absent)
        #: Whether this task has waited in vain for a topic that only others could create.
        self._has_waited = False

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
        if self._topic is None:
            self._settled.update(columns.topics)
        stop = first_row + batch.num_rows
        refusals = self.refused.between(first_row, stop)
        if refusals:
            self._set_aside(
                producer,
                BadBatch(refusals, first_row, batch, columns, self.refused.payloads),
            )
            self.refused.forget(stop)
        self.take_refused(producer)

    def take_refused(self, producer: KafkaProducer) -> bool:
        """Append the dead letters of rows that brokers have refused; return whether there are any.

        Some of the letters may wait for others. After a flush, no broker has an unanswered row.
        """
        taken = producer.take_refused()
        for refused in taken:
            bad = refused_batch(refused)
            for refusal in bad.refusals:
                self.refused.count_rows(refusal)
            self._set_aside(producer, bad)
        return bool(taken)

    def write_letters(self, producer: KafkaProducer) -> None:
        """Append the dead letters of all bad rows so far."""
        if not self._waiting:
            return
        # All batches at once, since Python is several times as fast after the first of them.
        bad = BadRowTable(self._topic, has_letters=self._builder is not None)
        for batch in self._waiting:
            bad.add(batch)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        shown = min(MOST_SHOWN - len(self._first), bad.count)
        places: Sequence[Place | None] = [None] * shown
        if self._builder is not None:
            places = (
                producer.append_unnumbered(
                    self._builder.letters(bad, time.time_ns() // 1_000_000), shown
                )
                or places
            )
        if not shown:
            return
        columns = (bad.rows(), bad.reasons(), bad.topic_indexes())
        for index, place in enumerate(places):
            row, reason, topic_index = (int(column[index]) for column in columns)
            refusal, topic = bad.refusal(reason), _shown(bad.topic(topic_index))
            error = str(refusal.error(row))
            first = BadRow(self._origin.task, row, refusal.kind.value, topic, error)
            self._first.append((first, place))

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

    def _set_aside(self, producer: KafkaProducer, bad: BadBatch) -> None:
        """Count the bad rows of a batch, and keep it until there are enough of them."""
        for refusal in bad.refusals:
            self._counts[refusal.kind.value] += refusal.rows.size
            self._waiting_rows += refusal.rows.size
        if self._builder is None and len(self._first) == MOST_SHOWN:
            return
        self._waiting.append(bad)
        self._waiting_bytes += bad.nbytes
        is_enough = (
            self._waiting_rows >= _MOST_WAITING or self._waiting_bytes >= _MOST_WAITING_BYTES
        )
        # The first at once: what is wrong with the topic of the letters is known early.
        if is_enough or not self._first or self._builder is None:
            self.write_letters(producer)

    def _headers(self, refusal: Refusal, topic: str | None) -> list[Header]:
        """Return the headers of rows that are bad for the same reason, without their numbers."""
        error = refusal.reason
        kind = type(error)
        # Row, topic and partition have headers of their own; the path of a field has none.
        is_placed = isinstance(error, RecordError)
        message = f"{error.cause}. {error.advice}" if is_placed else str(error)
        known = [
            (f"{CONNECT}topic", _shown(topic)),
            (f"{CONNECT}partition", error.partition),
            (f"{CONNECT}stage", _STAGES.get(refusal.kind, _PRODUCE)),
            (f"{CONNECT}exception.class.name", f"{kind.__module__}.{kind.__qualname__}"),
            (f"{CONNECT}exception.message", _shown(message)),
            (f"{OWN}kind", refusal.kind.value),
            *self._fixed_headers,
        ]
        return [Header(name, str(value).encode()) for name, value in known if value is not None]

    def _most_bytes(self, topic: str) -> int:
        """Return how many bytes a letter for a topic may have."""
        if self._most_letter_bytes is None:
            config = self._config
            limits = config.max_request_size, config.buffer_memory, _accepted_bytes(config, topic)
            known = [limit for limit in limits if limit is not None]
            self._most_letter_bytes = min(known) - _OVERHEAD
        return self._most_letter_bytes

    # --- topics in the column that do not exist

    def _look_for_missing(self, columns: RecordColumns) -> None:
        """Look whether topics exist for which it is of no use to wait."""
        if self._topic is not None or not (_missing or self._has_waited):
            return
        doubtful = {
            topic
            for topic in columns.topics
            if topic not in self._settled
            and (self._has_waited or self._memory_of(topic) in _missing)
        }
        if not doubtful:
            return
        self._settled |= doubtful
        from spark_kafka_sink.admin.cluster_check import missing_topics

        try:
            absent = missing_topics(self._config, sorted(doubtful))
        except KafkaError as error:
            logger.info("the topics could not be looked for, and are waited for: %s", error)
            return
        self._absent |= absent
        for topic in doubtful - absent:
            _missing.pop(self._memory_of(topic), None)

    def _memory_of(self, topic: str) -> tuple[object, ...]:
        """Return the key of a topic in `_missing`: one that may be created is still waited for."""
        return self._config.bootstrap_servers, self._config.allow_auto_create_topics, topic

    def _remember(self, absent: set[str]) -> None:
        self._has_waited = not self._config.allow_auto_create_topics
        self._absent |= absent
        self._settled |= absent
        for topic in absent:
            _missing[self._memory_of(topic)] = None
        while len(_missing) > _MOST_MISSING:
            del _missing[next(iter(_missing))]

    def _without_absent(self, columns: RecordColumns, first_row: int) -> RecordColumns:
        """Return columns without the topics that rows cannot have; such rows are refused."""
        absent = [topic in self._absent for topic in columns.topics]
        if not any(absent):
            return columns
        for number in np.flatnonzero(absent).tolist():
            topic = columns.topics[number]
            cause, advice = _FOR_LETTERS if topic == self._reserved_topic else _NO_TOPIC
            self.refused.add(
                RowErrorKind.TOPIC,
                RecordError(cause, row=None, topic=topic, advice=advice),
                first_row + np.flatnonzero(columns.topic_index == number),
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


def _accepted_bytes(config: ProducerConfig, topic: str) -> int | None:
    """Return max.message.bytes of a topic, None if this client cannot know it.

    The first task of a process with letters asks, and then one every few minutes. Each task asks if
    there was no answer, as there may be one by now.
    """
    key = config.bootstrap_servers, topic
    now = time.monotonic()
    if key in _accepted and now < _accepted[key][1]:
        return _accepted[key][0]
    from spark_kafka_sink.admin.topic_settings import max_message_bytes

    found = max_message_bytes(config, [topic]).get(topic)
    if found is not None:
        _accepted[key] = found, now + _TRUST_SECONDS
    return found


def _placed(row: BadRow, place: Place | None) -> BadRow:
    """Return a row with the place of its dead letter, which is acknowledged."""
    if place is None:
        return row
    partition, offset = place()
    return row._replace(partition=partition, offset=known_offset(offset))


def _shown(text: str | None) -> str | None:
    return None if text is None else display.shortened(text, _MOST_TEXT)
