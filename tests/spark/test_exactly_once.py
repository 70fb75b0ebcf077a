"""Exactly-once writes through Spark; tests/unit/spark tests the single steps without Spark."""

from __future__ import annotations

import itertools
import json
import runpy
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.ledger import Budget
from tests.support.exactly_once.exactly_once_sites import EmbeddedSite
from tests.support.exactly_once.exactly_once_world import World
from tests.support.kafka.readers import read_with_confluent
from tests.support.spark.streams import Checkpoint, NumberedFiles, run_to_end, to_kafka

EXAMPLES = Path(__file__).parents[2] / "examples"
_prefixes = itertools.count(1)


@pytest.fixture
def files(tmp_path):
    return NumberedFiles(tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


@pytest.fixture
def options(topics):
    """Return the options of an exactly-once write under a unique prefix."""
    return {
        **topics.servers,
        "deliveryGuarantee": "exactly_once",
        "transactionalIdPrefix": f"prefix-{next(_prefixes)}",
    }


@pytest.fixture
def left_open(topics, options):
    """Yield a function that lists the open transactions under the test's prefix."""
    world = World(EmbeddedSite(topics.broker))
    prefix = options["transactionalIdPrefix"]
    yield lambda: recovery.list_open(world.admin, prefix, Budget.of(time.monotonic, 30))
    world.close()


@pytest.fixture
def run(spark, files, checkpoint, options):
    """Return a function that writes everything available in the files."""

    def write(**given):
        run_to_end(to_kafka(files.read(spark), checkpoint, **options, **given))

    return write


def test_a_stream_and_its_replays_are_written_once(topics, files, checkpoint, run, left_open):
    """Across restarts and replayed batches, every number is written and reported exactly once."""
    topic = topics.create(3)
    path = files.directory.parent / "report.jsonl"
    for _ in range(2):
        files.add(10, files=2)
        run(topic=topic, reportPath=str(path))
        checkpoint.forget_last_commit()
        run(topic=topic, reportPath=str(path))
    assert files.numbers == topics.values(topic)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(batch, 10) for batch in range(4)] == [
        (line["batch_id"], line["rows"]) for line in lines
    ]
    assert [] == left_open()


def test_bad_rows_and_their_replays_become_dead_letters_once(
    topics, spark, files, checkpoint, options
):
    """Rows and dead letters together are the input, across restarts and a replayed batch."""
    topic, dead = topics.create(2), topics.create()
    given = {**options, "topic": topic, "onError": "dlq", "dlqTopic": dead, "maxErrors": "80%"}

    def run():
        bad = files.read(spark).selectExpr(
            "value",
            "int(if(int(value) % 5 = 1, 7, null)) partition",
            "timestamp_millis(if(int(value) % 5 = 2, -1, 1)) timestamp",
            "if(int(value) % 5 = 3, array(named_struct('key', string(null), 'value', binary('v'))),"
            " null) headers",
        )
        run_to_end(to_kafka(bad, checkpoint, **given))

    for _ in range(2):
        files.add(10, files=2)
        run()
        checkpoint.forget_last_commit()
        run()
    numbers = sorted(map(int, files.numbers))
    assert [number for number in numbers if number % 5 in {0, 4}] == sorted(
        map(int, topics.values(topic))
    )
    assert [number for number in numbers if number % 5 in {1, 2, 3}] == sorted(
        map(int, topics.values(dead))
    )


def test_malformed_payloads_and_their_replays_are_set_aside_once(spark, checkpoint):
    """The example routes good and bad orders in one write; a replayed batch repeats neither."""
    example = runpy.run_path(str(EXAMPLES / "route_bad_payloads.py"))
    topics = {"orders": 3, "good-orders": 3, "bad-orders": 1}
    with DevBroker(topics=topics, schema_registry=True) as broker:
        servers, registry = broker.bootstrap_servers, broker.schema_registry_url
        kafka = {"kafka.bootstrap.servers": servers}

        def run():
            orders = example["read_orders"](spark, {**kafka, "schema.registry.url": registry})
            rows = example["route"](orders)
            run_to_end(example["to_topics"](rows, kafka, str(checkpoint.path)))

        example["send_orders"](servers, registry, 0)
        run()
        checkpoint.forget_last_commit()
        example["send_orders"](servers, registry, 500)
        run()
        assert [990, 10] == [
            example["count"](spark, servers, topic) for topic in ("good-orders", "bad-orders")
        ]
        good, bad = (read_with_confluent(servers, topic) for topic in ("good-orders", "bad-orders"))
    ids = [number for number in range(1_000) if number % 500 < 495]
    assert ids == sorted(json.loads(record.value)["id"] for record in good)
    assert [b"order %d" % (number * 500 + 495 + row) for number in (0, 1) for row in range(5)] == (
        sorted((record.value for record in bad), key=lambda value: int(value[6:]))
    )
    headers = dict(bad[0].headers)
    assert headers["error"].startswith(b"value: it begins with the byte 111, not with the byte 0")
    assert {b"0", b"1", b"2"} >= {dict(record.headers)["place"].split()[0] for record in bad}


def test_a_rolled_back_checkpoint_stops_the_query(topics, files, checkpoint, run):
    """A query that would rewrite earlier batches stops with an error that says why."""
    topic = topics.create()
    files.add(10, files=3)
    run(topic=topic)
    checkpoint.roll_back(2)
    with pytest.raises(StreamingQueryException, match="the checkpoint was rolled back to an older"):
        run(topic=topic)
    assert files.numbers == topics.values(topic)


def test_a_stateful_query_continues_after_a_replay(topics, spark, files, checkpoint, options):
    """A batch that is skipped on replay still stores the state of the aggregation."""
    given = {**options, "topic": topics.create()}

    def run():
        counts = files.read(spark).groupBy().count().selectExpr("string(count) value")
        run_to_end(to_kafka(counts, checkpoint, **given).outputMode("complete"))

    files.add(10, files=2)
    run()
    checkpoint.forget_last_commit()
    files.add(10)
    run()
    assert ["10", "20", "30"] == topics.values(given["topic"])


def test_the_foreach_batch_recipe_writes_each_batch_once(topics, spark, files, checkpoint, options):
    """In foreachBatch, with the query id and the batch id as the writeId, replays are skipped."""
    topic = topics.create()

    def run():
        def write(df, batch_id):
            query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            (
                df.write.format("pykafka")
                .mode("append")
                .options(**options, topic=topic, writeId=f"{query_id}-{batch_id}")
                .save()
            )

        writer = files.read(spark).writeStream.foreachBatch(write)
        run_to_end(writer.option("checkpointLocation", str(checkpoint.path)))

    files.add(10, files=2)
    run()
    checkpoint.forget_last_commit()
    files.add(10)
    run()
    assert files.numbers == topics.values(topic)


def test_a_job_is_written_once(topics, spark, options, left_open):
    """A job with many topics and empty partitions, run twice with one writeId, writes once."""
    names = [topics.create(2) for _ in range(5)]
    listed = ", ".join(f"'{name}'" for name in names)
    df = spark.range(500, numPartitions=8).selectExpr(
        "string(id) value", f"element_at(array({listed}), int(id % 5) + 1) topic"
    )
    for _ in range(2):
        topics.write(df.where("id < 250"), **options, writeId="day-1")
    counts = Counter(value for name in names for value in topics.values(name))
    assert {str(number): 1 for number in range(250)} == counts
    assert [] == left_open()


def test_a_failed_job_leaves_no_rows_and_no_transaction(topics, spark, options, left_open):
    """When a task fails, no row of any task becomes visible, and no transaction stays open."""
    topic = topics.create(2)
    df = spark.range(100, numPartitions=4).selectExpr(
        "string(id) value", "int(if(id = 99, 99, 0)) partition"
    )
    with pytest.raises(Exception, match="partition 99"):
        topics.write(df, topic, **options, writeId="day-1")
    assert [] == topics.values(topic)
    topics.write(df.select("value"), topic, **options, writeId="day-1")
    assert 100 == len(topics.values(topic))
    assert [] == left_open()


def test_an_invalid_ledger_topic_stops_a_stream(topics, files, run):
    """A ledger topic that deletes records stops the query before any task, naming the setting."""
    topics.broker.create_topic("forgetful", configs={"cleanup.policy": "delete"})
    files.add(10)
    topic = topics.create()
    with pytest.raises(StreamingQueryException, match=r"ledgerTopic 'forgetful' has cleanup\.poli"):
        run(topic=topic, ledgerTopic="forgetful")
    assert [] == topics.read(topic)
