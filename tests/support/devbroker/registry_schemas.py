"""Random Avro schemas for the tests of the embedded Schema Registry, recursive ones included."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_PROPERTIES = ("z", "a", "java-class", "é", "default-ish")
_LOGICAL = (
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "int", "logicalType": "date"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "int", "logicalType": "timestamp-millis"},
)
_VALUES: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "int": (0, -7, 2**31 - 1),
    "long": (0, -(2**63), 2**53 + 1),
    "float": (0, 1.5, 1e10, 0.1, -1e-5, "NaN"),
    "double": (0, 1.5, 12345678.9, 1e-7, 1e300, "Infinity", 0.001),
    "bytes": ("", "\u00ff", 'a"\n\u001f'),
    "string": ("", "é\u2028\\", "</a>"),
}


def random_schema(random: Random) -> str:
    """Return the text of a schema that Java accepts."""
    return json.dumps(_Maker(random).schema(0))


def evolved_schema(random: Random, text: str) -> str:
    """Return the text of a schema that differs from another one in a few places."""
    schema = json.loads(text)
    for _ in range(random.randint(1, 3)):
        schema = _changed(random, schema)
    return json.dumps(schema)


class _Maker:
    """Makes one schema, whose names are different."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: list[str] = []
        #: The records around a place, to which it may refer.
        self._open: list[str] = []

    def schema(self, level: int) -> Any:
        random = self._random
        kinds = ["primitive"] * 4 + ["logical"]
        if level < 4:
            kinds += ["record"] * 3 + ["enum", "fixed", "array", "map", "union", "union"]
        if level and self._names:
            kinds.append("name")
        kind = random.choice(kinds)
        if kind == "primitive":
            return self._primitive()
        if kind == "logical":
            return dict(random.choice(_LOGICAL))
        if kind == "name":
            return random.choice(self._names)
        if kind == "union":
            return self._union(level)
        if kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.schema(level + 1), **self._properties()}
        return getattr(self, f"_{kind}")(level)

    def _primitive(self) -> Any:
        name = self._random.choice(PRIMITIVES)
        properties = self._properties()
        return {"type": name, **properties} if properties else name

    def _union(self, level: int) -> list[Any]:
        branches: dict[str, Any] = {"null": "null"}
        for _ in range(self._random.randint(1, 3)):
            branch = self.schema(level + 1)
            if not isinstance(branch, list):
                branches.setdefault(_kind(branch), branch)
        parts = list(branches.values())
        self._random.shuffle(parts)
        return parts

    def _named(self, kind: str) -> dict[str, Any]:
        random = self._random
        number = len(self._names) + len(self._open)
        short = f"{kind.capitalize()}{number}"
        space = random.choice((None, None, "a", "a.b", ""))
        named: dict[str, Any] = {"type": kind, "name": short}
        if space is not None:
            if space and random.random() < 0.3:
                named["name"] = f"{space}.{short}"
            else:
                named["namespace"] = space
        if random.random() < 0.3:
            named["doc"] = random.choice(("", "a doc\t", "é"))
        if random.random() < 0.2:
            named["aliases"] = random.sample(("Old", "a.Older", "x.y.Oldest"), 2)
        return {**named, **self._properties()}

    def _record(self, level: int) -> dict[str, Any]:
        named = self._named("record")
        names = self._random.sample(
            ("id", "name", "price", "next", "note"), self._random.randint(0, 4)
        )
        self._open.append(named["name"])
        fields = [self._field(name, level) for name in names]
        self._open.pop()
        return {**named, "fields": fields}

    def _field(self, name: str, level: int) -> dict[str, Any]:
        random = self._random
        field: dict[str, Any] = {"name": name, "type": self.schema(level + 1)}
        if isinstance(field["type"], str) and field["type"] in PRIMITIVES and random.random() < 0.5:
            field["default"] = random.choice(_VALUES[field["type"]])
        elif isinstance(field["type"], list) and random.random() < 0.5:
            field["default"] = None
        if random.random() < 0.2:
            field["order"] = random.choice(("ascending", "descending", "ignore"))
        if random.random() < 0.2:
            field["doc"] = random.choice(("", "why"))
        if random.random() < 0.2:
            field["aliases"] = ["former", "first"]
        return {**field, **self._properties()}

    def _enum(self, _: int) -> dict[str, Any]:
        symbols = self._random.sample(("A", "B", "C", "D"), self._random.randint(1, 4))
        named = {**self._named("enum"), "symbols": symbols}
        return {**named, "default": symbols[0]} if self._random.random() < 0.3 else named

    def _fixed(self, _: int) -> dict[str, Any]:
        named = {**self._named("fixed"), "size": self._random.choice((0, 4, 12, 16))}
        if self._random.random() < 0.3:
            named["logicalType"] = "duration"
        return named

    def _properties(self) -> dict[str, Any]:
        if self._random.random() < 0.8:
            return {}
        values = (1, 2.5, "é", None, True, [1, {"b": 1, "a": 2}], {"y": 1, "x": []})
        names = self._random.sample(_PROPERTIES, self._random.randint(1, 3))
        return {name: self._random.choice(values) for name in names}


def _kind(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"]))


def _changed(random: Random, schema: Any) -> Any:
    """Return a schema with one change, somewhere in it."""
    if isinstance(schema, list):
        if schema and random.random() < 0.5:
            number = random.randrange(len(schema))
            return [*schema[:number], _changed(random, schema[number]), *schema[number + 1 :]]
        return [part for part in schema if part != "null"] if random.random() < 0.5 else schema
    if isinstance(schema, str):
        return random.choice(PRIMITIVES) if schema in PRIMITIVES else schema
    changed = dict(schema)
    if schema["type"] in {"array", "map"}:
        part = "items" if schema["type"] == "array" else "values"
        changed[part] = _changed(random, schema[part])
    elif schema["type"] == "record":
        changed["fields"] = _changed_fields(random, schema["fields"])
    elif schema["type"] == "enum":
        changed["symbols"] = [*schema["symbols"], "E"]
        if random.random() < 0.5:
            changed["symbols"] = schema["symbols"][:1]
    elif schema["type"] == "fixed":
        changed["size"] = schema["size"] + 1
    if "name" in schema and random.random() < 0.2:
        changed["name"] = f"{schema['name']}X"
    return changed


def _changed_fields(random: Random, fields: list[Any]) -> list[Any]:
    choice = random.choice(("add", "add with default", "drop", "change", "rename"))
    if choice == "add":
        return [*fields, {"name": "added", "type": "int"}]
    if choice == "add with default":
        return [{"name": "extra", "type": "string", "default": ""}, *fields]
    if not fields:
        return fields
    number = random.randrange(len(fields))
    field = fields[number]
    if choice == "drop":
        return fields[:number] + fields[number + 1 :]
    if choice == "rename":
        field = {**field, "name": "renamed", "aliases": [field["name"]]}
    else:
        field = {name: value for name, value in field.items() if name != "default"}
        field["type"] = _changed(random, field["type"])
    return [*fields[:number], field, *fields[number + 1 :]]
