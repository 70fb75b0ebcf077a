from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spark_kafka_sink.consumer.consumer_metrics import ConsumerMetrics
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey

GOLDEN = Path(__file__).parents[2] / "metrics" / "golden" / "java_consumer_metrics.json"
GOLDENS = json.loads(GOLDEN.read_text())
ORDERS = TopicPartition("orders", 0)
CONSUMER = "consumer-metrics"
COORDINATOR = "consumer-coordinator-metrics"
FETCHES = "consumer-fetch-manager-metrics"
#: The queues between the two threads of Java's consumer.
QUEUES = (
    "application-event",
    "background-event",
    "unsent-requests",
    "time-between-network-thread-poll",
)


def create(metrics, *, has_group: bool = True, is_classic: bool = True) -> ConsumerMetrics:
    return ConsumerMetrics(
        metrics,
        has_group=has_group,
        is_classic=is_classic,
        assigned_partitions=lambda: 3,
        preferred_replica=lambda _: None,
    )


@pytest.fixture
def measures(metrics):
    return create(metrics)


def is_left_out(row: str) -> bool:
    """Return whether the metric is one that the consumer deliberately lacks."""
    group, name, _ = row.split()
    return group == "app-info" or name.startswith(("select-", "io-", *QUEUES))


@pytest.mark.parametrize(
    ("golden", "has_group", "is_classic"),
    [("alone", False, True), ("classic", True, True), ("consumer", True, False)],
)
def test_names_groups_and_tags_are_those_of_a_java_consumer(metrics, golden, has_group, is_classic):
    """The metrics are those of Kafka's consumer, except for the deliberately omitted ones."""
    measures = create(metrics, has_group=has_group, is_classic=is_classic)
    measures.connected(1)
    measures.fetches.assignment_changed(1, lambda: [ORDERS])
    measures.fetches.answered([ORDERS]).partition_read(ORDERS, 10, 1)
    measures.fetches.position_moved(ORDERS, lag=1, lead=1)
    expected = {row for row in GOLDENS[golden] if not is_left_out(row)}
    names = metrics.metrics()
    assert expected == {f"{it.group} {it.name} {','.join(sorted(it.tags))}" for it in names}
    assert all(name.description.endswith(".") for name in names)


# --- the user's calls


def test_polls_are_timed(measures, clock, read):
    """The interval is that between the beginnings of two calls; the ratio compares it with one."""
    assert -1 == read(CONSUMER, "last-poll-seconds-ago")
    for started, ended in ((100.0, 101.0), (103.0, 104.0), (107.0, 109.0)):
        measures.poll_started(started)
        measures.poll_ended(ended)
    clock.now = 110.5
    expected = {
        "time-between-poll-avg": (0 + 3000 + 4000) / 3,
        "time-between-poll-max": 4000,
        "poll-idle-ratio-avg": (1 / 1 + 1 / 4 + 2 / 6) / 3,
        "last-poll-seconds-ago": 3,
    }
    assert pytest.approx(expected) == read.all(CONSUMER, *expected)


def test_a_poll_without_time_has_no_ratio(measures, read):
    """A first call that takes no time is counted, but its ratio is not known."""
    measures.poll_started(100.0)
    measures.poll_ended(100.0)
    assert 0 == read(CONSUMER, "time-between-poll-avg")
    assert math.isnan(read(CONSUMER, "poll-idle-ratio-avg"))


def test_commits_and_look_ups_of_the_user_are_summed(measures, read):
    """The time of `commit` and that of `committed` are summed in nanoseconds, each on its own."""
    measures.commit_called(0.25, 100.0)
    measures.commit_called(0.5, 101.0)
    measures.committed_called(2.0, 102.0)
    assert 750e6 == read(CONSUMER, "commit-sync-time-ns-total")
    assert 2e9 == read(CONSUMER, "committed-time-ns-total")


# --- requests


def test_requests_and_connections_are_counted(measures, read):
    """Traffic is counted for the client and for each node; the latency of a node is of fetches."""
    measures.connected(1)
    measures.request_sent(1, ApiKey.METADATA, 40)
    measures.response_received(1, ApiKey.METADATA, 400, 0.5)
    measures.request_sent(1, ApiKey.FETCH, 60)
    measures.response_received(1, ApiKey.FETCH, 600, 0.25)
    traffic = {
        "request-total": 2,
        "outgoing-byte-total": 100,
        "response-total": 2,
        "incoming-byte-total": 1000,
        "request-size-max": 60,
    }
    assert traffic | {"connection-count": 1, "network-io-total": 4} == read.all(
        CONSUMER, *traffic, "connection-count", "network-io-total"
    )
    traffic |= {"request-latency-avg": 250}
    assert traffic == read.all("consumer-node-metrics", *traffic, node_id="node-1")


def test_fetches_are_timed(measures, read):
    """Only answers to fetches count, in ms."""
    for api_key, latency in ((ApiKey.FETCH, 0.25), (ApiKey.FETCH, 0.75), (ApiKey.METADATA, 9.0)):
        measures.response_received(1, api_key, 100, latency)
    expected = {"fetch-total": 2, "fetch-latency-avg": 500, "fetch-latency-max": 750}
    assert expected == read.all(FETCHES, *expected)


def test_answers_without_a_throttle_count_as_0(measures, read):
    """The average of the throttle time is over all answers."""
    for throttle in (None, 0.3, None):
        measures.response_received(1, ApiKey.FETCH, 100, 0.1)
        if throttle:
            measures.throttled(1, ApiKey.FETCH, throttle)
    measures.response_received(1, ApiKey.FETCH, 100, 0.1)
    assert 100 == pytest.approx(read(FETCHES, "fetch-throttle-time-avg"))
    assert 300 == read(FETCHES, "fetch-throttle-time-max")


@pytest.mark.parametrize("api_key", [ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT])
def test_heartbeats_of_both_protocols_are_timed(measures, clock, read, api_key):
    """A heartbeat counts when it is answered; its age is counted from its sending."""
    assert -1 == read(COORDINATOR, "last-heartbeat-seconds-ago")
    measures.request_sent(1, api_key, 100)
    clock.now = 102.5
    assert 0 == read(COORDINATOR, "heartbeat-total")
    measures.response_received(1, api_key, 100, 0.25)
    measures.request_sent(1, ApiKey.FETCH, 100)
    measures.response_received(1, ApiKey.FETCH, 100, 0.75)
    expected = {
        "heartbeat-total": 1,
        "heartbeat-response-time-max": 250,
        "last-heartbeat-seconds-ago": 2,
        "commit-total": 0,
    }
    assert expected == read.all(COORDINATOR, *expected)


def test_commit_requests_are_timed(measures, read):
    """Every answer to an OffsetCommit counts, in ms."""
    measures.response_received(1, ApiKey.OFFSET_COMMIT, 100, 0.25)
    measures.response_received(1, ApiKey.OFFSET_COMMIT, 100, 0.75)
    measures.response_received(1, ApiKey.OFFSET_FETCH, 100, 5.0)
    expected = {
        "commit-total": 2,
        "commit-latency-avg": 500,
        "commit-latency-max": 750,
        "heartbeat-total": 0,
    }
    assert expected == read.all(COORDINATOR, *expected)


def test_a_consumer_without_a_group_has_no_coordinator(metrics, read):
    """Requests of a consumer without a group are counted all the same."""
    measures = create(metrics, has_group=False)
    measures.request_sent(1, ApiKey.OFFSET_COMMIT, 10)
    measures.response_received(1, ApiKey.OFFSET_COMMIT, 100, 0.25)
    assert 1 == read(CONSUMER, "response-total")
    assert set() == read.names(COORDINATOR)
