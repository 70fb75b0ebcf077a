"""What Java's Avro accepts and we refuse: the whole list, compared with Java itself.

Each line has a writer's schema, a reader's, a payload, and what Java reads of it. All else is as in
Java, as `test_resolution` shows with random schemas and payloads; but some schemas that Java
refuses are accepted, such as those with a wrong default that is not needed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.decoder import Decoder
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import MOST_EMPTY_ITEMS, make_plan
from spark_kafka_sink.formats.avro.schema import MOST_LEVELS, parse_schema
from spark_kafka_sink.record.default_record import encode_varint
from tests.support.formats.avro_cases import Case, show
from tests.support.formats.avro_oracle import rows_of_java
from tests.support.formats.compared_avro import problems_of


class Difference(NamedTuple):
    """What is stricter here, and why."""

    case: Case
    java: str
    ours: str


def case(payload, writer, reader=None):
    """Return a case; schemas are values of JSON."""
    texts = [json.dumps(writer), json.dumps(writer if reader is None else reader)]
    return Case(*texts, [payload])


def record(*fields):
    """Return a record; fields are names and types, or more."""
    names = ("name", "type", "default")
    fields = [dict(zip(names, field, strict=False)) for field in fields]
    return {"type": "record", "name": "R", "fields": fields}


def decimal(precision, scale=0):
    """Return a decimal of bytes."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def nested(levels):
    """Return arrays in arrays, and a value."""
    schema, payload, shown = "int", b"\2", "1"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
        payload, shown = b"\2" + payload + b"\0", f"[{shown}]"
    return case(payload, schema), shown


DEEP, DEEP_SHOWN = nested(MOST_LEVELS + 1)
LONGS = {"type": "array", "items": "long"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NULLS = {"type": "array", "items": "null"}
EMPTY_ITEMS = case(
    encode_varint(MOST_EMPTY_ITEMS + 1) + b"\0\2", record(("a", NULLS), ("b", "int"))
)

#: What no column can have, or what means two things.
SCHEMAS = {
    "a recursive schema": Difference(
        case(b"\0", record(("next", ["null", "R"]))), "(null)", "the schema is recursive"
    ),
    "more than 100 levels": Difference(DEEP, DEEP_SHOWN, "more than 100 levels"),
    "a decimal of more than 38 digits": Difference(
        case(b"\2\1", decimal(39)), "1", "Spark has 38 at most"
    ),
    "a key that a schema has twice": Difference(
        Case('{"type": "int", "type": "long"}', '"long"', [b"\2"]), "1", "'type' is there twice"
    ),
    "a default of bytes with a character that is no byte, for which Java has a '?'": Difference(
        case(b"", record(), record(("a", "bytes", "\u20ac"))), "(x3f)", "no value of the field's"
    ),
    "a default with half a surrogate pair, for which Java has a '?'": Difference(
        case(b"", record(), record(("a", "string", "\ud800"))), "('3f')", "no value of the field's"
    ),
}
#: What Java reads, but as something else than was written.
PAYLOADS = {
    "a string that is not UTF-8": Difference(
        case(b"\2\xff", "string"), "'efbfbd'", "a string is not UTF-8"
    ),
    "a string with an encoded surrogate": Difference(
        case(b"\6\xed\xa0\x80", "string"), "'efbfbd'", "a string is not UTF-8"
    ),
    "a boolean that is neither 0 nor 1": Difference(
        case(b"\2", "boolean"), "false", "a boolean is 2"
    ),
    "an int of more than 32 bits": Difference(
        case(b"\xff\xff\xff\xff\x7f", "int"), "-2147483648", "more bits than its type"
    ),
    "a long of more than 64 bits": Difference(
        case(b"\xff" * 9 + b"\x7f", "long"), str(-(2**63)), "more bits than its type"
    ),
    "bytes behind the value, which Java leaves to the caller": Difference(
        case(b"\0\0", "int"), "!left over", "bytes are left behind the value"
    ),
    "a block of a list whose size is beyond the payload": Difference(
        case(b"\1\x20\2\0", LONGS), "[1]", "a block of 16 bytes is longer than the payload"
    ),
    "a block of a list whose size is negative": Difference(
        case(b"\1\1\2\0", LONGS), "[1]", "a block of -1 bytes is longer than the payload"
    ),
    "a decimal without bytes, with which Java's conversion to a number fails": Difference(
        case(b"\0", decimal(4)), "0", "a decimal has no bytes"
    ),
    "a decimal of more digits than it declares": Difference(
        case(b"\2\x64", decimal(2)), "100", "a decimal has more than 2 digits"
    ),
    "a time of day that is none": Difference(
        case(b"\1", {"type": "long", "logicalType": "time-micros"}), "-1", "no time of the day"
    ),
    "milliseconds beyond the range of microseconds": Difference(
        case(encode_varint(2**62), MILLIS), str(2**62 * 1000), "beyond the range of microseconds"
    ),
    "more than 100,000 items without bytes": Difference(
        EMPTY_ITEMS,
        f"([{', '.join(['null'] * (MOST_EMPTY_ITEMS + 1))}], 1)",
        "more than 100000 items without bytes",
    ),
}
#: Where Java takes the number of one unit for that of another one.
UNITS = {
    "a scale that the reader does not have": Difference(
        case(b"\2\x64", decimal(4, 2), decimal(4, 1)), "100", "cannot be read as"
    ),
    "more digits than the reader has": Difference(
        case(b"\2\x64", decimal(4), decimal(3)), "100", "cannot be read as"
    ),
    "milliseconds where the reader has microseconds": Difference(
        case(b"\2", MILLIS, MICROS), "1", "cannot be read as"
    ),
}
DIFFERENCES = SCHEMAS | PAYLOADS | UNITS


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_java_accepts_is_refused(name):
    """The error says what is refused, at the latest when the plan is made."""
    tested = DIFFERENCES[name].case
    with pytest.raises(SchemaError) as raised:
        make_plan(parse_schema(tested.writer), parse_schema(tested.reader))
    assert DIFFERENCES[name].ours in str(raised.value)


@pytest.mark.parametrize("name", [*PAYLOADS, *UNITS])
def test_a_payload_that_java_reads_is_refused(name):
    """The plan can be made, and the row is malformed in both decoders."""
    tested = DIFFERENCES[name].case
    plan = make_plan(parse_schema(tested.writer), parse_schema(tested.reader))
    [payload] = tested.payloads
    with pytest.raises(MalformedError) as raised:
        Interpreter(plan).append(payload)
    assert DIFFERENCES[name].ours in str(raised.value)
    [output] = Decoder(plan).decode(pa.array([payload], pa.binary()))
    assert {0: str(raised.value)} == problems_of(output)


#: What Java accepts and reads, in places where one could do something else: so do we.
LIKE_JAVA = {
    "a namespace of null is none": case(
        b"", {"type": "record", "name": "R", "namespace": None, "fields": []}
    ),
    "a name that begins with a dot": case(b"", {"type": "record", "name": ".R", "fields": []}),
    "a type that is defined twice alike": case(
        b"ab",
        record(
            ("a", {"type": "fixed", "name": "F", "size": 1}),
            ("b", {"type": "fixed", "name": "F", "size": 1, "aliases": ["G"]}),
        ),
    ),
    "a name that is used before it is defined": case(
        b"ab", record(("a", "F"), ("b", {"type": "fixed", "name": "F", "size": 1}))
    ),
    "a type that is named in an object": case(
        b"ab", record(("a", {"type": "fixed", "name": "F", "size": 1}), ("b", {"type": "F"}))
    ),
    "a text as a default of a float": case(
        b"",
        record(),
        record(
            ("a", "float", "NaN"),
            ("b", "double", "-Infinity"),
            ("c", "double", " 1.5f "),
            ("d", "float", "0x1.8p1"),
        ),
    ),
    "a default of a fixed that is too short, or too long": case(
        b"",
        record(),
        record(
            ("a", {"type": "fixed", "name": "F", "size": 3}, "a"),
            ("b", {"type": "fixed", "name": "G", "size": 1}, "abc"),
        ),
    ),
    "comments": Case('/* x */ {"type": /* "y" */ "int"}', '"int" ', [b"\2"]),
    "odd documentation": case(b"\2", record(("a", "int")) | {"doc": 5}),
    "a precision that is no int": case(b"\2\1", decimal(2**31)),
    "a default of an enum that is no text": case(
        b"\0", {"type": "enum", "name": "E", "symbols": ["A"], "default": 5}
    ),
    "a long as a float, where the reader has float and double": case(
        encode_varint(2**60 + 2**36 + 1), "long", ["float", "double"]
    ),
    "a size of a block that is not true, where the list is read": case(b"\1\4\2\0", LONGS),
    "a size of a block where the list is skipped": case(
        b"\1\4\2\4\0\6", record(("g", LONGS), ("a", "int")), record(("a", "int"))
    ),
    "an alias of a field that the writer has itself, in equal schemas": case(
        b"\2\4",
        record(("a", "int"), ("b", "int")),
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": "int"},
                {"name": "b", "type": "int", "aliases": ["a"]},
            ],
        },
    ),
    "a letter of Greek in a name": case(b"\2", record(("\u03b1", "int"))),
    "an Arabic digit in a name": case(b"\2", record(("a\u0661", "int"))),
}
#: What Java refuses, and so do we.
REFUSED = {
    "a type that is defined twice, differently": case(
        b"ab",
        record(
            ("a", {"type": "fixed", "name": "F", "size": 1}),
            ("b", {"type": "fixed", "name": "F", "size": 2}),
        ),
    ),
    "a name that is only defined in another namespace, and later": case(
        b"ab",
        record(("a", "F"), ("b", {"type": "fixed", "name": "F", "namespace": "", "size": 1}))
        | {"namespace": "n"},
    ),
    "a text that Java cannot parse as a double": case(
        b"", record(), record(("a", "double", "1_0"))
    ),
    "a text as a default of a union of float": case(
        b"", record(), record(("a", ["float", "null"], "NaN"))
    ),
    "a number that is no digit in a name": case(b"\2", record(("\u00bd", "int"))),
    "a letter beyond the Basic Multilingual Plane in a name": case(
        b"\2", record(("\U0001d400", "int"))
    ),
    "a union with a logical type": case(b"\0", {"type": ["null", "int"], "logicalType": "date"}),
    "a comment of a shell": Case("# x", '"int"', [b"\2"]),
}


def read(tested):
    """Return what we read of a case."""
    reader = parse_schema(tested.reader)
    interpreter = Interpreter(make_plan(parse_schema(tested.writer), reader))
    interpreter.append(tested.payloads[0])
    return show(reader, interpreter.rows()[0])


@pytest.mark.parametrize("name", REFUSED)
def test_what_java_refuses_is_refused(name):
    """These could be read, but no registry has them."""
    with pytest.raises(SchemaError):
        read(REFUSED[name])


@pytest.mark.slow
def test_java_accepts_what_is_listed_as_stricter():
    """Java reads each line of the list, and as the list says."""
    answers = rows_of_java([difference.case for difference in DIFFERENCES.values()])
    expected = {name: difference.java for name, difference in DIFFERENCES.items()}
    assert expected == dict(zip(DIFFERENCES, (answer for [answer] in answers), strict=True))


@pytest.mark.slow
def test_rows_and_refusals_of_odd_schemas_are_those_of_java():
    """What Java accepts is read as Java reads it, and what it refuses is refused."""
    answers = rows_of_java([*LIKE_JAVA.values(), *REFUSED.values()])
    expected = {name: read(tested) for name, tested in LIKE_JAVA.items()}
    found = dict(zip([*LIKE_JAVA, *REFUSED], (answer for [answer] in answers), strict=True))
    assert expected == {name: found[name] for name in LIKE_JAVA}
    assert {"!"} == {found[name][0] for name in REFUSED}
