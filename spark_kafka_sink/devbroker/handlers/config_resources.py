"""The config resources of DescribeConfigs and IncrementalAlterConfigs: topics and brokers."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import validate_topic_name
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Topic
    from spark_kafka_sink.devbroker.handlers.handler import RequestContext


class ResourceType(IntEnum):
    """The types of Kafka's ConfigResource.Type that this broker supports."""

    TOPIC = 2
    BROKER = 4


#: All types that Kafka has: topic, broker, broker logger, client metrics, group.
KAFKA_RESOURCE_TYPES = frozenset({2, 4, 8, 16, 32})


class ConfigType(IntEnum):
    """The value types of Kafka's DescribeConfigsResponse.ConfigType."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


TOPIC_CONFIG_TYPES = {
    "max.message.bytes": ConfigType.INT,
    "message.timestamp.type": ConfigType.STRING,
    "message.timestamp.before.max.ms": ConfigType.LONG,
    "message.timestamp.after.max.ms": ConfigType.LONG,
    "min.insync.replicas": ConfigType.INT,
    "cleanup.policy": ConfigType.LIST,
    "compression.type": ConfigType.STRING,
    "retention.ms": ConfigType.LONG,
    "retention.bytes": ConfigType.LONG,
    "segment.bytes": ConfigType.INT,
    "segment.ms": ConfigType.LONG,
    "segment.index.bytes": ConfigType.INT,
    "index.interval.bytes": ConfigType.INT,
    "flush.messages": ConfigType.LONG,
    "flush.ms": ConfigType.LONG,
    "delete.retention.ms": ConfigType.LONG,
    "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
    "min.compaction.lag.ms": ConfigType.LONG,
}


def find_topic(context: RequestContext, name: str) -> Topic:
    """Return a topic.

    Raises RefusedError with INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION.
    """
    validate_topic_name(name)
    topic = context.cluster.topic(name)
    if topic is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic
