"""Structs as Avro with a Schema Registry: written, read, and read on after the schema has changed.

    python examples/typed_values.py

Broker and registry run in this process.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.testing import DevBroker


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

        orders = spark.range(1000).selectExpr(
            "concat('customer-', id % 10) as key",
            "struct(id, id * 1.5D as amount) as value",
        )
        orders.write.format("pykafka").mode("append").options(
            **kafka, topic="orders", autoRegisterSchemas="true"
        ).save()

        df = spark.read.format("pykafka").options(**kafka, subscribe="orders").load()
        df.printSchema()
        big = df.where("value.amount > 1000").count()
        print(f"{big} orders of more than 1000")

        # A later version of the job has one field more.
        web = "if(value.id > 300, 'web', null) as channel"
        more = orders.selectExpr(
            "key", f"struct(value.id + 1000 as id, value.amount, {web}) as value"
        )
        more.write.format("pykafka").mode("append").options(
            **kafka, topic="orders", autoRegisterSchemas="true"
        ).save()

        df = spark.read.format("pykafka").options(**kafka, subscribe="orders").load()
        df.groupBy("value.channel").count().orderBy("channel").show()
    spark.stop()


if __name__ == "__main__":
    main()
