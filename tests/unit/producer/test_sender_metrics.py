from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_kafka_sink.metrics.kafka_metric import MetricConfig
from spark_kafka_sink.metrics.metrics import Metrics
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.sender_metrics import SenderMetrics, TimedCall
from spark_kafka_sink.protocol.api_keys import ApiKey

GOLDEN = Path(__file__).parents[1] / "metrics" / "golden" / "java_metrics.json"
GOLDENS = json.loads(GOLDEN.read_text())
#: The time that the windows of a new metric cover, in seconds: one full window of the two.
WINDOW = 30.0


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Batch:
    topic: str = "orders"
    record_count: int = 100
    size_bytes: int = 61 + 500
    uncompressed_bytes: int = 1000
    max_record_bytes: int = 20
    created_at: float = 99.75

    @property
    def topic_partition(self) -> TopicPartition:
        """The batch's partition."""
        return TopicPartition(self.topic, 0)


class _Buffer:
    total_bytes = 1000
    available_bytes = 400
    waiting_threads = 2


class _Read:
    """A reader of metrics by name, at the clock's time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, name: str, group: str = "producer-metrics", **tags: str) -> float:
        metric = self._metrics.metric(self._metrics.metric_name(name, group, **tags))
        assert metric is not None, f"no metric {name} in {group} {tags}"
        return metric.value()

    def topic(self, name: str, topic: str = "orders") -> float:
        """Read a topic's metric."""
        return self(name, "producer-topic-metrics", topic=topic)

    def node(self, name: str, node: str = "node-1") -> float:
        """Read a node's metric."""
        return self(name, "producer-node-metrics", node_id=node)


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture
def metrics(clock):
    return Metrics(MetricConfig(tags={"client-id": "producer-1"}), clock=clock)


@pytest.fixture
def sender_metrics(metrics):
    return SenderMetrics(metrics)


@pytest.fixture
def read(metrics, sender_metrics):
    return _Read(metrics)


def names_of(metrics: Metrics) -> set[str]:
    """Return the names of all metrics in the form of MetricsGoldens.java."""
    return {f"{name.group} {name.name} {','.join(sorted(name.tags))}" for name in metrics.metrics()}


def is_left_out(row: str) -> bool:
    """Return whether the metric is one that the producer deliberately lacks."""
    group, name, _ = row.split()
    return group == "app-info" or name.startswith(("select-", "io-"))


def test_names_groups_and_tags_are_those_of_a_java_producer(metrics, sender_metrics):
    """The metrics are those of Kafka's producer, except for the deliberately omitted ones."""
    sender_metrics.observe_buffer(_Buffer())
    sender_metrics.observe_client(requests_in_flight=lambda: 0, metadata_updated_at=lambda: None)
    sender_metrics.connected(1)
    sender_metrics.on_batches_drained([_Batch()], 100.0)
    expected = {row for row in GOLDENS["names"] if not is_left_out(row)}
    assert expected == names_of(metrics)


def test_every_metric_is_described(metrics, sender_metrics):
    """Every metric has a description that is a sentence."""
    sender_metrics.connected(1)
    sender_metrics.on_batches_drained([_Batch()], 100.0)
    for name in metrics.metrics():
        assert name.description.endswith("."), name


# --- batches


def test_a_request_is_measured_by_its_batches(sender_metrics, read):
    """Sizes, ratios and waits are measured per batch, records per request."""
    sender_metrics.on_batches_drained(
        [
            _Batch(),
            _Batch(
                topic="bills",
                record_count=300,
                size_bytes=61 + 900,
                max_record_bytes=60,
                created_at=99.25,
            ),
        ],
        100.0,
    )
    expected = {
        "batch-size-avg": 761.0,
        "batch-size-max": 961.0,
        "compression-rate-avg": 0.7,
        "record-queue-time-avg": 500.0,
        "record-queue-time-max": 750.0,
        "record-size-avg": 40.0,
        "record-size-max": 60.0,
        "records-per-request-avg": 400.0,
        "record-send-total": 400.0,
        "record-send-rate": 400.0 / WINDOW,
    }
    assert pytest.approx(expected) == {name: read(name) for name in expected}
    expected = {
        "record-send-total": 100.0,
        "record-send-rate": 100.0 / WINDOW,
        "byte-total": 561.0,
        "byte-rate": 561.0 / WINDOW,
        "compression-rate": 0.5,
        "record-retry-total": 0.0,
        "record-error-total": 0.0,
    }
    assert pytest.approx(expected) == {name: read.topic(name) for name in expected}
    assert 0.9 == read.topic("compression-rate", "bills")


def test_a_retried_batch_counts_again_and_as_a_retry(sender_metrics, read):
    """A retried batch counts again in record-send-total, as in Kafka, and as a retry."""
    batch = _Batch()
    sender_metrics.on_batches_drained([batch], 100.0)
    sender_metrics.on_batch_retried(batch, 100.0)
    sender_metrics.on_batches_drained([batch], 100.0)
    assert 200.0 == read("record-send-total")
    assert 100.0 == read("record-retry-total") == read.topic("record-retry-total")
    assert 100.0 / WINDOW == read("record-retry-rate") == read.topic("record-retry-rate")
    assert 100.0 == read("records-per-request-avg")


def test_records_of_a_failed_batch_are_errors(sender_metrics, read):
    """The records of a failed batch count as errors of the producer and the topic."""
    sender_metrics.on_batches_drained([_Batch()], 100.0)
    sender_metrics.on_batch_failed(_Batch(), 100.0)
    assert 100.0 == read("record-error-total") == read.topic("record-error-total")
    assert 100.0 / WINDOW == read("record-error-rate") == read.topic("record-error-rate")


def test_a_batch_that_fails_before_any_send_counts_for_the_producer_only(
    metrics, sender_metrics, read
):
    """A batch that fails before anything was sent counts for the producer only."""
    sender_metrics.on_batch_failed(_Batch(), 100.0)
    sender_metrics.on_batch_retried(_Batch(), 100.0)
    assert 100.0 == read("record-error-total")
    assert 100.0 == read("record-retry-total")
    assert not any("topic" in name.tags for name in metrics.metrics())


def test_rejected_records_count_as_errors(sender_metrics, read):
    """A rejected record counts as one error, and a rejected table as one per row."""
    sender_metrics.on_send_failed(100.0)
    sender_metrics.on_send_failed(100.0, records=9)
    assert 10.0 == read("record-error-total")


def test_splits_are_counted(sender_metrics, read):
    """Each split batch counts once."""
    sender_metrics.on_batch_split(100.0)
    sender_metrics.on_batch_split(100.0)
    assert 2.0 == read("batch-split-total")
    assert 2.0 / WINDOW == read("batch-split-rate")


def test_metrics_of_idle_topics_are_removed_when_another_topic_appears(clock, metrics):
    """When a new topic appears, the metrics of expired topics are removed."""
    sender_metrics = SenderMetrics(metrics, topic_expiration=300.0)
    before = len(metrics.metrics())
    sender_metrics.on_batches_drained([_Batch("idle"), _Batch("busy")], 100.0)
    per_topic = (len(metrics.metrics()) - before) // 2
    sender_metrics.on_batches_drained([_Batch("busy")], 390.0)
    sender_metrics.on_batches_drained([_Batch("new")], 401.0)
    assert before + 2 * per_topic == len(metrics.metrics())
    topics = {name.tags["topic"] for name in metrics.metrics() if "topic" in name.tags}
    assert {"busy", "new"} == topics
    clock.now = 402.0
    sender_metrics.on_batches_drained([_Batch("idle")], 402.0)
    assert 100.0 == _Read(metrics).topic("record-send-total", "idle")


def test_topic_metrics_do_not_expire_by_default(metrics, sender_metrics):
    """By default, a topic's metrics exist as long as the producer, as in Kafka."""
    sender_metrics.on_batches_drained([_Batch("old")], 100.0)
    sender_metrics.on_batches_drained([_Batch("new")], 1e9)
    assert 1.0 * 100 == _Read(metrics).topic("record-send-total", "old")


# --- waiting


def test_waits_for_memory_are_a_fraction_of_time_and_a_sum(sender_metrics, read):
    """Waits, given in seconds, appear as a fraction of time and as nanoseconds."""
    sender_metrics.on_buffer_wait(12.0, 100.0)
    sender_metrics.on_buffer_wait(3.0, 100.0)
    assert 0.5 == read("bufferpool-wait-ratio")
    assert 15e9 == read("bufferpool-wait-time-ns-total")
    sender_metrics.on_buffer_exhausted(100.0)
    assert 1.0 == read("buffer-exhausted-total")
    assert 1.0 / WINDOW == read("buffer-exhausted-rate")


@pytest.mark.parametrize("call", TimedCall)
def test_the_time_of_each_call_is_added_up(sender_metrics, read, call):
    """Each timed call adds nanoseconds to its own metric only."""
    sender_metrics.on_timed_call(call, 0.25, 100.0)
    sender_metrics.on_timed_call(call, 1.0, 5000.0)
    expected = {each: 1.25e9 if each is call else 0.0 for each in TimedCall}
    assert expected == {each: read(f"{each}-time-ns-total") for each in TimedCall}


def test_the_state_of_the_buffer_is_read_as_it_is(sender_metrics, read):
    """Gauges show the buffer's current state, and overdrawn memory as 0 bytes."""
    buffer = _Buffer()
    sender_metrics.observe_buffer(buffer)
    assert 1000 == read("buffer-total-bytes")
    assert 400 == read("buffer-available-bytes")
    assert 2 == read("waiting-threads")
    buffer.available_bytes = -5
    assert 0 == read("buffer-available-bytes")


def test_the_state_of_the_client_is_read_as_it_is(clock, sender_metrics, read):
    """The metadata age is NaN before the first response, and then in seconds."""
    updated_at = None
    sender_metrics.observe_client(
        requests_in_flight=lambda: 3, metadata_updated_at=lambda: updated_at
    )
    assert 3 == read("requests-in-flight")
    assert math.isnan(read("metadata-age"))
    updated_at = 90.0
    assert 10.0 == read("metadata-age")


# --- connections


def test_requests_and_responses_are_measured_in_total_and_per_node(sender_metrics, read):
    """Requests and responses are measured for the producer and for each node."""
    sender_metrics.request_sent(1, ApiKey.PRODUCE, 1000)
    sender_metrics.request_sent(2, ApiKey.METADATA, 200)
    sender_metrics.response_received(1, ApiKey.PRODUCE, 60, 0.0125)
    expected = {
        "request-total": 2.0,
        "request-rate": 2.0 / WINDOW,
        "outgoing-byte-total": 1200.0,
        "outgoing-byte-rate": 1200.0 / WINDOW,
        "request-size-avg": 600.0,
        "request-size-max": 1000.0,
        "response-total": 1.0,
        "response-rate": 1.0 / WINDOW,
        "incoming-byte-total": 60.0,
        "incoming-byte-rate": 60.0 / WINDOW,
        "request-latency-avg": 12.5,
        "request-latency-max": 12.5,
        "network-io-total": 3.0,
        "network-io-rate": 3.0 / WINDOW,
    }
    assert expected == {name: read(name) for name in expected}
    expected = {
        "request-total": 1.0,
        "outgoing-byte-total": 1000.0,
        "request-size-avg": 1000.0,
        "response-total": 1.0,
        "incoming-byte-total": 60.0,
        "request-latency-avg": 12.5,
        "request-latency-max": 12.5,
    }
    assert expected == {name: read.node(name) for name in expected}
    assert 200.0 == read.node("request-size-max", "node-2")


def test_only_produce_requests_have_a_latency(sender_metrics, read):
    """Only Produce requests count in the latency."""
    sender_metrics.response_received(1, ApiKey.METADATA, 60, 0.5)
    assert math.isnan(read("request-latency-avg"))
    assert math.isnan(read.node("request-latency-max"))


def test_responses_without_throttling_count_as_0_in_the_average(sender_metrics, read):
    """Responses without throttling count as 0 in the average throttle time, as in Kafka."""
    for throttled in (False, True, False, False, False):
        sender_metrics.response_received(1, ApiKey.PRODUCE, 60, 0.01)
        if throttled:
            sender_metrics.throttled(1, ApiKey.PRODUCE, 0.8)
    assert 200.0 == read("produce-throttle-time-avg")
    assert 800.0 == read("produce-throttle-time-max")


def test_opened_and_closed_connections_are_counted(sender_metrics, read):
    """Open connections are counted, and so are all that were opened or closed."""
    sender_metrics.connected(-1)
    sender_metrics.connected(1)
    assert 2 == read("connection-count")
    sender_metrics.disconnected(-1)
    sender_metrics.connection_failed(2)
    assert 1 == read("connection-count")
    assert 2.0 == read("connection-creation-total")
    assert 2.0 / WINDOW == read("connection-creation-rate")
    assert 2.0 == read("connection-close-total")
    assert 2.0 / WINDOW == read("connection-close-rate")


# --- snapshot


def test_a_snapshot_covers_everything_since_the_producer_was_created(sender_metrics):
    """A snapshot covers everything since the producer was created."""
    sender_metrics.on_batches_drained([_Batch(), _Batch(created_at=98.0)], 100.0)
    sender_metrics.on_batches_drained([_Batch(created_at=4999.0)], 5000.0)
    sender_metrics.response_received(1, ApiKey.PRODUCE, 60, 0.02)
    sender_metrics.throttled(1, ApiKey.PRODUCE, 0.5)
    sender_metrics.on_batch_retried(_Batch(), 5000.0)
    sender_metrics.on_batch_failed(_Batch(record_count=7), 5000.0)
    sender_metrics.on_batch_split(5000.0)
    sender_metrics.on_buffer_wait(0.5, 5000.0)
    sender_metrics.on_buffer_exhausted(5000.0)
    sender_metrics.on_timed_call(TimedCall.FLUSH, 1.5, 5000.0)
    sender_metrics.on_timed_call(TimedCall.METADATA_WAIT, 2.5, 5000.0)
    assert (
        MetricsSnapshot(
            records_per_request=Summary(2, 300.0, 200.0),
            batch_size=Summary(3, 1683.0, 561.0),
            record_queue_time_ms=Summary(3, 3250.0, 2000.0),
            request_latency_ms=Summary(1, 20.0, 20.0),
            produce_throttle_time_ms=Summary(1, 500.0, 500.0),
            record_retry_total=100,
            record_error_total=7,
            batch_split_total=1,
            buffer_exhausted_total=1,
            bufferpool_wait_time_ns=500_000_000,
            metadata_wait_time_ns=2_500_000_000,
            flush_time_ns=1_500_000_000,
            uncompressed_bytes=3000,
            compressed_bytes=1500,
        )
        == sender_metrics.snapshot()
    )


def test_an_unused_producer_has_an_empty_snapshot(sender_metrics):
    """The snapshot of an unused producer is empty."""
    assert MetricsSnapshot() == sender_metrics.snapshot()


def test_the_maxima_of_a_period_are_of_its_own_values(sender_metrics):
    """After a period began, its maxima are those of later values, and all else are totals."""
    sender_metrics.response_received(1, ApiKey.PRODUCE, 60, 0.03)
    before = sender_metrics.begin_period()
    assert Summary(1, 30.0, 30.0) == before.request_latency_ms
    sender_metrics.response_received(1, ApiKey.PRODUCE, 60, 0.01)
    after = sender_metrics.snapshot()
    assert Summary(2, 40.0, 10.0) == after.request_latency_ms
    assert Summary(1, 10.0, 10.0) == after.since(before).request_latency_ms
