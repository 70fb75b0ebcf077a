"""Requests about consumer groups, of the new protocol and of the classic one.

They go to the coordinators of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from spark_kafka_sink.admin.cluster_calls import (
    Call,
    GroupCoordinatorOf,
    outcomes_of,
    raised,
    refusal,
)
from spark_kafka_sink.admin.item_requests import (
    ItemRequest,
    ItemResults,
    request_items,
    split,
)
from spark_kafka_sink.admin.requests.partitions import by_topic
from spark_kafka_sink.admin.values import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_TYPES,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    MemberDescription,
    authorized_operations,
)
from spark_kafka_sink.errors import (
    BrokerError,
    DecodeError,
    KafkaError,
    UnsupportedVersionError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.group_offsets import (
    LAST_COMMIT_WITH_NAMES,
    LAST_FETCH_WITH_NAMES,
    commit_codes,
    commit_topics,
    fetched_group,
    offset_fetch_request,
)
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribedGroup as ClassicGroup,
)
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from spark_kafka_sink.protocol.primitives import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.admin.item_requests import Routes
    from spark_kafka_sink.model import Node, OffsetAndMetadata
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages.consumer_group_describe import Assignment
    from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsResponse
    from spark_kafka_sink.protocol.messages.list_groups import ListGroupsResponse
    from spark_kafka_sink.protocol.messages.offset_commit import OffsetCommitResponse
    from spark_kafka_sink.protocol.messages.offset_delete import OffsetDeleteResponse
    from spark_kafka_sink.protocol.messages.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchResponse,
    )
    from spark_kafka_sink.protocol.schema import ApiRequest

T = TypeVar("T")
#: A description of a group, of the new protocol or of the classic one.
Group: TypeAlias = DescribedGroup | ClassicGroup
#: A response with descriptions.
GroupsT = TypeVar("GroupsT", ConsumerGroupDescribeResponse, DescribeGroupsResponse)

_CLASSIC_TYPE, _CONSUMER_TYPE = GROUP_TYPES
#: The state of a group that does not exist, in the responses of older brokers.
_DEAD: Final = "Dead"
#: The reply to a request that a broker does not know the group for.
_NOT_FOUND: Final = ErrorCode.GROUP_ID_NOT_FOUND
#: A response has all members of each group.
_GROUPS_PER_REQUEST: Final = 100

# --- coordinators


@dataclass(frozen=True, slots=True)
class _ItsCoordinator(GroupCoordinatorOf):
    """The coordinator of the only group of a call, which the call's own description names."""

    def __str__(self) -> str:
        """Return the broker's description for an error, which names the group already."""
        return "its coordinator"


async def _to_coordinators(
    calls: ClusterCalls, group_ids: Sequence[str], deadline: float
) -> Routes[str]:
    """Send groups to their coordinators, several with one request.

    A group whose coordinator is not found at once has a request of its own, so that others do not
    wait for it, and an error of its own.
    """
    coordinators = await calls.group_coordinators(group_ids, deadline)
    routes: list[tuple[Destination, list[str]]] = [
        (GroupCoordinatorOf(name), [name]) for name in group_ids if name not in coordinators
    ]
    by_node: dict[Node, list[str]] = {}
    for name, node in coordinators.items():
        by_node.setdefault(node, []).append(name)
    return [*routes, *split(by_node, _GROUPS_PER_REQUEST)], {}


def _forget_coordinators(calls: ClusterCalls, group_ids: Sequence[str]) -> None:
    """Look up the coordinators of groups again when they are needed."""
    for group_id in group_ids:
        calls.look_up_again(GroupCoordinatorOf(group_id))


# --- list


async def list_groups(
    calls: ClusterCalls, deadline: float, *, states: Sequence[str], types: Sequence[str]
) -> list[ConsumerGroupListing]:
    """Return the consumer groups of all brokers, by group id; raises KafkaError."""
    request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))

    def call_for(node: Node) -> Call[ListGroupsResponse]:
        return Call(
            destination=node,
            build=lambda _: (request, None),
            error_codes=lambda answer: (answer.error_code,),
            what="ListGroups",
        )

    listed = await calls.list_all(call_for, _listed, deadline)
    # A group that moves to another broker is listed by both for a moment.
    listings = {group.group_id: group for group in listed}
    return [listings[group_id] for group_id in sorted(listings)]


def _listed(response: ListGroupsResponse, what: str) -> list[ConsumerGroupListing]:
    if response.error_code:
        raise broker_error(response.error_code, what)
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


# --- describe


async def describe_groups(
    calls: ClusterCalls,
    group_ids: Sequence[str],
    deadline: float,
    *,
    include_authorized_operations: bool,
) -> ItemResults[str, ConsumerGroupDescription]:
    """Describe groups; others do not wait for one whose coordinator is not found at once."""
    coordinators = await calls.group_coordinators(group_ids, deadline)
    parts = [[name] for name in group_ids if name not in coordinators]
    if coordinators:
        parts.append(list(coordinators))
    descriptions: ItemResults[str, ConsumerGroupDescription] = ItemResults({}, {})
    outcomes = await outcomes_of(
        _describe(
            calls, part, deadline, include_authorized_operations=include_authorized_operations
        )
        for part in parts
    )
    for outcome in map(raised, outcomes):
        descriptions.results.update(outcome.results)
        descriptions.errors.update(outcome.errors)
    return ItemResults(
        _in_order(descriptions.results, group_ids), _in_order(descriptions.errors, group_ids)
    )


def _in_order(by_id: dict[str, T], group_ids: Sequence[str]) -> dict[str, T]:
    return {name: by_id[name] for name in group_ids if name in by_id}


async def _describe(
    calls: ClusterCalls,
    group_ids: Sequence[str],
    deadline: float,
    *,
    include_authorized_operations: bool,
) -> ItemResults[str, ConsumerGroupDescription]:
    """Describe groups; those that are not of the new protocol may be classic ones."""
    new = await request_items(
        calls,
        _describing_new_groups(include_authorized_operations=include_authorized_operations),
        group_ids,
        deadline,
    )
    others = [name for name, error in new.errors.items() if _may_be_classic(error)]
    classic = await request_items(
        calls,
        _describing_classic_groups(include_authorized_operations=include_authorized_operations),
        others,
        deadline,
    )
    descriptions: ItemResults[str, ConsumerGroupDescription] = ItemResults({}, {})
    for name in group_ids:
        if name in new.results or name in classic.results:
            group = new.results.get(name) or classic.results[name]
            coordinator = await calls.group_coordinator(name, deadline)
            descriptions.add(name, _described_group(group, coordinator))
        else:
            descriptions.add(name, classic.errors.get(name) or new.errors[name])
    return descriptions


def _may_be_classic(error: KafkaError) -> bool:
    """Return whether a group may be a classic one, from the error of the request for new ones."""
    if isinstance(error, BrokerError):
        return error.code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
    return isinstance(error, UnsupportedVersionError)


def _describing_new_groups(
    *, include_authorized_operations: bool
) -> ItemRequest[str, ConsumerGroupDescribeResponse, Group]:
    """Describe the request for groups of the new protocol (KIP-848).

    A classic group is GROUP_ID_NOT_FOUND, and an older broker does not support the request.
    """
    return _describing(
        "ConsumerGroupDescribe",
        lambda group_ids: ConsumerGroupDescribeRequest(
            group_ids=group_ids, include_authorized_operations=include_authorized_operations
        ),
    )


def _describing_classic_groups(
    *, include_authorized_operations: bool
) -> ItemRequest[str, DescribeGroupsResponse, Group]:
    """Describe the request for groups of the classic protocol."""
    return _describing(
        "DescribeGroups",
        lambda group_ids: DescribeGroupsRequest(
            groups=group_ids, include_authorized_operations=include_authorized_operations
        ),
    )


def _describing(
    what: str, request_for: Callable[[tuple[str, ...]], ApiRequest[GroupsT]]
) -> ItemRequest[str, GroupsT, Group]:
    def build(destination: Destination, group_ids: Sequence[str], _seconds: float) -> Call[GroupsT]:
        request = request_for(tuple(group_ids))
        return Call(destination=destination, build=lambda _: (request, None), what=what)

    def read(
        response: GroupsT, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, Group | KafkaError]]:
        for group in response.groups:
            yield group.group_id, _error_of(group, f"{what} of {group.group_id!r}") or group

    return ItemRequest(
        what=what,
        route=_to_coordinators,
        forget=_forget_coordinators,
        build=build,
        read=read,
    )


def _error_of(group: Group, what: str) -> KafkaError | None:
    """Return the error in the answer about a group, or None for a consumer group."""
    code = group.error_code
    if isinstance(group, ClassicGroup) and not code:
        if group.group_state == _DEAD:
            code = _NOT_FOUND
        elif group.protocol_type not in {"", CONSUMER_PROTOCOL_TYPE}:
            return KafkaError(
                f"{what}: it is not a consumer group, but one of the protocol type "
                f"{group.protocol_type!r}"
            )
    return refusal(code, what, group.error_message) if code else None


def _described_group(group: Group, coordinator: Node) -> ConsumerGroupDescription | KafkaError:
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
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_places(member.assignment),
                target_assignment=_places(member.target_assignment),
                member_epoch=member.member_epoch,
            )
            for member in group.members
        ),
        coordinator=coordinator,
        authorized_operations=authorized_operations(group.authorized_operations),
    )


def _places(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
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
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=assigned_partitions(member.member_assignment),
            )
            for member in group.members
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
    partitions = []
    for _ in range(_count(reader)):
        topic = reader.read_text(reader.read_int16())
        partitions += [TopicPartition(topic, reader.read_int32()) for _ in range(_count(reader))]
    return tuple(sorted(partitions))


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
        return Call(destination=destination, build=lambda _: (request, None), what="DeleteGroups")

    def read(
        response: DeleteGroupsResponse, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, KafkaError | None]]:
        for result in response.results:
            code = result.error_code
            what = f"DeleteGroups of {result.group_id!r}"
            yield result.group_id, broker_error(code, what) if code else None

    return ItemRequest(
        what="DeleteGroups",
        route=_to_coordinators,
        forget=_forget_coordinators,
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
        destination=_ItsCoordinator(group_id),
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
        raise broker_error(code, what)
    offsets = {
        topic_partition: entry
        for topic_partition, (code, entry) in committed.items()
        if not code and entry.offset >= 0
    }
    errors: dict[TopicPartition, KafkaError] = {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, (code, _) in committed.items()
        if code
    }
    return offsets, errors


def commit_offsets_call(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Call[OffsetCommitResponse]:
    """Build the call that commits offsets of a group from outside the group.

    Kafka accepts them as long as the group has no members, and creates a group that does not exist.
    """
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=commit_topics(offsets),
    )
    return Call(
        destination=_ItsCoordinator(group_id),
        build=lambda _: (request, LAST_COMMIT_WITH_NAMES),
        error_codes=lambda answer: [code for _, code in commit_codes(answer)],
        what=f"OffsetCommit of group {group_id!r}",
        # The topics existed when they were read: waiting does not bring back one that was deleted
        # or that is in another cluster.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def refused_offsets(response: OffsetCommitResponse, what: str) -> dict[TopicPartition, BrokerError]:
    """Return the partitions whose offsets were refused, and why."""
    return {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, code in commit_codes(response)
        if code
    }


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
        destination=_ItsCoordinator(group_id),
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
        raise broker_error(response.error_code, what)
    return {
        topic_partition: broker_error(partition.error_code, f"{what} for {topic_partition}")
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
        for topic_partition in [TopicPartition(topic.name, partition.partition_index)]
    }
