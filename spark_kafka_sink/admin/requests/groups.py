"""Requests about consumer groups, of the new protocol and of the classic one.

They go to the coordinators of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from spark_kafka_sink.admin import values
from spark_kafka_sink.admin.cluster_calls import (
    Call,
    GroupCoordinatorOf,
    error_in,
    outcomes_of,
    raise_for_code,
    raised,
)
from spark_kafka_sink.admin.item_requests import ItemRequest, ItemResults, request_items, split
from spark_kafka_sink.admin.requests.partitions import by_topic
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaError, UnsupportedVersionError
from spark_kafka_sink.model import Node, OffsetAndMetadata, TopicPartition
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
from spark_kafka_sink.protocol.messages import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    list_groups,
    offset_commit,
    offset_delete,
)
from spark_kafka_sink.protocol.primitives import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.admin.item_requests import Routes
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.messages import offset_fetch
    from spark_kafka_sink.protocol.schema import ApiRequest

T = TypeVar("T")
#: A description of a group, of the new protocol or of the classic one.
Group: TypeAlias = consumer_group_describe.DescribedGroup | describe_groups.DescribedGroup
#: A response with descriptions.
GroupsT = TypeVar(
    "GroupsT",
    consumer_group_describe.ConsumerGroupDescribeResponse,
    describe_groups.DescribeGroupsResponse,
)

_CLASSIC_TYPE, _CONSUMER_TYPE = values.GROUP_TYPES
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


async def list_all_groups(
    calls: ClusterCalls, deadline: float, *, states: Sequence[str], types: Sequence[str]
) -> list[values.ConsumerGroupListing]:
    """Return the consumer groups of all brokers, by group id; raises KafkaError."""
    request = list_groups.ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))

    def call_for(node: Node) -> Call[list_groups.ListGroupsResponse]:
        return Call(node, request, "ListGroups", lambda answer: (answer.error_code,))

    listed = await calls.list_all(call_for, _listed, deadline)
    # A group that moves to another broker is listed by both for a moment.
    listings = {group.group_id: group for group in listed}
    return [listings[group_id] for group_id in sorted(listings)]


def _listed(
    response: list_groups.ListGroupsResponse, what: str
) -> list[values.ConsumerGroupListing]:
    raise_for_code(response.error_code, what)
    return [
        values.ConsumerGroupListing(
            group_id=group.group_id,
            state=group.group_state,
            type=group.group_type,
            is_simple=not group.protocol_type,
        )
        for group in response.groups
        if group.protocol_type in {"", values.CONSUMER_PROTOCOL_TYPE}
    ]


# --- describe


async def describe_all_groups(
    calls: ClusterCalls,
    group_ids: Sequence[str],
    deadline: float,
    *,
    include_authorized_operations: bool,
) -> ItemResults[str, values.ConsumerGroupDescription]:
    """Describe groups; others do not wait for one whose coordinator is not found at once."""
    coordinators = await calls.group_coordinators(group_ids, deadline)
    parts = [[name] for name in group_ids if name not in coordinators]
    if coordinators:
        parts.append(list(coordinators))
    descriptions: ItemResults[str, values.ConsumerGroupDescription] = ItemResults({}, {})
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
) -> ItemResults[str, values.ConsumerGroupDescription]:
    """Describe groups; those that are not of the new protocol (KIP-848) may be classic ones."""
    # A classic group is GROUP_ID_NOT_FOUND here, and an older broker does not support the request.
    describing_new = _describing(
        "ConsumerGroupDescribe",
        lambda names: consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=names, include_authorized_operations=include_authorized_operations
        ),
    )
    new = await request_items(calls, describing_new, group_ids, deadline)
    others = [name for name, error in new.errors.items() if _may_be_classic(error)]
    describing_classic = _describing(
        "DescribeGroups",
        lambda names: describe_groups.DescribeGroupsRequest(
            groups=names, include_authorized_operations=include_authorized_operations
        ),
    )
    classic = await request_items(calls, describing_classic, others, deadline)
    descriptions: ItemResults[str, values.ConsumerGroupDescription] = ItemResults({}, {})
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


def _describing(
    what: str, request_for: Callable[[tuple[str, ...]], ApiRequest[GroupsT]]
) -> ItemRequest[str, GroupsT, Group]:
    return ItemRequest.of(
        what,
        lambda group_ids, _: request_for(tuple(group_ids)),
        lambda response, _: (
            (group.group_id, _error_of(group, f"{what} of {group.group_id!r}") or group)
            for group in response.groups
        ),
        route=_to_coordinators,
        forget=_forget_coordinators,
    )


def _error_of(group: Group, what: str) -> KafkaError | None:
    """Return the error in the answer about a group, or None for a consumer group."""
    code = group.error_code
    if isinstance(group, describe_groups.DescribedGroup) and not code:
        if group.group_state == _DEAD:
            code = _NOT_FOUND
        elif group.protocol_type not in {"", values.CONSUMER_PROTOCOL_TYPE}:
            return KafkaError(
                f"{what}: it is not a consumer group, but one of the protocol type "
                f"{group.protocol_type!r}"
            )
    return error_in(code, what, group.error_message)


def _described_group(
    group: Group, coordinator: Node
) -> values.ConsumerGroupDescription | KafkaError:
    """Convert the description of a group, or return the error if it cannot be read."""
    if isinstance(group, consumer_group_describe.DescribedGroup):
        return _new_group(group, coordinator)
    try:
        return _classic_group(group, coordinator)
    except DecodeError as error:
        return error


def _new_group(
    group: consumer_group_describe.DescribedGroup, coordinator: Node
) -> values.ConsumerGroupDescription:
    return values.ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type=_CONSUMER_TYPE,
        is_simple=False,
        partition_assignor=group.assignor_name,
        members=tuple(
            values.MemberDescription(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_partitions(member.assignment),
                target_assignment=_partitions(member.target_assignment),
                member_epoch=member.member_epoch,
            )
            for member in group.members
        ),
        coordinator=coordinator,
        authorized_operations=values.authorized_operations(group.authorized_operations),
    )


def _partitions(assignment: consumer_group_describe.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        )
    )


def _classic_group(
    group: describe_groups.DescribedGroup, coordinator: Node
) -> values.ConsumerGroupDescription:
    return values.ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type=_CLASSIC_TYPE,
        is_simple=not group.protocol_type,
        partition_assignor=group.protocol_data,
        members=tuple(
            values.MemberDescription(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=assigned_partitions(member.member_assignment),
            )
            for member in group.members
        ),
        coordinator=coordinator,
        authorized_operations=values.authorized_operations(group.authorized_operations),
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


def deleting_groups() -> ItemRequest[str, delete_groups.DeleteGroupsResponse, None]:
    """Describe the request that deletes groups."""
    what = "DeleteGroups"
    return ItemRequest.of(
        what,
        lambda group_ids, _: delete_groups.DeleteGroupsRequest(groups_names=tuple(group_ids)),
        lambda response, _: (
            (
                result.group_id,
                error_in(result.error_code, f"{what} of {result.group_id!r}", result.error_message),
            )
            for result in response.results
        ),
        route=_to_coordinators,
        forget=_forget_coordinators,
    )


# --- offsets


def fetch_offsets_call(
    group_id: str, topic_partitions: Sequence[TopicPartition] | None, *, require_stable: bool
) -> Call[offset_fetch.OffsetFetchResponse]:
    """Build the call for the committed offsets of a group: of some partitions, or of all."""

    def build(versions: NodeApiVersions) -> tuple[offset_fetch.OffsetFetchRequest, int | None]:
        version = versions.version_for(ApiKey.OFFSET_FETCH, LAST_FETCH_WITH_NAMES)
        request = offset_fetch_request(
            group_id, topic_partitions, version, require_stable=require_stable
        )
        return request, LAST_FETCH_WITH_NAMES

    def codes(response: offset_fetch.OffsetFetchResponse) -> list[int]:
        code, committed = fetched_group(response)
        return [code, *(error_code for error_code, _ in committed.values())]

    return Call(
        _ItsCoordinator(group_id),
        build,
        f"OffsetFetch of group {group_id!r}",
        codes,
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def fetched_offsets(
    response: offset_fetch.OffsetFetchResponse, what: str
) -> ItemResults[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets in a response, and the errors of other partitions.

    Raises BrokerError for an error of the group.
    """
    code, committed = fetched_group(response)
    raise_for_code(code, what)
    results: ItemResults[TopicPartition, OffsetAndMetadata] = ItemResults({}, {})
    for topic_partition, (code, entry) in committed.items():
        if code or entry.offset >= 0:
            results.add(topic_partition, error_in(code, f"{what} for {topic_partition}") or entry)
    return results


def commit_offsets_call(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Call[offset_commit.OffsetCommitResponse]:
    """Build the call that commits offsets of a group from outside the group.

    Kafka accepts them as long as the group has no members, and creates a group that does not exist.
    """
    request = offset_commit.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=commit_topics(offsets),
    )
    return Call(
        _ItsCoordinator(group_id),
        request,
        f"OffsetCommit of group {group_id!r}",
        lambda answer: [code for _, code in commit_codes(answer)],
        # The topics existed when they were read: waiting does not bring back one that was deleted
        # or that is in another cluster.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        max_version=LAST_COMMIT_WITH_NAMES,
    )


def refused_offsets(
    response: offset_commit.OffsetCommitResponse, what: str
) -> dict[TopicPartition, BrokerError]:
    """Return the partitions whose offsets were refused, and why."""
    return _errors(commit_codes(response), what)


def delete_offsets_call(
    group_id: str, topic_partitions: Sequence[TopicPartition]
) -> Call[offset_delete.OffsetDeleteResponse]:
    """Build the call that deletes committed offsets of a group."""
    request = offset_delete.OffsetDeleteRequest(
        group_id=group_id,
        topics=tuple(
            offset_delete.OffsetDeleteRequestTopic(
                name=topic,
                partitions=tuple(
                    offset_delete.OffsetDeleteRequestPartition(partition_index=partition)
                    for partition in partitions
                ),
            )
            for topic, partitions in by_topic(topic_partitions).items()
        ),
    )
    return Call(
        _ItsCoordinator(group_id),
        request,
        f"OffsetDelete of group {group_id!r}",
        lambda answer: [answer.error_code, *(code for _, code in _deletion_codes(answer))],
        # The topic may have been deleted, and that is why its offset is to be.
        accepts=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    )


def undeleted_offsets(
    response: offset_delete.OffsetDeleteResponse, what: str
) -> dict[TopicPartition, BrokerError]:
    """Return the partitions whose offsets were not deleted, and why.

    Raises BrokerError for an error of the group.
    """
    raise_for_code(response.error_code, what)
    return _errors(_deletion_codes(response), what)


def _deletion_codes(
    response: offset_delete.OffsetDeleteResponse,
) -> Iterator[tuple[TopicPartition, int]]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code


def _errors(
    codes: Iterable[tuple[TopicPartition, int]], what: str
) -> dict[TopicPartition, BrokerError]:
    return {
        topic_partition: broker_error(code, f"{what} for {topic_partition}")
        for topic_partition, code in codes
        if code
    }
