"""Fixtures for the tests of the embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kafka_python_sockets_closed() -> Iterator[None]:
    """Close the sockets that kafka-python leaves open; the test must import it."""
    from tests.support.network.kafka_python_sockets import sockets_closed  # noqa: PLC0415

    with sockets_closed():
        yield
