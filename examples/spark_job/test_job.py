"""Tests of the job, which need neither Docker nor a Kafka cluster: `pytest examples/spark_job`.

`devbroker` and `start_devbroker` are fixtures that come with the package.
"""

from __future__ import annotations

import json

import pytest
from job import send_large_orders
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import ApiKey, CloseConnection


@pytest.fixture(scope="module")
def spark():
    """Yield a local Spark session."""
    session = (
        SparkSession.builder.master("local[2]")
        .appName("test_job")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def orders(spark):
    """Return some orders."""
    rows = [(1, "ann", 99), (2, "bob", 100), (3, "ann", 250)]
    return spark.createDataFrame(rows, "id int, customer string, amount int")


def written(broker, topic):
    """Return (key, value) of the records in a topic, sorted."""
    partitions = broker.records(topic).values()
    return sorted((r.key, json.loads(r.value)) for records in partitions for r in records)


LARGE = [(b"ann", {"id": 3, "amount": 250}), (b"bob", {"id": 2, "amount": 100})]


def test_only_large_orders_are_sent(devbroker, orders):
    """Orders below the limit are not sent."""
    devbroker.create_topic("large-orders", partitions=3)

    send_large_orders(orders, devbroker.bootstrap_servers, "large-orders")

    assert written(devbroker, "large-orders") == LARGE


def test_a_lost_answer_sends_no_order_twice(devbroker, orders):
    """An order is not duplicated if the connection breaks after the append, before the response."""
    devbroker.create_topic("large-orders", partitions=1)
    fault = devbroker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)

    send_large_orders(orders, devbroker.bootstrap_servers, "large-orders")

    assert fault.fired == 1
    assert written(devbroker, "large-orders") == LARGE


def test_orders_are_sent_while_a_broker_is_away(start_devbroker, orders):
    """All large orders are sent while one of three brokers is stopped."""
    cluster = start_devbroker(brokers=3, topics={"large-orders": 3})
    cluster.stop(2)

    send_large_orders(orders, cluster.bootstrap_servers, "large-orders")

    assert written(cluster, "large-orders") == LARGE
