"""Tables whose keys or values have a format: their schemas, kept for one producer.

A schema is looked up, or registered, once for the same arguments, topic and types of columns.
Formats are parsed as seldom. The modules of formats are imported when they are needed: every worker
of Spark imports this one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.format_options import SIDES
from spark_kafka_sink.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.config.format_arguments import CallFormats, FormatArguments
    from spark_kafka_sink.config.format_options import FormatOptions, Side
    from spark_kafka_sink.formats.payload_schemas import PayloadSchema

#: How many schemas of keys and values a producer keeps: a table may have any type.
MOST_WRITES: Final = 100


class _Write(NamedTuple):
    """How the tables of some arguments, a topic and types are encoded."""

    formats: FormatOptions
    schemas: Mapping[Side, PayloadSchema]
    #: A line about each schema of a registry.
    lines: tuple[str, ...]


class PayloadWrites:
    """The formats of one producer's tables. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: OrderedDict[Hashable, _Write] = OrderedDict()

    def encoded(
        self, batches: Sequence[Any], arguments: FormatArguments, topic: str | None
    ) -> tuple[Iterable[Any], tuple[str, ...]]:
        """Return record batches with their keys and values encoded, and a line about each schema.

        `topic` is None if a column names it. Raises TypeError, ConfigError, SchemaError or
        SchemaRegistryError. Iterating the batches raises PayloadError for a row that a schema does
        not have, with its index in the table.
        """
        if not arguments.are_given:
            return batches, ()
        if not batches:
            arguments.of_write()
            return batches, ()
        schema = batches[0].schema
        if topic is None and "topic" not in schema.names:
            # The caller finds that it is missing, which is not to look like an unknown subject.
            return batches, ()
        write = self._write(arguments, topic, _types(schema))
        return _encoded(batches, write), write.lines

    def _write(
        self, arguments: FormatArguments, topic: str | None, types: Mapping[Side, Any]
    ) -> _Write:
        key = arguments.key(), topic, tuple(types.items())
        with self._lock:
            write = self._writes.get(key)
            if write is not None:
                self._writes.move_to_end(key)
                return write
        write = _checked(arguments.of_write(), topic, types)
        with self._lock:
            self._writes[key] = write
            if len(self._writes) > MOST_WRITES:
                self._writes.popitem(last=False)
        return write


def _types(schema: Any) -> dict[Side, Any]:
    """Return the types of keys and values, as far as there are such columns."""
    types = {}
    for side in SIDES:
        indexes = schema.get_all_field_indices(side)
        if len(indexes) > 1:
            raise SchemaError(f"{len(indexes)} columns are named {side!r}: keep one of them")
        if indexes:
            types[side] = schema.field(indexes[0]).type
    return types


def _checked(call: CallFormats, topic: str | None, types: Mapping[Side, Any]) -> _Write:
    """Find the schemas of a write; nothing is registered before all of it is checked."""
    from spark_kafka_sink.formats.payload_schemas import (  # noqa: PLC0415 -- see the module
        schemas_to_write,
        shown_schemas,
    )

    formats = call.formats
    schemas = schemas_to_write(types, formats, call.registry, topic, is_dry_run=True)
    if formats.auto_register:
        schemas = schemas_to_write(types, formats, call.registry, topic, is_dry_run=False)
    return _Write(formats, schemas, shown_schemas(schemas))


def _encoded(batches: Iterable[Any], write: _Write) -> Iterator[Any]:
    from spark_kafka_sink.formats.payload_encoder import (  # noqa: PLC0415 -- see the module
        encoded,
    )

    first_row = 0
    for batch in batches:
        yield from encoded(batch, write.schemas, write.formats, first_row)
        first_row += batch.num_rows
