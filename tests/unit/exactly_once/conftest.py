"""Worlds for the tests of the protocol: the same scenarios in the embedded broker and on Kafka."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink import transactions
from tests.support.exactly_once_sites import KafkaSite, embedded_world
from tests.support.exactly_once_world import world_at
from tests.support.kafka_files import KAFKA_4
from tests.support.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.real_kafka import start_kafka, tested_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.exactly_once_world import World

_EMBEDDED = [pytest.param(1, id="tv1"), pytest.param(2, id="tv2")]
_KAFKA = [
    pytest.param(version, id=f"kafka-{version}", marks=pytest.mark.kafka)
    for version in tested_versions()
]


@pytest.fixture(params=[*_EMBEDDED, *_KAFKA])
def here(request: pytest.FixtureRequest) -> Iterator[World]:
    """Give a world in the embedded broker, with the rules of TV1 and TV2, and on each Kafka."""
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
    """Give a world in the embedded broker alone: for what only it can be made to do."""
    with embedded_world(transaction_version=request.param) as made:
        yield made


@pytest.fixture
def tv2() -> Iterator[World]:
    """Give a world in the embedded broker with the newest rules, for long lists of cases."""
    with embedded_world() as made:
        yield made


@pytest.fixture(params=["embedded", pytest.param(KAFKA_4, marks=pytest.mark.kafka)])
def to_be_upgraded(request: pytest.FixtureRequest) -> Iterator[World]:
    """Give a world with the rules of TV1, whose cluster can have those of TV2."""
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
def run(here: World, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run an operator's command in the world; give its exit code, and what it printed."""

    def call(command: str, *arguments: str, prefix: str | None = here.prefix) -> tuple[int, str]:
        given = ["--bootstrap-server", here.site.bootstrap_servers, "--ledger-topic", here.ledger]
        given += [] if prefix is None else ["--prefix", prefix]
        code = transactions.main([command, *given, *arguments])
        said = capsys.readouterr()
        return code, said.err if code in {1, 2} else said.out

    return call
