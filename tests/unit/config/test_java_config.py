"""Settings compared with Kafka's own Java producer; see golden/ConfigGoldens.java."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED, ProducerConfig
from tests.support.config.java_settings import STRICTER, Comparison, java_settings

GOLDEN = java_settings("config")
KEYS = {key.name: key for key in PRODUCER_CONFIG_DEF}

#: Java's defaults where ours differ.
OTHER_DEFAULTS = {
    # Required in Java, which assumes no type of keys and values.
    "key.serializer": None,
    "value.serializer": None,
    "partitioner.class": None,
    "compression.type": "none",
    "batch.size": "16384",
    "client.id": "",
    "send.buffer.bytes": "131072",
    "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter",
}
#: Values that Java accepts and we reject, and why.
MORE_STRICT = {
    **STRICTER,
    # A producer that cannot buffer or send anything is useless.
    "buffer.memory": {"0"},
    "max.request.size": {"0"},
    # A broker rejects these later, when the producer has started.
    "transaction.timeout.ms": {"0", "-1", "-2"},
}
#: Other settings that are needed to satisfy rules between settings, which Java checks later.
RELATED = {
    "batch.size": {"buffer.memory": 2**31},
    "delivery.timeout.ms": {"request.timeout.ms": 0, "linger.ms": 0},
}

COMPARED = Comparison(
    java=GOLDEN,
    definitions=PRODUCER_CONFIG_DEF,
    config=ProducerConfig,
    other_defaults=OTHER_DEFAULTS,
    stricter=MORE_STRICT,
    related=RELATED,
)


def test_every_setting_of_the_java_producer_is_known():
    """Every setting of Kafka's producer is supported, or rejected with a reason."""
    assert set() == set(GOLDEN["settings"]) - set(KEYS) - set(REFUSED)


def test_every_setting_is_one_of_javas():
    """Every setting is, or was, a setting of Java's producer or its serializers."""
    gone_since_4_0 = {"auto.include.jmx.reporter"}
    of_serializers = {f"{part}serializer.encoding" for part in ("", "key.", "value.")}
    assert gone_since_4_0 | of_serializers == (set(KEYS) | set(REFUSED)) - set(GOLDEN["settings"])


@pytest.mark.parametrize("name", KEYS)
def test_types_importances_and_defaults_equal_javas(name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    key = KEYS[name]
    assert COMPARED.java_definition(name) == COMPARED.own_definition(key)
    assert (name in COMPARED.other_defaults) == COMPARED.has_other_default(key)


@pytest.mark.parametrize("name", COMPARED.tried)
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    assert COMPARED.expected(name) == COMPARED.accepted(name)
    assert COMPARED.stricter.get(name, set()) <= COMPARED.accepted_by_java(name)


@pytest.mark.parametrize("case", GOLDEN["together"], ids=lambda case: str(case["settings"]))
def test_combinations_of_settings_are_validated_as_in_java(case):
    """Combinations of settings are accepted, and enable idempotence, exactly as in Java."""
    assert case["accepted"] == COMPARED.accepts(case["settings"])
    if case["accepted"]:
        config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **case["settings"]})
        assert case["enable.idempotence"] == config.enable_idempotence
