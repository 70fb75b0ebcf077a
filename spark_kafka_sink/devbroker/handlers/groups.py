"""Groups for administrators: DescribeGroups, ConsumerGroupDescribe, ListGroups and DeleteGroups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.classic_group import GroupState
from spark_kafka_sink.devbroker.groups.group_records import partitions_by_topic
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import consumer_group_describe as consumer
from spark_kafka_sink.protocol.messages import describe_groups as classic
from spark_kafka_sink.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from spark_kafka_sink.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from spark_kafka_sink.protocol.messages.metadata import UNKNOWN_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_kafka_sink.devbroker.groups.consumer_group import (
        ConsumerGroup,
        ConsumerMember,
        TopicIdPartition,
    )

_CONSUMER_MEMBER = 1
_FIRST_VERSION_WITH_OPERATIONS = 3
_FIRST_VERSION_WITH_MESSAGES = 6
#: Of ListGroups.
_FIRST_VERSION_WITH_STATES = 4
_FIRST_VERSION_WITH_TYPES = 5


@handles(classic.DescribeGroupsRequest)
def describe_groups(
    context: RequestContext, request: classic.DescribeGroupsRequest
) -> classic.DescribeGroupsResponse:
    """Describe groups, their members and assignments (DescribeGroups 0-6).

    A group that does not exist is Dead, from version 6 on with GROUP_ID_NOT_FOUND (KIP-1043). Only
    stable groups have member metadata and assignments. A group of the new consumer protocol
    (KIP-848) gets the same answer as one that does not exist: ConsumerGroupDescribe describes it.
    """
    asked = (
        request.include_authorized_operations and context.version >= _FIRST_VERSION_WITH_OPERATIONS
    )
    return classic.DescribeGroupsResponse(
        groups=context.each_result(
            classic.DescribedGroup,
            "group_id",
            request.groups,
            lambda group_id: _describe_classic(
                context, group_id, _operations(context, group_id, asked=asked)
            ),
        )
    )


def _operations(context: RequestContext, group_id: str, *, asked: bool) -> int:
    if not asked:
        return UNKNOWN_OPERATIONS
    return context.authorized_operations(ResourceType.GROUP, group_id)


def _describe_classic(
    context: RequestContext, group_id: str, allowed: int
) -> classic.DescribedGroup:
    context.check_right(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    context.cluster.check_group_coordinator(group_id)
    group = context.cluster.groups.find_classic(group_id)
    if group is None:
        # GROUP_ID_NOT_FOUND came with the field for messages.
        known = context.version >= _FIRST_VERSION_WITH_MESSAGES
        return classic.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.NONE,
            error_message=f"Group {group_id} not found." if known else None,
            group_id=group_id,
            group_state=str(GroupState.DEAD),
            protocol_type="",
            protocol_data="",
            members=(),
            authorized_operations=allowed,
        )
    is_stable = group.state is GroupState.STABLE
    protocol = (group.protocol_name or "") if is_stable else ""
    return classic.DescribedGroup(
        group_id=group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        authorized_operations=allowed,
        members=tuple(
            classic.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ),
    )


@handles(consumer.ConsumerGroupDescribeRequest)
def consumer_group_describe(
    context: RequestContext, request: consumer.ConsumerGroupDescribeRequest
) -> consumer.ConsumerGroupDescribeResponse:
    """Describe groups of the new consumer protocol (ConsumerGroupDescribe 0-1, KIP-848).

    A group that does not exist, or uses the classic protocol, gets GROUP_ID_NOT_FOUND.
    One with partitions of a topic that the client may not describe gets TOPIC_AUTHORIZATION_FAILED.
    """
    return consumer.ConsumerGroupDescribeResponse(
        groups=context.each_result(
            consumer.DescribedGroup,
            "group_id",
            request.group_ids,
            lambda group_id: _describe_consumer(
                context,
                group_id,
                _operations(context, group_id, asked=request.include_authorized_operations),
            ),
        )
    )


def _describe_consumer(
    context: RequestContext, group_id: str, allowed: int
) -> consumer.DescribedGroup:
    groups = context.cluster.groups
    context.check_right(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    context.cluster.check_group_coordinator(group_id)
    group = groups.find_consumer_group(group_id)
    if group is None:
        exists = groups.find(group_id) is not None
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group_id} is not a consumer group."
            if exists
            else f"Group {group_id} not found.",
        )
    members = tuple(_member(context, group, member) for member in group.members.values())
    _check_topics(context, members)
    return consumer.DescribedGroup(
        group_id=group_id,
        group_state=str(group.state),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=members,
        authorized_operations=allowed,
    )


def _check_topics(context: RequestContext, members: Iterable[consumer.Member]) -> None:
    """Raise RefusedError unless the client may describe all topics of the members' assignments."""
    topics = {
        partitions.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for partitions in assignment.topic_partitions
    }
    if not all(context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in topics):
        raise RefusedError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def _member(
    context: RequestContext, group: ConsumerGroup, member: ConsumerMember
) -> consumer.Member:
    return consumer.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        # With the partitions to revoke, for which it is still responsible.
        assignment=_assignment(context, member.owned),
        target_assignment=_assignment(context, group.target.get(member.member_id, ())),
        member_type=_CONSUMER_MEMBER,
    )


def _assignment(
    context: RequestContext, partitions: Iterable[TopicIdPartition]
) -> consumer.Assignment:
    topics = []
    for topic_id, indexes in partitions_by_topic(partitions).items():
        topic = context.cluster.topic_by_id(topic_id)
        if topic is not None:
            topics.append(
                consumer.TopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=tuple(indexes)
                )
            )
    return consumer.Assignment(topic_partitions=tuple(topics))


@handles(ListGroupsRequest)
def list_groups(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that this broker coordinates (ListGroups 0-5).

    A client that may not describe the cluster gets only the groups that it may describe. The
    filters by state (4+) and type (5+) ignore case. The type is "Classic", or "Consumer" for
    groups of the new consumer protocol (KIP-848).
    """
    states = {state.strip().lower() for state in request.states_filter}
    types = {group_type.strip().lower() for group_type in request.types_filter}
    sees_all = context.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    groups = [
        group
        for group in context.cluster.groups.all()
        if context.cluster.group_coordinator(group.group_id) == context.node_id
        and (not states or group.state.lower() in states)
        and (not types or group.group_type.lower() in types)
        and (sees_all or context.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id))
    ]
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=str(group.state)
                if context.version >= _FIRST_VERSION_WITH_STATES
                else "",
                group_type=group.group_type if context.version >= _FIRST_VERSION_WITH_TYPES else "",
            )
            for group in groups
        ),
    )


def _failed_deletion(
    _context: RequestContext,
    request: DeleteGroupsRequest,
    error_code: ErrorCode,
    _message: str,
) -> DeleteGroupsResponse:
    """Return a response with the error for each group, which is in it once."""
    return DeleteGroupsResponse(
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=error_code)
            for group_id in dict.fromkeys(request.groups_names)
        )
    )


@handles(DeleteGroupsRequest, error_response=_failed_deletion)
def delete_groups(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups with their offsets (DeleteGroups 0-3).

    A group with members gets NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND.
    """

    def delete(group_id: str) -> DeletableGroupResult:
        context.check_right(AclOperation.DELETE, ResourceType.GROUP, group_id)
        context.cluster.check_group_coordinator(group_id)
        context.cluster.groups.delete(group_id)
        return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE)

    results = context.each_result(DeletableGroupResult, "group_id", request.groups_names, delete)
    # Kafka has messages only for GROUP_DELETION_FAILED, which groups of Streams get.
    return DeleteGroupsResponse(
        results=tuple(replace(result, error_message=None) for result in results)
    )
