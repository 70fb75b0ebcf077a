"""Streams whose only broker is down when a micro-batch starts."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.faults.absent_broker import AbsentBroker
from tests.support.kafka.dev_kafka import DevNodes
from tests.support.kafka.real_kafka import KafkaCluster


@pytest.fixture
def absent(spark, tmp_path):
    broker = DevBroker(auto_create_topics=False)
    broker.start()
    with KafkaCluster("devbroker", broker.bootstrap_servers, DevNodes(broker)) as cluster:
        yield AbsentBroker(spark, cluster, tmp_path)


def test_a_stream_waits_for_its_broker(absent):
    """The tasks, not the driver's check, wait for the broker, and then the stream continues."""
    absent.continues_once_the_broker_is_back()


def test_a_stream_that_waits_for_its_broker_can_be_stopped(absent):
    """Spark ends waiting tasks when the query is stopped."""
    absent.can_be_stopped_meanwhile()
