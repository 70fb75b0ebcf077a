from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.primitives import Reader, Writer


def written(method: str, *values) -> bytes:
    writer = Writer()
    getattr(writer, method)(*values)
    return b"".join(writer.finish())


def read(method: str, data: bytes, *arguments):
    """Read one value, and check that no bytes are left."""
    reader = Reader(data)
    value = getattr(reader, method)(*arguments)
    reader.expect_end(method)
    return value


@pytest.mark.parametrize(
    ("name", "value", "encoded"),
    [
        ("bool", True, "01"),
        ("bool", False, "00"),
        ("int8", -128, "80"),
        ("int8", 127, "7f"),
        ("int16", -2, "fffe"),
        ("int16", 0x0102, "0102"),
        ("int32", -(2**31), "80000000"),
        ("int32", 0x01020304, "01020304"),
        ("int64", -1, "ffffffffffffffff"),
        ("int64", 0x0102030405060708, "0102030405060708"),
        ("float64", 1.5, "3ff8000000000000"),
        ("float64", float("-inf"), "fff0000000000000"),
        ("uuid", uuid.UUID(int=0), "00" * 16),
        (
            "uuid",
            uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
            "00112233445566778899aabbccddeeff",
        ),
        ("unsigned_varint", 0, "00"),
        ("unsigned_varint", 127, "7f"),
        ("unsigned_varint", 128, "8001"),
        ("unsigned_varint", 300, "ac02"),
        ("unsigned_varint", 2**32 - 1, "ffffffff0f"),
        ("compact_length", -1, "00"),
        ("compact_length", 0, "01"),
        ("compact_length", 127, "8001"),
    ],
)
def test_primitives_are_encoded_as_the_protocol_defines(name, value, encoded):
    """Each primitive is written as the protocol defines it, and read back."""
    assert encoded == written(f"write_{name}", value).hex()
    assert value == read(f"read_{name}", bytes.fromhex(encoded))


@pytest.mark.parametrize("byte", [0x02, 0x80, 0xFF])
def test_any_nonzero_byte_is_true(byte):
    """A bool other than 0 and 1 is true, as in Kafka."""
    assert read("read_bool", bytes([byte])) is True


@given(st.integers(0, 2**32 - 1))
def test_varints_round_trip(value):
    """Every unsigned 32-bit number is read as it was written."""
    assert value == read("read_unsigned_varint", written("write_unsigned_varint", value))


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "80",
        "ffffffff",  # no end after four bytes
        "ffffffff10",  # bit 33
        "ffffffff8f00",  # a sixth byte
    ],
)
def test_an_unterminated_or_overlong_varint_is_refused(encoded):
    """A varint must end within its bytes and within 32 bits."""
    with pytest.raises(DecodeError):
        read("read_unsigned_varint", bytes.fromhex(encoded))


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_number_beyond_32_bits_cannot_be_a_varint(value):
    """Only unsigned 32-bit numbers can be written as varints."""
    with pytest.raises(ValueError, match="not an unsigned 32-bit number"):
        written("write_unsigned_varint", value)


@pytest.mark.parametrize(
    ("method", "value"),
    [("write_int8", 128), ("write_int16", -(2**15) - 1), ("write_int32", 2**31)],
)
def test_a_number_out_of_range_is_not_written(method, value):
    """A number out of its field's range is an error and not truncated."""
    with pytest.raises(struct.error):
        written(method, value)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        ("read_bool", 1),
        ("read_int8", 1),
        ("read_int16", 2),
        ("read_int32", 4),
        ("read_int64", 8),
        ("read_float64", 8),
        ("read_uuid", 16),
    ],
)
def test_a_truncated_value_is_refused(method, size):
    """A truncated primitive is a DecodeError."""
    for length in range(size):
        with pytest.raises(DecodeError, match="bytes at 0, got"):
            read(method, bytes(length))


@given(st.text(st.characters(codec="utf-8")))
@example("é€😀\0")
def test_text_is_encoded_as_utf8(text):
    """The bytes of a string are decoded to the original text."""
    encoded = text.encode()
    assert text == read("read_text", encoded, len(encoded))


@pytest.mark.parametrize("encoded", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_text_that_is_not_utf8_is_refused(encoded):
    """Stray bytes, unfinished characters, surrogates and overlong forms are DecodeErrors."""
    with pytest.raises(DecodeError, match="is not UTF-8"):
        read("read_text", encoded, len(encoded))


def test_text_longer_than_kafka_allows_is_refused():
    """A length above 32767 is refused before the bytes are read."""
    with pytest.raises(DecodeError, match="claims to have 32768 bytes"):
        Reader(bytes(40_000)).read_text(0x8000)


def test_a_view_is_not_a_copy():
    """Bytes are read without copying them."""
    buffer = b"abcdef"
    view = Reader(buffer).read_view(3)
    assert view.obj is buffer
    assert b"abc" == view


def test_a_view_past_the_end_is_refused():
    """A read past the end is a DecodeError."""
    with pytest.raises(DecodeError, match="expected 4 bytes at 0, got 3"):
        Reader(b"abc").read_view(4)


def test_the_reader_counts_the_remaining_bytes():
    """`remaining` counts down, and `expect_end` raises an error if bytes are left."""
    reader = Reader(b"abc")
    reader.read_int16()
    assert 1 == reader.remaining
    with pytest.raises(DecodeError, match="1 extra bytes after it"):
        reader.expect_end("it")


def test_appended_buffers_are_not_copied():
    """Appended buffers are not copied, and keep their order among written values."""
    first, second = b"first", memoryview(b"second")
    writer = Writer()
    writer.append(first)
    writer.write_int8(1)
    writer.write_bytes(b"\2\3")
    writer.append(second)
    buffers = writer.finish()
    assert [b"first", b"\1\2\3", b"second"] == buffers
    assert buffers[0] is first
    assert buffers[2] is second
