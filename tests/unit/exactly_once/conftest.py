"""Fixtures that run the protocol's tests in the embedded broker and on real Kafka."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink import transactions
from tests.support.exactly_once.exactly_once_sites import KafkaSite, embedded_world
from tests.support.exactly_once.exactly_once_world import world_at
from tests.support.kafka.kafka_files import KAFKA_4
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.real_kafka import start_kafka, tested_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.exactly_once.exactly_once_world import World

_EMBEDDED = [pytest.param(1, id="tv1"), pytest.param(2, id="tv2")]
_KAFKA = [
    pytest.param(version, id=f"kafka-{version}", marks=pytest.mark.kafka)
    for version in tested_versions()
]


@pytest.fixture(params=[*_EMBEDDED, *_KAFKA])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a world in the embedded broker (TV1 and TV2) and on each version of Kafka."""
    if isinstance(request.param, int):
        with embedded_world(transaction_version=request.param) as made:
            yield made
        return
    started = request.getfixturevalue("single_nodes").get(request.param)
    if isinstance(started, KafkaUnavailableError):
        skip_or_fail(started, os.environ)
    with world_at(KafkaSite(started)) as made:
        yield made


@pytest.fixture(params=_EMBEDDED)
def embedded(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a world in the embedded broker, for faults that real Kafka cannot be made to have."""
    with embedded_world(transaction_version=request.param) as made:
        yield made


@pytest.fixture
def tv2() -> Iterator[World]:
    """Yield a world in the embedded broker with TV2, for tests with many cases."""
    with embedded_world() as made:
        yield made


@pytest.fixture(params=["embedded", pytest.param(KAFKA_4, marks=pytest.mark.kafka)])
def upgradable_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield a world with TV1, whose cluster can be upgraded to TV2."""
    if request.param == "embedded":
        with embedded_world(transaction_version=1) as made:
            yield made
        return
    try:
        cluster = start_kafka(request.param)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with cluster:
        site = KafkaSite(cluster)
        site.set_transaction_version(1)
        with world_at(site) as made:
            yield made


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that runs an operator's command and returns its exit code and output."""

    def call(command: str, *arguments: str, prefix: str | None = world.prefix) -> tuple[int, str]:
        given = ["--bootstrap-server", world.site.bootstrap_servers, "--ledger-topic", world.ledger]
        given += [] if prefix is None else ["--prefix", prefix]
        code = transactions.main([command, *given, *arguments])
        said = capsys.readouterr()
        return code, said.err if code in {1, 2} else said.out

    return call
