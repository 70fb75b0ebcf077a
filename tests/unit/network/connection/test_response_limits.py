from __future__ import annotations

from spark_kafka_sink.network.connection.broker_connection import FIRST_RESPONSES, LATER_RESPONSES
from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS


def test_response_limits_are_lower_before_authentication():
    """Half a MiB and ten thousand elements at first, then 128 MiB and all that can be decoded."""
    assert (524_288, 10_000) == FIRST_RESPONSES
    assert (134_217_728, MAX_ELEMENTS) == LATER_RESPONSES
