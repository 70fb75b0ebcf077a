from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    CONSUMER_ONLY,
    PRODUCER_ONLY,
    REFUSED_CONSUMER,
    WITHOUT_EFFECT,
    ConsumerConfig,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.errors import ConfigError


def config(settings=()):
    return ConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **dict(settings)})


def refusal(settings):
    with pytest.raises(ConfigError) as caught:
        config(settings)
    return str(caught.value)


def test_the_defaults_suit_a_read_of_whole_partitions():
    """The defaults are Java's, but for larger responses and the system's socket buffers."""
    made = config()
    assert (("localhost", 9092),) == made.bootstrap_servers
    assert ("read_uncommitted", True, "") == (
        made.isolation_level,
        made.check_crcs,
        made.client_rack,
    )
    assert 134_217_728 == made.max_uncompressed_batch_bytes
    assert (8_388_608, 52_428_800, 1, 500) == (
        made.max_partition_fetch_bytes,
        made.fetch_max_bytes,
        made.fetch_min_bytes,
        made.fetch_max_wait_ms,
    )
    assert (60_000, 30_000) == (made.default_api_timeout_ms, made.request_timeout_ms)
    assert (-1, -1) == (made.receive_buffer_bytes, made.send_buffer_bytes)
    assert made.allow_auto_create_topics is False
    assert (100, 300_000) == (
        made.max_in_flight_requests_per_connection,
        made.metadata_max_idle_ms,
    )


def test_every_setting_has_an_attribute_of_its_name():
    """Each setting is an attribute, with underscores for dots; TLS and SASL are in `security`."""
    made = config()
    for name in CONSUMER_CONFIG_DEF.names:
        attribute = name.replace(".", "_")
        assert hasattr(made, attribute) or hasattr(made.security, attribute)


def test_configurations_are_immutable_and_compared_by_value():
    """Equal settings give equal configurations with equal hashes, which are immutable."""
    assert {config({"fetch.min.bytes": 2})} == {config({"fetch.min.bytes": " 2 "})}
    assert config() != config({"fetch.min.bytes": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().fetch_min_bytes = 1


def test_the_isolation_level_is_case_sensitive():
    """The isolation level is written in lower case, as in Java."""
    assert "read_committed" == config({"isolation.level": "read_committed"}).isolation_level
    assert (
        "isolation.level must be one of: read_committed, read_uncommitted, not 'READ_COMMITTED'"
        == refusal({"isolation.level": "READ_COMMITTED"})
    )


@pytest.mark.parametrize("wait", [30_000, 40_000])
def test_a_broker_must_not_wait_longer_than_the_request(wait):
    """A given fetch.max.wait.ms that reaches request.timeout.ms is an error."""
    assert (
        f"fetch.max.wait.ms is {wait}, but must be less than request.timeout.ms, which is 30000: "
        "a broker may wait so long before it answers" == refusal({"fetch.max.wait.ms": wait})
    )
    assert 29_999 == config({"fetch.max.wait.ms": 29_999}).fetch_max_wait_ms


@pytest.mark.parametrize(("timeout", "wait"), [(501, 500), (500, 250), (1, 0), (0, 0)])
def test_the_default_wait_gives_way_to_a_short_timeout(timeout, wait):
    """Without fetch.max.wait.ms, a broker waits at most half of a short request.timeout.ms."""
    assert wait == config({"request.timeout.ms": timeout}).fetch_max_wait_ms


@pytest.mark.parametrize("name", sorted(REFUSED_CONSUMER))
def test_each_unsupported_setting_is_rejected_with_the_reason(name):
    """The error for an unsupported setting gives the reason, and does not show the value."""
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.from_mapping({"bootstrap.servers": "a:1", name: "hunter2"}, prefix="kafka.")
    assert f"kafka.{name} is not supported: {REFUSED_CONSUMER[name].reason}" == str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, refused in REFUSED_CONSUMER.items() for value in refused.accepted],
)
def test_unsupported_settings_are_accepted_if_they_change_nothing(name, value):
    """An unsupported setting is accepted with a value that describes the actual behaviour."""
    assert config() == config({name: value})


def test_settings_of_the_producer_are_unknown():
    """A setting of the producer is unknown to a consumer."""
    assert "unknown option 'linger.ms'" == refusal({"linger.ms": 5})


def test_an_unknown_setting_is_rejected_with_a_suggestion():
    """The error for an unknown setting suggests the nearest known one."""
    assert "unknown option 'kafka.fetch.max.byte'; did you mean 'fetch.max.bytes'?" == refusal(
        {"kafka.fetch.max.byte": 1}
    )


@pytest.mark.parametrize("address", ["localhost", "a:0", ":9092"])
def test_an_invalid_address_is_rejected(address):
    """The addresses are checked as the producer's are."""
    assert f"bootstrap.servers: {address!r} is not host:port, such as localhost:9092" == refusal(
        {"bootstrap.servers": address}
    )


def test_security_settings_without_effect_are_rejected():
    """A TLS setting without TLS is an error, as for the producer."""
    assert "ssl.truststore.location requires security.protocol SSL or SASL_SSL" in refusal(
        {"ssl.truststore.location": "/trusted.pem"}
    )


def test_secrets_are_not_shown():
    """Neither the repr nor the text of a configuration shows a password."""
    made = config({"security.protocol": "SSL", "ssl.key.password": "hunter2"})
    assert "hunter2" not in f"{made!r} {made}"
    assert "hunter2" == made.security.ssl_key_password.value


def test_the_settings_of_one_client_only_are_known():
    """The settings that only the producer or only the consumer has do not overlap."""
    assert not set(CONSUMER_ONLY) & {*PRODUCER_ONLY, *PRODUCER_CONFIG_DEF.names}
    assert {"isolation.level", "group.id", "auto.offset.reset"} <= set(CONSUMER_ONLY)
    assert {"acks", "linger.ms", "transactional.id"} <= set(PRODUCER_ONLY)
    assert set(WITHOUT_EFFECT) <= set(CONSUMER_ONLY)
