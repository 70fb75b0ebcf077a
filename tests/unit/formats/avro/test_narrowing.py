"""The part of a schema that a read asks for, and what of a writer's schema is not read."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.avro.narrowing import narrowed, same_type, unread_parts
from spark_kafka_sink.formats.avro.schema import parse_schema

ORDER = parse_schema(
    """{"type": "record", "name": "Order", "fields": [
      {"name": "id", "type": "long"},
      {"name": "at", "type": {"type": "long", "logicalType": "time-micros"}},
      {"name": "buyer", "type": ["null", {"type": "record", "name": "Buyer", "fields": [
        {"name": "name", "type": "string"}, {"name": "age", "type": "int"}]}]},
      {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line",
        "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}}},
      {"name": "notes", "type": {"type": "map", "values": "Line"}}]}"""
)


def struct(**fields):
    """Return a struct's type."""
    return pa.struct(list(fields.items()))


def test_all_fields_are_the_schema_itself():
    """A read that asks for everything has the schema itself."""
    assert ORDER == narrowed(ORDER, columns_of(ORDER).type, "value")


def test_fields_are_selected_at_every_level():
    """A read has the fields that it asks for, in its order, within lists, maps and options, too."""
    asked = struct(
        notes=pa.map_(pa.string(), struct(count=pa.int32())),
        lines=pa.list_(struct(sku=pa.string())),
        buyer=struct(age=pa.int32()),
        id=pa.int64(),
    )
    column = columns_of(narrowed(ORDER, asked, "value")).type
    assert True is same_type(column, asked)
    assert ["notes", "lines", "buyer", "id"] == [field.name for field in column]


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.time64("ns"), pa.int64()])
def test_a_time_has_the_type_of_spark(kind):
    """A time of the day may be in Spark's unit, or a number where Spark has no such type."""
    assert ["at"] == [field.name for field in narrowed(ORDER, struct(at=kind), "value").fields]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            struct(total=pa.int64()),
            (
                "column 'value': the schema Order has no field 'total'; it has id, at, buyer, "
                "lines, notes"
            ),
        ),
        (
            struct(id=pa.int32()),
            (
                "column 'value.id' is int32, but its schema has int64: read it as it is, and "
                "cast it afterwards"
            ),
        ),
        (
            pa.struct([("id", pa.int64()), ("id", pa.int64())]),
            "column 'value' has the field 'id' twice: remove one of them",
        ),
        (
            struct(lines=pa.list_(struct(sku=pa.binary()))),
            (
                "column 'value.lines[].sku' is binary, but its schema has string: read it as it "
                "is, and cast it afterwards"
            ),
        ),
        (
            struct(buyer=pa.string()),
            (
                "column 'value.buyer' is string, but its schema has struct<name: string not null, "
                "age: int32 not null>: read it as it is, and cast it afterwards"
            ),
        ),
        (
            struct(notes=pa.map_(pa.binary(), struct(count=pa.int32()))),
            (
                "column 'value.notes' is map<binary, struct<count: int32>>, but its schema has "
                "map<string, struct<sku: string not null, count: int32 not null>>: read it as it "
                "is, and cast it afterwards"
            ),
        ),
        (
            struct(at=pa.string()),
            (
                "column 'value.at' is string, but its schema has time64[us]: read it as it is, and "
                "cast it afterwards"
            ),
        ),
        (
            struct(buyer=struct(age=pa.int64())),
            (
                "column 'value.buyer.age' is int64, but its schema has int32: read it as it is, "
                "and cast it afterwards"
            ),
        ),
        (
            struct(notes=pa.string()),
            (
                "column 'value.notes' is string, but its schema has "
                "map<string, struct<sku: string not null, count: int32 not null>>: read it as it "
                "is, and cast it afterwards"
            ),
        ),
    ],
)
def test_anything_but_a_selection_is_refused(asked, expected):
    """A read cannot have other fields or types than the schema has."""
    with pytest.raises(SchemaError) as error:
        narrowed(ORDER, asked, "value")
    assert expected == str(error.value)


def test_an_error_names_some_of_many_fields():
    """Not all fields of a wide schema are in an error."""
    wide = parse_schema(
        '{"type": "record", "name": "Wide", "fields": ['
        + ", ".join(f'{{"name": "f{number}", "type": "int"}}' for number in range(12))
        + "]}"
    )
    with pytest.raises(SchemaError, match=r"f8, f9 and 2 more$"):
        narrowed(wide, struct(x=pa.int32()), "value")


def test_unread_parts_are_found_at_every_level():
    """What the reader's schema lacks is named by its path; an alias is no lack."""
    reader = parse_schema(
        """{"type": "record", "name": "Order", "fields": [
          {"name": "number", "type": "long", "aliases": ["id"]},
          {"name": "buyer", "type": ["null", {"type": "record", "name": "Buyer", "fields": [
            {"name": "name", "type": "string"}]}]},
          {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line",
            "fields": [{"name": "count", "type": "int"}]}}},
          {"name": "notes", "type": {"type": "map", "values": "Line"}}]}"""
    )
    assert ["field at", "field buyer.age", "field lines[].sku"] == unread_parts(ORDER, reader)
    assert [] == unread_parts(ORDER, ORDER)


def field(text):
    """Return a record with one field."""
    return parse_schema(
        f'{{"type": "record", "name": "R", "fields": [{{"name": "f", "type": {text}}}]}}'
    )


def enum(*symbols):
    """Return the text of an enum."""
    return json.dumps({"type": "enum", "name": "E", "symbols": symbols})


@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        (enum("A", "B", "C"), enum("B"), ["symbol A of f", "symbol C of f"]),
        (enum("A"), enum("A", "B"), []),
        (f'{{"type": "array", "items": {enum("A")}}}', None, ["symbol A of f[]"]),
        ('["null", "string", "int"]', '["null", "int"]', ["type string of f"]),
        ('["null", "int"]', '"int"', ["type null of f"]),
        ('"int"', '["null", "int"]', []),
        # What can be read as another type is not lacking.
        ('["null", "int"]', '["null", "long"]', []),
        ('["null", "long"]', '["null", "int"]', ["type long of f"]),
        ('["null", "string"]', '"bytes"', ["type null of f"]),
        (f'["null", {enum("A", "B")}]', f'["null", {enum("A")}]', ["symbol B of f"]),
        (
            '["null", {"type": "fixed", "name": "a.F", "size": 2}]',
            '["null", {"type": "fixed", "name": "G", "size": 2, "aliases": ["b.F"]}]',
            [],
        ),
        (
            '["null", {"type": "fixed", "name": "a.F", "size": 2}]',
            '["null", {"type": "fixed", "name": "G", "size": 2}]',
            ["type a.F of f"],
        ),
    ],
)
def test_types_and_symbols_that_are_not_read(writer, reader, expected):
    """New types of a union and new symbols of an enum are named with their field."""
    if reader is None:
        reader = f'{{"type": "array", "items": {enum("B")}}}'
    assert expected == unread_parts(field(writer), field(reader))


def test_a_value_of_its_own_has_no_path():
    """Where the whole value is a union or an enum, there is no path to name."""
    assert ["type string"] == unread_parts(parse_schema('["int", "string"]'), parse_schema('"int"'))
    assert ["symbol B"] == unread_parts(parse_schema(enum("A", "B")), parse_schema(enum("A")))


def test_the_work_is_bounded_by_the_pairs_of_types():
    """A type that is used twice in each of sixty others is looked at once."""
    text = '"int"'
    for level in range(60):
        text = (
            f'{{"type": "record", "name": "L{level}", "fields": ['
            f'{{"name": "a", "type": {text}}}, {{"name": "b", "type": '
            + (f'"L{level - 1}"' if level else '"int"')
            + "}]}"
        )
    schema = parse_schema(text)
    assert [] == unread_parts(schema, schema)
