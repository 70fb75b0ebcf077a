"""The effects of the settings of the admin client on its requests: each test changes one."""

from __future__ import annotations

import pytest

from spark_kafka_sink import AdminClient, NewTopic
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.api_keys import ApiKey

#: In milliseconds; more than a busy machine needs.
PATIENCE_MS = 120_000


@pytest.fixture
def broker():
    with DevBroker() as broker:
        yield broker


def _creation(broker: DevBroker, settings: dict[str, object]) -> tuple:
    """Return the request that creates a topic, and its context."""
    seen = []
    broker.on(ApiKey.CREATE_TOPICS, lambda request, context: seen.append((request, context)))
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers, **settings}) as admin:
        admin.create_topics([NewTopic("t")])
    return seen[0]


@pytest.mark.parametrize("name", ["spark-kafka-sink-admin", "operations"])
def test_a_request_has_the_client_id(broker, name):
    """A request carries client.id."""
    _, context = _creation(broker, {"client.id": name})
    assert name == context.header.client_id


@pytest.mark.parametrize("milliseconds", [500_000, 900_000])
def test_a_call_has_the_configured_time(broker, milliseconds):
    """Without a timeout, a call has default.api.timeout.ms, and its request what is left of it."""
    request, _ = _creation(broker, {"default.api.timeout.ms": milliseconds})
    assert milliseconds - PATIENCE_MS < request.timeout_ms <= milliseconds
