"""Trace context of writes: a span for each task, and its `traceparent` in the headers of its rows.

A task's rows have the same header (W3C Trace Context), so it is made once, and lists of headers are
extended with whole arrays: nothing is done for a single row. A row that has a `traceparent` keeps
it. The span's parent comes from the driver: the option `traceParent`, or the environment variables
TRACEPARENT and TRACESTATE there.

Only OpenTelemetry's API is used. Without an SDK in the worker there are no spans, and the rows have
the driver's context; without that either, they have no header, which is logged once.

An SDK runs code of others, such as samplers and span processors, and passes on what they raise. A
task must neither fail because of that, after its rows were sent, nor hide its own error.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_kafka_sink.config.sink_options import TraceOptions

logger = logging.getLogger(__name__)

TRACE_PARENT: Final = "traceparent"
_TRACE_STATE: Final = "tracestate"
_VARIABLES: Final = {TRACE_PARENT: "TRACEPARENT", _TRACE_STATE: "TRACESTATE"}
_HEADERS: Final = "headers"
_HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MISSING: Final = (
    "traceContext=inject requires the library opentelemetry, on the driver and on executors: "
    "pip install 'spark-kafka-sink[opentelemetry]' there, or remove the option"
)
#: What has been logged in this process.
_said: set[str] = set()


def check_library() -> None:
    """Raise ConfigError if OpenTelemetry's API is not installed here."""
    if find_spec("opentelemetry") is None:
        raise ConfigError(_MISSING)


def driver_context(trace: TraceOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the context that the spans of a write belong to, as headers; empty if there is none.

    The option takes precedence over the environment.
    """
    if trace.parent is not None:
        return {TRACE_PARENT: trace.parent}
    found = {header: environ.get(name, "") for header, name in _VARIABLES.items()}
    return {header: value for header, value in found.items() if value}


class TaskTrace:
    """The span of a task."""

    def __init__(
        self,
        context: Mapping[str, str],
        *,
        topic: str | None,
        attributes: Mapping[str, str | int],
    ) -> None:
        """Start the span, as a child of the `context` of the driver.

        Raises ConfigError if OpenTelemetry's API is not installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(_MISSING) from error
        propagator = TraceContextTextMapPropagator()
        parent = propagator.extract(dict(context))
        destination = {} if topic is None else {"messaging.destination.name": topic}
        self._span: Any = trace.get_current_span(parent)
        with _logged("started"):
            tracer = trace.get_tracer("spark_kafka_sink", __version__)
            self._span = tracer.start_span(
                "send" if topic is None else f"send {topic}",
                parent,
                trace.SpanKind.PRODUCER,
                {
                    "messaging.system": "kafka",
                    "messaging.operation.type": "send",
                    **destination,
                    **attributes,
                },
            )
        self._error = trace.Status(trace.StatusCode.ERROR)
        headers: dict[str, str] = {}
        propagator.inject(headers, trace.set_span_in_context(self._span, parent))
        #: Those of all rows.
        self.headers = tuple(headers.items())
        if not headers and not _said:
            _said.add(TRACE_PARENT)
            logger.warning(
                "Kafka: traceContext=inject writes no headers: this worker has no SDK of "
                "OpenTelemetry, and the driver no valid TRACEPARENT"
            )

    def with_headers(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the batches of the task with the headers of its span."""
        if not self.headers:
            return batches
        return (with_headers(batch, self.headers) for batch in batches)

    def finish(self, rows: int) -> None:
        """End the span of a task that has written its rows."""
        with _logged("ended"):
            self._span.set_attribute("messaging.batch.message_count", rows)
            self._span.end()

    def fail(self, error: BaseException) -> None:
        """End the span of a task that has failed."""
        with _logged("ended"):
            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.set_status(self._error)
            self._span.end()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log an error of the SDK instead of raising it."""
    try:
        yield
    except Exception:  # code of others may raise anything, and no task fails for it
        logger.warning("Kafka: the span of a task could not be %s", what, exc_info=True)


def with_headers(batch: pa.RecordBatch, headers: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    """Return a batch whose rows have these headers, except those that have a `traceparent`.

    The column `headers`, if there is one, is a list of structs of a key and a value.
    """
    place = batch.schema.get_field_index(_HEADERS)
    if place < 0:
        offsets = np.arange(batch.num_rows + 1, dtype=np.int32) * len(headers)
        every = np.tile(np.arange(len(headers)), batch.num_rows)
        constants = _constants(headers, _HEADERS_TYPE.value_type)
        lists = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), constants.take(pa.array(every))
        )
        return batch.append_column(_HEADERS, lists)
    return batch.set_column(place, _HEADERS, _extended(batch.column(place), headers))


def _extended(lists: Any, headers: Sequence[tuple[str, str]]) -> Any:
    """Append headers to the lists of a column, except where there is a `traceparent`."""
    is_large = pa.types.is_large_list(lists.type)
    if not is_large and not pa.types.is_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    old = lists.flatten()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    is_parent = pc.fill_null(pc.equal(pc.struct_field(old, [0]), pa.scalar(TRACE_PARENT)), False)
    parents = np.concatenate([[0], np.cumsum(is_parent.to_numpy(zero_copy_only=False))])
    lacks = parents[ends] == parents[ends - lengths]
    new_ends = np.cumsum(lengths + lacks * len(headers))
    # Where the elements of the new lists come from: the old ones in order, then the new headers.
    sources = np.full(new_ends[-1] if len(new_ends) else 0, -1, dtype=np.int64)
    for number in range(len(headers)):
        sources[new_ends[lacks] - len(headers) + number] = len(old) + number
    sources[sources < 0] = np.arange(len(old))
    values = pa.concat_arrays([old, _constants(headers, old.type)]).take(pa.array(sources))
    offsets = np.concatenate([[0], new_ends])
    if is_large:
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _constants(headers: Sequence[tuple[str, str]], kind: Any) -> Any:
    """Return headers as structs of a type, whose values are texts or bytes."""
    key, value = kind.field(0), kind.field(1)
    names = pa.array([name for name, _ in headers], pa.string()).cast(key.type)
    texts = pa.array([text for _, text in headers], pa.string())
    is_text = pa.types.is_string(value.type) or pa.types.is_large_string(value.type)
    values = texts.cast(value.type) if is_text else texts.cast(pa.binary()).cast(value.type)
    return pa.StructArray.from_arrays([names, values], fields=[key, value])
