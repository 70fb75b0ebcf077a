"""Streams into real Kafka, 4.3 (TV2) and 3.9 (TV1), whose processes are killed by SIGKILL.

Rows are numbered; in the end a consumer that is not ours, reading committed records only, has seen
every number once (at least once: no number is missing), and no transaction is left open.
"""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.exactly_once import recovery
from spark_kafka_sink.exactly_once.points import Point
from tests.support.exactly_once_sites import KafkaSite
from tests.support.exactly_once_world import World
from tests.support.kill_plan import SESSION
from tests.support.killed_query import AFTER_FLUSH, BEFORE_PRODUCE, BEFORE_SPARKS_COMMIT
from tests.support.mortal_queries import MortalQuery

PARTITIONS = 3
#: What is in the cluster at these points: the state of the query's last batch, and how many of the
#: two tasks' transactions are open.
EXPECTED = {
    Point.CHECKED: (None, 2),
    Point.DECIDED: ("decided", 2),
    Point.COMMITTED: ("decided", 0),
    Point.DONE: ("done", 0),
}


class _Case:
    """A query under a prefix of its own, and what is visible of it."""

    def __init__(self, kafka, topic, directory):
        self.prefix = f"orders-{uuid.uuid4().hex[:8]}"
        self.topic = topic
        self._site = KafkaSite(kafka)
        self._ledger = f"ledger-{self.prefix}"
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "topic": topic,
            "deliveryGuarantee": "exactly_once",
            "transactionalIdPrefix": self.prefix,
            "ledgerTopic": self._ledger,
        }
        self.query = MortalQuery(directory, options)

    def check(self):
        """Every number is visible once, and nothing is left open."""
        assert self.query.files.numbers == self._site.read_committed(self.topic)
        world = World(self._site)
        try:
            assert [] == recovery.list_open(world.admin, self.prefix, world.budget())
        finally:
            world.close()

    def close(self):
        self._site.delete_topic(self._ledger)


@pytest.fixture
def case(kafka, create_topic, tmp_path):
    made = _Case(kafka, create_topic(PARTITIONS), tmp_path)
    yield made
    made.close()


@pytest.fixture
def case_4(kafka_4, tmp_path):
    made = _Case(kafka_4, kafka_4.create_topic(PARTITIONS), tmp_path)
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.slow
def test_every_row_is_there_once_though_python_processes_are_killed_everywhere(case):
    """A process dies at each named point, and in tasks; what it saw shows where the point is."""
    query = case.query
    query.files.add(20, files=4)
    query.kills.add([*(point.value for point in Point), BEFORE_PRODUCE, AFTER_FLUSH])
    query.run_to_end()
    case.check()
    assert [] == query.kills.left
    seen = query.kills.seen
    assert len(Point) + 2 == len(seen)
    for point, (state, left_open) in EXPECTED.items():
        look = seen[point.value]
        assert left_open == look["open"], (point, look)
        assert state is None or [state] == look["states"], (point, look)


@pytest.mark.spark
@pytest.mark.slow
def test_every_row_is_there_once_though_the_whole_driver_is_killed(case_4):
    """JVM and all die, after a decision and before Spark notes a batch; restarts go on."""
    query = case_4.query
    query.files.add(20, files=2)
    query.kills.add([Point.DECIDED.value, BEFORE_SPARKS_COMMIT], SESSION)
    # Each task has a worker of its own, as after a trigger that is longer than workers live.
    query.run_to_end(**{"spark.python.worker.reuse": "false"})
    case_4.check()
    assert ([], 3) == (query.kills.left, query.starts)
    look = query.kills.seen[Point.DECIDED.value]
    assert (["decided"], 2) == (look["states"], look["open"])


@pytest.mark.spark
@pytest.mark.slow
def test_no_row_is_lost_at_least_once_whatever_is_killed(kafka_4, tmp_path):
    """Without transactions rows may be there twice after kills, and none is missing."""
    topic = kafka_4.create_topic(PARTITIONS)
    servers = {"kafka.bootstrap.servers": kafka_4.bootstrap_servers}
    query = MortalQuery(tmp_path, {**servers, "topic": topic})
    query.files.add(20, files=2)
    query.kills.add([BEFORE_PRODUCE, AFTER_FLUSH])
    query.kills.add([BEFORE_SPARKS_COMMIT], SESSION)
    query.run_to_end()
    values = KafkaSite(kafka_4).read_committed(topic)
    assert query.files.numbers == sorted(set(values))
    assert len(values) > query.files.rows
    assert ([], 2) == (query.kills.left, query.starts)
