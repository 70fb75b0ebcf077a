"""The job of the quickstart."""

from pyspark.sql import DataFrame


def send_large(orders: DataFrame, bootstrap_servers: str) -> None:
    """Write each order of 100 or more to the topic `large-orders`, keyed by its customer."""
    rows = orders.where("amount >= 100").selectExpr(
        "customer as key", "to_json(struct(id, amount)) as value"
    )
    (
        rows.write.format("pykafka")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "large-orders")
        .save()
    )
