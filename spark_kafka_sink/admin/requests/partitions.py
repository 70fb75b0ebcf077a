"""Requests about partitions, which go to their leaders: offsets, records and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import Call, LeaderOf, error_in, raise_for_code
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.requests.topics import metadata_call, nodes_of
from spark_kafka_sink.admin.transaction_values import OpenProducer
from spark_kafka_sink.admin.values import ListedOffset, OffsetSpec, ProducerState
from spark_kafka_sink.errors import KafkaError, UnsupportedVersionError
from spark_kafka_sink.model import NO_LEADER_EPOCH, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages import (
    delete_records,
    describe_producers,
    fetch,
    list_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions

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
) -> ItemRequest[TopicPartition, list_offsets.ListOffsetsResponse, ListedOffset]:
    """Describe the request for offsets, each by an `OffsetSpec` or a timestamp."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], seconds: float
    ) -> Call[list_offsets.ListOffsetsResponse]:
        wanted = {topic_partition: specs[topic_partition] for topic_partition in topic_partitions}
        request = _list_offsets(wanted, is_committed=is_committed, timeout_ms=int(seconds * 1000))
        needed = max(_SPEC_VERSIONS.get(spec, 0) for spec in wanted.values())

        def versioned(
            versions: NodeApiVersions,
        ) -> tuple[list_offsets.ListOffsetsRequest, int | None]:
            if versions.version_for(ApiKey.LIST_OFFSETS) < needed:
                raise UnsupportedVersionError(
                    f"ListOffsets: {destination} is too old for one of the offsets requested"
                )
            return request, None

        return Call(destination, versioned, "ListOffsets")

    def read(
        response: list_offsets.ListOffsetsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, ListedOffset | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                epoch = partition.leader_epoch
                yield (
                    topic_partition,
                    error_in(partition.error_code, f"ListOffsets of {topic_partition}")
                    or ListedOffset(
                        offset=partition.offset,
                        timestamp=partition.timestamp,
                        leader_epoch=None if epoch == NO_LEADER_EPOCH else epoch,
                    ),
                )

    return ItemRequest(what="ListOffsets", route=_to_leaders, build=build, read=read)


def offset_call(
    topic_partition: TopicPartition, question: int, *, is_committed: bool = False
) -> Call[list_offsets.ListOffsetsResponse]:
    """Build the call for a log's start (EARLIEST_TIMESTAMP) or end (LATEST_TIMESTAMP).

    The end is the high watermark or, with `is_committed`, the last stable offset, where
    read_committed consumers wait. This uses ListOffsets rather than the offsets in a Fetch
    response: a new leader's high watermark may lag behind what its predecessor has acknowledged,
    and until it has caught up, ListOffsets returns an error (KIP-207).
    """
    return Call(
        LeaderOf(topic_partition),
        _list_offsets({topic_partition: question}, is_committed=is_committed),
        f"ListOffsets of {topic_partition}",
        lambda answer: (_offset_of(answer).error_code,),
    )


def listed_offset(response: list_offsets.ListOffsetsResponse, what: str) -> int:
    """Return the offset in a response; raises BrokerError."""
    partition = _offset_of(response)
    raise_for_code(partition.error_code, what)
    return partition.offset


def _offset_of(
    response: list_offsets.ListOffsetsResponse,
) -> list_offsets.ListOffsetsPartitionResponse:
    return response.topics[0].partitions[0]


def _list_offsets(
    specs: Mapping[TopicPartition, int], *, is_committed: bool, timeout_ms: int = 0
) -> list_offsets.ListOffsetsRequest:
    return list_offsets.ListOffsetsRequest(
        isolation_level=_READ_COMMITTED if is_committed else _READ_UNCOMMITTED,
        topics=tuple(
            list_offsets.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    list_offsets.ListOffsetsPartition(
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
) -> ItemRequest[TopicPartition, delete_records.DeleteRecordsResponse, int]:
    """Describe the request that deletes the records before offsets."""
    what = "DeleteRecords"

    def request(
        topic_partitions: Sequence[TopicPartition], timeout_ms: int
    ) -> delete_records.DeleteRecordsRequest:
        return delete_records.DeleteRecordsRequest(
            topics=tuple(
                delete_records.DeleteRecordsTopic(
                    name=topic,
                    partitions=tuple(
                        delete_records.DeleteRecordsPartition(
                            partition_index=partition,
                            offset=offsets[TopicPartition(topic, partition)],
                        )
                        for partition in partitions
                    ),
                )
                for topic, partitions in by_topic(topic_partitions).items()
            ),
            timeout_ms=timeout_ms,
        )

    def read(
        response: delete_records.DeleteRecordsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                error = error_in(partition.error_code, f"{what} of {topic_partition}")
                yield topic_partition, error or partition.low_watermark

    return ItemRequest.of(what, request, read, route=_to_leaders)


def fetch_call(
    topic_partition: TopicPartition, offset: int, *, waits: bool = True
) -> Call[fetch.FetchResponse]:
    """Build the call that reads batches up to the high watermark, of all transactions.

    If it `waits`, the broker delays its answer for a moment while there are none.
    """
    partition = fetch.FetchPartition(
        partition=topic_partition.partition,
        fetch_offset=offset,
        partition_max_bytes=_FETCH_MAX_BYTES,
    )
    request = fetch.FetchRequest(
        max_wait_ms=_FETCH_MAX_WAIT_MS if waits else 0,
        min_bytes=1,
        max_bytes=_FETCH_MAX_BYTES,
        isolation_level=_READ_UNCOMMITTED,
        topics=(fetch.FetchTopic(topic=topic_partition.topic, partitions=(partition,)),),
    )
    return Call(
        LeaderOf(topic_partition),
        request,
        f"Fetch of {topic_partition} from offset {offset}",
        lambda answer: (_fetch_error(answer),),
        max_version=_LAST_FETCH_WITH_NAMES,
    )


def fetched_records(response: fetch.FetchResponse, what: str) -> Buffer:
    """Return the batches of the only partition; raises BrokerError."""
    raise_for_code(_fetch_error(response), what)
    records = response.responses[0].partitions[0].records
    if records is None:
        return b""
    return b"".join(records) if isinstance(records, list | tuple) else records


def _fetch_error(response: fetch.FetchResponse) -> int:
    """Return the error code of the only partition, or that of a response that failed as a whole."""
    return response.error_code or response.responses[0].partitions[0].error_code


# --- producers


def describing_producers() -> ItemRequest[
    TopicPartition, describe_producers.DescribeProducersResponse, tuple[ProducerState, ...]
]:
    """Describe the request for the producers of partitions."""
    what = "DescribeProducers"

    def read(
        response: describe_producers.DescribeProducersResponse,
        _topic_partitions: Sequence[TopicPartition],
    ) -> Iterator[tuple[TopicPartition, tuple[ProducerState, ...] | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                error = error_in(
                    partition.error_code, f"{what} of {topic_partition}", partition.error_message
                )
                yield topic_partition, error or tuple(map(_state, partition.active_producers))

    return ItemRequest.of(
        what,
        lambda topic_partitions, _: _describe_producers(topic_partitions),
        read,
        route=_to_leaders,
    )


def _state(state: describe_producers.ProducerState) -> ProducerState:
    return ProducerState(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        coordinator_epoch=_unless_negative(state.coordinator_epoch),
        current_transaction_start_offset=_unless_negative(state.current_txn_start_offset),
    )


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number


def describe_producers_call(
    topic_partition: TopicPartition,
) -> Call[describe_producers.DescribeProducersResponse]:
    """Build the call that lists the producers of a partition; needs READ on the topic."""
    return Call(
        LeaderOf(topic_partition),
        _describe_producers([topic_partition]),
        f"DescribeProducers of {topic_partition}",
        lambda answer: (answer.topics[0].partitions[0].error_code,),
    )


def open_producers(
    response: describe_producers.DescribeProducersResponse, what: str
) -> list[OpenProducer]:
    """Return the producers with an open transaction, oldest first; raises BrokerError."""
    answer = response.topics[0].partitions[0]
    raise_for_code(answer.error_code, what)
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


def _describe_producers(
    topic_partitions: Iterable[TopicPartition],
) -> describe_producers.DescribeProducersRequest:
    return describe_producers.DescribeProducersRequest(
        topics=tuple(
            describe_producers.TopicRequest(name=topic, partition_indexes=tuple(partitions))
            for topic, partitions in by_topic(topic_partitions).items()
        )
    )


# --- leaders


def by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by their topics."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in topic_partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


async def _to_leaders(
    calls: ClusterCalls, topic_partitions: Sequence[TopicPartition], deadline: float
) -> Routes[TopicPartition]:
    """Group partitions by their leaders, as of now."""
    response = await calls.call(metadata_call(list(by_topic(topic_partitions))), deadline)
    nodes = nodes_of(response.brokers)
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
