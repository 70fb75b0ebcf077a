"""Plug-ins that see every record and every acknowledgement (Kafka's ProducerInterceptors).

They are asked in the order in which `interceptor.classes` names them. One that raises is logged
and passed over: an onlooker never keeps a record from its topic. What it is logged with is the
topic and partition, never a key or a value.

They are configured and closed as all plug-ins are (`plugins`). `on_send` runs on the thread that
sends, `on_acknowledgement` mostly on the network thread, which all deliveries wait for: it has to
be quick.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.producer.plugins import PlugIns, takes
from spark_kafka_sink.producer.produce_result import is_interrupt
from spark_kafka_sink.producer.producer_record import ProducerRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_kafka_sink.config.plugin_reference import PluginReference
    from spark_kafka_sink.model import RecordMetadata

_LOG: Final = logging.getLogger(__name__)
_METHODS: Final = ("on_send", "on_acknowledgement")


class ProducerInterceptor:
    """What an interceptor may do; each method does nothing unless overridden.

    Deriving from this class is a convenience: any object that has one of the first two methods
    will do.
    """

    def configure(self, settings: Mapping[str, object]) -> None:
        """Get ready, with the producer's settings by Kafka's names, but for those of security."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Give the record to be sent, this one or another; it is serialized afterwards."""
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata | None, error: BaseException | None
    ) -> None:
        """See what became of a record: `error` is None for one that a broker has.

        `metadata` is None where the record failed before it had a topic. One that has a third
        parameter, `headers`, is given the record's headers by it (KIP-512).
        """

    def close(self) -> None:
        """Let go of what is held; the producer is closing."""


class ProducerInterceptors:
    """The chain of interceptors; none of its methods raises what an interceptor raised."""

    def __init__(self, interceptors: Sequence[object] = ()) -> None:
        """Take objects that have some of the methods of `ProducerInterceptor`."""
        self._interceptors = tuple(interceptors)
        # Looked up once, and not for every record.
        self._on_send = _methods(interceptors, "on_send")
        self._on_acknowledgement = tuple(
            (method, takes(method, "headers"))
            for method in _methods(interceptors, "on_acknowledgement")
        )

    def __bool__(self) -> bool:
        """Tell whether there is any, so that who sends need not make a ProducerRecord for none."""
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Pass a record through all of them, each seeing what the one before it returned.

        One that raises, or returns no ProducerRecord, is left out.
        """
        for on_send in self._on_send:
            try:
                returned = on_send(record)
            except Exception:  # noqa: BLE001  the user's code may raise anything; it is logged
                _LOG.warning(
                    "on_send of an interceptor failed for topic %s, partition %s",
                    record.topic,
                    record.partition,
                    exc_info=True,
                )
            else:
                if isinstance(returned, ProducerRecord):
                    record = returned
                else:
                    _LOG.warning(
                        "on_send of an interceptor returned %s, not a ProducerRecord, for topic %s",
                        type(returned).__qualname__,
                        record.topic,
                    )
        return record

    def on_acknowledgement(
        self,
        metadata: RecordMetadata | None,
        error: BaseException | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Notify all of them of what became of a record with these headers."""
        for on_acknowledgement, takes_headers in self._on_acknowledgement:
            try:
                if takes_headers:
                    on_acknowledgement(metadata, error, headers=headers)
                else:
                    on_acknowledgement(metadata, error)
            except BaseException as raised:
                _LOG.warning("on_acknowledgement of an interceptor failed", exc_info=True)
                if is_interrupt(raised):
                    raise


def _methods(interceptors: Sequence[object], name: str) -> tuple[Callable[..., object], ...]:
    return tuple(
        getattr(interceptor, name) for interceptor in interceptors if hasattr(interceptor, name)
    )


def _make(reference: PluginReference, plug_ins: PlugIns) -> object:
    interceptor = plug_ins.load(reference, "interceptor.classes")
    if not any(hasattr(interceptor, method) for method in _METHODS):
        raise ConfigError(
            f"interceptor.classes: {reference} is no interceptor: it has neither "
            f"{' nor '.join(_METHODS)}"
        )
    return interceptor


def resolve_interceptors(
    references: Sequence[PluginReference], plug_ins: PlugIns
) -> ProducerInterceptors:
    """Make what `interceptor.classes` names; `plug_ins` closes them.

    Raises ConfigError for one that cannot be made, or that has neither `on_send` nor
    `on_acknowledgement`.
    """
    return ProducerInterceptors([_make(reference, plug_ins) for reference in references])
