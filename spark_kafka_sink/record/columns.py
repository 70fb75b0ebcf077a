"""Columns of records, as numpy arrays that are views of existing buffers.

This is the boundary between Arrow (`record.arrow` builds the columns) and the compiled kernels
(which read them through `RecordColumns.table`). Neither pyarrow nor numba is imported here.

Rules:
- A column of byte strings has Arrow's layout with 64-bit offsets: row i is
  `data[offsets[i]:offsets[i + 1]]`, and is null if bit `validity_offset + i` of `validity` is 0.
- The kernels follow raw addresses, so `RecordColumns.__post_init__` checks everything they read:
  that offsets never decrease and stay within the data, that bitmaps are long enough, and that index
  columns are as long as the batch. The checks take about 2 ns per row.
- A `RecordColumns` is immutable and keeps all arrays alive that its table points to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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

#: A kernel reads one row of this type: the addresses of buffers, and the bit offsets of bitmaps.
#: A validity address of 0 means that no row is null; header_offsets 0 means that there are none.
COLUMNS_DTYPE: Final = np.dtype(
    [
        ("num_rows", np.int64),
        ("key_offsets", np.int64),
        ("key_data", np.int64),
        ("key_validity", np.int64),
        ("key_validity_offset", np.int64),
        ("value_offsets", np.int64),
        ("value_data", np.int64),
        ("value_validity", np.int64),
        ("value_validity_offset", np.int64),
        ("topic_index", np.int64),
        ("partition", np.int64),
        ("timestamp", np.int64),
        ("header_offsets", np.int64),
        ("header_key_offsets", np.int64),
        ("header_key_data", np.int64),
        ("header_value_offsets", np.int64),
        ("header_value_data", np.int64),
        ("header_value_validity", np.int64),
        ("header_value_validity_offset", np.int64),
    ]
)

#: The fields of `COLUMNS_DTYPE` for keys and values; all its fields are int64.
_KEY_AND_VALUE: Final = slice(1, 9)
_NO_BYTES: Final = np.zeros(0, np.uint8)
_SHORTEST_SHARED_ARRAY: Final = 16_384


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
    key: BytesColumn
    value: BytesColumn
    #: The distinct topics of these rows.
    topics: tuple[str, ...]
    #: int32[rows] into `topics`, or `NULL_TOPIC_INDEX`.
    topic_index: Int32Array
    #: int32[rows], or `NULL_PARTITION`.
    partition: Int32Array
    #: int64[rows], milliseconds since 1970, or `NULL_TIMESTAMP`.
    timestamp: Int64Array
    headers: HeaderColumns | None = None
    #: One row of `COLUMNS_DTYPE`: the addresses of all of the above.
    table: npt.NDArray[np.void] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check everything that the kernels rely on, then store the addresses."""
        rows = self.num_rows
        _check_bytes_column("key", self.key, rows)
        _check_bytes_column("value", self.value, rows)
        _check_array("topic_index", self.topic_index, np.int32, rows)
        _check_array("partition", self.partition, np.int32, rows)
        _check_array("timestamp", self.timestamp, np.int64, rows)
        if rows and not -1 <= int(self.topic_index.min()) <= int(self.topic_index.max()) < len(
            self.topics
        ):
            raise ValueError("topic_index points outside of topics")
        if self.headers is not None:
            _check_headers(self.headers, rows)
        object.__setattr__(self, "table", self._addresses())

    def _addresses(self) -> npt.NDArray[np.void]:
        headers = self.headers
        # Without headers, the kernels do not use the header addresses.
        header_columns = (
            (0,) * 7
            if headers is None
            else (
                _address(headers.offsets),
                *_bytes_column_addresses(headers.keys)[:2],
                *_bytes_column_addresses(headers.values),
            )
        )
        return np.array(
            [
                (
                    self.num_rows,
                    *_bytes_column_addresses(self.key),
                    *_bytes_column_addresses(self.value),
                    _address(self.topic_index),
                    _address(self.partition),
                    _address(self.timestamp),
                    *header_columns,
                )
            ],
            COLUMNS_DTYPE,
        )


def plain_columns(topic: str, key: BytesColumn, value: BytesColumn) -> RecordColumns:
    """Return the columns of records of one topic that have only a key and a value.

    The columns that all such records share are built and checked once for each number of rows.
    """
    blank = _blank_columns(value.offsets.size - 1)
    _check_bytes_column("key", key, blank.num_rows)
    _check_bytes_column("value", value, blank.num_rows)
    table = blank.table.copy()
    addresses = _bytes_column_addresses(key) + _bytes_column_addresses(value)
    table.view(np.int64)[_KEY_AND_VALUE] = addresses
    columns = object.__new__(RecordColumns)
    for name, part in (
        ("num_rows", blank.num_rows),
        ("key", key),
        ("value", value),
        ("topics", (topic,)),
        ("topic_index", blank.topic_index),
        ("partition", blank.partition),
        ("timestamp", blank.timestamp),
        ("headers", None),
        ("table", table),
    ):
        object.__setattr__(columns, name, part)
    return columns


@lru_cache(maxsize=32)
def _blank_columns(rows: int) -> RecordColumns:
    return RecordColumns(
        num_rows=rows,
        key=null_column(rows),
        value=null_column(rows),
        topics=("",),
        topic_index=constant_topic(rows),
        partition=null_partitions(rows),
        timestamp=null_timestamps(rows),
    )


def null_column(rows: int) -> BytesColumn:
    """Return a column of nulls; its arrays are shared and read-only."""
    return BytesColumn(
        offsets=_shared_array(0, "int64", rows + 1),
        data=_NO_BYTES,
        validity=_shared_array(0, "uint8", (rows + 7) // 8 or 1),
    )


def constant_topic(rows: int) -> Int32Array:
    """Return the `topic_index` of rows that all go to `topics[0]`; shared and read-only."""
    return _shared_array(0, "int32", rows)


def null_partitions(rows: int) -> Int32Array:
    """Return the `partition` of rows that all leave it to the producer; shared and read-only."""
    return _shared_array(NULL_PARTITION, "int32", rows)


def null_timestamps(rows: int) -> Int64Array:
    """Return the `timestamp` of rows that all get the time of appending; shared and read-only."""
    return _shared_array(NULL_TIMESTAMP, "int64", rows)


def _shared_array(value: int, dtype: str, length: int) -> npt.NDArray[Any]:
    capacity = max(_SHORTEST_SHARED_ARRAY, 1 << (length - 1).bit_length())
    return _filled_array(value, dtype, capacity)[:length]


@lru_cache(maxsize=32)
def _filled_array(value: int, dtype: str, capacity: int) -> npt.NDArray[Any]:
    array = np.full(capacity, value, dtype)
    array.flags.writeable = False
    return array


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _bytes_column_addresses(column: BytesColumn) -> tuple[int, int, int, int]:
    return (
        _address(column.offsets),
        _address(column.data),
        _address(column.validity) if column.validity.size else 0,
        column.validity_offset,
    )


def _check_array(name: str, array: npt.NDArray[Any], dtype: type[Any], length: int) -> None:
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} must be a contiguous array of {dtype.__name__}")
    if array.size != length:
        raise ValueError(f"{name} has {array.size} entries, not {length}")


def _check_offsets(name: str, offsets: Int64Array, rows: int, end: int) -> None:
    _check_array(name, offsets, np.int64, rows + 1)
    if offsets[0] < 0 or offsets[-1] > end or not bool((offsets[1:] >= offsets[:-1]).all()):
        raise ValueError(f"{name} go back, or leave the data that they point into")


def _check_bytes_column(name: str, column: BytesColumn, rows: int) -> None:
    _check_array(f"the data of {name}", column.data, np.uint8, column.data.size)
    _check_offsets(f"the offsets of {name}", column.offsets, rows, column.data.size)
    validity = column.validity
    if validity.size:
        _check_array(f"the validity of {name}", validity, np.uint8, validity.size)
        if column.validity_offset < 0 or validity.size * 8 < column.validity_offset + rows:
            raise ValueError(f"the validity of {name} has fewer bits than the column has rows")


def _check_headers(headers: HeaderColumns, rows: int) -> None:
    elements = headers.keys.offsets.size - 1
    _check_bytes_column("header keys", headers.keys, elements)
    _check_bytes_column("header values", headers.values, elements)
    _check_offsets("the offsets of headers", headers.offsets, rows, elements)
