"""Fixtures that several modules of tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.sender_harness import (
    SenderHarness,
)
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
