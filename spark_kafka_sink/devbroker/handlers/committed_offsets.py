"""The committed offsets of groups: OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import group_metadata_partition
from spark_kafka_sink.devbroker.groups.classic_group import ClassicGroup, GroupState
from spark_kafka_sink.devbroker.groups.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.groups.group_offsets import NO_OFFSET, CommittedOffset
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.handlers.transactions import ask_coordinator
from spark_kafka_sink.model import NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID


#: Of OffsetCommit and OffsetFetch.
_FIRST_VERSION_WITH_TOPIC_IDS = 10
#: Of OffsetCommit.
_FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9
#: Of TxnOffsetCommit.
_FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 4
_FIRST_VERSION_THAT_ADDS_GROUPS = 5
_FIRST_VERSION_OF_TXN_WITH_TOPIC_IDS = 6
#: Of OffsetFetch.
_FIRST_VERSION_WITH_GROUP_ERROR = 2
_FIRST_VERSION_WITH_GROUPS = 8
_NOTHING = CommittedOffset(NO_OFFSET)
#: The errors of partitions that a broker does not pass on to the group's coordinator.
_NOT_PASSED_ON = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
_HEARTBEAT_STATES = frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE})


@handles(OffsetCommitRequest)
def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit the offsets of a group (OffsetCommit 2-10).

    Members of the current generation may commit, and any client with generation -1 while the group
    has no members. A commit with generation -1 creates a group that does not exist; with another
    generation it gets ILLEGAL_GENERATION, from version 9 on GROUP_ID_NOT_FOUND. A commit counts as
    a heartbeat.

    A member of the new consumer protocol (KIP-848) sends its epoch, from version 9 on; before, it
    gets UNSUPPORTED_VERSION. STALE_MEMBER_EPOCH means that the epoch is from the future, or older
    than the assignment of one of the partitions (KIP-1251). Such a commit does not count as a
    heartbeat.

    Each partition has its own result: UNKNOWN_TOPIC_OR_PARTITION if it does not exist,
    UNKNOWN_TOPIC_ID for an unknown topic id (10+), OFFSET_METADATA_TOO_LARGE for too much metadata.
    Offsets do not expire; the retention time of a request is ignored.
    """
    context.cluster.check_group_coordinator(request.group_id)
    topics: list[OffsetCommitResponseTopic] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    exists = False
    for topic in request.topics:
        name: str | None = topic.name
        if context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
            name = context.topic_name(topic.topic_id)
        results: list[OffsetCommitResponsePartition] = []
        for partition in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            if name is not None:
                code = _add_offset(context, offsets, name, partition)
                exists = exists or code not in _NOT_PASSED_ON
            results.append(
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=tuple(results)
            )
        )
    if exists:
        member = _check_commit(context, request)
        if member is not None:
            _check_epochs(context, member, request.generation_id_or_member_epoch, offsets)
        context.cluster.groups.offsets.commit(request.group_id, offsets, now_ms=context.now_ms)
    return OffsetCommitResponse(topics=tuple(topics))


def _add_offset(
    context: RequestContext,
    offsets: dict[TopicPartition, CommittedOffset],
    topic: str,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
) -> ErrorCode:
    """Add the offset of a partition to those to commit, or return why it cannot be committed."""
    topic_partition = TopicPartition(topic, partition.partition_index)
    metadata = partition.committed_metadata or ""
    if not context.allows(AclOperation.READ, ResourceType.TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not context.cluster.has(topic_partition):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(metadata) > context.settings.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    offsets[topic_partition] = CommittedOffset(
        partition.committed_offset, partition.committed_leader_epoch, metadata
    )
    return ErrorCode.NONE


def _find_or_create_group(
    context: RequestContext, group_id: str, generation_id: int, missing: ErrorCode
) -> ClassicGroup | ConsumerGroup:
    """Return the group; raise RefusedError if it does not exist and a generation is given."""
    groups = context.cluster.groups
    group = groups.find(group_id)
    if group is None:
        if generation_id >= 0:
            raise RefusedError(missing, f"group {group_id!r} does not exist")
        group = groups.create(group_id)
    return group


def _check_epochs(
    context: RequestContext,
    member: ConsumerMember,
    epoch: int,
    partitions: Iterable[TopicPartition],
) -> None:
    """Raise RefusedError with STALE_MEMBER_EPOCH if a partition was assigned after the epoch."""
    for topic_partition in partitions:
        topic = context.cluster.existing_topic(topic_partition.topic)
        if member.has_stale_epoch(
            epoch, TopicIdPartition(topic.topic_id, topic_partition.partition)
        ):
            raise RefusedError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"member epoch {epoch} is older than the assignment of {topic_partition}",
            )


def _check_commit(context: RequestContext, request: OffsetCommitRequest) -> ConsumerMember | None:
    """Check that the sender may commit; return it if its epoch is still to be compared."""
    groups = context.cluster.groups
    generation_id = request.generation_id_or_member_epoch
    group = _find_or_create_group(
        context,
        request.group_id,
        generation_id,
        ErrorCode.ILLEGAL_GENERATION
        if context.version < _FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
        else ErrorCode.GROUP_ID_NOT_FOUND,
    )
    if isinstance(group, ConsumerGroup):
        return group.check_offset_commit(
            request.member_id, generation_id, request.group_instance_id, version=context.version
        )
    group.check_offset_commit(
        request.member_id, request.group_instance_id, generation_id, transactional=False
    )
    member = group.members.get(request.member_id)
    if group.state in _HEARTBEAT_STATES and member is not None:
        groups.classic_groups.restart_session(group, member, context.now)
    return None


@handles(TxnOffsetCommitRequest)
def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Delayed:
    """Commit the offsets of a group as part of a transaction (TxnOffsetCommit 0-6).

    The offsets are pending until the transaction ends; see OffsetFetch for how readers see them. Up
    to version 4 the group must be in the transaction (AddOffsetsToTxn); if not, the error is
    TRANSACTION_ABORTABLE (4) or INVALID_TXN_STATE. From version 5 on the group is added (KIP-890).
    INVALID_PRODUCER_EPOCH is returned instead of PRODUCER_FENCED. Members must have the current
    generation; clients without a member id and generation may commit as well (KIP-447). A partition
    that does not exist gets UNKNOWN_TOPIC_OR_PARTITION on its own, one with too much metadata
    OFFSET_METADATA_TOO_LARGE. Version 6 has topic ids instead of names; a group that does not exist
    gets GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION, and a stale epoch STALE_MEMBER_EPOCH
    (KIP-1319).
    """
    request = _with_names(context, request)
    codes: dict[tuple[str, UUID, int], ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            codes[topic.name, topic.topic_id, partition.partition_index] = (
                _add_offset(context, offsets, topic.name, partition)
                if topic.name
                else ErrorCode.UNKNOWN_TOPIC_ID
            )
    if not codes or not _NOT_PASSED_ON.issuperset(codes.values()):
        code = _commit(context, request, offsets)
        if isinstance(code, Delayed):
            return code
        if code is not ErrorCode.NONE:
            codes |= {place: code for place, known in codes.items() if known not in _NOT_PASSED_ON}
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[topic.name, topic.topic_id, partition.partition_index],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _with_names(context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitRequest:
    """Return a request with the names of its topics; that of an unknown topic is empty."""
    if context.version < _FIRST_VERSION_OF_TXN_WITH_TOPIC_IDS:
        return request
    topics = tuple(
        replace(topic, name=context.topic_name(topic.topic_id) or "") for topic in request.topics
    )
    return replace(request, topics=topics)


def _commit(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    offsets: dict[TopicPartition, CommittedOffset],
) -> ErrorCode | Delayed:
    """Add the offsets to the transaction; return the error of the request as a whole."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        context.cluster.check_group_coordinator(request.group_id)
        delayed = _verify(context, request, producer)
        if delayed is not None:
            return delayed
        _check_txn_commit(context, request)
    except RefusedError as refused:
        return refused.error_code
    if offsets:
        context.cluster.groups.offsets.commit_in_transaction(
            producer, request.group_id, offsets, now_ms=context.now_ms
        )
    return ErrorCode.NONE


def _verify(
    context: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdAndEpoch
) -> Delayed | None:
    """Check a transaction's first commit with the transaction coordinator, or wait for it.

    Raises RefusedError.
    """
    adds = context.version >= _FIRST_VERSION_THAT_ADDS_GROUPS
    state = context.cluster.groups.offsets.producer_state(request.group_id)
    if not state.start_verification(
        producer.producer_id,
        producer.epoch,
        NO_SEQUENCE,
        supports_epoch_bump=adds,
        now_ms=context.now_ms,
    ):
        return None
    partition = group_metadata_partition(request.group_id)
    codes = ask_coordinator(
        context, request.transactional_id, producer, frozenset({partition}), adds=adds
    )
    if isinstance(codes, Delayed):
        return codes
    code = codes[partition]
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif (
        code is ErrorCode.TRANSACTION_ABORTABLE
        and context.version < _FIRST_VERSION_WITH_TRANSACTION_ABORTABLE
    ):
        code = ErrorCode.INVALID_TXN_STATE
    if code is not ErrorCode.NONE:
        raise RefusedError(code, f"the group is not in a transaction: {code.name}")
    return None


def _check_txn_commit(context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    group = _find_or_create_group(
        context,
        request.group_id,
        request.generation_id_or_member_epoch,
        ErrorCode.ILLEGAL_GENERATION
        if context.version < _FIRST_VERSION_OF_TXN_WITH_TOPIC_IDS
        else ErrorCode.GROUP_ID_NOT_FOUND,
    )
    if isinstance(group, ConsumerGroup):
        _check_member_epoch(context, request, group)
        return
    group.check_offset_commit(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        transactional=True,
    )


def _check_member_epoch(
    context: RequestContext, request: TxnOffsetCommitRequest, group: ConsumerGroup
) -> None:
    """Raise RefusedError with UNKNOWN_MEMBER_ID, and ILLEGAL_GENERATION or STALE_MEMBER_EPOCH."""
    epoch = request.generation_id_or_member_epoch
    stale = (
        ErrorCode.ILLEGAL_GENERATION
        if context.version < _FIRST_VERSION_OF_TXN_WITH_TOPIC_IDS
        else ErrorCode.STALE_MEMBER_EPOCH
    )
    try:
        member = group.check_offset_commit(
            request.member_id, epoch, request.group_instance_id, version=None
        )
    except RefusedError as refused:
        if refused.error_code is not ErrorCode.STALE_MEMBER_EPOCH:
            raise
        raise RefusedError(stale, refused.message) from refused
    if member is None:
        return
    for requested in request.topics:
        topic = context.cluster.topic(requested.name)
        for partition in requested.partitions:
            if topic is not None and member.has_stale_epoch(
                epoch, TopicIdPartition(topic.topic_id, partition.partition_index)
            ):
                raise RefusedError(
                    stale,
                    f"epoch {epoch} is older than the assignment of partition "
                    f"{requested.name}-{partition.partition_index}",
                )


@handles(OffsetFetchRequest, when_failed={"committed_offset": NO_OFFSET})
def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return the committed offsets of groups (OffsetFetch 1-10).

    A partition without a committed offset gets -1 and no error, even if the group does not exist.
    Null instead of a list of topics (2+) requests all offsets of the group. With `require_stable`
    (7+), an offset that an open transaction may change gets UNSTABLE_OFFSET_COMMIT (KIP-447). From
    version 8 on a request can have several groups, each with its own error; from version 10 on
    topics are given by id, and an unknown one gets UNKNOWN_TOPIC_ID. A member of the new consumer
    protocol can send its id and epoch (9+), and gets UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH if
    they are not current.
    """
    # Drop duplicates, even with other member ids: a small request would get a huge response.
    groups = {(group.group_id, group.topics): group for group in _groups(context, request)}
    return _fetch_response(context, [_group(context, group, request) for group in groups.values()])


def _groups(
    context: RequestContext, request: OffsetFetchRequest
) -> tuple[OffsetFetchRequestGroup, ...]:
    """Return the requested groups in the layout of version 8 and later."""
    if context.version >= _FIRST_VERSION_WITH_GROUPS:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        )
    return (OffsetFetchRequestGroup(group_id=request.group_id, topics=topics),)


def _group(
    context: RequestContext, requested: OffsetFetchRequestGroup, request: OffsetFetchRequest
) -> OffsetFetchResponseGroup:
    try:
        context.check_right(AclOperation.DESCRIBE, ResourceType.GROUP, requested.group_id)
        context.cluster.check_group_coordinator(requested.group_id)
        group = context.cluster.groups.find_consumer_group(requested.group_id)
        if group is not None:
            group.check_offset_fetch(requested.member_id, requested.member_epoch)
    except RefusedError as refused:
        return _failed_group(context, requested, refused.error_code)
    topics = _all_topics(context, requested) if requested.topics is None else requested.topics
    offsets = context.cluster.groups.offsets
    unstable = offsets.unstable(requested.group_id) if request.require_stable else frozenset()
    return OffsetFetchResponseGroup(
        group_id=requested.group_id,
        topics=tuple(_topic(context, requested.group_id, topic, unstable) for topic in topics),
    )


def _all_topics(
    context: RequestContext, group: OffsetFetchRequestGroup
) -> list[OffsetFetchRequestTopics]:
    partitions: dict[str, list[int]] = {}
    for topic_partition in sorted(context.cluster.groups.offsets.committed(group.group_id)):
        partitions.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    topics = []
    for name, indexes in partitions.items():
        if not context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            continue
        known = context.cluster.topic(name)
        if known is not None or context.version < _FIRST_VERSION_WITH_TOPIC_IDS:
            topics.append(
                OffsetFetchRequestTopics(
                    name=name,
                    topic_id=ZERO_UUID if known is None else known.topic_id,
                    partition_indexes=tuple(indexes),
                )
            )
    return topics


def _topic(
    context: RequestContext,
    group_id: str,
    topic: OffsetFetchRequestTopics,
    unstable: Collection[TopicPartition],
) -> OffsetFetchResponseTopics:
    name: str | None = topic.name
    if context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        name = context.topic_name(topic.topic_id)
    committed = context.cluster.groups.offsets.committed(group_id)
    is_visible = name is None or context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)

    def partition(index: int) -> OffsetFetchResponsePartitions:
        if name is None:
            return _partition(index, _NOTHING, ErrorCode.UNKNOWN_TOPIC_ID)
        if not is_visible:
            return _partition(index, _NOTHING, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic_partition = TopicPartition(name, index)
        if topic_partition in unstable:
            return _partition(index, _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _partition(index, committed.get(topic_partition, _NOTHING), ErrorCode.NONE)

    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(partition(index) for index in topic.partition_indexes),
    )


def _partition(
    index: int, committed: CommittedOffset, error_code: ErrorCode
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error_code,
    )


def _failed_group(
    context: RequestContext, group: OffsetFetchRequestGroup, error_code: ErrorCode
) -> OffsetFetchResponseGroup:
    """Return the response for a failed group; version 1 has error codes in partitions only."""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    if context.version < _FIRST_VERSION_WITH_GROUP_ERROR:
        topics = tuple(
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=tuple(
                    _partition(index, _NOTHING, error_code) for index in topic.partition_indexes
                ),
            )
            for topic in group.topics or ()
        )
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error_code)


def _fetch_response(
    context: RequestContext, groups: list[OffsetFetchResponseGroup]
) -> OffsetFetchResponse:
    if context.version >= _FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(groups=tuple(groups))
    (group,) = groups
    return OffsetFetchResponse(
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in group.topics
        ),
        error_code=group.error_code,
    )


@handles(OffsetDeleteRequest)
def offset_delete(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete committed offsets of a group for single partitions (OffsetDelete 0, KIP-496).

    A topic to which the group subscribes gets GROUP_SUBSCRIBED_TO_TOPIC; for the classic protocol,
    the broker looks into the members' subscriptions. A group that does not exist gets
    GROUP_ID_NOT_FOUND, one with members of another protocol type than "consumer" NON_EMPTY_GROUP.
    To delete an offset that does not exist is not an error, but for a partition that does not exist
    it is UNKNOWN_TOPIC_OR_PARTITION.
    """
    subscribed = _find_group(context, request.group_id).compute_subscribed_topics()
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        is_subscribed = subscribed is None or topic.name in subscribed
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if not context.allows(AclOperation.READ, ResourceType.TOPIC, topic.name):
                codes[topic_partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not context.cluster.has(topic_partition):
                codes[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed:
                codes[topic_partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                codes[topic_partition] = ErrorCode.NONE
    deleted = [partition for partition, code in codes.items() if code is ErrorCode.NONE]
    context.cluster.groups.offsets.delete(request.group_id, deleted)
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for (name, index), code in codes.items():
        result = OffsetDeleteResponsePartition(partition_index=index, error_code=code)
        topics.setdefault(name, []).append(result)
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        )
    )


def _find_group(context: RequestContext, group_id: str) -> ClassicGroup | ConsumerGroup:
    if not group_id:
        raise RefusedError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    context.cluster.check_group_coordinator(group_id)
    group = context.cluster.groups.find(group_id)
    if group is None:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")
    if group.members and group.protocol_type != "consumer":
        raise RefusedError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
    return group
