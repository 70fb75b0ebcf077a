"""A stream that is read without Spark: its driver, and its tasks, one after the other."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from spark_kafka_sink.consumer.range_reader import read_range
from spark_kafka_sink.spark.source.offsets_json import offsets_json, parse_offsets
from spark_kafka_sink.spark.source.source_cluster import SourceCluster
from spark_kafka_sink.spark.source.stream_reader import StreamDriver
from tests.support.consumer.reading import VALUES, values_of
from tests.support.spark.fake_source import FakeClients, source_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.datasource import InputPartition

    from spark_kafka_sink.config.source_options import SourceOptions


class ReadStream:
    """One run of a query, from a checkpoint on."""

    def __init__(self, options: SourceOptions, client: ConsumerClient) -> None:
        """Start its driver."""
        self._options = options
        self._client = client
        cluster = SourceCluster(options, is_stream=True, clients=FakeClients(client))
        self._driver = StreamDriver(options, cluster=cluster)

    def plan(self, checkpoint: str | None = None) -> tuple[list[InputPartition], str]:
        """Plan a micro-batch; return its partitions, and what Spark would store of its end."""
        stored = checkpoint or _text(self._driver.initial())
        start = parse_offsets(json.loads(stored))
        text = _text(self._driver.next_end(start))
        return self._driver.divide(start, parse_offsets(json.loads(text))), text

    def run(self, partitions: Iterable[InputPartition]) -> list[bytes]:
        """Return the values of a micro-batch."""
        fail = self._options.fail_on_data_loss
        return [
            value
            for each in partitions
            for value in values_of(
                read_range(self._client, each.value, VALUES, fail_on_data_loss=fail)
            )
        ]

    def read(self, checkpoint: str | None = None) -> tuple[list[bytes], str]:
        """Plan and run a micro-batch; return its values, and what Spark would store."""
        partitions, text = self.plan(checkpoint)
        return self.run(partitions), text


def _text(offsets: Any) -> str:
    return json.dumps(offsets_json(offsets))


@contextmanager
def read_stream(servers: str, topic: str, **options: Any) -> Iterator[ReadStream]:
    """Yield a run of a query that reads a topic from its earliest offsets."""
    servers_and_start = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    given = source_options(**{**servers_and_start, "subscribe": topic, **options})
    with ConsumerClient(given.consumer) as client:
        yield ReadStream(given, client)
