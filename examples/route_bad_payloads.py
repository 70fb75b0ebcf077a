"""A stream of Avro with unreadable payloads: it copies the good ones, and sets the others aside.

    python examples/route_bad_payloads.py

Both go to their topics in one write, exactly once. Broker and registry run in this process.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import KafkaProducer, KafkaSink
from spark_kafka_sink.testing import DevBroker

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def read_orders(spark: SparkSession, kafka: dict[str, str]) -> DataFrame:
    """Read orders as a stream; a value that is malformed is null, and `decodeError` says why."""
    reader = spark.readStream.format("pykafka").options(**kafka, valueFormat="avro")
    reader = reader.options(subscribe="orders", startingOffsets="earliest", onDecodeError="null")
    return reader.load()


def route(orders: DataFrame) -> DataFrame:
    """Return a row for each order with its topic: good ones as JSON, others as they came."""
    error = "named_struct('key', 'error', 'value', encode(decodeError, 'utf-8'))"
    place = "named_struct('key', 'place', 'value', encode(concat(partition, ' ', offset), 'utf-8'))"
    return orders.selectExpr(
        "if(decodeError is null, 'good-orders', 'bad-orders') as topic",
        "key",
        "if(decodeError is null, encode(to_json(value), 'utf-8'), rawValue) as value",
        f"if(decodeError is null, null, array({error}, {place})) as headers",
    )


def to_topics(rows: DataFrame, kafka: dict[str, str], checkpoint: str) -> DataStreamWriter:
    """Return what writes the rows to the topics that the column names, good and bad together."""
    writer = rows.writeStream.format("pykafka").options(**kafka, checkpointLocation=checkpoint)
    return writer.options(deliveryGuarantee="exactly_once", transactionalIdPrefix="routed-orders")


def send_orders(servers: str, registry: str, first: int) -> None:
    """Send 500 orders; five of them are not Avro."""
    orders = [{"id": first + number, "amount": number * 1.5} for number in range(495)]
    with KafkaProducer({"bootstrap.servers": servers}) as producer:
        producer.send_arrow(
            pa.table({"value": orders}),
            topic="orders",
            value_format="avro",
            schema_registry={"url": registry},
            format_options={"autoRegisterSchemas": True},
        ).result(timeout=60)
        for number in range(5):
            producer.send("orders", b"order %d" % (first + 495 + number))


def count(spark: SparkSession, servers: str, topic: str) -> int:
    """Return how many records of a topic consumers see."""
    reader = spark.read.format("pykafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed")
    return reader.option("subscribe", topic).load().count()


def main() -> None:
    """Send orders, route them, and do it once more."""
    spark = SparkSession.builder.appName("bad payloads").master("local[2]").getOrCreate()
    spark.dataSource.register(KafkaSink)
    topics = {"orders": 3, "good-orders": 3, "bad-orders": 1}
    with (
        TemporaryDirectory() as directory,
        DevBroker(topics=topics, schema_registry=True) as broker,
    ):
        servers, registry = broker.bootstrap_servers, broker.schema_registry_url
        kafka = {"kafka.bootstrap.servers": servers}
        for first in (0, 500):
            send_orders(servers, registry, first)
            orders = read_orders(spark, {**kafka, "schema.registry.url": registry})
            writer = to_topics(route(orders), kafka, directory).trigger(availableNow=True)
            writer.start().awaitTermination()
            good, bad = (count(spark, servers, topic) for topic in ("good-orders", "bad-orders"))
            print(f"{good} good orders, {bad} bad ones")
    spark.stop()


if __name__ == "__main__":
    main()
