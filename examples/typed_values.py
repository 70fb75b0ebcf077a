"""Structs as Avro with a Schema Registry: written, read, and read on after the schema has changed.

    python examples/typed_values.py

Broker and registry run in this process.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.testing import DevBroker


def write_orders(orders: DataFrame, kafka: dict[str, str]) -> None:
    """Write orders by a schema that is registered if it is not yet."""
    writer = orders.write.format("pykafka").mode("append")
    writer.options(**kafka, topic="orders", autoRegisterSchemas="true").save()


def read_orders(spark: SparkSession, kafka: dict[str, str]) -> DataFrame:
    """Read all orders: the column `value` is a struct."""
    return spark.read.format("pykafka").options(**kafka, subscribe="orders").load()


def main() -> None:
    """Write orders, read them, and write more with a further field."""
    spark = SparkSession.builder.appName("typed values").master("local[2]").getOrCreate()
    spark.dataSource.register(KafkaSink)
    with DevBroker(topics={"orders": 3}, schema_registry=True) as broker:
        kafka = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "schema.registry.url": broker.schema_registry_url,
            "valueFormat": "avro",
        }
        key = "concat('customer-', id % 10) as key"
        orders = spark.range(1000).selectExpr(key, "struct(id, id * 1.5D as amount) as value")
        write_orders(orders, kafka)
        df = read_orders(spark, kafka)
        df.printSchema()
        print(f"{df.where('value.amount > 1000').count()} orders of more than 1000")

        # A later version of the job has one field more.
        web = "if(value.id > 300, 'web', null) as channel"
        value = f"struct(value.id + 1000 as id, value.amount, {web}) as value"
        write_orders(orders.selectExpr("key", value), kafka)
        read_orders(spark, kafka).groupBy("value.channel").count().orderBy("channel").show()
    spark.stop()


if __name__ == "__main__":
    main()
