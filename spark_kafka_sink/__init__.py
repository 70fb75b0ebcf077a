"""Write Spark DataFrames to Apache Kafka and read them, in pure Python, with or without Spark.

The public names are those in `__all__` here and in `spark_kafka_sink.testing`; everything else may
change between versions.

Importing this package imports neither pyspark nor numba: Spark looks up data sources in every
driver-side worker that it starts, and those must start fast. Each name is imported when it is first
used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.consumer.read_arrow import read_arrow
    from spark_kafka_sink.errors import (
        AuthenticationError,
        BrokerError,
        BufferExhaustedError,
        ConfigError,
        CorruptRecordError,
        DataLossError,
        DecodeError,
        DeliveryError,
        DeliveryTimeoutError,
        FatalProducerError,
        IllegalStateError,
        InvalidPartitionError,
        InvalidTopicError,
        KafkaError,
        KafkaTimeoutError,
        NetworkError,
        ProducerClosedError,
        ProducerFencedError,
        RecordError,
        RecordTooLargeError,
        SchemaError,
        SerializationError,
        TransactionAbortableError,
        TransactionAbortedError,
        UnsupportedVersionError,
    )
    from spark_kafka_sink.metrics.kafka_metric import KafkaMetric
    from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
    from spark_kafka_sink.metrics.metric_name import MetricName
    from spark_kafka_sink.metrics.reporter import MetricsReporter
    from spark_kafka_sink.metrics.snapshot import (
        MetricsSnapshot,
        Summary,
    )
    from spark_kafka_sink.model import (
        ConsumerGroupMetadata,
        Node,
        OffsetAndMetadata,
        PartitionAcks,
        PartitionInfo,
        PreparedTransaction,
        ProducerIdAndEpoch,
        RecordMetadata,
        TopicPartition,
    )
    from spark_kafka_sink.network.cluster.metadata import (
        MetadataSnapshot,
        PartitionMetadata,
        TopicMetadata,
    )
    from spark_kafka_sink.producer.kafka_producer import KafkaProducer
    from spark_kafka_sink.producer.records.interceptors import ProducerInterceptor
    from spark_kafka_sink.producer.records.partitioner import (
        JavaLikePartitioner,
        Partitioner,
        TopicPartitions,
    )
    from spark_kafka_sink.producer.records.producer_record import ProducerRecord
    from spark_kafka_sink.producer.records.record_futures import (
        FutureRecordMetadata,
        FutureTableMetadata,
    )
    from spark_kafka_sink.producer.records.serializers import Serializer
    from spark_kafka_sink.record.columns import (
        BytesColumn,
        HeaderColumns,
        RecordColumns,
    )
    from spark_kafka_sink.security.oauth_bearer import (
        OAuthBearerToken,
        TokenFunction,
    )
    from spark_kafka_sink.spark.data_source import KafkaSink, KafkaSource
    from spark_kafka_sink.spark.sink.driver_checks import CheckedWrite
    from spark_kafka_sink.spark.sink.write_report import WriteReport
    from spark_kafka_sink.spark.sink.write_schema import WriteSchema
    from spark_kafka_sink.version import __version__

__all__ = [
    "AuthenticationError",
    "BrokerError",
    "BufferExhaustedError",
    "BytesColumn",
    "CheckedWrite",
    "ConfigError",
    "ConsumerGroupMetadata",
    "CorruptRecordError",
    "DataLossError",
    "DecodeError",
    "DeliveryError",
    "DeliveryTimeoutError",
    "FatalProducerError",
    "FutureRecordMetadata",
    "FutureTableMetadata",
    "HeaderColumns",
    "IllegalStateError",
    "InvalidPartitionError",
    "InvalidTopicError",
    "JavaLikePartitioner",
    "KafkaError",
    "KafkaMetric",
    "KafkaProducer",
    "KafkaSink",
    "KafkaSource",
    "KafkaTimeoutError",
    "LoggingMetricsReporter",
    "MetadataSnapshot",
    "MetricName",
    "MetricsReporter",
    "MetricsSnapshot",
    "NetworkError",
    "Node",
    "OAuthBearerToken",
    "OffsetAndMetadata",
    "PartitionAcks",
    "PartitionInfo",
    "PartitionMetadata",
    "Partitioner",
    "PreparedTransaction",
    "ProducerClosedError",
    "ProducerConfig",
    "ProducerFencedError",
    "ProducerIdAndEpoch",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordColumns",
    "RecordError",
    "RecordMetadata",
    "RecordTooLargeError",
    "SchemaError",
    "SerializationError",
    "Serializer",
    "Summary",
    "TokenFunction",
    "TopicMetadata",
    "TopicPartition",
    "TopicPartitions",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "UnsupportedVersionError",
    "WriteReport",
    "WriteSchema",
    "__version__",
    "read_arrow",
]

#: The module that defines each public name.
_MODULES = {
    "AuthenticationError": "spark_kafka_sink.errors",
    "BrokerError": "spark_kafka_sink.errors",
    "BufferExhaustedError": "spark_kafka_sink.errors",
    "BytesColumn": "spark_kafka_sink.record.columns",
    "CheckedWrite": "spark_kafka_sink.spark.sink.driver_checks",
    "ConfigError": "spark_kafka_sink.errors",
    "ConsumerGroupMetadata": "spark_kafka_sink.model",
    "CorruptRecordError": "spark_kafka_sink.errors",
    "DataLossError": "spark_kafka_sink.errors",
    "DecodeError": "spark_kafka_sink.errors",
    "DeliveryError": "spark_kafka_sink.errors",
    "DeliveryTimeoutError": "spark_kafka_sink.errors",
    "FatalProducerError": "spark_kafka_sink.errors",
    "FutureRecordMetadata": "spark_kafka_sink.producer.records.record_futures",
    "FutureTableMetadata": "spark_kafka_sink.producer.records.record_futures",
    "HeaderColumns": "spark_kafka_sink.record.columns",
    "IllegalStateError": "spark_kafka_sink.errors",
    "InvalidPartitionError": "spark_kafka_sink.errors",
    "InvalidTopicError": "spark_kafka_sink.errors",
    "JavaLikePartitioner": "spark_kafka_sink.producer.records.partitioner",
    "KafkaError": "spark_kafka_sink.errors",
    "KafkaMetric": "spark_kafka_sink.metrics.kafka_metric",
    "KafkaProducer": "spark_kafka_sink.producer.kafka_producer",
    "KafkaSink": "spark_kafka_sink.spark.data_source",
    "KafkaSource": "spark_kafka_sink.spark.data_source",
    "KafkaTimeoutError": "spark_kafka_sink.errors",
    "LoggingMetricsReporter": "spark_kafka_sink.metrics.logging_reporter",
    "MetadataSnapshot": "spark_kafka_sink.network.cluster.metadata",
    "MetricName": "spark_kafka_sink.metrics.metric_name",
    "MetricsReporter": "spark_kafka_sink.metrics.reporter",
    "MetricsSnapshot": "spark_kafka_sink.metrics.snapshot",
    "NetworkError": "spark_kafka_sink.errors",
    "Node": "spark_kafka_sink.model",
    "OAuthBearerToken": "spark_kafka_sink.security.oauth_bearer",
    "OffsetAndMetadata": "spark_kafka_sink.model",
    "PartitionAcks": "spark_kafka_sink.model",
    "PartitionInfo": "spark_kafka_sink.model",
    "PartitionMetadata": "spark_kafka_sink.network.cluster.metadata",
    "Partitioner": "spark_kafka_sink.producer.records.partitioner",
    "PreparedTransaction": "spark_kafka_sink.model",
    "ProducerClosedError": "spark_kafka_sink.errors",
    "ProducerConfig": "spark_kafka_sink.config.producer_config",
    "ProducerFencedError": "spark_kafka_sink.errors",
    "ProducerIdAndEpoch": "spark_kafka_sink.model",
    "ProducerInterceptor": "spark_kafka_sink.producer.records.interceptors",
    "ProducerRecord": "spark_kafka_sink.producer.records.producer_record",
    "RecordColumns": "spark_kafka_sink.record.columns",
    "RecordError": "spark_kafka_sink.errors",
    "RecordMetadata": "spark_kafka_sink.model",
    "RecordTooLargeError": "spark_kafka_sink.errors",
    "SchemaError": "spark_kafka_sink.errors",
    "SerializationError": "spark_kafka_sink.errors",
    "Serializer": "spark_kafka_sink.producer.records.serializers",
    "Summary": "spark_kafka_sink.metrics.snapshot",
    "TokenFunction": "spark_kafka_sink.security.oauth_bearer",
    "TopicMetadata": "spark_kafka_sink.network.cluster.metadata",
    "TopicPartition": "spark_kafka_sink.model",
    "TopicPartitions": "spark_kafka_sink.producer.records.partitioner",
    "TransactionAbortableError": "spark_kafka_sink.errors",
    "TransactionAbortedError": "spark_kafka_sink.errors",
    "UnsupportedVersionError": "spark_kafka_sink.errors",
    "WriteReport": "spark_kafka_sink.spark.sink.write_report",
    "WriteSchema": "spark_kafka_sink.spark.sink.write_schema",
    "__version__": "spark_kafka_sink.version",
    "read_arrow": "spark_kafka_sink.consumer.read_arrow",
}


# Type checkers see the imports above, and report any other name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != "pyspark":
                raise
            # The message is all that users need; the traceback would show our imports.
            raise error.with_traceback(None) from None
        # Later look-ups do not call this function.
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, except those of Spark where there is no PySpark.

    Completion looks up each name, which must not fail.
    """
    has_spark = find_spec("pyspark") is not None
    return [
        name for name in __all__ if has_spark or not _MODULES[name].startswith(f"{__name__}.spark.")
    ]
