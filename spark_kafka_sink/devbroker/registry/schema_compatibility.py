"""Whether data written with one schema can be read with another, and why not.

The rules and their messages are those of Java's `SchemaCompatibility` (Avro 1.12): types, short
names or aliases, sizes of fixed types, symbols of enums, branches of unions, and fields that the
writer lacks and that have no default. `incompatibilities` is one direction; a level says which
directions count, and against which earlier schemas.

Each pair of types is compared once, so that recursive schemas end. A pair that is compared within
itself counts as compatible, as in Java.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.devbroker.registry.avro_schema import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.registry.avro_schema import AvroType, Field

#: The types from which a reader's type can also be read.
_PROMOTED_FROM: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
#: Types that share their parts many times could have any number of incompatibilities.
_MOST_INCOMPATIBILITIES: Final = 100
#: Unions of thousands of branches could take any time: each branch is compared with each.
_MOST_COMPARISONS: Final = 200_000
_MOST_LETTERS_OF_SCHEMA: Final = 10 * 1024


class CompatibilityLevel(enum.StrEnum):
    """What a new schema of a subject must be compatible with."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all earlier schemas count, or only the latest one."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def reads_earlier(self) -> bool:
        """Whether the new schema must read the data of earlier ones."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_earlier(self) -> bool:
        """Whether earlier schemas must read the data of the new one."""
        return self.value.startswith(("FORWARD", "FULL"))


class IncompatibilityType(enum.StrEnum):
    """Java's `SchemaIncompatibilityType`; the value is what a message says of it.

    `{reader}` and `{writer}` are "new" or "old", `{path}` a JSON pointer into the reader's schema.
    """

    NAME_MISMATCH = "the schemas at '{path}' have different names"
    FIXED_SIZE_MISMATCH = (
        "the fixed type at '{path}' of the {reader} schema has another size in the {writer} schema"
    )
    MISSING_ENUM_SYMBOLS = (
        "the {reader} schema lacks symbols, at '{path}', that the {writer} schema has"
    )
    READER_FIELD_MISSING_DEFAULT_VALUE = (
        "the field at '{path}' of the {reader} schema is missing in the {writer} schema and has no "
        "default"
    )
    TYPE_MISMATCH = (
        "the type at '{path}' of the {reader} schema does not match that of the {writer} schema"
    )
    MISSING_UNION_BRANCH = (
        "the union at '{path}' of the {reader} schema lacks a type of the {writer} schema"
    )


class Incompatibility(NamedTuple):
    """Why a reader cannot read what a writer has written."""

    type: IncompatibilityType
    #: The place in the reader's schema, as a JSON pointer.
    path: str
    #: What is missing or different: Java's `Incompatibility.getMessage`.
    detail: str

    def message(self, reader: str, writer: str) -> str:
        """Return the message in the format of Confluent's registry."""
        description = self.type.value.format(path=self.path, reader=reader, writer=writer)
        return (
            f"{{errorType:'{self.type.name}', description:'{description}', "
            f"additionalInfo:'{self.detail}'}}"
        )


@dataclass(frozen=True, slots=True)
class EarlierSchema:
    """A registered version with which a new schema is compared."""

    version: int
    text: str
    schema: AvroType


def compatibility_messages(
    level: CompatibilityLevel, schema: AvroType, earlier: Sequence[EarlierSchema]
) -> list[str]:
    """Return why a schema is incompatible with earlier ones, latest last; nothing if it is not.

    Only the first earlier schema that is incompatible is reported, from the latest on.
    """
    for candidate in [*reversed(earlier)][: None if level.is_transitive else 1]:
        messages: list[str] = []
        try:
            if level.is_read_by_earlier:
                found = incompatibilities(candidate.schema, schema)
                messages += [reason.message("old", "new") for reason in found]
            if level.reads_earlier:
                found = incompatibilities(schema, candidate.schema)
                messages += [reason.message("new", "old") for reason in found]
        except IncomparableError as error:
            messages.append(str(error))
        if messages:
            text = candidate.text
            shown = (
                f"'{text}'"
                if len(text) <= _MOST_LETTERS_OF_SCHEMA
                else f"<truncated> '{text[:_MOST_LETTERS_OF_SCHEMA]}...'"
            )
            return [
                *messages,
                f"{{oldSchemaVersion: {candidate.version}}}",
                f"{{oldSchema: {shown}}}",
            ]
    return []


def incompatibilities(reader: AvroType, writer: AvroType) -> list[Incompatibility]:
    """Return why data of the writer's schema cannot be read with the reader's.

    Raises `IncomparableError`.
    """
    return _Checker().check(reader, writer, ())


class IncomparableError(ValueError):
    """A field of the reader that matches several fields of the writer, or schemas too large."""


class _Checker:
    """Compares types; a location is the path to a type of the reader, from the root."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Incompatibility]] = {}

    def check(
        self, reader: AvroType, writer: AvroType, location: tuple[str, ...]
    ) -> list[Incompatibility]:
        key = id(reader), id(writer)
        if key not in self._known:
            if len(self._known) > _MOST_COMPARISONS:
                raise IncomparableError(
                    f"the schemas need more than {_MOST_COMPARISONS} comparisons of types"
                )
            self._known[key] = []
            self._known[key] = self._compare(reader, writer, location)[:_MOST_INCOMPATIBILITIES]
        return self._known[key]

    def _compare(
        self, reader: AvroType, writer: AvroType, location: tuple[str, ...]
    ) -> list[Incompatibility]:
        if reader.type != writer.type:
            return self._compare_types(reader, writer, location)
        found = _names(reader, writer, location) if reader.is_named else []
        match reader.type:
            case "array" | "map":
                key = "items" if reader.type == "array" else "values"
                found += self.check(reader.parts[0], writer.parts[0], (*location, key))
            case "union":
                found += self._compare_unions(reader, writer, location)
            case "fixed":
                found += _sizes(reader, writer, location)
            case "enum":
                found += _symbols(reader, writer, location)
            case "record":
                found += self._fields(reader, writer, location)
        return found

    def _compare_types(
        self, reader: AvroType, writer: AvroType, location: tuple[str, ...]
    ) -> list[Incompatibility]:
        if writer.type == "union":
            found: list[Incompatibility] = []
            for number, branch in enumerate(writer.parts):
                found += self.check(reader, branch, (*location, str(number)))
            return found
        if reader.type == "union":
            if any(not self.check(branch, writer, ()) for branch in reader.parts):
                return []
            return [_missing_branch(writer, location)]
        if writer.type in _PROMOTED_FROM.get(reader.type, ()):
            return []
        detail = (
            f"reader type: {reader.type.upper()} not compatible with writer type: "
            f"{writer.type.upper()}"
        )
        return [_incompatible(IncompatibilityType.TYPE_MISMATCH, location, detail)]

    def _compare_unions(
        self, reader: AvroType, writer: AvroType, location: tuple[str, ...]
    ) -> list[Incompatibility]:
        return [
            _missing_branch(branch, (*location, str(number)))
            for number, branch in enumerate(writer.parts)
            if self.check(reader, branch, ())
        ]

    def _fields(
        self, reader: AvroType, writer: AvroType, location: tuple[str, ...]
    ) -> list[Incompatibility]:
        found: list[Incompatibility] = []
        by_name = {field.name: part for field, part in _fields_of(writer)}
        for number, (field, part) in enumerate(_fields_of(reader)):
            place = (*location, "fields", str(number))
            written = _matching(field, by_name)
            if written is not None:
                found += self.check(part, written, (*place, "type"))
            elif field.default is ABSENT and part.default_symbol is not None:
                # As in Java, which compares the enum with the whole record.
                found += self.check(part, writer, (*place, "type"))
            elif field.default is ABSENT:
                kind = IncompatibilityType.READER_FIELD_MISSING_DEFAULT_VALUE
                found.append(_incompatible(kind, place, field.name))
        return found


def _fields_of(record: AvroType) -> list[tuple[Field, AvroType]]:
    return list(zip(record.fields, record.parts, strict=True))


def _matching(field: Field, by_name: dict[str, AvroType]) -> AvroType | None:
    """Return the type of the writer's field that a reader's field reads."""
    names = [name for name in (field.name, *field.aliases) if name in by_name]
    if len(names) > 1:
        raise IncomparableError(
            f"the field {field.name} matches several fields of the writer: {', '.join(names)}"
        )
    return by_name[names[0]] if names else None


def _names(reader: AvroType, writer: AvroType, location: tuple[str, ...]) -> list[Incompatibility]:
    if reader.name.short == writer.name.short or writer.name in reader.aliases:
        return []
    detail = f"expected: {writer.full_name}"
    return [_incompatible(IncompatibilityType.NAME_MISMATCH, (*location, "name"), detail)]


def _sizes(reader: AvroType, writer: AvroType, location: tuple[str, ...]) -> list[Incompatibility]:
    if reader.size == writer.size:
        return []
    detail = f"expected: {writer.size}, found: {reader.size}"
    return [_incompatible(IncompatibilityType.FIXED_SIZE_MISMATCH, (*location, "size"), detail)]


def _symbols(
    reader: AvroType, writer: AvroType, location: tuple[str, ...]
) -> list[Incompatibility]:
    missing = sorted(set(writer.symbols) - set(reader.symbols))
    if not missing or reader.default_symbol is not None:
        return []
    kind = IncompatibilityType.MISSING_ENUM_SYMBOLS
    return [_incompatible(kind, (*location, "symbols"), f"[{', '.join(missing)}]")]


def _missing_branch(writer: AvroType, location: tuple[str, ...]) -> Incompatibility:
    detail = f"reader union lacking writer type: {writer.type.upper()}"
    return _incompatible(IncompatibilityType.MISSING_UNION_BRANCH, location, detail)


def _incompatible(
    kind: IncompatibilityType, location: tuple[str, ...], detail: str
) -> Incompatibility:
    return Incompatibility(kind, f"/{'/'.join(location)}", detail)
