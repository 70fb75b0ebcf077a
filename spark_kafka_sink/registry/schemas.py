"""Registered schemas as values, read from a registry's JSON and checked.

A response is data from elsewhere: whatever is not of the expected type and size is an error that
names it. What a registry may hold and this package cannot use yet (Protobuf, rules that change
what is written) is refused by name, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from spark_kafka_sink.display import shortened
from spark_kafka_sink.errors import ConfigError, SchemaRegistryError
from spark_kafka_sink.model import utf8_size

#: Ids and versions are int32.
MAX_ID: Final = 2**31 - 1
#: The most references of one schema, and rules.
MAX_REFERENCES: Final = 1000
MAX_RULES: Final = 1000
#: What is kept of the messages of a compatibility test.
_MAX_MESSAGES: Final = 20
_LONGEST_MESSAGE: Final = 1000
#: `:.context:subject`; the name of the default context is a dot.
_QUALIFIED: Final = re.compile(r":(\.[^:]*):(.*)", re.DOTALL)
_DEFAULT_CONTEXT: Final = "."
#: A reference to the latest version, which Confluent's clients accept.
LATEST: Final = -1


class SchemaType(StrEnum):
    """The types of schemas that are supported."""

    AVRO = "AVRO"


class Direction(StrEnum):
    """What is done with a schema: the rules of the other direction do not matter."""

    READ = "read"
    WRITE = "write"


#: The modes of rules that do not apply to a direction (Confluent's RuleMode). Migrations are for
#: readers. Any other mode, also an unknown one, applies.
_NOT_APPLIED: Final = {
    Direction.READ: frozenset({"WRITE"}),
    Direction.WRITE: frozenset({"READ", "UPGRADE", "DOWNGRADE", "UPDOWN"}),
}


class OtherSchemaTypeError(SchemaRegistryError):
    """A schema is not one of Avro; `problem` says so without the request, and stays in copies."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a schema that is not disabled: what it is called, when it applies, what it does."""

    name: str
    #: READ, WRITE, WRITEREAD, UPGRADE, DOWNGRADE, UPDOWN, or what the registry has instead.
    mode: str
    #: Such as ENCRYPT or CEL.
    type: str


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A name that a schema uses, and the subject and version that define it."""

    name: str
    subject: str
    #: `LATEST`, or from 1.
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return it as a part of a request."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as a registry holds it."""

    id: int
    text: str
    type: SchemaType = SchemaType.AVRO
    #: None if it was looked up by its id.
    subject: str | None = None
    version: int | None = None
    references: tuple[SchemaReference, ...] = ()
    #: The rules that are not disabled.
    rules: tuple[Rule, ...] = ()
    #: The schemas that it refers to, directly or not, each after those that it needs itself.
    dependencies: tuple[RegisteredSchema, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if self.subject is None:
            return f"schema {self.id}"
        version = "" if self.version is None else f" version {self.version}"
        return f"schema {self.id} (subject {self.subject!r}{version})"

    def check_rules(self, direction: Direction) -> None:
        """Raise SchemaRegistryError if a rule applies: to ignore one could write what is secret."""
        for rule in self.rules:
            if rule.mode not in _NOT_APPLIED[direction]:
                kind = " ".join(filter(None, (rule.mode, rule.type)))
                raise SchemaRegistryError(
                    f"{self} cannot be used to {direction}: its rule {shortened(repr(rule.name))} "
                    f"({shortened(kind) or 'of no mode'}) is not supported and must not be "
                    "ignored; use a schema without it, or disable the rule in the registry"
                )


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether a schema can be registered under a subject, and the registry's reasons why not."""

    is_compatible: bool
    messages: tuple[str, ...] = ()


def context_of(subject: str | None) -> str:
    """Return the context of a subject, within which ids are unique."""
    match = None if subject is None else _QUALIFIED.fullmatch(subject)
    return _DEFAULT_CONTEXT if match is None else match[1]


def in_context_of(subject: str, parent: str | None) -> str:
    """Return the subject of a reference: it is in the context of the schema that refers to it."""
    context = context_of(parent)
    if context == _DEFAULT_CONTEXT or _QUALIFIED.fullmatch(subject) is not None:
        return subject
    return f":{context}:{subject}"


def checked_subject(subject: str) -> str:
    """Return a subject; ConfigError if none can have the name."""
    if not subject or not subject.isprintable():
        raise ConfigError(
            f"{subject!r} is not the name of a subject: it must have printable characters only, "
            "and at least one"
        )
    return subject


class Reader:
    """Reads a response; errors begin with what it is the response to."""

    def __init__(self, value: Any, what: str) -> None:
        """Raise SchemaRegistryError if the value is not an object."""
        self._what = what
        if not isinstance(value, Mapping):
            raise self._malformed(f"it is {_kind(value)}, not an object")
        self._value = value

    def schema(
        self, *, schema_id: int | None = None, subject: str | None = None
    ) -> RegisteredSchema:
        """Return the schema; that of an id does not name its id, subject and version."""
        kind = self._value.get("schemaType")
        if kind is not None and kind != SchemaType.AVRO:
            name = shortened(kind) if isinstance(kind, str) else _kind(kind)
            problem = f"the schema is of the type {name}, which is not supported yet"
            error = OtherSchemaTypeError(f"{self._what}: {problem}; use one of the type AVRO")
            error.problem = problem
            raise error
        by_id = schema_id is not None
        return RegisteredSchema(
            id=self.number("id", 0) if schema_id is None else schema_id,
            text=self.text("schema"),
            subject=subject,
            version=None if by_id else self.number("version", 1),
            references=self._references(),
            rules=self._rules(),
        )

    def number(self, name: str, lowest: int) -> int:
        """Return a field that is an int32 of at least `lowest`."""
        return self._number(self._value, name, name, lowest)

    def _number(self, value: Mapping[str, Any], name: str, path: str, lowest: int) -> int:
        number = value.get(name)
        if not isinstance(number, int) or isinstance(number, bool):
            raise self._malformed(f"{path} is {_kind(number)}, not an integer")
        if not lowest <= number <= MAX_ID:
            raise self._malformed(f"{path} must be between {lowest} and {MAX_ID}")
        return number

    def text(self, name: str) -> str:
        """Return a field that is a string."""
        return self._text(self._value, name, name)

    def _text(self, value: Mapping[str, Any], name: str, path: str) -> str:
        text = value.get(name)
        if not isinstance(text, str):
            raise self._malformed(f"{path} is {_kind(text)}, not a string")
        if utf8_size(text) is None:
            raise self._malformed(f"{path} has characters that UTF-8 does not have")
        return text

    def compatibility(self) -> Compatibility:
        """Return the result of a compatibility test."""
        is_compatible = self._value.get("is_compatible")
        if not isinstance(is_compatible, bool):
            raise self._malformed(f"is_compatible is {_kind(is_compatible)}, not a boolean")
        messages = self._list(self._value, "messages", "messages")[:_MAX_MESSAGES]
        shown = (shortened(each, _LONGEST_MESSAGE) for each in messages if isinstance(each, str))
        return Compatibility(is_compatible, tuple(shown))

    def _references(self) -> tuple[SchemaReference, ...]:
        references = []
        for number, each in enumerate(self._objects(self._value, "references", MAX_REFERENCES)):
            path = f"references[{number}]"
            subject = self._text(each, "subject", f"{path}.subject")
            if not subject or not subject.isprintable():
                raise self._malformed(f"{path}.subject is not the name of a subject")
            version = self._number(each, "version", f"{path}.version", LATEST)
            if version == 0:
                raise self._malformed(f"{path}.version is 0, which no version is")
            name = self._text(each, "name", f"{path}.name")
            references.append(SchemaReference(name, subject, version))
        return tuple(references)

    def _rules(self) -> tuple[Rule, ...]:
        rule_set = self._value.get("ruleSet")
        if rule_set is None:
            return ()
        if not isinstance(rule_set, Mapping):
            raise self._malformed(f"ruleSet is {_kind(rule_set)}, not an object")
        # Whatever the lists are called: a registry newer than this code may have another one.
        return tuple(
            Rule(*(each[name] if isinstance(each.get(name), str) else "" for name in _RULE))
            for name in rule_set
            for each in self._objects(rule_set, name, MAX_RULES)
            if each.get("disabled") is not True
        )

    def _objects(self, value: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
        items = self._list(value, name, name)
        if len(items) > most:
            raise self._malformed(f"{shortened(name)} has {len(items)} items, more than {most}")
        for number, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise self._malformed(
                    f"{shortened(name)}[{number}] is {_kind(item)}, not an object"
                )
        return items

    def _list(self, value: Mapping[str, Any], name: str, path: str) -> list[Any]:
        items = value.get(name)
        if items is None:
            return []
        if not isinstance(items, list):
            raise self._malformed(f"{shortened(path)} is {_kind(items)}, not an array")
        return items

    def _malformed(self, problem: str) -> SchemaRegistryError:
        return SchemaRegistryError(
            f"{self._what}: the response is malformed: {problem}; check that the URL is that of a "
            "Schema Registry"
        )


_RULE: Final = ("name", "mode", "type")
_KINDS: Final = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    return _KINDS.get(type(value), "a number")
