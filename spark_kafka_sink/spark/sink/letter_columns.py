"""The columns of dead letters, built for all bad rows of a few batches at once.

A letter has a dozen headers, and for most rows only the one with the number of the row differs. So
the headers of rows with the same reason and topic, and with as many digits in their numbers, are
encoded once and copied, with the digits put in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_kafka_sink.record.arrow.record_columns import bytes_array, bytes_column, header_parts
from spark_kafka_sink.record.columns import (
    NULL_TIMESTAMP,
    BytesColumn,
    EncodedHeaders,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_partitions,
)
from spark_kafka_sink.record.default_record import encode_varint
from spark_kafka_sink.record.kernel.take_kernel import ByteRows, joined, take_rows, write_numbers
from spark_kafka_sink.record.refused_rows import RowErrorKind, groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.record.columns import Int64Array, UInt8Array
    from spark_kafka_sink.record.refused_rows import Refusal, RefusedPayloads

    Positions = npt.NDArray[np.intp]

#: What a header takes beside its name and its value, at most.
_HEADER_OVERHEAD: Final = 10
#: What the value of the header takes that says what was cut, and that of a timestamp.
_TRUNCATED_BYTES: Final = 30
_TIMESTAMP_BYTES: Final = 19
#: Brokers refuse records that are further ahead, unless message.timestamp.after.max.ms allows it.
_MOST_AHEAD_MS: Final = 3_600_000
_POWERS: Final = 10 ** np.arange(19)
_ZERO: Final = ord("0")
#: With how many earlier reasons one is compared, to find an equal one.
_MOST_COMPARED: Final = 20
#: New memory costs as much as what is written to it: so many bytes are kept for the next letters.
_MOST_KEPT: Final = 1 << 20
#: What of a letter may be cut, in this order; each has the value of its bit.
_PARTS: Final = ("headers", "key", "value")


class Header(NamedTuple):
    """A header of letters."""

    name: str
    value: bytes


class BadBatch(NamedTuple):
    """The bad rows of a batch, which wait for those of other batches."""

    #: By what is wrong with them; the first row of the batch has the number `first_row`.
    refusals: Sequence[Refusal]
    first_row: int
    batch: pa.RecordBatch
    columns: RecordColumns
    #: Instead of keys and values that could not be encoded.
    payloads: Sequence[RefusedPayloads] = ()
    #: The number of each row of the batch, if they are not consecutive ones from `first_row` on.
    numbers: Int64Array | None = None
    #: The topic of all rows, if a column does not name it.
    topic: str | None = None

    def places_of(self, rows: Int64Array) -> Int64Array:
        """Return where rows are in the batch, by their numbers."""
        if self.numbers is None:
            return rows - self.first_row
        return np.searchsorted(self.numbers, rows)

    @property
    def nbytes(self) -> int:
        """What its memory takes."""
        arrays = [self.batch, *(payloads.values for payloads in self.payloads)]
        return sum(int(array.nbytes) for array in arrays)


class BadRowTable:
    """The bad rows of batches, in their order, without the batches."""

    def __init__(self, topic: str | None, *, has_letters: bool) -> None:
        """Begin without rows; `topic` is that of all of them, unless it is None.

        Without letters, only the numbers, the topics and the errors of rows are kept.
        """
        self._topic = topic
        self._has_letters = has_letters
        #: What is wrong with rows, and their topics, as they are in the batches.
        self._refusals: list[Refusal] = []
        self._topics: list[str | None] = [] if topic is None else [topic]
        self._numbers: dict[str | None, int] = {}
        self._rows: list[Int64Array] = []
        self._reasons: list[Int64Array] = []
        self._topic_indexes: list[Int64Array] = []
        self._timestamps: list[Int64Array] = []
        self._keys: list[ByteRows] = []
        self._values: list[ByteRows] = []
        self._headers: list[tuple[Int64Array, ByteRows, ByteRows]] = []
        self._has_headers = False
        #: How many rows there are.
        self.count = 0

    def add(self, bad: BadBatch) -> None:
        """Add the rows of a batch."""
        rows, reasons = self._rows_of(bad)
        places = bad.places_of(rows)
        self.count += rows.size
        self._rows.append(rows)
        self._reasons.append(reasons)
        self._topic_indexes.append(self._topics_of(bad, places))
        if not self._has_letters:
            return
        self._timestamps.append(bad.columns.timestamp[places])
        for side, column, parts in (
            ("key", bad.columns.key, self._keys),
            ("value", bad.columns.value, self._values),
        ):
            parts.append(_contents(side, column, places, rows, bad.payloads))
        headers = _original_headers(bad.batch, places)
        self._has_headers |= bool(headers[0].any())
        self._headers.append(headers)

    def rows(self) -> Int64Array:
        """Return the numbers of the rows in the task."""
        return np.concatenate(self._rows)

    def reasons(self) -> Int64Array:
        """Return a number for each row: rows with the same one are bad for the same reason."""
        return np.concatenate(self._reasons)

    def topic_indexes(self) -> Int64Array:
        """Return a number for each row, which rows with the same topic have."""
        return np.concatenate(self._topic_indexes)

    def refusal(self, reason: int) -> Refusal:
        """Return the reason with one of these numbers."""
        return self._refusals[reason]

    def topic(self, index: int) -> str | None:
        """Return the topic with one of these numbers, even if it is not the name of one."""
        return self._topics[index]

    def keys(self) -> BytesColumn:
        """Return the keys of the rows, or what they have instead."""
        return joined(self._keys)

    def values(self) -> BytesColumn:
        """Return the values of the rows, or what they have instead."""
        return joined(self._values)

    def headers(self) -> HeaderColumns | None:
        """Return the headers that rows have of their own; None if no row has any."""
        if not self._has_headers:
            return None
        counts, names, values = zip(*self._headers, strict=True)
        return HeaderColumns(_ends(np.concatenate(counts)), joined(names), joined(values))

    def timestamps(self) -> Int64Array:
        """Return the timestamps that are right, and for other rows that of writing."""
        is_bad = np.array([refusal.kind is RowErrorKind.TIMESTAMP for refusal in self._refusals])
        timestamps = np.concatenate(self._timestamps)
        return np.where(is_bad[self.reasons()], NULL_TIMESTAMP, timestamps)

    def _rows_of(self, bad: BadBatch) -> tuple[Int64Array, Int64Array]:
        """Return the bad rows of a batch in order, and what is wrong with each."""
        found = [self._index_of(refusal) for refusal in bad.refusals]
        rows = bad.refusals[0].rows
        if len(found) == 1:
            return rows, np.full(rows.size, found[0])
        rows = np.concatenate([refusal.rows for refusal in bad.refusals])
        order = np.argsort(rows)
        sizes = [refusal.rows.size for refusal in bad.refusals]
        return rows[order], np.repeat(found, sizes)[order]

    def _index_of(self, refusal: Refusal) -> int:
        for index, known in enumerate(self._refusals[-_MOST_COMPARED:]):
            if known.has_same_reason(refusal):
                return max(len(self._refusals) - _MOST_COMPARED, 0) + index
        self._refusals.append(refusal)
        return len(self._refusals) - 1

    def _topics_of(self, bad: BadBatch, places: Int64Array) -> Int64Array:
        if self._topic is not None:
            return np.zeros(places.size, np.int64)
        if bad.topic is not None:
            return np.full(places.size, self._topic_index(bad.topic))
        batch = bad.batch
        column = batch.schema.get_field_index("topic")
        if column < 0 or pa.types.is_null(batch.column(column).type):
            return np.full(places.size, self._topic_index(None))
        found: Any = bytes_array(batch.column(column)).take(pa.array(places)).dictionary_encode()
        names = [name.decode(errors="replace") for name in found.dictionary.to_pylist()]
        indexes = np.array([self._topic_index(name) for name in [*names, None]])
        chosen: Int64Array = indexes[found.indices.fill_null(len(names)).to_numpy()]
        return chosen

    def _topic_index(self, topic: str | None) -> int:
        number = self._numbers.setdefault(topic, len(self._topics))
        if number == len(self._topics):
            self._topics.append(topic)
        return number


class _Template(NamedTuple):
    """The headers of letters that differ only in the row's number, in a record's encoding."""

    #: How many there are.
    headers: int
    encoded: bytes
    #: Where the digits of the number end.
    row_end: int
    #: What the headers take, at most.
    size: int

    @classmethod
    def of(cls, headers: Iterable[Header], row: str, digits: int) -> _Template:
        """Encode headers, and one of the name `row` for numbers with so many digits."""
        parts = [*headers, Header(row, bytes(digits))]
        encoded = b"".join(map(_encoded, parts))
        size = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in parts)
        return cls(len(parts), encoded, len(encoded), size)

    def with_header(self, name: str, value: str, size: int = 0) -> _Template:
        """Return the same headers with one more.

        `size` is what its value takes, at most; 0 if the letters have room for the header anyway.
        """
        return self._replace(
            headers=self.headers + 1,
            encoded=self.encoded + _encoded(Header(name, value.encode())),
            size=self.size + (size + len(name) + _HEADER_OVERHEAD if size else 0),
        )


def _encoded(header: Header) -> bytes:
    name = header.name.encode()
    return encode_varint(len(name)) + name + encode_varint(len(header.value)) + header.value


class LetterBuilder:
    """Builds the dead letters of one task."""

    def __init__(
        self,
        topic: str,
        most_bytes: Callable[[], int],
        headers_of: Callable[[Refusal, str | None], list[Header]],
        *,
        row: str,
        truncated: str,
        timestamp: str,
    ) -> None:
        """Set the topic of the letters, and what returns how many bytes each has at most.

        `headers_of` returns the headers that say what is wrong with rows for a topic. The header
        `row` has the number of a letter's row. If something of a letter was cut, the header
        `truncated` says what. If a row is more than an hour ahead, which topics refuse by default,
        its letter has the time of writing, and its timestamp in the header `timestamp`.
        """
        self._topic = topic
        self._headers_of = headers_of
        self._row = row
        self._truncated = truncated
        self._timestamp = timestamp
        self._most_bytes = most_bytes
        #: Memory for the headers of the next letters.
        self._buffer = np.empty(0, np.uint8)

    def letters(self, bad: BadRowTable, now_ms: int) -> RecordColumns:
        """Return the letters of bad rows, in their order; the next call may overwrite them."""
        rows, reasons, topics = bad.rows(), bad.reasons(), bad.topic_indexes()
        digits = np.searchsorted(_POWERS[1:], rows, side="right") + 1
        templates: list[_Template] = []
        template_of = np.empty(rows.size, np.int64)
        for letters in groups(reasons, topics, digits):
            first = int(letters[0])
            headers_of_all = self._headers_of(
                bad.refusal(int(reasons[first])), bad.topic(int(topics[first]))
            )
            template_of[letters] = len(templates)
            templates.append(_Template.of(headers_of_all, self._row, int(digits[first])))
        timestamps = bad.timestamps()
        ahead = np.flatnonzero(timestamps > now_ms + _MOST_AHEAD_MS)
        if ahead.size:
            self._move_to_headers(timestamps, ahead, templates, template_of)
        contents = _Contents(bad.headers(), bad.keys(), bad.values())
        sizes = contents.sizes()
        # For everything but the headers that are always there.
        most = self._most_bytes() - len(self._truncated) + _HEADER_OVERHEAD + _TRUNCATED_BYTES
        room = most - np.array([template.size for template in templates])[template_of]
        too_large = np.flatnonzero(sizes > room)
        if too_large.size:
            contents, cuts = contents.limited(too_large, room[too_large])
            which, numbers = np.unique(
                template_of[too_large] * 2 ** len(_PARTS) + cuts, return_inverse=True
            )
            template_of[too_large] = len(templates) + numbers
            templates += [
                templates[index].with_header(self._truncated, _named(cut))
                for index, cut in zip(*np.divmod(which, 2 ** len(_PARTS)), strict=True)
            ]
        headers = _encoded_headers(templates, template_of, rows, self._buffer)
        if self._buffer.size < headers.headers.data.size <= _MOST_KEPT:
            self._buffer = headers.headers.data
        return RecordColumns(
            num_rows=rows.size,
            key=contents.keys,
            value=contents.values,
            topics=(self._topic,),
            topic_index=constant_topic(rows.size),
            partition=null_partitions(rows.size),
            timestamp=timestamps,
            headers=contents.headers,
            encoded_headers=headers,
        )

    def _move_to_headers(
        self,
        timestamps: Int64Array,
        letters: Positions,
        templates: list[_Template],
        template_of: Int64Array,
    ) -> None:
        """Leave the timestamps of some letters to the time of writing, and say them in headers."""
        pairs, numbers = np.unique(
            np.stack((template_of[letters], timestamps[letters])), axis=1, return_inverse=True
        )
        template_of[letters] = len(templates) + numbers.reshape(-1)
        templates += [
            templates[index].with_header(self._timestamp, str(timestamp), _TIMESTAMP_BYTES)
            for index, timestamp in pairs.T.tolist()
        ]
        timestamps[letters] = NULL_TIMESTAMP


class _Contents(NamedTuple):
    """What letters have of their rows."""

    headers: HeaderColumns | None
    keys: BytesColumn
    values: BytesColumn

    def sizes(self) -> Int64Array:
        """Return what each letter takes, at most."""
        return self._header_sizes() + _lengths(self.keys) + _lengths(self.values)

    def limited(self, letters: Positions, left: Int64Array) -> tuple[_Contents, Int64Array]:
        """Limit each of some letters to what is left for it, and return what was cut of it.

        First go its headers, then the end of its key, then that of its value.
        """
        headers = self.headers
        sizes = self._header_sizes()[letters]
        is_cut = sizes > left
        cuts = is_cut.astype(np.int64)
        left = left - np.where(is_cut, 0, sizes)
        if headers is not None and is_cut.any():
            headers = _without(headers, letters[is_cut])
        columns = []
        for bit, column in ((2, self.keys), (4, self.values)):
            limits = _lengths(column)
            lengths = np.minimum(limits[letters], np.maximum(left, 0))
            cuts += bit * (lengths < limits[letters])
            limits[letters] = lengths
            left = left - lengths
            columns.append(joined([take_rows(column, np.arange(limits.size), limits)]))
        return _Contents(headers, *columns), cuts

    def _header_sizes(self) -> Int64Array:
        if self.headers is None:
            return np.zeros(self.keys.offsets.size - 1, np.int64)
        offsets, names, values = self.headers
        ends = _HEADER_OVERHEAD * offsets + names.offsets[offsets] + values.offsets[offsets]
        return np.diff(ends)


def _named(cut: int) -> str:
    return ",".join(part for bit, part in enumerate(_PARTS) if cut >> bit & 1)


def _lengths(column: BytesColumn) -> Int64Array:
    return np.diff(column.offsets)


def _ends(counts: Int64Array) -> Int64Array:
    ends = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


# --- keys, values and headers of rows


def _contents(
    side: str,
    column: BytesColumn,
    places: Int64Array,
    rows: Int64Array,
    payloads: Sequence[RefusedPayloads],
) -> ByteRows:
    """Return the keys or values of bad rows of a batch."""
    kept = [each for each in payloads if each.side == side]
    if len(kept) == 1 and np.array_equal(kept[0].rows, rows):
        return take_rows(bytes_column(kept[0].texts()), np.arange(rows.size))
    taken = take_rows(column, places)
    for each in kept:
        which = np.flatnonzero(np.isin(rows, each.rows))
        chosen = np.searchsorted(each.rows, rows[which])
        texts = take_rows(bytes_column(each.texts()), chosen)
        index = np.arange(rows.size)
        index[which] = rows.size + np.arange(which.size)
        taken = take_rows(joined([taken, texts]), index)
    return taken


def _original_headers(
    batch: pa.RecordBatch, places: Int64Array
) -> tuple[Int64Array, ByteRows, ByteRows]:
    """Return how many headers bad rows of a batch have of their own, the names and the values."""
    column = batch.schema.get_field_index("headers")
    if column < 0 or pa.types.is_null(batch.column(column).type):
        return np.zeros(places.size, np.int64), _NOTHING, _NOTHING
    offsets, *parts = header_parts(batch.column(column))
    starts = offsets[places]
    counts = offsets[places + 1] - starts
    chosen = _ranges(starts, counts)
    names, values = (take_rows(bytes_column(part), chosen) for part in parts)
    return counts, names, values


_NOTHING: Final = ByteRows(np.zeros(0, np.int64), np.zeros(0, np.uint8))


def _ranges(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the numbers from each start on, as many as its count, one range after another."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _without(headers: HeaderColumns, letters: Positions) -> HeaderColumns:
    """Return headers without those of some letters."""
    offsets, names, values = headers
    counts = np.diff(offsets)
    counts[letters] = 0
    chosen = _ranges(offsets[:-1], counts)
    parts = (joined([take_rows(column, chosen)]) for column in (names, values))
    return HeaderColumns(_ends(counts), *parts)


# --- headers of letters


def _encoded_headers(
    templates: Sequence[_Template],
    template_of: Int64Array,
    rows: Int64Array,
    buffer: UInt8Array,
) -> EncodedHeaders:
    """Return the headers of letters: those of their templates, with the digits of their rows.

    They are in `buffer`, if that is large enough.
    """
    ends = _ends(np.array([len(template.encoded) for template in templates]))
    data = np.frombuffer(b"".join(template.encoded for template in templates), np.uint8)
    column = joined([take_rows(BytesColumn(ends, data), template_of, buffer=buffer)])
    row_ends = np.array([template.row_end for template in templates])
    write_numbers(rows, column.offsets[:-1] + row_ends[template_of], column.data)
    counts = np.array([template.headers for template in templates], np.int32)
    return EncodedHeaders(counts[template_of], column)
