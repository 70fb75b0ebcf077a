"""The commands of `pykafka-groups` that change groups, against the embedded broker."""

from __future__ import annotations

import json
import time

import pytest

from spark_kafka_sink import AdminClient, KafkaProducer, TopicPartition, groups
from spark_kafka_sink.admin.terminal import TimeLimit
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.errors import KafkaTimeoutError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.spark.source_groups import joined_consumer

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)
#: The records of partition 0 have these timestamps, in milliseconds since 1970.
DAY_MS = 86_400_000
TIMES = [n * DAY_MS for n in range(8)]


@pytest.fixture
def broker():
    """Run a broker whose partition 0 has the offsets 2 to 7, and partition 1 none."""
    with DevBroker(topics={"data": 2}, auto_create_topics=False) as started:
        with KafkaProducer({"bootstrap.servers": started.bootstrap_servers}) as producer:
            for timestamp in TIMES:
                producer.send("data", b"v", partition=0, timestamp=timestamp)
        with AdminClient({"bootstrap.servers": started.bootstrap_servers}) as admin:
            admin.delete_records({FIRST: 2})
            admin.alter_consumer_group_offsets("billing", {FIRST: 4})
        yield started


@pytest.fixture
def committed(broker):
    """Return a function that returns the committed offsets of a group."""

    def committed(group="billing"):
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            found = admin.list_consumer_group_offsets(group)
        return {place: it.offset for place, it in found.items()}

    return committed


@pytest.fixture
def run(broker, capsys):
    """Return a function that runs the command, and returns its exit code and its output."""

    def run(*arguments):
        code = groups.main([*arguments, "--bootstrap-server", broker.bootstrap_servers])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def topics_known_soon(monkeypatch):
    """Wait only for a moment for topics that brokers do not know."""
    monkeypatch.setattr("spark_kafka_sink.admin.item_requests.FINAL_SECONDS", 0.2)


# --- reset-offsets


@pytest.mark.parametrize("mode", [[], ["--dry-run"]])
def test_a_reset_only_prints_the_table_by_default(run, committed, mode):
    """The old and new offset and lag of each partition are shown, and nothing is changed."""
    code, out, err = run("reset-offsets", "billing", "--topic", "data", "--to-earliest", *mode)

    assert (0, "") == (code, err)
    lines = [line.split() for line in out.splitlines()]
    assert [["data-0", "4", "2", "4", "6"], ["data-1", "-", "0", "-", "0"]] == lines[1:3]
    assert "nothing has been changed; --execute does it" == out.splitlines()[-1]
    assert {FIRST: 4} == committed()


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (["--to-earliest"], 2),
        (["--to-latest"], 8),
        (["--to-offset", "5"], 5),
        (["--shift-by", "-1"], 3),
        (["--shift-by", "2"], 6),
        (["--to-datetime", "1970-01-04T00:00:00.000"], 3),
        (["--to-datetime", "1970-01-04T00:00:00.001"], 4),
        (["--to-datetime", "1970-01-04T01:00:00.000+01:00"], 3),
        (["--to-datetime", "1970-01-04T00:00:00.000-0100"], 4),
        (["--to-datetime", "1969-12-31T23:59:59.999"], 2),
    ],
)
def test_the_new_offset_is_that_of_the_option(run, committed, option, expected):
    """Each option leads to its offset, which `--execute` commits."""
    code, out, err = run("reset-offsets", "billing", "--topic", "data:0", *option, "--execute")

    assert (0, "") == (code, err)
    assert "the offsets of group billing are set" == out.splitlines()[-1]
    assert {FIRST: expected} == committed()


@pytest.mark.parametrize(("hours", "expected"), [(1, 7), (23, 7), (25, 6), (47, 6), (49, 5)])
def test_a_duration_is_counted_back_from_now(run, monkeypatch, committed, hours, expected):
    """The offset is that of the first record that is not older than the duration."""
    monkeypatch.setattr(time, "time_ns", lambda: TIMES[-1] * 1_000_000)
    run("reset-offsets", "billing", "--all-topics", "--by-duration", f"PT{hours}H", "--execute")

    assert {FIRST: expected} == committed()


@pytest.mark.parametrize(
    ("option", "expected", "note"),
    [
        (["--to-offset", "9"], 8, "data-0 ends at offset 8, which is taken instead of 9"),
        (["--to-offset", "1"], 2, "data-0 starts at offset 2, which is taken instead of 1"),
        (["--shift-by", "5"], 8, "data-0 ends at offset 8, which is taken instead of 9"),
        (["--shift-by", "-9"], 2, "data-0 starts at offset 2, which is taken instead of -5"),
        (
            ["--to-datetime", "1970-01-09T00:00:00.000"],
            8,
            "data-0 has no record from that time on; its offset is the end, 8",
        ),
        (
            ["--by-duration=-P100000000000D"],
            8,
            "data-0 has no record from that time on; its offset is the end, 8",
        ),
    ],
)
def test_an_offset_out_of_range_is_clipped_with_a_note(run, committed, option, expected, note):
    """The start or end of the partition takes its place, which the JSON and a note say."""
    arguments = ["reset-offsets", "billing", "--all-topics", *option, "--execute", "--json"]
    code, out, err = run(*arguments)

    answer = json.loads(out)
    assert (0, f"note: {note}\n") == (code, err)
    assert {
        "group_id": "billing",
        "executed": True,
        "partitions": [
            {
                "topic": "data",
                "partition": 0,
                "old_offset": 4,
                "new_offset": expected,
                "end_offset": 8,
                "old_lag": 4,
                "new_lag": 8 - expected,
                "note": note,
            }
        ],
    } == answer
    assert {FIRST: expected} == committed()


def test_a_partition_without_an_offset_cannot_be_shifted(run, committed):
    """The error names the partition, and no offset of the others is set."""
    code, out, err = run(
        *("reset-offsets", "billing", "--topic", "data", "--shift-by", "1", "--execute")
    )

    assert (1, "") == (code, out)
    assert (
        "error: the offset of data-1 cannot be shifted: group 'billing' has not committed one\n"
        == err
    )
    assert {FIRST: 4} == committed()


def test_a_reset_creates_a_missing_group(run, committed):
    """As with Kafka's tool, a group may have offsets before its first consumer."""
    code, _, err = run(
        *("reset-offsets", "new", "--topic", "data:1", "--topic", "data:0"),
        *("--to-latest", "--execute"),
    )

    assert (0, "") == (code, err)
    assert {FIRST: 8, SECOND: 0} == committed("new")


def test_all_topics_of_a_missing_group_are_an_error(run):
    """Without offsets there is nothing that could be reset."""
    code, out, err = run("reset-offsets", "missing", "--all-topics", "--to-latest")

    assert (1, "") == (code, out)
    assert "GROUP_ID_NOT_FOUND" in err


@pytest.mark.parametrize("mode", [[], ["--execute"]])
@pytest.mark.parametrize(
    "command",
    [
        ["reset-offsets", "billing", "--all-topics", "--to-earliest"],
        ["delete-offsets", "billing", "--topic", "data"],
        ["delete", "billing"],
    ],
)
def test_a_group_with_members_is_left_as_it_is(broker, run, committed, command, mode):
    """Offsets of consumers that run, and their groups, cannot be changed."""
    with joined_consumer(broker.bootstrap_servers, "billing", "data"):
        before = committed()
        code, _, err = run(*command, *mode)
        after = committed()

    assert 1 == code
    assert err.startswith("error: group 'billing' has members ")
    assert 1 == err.count("\n")
    assert before == after == {FIRST: 4}


def test_a_member_that_joins_meanwhile_is_the_same_error(broker, run):
    """The coordinator's UNKNOWN_MEMBER_ID is explained."""
    broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.UNKNOWN_MEMBER_ID))
    code, out, err = run("reset-offsets", "billing", "--all-topics", "--to-latest", "--execute")

    assert (1, "") == (code, out)
    assert "error: group 'billing' has members; stop its consumers, and try again\n" == err


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("data:2", "topic 'data' has no partition 2: it has 2 partitions"),
        ("other", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("other:0", "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
@pytest.mark.parametrize(
    "command", [["reset-offsets", "billing", "--to-earliest"], ["delete-offsets", "billing"]]
)
@pytest.mark.usefixtures("topics_known_soon")
def test_an_unknown_partition_is_an_error(run, committed, command, topic, message):
    """Nothing is changed if one of the partitions does not exist."""
    code, out, err = run(*command, "--topic", "data", "--topic", topic, "--execute")

    assert (1, "") == (code, out)
    assert err.startswith("error: ")
    assert message in err
    assert {FIRST: 4} == committed()


# --- delete-offsets


def test_offsets_are_deleted_only_with_execute(run, committed):
    """The dry run shows the offsets; other partitions keep theirs."""
    run("reset-offsets", "billing", "--topic", "data", "--to-latest", "--execute")
    code, out, err = run("delete-offsets", "billing", "--topic", "data:0")
    assert (0, "") == (code, err)
    assert ["data-0", "8"] == out.splitlines()[1].split()
    assert "nothing has been changed; --execute does it" == out.splitlines()[-1]
    assert {FIRST: 8, SECOND: 0} == committed()

    code, out, err = run("delete-offsets", "billing", "--topic", "data:0", "--execute", "--json")
    assert (0, "") == (code, err)
    assert {
        "group_id": "billing",
        "executed": True,
        "partitions": [{"topic": "data", "partition": 0, "old_offset": 8}],
    } == json.loads(out)
    assert {SECOND: 0} == committed()


def test_offsets_of_a_missing_group_cannot_be_deleted(run):
    """The exit code is 1, also without `--execute`."""
    code, out, err = run("delete-offsets", "missing", "--topic", "data")

    assert (1, "") == (code, out)
    assert "GROUP_ID_NOT_FOUND" in err


# --- delete


def test_a_group_is_deleted_only_with_execute(run, committed):
    """The dry run shows the group and how many offsets it has."""
    code, out, err = run("delete", "billing", "billing")
    assert (0, "") == (code, err)
    assert ["billing", "Empty", "1"] == out.splitlines()[1].split()
    assert "nothing has been changed; --execute does it" == out.splitlines()[-1]
    assert {FIRST: 4} == committed()

    code, out, err = run("delete", "billing", "--execute")
    assert (0, "") == (code, err)
    assert "the groups are deleted" == out.splitlines()[-1]
    assert {} == committed()
    assert "there are no consumer groups\n" == run("list")[1]


def test_the_groups_that_can_be_deleted_are(run, committed):
    """A group that does not exist is an error, and the others are deleted nevertheless."""
    code, out, err = run("delete", "missing", "billing", "--execute", "--json")

    assert 1 == code
    assert {
        "executed": True,
        "groups": [{"group_id": "billing", "state": "Empty", "offsets": 1}],
    } == json.loads(out)
    assert err.startswith("error: DescribeGroups of 'missing': ")
    assert 1 == err.count("\n")
    assert {} == committed()


def test_a_group_that_is_used_meanwhile_is_not_deleted(broker, run):
    """The coordinator's NON_EMPTY_GROUP is explained."""
    broker.on(ApiKey.DELETE_GROUPS, AnswerError(ErrorCode.NON_EMPTY_GROUP))
    code, out, err = run("delete", "billing", "--execute")

    assert (1, "no groups have been deleted\n") == (code, out)
    assert "error: group 'billing' has members; stop its consumers, and try again\n" == err


# --- usage and time


@pytest.mark.parametrize(
    "arguments",
    [
        ["reset-offsets", "billing", "--to-latest"],
        ["reset-offsets", "billing", "--all-topics"],
        ["reset-offsets", "billing", "--all-topics", "--topic", "data", "--to-latest"],
        ["reset-offsets", "billing", "--all-topics", "--to-latest", "--to-earliest"],
        ["reset-offsets", "billing", "--all-topics", "--to-latest", "--dry-run", "--execute"],
        ["reset-offsets", "billing", "--all-topics", "--to-offset", "x"],
        ["reset-offsets", "billing", "--all-topics", "--by-duration", "1h"],
        ["reset-offsets", "billing", "--all-topics", "--to-datetime", "1970-01-04"],
        ["reset-offsets", "billing", "--all-topics", "--to-datetime", "Tomorrow"],
        ["reset-offsets", "billing", "--topic", "data:", "--to-latest"],
        ["reset-offsets", "billing", "--topic", "data:-1", "--to-latest"],
        ["reset-offsets", "billing", "--topic", ":0", "--to-latest"],
        ["delete-offsets", "billing"],
        ["delete-offsets", "billing", "--topic", "data:0:1"],
        ["delete", "billing", "--dry-run", "--execute"],
    ],
)
def test_a_wrong_command_line_is_wrong_usage(arguments, capsys):
    """What the parser does not accept ends with exit code 2 before it connects."""
    with pytest.raises(SystemExit) as end:
        groups.main([*arguments, "--bootstrap-server", "localhost:1"])

    assert 2 == end.value.code
    assert "usage: " in capsys.readouterr().err


def test_a_time_limit_is_shared_by_all_requests():
    """What is left becomes less, and nothing left is an error that names the option."""
    now = 100.0
    limit = TimeLimit.of(2.5, lambda: now)
    assert 2.5 == limit.left()
    now = 102.0
    assert 0.5 == limit.left()
    now = 102.5
    with pytest.raises(KafkaTimeoutError, match=r"longer than 2\.5 s; --timeout"):
        limit.left()


def test_every_request_has_what_is_left_of_the_timeout(run, monkeypatch):
    """A later request of the command has a shorter time limit than an earlier one."""
    given = []
    for name in ("describe_consumer_groups", "list_consumer_group_offsets", "list_offsets"):
        plain = getattr(AdminClient, name)

        def spying(admin, *arguments, timeout, plain=plain):
            given.append(timeout)
            return plain(admin, *arguments, timeout=timeout)

        monkeypatch.setattr(AdminClient, name, spying)
    assert 0 == run("describe", "billing", "--timeout", "50")[0]

    assert 3 == len(given)
    assert sorted(given, reverse=True) == given
    assert 3 == len(set(given))
    assert max(given) < 50
