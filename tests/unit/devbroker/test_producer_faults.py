"""Network faults between the producer and the embedded broker; see `fault_scenarios`."""

from __future__ import annotations

import pytest

from tests.support.faults.fault_scenarios import *  # noqa: F403  # the tests are collected here
from tests.support.kafka.dev_kafka import start_proxied_dev_kafka

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc):
    """Run with Kafka 4's transactions, and tests of transactions with the older ones too."""
    if "kafka_behind_proxy" in metafunc.fixturenames:
        both = "transactions" in metafunc.function.__name__
        versions = ["proxied_tv2", "proxied_tv1"] if both else ["proxied_tv2"]
        metafunc.parametrize("kafka_behind_proxy", versions, indirect=True)


@pytest.fixture(scope="module")
def proxied_tv2():
    with start_proxied_dev_kafka() as kafka:
        yield kafka


@pytest.fixture(scope="module")
def proxied_tv1():
    with start_proxied_dev_kafka(transaction_version=0) as kafka:
        yield kafka


@pytest.fixture
def kafka_behind_proxy(request):
    """Return a broker behind a proxy without armed faults."""
    kafka = request.getfixturevalue(request.param)
    kafka.disarm()
    yield kafka
    kafka.disarm()
