"""Descriptions of consumer groups, of the new protocol and of the classic one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from spark_kafka_sink.admin.cluster_calls import Call
from spark_kafka_sink.admin.group_calls import forget_group_coordinators, to_group_coordinators
from spark_kafka_sink.admin.item_requests import ItemRequest, ItemResults, request_items
from spark_kafka_sink.admin.refusal import refusal
from spark_kafka_sink.admin.values import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_TYPES,
    ConsumerGroupDescription,
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
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribedGroup as ClassicGroup,
)
from spark_kafka_sink.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from spark_kafka_sink.protocol.primitives import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls, Destination
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.protocol.messages.consumer_group_describe import Assignment
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
    outcomes = await asyncio.gather(
        *(
            _describe(
                calls,
                part,
                deadline,
                include_authorized_operations=include_authorized_operations,
            )
            for part in parts
        ),
        # All end before an error is raised: no task is left over.
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
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
        describing_new_groups(include_authorized_operations=include_authorized_operations),
        group_ids,
        deadline,
    )
    others = [name for name, error in new.errors.items() if _may_be_classic(error)]
    classic = await request_items(
        calls,
        describing_classic_groups(include_authorized_operations=include_authorized_operations),
        others,
        deadline,
    )
    descriptions: ItemResults[str, ConsumerGroupDescription] = ItemResults({}, {})
    for name in group_ids:
        if name in new.results or name in classic.results:
            group = new.results.get(name) or classic.results[name]
            coordinator = await calls.group_coordinator(name, deadline)
            descriptions.add(name, described_group(group, coordinator))
        else:
            descriptions.add(name, classic.errors.get(name) or new.errors[name])
    return descriptions


def _may_be_classic(error: KafkaError) -> bool:
    """Return whether a group may be a classic one, from the error of the request for new ones."""
    if isinstance(error, BrokerError):
        return error.code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
    return isinstance(error, UnsupportedVersionError)


def describing_new_groups(
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


def describing_classic_groups(
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
        return Call(
            destination=destination,
            build=lambda _: (request, None),
            error_codes=lambda answer: [group.error_code for group in answer.groups],
            what=what,
        )

    def read(
        response: GroupsT, _group_ids: Sequence[str]
    ) -> Iterator[tuple[str, Group | KafkaError]]:
        for group in response.groups:
            yield group.group_id, _error_of(group, f"{what} of {group.group_id!r}") or group

    return ItemRequest(
        what=what,
        route=to_group_coordinators,
        forget=forget_group_coordinators,
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


def described_group(group: Group, coordinator: Node) -> ConsumerGroupDescription | KafkaError:
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
