"""Schema resolution and plans: payloads of one schema, read as another."""

from __future__ import annotations

import json
import pickle
import struct

import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.record.default_record import encode_varint
from tests.support.formats.avro_cases import make_case, show
from tests.support.formats.avro_oracle import rows_of_java

TIMESTAMP = {"type": "long", "logicalType": "timestamp-millis"}


def plan(writer, reader):
    """Return the plan for two schemas given as values of JSON."""
    return make_plan(parse_schema(json.dumps(writer)), parse_schema(json.dumps(reader)))


def read(writer, reader, *payloads):
    """Return the rows of payloads of `writer`, read as `reader`."""
    interpreter = Interpreter(plan(writer, reader))
    for payload in payloads:
        interpreter.append(payload)
    return interpreter.rows()


def record(*fields, name="R", **properties):
    """Return a record."""
    return {"type": "record", "name": name, "fields": list(fields), **properties}


def field(name, schema, **properties):
    """Return a field."""
    return {"name": name, "type": schema, **properties}


def decimal(precision, scale=0):
    """Return a decimal of bytes."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def enum(*symbols, name="E", **properties):
    """Return an enum."""
    return {"type": "enum", "name": name, "symbols": symbols, **properties}


def test_branches_of_equivalent_unions_belong_together_by_their_positions():
    """Namespaces make no difference, where names would lead both to one branch."""
    writer, reader = (
        [record(field("a", "int"), name=f"{space}.R") for space in spaces]
        for spaces in (("a", "b"), ("c", "d"))
    )
    rows = read(writer, reader, b"\0\2", b"\2\4")
    assert [
        {"member0": {"a": 1}, "member1": None},
        {"member0": None, "member1": {"a": 2}},
    ] == rows


@pytest.mark.parametrize(
    ("writer", "reader", "payload", "value"),
    [
        ("int", "long", encode_varint(-7), -7),
        ("int", "float", encode_varint(2**24 + 1), 2.0**24),
        ("int", "double", encode_varint(-7), -7.0),
        # By way of a double it would be rounded to an even number twice, and upwards.
        ("long", "float", encode_varint(2**60 + 2**36 + 1), 2.0**60 + 2.0**37),
        ("long", "double", encode_varint(2**53 + 1), 2.0**53),
        ("float", "double", struct.pack("<f", 0.5), 0.5),
        ("string", "bytes", b"\4\xc3\xbc", "ü".encode()),
        ("bytes", "string", b"\4\xc3\xbc", "ü"),
        ("long", TIMESTAMP, encode_varint(5), 5000),
        (["int", TIMESTAMP], ["int", TIMESTAMP], b"\2" + encode_varint(5), 5),
        ("long", ["float", "double"], encode_varint(2**60 + 2**36 + 1), 2.0**60 + 2.0**37),
        ("long", {"type": "long", "spark.sql.catalyst.type": "bigint"}, encode_varint(5), 5),
        (TIMESTAMP, "long", encode_varint(5), 5),
        (enum("A", "B"), enum("B", "A"), encode_varint(1), "B"),
        (enum("A", "B"), enum("A", default="A"), encode_varint(1), "A"),
        (enum("A", name="x.E"), enum("A", name="y.E"), encode_varint(0), "A"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, b"\2\2\0", [1]),
        (
            {"type": "map", "values": "int"},
            {"type": "map", "values": ["null", "int"]},
            b"\2\2a\2\0",
            [("a", 1)],
        ),
    ],
)
def test_a_value_is_promoted_to_the_readers_type(writer, reader, payload, value):
    """Numbers widen, texts and bytes change into each other, symbols go by name."""
    assert [value] == read(writer, reader, payload)


@pytest.mark.parametrize(
    ("writer", "reader", "problem"),
    [
        ("long", "int", "the writer's long cannot be read as int"),
        ("double", "float", "the writer's double cannot be read as float"),
        ("int", "string", "the writer's int cannot be read as string"),
        ("int", {"type": "array", "items": "int"}, "the writer's int cannot be read as array"),
        (enum("A"), enum("A", name="F"), "the writer's enum E cannot be read as enum F"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "the writer's fixed F of 2 bytes cannot be read as fixed F of 3 bytes",
        ),
        ("int", ["null", "string"], "the writer's int cannot be read as union of null, string"),
        (
            "int",
            ["null", "string", "bytes", "boolean", {"type": "array", "items": "int"}],
            "the writer's int cannot be read as union of null, string, bytes, boolean, array",
        ),
        (
            "int",
            [
                *("null", "string", "bytes", "boolean"),
                *({"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
            ],
            "cannot be read as union of null, string, bytes, boolean, array, 1 more",
        ),
        (
            decimal(9, 2),
            decimal(9, 4),
            r"the writer's bytes \(decimal\(9, 2\)\) cannot be read as bytes \(decimal\(9, 4\)\)",
        ),
        (decimal(9), decimal(8), r"\(decimal\(9, 0\)\) cannot be read as"),
        (
            TIMESTAMP,
            {"type": "long", "logicalType": "timestamp-micros"},
            r"the writer's long \(timestamp-millis\) cannot be read as long \(timestamp-micros\)",
        ),
        (
            record(),
            record(field("a", "int")),
            "record R has no field 'a', and the field of the reader's record R has no default",
        ),
    ],
)
def test_what_does_not_match_fails_for_each_payload(writer, reader, problem):
    """The plan can be made; payloads that reach the mismatch are refused with both types."""
    with pytest.raises(MalformedError, match=problem):
        read(writer, reader, b"\0" * 9)


def test_a_decimal_of_more_digits_takes_one_of_fewer():
    """More digits before the point change no value."""
    assert [700] == [int(value) for value in read(decimal(5), decimal(9), b"\4\x02\xbc")]


def test_a_mismatch_in_a_branch_fails_only_where_that_branch_is_used():
    """A reader without null reads all rows that are not null."""
    interpreter = Interpreter(plan(["null", "int"], "int"))
    interpreter.append(b"\2\4")
    with pytest.raises(MalformedError, match="the writer's null cannot be read as int"):
        interpreter.append(b"\0")
    interpreter.append(b"\2\6")
    assert [2, 3] == interpreter.rows()


def test_a_malformed_payload_leaves_nothing_in_the_columns():
    """What was read of a row before its error is removed from all columns, nested ones too."""
    schema = record(field("a", {"type": "array", "items": "string"}), field("b", "boolean"))
    interpreter = Interpreter(plan(schema, schema))
    interpreter.append(b"\2\2x\0\1")
    with pytest.raises(MalformedError, match="a boolean is 2"):
        interpreter.append(b"\4\2y\2z\0\2")
    interpreter.append(b"\0\0")
    assert [{"a": ["x"], "b": True}, {"a": [], "b": False}] == interpreter.rows()


def test_fields_go_by_name_and_missing_ones_take_their_defaults():
    """Fields are reordered, skipped, and filled from defaults of all types."""
    writer = record(field("a", "int"), field("gone", {"type": "array", "items": "string"}))
    reader = record(
        field("text", "string", default="ü"),
        field("bytes", "bytes", default="\u00ff"),
        field("list", {"type": "array", "items": "long"}, default=[1, -2]),
        field("map", {"type": "map", "values": "double"}, default={"k": 1}),
        field("enum", enum("A", "B"), default="B"),
        field("null", ["null", "int"], default=None),
        field("second", ["null", "int"], default=7),
        field("fixed", {"type": "fixed", "name": "F", "size": 2}, default="\u0001\u0002"),
        field("inner", record(field("x", "boolean", default=True), name="I"), default={}),
        field("empty", {"type": "array", "items": "long"}, default=[]),
        field("a", "int"),
    )
    expected = {
        "text": "ü",
        "bytes": b"\xff",
        "list": [1, -2],
        "map": [("k", 1.0)],
        "enum": "B",
        "null": None,
        "second": 7,
        "fixed": b"\1\2",
        "inner": {"x": True},
        "empty": [],
        "a": 5,
    }
    assert [expected] == read(writer, reader, encode_varint(5) + b"\2\2x\0")


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("null", 0),
        ("boolean", 1),
        ("int", 2**31),
        ("int", 1.0),
        ("int", True),
        ("long", 2**63),
        ("double", "1_0"),
        ("double", "inf"),
        (["null", "double"], "NaN"),
        ("double", True),
        ("string", 1),
        ("string", "\ud800"),
        ("bytes", "€"),
        ("bytes", None),
        ({"type": "fixed", "name": "F", "size": 2}, "€"),
        (enum("A"), "B"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": "int"}, []),
        ({"type": "map", "values": "int"}, {"a": "b"}),
        ({"type": "map", "values": "int"}, {"\ud800": 1}),
        (["null", "int"], "a"),
        (record(field("x", "int"), name="I"), {}),
        (record(field("x", "int"), name="I"), []),
    ],
)
def test_a_default_that_is_no_value_of_its_type_is_an_error_where_it_is_needed(schema, default):
    """A wrong default does not matter to a reader whose writer has the field."""
    reader = record(field("a", schema, default=default))
    with pytest.raises(SchemaError, match="the default of the field 'a' is no value of"):
        plan(record(), reader)
    plan(record(field("a", schema)), reader)


@pytest.mark.parametrize(
    ("default", "value"), [(10**400, float("inf")), (-(10**39), -float("inf"))]
)
def test_a_default_beyond_a_floats_range_is_infinite(default, value):
    """As Java narrows it."""
    assert [{"a": value}] == read(record(), record(field("a", "float", default=default)), b"")


@pytest.mark.parametrize(
    ("reader", "payload", "value"),
    [
        # The first branch of the same type, before wider ones that precede it.
        (["double", "int"], encode_varint(3), {"member0": None, "member1": 3}),
        # The first one to which it can be promoted.
        (
            ["string", "float", "double"],
            encode_varint(3),
            {"member0": None, "member1": 3.0, "member2": None},
        ),
        (["null", "long"], encode_varint(3), 3),
        (["float", "double"], encode_varint(3), 3.0),
    ],
)
def test_a_readers_union_takes_the_best_branch(reader, payload, value):
    """The same type comes before the first wider one."""
    assert [value] == read("int", reader, payload)


def test_a_readers_union_takes_records_by_full_name_then_by_fields_and_short_name():
    """The full name counts most, then fields that match, of these the last with the short name."""
    one = record(field("x", "int"), name="a.R")
    writer = record(field("x", "int"), name="b.R")
    other = record(field("x", "int"), name="c.S")
    no_match = record(field("y", "int"), name="d.R")

    def member(*branches):
        [row] = read(writer, list(branches), encode_varint(1))
        return [number for number in range(len(branches)) if row[f"member{number}"] is not None]

    assert [1] == member(one, writer, other)
    assert [1] == member(other, one, no_match)
    assert [0] == member(other, no_match)


def test_equivalent_unions_are_matched_by_position():
    """Two records that differ by namespace only keep their branches."""
    first, second = record(field("x", "int"), name="R"), record(field("x", "long"), name="S")
    reader = [
        record(field("x", "int"), name="n.R"),
        record(field("x", "long"), name="n.S"),
    ]
    rows = read([first, second], reader, b"\0\2", b"\2\4")
    assert [
        {"member0": {"x": 1}, "member1": None},
        {"member0": None, "member1": {"x": 2}},
    ] == rows


def test_aliases_of_types_and_fields_name_what_the_writer_called_differently():
    """A reader finds a renamed field of a renamed record, also in lists."""
    writer = {"type": "array", "items": record(field("old", "int"), name="x.Old")}
    new = record(field("new", "int", aliases=["old"]), name="n.New", aliases=["x.Old"])
    assert [[{"new": 1}]] == read(writer, {"type": "array", "items": new}, b"\2\2\0")


def test_aliases_do_not_matter_to_a_writer_with_the_same_schema():
    """A field has another one's name as an alias, and both are there."""
    schema = record(field("a", "int"), field("b", "int", aliases=["a"]))
    assert [{"a": 1, "b": 2}] == read(schema, schema, b"\2\4")
    outer = record(field("new", schema, default={"a": 3, "b": 4}), name="O")
    assert [{"new": {"a": 3, "b": 4}}] == read(record(name="O"), outer, b"")


def test_an_absent_default_is_absent_in_a_copy():
    """A schema can be pickled, as with a reader of Spark."""
    reader = parse_schema(json.dumps(record(field("a", "int"))))
    copied = pickle.loads(pickle.dumps(reader))  # noqa: S301
    assert reader == copied
    interpreter = Interpreter(make_plan(parse_schema(json.dumps(record())), copied))
    with pytest.raises(MalformedError, match="has no default"):
        interpreter.append(b"")


def test_aliases_that_give_two_fields_one_name_are_refused():
    """Java refuses it, too: neither of the two fields is the right one."""
    writer = record(field("a", "int"), field("b", "int"))
    with pytest.raises(SchemaError, match="two fields of the writer's R have one name"):
        plan(writer, record(field("b", "int", aliases=["a"])))


@pytest.mark.parametrize(
    ("skipped", "payload"),
    [
        ("null", b""),
        ("boolean", b"\1"),
        ("int", encode_varint(-(2**31))),
        ("long", encode_varint(2**63 - 1)),
        ("float", b"\0" * 4),
        ("double", b"\0" * 8),
        ("bytes", b"\6abc"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc"),
        (enum("A", "B"), b"\2"),
        (["null", "string"], b"\2\2a"),
        (["null", "string"], b"\0"),
        ({"type": "array", "items": "string"}, b"\2\2a\1\4\2b\0"),
        ({"type": "map", "values": "int"}, b"\2\2a\2\0"),
        # Items without bytes are counted, not visited: there may be 2^62 of them.
        ({"type": "array", "items": "null"}, encode_varint(2**62) + b"\0"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, b"\4\0"),
        ({"type": "array", "items": record(name="I")}, encode_varint(-(2**62)) + b"\0\0"),
        (record(field("x", "int"), field("y", "string"), name="I"), b"\2\2a"),
    ],
)
def test_a_field_that_the_reader_lacks_is_skipped(skipped, payload):
    """The fields behind it are read as if it were not there."""
    writer = record(field("gone", skipped), field("a", "int"))
    assert [{"a": 9}] == read(writer, record(field("a", "int")), payload + encode_varint(9))


@pytest.mark.parametrize(
    ("schema", "payload", "problem"),
    [
        ("int", b"", "a value of 1 bytes is longer than the payload"),
        ("int", b"\x80", "a value of 1 bytes is longer"),
        ("int", b"\0\0", "bytes are left behind the value"),
        ("int", encode_varint(2**31), "a number has more bits than its type"),
        ("int", b"\x80" * 5 + b"\1", "a number has more bits than its type"),
        ("long", b"\xff" * 9 + b"\2", "a number has more bits than its type"),
        ("long", b"\x80" * 10 + b"\1", "a number has more bits than its type"),
        ("boolean", b"\2", "a boolean is 2"),
        ("double", b"\0" * 7, "a value of 8 bytes is longer than the payload"),
        ("string", b"\3", "a value of -2 bytes is longer than the payload"),
        ("string", b"\4a", "a value of 2 bytes is longer than the payload"),
        ("string", b"\2\xff", "a string is not UTF-8"),
        ("string", b"\6\xed\xa0\x80", "a string is not UTF-8"),
        (enum("A"), b"\2", "the enum has no symbol 1"),
        (enum("A"), b"\1", "the enum has no symbol -1"),
        (["null"], b"\2", "the union has no branch 1"),
        (["null"], b"\1", "the union has no branch -1"),
        (["null"], b"\x80\x80\x80\x80\x80\0", "a number has more bits than its type"),
        ({"type": "array", "items": "int"}, b"\3\6\0\0", "a block of 3 bytes is longer"),
        ({"type": "array", "items": "int"}, b"\3\1\0\0", "a block of -1 bytes is longer"),
        ({"type": "array", "items": "int"}, b"\2\0", "a value of 1 bytes is longer"),
        ({"type": "array", "items": "int"}, b"\6\0", "a block of 3 items is longer"),
        (
            {"type": "array", "items": "null"},
            encode_varint(-(2**63)) + b"\0",
            "a block has more items than a long can count",
        ),
        ({"type": "map", "values": "int"}, b"\2\2\xff\0\0", "a string is not UTF-8"),
        (decimal(2), b"\2\x64", "a decimal has more than 2 digits"),
        (TIMESTAMP, encode_varint(2**62), "a timestamp is beyond the range of microseconds"),
        ({"type": "fixed", "name": "F", "size": 2}, b"a", "a value of 2 bytes is longer"),
    ],
)
def test_a_malformed_payload_is_refused(schema, payload, problem):
    """Nothing is read past the end, and nothing of the payload is left over."""
    with pytest.raises(MalformedError, match=problem):
        read(schema, schema, payload)


def test_a_symbol_that_the_reader_lacks_fails_without_a_default():
    """Only payloads with that symbol fail."""
    interpreter = Interpreter(plan(enum("A", "B"), enum("A")))
    interpreter.append(b"\0")
    with pytest.raises(MalformedError, match="lacks the writer's symbol, and has no default"):
        interpreter.append(b"\2")
    assert ["A"] == interpreter.rows()


def test_the_last_of_two_equal_keys_of_a_map_wins():
    """As in Java's map; Arrow would keep both."""
    schema = {"type": "map", "values": "int"}
    assert [[("a", 2), ("b", 3)]] == read(schema, schema, b"\6\2a\2\2b\6\2a\4\0")


def test_members_of_a_null_struct_may_be_anything():
    """A null record and a null member have something in all columns below."""
    inner = record(
        field("n", "int"),
        field("l", {"type": "array", "items": "int"}),
        field("m", {"type": "map", "values": "int"}),
        name="I",
    )
    payloads = [b"\0", b"\2\2\2\4\0\0", b"\0"]
    value = {"n": 1, "l": [2], "m": []}
    assert [None, value, None] == read(["null", inner], ["null", inner], *payloads)
    members = read(["string", inner], ["string", inner], b"\0\2x", b"\2\2\2\4\0\0")
    assert [
        {"member0": "x", "member1": None},
        {"member0": None, "member1": value},
    ] == members


def test_a_plan_has_a_hundred_thousand_operations_at_most():
    """A union of many records, each read into each of many others, is refused."""
    fields = [field(f"f{number}", "int") for number in range(400)]
    inner = record(*fields, name="I")
    writer = [record(field("i", inner if not n else "I"), name=f"W{n}") for n in range(300)]
    with pytest.raises(SchemaError, match="needs more than 100000 operations"):
        plan(writer, record(field("i", inner), name="R"))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 10_000])
def test_rows_are_those_of_javas_reader(first):
    """Rows and refusals are Java's, except that bytes which are read as a string must be UTF-8."""
    cases = [make_case(first + seed) for seed in range(3000)]
    for case, theirs in zip(cases, rows_of_java(cases), strict=True):
        reader = parse_schema(case.reader)
        try:
            interpreter = Interpreter(make_plan(parse_schema(case.writer), reader))
        except SchemaError:
            interpreter = None
        if interpreter is None:
            assert theirs[0].startswith("!"), case
            continue
        ours = [_row(interpreter, reader, payload) for payload in case.payloads]
        expected = ["!" if row.startswith("!") else row for row in theirs]
        for number, row in enumerate(ours):
            if row.startswith("!") and row.endswith("a string is not UTF-8"):
                ours[number] = expected[number] = "!"
        assert expected == [row[:1] if row.startswith("!") else row for row in ours], case


def _row(interpreter, reader, payload):
    try:
        interpreter.append(payload)
    except MalformedError as error:
        return f"!{error}"
    return show(reader, interpreter.rows()[-1])
