"""Settings compared with Kafka's own Java consumer; see golden/ConfigGoldens.java."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.config.consumer_config import (
    KAFKA_CONSUMER_CONFIG_DEF,
    REFUSED_KAFKA_CONSUMER,
    KafkaConsumerConfig,
)
from spark_kafka_sink.errors import ConfigError
from tests.support.config.java_settings import STRICTER, Comparison, java_settings

GOLDEN = java_settings("consumer_config")
KEYS = {key.name: key for key in KAFKA_CONSUMER_CONFIG_DEF}
#: Whether Java's consumer accepts combinations of settings.
JAVAS_VERDICTS = {
    frozenset(case["settings"].items()): case["accepted"] for case in GOLDEN["together"]
}
JAVA_ASSIGNOR = "class org.apache.kafka.clients.consumer."

#: Settings that Java does not have.
OURS = {"max.uncompressed.batch.bytes"}
#: Java's defaults where ours differ.
OTHER_DEFAULTS = {
    # A mistyped name must not create a topic.
    "allow.auto.create.topics": "true",
    # A fixed size keeps the operating system from letting the buffer grow.
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "131072",
    "client.id": "",
    # There is no JMX in Python.
    "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
    # Required in Java, which assumes no type of keys and values.
    "key.deserializer": None,
    "value.deserializer": None,
    # The same assignors, by the names that requests have for them.
    "partition.assignment.strategy": (
        f"{JAVA_ASSIGNOR}RangeAssignor,{JAVA_ASSIGNOR}CooperativeStickyAssignor"
    ),
}
#: Values that Java accepts and we reject, and why.
MORE_STRICT = {
    **STRICTER,
    # Java's consumer rejects these when it is created.
    "group.id": {""},
    "session.timeout.ms": {"0", "1", "-1", "-2"},
    # Heartbeats would be sent without a pause; the last value is that of the session.
    "heartbeat.interval.ms": {"0", "-1", "-2", "2147483647"},
    # The request would time out before the broker answers.
    "fetch.max.wait.ms": {"2147483647"},
}

COMPARED = Comparison(
    java=GOLDEN,
    definitions=KAFKA_CONSUMER_CONFIG_DEF,
    config=KafkaConsumerConfig,
    other_defaults=OTHER_DEFAULTS,
    required={"bootstrap.servers": "127.0.0.1:9", "group.id": "group"},
    stricter=MORE_STRICT,
    related={"heartbeat.interval.ms": {"session.timeout.ms": 2**31 - 1}},
)


def test_every_setting_of_the_java_consumer_is_known():
    """Every setting of Kafka's consumer is supported, or rejected with a reason."""
    assert set() == set(GOLDEN["settings"]) - set(KEYS) - set(REFUSED_KAFKA_CONSUMER)


def test_every_setting_is_one_of_javas():
    """Every setting is, or was, a setting of Java's consumer or its deserializers."""
    gone_since_4_0 = {"auto.include.jmx.reporter"}
    of_deserializers = {f"{part}deserializer.encoding" for part in ("", "key.", "value.")}
    known = set(KEYS) | set(REFUSED_KAFKA_CONSUMER)
    assert OURS | gone_since_4_0 | of_deserializers == known - set(GOLDEN["settings"])


def test_no_setting_is_both_supported_and_refused():
    """A setting is in one of the two tables only."""
    assert not set(KEYS) & set(REFUSED_KAFKA_CONSUMER)


@pytest.mark.parametrize("name", sorted(KEYS.keys() - OURS))
def test_types_importances_and_defaults_equal_javas(name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    key = KEYS[name]
    assert COMPARED.java_definition(name) == COMPARED.own_definition(key)
    assert (name in COMPARED.other_defaults) == COMPARED.has_other_default(key)


def test_only_the_bootstrap_servers_are_required():
    """Java also requires deserializers; ours are for bytes."""
    assert ["bootstrap.servers"] == [key.name for key in KEYS.values() if key.default is REQUIRED]


@pytest.mark.parametrize("name", COMPARED.tried)
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    assert COMPARED.expected(name) == COMPARED.accepted(name)
    assert COMPARED.stricter.get(name, set()) <= COMPARED.accepted_by_java(name)


@pytest.mark.parametrize("name", sorted(REFUSED_KAFKA_CONSUMER))
def test_an_unsupported_setting_is_an_error_with_its_reason(name):
    """A setting of Java's consumer that is not supported is rejected with the reason."""
    refused = REFUSED_KAFKA_CONSUMER[name]
    with pytest.raises(ConfigError) as caught:
        KafkaConsumerConfig.from_mapping({"bootstrap.servers": "a:1", name: "something else"})

    assert f"{name} is not supported: {refused.reason}" == str(caught.value)


def is_valid(settings):
    """Return Java's verdict on these settings, with the two rules that are different here."""
    # Java ignores the name of a static member if there is no group.
    if "group.instance.id" in settings and "group.id" not in settings:
        return False
    # Java compares the session with the default interval, which gives way here.
    if settings.get("session.timeout.ms") == "3000" and "heartbeat.interval.ms" not in settings:
        settings = {**settings, "session.timeout.ms": "3001"}
    return JAVAS_VERDICTS[frozenset(settings.items())]


@pytest.mark.parametrize("case", GOLDEN["together"], ids=lambda case: str(case["settings"]))
def test_combinations_of_settings_are_validated_as_in_java(case):
    """Combinations of settings are accepted, and commit, as in Java, with two exceptions."""
    settings = case["settings"]
    expected = is_valid(settings)
    try:
        made = KafkaConsumerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **settings})
    except ConfigError:
        assert not expected
    else:
        assert expected
        assert case.get("enable.auto.commit", True) == made.enable_auto_commit
