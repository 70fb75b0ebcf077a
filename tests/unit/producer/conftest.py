"""Fixtures that several modules of tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.sender_harness import (
    PLAIN,
    SenderHarness,
)
from tests.support.sending import PARTITIONS
from tests.support.transactions_over_mock import TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tv1() -> Iterator[SenderHarness]:
    """Give a transactional producer of a cluster with transaction.version 1."""
    with SenderHarness(transaction_version=1, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture
def tv2() -> Iterator[SenderHarness]:
    """Give a transactional producer of a cluster with transaction.version 2."""
    with SenderHarness(transaction_version=2, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture(params=[1, 2], ids=["tv1", "tv2"])
def either(request: pytest.FixtureRequest) -> Iterator[SenderHarness]:
    """Give a transactional producer under either set of rules."""
    with SenderHarness(transaction_version=request.param, **TRANSACTIONAL) as harness:
        yield harness


@pytest.fixture
def broker() -> Iterator[DevBroker]:
    """Give a broker with two topics, `t` of three partitions and `one` of one."""
    with DevBroker(topics={"t": PARTITIONS, "one": 1}) as broker:
        yield broker


@pytest.fixture
def plain() -> Iterator[SenderHarness]:
    """Give a producer without idempotence."""
    with SenderHarness(**PLAIN) as harness:
        yield harness


@pytest.fixture
def idempotent() -> Iterator[SenderHarness]:
    """Give an idempotent producer that has its id, with the first batch of partition 0 in."""
    with SenderHarness() as harness:
        harness.add()
        harness.initialize()
        harness.produce()
        yield harness
