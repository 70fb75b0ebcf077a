"""Avro schemas as a registry needs them: parsed from JSON, recursive ones included.

`parse_schema` follows Java's `Schema.Parser` (1.12): a name may be used before its definition, and
defined twice if both definitions are equal. With `strict`, as for a schema that is registered,
names have ASCII letters, digits and underscores only, and defaults must fit their fields.

A type is an object that its parts may lead back to, so types are compared by identity, and
`same_schema` compares their content. Nothing changes a type once it is parsed.

Differences from Java: a schema of more than `MOST_LEVELS` levels or `MOST_PARTS` parts, and
comments in the JSON, are refused.
"""

from __future__ import annotations

import enum
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Json: TypeAlias = Any

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_NAMED: Final = frozenset({"record", "enum", "fixed"})
#: The keys of a schema that are not properties of its own.
_RESERVED: Final = frozenset(
    {
        "doc",
        "fields",
        "items",
        "name",
        "namespace",
        "size",
        "symbols",
        "values",
        "type",
        "aliases",
    }
)
_RESERVED_OF_ENUM: Final = _RESERVED | {"default"}
_RESERVED_OF_FIELD: Final = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_ORDERS: Final = frozenset({"ascending", "descending", "ignore"})
_STRICT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Deeper schemas are refused: every walk over a schema is recursive.
MOST_LEVELS: Final = 100
#: Schemas with more types, fields, symbols and properties, those of their references included, are
#: refused: everything else waits while one is handled.
MOST_PARTS: Final = 10_000
#: The most letters of a value that an error shows.
_SHOWN: Final = 60
_INT32: Final = 2**31
_INT64: Final = 2**63


class InvalidSchemaError(ValueError):
    """A text that is not a schema, or a schema that cannot be registered."""


class Absent(enum.Enum):
    """What a field has that has no default: null would be one."""

    ABSENT = enum.auto()


ABSENT: Final = Absent.ABSENT


class Name(NamedTuple):
    """The name of a record, an enum or a fixed type; the null namespace is None."""

    namespace: str | None
    short: str

    @property
    def full(self) -> str:
        """The name with its namespace."""
        return self.short if self.namespace is None else f"{self.namespace}.{self.short}"


_NO_NAME: Final = Name(None, "")


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record, without its type; `default` is a value of JSON, or `ABSENT`."""

    name: str
    default: Json = ABSENT
    doc: str | None = None
    #: One of "ascending", "descending", "ignore".
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    properties: dict[str, Json] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AvroType:
    """A type and its parts; which attributes have a meaning depends on `type`."""

    #: A primitive type, "array", "map", "union", "record", "enum" or "fixed".
    type: str
    #: The items of an array, the values of a map, the branches of a union, the fields of a record.
    parts: list[AvroType] = field(default_factory=list)
    properties: dict[str, Json] = field(default_factory=dict)
    #: Of a record, an enum or a fixed type.
    name: Name = _NO_NAME
    doc: str | None = None
    aliases: tuple[Name, ...] = ()
    #: Of a record; `parts` has their types.
    fields: list[Field] = field(default_factory=list)
    is_error: bool = False
    #: Of an enum.
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    #: Of a fixed type, in bytes.
    size: int = 0

    @property
    def is_named(self) -> bool:
        """Whether the type has a name by which others can refer to it."""
        return self.type in _NAMED

    @property
    def full_name(self) -> str:
        """The name in a union and in messages: that of a type without one is its kind."""
        return self.name.full if self.is_named else self.type


def parse_schema(text: str, references: Sequence[str] = (), *, strict: bool = False) -> AvroType:
    """Parse the text of a schema.

    `references` are the texts of the schemas whose names it uses, each after those that it uses
    itself. Raises `InvalidSchemaError`, which says where.
    """
    return parse_schemas([*references, text], strict=strict)[-1]


def parse_schemas(texts: Sequence[str], *, strict: bool = False) -> list[AvroType]:
    """Parse schemas in their order: each may use the names of the earlier ones.

    Raises `InvalidSchemaError`, which says where.
    """
    parser = _Parser(strict=strict)
    try:
        return [parser.parse(text) for text in texts]
    except RecursionError:
        raise InvalidSchemaError("a default of the schema has too many levels") from None


def types_of(schema: AvroType) -> Iterator[AvroType]:
    """Yield each type of a schema once, itself first."""
    seen = {id(schema)}
    pending = [schema]
    while pending:
        reached = pending.pop()
        yield reached
        for part in reached.parts:
            if id(part) not in seen:
                seen.add(id(part))
                pending.append(part)


def same_schema(first: AvroType, second: AvroType) -> bool:
    """Return whether two schemas are equal; documentation and aliases have no meaning."""
    seen = {(id(first), id(second))}
    pending = [(first, second)]
    while pending:
        one, other = pending.pop()
        if one is other:
            continue
        if len(one.parts) != len(other.parts) or _content(one) != _content(other):
            return False
        for pair in zip(one.parts, other.parts, strict=True):
            if (key := (id(pair[0]), id(pair[1]))) not in seen:
                seen.add(key)
                pending.append(pair)
    return True


def _content(schema: AvroType) -> tuple[object, ...]:
    """Return what Java's `Schema.equals` compares of a type, without its parts."""
    return (
        schema.full_name,
        schema.type,
        _sorted_json(schema.properties),
        schema.symbols,
        schema.size,
        [
            (
                field.name,
                field.default is ABSENT,
                _sorted_json(None if field.default is ABSENT else field.default),
                field.order,
                _sorted_json(field.properties),
            )
            for field in schema.fields
        ],
    )


def _sorted_json(value: Json) -> str:
    # Not the value itself: in Python, 1 equals 1.0 and true.
    return json.dumps(value, sort_keys=True)


class _Unresolved(NamedTuple):
    """A use of a name that was not defined yet: `parts[number]` becomes its type."""

    parts: list[AvroType]
    number: int
    name: str
    path: str


class _Parser:
    """Parses schemas that share their names."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._named: dict[str, AvroType] = {}
        self._unresolved: list[_Unresolved] = []
        self._redefined: list[tuple[AvroType, AvroType]] = []
        self._parts = 0

    def parse(self, text: str) -> AvroType:
        # The schema itself is a part, too: it may be a name.
        whole: list[AvroType] = []
        self._add(whole, _json_of(text), None, "", 0)
        unresolved, self._unresolved = self._unresolved, []
        for parts, index, name, path in unresolved:
            if name not in self._named:
                raise _wrong(path, f"the type {_shown(name)} is not defined")
            parts[index] = self._named[name]
        for first, second in self._redefined:
            if not same_schema(first, second):
                raise InvalidSchemaError(
                    f"the type {first.full_name} is defined twice, differently"
                )
        self._redefined.clear()
        (schema,) = whole
        defaults = _Defaults()
        for reached in types_of(schema):
            if reached.type == "union":
                _check_union(reached)
            if self._strict and reached.type == "record":
                defaults.check(reached)
        return schema

    def _add(
        self, parts: list[AvroType], value: Json, namespace: str | None, path: str, level: int
    ) -> None:
        """Parse a part of a schema, and append it to the parts."""
        if level > MOST_LEVELS:
            raise _wrong(path, f"the schema has more than {MOST_LEVELS} levels")
        self._count(1 + len(value) if isinstance(value, dict) else 1)
        if isinstance(value, str):
            self._add_name(parts, value, namespace, path)
        elif isinstance(value, list):
            union = AvroType("union")
            parts.append(union)
            for number, branch in enumerate(value):
                self._add(union.parts, branch, namespace, f"{path}[{number}]", level + 1)
        elif isinstance(value, dict):
            parts.append(self._object(value, namespace, path, level))
        else:
            raise _wrong(path, f"a schema is a name, an object or a list, not {_shown(value)}")

    def _add_name(self, parts: list[AvroType], name: str, namespace: str | None, path: str) -> None:
        if name in PRIMITIVES:
            parts.append(AvroType(name))
            return
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full_name) or self._named.get(name)
        if found is not None:
            parts.append(found)
            return
        self._unresolved.append(_Unresolved(parts, len(parts), full_name, path))
        parts.append(AvroType("null"))

    def _object(
        self, value: dict[str, Json], namespace: str | None, path: str, level: int
    ) -> AvroType:
        kind = value.get("type")
        if not isinstance(kind, str):
            raise _wrong(path, f"'type' must be a name, not {_shown(kind)}")
        if kind in PRIMITIVES:
            return AvroType(kind, properties=_properties(value, _RESERVED))
        if kind in {"array", "map"}:
            key = "items" if kind == "array" else "values"
            if key not in value:
                raise _wrong(path, f"'{key}' is missing")
            schema = AvroType(kind, properties=_properties(value, _RESERVED))
            self._add(schema.parts, value[key], namespace, _below(path, key), level + 1)
            return schema
        make = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
        }.get(kind)
        if make is None:
            raise _wrong(path, f"{_shown(kind)} is not a type")
        return make(value, namespace, path, level)

    def _record(
        self, value: dict[str, Json], namespace: str | None, path: str, level: int
    ) -> AvroType:
        schema = self._start(value, "record", namespace, path)
        schema.is_error = value["type"] == "error"
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise _wrong(path, f"the record {schema.full_name} needs a list of fields")
        names: set[str] = set()
        for json_field in fields:
            if not isinstance(json_field, dict):
                raise _wrong(path, f"a field is an object, not {_shown(json_field)}")
            name = self._checked(json_field.get("name"), path, "a field")
            if name in names:
                raise _wrong(_below(path, name), "the record has this field twice")
            names.add(name)
            self._field(schema, name, json_field, _below(path, name), level)
        return self._define(schema)

    def _field(
        self, record: AvroType, name: str, value: dict[str, Json], path: str, level: int
    ) -> None:
        if "type" not in value:
            raise _wrong(path, "'type' is missing")
        self._add(record.parts, value["type"], record.name.namespace, path, level + 1)
        order = value.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise _wrong(path, f"'order' is ascending, descending or ignore, not {_shown(order)}")
        default = value.get("default", ABSENT)
        if isinstance(default, str) and record.parts[-1].type in {"float", "double"}:
            try:
                default = float(default)
            except ValueError:
                raise _wrong(path, f"the default {_shown(default)} is not a number") from None
        record.fields.append(
            Field(
                name,
                default,
                _text(value, "doc"),
                order.lower(),
                _aliases(value, path),
                _properties(value, _RESERVED_OF_FIELD),
            )
        )

    def _enum(self, value: dict[str, Json], namespace: str | None, path: str, _: int) -> AvroType:
        schema = self._start(value, "enum", namespace, path)
        symbols = value.get("symbols")
        if not isinstance(symbols, list):
            raise _wrong(path, f"the enum {schema.full_name} needs a list of symbols")
        self._count(len(symbols))
        schema.symbols = tuple(self._checked(symbol, path, "a symbol") for symbol in symbols)
        if len(set(schema.symbols)) < len(symbols):
            raise _wrong(path, f"the enum {schema.full_name} has a symbol twice")
        schema.default_symbol = _text(value, "default")
        if schema.default_symbol is not None and schema.default_symbol not in schema.symbols:
            raise _wrong(
                path, f"the default of the enum {schema.full_name} is not one of its symbols"
            )
        return self._define(schema)

    def _fixed(self, value: dict[str, Json], namespace: str | None, path: str, _: int) -> AvroType:
        schema = self._start(value, "fixed", namespace, path)
        size = value.get("size")
        if type(size) is not int or not 0 <= size < _INT32:
            raise _wrong(path, f"'size' is a number of bytes, not {_shown(size)}")
        schema.size = size
        return self._define(schema)

    def _start(
        self, value: dict[str, Json], kind: str, namespace: str | None, path: str
    ) -> AvroType:
        """Return a type with a name, and what all of them have."""
        text = value.get("name")
        if not isinstance(text, str):
            raise _wrong(path, f"the name of a {kind} is a text, not {_shown(text)}")
        space = _text(value, "namespace")
        name = _name(text, namespace if space is None else space)
        self._checked(name.short, path, f"a {kind}")
        if self._strict and name.namespace is not None:
            for part in name.namespace.split("."):
                self._checked(part, path, "a part of a namespace")
        if name.full in PRIMITIVES:
            raise _wrong(path, f"a {kind} cannot have the name of the type {name.full}")
        return AvroType(
            kind,
            properties=_properties(value, _RESERVED_OF_ENUM if kind == "enum" else _RESERVED),
            name=name,
            doc=_text(value, "doc"),
            aliases=tuple(
                dict.fromkeys(_name(alias, name.namespace) for alias in _aliases(value, path))
            ),
        )

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > MOST_PARTS:
            raise InvalidSchemaError(f"the schema has more than {MOST_PARTS} parts")

    def _define(self, schema: AvroType) -> AvroType:
        # Only now: within a record its own name is one that is not defined yet.
        first = self._named.setdefault(schema.full_name, schema)
        if first is not schema:
            self._redefined.append((first, schema))
        return schema

    def _checked(self, name: Json, path: str, what: str) -> str:
        """Check a name as Java's `NameValidator` does."""
        if isinstance(name, str):
            if _STRICT_NAME.fullmatch(name):
                return name
            letters = name.replace("_", "a")
            if not self._strict and letters.isalnum() and letters[0].isalpha():
                return name
        raise _wrong(
            path,
            f"the name of {what} begins with a letter or an underscore, and has letters, digits "
            f"and underscores only, unlike {_shown(name)}",
        )


def _json_of(text: str) -> Json:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        message = "the schema has too many levels"
    except ValueError as error:
        message = f"the schema is not JSON: {error}"
    raise InvalidSchemaError(message)


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a value of JSON")


def _wrong(path: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"at {path}: {problem}" if path else problem)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _name(text: str, namespace: str | None) -> Name:
    """Return a name: its own namespace takes precedence over that of its place."""
    if "." in text:
        namespace, _, text = text.rpartition(".")
    return Name(namespace or None, text)


def _text(value: Mapping[str, Json], key: str) -> str | None:
    """Return a text; as in Java, a value of another type counts as missing."""
    text = value.get(key)
    return text if isinstance(text, str) else None


def _aliases(value: Mapping[str, Json], path: str) -> tuple[str, ...]:
    aliases = value.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise _wrong(path, f"'aliases' is a list of names, not {_shown(aliases)}")
    return tuple(dict.fromkeys(aliases))


def _properties(value: Mapping[str, Json], reserved: frozenset[str]) -> dict[str, Json]:
    return {key: part for key, part in value.items() if key not in reserved}


def _check_union(union: AvroType) -> None:
    names: set[str] = set()
    for branch in union.parts:
        if branch.type == "union":
            raise InvalidSchemaError("a union cannot be a branch of a union")
        if branch.full_name in names:
            raise InvalidSchemaError(f"a union has {branch.full_name} twice")
        names.add(branch.full_name)


class _Defaults:
    """Checks the defaults of the records of a schema, each part of one once."""

    def __init__(self) -> None:
        #: By the ids of value and type. A default that contains itself, by way of the default of a
        #: field that it lacks, does not fit.
        self._fits: dict[tuple[int, int], bool] = {}

    def check(self, record: AvroType) -> None:
        """Raise `InvalidSchemaError` for a default that is not a value of its field."""
        for record_field, schema in zip(record.fields, record.parts, strict=True):
            default = record_field.default
            if default is not ABSENT and not self.fits(default, schema):
                raise InvalidSchemaError(
                    f"the default of the field {record_field.name} of {record.full_name} is "
                    f"{_shown(default)}, which is not a value of its type {schema.full_name}"
                )

    def fits(self, value: Json, schema: AvroType) -> bool:
        """Return whether a default is a value of a type; that of a union may be of any branch."""
        if not schema.parts and schema.type in _FITS:
            return _FITS[schema.type](value)
        key = id(value), id(schema)
        if key not in self._fits:
            self._fits[key] = False
            self._fits[key] = self._parts_fit(value, schema)
        return self._fits[key]

    def _parts_fit(self, value: Json, schema: AvroType) -> bool:
        if schema.type == "union":
            return any(self.fits(value, branch) for branch in schema.parts)
        if schema.type == "array":
            (items,) = schema.parts
            return isinstance(value, list) and all(self.fits(item, items) for item in value)
        if not isinstance(value, dict):
            return False
        if schema.type == "map":
            (values,) = schema.parts
            return all(self.fits(item, values) for item in value.values())
        parts = (value.get(known.name, known.default) for known in schema.fields)
        return all(
            part is not ABSENT and self.fits(part, part_schema)
            for part, part_schema in zip(parts, schema.parts, strict=True)
        )


def _is_number(value: Json) -> bool:
    return type(value) in {int, float}


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


_FITS: Final[dict[str, Callable[[Json], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -_INT32 <= value < _INT32,
    "long": lambda value: type(value) is int and -_INT64 <= value < _INT64,
    "float": _is_number,
    "double": _is_number,
    "bytes": _is_text,
    "string": _is_text,
    "enum": _is_text,
    "fixed": _is_text,
}

#: The logical types, and the types that can have them.
_LOGICAL_TYPES: Final = {
    "big-decimal": ("bytes",),
    "date": ("int",),
    "time-millis": ("int",),
    "uuid": ("string",),
    **dict.fromkeys(
        (
            "time-micros",
            "timestamp-millis",
            "timestamp-micros",
            "timestamp-nanos",
            "local-timestamp-millis",
            "local-timestamp-micros",
            "local-timestamp-nanos",
        ),
        ("long",),
    ),
}


def logical_properties(schema: AvroType) -> tuple[str, ...]:
    """Return the properties of a type's logical type, if it has a valid one."""
    logical = schema.properties.get("logicalType")
    if logical == "decimal":
        return ("logicalType", "precision", "scale") if _is_decimal(schema) else ()
    if schema.type == "fixed":
        is_valid = (logical, schema.size) in {("duration", 12), ("uuid", 16)}
    else:
        is_valid = isinstance(logical, str) and schema.type in _LOGICAL_TYPES.get(logical, ())
    return ("logicalType",) if is_valid else ()


def _is_decimal(schema: AvroType) -> bool:
    precision = schema.properties.get("precision")
    scale = schema.properties.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    if schema.type == "fixed":
        # The most digits that every number of so many bytes can have.
        most = math.floor(math.log10(2) * (8 * schema.size - 1)) if schema.size else 0
        return 0 < precision <= most
    return schema.type == "bytes" and precision > 0
