"""Requests about consumer groups, which go to their coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.client.partition_requests import by_topic
from spark_kafka_sink.admin.cluster_calls import Call, GroupCoordinatorOf
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes
from spark_kafka_sink.admin.refusal import refusal
from spark_kafka_sink.admin.values.acls import authorized_operations
from spark_kafka_sink.admin.values.groups import (
    ConsumerGroupDescription,
    ConsumerGroupListing,
    MemberDescription,
)
from spark_kafka_sink.errors import DecodeError, KafkaError
from spark_kafka_sink.model import NO_LEADER_EPOCH, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.group_offsets import (
    LAST_FETCH_WITH_NAMES,
    fetched_group,
    offset_fetch_request,
)
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafka_sink.protocol.primitives import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.consumer_group_describe import (
        Assignment,
        ConsumerGroupDescribeResponse,
    )
    from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsResponse
    from spark_kafka_sink.protocol.messages.describe_groups import (
        DescribedGroup as ClassicGroup,
    )
    from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsResponse
    from spark_kafka_sink.protocol.messages.list_groups import ListGroupsResponse
    from spark_kafka_sink.protocol.messages.offset_delete import OffsetDeleteResponse
    from spark_kafka_sink.protocol.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchResponse,
    )

#: The protocol type of groups of consumers, as opposed to those of Kafka Connect and others.
_CONSUMER: Final = "consumer"
_CLASSIC_TYPE: Final = "Classic"
_CONSUMER_TYPE: Final = "Consumer"
#: The state of a group that does not exist, in the responses of older brokers.
_DEAD: Final = "Dead"
#: The reply to a request that a broker does not know the group for.
_NOT_FOUND: Final = ErrorCode.GROUP_ID_NOT_FOUND


async def _to_coordinators(
    _calls: ClusterCalls, group_ids: Sequence[str], _deadline: float
) -> Routes[str]:
    """Send a request for each group to its coordinator."""
    return [(GroupCoordinatorOf(group_id), [group_id]) for group_id in group_ids], {}


def _forget_coordinators(calls: ClusterCalls, group_ids: Sequence[str]) -> None:
    for group_id in group_ids:
        calls.look_up_again(GroupCoordinatorOf(group_id))


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
        what=f"ListGroups of {node}",
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
        if group.protocol_type in {"", _CONSUMER}
    ]


# --- describe


def describing_new_groups(
    *, include_authorized_operations: bool
) -> ItemRequest[str, ConsumerGroupDescribeResponse, DescribedGroup]:
    """Describe the request for groups of the new protocol (KIP-848).

    A classic group is GROUP_ID_NOT_FOUND, and an older broker does not support the request.
    """

    def build(
        destination: Destination, group_ids: Sequence[str], _seconds: float
    ) -> Call[ConsumerGroupDescribeResponse]:
        request = ConsumerGroupDescribeRequest(
            group_ids=tuple(group_ids), include_authorized_operations=include_authorized_operations
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [it.error_code for it in answer.groups],
            what="ConsumerGroupDescribe",
        )

    def read(
        response: ConsumerGroupDescribeResponse, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, DescribedGroup | KafkaError]]:
        for it in response.groups:
            what = f"ConsumerGroupDescribe of {it.group_id!r}"
            code = it.error_code
            yield it.group_id, refusal(code, what, it.error_message) if code else it

    return ItemRequest(
        what="ConsumerGroupDescribe",
        route=_to_coordinators,
        forget=_forget_coordinators,
        build=build,
        read=read,
    )


def describing_classic_groups(
    *, include_authorized_operations: bool
) -> ItemRequest[str, DescribeGroupsResponse, ClassicGroup]:
    """Describe the request for groups of the classic protocol."""

    def build(
        destination: Destination, group_ids: Sequence[str], _seconds: float
    ) -> Call[DescribeGroupsResponse]:
        request = DescribeGroupsRequest(
            groups=tuple(group_ids), include_authorized_operations=include_authorized_operations
        )
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [it.error_code for it in answer.groups],
            what="DescribeGroups",
        )

    def read(
        response: DescribeGroupsResponse, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, ClassicGroup | KafkaError]]:
        for it in response.groups:
            what = f"DescribeGroups of {it.group_id!r}"
            code = it.error_code
            if not code and it.group_state == _DEAD:
                code = _NOT_FOUND
            if code:
                yield it.group_id, refusal(code, what, it.error_message)
            elif it.protocol_type not in {"", _CONSUMER}:
                yield (
                    it.group_id,
                    KafkaError(
                        f"{what}: it is not a consumer group, but one of the protocol type "
                        f"{it.protocol_type!r}"
                    ),
                )
            else:
                yield it.group_id, it

    return ItemRequest(
        what="DescribeGroups",
        route=_to_coordinators,
        forget=_forget_coordinators,
        build=build,
        read=read,
    )


def described_group(
    group: DescribedGroup | ClassicGroup, coordinator: Node
) -> ConsumerGroupDescription | KafkaError:
    """Convert the description of a group, or return the error if it cannot be read."""
    if isinstance(group, DescribedGroup):
        return _new_group(group, coordinator)
    try:
        return _classic_group(group, coordinator)
    except DecodeError as error:
        return error


def _new_group(group: DescribedGroup, coordinator: Node) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type=_CONSUMER_TYPE,
        is_simple=False,
        partition_assignor=group.assignor_name,
        members=tuple(
            MemberDescription(
                member_id=it.member_id,
                group_instance_id=it.instance_id,
                client_id=it.client_id,
                host=it.client_host,
                assignment=_places(it.assignment),
                target_assignment=_places(it.target_assignment),
                member_epoch=it.member_epoch,
            )
            for it in group.members
        ),
        coordinator=coordinator,
        authorized_operations=authorized_operations(group.authorized_operations),
    )


def _places(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(it.topic_name, partition)
            for it in assignment.topic_partitions
            for partition in it.partitions
        )
    )


def _classic_group(group: ClassicGroup, coordinator: Node) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type=_CLASSIC_TYPE,
        is_simple=not group.protocol_type,
        partition_assignor=group.protocol_data,
        members=tuple(
            MemberDescription(
                member_id=it.member_id,
                group_instance_id=it.group_instance_id,
                client_id=it.client_id,
                host=it.client_host,
                assignment=assigned_partitions(it.member_assignment),
            )
            for it in group.members
        ),
        coordinator=coordinator,
        authorized_operations=authorized_operations(group.authorized_operations),
    )


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Read the assignment that consumers store in a classic group (ConsumerProtocolAssignment).

    Only the part that all versions have in common is read. Raises DecodeError.
    """
    if not assignment:
        return ()
    reader = Reader(assignment)
    version = reader.read_int16()
    if version < 0:
        raise DecodeError(f"an assignment of a consumer has the version {version}")
    found = []
    for _ in range(_count(reader)):
        topic = reader.read_text(reader.read_int16())
        found += [TopicPartition(topic, reader.read_int32()) for _ in range(_count(reader))]
    return tuple(sorted(found))


def _count(reader: Reader) -> int:
    count = reader.read_int32()
    if count < 0:
        raise DecodeError(f"an assignment of a consumer has an array of {count} elements")
    reader.count_elements(count)
    return count


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
            error_codes=lambda answer: [it.error_code for it in answer.results],
            what="DeleteGroups",
        )

    def read(
        response: DeleteGroupsResponse, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, KafkaError | None]]:
        for it in response.results:
            code = it.error_code
            what = f"DeleteGroups of {it.group_id!r}"
            yield it.group_id, refusal(code, what) if code else None

    return ItemRequest(
        what="DeleteGroups",
        route=_to_coordinators,
        forget=_forget_coordinators,
        build=build,
        read=read,
    )


# --- offsets


def fetch_offsets_call(
    group_id: str, places: Sequence[TopicPartition] | None, *, require_stable: bool
) -> Call[OffsetFetchResponse]:
    """Build the call for the committed offsets of a group: of some partitions, or of all."""

    def build(versions: NodeApiVersions) -> tuple[OffsetFetchRequest, int | None]:
        version = versions.version_for(ApiKey.OFFSET_FETCH, LAST_FETCH_WITH_NAMES)
        request = offset_fetch_request(group_id, places, version, require_stable=require_stable)
        return request, LAST_FETCH_WITH_NAMES

    def codes(response: OffsetFetchResponse) -> list[int]:
        code, committed = fetched_group(response)
        return [code, *(found for found, _ in committed.values())]

    return Call(
        destination=GroupCoordinatorOf(group_id),
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
    found = {place: it for place, (code, it) in committed.items() if not code and it.offset >= 0}
    errors: dict[TopicPartition, KafkaError] = {
        place: refusal(code, f"{what} for {place}")
        for place, (code, _) in committed.items()
        if code
    }
    return found, errors


def offset_of(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset with the metadata that it has if only the offset was given.

    Raises ValueError for a negative offset, such as that of an OffsetSpec: brokers accept it, and
    the group has no offset then.
    """
    if not isinstance(offset, OffsetAndMetadata):
        offset = OffsetAndMetadata(offset, NO_LEADER_EPOCH, "")
    if offset.offset < 0:
        raise ValueError(
            f"{offset.offset} is not an offset that can be committed: list_offsets returns the "
            "first and the last one of a partition"
        )
    return offset


def delete_offsets_call(
    group_id: str, places: Sequence[TopicPartition]
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
            for topic, partitions in by_topic(places).items()
        ),
    )
    return Call(
        destination=GroupCoordinatorOf(group_id),
        build=lambda _: (request, None),
        error_codes=lambda answer: [
            answer.error_code,
            *(it.error_code for topic in answer.topics for it in topic.partitions),
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
        place: refusal(it.error_code, f"{what} for {place}")
        for topic in response.topics
        for it in topic.partitions
        if it.error_code
        for place in [TopicPartition(topic.name, it.partition_index)]
    }
