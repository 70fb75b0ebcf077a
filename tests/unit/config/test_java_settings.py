"""Settings compared with those of Kafka's own Java clients; see golden/ConfigGoldens.java."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF, REFUSED_ADMIN, AdminConfig
from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    KAFKA_CONSUMER_CONFIG_DEF,
    REFUSED_CONSUMER,
    REFUSED_KAFKA_CONSUMER,
    ConsumerConfig,
    KafkaConsumerConfig,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED, ProducerConfig
from spark_kafka_sink.errors import ConfigError
from tests.support.config.java_settings import STRICTER, Comparison, java_settings

JAVA_ASSIGNOR = "class org.apache.kafka.clients.consumer."
#: Java's defaults where ours differ.
OF_ALL_CLIENTS = {
    # A fixed size keeps the operating system from letting the buffer grow.
    "send.buffer.bytes": "131072",
    "client.id": "",
}
OF_RECEIVERS = {**OF_ALL_CLIENTS, "receive.buffer.bytes": "65536"}
#: There is no JMX in Python.
JMX = {"metric.reporters": "org.apache.kafka.common.metrics.JmxReporter"}
GONE_SINCE_4_0 = {"auto.include.jmx.reporter"}

PRODUCER = Comparison(
    java=java_settings("config"),
    definitions=PRODUCER_CONFIG_DEF,
    refused=REFUSED,
    config=ProducerConfig,
    other_defaults={
        **OF_ALL_CLIENTS,
        **JMX,
        # Required in Java, which assumes no type of keys and values.
        "key.serializer": None,
        "value.serializer": None,
        "partitioner.class": None,
        "compression.type": "none",
        "batch.size": "16384",
    },
    stricter={
        **STRICTER,
        # A producer that cannot buffer or send anything is useless.
        "buffer.memory": {"0"},
        "max.request.size": {"0"},
        # A broker rejects these later, when the producer has started.
        "transaction.timeout.ms": {"0", "-1", "-2"},
    },
    related={
        "batch.size": {"buffer.memory": 2**31},
        "delivery.timeout.ms": {"request.timeout.ms": 0, "linger.ms": 0},
        "partitioner.rack.aware": {"client.rack": "a"},
    },
    # The settings of Java's serializers.
    others={f"{part}serializer.encoding" for part in ("", "key.", "value.")},
)
CONSUMER = Comparison(
    java=java_settings("consumer_config"),
    definitions=CONSUMER_CONFIG_DEF,
    refused=REFUSED_CONSUMER,
    config=ConsumerConfig,
    other_defaults={
        **OF_RECEIVERS,
        # Larger responses: a read waits for them less often.
        "max.partition.fetch.bytes": "1048576",
    },
    stricter={
        **STRICTER,
        # The request would time out before the broker answers.
        "fetch.max.wait.ms": {"2147483647"},
    },
    ours={"max.uncompressed.batch.bytes"},
)
GROUP_CONSUMER = Comparison(
    java=java_settings("consumer_config"),
    definitions=KAFKA_CONSUMER_CONFIG_DEF,
    refused=REFUSED_KAFKA_CONSUMER,
    config=KafkaConsumerConfig,
    other_defaults={
        **OF_RECEIVERS,
        **JMX,
        # A mistyped name must not create a topic.
        "allow.auto.create.topics": "true",
        # Required in Java, which assumes no type of keys and values.
        "key.deserializer": None,
        "value.deserializer": None,
        # The same assignors, by the names that requests have for them.
        "partition.assignment.strategy": (
            f"{JAVA_ASSIGNOR}RangeAssignor,{JAVA_ASSIGNOR}CooperativeStickyAssignor"
        ),
    },
    required={"bootstrap.servers": "127.0.0.1:9", "group.id": "group"},
    stricter={
        **STRICTER,
        # Java's consumer rejects these when it is created.
        "group.id": {""},
        "session.timeout.ms": {"0", "1", "-1", "-2"},
        # Heartbeats would be sent without a pause; the last value is that of the session.
        "heartbeat.interval.ms": {"0", "-1", "-2", "2147483647"},
        # The request would time out before the broker answers.
        "fetch.max.wait.ms": {"2147483647"},
    },
    related={"heartbeat.interval.ms": {"session.timeout.ms": 2**31 - 1}},
    ours={"max.uncompressed.batch.bytes"},
    # The settings of Java's deserializers.
    others={f"{part}deserializer.encoding" for part in ("", "key.", "value.")},
)
ADMIN = Comparison(
    java=java_settings("admin_config"),
    definitions=ADMIN_CONFIG_DEF,
    refused=REFUSED_ADMIN,
    config=AdminConfig,
    other_defaults=OF_RECEIVERS,
    related={"default.api.timeout.ms": {"request.timeout.ms": 0}},
)
CLIENTS = {
    "producer": PRODUCER,
    "consumer": CONSUMER,
    "group consumer": GROUP_CONSUMER,
    "admin": ADMIN,
}

each_client = pytest.mark.parametrize("compared", CLIENTS.values(), ids=CLIENTS)


def of_each_client(names):
    """Return a mark that runs a test for each client, and for these names of its settings."""
    cases = [
        pytest.param(compared, name, id=f"{client}-{name}")
        for client, compared in CLIENTS.items()
        for name in sorted(names(compared))
    ]
    return pytest.mark.parametrize(("compared", "name"), cases)


@each_client
def test_every_setting_of_the_java_client_is_known(compared):
    """Every setting of Kafka's client is supported, or rejected with a reason."""
    assert set() == set(compared.java["settings"]) - set(compared.keys) - set(compared.refused)


@each_client
def test_every_setting_is_one_of_javas(compared):
    """Every setting is, or was, one of Java's client or its plug-ins, but for those listed."""
    known = set(compared.keys) | set(compared.refused)
    expected = compared.ours | compared.others | GONE_SINCE_4_0
    assert expected == known - set(compared.java["settings"])


@each_client
def test_no_setting_is_both_supported_and_refused(compared):
    """A setting is in one of the two tables only."""
    assert not set(compared.keys) & set(compared.refused)


@of_each_client(lambda compared: compared.keys.keys() - compared.ours)
def test_types_importances_and_defaults_equal_javas(compared, name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    key = compared.keys[name]
    assert compared.java_definition(name) == compared.own_definition(key)
    assert (name in compared.other_defaults) == compared.has_other_default(key)


@each_client
def test_only_the_bootstrap_servers_are_required(compared):
    """Java also requires serializers and deserializers; ours are for bytes."""
    required = [key.name for key in compared.definitions if key.default is REQUIRED]
    assert ["bootstrap.servers"] == required


@of_each_client(lambda compared: compared.tried)
def test_values_are_accepted_exactly_if_java_accepts_them(compared, name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    assert compared.expected(name) == compared.accepted(name)
    assert compared.stricter.get(name, set()) <= compared.accepted_by_java(name)


@of_each_client(lambda compared: compared.refused)
def test_an_unsupported_setting_is_an_error_with_its_reason(compared, name):
    """An unsupported setting of Java's client is rejected with the reason."""
    with pytest.raises(ConfigError) as caught:
        compared.config.from_mapping({"bootstrap.servers": "a:1", name: "something else"})

    assert f"{name} is not supported: {compared.refused[name].reason}" == str(caught.value)


@pytest.mark.parametrize("case", PRODUCER.java["together"], ids=lambda case: str(case["settings"]))
def test_a_producers_combinations_of_settings_are_validated_as_in_java(case):
    """Combinations of settings are accepted, and enable idempotence, exactly as in Java."""
    assert case["accepted"] == PRODUCER.accepts(case["settings"])
    if case["accepted"]:
        config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **case["settings"]})
        assert case["enable.idempotence"] == config.enable_idempotence


#: Whether Java's consumer accepts combinations of settings.
JAVAS_VERDICTS = {
    frozenset(case["settings"].items()): case["accepted"]
    for case in GROUP_CONSUMER.java["together"]
}


def is_valid(settings):
    """Return Java's verdict on these settings, with the two rules that are different here."""
    # Java ignores the name of a static member if there is no group.
    if "group.instance.id" in settings and "group.id" not in settings:
        return False
    # Java compares the session with the default interval, which gives way here.
    if settings.get("session.timeout.ms") == "3000" and "heartbeat.interval.ms" not in settings:
        settings = {**settings, "session.timeout.ms": "3001"}
    return JAVAS_VERDICTS[frozenset(settings.items())]


@pytest.mark.parametrize(
    "case", GROUP_CONSUMER.java["together"], ids=lambda case: str(case["settings"])
)
def test_a_consumers_combinations_of_settings_are_validated_as_in_java(case):
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
