"""Requests about partitions, which go to their leaders: offsets, records and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import Call, LeaderOf, refusal
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.requests.topics import metadata_call, nodes_of
from spark_kafka_sink.admin.transaction_values import OpenProducer
from spark_kafka_sink.admin.values import ListedOffset, OffsetSpec, ProducerState
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.model import NO_LEADER_EPOCH, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.delete_records import DeleteRecordsResponse
    from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersResponse
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse
    from spark_kafka_sink.protocol.messages.list_offsets import (
        ListOffsetsPartitionResponse,
        ListOffsetsResponse,
    )

#: The first ListOffsets version that accepts each of these.
_SPEC_VERSIONS: Final[Mapping[int, int]] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
}
#: The last Fetch version that names topics; later ones use topic ids.
_LAST_FETCH_WITH_NAMES: Final = 12
#: Bytes requested at once; a larger first batch is returned anyway (KIP-74).
_FETCH_MAX_BYTES: Final = 16 * 1024 * 1024
_FETCH_MAX_WAIT_MS: Final = 100
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1

# --- offsets


def listing_offsets(
    specs: Mapping[TopicPartition, int], *, is_committed: bool
) -> ItemRequest[TopicPartition, ListOffsetsResponse, ListedOffset]:
    """Describe the request for offsets, each by an `OffsetSpec` or a timestamp."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], seconds: float
    ) -> Call[ListOffsetsResponse]:
        wanted = {topic_partition: specs[topic_partition] for topic_partition in topic_partitions}
        request = _list_offsets(wanted, is_committed=is_committed, timeout_ms=int(seconds * 1000))
        needed = max(_SPEC_VERSIONS.get(spec, 0) for spec in wanted.values())

        def versioned(versions: NodeApiVersions) -> tuple[ListOffsetsRequest, int | None]:
            if versions.version_for(ApiKey.LIST_OFFSETS) < needed:
                raise UnsupportedVersionError(
                    f"ListOffsets: {destination} is too old for one of the offsets requested"
                )
            return request, None

        return Call(destination=destination, build=versioned, what="ListOffsets")

    def read(
        response: ListOffsetsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, ListedOffset | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    yield (
                        topic_partition,
                        broker_error(partition.error_code, f"ListOffsets of {topic_partition}"),
                    )
                    continue
                epoch = partition.leader_epoch
                yield (
                    topic_partition,
                    ListedOffset(
                        offset=partition.offset,
                        timestamp=partition.timestamp,
                        leader_epoch=None if epoch == NO_LEADER_EPOCH else epoch,
                    ),
                )

    return ItemRequest(what="ListOffsets", route=_to_leaders, build=build, read=read)


def offset_call(
    topic_partition: TopicPartition, question: int, *, is_committed: bool = False
) -> Call[ListOffsetsResponse]:
    """Build the call for a log's start (EARLIEST_TIMESTAMP) or end (LATEST_TIMESTAMP).

    The end is the high watermark or, with `is_committed`, the last stable offset, where
    read_committed consumers wait. This uses ListOffsets rather than the offsets in a Fetch
    response: a new leader's high watermark may lag behind what its predecessor has acknowledged,
    and until it has caught up, ListOffsets returns an error (KIP-207).
    """
    request = _list_offsets({topic_partition: question}, is_committed=is_committed)
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, None),
        error_codes=lambda answer: (_offset_of(answer).error_code,),
        what=f"ListOffsets of {topic_partition}",
    )


def listed_offset(response: ListOffsetsResponse, what: str) -> int:
    """Return the offset in a response; raises BrokerError."""
    partition = _offset_of(response)
    if partition.error_code:
        raise broker_error(partition.error_code, what)
    return partition.offset


def _offset_of(response: ListOffsetsResponse) -> ListOffsetsPartitionResponse:
    return response.topics[0].partitions[0]


def _list_offsets(
    specs: Mapping[TopicPartition, int], *, is_committed: bool, timeout_ms: int = 0
) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=tuple(
            ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    ListOffsetsPartition(
                        partition_index=partition,
                        timestamp=specs[TopicPartition(topic, partition)],
                    )
                    for partition in partitions
                ),
            )
            for topic, partitions in by_topic(specs).items()
        ),
        timeout_ms=timeout_ms,
    )


# --- records


def deleting_records(
    offsets: Mapping[TopicPartition, int],
) -> ItemRequest[TopicPartition, DeleteRecordsResponse, int]:
    """Describe the request that deletes the records before offsets."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], seconds: float
    ) -> Call[DeleteRecordsResponse]:
        request = DeleteRecordsRequest(
            topics=tuple(
                DeleteRecordsTopic(
                    name=topic,
                    partitions=tuple(
                        DeleteRecordsPartition(
                            partition_index=partition,
                            offset=offsets[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in by_topic(topic_partitions).items()
            ),
            timeout_ms=int(seconds * 1000),
        )
        return Call(destination=destination, build=lambda _: (request, None), what="DeleteRecords")

    def read(
        response: DeleteRecordsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                yield (
                    topic_partition,
                    broker_error(code, f"DeleteRecords of {topic_partition}")
                    if code
                    else partition.low_watermark,
                )

    return ItemRequest(what="DeleteRecords", route=_to_leaders, build=build, read=read)


def fetch_call(topic_partition: TopicPartition, offset: int) -> Call[FetchResponse]:
    """Build the call that reads batches up to the high watermark, of all transactions."""
    request = FetchRequest(
        max_wait_ms=_FETCH_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_MAX_BYTES,
        isolation_level=_READ_UNCOMMITTED,
        topics=(
            FetchTopic(
                topic=topic_partition.topic,
                partitions=(
                    FetchPartition(
                        partition=topic_partition.partition,
                        fetch_offset=offset,
                        partition_max_bytes=_FETCH_MAX_BYTES,
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


# --- producers


def describing_producers() -> ItemRequest[
    TopicPartition, DescribeProducersResponse, tuple[ProducerState, ...]
]:
    """Describe the request for the producers of partitions."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], _seconds: float
    ) -> Call[DescribeProducersResponse]:
        request = _describe_producers(topic_partitions)
        return Call(
            destination=destination, build=lambda _: (request, None), what="DescribeProducers"
        )

    def read(
        response: DescribeProducersResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, tuple[ProducerState, ...] | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    what = f"DescribeProducers of {topic_partition}"
                    yield (
                        topic_partition,
                        refusal(partition.error_code, what, partition.error_message),
                    )
                    continue
                yield (
                    topic_partition,
                    tuple(
                        ProducerState(
                            producer_id=state.producer_id,
                            producer_epoch=state.producer_epoch,
                            last_sequence=state.last_sequence,
                            last_timestamp=state.last_timestamp,
                            coordinator_epoch=_unless_negative(state.coordinator_epoch),
                            current_transaction_start_offset=_unless_negative(
                                state.current_txn_start_offset
                            ),
                        )
                        for state in partition.active_producers
                    ),
                )

    return ItemRequest(what="DescribeProducers", route=_to_leaders, build=build, read=read)


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number


def describe_producers_call(topic_partition: TopicPartition) -> Call[DescribeProducersResponse]:
    """Build the call that lists the producers of a partition; needs READ on the topic."""
    request = _describe_producers([topic_partition])
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.topics[0].partitions[0].error_code,),
        what=f"DescribeProducers of {topic_partition}",
    )


def open_producers(response: DescribeProducersResponse, what: str) -> list[OpenProducer]:
    """Return the producers with an open transaction, oldest first; raises BrokerError."""
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise broker_error(answer.error_code, what)
    producers = [
        OpenProducer(
            ProducerIdAndEpoch(state.producer_id, state.producer_epoch),
            state.current_txn_start_offset,
            state.last_timestamp,
        )
        for state in answer.active_producers
        if state.current_txn_start_offset >= 0
    ]
    return sorted(producers, key=lambda producer: producer.start_offset)


def _describe_producers(topic_partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=tuple(
            TopicRequest(name=topic, partition_indexes=tuple(partitions))
            for topic, partitions in by_topic(topic_partitions).items()
        )
    )


# --- places


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by their topics."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in places:
        grouped.setdefault(topic, []).append(partition)
    return grouped


async def _to_leaders(
    calls: ClusterCalls, topic_partitions: Sequence[TopicPartition], deadline: float
) -> Routes[TopicPartition]:
    """Group partitions by their leaders, as of now."""
    response = await calls.call(metadata_call(list(by_topic(topic_partitions))), deadline)
    nodes = nodes_of(response)
    topics = {topic.name: topic for topic in response.topics}
    routes: dict[Destination, list[TopicPartition]] = {}
    lost: dict[TopicPartition, KafkaError] = {}
    for topic_partition in topic_partitions:
        topic = topics.get(topic_partition.topic)
        code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else topic.error_code
        leader = None
        if topic is not None and not code:
            partitions = [
                partition
                for partition in topic.partitions
                if partition.partition_index == topic_partition.partition
            ]
            if partitions:
                leader = nodes.get(partitions[0].leader_id)
                code = ErrorCode.NONE if leader else ErrorCode.LEADER_NOT_AVAILABLE
            else:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if leader is None:
            lost[topic_partition] = broker_error(code, f"Metadata of {topic_partition}")
        else:
            routes.setdefault(leader, []).append(topic_partition)
    return list(routes.items()), lost
