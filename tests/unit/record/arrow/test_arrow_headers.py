"""Conversion of headers in Arrow batches to headers of records."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import RecordError, SchemaError
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.decode import Header
from tests.support.record.arrow_rows import (
    HEADER,
    HEADERS,
    LISTS,
    STRINGS_AND_BINARIES,
    batch_of,
    expected_headers,
    read_batch,
)

SOME_HEADERS = [
    [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    None,
    [],
    [{"key": "größe", "value": b""}, {"key": "", "value": b"x" * 100}],
    [{"key": "last", "value": b"2"}],
]


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS.keys())
def test_headers_in_every_layout_are_read(make, first):
    """Header names may repeat, values may be null, and a null list means no headers."""
    batch = batch_of(headers=pa.array(SOME_HEADERS, make(HEADER))).slice(first)
    assert expected_headers(SOME_HEADERS[first:]) == [r.headers for r in read_batch(batch)]


@pytest.mark.parametrize("first", range(3))
def test_headers_in_fixed_size_lists_are_read(first):
    """Headers may be in a list of fixed size."""
    rows = [SOME_HEADERS[0], None, SOME_HEADERS[3]]
    batch = batch_of(headers=pa.array(rows, pa.list_(HEADER, 2))).slice(first)
    assert expected_headers(rows[first:]) == [r.headers for r in read_batch(batch)]


@pytest.mark.parametrize("key", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("value", STRINGS_AND_BINARIES[:6], ids=str)
def test_header_keys_and_values_of_every_type_are_read(key, value):
    """Header keys may have any string type, and values any string or binary type."""
    rows = [[{"key": "k", "value": "v" if "string" in str(value) else b"v"}]]
    array = pa.array(rows, pa.list_(pa.struct([("key", key), ("value", value)])))
    assert [((Header("k", b"v")),)] == [r.headers for r in read_batch(batch_of(headers=array))]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        HEADER,
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.binary()),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.int32())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("x", pa.int8())])),
    ],
    ids=str,
)
def test_other_types_of_headers_are_rejected(kind):
    """Only the type that Spark's own sink uses for headers is accepted."""
    with pytest.raises(SchemaError, match=r"column 'headers' has type .*must be a list of struct"):
        record_columns(batch_of(headers=pa.nulls(1, kind)), topic="t")


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_headers_are_not_copied(make, first):
    """Null lists do not cause a copy if they contain no elements."""
    array = pa.array(SOME_HEADERS, make(HEADER))
    headers = record_columns(batch_of(headers=array).slice(first), topic="t").headers
    for field, column in enumerate((headers.keys, headers.values)):
        assert array.values.field(field).buffers()[2].address == column.data.ctypes.data


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_missing_offsets_of_an_empty_array(make):
    """An empty Arrow array may have no offsets at all."""
    headers = pa.Array.from_buffers(make(HEADER), 0, [None, None], children=[pa.array([], HEADER)])
    batch = pa.record_batch({"value": pa.array([], pa.binary()), "headers": headers})
    assert 0 == record_columns(batch, topic="t").num_rows


def test_headers_can_be_excluded():
    """Without `include_headers`, the headers column is ignored, whatever its type."""
    batch = batch_of(headers=pa.array(SOME_HEADERS, HEADERS))
    assert record_columns(batch, topic="t", include_headers=False).headers is None
    batch = batch_of(headers=[1])
    assert record_columns(batch, topic="t", include_headers=False).headers is None


@pytest.mark.parametrize(
    "headers",
    [pa.nulls(2), pa.nulls(2, HEADERS), pa.array([[], None], HEADERS), pa.array([[], []], HEADERS)],
)
def test_a_column_without_any_header_gives_no_headers(headers):
    """A column without a single header gives no headers."""
    assert record_columns(batch_of(headers=headers), topic="t").headers is None


GOOD, NO_HEADER, NO_KEY = {"key": "k", "value": b"v"}, None, {"key": None, "value": b"v"}


@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [(NO_HEADER, "a header is null"), (NO_KEY, "the key of a header is null")],
)
def test_null_headers_and_keys_are_rejected(make, wrong, complaint):
    """The error for a null header or key names the row, in any slice."""
    rows = [[wrong], [GOOD], None, [], [GOOD, GOOD], [GOOD, wrong], [wrong]]
    array = pa.array(rows, make(HEADER))
    with pytest.raises(RecordError, match=f"row 1004, topic 't': {complaint}") as caught:
        record_columns(batch_of(headers=array).slice(1), topic="t", first_row=1000)
    assert 1004 == caught.value.row
    good = batch_of(headers=array).slice(1, 4)
    assert expected_headers(rows[1:5]) == [r.headers for r in read_batch(good)]


def test_elements_stored_for_null_lists_are_ignored():
    """The elements that Arrow allows in a null list are ignored, even invalid ones."""
    elements = pa.array([GOOD, NO_KEY, NO_HEADER, {"key": "z", "value": None}], HEADER)
    array = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), elements, mask=pa.array([False, True, False])
    )
    batch = batch_of(headers=array)
    assert [(Header("k", b"v"),), (), (Header("z", None),)] == [
        record.headers for record in read_batch(batch)
    ]
    assert [(), (Header("z", None),)] == [r.headers for r in read_batch(batch.slice(1))]
