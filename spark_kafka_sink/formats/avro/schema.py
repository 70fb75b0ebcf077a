"""Avro schemas: the types, and the parser of their JSON text.

`parse_schema` follows Java's `Schema.Parser` (1.12). It refuses more: a recursive schema, since no
column can have its type; more than `MOST_LEVELS` levels; a key that an object has twice. A default
value is checked when it is needed (`default_bytes`), since registries keep schemas whose defaults
are wrong.

A logical type that its schema cannot have, such as a date on a string, is ignored, as the
specification demands; so is an unknown one. Spark's own type of a number counts as a logical type.

A schema is a tree whose parts are shared: each use of a named type is the same object. A short
text can be a tree of 2^30 parts, so walks over schemas remember the objects that they have seen.
"""

from __future__ import annotations

import enum
import json
import math
import re
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, cast

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
#: The property in which Spark's `to_avro` names the type of an interval, which is a number. It is
#: a logical type here, with the type behind this prefix.
SPARK_PROPERTY: Final = "spark.sql.catalyst.type"
SPARK_TYPE: Final = f"{SPARK_PROPERTY} "
#: For each type, the logical types that take precedence over that property.
_BEFORE_SPARK_TYPE: Final = {
    "int": frozenset({"date"}),
    "long": frozenset(
        {
            "timestamp-millis",
            "timestamp-micros",
            "local-timestamp-millis",
            "local-timestamp-micros",
        }
    ),
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
_MOST_INT: Final = 2**31 - 1
#: A text of JSON, or a comment. A text or comment that does not end reaches to the end.
_TEXT_OR_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
#: The texts that Java's `Double.parseDouble` accepts.
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?P<decimal>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)


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
    #: Whether each value takes at least one byte.
    takes_bytes: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find out whether a value takes bytes."""
        has_bytes = any(takes_bytes(field.schema) for field in self.fields)
        object.__setattr__(self, "takes_bytes", has_bytes)


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
            return schema.takes_bytes
    return True


def are_same(one: Schema, other: Schema) -> bool:
    """Return whether two schemas are equal in Java: in all but aliases and an enum's default."""
    return _Comparison(_own_parts).are_same(one, other)


def are_equal(one: Schema, other: Schema) -> bool:
    """Return whether two schemas are equal in all that matters to a reader.

    Unlike `==`, it compares two parts once, however often they are used.
    """
    return _Comparison(_readers_parts).are_same(one, other)


class _Comparison:
    """Compares each pair of schemas once, by what `own_parts` returns and by their parts."""

    def __init__(self, own_parts: Callable[[Schema], tuple[Any, ...]]) -> None:
        self._own_parts = own_parts
        self._pairs: dict[tuple[int, int], bool] = {}

    def are_same(self, one: Schema, other: Schema) -> bool:
        if one is other:
            return True
        pair = (id(one), id(other))
        if pair not in self._pairs:
            self._pairs[pair] = self._own_parts(one) == self._own_parts(other) and all(
                map(self.are_same, parts_of(one), parts_of(other))
            )
        return self._pairs[pair]


def _own_parts(schema: Schema) -> tuple[Any, ...]:
    """Return what are two schemas' own differences, beside those of their parts."""
    match schema:
        case Primitive():
            return schema.type, schema.logical
        case Fixed():
            return schema.type, schema.name, schema.size, schema.logical
        case Enum():
            return schema.type, schema.name, schema.symbols
        case Record():
            # As texts, 1 and 1.0 differ, and NaN is equal to itself.
            fields = [(field.name, repr(field.default)) for field in schema.fields]
            return schema.type, schema.name, fields
    return schema.type, len(parts_of(schema))


def _readers_parts(schema: Schema) -> tuple[Any, ...]:
    """Return `_own_parts` and what else changes how a schema reads another one."""
    parts = _own_parts(schema)
    if isinstance(schema, Named):
        parts = *parts, schema.aliases
    if isinstance(schema, Enum):
        parts = *parts, schema.default
    if isinstance(schema, Record):
        parts = *parts, [field.aliases for field in schema.fields]
    return parts


def describe(schema: Schema) -> str:
    """Return what an error calls a schema: its name, or its type."""
    return schema.name if isinstance(schema, Named) else schema.type


def shortened(text: str, most: int = _SHOWN) -> str:
    """Return a text as an error shows it: the beginning of a long one."""
    return text if len(text) <= most else f"{text[:most]}..."


def _json_of(text: str, what: str) -> Any:
    try:
        try:
            return _loaded(text)
        except ValueError:
            # Java's parser passes over comments, as in C.
            without = _TEXT_OR_COMMENT.sub(
                lambda found: found[0] if found[0].startswith('"') else " ", text
            )
            if without == text:
                raise
            return _loaded(without)
    except RecursionError:
        message = f"{what} has too many levels"
    except ValueError as error:
        message = f"{what} is not JSON: {error}"
    raise SchemaError(message)


def _loaded(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key, value in pairs:
        if key in properties:
            raise ValueError(f"'{shortened(key)}' is there twice")
        properties[key] = value
    return properties


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


class _Declaration(NamedTuple):
    """The definition of a named type, somewhere in the text."""

    json_value: _Json
    namespace: str
    path: str


class _Parser:
    """Parses schemas that share their names."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        #: The levels below each named type, and the deepest level that was reached.
        self._levels: dict[str, int] = {}
        self._deepest = 0
        #: The names of the records whose fields are being parsed.
        self._open: set[str] = set()
        self._root: Any = None
        #: Where the text defines its types, and the types of those that have been parsed.
        self._declared: dict[str, _Declaration] | None = None
        self._parsed: dict[int, Named] = {}

    def parse(self, json_value: Any) -> Schema:
        self._root, self._declared, self._parsed = json_value, None, {}
        return self._parse(json_value, "", "", 0)

    def _parse(self, value: Any, namespace: str, path: str, level: int) -> Schema:
        self._reach(level, path)
        if isinstance(value, str):
            return self._find(value, namespace, path, level)
        if isinstance(value, list):
            return self._union(value, namespace, path, level)
        if not isinstance(value, dict):
            raise _wrong(path, f"a schema is a name, an object or a list, not {_shown(value)}")
        kind = value.get("type")
        if not isinstance(kind, str):
            raise _wrong(path, f"'type' must be a name, not {_shown(kind)}")
        if kind in PRIMITIVES:
            return Primitive(kind, _logical_type(value, kind))
        if id(value) in self._parsed:  # by a use that precedes the definition
            named = self._parsed[id(value)]
            self._reach(level + self._levels[named.name], path)
            return named
        if kind in self._PARSERS:
            schema = self._PARSERS[kind](self, value, namespace, path, level)
            if isinstance(schema, Named):
                self._parsed[id(value)] = schema
            return schema
        return self._find(kind, namespace, path, level)

    def _reach(self, level: int, path: str) -> None:
        if level > MOST_LEVELS:
            raise _wrong(path, f"the schema has more than {MOST_LEVELS} levels")
        self._deepest = max(self._deepest, level)

    def _array(self, value: _Json, namespace: str, path: str, level: int) -> Array:
        return Array(self._part(value, "items", namespace, path, level))

    def _map(self, value: _Json, namespace: str, path: str, level: int) -> Map:
        return Map(self._part(value, "values", namespace, path, level))

    def _part(self, value: _Json, key: str, namespace: str, path: str, level: int) -> Schema:
        if key not in value:
            raise _wrong(path, f"'{key}' is missing")
        return self._parse(value[key], namespace, f"{path}.{key}" if path else key, level + 1)

    def _find(self, name: str, namespace: str, path: str, level: int) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full_name, name):
            if candidate in self._open:
                raise _wrong(
                    path,
                    f"the schema is recursive ({shortened(candidate)} contains itself): no column "
                    "can have its type",
                )
            if candidate in self._named:
                self._reach(level + self._levels[candidate], path)
                return self._named[candidate]
        # A name may be used before it is defined.
        if self._declared is None:
            self._declared = {}
            _collect_declarations(self._root, "", "", 0, self._declared)
        if full_name in self._declared:
            return self._parse(*self._declared[full_name], level)
        near = get_close_matches(name, PRIMITIVES, 1) if len(name) <= _SHOWN else []
        hint = f"; the nearest is '{near[0]}'" if near else ""
        raise _wrong(path, f"the type '{shortened(name)}' is not defined{hint}")

    def _union(self, values: list[Any], namespace: str, path: str, level: int) -> Union:
        branches: list[Schema] = []
        names: set[str] = set()
        for number, value in enumerate(values):
            branch_path = f"{path}[{number}]"
            branch = self._parse(value, namespace, branch_path, level + 1)
            if isinstance(branch, Union):
                raise _wrong(branch_path, "a union cannot be a branch of a union")
            if describe(branch) in names:
                raise _wrong(branch_path, f"the union has {shortened(describe(branch))} twice")
            names.add(describe(branch))
            branches.append(branch)
        return Union(tuple(branches))

    def _record(self, value: _Json, namespace: str, path: str, level: int) -> Record:
        name, aliases = self._name(value, namespace, path)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise _wrong(path, f"the record {name} needs a list of fields")
        if name in self._open:
            raise _wrong(path, f"the type {name} is defined twice")
        space = name.rpartition(".")[0]
        self._open.add(name)
        deepest, self._deepest = self._deepest, level
        parsed: dict[str, Field] = {}
        for json_field in fields:
            if not isinstance(json_field, dict):
                raise _wrong(path, f"a field of {name} is an object, not {_shown(json_field)}")
            field_name = _checked_name(json_field.get("name"), path, f"a field of {name}")
            field_path = f"{path}.{field_name}" if path else field_name
            if field_name in parsed:
                raise _wrong(field_path, f"the record {name} has this field twice")
            schema = self._field_type(json_field, space, field_path, level)
            parsed[field_name] = Field(
                field_name,
                schema,
                _default_of(schema, json_field.get("default", ABSENT)),
                _texts(json_field, "aliases", field_path),
            )
        self._open.remove(name)
        self._levels[name] = self._deepest - level
        self._deepest = max(self._deepest, deepest)
        return self._define(Record(name, tuple(parsed.values()), aliases), path)

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
        if not isinstance(default, str):  # As in Java, that is none.
            default = None
        if default is not None and default not in symbols:
            raise _wrong(path, f"the default of the enum {name} is not one of its symbols")
        return self._define(Enum(name, symbols, default, aliases), path)

    def _fixed(self, value: _Json, namespace: str, path: str, _: int) -> Fixed:
        name, aliases = self._name(value, namespace, path)
        size = value.get("size")
        if type(size) is not int or not 0 <= size <= _MOST_INT:
            raise _wrong(path, f"the size of {name} is a number of bytes, not {_shown(size)}")
        return self._define(Fixed(name, size, _logical_type(value, "fixed", size), aliases), path)

    def _name(self, value: _Json, namespace: str, path: str) -> tuple[str, tuple[str, ...]]:
        """Return the full name of a named schema, and its aliases in full."""
        name = value.get("name")
        if not isinstance(name, str):
            raise _wrong(path, f"the name of a {value['type']} is a text, not {_shown(name)}")
        full_name = _full_name(name, value, namespace)
        for part in full_name.split("."):
            _checked_name(part, path, f"a part of the name '{shortened(full_name)}'")
        if full_name in PRIMITIVES:
            raise _wrong(path, f"a {value['type']} cannot have the name of the type {full_name}")
        own_space = full_name.rpartition(".")[0]
        aliases = tuple(
            alias if "." in alias or not own_space else f"{own_space}.{alias}"
            for alias in _texts(value, "aliases", path)
        )
        return full_name, aliases

    def _define(self, schema: _Named, path: str) -> _Named:
        """Add a named type, and return it, or an equal one that was defined before."""
        known = self._named.setdefault(schema.name, schema)
        if not are_same(known, schema):
            raise _wrong(path, f"the type {schema.name} is defined twice, differently")
        self._levels.setdefault(schema.name, 0)
        return cast("_Named", known)

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
    return shortened(json.dumps(value))


def _full_name(name: str, value: _Json, namespace: str) -> str:
    """Return the full name that a definition has in a namespace."""
    space = value.get("namespace")
    if "." in name:
        space, _, name = name.rpartition(".")
    elif not isinstance(space, str):  # As in Java, that is none.
        space = namespace
    return f"{space}.{name}" if space else name


def _collect_declarations(
    value: Any, namespace: str, path: str, level: int, found: dict[str, _Declaration]
) -> None:
    """Find where named types are defined; the first definition of a name counts."""
    if isinstance(value, list):
        for number, branch in enumerate(value):
            _collect_declarations(branch, namespace, f"{path}[{number}]", level + 1, found)
    if not isinstance(value, dict) or level > MOST_LEVELS:
        return
    kind, name = value.get("type"), value.get("name")
    for part in ("items", "values"):
        if kind in {"array", "map"} and part in value:
            part_path = f"{path}.{part}" if path else part
            _collect_declarations(value[part], namespace, part_path, level + 1, found)
    if kind not in {"record", "error", "enum", "fixed"} or not isinstance(name, str):
        return
    full_name = _full_name(name, value, namespace)
    found.setdefault(full_name, _Declaration(value, namespace, path))
    fields = value.get("fields")
    for part in fields if isinstance(fields, list) and kind in {"record", "error"} else ():
        if isinstance(part, dict) and isinstance(part.get("name"), str):
            part_path = f"{path}.{part['name']}" if path else part["name"]
            space = full_name.rpartition(".")[0]
            _collect_declarations(part.get("type"), space, part_path, level + 1, found)


def _default_of(schema: Schema, default: Any) -> Any:
    """Return the default of a field; Java takes a text for a number of floating point."""
    if schema.type not in {"float", "double"} or not isinstance(default, str):
        return default
    match = _DOUBLE.fullmatch(default.strip())
    if match is None:
        return default
    if match["hex"]:
        sign = -1 if match[0].startswith("-") else 1
        with suppress(OverflowError):
            return sign * float.fromhex(match["hex"])
        return sign * math.inf
    return float(match[0].rstrip("fFdD") if match["decimal"] else match[0])


def _checked_name(name: Any, path: str, what: str) -> str:
    """Check a name as Java's `NameValidator.UTF_VALIDATOR` does."""
    if not isinstance(name, str) or not name:
        raise _wrong(path, f"{what} is a name, not {_shown(name)}")
    if not all(map(_is_letter_or_digit, name)) or _is_digit(name[0]):
        raise _wrong(
            path, f"{what} has letters, digits and underscores only, unlike '{shortened(name)}'"
        )
    return name


def _is_letter_or_digit(character: str) -> bool:
    # Java looks at UTF-16, whose surrogates are no letters.
    is_letter = unicodedata.category(character).startswith("L") and character <= "\uffff"
    return is_letter or character == "_" or _is_digit(character)


def _is_digit(character: str) -> bool:
    return unicodedata.category(character) == "Nd" and character <= "\uffff"


def _texts(value: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
    texts = value.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _wrong(path, f"'{key}' is a list of texts, not {_shown(texts)}")
    return tuple(texts)


def _logical_type(value: Mapping[str, Any], kind: str, size: int = 0) -> str | DecimalType | None:
    logical = value.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = value.get("precision"), value.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or precision > _MOST_INT:
            return None
        # The most digits that every number of so many bytes can have.
        most = math.floor(math.log10(2) * (8 * size - 1)) if kind == "fixed" and size else 0
        fits = kind == "bytes" or precision <= most
        return DecimalType(precision, scale) if 0 <= scale <= precision > 0 and fits else None
    if kind == "fixed":
        return logical if _FIXED_SIZES.get(str(logical)) == size else None
    spark_type = value.get(SPARK_PROPERTY)
    if kind in _BEFORE_SPARK_TYPE and isinstance(spark_type, str):
        # Spark ignores the case of its types' names.
        name = SPARK_TYPE + " ".join(spark_type.lower().split())
        return logical if logical in _BEFORE_SPARK_TYPE[kind] else name
    return logical if logical in _LOGICAL_TYPES.get(kind, ()) else None
