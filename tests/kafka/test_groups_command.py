"""`pykafka-groups` beside Kafka's own kafka-consumer-groups.sh."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime

import pytest

from spark_kafka_sink import AdminClient, KafkaProducer, TopicPartition, groups
from tests.support.kafka.java_tools import run_java_tool

pytestmark = pytest.mark.kafka

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
#: Between the timestamps of two records.
STEP_MS = 60_000


@pytest.fixture(scope="module")
def times():
    """Return the timestamps of the records of partition 0, in milliseconds since 1970."""
    now = time.time_ns() // 1_000_000
    return [now - STEP_MS * (20 - 2 * n) for n in range(8)]


@pytest.fixture(scope="module")
def topic(kafka_4, times):
    """Create a topic with the offsets 2 to 7 in partition 0, and none in partition 1."""
    name = kafka_4.create_topic(2)
    with KafkaProducer({"bootstrap.servers": kafka_4.bootstrap_servers}) as producer:
        for timestamp in times:
            producer.send(name, b"v", partition=0, timestamp=timestamp)
    with AdminClient({"bootstrap.servers": kafka_4.bootstrap_servers}) as admin:
        admin.delete_records({TopicPartition(name, 0): 2})
    return name


@pytest.fixture
def group(kafka_4, topic):
    """Create a group with offsets in both partitions, and return its id."""
    name = f"group-{uuid.uuid4().hex}"
    with AdminClient({"bootstrap.servers": kafka_4.bootstrap_servers}) as admin:
        offsets = {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0}
        admin.alter_consumer_group_offsets(name, offsets)
    return name


@pytest.fixture
def ours(kafka_4, capsys):
    """Return a function that runs our command, and returns its exit code and its JSON."""

    def run(*arguments):
        where = ("--bootstrap-server", kafka_4.bootstrap_servers, "--json")
        return groups.main([*arguments, *where]), json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def theirs(kafka_4):
    """Return a function that runs Kafka's tool, and returns the words of each line."""

    def run(*arguments):
        output = run_java_tool(TOOL, "--bootstrap-server", kafka_4.bootstrap_servers, *arguments)
        return [line.split() for line in output.splitlines()]

    return run


def time_text(timestamp_ms, *, zone=""):
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03}{zone}"


@pytest.mark.parametrize(
    "option",
    [
        lambda _: ["--to-earliest"],
        lambda _: ["--to-latest"],
        lambda _: ["--to-offset", "5"],
        lambda _: ["--to-offset", "99"],
        lambda _: ["--to-offset", "1"],
        lambda _: ["--shift-by", "-1"],
        lambda _: ["--shift-by", "9"],
        lambda times: ["--to-datetime", time_text(times[5])],
        lambda times: ["--to-datetime", time_text(times[5] + 1, zone="Z")],
        lambda times: ["--to-datetime", time_text(times[5], zone="+02:00")],
        lambda _: ["--by-duration", "PT11M"],
        lambda _: ["--by-duration", "PT1M"],
    ],
    ids=[
        *("earliest", "latest", "offset", "above", "below", "back", "beyond"),
        *("time", "later", "zone", "duration", "no record"),
    ],
)
def test_new_offsets_are_those_of_kafkas_tool(ours, theirs, group, topic, *, times, option):
    """The dry runs of both find the same offsets, and change none."""
    arguments = option(times)
    lines = theirs("--reset-offsets", "--dry-run", "--group", group, "--topic", topic, *arguments)
    code, answer = ours("reset-offsets", group, "--topic", topic, *arguments)

    assert 0 == code
    found = [(str(it["partition"]), str(it["new_offset"])) for it in answer["partitions"]]
    assert sorted(tuple(line[2:]) for line in lines if line[:2] == [group, topic]) == found
    assert [4, 0] == [it["old_offset"] for it in answer["partitions"]]


def test_kafkas_tool_shows_what_has_been_changed(ours, theirs, group, topic):
    """Offsets are set and deleted, and the group is deleted, on the cluster itself."""
    assert 0 == ours("reset-offsets", group, "--all-topics", "--to-latest", "--execute")[0]
    lines = theirs("--describe", "--group", group)
    assert [["0", "8"], ["1", "0"]] == sorted(
        line[2:4] for line in lines if line[:2] == [group, topic]
    )

    assert 0 == ours("delete-offsets", group, "--topic", f"{topic}:1", "--execute")[0]
    lines = theirs("--describe", "--group", group)
    assert [["0", "8"]] == [line[2:4] for line in lines if line[:2] == [group, topic]]

    assert 0 == ours("delete", group, "--execute")[0]
    assert [group] not in theirs("--list")
