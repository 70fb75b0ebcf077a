"""The types that JSON is read as: Spark's DDL or its JSON to types of Arrow, and their columns.

Either text is that of a struct, an array or a map, as for `from_json`. Parsing it needs no Spark.
JSON may lack every field and have a null in every place, so all columns may be null; `NOT NULL` and
`nullable` have no effect, which is what `from_json` does with them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_kafka_sink.display import listed, shortened
from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.columnar.columns import MOST_COLUMNS, MOST_DIGITS, Column, Kind

#: A type in more arrays, maps and structs than this is refused.
MOST_LEVELS: Final = 100
#: How many fields an error names.
_MOST_NAMED: Final = 10
_DEFAULT_DECIMAL: Final = (10, 0)
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
#: The names of types in DDL.
_TYPES: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _INSTANT,
    "timestamp_ltz": _INSTANT,
    "timestamp_ntz": _LOCAL,
}
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})
_NESTED: Final = ("struct", "array", "map")
_KINDS: Final[dict[Any, Kind]] = {
    kind: "boolean" if kind == pa.bool_() else "number" for kind in _TYPES.values()
} | {pa.string(): "bytes", pa.binary(): "bytes"}
#: Types that have another layout in Arrow, and are read as these.
_LIKE: Final[dict[Any, Any]] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<sign>[<>(),:])|(?P<end>$))"
)


def parse_type(text: str) -> Any:
    """Return the `pyarrow.DataType` of a text of DDL, or of Spark's JSON of a type.

    Raises SchemaError.
    """
    kind = _parse_json(text) if text.lstrip().startswith(("{", "[", '"')) else _Ddl(text).parse()
    column_of(kind)
    return kind


def column_of(kind: Any) -> Column:
    """Return the column for values of a type, with all columns below it.

    Raises SchemaError if JSON cannot be read as the type.
    """
    if not (pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind)):
        raise SchemaError(f"JSON: a payload is read as a struct, an array or a map, not as {kind}")
    return _Numbering().column(kind, "", nullable=True, levels=0)


def narrowed(kind: Any, asked: Any, path: str) -> Any:
    """Return `asked` as a type of JSON, if it is a selection of the fields of `kind`.

    `path` is what an error calls the column. Raises SchemaError for any other type.
    """
    if pa.types.is_struct(kind) and pa.types.is_struct(asked):
        return pa.struct([_narrowed_field(kind, field, path) for field in asked])
    if pa.types.is_list(kind) and pa.types.is_list(asked):
        _check_nullable(asked.value_field, f"{path}[]")
        return _list(narrowed(kind.value_type, asked.value_type, f"{path}[]"))
    if pa.types.is_map(kind) and pa.types.is_map(asked):
        _check_nullable(asked.item_field, f"{path}{{}}")
        narrowed(kind.key_type, asked.key_type, f"{path}{{}}")
        return _map(narrowed(kind.item_type, asked.item_type, f"{path}{{}}"))
    if kind != asked:
        raise SchemaError(
            f"column {path!r} is {asked}, but its schema has {kind}: read it as it is, and cast it "
            "afterwards"
        )
    return kind


def readable(kind: Any) -> Any:
    """Return a type of Arrow as the one that JSON is read as: all of it may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, readable(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list(readable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(readable(kind.key_type), pa.field("value", readable(kind.item_type)))
    return _LIKE.get(kind, kind)


def _check_nullable(field: Any, path: str) -> None:
    if not field.nullable:
        raise SchemaError(
            f"column {path!r} must be nullable, as JSON may lack it: leave out NOT NULL"
        )


def _narrowed_field(kind: Any, asked: Any, path: str) -> Any:
    _check_nullable(asked, f"{path}.{asked.name}")
    position = kind.get_field_index(asked.name)
    if position < 0:
        names = listed([field.name for field in kind], _MOST_NAMED)
        raise SchemaError(
            f"column {path!r}: the schema has no field {asked.name!r}; it has {names}"
        )
    child = kind.field(position)
    return pa.field(asked.name, narrowed(child.type, asked.type, f"{path}.{asked.name}"))


def _list(item: Any) -> Any:
    return pa.list_(pa.field("element", item))


def _map(item: Any) -> Any:
    return pa.map_(pa.string(), pa.field("value", item))


class _Numbering:
    def __init__(self) -> None:
        self._slots = 0

    def column(self, kind: Any, path: str, *, nullable: bool, levels: int) -> Column:
        if self._slots >= MOST_COLUMNS:
            raise SchemaError(f"JSON: the schema has more than {MOST_COLUMNS} columns")
        if levels > MOST_LEVELS:
            raise SchemaError(f"JSON: the schema has types within more than {MOST_LEVELS} others")
        slot = self._slots
        self._slots += 1
        name: Kind
        parts: list[tuple[Any, str, bool]] = []
        if pa.types.is_struct(kind):
            name = "struct"
            names = [field.name for field in kind]
            if twice := [each for each, count in Counter(names).items() if count > 1]:
                raise SchemaError(f"JSON: {_at(path)} has the field {twice[0]!r} twice")
            parts = [(field.type, f"{path}.{field.name}", True) for field in kind]
        elif pa.types.is_list(kind):
            name = "list"
            parts = [(kind.value_type, f"{path}[]", True)]
        elif pa.types.is_map(kind):
            name = "map"
            if kind.key_type != pa.string():
                raise SchemaError(
                    f"JSON: {_at(path)} has keys of {kind.key_type}; JSON has strings"
                )
            parts = [(kind.key_type, f"{path}{{}}", False), (kind.item_type, f"{path}{{}}", True)]
        elif pa.types.is_decimal128(kind):
            name = "decimal"
        elif kind in _KINDS:
            name = _KINDS[kind]
        else:
            raise SchemaError(
                f"JSON: {_at(path)} is {kind}, which is not read from JSON: read a string, and "
                "cast it afterwards"
            )
        children = tuple(
            self.column(part, where, nullable=may_be_null, levels=levels + 1)
            for part, where, may_be_null in parts
        )
        return Column(name, kind, nullable, slot, children, end=self._slots)


def _at(path: str) -> str:
    return f"the field {shortened(path.removeprefix('.'))!r}" if path else "the value"


def _decimal(precision: int, scale: int) -> Any:
    if not (0 < precision <= MOST_DIGITS and 0 <= scale <= precision):
        raise SchemaError(
            f"JSON: there is no decimal({precision},{scale}): Spark's have {MOST_DIGITS} digits at "
            "most, and not more of them behind the point"
        )
    return pa.decimal128(precision, scale)


# --- Spark's JSON of a type


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"JSON: the schema is not the JSON of a type of Spark's: {error}"
        ) from error
    return _from_json(value, 0)


def _from_json(value: Any, levels: int) -> Any:
    if levels > MOST_LEVELS:
        raise SchemaError(f"JSON: the schema has types within more than {MOST_LEVELS} others")
    match value:
        case {"type": "struct", "fields": list(fields)}:
            return pa.struct([_field_from_json(field, levels) for field in fields])
        case {"type": "array", "elementType": item}:
            return _list(_from_json(item, levels + 1))
        case {"type": "map", "keyType": "string", "valueType": item}:
            return _map(_from_json(item, levels + 1))
        case {"type": "map", "keyType": key}:
            raise SchemaError(f"JSON: a map has keys of {_shown(key)}; JSON has strings")
        case str(name):
            if name.lower() in _TYPES:
                return _TYPES[name.lower()]
            if found := re.fullmatch(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)", name):
                return _decimal(int(found[1]), int(found[2]))
    raise SchemaError(
        f"JSON: {_shown(value)} is not a type that JSON is read as: the schema is the JSON of a "
        "type of Spark's (df.schema.json()), or its DDL (id bigint, name string)"
    )


def _field_from_json(field: Any, levels: int) -> Any:
    match field:
        case {"name": str(name), "type": kind}:
            return pa.field(name, _from_json(kind, levels + 1))
    raise SchemaError(f"JSON: {_shown(field)} is not a field of a struct of Spark's")


def _shown(value: Any) -> str:
    return shortened(json.dumps(value))


# --- DDL


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Ddl:
    """A parser of DDL, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._token = _Token("", "", 0)
        self._levels = 0
        self._end = 0
        self._next()

    def parse(self) -> Any:
        is_type = (
            self._token.text.lower() in _NESTED and self._text[self._end :].lstrip()[:1] == "<"
        )
        kind = self._type() if is_type else pa.struct(self._fields(""))
        if self._token.kind != "end":
            raise self._wrong("the end")
        return kind

    def _next(self) -> str:
        """Return the text of the token, and go to the next one."""
        text = self._token.text
        found = _TOKEN.match(self._text, self._end)
        if found is None or found.lastgroup is None:
            raise SchemaError(f"JSON: the schema {self._shown(self._end)} cannot be parsed")
        self._token = _Token(found.lastgroup, found[found.lastgroup], found.start())
        self._end = found.end()
        return text

    def _fields(self, closing: str) -> list[Any]:
        fields: list[Any] = []
        while self._token.text != closing or self._token.kind not in {"sign", "end"}:
            if fields:
                self._expect(",")
            fields.append(self._field())
        return fields

    def _field(self) -> Any:
        if self._token.kind not in {"word", "quoted"}:
            raise self._wrong("the name of a field")
        is_quoted = self._token.kind == "quoted"
        name = self._next()
        if self._token.text == ":":
            self._next()
        kind = self._type()
        if self._is_word("not"):
            self._next()
            if not self._is_word("null"):
                raise self._wrong("NULL")
            self._next()
        if self._is_word("comment"):
            self._next()
            if self._token.kind != "text":
                raise self._wrong("a comment in quotation marks")
            self._next()
        return pa.field(name.replace("``", "`") if is_quoted else name, kind)

    def _is_word(self, word: str) -> bool:
        return self._token.kind == "word" and self._token.text.lower() == word

    def _type(self) -> Any:
        name = self._token.text.lower()
        if self._token.kind != "word":
            raise self._wrong("a type")
        if name in _NESTED:
            self._next()
            return self._nested(name)
        if name in _DECIMALS:
            self._next()
            return _decimal(*self._digits())
        if name not in _TYPES:
            raise self._wrong("a type that JSON is read as")
        self._next()
        return _TYPES[name]

    def _nested(self, name: str) -> Any:
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise SchemaError(f"JSON: the schema has types within more than {MOST_LEVELS} others")
        self._expect("<")
        if name == "struct":
            kind = pa.struct(self._fields(">"))
        elif name == "array":
            kind = _list(self._type())
        else:
            key = self._type()
            if key != pa.string():
                raise SchemaError(f"JSON: a map has keys of {key}; JSON has strings")
            self._expect(",")
            kind = _map(self._type())
        self._expect(">")
        self._levels -= 1
        return kind

    def _digits(self) -> tuple[int, int]:
        if self._token.text != "(":
            return _DEFAULT_DECIMAL
        self._next()
        precision, scale = self._number(), 0
        if self._token.text == ",":
            self._next()
            scale = self._number()
        self._expect(")")
        return precision, scale

    def _number(self) -> int:
        if not re.fullmatch("[0-9]{1,9}", self._token.text):
            raise self._wrong("a number")
        return int(self._next())

    def _expect(self, sign: str) -> None:
        if (self._token.kind, self._token.text) != ("sign", sign):
            raise self._wrong(repr(sign))
        self._next()

    def _wrong(self, expected: str) -> SchemaError:
        return SchemaError(
            f"JSON: the schema has {self._shown(self._token.position)} instead of {expected}. It "
            "is DDL (id bigint, name string), or the JSON of a type of Spark's (df.schema.json())"
        )

    def _shown(self, position: int) -> str:
        rest = self._text[position:].strip()
        return repr(shortened(rest)) if rest else "its end"
