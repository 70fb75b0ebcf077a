"""Calls about topics and their contents: pure descriptions, like those in `transaction_calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, LeaderOf
from spark_kafka_sink.admin.refusal import refusal
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from spark_kafka_sink.admin.values import NewTopic
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsResponse
    from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse
    from spark_kafka_sink.protocol.messages.list_offsets import (
        ListOffsetsPartitionResponse,
        ListOffsetsResponse,
    )

#: The resource type of topics in DescribeConfigs (ConfigResource.Type.TOPIC).
_TOPIC_RESOURCE: Final = 2
#: The last Fetch version that names topics; later ones use topic ids.
_LAST_FETCH_WITH_NAMES: Final = 12
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
#: Bytes requested at once; a larger first batch is returned anyway (KIP-74).
FETCH_MAX_BYTES: Final = 16 * 1024 * 1024
_FETCH_MAX_WAIT_MS: Final = 100


def create_topics_call(
    topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool = False
) -> Call[CreateTopicsResponse]:
    """Build the call that creates topics; the caller handles the errors of several."""
    request = CreateTopicsRequest(
        topics=tuple(_creatable(topic) for topic in topics),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    names = ", ".join(repr(topic.name) for topic in topics)
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: [topic.error_code for topic in answer.topics],
        what=f"CreateTopics({names})",
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=partition, broker_ids=tuple(brokers))
            for partition, brokers in topic.replica_assignments.items()
        ),
        configs=tuple(
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ),
    )


def was_created(response: CreateTopicsResponse, what: str) -> bool:
    """Return whether the topic is new; raises BrokerError, with the broker's own message."""
    result = response.topics[0]
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if result.error_code:
        raise refusal(result.error_code, what, result.error_message)
    return True


def describe_configs_call(topic: str) -> Call[DescribeConfigsResponse]:
    """Build the call that requests all settings of a topic."""
    request = DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
            ),
        )
    )
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.results[0].error_code,),
        what=f"DescribeConfigs of topic {topic!r}",
        # Every broker knows which topics exist, so waiting for a missing one is pointless.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def described_configs(response: DescribeConfigsResponse, what: str) -> Mapping[str, str | None]:
    """Return a topic's settings; raises BrokerError, with the broker's own message."""
    result = response.results[0]
    if result.error_code:
        raise refusal(result.error_code, what, result.error_message)
    return {config.name: config.value for config in result.configs}


def offset_call(
    topic_partition: TopicPartition, question: int, *, is_committed: bool = False
) -> Call[ListOffsetsResponse]:
    """Build the call for a log's start (EARLIEST_TIMESTAMP) or end (LATEST_TIMESTAMP).

    The end is the high watermark or, with `is_committed`, the last stable offset, where
    read_committed consumers wait. This uses ListOffsets rather than the offsets in a Fetch
    response: a new leader's high watermark may lag behind what its predecessor has acknowledged,
    and until it has caught up, ListOffsets returns an error (KIP-207).
    """
    request = ListOffsetsRequest(
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=(
            ListOffsetsTopic(
                name=topic_partition.topic,
                partitions=(
                    ListOffsetsPartition(
                        partition_index=topic_partition.partition, timestamp=question
                    ),
                ),
            ),
        ),
    )
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, None),
        error_codes=lambda answer: (_offset_of(answer).error_code,),
        what=f"ListOffsets of {topic_partition}",
    )


def offset(response: ListOffsetsResponse, what: str) -> int:
    """Return the offset in a response; raises BrokerError."""
    partition = _offset_of(response)
    if partition.error_code:
        raise broker_error(partition.error_code, what)
    return partition.offset


def _offset_of(response: ListOffsetsResponse) -> ListOffsetsPartitionResponse:
    return response.topics[0].partitions[0]


def fetch_call(topic_partition: TopicPartition, offset: int) -> Call[FetchResponse]:
    """Build the call that reads batches up to the high watermark, of all transactions."""
    request = FetchRequest(
        max_wait_ms=_FETCH_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_MAX_BYTES,
        isolation_level=_READ_UNCOMMITTED,
        topics=(
            FetchTopic(
                topic=topic_partition.topic,
                partitions=(
                    FetchPartition(
                        partition=topic_partition.partition,
                        fetch_offset=offset,
                        partition_max_bytes=FETCH_MAX_BYTES,
                    ),
                ),
            ),
        ),
    )
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, _LAST_FETCH_WITH_NAMES),
        error_codes=lambda answer: (_fetch_error(answer),),
        what=f"Fetch of {topic_partition} from offset {offset}",
    )


def fetched_records(response: FetchResponse, what: str) -> Buffer:
    """Return the batches of the only partition; raises BrokerError."""
    code = _fetch_error(response)
    if code:
        raise broker_error(code, what)
    records = response.responses[0].partitions[0].records
    if records is None:
        return b""
    return b"".join(records) if isinstance(records, list | tuple) else records


def _fetch_error(response: FetchResponse) -> int:
    """Return the error code of the only partition, or that of a response that failed as a whole."""
    return response.error_code or response.responses[0].partitions[0].error_code
