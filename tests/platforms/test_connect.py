"""Spark Connect: all doors work for a client whose Spark is another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from spark_kafka_sink.devbroker import DevBroker
from tests.support.documentation import ROOT
from tests.support.kafka.readers import read_with_confluent
from tests.support.platforms import connect_job
from tests.support.platforms.connect_server import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Those of typed values, which are also the names of their topics.
FORMATS = ["avro", "json"]
#: The steps, in the order in which the job takes them: later ones read what earlier ones wrote.
STEPS = [
    "session",
    "batch",
    "read",
    "exactly_once",
    "bad_rows",
    "spread_keys",
    "stream",
    "exactly_once_stream",
    "foreach_batch",
    "missing_topic",
    "imported",
    "check",
    "dry_run",
    "registered",
    "reports",
    *FORMATS,
    "unsupported_type",
]
TOPICS = [
    "batch",
    "exactly_once",
    "stream",
    "exactly_once_stream",
    "foreach_batch",
    "registered",
]
VALUES = sorted(str(number) for number in range(connect_job.ROWS))
_SECONDS = 600


@pytest.fixture(scope="module")
def broker():
    with DevBroker(
        auto_create_topics=False,
        topics=dict.fromkeys(
            [
                *(*TOPICS, "bad_rows", "letters", "spread_keys", "reports"),
                *(*FORMATS, *map("{}_copy".format, FORMATS)),
            ],
            2,
        ),
        schema_registry=True,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def answers(broker) -> dict[str, Any]:
    """Return the answers of a client that has taken all steps."""
    with closing(ConnectServer()) as server:
        done = subprocess.run(  # noqa: S603 -- our own program
            [
                *(sys.executable, connect_job.__file__, server.url, broker.bootstrap_servers),
                *(broker.schema_registry_url, *STEPS),
            ],
            # The client has no Java.
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": "/nowhere"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    assert 0 == done.returncode, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def _values(broker: DevBroker, topic: str) -> list[str]:
    records = read_with_confluent(broker.bootstrap_servers, topic)
    return sorted((record.value or b"").decode() for record in records)


def test_the_session_is_one_of_connect(answers):
    """The client has no session of classic Spark, so the other tests test Connect."""
    assert "pyspark.sql.connect.session" == answers["session"]


@pytest.mark.parametrize("topic", TOPICS)
def test_each_door_writes_every_row_once(answers, broker, topic):
    """Batches and streams write, with either guarantee, registered or not."""
    assert answers[topic] is None
    assert VALUES == _values(broker, topic)


def test_a_bad_row_becomes_a_dead_letter(answers, broker):
    """The server finds out how many executors keep the pace, and the good rows are written."""
    assert answers["bad_rows"] is None
    good = [value for value in VALUES if value != "7"]
    assert (good, ["7"]) == (_values(broker, "bad_rows"), _values(broker, "letters"))


def test_spread_keys_are_refused(answers):
    """The client's error says how many keys are in several tasks."""
    assert "keyOrder=fail: 1 of 1 sampled keys" in answers["spread_keys"]["message"]


def test_a_client_needs_no_package(answers):
    """Until the client calls `KafkaSink.check`, its process has not imported the package."""
    assert answers["imported"] is False


def test_a_client_reads_rows(answers):
    """A read returns the rows of a topic to the client."""
    assert VALUES == answers["read"]


def test_check_asks_the_cluster_from_the_client(answers):
    """`KafkaSink.check` accepts a DataFrame of Connect, and the server's Python is the same."""
    assert [2, None] == answers["check"]


def test_a_dry_run_is_a_job_of_the_server(answers, broker):
    """Its result comes back to the client, and no row is sent."""
    assert [20, 2, [0, 1]] == answers["dry_run"]
    assert connect_job.ROWS == len(read_with_confluent(broker.bootstrap_servers, "batch"))


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_structs_in_batches_and_streams(answers, name):
    """They are checked, written, copied by a stream and read, in Avro and in JSON."""
    values = [[number, f"n{number}"] for number in range(connect_job.ROWS)]
    assert [2, connect_job.TYPE, values] == answers[name]


def test_a_type_that_no_format_has_is_named_to_the_client(answers):
    """The error comes from the driver's side, before a task runs."""
    assert "interval month" in answers["unsupported_type"]["message"]


def test_an_error_reaches_the_client(answers):
    """The client's error names the missing topic and what to do."""
    assert "topic 'missing_topic' does not exist" in answers["missing_topic"]["message"]


def test_a_session_has_the_reports_of_its_own_writes(answers):
    """A session gets no report of another's batches, those of its own, and that of its query."""
    assert [None, 100, 7, 10, True] == answers["reports"][:5]


def test_a_listener_in_the_client_gets_the_reports_of_the_server(answers):
    """A listener of the client is told of each event, with the report that the server keeps."""
    assert [["started", None], ["progress", 10], ["terminated", None]] == answers["reports"][5:]
