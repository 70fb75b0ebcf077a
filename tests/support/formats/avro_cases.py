"""Random Avro schemas, schemas that they evolve into, and payloads; repeatable by seed."""

from __future__ import annotations

import copy
import json
import random
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from spark_kafka_sink.formats.avro.plan import DAY
from spark_kafka_sink.formats.avro.schema import (
    Array,
    DecimalType,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    parse_schema,
)
from spark_kafka_sink.record.default_record import encode_varint

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 30},
)
WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


@dataclass(frozen=True)
class Case:
    """A writer's schema, a reader's, and payloads of the writer."""

    writer: str
    reader: str
    payloads: list[bytes]


def make_case(seed: int, payloads: int = 3) -> Case:
    """Return a case: half of the readers are the writer's schema after some changes."""
    rng = random.Random(seed)
    names = _Names(rng)
    writer = _record(rng, names, 3) if rng.random() < 0.8 else _schema(rng, names, 3)
    reader = copy.deepcopy(writer)
    for _ in range(rng.randrange(4)):
        reader = _changed(rng, names, reader)
    parsed = parse_schema(json.dumps(writer))
    return Case(
        json.dumps(writer), json.dumps(reader), [_payload(rng, parsed) for _ in range(payloads)]
    )


class _Names:
    """Names that no other type of the schema has, and the types that have been defined."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return self._rng.choice(["T{}", "t{}", "space.T{}"]).format(self._count)


def _schema(rng: random.Random, names: _Names, depth: int, *, in_union: bool = False) -> Any:  # noqa: PLR0911  # kinds of schemas
    choice = rng.random()
    if depth and choice < 0.12:
        return _record(rng, names, depth - 1)
    if depth and choice < 0.24:
        return {"type": "array", "items": _schema(rng, names, depth - 1)}
    if depth and choice < 0.34:
        return {"type": "map", "values": _schema(rng, names, depth - 1)}
    if depth and choice < 0.55 and not in_union:
        return _union(rng, names, depth - 1)
    if choice < 0.60:
        symbols = rng.sample(["A", "B", "C", "D", "E"], rng.randint(1, 4))
        enum: dict[str, Any] = {"type": "enum", "name": names.new(), "symbols": symbols}
        return enum | ({"default": symbols[0]} if rng.random() < 0.5 else {})
    if choice < 0.65:
        fixed: dict[str, Any] = {"type": "fixed", "name": names.new(), "size": rng.randint(0, 9)}
        if fixed["size"] > 4 and rng.random() < 0.5:
            fixed |= {"logicalType": "decimal", "precision": 9, "scale": 3}
        return fixed
    return copy.deepcopy(rng.choice(LOGICAL)) if choice < 0.75 else rng.choice(PRIMITIVES)


def _union(rng: random.Random, names: _Names, depth: int) -> list[Any]:
    if rng.random() < 0.5:
        other = _schema(rng, names, depth, in_union=True)
        branches = ["null", other if _key(other) != "null" else "string"]
        return branches if rng.random() < 0.8 else branches[::-1]
    branches = []
    for _ in range(rng.randint(1, 4)):
        branch = _schema(rng, names, depth, in_union=True)
        if _key(branch) not in map(_key, branches):
            branches.append(branch)
    return branches


def _key(schema: Any) -> str:
    if isinstance(schema, dict):
        return str(schema.get("name", schema["type"]))
    return str(schema)


def _record(rng: random.Random, names: _Names, depth: int) -> dict[str, Any]:
    fields = []
    for number in range(rng.randrange(6)):
        field = {"name": f"f{number}", "type": _schema(rng, names, depth)}
        fields.append(field)
    return {"type": "record", "name": names.new(), "fields": fields}


def _changed(rng: random.Random, names: _Names, schema: Any) -> Any:  # noqa: PLR0911  # kinds of schemas
    """Change one place of a schema, compatibly or not."""
    if isinstance(schema, list):
        if rng.random() < 0.3:
            return rng.sample(schema, len(schema))
        if rng.random() < 0.3 and len(schema) > 1:
            return [branch for branch in schema if branch is not rng.choice(schema)] or schema
        position = rng.randrange(len(schema))
        branches = [*schema]
        branches[position] = _changed(rng, names, schema[position])
        keys = list(map(_key, branches))
        is_valid = len(set(keys)) == len(keys) and not any(isinstance(b, list) for b in branches)
        return branches if is_valid else schema
    if isinstance(schema, str) or "logicalType" in schema:
        return _changed_leaf(rng, schema)
    if schema["type"] == "record":
        return _changed_record(rng, names, schema)
    if schema["type"] in {"array", "map"}:
        part = "items" if schema["type"] == "array" else "values"
        return schema | {part: _changed(rng, names, schema[part])}
    if schema["type"] == "enum":
        symbols = (
            [*schema["symbols"], names.new().replace(".", "_")]
            if rng.random() < 0.5
            else schema["symbols"][:-1] or ["A"]
        )
        changed = schema | {"symbols": symbols}
        if changed.get("default") not in symbols:
            changed.pop("default", None)
        return changed
    return schema


def _changed_leaf(rng: random.Random, schema: Any) -> Any:
    name = schema if isinstance(schema, str) else schema["type"]
    if rng.random() < 0.3:
        return ["null", schema] if name != "null" else ["null", "string"]
    return rng.choice([*WIDER.get(name, ()), schema]) if rng.random() < 0.9 else "string"


def _changed_record(rng: random.Random, names: _Names, schema: dict[str, Any]) -> dict[str, Any]:
    fields = [dict(field) for field in schema["fields"]]
    choice = rng.random()
    if choice < 0.25:
        added: dict[str, Any] = rng.choice(
            [
                {"type": "int", "default": 7},
                {"type": ["null", "string"], "default": None},
                {"type": {"type": "array", "items": "long"}, "default": [1, -2]},
                {"type": {"type": "map", "values": "string"}, "default": {"k": "v"}},
                {"type": ["string", "int"], "default": 5},
                {"type": "bytes", "default": "\u00ff\u0001"},
                {"type": "string"},
            ]
        )
        fields.insert(rng.randint(0, len(fields)), {"name": names.new().replace(".", "_")} | added)
    elif choice < 0.4 and fields:
        fields.pop(rng.randrange(len(fields)))
    elif choice < 0.55:
        rng.shuffle(fields)
    elif choice < 0.7 and fields:
        field = rng.choice(fields)
        field.update({"name": field["name"] + "_new", "aliases": [field["name"]]})
    elif choice < 0.8:
        return schema | {"name": names.new(), "aliases": [schema["name"]], "fields": fields}
    elif fields:
        field = rng.choice(fields)
        if "default" not in field:
            field["type"] = _changed(rng, names, field["type"])
    return schema | {"fields": fields}


def _payload(rng: random.Random, schema: Any) -> bytes:  # noqa: PLR0911  # kinds of schemas
    match schema:
        case Primitive():
            return _primitive(rng, schema)
        case Fixed():
            if isinstance(schema.logical, DecimalType):
                return _decimal(rng, schema.logical).rjust(schema.size, b"\0")
            return rng.randbytes(schema.size)
        case Enum():
            return encode_varint(rng.randrange(len(schema.symbols)))
        case Array():
            return _blocks(rng, [_payload(rng, schema.items) for _ in range(rng.randrange(4))])
        case Map():
            keys = [rng.choice(["a", "b", "ü", ""]) for _ in range(rng.randrange(4))]
            items = [_text(key) + _payload(rng, schema.values) for key in keys]
            return _blocks(rng, items)
        case Union():
            branch = rng.randrange(len(schema.branches))
            return encode_varint(branch) + _payload(rng, schema.branches[branch])
        case Record():
            return b"".join(_payload(rng, field.schema) for field in schema.fields)
    raise TypeError(schema)


def _blocks(rng: random.Random, items: list[bytes]) -> bytes:
    encoded = b""
    while items:
        size = rng.randint(1, len(items))
        block, items = b"".join(items[:size]), items[size:]
        if rng.random() < 0.5:
            encoded += encode_varint(-size) + encode_varint(len(block)) + block
        else:
            encoded += encode_varint(size) + block
    return encoded + b"\0"


def _primitive(rng: random.Random, schema: Primitive) -> bytes:  # noqa: C901, PLR0911  # kinds of schemas
    if isinstance(schema.logical, DecimalType):
        data = _decimal(rng, schema.logical)
        return encode_varint(len(data)) + data
    match schema.type:
        case "null":
            return b""
        case "boolean":
            return rng.choice([b"\0", b"\1"])
        case "int":
            return encode_varint(rng.choice([0, -1, 2**31 - 1, -(2**31), rng.getrandbits(20)]))
        case "long":
            if schema.logical and "millis" in str(schema.logical):
                return encode_varint(rng.getrandbits(41))
            if schema.logical == "time-micros":
                return encode_varint(rng.randrange(DAY))
            return encode_varint(rng.choice([0, -1, 2**63 - 1, -(2**63), rng.getrandbits(50)]))
        case "float":
            return struct.pack("<f", rng.choice([0.0, -0.0, 1.5, float("inf"), rng.random()]))
        case "double":
            return struct.pack("<d", rng.choice([0.0, -0.0, 1e300, float("-inf"), rng.random()]))
        case "bytes":
            data = rng.choice([b"", b"plain", "grün".encode()])
            return encode_varint(len(data)) + data
    return _text(rng.choice(["", "text", "ü€𝄞", "x" * 70]))


def _decimal(rng: random.Random, logical: DecimalType) -> bytes:
    number = rng.randrange(10**logical.precision)
    size = rng.randint((number.bit_length() + 8) // 8, (number.bit_length() + 8) // 8)
    return number.to_bytes(size, "big", signed=True)


def _text(text: str) -> bytes:
    return encode_varint(len(text.encode())) + text.encode()


def show(schema: Any, value: Any) -> str:  # noqa: PLR0911  # kinds of schemas
    """Return a row of the interpreter as `AvroOracle.java` shows it."""
    match schema:
        case Union():
            return _show_branch(schema, value)
        case Record():
            values = [show(f.schema, value[f.name]) for f in schema.fields]
            return f"({', '.join(values)})"
        case Array():
            return f"[{', '.join(show(schema.items, item) for item in value)}]"
        case Map():
            items = sorted((key.encode().hex(), show(schema.values, item)) for key, item in value)
            return "{" + ", ".join(f"{key}={item}" for key, item in items) + "}"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        sign, digits, _ = value.as_tuple()
        return str(int("".join(map(str, digits))) * (-1 if sign else 1))
    if isinstance(value, float):
        return _show_float(schema.type, value)
    if isinstance(value, str):
        return f"'{value.encode().hex()}'"
    return f"x{value.hex()}" if isinstance(value, bytes) else str(value)


def _show_float(name: str, value: float) -> str:
    layout, letter = (">f", "f") if name == "float" else (">d", "d")
    return letter + (struct.pack(layout, value).hex().lstrip("0") or "0")


def _show_branch(schema: Union, value: Any) -> str:
    if value is None:
        return "null"
    branches = [branch for branch in schema.branches if branch.type != "null"]
    types = {branch.type for branch in branches}
    if len(branches) == 1:
        return show(branches[0], value)
    if types == {"int", "long"}:
        return str(value)
    if types == {"float", "double"}:
        return _show_float("double", value)
    [(number, member)] = [
        (number, value[f"member{number}"])
        for number in range(len(branches))
        if value[f"member{number}"] is not None
    ]
    return f"{number}:{show(branches[number], member)}"
