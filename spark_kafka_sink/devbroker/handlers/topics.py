"""Topics and their partitions: CreateTopics, CreatePartitions and DeleteTopics."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.new_topics import (
    check_assigned_by_hand,
    partitions_and_replicas,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import without_controllers
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.cluster.topic_changes import (
    CLUSTER_METADATA_TOPIC,
    creation_prohibited,
)
from spark_kafka_sink.devbroker.handlers.controller_requests import forward_items
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
    from spark_kafka_sink.devbroker.cluster.partition import Topic
from spark_kafka_sink.devbroker.cluster.topic_changes import TopicChanges

#: The number of partitions or replicas that requests the default.
_UNSET = -1
#: Values of Kafka's ConfigSource: where a setting's value comes from.
_TOPIC_CONFIG_SOURCE = 1
_DEFAULT_CONFIG_SOURCE = 5
_FIRST_VERSION_WITH_IDS = 6

TopicT = TypeVar("TopicT", "CreatableTopic", "CreatePartitionsTopic")
ResultT = TypeVar("ResultT", CreatableTopicResult, CreatePartitionsTopicResult)


def _change_each(
    context: RequestContext,
    cluster: StandaloneCluster,
    topics: Sequence[TopicT],
    change: Callable[[TopicChanges, TopicT], ResultT],
    result_class: type[ResultT],
) -> tuple[ResultT, ...]:
    """Change each topic that occurs once, and write all changes to disk at once."""
    times = Counter(topic.name for topic in topics)
    results: list[ResultT] = []
    try:
        with cluster.change_topics() as changes:
            for topic in topics:
                if times[topic.name] == 1:
                    try:
                        results.append(change(changes, topic))
                    except RefusedError as refused:
                        results.append(context.failed(result_class, refused, name=topic.name))
    except RefusedError as refused:
        results = [
            context.failed(result_class, refused, name=result.name)
            if result.error_code == ErrorCode.NONE
            else result
            for result in results
        ]
    duplicate = RefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results.extend(
        context.failed(result_class, duplicate, name=name)
        for name, count in times.items()
        if count > 1
    )
    return tuple(results)


def _check_new_partitions(context: RequestContext, count: int) -> None:
    """Raise RefusedError with POLICY_VIOLATION for more partitions than a request may create."""
    most = context.settings.request_max_partitions
    if count > most:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request would create {count} partitions, but at most {most} are allowed",
        )


@handles(CreateTopicsRequest)
def create_topics(
    context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse | Delayed:
    """Create topics (CreateTopics 2-7).

    Each topic is created or rejected on its own:

    - INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS: its name.
    - INVALID_REQUEST: it occurs twice in the request.
    - INVALID_PARTITIONS: the number of partitions.
    - INVALID_REPLICATION_FACTOR: -1 is the default; there must be enough brokers.
    - INVALID_REPLICA_ASSIGNMENT: the manual assignment.
    - INVALID_CONFIG: the settings; see `topic_config` for the supported ones.

    A request that creates more than `request_max_partitions` partitions gets POLICY_VIOLATION. With
    `validate_only` the response is the same but nothing is created. All topics of a request are
    written to disk at once; if that fails, none is created and each gets KAFKA_STORAGE_ERROR.
    """
    times = Counter(topic.name for topic in request.topics)
    new_partitions = sum(
        len(topic.assignments)
        or (
            context.settings.num_partitions
            if topic.num_partitions == _UNSET
            else max(0, topic.num_partitions)
        )
        for topic in request.topics
        if times[topic.name] == 1
    )
    _check_new_partitions(context, new_partitions)
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        return _create_by_controller(context, cluster, request)

    def create(changes: TopicChanges, topic: CreatableTopic) -> CreatableTopicResult:
        return _create_topic(context, changes, topic, validate_only=request.validate_only)

    return CreateTopicsResponse(
        topics=_change_each(context, cluster, request.topics, create, CreatableTopicResult)
    )


def _create_by_controller(
    context: RequestContext, view: BrokerView, request: CreateTopicsRequest
) -> CreateTopicsResponse | Delayed:
    configs = {topic.name: topic for topic in request.topics}

    def check(topic: CreatableTopic) -> None:
        _check_right_to_create(context, topic.name)
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise creation_prohibited(topic.name)

    def describe(result: CreatableTopicResult) -> CreatableTopicResult:
        if result.error_code != ErrorCode.NONE:
            return result
        topic = configs[result.name]
        values = {each.name: each.value or "" for each in topic.configs}
        config = view.topic_defaults.with_values(without_controllers(values))
        return _created(context, topic, config, result)

    results = forward_items(
        context,
        view,
        request,
        ("topics", "topics"),
        request.topics,
        check=check,
        failed=lambda topic, refused: context.failed(
            CreatableTopicResult, refused, name=topic.name
        ),
    )
    if isinstance(results, Delayed):
        return results
    return CreateTopicsResponse(topics=tuple(map(describe, results)))


def _check_right_to_create(context: RequestContext, name: str) -> None:
    if name != CLUSTER_METADATA_TOPIC and not context.allows(
        AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        context.check_right(AclOperation.CREATE, ResourceType.TOPIC, name)


def _create_topic(
    context: RequestContext, changes: TopicChanges, topic: CreatableTopic, *, validate_only: bool
) -> CreatableTopicResult:
    """Create a topic, or only check the request for it. Raises RefusedError."""
    _check_right_to_create(context, topic.name)
    changes.check_new_topic_name(topic.name)
    config = _config(context, topic)
    partitions, replication_factor = _partitions_and_replicas(context, changes, topic)
    if validate_only:
        topic_id = uuid.uuid4()
    else:
        topic_id = changes.create_topic(
            topic.name,
            partitions=partitions,
            config=config,
            overrides={entry.name: entry.value or "" for entry in topic.configs},
            replication_factor=replication_factor,
        ).topic_id
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=replication_factor,
    )
    return _created(context, topic, config, result)


def _created(
    context: RequestContext,
    topic: CreatableTopic,
    config: TopicConfig,
    result: CreatableTopicResult,
) -> CreatableTopicResult:
    """Add the settings of a new topic to its result, or leave out what the client may not see."""
    if not context.allows(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=result.topic_id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    set_by_client = {entry.name for entry in topic.configs}
    return replace(
        result,
        configs=tuple(
            CreatableTopicConfigs(
                name=name,
                value=value,
                read_only=False,
                config_source=(
                    _TOPIC_CONFIG_SOURCE if name in set_by_client else _DEFAULT_CONFIG_SOURCE
                ),
                is_sensitive=False,
            )
            for name, value in config.effective_values().items()
        ),
    )


def _config(context: RequestContext, topic: CreatableTopic) -> TopicConfig:
    values: dict[str, str] = {}
    nulls: list[str] = []
    for entry in topic.configs:
        if entry.value is None:
            nulls.append(entry.name)
        else:
            values[entry.name] = entry.value
    if nulls:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    return context.cluster.topic_defaults.with_values(values)


def _partitions_and_replicas(
    context: RequestContext, changes: TopicChanges, topic: CreatableTopic
) -> tuple[int, int]:
    """Return the numbers of partitions and replicas.

    Checks in the order of ReplicationControlManager.createTopic. Raises RefusedError.
    """
    if topic.assignments:
        check_assigned_by_hand(topic)
        replication_factor = _check_assignments(context, topic.assignments)
        return len(topic.assignments), replication_factor
    partitions, replication_factor = partitions_and_replicas(
        topic,
        num_partitions=context.settings.num_partitions,
        default_replication_factor=context.settings.default_replication_factor,
    )
    changes.check_replication_factor(replication_factor)
    return partitions, replication_factor


def _check_assignments(
    context: RequestContext, assignments: Sequence[CreatableReplicaAssignment]
) -> int:
    """Check a manual assignment and return its number of replicas."""
    indexes = {assignment.partition_index for assignment in assignments}
    if len(indexes) < len(assignments):
        problem = "a partition is assigned more than once"
    elif indexes != set(range(len(assignments))):
        problem = "partitions should be a consecutive 0-based integer sequence"
    else:
        return _check_replicas(context, [assignment.broker_ids for assignment in assignments])
    raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _check_replicas(
    context: RequestContext,
    assignments: Sequence[Sequence[int]],
    replication_factor: int | None = None,
) -> int:
    """Return the number of replicas, which must be the same for each partition.

    Raises RefusedError with INVALID_REPLICA_ASSIGNMENT (validateManualPartitionAssignment).
    """
    for replicas in assignments:
        if replication_factor is None:
            replication_factor = len(replicas)
        if not replicas:
            problem = "the manual partition assignment has an empty replica list"
        elif len(set(replicas)) < len(replicas):
            problem = f"the manual partition assignment has duplicates: {list(replicas)}"
        elif not context.cluster.broker_ids >= set(replicas):
            problem = f"not all of brokers {list(replicas)} exist"
        elif len(replicas) != replication_factor:
            problem = (
                f"{list(replicas)} must be {replication_factor} replica(s), as for other partitions"
            )
        else:
            continue
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return replication_factor or 0


@handles(CreatePartitionsRequest)
def create_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | Delayed:
    """Add partitions to existing topics (CreatePartitions 0-3).

    - INVALID_PARTITIONS: the new count is not larger than the current one.
    - INVALID_REPLICA_ASSIGNMENT: there is not one assignment for each new partition, or one does
      not name as many brokers as the topic has replicas, and one of them must be running.
    - INVALID_REQUEST: a topic occurs twice.
    - POLICY_VIOLATION: the request adds more than `request_max_partitions` partitions.

    With `validate_only` the response is the same but nothing is created. All partitions of a
    request are written to disk at once; if that fails, none is created and each topic gets
    KAFKA_STORAGE_ERROR.
    """
    known = ((requested, context.cluster.topic(requested.name)) for requested in request.topics)
    new_partitions = sum(
        max(0, requested.count - len(topic.partitions))
        for requested, topic in known
        if topic is not None
    )
    _check_new_partitions(context, new_partitions)
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        results = forward_items(
            context,
            cluster,
            request,
            ("topics", "results"),
            request.topics,
            check=lambda topic: context.check_right(
                AclOperation.ALTER, ResourceType.TOPIC, topic.name
            ),
            failed=lambda topic, refused: context.failed(
                CreatePartitionsTopicResult, refused, name=topic.name
            ),
        )
        return (
            results if isinstance(results, Delayed) else CreatePartitionsResponse(results=results)
        )

    def add(changes: TopicChanges, requested: CreatePartitionsTopic) -> CreatePartitionsTopicResult:
        context.check_right(AclOperation.ALTER, ResourceType.TOPIC, requested.name)
        topic = _grown_topic(context, requested)
        if not request.validate_only:
            changes.add_partitions(topic, requested.count)
        return CreatePartitionsTopicResult(name=requested.name, error_code=ErrorCode.NONE)

    return CreatePartitionsResponse(
        results=_change_each(context, cluster, request.topics, add, CreatePartitionsTopicResult)
    )


def _grown_topic(context: RequestContext, requested: CreatePartitionsTopic) -> Topic:
    """Return the topic that gets new partitions. Raises RefusedError."""
    topic = context.cluster.topic(requested.name)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {requested.name!r} does not exist"
        )
    present = len(topic.partitions)
    if requested.count <= present:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {present} partition(s); {requested.count} would not be an increase",
        )
    if requested.assignments is None:
        return topic
    if len(requested.assignments) != requested.count - present:
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"the request has {len(requested.assignments)} assignments for "
            f"{requested.count - present} new partition(s)",
        )
    assignments = [assignment.broker_ids for assignment in requested.assignments]
    _check_replicas(context, assignments, topic.replication_factor)
    return topic


@handles(DeleteTopicsRequest)
def delete_topics(
    context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse | Delayed:
    """Delete topics with their records and committed offsets (DeleteTopics 1-6).

    Topics are given by name, or from version 6 on by id. One that does not exist gets
    UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID; one that occurs twice, or with both name and id,
    or with neither, gets INVALID_REQUEST. All topics of a request are deleted with one write to
    disk; if that fails, none is deleted and each gets KAFKA_STORAGE_ERROR. A request deletes at
    most `request_max_partitions` partitions, but always at least one topic; the remaining topics
    get POLICY_VIOLATION.
    """
    states = request.topics
    if context.version < _FIRST_VERSION_WITH_IDS:
        states = tuple(
            DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names
        )
    cluster = context.cluster
    if not isinstance(cluster, StandaloneCluster):
        return _delete_by_controller(context, cluster, request, states)
    topics = [_requested_topic(context, state) for state in states]
    times = Counter(topic.name for topic in topics if topic is not None)
    results: dict[DeleteTopicState, DeletableTopicResult] = {}
    doomed: dict[DeleteTopicState, Topic] = {}
    partitions = 0
    for state, topic in zip(states, topics, strict=True):
        try:
            known = _check_deletion(context, state, topic, times)
            partitions += len(known.partitions)
            if doomed:
                _check_deleted(context, partitions)
        except RefusedError as refused:
            results[state] = _failed_deletion(context, state, refused, topic)
        else:
            doomed[state] = known
            results[state] = DeletableTopicResult(
                name=known.name, topic_id=known.topic_id, error_code=ErrorCode.NONE
            )
    try:
        with cluster.change_topics() as changes:
            for known in doomed.values():
                changes.delete_topic(known)
    except RefusedError as refused:
        results |= {state: _failed_deletion(context, state, refused) for state in doomed}
    return DeleteTopicsResponse(responses=tuple(results.values()))


def _delete_by_controller(
    context: RequestContext,
    view: BrokerView,
    request: DeleteTopicsRequest,
    states: Sequence[DeleteTopicState],
) -> DeleteTopicsResponse | Delayed:
    """Make the controller delete those of the topics that the client may delete."""
    partitions = 0

    def check(state: DeleteTopicState) -> None:
        nonlocal partitions
        topic = _requested_topic(context, state)
        _check_right_to_delete(context, state, topic)
        before = partitions
        if topic is not None:
            partitions += len(topic.partitions)
        if before:
            _check_deleted(context, partitions)

    results = forward_items(
        context,
        view,
        replace(request, topic_names=()),
        ("topics", "responses"),
        states,
        check=check,
        failed=lambda state, refused: _failed_deletion(
            context, state, refused, _requested_topic(context, state)
        ),
    )
    return results if isinstance(results, Delayed) else DeleteTopicsResponse(responses=results)


def _check_right_to_delete(
    context: RequestContext, state: DeleteTopicState, topic: Topic | None
) -> None:
    """Raise RefusedError unless the client may delete a topic, or may know that there is none."""
    if context.allows(AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
        return
    if state.name is not None:
        # Before the topic is sought: whether it exists is not disclosed.
        context.check_right(AclOperation.DESCRIBE, ResourceType.TOPIC, state.name)
    if topic is not None:
        context.check_right(AclOperation.DELETE, ResourceType.TOPIC, topic.name)


def _requested_topic(context: RequestContext, state: DeleteTopicState) -> Topic | None:
    if state.name is not None:
        return context.cluster.topic(state.name)
    return context.cluster.topic_by_id(state.topic_id)


def _check_deletion(
    context: RequestContext, state: DeleteTopicState, topic: Topic | None, times: Counter[str]
) -> Topic:
    """Return the requested topic, or raise RefusedError."""
    has_name, has_id = state.name is not None, state.topic_id != ZERO_UUID
    if has_name and has_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id, not both")
    if not has_name and not has_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id")
    if topic is not None and times[topic.name] > 1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "the request contains the topic more than once"
        )
    _check_right_to_delete(context, state, topic)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_ID if has_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {state.topic_id if has_id else state.name} does not exist",
        )
    return topic


def _check_deleted(context: RequestContext, partitions: int) -> None:
    most = context.settings.request_max_partitions
    if partitions > most:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"the request would delete {partitions} partitions, but at most {most} are allowed: "
            "delete the other topics with another request",
        )


def _failed_deletion(
    context: RequestContext,
    state: DeleteTopicState,
    refused: RefusedError,
    topic: Topic | None = None,
) -> DeletableTopicResult:
    """Return the result of a topic that was not deleted.

    The name of a topic that was requested by id, but may not be deleted, is for those who may know
    it.
    """
    name = state.name
    if (
        name is None
        and topic is not None
        and refused.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        and context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
    ):
        name = topic.name
    return context.failed(DeletableTopicResult, refused, name=name, topic_id=state.topic_id)
