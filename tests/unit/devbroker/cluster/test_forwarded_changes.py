"""Requests that change topics and settings reach the controller by way of any broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_configs as replacing
from spark_kafka_sink.protocol.messages import describe_configs
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.elect_leaders import (
    PREFERRED,
    ElectLeadersRequest,
    TopicPartitions,
)
from spark_kafka_sink.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from spark_kafka_sink.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.replication.local_cluster import LocalCluster

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def cluster():
    """Return three running brokers."""
    cluster = LocalCluster()
    cluster.run(0.5)
    yield cluster
    cluster.close()


def create(name, configs=(), **fields):
    fields = {"num_partitions": 2, "replication_factor": 3, "assignments": ()} | fields
    entries = tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs)
    return CreateTopicsRequest(topics=(CreatableTopic(name=name, configs=entries, **fields),))


def topics_of(cluster, node_id):
    return {topic.name: len(topic.partitions) for topic in cluster.brokers[node_id].cluster.topics}


def follower(cluster):
    """Return a broker that is not the controller."""
    controller = cluster.cluster.quorum.controller_id
    return next(each for each in cluster.node_ids if each != controller)


def test_a_topic_is_created_by_any_broker(cluster):
    """The response has what the controller decided, and all brokers know the topic."""
    asked = follower(cluster)
    (result,) = cluster.ask(asked, create("t", [("retention.ms", "5000")])).topics

    assert ("t", ErrorCode.NONE, 2, 3) == (
        result.name,
        result.error_code,
        result.num_partitions,
        result.replication_factor,
    )
    assert "5000" == {each.name: each.value for each in result.configs}["retention.ms"]
    assert [{"t": 2}] * 3 == [topics_of(cluster, each) for each in cluster.node_ids]


def test_a_refusal_is_the_controllers(cluster):
    """A topic that exists is refused wherever it is requested."""
    for node_id, code in ((1, ErrorCode.NONE), (2, ErrorCode.TOPIC_ALREADY_EXISTS)):
        (result,) = cluster.ask(node_id, create("t")).topics
        assert code == result.error_code


def test_the_topic_of_the_controllers_cannot_be_created(cluster):
    """Its creation is prohibited, as on one broker."""
    (result,) = cluster.ask(2, create("__cluster_metadata")).topics

    assert ErrorCode.INVALID_REQUEST == result.error_code


def test_a_topic_is_grown_and_deleted_by_any_broker(cluster):
    """A topic is named by name or by id."""
    for number, version in enumerate((5, None)):
        (created,) = cluster.ask(1, create("t")).topics
        (grown,) = cluster.ask(
            2,
            CreatePartitionsRequest(
                topics=(CreatePartitionsTopic(name="t", count=5, assignments=None),),
                timeout_ms=0,
                validate_only=False,
            ),
        ).results
        assert (ErrorCode.NONE, {"t": 5}) == (grown.error_code, topics_of(cluster, 3))
        request = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=None, topic_id=created.topic_id),) if number else (),
            topic_names=() if number else ("t",),
            timeout_ms=0,
        )
        (deleted,) = cluster.ask(3, request, version).responses
        assert ("t", ErrorCode.NONE) == (deleted.name, deleted.error_code)
        assert {} == topics_of(cluster, 2)


def test_an_unknown_topic_is_not_deleted(cluster):
    """The controller says so."""
    request = DeleteTopicsRequest(
        topics=(DeleteTopicState(name="no", topic_id=ZERO_UUID),), timeout_ms=0
    )

    (deleted,) = cluster.ask(2, request).responses

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == deleted.error_code


def test_a_topic_is_created_when_a_client_asks_for_it(cluster):
    """The first response says that it does not exist, and the next one describes it."""
    request = MetadataRequest(topics=(MetadataRequestTopic(name="t", topic_id=ZERO_UUID),))

    codes = [cluster.ask(2, request).topics[0].error_code for _ in range(2)]

    assert [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE] == codes


def alter(*configs, name="t", resource_type=TOPIC, **fields):
    entries = tuple(
        AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in configs
    )
    resource = AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=entries
    )
    fields = {"validate_only": False} | fields
    return IncrementalAlterConfigsRequest(resources=(resource,), **fields)


def settings(cluster, node_id, name="t", resource_type=TOPIC):
    """Return the settings of a resource as clients see them."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    response = cluster.ask(node_id, describe_configs.DescribeConfigsRequest(resources=(resource,)))
    return {each.name: each.value for each in response.results[0].configs}


def test_the_settings_of_a_topic_change_on_all_brokers(cluster):
    """Values are set, appended to, subtracted from and reset."""
    cluster.ask(1, create("t"))

    codes = [
        cluster.ask(2, alter(*changes)).responses[0].error_code
        for changes in (
            [("retention.ms", SET, "7000"), ("cleanup.policy", APPEND, "compact")],
            [("cleanup.policy", SUBTRACT, "delete"), ("min.insync.replicas", SET, "2")],
            [("retention.ms", DELETE, None)],
        )
    ]

    assert [ErrorCode.NONE] * 3 == codes
    for node_id in cluster.node_ids:
        values = settings(cluster, node_id)
        assert ("604800000", "compact", "2") == (
            values["retention.ms"],
            values["cleanup.policy"],
            values["min.insync.replicas"],
        )
        partition = cluster.brokers[node_id].cluster.partition(TopicPartition("t", 0))
        assert 2 == partition.log.config.min_insync_replicas


def test_settings_are_replaced_as_a_whole(cluster):
    """AlterConfigs resets what it does not name."""
    cluster.ask(1, create("t", [("retention.ms", "5000")]))
    resource = replacing.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="t",
        configs=(replacing.AlterableConfig(name="segment.ms", value="9000"),),
    )
    request = replacing.AlterConfigsRequest(resources=(resource,), validate_only=False)

    (result,) = cluster.ask(3, request).responses

    assert ErrorCode.NONE == result.error_code
    values = settings(cluster, 1)
    assert ("604800000", "9000") == (values["retention.ms"], values["segment.ms"])


@pytest.mark.parametrize(
    ("changes", "name", "code"),
    [
        ([("retention.ms", SET, "x")], "t", ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], "t", ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 7, "1")], "t", ErrorCode.UNKNOWN_SERVER_ERROR),
        ([("retention.ms", SET, None)], "t", ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1")] * 2, "t", ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1")], "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([("retention.ms", SET, "1")], "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_invalid_settings_are_refused(cluster, changes, name, code):
    """Nothing changes then."""
    cluster.ask(1, create("t"))
    before = settings(cluster, 1)

    (result,) = cluster.ask(2, alter(*changes, name=name)).responses

    assert (code, before) == (result.error_code, settings(cluster, 1))


def test_a_validation_changes_nothing(cluster):
    """With `validate_only` the response is the same."""
    cluster.ask(1, create("t"))

    request = alter(("retention.ms", SET, "1"), validate_only=True)
    (result,) = cluster.ask(2, request).responses

    assert (ErrorCode.NONE, "604800000") == (
        result.error_code,
        settings(cluster, 1)["retention.ms"],
    )


def test_the_defaults_of_topics_change_for_all_brokers_or_for_one(cluster):
    """A topic has them unless it has its own, and so has its log."""
    cluster.ask(1, create("t"))
    for name, node_id, value in (("", 1, "5000"), ("2", 2, "6000")):
        request = alter(("log.retention.ms", SET, value), name=name, resource_type=BROKER)
        assert ErrorCode.NONE == cluster.ask(node_id, request).responses[0].error_code

    assert ["5000", "6000", "5000"] == [
        settings(cluster, node_id)["retention.ms"] for node_id in cluster.node_ids
    ]
    assert [5000, 6000, 5000] == [
        broker.cluster.partition(TopicPartition("t", 0)).log.config.retention_ms
        for broker in cluster.brokers.values()
    ]
    assert "6000" == settings(cluster, 2, "2", BROKER)["log.retention.ms"]


@pytest.mark.parametrize(
    ("name", "key"), [("", "num.partitions"), ("", "no"), ("3", "log.retention.ms")]
)
def test_what_a_broker_cannot_change_is_refused(cluster, name, key):
    """Fixed and unknown settings, and those of another broker."""
    request = alter((key, SET, "5000"), name=name, resource_type=BROKER)

    (result,) = cluster.ask(2, request).responses

    assert ErrorCode.INVALID_REQUEST == result.error_code


def test_leaders_are_elected_and_moved_by_the_controller(cluster):
    """A partition gets the replicas that are requested, and its preferred leader."""
    cluster.ask(1, create("t", num_partitions=1))
    partition = ReassignablePartition(partition_index=0, replicas=(3, 2))
    topic = ReassignableTopic(name="t", partitions=(partition,))

    moved = cluster.ask(2, AlterPartitionReassignmentsRequest(topics=(topic,)), wait=1.0)
    listed = cluster.ask(1, ListPartitionReassignmentsRequest(topics=None))
    elected = cluster.ask(
        2,
        ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=(TopicPartitions(topic="t", partitions=(0,)),),
        ),
    )

    assert ErrorCode.NONE == moved.responses[0].partitions[0].error_code
    assert () == listed.topics
    code = elected.replica_election_results[0].partition_result[0].error_code
    assert code in {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}
    leadership = cluster.brokers[1].cluster.partition(TopicPartition("t", 0)).leadership
    assert ((3, 2), 3) == (leadership.replicas, leadership.leader_id)


def test_a_request_waits_while_there_is_no_controller(cluster):
    """It has its effect once there is one again."""
    asked = follower(cluster)
    cluster.kill(cluster.cluster.quorum.controller_id)
    assert isinstance(cluster.ask(asked, create("t", replication_factor=2)), Delayed)

    cluster.run(5.0)

    assert {"t": 2} == topics_of(cluster, asked)


def test_a_request_fails_if_no_controller_can_be_reached_in_time(cluster):
    """The client learns that it may have had its effect or not."""
    asked = follower(cluster)
    for node_id in cluster.node_ids:
        if node_id != asked:
            cluster.cluster.cut(asked, node_id)

    (result,) = cluster.ask(asked, create("t"), wait=40.0).topics

    assert ErrorCode.REQUEST_TIMED_OUT == result.error_code


ALICE = "User:alice"


@pytest.fixture
def strict():
    """Return three running brokers on which everything is allowed to ANONYMOUS alone."""
    settings = BrokerSettings(authorizer=True, super_users=("User:ANONYMOUS",))
    cluster = LocalCluster(settings=settings)
    cluster.run(0.5)
    yield cluster
    cluster.close()


def test_what_a_client_may_not_request_is_not_forwarded(strict):
    """The broker that it asks refuses it, and the topic remains as it is."""
    assert ErrorCode.NONE == strict.ask(1, create("t")).topics[0].error_code
    delete = DeleteTopicsRequest(
        topics=(DeleteTopicState(name="t", topic_id=ZERO_UUID),), timeout_ms=0
    )
    grow = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name="t", count=5, assignments=None),),
        timeout_ms=0,
        validate_only=False,
    )

    codes = [
        ask(strict.brokers[2], request, now=strict.now, principal=ALICE)
        for request in (create("u"), delete, grow, alter(("retention.ms", SET, "1")))
    ]

    assert [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 4 == [
        codes[0].topics[0].error_code,
        codes[1].responses[0].error_code,
        codes[2].results[0].error_code,
        codes[3].responses[0].error_code,
    ]
    assert {"t": 2} == topics_of(strict, 3)


def test_acls_are_those_of_all_brokers(strict):
    """A right that one broker was told of is known to the others at once."""
    creation = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name="u",
        resource_pattern_type=ResourcePatternType.LITERAL,
        principal=ALICE,
        host="*",
        operation=AclOperation.CREATE,
        permission_type=AclPermissionType.ALLOW,
    )
    (added,) = strict.ask(1, CreateAclsRequest(creations=(creation,))).results
    assert ErrorCode.NONE == added.error_code

    created = ask(strict.brokers[3], create("u"), now=strict.now, principal=ALICE)

    assert ErrorCode.NONE == created.topics[0].error_code
    assert {"u": 2} == topics_of(strict, 2)
