"""Exactly-once writes in a Spark cluster whose executors are processes: races, failures, losses.

Rows are numbered; in the end an independent read_committed consumer must see every number once,
and no transaction may stay open.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.exactly_once.exactly_once_case import ExactlyOnceCase
from tests.support.exactly_once.kill_plan import EXECUTOR, FAILURE, STALL
from tests.support.kafka.readers import read_with_kafka_python
from tests.support.spark.mortal_queries import MortalJob, MortalQuery
from tests.support.spark.mortal_sink import AFTER_FLUSH, BEFORE_FLUSH, BEFORE_PRODUCE
from tests.support.spark.spark_cluster import SparkCluster
from tests.support.spark.streams import NumberedFiles

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # As soon as a task takes longer than half of the others: on a busy machine, all are slow.
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def cluster():
    with SparkCluster() as started:
        yield started


@pytest.fixture
def case(kafka_4):
    made = ExactlyOnceCase(kafka_4, [kafka_4.create_topic(2) for _ in range(3)])
    yield made
    made.close()


def written_twice(kafka, topics):
    """Return how many numbers are in the log more than once, committed or not."""
    values = Counter(
        record.value
        for topic in topics
        for record in read_with_kafka_python(kafka.bootstrap_servers, topic)
    )
    return sum(count > 1 for count in values.values())


def test_the_loser_of_a_race_in_a_stream_is_aborted(kafka_4, cluster, case, tmp_path):
    """A task that stalls after its flush is overtaken by a speculative copy, and is aborted."""
    [topic, *_] = case.topics
    query = MortalQuery(tmp_path, NumberedFiles(tmp_path), {**case.options, "topic": topic})
    query.source.add(20, files=2)
    query.kills.add([AFTER_FLUSH], STALL)
    query.run_to_end(**cluster.settings(tmp_path), **SPECULATION)
    case.check(query.source.numbers)
    assert [] == query.kills.left
    # At least one task of the first micro-batch lost the race, with all its rows in the log. On a
    # busy machine Spark starts a copy of the other task, too.
    assert 0 < written_twice(kafka_4, [topic])


@pytest.mark.soak
def test_the_loser_of_a_race_in_a_job_is_aborted(kafka_4, cluster, case, tmp_path):
    """In a batch write, too, a task that stalls after its flush is overtaken and aborted."""
    job = MortalJob(tmp_path, case.options, topics=case.topics, rows=400, tasks=4, filled=100)
    job.kills.add([AFTER_FLUSH], STALL)
    job.run(**cluster.settings(tmp_path), **SPECULATION)
    case.check(job.numbers)
    assert [] == job.kills.left
    assert 0 < written_twice(kafka_4, case.topics)


@pytest.mark.parametrize("tasks", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_a_job_of_many_tasks_is_written_once_despite_lost_executors(
    kafka_4, cluster, case, tmp_path, tasks
):
    """Tasks fail and die, and so does an executor with shuffle data, so that stages run again."""
    # Some of the tasks have rows; each of those writes to three topics.
    report = tmp_path / "report.json"
    options = {**case.options, "reportPath": str(report)}
    filled = tasks * 3 // 5
    job = MortalJob(
        tmp_path, options, topics=case.topics, rows=50 * filled, tasks=tasks, filled=filled
    )
    job.kills.add([BEFORE_PRODUCE])
    job.kills.add([BEFORE_FLUSH], FAILURE)
    job.kills.add([AFTER_FLUSH], EXECUTOR)
    job.run(**cluster.settings(tmp_path))
    case.check(job.numbers)
    assert [] == job.kills.left
    assert tasks == json.loads(report.read_text())["tasks"]
    # The retries of the stage before the shuffle, and of the writing stage.
    [_, retries] = job.stage_retries
    assert 0 < retries
    assert 0 < written_twice(kafka_4, case.topics)
