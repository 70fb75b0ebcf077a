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
    from spark_kafka_sink.admin.client.admin_client import AdminClient
    from spark_kafka_sink.admin.transaction_values import TransactionDescription, TransactionListing
    from spark_kafka_sink.admin.values import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AlterConfigOp,
        AlterConfigOpType,
        ClusterDescription,
        ConfigEntry,
        ConfigResource,
        ConfigResourceType,
        ConfigSource,
        ConfigSynonym,
        ConsumerGroupDescription,
        ConsumerGroupListing,
        CreatedTopic,
        ListedOffset,
        MemberDescription,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ProducerState,
        ResourcePatternType,
        ResourceType,
        TopicDescription,
        TopicListing,
        TopicPartitionInfo,
    )
    from spark_kafka_sink.config.admin_config import AdminConfig
    from spark_kafka_sink.config.kafka_consumer_config import KafkaConsumerConfig
    from spark_kafka_sink.config.producer_config import ProducerConfig
    from spark_kafka_sink.consumer.assignors.partition_assignor import (
        Assignment,
        Cluster,
        ConsumerPartitionAssignor,
        GroupAssignment,
        GroupSubscription,
        RebalanceProtocol,
        Subscription,
    )
    from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
    from spark_kafka_sink.consumer.interceptors import ConsumerInterceptor
    from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
    from spark_kafka_sink.consumer.read_arrow import read_arrow
    from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecord, ConsumerRecords
    from spark_kafka_sink.consumer.records.deserializers import Deserializer
    from spark_kafka_sink.errors import (
        AdminError,
        AuthenticationError,
        BrokerError,
        BufferExhaustedError,
        CommitFailedError,
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
        LogTruncationError,
        NetworkError,
        NoOffsetForPartitionError,
        OffsetOutOfRangeError,
        ProducerClosedError,
        ProducerFencedError,
        RebalanceInProgressError,
        RecordDeserializationError,
        RecordError,
        RecordTooLargeError,
        SchemaError,
        SerializationError,
        TransactionAbortableError,
        TransactionAbortedError,
        UnsupportedVersionError,
        WakeupError,
    )
    from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName
    from spark_kafka_sink.metrics.logging_reporter import LoggingMetricsReporter
    from spark_kafka_sink.metrics.reporter import MetricsReporter
    from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary
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
    from spark_kafka_sink.record.columns import BytesColumn, HeaderColumns, RecordColumns
    from spark_kafka_sink.security.oauth_bearer import OAuthBearerToken, TokenFunction
    from spark_kafka_sink.spark.data_source import KafkaSink, KafkaSource
    from spark_kafka_sink.spark.sink.driver_checks import CheckedWrite
    from spark_kafka_sink.spark.sink.write_report import WriteReport
    from spark_kafka_sink.spark.sink.write_schema import WriteSchema
    from spark_kafka_sink.version import __version__

__all__ = [
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "AdminClient",
    "AdminConfig",
    "AdminError",
    "AlterConfigOp",
    "AlterConfigOpType",
    "Assignment",
    "AuthenticationError",
    "BrokerError",
    "BufferExhaustedError",
    "BytesColumn",
    "CheckedWrite",
    "Cluster",
    "ClusterDescription",
    "CommitFailedError",
    "ConfigEntry",
    "ConfigError",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "ConfigSynonym",
    "ConsumerGroupDescription",
    "ConsumerGroupListing",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "ConsumerPartitionAssignor",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerRecords",
    "CorruptRecordError",
    "CreatedTopic",
    "DataLossError",
    "DecodeError",
    "DeliveryError",
    "DeliveryTimeoutError",
    "Deserializer",
    "FatalProducerError",
    "FutureRecordMetadata",
    "FutureTableMetadata",
    "GroupAssignment",
    "GroupSubscription",
    "HeaderColumns",
    "IllegalStateError",
    "InvalidPartitionError",
    "InvalidTopicError",
    "JavaLikePartitioner",
    "KafkaConsumer",
    "KafkaConsumerConfig",
    "KafkaError",
    "KafkaMetric",
    "KafkaProducer",
    "KafkaSink",
    "KafkaSource",
    "KafkaTimeoutError",
    "ListedOffset",
    "LogTruncationError",
    "LoggingMetricsReporter",
    "MemberDescription",
    "MetadataSnapshot",
    "MetricName",
    "MetricsReporter",
    "MetricsSnapshot",
    "NetworkError",
    "NewPartitions",
    "NewTopic",
    "NoOffsetForPartitionError",
    "Node",
    "OAuthBearerToken",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "OffsetSpec",
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
    "ProducerState",
    "RebalanceInProgressError",
    "RebalanceProtocol",
    "RecordColumns",
    "RecordDeserializationError",
    "RecordError",
    "RecordMetadata",
    "RecordTooLargeError",
    "ResourcePatternType",
    "ResourceType",
    "SchemaError",
    "SerializationError",
    "Serializer",
    "Subscription",
    "Summary",
    "TokenFunction",
    "TopicDescription",
    "TopicListing",
    "TopicMetadata",
    "TopicPartition",
    "TopicPartitionInfo",
    "TopicPartitions",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionDescription",
    "TransactionListing",
    "UnsupportedVersionError",
    "WakeupError",
    "WriteReport",
    "WriteSchema",
    "__version__",
    "read_arrow",
]

#: The module that defines each public name.
_MODULES = {
    "AclBinding": "spark_kafka_sink.admin.values",
    "AclBindingFilter": "spark_kafka_sink.admin.values",
    "AclOperation": "spark_kafka_sink.admin.values",
    "AclPermissionType": "spark_kafka_sink.admin.values",
    "AdminClient": "spark_kafka_sink.admin.client.admin_client",
    "AdminConfig": "spark_kafka_sink.config.admin_config",
    "AdminError": "spark_kafka_sink.errors",
    "AlterConfigOp": "spark_kafka_sink.admin.values",
    "AlterConfigOpType": "spark_kafka_sink.admin.values",
    "Assignment": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "AuthenticationError": "spark_kafka_sink.errors",
    "BrokerError": "spark_kafka_sink.errors",
    "BufferExhaustedError": "spark_kafka_sink.errors",
    "BytesColumn": "spark_kafka_sink.record.columns",
    "CheckedWrite": "spark_kafka_sink.spark.sink.driver_checks",
    "Cluster": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "ClusterDescription": "spark_kafka_sink.admin.values",
    "CommitFailedError": "spark_kafka_sink.errors",
    "ConfigEntry": "spark_kafka_sink.admin.values",
    "ConfigError": "spark_kafka_sink.errors",
    "ConfigResource": "spark_kafka_sink.admin.values",
    "ConfigResourceType": "spark_kafka_sink.admin.values",
    "ConfigSource": "spark_kafka_sink.admin.values",
    "ConfigSynonym": "spark_kafka_sink.admin.values",
    "ConsumerGroupDescription": "spark_kafka_sink.admin.values",
    "ConsumerGroupListing": "spark_kafka_sink.admin.values",
    "ConsumerGroupMetadata": "spark_kafka_sink.model",
    "ConsumerInterceptor": "spark_kafka_sink.consumer.interceptors",
    "ConsumerPartitionAssignor": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "ConsumerRebalanceListener": "spark_kafka_sink.consumer.group.rebalance_listener",
    "ConsumerRecord": "spark_kafka_sink.consumer.records.consumer_record",
    "ConsumerRecords": "spark_kafka_sink.consumer.records.consumer_record",
    "CorruptRecordError": "spark_kafka_sink.errors",
    "CreatedTopic": "spark_kafka_sink.admin.values",
    "DataLossError": "spark_kafka_sink.errors",
    "DecodeError": "spark_kafka_sink.errors",
    "DeliveryError": "spark_kafka_sink.errors",
    "DeliveryTimeoutError": "spark_kafka_sink.errors",
    "Deserializer": "spark_kafka_sink.consumer.records.deserializers",
    "FatalProducerError": "spark_kafka_sink.errors",
    "FutureRecordMetadata": "spark_kafka_sink.producer.records.record_futures",
    "FutureTableMetadata": "spark_kafka_sink.producer.records.record_futures",
    "GroupAssignment": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "GroupSubscription": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "HeaderColumns": "spark_kafka_sink.record.columns",
    "IllegalStateError": "spark_kafka_sink.errors",
    "InvalidPartitionError": "spark_kafka_sink.errors",
    "InvalidTopicError": "spark_kafka_sink.errors",
    "JavaLikePartitioner": "spark_kafka_sink.producer.records.partitioner",
    "KafkaConsumer": "spark_kafka_sink.consumer.kafka_consumer",
    "KafkaConsumerConfig": "spark_kafka_sink.config.kafka_consumer_config",
    "KafkaError": "spark_kafka_sink.errors",
    "KafkaMetric": "spark_kafka_sink.metrics.kafka_metric",
    "KafkaProducer": "spark_kafka_sink.producer.kafka_producer",
    "KafkaSink": "spark_kafka_sink.spark.data_source",
    "KafkaSource": "spark_kafka_sink.spark.data_source",
    "KafkaTimeoutError": "spark_kafka_sink.errors",
    "ListedOffset": "spark_kafka_sink.admin.values",
    "LogTruncationError": "spark_kafka_sink.errors",
    "LoggingMetricsReporter": "spark_kafka_sink.metrics.logging_reporter",
    "MemberDescription": "spark_kafka_sink.admin.values",
    "MetadataSnapshot": "spark_kafka_sink.network.cluster.metadata",
    "MetricName": "spark_kafka_sink.metrics.kafka_metric",
    "MetricsReporter": "spark_kafka_sink.metrics.reporter",
    "MetricsSnapshot": "spark_kafka_sink.metrics.snapshot",
    "NetworkError": "spark_kafka_sink.errors",
    "NewPartitions": "spark_kafka_sink.admin.values",
    "NewTopic": "spark_kafka_sink.admin.values",
    "NoOffsetForPartitionError": "spark_kafka_sink.errors",
    "Node": "spark_kafka_sink.model",
    "OAuthBearerToken": "spark_kafka_sink.security.oauth_bearer",
    "OffsetAndMetadata": "spark_kafka_sink.model",
    "OffsetOutOfRangeError": "spark_kafka_sink.errors",
    "OffsetSpec": "spark_kafka_sink.admin.values",
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
    "ProducerState": "spark_kafka_sink.admin.values",
    "RebalanceInProgressError": "spark_kafka_sink.errors",
    "RebalanceProtocol": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "RecordColumns": "spark_kafka_sink.record.columns",
    "RecordDeserializationError": "spark_kafka_sink.errors",
    "RecordError": "spark_kafka_sink.errors",
    "RecordMetadata": "spark_kafka_sink.model",
    "RecordTooLargeError": "spark_kafka_sink.errors",
    "ResourcePatternType": "spark_kafka_sink.admin.values",
    "ResourceType": "spark_kafka_sink.admin.values",
    "SchemaError": "spark_kafka_sink.errors",
    "SerializationError": "spark_kafka_sink.errors",
    "Serializer": "spark_kafka_sink.producer.records.serializers",
    "Subscription": "spark_kafka_sink.consumer.assignors.partition_assignor",
    "Summary": "spark_kafka_sink.metrics.snapshot",
    "TokenFunction": "spark_kafka_sink.security.oauth_bearer",
    "TopicDescription": "spark_kafka_sink.admin.values",
    "TopicListing": "spark_kafka_sink.admin.values",
    "TopicMetadata": "spark_kafka_sink.network.cluster.metadata",
    "TopicPartition": "spark_kafka_sink.model",
    "TopicPartitionInfo": "spark_kafka_sink.admin.values",
    "TopicPartitions": "spark_kafka_sink.producer.records.partitioner",
    "TransactionAbortableError": "spark_kafka_sink.errors",
    "TransactionAbortedError": "spark_kafka_sink.errors",
    "TransactionDescription": "spark_kafka_sink.admin.transaction_values",
    "TransactionListing": "spark_kafka_sink.admin.transaction_values",
    "UnsupportedVersionError": "spark_kafka_sink.errors",
    "WakeupError": "spark_kafka_sink.errors",
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
