"""Schema resolution: how data of a writer's schema become values of a reader's schema.

`resolve` returns a tree of actions, by the rules of Java's `Resolver` (1.12). As there, what does
not match is an action itself (`Fail`): it fails only for data that reach it, such as a branch of a
union that the writer never chose.

One rule is stricter than Java's. Where both schemas have logical types of other units, scales or
fewer digits, Java reads the writer's number as if it were the reader's: a price of 1.00 becomes
100.00. Here that does not match.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.defaults import default_bytes
from spark_kafka_sink.formats.avro.schema import (
    ABSENT,
    Array,
    DecimalType,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Schema,
    Union,
    parts_of,
    short_name,
    takes_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: The types as which each of the writer's primitive types can be read, besides itself.
PROMOTIONS: Final = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


@dataclass(frozen=True, slots=True)
class Read:
    """Read a value of the writer's primitive or fixed schema as one of the reader's."""

    writer: Primitive | Fixed
    reader: Primitive | Fixed


@dataclass(frozen=True, slots=True)
class ReadEnum:
    """Read an index; `symbols` has the reader's symbol of each, or None where it has none."""

    symbols: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class ReadItems:
    """Read the blocks of an array or a map."""

    item: Action
    #: Whether each item takes at least one byte.
    takes_bytes: bool = True
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the writer's fields in their order, then add the reader's defaults."""

    reader: Record
    #: The position of each field in the reader's record, or None if it is skipped.
    fields: tuple[tuple[int | None, Action], ...]
    #: The reader's other fields: their positions, and their defaults in the reader's schema.
    defaults: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class ReadUnion:
    """Read the number of the writer's branch, and do what belongs to it."""

    branches: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Take one branch of the reader's union."""

    reader: Union
    branch: int
    action: Action


@dataclass(frozen=True, slots=True)
class Skip:
    """Read a value that the reader does not have."""

    writer: Schema


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail, since the schemas do not match."""

    problem: str


Action: TypeAlias = Read | ReadEnum | ReadItems | ReadRecord | ReadUnion | Choose | Skip | Fail


def resolve(writer: Schema, reader: Schema) -> Action:
    """Return how to read data of `writer` as values of `reader`.

    Raises `SchemaError` if the aliases of the reader give two fields of the writer one name, or a
    default that is needed is no value of its field.
    """
    return _resolve(_with_readers_names(writer, reader), reader)


def _resolve(writer: Schema, reader: Schema) -> Action:
    if isinstance(writer, Union):
        return _resolve_branches(writer, reader)
    if isinstance(reader, Union):
        number = _matching_branch(writer, reader)
        return _mismatch(writer, reader) if number is None else _choose(writer, reader, number)
    if type(writer) is not type(reader):
        return _mismatch(writer, reader)
    return _RESOLVERS[type(writer)](writer, reader)


def _resolve_branches(writer: Union, reader: Schema) -> ReadUnion:
    if isinstance(reader, Union) and _are_equivalent(writer, reader):
        numbers = range(len(writer.branches))
        return ReadUnion(tuple(_choose(writer.branches[n], reader, n) for n in numbers))
    return ReadUnion(tuple(_resolve(branch, reader) for branch in writer.branches))


def _choose(writer: Schema, reader: Union, number: int) -> Choose:
    return Choose(reader, number, _resolve(writer, reader.branches[number]))


def _resolve_arrays(writer: Array, reader: Array) -> Action:
    return ReadItems(_resolve(writer.items, reader.items), takes_bytes(writer.items))


def _resolve_maps(writer: Map, reader: Map) -> Action:
    return ReadItems(_resolve(writer.values, reader.values), is_map=True)


def _resolve_enums(writer: Enum, reader: Enum) -> Action:
    if short_name(writer.name) != short_name(reader.name):
        return _mismatch(writer, reader)
    symbols = [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
    return ReadEnum(tuple(symbols))


def _resolve_fixed(writer: Fixed, reader: Fixed) -> Action:
    if short_name(writer.name) != short_name(reader.name) or writer.size != reader.size:
        return _mismatch(writer, reader)
    return _resolve_units(writer, reader)


def _resolve_primitives(writer: Primitive, reader: Primitive) -> Action:
    if reader.type != writer.type and reader.type not in PROMOTIONS.get(writer.type, ()):
        return _mismatch(writer, reader)
    return _resolve_units(writer, reader)


def _resolve_units(writer: Primitive | Fixed, reader: Primitive | Fixed) -> Action:
    if _have_other_units(writer.logical, reader.logical):
        return _mismatch(writer, reader)
    return Read(writer, reader)


def _have_other_units(writer: str | DecimalType | None, reader: str | DecimalType | None) -> bool:
    if writer is None or reader is None:
        return False
    if isinstance(writer, DecimalType) and isinstance(reader, DecimalType):
        # More digits before the point change no value.
        return writer.scale != reader.scale or writer.precision > reader.precision
    return writer != reader


def _resolve_records(writer: Record, reader: Record) -> ReadRecord | Fail:
    positions = {field.name: number for number, field in enumerate(reader.fields)}
    written = {field.name for field in writer.fields}
    fields: list[tuple[int | None, Action]] = []
    for field in writer.fields:
        position = positions.get(field.name)
        if position is None:
            fields.append((None, Skip(field.schema)))
        else:
            fields.append((position, _resolve(field.schema, reader.fields[position].schema)))
    defaults = []
    for position, field in enumerate(reader.fields):
        if field.name not in written:
            if field.default is ABSENT:
                return Fail(
                    f"{_shown(writer)} has no field {field.name!r}, and that of the reader's "
                    f"{_shown(reader)} has no default"
                )
            defaults.append((position, default_bytes(field)))
    return ReadRecord(reader, tuple(fields), tuple(defaults))


def _matching_branch(writer: Schema, reader: Union) -> int | None:
    """Return which of the reader's branches takes a value of the writer.

    That is the first one of the same type, for a named type with the same full name; else a record
    whose fields match; else the first branch to which the value can be promoted.
    """
    same = [number for number, branch in enumerate(reader.branches) if branch.type == writer.type]
    if isinstance(writer, Named):
        same = _with_matching_name(writer, reader, same)
    promotions = PROMOTIONS.get(writer.type, frozenset())
    promoted = [n for n, branch in enumerate(reader.branches) if branch.type in promotions]
    return next(iter([*same, *promoted]), None)


def _with_matching_name(writer: Named, reader: Union, numbers: list[int]) -> list[int]:
    """Return the branches of the same type that match a named type, the best first."""
    branches = [(number, reader.branches[number]) for number in numbers]
    full = [n for n, branch in branches if isinstance(branch, Named) and branch.name == writer.name]
    if full or not isinstance(writer, Record):
        return full
    records = [
        (number, branch)
        for number, branch in branches
        if isinstance(branch, Record) and _fields_match(writer, branch)
    ]
    # As in Java, the last one with the same short name takes precedence, else the first one.
    short = [n for n, branch in records if short_name(branch.name) == short_name(writer.name)]
    return [*short[-1:], *(number for number, _ in records)]


def _fields_match(writer: Record, reader: Record) -> bool:
    action = _resolve_records(writer, reader)
    return isinstance(action, ReadRecord) and not any(
        isinstance(part, Fail) for _, part in action.fields
    )


def _are_equivalent(writer: Schema, reader: Schema) -> bool:
    """Return whether two schemas differ in no more than namespaces, logical types and defaults.

    The branches of equivalent unions belong together by their positions.
    """
    if _own(writer) != _own(reader):
        return False
    parts = parts_of(writer), parts_of(reader)
    return len(parts[0]) == len(parts[1]) and all(map(_are_equivalent, *parts))


def _own(schema: Schema) -> tuple[Any, ...]:
    """Return all that matters of a schema but its parts."""
    own: tuple[Any, ...] = ()
    match schema:
        case Fixed():
            own = (short_name(schema.name), schema.size)
        case Enum():
            own = (short_name(schema.name), schema.symbols)
        case Record():
            own = (short_name(schema.name), [field.name for field in schema.fields])
    return schema.type, *own


def _mismatch(writer: Schema, reader: Schema) -> Fail:
    return Fail(f"the writer's {_shown(writer)} cannot be read as {_shown(reader)}")


def _shown(schema: Schema) -> str:
    """Return a schema as a sentence about a mismatch has it."""
    shown: str = schema.type
    match schema:
        case Union():
            shown = f"union of {', '.join(map(_shown, schema.branches))}"
        case Fixed():
            shown = f"fixed {schema.name} of {schema.size} bytes{_in_brackets(schema.logical)}"
        case Primitive():
            shown = schema.type + _in_brackets(schema.logical)
        case Record() | Enum():
            shown = f"{schema.type} {schema.name}"
    return shown


def _in_brackets(logical: str | DecimalType | None) -> str:
    if isinstance(logical, DecimalType):
        return f" (decimal({logical.precision}, {logical.scale}))"
    return f" ({logical})" if logical else ""


def _with_readers_names(writer: Schema, reader: Schema) -> Schema:
    """Rename the writer's types and fields for which the reader has aliases."""
    if writer == reader:
        return writer
    types: dict[str, str] = {}
    fields: dict[str, dict[str, str]] = {}
    _collect_aliases(reader, types, fields)
    return _renamed(writer, types, fields) if types or fields else writer


def _collect_aliases(
    schema: Schema, types: dict[str, str], fields: dict[str, dict[str, str]]
) -> None:
    if isinstance(schema, Named):
        types.update(dict.fromkeys(schema.aliases, schema.name))
    if isinstance(schema, Record):
        for field in schema.fields:
            names = dict.fromkeys(field.aliases, field.name)
            fields.setdefault(schema.name, {}).update(names)
    for part in parts_of(schema):
        _collect_aliases(part, types, fields)


def _renamed(schema: Schema, types: dict[str, str], fields: dict[str, dict[str, str]]) -> Schema:
    parts = [_renamed(part, types, fields) for part in parts_of(schema)]
    match schema:
        case Enum() | Fixed():
            schema = replace(schema, name=types.get(schema.name, schema.name))
        case Array():
            schema = Array(parts[0])
        case Map():
            schema = Map(parts[0])
        case Union():
            schema = Union(tuple(parts))
        case Record():
            schema = _renamed_record(schema, parts, types, fields)
    return schema


def _renamed_record(
    record: Record, parts: list[Schema], types: dict[str, str], fields: dict[str, dict[str, str]]
) -> Record:
    name = types.get(record.name, record.name)
    aliases = fields.get(name, {})
    names = [aliases.get(field.name, field.name) for field in record.fields]
    if len(set(names)) < len(names):
        raise SchemaError(
            f"Avro: by the aliases in the reader's schema, two fields of the writer's "
            f"{record.name} have one name; remove the alias"
        )
    return Record(name, tuple(map(Field, names, parts)))


_RESOLVERS: Final[dict[type, Callable[[Any, Any], Action]]] = {
    Primitive: _resolve_primitives,
    Fixed: _resolve_fixed,
    Enum: _resolve_enums,
    Array: _resolve_arrays,
    Map: _resolve_maps,
    Record: _resolve_records,
}
