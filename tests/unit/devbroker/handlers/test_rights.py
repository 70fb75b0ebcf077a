"""The rights that each request needs, and the errors of those that lack one."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, NamedTuple

import pytest

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME, Acl
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.handlers.registry import HANDLERS
from spark_kafka_sink.devbroker.handlers.required_rights import RIGHTS
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
)
from spark_kafka_sink.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
)
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from spark_kafka_sink.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from spark_kafka_sink.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from spark_kafka_sink.protocol.messages.describe_quorum import DescribeQuorumRequest
from spark_kafka_sink.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from spark_kafka_sink.protocol.messages.describe_topic_partitions import (
    TopicRequest as PartitionsOf,
)
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from spark_kafka_sink.protocol.messages.elect_leaders import ElectLeadersRequest
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_config_resources import ListConfigResourcesRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from spark_kafka_sink.protocol.messages.metadata import (
    UNKNOWN_OPERATIONS,
    MetadataRequest,
    MetadataRequestTopic,
)
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.devbroker.admin_requests import (
    alter_configs,
    create_partitions,
    delete_records,
    delete_topics,
    describe_configs,
    describe_producers,
    list_transactions,
    offset_for_epoch,
)
from tests.support.devbroker.broker_asker import creatable, produce_request, sequenced
from tests.support.devbroker.broker_requests import ask, broker_with
from tests.support.devbroker.group_client import (
    WITH_NAMES,
    commit_request,
    fetch_offsets_request,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
    txn_commit_request,
)
from tests.support.record.plain_batches import PlainRecord, plain_batch

ALICE = "User:alice"
TOPIC, GROUP, CLUSTER, TRANSACTION = (
    (ResourceType.TOPIC, "t"),
    (ResourceType.GROUP, "g"),
    (ResourceType.CLUSTER, CLUSTER_NAME),
    (ResourceType.TRANSACTIONAL_ID, "x"),
)
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
REFUSED = {NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TRANSACTION}
RECORDS = plain_batch([PlainRecord(timestamp=1000)])
TRANSACTIONAL = sequenced(0, attributes=16)
NEW_ID = {"transaction_timeout_ms": 1000}


class Need(NamedTuple):
    """A request, the rights that it needs, and the error without each of them."""

    request: Any
    #: Pairs of an operation and a resource, each with the error of its absence.
    rights: tuple[tuple[AclOperation, tuple[ResourceType, str], ErrorCode], ...]
    version: int | None = None


def need(request, *rights, version=None):
    return Need(request, rights, version)


def may(operation, resource):
    resource_type, name = resource
    return Acl(
        resource_type,
        name,
        ResourcePatternType.LITERAL,
        ALICE,
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def fetch(**fields):
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        **{
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": (FetchTopic(topic="t", partitions=(partition,)),),
        }
        | fields
    )


LIST_OFFSETS = ListOffsetsRequest(
    replica_id=-1,
    topics=(
        ListOffsetsTopic(
            name="t", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),)
        ),
    ),
)
ADD_PARTITIONS = AddPartitionsToTxnRequest(
    v3_and_below_transactional_id="x",
    v3_and_below_producer_id=1,
    v3_and_below_producer_epoch=0,
    v3_and_below_topics=(AddPartitionsToTxnTopic(name="t", partitions=(0,)),),
)
CONSUMER_HEARTBEAT = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1000,
    subscribed_topic_names=("t",),
    topic_partitions=(),
)
OFFSET_DELETE = OffsetDeleteRequest(
    group_id="g",
    topics=(
        OffsetDeleteRequestTopic(
            name="t", partitions=(OffsetDeleteRequestPartition(partition_index=0),)
        ),
    ),
)

#: What each request needs; a right that others imply is listed as the smallest that suffices.
NEEDS = {
    "Produce": need(produce_request("t", RECORDS), ("WRITE", TOPIC, NO_TOPIC), version=12),
    "Produce in a transaction": need(
        produce_request("t", TRANSACTIONAL, transactional_id="x"),
        ("WRITE", TRANSACTION, NO_TRANSACTION),
        ("WRITE", TOPIC, NO_TOPIC),
        version=12,
    ),
    "Fetch": need(fetch(), ("READ", TOPIC, NO_TOPIC), version=12),
    "Fetch of a follower": need(
        fetch(replica_id=1), ("CLUSTER_ACTION", CLUSTER, NO_TOPIC), version=12
    ),
    "ListOffsets": need(LIST_OFFSETS, ("DESCRIBE", TOPIC, NO_TOPIC)),
    "Metadata": need(
        MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), ("DESCRIBE", TOPIC, NO_TOPIC)
    ),
    "Metadata that creates": need(
        MetadataRequest(topics=(MetadataRequestTopic(name="new"),)),
        ("DESCRIBE", (ResourceType.TOPIC, "new"), NO_TOPIC),
        ("CREATE", (ResourceType.TOPIC, "new"), NO_TOPIC),
    ),
    "OffsetCommit": need(
        commit_request("g", {("t", 0): 1}),
        ("READ", GROUP, NO_GROUP),
        ("READ", TOPIC, NO_TOPIC),
        version=9,
    ),
    "OffsetFetch": need(
        fetch_offsets_request("g", "t", 0),
        ("DESCRIBE", GROUP, NO_GROUP),
        ("DESCRIBE", TOPIC, NO_TOPIC),
        version=9,
    ),
    "OffsetDelete": need(OFFSET_DELETE, ("DELETE", GROUP, NO_GROUP), ("READ", TOPIC, NO_TOPIC)),
    "FindCoordinator of a group": need(
        FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), ("DESCRIBE", GROUP, NO_GROUP)
    ),
    "FindCoordinator of a transactional id": need(
        FindCoordinatorRequest(key_type=1, key="x"),
        ("DESCRIBE", TRANSACTION, NO_TRANSACTION),
        version=3,
    ),
    "JoinGroup": need(join_request("g"), ("READ", GROUP, NO_GROUP)),
    "SyncGroup": need(sync_request("g", "m", 1), ("READ", GROUP, NO_GROUP)),
    "Heartbeat": need(heartbeat_request("g", "m", 1), ("READ", GROUP, NO_GROUP)),
    "LeaveGroup": need(leave_request("g", ("m", None)), ("READ", GROUP, NO_GROUP)),
    "ConsumerGroupHeartbeat": need(
        CONSUMER_HEARTBEAT, ("READ", GROUP, NO_GROUP), ("DESCRIBE", TOPIC, NO_TOPIC)
    ),
    "DescribeGroups": need(DescribeGroupsRequest(groups=("g",)), ("DESCRIBE", GROUP, NO_GROUP)),
    "ConsumerGroupDescribe": need(
        ConsumerGroupDescribeRequest(group_ids=("g",), include_authorized_operations=False),
        ("DESCRIBE", GROUP, NO_GROUP),
    ),
    "DeleteGroups": need(DeleteGroupsRequest(groups_names=("g",)), ("DELETE", GROUP, NO_GROUP)),
    "CreateTopics": need(
        CreateTopicsRequest(topics=(creatable("new"),)),
        ("CREATE", (ResourceType.TOPIC, "new"), NO_TOPIC),
    ),
    "CreateTopics, with a right on the cluster": need(
        CreateTopicsRequest(topics=(creatable("new"),)), ("CREATE", CLUSTER, NO_TOPIC)
    ),
    "CreatePartitions": need(create_partitions(("t", 2)), ("ALTER", TOPIC, NO_TOPIC)),
    "DeleteTopics": need(delete_topics("t"), ("DELETE", TOPIC, NO_TOPIC)),
    "DeleteTopics, with a right on the cluster": need(
        delete_topics("t"), ("DELETE", CLUSTER, NO_TOPIC)
    ),
    "DeleteRecords": need(delete_records(("t", 0, 0)), ("DELETE", TOPIC, NO_TOPIC)),
    "OffsetForLeaderEpoch": need(offset_for_epoch("t", 0, 0), ("DESCRIBE", TOPIC, NO_TOPIC)),
    "OffsetForLeaderEpoch, with a right on the cluster": need(
        offset_for_epoch("t", 0, 0), ("CLUSTER_ACTION", CLUSTER, NO_TOPIC)
    ),
    "DescribeConfigs of a topic": need(
        describe_configs((2, "t")), ("DESCRIBE_CONFIGS", TOPIC, NO_TOPIC)
    ),
    "DescribeConfigs of a broker": need(
        describe_configs((4, "1")), ("DESCRIBE_CONFIGS", CLUSTER, NO_CLUSTER)
    ),
    "DescribeConfigs of a group": need(
        describe_configs((32, "g")), ("DESCRIBE_CONFIGS", GROUP, NO_GROUP)
    ),
    "IncrementalAlterConfigs of a topic": need(
        alter_configs((2, "t", [("retention.ms", 0, "1")])), ("ALTER_CONFIGS", TOPIC, NO_TOPIC)
    ),
    "IncrementalAlterConfigs of a broker": need(
        alter_configs((4, "1", [("a", 0, "1")])), ("ALTER_CONFIGS", CLUSTER, NO_CLUSTER)
    ),
    "AlterConfigs of a topic": need(
        AlterConfigsRequest(
            resources=(AlterConfigsResource(resource_type=2, resource_name="t", configs=()),),
            validate_only=True,
        ),
        ("ALTER_CONFIGS", TOPIC, NO_TOPIC),
    ),
    "ListConfigResources": need(
        ListConfigResourcesRequest(), ("DESCRIBE_CONFIGS", CLUSTER, NO_CLUSTER)
    ),
    "DescribeTopicPartitions": need(
        DescribeTopicPartitionsRequest(topics=(PartitionsOf(name="t"),)),
        ("DESCRIBE", TOPIC, NO_TOPIC),
    ),
    "DescribeClientQuotas": need(
        DescribeClientQuotasRequest(components=(), strict=False),
        ("DESCRIBE_CONFIGS", CLUSTER, NO_CLUSTER),
    ),
    "AlterClientQuotas": need(
        AlterClientQuotasRequest(
            entries=(EntryData(entity=(EntityData(entity_type="user", entity_name="a"),), ops=()),),
            validate_only=True,
        ),
        ("ALTER_CONFIGS", CLUSTER, NO_CLUSTER),
    ),
    "DescribeUserScramCredentials": need(
        DescribeUserScramCredentialsRequest(users=None), ("DESCRIBE", CLUSTER, NO_CLUSTER)
    ),
    "AlterUserScramCredentials": need(
        AlterUserScramCredentialsRequest(
            deletions=(ScramCredentialDeletion(name="a", mechanism=1),), upsertions=()
        ),
        ("ALTER", CLUSTER, NO_CLUSTER),
    ),
    "DescribeQuorum": need(DescribeQuorumRequest(topics=()), ("DESCRIBE", CLUSTER, NO_CLUSTER)),
    "DescribeLogDirs": need(DescribeLogDirsRequest(topics=None), ("DESCRIBE", CLUSTER, NO_CLUSTER)),
    "ElectLeaders": need(
        ElectLeadersRequest(topic_partitions=None), ("ALTER", CLUSTER, NO_CLUSTER)
    ),
    "AlterPartitionReassignments": need(
        AlterPartitionReassignmentsRequest(topics=()), ("ALTER", CLUSTER, NO_CLUSTER)
    ),
    "ListPartitionReassignments": need(
        ListPartitionReassignmentsRequest(topics=None), ("DESCRIBE", CLUSTER, NO_CLUSTER)
    ),
    "InitProducerId": need(
        InitProducerIdRequest(transactional_id=None, **NEW_ID),
        ("IDEMPOTENT_WRITE", CLUSTER, NO_CLUSTER),
    ),
    "InitProducerId, with a right on any topic": need(
        InitProducerIdRequest(transactional_id=None, **NEW_ID), ("WRITE", TOPIC, NO_CLUSTER)
    ),
    "InitProducerId of a transactional id": need(
        InitProducerIdRequest(transactional_id="x", **NEW_ID),
        ("WRITE", TRANSACTION, NO_TRANSACTION),
    ),
    "AddPartitionsToTxn": need(
        ADD_PARTITIONS,
        ("WRITE", TRANSACTION, NO_TRANSACTION),
        ("WRITE", TOPIC, NO_TOPIC),
        version=3,
    ),
    "AddPartitionsToTxn of a broker": need(
        AddPartitionsToTxnRequest(transactions=()), ("CLUSTER_ACTION", CLUSTER, NO_CLUSTER)
    ),
    "AddOffsetsToTxn": need(
        AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"),
        ("WRITE", TRANSACTION, NO_TRANSACTION),
        ("READ", GROUP, NO_GROUP),
    ),
    "EndTxn": need(
        EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0, committed=True),
        ("WRITE", TRANSACTION, NO_TRANSACTION),
    ),
    "TxnOffsetCommit": need(
        txn_commit_request("g", (1, 0), {("t", 0): 1}),
        ("WRITE", TRANSACTION, NO_TRANSACTION),
        ("READ", GROUP, NO_GROUP),
        ("READ", TOPIC, NO_TOPIC),
        version=WITH_NAMES,
    ),
    "DescribeProducers": need(describe_producers("t", 0), ("READ", TOPIC, NO_TOPIC)),
    "DescribeTransactions": need(
        DescribeTransactionsRequest(transactional_ids=("x",)),
        ("DESCRIBE", TRANSACTION, NO_TRANSACTION),
    ),
}


@pytest.fixture
def broker():
    broker = broker_with({"t": 1, "hidden": 1}, authorizer=True, super_users=("User:admin",))
    # OffsetDelete needs a group that exists, whose topics it then checks.
    ask(broker, commit_request("g", {("t", 0): 1}), 9, principal="User:admin")
    return broker


def codes(answer):
    """Return all error codes in a response."""
    if isinstance(answer, tuple):
        return set().union(*map(codes, answer))
    if not dataclasses.is_dataclass(answer):
        return set()
    fields = {each.name: getattr(answer, each.name) for each in dataclasses.fields(answer)}
    found = {value for name, value in fields.items() if name.endswith("error_code")}
    return found.union(*map(codes, fields.values()))


def refusals(broker, each, *acls, principal=ALICE):
    broker.cluster.change_acls(acls)
    answer = ask(broker, each.request, each.version, principal=principal)
    return set() if isinstance(answer, Delayed) else codes(answer) & REFUSED


@pytest.mark.parametrize("each", NEEDS.values(), ids=NEEDS)
def test_a_request_needs_exactly_these_rights(broker, each):
    """With its rights a request is not refused, and without one of them it has its error."""
    acls = [may(operation, resource) for operation, resource, _ in each.rights]

    for missing, (_, _, error_code) in enumerate(each.rights):
        others = acls[:missing] + acls[missing + 1 :]
        assert {error_code} == refusals(broker, each, *others)
    assert set() == refusals(broker, each, *acls) - {_config_error(each)}


def _config_error(each):
    """Return the error that stands for the settings of a new topic, which is not one of its own."""
    return NO_TOPIC if isinstance(each.request, CreateTopicsRequest) else None


@pytest.mark.parametrize("each", NEEDS.values(), ids=NEEDS)
def test_a_super_user_needs_no_rights(broker, each):
    """A super user's request is not refused for a missing right."""
    assert set() == refusals(broker, each, principal="User:admin")


@pytest.mark.parametrize("each", NEEDS.values(), ids=NEEDS)
def test_without_an_authorizer_no_right_is_missing(each):
    """By default everyone may do everything."""
    answer = ask(broker_with({"t": 1}), each.request, each.version, principal=ALICE)

    assert isinstance(answer, Delayed) or set() == codes(answer) & REFUSED


def test_each_right_of_the_table_names_a_field_of_the_request():
    """A right on a resource that a request names is read from a field that it has."""
    for api_key, rights in RIGHTS.items():
        handler = HANDLERS.get(api_key)
        for right in rights if handler is not None else ():
            assert not right.field or hasattr(handler.request_class, right.field)


def test_all_topics_are_those_that_the_client_may_describe(broker):
    """A request for all topics leaves out the others, without an error."""
    broker.cluster.change_acls([may("READ", TOPIC)])

    answer = ask(broker, MetadataRequest(topics=None), principal=ALICE)

    assert [("t", 0)] == [(topic.name, topic.error_code) for topic in answer.topics]


def test_a_hidden_topic_is_refused_by_id_without_its_name(broker):
    """The answer to an id does not disclose the name of the topic."""
    topic_id = broker.cluster.topic("hidden").topic_id
    request = MetadataRequest(topics=(MetadataRequestTopic(name=None, topic_id=topic_id),))

    (topic,) = ask(broker, request, principal=ALICE).topics

    assert (NO_TOPIC, None, topic_id, ()) == (
        topic.error_code,
        topic.name,
        topic.topic_id,
        topic.partitions,
    )


def test_a_topic_that_does_not_exist_is_refused_like_a_hidden_one(broker):
    """Whether a topic exists is not disclosed to a client that may not describe it."""
    names = ("hidden", "missing", "__consumer_offsets")
    request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=name) for name in names))

    topics = ask(broker, request, principal=ALICE).topics

    assert [(name, NO_TOPIC, False) for name in names] == [
        (topic.name, topic.error_code, topic.is_internal) for topic in topics
    ]
    assert broker.cluster.topic("missing") is None


def test_authorized_operations_are_those_of_the_client(broker):
    """The fields list what the client may do, implied operations included."""
    broker.cluster.change_acls([may("WRITE", TOPIC), may("DESCRIBE", CLUSTER)])
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name="t"),), include_topic_authorized_operations=True
    )

    (topic,) = ask(broker, request, principal=ALICE).topics
    cluster = ask(
        broker,
        DescribeClusterRequest(include_cluster_authorized_operations=True),
        principal=ALICE,
    )

    assert (1 << AclOperation.WRITE | 1 << AclOperation.DESCRIBE) == (
        topic.topic_authorized_operations
    )
    assert 1 << AclOperation.DESCRIBE == cluster.cluster_authorized_operations


def test_the_operations_of_a_cluster_that_may_not_be_described_are_none(broker):
    """Without DESCRIBE of the cluster, the field is 0 even if other operations are allowed."""
    broker.cluster.change_acls([may("CREATE", CLUSTER)])
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)

    answer = ask(broker, request, principal=ALICE)

    assert 0 == answer.cluster_authorized_operations


def test_the_operations_of_a_group_are_those_of_the_client(broker):
    """DescribeGroups lists what the client may do with a group, if it was asked for."""
    broker.cluster.change_acls([may("READ", GROUP)])

    def operations(*, asked):
        request = DescribeGroupsRequest(groups=("g",), include_authorized_operations=asked)
        (group,) = ask(broker, request, 5, principal=ALICE).groups
        return group.authorized_operations

    assert 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE == operations(asked=True)
    assert UNKNOWN_OPERATIONS == operations(asked=False)


def test_a_new_topic_has_its_settings_for_those_who_may_see_them(broker):
    """Without DESCRIBE_CONFIGS, a topic is created and its result says why it has no settings."""
    broker.cluster.change_acls([may("CREATE", CLUSTER)])
    request = CreateTopicsRequest(topics=(creatable("new", 3),))

    (result,) = ask(broker, request, principal=ALICE).topics

    assert (0, NO_TOPIC, -1, -1, ()) == (
        result.error_code,
        result.topic_config_error_code,
        result.num_partitions,
        result.replication_factor,
        result.configs,
    )
    assert 3 == len(broker.cluster.topic("new").partitions)


def test_groups_are_listed_for_those_who_may_describe_them(broker):
    """A client sees the groups that it may describe, or all with DESCRIBE of the cluster."""
    ask(broker, commit_request("hidden", {("t", 0): 1}), 9, principal="User:admin")

    def listed(*acls):
        broker.cluster.change_acls(acls)
        return {
            group.group_id for group in ask(broker, ListGroupsRequest(), principal=ALICE).groups
        }

    assert set() == listed()
    assert {"g"} == listed(may("READ", GROUP))
    assert {"g", "hidden"} == listed(may("DESCRIBE", CLUSTER))


def test_transactional_ids_are_listed_for_those_who_may_describe_them(broker):
    """ListTransactions has the transactional ids that the client may describe."""
    for transactional_id in ("x", "hidden"):
        request = InitProducerIdRequest(transactional_id=transactional_id, **NEW_ID)
        ask(broker, request, principal="User:admin")
    broker.cluster.change_acls([may("DESCRIBE", TRANSACTION)])

    answer = ask(broker, list_transactions(), principal=ALICE)

    assert ["x"] == [state.transactional_id for state in answer.transaction_states]


def test_all_offsets_of_a_group_are_those_of_topics_that_may_be_described(broker):
    """A request for all offsets leaves out those of other topics, without an error."""
    commit = commit_request("g", {("t", 0): 1, ("hidden", 0): 2})
    ask(broker, commit, 9, principal="User:admin")
    broker.cluster.change_acls([may("DESCRIBE", GROUP), may("DESCRIBE", TOPIC)])

    (group,) = ask(broker, fetch_offsets_request("g", None), 9, principal=ALICE).groups

    assert (0, ["t"]) == (group.error_code, [topic.name for topic in group.topics])


def test_a_deleted_topic_that_may_not_be_described_has_no_name(broker):
    """The error of a topic by id has its name only for those who may describe it."""
    topic_id = broker.cluster.topic("t").topic_id

    def deleted(*acls):
        broker.cluster.change_acls(acls)
        (result,) = ask(broker, delete_topics(topic_id), principal=ALICE).responses
        return result.error_code, result.name

    assert (NO_TOPIC, None) == deleted()
    assert (NO_TOPIC, "t") == deleted(may("DESCRIBE", TOPIC))


def test_the_deletion_of_a_topic_does_not_disclose_whether_it_exists(broker):
    """A client that may not describe a topic by name gets the same error whether it exists."""
    answer = ask(broker, delete_topics("hidden", "missing"), principal=ALICE)

    assert [NO_TOPIC, NO_TOPIC] == [result.error_code for result in answer.responses]


def test_one_partition_is_refused_and_the_others_are_written(broker):
    """Each topic of a Produce request is allowed or refused by itself."""
    broker.cluster.change_acls([may("WRITE", TOPIC)])
    one, other = produce_request("t", RECORDS), produce_request("hidden", RECORDS)
    request = dataclasses.replace(one, topic_data=one.topic_data + other.topic_data)

    answer = ask(broker, request, 12, principal=ALICE)

    assert [("t", 0), ("hidden", NO_TOPIC)] == [
        (topic.name, partition.error_code)
        for topic in answer.responses
        for partition in topic.partition_responses
    ]


def test_partitions_of_all_topics_are_those_that_may_be_described(broker):
    """DescribeTopicPartitions leaves out others, and those it names come last, without an id."""
    broker.cluster.change_acls([may("DESCRIBE", TOPIC)])

    def described(*names):
        request = DescribeTopicPartitionsRequest(
            topics=tuple(PartitionsOf(name=name) for name in names)
        )
        topics = ask(broker, request, principal=ALICE).topics
        return [(topic.name, topic.error_code, len(topic.partitions)) for topic in topics]

    assert [("t", 0, 1)] == described()
    assert [("t", 0, 1), ("hidden", NO_TOPIC, 0)] == described("hidden", "t")


def test_an_acl_for_another_host_does_not_apply(broker):
    """An ACL is for the client's address."""
    broker.cluster.change_acls([may("READ", TOPIC)._replace(host="10.0.0.7")])

    def fetched(host):
        answer = ask(broker, fetch(), 12, principal=ALICE, client_host=host)
        return answer.responses[0].partitions[0].error_code

    assert 0 == fetched("10.0.0.7")
    assert NO_TOPIC == fetched("127.0.0.1")


def test_a_follower_has_its_state_in_newer_versions(broker):
    """From Fetch 15 on the replica is in a structure, and needs the same right."""
    request = fetch(
        topics=(
            FetchTopic(
                topic_id=broker.cluster.topic("t").topic_id,
                partitions=fetch().topics[0].partitions,
            ),
        ),
        replica_state=ReplicaState(replica_id=1),
    )
    broker.cluster.change_acls([may("READ", TOPIC)])

    assert {NO_TOPIC} == codes(ask(broker, request, principal=ALICE)) - {0}


def test_an_unknown_topic_id_is_not_a_missing_right(broker):
    """An id without a topic is unknown, whatever the client may do."""
    request = fetch(
        topics=(FetchTopic(topic_id=uuid.UUID(int=9), partitions=fetch().topics[0].partitions),)
    )

    assert {ErrorCode.UNKNOWN_TOPIC_ID} == codes(ask(broker, request, principal=ALICE)) - {0}
