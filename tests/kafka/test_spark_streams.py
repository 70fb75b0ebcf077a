"""Streams into real Kafka whose processes are killed with SIGKILL.

`test_exactly_once_kills` kills without Spark, on Kafka 4.3 (TV2) and on 3.9 (TV1).

Rows are numbered; in the end an independent read_committed consumer must see every number once
(with at-least-once: every number), and no transaction may stay open.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import ExitStack

import pytest

from spark_kafka_sink.exactly_once.two_phase_commit import Point
from tests.support.exactly_once.exactly_once_case import ExactlyOnceCase
from tests.support.exactly_once.exactly_once_sites import KafkaSite
from tests.support.exactly_once.kill_plan import SESSION
from tests.support.kafka.kafka_source_jars import kafka_source_jars
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.spark.mortal_queries import MortalQuery
from tests.support.spark.mortal_sink import (
    AFTER_FLUSH,
    BEFORE_FLUSH,
    BEFORE_PRODUCE,
    BEFORE_SPARKS_COMMIT,
)
from tests.support.spark.numbered_topic import NumberedTopic
from tests.support.spark.source_groups import committed_offsets
from tests.support.spark.streams import NumberedFiles

PARTITIONS = 3
#: The cluster's state at these points: the state of the query's last batch, and how many of the two
#: tasks' transactions are open.
EXPECTED = {
    Point.CHECKED: (None, 2),
    Point.DECIDED: ("decided", 2),
    Point.COMMITTED: ("decided", 0),
    Point.DONE: ("done", 0),
}


class _Case(ExactlyOnceCase):
    """A query with a unique prefix, and what is visible of its rows."""

    def __init__(self, kafka, topic, directory, source=None, **more_options):
        super().__init__(kafka, [topic])
        options = {**self.options, "topic": topic, **more_options}
        self.query = MortalQuery(directory, source or NumberedFiles(directory), options)

    def check_query(self):
        """Check that every number is visible once, and that no transaction is open."""
        self.check(self.query.source.numbers)


@pytest.fixture
def case(kafka_4, tmp_path):
    made = _Case(kafka_4, kafka_4.create_topic(PARTITIONS), tmp_path)
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.slow
def test_every_row_is_written_once_despite_kills_at_each_point(case):
    """A stream killed at each point, in the expected state of the cluster, writes each row once."""
    query = case.query
    query.source.add(20, files=4)
    in_tasks = [BEFORE_PRODUCE, BEFORE_FLUSH, AFTER_FLUSH]
    query.kills.add([*(point.value for point in Point), *in_tasks])
    # Here the whole driver dies; `test_a_group_follows_the_offsets_of_sparks_own_source` kills it
    # before Spark's commit log.
    query.kills.add([Point.DECIDED.value], SESSION)
    query.run_to_end()
    case.check_query()
    assert ([], 2) == (query.kills.left, query.starts)
    seen = query.kills.seen
    assert len(Point) + len(in_tasks) == len(seen)
    for point, (state, left_open) in EXPECTED.items():
        look = seen[point.value]
        assert left_open == look["open"], (point, look)
        assert state is None or [state] == look["states"], (point, look)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "places",
    [
        [Point.CHECKED.value],
        pytest.param([AFTER_FLUSH, Point.CHECKED.value], marks=pytest.mark.soak),
    ],
    ids=len,
)
def test_drivers_that_resume_after_another_took_over_change_nothing(kafka_4, tmp_path, places):
    """Drivers frozen before a decision, or after a flush, are fenced when they resume."""
    # However long they are frozen, they must not time out.
    patience = {"kafka.delivery.timeout.ms": "900000", "kafka.max.block.ms": "900000"}
    case = _Case(kafka_4, kafka_4.create_topic(PARTITIONS), tmp_path, **patience)
    query = case.query
    query.source.add(20, files=2)
    with ExitStack() as stack:
        zombies = []
        for place in places:
            zombies.append(query.start_until_frozen(place))
            stack.callback(zombies[-1].close)
        query.run_to_end()
        case.check_query()
        # The first zombie goes on with these rows. Its new plan aborts what it has flushed.
        query.source.add(20)
        for zombie in zombies:
            zombie.thaw()
            assert 0 == zombie.wait(), zombie.output
            assert "another driver has taken over" in zombie.output
    case.check_query()
    assert 2 == query.kills.seen[Point.CHECKED.value]["open"]
    case.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("drivers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_at_least_once_loses_no_row_whatever_is_killed(kafka_4, tmp_path, drivers):
    """With at-least-once, rows may be there twice after kills, but none is missing."""
    topic = kafka_4.create_topic(PARTITIONS)
    servers = {"kafka.bootstrap.servers": kafka_4.bootstrap_servers}
    query = MortalQuery(tmp_path, NumberedFiles(tmp_path), {**servers, "topic": topic})
    query.source.add(20, files=2)
    query.kills.add([BEFORE_PRODUCE, AFTER_FLUSH])
    query.kills.add([BEFORE_SPARKS_COMMIT] * (drivers - 1), SESSION)
    query.run_to_end()
    values = KafkaSite(kafka_4).read_committed(topic)
    assert query.source.numbers == sorted(set(values))
    assert len(values) > query.source.rows
    assert ([], drivers) == (query.kills.left, query.starts)


@pytest.mark.spark
@pytest.mark.slow
def test_a_group_follows_the_offsets_of_sparks_own_source(kafka_4, tmp_path):
    """From Kafka to Kafka, the group has the offsets of each finished batch, also after kills."""
    # Not every mirror of Maven has them.
    try:
        jars = ",".join(map(str, kafka_source_jars()))
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    source = NumberedTopic(kafka_4, 2, rows_per_batch=20)
    group = f"lag-{uuid.uuid4().hex[:8]}"
    case = _Case(
        kafka_4, kafka_4.create_topic(PARTITIONS), tmp_path, source, sourceConsumerGroup=group
    )
    query = case.query
    source.add(50)
    query.kills.add([Point.DECIDED.value])
    query.kills.add([BEFORE_SPARKS_COMMIT], SESSION)
    query.run_to_end(**{"spark.jars": jars})
    case.check_query()
    assert source.ends == committed_offsets(kafka_4.bootstrap_servers, group)
    first = (query.checkpoint.path / "offsets" / "0").read_text().splitlines()[-1]
    # The first batch: decided and not yet committed, then committed, though not in Spark's log.
    seen = query.kills.seen
    assert [{}, json.loads(first)] == [
        seen[place]["group"] for place in (Point.DECIDED.value, BEFORE_SPARKS_COMMIT)
    ]
    assert 20 == sum(sum(of_topic.values()) for of_topic in json.loads(first).values())
    case.close()
