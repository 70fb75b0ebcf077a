from __future__ import annotations

import importlib.util
import pickle
import re
import sys

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spark_kafka_sink.config.sink_options import SinkOptions, TraceOptions
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.spark.sink import trace_context, writers
from spark_kafka_sink.spark.sink.trace_context import (
    TaskTrace,
    check_library,
    driver_context,
    with_headers,
)
from spark_kafka_sink.spark.sink.writers import KafkaBatchWriter
from spark_kafka_sink.testing import DevBroker
from tests.support.kafka.readers import read_with_confluent
from tests.support.spark.task_producers import ProducerOfTask

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331
HEADER = ("traceparent", PARENT)
STRUCT = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.fixture
def spans(monkeypatch):
    """Return the spans that are ended, with an SDK that keeps them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch):
    """Make each test the first of its process."""
    monkeypatch.setattr(trace_context, "_said", set())


def task(context=None, topic="t"):
    return TaskTrace({} if context is None else context, topic=topic, attributes={"n": 1})


def headers_of(batch):
    return [
        None if row is None else [(each["key"], each["value"]) for each in row]
        for row in batch.column("headers").to_pylist()
    ]


# --- the context of the driver


def test_the_option_takes_precedence_over_the_environment():
    """The context is that of traceParent, else of TRACEPARENT and TRACESTATE, else empty."""
    environ = {"TRACEPARENT": "p", "TRACESTATE": "s"}
    assert {"traceparent": PARENT} == driver_context(TraceOptions(PARENT), environ)
    assert {"traceparent": "p", "tracestate": "s"} == driver_context(TraceOptions(None), environ)
    assert {} == driver_context(TraceOptions(None), {"TRACEPARENT": ""})


def test_the_library_is_required(monkeypatch):
    """Without the extra, the driver and a task say how to install it."""
    check_library()
    monkeypatch.setattr(trace_context, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for call in (check_library, task):
        with pytest.raises(ConfigError, match=r"pip install 'spark-kafka-sink\[opentelemetry\]'"):
            call()


# --- the span of a task


def test_a_task_has_a_span_below_that_of_the_driver(spans):
    """The span of a task is a child of the driver's, and its context is the header of the rows."""
    traced = task({"traceparent": PARENT, "tracestate": "a=1"})
    traced.finish(7)
    [span] = spans.get_finished_spans()
    assert ("send t", trace.SpanKind.PRODUCER) == (span.name, span.kind)
    assert (TRACE_ID, SPAN_ID) == (span.context.trace_id, span.parent.span_id)
    assert {
        "messaging.system": "kafka",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.batch.message_count": 7,
        "n": 1,
    } == dict(span.attributes)
    assert (
        ("traceparent", f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"),
        ("tracestate", "a=1"),
    ) == traced.headers


def test_a_task_without_a_driver_context_begins_a_trace(spans):
    """Without a context of the driver, the span of a task is the root of a trace."""
    task(topic=None).finish(0)
    [span] = spans.get_finished_spans()
    assert ("send", None) == (span.name, span.parent)
    assert "messaging.destination.name" not in span.attributes


def test_a_failed_task_has_a_failed_span(spans):
    """The span of a task that failed has the class of its error, and not its text."""
    task().fail(KafkaError("secret"))
    [span] = spans.get_finished_spans()
    assert (StatusCode.ERROR, "KafkaError") == (
        span.status.status_code,
        span.attributes["error.type"],
    )
    assert "secret" not in span.to_json()


class _Broken(SpanProcessor):
    """A span processor one of whose methods raises."""

    def __init__(self, method):
        """Choose the method."""
        setattr(self, method, self._fail)

    def _fail(self, *_, **__):
        raise OSError("no space left")


@pytest.mark.parametrize(
    ("method", "told"), [("on_start", "could not be started"), ("on_end", "could not be ended")]
)
def test_an_error_of_the_sdk_is_a_line_in_the_log(monkeypatch, caplog, method, told):
    """A span processor that raises neither fails a task nor hides its error."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(_Broken(method))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    task({"traceparent": PARENT}).finish(2)
    task({"traceparent": PARENT}).fail(KafkaError("refused"))
    provider.shutdown()
    assert [f"Kafka: the span of a task {told}"] * 2 == [
        record.getMessage() for record in caplog.records
    ]


def test_rows_have_the_context_of_the_driver_if_no_span_can_be_started(monkeypatch):
    """Without a span of the task, the context is passed on as without an SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(_Broken("on_start"))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    assert (("traceparent", PARENT),) == task({"traceparent": PARENT}).headers
    provider.shutdown()


def test_without_an_sdk_rows_have_the_context_of_the_driver(caplog):
    """A worker without an SDK passes on what the driver knows."""
    traced = task({"traceparent": PARENT})
    assert (HEADER,) == traced.headers
    traced.finish(1)
    assert [] == caplog.messages


def test_without_any_context_rows_have_no_header_and_a_line_says_so(caplog):
    """With neither an SDK nor a context there is nothing to write, which is logged once."""
    batch = pa.record_batch({"value": ["a"]})
    for _ in range(2):
        traced = task()
        assert [batch] == list(traced.with_headers(iter([batch])))
    assert 1 == len(caplog.messages)
    assert "writes no headers" in caplog.messages[0]


# --- headers


def test_rows_without_headers_get_them():
    """A batch without the column gets it, with the same headers in each row."""
    batch = pa.record_batch({"value": ["a", "b"]})
    both = [HEADER, ("tracestate", "a=1")]
    found = with_headers(batch, both)
    assert [[(name, text.encode()) for name, text in both]] * 2 == headers_of(found)
    assert ["a", "b"] == found.column("value").to_pylist()
    assert pa.list_(STRUCT) == found.schema.field("headers").type


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(STRUCT),
        pa.large_list(STRUCT),
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
    ],
)
def test_a_traceparent_of_a_row_wins(kind):
    """Headers are added behind those of a row, unless one of them is a traceparent."""
    is_text = pa.types.is_string(kind.value_type.field(1).type)

    def value(text):
        return text if is_text else text.encode()

    mine, own = (HEADER[0], value(PARENT)), ("traceparent", value("mine"))
    other, null = ("a", value("1")), ("b", None)
    rows = [[other], None, [], [own], [other, own, null], [null, other]]
    column = pa.array(
        [None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], kind
    )
    batch = pa.record_batch({"headers": column, "value": list("abcdef")})
    expected = [[other, mine], [mine], [mine], [own], [other, own, null], [null, other, mine]]
    assert expected == headers_of(with_headers(batch, [HEADER]))
    assert expected[1:5] == headers_of(with_headers(batch.slice(1, 4), [HEADER]))


def test_lists_of_a_fixed_size_are_extended():
    """Another layout of lists is extended, too."""
    column = pa.array([[{"key": "a", "value": b"1"}]], pa.list_(STRUCT, 1))
    found = with_headers(pa.record_batch({"headers": column}), [HEADER])
    assert [[("a", b"1"), (HEADER[0], PARENT.encode())]] == headers_of(found)


def test_a_null_header_stays_for_the_check_of_rows():
    """A struct that is null is no traceparent, and is refused where rows are checked."""
    column = pa.array([[None]], pa.list_(STRUCT))
    found = with_headers(pa.record_batch({"headers": column}), [HEADER])
    assert [[None, {"key": HEADER[0], "value": PARENT.encode()}]] == (
        found.column("headers").to_pylist()
    )


def test_an_empty_batch_stays_empty():
    """A batch without rows has no headers."""
    for batch in (
        pa.record_batch({"value": pa.array([], pa.string())}),
        pa.record_batch({"headers": pa.array([], pa.list_(STRUCT))}),
    ):
        assert [] == headers_of(with_headers(batch, [HEADER]))


# --- writes


class Context:
    """A task of a micro-batch, as far as a writer asks for it."""

    def __init__(self, batch_id=None):
        """Set the number of the micro-batch."""
        self._batch_id = batch_id

    def partitionId(self):  # noqa: N802 -- Spark's name
        """Return a number."""
        return 3

    def taskAttemptId(self):  # noqa: N802
        """Return a number."""
        return 9

    def stageId(self):  # noqa: N802
        """Return a number."""
        return 1

    def getLocalProperty(self, name):  # noqa: N802
        """Return the number of the micro-batch."""
        return self._batch_id if name == writers.BATCH_ID else None


def writer(servers="localhost:9092", **options):
    given = {"kafka.bootstrap.servers": servers, "traceContext": "inject", **options}
    created = KafkaBatchWriter(SinkOptions.from_mapping(given), topic="t", report_path=None)
    return pickle.loads(pickle.dumps(created))  # noqa: S301 -- our own bytes


def test_a_write_injects_the_context(monkeypatch, spans):
    """The records of a task have the context of its span, or the one that their row has."""
    monkeypatch.setattr(writers, "task_context", Context)
    monkeypatch.setattr(
        writers, "CachedProducers", lambda config, *_, stage: ProducerOfTask(config)
    )
    monkeypatch.setenv("TRACEPARENT", PARENT)
    rows = pa.record_batch(
        {
            "value": ["a", "b"],
            "headers": pa.array(
                [None, [{"key": "traceparent", "value": b"mine"}]], pa.list_(STRUCT)
            ),
        }
    )
    with DevBroker(topics={"t": 1}) as broker:
        message = writer(broker.bootstrap_servers).write(iter([rows]))
        records = read_with_confluent(broker.bootstrap_servers, "t")
    [span] = spans.get_finished_spans()
    sent = f"00-{TRACE_ID:032x}-{span.context.span_id:016x}-01".encode()
    assert {b"a": [("traceparent", sent)], b"b": [("traceparent", b"mine")]} == {
        record.value: list(record.headers) for record in records
    }
    assert (2, 2) == (message.rows, span.attributes["messaging.batch.message_count"])
    assert (3, 9) == (
        span.attributes["spark.partition.id"],
        span.attributes["spark.task.attempt.id"],
    )
    assert "spark.query.id" not in span.attributes


def test_the_span_of_a_stream_has_its_micro_batch(spans):
    """The span of a task of a stream has the query and the number of the micro-batch."""
    writer()._trace(Context("7"), "q").finish(0)
    [span] = spans.get_finished_spans()
    assert ("q", 7) == (span.attributes["spark.query.id"], span.attributes["spark.batch.id"])


def test_a_write_that_fails_has_a_failed_span(monkeypatch, spans):
    """A task whose rows cannot be written ends its span."""
    monkeypatch.setattr(writers, "task_context", Context)
    with pytest.raises(KafkaError):
        writer().write(iter([pa.record_batch({"no_value": ["a"]})]))
    [span] = spans.get_finished_spans()
    assert StatusCode.ERROR is span.status.status_code


def test_without_the_option_nothing_is_imported(monkeypatch):
    """A write without trace context does not import its module."""
    monkeypatch.delitem(sys.modules, trace_context.__name__)
    assert writer(traceContext="none")._trace(Context(), None) is None
    assert trace_context.__name__ not in sys.modules


def test_the_headers_have_the_form_of_w3c(spans):
    """What is injected is a traceparent of version 00."""
    [(name, text)] = task().headers
    assert "traceparent" == name
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", text)


def test_the_api_is_found_as_the_check_finds_it():
    """The check looks for the package that tasks import."""
    assert importlib.util.find_spec("opentelemetry.trace") is not None
