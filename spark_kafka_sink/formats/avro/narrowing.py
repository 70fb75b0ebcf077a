"""The part of a schema that a read asks for: fewer fields, in any order.

A reader's schema without a field skips it in the payload, which costs less than to decode it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_kafka_sink.display import listed, shortened
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.avro.resolution import PROMOTIONS
from spark_kafka_sink.formats.avro.schema import (
    Array,
    Enum,
    Map,
    Named,
    Record,
    Union,
    describe,
    short_name,
)

if TYPE_CHECKING:
    from spark_kafka_sink.formats.avro.schema import Schema

#: How many fields an error names, and how many characters it shows of a type or a name.
_MOST_NAMED: Final = 10
_MOST_SHOWN: Final = 200


def narrowed(schema: Schema, asked: Any, path: str) -> Schema:
    """Return the schema with those fields only that are in `asked`, a `pyarrow.DataType`.

    `path` is what an error calls the column. Raises SchemaError if `asked` is anything but a
    selection of the schema's columns.
    """
    match schema:
        case Record() if pa.types.is_struct(asked):
            return _narrowed_record(schema, asked, path)
        case Array() if pa.types.is_list(asked):
            return replace(schema, items=narrowed(schema.items, asked.value_type, f"{path}[]"))
        case Map() if pa.types.is_map(asked) and asked.key_type == pa.string():
            return replace(schema, values=narrowed(schema.values, asked.item_type, f"{path}[]"))
        case Union() if len(_values(schema)) == 1:
            [value] = _values(schema)
            part = narrowed(value, asked, path)
            branches = (part if branch is value else branch for branch in schema.branches)
            return replace(schema, branches=tuple(branches))
    present = columns_of(schema).type
    if not same_type(present, asked):
        raise SchemaError(
            f"column {path!r} is {shortened(str(asked), _MOST_SHOWN)}, but its schema has "
            f"{shortened(str(present), _MOST_SHOWN)}: read it as it is, and cast it afterwards"
        )
    return schema


def _values(schema: Union) -> list[Schema]:
    return [branch for branch in schema.branches if branch.type != "null"]


def _narrowed_record(schema: Record, asked: Any, path: str) -> Record:
    fields = {field.name: field for field in schema.fields}
    names = [asked.field(number).name for number in range(asked.num_fields)]
    for name in names:
        if name not in fields:
            some = shortened(listed(list(fields), _MOST_NAMED), _MOST_SHOWN)
            raise SchemaError(
                f"column {path!r}: the schema {shortened(schema.name)} has no field {name!r}; it "
                f"has {some}"
            )
        if names.count(name) > 1:
            raise SchemaError(f"column {path!r} has the field {name!r} twice: remove one of them")
    kept = tuple(
        replace(
            fields[name],
            schema=narrowed(fields[name].schema, asked.field(name).type, f"{path}.{name}"),
        )
        for name in names
    )
    return replace(schema, fields=kept)


def same_type(first: Any, second: Any) -> bool:
    """Return whether two types of Arrow have the same values, whatever may be null in them.

    Times of the day have any unit, as Spark's own is another one, or are numbers, which they are
    in a Spark without such a type.
    """
    if pa.types.is_time64(first) and second == pa.int64():
        return True
    if first.num_fields != second.num_fields or first.id != second.id:
        return False
    if first.num_fields == 0:
        return bool(first == second) or pa.types.is_time64(first)
    parts = [(first.field(number), second.field(number)) for number in range(first.num_fields)]
    is_struct = pa.types.is_struct(first)
    return all(
        (one.name == other.name or not is_struct) and same_type(one.type, other.type)
        for one, other in parts
    )


def unread_parts(writer: Schema, reader: Schema) -> list[str]:
    """Return what a writer's schema has and the reader's lacks, in the order of the writer's.

    These are fields, types of a union and symbols of an enum, each with its path.
    """
    parts = _UnreadParts()
    parts.collect(writer, reader, "")
    return [shortened(part, _MOST_SHOWN) for part in parts.found]


class _UnreadParts:
    """Compares each pair of types once: one that is used in many places is the same object."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._seen: set[tuple[int, int]] = set()

    def collect(self, writer: Schema, reader: Schema, path: str) -> None:
        pair = id(writer), id(reader)
        if pair in self._seen:
            return
        self._seen.add(pair)
        match writer, reader:
            case Record(), Record():
                self._collect_fields(writer, reader, path)
            case Array(), Array():
                self.collect(writer.items, reader.items, f"{path}[]")
            case Map(), Map():
                self.collect(writer.values, reader.values, f"{path}[]")
            case Enum(), Enum():
                known = set(reader.symbols)
                new = [symbol for symbol in writer.symbols if symbol not in known]
                self.found |= dict.fromkeys(f"symbol {symbol}{_of(path)}" for symbol in new)
            case (Union(), _) | (_, Union()):
                self._collect_branches(writer, reader, path)

    def _collect_fields(self, writer: Record, reader: Record, path: str) -> None:
        by_name = {name: field for field in reader.fields for name in (field.name, *field.aliases)}
        for field in writer.fields:
            field_path = f"{path}.{field.name}" if path else field.name
            known = by_name.get(field.name)
            if known is None:
                self.found[f"field {field_path}"] = None
            else:
                self.collect(field.schema, known.schema, field_path)

    def _collect_branches(self, writer: Schema, reader: Schema, path: str) -> None:
        named = {name: branch for branch in _branches(reader) for name in _branch_names(branch)}
        types = {branch.type for branch in _branches(reader)}
        for branch in _branches(writer):
            other = named.get(short_name(describe(branch)))
            if other is not None:
                self.collect(branch, other, path)
            elif types.isdisjoint(PROMOTIONS.get(branch.type, ())):
                self.found[f"type {describe(branch)}{_of(path)}"] = None


def _of(path: str) -> str:
    return f" of {path}" if path else ""


def _branches(schema: Schema) -> tuple[Schema, ...]:
    return schema.branches if isinstance(schema, Union) else (schema,)


def _branch_names(schema: Schema) -> list[str]:
    """Return by what a branch of the reader's union is recognized."""
    aliases = schema.aliases if isinstance(schema, Named) else ()
    return [short_name(name) for name in (describe(schema), *aliases)]
