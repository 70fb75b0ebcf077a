"""Fixtures for tests of Spark jobs, or of anything else, that write to Kafka.

pytest finds this module by its entry point (`pytest11`) wherever the package is installed; without
pytest nobody imports it. It imports nothing heavy: the embedded broker is loaded by the first test
that asks for one.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from spark_kafka_sink.devbroker import DevBroker


@pytest.fixture
def start_devbroker() -> Iterator[Callable[..., DevBroker]]:
    """Give a function that starts embedded Kafka brokers for this test, and ends them afterwards.

    Its arguments are those of `DevBroker`: `start_devbroker(brokers=3, topics={"events": 6})`.
    """
    with ExitStack() as started:

        def start(**settings: Any) -> DevBroker:
            # Only who asks for a broker pays for its import.
            from spark_kafka_sink.devbroker import DevBroker  # noqa: PLC0415

            return started.enter_context(DevBroker(**settings))

        yield start


@pytest.fixture
def devbroker(start_devbroker: Callable[..., DevBroker]) -> DevBroker:
    """Give an embedded Kafka broker of this test's own, empty; it creates topics as needed."""
    return start_devbroker()
