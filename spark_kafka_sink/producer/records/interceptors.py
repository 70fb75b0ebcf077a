"""The records that users send, and the plug-ins that see each of them (ProducerInterceptors).

Interceptors are called in the order in which `interceptor.classes` names them. One that raises is
logged and skipped: it never prevents a record from being sent. The log contains the topic and
partition, never a key or a value.

They are configured and closed like all plug-ins (see `config.plug_ins`). `on_send` runs on
the thread that sends, `on_acknowledgement` mostly on the network thread, where it delays all
deliveries: it must be quick.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.plug_ins import PlugIns, takes
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.batch.interrupts import is_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.model import RecordMetadata

_LOG: Final = logging.getLogger(__name__)
_METHODS: Final = ("on_send", "on_acknowledgement")


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record before its key and value are serialized.

    It is frozen because interceptors pass it on: `dataclasses.replace` creates a changed copy.

    `topic` is the topic's name; `headers` are (name, bytes) pairs, with None for a header without a
    value.

    >>> from dataclasses import replace
    >>> record = ProducerRecord("orders", b"a book", key=b"alice")
    >>> replace(record, headers=[("source", b"web")]).headers
    [('source', b'web')]
    """

    topic: str
    #: None deletes the key in a compacted topic (a tombstone).
    value: Any = None
    #: None leaves the partition to the partitioner's rule for records without a key.
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    #: None leaves the choice to the partitioner.
    partition: int | None = None
    #: Milliseconds since 1970 (UTC); None means the time of sending.
    timestamp: int | None = None


class ProducerInterceptor:
    """The interface of an interceptor; each method does nothing unless overridden.

    Deriving from this class is optional: any object with `on_send` or `on_acknowledgement` works.

    >>> class Count(ProducerInterceptor):
    ...     sent = 0
    ...     def on_acknowledgement(self, metadata, error):
    ...         self.sent += error is None
    >>> count = Count()
    >>> settings = {"bootstrap.servers": "localhost:9092", "interceptor.classes": [count]}
    >>> with KafkaProducer(settings) as producer:
    ...     future = producer.send("orders", b"a book")
    >>> count.sent
    1
    """

    def configure(self, settings: Mapping[str, object]) -> None:
        """Configure with the producer's settings by Kafka's names, except those of security."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to be sent, this one or another; it is serialized afterwards."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Handle the outcome of a record: `error` is None if it was acknowledged.

        If the record failed, `metadata` has its topic, and its partition unless none was chosen;
        all other numbers are -1. If the method has a third parameter, `headers`, it receives the
        record's headers (KIP-512).
        """

    def close(self) -> None:
        """Release all resources; the producer is closing."""


class ProducerInterceptors:
    """The chain of interceptors; no error of an interceptor leaves its methods."""

    def __init__(self, interceptors: Sequence[object] = ()) -> None:
        """Create the chain of objects with any of the methods of `ProducerInterceptor`."""
        self._interceptors = tuple(interceptors)
        # Looked up once, not for every record.
        self._on_send = _methods(interceptors, "on_send")
        self._on_acknowledgement = tuple(
            (method, takes(method, "headers"))
            for method in _methods(interceptors, "on_acknowledgement")
        )

    def __bool__(self) -> bool:
        """Return whether there are any; if not, `send` need not create a ProducerRecord."""
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass a record through all of them; each receives what the one before it returned.

        An interceptor that raises, or that does not return a ProducerRecord, is skipped.
        """
        for on_send in self._on_send:
            try:
                returned = on_send(record)
            except Exception:  # noqa: BLE001  the user's code may raise anything; it is logged
                _LOG.warning(
                    "an interceptor's on_send failed and was skipped for topic %s, partition %s",
                    record.topic,
                    record.partition,
                    exc_info=True,
                )
            else:
                if isinstance(returned, ProducerRecord):
                    record = returned
                else:
                    _LOG.warning(
                        "an interceptor's on_send returned %s, not a ProducerRecord, and was "
                        "skipped for topic %s",
                        type(returned).__qualname__,
                        record.topic,
                    )
        return record

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        error: BaseException | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Notify all interceptors of the outcome of a record with these headers."""
        for on_acknowledgement, takes_headers in self._on_acknowledgement:
            try:
                if takes_headers:
                    on_acknowledgement(metadata, error, headers=headers)
                else:
                    on_acknowledgement(metadata, error)
            except BaseException as raised:
                _LOG.warning("an interceptor's on_acknowledgement failed", exc_info=True)
                if is_interrupt(raised):
                    raise


def _methods(interceptors: Sequence[object], name: str) -> tuple[Callable[..., object], ...]:
    return tuple(
        getattr(interceptor, name) for interceptor in interceptors if hasattr(interceptor, name)
    )


def _create(reference: PluginReference, plug_ins: PlugIns) -> object:
    interceptor = plug_ins.load(reference, "interceptor.classes")
    if not any(hasattr(interceptor, method) for method in _METHODS):
        raise ConfigError(
            f"interceptor.classes: {reference} is not an interceptor: it has neither "
            f"{' nor '.join(_METHODS)}"
        )
    return interceptor


def resolve_interceptors(
    references: Sequence[PluginReference], plug_ins: PlugIns
) -> ProducerInterceptors:
    """Create the interceptors named in `interceptor.classes`; `plug_ins` closes them.

    Raises ConfigError for one that cannot be created, or that has neither `on_send` nor
    `on_acknowledgement`.
    """
    return ProducerInterceptors([_create(reference, plug_ins) for reference in references])
