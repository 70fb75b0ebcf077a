"""Settings of brokers, and those of topics that come from them."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings, ConnectionLimits
from spark_kafka_sink.devbroker.base.server_config import (
    SERVER_CONFIGS,
    supports,
    with_server_configs,
)
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.devbroker.admin_requests import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter_configs,
    describe_configs,
    replace_configs,
)
from tests.support.devbroker.broker_requests import NOW, ask, broker_with

OK = ErrorCode.NONE
BAD = ErrorCode.INVALID_REQUEST
#: Values of Kafka's ConfigSource.
OF_TOPIC, OF_BROKER, OF_ALL, STATIC, DEFAULT = range(1, 6)


@pytest.fixture
def broker():
    return broker_with({"t": 1, "u": 1})


def described(broker, resource, *keys):
    """Return the values and sources of settings, with those that each might have instead."""
    request = describe_configs(resource, keys=keys or None, synonyms=True)
    [result] = ask(broker, request).results
    assert OK == result.error_code
    return {
        config.name: (
            config.value,
            config.config_source,
            [(it.name, it.value, it.source) for it in config.synonyms],
        )
        for config in result.configs
    }


def altered(broker, name, *configs, resource=BROKER, **more):
    [response] = ask(broker, alter_configs((resource, name, configs), **more)).responses
    return response.error_code


class TestDescriptions:
    """DescribeConfigs of brokers."""

    def test_a_broker_has_its_settings_with_their_sources(self):
        """A value that is not Kafka's default comes from the start of the broker."""
        broker = broker_with(num_partitions=3)

        settings = described(broker, (BROKER, "1"))

        assert SERVER_CONFIGS.keys() <= settings.keys()
        values = [("num.partitions", "3", STATIC), ("num.partitions", "1", DEFAULT)]
        assert ("3", STATIC, values) == settings["num.partitions"]
        assert ("1", STATIC, [("node.id", "1", STATIC)]) == settings["node.id"]
        address = "PLAINTEXT://127.0.0.1:9092"
        assert (address, STATIC) == settings["advertised.listeners"][:2]
        assert ("/memory", STATIC) == settings["log.dirs"][:2]
        assert (None, DEFAULT, []) == settings["log.retention.ms"]
        assert ("168", DEFAULT) == settings["log.retention.hours"][:2]
        assert (None, DEFAULT, []) == settings["broker.rack"]

    def test_only_defaults_of_topics_can_be_changed(self, broker):
        """All other settings are read-only."""
        [result] = ask(broker, describe_configs((BROKER, "1"))).results

        changeable = {config.name for config in result.configs if not config.read_only}

        of_topics = {config.name for config in SERVER_CONFIGS.values() if config.topic_config}
        assert of_topics == changeable
        assert len(TopicConfig().effective_values()) == len(of_topics)

    def test_a_topic_says_which_setting_of_the_broker_it_has(self, broker):
        """A default of a topic has the name that brokers have for it."""
        found = described(broker, (TOPIC, "t"), "max.message.bytes", "retention.ms")

        assert {
            "max.message.bytes": ("1048588", DEFAULT, [("message.max.bytes", "1048588", DEFAULT)]),
            "retention.ms": ("604800000", DEFAULT, []),
        } == found

    def test_groups_have_the_settings_of_brokers(self, broker):
        """All groups have the same settings."""
        found = described(broker, (GROUP, "g"), "consumer.session.timeout.ms")

        value = ("group.consumer.session.timeout.ms", "45000", DEFAULT)
        assert {"consumer.session.timeout.ms": ("45000", DEFAULT, [value])} == found

    def test_loggers_are_those_of_python(self, broker):
        """A broker has a root logger, whose level has the name that Kafka has for it."""
        [result] = ask(broker, describe_configs((BROKER_LOGGER, "1"))).results

        levels = {config.name: config.value for config in result.configs}
        assert levels["root"] in {"DEBUG", "INFO", "WARN", "ERROR", "FATAL"}

    @pytest.mark.parametrize(
        "resource", [(BROKER, "2"), (BROKER, "x"), (BROKER_LOGGER, ""), (GROUP, ""), (16, "m")]
    )
    def test_other_resources_are_refused(self, broker, resource):
        """A broker describes itself, and a name that must not be empty is not."""
        [result] = ask(broker, describe_configs(resource)).results

        assert BAD == result.error_code


class TestChanges:
    """IncrementalAlterConfigs of brokers."""

    def test_a_default_of_topics_changes_all_topics(self, broker):
        """Topics have the new value at once, unless they have one of their own."""
        altered(broker, "u", ("retention.ms", SET, "9"), resource=TOPIC)

        assert OK == altered(broker, "", ("log.retention.ms", SET, "2000"))
        assert OK == altered(broker, "1", ("log.retention.ms", SET, "1000"))

        of_brokers = [
            ("log.retention.ms", "1000", OF_BROKER),
            ("log.retention.ms", "2000", OF_ALL),
            ("log.retention.hours", "168", DEFAULT),
        ]
        assert ("1000", OF_BROKER, of_brokers) == described(broker, (TOPIC, "t"))["retention.ms"]
        own = ("retention.ms", "9", OF_TOPIC)
        assert ("9", OF_TOPIC, [own, *of_brokers]) == described(broker, (TOPIC, "u"))[
            "retention.ms"
        ]
        broker.cluster.create_topic("v", partitions=1)
        assert [1000, 9, 1000] == [
            topic.partitions[0].log.config.retention_ms for topic in broker.cluster.topics
        ]
        of_all = {"log.retention.ms": ("2000", OF_ALL, of_brokers[1:2])}
        assert of_all == described(broker, (BROKER, ""))

    def test_a_value_can_be_deleted(self, broker):
        """Without a value of its own, the broker has that of all brokers, or the first one."""
        for name in ("", "1"):
            altered(broker, name, ("message.max.bytes", SET, "500"))
            assert OK == altered(broker, name, ("message.max.bytes", DELETE, None))

        assert {} == described(broker, (BROKER, ""))
        assert 1048588 == broker.cluster.topic("t").config.max_message_bytes

    def test_lists_grow_and_shrink(self, broker):
        """Items are appended to the default of a list, and removed from it."""
        assert OK == altered(broker, "", ("log.cleanup.policy", APPEND, "compact"))
        assert "delete,compact" == broker.cluster.topic("t").config.cleanup_policy

        assert OK == altered(broker, "", ("log.cleanup.policy", SUBTRACT, "delete"))
        assert "compact" == broker.cluster.topic("t").config.cleanup_policy

    @pytest.mark.parametrize(
        ("name", "config", "expected"),
        [
            ("", ("num.partitions", SET, "7"), BAD),
            ("", ("no.such", SET, "7"), BAD),
            ("1", ("log.retention.ms", SET, "x"), BAD),
            ("2", ("log.retention.ms", SET, "1"), BAD),
            ("x", ("log.retention.ms", SET, "1"), BAD),
            ("", ("log.retention.ms", 9, "1"), BAD),
            ("", ("log.retention.ms", SET, None), BAD),
            ("", ("log.retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
            ("1", ("min.insync.replicas", SET, "1"), ErrorCode.INVALID_CONFIG),
            ("", ("min.insync.replicas", SET, "1"), OK),
        ],
    )
    def test_what_cannot_be_changed_is_refused(self, broker, name, config, expected):
        """Other settings, brokers, operations and values are errors as in Kafka."""
        assert expected == altered(broker, name, config)

    def test_validation_changes_nothing(self, broker):
        """With validate_only, the answer is the same."""
        change = ("log.retention.ms", SET, "1")

        assert OK == altered(broker, "", change, validate_only=True)
        assert {} == described(broker, (BROKER, ""))

    def test_changes_are_stored(self, tmp_path):
        """A restarted broker has its settings as they were changed."""
        path = tmp_path / "data"

        def restarted():
            cluster = StandaloneCluster(data_dir=path)
            broker = Broker(cluster=cluster)
            cluster.open(NOW)
            broker.advertise("127.0.0.1", 9092)
            return broker

        first = restarted()
        first.cluster.create_topic("t", partitions=1)
        altered(first, "1", ("log.segment.bytes", SET, "2000000"))
        first.cluster.close(NOW)

        second = restarted()
        assert 2_000_000 == second.cluster.topic("t").config.segment_bytes
        second.cluster.close(NOW)


class TestReplacements:
    """AlterConfigs, which IncrementalAlterConfigs has replaced."""

    @pytest.mark.parametrize("version", range(3))
    def test_settings_that_are_left_out_are_reset(self, broker, version):
        """Only the settings of the request are set afterwards, of topics and brokers."""
        altered(broker, "t", ("retention.ms", SET, "9"), resource=TOPIC)
        altered(broker, "", ("log.retention.bytes", SET, "9"))
        request = replace_configs(
            (TOPIC, "t", {"segment.ms": "5000"}), (BROKER, "", {"log.roll.ms": "6000"})
        )

        assert [OK, OK] == [it.error_code for it in ask(broker, request, version).responses]
        assert {"segment.ms": "5000"} == broker.cluster.topic("t").overrides
        assert {"": {"log.roll.ms": "6000"}} == broker.cluster.broker_configs

    @pytest.mark.parametrize(
        ("resource", "expected"),
        [
            ((TOPIC, "no", {}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ((TOPIC, "t", {"no.such": "1"}), ErrorCode.INVALID_CONFIG),
            ((TOPIC, "t", {"segment.ms": None}), BAD),
            ((BROKER, "2", {}), BAD),
            ((BROKER, "", {"num.partitions": "1"}), BAD),
            ((BROKER_LOGGER, "1", {"root": "INFO"}), BAD),
        ],
    )
    def test_what_cannot_be_replaced_is_refused(self, broker, resource, expected):
        """Each resource has an error of its own, and the others are changed."""
        request = replace_configs(resource, (TOPIC, "u", {"segment.ms": "5000"}))

        assert [expected, OK] == [it.error_code for it in ask(broker, request).responses]
        assert {"segment.ms": "5000"} == broker.cluster.topic("u").overrides

    def test_validation_replaces_nothing(self, broker):
        """With validate_only, the answer is the same."""
        request = replace_configs((TOPIC, "t", {"segment.ms": "1"}), validate_only=True)

        assert [OK] == [it.error_code for it in ask(broker, request).responses]
        assert {} == broker.cluster.topic("t").overrides


class TestNames:
    """Kafka's names of the broker's settings."""

    def test_each_setting_is_read_and_set(self):
        """Every row has a field, of which Kafka's default is a valid value."""
        for config in SERVER_CONFIGS.values():
            value = config.default or "60000"
            settings = with_server_configs(BrokerSettings(), {config.name: value})
            assert value == config.value(settings, settings.topic_defaults), config.name

    def test_the_fields_that_kafka_has_have_a_name(self):
        """What has none is told apart by the comment of its field."""
        named = {config.field for config in SERVER_CONFIGS.values() if config.field}
        fields = {field.name for field in dataclasses.fields(BrokerSettings)}
        limits = {field.name for field in dataclasses.fields(ConnectionLimits)}

        assert named <= fields | limits
        assert {
            # The authorizer is a plugin of Kafka, and the settings are its own.
            "allow_everyone_if_no_acl_found",
            "authorizer",
            "super_users",
            "authentication_timeout_ms",
            "connection_limits",
            "control_request_max_bytes",
            "fetch_session_cache_max_bytes",
            "node_id",
            "producer_id_expiration_check_interval_ms",
            "queued_max_response_bytes",
            "rack_aware_replica_selector",
            "racks",
            "request_max_decoded_elements",
            "request_max_decompressed_bytes",
            "request_max_elements",
            "request_max_partitions",
            "request_max_validated_bytes",
            "request_receive_timeout_ms",
            "topic_defaults",
            "transaction_marker_delay_ms",
            "transaction_version",
        } == (fields | limits) - named

    def test_hours_are_milliseconds(self):
        """Milliseconds take precedence over minutes, and these over hours."""
        hours = {"log.retention.hours": "2", "log.roll.hours": "1"}

        def retention(**more):
            changed = {name.replace("_", "."): value for name, value in more.items()}
            return with_server_configs(BrokerSettings(), hours | changed).topic_defaults

        assert (7_200_000, 3_600_000) == (retention().retention_ms, retention().segment_ms)
        assert 60_000 == retention(log_retention_minutes="1").retention_ms
        assert 5 == retention(log_retention_minutes="1", log_retention_ms="5").retention_ms
        assert -1 == retention(log_retention_minutes="-1").retention_ms

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num.partitions", "many"),
            ("num.partitions", "-1"),
            ("auto.create.topics.enable", "yes"),
            ("log.retention.hours", "x"),
            ("log.cleanup.policy", "keep"),
            ("max.connections", "0"),
        ],
    )
    def test_an_invalid_value_is_an_error(self, name, value):
        """A value of a wrong form or out of range is refused."""
        with pytest.raises(ConfigError):
            with_server_configs(BrokerSettings(), {name: value})

    def test_other_names_are_not_supported(self):
        """Only settings with an effect are."""
        assert supports("log.retention.hours")
        assert not supports("num.io.threads")
