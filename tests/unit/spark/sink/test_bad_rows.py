"""Rows that can never be sent, which are left out or become dead letters."""

from __future__ import annotations

import datetime as dt
import json
import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink import AdminClient, NewPartitions
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions, SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AlterResponse, AnswerError
from spark_kafka_sink.errors import (
    DeliveryError,
    InvalidPartitionError,
    KafkaError,
    KafkaTimeoutError,
    RecordError,
)
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.sink import dead_letters
from spark_kafka_sink.spark.sink.bad_rows import BadRow
from spark_kafka_sink.spark.sink.dead_letters import BadRowWriter, RowOrigin
from spark_kafka_sink.spark.sink.partition_writer import write_rows
from spark_kafka_sink.spark.user_errors import may_be_bug
from tests.support.producer.sending import records_of
from tests.support.spark.missing_topics import impatient_producers
from tests.support.spark.task_producers import ProducerOfTask

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
DLQ = "bad"
#: Dead letters that Kafka Connect has made; DeadLetterGoldens.java writes them.
CONNECT_LETTERS = json.loads(
    (Path(__file__).parent / "golden" / "connect_letters.json").read_text()
)


@pytest.fixture
def broker():
    topics = {"orders": 2, "other": 1, DLQ: 1}
    with DevBroker(topics=topics, auto_create_topics=False) as broker:
        yield broker


def config_of(broker, **settings):
    given = {"bootstrap.servers": broker.bootstrap_servers, **settings}
    return SinkOptions.from_mapping({f"kafka.{name}": value for name, value in given.items()})


def write(
    broker,
    *tables,
    topic=None,
    dlq=DLQ,
    limit="1000",
    producers=None,
    rows=1_000,
    samples_keys=False,
    config=None,
    **settings,
):
    """Write tables as one task; return what it has written."""
    config = config or config_of(broker, **settings).producer
    options = OnErrorOptions(ErrorLimit.parse(limit), dlq)
    return write_rows(
        [batch for table in tables for batch in table.to_batches(rows)],
        producers=producers or ProducerOfTask(config),
        topic=topic,
        config=config,
        bad_rows=BadRowWriter(options, RowOrigin(3, "query", 7), config, topic),
        samples_keys=samples_keys,
    )


def table_of(values, **columns):
    return pa.table({"value": pa.array(values, pa.string()), **columns})


def values_of(broker, topic):
    """Return the values of a topic, in any order."""
    return sorted(
        record.value.decode()
        for partition in range(2 if topic == "orders" else 1)
        for record in records_of(broker, topic, partition)
    )


def letter_of(broker):
    [record] = records_of(broker, DLQ)
    return record, {name: value.decode() for name, value in record.headers}


BAD_PARTITION = table_of(["a", "b", "c"], partition=pa.array([0, 2, 1]))
NO_PARTITION = table_of(["a", "b", "c"], partition=pa.array([0, 2**40, -1]))
#: The topic of the letters is known after it.
LETTER_FIRST = table_of(["first"], topic=pa.nulls(1, pa.string()))
TIMES = table_of(["a", "b", "c"], timestamp=pa.array([0, -1, 5], pa.timestamp("us")))
LATE = table_of(["a", "b", "c"], timestamp=pa.array([0, 2**62, 5], pa.timestamp("s")))
NULL_HEADER = table_of(
    ["a", "b", "c"], headers=pa.array([[], [{"key": "n"}, None], [{"key": "k"}]], HEADERS)
)
NO_HEADER_KEY = table_of(
    ["a", "b", "c"], headers=pa.array([None, [{"value": b"n"}] * 2, []], HEADERS)
)


@pytest.mark.parametrize(
    ("table", "kind", "bad"),
    [
        (BAD_PARTITION, "partition", ["b"]),
        (NO_PARTITION, "partition", ["b", "c"]),
        (TIMES, "timestamp", ["b"]),
        (LATE, "timestamp", ["b"]),
        (NULL_HEADER, "headers", ["b"]),
        (NO_HEADER_KEY, "headers", ["b"]),
        (table_of(["a", "b" * 2_000, "c"]), "size", ["b" * 2_000]),
    ],
)
@pytest.mark.parametrize("dlq", [DLQ, None])
def test_a_bad_row_is_set_aside_and_the_others_are_written(broker, table, kind, bad, dlq):
    """It becomes a dead letter or is left out, and is counted by what is wrong with it."""
    settings = {"max.request.size": 2_000} if kind == "size" else {}
    written = write(broker, table, topic="orders", dlq=dlq, **settings)
    good = [value for value in table["value"].to_pylist() if value not in bad]
    assert good == values_of(broker, "orders")
    letters = values_of(broker, DLQ)
    if dlq is None:
        assert [] == letters
    elif kind != "size":
        assert bad == letters
    assert (len(good), ((kind, len(bad)),)) == (written.rows, written.bad_rows.counts)
    assert dlq == written.bad_rows.dlq_topic


@pytest.mark.parametrize(
    "topics",
    [["orders", None, "other"], ["orders", "a b", "other"], ["orders", "x" * 40_000, "other"]],
    ids=["null", "illegal", "long"],
)
def test_a_row_without_a_topic_that_can_be_is_set_aside(broker, topics):
    """No topic, an illegal name, and one that no request can hold are errors of the row."""
    table = table_of(["a", "b", "c"], topic=pa.array(topics, pa.string()))
    written = write(broker, table)
    assert (["a"], ["c"], ["b"]) == tuple(
        values_of(broker, topic) for topic in ("orders", "other", DLQ)
    )
    assert (("topic", 1),) == written.bad_rows.counts


def test_rows_may_all_be_bad(broker):
    """Then only dead letters are written."""
    table = table_of(["a", "b"], topic=pa.nulls(2, pa.string()))
    written = write(broker, table, limit="100%")
    assert (0, 2) == (written.rows, written.bad_rows.count)
    assert ["a", "b"] == values_of(broker, DLQ)


def test_many_bad_rows_among_many_batches_are_each_written_once(broker):
    """Every row is where it belongs, and those behind a bad row keep their numbers."""
    count = 5_000
    table = table_of(
        [f"{row:05}" for row in range(count)],
        partition=pa.array([9 if row % 7 == 3 else row % 2 for row in range(count)]),
    )
    written = write(broker, table, topic="orders", rows=400)
    bad = [f"{row:05}" for row in range(count) if row % 7 == 3]
    good = [f"{row:05}" for row in range(count) if row % 7 != 3]
    assert (good, bad) == (values_of(broker, "orders"), values_of(broker, DLQ))
    assert (len(good), len(bad)) == (written.rows, written.bad_rows.count)
    assert [7 * row + 3 for row in range(10)] == [row.row for row in written.bad_rows.first]


def test_letters_are_written_a_thousand_at_a_time(broker, monkeypatch):
    """The first at once, the rest with those of later batches, and the last at the end."""
    written = []
    append = KafkaProducer.append_unnumbered

    def noted(producer, columns, placed=0):
        written.append((columns.num_rows, placed))
        return append(producer, columns, placed)

    monkeypatch.setattr(KafkaProducer, "append_unnumbered", noted)
    table = table_of(["x"] * 3_000, partition=pa.array([9, 0] * 1_500))
    write(broker, table, topic="orders", rows=8, limit="100%")
    assert [(4, 4), (1_000, 6), (496, 0)] == written
    assert ["x"] * 1_500 == values_of(broker, DLQ)


def test_the_keys_of_letters_are_not_sampled(broker):
    """The sample shows where the keys of the rows are, and a letter is in another topic."""
    keys = [f"{number}" for number in range(8)]
    partitions = pa.array([None] * 4 + [9] * 4, pa.int32())
    bad = table_of(keys, key=keys, partition=partitions)
    good = table_of(keys[:4], key=keys[:4])
    written = write(broker, bad, topic="orders", samples_keys=True)
    assert keys[4:] == values_of(broker, DLQ)
    assert 4 == len(written.keys)
    assert write(broker, good, topic="orders", samples_keys=True).keys == written.keys


@pytest.mark.parametrize("key", [b"k", None])
def test_keyless_rows_are_skipped_as_well(broker, key):
    """Rows without a partition are skipped, whether their key places them or not."""
    table = pa.table(
        {
            "key": pa.array([key] * 3, pa.binary()),
            "value": ["a", "b", "c"],
            "timestamp": pa.array([1, -1, 1], pa.timestamp("ms")),
        }
    )
    write(broker, table, topic="orders")
    assert (["a", "c"], ["b"]) == (values_of(broker, "orders"), values_of(broker, DLQ))


def test_a_dead_letter_has_the_row_and_says_what_is_wrong(broker):
    """It has Connect's headers and ours, behind those of the row, and its key and timestamp."""
    table = pa.table(
        {
            "key": [b"k0", b"k1"],
            "value": [b"good", b"\xff"],
            "topic": pa.array(["orders"] * 2).dictionary_encode(),
            "partition": [0, 5],
            "timestamp": pa.array([3, 4], pa.timestamp("ms")),
            "headers": pa.array([None, [{"key": "trace", "value": b"1"}]], HEADERS),
        }
    )
    written = write(broker, table)
    record, headers = letter_of(broker)
    assert (b"k1", b"\xff", 4) == (record.key, record.value, record.timestamp)
    message = (
        "the topic has no such partition: it has 2 partitions, numbered from 0. Correct the "
        "partition, or leave it null to let the producer choose"
    )
    assert {
        "trace": "1",
        "__connect.errors.topic": "orders",
        "__connect.errors.partition": "5",
        "__connect.errors.connector.name": "pykafka",
        "__connect.errors.task.id": "3",
        "__connect.errors.stage": "KAFKA_PRODUCE",
        "__connect.errors.exception.class.name": "spark_kafka_sink.errors.InvalidPartitionError",
        "__connect.errors.exception.message": message,
        "__pykafka.errors.kind": "partition",
        "__pykafka.errors.query.id": "query",
        "__pykafka.errors.batch.id": "7",
        "__pykafka.errors.row": "1",
    } == headers
    error = f"row 1, topic 'orders', partition 5: {message}"
    assert (BadRow(3, 1, "partition", "orders", error, 0, 0),) == written.bad_rows.first


def test_a_dead_letter_says_nothing_twice(broker):
    """No header repeats another, and the error leaves the place to the headers that have it."""
    write(broker, table_of(["a"], partition=pa.array([5])), topic="orders")
    record, _ = letter_of(broker)
    values = [value for _, value in record.headers]
    assert sorted(set(values)) == sorted(values)


def unhexed(text):
    return None if text is None else bytes.fromhex(text)


def test_a_dead_letter_is_read_as_those_of_connect_are(broker):
    """What both have has the same name and bytes, behind the row's own headers."""
    table = pa.table(
        {
            "key": ["kéy"],
            "value": [b"\xff\x00"],
            "partition": [5],
            "timestamp": pa.array([1_700_000_000_123], pa.timestamp("ms")),
            "headers": pa.array(
                [[{"key": "trace", "value": b"\x01"}, {"key": "none", "value": None}]], HEADERS
            ),
        }
    )
    write(broker, table, topic="orders")
    [record] = records_of(broker, DLQ)
    [connects] = [
        letter
        for letter in CONNECT_LETTERS
        if ["__connect.errors.stage", b"KAFKA_PRODUCE".hex()] in letter["headers"]
    ]
    headers = [(name, unhexed(value)) for name, value in connects["headers"]]
    assert (DLQ, unhexed(connects["key"]), unhexed(connects["value"]), connects["timestamp"]) == (
        connects["topic"],
        record.key,
        record.value,
        record.timestamp,
    )
    assert headers[:2] == list(record.headers)[:2]
    theirs, ours = dict(headers[2:]), dict(record.headers[2:])
    assert {
        "__connect.errors.offset",
        "__connect.errors.class.name",
        "__connect.errors.exception.stacktrace",
    } == theirs.keys() - ours.keys()
    same = theirs.keys() & ours.keys()
    about_error = {name for name in same if "exception" in name}
    assert 2 == len(about_error)
    assert {name: theirs[name] for name in same - about_error} == {
        name: ours[name] for name in same - about_error
    }
    assert set() == {name for name in ours if "__connect" in name} - theirs.keys()
    assert all(value.decode() for value in ours.values())


def test_the_stages_are_those_of_connect():
    """Each stage at which a row can fail has the name that Connect gives it."""
    stages = {dict(letter["headers"])["__connect.errors.stage"] for letter in CONNECT_LETTERS}
    assert {unhexed(stage).decode() for stage in stages} == {
        *dead_letters._STAGES.values(),
        dead_letters._PRODUCE,
    }


@pytest.mark.parametrize(
    ("key", "value", "header", "cut"),
    [
        (10, 5_000, 10, "value"),
        (5_000, 10, 10, "key,value"),
        (10, 10, 5_000, "headers"),
        (10, 2_000, 3_300, "headers"),
    ],
)
def test_a_dead_letter_that_is_too_large_is_truncated(broker, key, value, header, cut):
    """A header says which parts were cut, and the letter is as large as it may be."""
    table = pa.table(
        {
            "key": [b"k" * key],
            "value": [b"v" * value],
            "headers": pa.array([[{"key": "h", "value": b"h" * header}]], HEADERS),
        }
    )
    write(broker, table, topic="orders", **{"max.request.size": 4_000})
    record, headers = letter_of(broker)
    assert cut == headers["__pykafka.errors.truncated"]
    assert ("headers" in cut) == ("h" not in headers)
    assert (b"k" * key).startswith(record.key)
    assert (b"v" * value).startswith(record.value)
    if cut != "headers":
        assert 2_000 < len(record.key) + len(record.value)


def test_a_topic_that_does_not_exist_is_waited_for_once(broker):
    """Its rows become dead letters, and a later task only looks whether it was created."""
    table = table_of(["a", "b", "c"], topic=pa.array(["orders", "other", "none"]))
    config = config_of(broker).producer
    # The other topics are known before the time passes.
    known = table_of(["a", "c", "b"], topic=pa.array(["orders", None, "other"]))
    written = write(broker, known, table, table, producers=impatient_producers(config, "none"))
    assert (6, (("topic", 3),)) == (written.rows, written.bad_rows.counts)
    # With real patience, this would end the test's patience.
    again = write(broker, table, **{"max.block.ms": 600_000})
    assert (2, 1) == (again.rows, again.bad_rows.count)
    assert "the topic does not exist" in again.bad_rows.first[0].error
    assert ["c"] * 4 == values_of(broker, DLQ)
    broker.create_topic("none")
    assert 3 == write(broker, table).rows
    assert ["c"] == values_of(broker, "none")


def test_a_row_for_the_topic_of_the_dead_letters_is_bad(broker):
    """Only dead letters are written to dlqTopic, since other rows could not be told from them."""
    table = table_of(["a", "b"], topic=pa.array(["orders", DLQ]))
    written = write(broker, table)
    assert (1, (("topic", 1),)) == (written.rows, written.bad_rows.counts)
    error = f"row 1, topic '{DLQ}': the topic is dlqTopic, which only dead letters are written to"
    assert written.bad_rows.first[0].error.startswith(error)
    record, headers = letter_of(broker)
    assert (b"b", DLQ) == (record.value, headers["__connect.errors.topic"])


def test_missing_topics_of_a_batch_are_waited_for_together(broker):
    """One wait is enough for all of them, and later batches with other names wait no more."""
    config = config_of(broker).producer
    names = [["none", "no1", "orders", "no2"], ["no3", "none", "other"], ["no4", "orders", "no1"]]
    first, *others = [
        table_of([f"{batch}{row}" for row in range(len(topics))], topic=pa.array(topics))
        for batch, topics in enumerate(names)
    ]
    # The other topics are known before the time passes, which it does only once.
    known = table_of(["a", "b", "c"], topic=pa.array(["orders", None, "other"]))
    written = write(
        broker, known, first, *others, producers=impatient_producers(config, "none"), config=config
    )
    assert (5, (("topic", 8),)) == (written.rows, written.bad_rows.counts)
    assert (["02", "21", "a"], ["12", "c"]) == tuple(
        values_of(broker, topic) for topic in ("orders", "other")
    )


@pytest.mark.parametrize("may_create", [False, True])
def test_new_topics_are_found_after_a_wait_in_vain(may_create):
    """A task that has waited for another one finds them, and lets brokers create them."""
    with DevBroker(topics={DLQ: 1}) as broker:
        if not may_create:
            broker.create_topic("new")
        config = replace(config_of(broker).producer, allow_auto_create_topics=may_create)
        bad_rows = BadRowWriter(
            OnErrorOptions(ErrorLimit.parse("9"), DLQ), RowOrigin(3), config, None
        )
        bad_rows._remember({"never"})
        written = write_rows(
            table_of(["a", "b"], topic=pa.array(["new", "never"])).to_batches(),
            producers=ProducerOfTask(config),
            topic=None,
            config=config,
            bad_rows=bad_rows,
        )
        assert (1, 1) == (written.rows, written.bad_rows.count)
        assert ["a"] == values_of(broker, "new")


def test_all_topics_of_a_batch_are_asked_for_at_once(broker):
    """A request names all of them, so that many topics do not cost a round trip each."""
    names = [f"t{number}" for number in range(20)]
    for name in names:
        broker.create_topic(name)
    asked = []
    broker.on(ApiKey.METADATA, lambda request, _: asked.append(request.topics))
    table = table_of(names, topic=pa.array(names))
    assert 20 == write(broker, table).rows
    named = [{topic.name for topic in topics} for topics in asked if topics]
    assert any(set(names) <= request for request in named)


def test_a_topic_that_may_not_be_seen_ends_the_write(broker):
    """A row for a missing topic beside it does not make it look missing, too: it may exist."""

    def hide(request, _):
        def hidden(response):
            topics = (
                replace(each, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions=())
                if each.name == "other"
                else each
                for each in response.topics
                if request.topics is not None or each.name != "other"
            )
            return replace(response, topics=tuple(topics))

        return AlterResponse(hidden)

    broker.on(ApiKey.METADATA, hide)
    producers = impatient_producers(config_of(broker).producer, "none")
    table = table_of(["a", "b"], topic=pa.array(["none", "other"]))
    # No time is left for the answer after the wait for the other one.
    with pytest.raises(KafkaError, match="topic 'other' is not known"):
        write(broker, LETTER_FIRST, table, producers=producers)


def test_a_topic_that_was_missing_is_created_once_it_may_be():
    """A later write of the same process has autoCreateTopics=true, as the error advises."""
    with DevBroker(topics={DLQ: 1}) as broker:
        table = table_of(["a"], topic=pa.array(["new"]))
        strict = replace(config_of(broker).producer, allow_auto_create_topics=False)
        writes = [
            (strict, impatient_producers(strict, "new")),
            (replace(strict, allow_auto_create_topics=True), None),
        ]
        rows = [
            write(broker, LETTER_FIRST, table, config=config, producers=producers).rows
            for config, producers in writes
        ]
        assert [0, 1] == rows
        assert ["a"] == values_of(broker, "new")


def test_a_missing_topic_of_all_rows_ends_the_write(broker):
    """It is no error of a row."""
    config = config_of(broker).producer
    with pytest.raises(KafkaTimeoutError, match="none"):
        write(broker, table_of(["a"]), topic="none", producers=impatient_producers(config, "none"))


@pytest.mark.parametrize("code", ["TOPIC_AUTHORIZATION_FAILED", "INVALID_RECORD"])
def test_an_error_of_a_broker_ends_the_write(broker, code):
    """Rows are set aside for their own errors only."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode[code]))
    with pytest.raises(DeliveryError, match=code):
        write(broker, BAD_PARTITION, topic="orders")


def test_the_partitions_are_counted_again_once_in_a_task(broker):
    """A partition may be new; bad rows cost no request for each batch."""
    good = table_of(["a"], partition=pa.array([0]))
    config = config_of(broker).producer
    producers = ProducerOfTask(config)
    producer = producers.take()
    producers.take = lambda: producer
    producers.finished = lambda _: None
    write(broker, good, topic="orders", producers=producers)
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_partitions({"orders": NewPartitions(3)})
    seen = broker.on(ApiKey.METADATA, lambda *_: None)
    table = table_of(["b", "c"], partition=pa.array([2, 3]))
    written = write(broker, table, table, table, topic="orders", dlq=None, producers=producers)
    producer.close()
    assert (1, 3, 3) == (seen.seen, written.rows, written.bad_rows.count)


def test_malformed_memory_ends_the_write(broker):
    """No letter could say what is in a row that refers to other memory."""
    bad = pa.Array.from_buffers(
        pa.string(),
        3,
        [
            None,
            pa.py_buffer(b"".join(offset.to_bytes(4, "little") for offset in (0, 200, 1, 2))),
            pa.py_buffer(b"ab"),
        ],
    )
    with pytest.raises(RecordError, match="outside of its buffers"):
        write(broker, pa.table({"value": bad}), topic="orders")


@pytest.mark.parametrize("dlq", [DLQ, None])
def test_a_task_with_too_many_bad_rows_ends(broker, dlq):
    """The error has the first of them, says what to do, and has no traceback for users."""
    with pytest.raises(KafkaError) as caught:
        write(broker, BAD_PARTITION, BAD_PARTITION, topic="orders", limit="1", dlq=dlq)
    error = str(caught.value)
    assert error.startswith(
        "more than 1 row of this task cannot be written, which is more than maxErrors allows. The "
        "first of them: row 1, topic 'orders', partition 2: the topic has no such partition"
    )
    assert "; row 4, topic 'orders', partition 2" in error
    assert isinstance(caught.value.__cause__, InvalidPartitionError)
    assert not may_be_bug(caught.value)


def test_a_task_logs_its_bad_rows_once(broker, caplog):
    """The line has the counts by kind, and the first error."""
    with caplog.at_level(logging.WARNING, logger=dead_letters.__name__):
        write(broker, BAD_PARTITION, NO_PARTITION, topic="orders")
    [record] = caplog.records
    assert record.getMessage().startswith(
        "Kafka: task 3 has 3 bad rows, dead letters in bad (partition 3); the first: row 1, topic "
        "'orders', partition 2: "
    )


def test_the_place_of_a_letter_may_be_unknown(broker):
    """With acks=0, brokers return no offsets."""
    settings = {"acks": "0", "enable.idempotence": "false"}
    [first] = write(broker, BAD_PARTITION, topic="orders", **settings).bad_rows.first
    assert (0, None) == (first.partition, first.offset)


def test_a_clean_write_has_no_bad_rows(broker):
    """There is nothing to report."""
    assert write(broker, table_of(["a"]), topic="orders").bad_rows is None


def test_a_letter_has_the_time_of_writing_if_the_timestamp_was_bad(broker):
    """A bad timestamp is no reason for another bad row."""
    before = dt.datetime.now(tz=dt.UTC).timestamp() * 1000
    write(broker, TIMES, topic="orders")
    record, headers = letter_of(broker)
    assert record.timestamp >= before - 1
    assert "before 1970" in headers["__connect.errors.exception.message"]


def test_a_refused_dead_letter_ends_the_write(broker):
    """A letter is never lost: the error names its topic, and no row."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    bad = table_of(["a"], partition=pa.array([9]))
    with pytest.raises(DeliveryError, match=r"^1 record for bad-0 was not delivered: "):
        write(broker, bad, topic="orders")
