"""Records of metadata survive their way to the disk, and what is damaged is refused."""

from __future__ import annotations

import json
import typing
import uuid

import pytest

from spark_kafka_sink.devbroker.metadata.record_codec import decode_record, encode_record
from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    BrokerChange,
    ConfigRecord,
    ConfigResource,
    Endpoint,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    TopicRecord,
    UnregisterBroker,
)

TOPIC_ID = uuid.UUID(int=7)
RECORDS = [
    RegisterBroker(
        node_id=1,
        broker_epoch=4,
        incarnation_id=uuid.UUID(int=9),
        endpoints=(Endpoint("L", "h", 9092, 3), Endpoint("M", "::1", 1)),
        rack="a \u00e4",
        fenced=False,
        in_controlled_shutdown=True,
    ),
    RegisterBroker(node_id=1, broker_epoch=4, incarnation_id=uuid.UUID(int=9)),
    BrokerChange(node_id=1, broker_epoch=4, fenced=True),
    BrokerChange(node_id=1, broker_epoch=4, in_controlled_shutdown=False),
    UnregisterBroker(node_id=1, broker_epoch=4),
    TopicRecord(topic_id=TOPIC_ID, name="a.topic"),
    RemoveTopic(topic_id=TOPIC_ID),
    PartitionRecord(
        topic_id=TOPIC_ID,
        partition=3,
        replicas=(3, 1, 2),
        isr=(1,),
        leader=-1,
        adding=(2,),
        removing=(3,),
        elr=(2,),
        last_known_elr=(3,),
        leader_recovery_state=1,
        leader_epoch=5,
        partition_epoch=6,
    ),
    PartitionChange(topic_id=TOPIC_ID, partition=3, leader=2, isr=(), elr=(1, 2)),
    ConfigRecord(resource=ConfigResource(TOPIC_RESOURCE, "a.topic"), name="k", value="v"),
    ConfigRecord(resource=ConfigResource(TOPIC_RESOURCE, "a.topic"), name="k", value=None),
    ProducerIds(node_id=1, broker_epoch=4, next_producer_id=2**62),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record):
    """Every field has its value and its type, and None stays None."""
    assert record == decode_record(encode_record(record))
    assert hash(record) == hash(decode_record(encode_record(record)))


def test_all_types_of_records_are_stored():
    """A type that is added to the log needs a test here."""
    assert set(typing.get_args(MetadataRecord)) == {type(record) for record in RECORDS}


def changed(record, **fields):
    """Return an encoded record with other fields."""
    content = json.loads(encode_record(record)) | fields
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"type": "Other"}',
        b'{"type": "UnregisterBroker", "node_id": 1}',
        changed(RECORDS[5], name="../up"),
        changed(RECORDS[5], name=5),
        changed(RECORDS[5], topic_id="7"),
        changed(RECORDS[5], more=1),
        changed(RECORDS[2], fenced=1),
        changed(RECORDS[4], node_id="1"),
        changed(RECORDS[4], node_id=True),
        changed(RECORDS[7], replicas=[1, "2"]),
        changed(RECORDS[7], replicas=1),
        changed(RECORDS[0], endpoints=[["L", "h"]]),
        changed(RECORDS[9], resource=[2]),
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_record_is_refused(encoded):
    """Nothing is guessed, and no topic's name leads out of the directory."""
    with pytest.raises(ValueError, match="not a record of metadata"):
        decode_record(encoded)
