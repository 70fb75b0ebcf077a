"""Requests about partitions, which go to their leaders: offsets, records and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.client.topic_requests import metadata_call, nodes_of
from spark_kafka_sink.admin.cluster_calls import Call
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.refusal import refusal
from spark_kafka_sink.admin.values import ListedOffset, OffsetSpec, ProducerState
from spark_kafka_sink.errors import UnsupportedVersionError
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.delete_records import DeleteRecordsResponse
    from spark_kafka_sink.protocol.messages.describe_producers import DescribeProducersResponse
    from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsResponse

#: The first ListOffsets version that accepts each of these.
_SPEC_VERSIONS: Final[Mapping[int, int]] = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
}


def listing_offsets(
    specs: Mapping[TopicPartition, int], *, read_committed: bool
) -> ItemRequest[TopicPartition, ListOffsetsResponse, ListedOffset]:
    """Describe the request for offsets, each by an `OffsetSpec` or a timestamp."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], seconds: float
    ) -> Call[ListOffsetsResponse]:
        request = ListOffsetsRequest(
            isolation_level=int(read_committed),
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
                for topic, partitions in by_topic(topic_partitions).items()
            ),
            timeout_ms=int(seconds * 1000),
        )
        needed = max(
            _SPEC_VERSIONS.get(specs[topic_partition], 0) for topic_partition in topic_partitions
        )

        def versioned(versions: NodeApiVersions) -> tuple[ListOffsetsRequest, int | None]:
            if versions.version_for(ApiKey.LIST_OFFSETS) < needed:
                raise UnsupportedVersionError(
                    f"ListOffsets: {destination} is too old for one of the offsets requested"
                )
            return request, None

        return Call(
            destination=destination,
            build=versioned,
            error_codes=lambda answer: [p.error_code for t in answer.topics for p in t.partitions],
            what="ListOffsets",
        )

    def read(
        response: ListOffsetsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, ListedOffset | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code:
                    yield (
                        topic_partition,
                        refusal(partition.error_code, f"ListOffsets of {topic_partition}"),
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

    return ItemRequest(what="ListOffsets", route=to_leaders, build=build, read=read)


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
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [p.error_code for t in answer.topics for p in t.partitions],
            what="DeleteRecords",
        )

    def read(
        response: DeleteRecordsResponse, _topic_partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int | KafkaError]]:
        for topic in response.topics:
            for partition in topic.partitions:
                topic_partition = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                yield (
                    topic_partition,
                    refusal(code, f"DeleteRecords of {topic_partition}")
                    if code
                    else partition.low_watermark,
                )

    return ItemRequest(what="DeleteRecords", route=to_leaders, build=build, read=read)


def describing_producers() -> ItemRequest[
    TopicPartition, DescribeProducersResponse, tuple[ProducerState, ...]
]:
    """Describe the request for the producers of partitions."""

    def build(
        destination: Destination, topic_partitions: Sequence[TopicPartition], _seconds: float
    ) -> Call[DescribeProducersResponse]:
        request = DescribeProducersRequest(
            topics=tuple(
                TopicRequest(name=topic, partition_indexes=tuple(partitions))
                for topic, partitions in by_topic(topic_partitions).items()
            )
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [p.error_code for t in answer.topics for p in t.partitions],
            what="DescribeProducers",
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

    return ItemRequest(what="DescribeProducers", route=to_leaders, build=build, read=read)


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by their topics."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in places:
        grouped.setdefault(topic, []).append(partition)
    return grouped


async def to_leaders(
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
            lost[topic_partition] = refusal(code, f"Metadata of {topic_partition}")
        else:
            routes.setdefault(leader, []).append(topic_partition)
    return list(routes.items()), lost
