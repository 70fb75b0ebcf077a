"""An admin client of an embedded broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink import AdminClient
from spark_kafka_sink.devbroker import DevBroker


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 2, "more": 1}, auto_create_topics=False) as started:
        yield started


@pytest.fixture
def settings(broker):
    return {"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 10}


@pytest.fixture
def admin(settings):
    with AdminClient(settings) as client:
        yield client
