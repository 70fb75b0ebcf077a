"""Brokers whose advertised.listeners name a port at which nothing listens."""

from __future__ import annotations

import os
import re
import socket

import pytest

from spark_kafka_sink import KafkaProducer, NetworkError, read_arrow
from spark_kafka_sink.admin.cluster_check import describe_topics
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network.connection_waits import UnreachedError
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.real_kafka import start_kafka, wait_until

pytestmark = pytest.mark.kafka

WORDS = re.compile(
    r"127\.0\.0\.1:\d+ \(id 1\): Connection refused; broker 1 advertises this address \(its "
    r"advertised\.listeners\): clients must be able to reach it; waiting longer would not help"
)
HOUR = 3_600_000


@pytest.fixture(scope="module")
def servers():
    """Yield the address of a broker with a topic `t` that advertises a dead port there."""
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        try:
            cluster = start_kafka(KAFKA_4, proxies=[f"127.0.0.1:{dead.getsockname()[1]}"])
        except KafkaUnavailableError as error:
            skip_or_fail(error, os.environ)
        with cluster:
            cluster.create_topic(1, name="t")
            yield cluster.brokers[0].proxied_address


def test_the_check_of_a_write_names_the_address(servers):
    """The driver does not wait until its limit."""
    config = ProducerConfig.from_mapping({"bootstrap.servers": servers})
    with pytest.raises(UnreachedError, match=WORDS):
        describe_topics(config, ["t"], is_dry_run=True, timeout=3600)


def test_a_read_names_the_address(servers):
    """It does not wait for default.api.timeout.ms."""
    with pytest.raises(NetworkError, match=WORDS):
        read_arrow(servers, "t", default_api_timeout_ms=HOUR)


def test_a_producer_names_the_address(servers, caplog):
    """A warning does, long before delivery.timeout.ms."""
    settings = {"bootstrap.servers": servers, "delivery.timeout.ms": HOUR}
    with KafkaProducer(settings) as producer:
        sent = producer.send("t", b"lost")
        wait_until(lambda: "(its advertised.listeners)" in caplog.text, seconds=120, what="warning")
        assert not sent.done()
        producer.close(0)
