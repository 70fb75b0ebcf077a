"""For testing Spark jobs, or any other code, that write to Kafka: fixtures, and Spark's Python.

pytest loads this module through its entry point (`pytest11`) wherever the package is installed;
nothing else imports it. It imports the embedded broker only when a test first uses one.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from spark_kafka_sink.testing import DevBroker, StartDevBroker


def pytest_configure(config: pytest.Config) -> None:
    """Name the Python that runs the tests to Spark, unless the environment names one.

    Otherwise it starts the `python3` of the PATH, which in a virtual environment that is not
    activated has neither this package nor the project's own.
    """
    if not {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"} & os.environ.keys():
        patch = pytest.MonkeyPatch()
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        config.add_cleanup(patch.undo)


@pytest.fixture
def start_devbroker() -> Iterator[StartDevBroker]:
    """Yield a function that starts embedded Kafka brokers, which stop when the test ends.

    It takes the arguments of `DevBroker`: `start_devbroker(brokers=3, topics={"events": 6})`.
    Unless it gets settings, topics keep records of any age: their default is `retention.ms=-1`.
    """
    with ExitStack() as started:

        def start(**settings: Any) -> DevBroker:
            # Only tests that use a broker pay for its import.
            from spark_kafka_sink.testing import DevBroker, TopicConfig  # noqa: PLC0415

            if "settings" not in settings:
                # Otherwise records whose event times are a week old disappear after some minutes.
                settings.setdefault("topic_defaults", TopicConfig(retention_ms=-1))
            return started.enter_context(DevBroker(**settings))

        yield start


@pytest.fixture
def devbroker(start_devbroker: StartDevBroker) -> DevBroker:
    """Return an embedded Kafka broker for this test alone, without topics.

    It creates a topic for a client that asks for it, as `KafkaProducer` does; a write of Spark asks
    only with the option `autoCreateTopics`.
    """
    return start_devbroker()
