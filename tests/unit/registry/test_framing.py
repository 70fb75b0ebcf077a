"""The framing of payloads, by rows and by columns."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.registry.framing import (
    Unframed,
    prefix,
    rows_with_schema_id_header,
    schema_ids,
    why_all_unframed,
    why_unframed,
)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_prefix_is_that_of_confluents_serializers():
    """A byte 0 precedes the id, which is a big-endian int32."""
    assert b"\x00\x00\x00\x01\x02" == prefix(258)
    assert b"\x00\x7f\xff\xff\xff" == prefix(2**31 - 1)


@pytest.mark.parametrize("schema_id", [-1, 2**31])
def test_an_id_that_does_not_fit_has_no_prefix(schema_id):
    """Ids are int32 and not negative."""
    with pytest.raises(ValueError, match="between 0 and 2147483647"):
        prefix(schema_id)


def expected_id(payload):
    """Return what one row has, read by itself."""
    if payload is None:
        return Unframed.NULL
    if len(payload) < 5:
        return Unframed.TOO_SHORT
    magic, schema_id = struct.unpack(">Bi", payload[:5])
    if magic:
        return Unframed.OTHER_MAGIC
    return Unframed.NEGATIVE_ID if schema_id < 0 else schema_id


PAYLOADS = st.lists(
    st.none()
    | st.binary(max_size=8)
    | st.builds(lambda rest: b"\x00" + rest, st.binary(max_size=12))
    | st.builds(lambda number: prefix(number) + b"rest", st.integers(0, 2**31 - 1))
)


def test_a_null_row_may_have_bytes():
    """What stands in the buffers for a null is not read, even if it looks like a prefix."""
    data = prefix(7) + prefix(8)
    offsets = struct.pack("=3i", 0, 5, 10)
    buffers = [pa.py_buffer(b"\1"), pa.py_buffer(offsets), pa.py_buffer(data)]
    assert [7, Unframed.NULL] == schema_ids(pa.Array.from_buffers(pa.binary(), 2, buffers)).tolist()


@given(PAYLOADS, st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 3))
def test_a_column_has_the_ids_of_its_rows(payloads, kind, start):
    """Null rows, rows without an id, slices and large arrays are read like single rows."""
    column = pa.array(payloads, kind).slice(min(start, len(payloads)))
    assert [expected_id(each) for each in payloads[start:]] == schema_ids(column).tolist()


def test_an_id_may_be_zero_and_a_payload_empty():
    """An array or a record without fields is encoded as nothing."""
    column = pa.array([prefix(0), prefix(1) + b"x", prefix(2)[:4]])
    assert [0, 1, Unframed.TOO_SHORT] == schema_ids(column).tolist()


def test_what_stands_in_place_of_an_id_is_none():
    """Ids are not negative."""
    assert [-1, -2, -3, -4] == list(Unframed)


def test_ids_are_read_from_binary_columns_only():
    """An array of texts is a mistake of the caller."""
    with pytest.raises(TypeError, match="array of binary, not string"):
        schema_ids(pa.array(["a"]))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "has 0 bytes, fewer than the 5"),
        (b"\x00\x00", "has 2 bytes, fewer than the 5"),
        (b'{"id": 1}', "begins with the byte 123, not with the byte 0"),
        (b"\x00\xff\xff\xff\xff!", "has the id -1 for its schema"),
        (b"\x01" + bytes(16), "seems to have a GUID"),
        (b"\x03\x05" + bytes(16), "seems to have the framing of AWS Glue's registry"),
        (b"\xc3\x01" + bytes(8), "seems to have Avro's single-object encoding"),
    ],
)
def test_a_payload_without_an_id_is_explained(payload, reason):
    """The reason names another framing if it looks like one, and no content."""
    assert why_unframed(payload).startswith(reason)


@pytest.mark.parametrize("part", ["key", "value"])
def test_headers_that_name_the_schema_are_found(part):
    """The rows with the header of the part are found, also in a slice and after nulls."""
    named = {"key": f"__{part}_schema_id", "value": b"\x01"}
    rows = [
        None,
        [],
        [{"key": "other", "value": b"x"}, {"key": None, "value": None}],
        [{"key": "a", "value": b""}, named],
        [{"key": "a", "value": b""}],
        [named, named],
    ]
    headers = pa.array(rows, HEADERS)
    assert [3, 5] == rows_with_schema_id_header(headers, part).tolist()
    assert [1, 3] == rows_with_schema_id_header(headers.slice(2), part).tolist()
    assert [] == rows_with_schema_id_header(headers.slice(0, 3), part).tolist()
    assert [] == rows_with_schema_id_header(headers.slice(0, 0), part).tolist()
    other = "key" if part == "value" else "value"
    assert [] == rows_with_schema_id_header(headers, other).tolist()


def test_all_payloads_without_an_id_have_the_texts_of_each():
    """Whatever their first bytes and sizes are, also in a slice."""
    heads = [bytes([first, second]) for first in range(256) for second in range(0, 256, 5)]
    payloads = [head + b"\xff\xfe\xfd\xfc" for head in heads if head[0]]
    payloads += [b"\3\0xyz", b"\3\5xyz", b"\xc3\1xyz", b"\0\x80\0\0\1", b"\0\xff\xff\xff\xff!"]
    payloads += [head[:size] for head in heads[::7] for size in (0, 1, 2)]
    expected = [why_unframed(payload) for payload in payloads]
    array = pa.array([b"before", *payloads], pa.binary()).slice(1)
    assert expected == why_all_unframed(array).to_pylist()
    assert [] == why_all_unframed(array.slice(0, 0)).to_pylist()
