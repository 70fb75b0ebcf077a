from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_kafka_sink.model import UNKNOWN_OFFSET, PartitionAcks, TopicPartition
from spark_kafka_sink.spark.sink.stream_writer import next_lines
from spark_kafka_sink.spark.sink.write_report import WriteReport

SOME = "wrote 10 rows (1.0 kB) to topic t"
MORE = "wrote 30 rows (3.0 kB) to topic t"


def batch(number, ended_at):
    """Return the report of a micro-batch of 10 rows that took a second."""
    acks = PartitionAcks(
        first_offset=10 * number, last_offset=10 * number + 9, records=10, bytes=1000
    )
    written = ((TopicPartition("t", 0), acks),)
    return WriteReport(
        tasks=1, rows=10, partitions=written, elapsed=1.0, ended_at=ended_at, batch_id=number
    )


def printed_at(times, *, is_full=False):
    """Return what a stream prints whose batches end at these times."""
    state = {}
    lines = []
    for number, now in enumerate(times):
        line, state = next_lines(state, batch(number, now), now=now, is_full=is_full)
        # It is stored between batches.
        state = json.loads(json.dumps(state))
        lines.append(line)
    return lines


def test_a_stream_prints_once_a_minute_what_it_has_written_since():
    """The first batch is printed at once, and the sum of later ones after a minute."""
    assert [
        f"Kafka: batch 0 {SOME} from 1 task in 1.0 s (10 rows/s, 0.0 MB/s)",
        None,
        None,
        f"Kafka: batches 1 to 3 {MORE} from 3 tasks in 3.0 s (10 rows/s, 0.0 MB/s)",
        None,
    ] == printed_at([1000, 1010, 1059.9, 1060, 1119])


@pytest.mark.parametrize("waiting", [{}, {"rows": 1, "partitions": [], "metrics": {"new": 1}}])
def test_a_state_of_another_version_costs_a_line_at_most(waiting):
    """A stored sum that cannot be read is ignored, and the batch itself is printed."""
    state = {"printed_at": 0.0, "waiting": waiting, "first_batch": 1}
    line, _ = next_lines(state, batch(2, 1000), now=1000, is_full=False)
    assert line.startswith(f"Kafka: batch 2 {SOME}")


def test_a_stream_says_once_what_fewer_tasks_would_save():
    """It is said of the last batch, since a sum of batches says nothing about the tasks of each."""
    costly = {"tasks": 200, "task_seconds": 0.9, "task_slots": 1}
    reports = [batch(0, 1000), *(replace(batch(n, 0), **costly) for n in (1, 2, 3))]
    state = {}
    lines = []
    for report, now in zip(reports, (1000, 1010, 1060, 1200), strict=True):
        line, state = next_lines(state, report, now=now, is_full=False)
        state = json.loads(json.dumps(state))
        lines.append(line)
    advice = "\n  batch 2: 200 tasks of about 0 rows: 0.9 s of 1.0 s went into"
    assert [False, None, True, False] == [line and advice in line for line in lines]
    assert "went into" not in lines[3]


def test_a_stream_with_rare_batches_prints_each():
    """A batch that ends more than a minute after the last line is printed by itself."""
    lines = printed_at([1000, 1100, 1200])
    assert ["batch 0", "batch 1", "batch 2"] == [line[7:14] for line in lines]


def test_a_clock_that_was_set_back_does_not_silence_a_stream():
    """A last line in the future is ignored."""
    assert None not in printed_at([1000, 10])


def test_a_full_report_of_a_stream_is_a_table_of_the_sum():
    """With report=full the table has the offsets of all batches since the last one."""
    table = printed_at([1000, 1010, 1060], is_full=True)[2]
    assert table.startswith("Kafka: batches 1 to 2 wrote 20 rows")
    assert ["t", "0", "10", "29", "20", "2,000"] == table.splitlines()[2].split()


def of_partitions(*, first_offset, log_append_time):
    """Return the report of a micro-batch to 100 partitions of each of two topics."""
    acks = PartitionAcks(
        first_offset=first_offset,
        last_offset=first_offset,
        records=1,
        bytes=100,
        log_append_time=log_append_time,
    )
    written = [(TopicPartition(topic, number), acks) for topic in "tu" for number in range(100)]
    return WriteReport(tasks=2, rows=200, partitions=tuple(written), elapsed=1.0, batch_id=1)


@pytest.mark.parametrize("first_offset", [7, UNKNOWN_OFFSET])
@pytest.mark.parametrize("log_append_time", [False, True])
def test_what_waits_for_a_line_does_not_grow_with_the_partitions(first_offset, log_append_time):
    """Only a table needs partitions: a line, and its notes, are those of the whole report."""
    report = of_partitions(first_offset=first_offset, log_append_time=log_append_time)

    _, state = next_lines({"printed_at": 1000.0}, report, now=1001, is_full=False)
    line, _ = next_lines({}, report, now=1001, is_full=False)

    assert ["t", "u"] == [partition[0] for partition in state["waiting"]["partitions"]]
    assert report.summary().replace("Kafka: ", "Kafka: batch 1 ", 1) == line


def test_a_table_that_waits_keeps_its_partitions():
    """With report=full nothing is left out of what will be printed."""
    report = of_partitions(first_offset=7, log_append_time=False)

    _, state = next_lines({"printed_at": 1000.0}, report, now=1001, is_full=True)

    assert 200 == len(state["waiting"]["partitions"])
