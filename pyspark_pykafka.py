"""Lets Spark find `format("pykafka")` with no registration.

PySpark imports every top-level module named `pyspark_*` and takes its `DefaultSource`; a broken
import here would break the look-up of every other data source too, so nothing heavy belongs here.
"""

from spark_kafka_sink.spark.data_source import KafkaSink as DefaultSource

__all__ = ["DefaultSource"]
