"""Write Spark DataFrames to Apache Kafka from pure Python, or single records without Spark.

Importing this package imports neither pyspark nor numba: Spark looks for data sources in every
driver-side worker it starts, and those must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.spark.data_source import KafkaSink

__all__ = ["KafkaProducer", "KafkaSink"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the producer or the Spark edge when it is first asked for (PEP 562)."""
    if name == "KafkaProducer":
        from spark_kafka_sink.producer.kafka_producer import KafkaProducer

        return KafkaProducer
    if name == "KafkaSink":
        from spark_kafka_sink.spark.data_source import KafkaSink

        return KafkaSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
