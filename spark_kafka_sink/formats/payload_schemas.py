"""The schemas of keys and values that have a format, found before anything is read or written.

In Spark the driver finds them. Tasks get a schema's text with its id, and ask the registry only for
ids that they meet in payloads and do not know yet; a write needs none. Nothing here needs the
kernels, so that a driver does not load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.format_options import PayloadFormat, SubjectNameStrategy
from spark_kafka_sink.errors import ConfigError, SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.avro.derived import derive_schema, record_name
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.narrowing import narrowed
from spark_kafka_sink.formats.avro.schema import are_equal, parse_schema
from spark_kafka_sink.formats.json import encode_plan as json_encode_plan
from spark_kafka_sink.formats.json import types as json_types
from spark_kafka_sink.registry.client import registry_client
from spark_kafka_sink.registry.rest_service import SCHEMA_NOT_FOUND, SUBJECT_NOT_FOUND
from spark_kafka_sink.registry.schemas import Direction, OtherSchemaTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from spark_kafka_sink.config.format_options import FormatOptions, PayloadOptions, Side
    from spark_kafka_sink.config.registry_settings import RegistrySettings
    from spark_kafka_sink.formats.avro.schema import Schema
    from spark_kafka_sink.registry.client import SchemaRegistryClient
    from spark_kafka_sink.registry.schemas import RegisteredSchema

#: What to do about a schema that is not compatible: one that was given, or derived from a column.
#: How Confluent's registry begins the message that has the text of the version.
_OLD_SCHEMA: Final = "{oldSchema:"
_MAKE_COMPATIBLE: Final = (
    "Change the schema (a new field may need a default), or the subject's compatibility level"
)
_GIVE_SCHEMA: Final = (
    "Set {}Schema to the text of a compatible schema. (This one was derived from the column: a "
    "field gets a default only if it may be null)"
)


@dataclass(frozen=True, slots=True)
class PayloadSchema:
    """A schema, and where it comes from: plain data, which can be pickled."""

    text: str
    #: The texts of the schemas that it uses, each after those that it uses itself.
    references: tuple[str, ...] = ()
    #: None without a registry.
    schema_id: int | None = None
    #: None without a registry, and if the schema was chosen by its id.
    subject: str | None = None
    version: int | None = None
    #: With JSON, the text is that of the type that is read, and empty in a write.
    format: PayloadFormat = PayloadFormat.AVRO

    def to_json(self) -> dict[str, Any]:
        """Return the schema as a value of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PayloadSchema:
        """Return the schema of such a value; raises TypeError or ValueError for another one."""
        if not isinstance(value, Mapping):
            raise TypeError(f"a schema is an object, not {type(value).__name__}")
        kept = {
            "references": tuple(value.get("references", ())),
            "format": PayloadFormat(value.get("format", PayloadFormat.AVRO)),
        }
        return cls(**{**value, **kept})

    def parsed(self) -> Schema:
        """Parse the text of a schema of Avro, once in each process; raises SchemaError."""
        return parsed_schema(self.text, self.references)

    def column_type(self) -> Any:
        """Return the `pyarrow.DataType` of the column that is read; raises SchemaError."""
        if self.format is PayloadFormat.JSON:
            return json_types.parse_type(self.text)
        return columns_of(self.parsed()).type

    def check_selection(self, asked: Any, path: str) -> None:
        """Raise SchemaError unless a type is a selection of the column's fields."""
        if self.format is PayloadFormat.JSON:
            json_types.narrowed(self.column_type(), asked, path)
        else:
            narrowed(self.parsed(), asked, path)

    def check_column(self, kind: Any, path: str) -> None:
        """Raise SchemaError unless a column of a type can be written."""
        if self.format is PayloadFormat.JSON:
            json_encode_plan.make_encode_plan(kind, path)
        else:
            make_encode_plan(self.parsed(), kind, path)

    def __str__(self) -> str:
        if self.schema_id is None:
            registered = f"the schema to register (subject {self.subject})"
            return "the given schema" if self.subject is None else registered
        version = "" if self.version is None else f", version {self.version}"
        subject = "" if self.subject is None else f" (subject {self.subject}{version})"
        return f"schema {self.schema_id}{subject}"


class UnknownSchemaError(Exception):
    """The registry does not have the schema that a payload names."""


class UnreadableSchemaError(Exception):
    """The schema that a payload names is none of Avro's, or none that a column can have.

    That never changes: such a payload can never be read.
    """


@lru_cache(maxsize=1000)
def parsed_schema(text: str, references: tuple[str, ...] = ()) -> Schema:
    """Return a parsed schema of Avro; the same object for the same texts."""
    return parse_schema(text, references)


# --- reading


def schemas_to_read(
    formats: FormatOptions, registry: RegistrySettings | None, topics: Sequence[str] | None
) -> dict[Side, PayloadSchema]:
    """Return the reader's schemas of keys and values that have a format; see `schema_to_read`."""
    client = None if registry is None else registry_client(registry)
    return {side.side: schema_to_read(side, client, topics) for side in formats.sides}


def schema_to_read(
    side: PayloadOptions, client: SchemaRegistryClient | None, topics: Sequence[str] | None
) -> PayloadSchema:
    """Return the reader's schema of one side; `topics` is None if a pattern selects them.

    Raises SchemaError if the topics have several, SchemaRegistryError, or ConfigError.
    """
    choice = side.schema
    if side.format is PayloadFormat.JSON and choice.kind != "text":
        raise ConfigError(
            f"{side.side}Format=json needs the type of the column: set {side.side}Schema to DDL "
            "(id bigint, name string) or to the JSON of a type of Spark's (df.schema.json()). In "
            f'Spark, it may also be named: .schema("{side.side} struct<id: bigint, name: string>")'
        )
    if choice.kind == "text" or client is None:
        return _given(side)
    if choice.kind == "id":
        return _plain(client.schema_by_id(choice.number, side.subject), Direction.READ)
    named: Sequence[str | None] = topics or [None]
    subjects = dict.fromkeys(_subject(side, topic) for topic in named)
    first, *others = (_version(client, side, subject, Direction.READ) for subject in subjects)
    for other in others:
        if not are_equal(first.parsed(), other.parsed()):
            raise SchemaError(
                f"the {side.side}s of the topics have different schemas, {first} and {other}: "
                f"read the topics one by one, or set {side.side}Schema to the one by which all are "
                "to be read"
            )
    return first


def writers_schema(client: SchemaRegistryClient, schema_id: int, subject: str | None) -> Schema:
    """Return the schema of an id that a payload names.

    Raises `UnknownSchemaError` if the registry does not have it, `UnreadableSchemaError` if it is
    of no use, and SchemaRegistryError if the registry does not answer, or may not be asked.
    """
    try:
        schema = client.schema_by_id(schema_id, subject, may_be_new=True)
    except OtherSchemaTypeError as error:
        raise UnreadableSchemaError(error.problem) from error
    except SchemaRegistryError as error:
        if error.error_code == SCHEMA_NOT_FOUND:
            raise UnknownSchemaError("the registry has no schema with its id") from error
        raise
    plain = _plain(schema, Direction.READ)
    try:
        return plain.parsed()
    except SchemaError as error:
        raise UnreadableSchemaError(f"its schema cannot be read: {error}") from error


# --- writing


def schemas_to_write(
    types: Mapping[Side, pa.DataType],
    formats: FormatOptions,
    registry: RegistrySettings | None,
    topic: str | None,
    *,
    is_dry_run: bool,
) -> dict[Side, PayloadSchema]:
    """Return the schemas of keys and values that have a format, and check their columns.

    `types` are those of the columns, by their names; `topic` is None if a column names it. In a dry
    run nothing is registered; whoever registers has made one before, so that nothing is registered
    for a write that cannot be. Raises ConfigError, SchemaError or SchemaRegistryError.
    """
    client = None if registry is None else registry_client(registry)
    for side in formats.sides:
        if side.side not in types:
            raise SchemaError(
                f"{side.side}Format={side.format} needs a column {side.side!r}, and there is none: "
                "add it, a struct of the fields, or remove the option"
            )
    schemas: dict[Side, PayloadSchema] = {}
    for side in formats.sides:
        kind = types[side.side]
        schema = schema_to_write(
            side, formats, client, topic, partial(derive_schema, kind), is_dry_run=is_dry_run
        )
        schema.check_column(kind, side.side)
        schemas[side.side] = schema
    return schemas


def shown_schemas(schemas: Mapping[Side, PayloadSchema]) -> tuple[str, ...]:
    """Return a line for a report about each schema that a registry has."""
    return tuple(
        f"{side}s by {schema}" for side, schema in schemas.items() if schema.schema_id is not None
    )


def schema_to_write(  # noqa: PLR0911 -- one for each kind of schema
    side: PayloadOptions,
    formats: FormatOptions,
    client: SchemaRegistryClient | None,
    topic: str | None,
    derive: Callable[[str], str],
    *,
    is_dry_run: bool,
) -> PayloadSchema:
    """Return the schema by which one side is written; `topic` is None if a column names it.

    With autoRegisterSchemas it is registered, unless this is a dry run: the text that is given, or
    what `derive` returns for the name of a record. Raises SchemaRegistryError, SchemaError or
    ConfigError.
    """
    choice = side.schema
    if side.format is PayloadFormat.JSON:
        return PayloadSchema("", format=side.format)
    if client is None:
        return _given(side)
    if choice.kind == "id":
        return _plain(client.schema_by_id(choice.number, side.subject), Direction.WRITE)
    is_given = choice.kind == "text"
    if not is_given and not formats.auto_register:
        return _version_to_write(client, side, _subject(side, topic))
    if is_given:
        schema = _given(side)
        text = schema.text
        subject = _subject(side, topic, getattr(schema.parsed(), "name", None))
    else:
        subject = _subject(side, topic)
        text = derive(side.record_name or record_name(subject))
    if not formats.auto_register:
        return _looked_up(client, side, subject, text, normalize=formats.normalize)
    if not is_dry_run:
        client.register(subject, text, normalize=formats.normalize)
        # What was registered may have rules and a version, which the registry does not return.
        found = client.look_up(subject, text, normalize=formats.normalize, is_registered=True)
        return _plain(found, Direction.WRITE)
    _check_compatible(client, side, subject, text, normalize=formats.normalize)
    return PayloadSchema(text, subject=subject)


def _version_to_write(
    client: SchemaRegistryClient, side: PayloadOptions, subject: str
) -> PayloadSchema:
    try:
        return _version(client, side, subject, Direction.WRITE)
    except SchemaRegistryError as error:
        if error.error_code == SUBJECT_NOT_FOUND and not side.schema.number:
            said = f"{error}, as the write does with autoRegisterSchemas=true"
            raise error.with_message(said) from None
        raise


def _looked_up(
    client: SchemaRegistryClient, side: PayloadOptions, subject: str, text: str, *, normalize: bool
) -> PayloadSchema:
    try:
        return _plain(client.look_up(subject, text, normalize=normalize), Direction.WRITE)
    except SchemaRegistryError as error:
        if error.error_code not in {SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND}:
            raise
        raise SchemaError(
            f"{side.side}Schema is not registered under the subject {subject!r}: register it, or "
            "set autoRegisterSchemas=true"
        ) from error


def _check_compatible(
    client: SchemaRegistryClient, side: PayloadOptions, subject: str, text: str, *, normalize: bool
) -> None:
    tested = client.test_compatibility(subject, text, normalize=normalize)
    if not tested.is_compatible:
        # The user's own schema can be long, and the version says which one it is.
        said = [text for text in tested.messages if not text.startswith(_OLD_SCHEMA)]
        reasons = "; ".join(said) or "the registry does not say why"
        is_given = side.schema.kind == "text"
        advice = _MAKE_COMPATIBLE if is_given else _GIVE_SCHEMA.format(side.side)
        raise SchemaError(
            f"the schema of {side.side}s is not compatible with the subject {subject!r}: "
            f"{reasons}. {advice}"
        )


# --- both


def _given(side: PayloadOptions) -> PayloadSchema:
    """Return the schema whose text is given; raises SchemaError with the option's name."""
    schema = PayloadSchema(side.schema.text, format=side.format)
    try:
        if side.format is PayloadFormat.AVRO:
            schema.parsed()
    except SchemaError as error:
        raise SchemaError(f"{side.side}Schema: {error}") from None
    return schema


def _subject(side: PayloadOptions, topic: str | None, record_name: str | None = None) -> str:
    """Return the subject of a side's schema for a topic.

    Raises ConfigError if the subject depends on a topic that is not known.
    """
    if side.subject is not None:
        return side.subject
    if topic is None and side.strategy is not SubjectNameStrategy.RECORD:
        raise ConfigError(
            f"the subject of {side.side}s depends on the topic, which is not known before rows are "
            f"there: set {side.side}Subject, {side.side}Schema=id:42, or "
            f"{side.side}SubjectNameStrategy=RecordNameStrategy"
        )
    return side.strategy.subject(topic or "", side.side, side.record_name or record_name)


def _version(
    client: SchemaRegistryClient, side: PayloadOptions, subject: str, direction: Direction
) -> PayloadSchema:
    """Return the version of a subject that the option chooses: one, or the latest."""
    number = side.schema.number
    if number:
        return _plain(client.schema_version(subject, number), direction)
    return _plain(client.latest_schema(subject), direction)


def _plain(schema: RegisteredSchema, direction: Direction) -> PayloadSchema:
    schema.check_rules(direction)
    return PayloadSchema(
        schema.text,
        tuple(needed.text for needed in schema.dependencies),
        schema.id,
        schema.subject,
        schema.version,
    )
