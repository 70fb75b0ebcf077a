"""Produce: what is appended, and each reason for a refusal."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_records
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.devbroker.malformed_batches import MALFORMED
from tests.support.record.plain_batches import PlainRecord, plain_batch

TRANSACTIONAL = 0x10
NOW_MS = int(NOW * 1000)
GOOD = plain_batch(2)


def request(*records, topic="t", acks=-1, transactional_id=None):
    """Build a request that appends to partitions 0, 1, ... of a topic."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name=topic,
                partition_data=tuple(
                    PartitionProduceData(index=index, records=data)
                    for index, data in enumerate(records)
                ),
            ),
        ),
    )


def produce(broker, *records, version=None, **fields):
    (topic,) = ask(broker, request(*records, **fields), version).responses
    return topic.partition_responses


def errors(broker, *records, version=None, **fields):
    return [p.error_code for p in produce(broker, *records, version=version, **fields)]


def log_of(broker, partition=0):
    return broker.cluster.topic("t").partitions[partition].log


def values(broker, partition=0):
    return [
        record.value for record in decode_records(b"".join(log_of(broker, partition).batches()))
    ]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [-1, 1])
def test_batches_are_appended_and_their_offsets_returned(version, acks):
    """The response has the offset of the first record of each partition."""
    broker = broker_with({"t": 2})

    first = produce(broker, GOOD, plain_batch(1), version=version, acks=acks)
    second = produce(broker, GOOD, version=version, acks=acks)

    assert [(0, 0, 0, -1), (1, 0, 0, -1)] == [
        (p.index, p.error_code, p.base_offset, p.log_append_time_ms) for p in first
    ]
    assert [2] == [p.base_offset for p in second]
    assert (4, 1) == (log_of(broker).log_end_offset, log_of(broker, 1).log_end_offset)
    if version >= 5:
        assert 0 == first[0].log_start_offset


@pytest.mark.parametrize("compression", list(CompressionType))
def test_every_codec_is_kept_as_it_came(compression):
    """The broker stores a batch as it was sent, whatever its codec."""
    broker = broker_with({"t": 1})
    batch = plain_batch([PlainRecord(b"one"), PlainRecord(b"two")], compression=compression)

    assert [0] == errors(broker, batch)
    assert [b"one", b"two"] == values(broker)


def test_appending_wakes_requests_that_wait_for_the_partition():
    """The broker reports once which partitions have new records."""
    broker = broker_with({"t": 2})
    produce(broker, GOOD, plain_batch(1, crc=0))

    assert {TopicPartition("t", 0)} == broker.cluster.take_changed()
    assert set() == broker.cluster.take_changed()


def test_acks_0_has_no_answer():
    """With acks=0 the batch is appended and there is no response."""
    broker = broker_with({"t": 1})

    assert None is ask(broker, request(GOOD, acks=0))
    assert 2 == log_of(broker).log_end_offset


def test_an_error_with_acks_0_closes_the_connection():
    """Without a response, closing the connection is the only way to signal the error."""
    broker = broker_with({"t": 1})

    with pytest.raises(CloseConnectionError):
        ask(broker, request(GOOD, plain_batch(1), acks=0))
    assert 2 == log_of(broker).log_end_offset


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(None, ErrorCode.INVALID_RECORD, id="null"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="empty"),
        pytest.param(GOOD + GOOD, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(plain_batch(1, magic=1), ErrorCode.INVALID_RECORD, id="old format"),
        pytest.param(plain_batch(1, crc=7), ErrorCode.CORRUPT_MESSAGE, id="checksum"),
        pytest.param(
            plain_batch([PlainRecord(b"x" * 1_048_600)]), ErrorCode.MESSAGE_TOO_LARGE, id="large"
        ),
        pytest.param(plain_batch(2, record_count=1), ErrorCode.INVALID_RECORD, id="count"),
        pytest.param(
            plain_batch([PlainRecord(timestamp=NOW_MS + 3_600_001)]),
            ErrorCode.INVALID_TIMESTAMP,
            id="future",
        ),
    ],
)
def test_a_bad_batch_is_its_partitions_error_alone(records, expected):
    """The batch of one partition is refused, and that of the other is appended."""
    broker = broker_with({"t": 2})

    assert [expected, 0] == errors(broker, records, GOOD)
    assert (0, 2) == (log_of(broker).log_end_offset, log_of(broker, 1).log_end_offset)


def test_a_batch_that_does_not_begin_like_one_is_every_partitions_error():
    """As in Kafka, a wrong format or length fails the whole request."""
    broker = broker_with({"t": 2})

    assert [ErrorCode.CORRUPT_MESSAGE] * 2 == errors(broker, GOOD, plain_batch(1, magic=3))
    assert 0 == log_of(broker).log_end_offset


def test_an_unknown_partition_is_refused():
    """A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, and is not created."""
    broker = broker_with({"t": 1})

    assert [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == errors(broker, GOOD, GOOD)
    assert [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == errors(broker, GOOD, topic="new")
    assert None is broker.cluster.topic("new")


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(acks):
    """Only -1, 0 and 1 are valid."""
    broker = broker_with({"t": 1})

    assert [ErrorCode.INVALID_REQUIRED_ACKS] == errors(broker, GOOD, acks=acks)
    assert 0 == log_of(broker).log_end_offset


@pytest.mark.parametrize("acks", [-1, 1])
def test_min_insync_replicas_is_at_most_all_replicas(acks):
    """As in Kafka, min.insync.replicas above the replication factor means all replicas."""
    broker = broker_with({"t": 1}, configs={"min.insync.replicas": "2"})

    assert [0] == errors(broker, GOOD, acks=acks)


def test_internal_topics_cannot_be_written_to():
    """Producers cannot write to Kafka's own topics."""
    broker = broker_with({"__consumer_offsets": 1})

    assert [ErrorCode.INVALID_TOPIC_EXCEPTION] == errors(broker, GOOD, topic="__consumer_offsets")


def test_zstd_needs_version_7():
    """KIP-110 added zstd."""
    broker = broker_with({"t": 1})
    batch = plain_batch(1, compression=CompressionType.ZSTD)

    assert [ErrorCode.UNSUPPORTED_COMPRESSION_TYPE] == errors(broker, batch, version=6)
    assert [0] == errors(broker, batch, version=7)


def sequenced(sequence, count=1, *, epoch=0, attributes=0):
    return plain_batch(
        [PlainRecord(timestamp=NOW_MS)] * count,
        producer_id=9,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )


def test_a_duplicate_is_answered_as_if_it_were_new():
    """A duplicate is not appended, and gets the original's offset and the batch's timestamp."""
    broker = broker_with({"t": 1})
    produce(broker, GOOD)
    produce(broker, sequenced(0, 3))

    (again,) = produce(broker, sequenced(0, 3))

    assert (0, 2, NOW_MS) == (again.error_code, again.base_offset, again.log_append_time_ms)
    assert 5 == log_of(broker).log_end_offset


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (sequenced(4, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (sequenced(1, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (sequenced(3, epoch=0), ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
    ids=["gap", "new epoch", "stale epoch"],
)
def test_sequence_and_epoch_are_checked(batch, expected):
    """A gap, a new epoch in mid-sequence and a stale epoch are refused, with the log start."""
    broker = broker_with({"t": 1})
    produce(broker, sequenced(0, 3, epoch=1))

    (answer,) = produce(broker, batch)

    assert (expected, -1, 0) == (answer.error_code, answer.base_offset, answer.log_start_offset)


def test_transactional_records_need_a_transactional_id():
    """Without a transactional id the whole request is refused."""
    broker = broker_with({"t": 2})

    assert [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2 == errors(
        broker, GOOD, sequenced(0, attributes=TRANSACTIONAL)
    )
    assert 0 == log_of(broker).log_end_offset


@pytest.mark.parametrize(
    ("transactional_id", "expected"),
    [("x", ErrorCode.INVALID_PRODUCER_ID_MAPPING), ("", ErrorCode.INVALID_REQUEST)],
)
def test_transactions_are_refused(transactional_id, expected):
    """The transactional id is empty or unknown to the coordinator."""
    broker = broker_with({"t": 1})

    assert [expected] == errors(
        broker, sequenced(0, attributes=TRANSACTIONAL), transactional_id=transactional_id
    )


def test_refused_transactional_records_with_acks_0_close_the_connection():
    """With acks=0 a request that is refused as a whole has no response either."""
    broker = broker_with({"t": 1})

    with pytest.raises(CloseConnectionError):
        ask(broker, request(sequenced(0, attributes=TRANSACTIONAL), acks=0))


def test_refused_records_are_named():
    """Since version 8 the response lists the refused records and the reasons (KIP-467)."""
    broker = broker_with({"t": 1}, configs={"cleanup.policy": "compact"})

    (answer,) = produce(broker, plain_batch([PlainRecord(key=b"k"), PlainRecord()]))

    assert ErrorCode.INVALID_RECORD == answer.error_code
    assert [1] == [record.batch_index for record in answer.record_errors]
    assert "key" in answer.record_errors[0].batch_index_error_message
    assert answer.error_message


def test_log_append_time_is_returned():
    """On a LogAppendTime topic the response and the records have the broker's time."""
    broker = broker_with({"t": 1}, configs={"message.timestamp.type": "LogAppendTime"})

    (answer,) = produce(broker, GOOD)

    assert NOW_MS == answer.log_append_time_ms
    assert [NOW_MS] * 2 == [
        record.timestamp for record in decode_records(b"".join(log_of(broker).batches()))
    ]


@pytest.mark.parametrize("group", MALFORMED)
def test_malformed_batches_get_the_answers_that_kafka_gave(group):
    """Each batch that only a look at its records shows to be malformed gets Kafka's error code."""
    broker = broker_with({"t": 1})
    broker.cluster.topic("t").config = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)

    assert {name: [code] for name, (_, code) in MALFORMED[group].items()} == {
        name: errors(broker, batch) for name, (batch, _) in MALFORMED[group].items()
    }


def test_the_request_s_memory_is_the_logs():
    """Appending does not copy records: the log references the received bytes."""
    broker = broker_with({"t": 1})
    batch = plain_batch([PlainRecord(b"payload")])
    produce(broker, batch)

    (kept,) = log_of(broker).batches()

    assert len(kept.obj) > len(batch)


@pytest.mark.parametrize("compression", list(CompressionType)[1:])
def test_the_batches_of_one_request_share_the_bytes_that_they_may_decompress_to(compression):
    """The limit applies to the sum of a request's batches; those beyond it are refused."""
    broker = broker_with({"t": 3}, request_max_validated_bytes=2500)
    batch = plain_batch([PlainRecord(value=bytes(1000))], compression=compression)

    assert [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_RECORD] == errors(
        broker, batch, batch, batch
    )
    assert [ErrorCode.NONE] == errors(broker, batch)


def test_uncompressed_batches_have_no_budget():
    """Records that need not be decompressed do not count."""
    broker = broker_with({"t": 1}, request_max_validated_bytes=0)

    assert [ErrorCode.NONE] == errors(broker, GOOD)
