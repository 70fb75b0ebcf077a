"""The same options plan the same tasks with our source as with Spark's own source."""

from __future__ import annotations

import json

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.support.reading.comparison import FORMATS, Sources
from tests.support.reading.writers import write_with_librdkafka
from tests.support.record.rows import Row

pytestmark = pytest.mark.slow

#: Records in each partition, a second apart.
RECORDS = (40, 25, 10)
START_MS = 1_700_000_000_000
#: A time at which two of the partitions have later records.
IN_TWO_MS = START_MS + 12_500
TOO_LATE_MS = START_MS + 3_600_000


def _offsets(*offsets):
    return {str(partition): offset for partition, offset in enumerate(offsets)}


#: Options of readings; where a value is a dict or a list, it is for the topic.
PLANS = {
    "everything": {},
    "starting offsets": {"startingOffsets": _offsets(7, -2, 3)},
    "ending offsets": {"endingOffsets": _offsets(20, -1, 0)},
    "both offsets": {"startingOffsets": _offsets(7, 25, 3), "endingOffsets": _offsets(8, 25, -1)},
    "starting timestamp": {"startingTimestamp": START_MS + 4_500},
    "both timestamps": {
        "startingTimestamp": START_MS + 4_500,
        "endingTimestamp": IN_TWO_MS,
    },
    "timestamps of partitions": {
        "startingOffsetsByTimestamp": _offsets(START_MS, START_MS + 3_000, START_MS + 9_000),
        "endingOffsetsByTimestamp": _offsets(IN_TWO_MS, TOO_LATE_MS, TOO_LATE_MS),
    },
    "no match is latest": {
        "startingTimestamp": IN_TWO_MS,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "timestamps before offsets": {
        "startingTimestamp": START_MS + 4_500,
        "startingOffsets": _offsets(39, 24, 9),
    },
    "many tasks": {"minPartitions": 11},
    "fewer tasks than partitions": {"minPartitions": 2},
    "many small tasks": {"minPartitions": 14, "maxRecordsPerPartition": 9},
    "tasks of a part": {"minPartitions": 5, "endingOffsets": _offsets(20, 1, 0)},
    "assigned partitions": {"assign": [0, 2]},
}
REFUSED = {
    "a start at latest": {"startingOffsets": "latest"},
    "an end at earliest": {"endingOffsets": "earliest"},
    "a missing partition": {"startingOffsets": _offsets(1, 2)},
    "an unknown partition": {"startingOffsets": _offsets(1, 2, 3, 4)},
    "a time without a match": {"startingTimestamp": IN_TWO_MS},
    "an end in time before the start": {
        "startingTimestamp": START_MS + 9_000,
        "endingTimestamp": START_MS + 3_000,
    },
    "an end in time before an offset": {
        "startingOffsets": _offsets(7, 7, 7),
        "endingTimestamp": START_MS + 3_000,
    },
    "a reset of offsets": {"kafka.auto.offset.reset": "earliest"},
    "a deserializer": {"kafka.key.deserializer": "Bytes"},
}


@pytest.fixture(scope="module")
def topic(kafka_4):
    """Return a topic whose partitions have several batches each."""
    made = kafka_4.create_topic(len(RECORDS), config={"retention.ms": "-1"})
    rows = [
        Row(value=b"%d" % i, timestamp=(START_MS + i * 1000) * 1000, partition=partition)
        for partition, count in enumerate(RECORDS)
        for i in range(count)
    ]
    write_with_librdkafka(kafka_4.bootstrap_servers, made, rows, batch_num_messages=6)
    return made


@pytest.fixture
def sources(spark_with_source, kafka_4):
    return Sources(spark_with_source, kafka_4.bootstrap_servers)


def _tasks(sources, source, options):
    """Return the ranges of offsets that the tasks read, by partition."""
    rows = sources.read(source, **options).selectExpr("spark_partition_id() task", "*")
    tasks = rows.groupBy("task", "partition").agg({"offset": "min", "*": "count"}).collect()
    return sorted((partition, first, count) for _, partition, first, count in tasks)


def _for_topic(plan, topic):
    options = {
        name: json.dumps({topic: value}) if isinstance(value, dict | list) else value
        for name, value in plan.items()
    }
    return options if "assign" in plan else {"subscribe": topic, **options}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_tasks_read_the_same_offsets(sources, topic, plan):
    """Every task has its counterpart, with the same first offset and number of rows."""
    options = _for_topic(plan, topic)
    ours, theirs = (_tasks(sources, source, options) for source in FORMATS)
    assert theirs == ours
    assert theirs


def test_small_tasks_need_no_minimum_of_tasks(sources, topic):
    """With `maxRecordsPerPartition` alone, only our source splits the partitions of a batch."""
    options = {"subscribe": topic, "maxRecordsPerPartition": 9}
    ours, theirs = (_tasks(sources, source, options) for source in FORMATS)
    assert len(RECORDS) == len(theirs)
    assert [8] * 5 + [8, 8, 9] + [5, 5] == [count for _, _, count in ours]


def test_a_pattern_finds_the_same_topics(sources, kafka_4, topic):
    """A pattern may match any part of a topic's name, in both sources."""
    other = kafka_4.create_topic(name=f"{topic}-other")
    write_with_librdkafka(kafka_4.bootstrap_servers, other, [Row(value=b"", partition=0)])
    for pattern, count in ((f"{topic}$", sum(RECORDS)), (topic[1:], sum(RECORDS) + 1)):
        assert count == sources.check(subscribePattern=pattern)


@pytest.mark.parametrize("plan", REFUSED.values(), ids=REFUSED)
def test_the_same_options_are_refused(sources, topic, plan):
    """Options without a meaning are an error in both sources."""
    for source in FORMATS:
        with pytest.raises((PySparkException, Py4JJavaError)):
            sources.read(source, **_for_topic(plan, topic)).collect()
