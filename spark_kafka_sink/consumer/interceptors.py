"""Plug-ins that see every record and every commit of a consumer (Kafka's ConsumerInterceptors).

They are called on the user's thread, in the order in which `interceptor.classes` names them. One
that raises is logged and skipped: it never loses a record or fails a commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecords
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_kafka_sink.config.plug_ins import PlugIns
    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition

_LOG: Final = logging.getLogger(__name__)
_METHODS: Final = ("on_consume", "on_commit")


class ConsumerInterceptor:
    """The interface of an interceptor; each method does nothing unless overridden.

    Deriving from this class is optional: any object with `on_consume` or `on_commit` works.

    >>> class Count(ConsumerInterceptor):
    ...     read = 0
    ...     def on_consume(self, records):
    ...         self.read += records.count
    ...         return records
    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    >>> count = Count()
    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "auto.offset.reset": "earliest",
    ...     "interceptor.classes": [count],
    ... }
    >>> with KafkaConsumer(settings) as consumer:
    ...     consumer.assign([TopicPartition("orders", 0)])
    ...     records = consumer.poll(timeout=30)
    >>> count.read
    1
    """

    def configure(self, settings: Mapping[str, object]) -> None:
        """Configure with the consumer's settings by Kafka's names, except those of security."""

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Return the records that `poll` returns: these, or others."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Handle offsets that were committed."""

    def close(self) -> None:
        """Release all resources; the consumer is closing."""


class ConsumerInterceptors:
    """The chain of interceptors; no error of an interceptor leaves its methods."""

    def __init__(self, interceptors: Sequence[object] = ()) -> None:
        """Create the chain of objects with any of the methods of `ConsumerInterceptor`."""
        self._interceptors = tuple(interceptors)

    @property
    def is_empty(self) -> bool:
        """Whether there is no interceptor."""
        return not self._interceptors

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Pass records through all of them; each receives what the one before it returned.

        One that raises, or does not return ConsumerRecords, is skipped.
        """
        for interceptor in self._interceptors:
            method = getattr(interceptor, "on_consume", None)
            if method is None:
                continue
            try:
                changed = method(records)
            except Exception:  # noqa: BLE001  the user's code may raise anything; it is logged
                _LOG.warning("%s.on_consume failed", type(interceptor).__qualname__, exc_info=True)
                continue
            if isinstance(changed, ConsumerRecords):
                records = changed
            else:
                _LOG.warning(
                    "%s.on_consume returned %s, not ConsumerRecords",
                    type(interceptor).__qualname__,
                    type(changed).__name__,
                )
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Pass committed offsets to all of them."""
        for interceptor in self._interceptors:
            method = getattr(interceptor, "on_commit", None)
            if method is None:
                continue
            try:
                method(offsets)
            except Exception:  # noqa: BLE001  as above
                _LOG.warning("%s.on_commit failed", type(interceptor).__qualname__, exc_info=True)


def resolve_interceptors(
    references: Sequence[PluginReference], plug_ins: PlugIns
) -> ConsumerInterceptors:
    """Create the interceptors of `interceptor.classes`; raise ConfigError for another object."""
    interceptors = []
    for reference in references:
        interceptor = plug_ins.load(reference, "interceptor.classes")
        if not any(callable(getattr(interceptor, name, None)) for name in _METHODS):
            raise ConfigError(
                f"interceptor.classes: {reference} has neither {' nor '.join(_METHODS)}"
            )
        interceptors.append(interceptor)
    return ConsumerInterceptors(interceptors)
