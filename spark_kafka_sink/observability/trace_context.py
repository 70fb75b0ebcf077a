"""Interceptors that pass OpenTelemetry's trace context on in the headers of records.

The header is `traceparent` of W3C Trace Context, beside it `tracestate` if there is one. A record
that has a `traceparent` keeps it. Only OpenTelemetry's API is used, so without an SDK nothing
happens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.observability.exporters import import_extra
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
    from spark_kafka_sink.producer.records.interceptors import ProducerRecord

_TRACE_PARENT: Final = "traceparent"
_TRACE_STATE: Final = "tracestate"
#: As many links as a span of OpenTelemetry's SDK has by default.
_MOST_LINKS: Final = 128


class TracingProducerInterceptor:
    """An interceptor for `KafkaProducer` that adds the `traceparent` of the current span.

    The current span is that of the thread that calls `send`. Records sent as Arrow tables pass no
    interceptor.

    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "interceptor.classes": [TracingProducerInterceptor()],
    ... }
    >>> with KafkaProducer(settings) as producer:
    ...     future = producer.send("orders", b"a book")
    """

    def __init__(self) -> None:
        """Raise ModuleNotFoundError if opentelemetry is missing."""
        self._propagator = _propagator("TracingProducerInterceptor")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record with the context, if it has none."""
        if any(name == _TRACE_PARENT for name, _ in record.headers):
            return record
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if not carrier:
            return record
        added = [(name, text.encode()) for name, text in carrier.items()]
        return replace(record, headers=[*record.headers, *added])


class TracingConsumerInterceptor:
    """An interceptor for `KafkaConsumer` that links what `poll` returns to where it came from.

    A call of `poll` that returns records has a span, with links to the spans that sent them, at
    most 128; a record has none of its own. `context_of` returns the context of a record, as parent
    of a span of yours.

    >>> tracing = TracingConsumerInterceptor()
    >>> settings = {"bootstrap.servers": "localhost:9092", "interceptor.classes": [tracing]}
    >>> with KafkaConsumer(settings) as consumer:
    ...     consumer.assign([TopicPartition("orders", 0)])
    ...     for record in consumer.poll(timeout=0).records():
    ...         context = tracing.context_of(record)
    """

    def __init__(self) -> None:
        """Raise ModuleNotFoundError if opentelemetry is missing."""
        self._propagator = _propagator("TracingConsumerInterceptor")
        self._trace = import_extra(
            "opentelemetry.trace", extra="opentelemetry", user="TracingConsumerInterceptor"
        )
        self._tracer = self._trace.get_tracer("spark_kafka_sink", __version__)

    def context_of(self, record: ConsumerRecord) -> Context:
        """Return the context in the headers of a `record`; an empty one if it has none."""
        carrier = {}
        # The first one counts.
        for name, value in reversed(record.headers):
            if name in {_TRACE_PARENT, _TRACE_STATE} and value is not None:
                carrier[name] = value.decode("ascii", "replace")
        context: Context = self._propagator.extract(carrier, context={})
        return context

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Return the records as they are, and record a span with their contexts."""
        contexts: dict[tuple[int, int], Any] = {}
        for record in records.records():
            if len(contexts) < _MOST_LINKS:
                sent = self._trace.get_current_span(self.context_of(record)).get_span_context()
                if sent.is_valid:
                    contexts[sent.trace_id, sent.span_id] = sent
        if records.count:
            self._tracer.start_span(
                "poll",
                kind=self._trace.SpanKind.CONSUMER,
                links=[self._trace.Link(sent) for sent in contexts.values()],
                attributes={
                    "messaging.system": "kafka",
                    "messaging.operation.type": "receive",
                    "messaging.batch.message_count": records.count,
                },
            ).end()
        return records


def _propagator(user: str) -> Any:
    module = import_extra(
        "opentelemetry.trace.propagation.tracecontext", extra="opentelemetry", user=user
    )
    return module.TraceContextTextMapPropagator()
