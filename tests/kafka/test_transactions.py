"""Transactions on real Kafka: 4.3 (TV2) and 3.9 (TV1), read back by librdkafka's consumer."""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from spark_kafka_sink.admin.driver_client import DriverClient
from spark_kafka_sink.admin.transaction_values import EndOutcome, TransactionEnd
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.errors import (
    DeliveryError,
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.kafka.kafka_files import KAFKA_3
from tests.support.kafka.readers import read_with_confluent
from tests.support.kafka.real_kafka import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.kafka.real_kafka import KafkaCluster

#: The timeout of a transaction; a slow machine must write to it in time.
TIMEOUT_MS = 10_000
#: How many transactions time out together, one for each test that needs one.
TIMED_OUT = 3
SECONDS = 120


def _producer(kafka: KafkaCluster, transactional_id: str, **settings: object) -> KafkaProducer:
    return KafkaProducer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": transactional_id,
            **settings,
        }
    )


@pytest.fixture
def transactional_id() -> str:
    """Return a unique transactional id."""
    return f"orders.{uuid.uuid4().hex}"


class TimedOut(NamedTuple):
    """A producer whose transaction the brokers have aborted, with its id and its topic."""

    transactional_id: str
    topic: str
    producer: KafkaProducer


@pytest.fixture(scope="module")
def waiting_transactions() -> Iterator[dict[str, list[TimedOut]]]:
    """Yield a collection of transactions that have timed out, by Kafka's version."""
    collected: dict[str, list[TimedOut]] = defaultdict(list)
    yield collected
    for each in itertools.chain(*collected.values()):
        each.producer.close(0)


@pytest.fixture
def timed_out(
    kafka: KafkaCluster, waiting_transactions: dict[str, list[TimedOut]]
) -> Iterator[TimedOut]:
    """Yield a transaction that has timed out; those of all tests do so at the same time."""
    left = waiting_transactions[kafka.version]
    if not left:
        left += [_begin_what_times_out(kafka) for _ in range(TIMED_OUT)]
        _wait_until_aborted(kafka, [each.transactional_id for each in left])
    taken = left.pop()
    yield taken
    taken.producer.close(0)


def _begin_what_times_out(kafka: KafkaCluster) -> TimedOut:
    transactional_id = f"orders.{uuid.uuid4().hex}"
    topic = kafka.create_topic(1)
    producer = _producer(kafka, transactional_id, **{"transaction.timeout.ms": TIMEOUT_MS})
    producer.init_transactions()
    # With the topic's metadata, the transaction begins just before its record is written.
    producer.partitions_for(topic)
    producer.begin_transaction()
    lost = producer.send(topic, b"lost")
    producer.flush()
    assert lost.result(0).offset == 0
    return TimedOut(transactional_id, topic, producer)


def _wait_until_aborted(kafka: KafkaCluster, transactional_ids: list[str]) -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with DriverClient(config) as admin:

        def are_aborted() -> bool:
            found = admin.describe_transactions(transactional_ids, timeout=SECONDS)
            return {"CompleteAbort"} == {each.state for each in found.values() if each is not None}

        wait_until(are_aborted, seconds=SECONDS, what="the end of the transactions")


def _values(kafka: KafkaCluster, topic: str) -> list[bytes | None]:
    """Read a topic once the markers of its transactions are written."""
    kafka.wait_for_markers(topic)
    return [record.value for record in read_with_confluent(kafka.bootstrap_servers, topic)]


def _committed_offsets(kafka: KafkaCluster, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    try:
        places = [ConfluentPartition(topic, partition) for partition in range(partitions)]
        return [place.offset for place in consumer.committed(places, timeout=120)]
    finally:
        consumer.close()


def test_only_committed_records_are_read(kafka, create_topic, transactional_id):
    """Of aborted transactions no record is read; of committed ones each record once, in order."""
    topic = create_topic(3)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with _producer(kafka, transactional_id) as producer:
        producer.init_transactions()
        for number in range(30):
            producer.begin_transaction()
            futures = []
            for row in range(7):
                partition = (number + row) % 3
                value = b"%d.%d" % (number, row)
                futures.append(producer.send(topic, value, partition=partition))
                if number % 3:
                    expected[partition].append(value)
            if number % 3:
                producer.commit_transaction()
                assert all(future.result(0).offset >= 0 for future in futures)
            else:
                if number % 2:
                    producer.flush()
                producer.abort_transaction()
    kafka.wait_for_markers(topic)
    records = read_with_confluent(kafka.bootstrap_servers, topic)
    assert expected == {
        partition: [record.value for record in records if record.partition == partition]
        for partition in range(3)
    }


def test_transactions_of_one_producer_are_open_side_by_side(kafka, create_topic, transactional_id):
    """Under different ids one producer leaves several open, and each is ended by itself."""
    topic = create_topic()
    ids = [f"{transactional_id}.{number}" for number in range(4)]
    ends = []
    with _producer(kafka, ids[0]) as producer:
        for number, each in enumerate(ids):
            producer.init_transactions(each)
            producer.begin_transaction()
            producer.send(topic, each.encode())
            identity, version = producer.prepare_transaction()
            ends.append(TransactionEnd(each, identity, number != 1, version))
    assert [] == read_with_confluent(kafka.bootstrap_servers, topic)
    config = ProducerConfig.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with DriverClient(config) as admin:
        answers = admin.end_transactions([ends[2], ends[1], ends[3], ends[0]], timeout=SECONDS)
    assert [EndOutcome.ENDED] * 4 == [answer.outcome for answer in answers]
    assert [ids[number].encode() for number in (0, 2, 3)] == _values(kafka, topic)


def test_a_newer_producer_fences_the_older_one(kafka, create_topic, transactional_id):
    """The older producer's transaction is aborted, and then it raises ProducerFencedError."""
    topic = create_topic()
    with _producer(kafka, transactional_id) as newer:
        older = _producer(kafka, transactional_id)
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"lost")
        older.flush()
        newer.init_transactions()
        with pytest.raises(KafkaError) as refused:
            older.commit_transaction()
        if not isinstance(refused.value, ProducerFencedError):
            with pytest.raises(ProducerFencedError):
                older.abort_transaction()
        with pytest.raises(ProducerFencedError, match=transactional_id):
            older.begin_transaction()
        older.close(0)
        newer.begin_transaction()
        newer.send(topic, b"kept")
        newer.commit_transaction()
    assert [b"kept"] == _values(kafka, topic)


def test_a_fenced_producer_cannot_write_into_the_transaction_of_the_newer_one(
    kafka, create_topic, transactional_id
):
    """Records that a fenced producer sends are rejected, also while the newer one writes."""
    topic = create_topic()
    older, newer = (_producer(kafka, transactional_id) for _ in range(2))
    older.init_transactions()
    older.begin_transaction()
    older.send(topic, b"early")
    older.flush()
    newer.init_transactions()
    newer.begin_transaction()
    newer.send(topic, b"kept")
    newer.flush()
    late = older.send(topic, b"late")
    with pytest.raises(DeliveryError):
        late.result(120)
    older.close(0)
    newer.commit_transaction()
    newer.close()
    assert [b"kept"] == _values(kafka, topic)


def test_a_rejected_record_fails_only_its_transaction(kafka, create_topic, transactional_id):
    """A commit fails after a rejected record; after the abort, the producer can be used again."""
    topic = create_topic(1, config={"max.message.bytes": "2000"})
    with _producer(kafka, transactional_id, **{"compression.type": "none"}) as producer:
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            producer.send(topic, b"good")
            bad = producer.send(topic, b"x" * 5_000)
            with pytest.raises(KafkaError):
                producer.commit_transaction()
            with pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
                bad.result(0)
            with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE"):
                producer.send(topic, b"after")
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send(topic, b"kept")
            producer.commit_transaction()
    assert [b"kept"] * 3 == _values(kafka, topic)


def test_unsent_records_of_an_aborted_transaction_fail(kafka, create_topic, transactional_id):
    """The future of a record that was not sent before the abort raises TransactionAbortedError."""
    topic = create_topic()
    with _producer(kafka, transactional_id, **{"linger.ms": 60_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send(topic, b"v")
        producer.abort_transaction()
        with pytest.raises(TransactionAbortedError):
            future.result(0)
    assert [] == _values(kafka, topic)


def test_offsets_are_committed_only_with_their_transaction(kafka, create_topic, transactional_id):
    """A group has the offsets of committed transactions, never those of aborted ones."""
    topic = create_topic(2)
    group = ConsumerGroupMetadata(f"readers-{transactional_id}")
    with _producer(kafka, transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v", partition=0)
        producer.send_offsets_to_transaction(
            {TopicPartition(topic, p): OffsetAndMetadata(5 + p) for p in range(2)}, group
        )
        producer.commit_transaction()
        assert [5, 6] == _committed_offsets(kafka, group.group_id, topic, 2)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            {TopicPartition(topic, 0): OffsetAndMetadata(9)}, group
        )
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            {TopicPartition(topic, 1): OffsetAndMetadata(8)}, group
        )
        producer.commit_transaction()
    assert [5, 8] == _committed_offsets(kafka, group.group_id, topic, 2)


def test_offsets_of_an_unknown_group_member_are_rejected(kafka, create_topic, transactional_id):
    """A consumer that lost its partitions cannot commit (KIP-447); the producer can go on."""
    topic = create_topic()
    stranger = ConsumerGroupMetadata(f"readers-{transactional_id}", 7, "no-such-member")
    with _producer(kafka, transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"lost")
        with pytest.raises(
            KafkaError, match=r"GROUP_ID_NOT_FOUND|UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"
        ):
            producer.send_offsets_to_transaction(
                {TopicPartition(topic, 0): OffsetAndMetadata(9)}, stranger
            )
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"kept")
        producer.commit_transaction()
    assert [b"kept"] == _values(kafka, topic)


def test_closing_aborts_an_open_transaction(kafka, create_topic, transactional_id):
    """Closing aborts the transaction, so that it does not block consumers until its timeout."""
    topic = create_topic()
    producer = _producer(kafka, transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"lost")
    producer.flush()
    producer.close()
    with _producer(kafka, f"{transactional_id}.other") as other:
        other.init_transactions()
        other.begin_transaction()
        other.send(topic, b"kept")
        other.commit_transaction()
    assert [b"kept"] == _values(kafka, topic)


def test_calls_in_the_wrong_order_change_nothing(kafka, create_topic, transactional_id):
    """Calls in the wrong order raise IllegalStateError, and the transaction can continue."""
    topic = create_topic()
    with _producer(kafka, transactional_id) as producer:
        with pytest.raises(IllegalStateError, match="init_transactions"):
            producer.send(topic, b"early")
        producer.init_transactions()
        with pytest.raises(IllegalStateError):
            producer.init_transactions()
        with pytest.raises(IllegalStateError, match="begin a transaction"):
            producer.send(topic, b"early")
        producer.begin_transaction()
        producer.send(topic, b"kept")
        with pytest.raises(IllegalStateError):
            producer.begin_transaction()
        producer.commit_transaction()
        with pytest.raises(IllegalStateError):
            producer.commit_transaction()
    assert [b"kept"] == _values(kafka, topic)


def _write_in_a_transaction(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.send(topic, value)
    producer.commit_transaction()


def _producer_after_timeout(
    kafka: KafkaCluster, timed_out: TimedOut, end: Callable[[], object]
) -> KafkaProducer:
    """End the transaction; return a new producer on 3.9, which reports a timeout as fencing."""
    if kafka.version != KAFKA_3:
        end()
        return timed_out.producer
    with pytest.raises(ProducerFencedError, match=rf"transaction\.timeout\.ms \({TIMEOUT_MS} ms\)"):
        end()
    timed_out.producer.close(0)
    producer = _producer(kafka, timed_out.transactional_id)
    producer.init_transactions()
    return producer


def _write_the_only_visible_record(kafka, producer: KafkaProducer, topic: str) -> None:
    _write_in_a_transaction(producer, topic, b"kept")
    producer.close()
    assert [b"kept"] == _values(kafka, topic)


@pytest.mark.slow
def test_a_transaction_that_timed_out_is_aborted_and_the_producer_continues(kafka, timed_out):
    """A timeout fails the next record and the commit; on 3.9, it also fences the producer."""
    topic, producer = timed_out.topic, timed_out.producer
    late = producer.send(topic, b"late")
    with pytest.raises(DeliveryError):
        late.result(120)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer = _producer_after_timeout(kafka, timed_out, producer.abort_transaction)
    _write_the_only_visible_record(kafka, producer, topic)


@pytest.mark.slow
def test_a_commit_after_the_timeout_says_that_nothing_was_committed(kafka, timed_out):
    """A commit after the timeout fails; on 4.x, the same producer can abort and continue."""
    producer = timed_out.producer
    end = producer.commit_transaction
    if kafka.version != KAFKA_3:
        with pytest.raises(KafkaError, match=r"INVALID_TXN_STATE.* Abort it, and write it again"):
            producer.commit_transaction()
        end = producer.abort_transaction
    producer = _producer_after_timeout(kafka, timed_out, end)
    _write_the_only_visible_record(kafka, producer, timed_out.topic)


@pytest.mark.slow
def test_an_abort_after_the_timeout_succeeds_if_kafka_distinguishes_it_from_fencing(
    kafka, timed_out
):
    """As in Java, an abort after the timeout succeeds on 4.x, while 3.9 answers as for fencing."""
    end = timed_out.producer.abort_transaction
    producer = _producer_after_timeout(kafka, timed_out, end)
    _write_the_only_visible_record(kafka, producer, timed_out.topic)
