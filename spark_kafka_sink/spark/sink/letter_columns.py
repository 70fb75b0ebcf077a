"""The columns of dead letters, built for all bad rows of a batch at once.

A letter has a dozen headers, and for most rows they differ only in the number of the row. So the
headers of rows with the same reason and topic, and with as many digits in their numbers, are the
same bytes, repeated, with the digits put in. They are gathered by index only if rows have headers
of their own, or if letters of several reasons alternate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.record.arrow.record_columns import bytes_array, bytes_column, header_parts
from spark_kafka_sink.record.columns import (
    NULL_TIMESTAMP,
    BytesColumn,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_partitions,
)
from spark_kafka_sink.record.refused_rows import RowErrorKind, groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from spark_kafka_sink.record.columns import Int64Array
    from spark_kafka_sink.record.refused_rows import Refusal, RefusedPayloads

    Positions = npt.NDArray[np.intp]

#: What a header takes beside its name and its value, at most.
_HEADER_OVERHEAD: Final = 10
#: What the value of the header takes that says what was cut.
_TRUNCATED_BYTES: Final = 30
_POWERS: Final = 10 ** np.arange(19)
_ZERO: Final = ord("0")
_SIDES: Final = ("key", "value")
#: With how many earlier reasons one is compared, to find an equal one.
_MOST_COMPARED: Final = 20


class Header(NamedTuple):
    """A header of letters: `before`, then the number of the row if it has that, and `after`."""

    name: str
    before: bytes
    has_row: bool = False
    after: bytes = b""


class BadBatch(NamedTuple):
    """The bad rows of a batch, which wait for those of other batches."""

    #: By what is wrong with them; the first row of the batch has the number `first_row`.
    refusals: Sequence[Refusal]
    first_row: int
    batch: pa.RecordBatch
    columns: RecordColumns
    #: Instead of keys and values that could not be encoded.
    payloads: Sequence[RefusedPayloads]


class BadRowTable:
    """The bad rows of batches, in their order."""

    def __init__(self, batches: Sequence[BadBatch], topic: str | None) -> None:
        """Collect the rows; `topic` is that of all of them, unless it is None."""
        self.batches = batches
        #: What is wrong with rows, and their topics, as they are in the batches.
        self.refusals: list[Refusal] = []
        self.topics: list[str | None] = []
        #: For each batch, the rows in it.
        self.places: list[Int64Array] = []
        rows, reasons, topics = [], [], []
        for batch in batches:
            numbers, found = self._rows_of(batch)
            rows.append(numbers)
            reasons.append(found)
            places = numbers - batch.first_row
            self.places.append(places)
            topics.append(self._topics_of(batch.batch, places, topic))
        #: The number of each row in the task, and indexes of `refusals` and `topics`.
        self.rows = np.concatenate(rows)
        self.reason_indexes = np.concatenate(reasons)
        self.topic_indexes = np.concatenate(topics)

    def refusal(self, index: int) -> Refusal:
        """Return what is wrong with one of the rows."""
        return self.refusals[int(self.reason_indexes[index])]

    def topic(self, index: int) -> str | None:
        """Return the topic of one of the rows, even if it is not the name of one."""
        return self.topics[int(self.topic_indexes[index])]

    def _rows_of(self, batch: BadBatch) -> tuple[Int64Array, Int64Array]:
        """Return the bad rows of a batch in order, and what is wrong with each."""
        found = [self._index_of(refusal) for refusal in batch.refusals]
        rows = batch.refusals[0].rows
        if len(found) == 1:
            return rows, np.full(rows.size, found[0])
        rows = np.concatenate([refusal.rows for refusal in batch.refusals])
        order = np.argsort(rows)
        sizes = [refusal.rows.size for refusal in batch.refusals]
        return rows[order], np.repeat(found, sizes)[order]

    def _index_of(self, refusal: Refusal) -> int:
        for index, known in enumerate(self.refusals[-_MOST_COMPARED:]):
            if known.has_same_reason(refusal):
                return max(len(self.refusals) - _MOST_COMPARED, 0) + index
        self.refusals.append(refusal)
        return len(self.refusals) - 1

    def _topics_of(
        self, batch: pa.RecordBatch, places: Int64Array, topic: str | None
    ) -> Int64Array:
        column = batch.schema.get_field_index("topic")
        if topic is not None or column < 0 or pa.types.is_null(batch.column(column).type):
            return np.full(places.size, self._topic_index(topic))
        found: Any = bytes_array(batch.column(column)).take(pa.array(places)).dictionary_encode()
        names = [name.decode(errors="replace") for name in found.dictionary.to_pylist()]
        indexes = np.array([self._topic_index(name) for name in [*names, None]])
        chosen: Int64Array = indexes[found.indices.fill_null(len(names)).to_numpy()]
        return chosen

    def _topic_index(self, topic: str | None) -> int:
        if topic not in self.topics:
            self.topics.append(topic)
        return self.topics.index(topic)


class _Template(NamedTuple):
    """The headers of some letters, which differ in the number of the row only."""

    letters: Positions
    headers: Sequence[Header]

    @property
    def size(self) -> int:
        """What the headers of a letter take, at most; a number has 19 digits."""
        return sum(
            len(header.name) + len(header.before) + 19 * header.has_row + len(header.after)
            for header in self.headers
        ) + _HEADER_OVERHEAD * len(self.headers)


class _Elements(NamedTuple):
    """Names and values of headers; each letter has `counts` of them, from `starts` on."""

    #: Each is a `pyarrow.LargeBinaryArray`.
    names: Any
    values: Any
    starts: Int64Array
    counts: Int64Array

    def sizes(self) -> Int64Array:
        """Return what the headers of each letter take, at most."""
        sizes = self.counts * _HEADER_OVERHEAD
        for column in (self.names, self.values):
            offsets = bytes_column(column).offsets
            sizes = sizes + offsets[self.starts + self.counts] - offsets[self.starts]
        return sizes


class LetterBuilder:
    """Builds the dead letters of one task."""

    def __init__(
        self,
        topic: str,
        most_bytes: int,
        headers_of: Callable[[Refusal, int, str | None], list[Header]],
        truncated: str,
    ) -> None:
        """Set the topic of the letters, and how many bytes each has at most.

        `headers_of` returns the headers that say what is wrong with a row for a topic; rows with
        the same refusal, topic and number of digits have the same ones. If something of a letter
        was cut, the header `truncated` says what.
        """
        self._topic = topic
        self._headers_of = headers_of
        self._truncated = truncated
        #: For everything but the headers that are always there.
        self._room = most_bytes - len(truncated) - _HEADER_OVERHEAD - _TRUNCATED_BYTES

    def letters(self, bad: BadRowTable) -> RecordColumns:
        """Return the letters of bad rows, in their order."""
        count = bad.rows.size
        parts = {side: _payloads_of(side, bad) for side in _SIDES}
        original = _original_headers(bad)
        templates = [
            self._template(bad, letters)
            for letters in groups(bad.reason_indexes, bad.topic_indexes, _digits_of(bad.rows))
        ]
        room = np.empty(count, np.int64)
        for template in templates:
            room[template.letters] = self._room - template.size
        needed = _lengths(parts["key"]) + _lengths(parts["value"])
        if original is not None:
            needed = needed + original.sizes()
        too_large = np.flatnonzero(needed > room)
        if too_large.size:
            templates, original = self._cut(too_large, room, templates, parts, original)
        return RecordColumns(
            num_rows=count,
            key=bytes_column(parts["key"]),
            value=bytes_column(parts["value"]),
            topics=(self._topic,),
            topic_index=constant_topic(count),
            partition=null_partitions(count),
            timestamp=_timestamps(bad),
            headers=_header_columns(bad.rows, templates, original),
        )

    def _template(self, bad: BadRowTable, letters: Positions) -> _Template:
        first = int(letters[0])
        headers = self._headers_of(bad.refusal(first), int(bad.rows[first]), bad.topic(first))
        return _Template(letters, headers)

    def _cut(
        self,
        too_large: Positions,
        room: Int64Array,
        templates: list[_Template],
        parts: dict[str, Any],
        original: _Elements | None,
    ) -> tuple[list[_Template], _Elements | None]:
        """Limit each letter to its room: first their own headers, then the key, then the value.

        Changes `parts`; returns the templates and the original headers of all letters.
        """
        kept = [
            _Template(np.setdiff1d(template.letters, too_large), template.headers)
            for template in templates
        ]
        left = room[too_large]
        cuts: list[list[str]] = [[] for _ in left]
        if original is not None:
            sizes = original.sizes()[too_large]
            is_cut = sizes > left
            for letter in np.flatnonzero(is_cut).tolist():
                cuts[letter].append("headers")
            left = left - np.where(is_cut, 0, sizes)
            counts = original.counts.copy()
            counts[too_large[is_cut]] = 0
            original = original._replace(counts=counts)
        for side in _SIDES:
            values = parts[side].take(pa.array(too_large)).to_pylist()
            for letter, value in enumerate(values):
                most = max(int(left[letter]), 0)
                if value is not None and len(value) > most:
                    cuts[letter].append(side)
                    values[letter] = value[:most]
                left[letter] -= len(values[letter] or b"")
            parts[side] = _replaced(parts[side], too_large, pa.array(values, pa.large_binary()))
        cut = []
        for letter, what in zip(too_large.tolist(), cuts, strict=True):
            [headers] = [each.headers for each in templates if letter in each.letters]
            header = Header(self._truncated, ",".join(what).encode())
            cut.append(_Template(np.array([letter]), [*headers, header]))
        return [template for template in kept if template.letters.size] + cut, original


def _digits_of(rows: Int64Array) -> Positions:
    return np.searchsorted(_POWERS[1:], rows, side="right") + 1


def _lengths(array: Any) -> Int64Array:
    offsets = bytes_column(array).offsets
    return offsets[1:] - offsets[:-1]


def _timestamps(bad: BadRowTable) -> Int64Array:
    timestamps = np.concatenate(
        [
            batch.columns.timestamp[places]
            for batch, places in zip(bad.batches, bad.places, strict=True)
        ]
    )
    is_bad = np.array([refusal.kind is RowErrorKind.TIMESTAMP for refusal in bad.refusals])
    return np.where(is_bad[bad.reason_indexes], NULL_TIMESTAMP, timestamps)


# --- keys and values


def _payloads_of(side: str, bad: BadRowTable) -> Any:
    """Return the keys or values of bad rows, as a `pyarrow.LargeBinaryArray`."""
    arrays = []
    for batch, places in zip(bad.batches, bad.places, strict=True):
        column = batch.columns.key if side == "key" else batch.columns.value
        array = _taken(column, places)
        rows = places + batch.first_row
        for kept in batch.payloads:
            if kept.side == side:
                which = np.flatnonzero(np.isin(rows, kept.rows))
                chosen = np.searchsorted(kept.rows, rows[which])
                texts = kept.texts.take(pa.array(chosen)).cast(pa.large_binary())
                array = _replaced(array, which, texts)
        arrays.append(array)
    return pa.concat_arrays(arrays)


def _taken(column: BytesColumn, places: Int64Array) -> Any:
    offsets, data, validity, validity_offset = column
    if not data.size and not validity.any():
        return pa.nulls(places.size, pa.large_binary())
    taken = _array_of(offsets, data).take(pa.array(places))
    if validity.size:
        bits = validity_offset + places
        is_valid = (validity[bits >> 3] >> (bits & 7)) & 1
        taken = pc.call_function(
            "if_else", [pa.array(is_valid.astype(bool)), taken, pa.scalar(None, taken.type)]
        )
    return taken


def _array_of(offsets: Int64Array, data: npt.NDArray[np.uint8]) -> Any:
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    return pa.Array.from_buffers(pa.large_binary(), offsets.size - 1, buffers)


def _replaced(array: Any, places: Positions, others: Any) -> Any:
    """Return an array with `others` at some places."""
    if places.size == len(array):
        return others
    index = np.arange(len(array))
    index[places] = np.arange(len(array), len(array) + places.size)
    return pa.concat_arrays([array, others]).take(pa.array(index))


# --- headers


def _original_headers(bad: BadRowTable) -> _Elements | None:
    """Return the headers that bad rows have of their own; None if no row has any."""
    names, values = ([pa.nulls(0, pa.large_binary())] for _ in range(2))
    counts = []
    for batch, places in zip(bad.batches, bad.places, strict=True):
        column = batch.batch.schema.get_field_index("headers")
        if column < 0 or pa.types.is_null(batch.batch.column(column).type):
            counts.append(np.zeros(places.size, np.int64))
            continue
        offsets, *parts = header_parts(batch.batch.column(column))
        starts = offsets[places]
        counts.append(offsets[places + 1] - starts)
        chosen = pa.array(_ranges(starts, counts[-1]))
        for arrays, part in zip((names, values), parts, strict=True):
            arrays.append(part.take(chosen))
    all_counts = np.concatenate(counts)
    if not all_counts.any():
        return None
    starts = np.cumsum(all_counts) - all_counts
    return _Elements(pa.concat_arrays(names), pa.concat_arrays(values), starts, all_counts)


def _ranges(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the numbers from each start on, as many as its count, one range after another."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _header_columns(
    rows: Int64Array, templates: Sequence[_Template], original: _Elements | None
) -> HeaderColumns:
    """Return the original headers of letters, and behind them those that say what is wrong."""
    own = _own_headers(rows, templates)
    counts = own.counts if original is None else own.counts + original.counts
    offsets = np.zeros(rows.size + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if original is None and bool((own.starts == offsets[:-1]).all()):
        return HeaderColumns(offsets, bytes_column(own.names), bytes_column(own.values))
    starts, sizes, columns = own.starts, own.counts, [own.names, own.values]
    if original is not None:
        before = len(original.names)
        columns = [
            pa.concat_arrays([original.names, own.names]),
            pa.concat_arrays([original.values, own.values]),
        ]
        starts = np.column_stack([original.starts, starts + before]).ravel()
        sizes = np.column_stack([original.counts, sizes]).ravel()
    chosen = pa.array(_ranges(starts, sizes))
    names, values = (bytes_column(column.take(chosen)) for column in columns)
    return HeaderColumns(offsets, names, values)


def _own_headers(rows: Int64Array, templates: Sequence[_Template]) -> _Elements:
    """Return the headers of all templates, one template after another."""
    starts, counts = np.zeros((2, rows.size), np.int64)
    names, name_lengths, values, value_lengths = [], [], [], []
    begin = 0
    for letters, headers in templates:
        count = len(headers)
        starts[letters] = begin + count * np.arange(letters.size)
        counts[letters] = count
        begin += count * letters.size
        name_parts = [header.name.encode() for header in headers]
        names.append(np.tile(np.frombuffer(b"".join(name_parts), np.uint8), letters.size))
        name_lengths.append(np.tile([len(name) for name in name_parts], letters.size))
        data, lengths = _values(rows[letters], headers)
        values.append(data)
        value_lengths.append(np.tile(lengths, letters.size))
    return _Elements(
        _column_of(names, name_lengths), _column_of(values, value_lengths), starts, counts
    )


def _values(rows: Int64Array, headers: Sequence[Header]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Return the values of headers for each of some rows, and how long they are for one."""
    digits = int(_digits_of(rows[:1])[0])
    data = bytearray()
    lengths, holes = [], []
    for header in headers:
        begin = len(data)
        data += header.before
        if header.has_row:
            holes.append(len(data))
            data += bytes(digits)
        data += header.after
        lengths.append(len(data) - begin)
    table = np.tile(np.frombuffer(data, np.uint8), (rows.size, 1))
    numbers = rows[:, None] // _POWERS[digits - 1 :: -1] % 10 + _ZERO
    for hole in holes:
        table[:, hole : hole + digits] = numbers
    return table.ravel(), lengths


def _column_of(data: Sequence[npt.NDArray[np.uint8]], lengths: Sequence[Int64Array]) -> Any:
    sizes = np.concatenate(lengths)
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return _array_of(offsets, np.concatenate(data))
