"""The times of a client, as configured."""

from __future__ import annotations

import asyncio

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.network import network_client
from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
from spark_kafka_sink.network.network_client import NetworkClient


def test_milliseconds_of_settings_are_converted_to_seconds(monkeypatch):
    """Each one reaches the part of the client that waits for it."""
    given = {}

    def spy_on(name):
        real = getattr(network_client, name)

        def make(**parts):
            given[name] = parts
            return real(**parts)

        monkeypatch.setattr(network_client, name, make)

    for name in ("ConnectionSettings", "ClusterConnectionStates", "Metadata"):
        spy_on(name)
    config = ProducerConfig.from_mapping(
        {
            "bootstrap.servers": "localhost:9092",
            "client.id": "me",
            "request.timeout.ms": "30001",
            "connections.max.idle.ms": "540002",
            "reconnect.backoff.ms": "53",
            "reconnect.backoff.max.ms": "1004",
            "socket.connection.setup.timeout.ms": "10005",
            "socket.connection.setup.timeout.max.ms": "30006",
            "retry.backoff.ms": "107",
            "retry.backoff.max.ms": "1008",
            "metadata.max.age.ms": "300009",
            "metadata.max.idle.ms": "300010",
        }
    )

    async def run():
        await NetworkClient(config).close()

    asyncio.run(run())
    assert {
        "ConnectionSettings": {
            "client_id": "me",
            "request_timeout": 30.001,
            "max_idle": 540.002,
        },
        "ClusterConnectionStates": {
            "reconnect_backoff": ExponentialBackoff(0.053, 1.004),
            "setup_timeout": ExponentialBackoff(10.005, 30.006),
        },
        "Metadata": {
            "refresh_backoff": ExponentialBackoff(0.107, 1.008),
            "max_age": 300.009,
            "max_idle": 300.01,
        },
    } == given
