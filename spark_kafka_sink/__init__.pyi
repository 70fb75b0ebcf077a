# The public names, each with its module: for type checkers, and for the package itself.

from spark_kafka_sink.admin.admin_client import AdminClient as AdminClient
from spark_kafka_sink.admin.cluster_values import (
    ElectionType as ElectionType,
    LogDirDescription as LogDirDescription,
    PartitionReassignment as PartitionReassignment,
    QuorumInfo as QuorumInfo,
    QuorumReplicaState as QuorumReplicaState,
    ReplicaInfo as ReplicaInfo,
    TopicPartitionReplica as TopicPartitionReplica,
)
from spark_kafka_sink.admin.transaction_values import (
    TransactionDescription as TransactionDescription,
    TransactionListing as TransactionListing,
)
from spark_kafka_sink.admin.values import (
    AclBinding as AclBinding,
    AclBindingFilter as AclBindingFilter,
    AlterConfigOp as AlterConfigOp,
    AlterConfigOpType as AlterConfigOpType,
    ClusterDescription as ClusterDescription,
    ConfigEntry as ConfigEntry,
    ConfigResource as ConfigResource,
    ConfigResourceType as ConfigResourceType,
    ConfigSource as ConfigSource,
    ConfigSynonym as ConfigSynonym,
    ConsumerGroupDescription as ConsumerGroupDescription,
    ConsumerGroupListing as ConsumerGroupListing,
    CreatedTopic as CreatedTopic,
    ListedOffset as ListedOffset,
    MemberDescription as MemberDescription,
    NewPartitions as NewPartitions,
    NewTopic as NewTopic,
    OffsetSpec as OffsetSpec,
    ProducerState as ProducerState,
    TopicDescription as TopicDescription,
    TopicListing as TopicListing,
    TopicPartitionInfo as TopicPartitionInfo,
)
from spark_kafka_sink.config.admin_config import AdminConfig as AdminConfig
from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig as KafkaConsumerConfig
from spark_kafka_sink.config.producer_config import ProducerConfig as ProducerConfig
from spark_kafka_sink.consumer.aio_kafka_consumer import AIOKafkaConsumer as AIOKafkaConsumer
from spark_kafka_sink.consumer.assignors.partition_assignor import (
    Assignment as Assignment,
    Cluster as Cluster,
    ConsumerPartitionAssignor as ConsumerPartitionAssignor,
    GroupAssignment as GroupAssignment,
    GroupSubscription as GroupSubscription,
    RebalanceProtocol as RebalanceProtocol,
    Subscription as Subscription,
)
from spark_kafka_sink.consumer.group.rebalance_listener import (
    ConsumerRebalanceListener as ConsumerRebalanceListener,
)
from spark_kafka_sink.consumer.interceptors import ConsumerInterceptor as ConsumerInterceptor
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer as KafkaConsumer
from spark_kafka_sink.consumer.read_arrow import read_arrow as read_arrow
from spark_kafka_sink.consumer.records.consumer_record import (
    ConsumerRecord as ConsumerRecord,
    ConsumerRecords as ConsumerRecords,
)
from spark_kafka_sink.consumer.records.deserializers import Deserializer as Deserializer
from spark_kafka_sink.errors import (
    AdminError as AdminError,
    AuthenticationError as AuthenticationError,
    BrokerError as BrokerError,
    BufferExhaustedError as BufferExhaustedError,
    CommitFailedError as CommitFailedError,
    ConfigError as ConfigError,
    CorruptRecordError as CorruptRecordError,
    DataLossError as DataLossError,
    DecodeError as DecodeError,
    DeliveryError as DeliveryError,
    DeliveryTimeoutError as DeliveryTimeoutError,
    FatalProducerError as FatalProducerError,
    IllegalStateError as IllegalStateError,
    InvalidPartitionError as InvalidPartitionError,
    InvalidTopicError as InvalidTopicError,
    KafkaError as KafkaError,
    KafkaTimeoutError as KafkaTimeoutError,
    LogTruncationError as LogTruncationError,
    NetworkError as NetworkError,
    NoOffsetForPartitionError as NoOffsetForPartitionError,
    OffsetOutOfRangeError as OffsetOutOfRangeError,
    PayloadError as PayloadError,
    ProducerClosedError as ProducerClosedError,
    ProducerFencedError as ProducerFencedError,
    RebalanceInProgressError as RebalanceInProgressError,
    RecordDeserializationError as RecordDeserializationError,
    RecordError as RecordError,
    RecordTooLargeError as RecordTooLargeError,
    SchemaError as SchemaError,
    SchemaRegistryError as SchemaRegistryError,
    SerializationError as SerializationError,
    TransactionAbortableError as TransactionAbortableError,
    TransactionAbortedError as TransactionAbortedError,
    UnsupportedVersionError as UnsupportedVersionError,
    WakeupError as WakeupError,
)
from spark_kafka_sink.formats.avro_serializers import (
    AvroDeserializer as AvroDeserializer,
    AvroSerializer as AvroSerializer,
)
from spark_kafka_sink.formats.json_serializers import (
    JsonDeserializer as JsonDeserializer,
    JsonSerializer as JsonSerializer,
)
from spark_kafka_sink.metrics.kafka_metric import (
    KafkaMetric as KafkaMetric,
    MetricName as MetricName,
)
from spark_kafka_sink.metrics.logging_reporter import (
    LoggingMetricsReporter as LoggingMetricsReporter,
)
from spark_kafka_sink.metrics.reporter import MetricsReporter as MetricsReporter
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot as MetricsSnapshot, Summary as Summary
from spark_kafka_sink.model import (
    ConsumerGroupMetadata as ConsumerGroupMetadata,
    Node as Node,
    OffsetAndMetadata as OffsetAndMetadata,
    PartitionAcks as PartitionAcks,
    PartitionInfo as PartitionInfo,
    PreparedTransaction as PreparedTransaction,
    ProducerIdAndEpoch as ProducerIdAndEpoch,
    RecordMetadata as RecordMetadata,
    TopicPartition as TopicPartition,
)
from spark_kafka_sink.network.metadata import (
    MetadataSnapshot as MetadataSnapshot,
    PartitionMetadata as PartitionMetadata,
    TopicMetadata as TopicMetadata,
)
from spark_kafka_sink.producer.aio_kafka_producer import AIOKafkaProducer as AIOKafkaProducer
from spark_kafka_sink.producer.kafka_producer import KafkaProducer as KafkaProducer
from spark_kafka_sink.producer.records.interceptors import (
    ProducerInterceptor as ProducerInterceptor,
    ProducerRecord as ProducerRecord,
)
from spark_kafka_sink.producer.records.partitioner import (
    JavaLikePartitioner as JavaLikePartitioner,
    Partitioner as Partitioner,
    TopicPartitions as TopicPartitions,
)
from spark_kafka_sink.producer.records.record_futures import (
    FutureRecordMetadata as FutureRecordMetadata,
    FutureTableMetadata as FutureTableMetadata,
)
from spark_kafka_sink.producer.records.serializers import Serializer as Serializer
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation as AclOperation,
    AclPermissionType as AclPermissionType,
    ResourcePatternType as ResourcePatternType,
    ResourceType as ResourceType,
)
from spark_kafka_sink.record.columns import (
    BytesColumn as BytesColumn,
    HeaderColumns as HeaderColumns,
    RecordColumns as RecordColumns,
)
from spark_kafka_sink.security.oauth_bearer import (
    OAuthBearerToken as OAuthBearerToken,
    TokenFunction as TokenFunction,
)
from spark_kafka_sink.spark.data_source import KafkaSink as KafkaSink, KafkaSource as KafkaSource
from spark_kafka_sink.spark.sink.bad_rows import BadRow as BadRow, BadRows as BadRows
from spark_kafka_sink.spark.sink.driver_checks import CheckedWrite as CheckedWrite
from spark_kafka_sink.spark.sink.dry_run import DryRun as DryRun, SizeSummary as SizeSummary
from spark_kafka_sink.spark.sink.write_report import WriteReport as WriteReport
from spark_kafka_sink.spark.sink.write_schema import WriteSchema as WriteSchema
from spark_kafka_sink.version import __version__ as __version__
