"""Schema resolution: how data of a writer's schema become values of a reader's schema.

`resolve` returns a tree of actions, by the rules of Java's `Resolver` (1.12). As there, what does
not match is an action itself (`Fail`): it fails only for data that reach it, such as a branch of a
union that the writer never chose.

One rule is stricter than Java's. Where both schemas have logical types of other units, scales or
fewer digits, Java reads the writer's number as if it were the reader's: a price of 1.00 becomes
100.00. Here that does not match.

A pair of schemas is resolved once, and the same action stands wherever the pair is used: actions
are a tree whose parts are shared, as those of a schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.defaults import DefaultEncoder
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
    are_same,
    parts_of,
    short_name,
    shortened,
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
#: More comparisons of two schemas, or of their fields, are refused.
MOST_COMPARISONS: Final = 300_000
#: The most branches of a union that an error names.
_SHOWN_BRANCHES: Final = 5


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
    #: The names of the fields, and their positions in the reader's record: None if it is skipped.
    fields: tuple[tuple[str, int | None, Action], ...]
    #: The reader's other fields: their positions, their defaults in the reader's schema, and how
    #: to read those.
    defaults: tuple[tuple[int, bytes, Action], ...]


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

    Raises `SchemaError` if the aliases of the reader give two fields of the writer one name, a
    default that is needed is no value of its field, or there is too much to compare.
    """
    return _Resolver().resolve(_with_readers_names(writer, reader), reader)


class _Resolver:
    """Resolves each pair of schemas once. Schemas are known by their identities."""

    def __init__(self) -> None:
        self._actions: dict[tuple[int, int], Action] = {}
        self._equivalent: dict[tuple[int, int], bool] = {}
        self._comparisons = 0
        self._encoder = DefaultEncoder()
        self._defaults: dict[int, bytes] = {}

    def resolve(self, writer: Schema, reader: Schema) -> Action:
        self._compare()
        pair = (id(writer), id(reader))
        if pair not in self._actions:
            self._actions[pair] = self._resolved(writer, reader)
        return self._actions[pair]

    def _compare(self, times: int = 1) -> None:
        self._comparisons += times
        if self._comparisons > MOST_COMPARISONS:
            raise SchemaError(
                "Avro: it takes too many comparisons to find out how the writer's schema is read "
                f"as the reader's (more than {MOST_COMPARISONS})"
            )

    def _resolved(self, writer: Schema, reader: Schema) -> Action:
        if isinstance(writer, Union):
            return self._resolve_branches(writer, reader)
        if isinstance(reader, Union):
            number = self._matching_branch(writer, reader)
            return (
                _mismatch(writer, reader)
                if number is None
                else self._choose(writer, reader, number)
            )
        if type(writer) is not type(reader):
            return _mismatch(writer, reader)
        return self._RESOLVERS[type(writer)](self, writer, reader)

    def _resolve_branches(self, writer: Union, reader: Schema) -> ReadUnion:
        if isinstance(reader, Union) and self._are_equivalent(writer, reader):
            numbers = range(len(writer.branches))
            return ReadUnion(tuple(self._choose(writer.branches[n], reader, n) for n in numbers))
        return ReadUnion(tuple(self.resolve(branch, reader) for branch in writer.branches))

    def _choose(self, writer: Schema, reader: Union, number: int) -> Choose:
        return Choose(reader, number, self.resolve(writer, reader.branches[number]))

    def _resolve_arrays(self, writer: Array, reader: Array) -> Action:
        return ReadItems(self.resolve(writer.items, reader.items), takes_bytes(writer.items))

    def _resolve_maps(self, writer: Map, reader: Map) -> Action:
        return ReadItems(self.resolve(writer.values, reader.values), is_map=True)

    def _resolve_enums(self, writer: Enum, reader: Enum) -> Action:
        if short_name(writer.name) != short_name(reader.name):
            return _mismatch(writer, reader)
        known = set(reader.symbols)
        symbols = [symbol if symbol in known else reader.default for symbol in writer.symbols]
        self._compare(len(symbols) + len(known))
        return ReadEnum(tuple(symbols))

    def _resolve_fixed(self, writer: Fixed, reader: Fixed) -> Action:
        if short_name(writer.name) != short_name(reader.name) or writer.size != reader.size:
            return _mismatch(writer, reader)
        return _resolve_units(writer, reader)

    def _resolve_primitives(self, writer: Primitive, reader: Primitive) -> Action:
        if reader.type != writer.type and reader.type not in PROMOTIONS.get(writer.type, ()):
            return _mismatch(writer, reader)
        return _resolve_units(writer, reader)

    def _resolve_records(self, writer: Record, reader: Record) -> ReadRecord | Fail:
        self._compare(len(writer.fields) + len(reader.fields))
        positions = {field.name: number for number, field in enumerate(reader.fields)}
        written = {field.name for field in writer.fields}
        fields: list[tuple[str, int | None, Action]] = []
        for field in writer.fields:
            position = positions.get(field.name)
            if position is None:
                fields.append((field.name, None, Skip(field.schema)))
            else:
                action = self.resolve(field.schema, reader.fields[position].schema)
                fields.append((field.name, position, action))
        defaults = []
        for position, field in enumerate(reader.fields):
            if field.name not in written:
                if field.default is ABSENT:
                    return Fail(
                        f"{_shown(writer)} has no field '{shortened(field.name)}', and the field "
                        f"of the reader's {_shown(reader)} has no default"
                    )
                data = self._default_bytes(field)
                defaults.append((position, data, self.resolve(field.schema, field.schema)))
        return ReadRecord(reader, tuple(fields), tuple(defaults))

    def _default_bytes(self, field: Field) -> bytes:
        if id(field) not in self._defaults:
            self._defaults[id(field)] = self._encoder.default_bytes(field)
        return self._defaults[id(field)]

    def _matching_branch(self, writer: Schema, reader: Union) -> int | None:
        """Return which of the reader's branches takes a value of the writer.

        That is the first one of the same type, for a named type with the same full name; else a
        record whose fields match; else the first branch to which the value can be promoted.
        """
        self._compare(len(reader.branches) // 16)
        same = [number for number, part in enumerate(reader.branches) if part.type == writer.type]
        if isinstance(writer, Named):
            same = self._with_matching_name(writer, reader, same)
        promotions = PROMOTIONS.get(writer.type, frozenset())
        promoted = [n for n, branch in enumerate(reader.branches) if branch.type in promotions]
        return next(iter([*same, *promoted]), None)

    def _with_matching_name(self, writer: Named, reader: Union, numbers: list[int]) -> list[int]:
        """Return the branches of the same type that match a named type, the best first."""
        branches = [(number, reader.branches[number]) for number in numbers]
        full = [n for n, part in branches if isinstance(part, Named) and part.name == writer.name]
        if full or not isinstance(writer, Record):
            return full
        records = [
            (number, branch)
            for number, branch in branches
            if isinstance(branch, Record) and self._fields_match(writer, branch)
        ]
        # As in Java, the last one with the same short name takes precedence, else the first one.
        short = [n for n, branch in records if short_name(branch.name) == short_name(writer.name)]
        return [*short[-1:], *(number for number, _ in records)]

    def _fields_match(self, writer: Record, reader: Record) -> bool:
        action = self.resolve(writer, reader)
        self._compare(len(writer.fields))
        return isinstance(action, ReadRecord) and not any(
            isinstance(part, Fail) for _, _, part in action.fields
        )

    def _are_equivalent(self, writer: Schema, reader: Schema) -> bool:
        """Return whether two schemas differ in no more than namespaces, logical types and defaults.

        The branches of equivalent unions belong together by their positions.
        """
        self._compare()
        pair = (id(writer), id(reader))
        if pair not in self._equivalent:
            parts = parts_of(writer), parts_of(reader)
            self._equivalent[pair] = (
                _own(writer) == _own(reader)
                and len(parts[0]) == len(parts[1])
                and all(map(self._are_equivalent, *parts))
            )
        return self._equivalent[pair]

    _RESOLVERS: ClassVar[dict[type, Callable[[Any, Any, Any], Action]]] = {
        Primitive: _resolve_primitives,
        Fixed: _resolve_fixed,
        Enum: _resolve_enums,
        Array: _resolve_arrays,
        Map: _resolve_maps,
        Record: _resolve_records,
    }


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
            branches = [*map(_shown_branch, schema.branches[:_SHOWN_BRANCHES])]
            if len(schema.branches) > _SHOWN_BRANCHES:
                branches.append(f"{len(schema.branches) - _SHOWN_BRANCHES} more")
            shown = f"union of {', '.join(branches)}"
        case Fixed():
            logical = _in_brackets(schema.logical)
            shown = f"fixed {shortened(schema.name)} of {schema.size} bytes{logical}"
        case Primitive():
            shown = schema.type + _in_brackets(schema.logical)
        case Record() | Enum():
            shown = f"{schema.type} {shortened(schema.name)}"
    return shown


def _shown_branch(schema: Schema) -> str:
    # A union is no branch of another one.
    return schema.type if isinstance(schema, Union) else _shown(schema)


def _in_brackets(logical: str | DecimalType | None) -> str:
    if isinstance(logical, DecimalType):
        return f" (decimal({logical.precision}, {logical.scale}))"
    return f" ({shortened(logical)})" if logical else ""


def _with_readers_names(writer: Schema, reader: Schema) -> Schema:
    """Rename the writer's types and fields for which the reader has aliases."""
    if are_same(writer, reader):
        return writer
    names = _Names()
    names.collect(reader)
    return names.renamed(writer) if names.types or names.fields else writer


class _Names:
    """The names of a reader's types and fields, by their aliases."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self.fields: dict[str, dict[str, str]] = {}
        self._collected: set[int] = set()
        self._renamed: dict[int, Schema] = {}

    def collect(self, schema: Schema) -> None:
        if id(schema) in self._collected:
            return
        self._collected.add(id(schema))
        if isinstance(schema, Named):
            self.types.update(dict.fromkeys(schema.aliases, schema.name))
        if isinstance(schema, Record):
            for field in schema.fields:
                if field.aliases:
                    names = dict.fromkeys(field.aliases, field.name)
                    self.fields.setdefault(schema.name, {}).update(names)
        for part in parts_of(schema):
            self.collect(part)

    def renamed(self, schema: Schema) -> Schema:
        """Return a writer's schema with the reader's names."""
        if id(schema) not in self._renamed:
            self._renamed[id(schema)] = self._made(schema)
        return self._renamed[id(schema)]

    def _made(self, schema: Schema) -> Schema:
        parts = [self.renamed(part) for part in parts_of(schema)]
        match schema:
            case Enum() | Fixed():
                schema = replace(schema, name=self.types.get(schema.name, schema.name))
            case Array():
                schema = Array(parts[0])
            case Map():
                schema = Map(parts[0])
            case Union():
                schema = Union(tuple(parts))
            case Record():
                schema = self._made_record(schema, parts)
        return schema

    def _made_record(self, record: Record, parts: list[Schema]) -> Record:
        name = self.types.get(record.name, record.name)
        aliases = self.fields.get(name, {})
        names = [aliases.get(field.name, field.name) for field in record.fields]
        if len(set(names)) < len(names):
            raise SchemaError(
                f"Avro: by the aliases in the reader's schema, two fields of the writer's "
                f"{shortened(record.name)} have one name; remove the alias"
            )
        return Record(name, tuple(map(Field, names, parts)))
