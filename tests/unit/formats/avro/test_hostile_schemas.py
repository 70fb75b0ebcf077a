"""Schemas that a short text makes enormous: bounded work, and a plan or a refusal."""

from __future__ import annotations

import json
import sys

import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.defaults import MOST_DEFAULTS
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import MOST_LEVELS, parse_schema

#: The most calls of Python functions for any pair of schemas: seconds, and not hours.
MOST_CALLS = 3_000_000


def record(name, *fields, **properties):
    """Return a record with these pairs of names and types as fields."""
    fields = [
        field if isinstance(field, dict) else dict(zip(("name", "type"), field, strict=True))
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": fields, **properties}


def array(items):
    """Return an array."""
    return {"type": "array", "items": items}


def plan(writer, reader):
    """Return the plan, or why there is none, and how many functions were called for it."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    texts = json.dumps(writer), json.dumps(reader)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        made = make_plan(*map(parse_schema, texts))
    except SchemaError as error:
        made = str(error)
    finally:
        sys.setprofile(before)
    assert MOST_CALLS > calls
    return made


def doubled(leaf, times=30, prefix="R"):
    """Return a record that has another one twice, which has another one twice, and so on."""
    schema = leaf
    for number in range(times):
        again = f"{prefix}{number - 1}" if number else leaf
        schema = record(f"{prefix}{number}", ("a", schema), ("b", again))
    return schema


def test_parts_that_need_no_operation_are_counted_too(monkeypatch):
    """A record that is skipped may have many fields without bytes, and be there very often."""
    monkeypatch.setattr("spark_kafka_sink.formats.avro.plan._MOST_VISITS", 20)

    def skipped(fields):
        many = record("M", ("x", "int"), *((f"n{number}", "null") for number in range(fields)))
        return plan(record("T", ("skipped", many)), record("T"))

    # The record, the field, its record, and the fields of that.
    assert skipped(16).program
    assert skipped(17) == "Avro: the schema has more than 20 parts"


@pytest.mark.parametrize(
    "leaf",
    [
        "int",
        "null",
        pytest.param(array("null"), marks=pytest.mark.slow),
        pytest.param({"type": "map", "values": "int"}, marks=pytest.mark.slow),
    ],
)
def test_a_type_of_a_billion_parts_is_read_or_refused(leaf):
    """As the schema of both, of the writer alone, and where the reader skips it."""
    many, other = doubled(leaf), doubled(leaf, prefix="S")
    assert "more than 10000 columns" in plan(many, many)
    assert "more than 10000 columns" in plan(many, other)
    assert "cannot be read as int" in plan(many, "int").problems[0]
    skipped = plan(record("T", ("skipped", many), ("x", "int")), record("T", ("x", "int")))
    if leaf == "null":
        interpreter = Interpreter(skipped)
        interpreter.append(b"\2")
        assert [{"x": 1}] == interpreter.rows()
    else:
        assert "more than 100000 operations" in skipped


def test_two_texts_of_a_billion_parts_are_compared_once():
    """They are equal, but share no object; so are types that are renamed by aliases."""
    many = doubled("int")
    reader = record("T", {"name": "x", "type": "int", "default": 0})
    assert "100000 operations" in plan(record("T", ("m", many)), reader)
    assert "10000 columns" in plan(json.loads(json.dumps(many)), many)
    renamed = record("U", ("x", "int"), aliases=["T"])
    writer = record("T", ("x", "int"), ("m", doubled("null")))
    interpreter = Interpreter(plan(writer, renamed))
    interpreter.append(b"\2")
    assert [{"x": 1}] == interpreter.rows()


def test_unions_of_records_in_unions_of_records_are_matched_once():
    """Each of two records has a union of two others, and none has the name of the reader's."""

    def nested(prefix, times=25):
        schema = ["int"]
        for number in range(times):
            names = [f"{prefix}{letter}{number}" for letter in "AB"]
            first = record(names[0], ("x", schema))
            inner = [f"{prefix}{letter}{number - 1}" for letter in "AB"] if number else ["int"]
            schema = [first, record(names[1], ("x", inner))]
        return schema

    assert "10000 columns" in plan(nested("W"), nested("R"))
    assert "cannot be read" in plan(nested("W"), nested("R", 10)).problems[0]


def test_a_default_of_a_billion_values_is_refused():
    """Ten items by default, each with ten items by default, and so on."""
    schema = array("int")
    default = [1] * 10
    for number in range(12):
        field = {"name": "x", "type": schema, "default": default}
        schema, default = array(record(f"R{number}", field)), [{}] * 10
    reader = record("T", {"name": "x", "type": schema, "default": default})
    assert f"have more than {MOST_DEFAULTS} bytes and values" in plan(record("T"), reader)


def test_a_default_that_fits_only_the_last_of_many_unions_is_refused():
    """Each of two records is tried for each part of the value."""
    schema, default = "int", "no int"
    for number in range(40):
        first = record(f"A{number}", ("x", schema))
        inner = (f"A{number - 1}", f"B{number - 1}") if number else ()
        schema = [first, record(f"B{number}", ("x", list(inner) or "int"))]
        default = {"x": default}
    reader = record("T", {"name": "x", "type": schema, "default": default})
    assert isinstance(plan(record("T"), reader), str)


def test_an_enum_has_one_table_wherever_it_is_used():
    """A thousand symbols in each of five hundred fields."""
    enum = {"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(1000)]}
    fields = [(f"f{number}", "E" if number else enum) for number in range(500)]
    schema = record("T", *fields)
    assert 2000 > len(plan(schema, schema).program) // 4
    assert 500 * 5000 > len(plan(schema, schema).constants)
    interpreter = Interpreter(plan(schema, schema))
    interpreter.append(b"\x02" * 500)
    assert {f"f{number}": "S1" for number in range(500)} == interpreter.rows()[0]


def test_a_union_of_many_records_has_a_plan():
    """Each branch sets all columns of the others to null by two operations."""
    branches = [
        record(f"R{number}", *((f"f{field}", ["null", "int"]) for field in range(60)))
        for number in range(100)
    ]
    made = plan(["null", *branches], ["null", *branches])
    assert 100 * 60 * 7 > len(made.program) // 4
    interpreter = Interpreter(made)
    interpreter.append(b"\4" + b"\2\4" * 60)
    [row] = interpreter.rows()
    assert {f"f{field}": 2 for field in range(60)} == row["member1"]
    assert {None} == {row[f"member{number}"] for number in range(100) if number != 1}


def test_a_chain_of_names_is_as_deep_as_its_text_were():
    """Named types that use the one before are levels, though the text has none."""
    chain = [record("R0", ("x", "int"))]
    chain += [record(f"R{number}", ("x", f"R{number - 1}")) for number in range(1, MOST_LEVELS + 1)]
    assert f"the schema has more than {MOST_LEVELS} levels" in plan(chain, "int")
    assert f"more than {MOST_LEVELS} levels" in plan(chain[::-1], "int")
    assert isinstance(plan(chain[:-2], chain[:-2]).program, tuple)


def test_names_are_used_before_they_are_defined_a_thousand_times():
    """Each definition is parsed once, wherever its name is used first."""
    inner = {"type": "fixed", "name": "F0", "size": 1}
    for number in range(1, 90):
        inner = record(f"F{number}", ("x", inner))
    names = [(f"f{number}", f"F{number % 90}") for number in range(500)]
    made = plan(record("T", *names, ("last", inner)), "int")
    assert "cannot be read as int" in made.problems[0]


def test_a_name_is_defined_a_thousand_times_alike():
    """Each definition is compared with the first one."""
    same = doubled("int", 5)
    fields = [(f"f{number}", same) for number in range(100)]
    made = plan(record("T", *fields), record("T"))
    assert isinstance(made.program, tuple)


def test_the_text_of_a_mismatch_is_short():
    """Unions of many branches, and long names, are not shown in full."""
    branches = [
        {"type": "fixed", "name": f"F{number}" + "x" * 1000, "size": 1} for number in range(50)
    ]
    interpreter = Interpreter(plan("int", branches))
    with pytest.raises(MalformedError, match=r"cannot be read as union of fixed F0x+\.\.\. of 1 "):
        interpreter.append(b"\2")
    assert 500 > max(map(len, plan("int", branches).problems))
    assert "45 more" in plan("int", branches).problems[0]


def test_comments_that_do_not_end_are_found_at_once():
    """Each of many beginnings could be searched to the end."""
    for text in ("/*" * 100_000, '"\\"' * 100_000, "//" * 100_000, '[1,/**/"' * 50_000):
        with pytest.raises(SchemaError, match="is not JSON"):
            parse_schema(text)
