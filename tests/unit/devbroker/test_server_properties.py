"""Settings by Kafka's names: `--config`, `--set`, and those of Python."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.__main__ import main
from spark_kafka_sink.errors import ConfigError

#: What Kafka's own config/server.properties has.
STOCK = """
process.roles=broker,controller
node.id=5
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:0,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9192,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
num.partitions=4
log.retention.hours=168
log.segment.bytes=1073741824
"""


SELECTORS = "org.apache.kafka.common.replica"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs the command until it listens."""

    def command(*arguments):
        found = {}

        def serve_once(server, on_listening, control):
            async def serve():
                await server.start()
                try:
                    on_listening()
                    found["settings"] = server.cluster.settings
                    found["nodes"] = dict(server.cluster.nodes)
                    found["directory"] = server.cluster.logs.location
                    found["listeners"] = list(server.listeners.values())
                finally:
                    await server.close()

            asyncio.run(serve())

        monkeypatch.setattr("spark_kafka_sink.devbroker.__main__.run_until_signal", serve_once)
        found["code"] = main(list(arguments))
        found["output"] = capsys.readouterr()
        return found

    return command


def test_a_stock_file_starts_a_broker(run, tmp_path):
    """The settings that the broker has count, and the others are named once."""
    file = tmp_path / "server.properties"
    file.write_text(f"{STOCK}log.dirs={tmp_path}/logs\n")

    found = run("--config", str(file))

    assert 0 == found["code"]
    assert {5: ("localhost", 9192)} == {
        node_id: (node.host, node.port) for node_id, node in found["nodes"].items()
    }
    assert (4, 604_800_000) == (
        found["settings"].num_partitions,
        found["settings"].topic_defaults.retention_ms,
    )
    assert f"{tmp_path}/logs" == found["directory"]
    [[listener]] = found["listeners"]
    assert ("PLAINTEXT", "127.0.0.1") == (listener.name, listener.host)
    warning = "settings that this broker does not have: num.io.threads, num.network.threads"
    assert f"warning: {warning}\n" == found["output"].err


def test_settings_take_precedence_over_the_file(run, tmp_path):
    """Options of the command's own take precedence over both."""
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=4\nlog.dirs=/no-such\nauto.create.topics.enable=true\n")

    found = run(
        *("--config", str(file), "--port", "0", "--no-auto-create-topics"),
        *("--set", "num.partitions=6", "--set", "node.id=0", "--set", "broker.rack=a"),
        *("--set", "min.insync.replicas=2", "--data-dir", str(tmp_path / "data")),
    )

    settings = found["settings"]
    assert (6, 0, ("a",), False) == (
        settings.num_partitions,
        settings.node_id,
        settings.racks,
        settings.auto_create_topics,
    )
    # The command keeps records of any age, unless it is told otherwise.
    assert (2, -1) == (
        settings.topic_defaults.min_insync_replicas,
        settings.topic_defaults.retention_ms,
    )
    assert {0} == found["nodes"].keys()
    assert str(tmp_path / "data") == found["directory"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], False),
        (["--set", "broker.rack=a"], True),
        (["--set", f"replica.selector.class={SELECTORS}.RackAwareReplicaSelector"], True),
        (
            ["--racks", "a", "--set", f"replica.selector.class={SELECTORS}.LeaderSelector"],
            False,
        ),
    ],
)
def test_the_replica_selector_is_that_of_the_file_or_follows_from_the_racks(
    run, arguments, expected
):
    """Kafka's default is LeaderSelector; here racks alone make leaders send consumers to them."""
    found = run("--port", "0", *arguments)

    assert expected == found["settings"].rack_aware_replica_selector


def test_listeners_have_the_names_and_addresses_of_the_file(run, tmp_path):
    """A name stands for its protocol, and may be advertised at another address."""
    file = tmp_path / "server.properties"
    file.write_text(
        "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT\n"
        "advertised.listeners=OUTSIDE://kafka.example.com:9094\n"
    )

    found = run("--config", str(file))

    assert 0 == found["code"], found["output"].err
    [listeners] = found["listeners"]
    assert [("INSIDE", None), ("OUTSIDE", "kafka.example.com")] == [
        (listener.name, listener.advertised_host) for listener in listeners
    ]


def test_an_option_replaces_the_listeners_of_the_file(run, tmp_path):
    """With --port, the addresses of the file do not count."""
    file = tmp_path / "server.properties"
    file.write_text("listeners=SSL://:9094\n")

    found = run("--config", str(file), "--port", "0")

    assert 0 == found["code"]
    assert "PLAINTEXT" == found["listeners"][0][0].security_protocol


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "num.partition=6"], "--set num.partition: this broker does not have such a"),
        (["--set", "num.partition=6"], "did you mean num.partitions?"),
        (["--set", "num.partitions=x"], "num.partitions must be a number, not 'x'"),
        (["--set", "log.cleanup.policy=keep"], "Invalid value keep"),
        (["--set", "node.id=-1"], "node.id must be a number from 0, not '-1'"),
        (["--set", "node.id=1", "--set", "broker.id=2"], "are the same setting"),
        (["--set", "log.dirs=/a,/b"], "log.dirs must be one directory"),
        (["--set", "broker.rack=a", "--brokers", "2"], "use --racks"),
        (["--set", "listeners=9092"], "listeners: '9092' must be NAME://HOST:PORT"),
        (["--set", "listeners=LAN://:9092"], "the protocol must be one of"),
        (["--set", "authorizer.class.name=Mine"], f"must be {STANDARD_AUTHORIZER}, not 'Mine'"),
        (["--set", "replica.selector.class=Mine"], "RackAwareReplicaSelector, not 'Mine'"),
        (["--set", "broker.session.timeout.ms=1"], "broker_session_timeout_ms must be at least 10"),
        (["--config", "/no-such-file"], "/no-such-file"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(run, arguments, message):
    """The command does not start, and says what is wrong."""
    found = run(*arguments)

    assert 1 == found["code"]
    assert "cannot start: " in found["output"].err
    assert message in found["output"].err


def test_the_authorizer_has_its_names(run):
    """ACLs are enforced if the authorizer is set, with Kafka's form of a list of users."""
    found = run(
        *("--port", "0", "--set", "super.users=User:admin;User:CN=a,O=b"),
        *("--set", "allow.everyone.if.no.acl.found=true"),
        *("--set", f"authorizer.class.name={STANDARD_AUTHORIZER}"),
    )

    settings = found["settings"]
    assert (True, ("User:admin", "User:CN=a,O=b"), True) == (
        settings.authorizer,
        settings.super_users,
        settings.allow_everyone_if_no_acl_found,
    )


def test_a_setting_needs_a_value(capsys):
    """A name alone is a wrong use of the command."""
    with pytest.raises(SystemExit):
        main(["--set", "num.partitions"])
    assert "'num.partitions' must be NAME=VALUE" in capsys.readouterr().err


def test_a_broken_file_is_an_error(run, tmp_path):
    """The error names the file."""
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=\\u12\n")

    assert f"{file} is not a .properties file" in run("--config", str(file))["output"].err


def test_python_has_the_same_names():
    """`configs` take precedence over settings, and other names are errors."""
    with DevBroker(configs={"num.partitions": "6", "min.insync.replicas": "2"}) as broker:
        settings = broker.call(lambda first: first.cluster.settings)
    assert (6, 2) == (settings.num_partitions, settings.topic_defaults.min_insync_replicas)
    with pytest.raises(ConfigError, match=r"configs: the broker does not have num\.partition"):
        DevBroker(configs={"num.partition": "6"})


def test_brokers_count_from_the_first_id():
    """Other brokers have the next ids, and what is asked of the first one works."""
    with DevBroker(brokers=2, node_id=0, racks=("a", "b"), topics={"t": 2}) as cluster:
        assert {0, 1} == cluster.addresses.keys()
        assert [0, 1] == [cluster.leader("t", partition) for partition in range(2)]
        assert {0: "a", 1: "b"} == cluster.call(lambda first: first.cluster.racks)
        assert cluster.addresses[0].endswith(f":{cluster.port}")
    with pytest.raises(ConfigError, match="node_id must be at least 0"):
        DevBroker(node_id=-1)
