"""The limits of connections that no setting changes."""

from __future__ import annotations

import pytest

from spark_kafka_sink.network import daemon_thread, network_client, network_thread, timeout_check
from spark_kafka_sink.network.authentication import tokens
from spark_kafka_sink.network.connection import broker_connection, host_resolver, tls_transport


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        # The largest int32 of the protocol, and the size prefix of each frame.
        (broker_connection, "MAX_CORRELATION_ID", 2_147_483_647),
        (broker_connection, "FRAME_OVERHEAD", 4),
        # Threads and connections.
        (host_resolver, "MAX_THREADS", 16),
        (network_client, "MAX_ATTEMPTS", 64),
        # Seconds.
        (daemon_thread, "KEPT_SECONDS", 60.0),
        (network_thread, "JOIN_TIMEOUT", 10.0),
        (network_thread, "ANSWER_TIMEOUT", 1.0),
        (tokens, "DEFAULT_TIMEOUT", 10.0),
        (tokens, "RETRY_INTERVAL", 10.0),
        (timeout_check, "CHECKS_UNTIL_TIMEOUT", 3),
        (timeout_check, "ROUNDS_UNTIL_GIVING_UP", 10),
        # 128 KiB.
        (tls_transport, "CHUNK_BYTES", 131_072),
    ],
)
def test_a_limit_has_its_value(module, name, expected):
    """A change of a limit has to be deliberate."""
    assert expected == getattr(module, name)
