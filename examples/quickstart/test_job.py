"""The test of the quickstart: `devbroker` is a fixture that comes with the package."""

from job import send_large
from pyspark.sql import SparkSession


def test_only_large_orders_are_sent(devbroker):
    """Orders below the limit are not sent."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    orders = spark.createDataFrame(
        [(1, "ann", 99), (2, "bob", 100)], "id int, customer string, amount int"
    )
    devbroker.create_topic("large-orders")

    send_large(orders, devbroker.bootstrap_servers)

    [record] = devbroker.records("large-orders")[0]
    assert record.key == b"bob"
    assert record.value == b'{"id":2,"amount":100}'
