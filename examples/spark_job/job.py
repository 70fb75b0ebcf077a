"""An example of a Spark job, which sends large orders to a Kafka topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LARGE = 100


def send_large_orders(orders: DataFrame, bootstrap_servers: str, topic: str) -> None:
    """Write each large order as JSON, keyed by its customer."""
    large = orders.where(F.col("amount") >= LARGE)
    rows = large.select(
        F.col("customer").alias("key"), F.to_json(F.struct("id", "amount")).alias("value")
    )
    (
        rows.write.format("pykafka")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", topic)
        .save()
    )
