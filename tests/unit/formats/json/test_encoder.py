"""The compiled encoder of JSON: the texts of Spark's `to_json`, from arrays in any layout."""

from __future__ import annotations

import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.json.decoder import Decoder
from spark_kafka_sink.formats.json.encode_plan import make_encode_plan
from spark_kafka_sink.formats.json.encoder import Encoder
from spark_kafka_sink.formats.json.plan import make_plan
from tests.support.formats import json_writer
from tests.support.formats.compared_avro import problems_of
from tests.support.formats.encode_cases import make_encode_case
from tests.support.formats.guarded_arrays import guarded
from tests.support.formats.json_cases import make_text, make_type


def encode(array, prefix=b"", **options):
    """Return the texts of an array."""
    encoded = Encoder(make_encode_plan(array.type), **options).encode(array, prefix)
    encoded.validate(full=True)
    return [None if text is None else text.decode() for text in encoded.to_pylist()]


def texts_of(kind, values):
    """Return the texts of single values."""
    array = pa.array([{"a": value} for value in values], pa.struct([("a", kind)]))
    return [text[len('{"a":') : -1] for text in encode(array)]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("b\u00fccher \U0001f600", "b\u00fccher \U0001f600"),
        ('a"b/', '\\"'.join("ab") + "/"),
        ("\\u00ab", "\\\\u00ab"),
        ("\n\x1f", "\\n\\u001F"),
    ],
)
def test_names_are_written_as_jackson_writes_them(name, written):
    """Only quotation marks, backslashes and controls are escaped, with capital letters."""
    array = pa.array([{name: 1}], pa.struct([(name, pa.int32())]))
    assert [f'{{"{written}":1}}'] == encode(array)


@given(st.integers(0, 2**32))
def test_texts_are_those_of_the_oracle(seed):
    """Random types, and arrays with nulls, slices, dictionaries, runs, views, large offsets."""
    case = make_encode_case(seed)
    array = pa.StructArray.from_arrays([case.array], names=["a"])
    try:
        plan = make_encode_plan(array.type)
    except SchemaError:
        return
    encoded = Encoder(plan).encode(guarded(array))
    encoded.validate(full=True)
    expected = [json_writer.encode(array.type, {"a": value}) for value in case.rows]
    assert expected == [text.decode() for text in encoded.to_pylist()]


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_rows_that_were_read_are_the_same_after_a_write_and_a_read(first):
    """Whatever type they have."""
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        kind = make_type(rng)
        payloads = [make_text(rng, kind, strict=True).encode() for _ in range(5)]
        decoder = Decoder(make_plan(kind))
        [output] = decoder.decode(pa.array(payloads, pa.binary()))
        assert {} == problems_of(output)
        written = Encoder(make_encode_plan(kind)).encode(output.values)
        [again] = decoder.decode(written)
        assert {} == problems_of(again)
        # NaN is not equal to itself, and dates may be beyond Python's.
        assert written == Encoder(make_encode_plan(kind)).encode(again.values)


def test_texts_are_sparks():
    """They were written by Spark 4.3: nulls, escapes, binaries, decimals, dates and timestamps."""
    kind = pa.struct(
        [
            ("s", pa.string()),
            ("x", pa.binary()),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("a", pa.list_(pa.int32())),
            ("n", pa.struct([("x", pa.int32())])),
            ("b", pa.bool_()),
            ('a"\x1f\\u001f', pa.null()),
        ]
    )
    row = {
        "s": 'q"b\\s/\b\t\n\f\r\x01\x1f\x7fé\u2028\U0001f600',
        "x": b"\0\xff\x10",
        "m": [("k", None), ("j", 2)],
        "a": [1, None, 3],
        "n": {"x": None},
        "b": True,
    }
    assert [
        r'{"s":"q\"b\\s/\b\t\n\f\r\u0001\u001F' + "\x7fé\u2028\U0001f600"
        r'","x":"AP8Q","m":{"k":null,"j":2},"a":[1,null,3],"n":{},"b":true}',
        "{}",
        None,
    ] == encode(pa.array([row, {}, None], kind))
    assert ["1E-10", "-1.00E-8", "0E-10", "1.1000000000"] == texts_of(
        pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("-1E-8"), Decimal(0), Decimal("1.1")]
    )
    assert ['"0001-01-01"', '"+10000-01-01"', '"-0001-12-31"'] == texts_of(
        pa.date32(), [-719162, 2932897, -719529]
    )
    assert [
        '"2024-01-02T03:04:05.000Z"',
        '"2024-01-02T03:04:05.120Z"',
        '"-1172-07-08T06:13:20.000Z"',
    ] == texts_of(
        pa.timestamp("us", tz="Europe/Berlin"),
        [1704164645000000, 1704164645120000, -99135596800000000],
    )
    assert ['"2024-01-02T03:04:05.120"'] == texts_of(pa.timestamp("us"), [1704164645120000])


def test_microseconds_are_written_if_there_are_any():
    """Spark's `to_json` would cut them off."""
    assert ['"1969-12-31T23:59:59.999999Z"', '"1970-01-01T00:00:00.000001Z"'] == texts_of(
        pa.timestamp("us", tz="UTC"), [-1, 1]
    )


def test_a_null_as_a_key_is_an_error():
    """As it is in Spark; a dictionary may hide it from Arrow's own checks."""
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    array = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, pa.array([1, 2]))
    with pytest.raises(PayloadError, match="a key of the map is null") as caught:
        encode(array)
    assert (1, "value{}") == (caught.value.row, caught.value.field)


def test_rows_without_a_text_are_null_and_listed():
    """The rows between them are as before."""
    names = pa.array([b"a", b"\xff", b"c", b"\xfe"], pa.binary()).view(pa.string())
    array = pa.StructArray.from_arrays([names], ["n"])
    payloads, [failure] = Encoder(make_encode_plan(array.type)).encode_good(array)
    payloads.validate(full=True)
    assert [b'{"n":"a"}', None, b'{"n":"c"}', None] == payloads.to_pylist()
    assert ([1, 3], "value.n", None) == (
        failure.rows.tolist(),
        failure.error.field,
        failure.error.row,
    )


def test_some_rows_can_be_encoded_alone():
    """In any order, wherever the array begins in its buffers; nulls remain."""
    names = pa.array([b"-", b"a", b"\xff", None, b"d" * 1_000], pa.binary()).view(pa.string())
    array = pa.StructArray.from_arrays([names], ["n"], mask=pa.array([False] * 3 + [True, False]))
    encoder = Encoder(make_encode_plan(array.type))
    payloads, [failure] = encoder.encode_rows(array.slice(1), np.array([3, 2, 1, 0, 2, 3]))
    payloads.validate(full=True)
    long = b'{"n":"' + b"d" * 1_000 + b'"}'
    assert [long, None, None, b'{"n":"a"}', None, long] == payloads.to_pylist()
    assert [2] == failure.rows.tolist()
    nothing, failures = encoder.encode_rows(array, np.zeros(0, np.int64))
    assert ([], []) == (nothing.to_pylist(), failures)


def test_rows_beside_those_that_are_encoded_are_not_read():
    """They may be malformed; a row that the array does not have is an error."""
    offsets = pa.py_buffer(np.array([0, 1, 900, 2], np.int32).tobytes())
    names = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"ab")])
    array = pa.StructArray.from_arrays([names], ["n"])
    encoder = Encoder(make_encode_plan(array.type))
    assert [b'{"n":"a"}'] == encoder.encode_rows(array, np.array([0]))[0].to_pylist()
    with pytest.raises(PayloadError, match="refers to data outside of its buffers"):
        encoder.encode_rows(array, np.array([0, 1]))
    for row in (-1, 3):
        with pytest.raises(IndexError, match="a row is not among the 3 of the array"):
            encoder.encode_rows(array, np.array([row]))


def test_keys_of_maps_may_be_numbers_and_booleans():
    """They are written in quotation marks, and values that are null remain."""
    for kind, keys, texts in [
        (pa.int8(), [-1], ['{"-1":null}']),
        (pa.int64(), [2**63 - 1], ['{"9223372036854775807":null}']),
        (pa.bool_(), [True], ['{"true":null}']),
    ]:
        assert texts == encode(pa.array([[(key, None) for key in keys]], pa.map_(kind, pa.int8())))


@pytest.mark.parametrize("is_single", [False, True])
def test_floating_point_numbers_are_javas(is_single):
    """The fewest digits that are read as the same number, and two of them at least."""
    rng = random.Random(11)
    size, kind = (32, np.float32) if is_single else (64, np.float64)
    mantissa, powers = (23, 255) if is_single else (52, 2047)
    bits = [rng.getrandbits(size) for _ in range(5000)] + list(range(200))
    bits += [(power << mantissa) + more for power in range(1, powers) for more in (-1, 0, 1)]
    values = np.array(bits, f"u{size // 8}").view(kind)
    few = [float(f"{rng.randrange(10**5)}e{rng.randrange(-20, 20)}") for _ in range(3000)]
    values = np.concatenate([values, np.array(few, kind)])
    expected = [json_writer.float_text(value, is_single=is_single) for value in values]
    assert expected == texts_of(pa.from_numpy_dtype(kind), values.tolist())
    finite = values[np.isfinite(values)]
    assert finite.tolist() == [
        float(kind(text)) for text in texts_of(pa.from_numpy_dtype(kind), finite.tolist())
    ]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (pa.int64(), "to_json takes a struct, an array or a map"),
        (pa.struct([("a", pa.duration("us"))]), "column 'value.a' is duration"),
        (pa.struct([("a", pa.month_day_nano_interval())]), "column 'value.a' is month_day_nano"),
        (pa.list_(pa.time64("us")), r"column 'value\[\]' is time64"),
        (pa.struct([("a", pa.uint64())]), "column 'value.a' is uint64"),
        (pa.struct([("a", pa.decimal256(40, 2))]), "column 'value.a' is decimal256"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "has two columns 'a'"),
        (pa.map_(pa.date32(), pa.int8()), "a map with keys of date32"),
        (pa.map_(pa.float64(), pa.int8()), "a map with keys of double"),
    ],
)
def test_types_without_a_text_are_refused(kind, problem):
    """Also those whose text of `to_json` says something else."""
    with pytest.raises(SchemaError, match=f"^JSON: .*{problem}"):
        make_encode_plan(kind)


def test_what_cannot_be_encoded_is_named_with_its_row():
    """A string that is not UTF-8, and offsets that lead out of the buffers."""
    texts = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    array = pa.StructArray.from_arrays([texts], names=["s"])
    with pytest.raises(PayloadError, match="the string is not UTF-8") as caught:
        encode(array)
    assert (1, "value.s") == (caught.value.row, caught.value.field)
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 3, 1], np.int32)), pa.py_buffer(b"abc")
    )
    with pytest.raises(PayloadError, match="outside of its buffers"):
        encode(pa.StructArray.from_arrays([bad], names=["s"]))


def test_the_output_grows():
    """Texts with escapes become up to six times as long, and each has what is put before it."""
    array = pa.array([{"s": "\x01" * 3000, "t": "x" * 100}] * 50)
    expected = ">" + '{"s":"' + "\\u0001" * 3000 + '","t":"' + "x" * 100 + '"}'
    assert [expected] * 50 == encode(array, b">")
    with pytest.raises(PayloadError, match="the payloads of the batch have more than 1000 bytes"):
        encode(array, most_bytes=1000)


def test_bits_are_kept():
    """A number that is written and read again has the same bits."""
    values = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (1, 2, 3, 1 << 63)]
    array = pa.array([{"a": value} for value in values])
    [output] = Decoder(make_plan(array.type)).decode(
        Encoder(make_encode_plan(array.type)).encode(array)
    )
    assert [value.hex() for value in values] == [
        row["a"].hex() for row in output.values.to_pylist()
    ]
