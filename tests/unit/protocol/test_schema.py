"""The meaning of message declarations, tested with messages made for the purpose."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import tracemalloc
import uuid

import pytest

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codec import decode, encode, encode_bytes, struct_codec
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.protocol.registry import RequestHeader
from spark_kafka_sink.protocol.schema import (
    BOOL,
    FLOAT64,
    INT16,
    INT32,
    LEGACY_STRING,
    RECORDS,
    STRING,
    UUID,
    Message,
    Records,
    VersionRange,
    array,
    field,
    message,
)


@message
class Point:
    """A part of `Sample` that shares its versions."""

    x: int = field(INT16)
    label: str = field(STRING, versions="1+", default="")


@message
class Sample(Message):
    """A message whose versions 0 and 1 are plain, and 2 and 3 flexible."""

    versions = VersionRange(0, 3)
    flexible_from = 2

    name: str | None = field(STRING, nullable="1+")
    points: tuple[Point, ...] | None = field(array(Point), nullable="1+", default=())
    strict: int = field(INT32, versions="1-2", default=7)
    loose: int = field(INT32, versions="1-2", ignorable=True, default=8)
    client: str = field(LEGACY_STRING, versions="2+", default="c")
    flag: bool = field(BOOL, versions="2+", tag=0, ignorable=True, default=False)
    nearest: Point = field(Point, versions="3+", tag=5, default=Point(x=0))
    note: str | None = field(STRING, versions="3+", nullable="3+", tag=300, default=None)


@message
class Row:
    """A part of `Nested`."""

    names: tuple[str, ...] = field(array(STRING))


@message
class Batches(Message):
    """A message with records, plain and flexible."""

    versions = VersionRange(0, 1)
    flexible_from = 1

    records: Records | None = field(RECORDS, nullable="0+")


def test_plain_versions_have_long_lengths():
    """Before the first flexible version, strings have two length bytes and arrays four."""
    sample = Sample(name="né", points=(Point(x=1), Point(x=-2)))
    assert bytes.fromhex("00036ec3a9 00000002 0001 fffe") == encode_bytes(sample, 0)


def test_flexible_versions_have_compact_lengths_and_tags():
    """In flexible versions lengths are varints plus one, and every struct ends with tags."""
    sample = Sample(name="né", points=(Point(x=1, label="p"),))
    expected = "046ec3a9 02 0001 0270 00 00000007 00000008 000163 00"
    assert bytes.fromhex(expected) == encode_bytes(sample, 2)


def test_null_is_encoded_as_minus_one_or_zero():
    """Null is the length -1 in plain versions and the varint 0 in flexible ones."""
    sample = Sample(name=None, points=None)
    assert bytes.fromhex("ffff ffffffff 00000007 00000008") == encode_bytes(sample, 1)
    assert bytes.fromhex("00 00 000163 00") == encode_bytes(sample, 3)


def test_tagged_fields_are_written_unless_they_have_their_default():
    """Tagged fields have tag and size, are sorted by tag, and are omitted if default."""
    sample = Sample(name="", client="", flag=True, nearest=Point(x=9), note="n")
    tags = "03 00 01 01 05 04 0009 01 00 ac02 02 026e"
    assert bytes.fromhex("01 01 0000" + tags) == encode_bytes(sample, 3)
    assert sample == decode(Sample, encode_bytes(sample, 3), 3)


def test_a_tagged_field_on_the_wire_may_have_its_default():
    """A default value that a peer did not omit is accepted."""
    encoded = bytes.fromhex("01 01 0000 01 00 01 00")
    assert Sample(name="", client="") == decode(Sample, encoded, 3)


def test_a_null_in_a_tagged_field_is_read():
    """A null inside a tagged field is null."""
    encoded = bytes.fromhex("01 01 0000 01 ac02 01 00")
    assert Sample(name="", client="", note=None) == decode(Sample, encoded, 3)


def test_unknown_tagged_fields_are_skipped():
    """An undeclared tag is skipped, both between known ones and inside structs."""
    unknown = "03 02 aabb"
    tags = "04 00 01 01" + unknown + "05 04 0009 01 00 8080808008 00"
    encoded = bytes.fromhex("01 02 0001 01 01" + unknown + "0000" + tags)
    expected = Sample(name="", points=(Point(x=1),), client="", flag=True, nearest=Point(x=9))
    assert expected == decode(Sample, encoded, 3)


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ("02 03 00 03 00", "tag 3 after tag 3"),
        ("02 03 00 00 01 01", "tag 0 after tag 3"),
        ("01 00 02 01 01", "1 extra bytes after tagged field flag"),
        ("01 00 00", "expected 1 bytes at 0, got 0"),
        ("01 03 05 aa", "expected 5 bytes at 7, got 1"),
        ("01 03 ffffffff0f aa", "expected 4294967295 bytes"),
        ("05 03 00", "has no end"),
    ],
)
def test_inconsistent_tagged_fields_are_refused(tags, why):
    """Duplicate or unordered tags and wrong sizes are DecodeErrors."""
    with pytest.raises(DecodeError, match=why):
        decode(Sample, bytes.fromhex("01 01 0000" + tags), 3)


def test_a_field_missing_from_the_version_has_its_default():
    """A field that is not on the wire has the declared default, not zero."""
    decoded = decode(Sample, encode_bytes(Sample(name="n"), 0), 0)
    assert (7, 8, "c") == (decoded.strict, decoded.loose, decoded.client)


def test_a_value_missing_from_the_version_is_refused():
    """A field that is not ignorable must have its default if the version lacks it."""
    with pytest.raises(
        UnsupportedVersionError, match=r"Sample version 0 has no field strict \(1\)"
    ):
        encode(Sample(name="n", strict=1), 0)


def test_an_ignorable_value_missing_from_the_version_is_dropped():
    """An ignorable field may have any value if the version lacks it."""
    sample = Sample(name="n", loose=1, flag=True)
    assert Sample(name="n") == decode(Sample, encode_bytes(sample, 0), 0)


@message
class Optional(Message):
    """A message with a struct that may be null, plain and tagged."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    plain: Point | None = field(Point, nullable="0+", default=None)
    tagged: Point | None = field(Point, nullable="0+", tag=0, default=None)


def test_a_struct_may_be_null():
    """A byte in front of a nullable struct says whether it is there."""
    assert "ff 00" == encode_bytes(Optional(), 0).hex(" ")
    point = Point(x=5)
    assert "01 00 05 00 01 00 04 01 00 05 00" == encode_bytes(
        Optional(plain=point, tagged=point), 0
    ).hex(" ")
    for sample in (Optional(), Optional(plain=point), Optional(tagged=point)):
        assert sample == decode(Optional, encode_bytes(sample, 0), 0)


@message
class LaterOptional(Message):
    """A message with a struct that may be null from version 1 on."""

    versions = VersionRange(0, 1)
    flexible_from = 0

    point: Point | None = field(Point, nullable="1+")


def test_a_struct_is_not_null_in_a_version_without_null():
    """A null struct is refused by name in versions without null, which have no byte for it."""
    refusal = "point cannot be null in LaterOptional version 0"
    with pytest.raises(UnsupportedVersionError, match=refusal):
        encode(LaterOptional(point=None), 0)
    sample = LaterOptional(point=Point(x=5))
    assert sample == decode(LaterOptional, encode_bytes(sample, 0), 0)
    assert LaterOptional(point=None) == decode(LaterOptional, b"\xff\0", 1)


def test_unsupported_values_of_nested_fields_are_refused():
    """An unsupported value of a nested field is refused like one of the message itself."""
    with pytest.raises(UnsupportedVersionError, match="Point version 0 has no field label"):
        encode(Sample(name="n", points=(Point(x=1, label="p"),)), 0)


def test_null_is_refused_in_a_version_that_does_not_allow_it():
    """Null is refused if the version does not allow it, and the error names the field."""
    with pytest.raises(UnsupportedVersionError, match="name cannot be null in Sample version 0"):
        encode(Sample(name=None), 0)


@pytest.mark.parametrize(
    "encoded",
    [
        "ffff 00000000",  # a null string
        "fffe 00000000",  # a length of -2
        "0000 ffffffff",  # a null array
        "0000 80000000",  # a count of -2**31
    ],
)
def test_negative_lengths_are_refused(encoded):
    """Null that the version does not allow, and lengths below -1, are DecodeErrors."""
    with pytest.raises(DecodeError, match="length -"):
        decode(Sample, bytes.fromhex(encoded), 0)


def test_a_length_below_minus_one_is_refused_in_a_nullable_field():
    """Only -1 stands for null."""
    with pytest.raises(DecodeError, match="length -2"):
        decode(Sample, bytes.fromhex("fffe 00000000 00000007 00000008"), 1)


@pytest.mark.parametrize("version", [-1, 4])
def test_an_undeclared_version_is_refused(version):
    """Neither direction accepts a version outside the message's range."""
    with pytest.raises(UnsupportedVersionError, match=r"Sample has versions 0-3, not"):
        encode(Sample(name="n"), version)
    with pytest.raises(UnsupportedVersionError, match=r"Sample has versions 0-3, not"):
        decode(Sample, b"", version)


@pytest.mark.parametrize("version", [0, 2])
def test_a_string_longer_than_kafka_allows_is_not_written(version):
    """A string may have 32767 bytes and no more, in the compact form too."""
    longest = "x" * 32767
    assert longest == decode(Sample, encode_bytes(Sample(name=longest), version), version).name
    with pytest.raises(ValueError, match=r"Sample\.name: a string of 32768 bytes"):
        encode(Sample(name=longest + "x"), version)


def test_the_error_for_a_number_out_of_range_names_its_field():
    """A number out of range is a ValueError that has the path to its field."""
    sample = Sample(name="n", points=(Point(x=2**15),))
    with pytest.raises(ValueError, match=r"Sample\.points: Point\.x: "):
        encode(sample, 0)


def test_a_hostile_count_takes_no_memory():
    """A count above what the bytes can hold is refused before any element is read."""
    encoded = bytes.fromhex("7fffffff") + bytes(100_000)
    tracemalloc.start()
    with pytest.raises(
        DecodeError, match="claims 2147483647 elements, but only 100000 bytes are left"
    ):
        decode(MetadataResponse, encoded, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_count_is_checked_against_the_minimum_size_of_an_element():
    """Three points of two bytes each need six bytes."""
    encoded = bytes.fromhex("0000 00000003 0001 0002 0003")
    assert 3 == len(decode(Sample, encoded, 0).points)
    with pytest.raises(DecodeError, match="claims 3 elements, but only 5 bytes are left"):
        decode(Sample, encoded[:-1], 0)


@message
class Nested(Message):
    """A message with arrays in arrays, and one in a tagged field."""

    versions = VersionRange(0, 0)
    flexible_from = 0

    rows: tuple[Row, ...] = field(array(Row))
    more: tuple[int, ...] = field(array(INT16), tag=0, default=())


def test_the_elements_of_all_arrays_are_counted_together():
    """Nested elements, elements in tagged fields, and tagged fields themselves all count."""
    nested = Nested(rows=(Row(names=("a", "b")), Row(names=("c",))), more=(1, 2))
    encoded = encode_bytes(nested, 0)
    # Two rows, three names, one tagged field, two numbers.
    assert nested == decode(Nested, encoded, 0, max_elements=8)
    for limit in range(8):
        with pytest.raises(DecodeError, match=r"too many elements: .* more than the limit"):
            decode(Nested, encoded, 0, max_elements=limit)


def test_unknown_tagged_fields_count_as_elements():
    """A message of unknown tags only is refused because of their number."""
    encoded = bytes.fromhex("01 01 0000 ffffffff0f")
    with pytest.raises(DecodeError, match="too many elements: 4294967295 before byte 9"):
        decode(Sample, encoded, 3)


def test_elements_are_counted_before_any_is_read():
    """A message of a million short strings takes no memory if only a thousand are allowed."""
    encoded = bytes.fromhex("00 00000000 000f4240 0000") + bytes(2_000_000)
    tracemalloc.start()
    with pytest.raises(DecodeError):
        decode(MetadataResponse, encoded, 0, max_elements=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("version", [3, 9])
def test_records_are_not_copied_when_written(version):
    """In whatever form records are given, their buffers are among those of the message."""
    one, two, three = b"one", memoryview(bytearray(b"two")), b"three"
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=(
            TopicProduceData(
                name="t",
                partition_data=(
                    PartitionProduceData(index=0, records=one),
                    PartitionProduceData(index=1, records=[two, three]),
                ),
            ),
        ),
    )
    buffers = encode(request, version)
    assert [one, two, three] == [it for it in buffers if any(it is b for b in (one, two, three))]
    first, second = decode(ProduceRequest, b"".join(buffers), version).topic_data[0].partition_data
    assert (b"one", b"twothree") == (first.records, second.records)


def test_records_are_not_copied_when_read():
    """Decoded records are a view of the decoded buffer."""
    encoded = encode_bytes(Batches(records=b"batch"), 1)
    records = decode(Batches, encoded, 1).records
    assert isinstance(records, memoryview)
    assert records.obj is encoded


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (None, ("ffffffff", "00 00")),
        (b"", ("00000000", "01 00")),
        ([], ("00000000", "01 00")),
        (b"ab", ("00000002 6162", "03 6162 00")),
        ((b"a", b"b"), ("00000002 6162", "03 6162 00")),
        (memoryview(b"abcd").cast("H"), ("00000004 61626364", "05 61626364 00")),
    ],
)
def test_records_are_preceded_by_their_length_in_bytes(records, expected):
    """Null, empty and split records have their total length in bytes in front."""
    batches = Batches(records=records)
    assert [bytes.fromhex(it) for it in expected] == [encode_bytes(batches, it) for it in (0, 1)]


def test_the_repr_does_not_show_records():
    """A repr does not reveal records, so that they do not appear in logs."""
    assert "Batches()" == repr(Batches(records=b"secret"))


def test_any_type_of_buffer_is_decoded():
    """Bytes, a bytearray and a memoryview decode to the same message."""
    encoded = encode_bytes(Sample(name="n"), 1)
    assert Sample(name="n") == decode(Sample, bytearray(encoded), 1)
    assert Sample(name="n") == decode(Sample, memoryview(encoded), 1)


def test_messages_are_immutable_and_compared_by_value():
    """Messages are frozen, equal by their fields, hashable, and built by keyword."""
    point = Point(x=1)
    assert Point(x=1) == point
    assert hash(Point(x=1)) == hash(point)
    assert Point(x=2) != point
    assert Row(names=()) != Nested(rows=())
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(TypeError):
        Point(1)


def test_a_constructor_is_compiled_when_it_is_first_called():
    """A missing or unknown argument is refused by name, by the first call and by later ones."""

    @message
    class Fresh:
        x: int = field(INT16)
        label: str = field(STRING, default="none")

    for _ in range(2):
        with pytest.raises(TypeError, match=r"Fresh.__init__\(\) missing .* argument: 'x'"):
            Fresh()
        with pytest.raises(TypeError, match=r"Fresh.__init__\(\) got an unexpected .* 'y'"):
            Fresh(x=1, y=2)
    fresh = Fresh(x=1)
    assert (1, "none") == (fresh.x, fresh.label)
    assert repr(fresh).endswith("Fresh(x=1, label='none')")
    assert Fresh(x=1, label="other") == dataclasses.replace(fresh, label="other")


def test_every_scalar_can_be_a_field():
    """Fields of rarely used types are declared in the same way."""

    @message
    class Rare(Message):
        versions = VersionRange(0, 0)
        flexible_from = 1

        ratio: float = field(FLOAT64)
        ids: tuple[uuid.UUID, ...] = field(array(UUID))

    rare = Rare(ratio=0.1, ids=(uuid.UUID(int=1), uuid.UUID(int=2)))
    assert rare == decode(Rare, encode_bytes(rare, 0), 0)


def test_a_field_that_may_be_absent_requires_a_default():
    """A declaration without a default for a version that lacks the field is refused."""

    @message
    class Forgetful:
        x: int = field(INT16, versions="1+")

    with pytest.raises(TypeError, match=r"Forgetful\.x needs a default"):
        struct_codec(Forgetful, 0, flexible=False)


def test_a_tagged_field_requires_a_flexible_version():
    """A declaration with a tag in a version without tags is refused."""

    @message
    class Hasty:
        x: int = field(INT16, tag=0, default=0)

    with pytest.raises(TypeError, match="Hasty version 0 cannot have tagged fields"):
        struct_codec(Hasty, 0, flexible=False)


@pytest.mark.parametrize("field_type", [INT32, UUID])
def test_scalars_cannot_be_nullable(field_type):
    """A nullable declaration of a type without a null on the wire is refused."""
    with pytest.raises(TypeError, match="cannot be null"):
        field(field_type, nullable="0+")


@pytest.mark.parametrize(
    ("text", "expected"), [("3+", (3, 32767)), ("0-12", (0, 12)), ("4", (4, 4))]
)
def test_version_ranges_have_kafkas_syntax(text, expected):
    """An open range, a closed one and a single version are supported."""
    versions = VersionRange.parse(text)
    assert expected == (versions.min, versions.max)


def test_version_ranges_include_both_ends():
    """A range contains both ends, and its str is the text that was parsed."""
    versions = VersionRange.parse("2-4")
    assert [2, 3, 4] == [version for version in range(10) if version in versions]
    assert ("2-4", "2+") == (str(versions), str(VersionRange.parse("2+")))


# --- what users do with a message that they got


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda header: pickle.loads(pickle.dumps(header))],  # noqa: S301
)
def test_a_message_can_be_copied_and_pickled(copied):
    """A copy is equal, and as frozen as the message is."""
    header = RequestHeader(request_api_key=3, request_api_version=12, correlation_id=7)
    again = copied(header)
    assert header == again
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.correlation_id = 8


def test_the_signature_of_a_message_has_its_fields():
    """The constructor is compiled when it is first called; its signature is there before."""

    @message
    class Unused(Message):
        number: int = field(INT32, versions="0+")
        text: str = field(STRING, versions="0+", default="x")

    expected = "(*, number: 'int', text: 'str' = 'x') -> None"
    assert expected == str(inspect.signature(Unused))
    assert 5 == Unused(number=5).number
    assert expected == str(inspect.signature(Unused))
