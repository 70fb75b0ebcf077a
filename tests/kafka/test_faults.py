"""Network faults between the producer and a real Kafka: see `fault_scenarios`.

Each scenario runs with its first parameter. With the others it runs on the embedded broker alone,
which answers them as Kafka does (`test_devbroker_conformance.py`).
"""

from __future__ import annotations

import os

import pytest

from tests.support.faults.fault_scenarios import *  # noqa: F403  # the tests are collected here
from tests.support.kafka.kafka_files import KAFKA_3, KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.proxied_kafka import start_proxied_kafka

pytestmark = pytest.mark.kafka


def pytest_generate_tests(metafunc):
    """Use the newest version, and also the oldest one if a test is marked with both_versions."""
    markers = metafunc.definition.own_markers
    markers[:] = [_first_only(it) if it.name == "parametrize" else it for it in markers]
    if "kafka_behind_proxy" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_versions")
        versions = ["proxied_4", "proxied_3"] if both else ["proxied_4"]
        metafunc.parametrize("kafka_behind_proxy", versions, indirect=True)


def _first_only(parametrize):
    names, values = parametrize.args
    ids = parametrize.kwargs.get("ids")
    ids = ids[:1] if isinstance(ids, list) else ids
    return pytest.mark.parametrize(names, list(values)[:1], ids=ids).mark


def _proxied(version):
    try:
        with start_proxied_kafka(version) as kafka:
            yield kafka
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)


@pytest.fixture(scope="module")
def proxied_4():
    yield from _proxied(KAFKA_4)


@pytest.fixture(scope="module")
def proxied_3():
    yield from _proxied(KAFKA_3)


@pytest.fixture
def kafka_behind_proxy(request):
    """Yield a broker behind a proxy without faults."""
    kafka = request.getfixturevalue(request.param)
    kafka.disarm()
    yield kafka
    kafka.disarm()
