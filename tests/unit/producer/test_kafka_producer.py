"""The bulk path of the producer against the embedded broker, with injected faults."""

from __future__ import annotations

import itertools
import os
import threading

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import (
    AnswerError,
    CloseConnection,
    Delay,
    FaultContext,
    NeverAnswer,
)
from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.bulk_writes import (
    SMALL_BATCHES,
    all_values,
    bulk_producer,
    is_even,
    numbered,
    values_of_all,
    write_in_order,
)
from tests.support.producer.sending import PARTITIONS
from tests.support.record.record_columns import columns


def test_every_row_arrives_once_and_in_order(broker):
    """Appended rows are in the log in order, and the acks have their offsets."""
    with bulk_producer(broker) as producer:
        expected = write_in_order(producer)
        acks = producer.acks()
    assert expected == values_of_all(broker)
    assert [(0, len(rows) - 1, len(rows)) for rows in expected] == [
        (acks[tp].first_offset, acks[tp].last_offset, acks[tp].records)
        for tp in sorted(acks, key=lambda tp: tp.partition)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_arrives(broker, codec):
    """The broker accepts the batches of each codec, and they decode to the same rows."""
    with bulk_producer(broker, **{"compression.type": codec}) as producer:
        expected = write_in_order(producer, rows=3_000)
    assert expected == values_of_all(broker)


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS),
        AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, handled=True),
        AnswerError(ErrorCode.REQUEST_TIMED_OUT, handled=True),
        AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        CloseConnection(),
        CloseConnection(handled=True),
        Delay(0.01),
    ],
    ids=str,
)
def test_occasional_faults_neither_lose_duplicate_nor_reorder_rows(broker, fault):
    """Every row arrives once with five requests in flight, although every fourth one fails."""

    def every_fourth(request: object, context: FaultContext):
        return fault if context.number % 4 == 0 else None

    hook = broker.on(ApiKey.PRODUCE, every_fourth)
    with bulk_producer(broker, **SMALL_BATCHES) as producer:
        expected = write_in_order(producer, rows=12_000)
    assert expected == values_of_all(broker)
    assert hook.fired > 5


def test_a_missing_response_closes_the_connection_and_loses_no_row(broker):
    """After request.timeout.ms the connection is closed and its batches are resent."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(handled=True), times=1)
    with bulk_producer(broker, **{"request.timeout.ms": 1_000}) as producer:
        expected = write_in_order(producer, rows=3_000)
    assert expected == values_of_all(broker)
    assert 1 == hook.fired


def test_a_producer_id_request_is_retried_after_a_transient_error(broker):
    """COORDINATOR_LOAD_IN_PROGRESS, which a broker returns right after its start, is retried."""
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), times=3)
    with bulk_producer(broker) as producer:
        expected = write_in_order(producer, rows=30, step=10)
    assert expected == values_of_all(broker)


def test_a_batch_too_large_for_the_topic_is_split(broker):
    """MESSAGE_TOO_LARGE halves batches until they fit, in order, and limits later batches."""
    broker.create_topic("small", partitions=1, configs={"max.message.bytes": "5000"})
    hook = broker.on(ApiKey.PRODUCE, lambda request, context: None)
    with bulk_producer(broker, **{"compression.type": "lz4"}) as producer:
        rows = [os.urandom(100) for _ in range(2_000)]
        for start in range(0, 2_000, 100):
            producer.append(columns(rows[start : start + 100], topic="small"))
        producer.flush()
    assert [rows] == values_of_all(broker, "small", 1)
    assert hook.seen < 200


def test_without_acks_no_offsets_are_invented(broker):
    """With acks=0 the rows arrive, and their offsets are reported as unknown."""
    with bulk_producer(broker, acks=0) as producer:
        producer.append(columns(numbered(10), partitions=[0] * 10))
        producer.flush()
        acks = producer.acks()
        size = acks[TopicPartition("t", 0)].bytes
        assert {
            TopicPartition("t", 0): PartitionAcks(
                first_offset=UNKNOWN_OFFSET, last_offset=UNKNOWN_OFFSET, records=10, bytes=size
            )
        } == acks
    deadline = threading.Event()
    for _ in range(1_000):
        if values_of_all(broker)[0]:
            break
        deadline.wait(0.05)
    assert numbered(10) == values_of_all(broker)[0]


def test_the_acks_report_replaced_timestamps():
    """The acks say when a topic has LogAppendTime."""
    with (
        DevBroker(topics={"t": 1}, log_append_time=True) as broker,
        bulk_producer(broker) as producer,
    ):
        producer.append(columns([b"v"]))
        producer.flush()
        assert producer.acks()[TopicPartition("t", 0)].log_append_time


def test_a_duplicate_is_not_reported_as_replaced_timestamps(broker):
    """The timestamp in the response for a duplicate is not taken for a log append time."""
    hook = broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    with bulk_producer(broker) as producer:
        producer.append(columns([b"v"], partitions=[0]))
        producer.flush()
        assert not producer.acks()[TopicPartition("t", 0)].log_append_time
    assert 1 == hook.fired


def test_rows_without_a_key_fill_one_partition_before_the_next(broker):
    """Rows without a key stay on a partition for about a batch, and reach all partitions."""
    with bulk_producer(broker, **SMALL_BATCHES) as producer:
        for start in range(0, 10_000, 1_000):
            producer.append(columns(numbered(1_000, start)))
        producer.flush()
    values = values_of_all(broker)
    assert numbered(10_000) == sorted(itertools.chain(*values))
    assert all(values)
    runs = sum(int(a) + 1 != int(b) for rows in values for a, b in itertools.pairwise(rows))
    assert runs < 10_000 // 50


def test_rows_without_a_key_are_spread_evenly(broker):
    """With default settings, no partition has 10 % more or fewer of 100,000 rows than others."""
    with bulk_producer(broker) as producer:
        for start in range(0, 100_000, 10_000):
            producer.append(columns([b"a value of 20 bytes."] * 10_000), first_row=start)
        producer.flush()
        acks = producer.acks()
        batches = producer.metrics_snapshot().batch_size.count
    assert is_even([acks[TopicPartition("t", p)].records for p in range(PARTITIONS)], 100_000)
    # 2.8 MB, and a batch is full with 1 MB.
    assert PARTITIONS == batches


def test_each_task_spreads_its_rows(broker):
    """A producer that a task takes over spreads the task's rows, whatever it has written before."""
    with bulk_producer(broker) as producer:
        producer.append(columns([bytes(1_000_000)] * 64))
        producer.flush()
        before = producer.take_acks()
        producer.append(columns([b"a value of 20 bytes."] * 20_000))
        producer.flush()
        acks = producer.take_acks()
    assert 64 == sum(each.records for each in before.values())
    records = [acks[TopicPartition("t", p)].records for p in range(PARTITIONS)]
    # Two turns of 16 KiB, of 0.56 MB: one in the rest of a round, one in the last round.
    assert is_even(records, 20_000, percent=18)


def test_rows_go_to_the_topics_that_they_name(broker):
    """Rows that name different topics are written to each of them by one producer."""
    broker.create_topic("u", partitions=1)
    topics = ["t" if row % 3 else "u" for row in range(3_000)]
    with bulk_producer(broker) as producer:
        producer.append(columns(numbered(3_000), topics=topics))
        producer.flush()
    assert [numbered(3_000)[::3]] == values_of_all(broker, "u", 1)
    assert 2_000 == sum(map(len, values_of_all(broker)))


def test_a_record_of_the_largest_size_arrives(broker):
    """A single record may take all of max.request.size."""
    value = os.urandom(1_048_576 - 100)
    with DevBroker(topics={"t": 1}, max_message_bytes=2_000_000) as large:
        with bulk_producer(large) as producer:
            producer.append(columns([value]))
            producer.flush()
        assert [[value]] == values_of_all(large, partitions=1)


def test_a_missing_topic_can_be_auto_created():
    """A topic that the broker auto-creates can be written to."""
    with DevBroker() as broker:
        with bulk_producer(broker) as producer:
            producer.append(columns([b"v"], topic="new"))
            producer.flush()
        assert [[b"v"]] == values_of_all(broker, "new", 1)


def test_one_reachable_bootstrap_address_is_enough(broker, unused_port):
    """One bootstrap address that answers is enough."""
    servers = f"127.0.0.1:{unused_port},{broker.bootstrap_servers}"
    with bulk_producer(broker, **{"bootstrap.servers": servers}) as producer:
        producer.append(columns([b"v"]))
        producer.flush()
    assert [b"v"] == all_values(broker)


def test_buffer_memory_is_never_exceeded_by_more_than_a_batch(broker):
    """Open and queued batches stay within buffer.memory, however many partitions are open."""
    broker.create_topic("wide", partitions=1_000)
    sizes = {"buffer.memory": 1_000_000, "max.request.size": 100_000, "compression.type": "none"}
    lowest = 1_000_000
    with bulk_producer(broker, **sizes) as producer:
        pool = producer._core.gatherer._builder._pool
        for start in range(0, 20_000, 1_000):
            rows = range(start, start + 1_000)
            producer.append(
                columns(
                    numbered(1_000, start),
                    partitions=[r * 7919 % 1_000 for r in rows],
                    topic="wide",
                )
            )
            lowest = min(lowest, pool.available_bytes)
        producer.flush()
        assert 1_000_000 == pool.available_bytes
    assert lowest >= 0
    assert 20_000 == sum(map(len, values_of_all(broker, "wide", 1_000)))


def test_acknowledgements_free_memory_for_a_waiting_writer(broker):
    """A writer that waits for memory continues when the broker responds, and no row is lost."""
    broker.on(ApiKey.PRODUCE, Delay(0.002))
    sizes = {"buffer.memory": 100_000, "max.request.size": 50_000}
    with bulk_producer(broker, **sizes, **SMALL_BATCHES) as producer:
        expected = write_in_order(producer)
    assert expected == values_of_all(broker)


def test_a_restart_of_the_broker_during_a_write_loses_no_row(broker):
    """Lost connections are re-established, and batches that were in flight are resent."""
    with bulk_producer(broker, **SMALL_BATCHES) as producer:
        half = numbered(10_000)
        producer.append(columns(half, partitions=[0] * 10_000))
        broker.stop()
        broker.start()
        producer.append(
            columns(numbered(10_000, 10_000), partitions=[0] * 10_000), first_row=10_000
        )
        producer.flush()
    assert numbered(20_000) == values_of_all(broker)[0]


def test_a_rejected_row_does_not_affect_other_rows(broker):
    """After a RecordError the rows before it and those of later appends are written."""
    with bulk_producer(broker) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.append(columns([b"a", bytes(2_000_000), b"b"], partitions=[0] * 3))
        producer.append(columns([b"c"], partitions=[0]))
    assert [b"a", b"c"] == values_of_all(broker)[0]


def test_take_acks_returns_each_acknowledgement_once(broker):
    """`take_acks` returns the acknowledgements since the previous call, each once."""
    broker.create_topic("taken", partitions=1)
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    with KafkaProducer(settings) as producer:
        taken = []
        for value in (b"one", b"two"):
            producer.send("taken", value).result(timeout=30)
            taken.append(producer.take_acks()[TopicPartition("taken", 0)])
        assert [(0, 0, 1), (1, 1, 1)] == [
            (acks.first_offset, acks.last_offset, acks.records) for acks in taken
        ]
        assert {} == producer.take_acks() == producer.acks()
