"""The public admin client on a real Kafka, compared with librdkafka's admin client."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pytest
from confluent_kafka import admin as ck_admin

from spark_kafka_sink import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AdminError,
    AlterConfigOp,
    AlterConfigOpType,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    KafkaProducer,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    TopicPartition,
    TopicPartitionReplica,
)
from tests.support.kafka.real_kafka import wait_until
from tests.support.skips import ToleratedSkip
from tests.support.spark.source_groups import joined_consumer

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 120


@pytest.fixture
def admin(kafka) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        yield client


def own_name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def answers(futures):
    """Return the results of futures by their keys."""
    return {key: future.result(SECONDS) for key, future in futures.items()}


def names_of(caught):
    return {item: error.name for item, error in caught.value.errors.items()}


def test_topics_are_as_librdkafka_describes_them(kafka, admin):
    """Ids, partitions, leaders and replicas of a topic that we have created and extended."""
    topic = own_name("admin")
    created = admin.create_topics([NewTopic(topic, 2, 1, {"cleanup.policy": "compact"})])[topic]
    admin.create_partitions({topic: NewPartitions(3)})
    wait_until(
        lambda: 3 == len(admin.describe_topics([topic])[topic].partitions),
        seconds=SECONDS,
        what="the new partition",
    )

    ours = admin.describe_topics([topic], include_authorized_operations=True)[topic]
    [theirs] = answers(
        kafka.admin.describe_topics(ck.TopicCollection([topic]), include_authorized_operations=True)
    ).values()

    assert "compact" == created.configs["cleanup.policy"].value
    assert ours.topic_id == created.topic_id == admin.list_topics()[topic].topic_id
    assert [
        (it.id, it.leader.id, [n.id for n in it.replicas], [n.id for n in it.isr])
        for it in theirs.partitions
    ] == [
        (
            it.partition,
            it.leader.node_id,
            [n.node_id for n in it.replicas],
            [n.node_id for n in it.isr],
        )
        for it in ours.partitions
    ]
    assert {it.value for it in theirs.authorized_operations} == ours.authorized_operations
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), seconds=SECONDS, what="the deletion")


def test_brokers_are_described_and_changed(kafka_4):
    """Directories, leaders, replicas and controllers of the newest version."""
    with AdminClient({"bootstrap.servers": kafka_4.bootstrap_servers}) as admin:
        [node] = admin.describe_cluster().nodes
        name = own_name("brokers")
        admin.create_topics([NewTopic(name, 1, 1)])
        place = TopicPartition(name, 0)
        wait_until(
            lambda: place in replicas_of(admin, node.node_id),
            seconds=SECONDS,
            what="the replica",
        )
        directories = admin.describe_log_dirs([node.node_id])[node.node_id]
        path, directory = next(
            (path, it) for path, it in directories.items() if place in it.replica_infos
        )
        assert (0, False) == (
            directory.replica_infos[place].size,
            directory.replica_infos[place].is_future,
        )
        assert 0 < directory.usable_bytes < directory.total_bytes
        admin.alter_replica_log_dirs({TopicPartitionReplica(name, 0, node.node_id): path})

        assert {place: False} == admin.elect_leaders(ElectionType.PREFERRED, [place])
        admin.alter_partition_reassignments({place: [node.node_id]})
        assert {} == admin.list_partition_reassignments([place])
        quorum = admin.describe_metadata_quorum()
        assert [node.node_id] == [voter.replica_id for voter in quorum.voters]
        assert quorum.high_watermark == quorum.voters[0].log_end_offset
        topic = ConfigResource(ConfigResourceType.TOPIC, name)
        assert topic in admin.list_config_resources([ConfigResourceType.TOPIC])
        admin.delete_topics([name])


def replicas_of(admin: AdminClient, node_id: int) -> set[TopicPartition]:
    return {
        partition
        for directory in admin.describe_log_dirs([node_id])[node_id].values()
        for partition in directory.replica_infos
    }


def test_settings_are_as_librdkafka_describes_them(kafka, admin, create_topic):
    """All settings of a topic and of a broker, with their sources, after changes of ours."""
    topic = ConfigResource(ConfigResourceType.TOPIC, create_topic(1))
    [node] = admin.describe_cluster().nodes
    broker = ConfigResource(ConfigResourceType.BROKER, str(node.node_id))
    admin.incremental_alter_configs(
        {
            topic: [
                AlterConfigOp("retention.ms", "1000"),
                AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND),
            ]
        }
    )
    wait_until(
        lambda: "1000" == admin.describe_configs([topic])[topic]["retention.ms"].value,
        seconds=SECONDS,
        what="the changed setting",
    )

    ours = admin.describe_configs([topic, broker], include_synonyms=True)
    theirs = answers(
        kafka.admin.describe_configs(
            [
                ck_admin.ConfigResource("topic", topic.name),
                ck_admin.ConfigResource("broker", broker.name),
            ]
        )
    )

    for resource, entries in zip((topic, broker), theirs.values(), strict=True):
        assert {
            name: (it.value, it.source, it.is_read_only, it.is_sensitive)
            for name, it in entries.items()
        } == {
            name: (it.value, it.source.value, it.is_read_only, it.is_sensitive)
            for name, it in ours[resource].items()
        }
    assert "delete,compact" == ours[topic]["cleanup.policy"].value


def test_a_wrong_setting_is_the_brokers_error(admin, create_topic):
    """The error of the resource has Kafka's code and message."""
    topic = ConfigResource(ConfigResourceType.TOPIC, create_topic(1))
    with pytest.raises(AdminError, match="the broker said") as caught:
        admin.incremental_alter_configs({topic: [AlterConfigOp("retention.ms", "soon")]})

    assert {topic: "INVALID_CONFIG"} == names_of(caught)


def test_offsets_are_as_librdkafka_lists_them(kafka, admin, create_topic):
    """The first, the last, by time, and by the highest timestamp, after records were deleted."""
    topic = create_topic(1)
    place = TopicPartition(topic, 0)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap_servers}) as producer:
        for second in range(5):
            producer.send(topic, b"v", timestamp=second * 1000)
    assert {place: 2} == admin.delete_records({place: 2})

    for ours, theirs in (
        (OffsetSpec.EARLIEST, ck_admin.OffsetSpec.earliest()),
        (OffsetSpec.LATEST, ck_admin.OffsetSpec.latest()),
        (OffsetSpec.MAX_TIMESTAMP, ck_admin.OffsetSpec.max_timestamp()),
        (2500, ck_admin.OffsetSpec.for_timestamp(2500)),
    ):
        [expected] = answers(
            kafka.admin.list_offsets({ck.TopicPartition(topic, 0): theirs})
        ).values()
        found = admin.list_offsets({place: ours})[place]
        assert (expected.offset, expected.timestamp) == (found.offset, found.timestamp)


def test_the_cluster_is_as_librdkafka_describes_it(kafka, admin):
    """The id, the brokers with their addresses, and the rights."""
    theirs = kafka.admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    ours = admin.describe_cluster(include_authorized_operations=True)

    assert theirs.cluster_id == ours.cluster_id
    assert [(it.id, it.host, it.port) for it in theirs.nodes] == [tuple(it) for it in ours.nodes]
    assert {it.value for it in theirs.authorized_operations} == ours.authorized_operations


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_as_librdkafka_describes_them(kafka, admin, create_topic, protocol):
    """State, assignor and members with their partitions, of both protocols of groups."""
    if protocol == "consumer" and kafka.version.startswith("3"):
        raise ToleratedSkip("the new protocol is not enabled before 4.0")
    topic, group = create_topic(3), own_name("group")
    settings = {"client_id": "reader", "group_protocol": protocol}
    with joined_consumer(kafka.bootstrap_servers, group, topic, **settings):
        [theirs] = answers(kafka.admin.describe_consumer_groups([group])).values()
        ours = admin.describe_consumer_groups([group])[group]
        listed = {it.group_id: it for it in admin.list_consumer_groups(states=["Stable"])}
        with pytest.raises(AdminError) as caught:
            admin.delete_consumer_group_offsets(group, [TopicPartition(topic, 0)])

    assert "Stable" == ours.state == listed[group].state
    assert protocol == ours.type.lower()
    assert theirs.partition_assignor == ours.partition_assignor
    assert theirs.coordinator.id == ours.coordinator.node_id
    assert [
        (
            it.member_id,
            it.client_id,
            it.host,
            [(p.topic, p.partition) for p in it.assignment.topic_partitions],
        )
        for it in theirs.members
    ] == [(it.member_id, it.client_id, it.host, list(it.assignment)) for it in ours.members]
    assert 3 == sum(len(it.assignment) for it in ours.members)
    assert {TopicPartition(topic, 0): "GROUP_SUBSCRIBED_TO_TOPIC"} == names_of(caught)


def test_offsets_of_groups_are_those_that_librdkafka_reads(kafka, admin, create_topic):
    """Offsets that we set are read by librdkafka, and are gone after we have deleted them."""
    topic, group = create_topic(2), own_name("group")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    def theirs():
        [answer] = answers(
            kafka.admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)])
        ).values()
        return {TopicPartition(it.topic, it.partition): it.offset for it in answer.topic_partitions}

    admin.alter_consumer_group_offsets(group, {first: OffsetAndMetadata(3, 0, "ours"), second: 4})
    assert {first: 3, second: 4} == theirs()
    # What librdkafka returns as metadata has stray bytes at its end, so it is compared with ours.
    assert {first: OffsetAndMetadata(3, 0, "ours"), second: OffsetAndMetadata(4)} == (
        admin.list_consumer_group_offsets(group)
    )
    admin.delete_consumer_group_offsets(group, [first])
    assert {second} == theirs().keys() == admin.list_consumer_group_offsets(group).keys()
    admin.delete_consumer_groups([group])
    with pytest.raises(AdminError) as caught:
        admin.describe_consumer_groups([group])
    assert {group: "GROUP_ID_NOT_FOUND"} == names_of(caught)


def test_transactions_are_listed_and_described(kafka, admin, create_topic):
    """An open transaction, its partition, and its producer there."""
    topic, name = create_topic(1), own_name("txn")
    place = TopicPartition(topic, 0)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name}
    with KafkaProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v").result(timeout=SECONDS)
        listed = {it.transactional_id: it for it in admin.list_transactions(states=["Ongoing"])}
        opened = admin.describe_transactions([name])[name]
        [state] = admin.describe_producers([place])[place]
        stable = admin.list_offsets({place: -1}, isolation_level="read_committed")[place]
        producer.abort_transaction()

    assert ("Ongoing", (place,)) == (opened.state, opened.partitions)
    assert opened.producer == (state.producer_id, state.producer_epoch)
    assert listed[name].producer_id == state.producer_id
    assert (0, 0) == (state.current_transaction_start_offset, stable.offset)


def test_without_an_authorizer_there_are_no_acls(admin):
    """Kafka answers as the embedded broker does."""
    binding = acl("t", "User:alice")
    with pytest.raises(AdminError, match="the broker said") as caught:
        admin.create_acls([binding])

    assert {binding: "SECURITY_DISABLED"} == names_of(caught)


def acl(name: str, principal: str, **more) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC,
        name=name,
        principal=principal,
        **{"operation": AclOperation.READ, **more},
    )


def test_acls_are_as_librdkafka_describes_them(kafka_with_acls):
    """ACLs that we create are read by librdkafka, and are gone after we have deleted them."""
    name = own_name("acl")
    bindings = {
        acl(name, "User:alice"),
        acl(name, "User:bob", operation=AclOperation.WRITE, host="127.0.0.9"),
        acl(
            name,
            "User:carol",
            pattern_type=ResourcePatternType.PREFIXED,
            permission_type=AclPermissionType.DENY,
        ),
    }
    every = AclBindingFilter(resource_type=ResourceType.TOPIC, name=name)
    their_filter = ck_admin.AclBindingFilter(
        ck_admin.ResourceType.TOPIC,
        name,
        ck_admin.ResourcePatternType.ANY,
        None,
        None,
        ck_admin.AclOperation.ANY,
        ck_admin.AclPermissionType.ANY,
    )

    def theirs():
        found = kafka_with_acls.admin.describe_acls(their_filter).result(SECONDS)
        return {
            AclBinding(
                resource_type=ResourceType[it.restype.name],
                name=it.name,
                pattern_type=ResourcePatternType[it.resource_pattern_type.name],
                principal=it.principal,
                host=it.host,
                operation=AclOperation[it.operation.name],
                permission_type=AclPermissionType[it.permission_type.name],
            )
            for it in found
        }

    with AdminClient({"bootstrap.servers": kafka_with_acls.bootstrap_servers}) as admin:
        admin.create_acls(bindings)
        wait_until(lambda: bindings == theirs(), seconds=SECONDS, what="the new ACLs")
        assert bindings == set(admin.describe_acls(every))
        assert bindings <= set(admin.describe_acls())
        assert bindings == set(admin.delete_acls([every])[every])
        wait_until(lambda: not theirs(), seconds=SECONDS, what="the deletion")
        assert [] == admin.describe_acls(every)


def test_a_wrong_acl_does_not_affect_others(kafka_with_acls):
    """Kafka refuses an ACL with an invalid principal, and creates the other."""
    right, wrong = acl(own_name("acl"), "User:alice"), acl(own_name("acl"), "alice")
    with AdminClient({"bootstrap.servers": kafka_with_acls.bootstrap_servers}) as admin:
        with pytest.raises(AdminError, match="the broker said") as caught:
            admin.create_acls([right, wrong])
        assert {wrong: "INVALID_REQUEST"} == names_of(caught)
        assert {right} == caught.value.results.keys()
        every = AclBindingFilter(name=right.name)
        wait_until(
            lambda: [right] == admin.describe_acls(every), seconds=SECONDS, what="the new ACL"
        )
        admin.delete_acls([every])
