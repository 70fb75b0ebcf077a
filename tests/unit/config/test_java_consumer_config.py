"""Settings compared with Kafka's own Java consumer; see golden/ConfigGoldens.java."""

from __future__ import annotations

import pytest

from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    REFUSED_CONSUMER,
    ConsumerConfig,
)
from tests.support.config.java_settings import STRICTER, Comparison, java_settings

GOLDEN = java_settings("consumer_config")
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
MORE_STRICT = {
    **STRICTER,
    # The request would time out before the broker answers.
    "fetch.max.wait.ms": {"2147483647"},
}

COMPARED = Comparison(
    java=GOLDEN,
    definitions=CONSUMER_CONFIG_DEF,
    config=ConsumerConfig,
    other_defaults=OTHER_DEFAULTS,
    stricter=MORE_STRICT,
)


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
    key = KEYS[name]
    assert COMPARED.java_definition(name) == COMPARED.own_definition(key)
    assert (name in COMPARED.other_defaults) == COMPARED.has_other_default(key)


def test_only_the_bootstrap_servers_are_required():
    """Java also requires deserializers; we read bytes."""
    assert ["bootstrap.servers"] == [key.name for key in KEYS.values() if key.default is REQUIRED]


@pytest.mark.parametrize("name", COMPARED.tried)
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    assert COMPARED.expected(name) == COMPARED.accepted(name)
    assert COMPARED.stricter.get(name, set()) <= COMPARED.accepted_by_java(name)
