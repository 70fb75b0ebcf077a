"""Fixtures shared by several test modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.producer.sender_harness import (
    PLAIN,
    SenderHarness,
)
from tests.support.producer.sending import PARTITIONS
from tests.support.producer.transactions_over_mock import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tv1() -> Iterator[SenderHarness]:
    """Yield a transactional producer of a cluster with transaction.version 1."""
    with SenderHarness(transaction_version=1, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture
def tv2() -> Iterator[SenderHarness]:
    """Yield a transactional producer of a cluster with transaction.version 2."""
    with SenderHarness(transaction_version=2, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def either(request: pytest.FixtureRequest) -> Iterator[SenderHarness]:
    """Yield a transactional producer, once under each transaction.version."""
    with SenderHarness(transaction_version=request.param, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    """Yield a broker with two topics: `t` with three partitions and `one` with one."""
    with DevBroker(topics={"t": PARTITIONS, "one": 1}) as broker:
        yield broker


@pytest.fixture
def plain() -> Iterator[SenderHarness]:
    """Yield a producer without idempotence."""
    with SenderHarness(**PLAIN) as harness:
        yield harness


@pytest.fixture
def idempotent() -> Iterator[SenderHarness]:
    """Yield an idempotent producer with a producer id and an acknowledged batch in partition 0."""
    with SenderHarness() as harness:
        harness.add()
        harness.initialize()
        harness.produce()
        yield harness
