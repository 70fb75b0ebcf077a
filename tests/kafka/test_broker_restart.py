"""The only broker goes down during a write, and comes back."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.faults.absent_broker import AbsentBroker
from tests.support.kafka.real_kafka import wait_until
from tests.support.record.numbered_rows import RowCheck, check_rows, read_numbers
from tests.support.soaking.steady_writer import IN_BULK, write_during

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

pytestmark = pytest.mark.slow

#: The rows of a Spark job of two tasks at a time. They hold back rows at these shares of their own;
#: those between the two are less than a producer's buffer holds.
ROWS_OF_A_JOB = 400_000
TASKS = 4
WAIT_FOR_FREEZE, WAIT_FOR_RESTART = 0.5, 0.9
#: A task holds its rows back in steps of 10,000, Spark's batches.
ROWS_OF_BOTH = int(0.55 * ROWS_OF_A_JOB / TASKS)


def test_a_killed_broker_loses_and_duplicates_no_row(own_kafka):
    """After two SIGKILLs and restarts during one write, every row is there once and in order."""
    (broker,) = own_kafka.brokers
    topic = own_kafka.create_topic(3)

    def kill_and_start():
        for _ in range(2):
            broker.kill()
            broker.start()
            own_kafka.wait_until_ready()

    settings = {**IN_BULK, "compression.type": "none"}
    assert RowCheck() == write_during(own_kafka, topic, kill_and_start, **settings)


def test_an_orderly_broker_restart_loses_and_duplicates_no_row(own_kafka):
    """After an orderly restart during a write, every row is there once and in order."""
    (broker,) = own_kafka.brokers
    topic = own_kafka.create_topic(3)

    def restart():
        broker.stop()
        broker.start()
        own_kafka.wait_until_ready()

    settings = {**IN_BULK, "compression.type": "lz4"}
    assert RowCheck() == write_during(own_kafka, topic, restart, **settings)


def test_a_killed_broker_loses_and_duplicates_no_row_of_a_spark_job(own_kafka, spark, tmp_path):
    """A Spark write survives SIGKILL and restart of the broker without retrying a task."""
    (broker,) = own_kafka.brokers
    topic = own_kafka.create_topic(3)
    frozen, restarted = tmp_path / "frozen", tmp_path / "restarted"

    def wait_for(file: Path) -> None:
        while not file.exists():
            time.sleep(0.1)

    def hold_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            share = rows / (ROWS_OF_A_JOB / TASKS)
            if share >= WAIT_FOR_FREEZE:
                wait_for(frozen)
            if share >= WAIT_FOR_RESTART:
                (tmp_path / f"passed by {os.getpid()}").touch()
                wait_for(restarted)
            rows += batch.num_rows
            yield batch

    df = (
        spark.range(0, ROWS_OF_A_JOB, 1, TASKS)
        .selectExpr("concat(lpad(cast(id as string), 10, '0'), repeat('some text ', 7)) as value")
        .mapInArrow(hold_back, "value string")
    )
    options = {
        "kafka.bootstrap.servers": own_kafka.bootstrap_servers,
        "kafka.compression.type": "none",
        "topic": topic,
    }

    def kill_and_start():
        try:
            # More than one task alone can have written by then: the other one knows the topic, too.
            wait_until(
                lambda: sum(own_kafka.end_offsets(topic).values()) > ROWS_OF_BOTH,
                seconds=120,
                what="the first rows of both tasks",
            )
            # What the tasks pass from here on is in flight when the broker is killed.
            broker.freeze()
            frozen.touch()
            try:
                wait_until(
                    lambda: len(list(tmp_path.glob("passed by *"))) == 2,
                    seconds=120,
                    what="rows of both tasks in flight",
                )
            finally:
                broker.kill()
                broker.start()
                own_kafka.wait_until_ready()
        finally:
            frozen.touch()
            restarted.touch()

    with ThreadPoolExecutor(1) as executor:
        killed = executor.submit(kill_and_start)
        df.write.format("pykafka").mode("append").options(**options).save()
        killed.result()
    numbers = read_numbers(own_kafka.bootstrap_servers, topic)
    assert RowCheck() == check_rows(numbers, ROWS_OF_A_JOB, rows_per_writer=ROWS_OF_A_JOB // TASKS)


@pytest.mark.spark
def test_a_stream_waits_for_its_broker(own_kafka, spark, tmp_path):
    """If the broker is down when a micro-batch starts, the tasks wait for it."""
    AbsentBroker(spark, own_kafka, tmp_path).continues_once_the_broker_is_back()
