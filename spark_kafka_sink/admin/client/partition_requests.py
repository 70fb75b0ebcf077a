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
        destination: Destination, places: Sequence[TopicPartition], seconds: float
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
                for topic, partitions in by_topic(places).items()
            ),
            timeout_ms=int(seconds * 1000),
        )
        needed = max(_SPEC_VERSIONS.get(specs[place], 0) for place in places)

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
        response: ListOffsetsResponse, _places: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, ListedOffset | KafkaError]]:
        for topic in response.topics:
            for it in topic.partitions:
                place = TopicPartition(topic.name, it.partition_index)
                if it.error_code:
                    yield place, refusal(it.error_code, f"ListOffsets of {place}")
                    continue
                epoch = it.leader_epoch
                yield (
                    place,
                    ListedOffset(
                        offset=it.offset,
                        timestamp=it.timestamp,
                        leader_epoch=None if epoch == NO_LEADER_EPOCH else epoch,
                    ),
                )

    return ItemRequest(what="ListOffsets", route=to_leaders, build=build, read=read)


def deleting_records(
    offsets: Mapping[TopicPartition, int],
) -> ItemRequest[TopicPartition, DeleteRecordsResponse, int]:
    """Describe the request that deletes the records before offsets."""

    def build(
        destination: Destination, places: Sequence[TopicPartition], seconds: float
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
                for topic, partitions in by_topic(places).items()
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
        response: DeleteRecordsResponse, _places: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, int | KafkaError]]:
        for topic in response.topics:
            for it in topic.partitions:
                place = TopicPartition(topic.name, it.partition_index)
                code = it.error_code
                yield (
                    place,
                    refusal(code, f"DeleteRecords of {place}") if code else it.low_watermark,
                )

    return ItemRequest(what="DeleteRecords", route=to_leaders, build=build, read=read)


def describing_producers() -> ItemRequest[
    TopicPartition, DescribeProducersResponse, tuple[ProducerState, ...]
]:
    """Describe the request for the producers of partitions."""

    def build(
        destination: Destination, places: Sequence[TopicPartition], _seconds: float
    ) -> Call[DescribeProducersResponse]:
        request = DescribeProducersRequest(
            topics=tuple(
                TopicRequest(name=topic, partition_indexes=tuple(partitions))
                for topic, partitions in by_topic(places).items()
            )
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [p.error_code for t in answer.topics for p in t.partitions],
            what="DescribeProducers",
        )

    def read(
        response: DescribeProducersResponse, _places: Sequence[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, tuple[ProducerState, ...] | KafkaError]]:
        for topic in response.topics:
            for it in topic.partitions:
                place = TopicPartition(topic.name, it.partition_index)
                if it.error_code:
                    what = f"DescribeProducers of {place}"
                    yield place, refusal(it.error_code, what, it.error_message)
                    continue
                yield (
                    place,
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
                        for state in it.active_producers
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
    calls: ClusterCalls, places: Sequence[TopicPartition], deadline: float
) -> Routes[TopicPartition]:
    """Group partitions by their leaders, as of now."""
    response = await calls.call(metadata_call(list(by_topic(places))), deadline)
    nodes = nodes_of(response)
    topics = {topic.name: topic for topic in response.topics}
    routes: dict[Destination, list[TopicPartition]] = {}
    lost: dict[TopicPartition, KafkaError] = {}
    for place in places:
        topic = topics.get(place.topic)
        code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else topic.error_code
        leader = None
        if topic is not None and not code:
            found = [it for it in topic.partitions if it.partition_index == place.partition]
            if found:
                leader = nodes.get(found[0].leader_id)
                code = ErrorCode.NONE if leader else ErrorCode.LEADER_NOT_AVAILABLE
            else:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if leader is None:
            lost[place] = refusal(code, f"Metadata of {place}")
        else:
            routes.setdefault(leader, []).append(place)
    return list(routes.items()), lost
