"""Columns of records, as numpy arrays that are views of existing buffers.

This is the boundary between Arrow (`record.arrow.record_columns` builds the columns) and the
compiled kernels (which read them through `RecordColumns.table`). Neither pyarrow nor numba is
imported here.

Rules:
- A column of byte strings has Arrow's layout with 64-bit offsets: row i is
  `data[offsets[i]:offsets[i + 1]]`, and is null if bit `validity_offset + i` of `validity` is 0.
- Each column is declared once, by a field of `RecordColumns` with its kind. That determines how it
  is checked, where the kernels find it, and what it is if no row specifies anything.
- The kernels follow raw addresses, so `RecordColumns.__post_init__` checks everything they read:
  that offsets never decrease and stay within the data, that bitmaps are long enough, and that index
  columns are as long as the batch. The checks take about 2 ns per row.
- A `RecordColumns` is immutable and keeps all arrays alive that its table points to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

UInt8Array: TypeAlias = "npt.NDArray[np.uint8]"
Int32Array: TypeAlias = "npt.NDArray[np.int32]"
Int64Array: TypeAlias = "npt.NDArray[np.int64]"

#: In `RecordColumns.partition`: the producer chooses the partition.
NULL_PARTITION: Final = -(2**31)
#: In `RecordColumns.timestamp`: the record gets the time of appending.
NULL_TIMESTAMP: Final = -(2**63)
#: In `RecordColumns.topic_index`: the row has no topic.
NULL_TOPIC_INDEX: Final = -1

#: The size of a key or value that is null.
NULL_SIZE: Final = -1
#: The number of objects per record in a list of single records: future, topic, key and value.
RECORD_FIELDS: Final = 4

_UINT8: Final = np.dtype(np.uint8)
_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_NO_BYTES: Final = np.zeros(0, _UINT8)
_SHORTEST_SHARED_ARRAY: Final = 16_384
#: In the metadata of the fields of `RecordColumns`: the kind of the column.
_KIND: Final = "kind"


class BadOffsetsError(ValueError):
    """Offsets decrease, or exceed their data; `column` says which."""

    def __init__(self, column: str) -> None:
        super().__init__(f"the offsets of {column} must not decrease, and not exceed its data")
        self.column = column


class BytesColumn(NamedTuple):
    """A column of nullable byte strings, in Arrow's layout with 64-bit offsets.

    `data` is uint8[bytes]: the bytes of all rows, one after another.

    >>> import numpy as np
    >>> column = BytesColumn(np.array([0, 1, 3]), np.frombuffer(b"abc", np.uint8))
    >>> column.data[column.offsets[1] : column.offsets[2]].tobytes()
    b'bc'
    """

    #: int64[rows + 1], counting bytes of `data`; the first need not be 0.
    offsets: Int64Array
    data: UInt8Array
    #: Arrow's bitmap, least significant bit first; of length 0 when no row is null.
    validity: UInt8Array = _NO_BYTES
    #: The bit of `validity` for row 0.
    validity_offset: int = 0


class HeaderColumns(NamedTuple):
    """The headers of all rows, one element per header.

    `values` has an entry for each of `keys`; null means a header without a value.

    >>> import numpy as np
    >>> names = BytesColumn(np.array([0, 6]), np.frombuffer(b"source", np.uint8))
    >>> values = BytesColumn(np.array([0, 3]), np.frombuffer(b"web", np.uint8))
    >>> HeaderColumns(np.array([0, 1]), names, values).offsets.tolist()
    [0, 1]
    """

    #: int64[rows + 1]: row i has the elements from offsets[i] to offsets[i + 1], exclusive.
    offsets: Int64Array
    #: Names in UTF-8; those that belong to a row are not null.
    keys: BytesColumn
    values: BytesColumn


class EncodedHeaders(NamedTuple):
    r"""Headers of all rows in the bytes that records have for them, for rows with equal headers.

    >>> import numpy as np
    >>> one_header = np.frombuffer(b"\x0csource\x06web", np.uint8)
    >>> EncodedHeaders(np.array([1], np.int32), BytesColumn(np.array([0, 11]), one_header)).counts
    array([1], dtype=int32)
    """

    #: int32[rows]: how many headers a row has.
    counts: Int32Array
    #: The names and values of a row's headers, each with its length before it; without nulls.
    headers: BytesColumn


@lru_cache(maxsize=128)
def _shared_array(value: int, dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    capacity = max(_SHORTEST_SHARED_ARRAY, 1 << (length - 1).bit_length())
    return _filled_array(value, dtype, capacity)[:length]


@lru_cache(maxsize=32)
def _filled_array(value: int, dtype: np.dtype[Any], capacity: int) -> npt.NDArray[Any]:
    array = np.full(capacity, value, dtype)
    array.flags.writeable = False
    return array


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _check_array(
    name: str, array: npt.NDArray[Any], dtype: np.dtype[Any], length: int, part: str = ""
) -> None:
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{part}{name} must be a contiguous array of {dtype.name}")
    if array.size != length:
        raise ValueError(f"{part}{name} has {array.size} entries, not {length}")


def _check_offsets(name: str, offsets: Int64Array, rows: int, end: int) -> None:
    _check_array(name, offsets, _INT64, rows + 1, "the offsets of ")
    if offsets[0] < 0 or offsets[-1] > end or not bool((offsets[1:] >= offsets[:-1]).all()):
        raise BadOffsetsError(name)


class _Kind(Protocol):
    """A kind of column: how the kernels find it, and what it is if no row specifies anything."""

    def table_fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of `COLUMNS_DTYPE` for a column of this kind."""

    def addresses(self, name: str, column: Any, rows: int) -> tuple[int, ...]:
        """Return the values of these fields; raise ValueError unless all rows can be read."""

    def blank(self, rows: int) -> Any:
        """Return the column of rows that specify nothing; its arrays are shared and read-only."""


class _Strings:
    """Nullable byte strings."""

    def table_fields(self, name: str) -> tuple[str, ...]:
        return (f"{name}_offsets", f"{name}_data", f"{name}_validity", f"{name}_validity_offset")

    def addresses(self, name: str, column: BytesColumn, rows: int) -> tuple[int, ...]:
        offsets, data, validity, validity_offset = column
        _check_array(name, data, _UINT8, data.size, "the data of ")
        _check_offsets(name, offsets, rows, data.size)
        if not validity.size:
            return (_address(offsets), _address(data), 0, validity_offset)
        _check_array(name, validity, _UINT8, validity.size, "the validity of ")
        if validity_offset < 0 or validity.size * 8 < validity_offset + rows:
            raise ValueError(f"the validity of {name} has fewer bits than the column has rows")
        return (_address(offsets), _address(data), _address(validity), validity_offset)

    def blank(self, rows: int) -> BytesColumn:
        return null_column(rows)


class _Integers:
    """One integer for each row; `blank_value` is that of a row that specifies none."""

    def __init__(self, dtype: np.dtype[Any], blank_value: int) -> None:
        self._dtype = dtype
        self._blank_value = blank_value

    def table_fields(self, name: str) -> tuple[str, ...]:
        return (name,)

    def addresses(self, name: str, column: npt.NDArray[Any], rows: int) -> tuple[int, ...]:
        if column is not self.blank(rows):
            _check_array(name, column, self._dtype, rows)
        return (_address(column),)

    def blank(self, rows: int) -> npt.NDArray[Any]:
        return _shared_array(self._blank_value, self._dtype, rows)


class _Headers:
    """Any number of headers for each row; their names are not nullable."""

    def table_fields(self, name: str) -> tuple[str, ...]:
        name = name.removesuffix("s")
        return (
            f"{name}_offsets",
            *_STRINGS.table_fields(f"{name}_key")[:2],
            *_STRINGS.table_fields(f"{name}_value"),
        )

    def addresses(self, name: str, column: HeaderColumns | None, rows: int) -> tuple[int, ...]:
        if column is None:
            # Without headers, the kernels do not use the other addresses.
            return (0,) * 7
        offsets, keys, values = column
        elements = keys.offsets.size - 1
        key_addresses = _STRINGS.addresses("header keys", keys, elements)
        value_addresses = _STRINGS.addresses("header values", values, elements)
        _check_offsets(name, offsets, rows, elements)
        return (_address(offsets), *key_addresses[:2], *value_addresses)

    def blank(self, rows: int) -> None:
        """Return None: a batch without headers has no such column."""


class _EncodedHeaders:
    """Any number of headers for each row, encoded."""

    def table_fields(self, name: str) -> tuple[str, ...]:
        return (f"{name}_counts", *_STRINGS.table_fields(name)[:2])

    def addresses(self, name: str, column: EncodedHeaders | None, rows: int) -> tuple[int, ...]:
        if column is None:
            return (0,) * 3
        _check_array(name, column.counts, _INT32, rows, "the counts of ")
        if rows and column.counts.min() < 0:
            raise ValueError(f"the counts of {name} must not be negative")
        return (_address(column.counts), *_STRINGS.addresses(name, column.headers, rows)[:2])

    def blank(self, rows: int) -> None:
        """Return None: a batch without headers has no such column."""


_STRINGS: Final = _Strings()
_TOPIC_INDEX: Final = _Integers(_INT32, 0)
_PARTITION: Final = _Integers(_INT32, NULL_PARTITION)
_TIMESTAMP: Final = _Integers(_INT64, NULL_TIMESTAMP)
_HEADERS: Final = _Headers()
_ENCODED_HEADERS: Final = _EncodedHeaders()


@lru_cache(maxsize=32)
def null_column(rows: int) -> BytesColumn:
    """Return a column of nulls; its arrays are shared and read-only."""
    return BytesColumn(
        offsets=_shared_array(0, _INT64, rows + 1),
        data=_NO_BYTES,
        validity=_shared_array(0, _UINT8, (rows + 7) // 8 or 1),
    )


def constant_topic(rows: int) -> Int32Array:
    """Return the `topic_index` of rows that all go to `topics[0]`; shared and read-only."""
    return _TOPIC_INDEX.blank(rows)


def null_partitions(rows: int) -> Int32Array:
    """Return the `partition` of rows that all leave it to the producer; shared and read-only."""
    return _PARTITION.blank(rows)


def null_timestamps(rows: int) -> Int64Array:
    """Return the `timestamp` of rows that all get the time of appending; shared and read-only."""
    return _TIMESTAMP.blank(rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """Records to send, as columns.

    `num_rows` is the number of rows; `key`, `value` and `headers` have one entry for each row.
    Raises ValueError if the arrays are inconsistent or have the wrong type.

    >>> import numpy as np
    >>> column = BytesColumn(np.array([0, 1, 3]), np.frombuffer(b"abc", np.uint8))
    >>> columns = RecordColumns(
    ...     num_rows=2,
    ...     key=column,
    ...     value=column,
    ...     topics=("orders",),
    ...     topic_index=np.zeros(2, np.int32),
    ...     partition=np.zeros(2, np.int32),
    ...     timestamp=np.zeros(2, np.int64),
    ... )
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     producer.append(columns)
    ...     producer.flush()
    ...     producer.acks()[TopicPartition("orders", 0)].records
    2
    """

    num_rows: int
    key: BytesColumn = field(metadata={_KIND: _STRINGS})
    value: BytesColumn = field(metadata={_KIND: _STRINGS})
    #: The distinct topics of these rows.
    topics: tuple[str, ...]
    #: int32[rows] into `topics`, or `NULL_TOPIC_INDEX`.
    topic_index: Int32Array = field(metadata={_KIND: _TOPIC_INDEX})
    #: int32[rows], or `NULL_PARTITION`.
    partition: Int32Array = field(metadata={_KIND: _PARTITION})
    #: int64[rows], milliseconds since 1970, or `NULL_TIMESTAMP`.
    timestamp: Int64Array = field(metadata={_KIND: _TIMESTAMP})
    headers: HeaderColumns | None = field(default=None, metadata={_KIND: _HEADERS})
    #: More headers, which come behind those.
    encoded_headers: EncodedHeaders | None = field(default=None, metadata={_KIND: _ENCODED_HEADERS})
    #: One row of `COLUMNS_DTYPE`: the addresses of all of the above.
    table: npt.NDArray[np.void] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check everything that the kernels rely on, then store the addresses."""
        rows = self.num_rows
        numbers = [rows]
        for name, kind in _COLUMNS:
            numbers += kind.addresses(name, getattr(self, name), rows)
        if rows and not -1 <= int(self.topic_index.min()) <= int(self.topic_index.max()) < len(
            self.topics
        ):
            raise ValueError("topic_index has an index outside of topics")
        # Faster than np.array; a bytearray, since the compiled kernels take writable arrays.
        table = np.frombuffer(bytearray(_TABLE.pack(*numbers)), COLUMNS_DTYPE)
        object.__setattr__(self, "table", table)


_COLUMNS: Final[tuple[tuple[str, _Kind], ...]] = tuple(
    (column.name, column.metadata[_KIND])
    for column in fields(RecordColumns)
    if _KIND in column.metadata
)

#: A kernel reads one row of this type: the addresses of buffers, and the bit offsets of bitmaps.
#: A validity address of 0 means that no row is null; header_offsets and encoded_headers_offsets 0
#: mean that there are none.
COLUMNS_DTYPE: Final = np.dtype(
    [
        ("num_rows", np.int64),
        *((number, np.int64) for name, kind in _COLUMNS for number in kind.table_fields(name)),
    ]
)


_TABLE: Final = Struct(f"={COLUMNS_DTYPE.itemsize // 8}q")


def _place(name: str) -> slice:
    """Return where a column is in a row of `COLUMNS_DTYPE`; all its fields are int64."""
    own = dict(_COLUMNS)[name].table_fields(name)
    first = (COLUMNS_DTYPE.names or ()).index(own[0])
    return slice(first, first + len(own))


_KEY_PLACE: Final = _place("key")
_VALUE_PLACE: Final = _place("value")


def plain_columns(topic: str, key: BytesColumn, value: BytesColumn) -> RecordColumns:
    """Return the columns of records of one topic that have only a key and a value.

    The columns that all such records share are built and checked once for each number of rows.
    """
    rows = value.offsets.size - 1
    blank = _blank_parts(rows)
    table = blank["table"].copy()
    parts = blank | {"key": key, "value": value, "topics": (topic,), "table": table}
    numbers = table.view(_INT64)
    # The table already has the addresses of the shared columns of nulls.
    if key is not blank["key"]:
        numbers[_KEY_PLACE] = _STRINGS.addresses("key", key, rows)
    if value is not blank["value"]:
        numbers[_VALUE_PLACE] = _STRINGS.addresses("value", value, rows)
    columns = object.__new__(RecordColumns)
    for name, part in parts.items():
        object.__setattr__(columns, name, part)
    return columns


@lru_cache(maxsize=32)
def _blank_parts(rows: int) -> dict[str, Any]:
    """Return the fields of `RecordColumns` for rows that specify nothing."""
    blank = RecordColumns(
        num_rows=rows, topics=("",), **{name: kind.blank(rows) for name, kind in _COLUMNS}
    )
    return {column.name: getattr(blank, column.name) for column in fields(blank)}
