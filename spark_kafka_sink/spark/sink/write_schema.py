"""The columns that make up a record, and their types: checked once, on the driver.

Names, types and precedence are those of Spark's own Kafka sink (`KafkaWriter`): names are case
sensitive, the `topic` option takes precedence over a `topic` column (which is then not checked),
and other columns are ignored. There are three differences: a `timestamp` column of type TIMESTAMP
or TIMESTAMP_NTZ sets the record's timestamp (of type VOID: the time of the write), several columns
of the same name are an error, where Spark takes the first one, and so are the few types that Spark
cannot hand to a Python data source, even in a column that is ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    YearMonthIntervalType,
)

from spark_kafka_sink import display
from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import DataType

    from spark_kafka_sink.config.format_options import FormatOptions

#: The maximum number of columns that a message lists.
_MOST_LISTED: Final = 10
TEXT: Final = (StringType, CharType, VarcharType)
_CAST: Final = "cast it to string, encode a struct with to_json, or set {}Format=avro"


@dataclass(frozen=True, slots=True)
class WriteSchema:
    """The columns of a DataFrame, divided into used and ignored ones.

    `used` are the names of the columns that make up a record, `ignored` those of all others.

    >>> options = {"kafka.bootstrap.servers": "localhost:9092", "autoCreateTopics": "true"}
    >>> KafkaSink.check(df, options, topic="orders").schema
    WriteSchema(topic='orders', used=('value',), ignored=())
    """

    #: The topic of all rows; None when the `topic` column names each row's.
    topic: str | None
    used: tuple[str, ...]
    ignored: tuple[str, ...]


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, TEXT)
        and isinstance(fields[1].dataType, BinaryType)
    )


#: Column -> its types, or the predicate for its type; their name, and how to convert to it.
_COLUMNS: Final[
    dict[str, tuple[tuple[type[DataType], ...] | Callable[[DataType], bool], str, str]]
] = {
    "key": ((*TEXT, BinaryType), "string or binary", _CAST.format("key")),
    "value": ((*TEXT, BinaryType), "string or binary", _CAST.format("value")),
    "topic": (TEXT, "string", "cast it, or set the option 'topic'"),
    "partition": ((IntegerType,), "int", "cast it, or drop it to let the producer choose"),
    "headers": (
        _is_headers,
        "array<struct<key:string,value:binary>>",
        (
            "build it with the SQL expression "
            "array(named_struct('key', 'name', 'value', encode('text', 'utf-8')))"
        ),
    ),
    "timestamp": (
        (TimestampType, TimestampNTZType, NullType),
        "timestamp or timestamp_ntz",
        "cast it, rename it or drop it",
    ),
}


def write_schema(
    schema: StructType, topic: str | None, formats: FormatOptions | None = None
) -> WriteSchema:
    """Check a DataFrame's columns; `topic` is the option, None if it is not set.

    Keys and values that have a format are checked with their schemas later. Raises a SchemaError
    that lists all problems.
    """
    typed = {side.side for side in formats.sides} if formats is not None else set()
    considered = [name for name in _COLUMNS if not (name == "topic" and topic is not None)]
    problems = [
        problem
        for name in considered
        if (problem := _problem(schema, name, topic, is_typed=name in typed)) is not None
    ]
    others = [
        name for name in dict.fromkeys(schema.names) if name not in considered or name in typed
    ]
    problems += [problem for name in others if (problem := _hand_over(schema, name)) is not None]
    if problems:
        raise SchemaError("; ".join(problems))
    used = tuple(name for name in schema.names if name in considered)
    return WriteSchema(topic, used, tuple(name for name in schema.names if name not in used))


def _problem(schema: StructType, name: str, topic: str | None, *, is_typed: bool) -> str | None:
    types = [field.dataType for field in schema.fields if field.name == name]
    if len(types) > 1:
        return f"{len(types)} columns are named {name!r}: keep only one of them"
    if types:
        [kind] = types
        accepted, expected, advice = _COLUMNS[name]
        is_accepted = isinstance(kind, accepted) if isinstance(accepted, tuple) else accepted(kind)
        if is_typed or is_accepted:
            return None
        return f"column {name!r} is {kind.simpleString()}, but must be {expected}: {advice}"
    if name == "value":
        advice = f" {_listed(schema)}: add it, or rename the column with the values"
        return f"there is no column 'value'{_other_case(schema, name) or advice}"
    if name == "topic" and topic is None:
        return (
            "there is no topic: set the option 'topic' or add a 'topic' column"
            f"{_other_case(schema, name)}"
        )
    return None


def _hand_over(schema: StructType, name: str) -> str | None:
    """Return why Spark cannot hand an ignored column to Python, which it does through Arrow."""
    types = [field.dataType for field in schema.fields if field.name == name]
    if len(types) > 1:
        problem, advice = f"{len(types)} columns are named {name!r}", "drop or rename them"
    elif isinstance(types[0], YearMonthIntervalType):
        # Within a struct, an array or a map, PyArrow does not look at it.
        problem = f"column {name!r} is {types[0].simpleString()}"
        advice = "drop it, or cast it to string"
    elif (field := _repeated_field(types[0])) is not None:
        problem = f"column {name!r} has a struct with several fields {field!r}"
        advice = "drop the column, or rename the fields"
    else:
        return None
    return f"{problem}, which Spark cannot hand to a Python data source: {advice}"


def _repeated_field(kind: DataType) -> str | None:
    """Return the first name that a struct in this type has more than once."""
    match kind:
        case StructType():
            repeated = [name for name, count in Counter(kind.names).items() if count > 1]
            inner = [field.dataType for field in kind.fields]
        case ArrayType():
            repeated, inner = [], [kind.elementType]
        case MapType():
            repeated, inner = [], [kind.keyType, kind.valueType]
        case _:
            repeated, inner = [], []
    repeated += [name for data_type in inner if (name := _repeated_field(data_type)) is not None]
    return repeated[0] if repeated else None


def _listed(schema: StructType) -> str:
    """Return a clause with the names of the columns."""
    if not schema.names:
        return "(there are no columns)"
    names = display.listed([repr(name) for name in schema.names], most=_MOST_LISTED)
    return f"(the columns are {names})"


def _other_case(schema: StructType, name: str) -> str:
    """Return a hint at a column whose name differs only in case, if there is one."""
    similar = [known for known in schema.names if known.lower() == name]
    return (
        f" (there is {similar[0]!r}, but column names are case-sensitive here: rename it)"
        if similar
        else ""
    )
