"""The options by which keys and values get types: their format, framing and schema.

Each side of a record, `key` and `value`, has its own; with `raw`, the default, its payloads remain
bytes. `FormatOptions.parse` checks everything that needs neither the columns nor a Schema Registry.
The settings of the registry's client (`schema.registry.`) are those of `registry_settings`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.config_def import (
    BOOLEAN,
    HIGH,
    LOW,
    MEDIUM,
    STRING,
    NotEmpty,
    OneOfAnyCase,
    setting,
)
from spark_kafka_sink.display import shortened
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Side: TypeAlias = Literal["key", "value"]
SIDES: Final[tuple[Side, Side]] = ("key", "value")


class PayloadFormat(StrEnum):
    """How payloads are encoded."""

    RAW = "raw"
    AVRO = "avro"
    JSON = "json"

    @property
    def has_registry(self) -> bool:
        """Whether its schemas may be in a Schema Registry."""
        return self is PayloadFormat.AVRO


class Framing(StrEnum):
    """What stands before the encoded value."""

    #: A zero byte, and the id of the schema in four bytes.
    CONFLUENT = "confluent"
    NONE = "none"


class SubjectNameStrategy(StrEnum):
    """How a subject of the registry is named (Confluent's classes of the same names)."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"

    @property
    def needs_record(self) -> bool:
        """Whether the subject contains the name of the record."""
        return self is not SubjectNameStrategy.TOPIC

    def subject(self, topic: str, side: Side, record: str | None) -> str:
        """Return the subject of a topic's keys or values; `record` is the full name of the record.

        Raises ConfigError if the strategy needs a name and there is none, as in the schema of a
        string.
        """
        if not self.needs_record:
            return f"{topic}-{side}"
        if record is None:
            raise ConfigError(
                f"{side}SubjectNameStrategy={self} needs the name of a record, and the schema is "
                f"not a record: set {side}Subject"
            )
        return record if self is SubjectNameStrategy.RECORD else f"{topic}-{record}"


class EvolutionMode(StrEnum):
    """What a stream does when a writer's schema has more than the reader's."""

    NONE = "none"
    RESTART = "restart"


class OnDecodeError(StrEnum):
    """What a malformed payload does to a read."""

    FAIL = "fail"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    """Which schema a side has: the latest of its subject, one by version or id, or a text."""

    kind: Literal["latest", "version", "id", "text"]
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        """Return the option's value; a text is not repeated."""
        if self.kind == "text":
            return "the text of a schema"
        return self.kind if self.kind == "latest" else f"{self.kind}:{self.number}"


LATEST: Final = SchemaChoice("latest")


class _FormatName:
    """The name of a format, in any case."""

    def __str__(self) -> str:
        return f"(case insensitive) [{', '.join(PayloadFormat)}]"

    def problem(self, value: str) -> str | None:
        """Look up the word; name those that other systems have."""
        if value.lower() in list(PayloadFormat):
            return None
        if value.lower() == "protobuf":
            return f"must be one of: {', '.join(PayloadFormat)} (protobuf is not supported yet)"
        return f"must be one of: {', '.join(PayloadFormat)}"


#: The packages of Confluent's strategies, which users of Java have in their settings.
_STRATEGY_PACKAGES: Final = (
    "io.confluent.kafka.serializers.subject.strategy.",
    "io.confluent.kafka.serializers.subject.",
)
_STRATEGIES: Final = {strategy.lower(): strategy for strategy in SubjectNameStrategy}
#: The framings that other systems have, and what to do about them.
_OTHER_FRAMINGS: Final = {
    "header": "write with the schema's id in the payload, the default of Confluent's serializers "
    "(PrefixSchemaIdSerializer)",
    "glue": "schemas of AWS Glue have UUIDs and another prefix",
    "apicurio": "set Apicurio's serializers to Confluent's format "
    "(apicurio.registry.as-confluent, with ids of 4 bytes), then use confluent",
}
_NUMBERED: Final = re.compile(r"(version|id):([0-9]{1,10})", re.IGNORECASE)
_MAX_NUMBER: Final = 2**31 - 1
_LIKE_A_FILE: Final = re.compile(r"/|\.(avsc|avpr|json)$", re.IGNORECASE)
_SCHEMA_FORMS: Final = "latest, version:7, id:42, or the JSON text of a schema"


class _FramingName:
    """The name of a framing, in any case."""

    def __str__(self) -> str:
        return f"(case insensitive) [{', '.join(Framing)}]"

    def problem(self, value: str) -> str | None:
        """Look up the word; say what to do about those that other systems have."""
        word = value.lower()
        if word in list(Framing):
            return None
        problem = f"must be one of: {', '.join(Framing)}"
        if word in _OTHER_FRAMINGS:
            problem += f"; {word} is not supported yet ({_OTHER_FRAMINGS[word]})"
        return problem


class _StrategyName:
    """The name of a strategy, alone or as that of Confluent's class, in any case."""

    def __str__(self) -> str:
        return f"(case insensitive) [{', '.join(SubjectNameStrategy)}]"

    def problem(self, value: str) -> str | None:
        """Look up the name without its package."""
        if _strategy_name(value) in _STRATEGIES:
            return None
        if _strategy_name(value) == "associatednamestrategy":
            return "asks the registry for the subject of a topic, which is not supported: name it"
        return f"must be one of: {', '.join(SubjectNameStrategy)}"


def _strategy_name(value: str) -> str:
    """Return a name in lower case, without its package."""
    value = value.lower()
    for package in _STRATEGY_PACKAGES:
        value = value.removeprefix(package)
    return value


def _side_options(side: Side) -> dict[str, Any]:
    """Return the options that each side has, under its own names."""
    return {
        f"{side}Format": setting(STRING, PayloadFormat.RAW, HIGH, _FormatName()).doc(
            f"The format of {side}s: bytes as they are (`raw`); `avro`, with which the column "
            f"`{side}` has the type of the schema; or `json`, as `to_json` writes it and "
            "`from_json` reads it."
        ),
        f"{side}Framing": setting(STRING, None, MEDIUM, _FramingName()).doc(
            f"What stands before each {side}: the id of its schema as Confluent's serializers "
            "write it (`confluent`, the default with a Schema Registry), or nothing (`none`, the "
            "default without)."
        ),
        f"{side}Schema": setting(STRING, "latest", HIGH, NotEmpty()).doc(
            f"The schema of {side}s: `latest`, the newest version of the subject; `version:7` of "
            "it; `id:42`; or the JSON text of a schema, which is required without a Schema "
            f"Registry. With {side}Format=json, a read has the type of its column here: DDL "
            "(`id bigint, name string`), or the JSON of a type of Spark's."
        ),
        f"{side}Subject": setting(STRING, None, MEDIUM, NotEmpty()).doc(
            f"The subject of {side}s in the Schema Registry, if {side}SubjectNameStrategy does not "
            "name it."
        ),
        f"{side}SubjectNameStrategy": setting(
            STRING, SubjectNameStrategy.TOPIC, MEDIUM, _StrategyName()
        ).doc(
            f"How the subject of {side}s is named: `TopicNameStrategy` is `<topic>-{side}`, "
            "`RecordNameStrategy` the full name of the record, `TopicRecordNameStrategy` "
            "`<topic>-<record>`. The names of Confluent's classes are accepted, too."
        ),
        f"{side}RecordName": setting(STRING, None, LOW, NotEmpty()).doc(
            f"The full name of the record in the schema of {side}s, for the strategies with record "
            "names and for schemas that are registered automatically."
        ),
    }


#: The options of both directions.
FORMAT_OPTIONS: Final = {name: row for side in SIDES for name, row in _side_options(side).items()}
#: Those of reads.
READ_FORMAT_OPTIONS: Final = {
    "schemaEvolutionMode": setting(
        STRING, EvolutionMode.NONE, MEDIUM, OneOfAnyCase(tuple(EvolutionMode))
    ).doc(
        "What a stream does when it meets a newer schema with fields, types of a union or symbols "
        "of an enum that its own schema lacks: go on without them and warn once (`none`), or fail, "
        "so that a restart reads them (`restart`)."
    ),
    "onDecodeError": setting(
        STRING, OnDecodeError.FAIL, MEDIUM, OneOfAnyCase(tuple(OnDecodeError))
    ).doc(
        "What a malformed payload does: fail the read, or become null. With `null`, rows have "
        "three more columns: `decodeError` says what is wrong, `rawKey` and `rawValue` have the "
        "bytes; all three are null in rows without such a payload."
    ),
}
#: Those of writes.
WRITE_FORMAT_OPTIONS: Final = {
    "autoRegisterSchemas": setting(BOOLEAN, False, MEDIUM).doc(
        "Whether a write registers its schemas: the text that is given, or without one, a schema "
        "derived from the column. Otherwise it only looks schemas up."
    ),
    "normalizeSchemas": setting(BOOLEAN, False, LOW).doc(
        "Whether the Schema Registry normalizes a schema's text before it looks it up or registers "
        "it."
    ),
}


_REGISTRY: Final = "schema.registry."
_URL: Final = f"{_REGISTRY}url"
#: What ABRiS, Databricks, Spark and Confluent call options, in lower case and without punctuation,
#: and what is said here. The options of a side stand without it.
_OTHER_NAMES: Final = {
    "url": _URL,
    "registryurl": _URL,
    "schemaregistry": _URL,
    "schemaregistryurl": _URL,
    "schemaregistryaddress": _URL,
    "schemaregistrysubject": "Subject",
    "avroschema": "Schema",
    "avroschemaurl": "Schema",
    "jsonformatschema": "Schema",
    "readerschema": "Schema",
    "schemaid": "Schema",
    "schemaversion": "Schema",
    "uselatestversion": "Schema",
    "useschemaid": "Schema",
    "writerschema": "Schema",
    "schemanamingstrategy": "SubjectNameStrategy",
    "recordnamespace": "RecordName",
    "schemaname": "RecordName",
    "schemanamespace": "RecordName",
    "avroschemaevolutionmode": "schemaEvolutionMode",
}
_CONFLUENT_PREFIX: Final = "confluent."
#: Settings of the registry that Confluent's serializers take without a prefix, beside Kafka's own.
_LOGIN_PREFIXES: Final = ("basic.auth.", "bearer.auth.")
_PUNCTUATION: Final = str.maketrans("", "", "._-")


def renamed_option(name: str, *, is_read: bool) -> str | None:
    """Return the option that has another name elsewhere, or here a side; None if there is none.

    >>> renamed_option("value.schema.id", is_read=True)
    'valueSchema'
    """
    key = name.lower()
    if key.startswith(f"{_CONFLUENT_PREFIX}schema.registry."):
        return key.removeprefix(_CONFLUENT_PREFIX)
    if key.removeprefix(KAFKA_PREFIX).startswith(_LOGIN_PREFIXES):
        return f"{_REGISTRY}{key.removeprefix(KAFKA_PREFIX)}"
    bare = key.translate(_PUNCTUATION)
    if is_read and bare == "mode":
        return "onDecodeError"
    own = FORMAT_OPTIONS | (READ_FORMAT_OPTIONS if is_read else WRITE_FORMAT_OPTIONS)
    side = "key" if bare.startswith("key") else "value"
    unsided = bare.removeprefix(side)
    renamed = _OTHER_NAMES.get(unsided)
    if renamed is not None and renamed[0].islower():
        return renamed if renamed == _URL or renamed in own else None
    wanted = f"{side}{renamed or unsided}".lower()
    return next((option for option in own if option.lower() in {wanted, bare}), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadOptions:
    """How the payloads of one side are encoded; there is no such object for raw ones."""

    side: Side
    format: PayloadFormat
    framing: Framing
    schema: SchemaChoice
    #: A name that the user gave; None if the strategy names it.
    subject: str | None
    strategy: SubjectNameStrategy
    record_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """The formats of both sides; None for a side whose payloads are bytes as they are."""

    key: PayloadOptions | None = None
    value: PayloadOptions | None = None
    evolution: EvolutionMode = EvolutionMode.NONE
    on_decode_error: OnDecodeError = OnDecodeError.FAIL
    auto_register: bool = False
    normalize: bool = False

    @property
    def sides(self) -> tuple[PayloadOptions, ...]:
        """The sides that have a format."""
        return tuple(side for side in (self.key, self.value) if side is not None)

    @property
    def has_error_columns(self) -> bool:
        """Whether a read has columns that show its malformed payloads."""
        return bool(self.sides) and self.on_decode_error is OnDecodeError.NULL

    @classmethod
    def parse(
        cls,
        values: Mapping[str, Any],
        given: frozenset[str],
        *,
        has_registry: bool,
        is_read: bool,
    ) -> FormatOptions:
        """Return the formats of a read or a write.

        `values` has all options, with their defaults; `given` the names of those that the user set.
        Raises ConfigError for options that contradict each other, or would have no effect.
        """
        key, value = (
            _payload_options(side, values, given, has_registry=has_registry) for side in SIDES
        )
        options = cls(
            key=key,
            value=value,
            evolution=EvolutionMode(values.get("schemaEvolutionMode", "none").lower()),
            on_decode_error=OnDecodeError(values.get("onDecodeError", "fail").lower()),
            auto_register=values.get("autoRegisterSchemas", False),
            normalize=values.get("normalizeSchemas", False),
        )
        registered = [side for side in options.sides if side.format.has_registry]
        fixed = [side for side in registered if side.schema.kind != LATEST.kind]
        if options.evolution is EvolutionMode.RESTART and fixed:
            raise ConfigError(
                f"schemaEvolutionMode=restart needs {fixed[0].side}Schema=latest: with "
                f"{fixed[0].schema}, a query that is started again reads no more than before"
            )
        if not options.sides:
            _check_without_format(given, has_registry=has_registry)
        if options.auto_register:
            _check_registration(options, given, has_registry=has_registry)
        for side in options.sides:
            if side.format is PayloadFormat.JSON:
                _check_json(side, given, is_read=is_read)
            else:
                _check_effects(side, given, _Uses.of(side, options, has_registry, is_read))
        _check_common_effects(options, has_registry=has_registry, is_read=is_read)
        return options


def _payload_options(
    side: Side, values: Mapping[str, Any], given: frozenset[str], *, has_registry: bool
) -> PayloadOptions | None:
    """Return the options of a side, None if its payloads are bytes as they are."""
    kind = PayloadFormat(values[f"{side}Format"].lower())
    if kind is PayloadFormat.RAW:
        for name in _side_options(side):
            if name in given and name != f"{side}Format":
                raise ConfigError(f"{name} needs a format: set {side}Format=avro, or remove it")
        return None
    is_framed = has_registry and kind.has_registry
    default = Framing.CONFLUENT if is_framed else Framing.NONE
    framing = values[f"{side}Framing"]
    text = values[f"{side}Schema"]
    choice = _json_schema if kind is PayloadFormat.JSON else _schema_choice
    options = PayloadOptions(
        side=side,
        format=kind,
        framing=default if framing is None else Framing(framing.lower()),
        schema=choice(f"{side}Schema", text),
        subject=values[f"{side}Subject"],
        strategy=_STRATEGIES[_strategy_name(values[f"{side}SubjectNameStrategy"])],
        record_name=values[f"{side}RecordName"],
    )
    if kind.has_registry:
        _check_side(options, given, has_registry=has_registry)
    return options


def _json_schema(name: str, value: str) -> SchemaChoice:
    """Return the type that JSON is read as; `LATEST` if none is given."""
    if value.lower() == LATEST.kind:
        return LATEST
    if _NUMBERED.fullmatch(value) is not None:
        raise ConfigError(
            f"{name}={value} is a schema in a Schema Registry, and JSON with such a schema (JSON "
            f"Schema) is not supported yet: set {name} to DDL (id bigint, name string), or to the "
            "JSON of a type of Spark's"
        )
    return SchemaChoice("text", text=value)


def _schema_choice(name: str, value: str) -> SchemaChoice:
    if value.lower() == LATEST.kind:
        return LATEST
    numbered = _NUMBERED.fullmatch(value)
    if numbered is not None and 0 < int(numbered[2]) <= _MAX_NUMBER:
        kind: Literal["version", "id"] = "id" if numbered[1].lower() == "id" else "version"
        return SchemaChoice(kind, int(numbered[2]))
    # All else that could be a schema of Avro begins like this in JSON.
    if value.startswith(("{", "[", '"')):
        return SchemaChoice("text", text=value)
    advice = ". Pass the text of the file" if _LIKE_A_FILE.search(value) else ""
    raise ConfigError(f"{name} must be {_SCHEMA_FORMS}, not {shortened(repr(value))}{advice}")


def _check_side(options: PayloadOptions, given: frozenset[str], *, has_registry: bool) -> None:
    side = options.side
    if not has_registry:
        if options.schema.kind != "text":
            raise ConfigError(
                f"{side}Format={options.format} needs a schema: set schema.registry.url to the "
                f"Schema Registry that has it, or {side}Schema to its JSON text"
            )
        if options.framing is Framing.CONFLUENT:
            raise ConfigError(
                f"{side}Framing=confluent needs schema.registry.url: the framing is the id of a "
                "schema in a Schema Registry"
            )
        for name in (f"{side}Subject", f"{side}SubjectNameStrategy"):
            if name in given:
                raise ConfigError(
                    f"{name} needs schema.registry.url: subjects are in a Schema Registry"
                )
    names = f"{side}Subject", f"{side}SubjectNameStrategy"
    if all(name in given for name in names):
        raise ConfigError(f"{names[0]} and {names[1]} both name the subject: remove one of them")
    needs_name = options.strategy is not SubjectNameStrategy.TOPIC and options.subject is None
    if needs_name and options.record_name is None and options.schema.kind in {"latest", "version"}:
        raise ConfigError(
            f"{side}SubjectNameStrategy={options.strategy} needs {side}RecordName to find "
            f"{side}Schema={options.schema}: the name of the record is part of the subject"
        )


def _check_json(options: PayloadOptions, given: frozenset[str], *, is_read: bool) -> None:
    """Raise ConfigError for options that JSON does not have."""
    side = options.side
    if options.framing is Framing.CONFLUENT:
        raise ConfigError(
            f"{side}Framing=confluent is not supported yet with {side}Format=json: it is that of "
            "JSON Schema in a Schema Registry"
        )
    names = [f"{side}Subject", f"{side}SubjectNameStrategy", f"{side}RecordName"]
    for name in names:
        if name in given:
            raise ConfigError(
                f"{name} has no effect with {side}Format=json, which has no schema in a Schema "
                "Registry: remove it"
            )
    if f"{side}Schema" in given and not is_read:
        raise ConfigError(
            f"{side}Schema has no effect in a write with {side}Format=json: the column has its "
            "type. Remove it"
        )


class _Uses(NamedTuple):
    """For what a read or a write uses the names of one side's schema."""

    #: To find the schema that the option chooses, or to register it.
    finds_subject: bool
    #: In requests about ids: a subject says in which context, and with which rights.
    asks_for_ids: bool
    #: To name the record of a schema that is derived from the column.
    derives_record: bool

    @classmethod
    def of(
        cls,
        side: PayloadOptions,
        options: FormatOptions,
        has_registry: bool,  # noqa: FBT001 -- as in `parse`
        is_read: bool,  # noqa: FBT001
    ) -> _Uses:
        kind = side.schema.kind
        is_framed_read = is_read and side.framing is Framing.CONFLUENT
        return cls(
            finds_subject=kind in {"latest", "version"}
            or (kind == "text" and has_registry and not is_read),
            asks_for_ids=kind == "id" or is_framed_read,
            derives_record=kind == "latest" and options.auto_register,
        )


def _check_effects(side: PayloadOptions, given: frozenset[str], uses: _Uses) -> None:
    """Raise ConfigError for an option of one side that would have no effect."""
    schema = f"{side.side}Schema as {side.schema}" if side.schema.kind == "text" else ""
    schema = schema or f"{side.side}Schema={side.schema}"
    no_subject = f"{schema}, for which no subject is looked up"
    strategy, record = f"{side.side}SubjectNameStrategy", f"{side.side}RecordName"
    names_subject = side.subject is None and side.strategy.needs_record and uses.finds_subject
    effects = {
        strategy: (uses.finds_subject, no_subject),
        f"{side.side}Subject": (
            uses.finds_subject or uses.asks_for_ids,
            f"{schema} and {side.side}Framing=none, for which no registry is asked",
        ),
        record: (
            names_subject or uses.derives_record,
            f"{strategy}={side.strategy}, unless a schema is derived and registered "
            "(autoRegisterSchemas=true)"
            if uses.finds_subject and side.subject is None
            else f"{side.side}Subject"
            if uses.finds_subject
            else no_subject,
        ),
    }
    for name, (has_effect, beside) in effects.items():
        if name in given and not has_effect:
            raise ConfigError(f"{name} has no effect with {beside}: remove it")


def _check_common_effects(options: FormatOptions, *, has_registry: bool, is_read: bool) -> None:
    """Raise ConfigError for an option of both sides that would have no effect."""
    sides = options.sides
    is_registering = options.auto_register or any(
        side.schema.kind == "text" for side in sides if side.format.has_registry
    )
    if options.normalize and not (has_registry and is_registering):
        raise ConfigError(
            "normalizeSchemas=true has no effect, since no text of a schema is sent to a Schema "
            "Registry: remove it, or set "
            + ("autoRegisterSchemas=true" if has_registry else "schema.registry.url")
        )
    registered = [side for side in sides if side.format.has_registry]
    if has_registry and sides and not registered:
        raise ConfigError(
            f"schema.registry.url has no effect with {sides[0].side}Format={sides[0].format}, "
            "which has no schema in a Schema Registry: remove it"
        )
    are_framed = any(side.framing is Framing.CONFLUENT for side in sides)
    if options.evolution is EvolutionMode.RESTART and not are_framed:
        names = " and ".join(f"{side.side}Framing=none" for side in sides)
        raise ConfigError(
            f"schemaEvolutionMode=restart has no effect with {names}: such payloads do not name "
            "their schemas. Remove it"
        )
    is_asked = are_framed or any(side.schema.kind != "text" for side in registered)
    if sides and has_registry and is_read and not is_asked:
        raise ConfigError(
            "schema.registry.url has no effect: with the text of a schema and without framing, a "
            "read asks no registry. Remove it"
        )


def _check_without_format(given: frozenset[str], *, has_registry: bool) -> None:
    """Raise ConfigError for options that would have no effect."""
    names = [name for name in (*READ_FORMAT_OPTIONS, *WRITE_FORMAT_OPTIONS) if name in given]
    if has_registry:
        names.append("schema.registry.url")
    if names:
        raise ConfigError(
            f"{names[0]} needs a format: set valueFormat=avro or keyFormat=avro, or remove it"
        )


def _check_registration(
    options: FormatOptions, given: frozenset[str], *, has_registry: bool
) -> None:
    if not has_registry:
        raise ConfigError("autoRegisterSchemas=true needs schema.registry.url")
    registered = [side for side in options.sides if side.format.has_registry]
    for side in registered:
        name = f"{side.side}Schema"
        if name in given and side.schema.kind != "text":
            raise ConfigError(
                f"autoRegisterSchemas=true contradicts {name}={side.schema}, which is registered "
                f"already: remove one of them, or set {name} to the text to register"
            )
