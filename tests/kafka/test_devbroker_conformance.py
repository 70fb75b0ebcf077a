"""The embedded broker and Apache Kafka: the same answers to the same requests, byte for byte.

Each scenario sends requests to one broker through one socket and returns what matters in the
answers: error codes, offsets, visible records. Error messages are left out, since they differ.
"""

from __future__ import annotations

import struct
import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.record.compression import CompressionType
from tests.support.devbroker.broker_asker import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    creatable,
    observe,
    produce_request,
    sequenced,
)
from tests.support.network.raw_client import RawClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
MAX_SEQUENCE = 2**31 - 1
HOUR_MS = 3_600_000
GOOD = plain_batch(2)
#: Kafka's answer about a transaction while the coordinator is loading.
NOT_READY = [(0, ErrorCode.NOT_ENOUGH_REPLICAS, -1, -1, -1, [])]
SIZE = len(GOOD)


def sequences(broker):
    """Send duplicates, gaps, overlaps, new and stale epochs."""
    topic = broker.topic()
    steps = [
        sequenced(41, 3),  # The producer is unknown, so any sequence is valid.
        sequenced(41, 3),
        sequenced(41, 2),
        sequenced(41, 4),
        sequenced(43, 3),
        sequenced(45),
        *[sequenced(44 + n) for n in range(5)],
        sequenced(41, 3),
        sequenced(44),
        sequenced(0),
        sequenced(1, epoch=1),
        sequenced(0, 2, epoch=1),
        sequenced(0, 2, epoch=1),
        sequenced(48, epoch=0),
        sequenced(2, epoch=1),
    ]
    return [broker.produce(topic, batch) for batch in steps]


def sequence_wrap(broker):
    """Send batches past sequence number 2^31-1."""
    topic = broker.topic()
    steps = [
        sequenced(MAX_SEQUENCE - 1, 4),
        sequenced(MAX_SEQUENCE - 1, 4),
        sequenced(1),
        sequenced(2),
        sequenced(MAX_SEQUENCE, producer_id=4_000_001),
        sequenced(1, producer_id=4_000_001),
        sequenced(0, producer_id=4_000_001),
    ]
    return [broker.produce(topic, batch) for batch in steps]


BAD_BATCHES = {
    "empty": b"",
    "cut in length": GOOD[:11],
    "cut before magic": GOOD[:16],
    "cut at end": GOOD[:-1],
    "length too small": plain_batch(1, batch_length=13),
    "length negative": plain_batch(1, batch_length=-1),
    "magic 3": plain_batch(1, magic=3),
    "magic -1": plain_batch(1, magic=-1),
    "magic 1": plain_batch(1, magic=1),
    "magic 0": plain_batch(1, magic=0),
    "two batches": GOOD + GOOD,
    "garbage behind": GOOD + plain_batch(1, magic=9),
    "cut batch behind": GOOD + GOOD[:40],
    "codec 5": plain_batch(1, attributes=5),
    "base offset": plain_batch(1, base_offset=5),
    "checksum": plain_batch(1, crc=1),
    "no records": plain_batch([], payload=b""),
    "negative count": plain_batch(2, record_count=-1),
    "negative delta": plain_batch(2, last_offset_delta=-1),
    "gap in deltas": plain_batch(2, last_offset_delta=2),
    "count too large": plain_batch(2, record_count=3),
    "control": plain_batch(1, attributes=CONTROL),
    "producer without sequence": plain_batch(
        1, producer_id=4_000_000, producer_epoch=0, base_sequence=-1
    ),
    "good": GOOD,
}


def bad_batches(broker):
    """Send each bad batch in a request with a good batch for another partition."""
    topic = broker.topic(2)
    return {name: broker.produce(topic, batch, GOOD) for name, batch in BAD_BATCHES.items()}


def undecodable_records(broker):
    """Send a batch with a valid checksum whose records cannot be decoded."""
    topic = broker.topic()
    return [
        broker.produce(topic, plain_batch(2, payload=b"\x7f no records", compression=codec))
        for codec in (CompressionType.NONE,)
    ]


def produce_refusals(broker):
    """Send unknown partitions and transactional ids, and invalid acks and codecs."""
    broker.wait_for_coordinators()
    topic = broker.topic(1)
    unknown_id = sequenced(0, attributes=TRANSACTIONAL)
    while NOT_READY == broker.produce(topic, unknown_id, transactional_id="nobody-knows"):
        time.sleep(0.1)
    zstd = plain_batch(1, compression=CompressionType.ZSTD)
    return [
        broker.produce(topic, GOOD, GOOD),
        broker.produce("no-such-topic", GOOD),
        broker.produce(topic, GOOD, acks=2),
        broker.produce(topic, GOOD, acks=-2),
        broker.produce(topic, zstd, version=6),
        broker.produce(topic, zstd, version=7),
        broker.produce(topic, sequenced(0, attributes=TRANSACTIONAL)),
        broker.produce(topic, unknown_id, transactional_id="nobody-knows"),
        broker.produce(topic, unknown_id, transactional_id=""),
        broker.offsets((topic, 0, -1)),
    ]


def sizes(broker):
    """Send a batch of exactly max.message.bytes, and one that is a byte larger."""
    exact = broker.topic(max_message_bytes=str(SIZE))
    smaller = broker.topic(max_message_bytes=str(SIZE - 1))
    return [broker.produce(exact, GOOD), broker.produce(smaller, GOOD)]


def replicas(broker):
    """Require more in-sync replicas than there are."""
    topic = broker.topic(min_insync_replicas="2")
    return [broker.produce(topic, GOOD, acks=acks) for acks in (-1, 1)]


def timestamps(broker):
    """Send timestamps that are out of range, and timestamps that the broker replaces."""
    now = int(time.time() * 1000)
    future = plain_batch([PlainRecord(timestamp=now), PlainRecord(timestamp=now + 2 * HOUR_MS)])
    past = plain_batch([PlainRecord(timestamp=now), PlainRecord(timestamp=now - 2 * HOUR_MS)])
    unset = plain_batch([PlainRecord(timestamp=-1)])
    limits = {
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(HOUR_MS),
    }
    limited = broker.topic(**{key.replace(".", "_"): value for key, value in limits.items()})
    stamped = broker.topic(message_timestamp_type="LogAppendTime")
    answers = [broker.produce(limited, batch) for batch in (future, past, unset)]
    for batch in (future, plain_batch(2, attributes=LOG_APPEND_TIME)):
        ((_, code, offset, log_append_time, *rest),) = broker.produce(stamped, batch)
        answers.append((code, offset, abs(log_append_time - now) < HOUR_MS, *rest))
    return answers


def compacted(broker):
    """Send records without a key to a compacted topic."""
    topic = broker.topic(cleanup_policy="compact")
    return [
        broker.produce(topic, plain_batch([PlainRecord(key=b"k"), PlainRecord(), PlainRecord()])),
        broker.produce(topic, plain_batch([PlainRecord(key=b"k"), PlainRecord(key=b"")])),
    ]


def fetching(broker):
    """Fetch with all kinds of limits, offsets, sessions and epochs."""
    topic = broker.topic(2, retention_ms="-1")
    for _ in range(4):
        broker.produce(topic, GOOD)
    broker.produce(topic, GOOD, GOOD)
    return {
        "all": broker.fetch(topic, [0, 0]),
        "within a batch": broker.fetch(topic, [3, 2]),
        "partition limit": broker.fetch(topic, [0, 0], partition_max_bytes=2 * SIZE),
        "answer limit": broker.fetch(topic, [0, 0], max_bytes=3 * SIZE),
        "one byte": broker.fetch(topic, [0, 0], max_bytes=1),
        "no bytes": broker.fetch(topic, [0, 0], partition_max_bytes=0),
        "at the end": broker.fetch(topic, [10, 2]),
        "too high": broker.fetch(topic, [11, 0], max_wait_ms=200),
        "too low": broker.fetch(topic, [-1, 0]),
        "no such partition": broker.fetch(topic, [0, 0, 0]),
        "no such topic": broker.fetch("no-such-topic", [0], version=12),
        "no such topic id": broker.fetch("no-such-topic", [0], version=13),
        "read committed": broker.fetch(topic, [0], isolation_level=1),
        "unknown session": broker.fetch(topic, [0], session_id=5, session_epoch=3),
        "no session": broker.fetch(topic, [0], session_id=0, session_epoch=3),
        "full fetch": broker.fetch(topic, [0], session_id=5, session_epoch=-1),
        "newer epoch": broker.fetch(topic, [0], current_leader_epoch=9),
        "same epoch": broker.fetch(topic, [0], current_leader_epoch=0),
        "diverged": broker.fetch(topic, [12], last_fetched_epoch=0),
        "not diverged": broker.fetch(topic, [2], last_fetched_epoch=0),
        "unknown last epoch": broker.fetch(topic, [2], last_fetched_epoch=1),
        "waits in vain": broker.fetch(topic, [10], max_wait_ms=50, min_bytes=10),
        "more than there is": broker.fetch(topic, [8], max_wait_ms=50, min_bytes=10**6),
        **{f"version {v}": broker.fetch(topic, [8], version=v) for v in range(4, FETCH + 1)},
    }


def offsets(broker):
    """Look up offsets by special timestamp and by time."""
    # Otherwise Kafka's retention may remove the old records at any time.
    topic = broker.topic(2, retention_ms="-1")
    for times in ((10, 30, 20), (15, 40), (40,)):
        broker.produce(topic, plain_batch([PlainRecord(timestamp=time) for time in times]))
    return {
        "by time": [broker.offsets((topic, 0, t)) for t in (0, 10, 11, 31, 41)],
        "by name": [broker.offsets((topic, 0, t)) for t in (-1, -2, -3, -4, -5, -7)],
        "empty": [broker.offsets((topic, 1, t)) for t in (0, -1, -2, -3)],
        "versions": [
            broker.offsets((topic, 0, -1), (topic, 1, -2), version=v)
            for v in range(1, LIST_OFFSETS + 1)
        ],
        "too early": [
            broker.offsets((topic, 0, t), version=v) for t, v in ((-3, 6), (-4, 7), (-5, 8))
        ],
        "missing": broker.offsets((topic, 2, -1), ("no-such-topic", 0, -1)),
        "epoch": broker.offsets((topic, 0, -1, 7)),
        # For a repeated partition, 3.9 answers each time, 4.3 once.
        "twice": set(broker.offsets((topic, 0, -1), (topic, 0, -2))),
    }


def creation(broker):
    """Send each kind of CreateTopics request that does not create a topic."""
    name = f"creation-{uuid.uuid4().hex}"
    existing = broker.topic()
    dotted = f"a.{uuid.uuid4().hex}"
    broker.create(creatable(dotted))

    def code(*topics, **fields):
        return [result.error_code for result in broker.create(*topics, **fields)]

    return {
        "bad name": code(creatable("a b")),
        "empty name": code(creatable("")),
        "dots": code(creatable("..")),
        "long name": code(creatable("x" * 250)),
        "exists": code(creatable(existing)),
        "collides": code(creatable(dotted.replace(".", "_"))),
        "metadata topic": code(creatable("__cluster_metadata")),
        "no partitions": code(creatable(name, 0)),
        "negative partitions": code(creatable(name, -2)),
        "no replicas": code(creatable(name, 1, 0)),
        "negative replicas": code(creatable(name, 1, -2)),
        "too many replicas": code(creatable(name, 1, 3)),
        "bad setting": code(creatable(name, **{"max.message.bytes": "x"})),
        "null setting": code(creatable(name, **{"max.message.bytes": None})),
        "unknown setting": code(creatable(name, **{"no.such": "x"})),
        "bad policy": code(creatable(name, **{"cleanup.policy": "keep"})),
        "bad timestamp type": code(creatable(name, **{"message.timestamp.type": "x"})),
        "assignment and partitions": code(creatable(name, 1, -1, [(0, [1])])),
        "assignment and replicas": code(creatable(name, -1, 1, [(0, [1])])),
        "assigned twice": code(creatable(name, -1, -1, [(0, [1]), (0, [1])])),
        "assigned with a gap": code(creatable(name, -1, -1, [(0, [1]), (2, [1])])),
        "assigned to nobody": code(creatable(name, -1, -1, [(0, [])])),
        "assigned to a stranger": code(creatable(name, -1, -1, [(0, [77])])),
        "named twice": code(creatable(name), creatable(f"{name}-2"), creatable(name)),
        "validated": code(creatable(f"{name}-3"), validate_only=True),
        "too much at once": code(creatable(f"{name}-4"), creatable(f"{name}-5", 9_999)),
    }


def metadata(broker):
    """Request topics by name and by id, and topics that do not exist."""
    topic = broker.topic(2)

    def errors(*topics, version=METADATA):
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return sorted(
            (t.error_code, t.name not in {None, topic} and t.name, len(t.partitions))
            for t in broker.ask(request, version).topics
        )

    (known,) = broker.ask(
        MetadataRequest(
            topics=(MetadataRequestTopic(name=topic),), include_topic_authorized_operations=True
        ),
        METADATA,
    ).topics
    return {
        "by name": errors(MetadataRequestTopic(name=topic)),
        "by id": errors(MetadataRequestTopic(topic_id=known.topic_id, name=None)),
        "no such name": errors(MetadataRequestTopic(name="no-such-topic")),
        "bad name": errors(MetadataRequestTopic(name="a b")),
        "no such id": errors(MetadataRequestTopic(topic_id=uuid.UUID(int=78), name=None)),
        "id too early": errors(
            MetadataRequestTopic(topic_id=uuid.UUID(int=78), name="x"), version=11
        ),
        "operations": known.topic_authorized_operations,
        "partition": [
            (p.partition_index, p.leader_epoch, len(p.replica_nodes), len(p.isr_nodes))
            for p in sorted(known.partitions, key=lambda p: p.partition_index)
        ],
    }


def producer_ids(broker):
    """Request producer ids as idempotent producers do."""
    broker.wait_for_coordinators()

    def init(**fields):
        answer = broker.ask(
            InitProducerIdRequest(
                **{"transactional_id": None, "transaction_timeout_ms": 60_000} | fields
            ),
            4,
        )
        return answer.error_code, answer.producer_id >= 0, answer.producer_epoch

    return {
        "none": init(),
        "with identity": init(producer_id=3, producer_epoch=2),
        "id alone": init(producer_id=3),
        "epoch alone": init(producer_epoch=2),
        "empty transactional id": init(transactional_id=""),
    }


def versions(broker):
    """Request ApiVersions with a future version, and without a client name."""
    named = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    unnamed = ApiVersionsRequest(client_software_name=" ", client_software_version="1")
    with RawClient(broker.port) as client:
        frame = bytearray(client.frame(named, 4))
        frame[6:8] = (77).to_bytes(2, "big")
        client.send_bytes(bytes(frame))
        _, future = client.receive()
    return {
        "future": (future.error_code, [key.api_key for key in future.api_keys]),
        "unnamed": broker.ask(unnamed, 4).error_code,
        "named": broker.ask(named, 4).error_code,
        "produce from": [
            key.min_version for key in broker.ask(named, 4).api_keys if key.api_key == 0
        ],
    }


def closings(broker):
    """Send bytes for which the broker closes the connection instead of answering."""
    topic = broker.topic()

    def header(api_key, version):
        return struct.pack(">ihhih", 10, api_key, version, 1, -1)

    with RawClient(broker.port) as client:
        broken = client.frame(produce_request(topic, plain_batch(1, crc=0), acks=0), PRODUCE)
        metadata = client.frame(MetadataRequest(topics=()), METADATA)
    with RawClient(broker.port) as client:
        client.send_bytes(struct.pack(">i", len(metadata) - 4 + 3) + metadata[4:] + b"abc")
        answered = not client.is_closed()
    return {
        "negative size": broker.is_closed_by(b"\xff\xff\xff\xff"),
        "huge size": broker.is_closed_by(struct.pack(">i", 2**31 - 1)),
        "no such api": broker.is_closed_by(header(999, 0)),
        "no such version": broker.is_closed_by(header(3, 99)),
        "no body": broker.is_closed_by(header(3, 1)),
        "error with acks 0": broker.is_closed_by(broken),
        "bytes behind a request": answered,
    }


SCENARIOS = [
    sequences,
    sequence_wrap,
    bad_batches,
    undecodable_records,
    produce_refusals,
    sizes,
    replicas,
    timestamps,
    compacted,
    fetching,
    offsets,
    creation,
    metadata,
    producer_ids,
    versions,
    closings,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_embedded_broker_gives_the_same_answers_as_kafka(kafka, scenario):
    """Kafka and the embedded broker give the same answers to the same requests."""
    expected = observe(scenario, int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker() as devbroker:
        actual = observe(scenario, devbroker.port)

    assert expected == actual
