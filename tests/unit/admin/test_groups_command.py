"""`pykafka-groups` against the embedded broker: what it prints, and its exit codes."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink import AdminClient, KafkaProducer, TopicPartition, groups
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.faults import AnswerError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.faults.interrupts import interrupting, needs_signals
from tests.support.network.leaps import leap_at_first_contact
from tests.support.spark.source_groups import joined_consumer

FIRST, SECOND = TopicPartition("data", 0), TopicPartition("data", 1)


@pytest.fixture
def broker():
    with DevBroker(topics={"data": 2}, auto_create_topics=False) as started:
        settings = {"bootstrap.servers": started.bootstrap_servers}
        with KafkaProducer(settings) as producer:
            for _ in range(5):
                producer.send("data", b"v", partition=0)
        with AdminClient(settings) as admin:
            admin.alter_consumer_group_offsets("billing", {FIRST: 2})
        yield started


@pytest.fixture
def run(broker, capsys):
    """Return a function that runs the command, and returns its exit code and its output."""

    def run(*arguments):
        code = groups.main([*arguments, "--bootstrap-server", broker.bootstrap_servers])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_groups_are_listed(run):
    """Each group has a line with its state and its type."""
    code, out, err = run("list")

    assert (0, "") == (code, err)
    assert ["group", "billing"] == [line.split()[0] for line in out.splitlines()]
    assert "Empty" == out.splitlines()[1].split()[1]


def test_a_cluster_without_groups_says_so(capsys):
    """A list without groups is a sentence, or an empty list in JSON."""
    with DevBroker() as broker:
        where = ["--bootstrap-server", broker.bootstrap_servers]
        assert 0 == groups.main(["list", *where])
        assert "there are no consumer groups\n" == capsys.readouterr().out
        assert 0 == groups.main(["list", "--json", *where])
        assert {"groups": []} == json.loads(capsys.readouterr().out)


def test_a_group_without_members_has_lags(run):
    """The lag of each partition is the distance from the committed offset to the end."""
    code, out, _ = run("describe", "billing")

    assert 0 == code
    assert out.startswith("group billing: Empty, classic protocol, coordinator ")
    assert "total lag 3\n" in out
    assert "\nit has no members\n" in out
    assert ["data-0", "2", "5", "3", "-"] == out.splitlines()[-1].split()


def test_members_are_shown_with_their_partitions(broker, run):
    """Each member has its client id, host and partitions; each partition its member."""
    with joined_consumer(broker.bootstrap_servers, "billing", "data", client_id="reader"):
        code, out, _ = run("describe", "billing", "--json")
        text = run("describe", "billing")[1]

    answer = json.loads(out)
    [member] = answer["members"]
    assert (0, "Stable", "range") == (code, answer["state"], answer["partition_assignor"])
    assert ("reader", [FIRST._asdict(), SECOND._asdict()]) == (
        member["client_id"],
        member["partitions"],
    )
    assert [
        ("data", 0, 2, 5, 3, member["member_id"]),
        ("data", 1, None, 0, None, member["member_id"]),
    ] == [tuple(it.values()) for it in answer["partitions"]]
    assert None is answer["total_lag"]
    assert "total lag unknown\n" in text
    assert "data-0, data-1" in text
    assert ["data-1", "-", "0", "-", member["member_id"]] == text.splitlines()[-1].split()


def test_a_missing_group_is_one_sentence(run):
    """The exit code is 1, and the error names the group and Kafka's code."""
    code, out, err = run("describe", "missing")

    assert (1, "") == (code, out)
    assert err.startswith("error: DescribeGroups of 'missing': ")
    assert "GROUP_ID_NOT_FOUND" in err
    assert 1 == err.count("\n")


def test_an_unknown_end_is_a_warning(broker, run):
    """The rest is shown without that lag, and the exit code is 1."""
    broker.on(ApiKey.LIST_OFFSETS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    code, out, err = run("describe", "billing", "--json")

    answer = json.loads(out)
    [partition] = answer["partitions"]
    assert (1, None, 2, None, None) == (
        code,
        answer["total_lag"],
        partition["committed_offset"],
        partition["end_offset"],
        partition["lag"],
    )
    assert err.startswith("warning: the end of data-0 is not known: ")


def test_control_characters_of_names_are_escaped(broker, run):
    """A group of any name cannot change the terminal, whether it is listed or missing."""
    evil = "evil\x1b[2J\x7f"
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.alter_consumer_group_offsets(evil, {FIRST: 1})

    outputs = [
        *run("list")[1:],
        *run("list", "--json")[1:],
        *run("describe", evil)[1:],
        *run("describe", evil + "?")[1:],
    ]

    assert [] == [it for it in outputs if not it.replace("\n", "").isprintable()]
    assert evil in {it["group_id"] for it in json.loads(outputs[2])["groups"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "no cluster given"),
        (["list", "--bootstrap-server", "nowhere"], "is not host:port"),
        (["list", "--bootstrap-server", "localhost:1", "--property", "acks=all"], "acks"),
        (["list", "--command-config", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_settings_are_wrong_usage(arguments, message, capsys):
    """The exit code is 2, and the error is one sentence."""
    assert 2 == groups.main(arguments)
    printed = capsys.readouterr()
    assert "" == printed.out
    assert printed.err.startswith("error: ")
    assert message in printed.err


def test_a_secret_on_the_command_line_is_rejected(capsys):
    """The error names the setting and how to pass it, but not its value."""
    given = "sasl.jaas.config=org.example.Module required password=hunter2;"

    assert 2 == groups.main(["list", "--bootstrap-server", "localhost:1", "--property", given])

    err = capsys.readouterr().err
    assert "sasl.jaas.config" in err
    assert "--command-config" in err
    assert "hunter2" not in err


@pytest.mark.parametrize(
    "arguments", [["describe"], [], ["delete"], ["remove", "billing"], ["describe", "\udcff"]]
)
def test_an_incomplete_command_line_is_wrong_usage(arguments, capsys):
    """What the parser does not accept ends with exit code 2."""
    with pytest.raises(SystemExit) as end:
        groups.main(arguments)

    assert 2 == end.value.code
    assert "usage: " in capsys.readouterr().err


def test_a_cluster_that_is_not_there_is_refused(capsys, monkeypatch):
    """Nothing listens: the exit code is 1 within seconds, whatever the timeout."""
    leap_at_first_contact(monkeypatch)
    assert 1 == groups.main(["list", "--bootstrap-server", "localhost:1", "--timeout", "600"])
    assert capsys.readouterr().err.startswith("error: ")


@needs_signals
def test_ctrl_c_ends_the_command_at_once(broker, run):
    """The exit code is 130, as that of a command that the shell has ended, without a traceback."""
    broker.on(ApiKey.LIST_GROUPS, interrupting, expect=True)

    assert (130, "", "interrupted\n") == run("list", "--timeout", "600")
