"""Fixtures for the Spark tests: an embedded broker, and topics for a single test."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.kafka.readers import Record, read_with_confluent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    JobsOf = Callable[[], AbstractContextManager[Callable[[], list[int]]]]


class Topics:
    """The topics of one broker: creates them, writes DataFrames to them and reads them back."""

    def __init__(self, broker: DevBroker) -> None:
        """Use a broker; no topic is created yet."""
        self.broker = broker
        self._numbers = itertools.count(1)

    @property
    def servers(self) -> dict[str, str]:
        """The options that every write needs."""
        return {"kafka.bootstrap.servers": self.broker.bootstrap_servers}

    def create(self, partitions: int = 1, **configs: str) -> str:
        """Create a topic for a single test; in `configs`, underscores stand for dots.

        It keeps records with timestamps of the past, which retention would delete after minutes.
        """
        name = f"topic-{next(self._numbers)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        settings.setdefault("retention.ms", "-1")
        self.broker.create_topic(name, partitions=partitions, configs=settings)
        return name

    def write(self, df: DataFrame, topic: str | None = None, **options: str) -> None:
        """Append a DataFrame, with `options` under their real names."""
        given = {**self.servers, **options, **({} if topic is None else {"topic": topic})}
        df.write.format("pykafka").mode("append").options(**given).save()

    def read(self, topic: str) -> list[Record]:
        """Read a whole topic with librdkafka's consumer."""
        return read_with_confluent(self.broker.bootstrap_servers, topic)

    def values(self, topic: str) -> list[str]:
        """Read a topic's values as sorted strings."""
        return sorted((record.value or b"").decode() for record in self.read(topic))


@pytest.fixture(scope="session")
def _shared_topics() -> Iterator[Topics]:
    with DevBroker(auto_create_topics=False) as broker:
        yield Topics(broker)


@pytest.fixture
def topics(_shared_topics: Topics) -> Topics:
    """Return the topics of the broker that all Spark tests share, which auto-creates no topics."""
    return _shared_topics


@pytest.fixture
def auto_created_topics() -> Iterator[Topics]:
    """Yield the topics of a broker that auto-creates topics, with three partitions each."""
    with DevBroker(auto_create_topics=True, num_partitions=3) as broker:
        yield Topics(broker)


@pytest.fixture
def jobs_of(spark: SparkSession) -> JobsOf:
    """Return a context manager for a function that lists the jobs Spark has run in its block."""

    @contextmanager
    def watch() -> Iterator[Callable[[], list[int]]]:
        context = spark.sparkContext
        context.setJobGroup(f"watched-{next(_groups)}", "a test")
        group = context.getLocalProperty("spark.jobGroup.id")
        try:
            yield lambda: list(context.statusTracker().getJobIdsForGroup(group))
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    return watch


_groups = itertools.count(1)
