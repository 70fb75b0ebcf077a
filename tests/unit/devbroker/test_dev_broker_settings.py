"""The settings of DevBroker: BrokerSettings, their fields as keywords, or both."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.devbroker.__main__ import main, parser
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings, SettingChanges
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.dev_broker import DevBroker
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.model import Node


def settings_of(**given):
    """Start a broker and return its settings."""
    with DevBroker(**given) as broker:
        return broker.call(lambda it: it.settings)


def test_every_setting_is_a_keyword():
    """SettingChanges has each field of BrokerSettings, with the same type."""
    assert {each.name: each.type for each in fields(BrokerSettings)} == {
        name: kind.__forward_arg__ for name, kind in SettingChanges.__annotations__.items()
    }


def test_settings_are_taken_as_they_are():
    """A broker uses the settings that are passed to it."""
    settings = BrokerSettings(num_partitions=6, group_max_size=3, default_replication_factor=2)

    assert settings == settings_of(settings=settings, brokers=3)


def test_keywords_take_precedence_over_settings():
    """A keyword replaces one field of the settings and leaves the others unchanged."""
    settings = BrokerSettings(num_partitions=6, fetch_max_bytes=1000)

    assert replace(settings, num_partitions=2) == settings_of(settings=settings, num_partitions=2)


def test_a_keyword_that_is_none_changes_nothing():
    """None means the default, or the value in the settings."""
    assert settings_of(brokers=3) == settings_of(
        brokers=3, connection_limits=None, default_replication_factor=None
    )
    settings = BrokerSettings(num_partitions=6, default_replication_factor=2)
    assert settings == settings_of(settings=settings, brokers=3, num_partitions=None)


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (5, 3)])
def test_without_settings_a_topic_has_up_to_three_replicas(brokers, replicas):
    """The default replication factor is the number of brokers, but at most three."""
    assert BrokerSettings(default_replication_factor=replicas) == settings_of(brokers=brokers)


def test_the_defaults_of_topics_can_be_changed_one_by_one():
    """`max_message_bytes` and `log_append_time` change these fields of the topic defaults."""
    settings = BrokerSettings(topic_defaults=TopicConfig(retention_ms=5))

    changed = settings_of(settings=settings, max_message_bytes=99, log_append_time=True)

    assert changed.topic_defaults == TopicConfig(
        retention_ms=5, max_message_bytes=99, log_append_time=True
    )


def test_an_unknown_setting_is_a_type_error():
    """A keyword that is not a setting raises a TypeError that names it."""
    with pytest.raises(TypeError, match="num_partition"):
        DevBroker(num_partition=2)


def test_racks_on_the_command_line_are_one_for_each_broker(capsys):
    """The command does not start with another number of racks than of brokers."""
    assert 1 == main(["--brokers", "3", "--racks", "a,b"])
    assert "2 for 3 brokers" in capsys.readouterr().err


def test_the_command_creates_the_topics_that_it_is_given(monkeypatch, capsys):
    """Each has its partitions and settings when the address is printed."""
    found = {}

    def run(server, on_listening, control):
        async def serve():
            await server.start()
            try:
                on_listening()
                for name in ("orders", "refunds"):
                    topic = server.cluster.topic(name)
                    found[name] = (len(topic.partitions), topic.config.retention_ms)
            finally:
                await server.close()

        asyncio.run(serve())

    monkeypatch.setattr("spark_kafka_sink.devbroker.__main__.run_until_signal", run)
    topics = ["--topic", "orders:3", "--topic", "refunds:1:retention.ms=5000"]
    assert 0 == main(["--port", "0", *topics])
    assert {"orders": (3, -1), "refunds": (1, 5000)} == found
    assert capsys.readouterr().out.startswith("listening on 127.0.0.1:")


def test_the_command_takes_super_users_in_the_format_of_kafka():
    """The principals are separated by semicolons, as their names may contain commas."""
    options = parser().parse_args(
        ["--authorizer", "--super-users", "User:CN=a,O=b; User:ANONYMOUS;"]
    )

    assert (True, ("User:CN=a,O=b", "User:ANONYMOUS")) == (options.authorizer, options.super_users)


@pytest.mark.parametrize("level", [0, 2])
def test_the_command_takes_the_levels_of_transaction_version(level):
    """Kafka's level 1 is neither its own nor that of older versions."""
    assert level == parser().parse_args(["--transaction-version", str(level)]).transaction_version
    with pytest.raises(SystemExit):
        parser().parse_args(["--transaction-version", "1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": -1}, "port -1: the lowest is 0, for any free port"),
        ({"port": 65_536}, "port 65536: the highest is 65535"),
        (
            {"port": 65_534, "brokers": 3},
            "port 65534: the highest is 65535, and the last broker's would be 65536",
        ),
    ],
)
def test_ports_end_somewhere(arguments, message):
    """A socket would take another port than the one that was asked for."""
    with pytest.raises(ConfigError, match=f"^{message}$"):
        DevBroker(**arguments)
    assert DevBroker(port=65_533, brokers=3).bootstrap_servers.endswith(":65535")


def test_unread_responses_may_take_256_mib():
    """The budget is for all clients together."""
    assert 256 << 20 == BrokerSettings().queued_max_response_bytes


def test_the_first_brokers_of_many_are_shown():
    """A line has the addresses of three."""
    shown = repr(DevBroker(port=9092, brokers=5))
    assert shown.startswith("<DevBroker at 127.0.0.1:9092, 127.0.0.1:9093, 127.0.0.1:9094 and 2")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("::1", "[::1]:9092,[::1]:9093"), ("127.0.0.1", "127.0.0.1:9092,127.0.0.1:9093")],
)
def test_an_ipv6_address_is_in_brackets_before_its_port(host, expected):
    """Addresses are printed as `bootstrap.servers` takes them, here and by the clients."""
    broker = DevBroker(host=host, port=9092, brokers=2)

    assert expected == broker.bootstrap_servers
    assert f"<DevBroker at {expected.replace(',', ', ')}, stopped>" == repr(broker)
    assert f"{expected.partition(',')[0]} (id 1)" == str(Node(1, host, 9092))
    config = ProducerConfig.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    assert expected == ",".join(str(Node(-1, *address)) for address in config.bootstrap_servers)


def test_times_of_the_replication_are_not_too_short():
    """A session of 0 ms would keep the brokers busy with heartbeats alone."""
    with pytest.raises(ConfigError, match="broker_session_timeout_ms must be at least 10"):
        BrokerSettings(broker_session_timeout_ms=0)
    with pytest.raises(ConfigError, match="replica_lag_time_max_ms"):
        DevBroker(brokers=3, configs={"replica.lag.time.max.ms": "9"})


def test_a_running_broker_is_not_wiped():
    """The disk of a process cannot be taken away, nor that of the only broker."""
    with DevBroker(brokers=3) as cluster, pytest.raises(KafkaError, match="stop or kill it first"):
        cluster.wipe(1)
    with DevBroker() as broker:
        broker.stop(1)
        with pytest.raises(KafkaError, match="needs several brokers"):
            broker.wipe(1)


def test_replicas_are_those_of_a_single_broker_too(devbroker):
    """One broker is the in-sync replica, and its log has one end."""
    devbroker.create_topic("t", partitions=2)
    assert ([1], {1: 0}) == (devbroker.isr("t", 1), devbroker.end_offsets("t", 1))
    with pytest.raises(RefusedError):
        devbroker.isr("t", 2)
