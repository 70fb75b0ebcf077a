"""A declarative pipeline that copies a topic exactly once."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BROKERS = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")

dp.create_sink(
    "copy",
    "pykafka",
    {
        "kafka.bootstrap.servers": BROKERS,
        "topic": "copy",
        "deliveryGuarantee": "exactly_once",
        "transactionalIdPrefix": "copy-of-events",
    },
)


@dp.append_flow(target="copy")
def copied() -> DataFrame:
    """Copy the keys and values of a topic."""
    return (
        SparkSession.active()
        .readStream.format("pykafka")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "events")
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
