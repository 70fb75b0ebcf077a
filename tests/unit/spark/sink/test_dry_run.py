"""Dry runs of a sample, from the tasks to what users see."""

from __future__ import annotations

import json
import random
import re

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, KafkaError, SchemaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.sink import dead_letters, dry_run
from spark_kafka_sink.spark.sink.dry_run import DryRun, SizeCounts, keep_result, size_class
from spark_kafka_sink.spark.sink.dry_run_writer import DryRunProducers, counts_of
from tests.support.network.leaps import is_missing, leap_once
from tests.support.platforms.tried_frame import TriedFrame
from tests.support.spark.micro_batches import process_of_its_own, task_context

SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", StringType()),
        StructField("partition", IntegerType()),
    ]
)
TOPIC_SCHEMA = StructType([StructField("value", StringType()), StructField("topic", StringType())])


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 2}, auto_create_topics=False) as broker:
        broker.create_topic("small", partitions=1, configs={"max.message.bytes": "1000"})
        yield broker


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Return a directory for the driver, which knows no topics to be missing."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(dead_letters, "_missing", {})
    return tmp_path


def rows_of(keys, values, partitions=None):
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.string()),
            "partition": pa.array(partitions or [None] * len(values), pa.int32()),
        }
    )


def check(broker, *tables, schema=SCHEMA, sample=1_000, rows=1_000, **options):
    """Check a write with a sample."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
    return KafkaSink.check(TriedFrame(schema, tables, rows=rows), given, sample=sample)


PLAIN = rows_of(["a", "b", None], ["1", "2" * 20, None], [0, 0, 1])


def test_a_dry_run_measures_what_a_write_would_send(broker):
    """Rows, bytes and sizes are those of the write, and the topic stays empty."""
    found = check(broker, PLAIN, topic="orders").dry_run
    assert {0: 2, 1: 1} == by_number(found.rows_by_partition)
    assert (3, 1, 2, 0, None, ()) == (
        found.rows,
        found.tasks,
        found.batches,
        found.split_batches,
        found.bad_rows,
        found.failures,
    )
    assert (2, 1, 1, 1) == (
        found.key_sizes.count,
        found.key_sizes.nulls,
        found.key_sizes.minimum,
        found.key_sizes.maximum,
    )
    assert (1, 20) == (found.value_sizes.minimum, found.value_sizes.maximum)
    assert 3 == found.record_sizes.count
    assert found.bytes == sum(found.bytes_by_partition.values()) == found.compressed_bytes + 122
    assert 0 == broker.records("orders").count


def topics_of(broker):
    return broker.call(lambda it: {topic.name for topic in it.cluster.topics})


def by_number(counts):
    return {place.partition: count for place, count in counts.items()}


def test_the_bytes_are_those_of_the_write(broker):
    """A write of the same rows has as many bytes in each partition."""
    table = rows_of([f"k{row % 7}" for row in range(500)], [f"v{row}" for row in range(500)])
    found = check(broker, table, topic="orders").dry_run
    planned = KafkaSink(
        {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}
    ).writer(SCHEMA, overwrite=False)
    written = written_by(planned, table)
    assert {place: acks.records for place, acks in written.acks} == found.rows_by_partition
    assert {place: acks.bytes for place, acks in written.acks} == pytest.approx(
        # Timestamps are those of the moment.
        found.bytes_by_partition,
        rel=0.05,
    )


def written_by(planned, table):
    with process_of_its_own(), task_context(0, {}):
        return planned.write(iter(table.to_batches()))


def test_partitions_without_rows_are_shown(broker):
    """An empty partition is a part of the histogram."""
    found = check(broker, rows_of(["a"], ["1"], [1]), topic="orders").dry_run
    assert {0: 0, 1: 1} == by_number(found.rows_by_partition)
    assert {0: 0} == by_number(
        {place: size for place, size in found.bytes_by_partition.items() if not place.partition}
    )


def test_rows_have_the_numbers_of_their_tasks(broker):
    """The rows of a sample are numbered as in the task that would write them."""
    first = rows_of(["a"] * 4, ["1", "2", "3", "4"], [0, 0, 5, 0])
    second = rows_of(["b"] * 3, ["1", "2", "3"], [9, 0, 1])
    found = check(broker, first, second, rows=3, topic="orders").dry_run
    assert [(0, 2, "partition"), (1, 0, "partition")] == [
        (bad.task, bad.row, bad.kind) for bad in found.bad_rows.first
    ]
    assert (7, 2, (("partition", 2),)) == (found.rows, found.tasks, found.bad_rows.counts)
    assert (
        "the write would fail: the first row that cannot be written ends it, unless onError is "
        "skip or dlq" in found.to_text()
    )
    assert re.search(r"task 0, row 2, topic 'orders', partition 5: the topic has", found.to_text())


def test_only_the_sample_is_tried(broker):
    """Rows behind the sample are not encoded, and a sample of all rows says so."""
    tables = [rows_of(["a"] * 5, ["1"] * 5), rows_of(["a"] * 5, ["2"] * 5, [9] * 5)]
    few = check(broker, *tables, sample=5, topic="orders").dry_run
    assert (5, None) == (few.rows, few.bad_rows)
    assert few.to_line().startswith("dry run of 5 rows from 1 task: ")
    assert "keys that other tasks have, too, are not found" in few.to_text()
    every = check(broker, *tables, sample=11, topic="orders", onError="skip").dry_run
    assert every.to_line().startswith("dry run of all 10 rows from 2 tasks: ")


def test_bad_rows_are_compared_with_max_errors(broker):
    """With onError, the write fails only if there are too many."""
    table = rows_of(["a"] * 4, ["1"] * 4, [0, 5, 5, 0])
    few = check(broker, table, topic="orders", onError="skip", maxErrors="50%")
    assert ((), "OK") == (few.dry_run.failures, repr(few)[:2])
    many = check(broker, table, topic="orders", onError="skip", maxErrors="1")
    assert ("2 bad rows, which is more than maxErrors allows",) == many.dry_run.failures
    assert repr(many).startswith("it would fail: 2 partitions of orders, columns key, value")


def test_records_that_the_topic_refuses_are_found(broker):
    """A record beyond max.message.bytes is a bad row, as for the broker."""
    table = rows_of(["a"] * 3, ["1", "x" * 5_000, "y" * 100])
    options = {"kafka.compression.type": "none", "onError": "skip", "topic": "small"}
    found = check(broker, table, **options).dry_run
    assert {"small": 1_000} == found.max_message_bytes
    assert {0: 2} == by_number(found.rows_by_partition)
    assert (("size", 1),) == found.bad_rows.counts
    assert [(0, 1)] == [(bad.task, bad.row) for bad in found.bad_rows.first]
    assert () == found.failures
    without = check(broker, table, **{**options, "onError": "fail"}).dry_run
    assert ("a row that cannot be written ends it, unless onError is skip or dlq",) == (
        without.failures
    )
    assert found.split_batches > 0
    assert "would be refused as larger than max.message.bytes" in found.to_text()


def test_a_limit_that_is_not_told_is_named(broker, monkeypatch):
    """A user who may not see the settings of a topic learns that they were not checked."""
    monkeypatch.setattr(
        "spark_kafka_sink.admin.topic_settings.max_message_bytes", lambda config, topics: {}
    )
    found = check(broker, PLAIN, topic="orders").dry_run
    [note] = found.notes
    assert note.startswith("max.message.bytes of orders is unknown, so that records may be too")


def test_keys_in_several_tasks_are_found(broker):
    """One warning, and a failure with keyOrder=fail."""
    tables = [rows_of(["a", "b"], ["1", "2"]), rows_of(["a", "c"], ["3", "4"])]
    found = check(broker, *tables, topic="orders").dry_run
    assert (3, 1, ()) == (found.sampled_keys, found.spread_keys, found.failures)
    assert "1 of 3 sampled keys are in more than one task" in found.notes[0]
    failed = check(broker, *tables, topic="orders", keyOrder="fail").dry_run
    assert failed.failures[0].startswith("keyOrder=fail: 1 of 3 sampled keys")
    off = check(broker, *tables, topic="orders", keyOrder="off").dry_run
    assert (0, ()) == (off.sampled_keys, off.notes)


@pytest.fixture
def leap_if_missing(monkeypatch):
    """Return a function that ends the wait for a topic once it is known to be missing."""
    take = DryRunProducers.take

    def set_topic(topic):
        def impatient(self):
            producer = take(self)
            leap_once(producer, lambda: is_missing(producer, topic))
            return producer

        monkeypatch.setattr(DryRunProducers, "take", impatient)

    return set_topic


def test_topics_of_a_column_are_tried(broker, leap_if_missing):
    """Each topic has its partitions in the histogram; a missing one is a bad row."""
    leap_if_missing("odrers")
    table = pa.table({"value": ["1", "2", "3"], "topic": ["orders", "small", "odrers"]})
    found = check(broker, table, schema=TOPIC_SCHEMA).dry_run
    assert [("orders", 0), ("orders", 1), ("small", 0)] == list(map(tuple, found.rows_by_partition))
    assert (("topic", 1),) == found.bad_rows.counts
    assert "topic 'odrers': the topic does not exist" in found.bad_rows.first[0].error


def test_a_row_for_the_topic_of_the_dead_letters_is_found(broker):
    """The dry run has no letters, and yet knows that rows must not have their topic."""
    table = pa.table({"value": ["1", "2"], "topic": ["orders", "small"]})
    options = {"onError": "dlq", "dlqTopic": "small"}
    found = check(broker, table, schema=TOPIC_SCHEMA, **options).dry_run
    assert (("topic", 1),) == found.bad_rows.counts
    assert "topic 'small': the topic is dlqTopic" in found.bad_rows.first[0].error


def test_a_missing_topic_has_no_partitions_to_try(broker, monkeypatch):
    """Brokers may create it in a write; without it, no row can be placed."""
    monkeypatch.setattr(
        "spark_kafka_sink.admin.cluster_check.describe_topics", lambda *_, **named: {}
    )
    with pytest.raises(ConfigError, match="topic 'new' does not exist, so a dry run cannot"):
        check(broker, PLAIN, topic="new", autoCreateTopics="true")


def test_the_rows_of_a_column_create_no_topic(leap_if_missing):
    """They count as wrong, and a note says what a write would do."""
    leap_if_missing("new")
    with DevBroker(topics={"orders": 1}, auto_create_topics=True) as broker:
        table = pa.table({"value": ["1", "2"], "topic": ["orders", "new"]})
        found = check(broker, table, schema=TOPIC_SCHEMA, autoCreateTopics="true").dry_run
        assert "new" not in topics_of(broker)
    assert (("topic", 1),) == found.bad_rows.counts
    assert "autoCreateTopics=true would create it in a write" in found.notes[-1]


def test_typed_values_are_encoded(broker):
    """The sizes are those of Avro, and a row that the schema lacks is counted."""
    schema = StructType([StructField("value", StructType([StructField("id", IntegerType())]))])
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]})
    kind = pa.struct([("id", pa.int32())])
    table = pa.table({"value": pa.array([{"id": 1}, {"id": None}, {"id": 70}], kind)})
    options = {"topic": "orders", "valueFormat": "avro", "valueSchema": text}
    found = check(broker, table, schema=schema, **options).dry_run
    assert (("value", 1),) == found.bad_rows.counts
    assert (1, 2) == (found.value_sizes.minimum, found.value_sizes.maximum)


def test_a_schema_that_is_not_registered_yet_is_part_of_the_sizes():
    """A dry run registers nothing, but payloads have the five bytes of their framing."""
    schema = StructType(
        [StructField("value", StructType([StructField("id", IntegerType(), nullable=False)]))]
    )
    kind = pa.struct([pa.field("id", pa.int32(), nullable=False)])
    table = pa.table({"value": pa.array([{"id": 1}], kind)})
    with DevBroker(topics={"orders": 1}, schema_registry=True) as broker:
        options = {
            "topic": "orders",
            "valueFormat": "avro",
            "autoRegisterSchemas": "true",
            "schema.registry.url": broker.schema_registry_url,
        }
        found = check(broker, table, schema=schema, **options).dry_run
    assert 6 <= found.value_sizes.maximum <= 7


def test_an_exactly_once_write_is_tried_without_a_transaction(broker):
    """No ledger is created, and no transaction is begun."""
    options = {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "job"}
    found = check(broker, PLAIN, topic="orders", **options).dry_run
    assert 3 == found.rows
    assert {"orders", "small"} == topics_of(broker)


def test_a_sample_without_rows_is_shown(broker):
    """There is nothing to measure."""
    found = check(broker, rows_of([], []), topic="orders").dry_run
    assert (0, 0, {}, None, None) == (
        found.rows,
        found.batches,
        found.rows_by_partition,
        found.value_sizes,
        found.compression_ratio,
    )
    assert "dry run of 0 rows from 0 tasks" == found.to_text()
    assert "dry run of 0 rows" in found._repr_html_()


@pytest.mark.parametrize("sample", [0, -1, True, "1000", 1.5, 2**31])
def test_a_sample_must_be_a_number_of_rows(sample):
    """Anything else is refused before the cluster is asked."""
    with pytest.raises(
        ConfigError, match=r"sample must be how many rows to try, from 1 to 2147483647"
    ):
        KafkaSink.check(TriedFrame(SCHEMA, []), {"topic": "t"}, sample=sample)


def test_a_stream_has_no_sample():
    """Its rows are not there to be tried."""
    frame = TriedFrame(SCHEMA, [], isStreaming=True)
    with pytest.raises(ConfigError, match=r"this DataFrame is a stream: leave out sample"):
        KafkaSink.check(frame, {"topic": "t"}, sample=10)


def test_what_a_write_refuses_a_dry_run_refuses(broker):
    """Options and columns are checked by the writer of a dry run as by that of a write."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}
    asked = {**options, dry_run.DRY_RUN_OPTION: f"{'0' * 32}5"}
    wrong = StructType([StructField("value", IntegerType())])
    refusals = []
    for given in (options, asked):
        with pytest.raises(SchemaError) as refused:
            KafkaSink(given).writer(wrong, overwrite=False)
        refusals.append(str(refused.value))
        with pytest.raises(ConfigError) as refused:
            KafkaSink({**given, "acks": "1"}).writer(SCHEMA, overwrite=False)
        refusals.append(str(refused.value))
    assert refusals[:2] == refusals[2:]


def test_a_result_that_is_gone_is_an_error(broker, monkeypatch):
    """The result is on the driver's machine only."""
    monkeypatch.setattr(
        "spark_kafka_sink.spark.sink.dry_run_writer.keep_result", lambda name, result: None
    )
    with pytest.raises(KafkaError, match="its result is not on the driver's machine any more"):
        check(broker, PLAIN, topic="orders")


def test_a_result_is_removed_once_it_was_returned(broker, directory):
    """Nothing is left behind, and results that nobody has asked for are few."""
    found = check(broker, PLAIN, topic="orders").dry_run
    [kept] = directory.iterdir()
    assert [] == list(kept.iterdir())
    for number in range(60):
        keep_result(f"{number:032x}", found)
    assert 50 == len(list(kept.iterdir()))
    with pytest.raises(ValueError, match="is not the name of a dry run"):
        keep_result("../x", found)


def test_a_result_can_only_be_kept_by_the_driver(broker, monkeypatch):
    """Outside of Spark's processes there is no place for it."""
    found = check(broker, PLAIN, topic="orders").dry_run
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    with pytest.raises(KafkaError, match="only be kept in a process of Spark's driver"):
        keep_result("0" * 32, found)


def test_a_result_survives_json(broker):
    """What the driver keeps is what users get, also from a newer version."""
    table = rows_of(["a"] * 3, ["1"] * 3, [0, 5, 1])
    found = check(broker, table, topic="orders").dry_run
    record = json.loads(json.dumps({**found.to_record(), "newer": 1}))
    assert found == DryRun.from_record(record)


TABLES = """\
dry run of all 3 rows from 1 task: 166 bytes in 2 batches
  topic   partition  rows  of all rows  bytes
  orders          0     2        66.7%     98
  orders          1     1        33.3%     68
  bytes of  minimum  median  99 % up to  maximum  null
  key             1       1           1        1     1
  value           1       1          20       20     1
  record          7       9          28       28     0"""


def test_tables_are_shown_as_text(broker):
    """A histogram of the partitions, and the sizes of keys, values and records."""
    options = {"topic": "orders", "kafka.compression.type": "none"}
    checked = check(broker, PLAIN, **options)
    shown = repr(checked).splitlines()
    assert "OK: 2 partitions of orders, columns key, value, partition" == shown[0]
    assert TABLES == checked.dry_run.to_text() == "\n".join(shown[1:])
    assert f"<DryRun: {TABLES}>" == repr(checked.dry_run)
    assert "  ... and 1 more partition" in checked.dry_run.to_text(max_lines=1).splitlines()


def test_tables_are_shown_in_notebooks(broker):
    """Bars for the rows of each partition, and what is wrong below; texts are escaped."""
    table = pa.table({"value": ["1", "2"], "topic": ["orders", "<script>"]})
    checked = check(broker, table, schema=TOPIC_SCHEMA)
    shown = checked._repr_html_()
    assert checked.dry_run._repr_html_() in shown
    assert "it would fail: topics are named by the column topic" in shown
    assert shown.count("<table") == 3
    assert "width:100.0%" in shown
    assert "<script>" not in shown
    assert "1 row cannot be written (topic 1)" in shown


def test_medians_are_exact_for_small_sizes_and_close_for_large_ones():
    """Sizes are counted in few classes, and those of tasks are added up."""
    numbers = random.Random(7)
    sizes = [numbers.randrange(1_024) for _ in range(500)]
    assert sizes == list(map(size_class, sizes))
    large = [numbers.randrange(1, 10 ** numbers.randrange(1, 9)) for _ in range(2_000)]
    parts = [large[:700], large[700:], []]
    counts = SizeCounts({})
    for part in parts:
        counts = counts.merged(counts_of(pa.array([*part, -1]).to_numpy()))
    summary = counts.summary()
    ordered = sorted(large)
    assert (2_000, ordered[0], ordered[-1], 3) == (
        summary.count,
        summary.minimum,
        summary.maximum,
        summary.nulls,
    )
    for found, exact in [(summary.median, ordered[999]), (summary.p99, ordered[1_979])]:
        assert 0.998 * exact <= found <= exact
    assert len(counts.counts) < 2_000


def test_records_of_another_kind_of_column_are_measured(broker):
    """Binary columns are those of most topics."""
    schema = StructType([StructField("value", BinaryType())])
    found = check(broker, pa.table({"value": [b"\0" * 300]}), schema=schema, topic="orders").dry_run
    assert 300 == found.value_sizes.median
    assert found.compression_ratio < 0.5
    assert "compressed to" in found.to_line()
    assert [TopicPartition("orders", 0), TopicPartition("orders", 1)] == list(
        found.rows_by_partition
    )
