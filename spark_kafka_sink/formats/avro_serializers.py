"""Serializer and deserializer of single records as Avro, with a Schema Registry or without.

They are plug-ins of the clients (`value.serializer`, `key.deserializer` and so on). What they find
in the registry they keep: the schema of a topic's subject, and that of each id. A look-up that
fails is not kept. They hold no connection, so that there is nothing to close. A copy, also one in
another process, has the same arguments, secrets included, and finds the schemas itself.
"""

from __future__ import annotations

import os
import threading
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar
from weakref import WeakSet

from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.format_options import LATEST, Framing
from spark_kafka_sink.errors import ConfigError, PayloadError
from spark_kafka_sink.formats.avro.value_decoder import ValueDecoder
from spark_kafka_sink.formats.avro.value_encoder import ValueEncoder
from spark_kafka_sink.formats.payload_decoder import schema_of_writer
from spark_kafka_sink.formats.payload_schemas import (
    PayloadSchema,
    UnknownSchemaError,
    UnreadableSchemaError,
    schema_to_read,
    schema_to_write,
    writers_schema,
)
from spark_kafka_sink.record.default_record import encode_varint
from spark_kafka_sink.registry.client import registry_client
from spark_kafka_sink.registry.framing import (
    PREFIX_BYTES,
    SCHEMA_ID_HEADERS,
    prefix,
    schema_id_of,
    why_unframed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from spark_kafka_sink.config.format_arguments import CallFormats
    from spark_kafka_sink.config.format_options import Side
    from spark_kafka_sink.registry.client import SchemaRegistryClient

P = ParamSpec("P")
Self = TypeVar("Self")
Value = TypeVar("Value")

_READ_BYTES: Final = "Read it as bytes, or write it again"
#: The attributes of plug-ins that their copies do not take over, and what those begin with.
_NOT_COPIED: Final[Mapping[str, Callable[[], object]]] = {
    "_lock": threading.Lock,
    "_look_ups": dict,
    "_encoders": dict,
    "_decoders": dict,
    "_readers": dict,
}


class _Formats:
    """The options of one side, which is known once the client has configured the plug-in."""

    def __init__(
        self, schema_registry: Mapping[str, object] | None, options: Mapping[str, object | None]
    ) -> None:
        """Set the options, by their names in Spark without the side; None for those not given."""
        self._schema_registry = schema_registry
        self._options = {name: value for name, value in options.items() if value is not None}
        #: None before `configure`.
        self._side: Side | None = None

    def given(self, side: Side) -> FormatArguments:
        """Return the arguments that have the same meaning in a call."""
        sided = {"Framing", "Schema", "Subject", "SubjectNameStrategy", "RecordName"}
        named = {
            f"{side}{name}" if name in sided else name: value
            for name, value in self._options.items()
        }
        named[f"{side}Format"] = "avro"
        return FormatArguments(schema_registry=self._schema_registry, format_options=named)

    def configure(self, *, is_key: bool) -> Side:
        """Return the side; raise ConfigError if it was the other one before."""
        side: Side = "key" if is_key else "value"
        if self._side not in {None, side}:
            raise ConfigError(
                f"it is in use for {self._side}s already: create one for keys and one for values"
            )
        self._side = side
        return side


def _client_of(call: CallFormats) -> SchemaRegistryClient | None:
    return None if call.registry is None else registry_client(call.registry)


def _named(
    create: Callable[Concatenate[Self, P], None],
) -> Callable[Concatenate[Self, P], None]:
    """Raise TypeError with an example if arguments are given as to Confluent's classes."""

    @wraps(create)
    def create_named(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        kind = type(self).__name__
        if len(args) > 1:
            raise TypeError(
                f"{kind} takes only the settings of the registry by position: name the other "
                f"arguments, as in {kind}({{'url': 'http://host:8081'}}, schema=text)"
            )
        if args and isinstance(args[0], str):
            raise TypeError(
                "schema_registry must be a mapping such as {'url': 'http://host:8081'}, not str: "
                f"pass the text of a schema by its name, as in {kind}(schema=text)"
            )
        create(self, *args, **kwargs)

    return create_named


class _Copyable:
    """A plug-in whose copies have its arguments, but neither its locks nor what it has found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Those that look something up, by what it is: another look-up need not wait for them.
        self._look_ups: dict[Hashable, threading.Lock] = {}
        _with_locks.add(self)

    def _once(self, found: dict[Any, Value], key: Hashable, look_up: Callable[[], Value]) -> Value:
        """Return what was found for a key, else look it up; other threads with the key wait."""
        with self._lock:
            under_way = self._look_ups.setdefault(key, threading.Lock())
        with under_way:
            try:
                if key not in found:
                    found[key] = look_up()
                return found[key]
            finally:
                # Of those that fail there may be any number.
                self._look_ups.pop(key, None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_COPIED}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        vars(self).update({name: create() for name, create in _NOT_COPIED.items()})
        _with_locks.add(self)

    def renew_locks(self) -> None:
        """Use other locks: the threads that held these do not exist in a forked process."""
        self._lock = threading.Lock()
        self._look_ups = {}


_with_locks: Final[WeakSet[_Copyable]] = WeakSet()


def _renew_locks() -> None:
    for plug_in in _with_locks:
        plug_in.renew_locks()


os.register_at_fork(after_in_child=_renew_locks)


class AvroSerializer(_Copyable):
    """A serializer of keys or values as Avro (`key.serializer`, `value.serializer`). Thread-safe.

    `schema_registry` has the settings of a Schema Registry, such as `{"url": ...}`; without it,
    `schema` is the text of a schema, and payloads have no framing.

    - `schema` (`"latest"`): the newest version of the subject, or `"version:7"`, `"id:42"`, or the
      text of a schema, which must be registered
    - `subject`, or `subject_name_strategy` (`"TopicNameStrategy"`) with the `record_name`
    - `framing` (`"confluent"` with a registry): `"none"` writes no id before the value
    - `auto_register_schemas` (False): register the text instead
    - `normalize_schemas` (False): let the registry normalize the text before

    Records are dicts. A field that a dict lacks takes its default, else null if it may be null; one
    that the schema lacks is an error. In a union, a pair of a type's name and a value chooses the
    type. Timestamps are datetimes with a time zone, local ones have none; decimals are `Decimal`s.

    >>> text = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    >>> AvroSerializer(schema=text).serialize("orders", [], {"id": 21})
    b'*'
    """

    @_named
    def __init__(
        self,
        schema_registry: Mapping[str, object] | None = None,
        *,
        schema: str | None = None,
        subject: str | None = None,
        subject_name_strategy: str | None = None,
        framing: str | None = None,
        record_name: str | None = None,
        auto_register_schemas: bool = False,
        normalize_schemas: bool = False,
    ) -> None:
        """Check the arguments, without connecting to anything.

        Raises TypeError or ConfigError. Errors call options by their names in Spark.
        """
        self._formats = _Formats(
            schema_registry,
            {
                "Schema": schema,
                "Subject": subject,
                "SubjectNameStrategy": subject_name_strategy,
                "Framing": framing,
                "RecordName": record_name,
                "autoRegisterSchemas": auto_register_schemas or None,
                "normalizeSchemas": normalize_schemas or None,
            },
        )
        super().__init__()
        self._set_side("value")

    def _set_side(self, side: Side) -> None:
        self._call = call = self._formats.given(side).of_write()
        [self._side] = call.formats.sides
        if call.formats.auto_register and self._side.schema == LATEST:
            raise ConfigError(
                f"autoRegisterSchemas=true needs {side}Schema as the text of a schema: none is "
                "derived from single values"
            )
        #: By topic, the prefix of its payloads, their encoder, and the id of their schema.
        self._encoders: dict[str, tuple[bytes, ValueEncoder, int | None]] = {}

    def configure(self, settings: Mapping[str, object], *, is_key: bool) -> None:  # noqa: ARG002
        """Set whether it is for keys: `is_key` (a client calls this; `settings` are not used)."""
        side = self._formats.configure(is_key=is_key)
        if side != self._side.side:
            self._set_side(side)

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:  # noqa: ARG002
        """Return the payload of `data`, which is not None, for a record of `topic`.

        `headers` are not used. Raises PayloadError for a value that the schema does not have,
        SchemaRegistryError, SchemaError or ConfigError.
        """
        known = self._encoders.get(topic)
        if known is None:
            known = self._once(self._encoders, topic, partial(self._encoder, topic))
        first, encoder, schema_id = known
        try:
            return encoder.encode(data, first)
        except PayloadError as error:
            raise error.about(schema_id=schema_id) from None

    def _encoder(self, topic: str) -> tuple[bytes, ValueEncoder, int | None]:
        side, client = self._side, _client_of(self._call)
        schema = schema_to_write(
            side, self._call.formats, client, topic, _not_derived, is_dry_run=False
        )
        is_framed = side.framing is Framing.CONFLUENT and schema.schema_id is not None
        first = prefix(schema.schema_id or 0) if is_framed else b""
        encoder = ValueEncoder(schema.parsed(), side.side, bare_bytes=is_framed)
        return first, encoder, schema.schema_id


def _not_derived(name: str) -> NoReturn:
    raise TypeError(f"no schema is derived from single values, not even {name}")


class AvroDeserializer(_Copyable):
    """A deserializer of keys or values from Avro (`key.deserializer`, `value.deserializer`).

    `schema_registry` has the settings of a Schema Registry, such as `{"url": ...}`. Each payload is
    decoded by the schema of its own id, and has the fields of that schema. With a reader's
    `schema`, it has those of that one instead, by Avro's rules for schemas that evolve: it is
    `"latest"`, `"version:7"`, `"id:42"`, or the text of a schema. Without a registry or with the
    `framing` `"none"`, payloads have no id, and the schema is theirs.

    `subject`, or `subject_name_strategy` with the `record_name`, name the subject of that schema,
    which is `<topic>-value` otherwise. The latest schema is looked up once for each topic.

    Records and maps become dicts, timestamps datetimes in UTC, local ones datetimes without a time
    zone, decimals `Decimal`s, enums and UUIDs strings, unions the value of their type; a timestamp
    of nanoseconds remains an int.

    >>> text = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    >>> AvroDeserializer(schema=text).deserialize("orders", [], b"*")
    {'id': 21}
    """

    @_named
    def __init__(
        self,
        schema_registry: Mapping[str, object] | None = None,
        *,
        schema: str | None = None,
        subject: str | None = None,
        subject_name_strategy: str | None = None,
        framing: str | None = None,
        record_name: str | None = None,
    ) -> None:
        """Check the arguments, without connecting to anything.

        Raises TypeError or ConfigError. Errors call options by their names in Spark.
        """
        self._has_reader = schema is not None
        self._given = {"SubjectNameStrategy": subject_name_strategy, "RecordName": record_name}
        self._formats = _Formats(
            schema_registry,
            {"Schema": schema, "Subject": subject, "Framing": framing, **self._given},
        )
        super().__init__()
        self._set_side("value")

    def _set_side(self, side: Side) -> None:
        self._call = call = self._formats.given(side).of_read()
        [self._side] = call.formats.sides
        if not self._has_reader:
            self._check_without_reader(side)
        #: By topic, if there are such.
        self._readers: dict[str, PayloadSchema] = {}
        #: By topic, and by the id of the writer's schema: None without framing. With it, the
        #: payloads of the schema "bytes" have no length.
        self._decoders: dict[tuple[str, int | None], tuple[ValueDecoder, bool]] = {}

    def _check_without_reader(self, side: Side) -> None:
        if self._side.framing is Framing.NONE:
            raise ConfigError(
                f"{side}Framing=none needs {side}Schema: such payloads do not name their schemas"
            )
        for name, value in self._given.items():
            if value is not None:
                raise ConfigError(
                    f"{side}{name} has no effect without {side}Schema, since each payload names "
                    "its schema: remove it"
                )

    def configure(self, settings: Mapping[str, object], *, is_key: bool) -> None:  # noqa: ARG002
        """Set whether it is for keys: `is_key` (a client calls this; `settings` are not used)."""
        side = self._formats.configure(is_key=is_key)
        if side != self._side.side:
            self._set_side(side)

    def deserialize(
        self, topic: str, headers: Sequence[tuple[str, bytes | None]], data: bytes
    ) -> Any:
        """Return the value of `data`, the payload of a record of `topic`.

        A record whose `headers` name its schema is refused. Raises PayloadError for a malformed
        payload, SchemaRegistryError, SchemaError or ConfigError.
        """
        side = self._side
        schema_id = None
        if type(data) is not bytes:
            data = bytes(data)
        _refuse_id_header(side.side, headers)
        if side.framing is Framing.CONFLUENT:
            schema_id = schema_id_of(data)
            if schema_id is None:
                raise PayloadError(f"it {why_unframed(data)}", field=side.side, advice=_READ_BYTES)
            data = data[PREFIX_BYTES:]
        known = self._decoders.get((topic, schema_id))
        if known is None:
            key = topic, schema_id
            known = self._once(self._decoders, key, partial(self._decoder, *key))
        decoder, is_bare = known
        if is_bare:
            data = encode_varint(len(data)) + data
        try:
            return decoder.decode(data)
        except PayloadError as error:
            raise error.about(schema_id=schema_id) from None

    def _decoder(self, topic: str, schema_id: int | None) -> tuple[ValueDecoder, bool]:
        side, call = self._side, self._call
        reader = self._reader(topic) if self._has_reader else None
        if schema_id is None or call.registry is None:
            schema = PayloadSchema(side.schema.text) if reader is None else reader
            return ValueDecoder(schema.parsed(), schema.parsed(), side.side), False
        try:
            if reader is None:
                client = registry_client(call.registry)
                writer = writers_schema(client, schema_id, side.subject)
            else:
                writer = schema_of_writer(
                    side, reader, call.registry, call.formats.evolution, schema_id
                )
        except (UnknownSchemaError, UnreadableSchemaError) as error:
            raise PayloadError(
                str(error), schema_id=schema_id, field=side.side, advice=_READ_BYTES
            ) from error
        decoder = ValueDecoder(writer, writer if reader is None else reader.parsed(), side.side)
        return decoder, writer.type == "bytes"

    def _reader(self, topic: str) -> PayloadSchema:
        """Return the reader's schema of a topic, looked up once."""

        def look_up() -> PayloadSchema:
            return schema_to_read(self._side, _client_of(self._call), [topic])

        return self._readers.get(topic) or self._once(self._readers, topic, look_up)


def _refuse_id_header(side: Side, headers: Sequence[tuple[str, bytes | None]]) -> None:
    """Raise PayloadError for a record whose schema is named in a header; see `payload_columns`."""
    header = SCHEMA_ID_HEADERS[side]
    if any(name == header for name, _ in headers):
        raise PayloadError(
            f"its schema is named in the header {header}, a framing that is not supported yet",
            field=side,
            advice=f"Read the {side} as raw bytes",
        )
