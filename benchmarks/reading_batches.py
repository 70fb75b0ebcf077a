"""What a micro-batch that reads from Kafka costs, and the latest offsets of many partitions.

A micro-batch is compared with one of a Python source that makes as many rows itself, see
`generated_source`.
"""

from __future__ import annotations

import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measuring import SPREAD_COLUMNS, Spread, heading, progress, table, verdict
from benchmarks.micro_batches import WARM_UP_BATCHES, batch_seconds
from benchmarks.setting import memory_directory
from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.offset_specs import Subscribe
from spark_kafka_sink.consumer.consumer_client import ConsumerClient
from tests.support.spark.streams import wait_for_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.setting import Setting

ROWS = 2_000
PARTITIONS = 6
TARGET_MS = 20
#: More than for the sink: what is measured is a small part of a micro-batch.
BATCHES = 40
MANY_PARTITIONS = 1_000
LATEST_TARGET_MS = 10
LATEST_WARM_UP_CALLS, LATEST_CALLS = 100, 200
_SECONDS = 60.0


def run(setting: Setting, topic: str) -> None:
    """Measure both; the topic must have the rows of all micro-batches of a query."""
    # Queries are stopped in the middle of a micro-batch, which Spark logs as a failure.
    setting.spark.sparkContext.setLogLevel("OFF")
    _run_batches(setting, topic)
    _run_latest_offsets(setting)
    setting.spark.sparkContext.setLogLevel("ERROR")


def _run_batches(setting: Setting, topic: str) -> None:
    differences, generated, ours = [], [], []
    for number in range(setting.rounds + 1):
        progress(f"micro-batches, round {number}/{setting.rounds}")
        one = _batch_milliseconds(_generated(setting))
        other = _batch_milliseconds(_from_kafka(setting, topic))
        if number:
            generated.append(one)
            ours.append(other)
            differences.append(other - one)
    progress("")
    heading(
        f"Micro-batches of {ROWS:,} rows in {PARTITIONS} partitions, median of {BATCHES} in each "
        f"of {setting.rounds} rounds, milliseconds"
    )
    spread = Spread.of(differences)
    table(
        ["generated", "pykafka", *(f"difference: {name}" for name in SPREAD_COLUMNS), "target"],
        [
            [
                f"{median(generated):.0f}",
                f"{median(ours):.0f}",
                *spread.cells(),
                verdict(spread.median, at_most=TARGET_MS),
            ]
        ],
    )


def _generated(setting: Setting) -> DataFrame:
    reader = setting.spark.readStream.format("generated")
    return reader.options(rows=ROWS, partitions=PARTITIONS).load()


def _from_kafka(setting: Setting, topic: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": setting.kafka.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS),
    }
    return setting.spark.readStream.format("pykafka").options(**options).load()


def _batch_milliseconds(rows: DataFrame) -> float:
    """Run a new query; return the median time of its micro-batches."""
    # In memory: the time to write checkpoints to a disk varies more than what is measured.
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=memory_directory()) as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            wait_for_batch(query, WARM_UP_BATCHES + BATCHES - 1)
        finally:
            query.stop()
        found = batch_seconds(query.recentProgress, first_batch=WARM_UP_BATCHES)
    return median(found) * 1000


def _run_latest_offsets(setting: Setting) -> None:
    progress(f"creating {MANY_PARTITIONS} partitions")
    topic = setting.kafka.create_topic(MANY_PARTITIONS)
    config = ConsumerConfig.from_mapping({"bootstrap.servers": setting.kafka.bootstrap_servers})
    milliseconds = []
    with ConsumerClient(config) as client:
        partitions = client.list_partitions(Subscribe((topic,)), timeout=_SECONDS)
        for _ in range(LATEST_WARM_UP_CALLS):
            client.latest_offsets(partitions, timeout=_SECONDS)
        for _ in range(LATEST_CALLS):
            started = time.perf_counter()
            found = client.latest_offsets(partitions, timeout=_SECONDS)
            milliseconds.append((time.perf_counter() - started) * 1000)
            if len(found) != MANY_PARTITIONS:
                raise RuntimeError(f"{len(found)} of {MANY_PARTITIONS} offsets")
    setting.kafka.delete_topics([topic])
    progress("")
    spread = Spread.of(milliseconds)
    heading(f"Latest offsets of {MANY_PARTITIONS:,} partitions, {LATEST_CALLS} times, milliseconds")
    table(
        [*SPREAD_COLUMNS, "target"],
        [[*spread.cells(), verdict(spread.median, at_most=LATEST_TARGET_MS)]],
    )
