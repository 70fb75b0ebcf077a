"""Variable-length numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.default_record import encode_varint, read_varint, read_varlong
from tests.support.record.plain_batches import varint as plain_varint

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_numbers_are_encoded_as_in_java(number, encoded):
    """The values of Kafka's ByteUtilsTest have the same encoding, and are decoded again."""
    assert encoded == encode_varint(number).hex()
    data = bytes.fromhex(encoded)
    assert (number, len(data)) == read_varint(data, 0, len(data))
    assert (number, len(data)) == read_varlong(data, 0, len(data))


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")],
)
def test_the_extremes_of_a_long_are_encoded(number, encoded):
    """A 64-bit number takes up to ten bytes."""
    assert encoded == encode_varint(number).hex()
    assert (number, 10) == read_varlong(bytes.fromhex(encoded), 0, 10)


@given(LONGS)
def test_any_long_round_trips(number):
    """Any long is decoded again, and has the encoding of an independent encoder."""
    data = encode_varint(number)
    assert plain_varint(number) == data
    assert (number, 1 + len(data)) == read_varlong(b"\xff" + data + b"\xff", 1, 20)


@given(INTS)
def test_an_int_is_decoded_at_any_position(number):
    """A number at any position is returned with the position after it."""
    data = encode_varint(number)
    assert (number, 3 + len(data)) == read_varint(b"abc" + data + b"\x80", 3, 3 + len(data))


def test_a_padded_number_is_accepted():
    """A padded number is accepted, as in Java."""
    assert (1, 3) == read_varint(b"\x82\x80\x00", 0, 3)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_a_truncated_number_is_corrupt(data):
    """A truncated number is corrupt."""
    with pytest.raises(CorruptRecordError, match="truncated"):
        read_varint(data, 0, len(data))


@pytest.mark.parametrize(("position", "end"), [(0, 1), (1, 1), (1, 0)])
def test_bytes_after_the_end_are_not_read(position, end):
    """Bytes at or after the end are not read, even if the position is already past it."""
    with pytest.raises(CorruptRecordError, match="truncated"):
        read_varint(b"\x80\x01", position, end)


@pytest.mark.parametrize("data", ["8080808080", "ffffffff10", "ffffffffff00"])
def test_an_int_that_is_too_long_is_corrupt(data):
    """An int of more than five bytes or 32 bits is corrupt."""
    with pytest.raises(CorruptRecordError, match="32 bits"):
        read_varint(bytes.fromhex(data), 0, len(data) // 2)


@pytest.mark.parametrize("data", ["80" * 10 + "01", "ff" * 9 + "02"])
def test_a_long_that_is_too_long_is_corrupt(data):
    """A long of more than ten bytes or 64 bits is corrupt."""
    with pytest.raises(CorruptRecordError, match="64 bits"):
        read_varlong(bytes.fromhex(data), 0, len(data) // 2)
