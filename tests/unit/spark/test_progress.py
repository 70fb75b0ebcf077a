from __future__ import annotations

import pyarrow as pa

from spark_kafka_sink.spark.announcements import with_progress


def said_by(times, rows):
    """Return what a task says that takes batches with these numbers of rows at these times."""
    lines = []
    clock = iter(times)
    batches = [pa.record_batch({"value": pa.array(range(count), pa.int64())}) for count in rows]
    assert batches == list(
        with_progress(batches, task=3, clock=lambda: next(clock), say=lines.append)
    )
    return lines


def test_a_task_says_every_five_seconds_how_far_it_is():
    """A line has the task, the totals, the time, and the speed since the last line."""
    assert [
        "Kafka: task 3 has taken 200 rows (1.6 kB) in 5 s, now 40 rows/s",
        "Kafka: task 3 has taken 1,300 rows (10.4 kB) in 15 s, now 110 rows/s",
    ] == said_by([100, 102, 105, 109.9, 115], [100, 100, 100, 1000])


def test_a_short_task_says_nothing():
    """A task that ends within five seconds says nothing."""
    assert [] == said_by([0, 1, 4.9], [5, 5])


def test_a_line_that_cannot_be_printed_does_not_fail_the_task(caplog):
    """A closed output is one warning, and the rows are passed on."""

    def say(line):
        raise BrokenPipeError(line)

    clock = iter(range(0, 100, 10))
    batches = [pa.record_batch({"value": [1]})] * 4
    assert batches == list(with_progress(batches, task=3, clock=lambda: next(clock), say=say))
    assert ["task 3 cannot print its progress"] == caplog.messages
