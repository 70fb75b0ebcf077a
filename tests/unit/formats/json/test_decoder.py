"""The compiled decoder of JSON: rows of the interpreter, in Arrow, within limits."""

from __future__ import annotations

import json
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.formats.json.decoder import Decoder
from spark_kafka_sink.formats.json.interpreter import single
from spark_kafka_sink.formats.json.plan import make_plan
from spark_kafka_sink.formats.json.types import parse_type
from tests.support.formats.compared_avro import problems_of
from tests.support.formats.compared_json import compare_case, compare_decoders


def decode(ddl, texts, **options):
    """Return the rows and the problems that a decoder makes of texts."""
    payloads = [text.encode() if isinstance(text, str) else text for text in texts]
    decoder = Decoder(make_plan(parse_type(ddl)), **options)
    rows, problems = [], {}
    for output in decoder.decode(pa.array(payloads, pa.binary())):
        output.values.validate(full=True)
        assert len(rows) == output.first
        rows += output.values.to_pylist()
        problems |= problems_of(output)
    return rows, problems


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_rows_and_errors_are_those_of_the_interpreter(first):
    """Random types, right texts, and texts that were damaged, at the end of their memory."""
    for seed in range(first, first + 100):
        compare_case(seed)


@pytest.mark.slow
@pytest.mark.soak
def test_100_000_damaged_texts_give_the_interpreters_rows_and_errors():
    """Never a crash, a hang or a wrong row."""
    for seed in range(1_000, 14_000):
        compare_case(seed)


def test_fields_are_found_in_any_order():
    """Absent fields and nulls are null, unknown ones are skipped, names are compared exactly."""
    rows, problems = decode(
        'id bigint, name string, `a "b` int',
        [
            '{"name":"n","id":1}',
            ' { "x" : [ { "id" : 5 } , null ] , "id" : null , "a \\"b" : 3 } ',
            '{"ID":1,"\\u006e\\u0061me":"\\u00e9\\ud83d\\ude00\\n\\/"}',
            "{}",
            None,
        ],
    )
    assert {} == problems
    assert [
        {"id": 1, "name": "n", 'a "b': None},
        {"id": None, "name": None, 'a "b': 3},
        {"id": None, "name": "é\U0001f600\n/", 'a "b': None},
        {"id": None, "name": None, 'a "b': None},
        None,
    ] == rows


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a\x1f", "a\\u001f"),
        ("a\x1f", "\\u0061\\u001F"),
        ('"', '\\"'),
        ("\\", "\\\\"),
        ("a ", "a "),
    ],
)
def test_a_name_with_escapes_is_found(name, written):
    """Controls, quotation marks and backslashes have escapes; any other character may have one."""
    kind = pa.struct([(name, pa.int32())])
    payloads = pa.array([f'{{"{written}":1}}'.encode()], pa.binary())
    [output] = Decoder(make_plan(kind)).decode(payloads)
    assert [{name: 1}] == output.values.to_pylist()


def test_the_last_value_of_a_name_counts():
    """So it does in Spark: whatever an earlier one appended is removed, at all levels."""
    rows, problems = decode(
        "a array<struct<m: map<string, array<string>>, t: string>>, b int",
        [
            '{"a":[{"m":{"k":["x","y"]},"t":"1"},{"t":"2"}],"b":1,"a":[{"t":"3"}],"b":null}',
            '{"a":[{"m":{"k":["x"]},"m":{"j":["z"],"j":[]},"t":"1","t":"22"}]}',
            '{"a":[{"m":{"k":["x"]}}],"a":null,"b":7}',
        ],
    )
    assert {} == problems
    assert [
        {"a": [{"m": None, "t": "3"}], "b": None},
        {"a": [{"m": [("j", [])], "t": "22"}], "b": None},
        {"a": None, "b": 7},
    ] == rows


@pytest.mark.parametrize(
    ("ddl", "text", "reason"),
    [
        ("a int", "", "value: the end instead of an object"),
        ("a int", "null", "value: 'null' instead of an object"),
        ("a int", "[]", "value: '[]' instead of an object"),
        ("a int", '{"a":1}x', "value: 'x' is left behind the value"),
        ("a int", '{"a":1', "value: the end instead of ',' or '}'"),
        ("a int", '{"a":1,}', "value: '}' instead of a name in quotation marks"),
        ("a int", '{"a":01}', "value: '1}' instead of ',' or '}'"),
        ("a int", '{"a":1.0}', "value.a: 1.0 is not written as an integer"),
        ("a bigint", '{"a":1e3}', "value.a: 1e3 is not written as an integer"),
        ("a tinyint", '{"a":128}', "value.a: 128 does not fit into a tinyint"),
        ("a int", '{"a":"1"}', "value.a: '\"1\"}' instead of an integer"),
        ("a double", '{"a":1e400}', "value.a: 1e400 does not fit into a double"),
        ("a float", '{"a":1e39}', "value.a: 1e39 does not fit into a float"),
        ("a double", '{"a":NaN}', "value.a: 'NaN}' instead of a number"),
        ("a double", '{"a":"1.5"}', "value.a: the string '1.5' is not a number"),
        ("a decimal(5,2)", '{"a":999.995}', "value.a: 999.995 does not fit into a decimal(5,2)"),
        ("a string", '{"a":1}', "value.a: '1}' instead of a string"),
        ("a string", '{"a":"\\ud800"}', "value.a: a string has half of a surrogate pair"),
        ("a string", b'{"a":"\xff"}', "value: it is not UTF-8"),
        ("a string", '{"a":"\t"}', "value.a: a string has no end, or a wrong escape: '\"\\t\"}'"),
        ("a int", '{"b":"\\x"}', "value: a string has no end, or a wrong escape: '\"\\\\x\"}'"),
        ("a boolean", '{"a":"true"}', "value.a: '\"true\"}' instead of true or false"),
        ("a binary", '{"a":"AP8"}', "value.a: a string is not base64"),
        ("a date", '{"a":"2024-02-30"}', "value.a: '2024-02-30' is not a date (2024-12-31)"),
        (
            "a array<struct<b: timestamp>>",
            '{"a":[{"b":"2024-01-02T03:04:05"}]}',
            (
                "value.a[].b: '2024-01-02T03:04:05' has no time zone: read it as timestamp_ntz, "
                "or string"
            ),
        ),
        (
            "map<string, timestamp_ntz>",
            '{"a":"2024-01-02T03:04:05Z"}',
            "value{}: '2024-01-02T03:04:05Z' has a time zone: read it as timestamp, or string",
        ),
        ("a double", f'{{"a":{"1" * 1001}}}', "value.a: a number has more than 1000 characters"),
    ],
)
def test_the_reason_of_a_malformed_payload_names_the_field(ddl, text, reason):
    """Rows around it are not affected."""
    good = {"struct": "{}", "map": "{}"}["map" if ddl.startswith("map") else "struct"]
    rows, problems = decode(ddl, [good, text, good], value="value")
    assert {1: reason} == problems
    assert [True, False, True] == [row is not None for row in rows]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("bigint", "9" * 20, "{} does not fit into a bigint"),
        ("int", f"{'1' * 18}.5", "{} is not written as an integer"),
        ("double", f"{'1' * 16}e400", "{} does not fit into a double"),
        ("double", f'"{"x" * 20}"', "the string '{}' is not a number"),
        ("decimal(5,2)", f"-{'1' * 19}", "{} does not fit into a decimal(5,2)"),
        ("date", f'"{"x" * 40}"', "'{}' is not a date (2024-12-31)"),
        (
            "timestamp_ntz",
            f'"{"x" * 40}"',
            "'{}' is not a timestamp_ntz (2024-12-31T23:59:59.999999)",
        ),
    ],
)
def test_an_error_shows_the_beginning_of_a_long_value(kind, value, reason):
    """A value of 20 characters is shown whole, one of a date or a timestamp of 40."""
    whole = value.strip('"')
    longer = f"{whole[:2]}{whole[1:]}"
    cut = f"{longer[: len(whole) - 1]}\N{HORIZONTAL ELLIPSIS}"
    texts = [f'{{"a":{each}}}' for each in (value, value.replace(whole, longer))]
    _, problems = decode(f"a {kind}", texts, value="value")
    assert {n: f"value.a: {reason.format(each)}" for n, each in enumerate((whole, cut))} == problems


@pytest.mark.parametrize(
    ("kind", "last", "beyond"),
    [
        ("timestamp_ntz", "2024-01-02T23:00:00", "2024-01-02T24:00:00"),
        ("timestamp_ntz", "2024-01-02T00:59:00", "2024-01-02T00:60:00"),
        ("timestamp_ntz", "2024-01-02T00:00:59", "2024-01-02T00:00:60"),
        ("timestamp", "2024-01-02T00:00:00+18:00", "2024-01-02T00:00:00+18:01"),
        ("timestamp", "2024-01-02T00:00:00-17:59", "2024-01-02T00:00:00-17:60"),
    ],
)
def test_a_time_that_no_clock_shows_is_refused(kind, last, beyond):
    """The last one of each part is read, the next one is not."""
    rows, problems = decode(f"a {kind}", [f'{{"a":"{text}"}}' for text in (last, beyond)])
    assert [True, False] == [row is not None for row in rows]
    assert problems[1].startswith(f"a: '{beyond}' is not a {kind} (2024-12-31T")


def test_an_error_shows_the_beginning_of_what_is_left():
    """It is cut behind 20 characters."""
    _, problems = decode("a int", [f"{{}}{'x' * 20}", f"{{}}{'x' * 21}"])
    shown = "x" * 20, f"{'x' * 19}\N{HORIZONTAL ELLIPSIS}"
    assert {n: f"'{each}' is left behind the value" for n, each in enumerate(shown)} == problems


def test_a_reason_is_worded_once_for_all_rows_that_have_it(monkeypatch):
    """Only the parts that are shown differ; they are put together without Python."""
    worded, words = [], Decoder._words

    def counted(self, skipped, number):
        worded.append(number)
        return words(self, skipped, number)

    monkeypatch.setattr(Decoder, "_words", counted)
    texts = [f'{{"a":{row},"b":"x{row}"}}' for row in range(1000)]
    _, problems = decode("a int, b int", [*texts, '{"a":1'])
    expected = {row: f"b: '\"x{row}\"}}' instead of an integer" for row in range(1000)}
    assert expected | {1000: "the end instead of ',' or '}'"} == problems
    assert 2 == len(worded)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1.}', "'.}' instead of ',' or '}'"),
        ('{"a":[01]}', "a: '[01]}' instead of an integer"),
        ('{"a":1e+5}', "a: 1e+5 is not written as an integer"),
        ('{"a":-}', "a: '-}' instead of an integer"),
        ('{"c":[1,{"d":t}]}', "'t}]}' instead of a value"),
        ('{"c":[1 2]}', "'2]}' instead of ',' or ']'"),
        ('{"c":{"d" 1}}', "'1}}' instead of ':'"),
        ('{"b":[[true,1.5]]}', "b[][]: '1.5]]}' instead of true or false"),
        ('{"b":[[true,', "b[][]: the end instead of true or false"),
        ('{"b":[[true}', "b[][]: '}' instead of ',' or ']'"),
        (b'{"a":"\x80', "it is not UTF-8"),
    ],
)
def test_the_reason_is_the_first_thing_that_is_wrong(text, reason):
    """The loop may notice it later than a reader, or all at once."""
    _, problems = decode("a int, b array<array<boolean>>", [text, b"\x80"])
    assert {0: reason, 1: "it is not UTF-8"} == problems


def test_objects_and_arrays_may_be_1000_deep():
    """As in Spark's parser; it makes no difference whether they are wanted."""
    rows, problems = decode("a int", [f'{{"b":{"[" * 999}{"]" * 999},"a":1}}'])
    assert ([{"a": 1}], {}) == (rows, problems)
    _, problems = decode("a int", [f'{{"b":{"[" * 1000}{"]" * 1000},"a":1}}'])
    assert {0: "objects and arrays are in more than 1000 others"} == problems


def test_doubles_are_the_nearest_to_their_texts():
    """Those of Python: random bits, few digits, many digits, and the middle between two."""
    rng = random.Random(7)
    bits = [rng.getrandbits(64) for _ in range(3000)]
    bits += [(power << 52) + more for power in range(1, 2047, 3) for more in (-1, 0, 1)]
    values = [value for (value,) in struct.iter_unpack("<d", struct.pack(f"<{len(bits)}Q", *bits))]
    values = [value for value in values if np.isfinite(value)]
    texts = [repr(value) for value in values]
    texts += [f"{rng.randrange(10**6)}e{rng.randrange(-30, 30)}" for _ in range(1000)]
    middles = [(Decimal(value) + Decimal(np.nextafter(value, 0.0))) / 2 for value in values[:500]]
    texts += [f"{middle:.40e}" for middle in middles]
    texts += ["9007199254740993", "4.9e-324", "2.4703282292062328e-324", "1e-400", "-0", "-0.0"]
    payloads = [f'{{"a":{text}}}' for text in texts]
    rows, problems = decode("a double", payloads)
    assert {} == problems
    assert [float(text).hex() for text in texts] == [row["a"].hex() for row in rows]
    compare_decoders(make_plan(parse_type("a float")), [p.encode() for p in payloads], 1 << 20)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("1.000000059604644775390625", 1.0),
        ("1.0000000596046447753906251", 1 + 2**-23),
        ("1.0000000596046447753906249", 1.0),
        ("1.000000178813934326171875", 1 + 2**-22),
        ("1.0000001788139343261718751", 1 + 2**-22),
        ("1.0000001788139343261718749", 1 + 2**-23),
        ("-1.0000000596046447753906251", -1 - 2**-23),
    ],
)
def test_floats_are_rounded_once(text, nearest):
    """By way of a double, a text beside the middle of two floats would become that middle."""
    assert nearest == single(text)
    assert ([{"a": nearest}], {}) == decode("a float", [f'{{"a":{text}}}'])


def test_decimals_are_rounded_as_spark_does():
    """Half away from zero; a string may be one, too."""
    texts = ["1.005", "-1.005", "1e2", '"1.5"', "1e-400", "0e400", "0.00499", "999.994"]
    rows, problems = decode("a decimal(5,2)", [f'{{"a":{text}}}' for text in texts])
    assert {} == problems
    expected = ["1.01", "-1.01", "100.00", "1.50", "0.00", "0.00", "0.00", "999.99"]
    assert expected == [str(row["a"]) for row in rows]
    number = "-12345678901234567890123456789012345678"
    rows, _ = decode("a decimal(38,0)", [f'{{"a":{number}}}', f'{{"a":{number}.5}}'])
    assert [int(number), int(number) - 1] == [row["a"] for row in rows]


def test_a_batch_becomes_several_outputs_if_it_is_large():
    """No row is lost, and one that is too large alone is malformed."""
    texts = [json.dumps({"a": ["x" * number]}) for number in (10, 20, 500, 30, 40)]
    rows, problems = decode("a array<string>", texts, most_bytes=100)
    assert {2: "it becomes more than 100 bytes"} == problems
    assert [10, 20, None, 30, 40] == [row and len(row["a"][0]) for row in rows]


def test_many_items_and_long_names_with_escapes_are_read():
    """Buffers grow in the middle of a row, and a name needs memory of its own."""
    name = "n" * 3000
    text = f'{{"\\u006e{name[1:]}":[{",".join(["[1,2]"] * 3000)}],"\\u006e{"z" * 9000}":1}}'
    rows, problems = decode(f"{name} array<array<int>>", [text, "{}", text])
    assert {} == problems
    assert [[[1, 2]] * 3000, None, [[1, 2]] * 3000] == [row[name] for row in rows]


def test_bytes_before_the_value_are_skipped():
    """A payload that is shorter than them is malformed."""
    decoder = Decoder(make_plan(parse_type("a int")))
    [output] = decoder.decode(pa.array([b"12345{}", b"1234"], pa.binary()), skipped=5)
    assert [{"a": None}, None] == output.values.to_pylist()
    assert {1: "it has fewer than 5 bytes"} == problems_of(output)
