"""Settings compared with Kafka's own Java consumer; see golden/ConfigGoldens.java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.config.consumer_config import ConsumerConfig
from spark_kafka_sink.config.consumer_settings import CONSUMER_CONFIG_DEF, REFUSED_CONSUMER
from spark_kafka_sink.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "java_consumer_config.json").read_text())
KEYS = {key.name: key for key in CONSUMER_CONFIG_DEF}

#: Settings that Java does not have.
OURS = {"max.uncompressed.batch.bytes"}
#: Java's defaults where ours differ.
OTHER_DEFAULTS = {
    # Larger responses: a read waits for them less often.
    "max.partition.fetch.bytes": "1048576",
    # A fixed size keeps the operating system from letting the buffer grow.
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "131072",
    "client.id": "",
}
#: Values that Java accepts and we reject, and why.
STRICTER = {
    # The request would time out before the broker answers.
    "fetch.max.wait.ms": {"2147483647"},
    # Java accepts negative times here, and then fails each connection.
    "socket.connection.setup.timeout.ms": {"-1", "-2", "-2147483649"},
    "socket.connection.setup.timeout.max.ms": {"-1", "-2", "-2147483649"},
    # Likewise.
    "sasl.login.connect.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.read.timeout.ms": {"0", "-1", "-2"},
    "sasl.login.retry.backoff.ms": {"-1", "-2", "-2147483649"},
    "sasl.login.retry.backoff.max.ms": {"-1", "-2", "-2147483649"},
}


def accepts(settings):
    try:
        ConsumerConfig.from_mapping({"bootstrap.servers": "127.0.0.1:9", **settings})
    except ConfigError:
        return False
    return True


def test_every_setting_of_the_java_consumer_is_known():
    """Every setting of Kafka's consumer is supported, or rejected with a reason."""
    assert set() == set(GOLDEN["settings"]) - set(KEYS) - set(REFUSED_CONSUMER)


def test_every_setting_is_one_of_javas():
    """Every setting is, or was, a setting of Java's consumer, with the listed exceptions."""
    known = (set(KEYS) | set(REFUSED_CONSUMER)) - OURS
    assert {"auto.include.jmx.reporter"} == known - set(GOLDEN["settings"])


def test_no_setting_is_both_supported_and_refused():
    """A setting is in one of the two tables only."""
    assert not set(KEYS) & set(REFUSED_CONSUMER)


@pytest.mark.parametrize("name", sorted(KEYS.keys() - OURS))
def test_types_importances_and_defaults_equal_javas(name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    java, key = GOLDEN["settings"][name], KEYS[name]
    assert (java["type"], java["importance"]) == (key.type.value, key.importance.value)
    default = OTHER_DEFAULTS.get(name, key.default_text())
    assert (java["default"] or "") == (default or "")
    assert (name in OTHER_DEFAULTS) == ((java["default"] or "") != key.default_text())


def test_only_the_bootstrap_servers_are_required():
    """Java also requires deserializers; we read bytes."""
    assert ["bootstrap.servers"] == [key.name for key in KEYS.values() if key.default is REQUIRED]


@pytest.mark.parametrize("name", [name for name in GOLDEN["single"] if name in KEYS])
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    values = GOLDEN["single"][name]
    others = {"security.protocol": "SASL_SSL"} if name.startswith(("sasl", "ssl")) else {}
    given = [*values["accepted"], *values["refused"]]
    verdicts = {value: accepts({**others, name: value}) for value in given}
    stricter = STRICTER.get(name, set())
    assert {value for value in values["accepted"] if value.strip() not in stricter} == {
        value for value, accepted in verdicts.items() if accepted
    }
    assert stricter <= set(values["accepted"])
