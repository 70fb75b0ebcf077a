"""Streams of our source plan the same batches as Spark's own source, and continue each other."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.kafka.real_kafka import wait_until
from tests.support.reading.comparison import FORMATS, OURS, THEIRS, Sources
from tests.support.spark.numbered_topic import NumberedTopic
from tests.support.spark.source_groups import committed_offsets
from tests.support.spark.streams import PATIENCE_SECONDS, Checkpoint, run_to_end, start

pytestmark = pytest.mark.slow

PARTITIONS = 3
LIMIT = 17


@pytest.fixture
def sources(spark_with_source, kafka_4):
    return Sources(spark_with_source, kafka_4.bootstrap_servers)


def _planned(checkpoint):
    """Return the end offsets of each batch in a checkpoint, without repetitions."""
    files = sorted((checkpoint.path / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    stored = [json.loads(file.read_text().splitlines()[-1]) for file in files]
    # Ours has the ids of topics besides, in keys without partitions.
    ends = [{name: it for name, it in each.items() if it} for each in stored]
    return [end for i, end in enumerate(ends) if ends[i - 1 : i] != [end]]


class _Values:
    """The values that a query has read, batch after batch."""

    def __init__(self):
        self.read = []

    def run(self, stream, checkpoint):
        """Run a stream of Kafka's rows to its end."""
        values = stream.selectExpr("cast(value as string)")
        run_to_end(
            values.writeStream.foreachBatch(self._add).option(
                "checkpointLocation", str(checkpoint.path)
            )
        )

    def _add(self, batch, _):
        self.read += [row.value for row in batch.collect()]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": LIMIT},
        {"startingOffsets": {"0": 5, "1": -2, "2": -1}, "maxOffsetsPerTrigger": LIMIT},
        {"startingTimestamp": 0, "maxOffsetsPerTrigger": 1},
        {"startingOffsets": "earliest", "minPartitions": 5},
    ],
    ids=["earliest", "offsets", "few per batch", "no limit"],
)
def test_batches_end_at_the_same_offsets(sources, kafka_4, tmp_path, options):
    """The checkpoints of both sources have the same offsets, batch by batch."""
    source = NumberedTopic(kafka_4, PARTITIONS)
    rows = 6 if options.get("maxOffsetsPerTrigger") == 1 else 50
    source.add(rows)
    source.add(rows // 6, partition=1)
    given = {
        name: json.dumps({source.topic: value}) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    planned = {}
    for name in FORMATS:
        checkpoint = Checkpoint(tmp_path / name)
        stream = sources.read_stream(name, subscribe=source.topic, **given)
        run_to_end(
            stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint.path))
        )
        planned[name] = _planned(checkpoint)
    assert planned[THEIRS] == planned[OURS]
    assert planned[OURS]


@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_a_checkpoint_can_be_taken_over(sources, kafka_4, tmp_path, first, second):
    """Each source continues where the other has ended, also with a partition that is new."""
    source = NumberedTopic(kafka_4, PARTITIONS)
    checkpoint, values = Checkpoint(tmp_path), _Values()
    options = {
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": LIMIT,
    }
    source.add(30)
    values.run(sources.read_stream(first, **options), checkpoint)
    assert source.numbers == sorted(values.read)
    source.add(30)
    kafka_4.add_partitions(source.topic, PARTITIONS + 1)
    source.add(20, partition=PARTITIONS)
    values.run(sources.read_stream(second, **options), checkpoint)
    assert source.numbers == sorted(values.read)
    source.add(10)
    values.run(sources.read_stream(first, **options), checkpoint)
    assert source.numbers == sorted(values.read)


@pytest.mark.parametrize(("first", "second"), [(THEIRS, OURS), (OURS, THEIRS)])
def test_a_checkpoint_with_a_deleted_topic_can_be_taken_over(
    sources, kafka_4, tmp_path, first, second
):
    """Without `failOnDataLoss`, a topic that was deleted is left out, and the others go on."""
    kept = NumberedTopic(kafka_4, 1)
    deleted = NumberedTopic(kafka_4, 1, name=f"{kept.topic}-deleted")
    checkpoint, values = Checkpoint(tmp_path), _Values()
    options = {
        "subscribePattern": f"{kept.topic}.*",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    kept.add(10)
    deleted.add(10)
    values.run(sources.read_stream(first, **options), checkpoint)
    kafka_4.delete_topics([deleted.topic])
    kept.add(10)
    values.run(sources.read_stream(second, **options), checkpoint)
    assert sorted(kept.numbers + deleted.numbers) == sorted(values.read)


def test_a_start_beyond_the_end_is_the_same_for_both(sources, kafka_4, tmp_path):
    """Both fail at once and after a restart, and continue at the end if they may."""
    source = NumberedTopic(kafka_4, 2)
    source.add(10)
    source.add(3, partition=1)
    beyond = {
        "subscribe": source.topic,
        "startingOffsets": json.dumps({source.topic: {"0": 1000, "1": 1}}),
        "fetchOffset_retryIntervalMs": 10,
    }
    checkpoints = {name: Checkpoint(tmp_path / name) for name in FORMATS}
    values = {name: _Values() for name in FORMATS}
    for name, message in {
        OURS: f"{source.topic}-0: the query starts at offset 1000, but the log ended at offset 5",
        THEIRS: f"Partition {source.topic}-0 offset was changed from 1000 to 5",
    }.items():
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match=message):
                values[name].run(sources.read_stream(name, **beyond), checkpoints[name])
        assert [] == values[name].read
        stream = sources.read_stream(name, **beyond, failOnDataLoss="false")
        values[name].run(stream, checkpoints[name])
    source.add(6)
    for name in FORMATS:
        stream = sources.read_stream(name, **beyond, failOnDataLoss="false")
        values[name].run(stream, checkpoints[name])
    assert values[THEIRS].read
    assert sorted(values[THEIRS].read) == sorted(values[OURS].read)
    assert _planned(checkpoints[THEIRS]) == _planned(checkpoints[OURS])


def test_a_group_shows_the_progress_to_other_clients(sources, kafka_4, tmp_path):
    """With `commitGroup`, librdkafka finds the end of a batch as the offsets of the group."""
    source = NumberedTopic(kafka_4, PARTITIONS)
    checkpoint = Checkpoint(tmp_path)
    stream = sources.read_stream(
        OURS,
        subscribe=source.topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=LIMIT,
        commitGroup=f"group-{source.topic}",
    )

    def committed():
        offsets = committed_offsets(kafka_4.bootstrap_servers, f"group-{source.topic}")
        return {str(partition): offset for (_, partition), offset in offsets.items()}

    def has_planned_all():
        planned = _planned(checkpoint)
        return bool(planned) and sum(planned[-1][source.topic].values()) == source.rows

    source.add(50)
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint.path))
    query = start(writer, {"processingTime": "0 seconds"})
    try:
        wait_until(has_planned_all, seconds=PATIENCE_SECONDS, what="the batches of all rows")
        # Spark reports the end of a batch when it plans the next one.
        source.add(1)
        wait_until(
            lambda: sum(committed().values()) >= 50,
            seconds=PATIENCE_SECONDS,
            what="the offsets of the group",
        )
    finally:
        query.stop()
    assert committed() in [ends[source.topic] for ends in _planned(checkpoint)]
