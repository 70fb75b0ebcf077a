"""The pytest fixtures for users of the package."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from types import SimpleNamespace

import confluent_kafka
import pytest

import pytest_spark_kafka_sink
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.base.refusal import RefusedError

TIMEOUT = 120.0


def write(bootstrap_servers, *transactions):
    """Write transactions of (values, whether to commit, abort, or leave open if None)."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": "x", "log_level": 0}
    )
    producer.init_transactions(TIMEOUT)
    for values, committed in transactions:
        producer.begin_transaction()
        for value in values:
            producer.produce("t", value, partition=0)
            assert 0 == producer.flush(TIMEOUT)
        if committed:
            producer.commit_transaction(TIMEOUT)
        elif committed is not None:
            producer.abort_transaction(TIMEOUT)


def test_pytest_finds_the_fixtures_by_an_entry_point():
    """The entry point of the installed package names the module with the fixtures."""
    (found,) = (e for e in entry_points(group="pytest11") if "spark_kafka_sink" in e.name)
    assert ("pytest_spark_kafka_sink", found.name) == (found.value, found.value)


def test_loading_the_plug_in_imports_nothing_else():
    """Loading the plug-in imports neither the broker nor anything else of the package."""
    code = "import pytest_spark_kafka_sink, sys; print('spark_kafka_sink' in sys.modules)"
    done = subprocess.run(  # noqa: S603 - our own line
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "False" == done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["PYSPARK_PYTHON", sys.executable]),
        ({"PYSPARK_PYTHON": "/own"}, ["PYSPARK_PYTHON", "/own"]),
        ({"PYSPARK_DRIVER_PYTHON": "/own"}, ["PYSPARK_DRIVER_PYTHON", "/own"]),
    ],
)
def test_spark_starts_the_python_of_the_tests_unless_another_is_named(given, expected, monkeypatch):
    """Without variables Spark would start python3, which may be outside the environment."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    undo = []
    pytest_spark_kafka_sink.pytest_configure(SimpleNamespace(add_cleanup=undo.append))

    assert [expected] == [list(it) for it in os.environ.items() if it[0].startswith("PYSPARK_")]
    for each in undo:
        each()
    assert given == {name: it for name, it in os.environ.items() if name.startswith("PYSPARK_")}


def test_the_fixture_is_a_running_broker(devbroker):
    """The broker listens and has no topics."""
    assert [] == devbroker.topic_names


def test_records_are_those_that_consumers_would_read(devbroker):
    """Records exclude markers and the records of aborted and open transactions."""
    devbroker.create_topic("t", partitions=2)
    written = [
        ([b"a", b"b"], True),
        ([b"c", b"d"], False),
        ([b"e"], True),
        ([b"f"], False),
        ([b"g"], True),
        ([b"h"], None),
    ]
    write(devbroker.bootstrap_servers, *written)

    records = devbroker.records("t")
    assert [(0, b"a"), (1, b"b"), (6, b"e"), (10, b"g")] == [
        (record.offset, record.value) for record in records[0]
    ]
    assert [] == records[1]


def test_deleted_records_are_not_among_those_that_can_be_looked_at(devbroker):
    """Records that consumers can no longer read are excluded."""
    devbroker.create_topic("t")
    write(devbroker.bootstrap_servers, ([b"a", b"b", b"c"], True))
    devbroker.call(lambda broker: broker.cluster.topic("t").partitions[0].log.delete_records(1))

    assert [b"b", b"c"] == [record.value for record in devbroker.records("t")[0]]


def test_topics_keep_records_of_any_age(devbroker, start_devbroker):
    """Records with old event times outlive the check of retention, unless settings are given."""
    kafka_like = start_devbroker(settings=BrokerSettings())
    for broker in (devbroker, kafka_like):
        broker.create_topic("t")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        # An event of 2001; a topic that the producer creates; and one that has a retention.
        broker.create_topic("short", configs={"retention.ms": "5"})
        for topic in ("t", "made", "short"):
            producer.produce(topic, b"v", timestamp=1_000_000_000_000)
        assert 0 == producer.flush(TIMEOUT)
        broker.call(lambda it: it.cluster.logs.delete_old_segments(time.time()))

    def counts(broker):
        return [len(broker.records(topic)[0]) for topic in ("t", "made", "short")]

    assert ([1, 1, 0], [0, 0, 0]) == (counts(devbroker), counts(kafka_like))


def test_records_of_an_unknown_topic_are_an_error(devbroker):
    """An unknown name is not treated as an empty topic."""
    with pytest.raises(RefusedError, match="topic 'nothing' does not exist"):
        devbroker.records("nothing")


def test_a_test_may_start_several_brokers(start_devbroker):
    """The factory accepts the arguments of DevBroker, and stops its brokers after the test."""
    one = start_devbroker(topics={"t": 3})
    three = start_devbroker(brokers=3)

    assert ["t"] == one.topic_names
    assert 3 == len(three.addresses)


@pytest.fixture
def the_last_broker():
    started = []
    yield started
    # This fixture is requested before `start_devbroker`, and so is torn down after it.
    with pytest.raises(Exception, match="is not running"):
        started[0].topic_names  # noqa: B018 - it asks the broker


def test_brokers_end_with_their_test(the_last_broker, start_devbroker):
    """No broker is left running, which the fixture above checks."""
    the_last_broker.append(start_devbroker())
    assert [] == the_last_broker[0].topic_names
