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

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from spark_kafka_sink.errors import PayloadError
from spark_kafka_sink.formats.avro.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.avro.plan import DAY, make_plan
from spark_kafka_sink.formats.avro.schema import Array, Map, Primitive, Record, Union
from spark_kafka_sink.formats.avro.value_encoder import EPOCH, EPOCH_DAY, LOCAL_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.formats.avro.schema import Schema
    from spark_kafka_sink.formats.columnar.columns import Column

    #: Converts a value that is not null; raises `_RangeError`.
    _Convert: TypeAlias = Callable[[Any], Any]

_MICROS_PER_MILLI: Final = 1000
_ADVICE: Final = "Read it as bytes, or write it again"


class _RangeError(Exception):
    """A value that Python's type does not have; `path` grows on the way out."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.path = ""

    def within(self, name: str) -> _RangeError:
        self.path = f"{name}{self.path}"
        return self


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
        except _RangeError as error:
            path = f"{self._name}{error.path}"
            raise PayloadError(str(error), field=path, advice=_ADVICE) from None


def _conversion(schema: Schema, column: Column) -> _Convert | None:
    """Return how a value of the interpreter becomes Python's; None if it is that already."""
    match schema:
        case Union():
            return _of_union(schema, column)
        case Record():
            return _of_record(schema, column)
        case Array():
            return _of_array(schema, column)
        case Map():
            return _of_map(schema, column)
        case Primitive() if schema.logical == "time-millis" and pa.types.is_int32(column.type):
            return lambda value: _time(value * _MICROS_PER_MILLI)
    return _of_leaf(column.type)


def _of_leaf(kind: Any) -> _Convert | None:
    if pa.types.is_timestamp(kind):
        start = LOCAL_EPOCH if kind.tz is None else EPOCH
        return lambda value: _added(start, value)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_time(kind):
        return _time
    if pa.types.is_duration(kind):
        return lambda value: dt.timedelta(microseconds=value)
    return None


def _of_union(schema: Union, column: Column) -> _Convert | None:
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


def _of_record(schema: Record, column: Column) -> _Convert | None:
    parts = [
        (field.name, convert)
        for field, child in zip(schema.fields, column.children, strict=True)
        if (convert := _conversion(field.schema, child)) is not None
    ]
    if not parts:
        return None

    def convert_record(value: Any) -> Any:
        for name, convert in parts:
            item = value[name]
            if item is not None:
                try:
                    value[name] = convert(item)
                except _RangeError as error:
                    raise error.within(f".{name}") from None
        return value

    return convert_record


def _of_array(schema: Array, column: Column) -> _Convert | None:
    convert = _conversion(schema.items, column.children[0])
    if convert is None:
        return None

    def convert_array(value: Any) -> Any:
        try:
            return [None if item is None else convert(item) for item in value]
        except _RangeError as error:
            raise error.within("[]") from None

    return convert_array


def _of_map(schema: Map, column: Column) -> _Convert:
    convert = _conversion(schema.values, column.children[1])
    if convert is None:
        return dict

    def convert_map(value: Any) -> Any:
        try:
            return {key: None if item is None else convert(item) for key, item in value}
        except _RangeError as error:
            raise error.within("{}") from None

    return convert_map


def _added(start: dt.datetime, micros: int) -> dt.datetime:
    try:
        return start + dt.timedelta(microseconds=micros)
    except OverflowError:
        raise _RangeError("the timestamp is not between the years 1 and 9999") from None


def _date(days: int) -> dt.date:
    try:
        return dt.date.fromordinal(days + EPOCH_DAY)
    except (OverflowError, ValueError):
        raise _RangeError("the date is not between the years 1 and 9999") from None


def _time(micros: int) -> dt.time:
    if not 0 <= micros < DAY:
        raise _RangeError("the number is no time of the day")
    return (LOCAL_EPOCH + dt.timedelta(microseconds=micros)).time()
