from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.spark.sink.write_schema import WriteSchema, write_schema


def header_type(key=StringType(), value=BinaryType(), names=("key", "value")):  # noqa: B008 -- immutable
    fields = [StructField(names[0], key), StructField(names[1], value)]
    return ArrayType(StructType(fields))


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def refusal(given, topic="t"):
    with pytest.raises(SchemaError) as caught:
        write_schema(given, topic)
    return str(caught.value)


def test_only_a_value_column_is_required():
    """With a topic option only a value column is needed."""
    assert WriteSchema("t", ("value",), ()) == write_schema(schema(value=BinaryType()), "t")


@pytest.mark.parametrize("kind", [StringType(), BinaryType(), VarcharType(5), CharType(5)])
@pytest.mark.parametrize("column", ["key", "value"])
def test_keys_and_values_are_text_or_bytes(column, kind):
    """Keys and values may have any string type or binary."""
    given = schema(**{"value": StringType(), column: kind})
    assert column in write_schema(given, "t").used


def test_all_columns_of_a_record_are_used():
    """All columns of a record are used, in any order."""
    given = schema(
        timestamp=TimestampType(),
        headers=header_type(),
        partition=IntegerType(),
        topic=StringType(),
        value=StringType(),
        key=BinaryType(),
    )
    expected = ("timestamp", "headers", "partition", "topic", "value", "key")
    assert WriteSchema(None, expected, ()) == write_schema(given, None)


def test_a_timestamp_without_time_zone_is_used():
    """A TIMESTAMP_NTZ column sets the record's timestamp too."""
    given = schema(value=StringType(), timestamp=TimestampNTZType())
    assert ("value", "timestamp") == write_schema(given, "t").used


def test_a_timestamp_that_is_always_null_is_used():
    """`null as timestamp` is of type VOID, and sets the time of the write."""
    given = schema(value=StringType(), timestamp=NullType())
    assert ("value", "timestamp") == write_schema(given, "t").used


def test_other_columns_are_ignored():
    """Unknown columns are ignored, as in Spark's sink."""
    given = schema(value=StringType(), offset=LongType(), timestampType=IntegerType())
    assert ("offset", "timestampType") == write_schema(given, "t").ignored


TWINS = StructType([StructField("a", IntegerType()), StructField("a", LongType())])


@pytest.mark.parametrize(
    ("kinds", "problem", "advice"),
    [
        (
            [YearMonthIntervalType()],
            "column 'x' is interval year to month",
            "drop it, or cast it to string",
        ),
        (
            [MapType(StringType(), ArrayType(StructType([StructField("inner", TWINS)])))],
            "column 'x' has a struct with several fields 'a'",
            "drop the column, or rename the fields",
        ),
        ([LongType(), LongType()], "2 columns are named 'x'", "drop or rename them"),
    ],
)
def test_an_ignored_column_that_spark_cannot_hand_over_is_rejected(kinds, problem, advice):
    """Spark hands all columns to Python through Arrow, which cannot carry some: an early error."""
    fields = [StructField("x", kind) for kind in kinds]
    assert f"{problem}, which Spark cannot hand to a Python data source: {advice}" == refusal(
        StructType([StructField("value", StringType()), *fields])
    )


@pytest.mark.parametrize(
    "kind",
    [
        ArrayType(YearMonthIntervalType()),
        StructType([]),
        NullType(),
        MapType(StringType(), LongType()),
    ],
)
def test_an_ignored_column_may_have_any_other_type(kind):
    """What Spark can hand over is ignored: also an interval within another type."""
    assert ("x",) == write_schema(schema(value=StringType(), x=kind), "t").ignored


def test_the_topic_option_takes_precedence_over_the_column():
    """With a topic option a topic column is ignored, whatever its type."""
    given = schema(topic=LongType(), value=StringType())
    assert WriteSchema("t", ("value",), ("topic",)) == write_schema(given, "t")


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        ("value", LongType(), "column 'value' is bigint, but must be string or binary: cast it"),
        ("value", NullType(), "column 'value' is void, but must be string or binary: cast it"),
        ("value", StructType([]), "column 'value' is struct<>, but must be string or binary: cast"),
        ("key", DoubleType(), "column 'key' is double, but must be string or binary: cast it"),
        ("partition", LongType(), "column 'partition' is bigint, but must be int: cast it, or"),
        ("partition", StringType(), "column 'partition' is string, but must be int: cast it, or"),
        ("timestamp", LongType(), "column 'timestamp' is bigint, but must be timestamp or"),
        ("timestamp", DateType(), "column 'timestamp' is date, but must be timestamp or"),
        ("headers", MapType(StringType(), BinaryType()), "column 'headers' is map<string,binary>"),
        ("headers", ArrayType(StringType()), "column 'headers' is array<string>, but must be arr"),
        ("headers", header_type(value=StringType()), "<struct<key:string,value:string>>, but must"),
        ("headers", header_type(key=BinaryType()), "<struct<key:binary,value:binary>>, but must"),
        ("headers", header_type(names=("k", "v")), "<struct<k:string,v:binary>>, but must be"),
    ],
)
def test_a_column_of_the_wrong_type_is_rejected(column, kind, expected):
    """The error names the column's type, the required one, and what to do."""
    assert expected in refusal(schema(**{"value": StringType(), column: kind}))


def test_a_topic_column_of_the_wrong_type_is_rejected():
    """Without a topic option the topic column must be a string."""
    assert "column 'topic' is int, but must be string: cast it, or set the option 'topic'" == (
        refusal(schema(value=StringType(), topic=IntegerType()), topic=None)
    )


def test_a_missing_value_column_is_rejected():
    """A DataFrame needs a value column; the error lists the columns that there are."""
    assert (
        "there is no column 'value' (the columns are 'key', 'payload'): add it, or rename the "
        "column with the values"
    ) == refusal(schema(key=StringType(), payload=StringType()))


def test_a_long_list_of_columns_is_cut():
    """The error lists ten columns, and says how many more there are."""
    many = {f"c{number}": StringType() for number in range(12)}
    assert "'c8', 'c9' and 2 more): add it" in refusal(schema(**many))


def test_a_dataframe_without_columns_is_rejected():
    """The error says that there are no columns to rename."""
    assert refusal(StructType([])).startswith("there is no column 'value' (there are no columns)")


def test_a_write_without_a_topic_is_rejected():
    """A write needs a topic option or a topic column."""
    assert "there is no topic: set the option 'topic' or add a 'topic' column" == refusal(
        schema(value=StringType()), topic=None
    )


def test_only_the_first_column_that_differs_in_case_is_suggested():
    """The error names only the first column whose name differs in case."""
    assert (
        "there is no column 'value' (there is 'Value', but column names are case-sensitive here: "
        "rename it)" == (refusal(schema(Value=StringType(), VALUE=StringType()), topic="t"))
    )


def test_column_names_are_case_sensitive():
    """The error names a column whose name differs only in case, since it is not used."""
    assert (
        "there is no topic: set the option 'topic' or add a 'topic' column (there is 'Topic', but "
        "column names are case-sensitive here: rename it); "
        "there is no column 'value' (there is 'VALUE', but "
        "column names are case-sensitive here: rename it)"
        == "; ".join(
            sorted(
                refusal(schema(Topic=StringType(), VALUE=StringType()), topic=None).split("; "),
                reverse=True,
            )
        )
    )


def test_duplicate_columns_are_rejected():
    """Two value columns are an error, since either could be meant."""
    doubled = StructType([StructField("value", StringType()), StructField("value", BinaryType())])
    assert "2 columns are named 'value': keep only one of them" == refusal(doubled)


def test_all_problems_are_reported_at_once():
    """One error lists all problems, so that they can be fixed together."""
    given = schema(key=LongType(), partition=LongType())
    assert [
        "column 'key' is bigint",
        "there is no column 'value' (the columns are 'key'",
        "there is no topic: set the option 'topic' or add a 'topic' column",
        "column 'partition' is bigint",
    ] == [problem.split(",")[0] for problem in refusal(given, topic=None).split("; ")]
