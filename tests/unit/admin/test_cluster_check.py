"""The driver's check: which limit it observes and names, and what ends it early."""

from __future__ import annotations

import re
import socket

import pytest

from spark_kafka_sink.admin.cluster_check import describe_topics
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import NetworkError


def failure(servers, *topics, timeout=3600.0, **settings):
    config = ProducerConfig.from_mapping({"bootstrap.servers": servers, **settings})
    with pytest.raises(NetworkError) as caught:
        describe_topics(config, topics, is_dry_run=True, timeout=timeout)
    return str(caught.value)


def test_a_smaller_max_block_ms_limits_the_check():
    """A max.block.ms below the check's own limit is observed and named."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        message = failure(address, "events", **{"max.block.ms": 300})
    assert re.match(r"topic 'events' is not known after [\d.]+ s \(max\.block\.ms\): ", message)


def test_the_limit_of_the_check_is_named():
    """A max.block.ms that is not the limit is not named."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = failure(f"127.0.0.1:{silent.getsockname()[1]}", "events", timeout=0.2)
    assert re.search(r"not known after [\d.]+ s \(the limit of the driver's check\): ", message)
    assert "max.block.ms" not in message


@pytest.mark.parametrize("topics", [("events",), ()], ids=["topic", "topics of a column"])
def test_refused_connections_end_the_check_early(unused_port, topics):
    """If nothing listens at any address, the check does not use up its time."""
    servers = f"127.0.0.1:{unused_port},localhost:{unused_port}"
    message = failure(servers, *topics, **{"max.block.ms": 7_200_000})
    assert f"no broker answered through 127.0.0.1:{unused_port}" in message


def test_a_host_without_an_address_ends_the_check_early():
    """A name that does not resolve is not waited for either."""
    message = failure("no-such-host.invalid:9092", "events", **{"max.block.ms": 7_200_000})
    assert "no-such-host.invalid:9092" in message
    assert "(waiting longer would not help)" in message


def test_the_check_waits_for_a_single_address_that_may_respond(unused_port):
    """A single address that does not respond is reason enough to wait."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{unused_port}"
        message = failure(servers, "events", timeout=3.5)
    assert re.search(r"not known after [\d.]+ s \(the limit of the driver's check\): ", message)
