"""Requests about consumer groups, which go to their coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.admin.client.partition_requests import by_topic
from spark_kafka_sink.admin.cluster_calls import Call
from spark_kafka_sink.admin.group_calls import (
    ItsCoordinator,
    forget_group_coordinators,
    to_group_coordinators,
)
from spark_kafka_sink.admin.item_requests import ItemRequest
from spark_kafka_sink.admin.refusal import refusal
from spark_kafka_sink.admin.values import CONSUMER_PROTOCOL_TYPE, ConsumerGroupListing
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.group_offsets import (
    LAST_FETCH_WITH_NAMES,
    fetched_group,
    offset_fetch_request,
)
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_kafka_sink.admin.cluster_calls import Destination
    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import Node, OffsetAndMetadata
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsResponse
    from spark_kafka_sink.protocol.messages.list_groups import ListGroupsResponse
    from spark_kafka_sink.protocol.messages.offset_delete import OffsetDeleteResponse
    from spark_kafka_sink.protocol.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchResponse,
    )


# --- list


def list_groups_call(
    node: Node, *, states: Sequence[str], types: Sequence[str]
) -> Call[ListGroupsResponse]:
    """Build the call that lists the groups that a broker coordinates."""
    request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))
    return Call(
        destination=node,
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.error_code,),
        what="ListGroups",
    )


def listed_groups(response: ListGroupsResponse, what: str) -> list[ConsumerGroupListing]:
    """Return the consumer groups in a response; raises BrokerError."""
    if response.error_code:
        raise refusal(response.error_code, what)
    return [
        ConsumerGroupListing(
            group_id=group.group_id,
            state=group.group_state,
            type=group.group_type,
            is_simple=not group.protocol_type,
        )
        for group in response.groups
        if group.protocol_type in {"", CONSUMER_PROTOCOL_TYPE}
    ]


# --- delete


def deleting_groups() -> ItemRequest[str, DeleteGroupsResponse, None]:
    """Describe the request that deletes groups."""

    def build(
        destination: Destination, group_ids: Sequence[str], _seconds: float
    ) -> Call[DeleteGroupsResponse]:
        request = DeleteGroupsRequest(groups_names=tuple(group_ids))
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [result.error_code for result in answer.results],
            what="DeleteGroups",
        )

    def read(
        response: DeleteGroupsResponse, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, KafkaError | None]]:
        for result in response.results:
            code = result.error_code
            what = f"DeleteGroups of {result.group_id!r}"
            yield result.group_id, refusal(code, what) if code else None

    return ItemRequest(
        what="DeleteGroups",
        route=to_group_coordinators,
        forget=forget_group_coordinators,
        build=build,
        read=read,
    )


# --- offsets


def fetch_offsets_call(
    group_id: str, topic_partitions: Sequence[TopicPartition] | None, *, require_stable: bool
) -> Call[OffsetFetchResponse]:
    """Build the call for the committed offsets of a group: of some partitions, or of all."""

    def build(versions: NodeApiVersions) -> tuple[OffsetFetchRequest, int | None]:
        version = versions.version_for(ApiKey.OFFSET_FETCH, LAST_FETCH_WITH_NAMES)
        request = offset_fetch_request(
            group_id, topic_partitions, version, require_stable=require_stable
        )
        return request, LAST_FETCH_WITH_NAMES

    def codes(response: OffsetFetchResponse) -> list[int]:
        code, committed = fetched_group(response)
        return [code, *(error_code for error_code, _ in committed.values())]

    return Call(
        destination=ItsCoordinator(group_id),
        build=build,
        error_codes=codes,
        what=f"OffsetFetch of group {group_id!r}",
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def fetched_offsets(
    response: OffsetFetchResponse, what: str
) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, KafkaError]]:
    """Return the committed offsets in a response, and the errors of other partitions.

    Raises BrokerError for an error of the group.
    """
    code, committed = fetched_group(response)
    if code:
        raise refusal(code, what)
    offsets = {
        topic_partition: entry
        for topic_partition, (code, entry) in committed.items()
        if not code and entry.offset >= 0
    }
    errors: dict[TopicPartition, KafkaError] = {
        topic_partition: refusal(code, f"{what} for {topic_partition}")
        for topic_partition, (code, _) in committed.items()
        if code
    }
    return offsets, errors


def delete_offsets_call(
    group_id: str, topic_partitions: Sequence[TopicPartition]
) -> Call[OffsetDeleteResponse]:
    """Build the call that deletes committed offsets of a group."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(
                    OffsetDeleteRequestPartition(partition_index=partition)
                    for partition in partitions
                ),
            )
            for topic, partitions in by_topic(topic_partitions).items()
        ),
    )
    return Call(
        destination=ItsCoordinator(group_id),
        build=lambda _: (request, None),
        error_codes=lambda answer: [
            answer.error_code,
            *(partition.error_code for topic in answer.topics for partition in topic.partitions),
        ],
        what=f"OffsetDelete of group {group_id!r}",
        # The topic may have been deleted, and that is why its offset is to be.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def undeleted_offsets(
    response: OffsetDeleteResponse, what: str
) -> dict[TopicPartition, KafkaError]:
    """Return the partitions whose offsets were not deleted, and why.

    Raises BrokerError for an error of the group.
    """
    if response.error_code:
        raise refusal(response.error_code, what)
    return {
        topic_partition: refusal(partition.error_code, f"{what} for {topic_partition}")
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
        for topic_partition in [TopicPartition(topic.name, partition.partition_index)]
    }
