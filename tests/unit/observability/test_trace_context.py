from __future__ import annotations

import asyncio
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from spark_kafka_sink import (
    AIOKafkaProducer,
    ConsumerRecord,
    ConsumerRecords,
    KafkaConsumer,
    KafkaProducer,
    ProducerRecord,
    TopicPartition,
)
from spark_kafka_sink.observability import TracingConsumerInterceptor, TracingProducerInterceptor
from spark_kafka_sink.testing import DevBroker

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPAN_ID = 0xB7AD6B7169203331
T0 = TopicPartition("t", 0)


@pytest.fixture
def tracer(monkeypatch):
    """Return a tracer of an SDK, and let interceptors have the same."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    tracer = provider.get_tracer("test")
    tracer.ended = exporter.get_finished_spans
    yield tracer
    provider.shutdown()


def records(*headers):
    read = [ConsumerRecord("t", 0, n, headers=tuple(each)) for n, each in enumerate(headers)]
    return ConsumerRecords({T0: read})


def test_a_record_gets_the_context_of_the_current_span(tracer):
    """The current span's traceparent is added behind the headers that a record has."""
    with tracer.start_as_current_span("mine") as span:
        sent = TracingProducerInterceptor().on_send(
            ProducerRecord("t", b"v", headers=[("a", b"1")])
        )
    context = span.get_span_context()
    text = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert [("a", b"1"), ("traceparent", text.encode())] == sent.headers


def test_a_traceparent_of_a_record_wins(tracer):
    """A record that has a traceparent is sent as it is."""
    record = ProducerRecord("t", b"v", headers=[("traceparent", PARENT)])
    with tracer.start_as_current_span("mine"):
        assert record is TracingProducerInterceptor().on_send(record)


def test_without_a_span_a_record_stays_as_it_is():
    """Where there is no current span there is nothing to add."""
    record = ProducerRecord("t", b"v")
    assert record is TracingProducerInterceptor().on_send(record)


def test_the_context_of_a_record_is_that_of_its_first_header():
    """The first traceparent and tracestate count; without one the context is empty."""
    tracing = TracingConsumerInterceptor()
    with_two = [("traceparent", PARENT), ("tracestate", b"a=1"), ("traceparent", b"other")]
    for headers, span_id in ((with_two, SPAN_ID), ([("traceparent", None)], 0), ([], 0)):
        [record] = records(headers).records()
        context = trace.get_current_span(tracing.context_of(record)).get_span_context()
        assert span_id == context.span_id
    assert "1" == trace.get_current_span(
        tracing.context_of(records(with_two).records()[0])
    ).get_span_context().trace_state.get("a")


def test_a_poll_has_a_span_with_links_to_what_was_sent(tracer):
    """One span of a poll has a link for each context, and none for a malformed one."""
    others = [[("traceparent", b"00-%032x-%016x-01" % (n + 1, n + 1))] for n in range(200)]
    read = records([("traceparent", PARENT)], [("traceparent", PARENT)], [("traceparent", b"?")])
    tracing = TracingConsumerInterceptor()
    assert read is tracing.on_consume(read)
    tracing.on_consume(records(*others))
    tracing.on_consume(records())
    first, second = tracer.ended()
    assert [SPAN_ID] == [link.context.span_id for link in first.links]
    assert ("poll", trace.SpanKind.CONSUMER, 3) == (
        first.name,
        first.kind,
        first.attributes["messaging.batch.message_count"],
    )
    assert 128 == len(second.links)


def test_the_clients_call_the_interceptors(tracer):
    """What a producer sends in a span, a consumer links to it."""
    with DevBroker(topics={"t": 1}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        sending = {**servers, "interceptor.classes": [TracingProducerInterceptor()]}
        with KafkaProducer(sending) as producer, tracer.start_as_current_span("mine") as span:
            producer.send("t", b"v").result(timeout=120)
        reading = {
            **servers,
            "auto.offset.reset": "earliest",
            "interceptor.classes": [TracingConsumerInterceptor()],
        }
        with KafkaConsumer(reading) as consumer:
            consumer.assign([T0])
            assert 1 == consumer.poll(timeout=120).count
    polled = next(ended for ended in tracer.ended() if ended.name == "poll")
    assert [span.get_span_context().span_id] == [link.context.span_id for link in polled.links]


@pytest.mark.parametrize("cls", [TracingProducerInterceptor, TracingConsumerInterceptor])
def test_a_missing_library_is_named_with_its_extra(cls, monkeypatch):
    """Without opentelemetry an interceptor says what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModuleNotFoundError, match=r"spark-kafka-sink\[opentelemetry\]"):
        cls()


def test_each_coroutine_sends_the_context_of_its_own_span(tracer):
    """Records that coroutines send side by side have the spans of these, however they send."""
    sent = {}

    async def send(producer, value):
        with tracer.start_as_current_span("mine") as span:
            await asyncio.sleep(0)
            sent[value] = f"{span.get_span_context().span_id:016x}"
            if value % 2:
                await producer.send("t", b"%d" % value)
            else:
                await producer.send_nowait("t", b"%d" % value)

    async def send_all(servers):
        settings = {
            "bootstrap.servers": servers,
            "interceptor.classes": [TracingProducerInterceptor()],
        }
        async with AIOKafkaProducer(settings) as producer:
            await producer.partitions_for("t")
            await asyncio.gather(*(send(producer, value) for value in range(20)))

    with DevBroker(topics={"t": 1}) as broker:
        asyncio.run(send_all(broker.bootstrap_servers))
        received = broker.records("t")[0]
    assert sent == {
        int(record.value): dict(record.headers)["traceparent"].decode().split("-")[2]
        for record in received
    }
