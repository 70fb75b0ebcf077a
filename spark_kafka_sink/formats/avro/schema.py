"""Avro schemas: the types, and the parser of their JSON text.

`parse_schema` follows Java's `Schema.Parser` (1.12). It refuses more: a recursive schema, since no
column can have its type; a name that is used before it is defined, or defined twice; a key that an
object has twice. A default value is checked when it is needed (`default_bytes`), since registries
keep schemas whose defaults are wrong.

A logical type that its schema cannot have, such as a date on a string, is ignored, as the
specification demands; so is an unknown one.
"""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
#: The logical types that a schema of a type without parameters can have.
_LOGICAL_TYPES: Final = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        "timestamp-millis",
        "timestamp-micros",
        "timestamp-nanos",
        "local-timestamp-millis",
        "local-timestamp-micros",
        "local-timestamp-nanos",
    ),
    "string": ("uuid",),
}
#: The size of a fixed schema that its logical type demands.
_FIXED_SIZES: Final = {"duration": 12, "uuid": 16}


class Absent(enum.Enum):
    """What a field has that has no default: null would be one. It remains itself in copies."""

    ABSENT = enum.auto()


ABSENT: Final = Absent.ABSENT
#: The most letters that an error shows of a value.
_SHOWN: Final = 40
#: Deeper schemas are refused: every walk over a schema is recursive.
MOST_LEVELS: Final = 100


class DecimalType(NamedTuple):
    """The logical type decimal."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Primitive:
    """A schema without a name and without parts."""

    #: One of `PRIMITIVES`.
    type: str
    logical: str | DecimalType | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Byte strings of one size, in bytes."""

    name: str
    size: int
    logical: str | DecimalType | None = None
    aliases: tuple[str, ...] = ()
    type: str = field(default="fixed", init=False)


@dataclass(frozen=True, slots=True)
class Enum:
    """One of some symbols; `default` stands for a writer's symbol that is not among them."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    type: str = field(default="enum", init=False)


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items of one schema."""

    items: Schema
    type: str = field(default="array", init=False)


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one schema by strings."""

    values: Schema
    type: str = field(default="map", init=False)


@dataclass(frozen=True, slots=True)
class Union:
    """A value of one of several schemas."""

    branches: tuple[Schema, ...]
    type: str = field(default="union", init=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record; `default` is a value of JSON, or `ABSENT`."""

    name: str
    schema: Schema
    default: Any = ABSENT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields; the name is the full one, with the namespace."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()
    type: str = field(default="record", init=False)


_Json: TypeAlias = dict[str, Any]
Named: TypeAlias = Fixed | Enum | Record
_Named = TypeVar("_Named", Fixed, Enum, Record)
Schema: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record


def parse_schema(text: str, references: Sequence[str] = ()) -> Schema:
    """Parse the JSON text of a schema.

    `references` are the texts of schemas whose names this one uses, each after those that it uses
    itself. Raises `SchemaError` with the path of the part that is wrong.
    """
    parser = _Parser()
    for reference in references:
        parser.parse(_json_of(reference, "the text of a referenced schema"))
    return parser.parse(_json_of(text, "the text of the schema"))


def short_name(name: str) -> str:
    """Return a full name without its namespace."""
    return name.rpartition(".")[2]


def parts_of(schema: Schema) -> tuple[Schema, ...]:
    """Return the schemas that a schema consists of, in their order."""
    match schema:
        case Record():
            return tuple(field.schema for field in schema.fields)
        case Union():
            return schema.branches
        case Array():
            return (schema.items,)
        case Map():
            return (schema.values,)
    return ()


def takes_bytes(schema: Schema) -> bool:
    """Return whether each value of a schema takes at least one byte."""
    match schema:
        case Primitive():
            return schema.type != "null"
        case Fixed():
            return schema.size > 0
        case Record():
            return any(map(takes_bytes, parts_of(schema)))
    return True


def describe(schema: Schema) -> str:
    """Return what an error calls a schema: its name, or its type."""
    return schema.name if isinstance(schema, Named) else schema.type


def _json_of(text: str, what: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except RecursionError:
        message = f"{what} has too many levels"
    except ValueError as error:
        message = f"{what} is not JSON: {error}"
    raise SchemaError(message)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    properties = dict(pairs)
    if len(properties) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return properties


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


class _Parser:
    """Parses schemas that share their names."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        #: The names of the records whose fields are being parsed.
        self._open: list[str] = []

    def parse(self, json_value: Any) -> Schema:
        return self._parse(json_value, "", "", 0)

    def _parse(self, value: Any, namespace: str, path: str, level: int) -> Schema:
        if level > MOST_LEVELS:
            raise _wrong(path, f"the schema has more than {MOST_LEVELS} levels")
        if isinstance(value, str):
            return self._find(value, namespace, path)
        if isinstance(value, list):
            return self._union(value, namespace, path, level)
        if not isinstance(value, dict):
            raise _wrong(path, f"a schema is a name, an object or a list, not {_shown(value)}")
        kind = value.get("type")
        if not isinstance(kind, str):
            raise _wrong(path, f"'type' must be a name, not {_shown(kind)}")
        if kind in PRIMITIVES:
            return Primitive(kind, _logical_type(value, kind))
        if kind in self._PARSERS:
            return self._PARSERS[kind](self, value, namespace, path, level)
        return self._find(kind, namespace, path)

    def _array(self, value: _Json, namespace: str, path: str, level: int) -> Array:
        return Array(self._part(value, "items", namespace, path, level))

    def _map(self, value: _Json, namespace: str, path: str, level: int) -> Map:
        return Map(self._part(value, "values", namespace, path, level))

    def _part(self, value: _Json, key: str, namespace: str, path: str, level: int) -> Schema:
        if key not in value:
            raise _wrong(path, f"'{key}' is missing")
        return self._parse(value[key], namespace, f"{path}.{key}" if path else key, level + 1)

    def _find(self, name: str, namespace: str, path: str) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        names = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for full_name in names:
            if full_name in self._open:
                raise _wrong(
                    path,
                    f"the schema is recursive ({full_name} contains itself): no column can "
                    "have its type",
                )
            if full_name in self._named:
                return self._named[full_name]
        raise _wrong(path, f"the type {name!r} is not defined")

    def _union(self, values: list[Any], namespace: str, path: str, level: int) -> Union:
        branches: list[Schema] = []
        names: set[str] = set()
        for number, value in enumerate(values):
            branch_path = f"{path}[{number}]"
            branch = self._parse(value, namespace, branch_path, level + 1)
            if isinstance(branch, Union):
                raise _wrong(branch_path, "a union cannot be a branch of a union")
            if describe(branch) in names:
                raise _wrong(branch_path, f"the union has {describe(branch)} twice")
            names.add(describe(branch))
            branches.append(branch)
        return Union(tuple(branches))

    def _record(self, value: _Json, namespace: str, path: str, level: int) -> Record:
        name, aliases = self._name(value, namespace, path)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise _wrong(path, f"the record {name} needs a list of fields")
        space = name.rpartition(".")[0]
        self._open.append(name)
        parsed: dict[str, Field] = {}
        for json_field in fields:
            if not isinstance(json_field, dict):
                raise _wrong(path, f"a field of {name} is an object, not {_shown(json_field)}")
            field_name = _checked_name(json_field.get("name"), path, f"a field of {name}")
            field_path = f"{path}.{field_name}" if path else field_name
            if field_name in parsed:
                raise _wrong(field_path, f"the record {name} has this field twice")
            parsed[field_name] = Field(
                field_name,
                self._field_type(json_field, space, field_path, level),
                json_field.get("default", ABSENT),
                _texts(json_field, "aliases", field_path),
            )
        self._open.pop()
        return self._define(Record(name, tuple(parsed.values()), aliases))

    def _field_type(self, json_field: _Json, namespace: str, path: str, level: int) -> Schema:
        if "type" not in json_field:
            raise _wrong(path, "'type' is missing")
        return self._parse(json_field["type"], namespace, path, level + 1)

    def _enum(self, value: _Json, namespace: str, path: str, _: int) -> Enum:
        name, aliases = self._name(value, namespace, path)
        symbols = _texts(value, "symbols", path)
        if "symbols" not in value:
            raise _wrong(path, f"the enum {name} needs a list of symbols")
        for symbol in symbols:
            _checked_name(symbol, path, f"a symbol of {name}")
        if len(set(symbols)) < len(symbols):
            raise _wrong(path, f"the enum {name} has a symbol twice")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise _wrong(path, f"the default of the enum {name} is not one of its symbols")
        return self._define(Enum(name, symbols, default, aliases))

    def _fixed(self, value: _Json, namespace: str, path: str, _: int) -> Fixed:
        name, aliases = self._name(value, namespace, path)
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
            raise _wrong(path, f"the size of {name} is a number of bytes, not {_shown(size)}")
        return self._define(Fixed(name, size, _logical_type(value, "fixed", size), aliases))

    def _name(self, value: _Json, namespace: str, path: str) -> tuple[str, tuple[str, ...]]:
        """Return the full name of a named schema, and its aliases in full."""
        name = value.get("name")
        if not isinstance(name, str):
            raise _wrong(path, f"the name of a {value['type']} is a text, not {_shown(name)}")
        space = value.get("namespace", namespace)
        if not isinstance(space, str):
            raise _wrong(path, f"the namespace of {name!r} is a text, not {_shown(space)}")
        full_name = name if "." in name or not space else f"{space}.{name}"
        for part in full_name.split("."):
            _checked_name(part, path, f"a part of the name {full_name!r}")
        if full_name in PRIMITIVES:
            raise _wrong(path, f"a {value['type']} cannot have the name of the type {full_name}")
        if full_name in self._named or full_name in self._open:
            raise _wrong(path, f"the type {full_name} is defined twice")
        own_space = full_name.rpartition(".")[0]
        aliases = tuple(
            alias if "." in alias or not own_space else f"{own_space}.{alias}"
            for alias in _texts(value, "aliases", path)
        )
        return full_name, aliases

    def _define(self, schema: _Named) -> _Named:
        self._named[schema.name] = schema
        return schema

    _PARSERS: ClassVar[dict[str, Callable[[Any, _Json, str, str, int], Schema]]] = {
        "record": _record,
        "error": _record,
        "enum": _enum,
        "array": _array,
        "map": _map,
        "fixed": _fixed,
    }


def _wrong(path: str, problem: str) -> SchemaError:
    return SchemaError(f"Avro schema, {path}: {problem}" if path else f"Avro schema: {problem}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _checked_name(name: Any, path: str, what: str) -> str:
    """Check a name as Java's `NameValidator.UTF_VALIDATOR` does."""
    if not isinstance(name, str) or not name:
        raise _wrong(path, f"{what} is a name, not {_shown(name)}")
    if not all(letter.isalnum() or letter == "_" for letter in name) or name[0].isdigit():
        raise _wrong(path, f"{what} has letters, digits and underscores only, unlike {name!r}")
    return name


def _texts(value: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
    texts = value.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _wrong(path, f"'{key}' is a list of texts, not {_shown(texts)}")
    return tuple(texts)


def _logical_type(value: Mapping[str, Any], kind: str, size: int = 0) -> str | DecimalType | None:
    logical = value.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = value.get("precision"), value.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            return None
        # The most digits that every number of so many bytes can have.
        most = math.floor(math.log10(2) * (8 * size - 1)) if kind == "fixed" and size else 0
        fits = kind == "bytes" or precision <= most
        return DecimalType(precision, scale) if 0 <= scale <= precision > 0 and fits else None
    if kind == "fixed":
        return logical if _FIXED_SIZES.get(str(logical)) == size else None
    return logical if logical in _LOGICAL_TYPES.get(kind, ()) else None
