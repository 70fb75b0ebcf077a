"""Rows that only their broker can refuse are bad rows, too: too large, or without a key."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewTopic
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions
from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError, CloseConnection
from spark_kafka_sink.errors import DeliveryError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.set_aside import SetAsideRows
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.default_record import PayloadPart, encode_record
from spark_kafka_sink.record.refused_rows import RowErrorKind
from spark_kafka_sink.spark.sink import dead_letters
from spark_kafka_sink.spark.sink.broker_refusals import refused_batch
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from tests.support.producer.sending import records_of
from tests.support.spark.task_producers import ProducerOfTask, TransactionOfTask
from tests.unit.spark.sink.test_bad_rows import HEADERS, config_of

DLQ = "bad"
TOPIC = "compacted"
LIMIT = 5_000
NO_KEY = "a compacted topic does not accept a record without a key"


@pytest.fixture
def broker():
    with (
        DevBroker(topics={"small": 1, DLQ: 1}, max_message_bytes=LIMIT) as started,
        AdminClient({"bootstrap.servers": started.bootstrap_servers}) as admin,
    ):
        admin.create_topics([NewTopic(TOPIC, 2, configs={"cleanup.policy": "compact"})])
        yield started


def write(
    broker,
    table,
    topic=TOPIC,
    *,
    in_transaction=False,
    rows=1_000,
    limit="1000",
    dlq=DLQ,
    **settings,
):
    """Write a table as one task; return what it has written."""
    config = config_of(broker, **settings).producer
    if in_transaction:
        config = replace(config, transactional_id="task")
    options = OnErrorOptions(ErrorLimit.parse(limit), dlq)
    return write_rows(
        table.to_batches(rows),
        producers=(TransactionOfTask if in_transaction else ProducerOfTask)(config),
        topic=topic,
        config=config,
        bad_rows=BadRowWriter(options, RowOrigin(3, "query", 7), config, topic),
    )


def limit_letters(broker, most):
    """Create the topic `letters`, which accepts batches of so many bytes."""
    broker.create_topic("letters", configs={"max.message.bytes": str(most)})


def keyed(keys, **columns):
    values = [f"v{row}" for row in range(len(keys))]
    return pa.table({"key": pa.array(keys, pa.string()), "value": values, **columns})


def values_of(broker, topic):
    """Return the values that are visible to consumers of committed records."""
    settings = {"isolation.level": "read_committed"}
    reader = read_arrow(broker.bootstrap_servers, topic, columns=["value"], settings=settings)
    return sorted(value.decode() for value in reader.read_all()["value"].to_pylist())


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("dlq", [DLQ, None])
def test_rows_that_a_broker_names_are_set_aside(broker, dlq, in_transaction):
    """The others of their batch are written, and those behind them."""
    table = keyed(["a", None, "b", None, "c"], partition=pa.array([0, 0, 0, 1, 1]))
    written = write(broker, table, in_transaction=in_transaction, dlq=dlq)
    assert (3, {"broker": 2}) == (written.rows, dict(written.bad_rows.counts))
    assert ["v0", "v2", "v4"] == values_of(broker, TOPIC)
    assert (["v1", "v3"] if dlq else []) == values_of(broker, DLQ)
    assert 3 + 2 * bool(dlq) == sum(acks.records for _, acks in written.acks)
    assert [1, 3] == sorted(bad.row for bad in written.bad_rows.first)
    [first] = [bad for bad in written.bad_rows.first if bad.row == 1]
    assert first.error == (
        f"row 1, topic {TOPIC!r}, partition 0: the broker refused it: {NO_KEY}. The topic does not "
        "accept such records; a compacted topic (cleanup.policy=compact) requires a key"
    )


def test_the_dead_letter_has_what_was_sent(broker):
    """Key, value, headers and timestamp are those of the record; headers say what is wrong."""
    own = [{"key": "n", "value": b"1"}, {"key": "n", "value": None}]
    table = keyed(
        [None],
        timestamp=pa.array([1_700_000_000_123], pa.timestamp("ms")),
        headers=pa.array([own], HEADERS),
        partition=pa.array([1]),
    )
    written = write(broker, table)
    [letter] = records_of(broker, DLQ)
    assert (None, b"v0", 1_700_000_000_123) == (letter.key, letter.value, letter.timestamp)
    assert [("n", b"1"), ("n", None)] == list(letter.headers[:2])
    headers = {name: value.decode() for name, value in letter.headers[2:]}
    expected = {
        "__connect.errors.topic": TOPIC,
        "__connect.errors.partition": "1",
        "__connect.errors.stage": "KAFKA_PRODUCE",
        "__connect.errors.exception.class.name": "spark_kafka_sink.errors.RecordError",
        "__pykafka.errors.kind": "broker",
        "__pykafka.errors.row": "0",
    }
    assert expected == {name: headers[name] for name in expected}
    [first] = written.bad_rows.first
    message = headers["__connect.errors.exception.message"]
    assert f"row 0, topic {TOPIC!r}, partition 1: {message}" == first.error
    assert (0, 0) == (first.partition, first.offset)


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_row_that_is_too_large_for_its_topic_is_set_aside(broker, codec, in_transaction):
    """Batches are split until it is alone; its letter is as large as its topic accepts."""
    large = random.Random(1).randbytes(2 * LIMIT)
    values = [b"a"] * 7 + [large] + [b"b"] * 9
    settings = {"compression.type": codec, "in_transaction": in_transaction}
    written = write(broker, pa.table({"value": values}), "small", rows=5, **settings)
    assert (16, {"size": 1}) == (written.rows, dict(written.bad_rows.counts))
    assert 16 == len(values_of(broker, "small"))
    [letter, *_] = records_of(broker, DLQ)
    headers = dict(letter.headers)
    assert large.startswith(letter.value)
    assert LIMIT - 2_000 < len(letter.value) < LIMIT
    assert (b"size", b"value", b"7") == (
        headers["__pykafka.errors.kind"],
        headers["__pykafka.errors.truncated"],
        headers["__pykafka.errors.row"],
    )
    assert b"RecordTooLargeError" in headers["__connect.errors.exception.class.name"]
    assert b"MESSAGE_TOO_LARGE" in headers["__connect.errors.exception.message"]


def test_the_limit_of_letters_is_asked_for_once_in_a_while(broker):
    """The first task of a process with letters asks, and others only after some minutes."""
    asked = broker.on(ApiKey.DESCRIBE_CONFIGS, lambda *_: None)
    write(broker, keyed(["b", "a"]))
    assert 0 == asked.seen
    values = [bytes(2 * LIMIT)] * 3
    settings = {"compression.type": "none"}
    for _ in range(2):
        write(broker, pa.table({"value": values}), "small", rows=1, **settings)
    assert (1, 6) == (asked.seen, len(records_of(broker, DLQ)))
    [(key, (limit, until))] = dead_letters._accepted.items()
    assert LIMIT == limit
    dead_letters._accepted[key] = (limit, until - dead_letters._TRUST_SECONDS)
    write(broker, keyed([None]))
    assert 2 == asked.seen


@pytest.mark.parametrize("most", [1_000, 2_000, 4_000])
def test_a_topic_that_accepts_little_gets_short_letters(broker, most):
    """What does not fit is cut, even of a letter that most topics accept as it is."""
    limit_letters(broker, most)
    table = keyed([None], value=["v" * 3_500])
    assert 0 == write(broker, table, dlq="letters").rows
    [letter] = records_of(broker, "letters")
    headers = dict(letter.headers)
    assert (b"v" * 3_500).startswith(letter.value)
    assert most - 1_000 < len(letter.value) < most
    assert b"value" == headers["__pykafka.errors.truncated"]


def test_a_topic_that_accepts_no_letter_ends_the_write(broker):
    """Headers are not cut: the error names the setting."""
    limit_letters(broker, 300)
    with pytest.raises(DeliveryError, match=r"letters-0 was not delivered: .* max\.message\.bytes"):
        write(broker, keyed([None]), dlq="letters")


def test_a_letter_that_is_refused_as_too_large_ends_the_write(broker):
    """Its limit may be hidden from this client; the next task asks again."""
    broker.on(ApiKey.DESCRIBE_CONFIGS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    table = pa.table({"value": [bytes(2 * LIMIT)]})
    with pytest.raises(DeliveryError, match=r"1 record for bad-0 was not delivered: .*TOO_LARGE"):
        write(broker, table, "small", **{"compression.type": "none"})
    assert {} == dead_letters._accepted


def test_a_letter_that_its_topic_refuses_ends_the_write(broker):
    """It is never set aside again."""
    with pytest.raises(
        DeliveryError, match=rf"^1 record for {TOPIC}-\d was not delivered: .*{NO_KEY}"
    ):
        write(broker, keyed([None], partition=pa.array([1])), dlq=TOPIC)


@pytest.mark.parametrize("in_transaction", [False, True])
def test_all_rows_may_be_refused(broker, in_transaction):
    """A task with nothing else has written its letters."""
    written = write(broker, keyed([None] * 50), in_transaction=in_transaction, rows=7)
    assert (0, 50) == (written.rows, written.bad_rows.count)
    assert ([], 50) == (values_of(broker, TOPIC), len(values_of(broker, DLQ)))


@pytest.mark.parametrize("in_transaction", [False, True])
def test_too_many_refused_rows_end_the_task(broker, in_transaction):
    """They count for maxErrors as all bad rows do."""
    with pytest.raises(
        KafkaError, match=r"^more than 3 rows of this task cannot be written, .*row 0, "
    ):
        write(broker, keyed([None] * 5), limit="3", in_transaction=in_transaction)
    if in_transaction:
        assert ([], []) == (values_of(broker, TOPIC), values_of(broker, DLQ))


def test_a_task_with_a_refused_row_may_fail_for_another_reason(broker):
    """Errors of the whole cluster are not those of rows."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
        write(broker, keyed([None, "a"]))


def test_the_next_task_of_a_producer_fails_as_before(broker):
    """Without onError nothing is set aside, even by a producer that has done it before."""
    config = config_of(broker).producer
    producers = ProducerOfTask(config)
    producer = producers.take()
    producers.take = lambda: producer
    producers.finished = lambda _: None
    bad_rows = BadRowWriter(OnErrorOptions(ErrorLimit(None), None), RowOrigin(0), config, TOPIC)
    table = keyed([None, "a"])
    arguments = {"producers": producers, "topic": TOPIC, "config": config}
    assert 1 == write_rows(table.to_batches(), bad_rows=bad_rows, **arguments).rows
    with pytest.raises(DeliveryError, match=rf"Rejected: row 0 \({NO_KEY}\)"):
        write_rows(table.to_batches(), **arguments)


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rows_and_letters_are_the_input(broker, in_transaction, seed):
    """With many batches in flight, and lost answers, each row is written once or set aside."""
    rng = random.Random(seed)
    keys = [None if rng.random() < 0.05 else f"k{row % 97}" for row in range(3_000)]
    table = keyed(keys, partition=pa.array([rng.randrange(2) for _ in keys], pa.int32()))
    answers = iter([rng.random() < 0.03 for _ in range(5_000)])
    broker.on(
        ApiKey.PRODUCE,
        lambda *_: CloseConnection(handled=rng.random() < 0.5) if next(answers) else None,
        times=4,
    )
    settings = {"batch.size": "600", "linger.ms": "0", "retry.backoff.ms": "1"}
    written = None
    # Spark repeats a task that has failed. Without transactions, what it has written stays.
    for _ in range(6):
        try:
            written = write(broker, table, in_transaction=in_transaction, rows=500, **settings)
        except KafkaError:
            continue
        break
    rows = [f"v{row}" for row, key in enumerate(keys) if key is not None]
    letters = [f"v{row}" for row, key in enumerate(keys) if key is None]
    assert (len(rows), len(letters)) == (written.rows, written.bad_rows.count)
    found = values_of(broker, TOPIC), values_of(broker, DLQ)
    if in_transaction:
        assert (sorted(rows), sorted(letters)) == found
    else:
        assert (set(rows), set(letters)) == tuple(map(set, found))


def refused(code, *messages):
    records = b"".join(encode_record(None, b"v", offset_delta=n) for n in range(len(messages)))
    part = PayloadPart(memoryview(records), len(records), len(messages), 5, 5)
    place = TopicPartition("t", 1)
    return refused_batch(SetAsideRows(place, code, messages, 10 + np.arange(len(messages)), part))


@pytest.mark.parametrize(
    ("code", "message", "kind", "advice"),
    [
        (ErrorCode.INVALID_TIMESTAMP, "Timestamp 1 is out of range", "timestamp", "Timestamps"),
        (ErrorCode.INVALID_TIMESTAMP, "no key", "broker", "The topic does not accept"),
        (ErrorCode.INVALID_RECORD, "no key", "broker", "The topic does not accept"),
        (
            ErrorCode.MESSAGE_TOO_LARGE,
            "m",
            "size",
            "A single record is larger than the",
        ),
        (ErrorCode.RECORD_LIST_TOO_LARGE, "m", "size", "The record is larger than the topic's"),
    ],
)
def test_the_kind_of_a_row_that_a_broker_refuses(code, message, kind, advice):
    """A batch has one code, even if its records are refused for several reasons."""
    [refusal] = refused(code, message).refusals
    assert RowErrorKind(kind) is refusal.kind
    error = str(refusal.error(10))
    assert error.startswith(
        f"row 10, topic 't', partition 1: the broker refused it: {message}. {advice}"
    )


def test_rows_with_the_same_message_have_the_same_reason():
    """An error is created for a reason, and not for a row."""
    first, second = refused(ErrorCode.INVALID_RECORD, "a", "b", "a").refusals
    assert ([10, 12], [11]) == (first.rows.tolist(), second.rows.tolist())
