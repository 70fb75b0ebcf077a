"""Arrays whose elements have only numbers, which are packed and unpacked all at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codec import decode, encode, encode_bytes
from spark_kafka_sink.protocol.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    Message,
    VersionRange,
    array,
    field,
    message,
)


@message
class Cell:
    """An element with numbers of all sizes, three of which old versions lack."""

    index: int = field(INT32)
    code: int = field(INT8)
    is_set: bool = field(BOOL)
    epoch: int = field(INT16, versions="1+", default=-1)
    offset: int = field(INT64, versions="1+", default=-1)
    hint: int = field(INT32, versions="1+", ignorable=True, default=-1)


@message
class Cells(Message):
    """A message whose version 2 is flexible."""

    versions = VersionRange(0, 2)
    flexible_from = 2

    cells: tuple[Cell, ...] = field(array(Cell))


CELLS = (
    Cell(index=1, code=-2, is_set=True, epoch=3, offset=-4, hint=5),
    Cell(index=6, code=7, is_set=False, epoch=-8, offset=9, hint=-10),
)
PLAIN = (
    "00000002"
    "00000001 fe 01 0003 fffffffffffffffc 00000005"
    "00000006 07 00 fff8 0000000000000009 fffffff6"
)
FLEXIBLE = (
    "03"
    "00000001 fe 01 0003 fffffffffffffffc 00000005 00"
    "00000006 07 00 fff8 0000000000000009 fffffff6 00"
    "00"
)


@pytest.mark.parametrize(("version", "encoded"), [(1, PLAIN), (2, FLEXIBLE)])
def test_the_elements_follow_each_other(version, encoded):
    """Numbers have their own sizes, without padding; a flexible element ends with its tags."""
    assert bytes.fromhex(encoded) == encode_bytes(Cells(cells=CELLS), version)
    assert Cells(cells=CELLS) == decode(Cells, bytes.fromhex(encoded), version)


def test_an_old_version_lacks_numbers():
    """The numbers that a version lacks have their defaults."""
    old = bytes.fromhex("00000001 00000001 fe 01")
    cells = Cells(cells=(Cell(index=1, code=-2, is_set=True),))

    assert cells == decode(Cells, old, 0)
    assert old == encode_bytes(cells, 0)


def test_a_number_that_a_version_lacks_is_refused_or_ignored():
    """A number that the version lacks is an error, unless it may be ignored."""
    one = {"index": 1, "code": -2, "is_set": True}

    with pytest.raises(UnsupportedVersionError, match="Cell version 0 has no field offset"):
        encode(Cells(cells=(Cell(**one, offset=5),)), 0)
    assert encode(Cells(cells=(Cell(**one),)), 0) == encode(Cells(cells=(Cell(**one, hint=5),)), 0)


def test_unknown_tags_of_one_element_are_skipped():
    """Tagged fields of a later version do not disturb the other elements."""
    encoded = (
        "04"
        "00000001 fe 01 0003 fffffffffffffffc 00000005 00"
        "00000006 07 00 fff8 0000000000000009 fffffff6 02 00 01 aa 07 02 bbcc"
        "00000001 fe 01 0003 fffffffffffffffc 00000005 00"
        "00"
    )
    assert Cells(cells=(*CELLS, CELLS[0])) == decode(Cells, bytes.fromhex(encoded), 2)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("name", "value"), [("code", 128), ("epoch", 2**15), ("index", "1"), ("offset", None)]
)
def test_a_number_out_of_range_is_named(version, name, value):
    """The error for a value that does not fit names the element's field."""
    numbers = {"index": 1, "code": -2, "is_set": True, name: value}
    with pytest.raises(ValueError, match=rf"^Cells\.cells: Cell\.{name}: "):
        encode(Cells(cells=(CELLS[0], Cell(**numbers))), version)


@pytest.mark.parametrize("version", [1, 2])
def test_too_few_bytes_are_an_error(version):
    """An answer that ends within an element, or has more bytes, is refused."""
    encoded = encode_bytes(Cells(cells=CELLS), version)

    for size in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode(Cells, encoded[:size], version)
    with pytest.raises(DecodeError, match="1 extra bytes"):
        decode(Cells, encoded + b"\0", version)


def test_a_true_bool_may_be_any_byte():
    """As in Kafka, any byte but zero is true."""
    encoded = bytes.fromhex("00000002 00000001 fe 7f 00000001 fe ff")
    assert [True, True] == [cell.is_set for cell in decode(Cells, encoded, 0).cells]


@given(
    st.lists(
        st.builds(
            Cell,
            index=st.integers(-(2**31), 2**31 - 1),
            code=st.integers(-128, 127),
            is_set=st.booleans(),
            epoch=st.integers(-(2**15), 2**15 - 1),
            offset=st.integers(-(2**63), 2**63 - 1),
            hint=st.integers(-(2**31), 2**31 - 1),
        )
    ),
    st.sampled_from([1, 2]),
)
def test_an_array_is_what_its_elements_are(cells, version):
    """An array encodes as its elements one after the other, and decodes to them."""
    encoded = encode_bytes(Cells(cells=tuple(cells)), version)
    alone = [encode_bytes(Cells(cells=(cell,)), version) for cell in cells]

    if version == 1:
        assert len(cells).to_bytes(4, "big") + b"".join(each[4:] for each in alone) == encoded
    else:
        assert b"".join(each[1:-1] for each in alone) + b"\0" == encoded.removeprefix(
            _varint(len(cells) + 1)
        )
    assert tuple(cells) == decode(Cells, encoded, version).cells


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])
