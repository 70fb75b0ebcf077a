"""Fixtures for testing Spark jobs, or any other code, that write to Kafka.

pytest loads this module through its entry point (`pytest11`) wherever the package is installed;
nothing else imports it. It imports the embedded broker only when a test first uses one.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from spark_kafka_sink.testing import DevBroker, StartDevBroker


@pytest.fixture
def start_devbroker() -> Iterator[StartDevBroker]:
    """Yield a function that starts embedded Kafka brokers, which stop when the test ends.

    It takes the arguments of `DevBroker`: `start_devbroker(brokers=3, topics={"events": 6})`.
    """
    with ExitStack() as started:

        def start(**settings: Any) -> DevBroker:
            # Only tests that use a broker pay for its import.
            from spark_kafka_sink.testing import DevBroker  # noqa: PLC0415

            return started.enter_context(DevBroker(**settings))

        yield start


@pytest.fixture
def devbroker(start_devbroker: StartDevBroker) -> DevBroker:
    """Return an empty embedded Kafka broker for this test alone; it creates topics on demand."""
    return start_devbroker()
