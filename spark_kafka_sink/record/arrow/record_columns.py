"""Conversion of Arrow record batches to `RecordColumns`, mostly views of Arrow's buffers.

Columns are identified by name: `value` (required), `key`, `topic`, `partition`, `headers` and
`timestamp`; others are ignored. Each may be dictionary- or run-end-encoded. The accepted types:

- key, value: string or binary in any layout, or null.
- topic: string in any layout; ignored if one topic is given for all rows.
- partition: any integer; null leaves the choice to the producer.
- timestamp: a timestamp of any unit, rounded down to milliseconds, with or without time zone (one
  without counts as UTC); null means the time of appending.
- headers: a list in any layout of struct<key: string, value: binary or string>. A null list means
  no headers, and a null value is allowed; a null struct or key is an error.

Nothing is trusted to be well-formed: what refers beyond its data would copy other memory of the
process into records. `RecordColumns` checks the offsets that the kernels follow, and
`first_bad_row` whatever Arrow itself converts before. No Python objects are created per row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import InvalidPartitionError, RecordError, SchemaError
from spark_kafka_sink.model import LONGEST_TEXT, is_topic_name
from spark_kafka_sink.record.columns import (
    NULL_PARTITION,
    NULL_TIMESTAMP,
    NULL_TOPIC_INDEX,
    BadOffsetsError,
    BytesColumn,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_column,
    null_partitions,
    null_timestamps,
    plain_columns,
)
from spark_kafka_sink.record.refused_rows import RowErrorKind, groups

if TYPE_CHECKING:
    import numpy.typing as npt

    from spark_kafka_sink.record.columns import Int32Array, Int64Array
    from spark_kafka_sink.record.refused_rows import RefusedRows

    Array: TypeAlias = pa.Array[Any]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
    Numbers: TypeAlias = npt.NDArray[np.signedinteger[Any]]

_INT32_OFFSETS: Final = (pa.types.is_string, pa.types.is_binary)
_INT64_OFFSETS: Final = (pa.types.is_large_string, pa.types.is_large_binary)
_PLAIN: Final = _INT32_OFFSETS + _INT64_OFFSETS
_VIEWS: Final = (pa.types.is_string_view, pa.types.is_binary_view)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list)
_LIST_VIEWS: Final = (pa.types.is_list_view, pa.types.is_large_list_view)
_MAX_PARTITION: Final = 2**31 - 1
#: The most characters of a bad name that an error shows.
_SHOWN_NAME: Final = 50
#: Milliseconds per unit, or units per millisecond.
_MILLIS_PER_UNIT: Final = {"s": 1000, "ms": 1}
_UNITS_PER_MILLI: Final = {"us": 1000, "ns": 1_000_000}
_NO_BYTES: Final = np.zeros(0, np.uint8)
_COLUMN_NAMES: Final = ("value", "key", "topic", "partition", "headers", "timestamp")
_MALFORMED_ADVICE: Final = (
    "Correct the buffers that the Arrow array was made from; its method validate(full=True) says "
    "what is wrong with them"
)

_STRING_KINDS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARY_KINDS: Final = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_LIST_KINDS: Final = (*_LISTS, pa.types.is_fixed_size_list, *_LIST_VIEWS)


def record_columns(
    batch: pa.RecordBatch,
    *,
    topic: str | None,
    include_headers: bool = True,
    first_row: int = 0,
    refused: RefusedRows | None = None,
) -> RecordColumns:
    """Return the columns of a batch as records, all for `topic` unless that is None.

    Errors number the rows from `first_row` on. Raises SchemaError for a missing, duplicate or
    mistyped column, InvalidPartitionError for a partition number that no topic can have, and
    RecordError for a header or timestamp that Kafka does not support, or a column that refers to
    bytes outside of its buffers. `assign_slots` reports null topics later. With `refused`, bad
    partitions, headers, timestamps and names of topics are added to it instead, and the columns
    have the rows with anything in these places.
    """
    _check_structure(batch, first_row, topic)
    try:
        return _columns(batch, topic, first_row, include_headers=include_headers, refused=refused)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"Arrow cannot decode a column: {error}. Cast it to string or binary"
        ) from error
    except BadOffsetsError as error:
        name = "headers" if error.column.startswith("header") else error.column
        row = first_bad_row(batch.column(name))
        raise _malformed(name, first_row, row, topic) from error


def _check_structure(batch: pa.RecordBatch, first_row: int, topic: str | None) -> None:
    """Raise an error unless lengths, and sizes of buffers, allow to read a batch; takes 1 us."""
    try:
        batch.validate()
    except pa.ArrowException as error:
        for name in _COLUMN_NAMES:
            for index in batch.schema.get_all_field_indices(name):
                row = first_bad_offset(batch.column(index))
                if row is not None:
                    raise _malformed(name, first_row, row, topic) from error
        raise SchemaError(f"the Arrow data is malformed: {error}. {_MALFORMED_ADVICE}") from error


def _malformed(name: str, first_row: int, row: int | None, topic: str | None) -> RecordError:
    return RecordError(
        f"column {name!r} refers to data outside of its buffers",
        row=None if row is None else first_row + row,
        topic=topic,
        advice=_MALFORMED_ADVICE,
    )


def _columns(
    batch: pa.RecordBatch,
    topic: str | None,
    first_row: int,
    *,
    include_headers: bool,
    refused: RefusedRows | None,
) -> RecordColumns:
    indexes = (
        None if topic is None else _plain_indexes(batch.schema, include_headers=include_headers)
    )
    if topic is not None and indexes is not None:
        value = bytes_column(batch.column(indexes.value))
        return plain_columns(
            topic,
            null_column(batch.num_rows)
            if indexes.key is None
            else bytes_column(batch.column(indexes.key)),
            value,
        )
    rows = _Rows(batch, first_row, topic, refused)
    return RecordColumns(
        num_rows=rows.count,
        key=_key(rows),
        value=_value(rows),
        topics=rows.topics,
        topic_index=rows.topic_index,
        partition=_partitions(rows),
        timestamp=_timestamps(rows),
        headers=_headers(rows) if include_headers else None,
    )


class _PlainIndexes(NamedTuple):
    """Where a batch has its values and keys, if it has nothing else for records of one topic."""

    value: int
    #: None if there is no such column.
    key: int | None


@lru_cache(maxsize=64)
def _plain_indexes(schema: pa.Schema, *, include_headers: bool) -> _PlainIndexes | None:
    """Return the indexes of plain columns; None if a batch of this schema needs a closer look."""
    indexes = {
        name: schema.get_all_field_indices(name)
        for name in ("value", "key", "partition", "timestamp", "headers")
        if include_headers or name != "headers"
    }
    key, value = indexes.pop("key"), indexes.pop("value")
    if any(indexes.values()) or len(value) != 1 or len(key) > 1:
        return None
    if not all(is_plain(schema.field(index).type) for index in value + key):
        return None
    return _PlainIndexes(value[0], key[0] if key else None)


def record_batches(data: Any) -> list[pa.RecordBatch]:
    """Return the record batches of a table, a record batch, or an object that exports Arrow data.

    Columns of extension types are replaced by their storage. Raises SchemaError for any other
    object.
    """
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            batches = pa.table(data).to_batches()
        except (pa.ArrowInvalid, TypeError) as error:
            # A single column, or structs that are null.
            raise _no_rows(data) from error
    else:
        raise _no_rows(data)
    return [_without_extensions(batch) for batch in batches]


def _no_rows(data: object) -> SchemaError:
    return SchemaError(
        f"expected an Arrow table or record batch, not {type(data).__name__}: create one with "
        "pyarrow.table or pyarrow.Table.from_pandas"
    )


def _without_extensions(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not any(isinstance(column.type, pa.BaseExtensionType) for column in batch.columns):
        return batch
    columns = [
        column.storage if isinstance(column, pa.ExtensionArray) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class _Rows:
    """A batch, its topics, and the number of its first row, for errors."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        first_row: int,
        topic: str | None,
        refused: RefusedRows | None,
    ) -> None:
        self._batch = batch
        self._first_row = first_row
        self._refused = refused
        self.count = batch.num_rows
        # Known once the column of topics has been checked.
        self.topics: tuple[str, ...] = ()
        self.topic_index = np.full(self.count, NULL_TOPIC_INDEX, np.int32)
        self.topics, self.topic_index = (
            _topics(self) if topic is None else ((topic,), constant_topic(self.count))
        )

    def column(self, name: str) -> Array | None:
        """Return a column; None if it does not exist or has the type null.

        It is checked, except for what `RecordColumns` checks.
        """
        indexes = self._batch.schema.get_all_field_indices(name)
        if len(indexes) > 1:
            raise SchemaError(f"{len(indexes)} columns are named {name!r}: keep one of them")
        if not indexes:
            return None
        array = self._batch.column(indexes[0])
        if not _is_checked_later(array):
            self.check(name, array)
        array = _decoded(array)
        return None if pa.types.is_null(array.type) else array

    def check(self, name: str, array: Array) -> None:
        """Raise RecordError for the first row that refers beyond the data of a column."""
        row = first_bad_row(array)
        if row is not None:
            # Without any row, the dictionary is malformed.
            topic = self._topic_of(row) if self.count else None
            raise _malformed(name, self._first_row, row, topic)

    def has_column(self, name: str) -> bool:
        return name in self._batch.schema.names

    @property
    def must_name_topics(self) -> bool:
        """Whether names of topics must be checked here: a broker refuses a whole write for one."""
        return self._refused is not None

    def refuse(self, kind: RowErrorKind, rows: Int64Array, cause: str, advice: str) -> None:
        """Raise the error of the first of some rows, unless bad rows are collected."""
        for group in groups(self.topic_index[rows]):
            topic = self._topic_of(int(rows[group[0]]))
            self._refuse(
                kind, RecordError(cause, row=None, topic=topic, advice=advice), rows[group], rows
            )

    def refuse_partitions(self, rows: Int64Array, partitions: Numbers) -> None:
        """Raise the error of a partition that no topic can have, or collect its rows."""
        for group in groups(self.topic_index[rows], partitions[rows]):
            row = int(rows[group[0]])
            error = InvalidPartitionError(
                "a partition number must be from 0 to 2147483647",
                row=None,
                topic=self._topic_of(row),
                partition=int(partitions[row]),
                advice="Correct the number, or use null to let the producer choose",
            )
            self._refuse(RowErrorKind.PARTITION, error, rows[group], rows)

    def _refuse(
        self, kind: RowErrorKind, reason: RecordError, rows: Int64Array, all_rows: Int64Array
    ) -> None:
        """Add rows with the same error, or raise it if they have the first of all rows."""
        if self._refused is not None:
            self._refused.add(kind, reason, rows + self._first_row)
        elif rows[0] == all_rows[0]:
            raise reason.about_row(self._first_row + int(rows[0]))

    def _topic_of(self, row: int) -> str | None:
        index = int(self.topic_index[row])
        return None if index == NULL_TOPIC_INDEX else self.topics[index]


def _key(rows: _Rows) -> BytesColumn:
    array = rows.column("key")
    return null_column(rows.count) if array is None else _string_or_binary("key", array)


def _value(rows: _Rows) -> BytesColumn:
    if not rows.has_column("value"):
        raise SchemaError(
            "there is no column 'value': add it, or rename the column with the values"
        )
    array = rows.column("value")
    return null_column(rows.count) if array is None else _string_or_binary("value", array)


def _topics(rows: _Rows) -> tuple[tuple[str, ...], Int32Array]:
    if not rows.has_column("topic"):
        raise SchemaError("there is no column 'topic': add it, or specify one topic for all rows")
    array = rows.column("topic")
    if array is None:
        return (), np.full(rows.count, NULL_TOPIC_INDEX, np.int32)
    if not _is_string(array.type):
        raise SchemaError(f"column 'topic' has type {array.type}; it must be a string")
    array = _plain(array)
    if _is_constant(bytes_column(array)):
        index = constant_topic(rows.count)
        return _topic_names(rows, array[:1], index)
    rows.check("topic", array)
    encoded = array.dictionary_encode()
    index = encoded.indices.fill_null(NULL_TOPIC_INDEX).to_numpy()
    return _topic_names(rows, encoded.dictionary, index)


def _topic_names(
    rows: _Rows, names: Array, index: Int32Array
) -> tuple[tuple[str, ...], Int32Array]:
    """Return the distinct topics, and their index; refuse the rows of one that cannot be sent."""
    decoded = []
    bad = []
    # No name is null: the rows of nulls have no index.
    encoded = [name for name in names.cast(pa.large_binary()).to_pylist() if name is not None]
    for number, data in enumerate(encoded):
        problem = None
        if len(data) > LONGEST_TEXT:
            problem = f"the topic has {len(data)} bytes; Kafka's limit is {LONGEST_TEXT}"
        else:
            try:
                name = data.decode()
            except UnicodeDecodeError as error:
                problem = f"the topic is not UTF-8: {error.reason}"
            else:
                if rows.must_name_topics and not is_topic_name(name):
                    problem = f"the topic {name[:_SHOWN_NAME]!r} is not a name of a topic"
        if problem is None:
            decoded.append(name)
        else:
            bad.append(number)
            found = np.flatnonzero(index == number)
            rows.refuse(RowErrorKind.TOPIC, found, problem, "Correct the name of the topic")
    if not bad:
        return tuple(decoded), index
    # The rows of bad names have no index, and those behind them move up.
    moved = np.full(len(encoded) + 1, NULL_TOPIC_INDEX, np.int32)
    moved[np.delete(np.arange(len(encoded)), bad)] = np.arange(len(decoded))
    return tuple(decoded), moved[index]


def _is_constant(column: BytesColumn) -> bool:
    """Return whether all rows are equal; ten times as fast as finding the distinct values."""
    offsets = column.offsets
    if offsets.size == 1 or column.validity.size:
        return False
    length = offsets[1] - offsets[0]
    used = column.data[offsets[0] : offsets[-1]]
    # With a first and a last offset within the data, the others are, too, if they rise.
    return bool(
        length >= 0
        and ((offsets[1:] - offsets[:-1]) == length).all()
        and (used[length:] == used[: used.size - length]).all()
    )


def _partitions(rows: _Rows) -> Int32Array:
    array = rows.column("partition")
    if array is None:
        return null_partitions(rows.count)
    if not pa.types.is_integer(array.type):
        raise SchemaError(f"column 'partition' has type {array.type}; it must be an integer")
    partitions = _fixed_width_values(array, array.type.to_pandas_dtype())
    valid = _valid_rows(array)
    invalid = (partitions < 0) | (partitions > _MAX_PARTITION)
    if valid is not None:
        invalid &= valid
    if invalid.any():
        rows.refuse_partitions(np.flatnonzero(invalid), partitions)
        partitions = np.where(invalid, 0, partitions)
    partitions = partitions.astype(np.int32, copy=False)
    return partitions if valid is None else np.where(valid, partitions, np.int32(NULL_PARTITION))


def _timestamps(rows: _Rows) -> Int64Array:
    array = rows.column("timestamp")
    if array is None:
        return null_timestamps(rows.count)
    if not pa.types.is_timestamp(array.type):
        raise SchemaError(
            f"column 'timestamp' has type {array.type}; it must be a timestamp: cast it, rename it "
            "or drop it"
        )
    timestamps = _fixed_width_values(array, np.int64)
    valid = _valid_rows(array)
    if valid is not None:
        timestamps = np.where(valid, timestamps, 0)
    timestamps = _checked_timestamps(rows, timestamps, _MILLIS_PER_UNIT.get(array.type.unit, 1))
    if array.type.unit in _UNITS_PER_MILLI:
        timestamps = timestamps // _UNITS_PER_MILLI[array.type.unit]
    elif array.type.unit == "s":
        timestamps = timestamps * _MILLIS_PER_UNIT["s"]
    return timestamps if valid is None else np.where(valid, timestamps, NULL_TIMESTAMP)


def _checked_timestamps(rows: _Rows, timestamps: Int64Array, millis_per_unit: int) -> Int64Array:
    """Return the timestamps, with 0 for those that Kafka does not have, whose rows are refused."""
    if timestamps.size == 0:
        return timestamps
    if timestamps.min() < 0:
        rows.refuse(
            RowErrorKind.TIMESTAMP,
            np.flatnonzero(timestamps < 0),
            "the timestamp is before 1970",
            "Use a later one, or null for the current time",
        )
        timestamps = np.maximum(timestamps, 0)
    largest = np.iinfo(np.int64).max // millis_per_unit
    if timestamps.max() > largest:
        bad = timestamps > largest
        rows.refuse(
            RowErrorKind.TIMESTAMP,
            np.flatnonzero(bad),
            "the timestamp in milliseconds does not fit into 64 bits",
            "Use an earlier one, or null for the current time",
        )
        timestamps = np.where(bad, 0, timestamps)
    return timestamps


def _headers(rows: _Rows) -> HeaderColumns | None:
    array = rows.column("headers")
    if array is None:
        return None
    if not _is_list_of_headers(array.type):
        raise SchemaError(
            f"column 'headers' has type {array.type}; it must be a list of"
            " struct<key: string, value: binary>"
        )
    offsets, elements = _list_elements(array)
    if not len(elements):
        return None
    keys, values = elements.field(0), elements.field(1)
    for nullable, part in ((elements, "a header"), (keys, "the key of a header")):
        valid = _valid_rows(nullable)
        if valid is not None and not valid.all():
            bad = np.searchsorted(offsets, np.flatnonzero(~valid), side="right") - 1
            rows.refuse(
                RowErrorKind.HEADERS,
                np.unique(bad),
                f"{part} is null",
                "Remove the header or set its key; only its value may be null",
            )
    return HeaderColumns(
        offsets, _string_or_binary("headers", keys), _string_or_binary("headers", values)
    )


def bytes_array(array: Any) -> Any:
    """Return checked strings or bytes in any layout as a `pyarrow.LargeBinaryArray`."""
    return _plain(_decoded(array)).cast(pa.large_binary())


def header_parts(array: Any) -> tuple[Int64Array, Any, Any]:
    """Return a checked column of headers as offsets, names and values: arrays of bytes.

    Headers without a name, which no record can have, are left out.
    """
    offsets, elements = _list_elements(_decoded(array))
    names, values = elements.field(0), elements.field(1)
    if elements.null_count or names.null_count:
        has_name = elements.is_valid().to_numpy(zero_copy_only=False)
        has_name &= names.is_valid().to_numpy(zero_copy_only=False)
        before = np.zeros(has_name.size + 1, np.int64)
        np.cumsum(has_name, out=before[1:])
        offsets = before[offsets]
        kept = pa.array(np.flatnonzero(has_name))
        names, values = bytes_array(names).take(kept), bytes_array(values).take(kept)
    return offsets, bytes_array(names), bytes_array(values)


def _list_elements(array: Any) -> tuple[Int64Array, Any]:
    """Return offsets that start at 0, and the elements they refer to; null lists have none."""
    has_offsets = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if has_offsets and not len(array):
        # The single offset may be anything, or missing, which Arrow's functions do not expect.
        return np.zeros(1, np.int64), array.values.slice(0, 0)
    # In Arrow, a null list may have elements between its offsets.
    if has_offsets and not array.null_count:
        width = np.int32 if pa.types.is_list(array.type) else np.int64
        offsets = _offsets(array, array.buffers()[1], width)
        first, last = int(offsets[0]), int(offsets[-1])
        return offsets - first, array.values.slice(first, last - first)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(array.value_lengths().fill_null(0).to_numpy(), out=offsets[1:])
    return offsets, array.flatten()


def _is_list_of_headers(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in _LIST_KINDS) and _is_header_struct(kind.value_type)


def _is_header_struct(kind: pa.DataType) -> bool:
    return (
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["key", "value"]
        and _is_string(kind[0].type)
        and (_is_string(kind[1].type) or _is_binary(kind[1].type))
    )


def _string_or_binary(name: str, array: Array) -> BytesColumn:
    if not _is_string(array.type) and not _is_binary(array.type):
        raise SchemaError(f"column {name!r} has type {array.type}; it must be a string or binary")
    return bytes_column(_plain(array))


def _is_string(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in _STRING_KINDS)


def _is_binary(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in _BINARY_KINDS)


def _is_checked_later(array: Any) -> bool:
    """Return whether nothing but the kernels follows the offsets of a column."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if array.null_count or not pa.types.is_struct(kind.value_type):
            return False
        return all(is_plain(field.type) for field in kind.value_type)
    return is_plain(kind)


def _decoded(array: Any) -> Any:
    """Decode run ends and dictionaries, except those of strings and bytes, which `_plain` casts."""
    if pa.types.is_run_end_encoded(array.type):
        array = pc.call_function("run_end_decode", [array])
    kind = array.type
    if pa.types.is_dictionary(kind) and not (_is_string(kind) or _is_binary(kind)):
        array = array.dictionary_decode()
    return array


def _plain(array: Any) -> Any:
    """Return strings or bytes as one buffer with offsets, copied only if the layout differs."""
    if is_plain(array.type):
        return array
    plain = pa.large_string() if _is_string(array.type) else pa.large_binary()
    if pa.types.is_dictionary(array.type):
        # Arrow cannot take views by index.
        array = pa.DictionaryArray.from_arrays(array.indices, cast_strings(array.dictionary, plain))
    return cast_strings(array, plain)


def cast_strings(array: Any, kind: pa.DataType) -> Any:
    """Convert strings or bytes in any layout, whose references have been checked (`first_bad_row`).

    Views of nulls may be anything, but Arrow's own cast adds up their sizes.
    """
    if array.null_count and any(is_view(array.type) for is_view in _VIEWS):
        validity, views, *data = array.buffers()
        last = array.offset + len(array)
        halves = np.frombuffer(views, np.int64, 2 * last).reshape(last, 2).copy()
        halves[array.offset :][array.is_null().to_numpy(zero_copy_only=False)] = 0
        buffers = [validity, pa.py_buffer(halves.data), *data]
        array = pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)
    return array.cast(kind)


def bytes_column(array: Any) -> BytesColumn:
    """Return strings or bytes of Arrow that are in one buffer with offsets (`is_plain`)."""
    validity, offsets, data = array.buffers()
    is_wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    return BytesColumn(
        offsets=_offsets(array, offsets, np.int64 if is_wide else np.int32),
        data=_NO_BYTES if data is None else np.frombuffer(data, np.uint8),
        validity=np.frombuffer(validity, np.uint8) if array.null_count else _NO_BYTES,
        validity_offset=array.offset,
    )


def _offsets(array: Any, buffer: Any, width: type[np.int32 | np.int64]) -> Int64Array:
    """Return the offsets of strings or lists as int64, limited to the array's slice."""
    if buffer is None or buffer.size == 0:
        # In Arrow, an empty array may have no offsets at all.
        return np.zeros(1, np.int64)
    itemsize = np.dtype(width).itemsize
    offsets = np.frombuffer(buffer, width, len(array) + 1, array.offset * itemsize)
    return offsets.astype(np.int64, copy=False)


def _fixed_width_values(array: Any, dtype: Any) -> npt.NDArray[Any]:
    """Return a view of the numbers in an array; the values of nulls are undefined."""
    buffer = array.buffers()[1]
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(buffer or b"", dtype, len(array), array.offset * itemsize)


def _valid_rows(array: Any) -> BoolArray | None:
    """Return a mask of the rows that are not null; None if there are no nulls."""
    if not array.null_count:
        return None
    valid: BoolArray = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


# --- references within arrays, checked before Arrow follows them


def is_plain(kind: pa.DataType) -> bool:
    """Return whether arrays of a type are strings or bytes in one buffer, with offsets."""
    return any(is_kind(kind) for is_kind in _PLAIN)


def first_bad_row(array: Any) -> int | None:
    """Return the first row that refers beyond the array's data, None if there is none.

    pyarrow creates arrays from buffers with the constant-time checks of `Array.validate`. The
    numbers in the buffers may be anything: offsets that decrease, views beyond their buffers,
    indices outside of their dictionary. Arrow's conversions follow them without a check. This
    accepts what `Array.validate(full=True)` accepts, and more, such as invalid UTF-8, and takes
    about a nanosecond for each number.

    The array must have passed `Array.validate()`. Raises ArrowInvalid for a type that records
    cannot have, if its content is wrong.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return first_bad_row(array.storage)
    if not len(array) and not pa.types.is_dictionary(kind):
        return None  # The single offset of an empty array may be anything.
    for kinds, check in _CHECKS:
        if any(is_kind(kind) for is_kind in kinds):
            return check(array)
    if pa.types.is_nested(kind):
        array.validate(full=True)
    return None


def first_bad_offset(array: Any) -> int | None:
    """Return the first row of strings, bytes or lists whose offsets are not within the data.

    The array need not be valid. Returns None if this is not what is wrong with it.
    """
    try:
        if is_plain(array.type):
            return _first_bad_string(array)
        if any(is_kind(array.type) for is_kind in _LISTS):
            return _first_bad_offset(_raw_offsets(array), len(array.values))
    except ValueError:
        # The buffer is too small for the offsets.
        pass
    return None


def _first_true(invalid: npt.NDArray[np.bool_]) -> int | None:
    return int(invalid.argmax()) if invalid.any() else None


def _first_valid(invalid: Any) -> int | None:
    return _first_true(invalid.fill_null(False).to_numpy(zero_copy_only=False))


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.size


def _raw_offsets(array: Any) -> Numbers:
    """Return the offsets of a slice; an empty array may have none at all."""
    buffer = array.buffers()[1]
    if not _size(buffer):
        return np.zeros(1, np.int32)
    wide = pa.types.is_large_list(array.type) or any(is_(array.type) for is_ in _INT64_OFFSETS)
    dtype = np.dtype(np.int64 if wide else np.int32)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def _first_bad_offset(offsets: Numbers, end: int) -> int | None:
    # If offsets do not decrease, all of them are between the first and the last.
    if offsets[0] >= 0 and offsets[-1] <= end and bool((offsets[1:] >= offsets[:-1]).all()):
        return None
    starts, ends = offsets[:-1], offsets[1:]
    return _first_true((starts < 0) | (ends < starts) | (ends > end))


def _first_bad_string(array: Any) -> int | None:
    return _first_bad_offset(_raw_offsets(array), _size(array.buffers()[2]))


def _first_bad_view(array: Any) -> int | None:
    # Most tables have no views.
    from spark_kafka_sink.record.kernel.view_kernel import (  # noqa: PLC0415
        VIEW_BYTES,
        first_bad_view,
    )

    validity, views, *data = array.buffers()
    sizes = np.array([_size(buffer) for buffer in data], np.int64)
    address = views.address + VIEW_BYTES * array.offset
    bitmap = validity.address if validity is not None and array.null_count else 0
    row = first_bad_view(sizes, address, len(array), bitmap, array.offset)
    return None if row < 0 else row


def _first_bad_index(array: Any) -> int | None:
    indices, dictionary = array.indices, array.dictionary
    bounds = pc.call_function("min_max", [indices])
    smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
    if smallest is not None and (smallest < 0 or largest >= len(dictionary)):
        unsigned = indices.cast(pa.uint64(), safe=False)  # negative numbers become large ones
        return _first_valid(pc.greater_equal(unsigned, pa.scalar(len(dictionary), pa.uint64())))
    entry = first_bad_row(dictionary)
    if entry is None:
        return None
    # Arrow converts the dictionary as a whole, even if no row has this entry.
    return _first_valid(pc.equal(indices.cast(pa.int64(), safe=False), pa.scalar(entry))) or 0


def _first_bad_run(array: Any) -> int | None:
    ends, values = array.run_ends.to_numpy(), array.values
    before = np.concatenate((np.zeros(1, ends.dtype), ends[:-1]))
    run = _first_true(ends <= before)
    if run is None:
        # There may be more values than runs.
        run = first_bad_row(values.slice(0, len(ends)))
    return None if run is None else max(0, min(int(before[run]) - array.offset, len(array) - 1))


def _first_bad_list(array: Any) -> int | None:
    offsets = _raw_offsets(array)
    row = _first_bad_offset(offsets, len(array.values))
    if row is not None:
        return row
    first, last = int(offsets[0]), int(offsets[-1])
    element = first_bad_row(array.values.slice(first, last - first))
    if element is None:
        return None
    return int(np.searchsorted(offsets, first + element, side="right")) - 1


def _first_bad_list_view(array: Any) -> int | None:
    wide = pa.types.is_large_list_view(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    starts, sizes = (
        np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize).astype(np.int64)
        for buffer in array.buffers()[1:3]
    )
    # The last of these cannot overflow unless one of the others holds.
    row = _first_true((starts < 0) | (sizes < 0) | (starts > len(array.values) - sizes))
    if row is not None:
        return row
    first, last = int(starts.min()), int((starts + sizes).max())
    element = first_bad_row(array.values.slice(first, last - first))
    if element is None:
        return None
    element += first
    return _first_true((starts <= element) & (element < starts + sizes)) or 0


def _first_bad_fixed_list(array: Any) -> int | None:
    length = array.type.list_size
    if (array.offset + len(array)) * length > len(array.values):
        # Arrow's own validation ignores the offset.
        return int(max(len(array.values) // length - array.offset, 0))
    element = first_bad_row(array.values.slice(array.offset * length, len(array) * length))
    return None if element is None else element // length


def _first_bad_struct(array: Any) -> int | None:
    fields = (first_bad_row(array.field(index)) for index in range(array.type.num_fields))
    return min((row for row in fields if row is not None), default=None)


#: The kinds of arrays with references, and what finds the first row with a wrong one.
_CHECKS: Final = (
    (_PLAIN, _first_bad_string),
    (_VIEWS, _first_bad_view),
    ((pa.types.is_dictionary,), _first_bad_index),
    ((pa.types.is_run_end_encoded,), _first_bad_run),
    (_LISTS, _first_bad_list),
    (_LIST_VIEWS, _first_bad_list_view),
    ((pa.types.is_fixed_size_list,), _first_bad_fixed_list),
    ((pa.types.is_struct,), _first_bad_struct),
)
