"""Decode single payloads of Avro into Python values: records into dicts, and so on.

The interpreter of plans decodes, so that each payload is resolved and checked as a column's are.
Its rows become the values that `value_encoder` takes for the same schema:

| schema | value |
|---|---|
| timestamp-millis, timestamp-micros | `datetime.datetime` in UTC |
| local-timestamp-millis, -micros | `datetime.datetime` without a time zone |
| timestamp-nanos and its local form | int: `datetime` has no nanoseconds |
| date, time-millis, time-micros | `datetime.date`, `datetime.time` |
| interval of Spark | `datetime.timedelta` |
| decimal | `decimal.Decimal` |
| enum, uuid | str |
| bytes, fixed, duration | bytes |
| record, map | dict |
| union | the value of its type |

A union of int and long is a number if neither has a logical type, and so is a union of float and
double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import make_plan
from spark_kafka_sink.formats.avro.schema import Array, Map, Primitive, Record, Union
from spark_kafka_sink.formats.columnar.python_values import (
    MomentError,
    of_entries,
    of_items,
    of_leaf,
    of_record,
    time_of_day,
)

if TYPE_CHECKING:
    from spark_kafka_sink.formats.avro.schema import Schema
    from spark_kafka_sink.formats.columnar.columns import Column
    from spark_kafka_sink.formats.columnar.python_values import Convert

_MICROS_PER_MILLI: Final = 1000
_ADVICE: Final = "Read it as bytes, or write it again"


class ValueDecoder:
    """Decodes payloads of a writer's schema. Any thread may use it, also several at once."""

    def __init__(self, writer: Schema, reader: Schema, name: str = "value") -> None:
        """Set what errors call the value; raise SchemaError if no column can have such values."""
        plan = make_plan(writer, reader, tells_moments=True)
        self._interpreter = Interpreter(plan, name)
        self._name = name
        self._convert = _conversion(reader, plan.column)

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload; raises PayloadError if it is malformed."""
        try:
            value = self._interpreter.decode(payload)
        except MalformedError as error:
            field, _, cause = str(error).partition(": ")
            raise PayloadError(cause, field=field, advice=_ADVICE) from None
        if self._convert is None or value is None:
            return value
        try:
            return self._convert(value)
        except MomentError as error:
            path = f"{self._name}{error.path}"
            raise PayloadError(str(error), field=path, advice=_ADVICE) from None


def _conversion(schema: Schema, column: Column) -> Convert | None:
    """Return how a value of the interpreter becomes Python's; None if it is that already."""
    match schema:
        case Union():
            return _of_union(schema, column)
        case Record():
            return _of_record(schema, column)
        case Array():
            return of_items(_conversion(schema.items, column.children[0]))
        case Map():
            return of_entries(_conversion(schema.values, column.children[1]))
        case Primitive() if schema.logical == "time-millis" and pa.types.is_int32(column.type):
            return lambda value: time_of_day(value * _MICROS_PER_MILLI)
    return of_leaf(column.type)


def _of_union(schema: Union, column: Column) -> Convert | None:
    branches = [branch for branch in schema.branches if branch.type != "null"]
    if column.members:
        members = [
            (f"member{number}", _conversion(branch, child))
            for number, (branch, child) in enumerate(zip(branches, column.children, strict=True))
        ]

        def convert(value: Any) -> Any:
            for name, convert_member in members:
                member = value[name]
                if member is not None:
                    return member if convert_member is None else convert_member(member)
            return None

        return convert
    # Otherwise it is a number of the wider type.
    return _conversion(branches[0], column) if len(branches) == 1 else None


def _of_record(schema: Record, column: Column) -> Convert | None:
    return of_record(
        (field.name, _conversion(field.schema, child))
        for field, child in zip(schema.fields, column.children, strict=True)
    )
