"""Settings compared with Kafka's own Java producer; see golden/ConfigGoldens.java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF, REFUSED
from spark_kafka_sink.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "java_config.json").read_text())
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
STRICTER = {
    # A producer that cannot buffer or send anything is useless.
    "buffer.memory": {"0"},
    "max.request.size": {"0"},
    # A broker rejects these later, when the producer has started.
    "transaction.timeout.ms": {"0", "-1", "-2"},
    # Java accepts negative times here, and then fails each connection.
    "socket.connection.setup.timeout.ms": {"-1", "-2", "-2147483649"},
    "socket.connection.setup.timeout.max.ms": {"-1", "-2", "-2147483649"},
    # Likewise.
    "sasl.login.connect.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.read.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.retry.backoff.ms": {"-1", "-2", "-2147483649"},
    "sasl.login.retry.backoff.max.ms": {"-1", "-2", "-2147483649"},
}
#: Other settings that are needed to satisfy rules between settings, which Java checks later.
RELATED = {
    "batch.size": {"buffer.memory": 2**31},
    "delivery.timeout.ms": {"request.timeout.ms": 0, "linger.ms": 0},
    **{
        name: {"security.protocol": "SASL_SSL"} for name in KEYS if name.startswith(("sasl", "ssl"))
    },
}


def accepts(settings: dict[str, Any]) -> bool:
    try:
        ProducerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **settings})
    except ConfigError:
        return False
    return True


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
    java, key = GOLDEN["settings"][name], KEYS[name]
    kind = "list" if key.type == "list of classes" else key.type.value
    assert (java["type"], java["importance"]) == (kind, key.importance.value)
    default = OTHER_DEFAULTS.get(name, key.default_text())
    assert (java["default"] or "") == (default or "")
    assert (name in OTHER_DEFAULTS) == ((java["default"] or "") != key.default_text())


@pytest.mark.parametrize("name", [name for name in GOLDEN["single"] if name in KEYS])
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    values = GOLDEN["single"][name]
    others = RELATED.get(name, {})
    given = [*values["accepted"], *values["refused"]]
    verdicts = {value: accepts({**others, name: value}) for value in given}
    stricter = STRICTER.get(name, set())
    assert {value for value in values["accepted"] if value.strip() not in stricter} == {
        value for value, accepted in verdicts.items() if accepted
    }
    assert stricter <= set(values["accepted"])


@pytest.mark.parametrize("case", GOLDEN["together"], ids=lambda case: str(case["settings"]))
def test_combinations_of_settings_are_validated_as_in_java(case):
    """Combinations of settings are accepted, and enable idempotence, exactly as in Java."""
    assert case["accepted"] == accepts(case["settings"])
    if case["accepted"]:
        config = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **case["settings"]})
        assert case["enable.idempotence"] == config.enable_idempotence
