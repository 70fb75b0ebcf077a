"""Bad rows of whole writes: what the driver checks, decides and reports."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.admin.values import NewTopic
from spark_kafka_sink.config.sink_options import ErrorLimit, OnErrorOptions, SinkOptions
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    DeliveryError,
    InvalidPartitionError,
    KafkaError,
    KafkaTimeoutError,
    PayloadError,
)
from spark_kafka_sink.model import PartitionAcks, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.spark.data_source import KafkaSink
from spark_kafka_sink.spark.sink import stream_writer, writers
from spark_kafka_sink.spark.sink.bad_rows import BadRow, BadRows, mention_on_error
from spark_kafka_sink.spark.sink.driver_checks import check_stream, check_write
from spark_kafka_sink.spark.sink.partition_writer import KafkaCommitMessage
from spark_kafka_sink.spark.sink.stream_writer import next_lines
from spark_kafka_sink.spark.sink.write_report import WriteReport, report_of
from tests.support.exactly_once.exactly_once_sites import EmbeddedSite
from tests.support.exactly_once.exactly_once_world import World
from tests.support.network.leaps import leap_at_first_contact
from tests.support.spark.micro_batches import (
    LEDGER,
    PREFIX,
    BatchJob,
    Query,
    process_of_its_own,
    task_context,
    travel,
)

DLQ = "bad"
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
ROW = BadRow(0, 4, "partition", "orders", "row 4: no such partition", 0, 12)
BAD = BadRows(counts=(("partition", 2), ("size", 1)), first=(ROW,), dlq_topic=DLQ)


@pytest.fixture
def broker():
    with (
        process_of_its_own(),
        DevBroker(topics={"data": 2, DLQ: 2}, auto_create_topics=False) as made,
    ):
        yield made


def world_of(broker, topic):
    made = World(EmbeddedSite(broker))
    made.prefix, made.data, made.ledger = PREFIX, topic, LEDGER
    made.transaction_timeout_ms = 900_000
    return made


@pytest.fixture
def visible(broker):
    """Return a function that reads what consumers of committed records see: rows and letters."""
    worlds = [world_of(broker, topic) for topic in ("data", DLQ)]
    yield lambda: tuple(world.visible() for world in worlds)
    for world in worlds:
        world.close()


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    """Collect what is printed."""
    printed = []
    for module in (writers, stream_writer):
        monkeypatch.setattr(module, "announce", lambda logger, line: printed.append(line))
    return printed


def batch_of(task, *, bad=2):
    """Return four rows, the last of them bad for different reasons."""
    return pa.record_batch(
        {
            "value": [f"t{task}.{row}" for row in range(4)],
            "partition": [0, 1, 9 if bad > 1 else 1, 0],
            "timestamp": pa.array([1, 2, 3, -1 if bad else 4], pa.timestamp("ms")),
        }
    )


def run_task(source, planned, batch_id, task, **options):
    with source.task_context(batch_id, task):
        return travel(travel(planned).write(iter([batch_of(task, **options)])))


def query_of(broker, **options):
    return Query(broker, onError="dlq", dlqTopic=DLQ, **options)


GOOD = ["t0.0", "t0.1", "t1.0", "t1.1"]
LETTERS = ["t0.2", "t0.3", "t1.2", "t1.3"]


def test_dead_letters_are_part_of_the_transaction(broker, visible, lines):
    """Nothing is visible before the commit; a replay neither loses nor repeats rows or letters."""
    query = query_of(broker)
    planned = query.plan()
    messages = [run_task(query, planned, 0, task) for task in range(2)]
    assert ([], []) == visible()
    query.commit(messages, 0)
    assert (GOOD, LETTERS) == visible()
    replayed = [run_task(query, query.plan(), 0, task) for task in range(2)]
    assert [True] * 2 == [message.is_replay for message in replayed]
    query.commit(replayed, 0)
    assert (GOOD, LETTERS) == visible()
    assert "4 bad rows, dead letters in bad (partition 2, timestamp 2)" in lines[0]


def test_a_failed_attempt_leaves_no_dead_letter(broker, visible):
    """The attempts that count write all rows and letters once."""
    query = query_of(broker)
    planned = query.plan()
    run_task(query, planned, 0, 0)
    query.abort([run_task(query, planned, 0, 1), None], 0)
    planned = query.plan()
    query.commit([run_task(query, planned, 0, task) for task in range(2)], 0)
    assert (GOOD, LETTERS) == visible()


@pytest.mark.parametrize(("limit", "is_accepted"), [("3", False), ("49%", False), ("50%", True)])
def test_the_tasks_of_a_micro_batch_share_the_limit(broker, visible, limit, is_accepted):
    """A micro-batch with more bad rows than maxErrors is not committed."""
    query = query_of(broker, maxErrors=limit)
    planned = query.plan()
    messages = [run_task(query, planned, 0, task) for task in range(2)]
    if is_accepted:
        query.commit(messages, 0)
    else:
        with pytest.raises(KafkaError, match=r"^4 of 8 rows cannot be written, .*: task 0, row 2,"):
            query.commit(messages, 0)
        query.abort(messages, 0)
    assert ((GOOD, LETTERS) if is_accepted else ([], [])) == visible()


@pytest.mark.parametrize("policy", ["skip", "dlq"])
def test_a_task_may_have_bad_rows_only(broker, visible, policy):
    """Where they are left out, its transaction has nothing to commit."""
    options = {"onError": policy} | ({"dlqTopic": DLQ} if policy == "dlq" else {})
    query = Query(broker, **options)
    planned = query.plan()
    batch = pa.record_batch({"value": ["x"], "partition": [9]})
    with query.task_context(0, 0):
        first = travel(travel(planned).write(iter([batch])))
    query.commit([first, run_task(query, planned, 0, 1, bad=0)], 0)
    assert (sorted(f"t1.{row}" for row in range(4)), ["x"] if policy == "dlq" else []) == visible()
    query.commit([run_task(query, query.plan(), 1, 0, bad=0)], 1)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_batch_reports_its_bad_rows(broker, lines, tmp_path, guarantee):
    """The line and the JSON have them, with the places of the dead letters."""
    path = tmp_path / "report.json"
    job = BatchJob(broker, onError="dlq", dlqTopic=DLQ, reportPath=str(path), report="full")
    if guarantee == "at_least_once":
        for name in ("deliveryGuarantee", "transactionalIdPrefix", "ledgerTopic"):
            del job._given[name]
    planned = job.plan()
    messages = []
    for task in range(2):
        with task_context(task, {}):
            messages.append(travel(travel(planned).write(iter([batch_of(task)]))))
    planned.commit(messages)
    [text] = lines
    assert text.startswith("Kafka: wrote 4 rows (")
    assert " to topic data from 2 tasks" in text
    assert "\n  4 bad rows, dead letters in bad (partition 2, timestamp 2)\n" in text
    assert "    task 1, row 3, topic 'data': the timestamp is before 1970. Use a later" in text
    written = json.loads(path.read_text())
    records = {
        topic: sum(partition["records"] for partition in partitions)
        for topic, partitions in written["topics"].items()
    }
    assert (4, {"data": 4, DLQ: 4}) == (written["rows"], records)
    report = written["bad_rows"]
    assert (4, {"partition": 2, "timestamp": 2}, DLQ) == (
        report["count"],
        report["counts"],
        report["dlq_topic"],
    )
    assert [(0, 2), (0, 3), (1, 2), (1, 3)] == [
        (bad["task"], bad["row"]) for bad in report["first"]
    ]
    assert 4 == len({(bad["partition"], bad["offset"]) for bad in report["first"]})


def test_a_failed_batch_of_an_at_least_once_write_is_reported_by_the_limit(broker):
    """The rows are in Kafka, and the job fails all the same."""
    job = BatchJob(broker, onError="skip", maxErrors="1")
    planned = job.plan()
    with task_context(0, {}), pytest.raises(KafkaError, match="more than 1 row of this task"):
        travel(planned).write(iter([batch_of(0)]))
    messages = []
    for task in range(2):
        with task_context(task, {}):
            messages.append(travel(travel(planned).write(iter([batch_of(task, bad=1)]))))
    with pytest.raises(KafkaError, match=r"2 of 8 rows cannot be written, .*maxErrors"):
        planned.commit(messages)


def refusal(**options):
    with pytest.raises(ConfigError) as caught:
        SinkOptions.from_mapping({**SERVERS, **options})
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"maxErrors": "5"}, "maxErrors is for writes that go on after a bad row"),
        ({"onError": "fail", "dlqTopic": "d"}, "dlqTopic is for dead letters"),
        ({"onError": "skip", "dlqTopic": "d"}, "dlqTopic is for dead letters"),
        ({"onError": "dlq"}, "onError=dlq requires dlqTopic"),
        ({"onError": "dlq", "dlqTopic": "a b"}, "'a b' is not a valid topic name"),
        ({"onError": "dlq", "dlqTopic": "t", "topic": "t"}, "dlqTopic must not be the topic"),
        ({"onError": "no"}, "onError must be one of: fail, skip, dlq, not 'no'"),
        (
            {
                "onError": "dlq",
                "dlqTopic": "spark-kafka-sink-ledger",
                "deliveryGuarantee": "exactly_once",
                "transactionalIdPrefix": "p",
            },
            "dlqTopic must not be the ledgerTopic",
        ),
        *[
            ({"onError": "skip", "maxErrors": text}, "maxErrors must be a number from 1 on, or a ")
            for text in ("0", "-1", "0%", "101%", "x", "5 %%", "nan%", "")
        ],
    ],
)
def test_options_without_effect_or_meaning_are_refused(options, error):
    """The error says which other option is missing or wrong."""
    assert refusal(**options).startswith(error)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"onError": "FAIL"}, None),
        ({"onError": "Skip"}, OnErrorOptions(ErrorLimit(1000), None)),
        (
            {"onError": "dlq", "dlqTopic": "d", "maxErrors": " 2.5% "},
            OnErrorOptions(ErrorLimit(None, 0.025), "d"),
        ),
    ],
)
def test_options_of_bad_rows(options, expected):
    """By default, a bad row ends the write; otherwise a thousand of them do."""
    assert expected == SinkOptions.from_mapping({**SERVERS, **options}).on_error


COLUMNS = StructType([StructField("value", StringType())])


@pytest.mark.parametrize("percent", [7, 14, 28, 29, 55, 57, 58])
def test_a_share_is_exact(percent):
    """As many rows as it allows are no error, and one more is."""
    limit = ErrorLimit.parse(f"{percent}%")
    assert [False, True] == [limit.is_exceeded(bad, 100) for bad in (percent, percent + 1)]


def test_a_missing_topic_of_dead_letters_is_refused_on_the_driver(broker, monkeypatch):
    """The check names it, whether or not the topic of the rows is an option."""
    leap_at_first_contact(monkeypatch)
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "data",
        "onError": "dlq",
        "dlqTopic": "none",
    }
    with pytest.raises(BrokerError, match="topic 'none' does not exist"):
        check_write(COLUMNS, given, is_dry_run=True)
    checked = check_write(COLUMNS, {**given, "dlqTopic": DLQ}, is_dry_run=True)
    assert "OK: 2 partitions of data, column value, bad rows: dead letters in bad" == repr(checked)
    assert "dead letters in bad" in checked._repr_html_()
    columns = StructType([*COLUMNS.fields, StructField("topic", StringType())])
    del given["topic"]
    with pytest.raises(BrokerError, match="topic 'none' does not exist"):
        KafkaSink(given).writer(columns, overwrite=False)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_compacted_topic_of_dead_letters_is_refused_on_the_driver(broker, policy, is_hidden):
    """It would lose letters; a topic whose settings are hidden from this client is accepted."""
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic("letters", 1, configs={"cleanup.policy": policy})])
    if is_hidden:
        broker.on(ApiKey.DESCRIBE_CONFIGS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "data",
        "onError": "dlq",
        "dlqTopic": "letters",
    }
    error = (
        rf"dlqTopic 'letters' has cleanup.policy={policy}. A compacted topic .* another topic$"
        if "compact" in policy and not is_hidden
        else None
    )
    with nullcontext() if error is None else pytest.raises(ConfigError, match=error):
        check_write(COLUMNS, given, is_dry_run=True)
    with nullcontext() if error is None else pytest.raises(ConfigError, match=error):
        check_stream(SinkOptions.from_mapping(given), "data")


ACKS = PartitionAcks(first_offset=0, last_offset=1, records=2, bytes=100)
PLACE = (TopicPartition("orders", 0), ACKS)
LETTER_PLACE = (TopicPartition(DLQ, 0), ACKS)


def test_a_report_with_bad_rows_travels():
    """It is restored from its record, and adds those of a later batch; letters are no rows."""
    report = WriteReport(tasks=1, rows=2, partitions=(LETTER_PLACE, PLACE), bad_rows=BAD)
    restored = WriteReport.from_record(json.loads(json.dumps(report.to_record())))
    assert report == restored
    merged = report.merged(restored).merged(WriteReport(tasks=1, rows=0, partitions=()))
    assert (("partition", 4), ("size", 2)) == merged.bad_rows.counts
    assert (ROW, ROW) == merged.bad_rows.first
    assert merged.to_line().startswith("wrote 4 rows (200 bytes) to topic orders")


def test_a_report_of_bad_rows_only():
    """It does not say that there were no rows."""
    bad = BadRows(counts=(("topic", 1),), first=(), dlq_topic=None)
    report = WriteReport(tasks=1, rows=0, partitions=(), bad_rows=bad)
    assert "Kafka: wrote no rows (1 task)\n  1 bad row, left out (topic 1)" == report.summary()
    assert "1 bad row, left out (topic 1)" in report.to_text()
    assert "bad rows" in report._repr_html_()


def test_messages_of_tasks_are_merged():
    """The first ten of all tasks remain, in the order of the tasks."""
    rows = [ROW._replace(row=row) for row in range(8)]
    part = BadRows(counts=(("partition", 8),), first=tuple(rows), dlq_topic=DLQ)
    messages = [
        KafkaCommitMessage(partition_id=0, task_attempt_id=0, rows=1, acks=(PLACE,), bad_rows=bad)
        for bad in (part, None, part)
    ]
    merged = report_of(messages).bad_rows
    assert (16, (*rows, *rows[:2])) == (merged.count, merged.first)


def test_a_stream_prints_batches_with_bad_rows_only():
    """They are something to know even if nothing was written."""
    report = WriteReport(tasks=1, rows=0, partitions=(), batch_id=3, bad_rows=BAD)
    lines, _ = next_lines({}, report, now=0.0, is_full=False)
    assert lines.startswith("Kafka: batch 3 wrote no rows (1 task)\n  3 bad rows, dead letters")


def test_no_log_line_has_the_values_of_rows(broker, caplog):
    """An error says what is wrong, without what is in the row."""
    query = query_of(broker)
    with caplog.at_level(logging.INFO):
        run_task(query, query.plan(), 0, 0)
    assert "t0.2" not in caplog.text
    assert "bad rows" in caplog.text


def refused(code):
    error = DeliveryError("1 record for orders-0, row 4, was not delivered")
    error.__cause__ = BrokerError("refused", code=code, name="X")
    return error


ADVICE = ". To go on without such rows, set onError=skip or onError=dlq"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (InvalidPartitionError("no such partition", row=4, advice="Correct it"), ADVICE),
        (PayloadError("it is null", row=4, advice="Fill it"), ADVICE),
        (PayloadError("the schema has no such field", advice="Add it"), ""),
        (refused(ErrorCode.MESSAGE_TOO_LARGE), ADVICE),
        (refused(ErrorCode.INVALID_RECORD), ADVICE),
        (refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED), ""),
        (DeliveryError("1 record was not delivered"), ""),
        (KafkaTimeoutError("topic 'orders' is unknown"), ""),
    ],
)
def test_the_error_of_a_bad_row_leads_to_on_error(error, advice):
    """Who has a poisonous row learns of the option from the error; others are not misled."""
    expected = str(error) + advice
    mention_on_error(error, None)
    assert expected == str(error)


@pytest.mark.parametrize(
    ("topic", "dlq", "is_letter"), [(DLQ, DLQ, True), ("orders", DLQ, False), (None, None, False)]
)
def test_the_error_of_a_refused_dead_letter_says_that_it_is_one(topic, dlq, is_letter):
    """Its topic may be unknown to those who only know that of the rows."""
    error = DeliveryError("1 record for a partition was not delivered")
    error.topic = topic
    mention_on_error(error, OnErrorOptions(ErrorLimit.parse("10"), dlq))
    assert is_letter == ("It is a dead letter, which is never left out" in str(error))
