"""A million rows, counted one by one; `make soak` writes ten."""

from __future__ import annotations

import pytest

from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.soaking.many_rows import produce_and_check

pytestmark = pytest.mark.slow

ROWS = 1_000_000
PARTITIONS = 6
TASKS = 4


def test_the_producer_loses_and_duplicates_no_row_and_keeps_their_order(kafka_4):
    """A million rows from one producer are there once each, in order within every partition."""
    topic = kafka_4.create_topic(PARTITIONS)
    assert [] == produce_and_check(kafka_4, topic, ROWS)


def test_spark_loses_and_duplicates_no_row_and_keeps_the_order_of_each_task(kafka_4, spark):
    """A million rows from four tasks are there once each, in order within each task."""
    topic = kafka_4.create_topic(PARTITIONS)
    df = spark.range(0, ROWS, 1, TASKS).selectExpr(
        "cast(id as string) as key",
        "concat(lpad(cast(id as string), 10, '0'), repeat('some text ', 7)) as value",
    )
    options = {"kafka.bootstrap.servers": kafka_4.bootstrap_servers, "topic": topic}
    df.write.format("pykafka").mode("append").options(**options).save()
    numbers = read_numbers(kafka_4.bootstrap_servers, topic)
    assert RowCheck() == check_rows(numbers, ROWS, rows_per_writer=ROWS // TASKS)
