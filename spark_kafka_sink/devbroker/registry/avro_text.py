"""The texts of Avro schemas: the canonical one, which a registry stores, and the normalized one.

The canonical text is that of Java's `Schema.toString`: it has the keys in Java's order, no blanks,
names without a namespace that they inherit, and all properties. Types that a reference defines are
written by their names.

Normalized schemas are equal if they differ only in what has no meaning: the order of properties and
aliases, empty documentation, and how a default is written (`normalize` of Confluent's registry).
Unlike there, a type in the null namespace remains in it when it is within another one.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.registry.avro_schema import (
    ABSENT,
    PRIMITIVES,
    AvroType,
    Field,
    Json,
    Name,
    logical_properties,
    types_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A type with such a short name is always written with its namespace.
_NAMES_OF_TYPES: Final = PRIMITIVES | {"record", "enum", "array", "map", "union", "fixed"}
#: The types whose defaults are values of these.
_TYPES_OF: Final = {
    bool: frozenset({"boolean"}),
    str: frozenset({"string", "enum", "bytes", "fixed"}),
}
#: Java writes a double in this range without an exponent.
_PLAIN_FROM: Final = 1e-3
_PLAIN_BELOW: Final = 1e7
_INT64: Final = 2**63
#: The most digits that it takes to distinguish a float32; as few as possible are written.
_FLOAT_DIGITS: Final = range(1, 10)


def canonical_text(schema: AvroType, referenced: Iterable[str] = ()) -> str:
    """Return the canonical text; the types `referenced`, by full name, are defined elsewhere."""
    return _java_json(_Writer(referenced).write(schema, None))


def fingerprint(schema: AvroType) -> bytes:
    """Return a digest that schemas share if they are equal, documentation included.

    The order of properties and aliases, and where a type is defined, have no meaning.
    """
    copies = _copies(schema)
    for part in copies.values():
        part.properties = _sorted_properties(part.properties, ())
        part.aliases = tuple(sorted(part.aliases, key=lambda alias: alias.full))
        part.fields = [
            replace(
                field,
                aliases=tuple(sorted(field.aliases)),
                default=field.default if field.default is ABSENT else _sorted_keys(field.default),
                properties=_sorted_properties(field.properties, ()),
            )
            for field in part.fields
        ]
    return hashlib.sha256(canonical_text(copies[id(schema)]).encode("utf-8", "replace")).digest()


class _Writer:
    """Turns a schema into JSON; each named type is defined once, and then written by its name."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)

    def write(self, schema: AvroType, namespace: str | None) -> Json:
        if schema.type == "union":
            return [self.write(branch, namespace) for branch in schema.parts]
        if schema.is_named:
            return self._named(schema, namespace)
        if schema.type == "array":
            parts = {"items": self.write(schema.parts[0], namespace)}
        elif schema.type == "map":
            parts = {"values": self.write(schema.parts[0], namespace)}
        elif not schema.properties:
            return schema.type
        else:
            parts = {}
        return {"type": schema.type, **parts, **schema.properties}

    def _named(self, schema: AvroType, namespace: str | None) -> Json:
        name = schema.name
        if name.full in self._known:
            return _qualified(name, namespace)
        self._known.add(name.full)
        written: dict[str, Json] = {
            "type": "error" if schema.is_error else schema.type,
            "name": name.short,
        }
        if name.namespace != namespace:
            written["namespace"] = name.namespace or ""
        if schema.doc is not None:
            written["doc"] = schema.doc
        if schema.type == "record":
            written["fields"] = [
                self._field(field, part, name.namespace)
                for field, part in zip(schema.fields, schema.parts, strict=True)
            ]
        elif schema.type == "enum":
            written["symbols"] = list(schema.symbols)
            if schema.default_symbol is not None:
                written["default"] = schema.default_symbol
        else:
            written["size"] = schema.size
        written |= schema.properties
        if schema.aliases:
            written["aliases"] = [_qualified(alias, name.namespace) for alias in schema.aliases]
        return written

    def _field(self, field: Field, schema: AvroType, namespace: str | None) -> Json:
        written: dict[str, Json] = {"name": field.name, "type": self.write(schema, namespace)}
        if field.doc is not None:
            written["doc"] = field.doc
        if field.default is not ABSENT:
            written["default"] = field.default
        if field.order != "ascending":
            written["order"] = field.order
        if field.aliases:
            written["aliases"] = list(field.aliases)
        return written | field.properties


def _qualified(name: Name, namespace: str | None) -> str:
    """Return a name as it is written where a namespace is inherited."""
    inherits = name.namespace is not None and name.namespace == namespace
    return name.short if inherits and name.short not in _NAMES_OF_TYPES else name.full


def normalized(schema: AvroType) -> AvroType:
    """Return the normalized schema, which shares no part with the given one."""
    copies = _copies(schema)
    defaults = _NormalDefaults()
    for part in copies.values():
        part.properties = _sorted_properties(part.properties, logical_properties(part))
        part.doc = part.doc or None
        part.aliases = tuple(sorted(part.aliases, key=lambda alias: alias.full))
        part.fields = [
            replace(
                field,
                default=defaults.of(field.default, below),
                aliases=tuple(sorted(field.aliases)),
                properties=_sorted_properties(field.properties, ()),
            )
            for field, below in zip(part.fields, part.parts if part.fields else (), strict=True)
        ]
    return copies[id(schema)]


def _copies(schema: AvroType) -> dict[int, AvroType]:
    """Return a copy of each type of a schema, by the id of the original."""
    copies = {id(part): replace(part) for part in types_of(schema)}
    for part in copies.values():
        part.parts = [copies[id(below)] for below in part.parts]
    return copies


def _sorted_properties(properties: dict[str, Json], first: tuple[str, ...]) -> dict[str, Json]:
    """Return properties in order: those of the logical type, then the others by name."""
    names = [name for name in first if name in properties]
    names += [name for name in sorted(properties) if name not in first]
    return {name: _sorted_keys(properties[name]) for name in names}


def _sorted_keys(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(item) for item in value] if isinstance(value, list) else value


class _NormalDefaults:
    """Writes defaults as values of their types, each part of one once for each of its types."""

    def __init__(self) -> None:
        #: By the ids of value and type.
        self._known: dict[tuple[int, int], Json] = {}

    def of(self, value: Json, schema: AvroType) -> Json:
        """Return a default as a value of its type, or `ABSENT` if it is not one.

        That of a union is a value of the first branch that it fits.
        """
        if value is None or value is ABSENT:
            return value
        key = id(value), id(schema)
        if key not in self._known:
            self._known[key] = self._of(value, schema)
        return self._known[key]

    def _of(self, value: Json, schema: AvroType) -> Json:
        if schema.type == "union":
            branches = (self.of(value, branch) for branch in schema.parts)
            return next((found for found in branches if found is not ABSENT), ABSENT)
        match value:
            case bool() | str():
                return value if schema.type in _TYPES_OF[type(value)] else ABSENT
            case int() | float():
                return _normal_number(value, schema.type)
            case list() if schema.type == "array":
                items = [self.of(item, schema.parts[0]) for item in value]
                return ABSENT if ABSENT in items else items
            case dict() if schema.type in {"map", "record"}:
                return self._of_object(value, schema)
        return ABSENT

    def _of_object(self, value: dict[str, Json], schema: AvroType) -> Json:
        if schema.type == "map":
            types = dict.fromkeys(value, schema.parts[0])
        else:
            fields = zip(schema.fields, schema.parts, strict=True)
            types = {field.name: part for field, part in fields}
        if not value.keys() <= types.keys():
            return ABSENT
        parts = {key: self.of(value[key], types[key]) for key in sorted(value)}
        return ABSENT if ABSENT in parts.values() else parts


def _normal_number(value: float, kind: str) -> Json:
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        return ABSENT
    if kind in {"int", "long"}:
        return value if isinstance(value, int) else ABSENT
    if kind not in {"float", "double"}:
        return ABSENT
    return _as_float32(float(value)) if kind == "float" else float(value)


def _as_float32(number: float) -> float:
    """Return the number with the fewest digits that is the same float32."""
    try:
        packed = struct.pack("f", number)
    except OverflowError:
        return math.copysign(math.inf, number)
    (rounded,) = struct.unpack("f", packed)
    candidates = (float(f"{rounded:.{digits}g}") for digits in _FLOAT_DIGITS)
    return next((found for found in candidates if struct.pack("f", found) == packed), number)


def _java_json(value: Json) -> str:
    """Return the text of a value as Java's Jackson writes it."""
    match value:
        case dict():
            pairs = (f"{_java_text(key)}:{_java_json(part)}" for key, part in value.items())
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join(map(_java_json, value))}]"
        case str():
            return _java_text(value)
        case float():
            return _java_double(value)
    return json.dumps(value)


def _java_text(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)
    if "\\u00" not in escaped:
        return escaped
    # Python writes the codes of control characters with small letters.
    parts: list[str] = []
    for letter in text:
        written = json.dumps(letter, ensure_ascii=False)[1:-1]
        parts.append(f"\\u{ord(letter):04X}" if written.startswith("\\u") else written)
    return f'"{"".join(parts)}"'


def _java_double(number: float) -> str:
    """Return a number as Java's `Double.toString` does; what is not one, as a text."""
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or _PLAIN_FROM <= abs(number) < _PLAIN_BELOW:
        text = repr(number)
        # Python writes the smallest of these with an exponent, as in 1e-05; none is as small.
        return text if "." in text else f"{text}.0"
    mantissa, exponent = f"{number!r}e0".split("e")[:2]
    sign, digits = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    whole, _, fraction = digits.partition(".")
    shift = int(exponent) + len(whole) - 1
    significant = f"{whole}{fraction}"
    stripped = significant.lstrip("0")
    shift -= len(significant) - len(stripped)
    stripped = stripped.rstrip("0") or "0"
    return f"{sign}{stripped[0]}.{stripped[1:] or '0'}E{shift}"
