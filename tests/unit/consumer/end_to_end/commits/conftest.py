"""The broker of the tests of commits."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.consumer.reading import fill, numbered


@pytest.fixture
def broker():
    """Return a broker with topic `t` of one partition with ten records."""
    with DevBroker(topics={"t": 1}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker
