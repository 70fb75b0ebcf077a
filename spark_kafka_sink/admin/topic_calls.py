"""The calls that concern topics and what is in them: pure descriptions, as `transaction_calls`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin.cluster_calls import AnyBroker, Call, LeaderOf
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.create_topics import (
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
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from spark_kafka_sink.model import TopicPartition

#: Resource type of DescribeConfigs (ConfigResource.Type.TOPIC).
_TOPIC_RESOURCE: Final = 2
#: The last version of Fetch that names topics; later ones have their ids.
_LAST_FETCH_WITH_NAMES: Final = 12
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
#: Bytes asked for at once; a first batch above it comes all the same (KIP-74).
FETCH_MAX_BYTES: Final = 16 * 1024 * 1024
_FETCH_MAX_WAIT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the cluster's defaults (KIP-464)."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[tuple[str, str], ...] = ()


def create_topic_call(topic: NewTopic, *, timeout_ms: int) -> Call:
    """Ask for a topic."""
    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=tuple(
                    CreatableTopicConfig(name=name, value=value) for name, value in topic.configs
                ),
            ),
        ),
        timeout_ms=timeout_ms,
    )
    return Call(
        destination=AnyBroker(),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.topics[0].error_code,),
        what=f"CreateTopics({topic.name!r})",
    )


def was_created(response: Any, what: str) -> bool:
    """Tell whether the topic is new; raises BrokerError, with the broker's own words."""
    result = response.topics[0]
    if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if result.error_code:
        raise _error(result.error_code, what, result.error_message)
    return True


def describe_configs_call(topic: str) -> Call:
    """Ask for all settings of a topic."""
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
        # Any broker knows which topics there are: no need to wait for one that is not there.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def described_configs(response: Any, what: str) -> Mapping[str, str | None]:
    """Read a topic's settings; raises BrokerError, with the broker's own words."""
    result = response.results[0]
    if result.error_code:
        raise _error(result.error_code, what, result.error_message)
    return {config.name: config.value for config in result.configs}


def _error(code: int, what: str, message: str | None) -> BrokerError:
    error = broker_error(code, what)
    if not message:
        return error
    return BrokerError(
        f"{error}; the broker said: {message}",
        code=error.code,
        name=error.name,
        retriable=error.retriable,
        invalid_metadata=error.invalid_metadata,
    )


def offset_call(
    topic_partition: TopicPartition, question: int, *, is_committed: bool = False
) -> Call:
    """Ask for the log's start (EARLIEST_TIMESTAMP) or its high watermark (LATEST_TIMESTAMP).

    With `is_committed` the latter is the last stable offset: where read_committed consumers wait.
    By ListOffsets and not by what Fetch says of it: a new leader's high watermark may lag behind
    what its predecessor has acknowledged, and ListOffsets refuses to tell it until it does not
    (KIP-207).
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


def offset(response: Any, what: str) -> int:
    """Read the one offset; raises BrokerError."""
    partition = _offset_of(response)
    if partition.error_code:
        raise broker_error(partition.error_code, what)
    return int(partition.offset)


def _offset_of(response: Any) -> Any:
    return response.topics[0].partitions[0]


def fetch_call(topic_partition: TopicPartition, offset: int) -> Call:
    """Ask for batches up to the high watermark, of whatever transactions."""
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


def fetched_records(response: Any, what: str) -> Buffer:
    """Give the batches of the one partition; raises BrokerError."""
    code = _fetch_error(response)
    if code:
        raise broker_error(code, what)
    records = response.responses[0].partitions[0].records
    if records is None:
        return b""
    return b"".join(records) if isinstance(records, list | tuple) else records


def _fetch_error(response: Any) -> int:
    """Read the code of the one partition; an answer that failed as a whole speaks for it."""
    return int(response.error_code or response.responses[0].partitions[0].error_code)
