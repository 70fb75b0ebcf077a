from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.consumer_metrics import FetchMetrics
from spark_kafka_sink.model import TopicPartition

GROUP = "consumer-fetch-manager-metrics"
ORDERS = TopicPartition("orders", 0)
ORDERS1 = TopicPartition("orders", 1)
BILLS = TopicPartition("bills", 0)


@pytest.fixture
def replicas():
    return {}


@pytest.fixture
def fetches(metrics, replicas):
    measures = FetchMetrics(metrics, replicas.get)
    measures.assignment_changed(1, lambda: [ORDERS, ORDERS1, BILLS])
    return measures


def test_an_answer_counts_when_its_last_partition_is_read(fetches, read):
    """The bytes and records of an answer are recorded together, for all topics and for each."""
    first = fetches.answered([ORDERS, ORDERS1, BILLS])
    first.partition_read(ORDERS, 100, 10)
    first.partition_read(BILLS, 50, 2)
    assert 0 == read(GROUP, "records-consumed-total")
    first.partition_read(ORDERS1, 200, 30)
    fetches.answered([ORDERS]).partition_read(ORDERS, 150, 4)
    names = (
        "fetch-size-avg",
        "fetch-size-max",
        "bytes-consumed-total",
        "records-per-request-avg",
        "records-consumed-total",
    )
    assert dict(zip(names, (250, 350, 500, 23, 46), strict=True)) == read.all(GROUP, *names)
    of_orders = dict(zip(names, (225, 300, 450, 22, 44), strict=True))
    assert of_orders == read.all(GROUP, *names, topic="orders")
    of_bills = dict(zip(names, (50, 50, 50, 2, 2), strict=True))
    assert of_bills == read.all(GROUP, *names, topic="bills")


def test_a_partition_is_read_once(fetches, read):
    """A partition that is dropped after it was read counts no second time."""
    totals = fetches.answered([ORDERS, BILLS])
    totals.partition_read(ORDERS, 100, 10)
    totals.partition_read(ORDERS, 100, 10)
    totals.partition_read(BILLS, 0, 0)
    totals.partition_read(BILLS, 7, 7)
    assert 100 == read(GROUP, "bytes-consumed-total")
    assert 10 == read(GROUP, "records-consumed-total")
    assert 10 == read(GROUP, "records-per-request-avg")


def test_a_partition_with_an_error_counts_nothing(fetches, read):
    """An answer is recorded although one of its partitions has an error and no records."""
    totals = fetches.answered([ORDERS, BILLS])
    totals.partition_read(BILLS, 0, 0)
    totals.partition_read(ORDERS, 100, 10)
    assert 100 == read(GROUP, "bytes-consumed-total")
    assert 10 == read(GROUP, "records-consumed-total")
    assert 0 == read(GROUP, "records-consumed-total", topic="bills")


def test_lag_and_lead_are_those_of_positions(fetches, read):
    """A partition has the latest, average and extreme distances, the client only the extremes."""
    for lag, lead in ((30, 10), (5, 40), (10, 35)):
        fetches.position_moved(ORDERS, lag=lag, lead=lead)
    fetches.position_moved(BILLS, lag=50, lead=3)
    of_orders = {
        "records-lag": 10,
        "records-lag-avg": 15,
        "records-lag-max": 30,
        "records-lead": 35,
        "records-lead-avg": 85 / 3,
        "records-lead-min": 10,
    }
    tags = {"topic": "orders", "partition": "0"}
    assert pytest.approx(of_orders) == read.all(GROUP, *of_orders, **tags)
    assert 50 == read(GROUP, "records-lag-max")
    assert 3 == read(GROUP, "records-lead-min")


def test_an_unknown_distance_is_not_recorded(fetches, read):
    """A partition whose log's start is not known has a lag only, and the reverse."""
    fetches.position_moved(ORDERS, lag=30, lead=None)
    fetches.position_moved(BILLS, lag=None, lead=4)
    lags = {"records-lag", "records-lag-avg", "records-lag-max"}
    leads = {"records-lead", "records-lead-avg", "records-lead-min"}
    replica = {"preferred-read-replica"}
    assert lags | replica == read.names(GROUP, topic="orders", partition="0")
    assert leads | replica == read.names(GROUP, topic="bills", partition="0")


def test_partitions_have_metrics_while_they_are_assigned(fetches, metrics, read):
    """The metrics of a partition go with it, those of its topic stay; a new one has new values."""
    before = set(metrics.metrics())
    fetches.position_moved(ORDERS, lag=30, lead=10)
    fetches.assignment_changed(2, lambda: [ORDERS1])
    assert set() == read.names(GROUP, topic="orders", partition="0")
    assert {"preferred-read-replica"} == read.names(GROUP, topic="orders", partition="1")
    fetches.position_moved(ORDERS, lag=30, lead=10)
    assert set() == read.names(GROUP, topic="orders", partition="0")
    fetches.assignment_changed(3, lambda: [ORDERS, ORDERS1, BILLS])
    assert before == set(metrics.metrics())
    fetches.position_moved(ORDERS, lag=8, lead=10)
    assert 8 == read(GROUP, "records-lag-max", topic="orders", partition="0")


def test_an_assignment_with_the_same_id_is_not_looked_at(fetches, read):
    """The partitions of an assignment are looked at once: it happens before every fetch."""
    fetches.assignment_changed(1, lambda: pytest.fail("the partitions were read"))
    assert {"preferred-read-replica"} == read.names(GROUP, topic="bills", partition="0")


def test_a_topic_without_fetches_for_an_hour_loses_its_metrics(fetches, metrics, clock):
    """Topics that others create and delete for years leave nothing behind."""
    before = len(metrics.metrics())
    for number in range(100):
        clock.now += 1800.5
        place = TopicPartition(f"topic-{number}", 0)
        fetches.answered([place]).partition_read(place, 100, 10)
    names = [name for name in metrics.metrics() if name.name == "fetch-size-avg"]
    assert {None, "topic-98", "topic-99"} == {name.tags.get("topic") for name in names}
    per_topic = 7
    assert before + 2 * per_topic == len(metrics.metrics())


def test_the_preferred_replica_is_the_current_one(fetches, replicas, read):
    """It is -1 while the leader is read."""
    tags = {"topic": "orders", "partition": "0"}
    assert -1 == read(GROUP, "preferred-read-replica", **tags)
    replicas[ORDERS] = 0
    assert 0 == read(GROUP, "preferred-read-replica", **tags)
