"""The image of a cluster's metadata, and the records that build it."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.metadata.image import MetadataError, MetadataImage
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    NO_LEADER,
    RECOVERING,
    TOPIC_RESOURCE,
    BrokerChange,
    ConfigRecord,
    ConfigResource,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    TopicRecord,
    UnregisterBroker,
)

ORDERS = uuid.UUID(int=1)
TOPIC = TopicRecord(topic_id=ORDERS, name="orders")
PARTITION = PartitionRecord(
    topic_id=ORDERS, partition=0, replicas=(1, 2, 3), isr=(1, 2), leader=1, elr=(3,)
)
BROKER = RegisterBroker(node_id=1, broker_epoch=7, incarnation_id=uuid.UUID(int=9))


def change(**changes: object) -> PartitionChange:
    """Return a change of the partition."""
    return PartitionChange(topic_id=ORDERS, partition=0, **changes)


def image_of(*records: object) -> MetadataImage:
    """Return the image after these records."""
    image = MetadataImage()
    image.apply(records)
    return image


def test_a_broker_has_the_state_of_its_last_registration_and_the_changes_after_it():
    """A change sets only what it names, and a new registration replaces all."""
    image = image_of(BROKER)
    assert not image.is_active(1)
    image.apply([BrokerChange(node_id=1, broker_epoch=7, fenced=False)])
    assert image.is_active(1)
    image.apply([BrokerChange(node_id=1, broker_epoch=7, in_controlled_shutdown=True)])
    assert not image.is_active(1)
    assert not image.brokers[1].fenced
    assert 0 == image.registration_offset(1)
    image.apply([BROKER])
    assert BROKER == image.brokers[1]
    assert 3 == image.registration_offset(1)
    image.apply([UnregisterBroker(node_id=1, broker_epoch=7)])
    assert {} == image.brokers
    assert image.registration_offset(1) is None
    assert not image.is_active(1)


def test_a_topic_is_found_by_name_and_by_id_until_it_is_removed():
    """Its partitions and its settings go with it, and a new topic may have its name."""
    setting = ConfigRecord(
        resource=ConfigResource(TOPIC_RESOURCE, "orders"), name="retention.ms", value="1"
    )
    image = image_of(TOPIC, PARTITION, setting)
    topic = image.find_topic("orders")
    assert topic is image.topics[ORDERS]
    assert PARTITION == image.find_partition(PARTITION.id)
    assert [PARTITION] == list(image.partitions())
    assert {"retention.ms": "1"} == image.topic_config("orders")
    delta = image.apply([RemoveTopic(topic_id=ORDERS)])
    assert {ORDERS: topic} == delta.deleted_topics
    assert image.find_topic("orders") is None
    assert image.find_partition(PARTITION.id) is None
    assert {} == image.topic_config("orders")
    image.apply([TopicRecord(topic_id=uuid.UUID(int=2), name="orders")])
    assert uuid.UUID(int=2) == image.find_topic("orders").topic_id


def test_a_change_of_a_partition_raises_its_epoch():
    """Only a named leader raises the leader epoch, even if it led before."""
    image = image_of(TOPIC, PARTITION)
    image.apply([change(isr=(1,), elr=())])
    partition = image.find_partition(PARTITION.id)
    assert ((1,), ()) == (partition.isr, partition.elr)
    assert (1, 0, 1) == (partition.leader, partition.leader_epoch, partition.partition_epoch)
    image.apply([change(leader=1)])
    partition = image.find_partition(PARTITION.id)
    assert (1, 1, 2) == (partition.leader, partition.leader_epoch, partition.partition_epoch)
    image.apply([change(leader=NO_LEADER, leader_recovery_state=RECOVERING)])
    partition = image.find_partition(PARTITION.id)
    assert not partition.has_leader
    assert RECOVERING == partition.leader_recovery_state


@pytest.mark.parametrize(
    ("name", "value"),
    [("leader", 1), ("isr", ()), ("replicas", (2,)), ("leader_recovery_state", 0)],
)
def test_a_change_that_names_something_is_not_empty(name, value):
    """Empty lists and zeros are values, and only None means no change."""
    assert change().is_empty
    assert not change(**{name: value}).is_empty


def test_a_partition_says_whether_its_leader_is_the_preferred_one():
    """The preferred leader is the first replica, and a reassignment adds or removes replicas."""
    assert PARTITION.has_preferred_leader
    assert not change(leader=2).apply_to(PARTITION).has_preferred_leader
    assert not PARTITION.is_reassigning
    assert change(adding=(4,)).apply_to(PARTITION).is_reassigning
    assert change(removing=(3,)).apply_to(PARTITION).is_reassigning


def test_a_setting_is_replaced_or_removed():
    """A setting without a value is one that is not set."""
    brokers = ConfigResource(BROKER_RESOURCE, "")
    image = image_of(ConfigRecord(resource=brokers, name="min.insync.replicas", value="2"))
    assert {"min.insync.replicas": "2"} == image.config(brokers)
    delta = image.apply([ConfigRecord(resource=brokers, name="min.insync.replicas", value=None)])
    assert {} == image.config(brokers)
    assert {brokers} == delta.configs
    assert MetadataImage().config(brokers) == image.config(brokers)


def test_a_block_of_producer_ids_moves_the_next_one():
    """The next block begins where the last one ends."""
    assert 0 == MetadataImage().next_producer_id
    image = image_of(ProducerIds(node_id=1, broker_epoch=7, next_producer_id=1000))
    assert 1000 == image.next_producer_id


def test_a_delta_has_what_was_before():
    """Several changes of one partition count as one, from the state before the first."""
    image = image_of(BROKER, TOPIC, PARTITION)
    unfence = BrokerChange(node_id=1, broker_epoch=7, fenced=False)
    delta = image.apply([change(leader=2), unfence, change(leader=1)])
    assert {PARTITION.id: PARTITION} == delta.partitions
    assert {1} == delta.brokers
    assert 5 == image.offset


def test_a_delta_has_no_partition_of_a_deleted_topic():
    """A new partition has no state before, and one that is deleted again is not mentioned."""
    image = MetadataImage()
    assert {PARTITION.id: None} == image.apply([TOPIC, PARTITION, change(leader=2)]).partitions
    delta = image.apply([change(leader=1), RemoveTopic(topic_id=ORDERS)])
    assert {} == delta.partitions
    assert [ORDERS] == list(delta.deleted_topics)


def test_images_are_equal_if_the_same_records_were_applied():
    """It does not matter in how many steps."""
    image = image_of(BROKER, TOPIC)
    assert image != image_of(BROKER, TOPIC, PARTITION)
    image.apply([PARTITION])
    assert image == image_of(BROKER, TOPIC, PARTITION)
    assert image != "an image"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (TOPIC, "exists already"),
        (TopicRecord(topic_id=uuid.UUID(int=5), name="orders"), "exists already"),
        (PARTITION, "partition orders-0 exists already"),
        (
            PartitionRecord(
                topic_id=uuid.UUID(int=5), partition=0, replicas=(1,), isr=(1,), leader=1
            ),
            "no topic with id",
        ),
        (PartitionChange(topic_id=ORDERS, partition=1, leader=1), "no partition 1"),
        (RemoveTopic(topic_id=uuid.UUID(int=5)), "no topic with id"),
        (BrokerChange(node_id=1, broker_epoch=6, fenced=False), "not registered with epoch 6"),
        (UnregisterBroker(node_id=2, broker_epoch=7), "broker 2 is not registered"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(record, message):
    """A record of something unknown, or of something that exists already, is an error."""
    image = image_of(BROKER, TOPIC, PARTITION)
    with pytest.raises(MetadataError, match=message):
        image.apply([record])
    assert 2 == image.offset
