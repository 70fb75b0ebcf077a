"""The entry point by which Spark finds `format("pykafka")` without registration.

PySpark imports every top-level module named `pyspark_*` and uses its `DefaultSource`. A failing
import here would break the lookup of every other data source too, so this module imports as little
as possible.
"""

from spark_kafka_sink.spark.data_source import KafkaSink as DefaultSource

__all__ = ["DefaultSource"]
