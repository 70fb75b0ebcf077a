"""Streams that read: triggers, limits, the first batch, restarts, lost rows."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.support.kafka.real_kafka import wait_until
from tests.support.spark.kafka_rows import add_partitions, delete_records, produce
from tests.support.spark.source_groups import committed_offsets
from tests.support.spark.streams import (
    PATIENCE_SECONDS,
    Checkpoint,
    run_to_end,
    start,
    wait_for_batch,
)

#: PySpark 4.1 has no limits for Python sources.
HAS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="requires PySpark 4.2 or later")
EARLIEST = {"startingOffsets": "earliest"}
CONTINUALLY = {"processingTime": "0 seconds"}


class _Collected:
    """The values of each micro-batch, as foreachBatch sees them."""

    def __init__(self):
        self.batches = []
        self.fails_at = None

    def __call__(self, df, batch_id):
        rows = df.selectExpr("cast(value as string) value").collect()
        if batch_id == self.fails_at:
            raise RuntimeError("the batch fails as planned")
        self.batches.append((batch_id, sorted(row.value for row in rows)))

    @property
    def values(self):
        return sorted(value for _, values in self.batches for value in values)

    @property
    def sizes(self):
        return [len(values) for _, values in self.batches]


@pytest.fixture
def collected():
    return _Collected()


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


@pytest.fixture
def stream(topics, spark, checkpoint, collected):
    """Return a function that creates the writer of a stream from a topic into memory."""

    def make(topic=None, **options):
        given = {**topics.servers, **({} if topic is None else {"subscribe": topic}), **options}
        df = spark.readStream.format("pykafka").options(**given).load()
        writer = df.writeStream.option("checkpointLocation", str(checkpoint.path))
        return writer.foreachBatch(collected)

    return make


@pytest.fixture
def fill(topics):
    """Return a function that writes numbered values to a partition, and returns them."""
    count = iter(range(10**6))

    def write(topic, rows, partition=0):
        values = [f"{next(count):06d}" for _ in range(rows)]
        produce(topics.broker.bootstrap_servers, topic, values, partition)
        return values

    return write


def catch_up(writer):
    """Read all available rows, in as many runs as a query needs that has a batch to replay."""
    run_to_end(writer)
    if not HAS_LIMITS:
        # For a source without limits, AvailableNow is a single batch.
        run_to_end(writer)


def offsets_of(checkpoint, batch):
    """Return the text of the source's offsets in the checkpoint."""
    return (checkpoint.path / "offsets" / str(batch)).read_text().splitlines()[-1]


@needs_limits
def test_available_now_reads_in_limited_batches(topics, stream, fill, collected, checkpoint):
    """Each run reads what there is at its start, divided by the limit; the next one goes on."""
    topic = topics.create(2)
    values = fill(topic, 30) + fill(topic, 10, partition=1)
    limited = {**EARLIEST, "maxOffsetsPerTrigger": "20"}
    run_to_end(stream(topic, **limited))
    assert [20, 20] == collected.sizes
    run_to_end(stream(topic, **limited))
    assert [20, 20] == collected.sizes
    add_partitions(topics.broker.bootstrap_servers, topic, 3)
    values += fill(topic, 1) + fill(topic, 5, partition=2)
    run_to_end(stream(topic, **limited))
    assert values == collected.values
    assert {"0": 31, "1": 10, "2": 5} == json.loads(offsets_of(checkpoint, 2))[topic]


@needs_limits
@pytest.mark.filterwarnings("ignore:Trigger.Once:FutureWarning")
def test_the_trigger_once_reads_everything(topics, stream, fill, collected):
    """The trigger once ignores all limits, and needs no second run for rows from earliest."""
    topic = topics.create()
    values = fill(topic, 30)
    limits = {"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "5"}
    query = start(stream(topic, **EARLIEST, **limits), {"once": True})
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert [(0, values)] == collected.batches


def test_a_stream_from_latest_reads_what_comes(topics, stream, fill, collected):
    """The first batch is empty; then rows are read, of new partitions and new topics, too."""
    servers = topics.broker.bootstrap_servers
    topic = topics.create()
    fill(topic, 5)
    pattern = f"{topic}(-new)?"
    query = start(stream(subscribePattern=pattern), CONTINUALLY)
    try:
        wait_for_batch(query, 0)
        assert [(0, [])] == collected.batches
        values = fill(topic, 10)

        def has_come_so_far() -> bool:
            # The producer may have divided the values into several batches, and so may Spark.
            wait_for_batch(query, 1)
            [progress] = query.lastProgress["sources"]
            return ast.literal_eval(progress["latestOffset"]) == {topic: {"0": 15}}

        wait_until(has_come_so_far, seconds=PATIENCE_SECONDS, what="progress up to offset 15")
        assert (0, []) == collected.batches[0]
        assert values == collected.values
        add_partitions(servers, topic, 2)
        topics.broker.create_topic(f"{topic}-new", partitions=1, configs={})
        values += fill(topic, 3, partition=1) + fill(f"{topic}-new", 2)
        wait_until(
            lambda: len(collected.values) == len(values),
            seconds=PATIENCE_SECONDS,
            what="rows of new partitions",
        )
    finally:
        query.stop()
    assert values == collected.values


@pytest.mark.parametrize("failing", [0, 1])
def test_rows_are_not_lost_if_the_first_batches_fail(  # noqa: PLR0917 -- fixtures
    topics, stream, fill, collected, checkpoint, failing
):
    """A query from latest that ends between the log of offsets and the log of commits goes on."""
    topic = topics.create(2)
    fill(topic, 5)
    collected.fails_at = failing
    query = start(stream(topic), CONTINUALLY)
    values = []
    try:
        if failing:
            wait_for_batch(query, 0)
            values = fill(topic, 4)
        with pytest.raises(StreamingQueryException, match="as planned"):
            query.awaitTermination(PATIENCE_SECONDS)
    finally:
        query.stop()
    assert (checkpoint.path / "offsets" / str(failing)).is_file()
    assert not (checkpoint.path / "commits" / str(failing)).exists()
    values += fill(topic, 3, partition=1)
    collected.fails_at = None
    catch_up(stream(topic))
    assert values == collected.values


@needs_limits
def test_a_minimum_delays_a_batch(topics, stream, fill, collected):
    """Rows are read once there are enough of them; the first trigger never waits."""
    topic = topics.create()
    values = fill(topic, 1)
    writer = stream(topic, **EARLIEST, minOffsetsPerTrigger="10")
    query = start(writer, CONTINUALLY)
    try:
        wait_for_batch(query, 0)
        assert [1] == collected.sizes
        for rows in (4, 6):
            values += fill(topic, rows)
        wait_for_batch(query, 1)
    finally:
        query.stop()
    assert (values, [1, 10]) == (collected.values, collected.sizes)


def test_a_checkpoint_of_sparks_own_source_is_continued(
    topics, stream, fill, collected, checkpoint
):
    """The offsets of format("kafka") have the same shape in another order, and nothing is lost."""
    topic = topics.create(2)
    values = fill(topic, 3) + fill(topic, 2, partition=1)
    run_to_end(stream(topic, **EARLIEST))
    path = checkpoint.path / "offsets" / "0"
    ours, theirs = offsets_of(checkpoint, 0), f'{{"{topic}":{{"1":2,"0":3}}}}'
    assert {"0": 3, "1": 2} == json.loads(ours)[topic]
    path.write_text(path.read_text().removesuffix(ours) + theirs)
    path.with_name(".0.crc").unlink(missing_ok=True)
    values += fill(topic, 4)
    run_to_end(stream(topic, **EARLIEST))
    assert values == collected.values


def test_lost_rows_end_a_query_unless_they_may(topics, stream, fill, collected):
    """Deleted records and topics fail the query by default; otherwise the rest is read."""
    topic, other = topics.create(), topics.create()
    given = {**EARLIEST, "subscribe": f"{topic},{other}"}
    values = fill(topic, 5) + fill(other, 1)
    run_to_end(stream(**given))
    lost = fill(topic, 3)
    delete_records(topics.broker.bootstrap_servers, topic, before=7)
    with pytest.raises(StreamingQueryException, match=rf"{topic}-0.*(?s:.)*offset"):
        run_to_end(stream(**given))
    catch_up(stream(**given, failOnDataLoss="false"))
    assert [*values, *lost[2:]] == collected.values
    topics.broker.delete_topic(other)
    with pytest.raises(StreamingQueryException, match=f"{other}-0: the partition is gone"):
        run_to_end(stream(**given))
    more = fill(topic, 1)
    catch_up(stream(**given, failOnDataLoss="false"))
    assert [*values, *lost[2:], *more] == collected.values


def test_each_use_of_a_stream_in_a_query_reads_a_topic_made_again(
    topics, spark, fill, collected, checkpoint
):
    """The checkpoint has the id of the old topic; both halves of a union read all of the new."""
    topic = topics.create()
    options = {**topics.servers, **EARLIEST, "subscribe": topic, "failOnDataLoss": "false"}
    df = spark.readStream.format("pykafka").options(**options).load()
    writer = df.union(df).writeStream.option("checkpointLocation", str(checkpoint.path))
    values = fill(topic, 2)
    run_to_end(writer.foreachBatch(collected))
    topics.broker.delete_topic(topic)
    topics.broker.create_topic(topic, partitions=1, configs={})
    values += fill(topic, 3)
    catch_up(writer.foreachBatch(collected))
    assert sorted(2 * values) == collected.values


@pytest.mark.filterwarnings("ignore:Trigger.Once:FutureWarning")
@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"once": True}, {"processingTime": "0 seconds"}], ids=str
)
def test_a_start_beyond_the_end_ends_a_query_unless_it_may(
    topics, stream, fill, collected, trigger
):
    """A new query fails, also when it is restarted; otherwise it continues at the log's end."""
    topic = topics.create(2)
    values = fill(topic, 3, partition=1)
    fill(topic, 10)
    beyond = {
        "startingOffsets": json.dumps({topic: {"0": 1000, "1": 0}}),
        "fetchOffset.retryIntervalMs": "10",
    }
    message = rf"{topic}-0: the query starts at offset 1000, but the log ended at offset 10"
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=message):
            run_to_end(stream(topic, **beyond), trigger)
    assert [] == collected.batches
    catch_up(stream(topic, **beyond, failOnDataLoss="false"))
    values += fill(topic, 5)
    catch_up(stream(topic, **beyond, failOnDataLoss="false"))
    assert sorted(values) == collected.values


def test_progress_is_committed_to_groups(topics, spark, fill, checkpoint):
    """The source commits to commitGroup, and the sink to sourceConsumerGroup, for monitors."""
    servers = topics.broker.bootstrap_servers
    topic, copy = topics.create(), topics.create()
    fill(topic, 20)
    limit = {"maxOffsetsPerTrigger": "10"} if HAS_LIMITS else {}
    options = {**EARLIEST, **limit, "commitGroup": "by-source"}
    df = spark.readStream.format("pykafka").options(**topics.servers, **options)
    written = df.option("subscribe", topic).load().select("value").writeStream.format("pykafka")
    given = {
        **topics.servers,
        "topic": copy,
        "checkpointLocation": str(checkpoint.path),
        "sourceConsumerGroup": "by-sink",
    }
    run_to_end(written.options(**given))
    assert 20 == len(topics.values(copy))
    assert {(topic, 0): 20} == committed_offsets(servers, "by-sink")
    # Spark tells a source about a batch when it plans the next one.
    if HAS_LIMITS:
        # A thread commits; no batch waits for it, and the end of the query only a second.
        wait_until(
            lambda: committed_offsets(servers, "by-source") == {(topic, 0): 10},
            seconds=PATIENCE_SECONDS,
            what="the commit of the source",
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "missing"}, "missing"),
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
    ids=str,
)
def test_an_invalid_stream_fails_before_a_task(topics, stream, options, message):
    """What the driver can detect ends the query with one sentence."""
    topic = topics.create()
    with pytest.raises((AnalysisException, StreamingQueryException), match=message) as caught:
        run_to_end(stream(**{"subscribe": topic, **options}))
    assert "another exception occurred" not in str(caught.value)


def test_columns_of_a_stream_are_selected_by_a_schema(topics, spark, fill, tmp_path):
    """A stream selects columns like a batch."""
    topic = topics.create()
    fill(topic, 2)
    reader = spark.readStream.format("pykafka").options(**topics.servers, **EARLIEST)
    df = reader.schema("offset long, partition int").option("subscribe", topic).load()
    rows = []
    run_to_end(
        df.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(
            lambda batch, _: rows.extend(map(tuple, batch.collect()))
        )
    )
    assert [(0, 0), (1, 0)] == sorted(rows)
