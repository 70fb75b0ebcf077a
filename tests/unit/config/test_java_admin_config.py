"""Settings compared with Kafka's own Java admin client; see golden/ConfigGoldens.java."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF, REFUSED_ADMIN, AdminConfig
from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.errors import ConfigError
from tests.support.config.java_settings import Comparison, java_settings

GOLDEN = java_settings("admin_config")
KEYS = {key.name: key for key in ADMIN_CONFIG_DEF}
SERVERS = {"bootstrap.servers": "127.0.0.1:9"}

#: Java's defaults where ours differ.
OTHER_DEFAULTS = {
    # A fixed size keeps the operating system from letting the buffer grow.
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "131072",
    "client.id": "",
}

#: Other settings that are needed to satisfy rules between settings, which Java checks later.
RELATED = {"default.api.timeout.ms": {"request.timeout.ms": 0}}

COMPARED = Comparison(
    java=GOLDEN,
    definitions=ADMIN_CONFIG_DEF,
    config=AdminConfig,
    other_defaults=OTHER_DEFAULTS,
    related=RELATED,
)


def test_every_setting_of_the_java_admin_client_is_known():
    """Every setting of Kafka's admin client is supported, or rejected with a reason."""
    assert set() == set(GOLDEN["settings"]) - set(KEYS) - set(REFUSED_ADMIN)


def test_every_setting_is_one_of_javas():
    """Every setting is, or was, a setting of Java's admin client."""
    known = set(KEYS) | set(REFUSED_ADMIN)
    assert {"auto.include.jmx.reporter"} == known - set(GOLDEN["settings"])


def test_no_setting_is_both_supported_and_refused():
    """A setting is in one of the two tables only."""
    assert not set(KEYS) & set(REFUSED_ADMIN)


def test_describing_a_topic_does_not_create_it():
    """What is no setting has the value that Java's admin client sends."""
    assert AdminConfig.from_mapping(SERVERS).allow_auto_create_topics is False


@pytest.mark.parametrize("name", sorted(KEYS))
def test_types_importances_and_defaults_equal_javas(name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    key = KEYS[name]
    assert COMPARED.java_definition(name) == COMPARED.own_definition(key)
    assert (name in COMPARED.other_defaults) == COMPARED.has_other_default(key)


def test_only_the_bootstrap_servers_are_required():
    """All other settings have defaults."""
    assert ["bootstrap.servers"] == [key.name for key in KEYS.values() if key.default is REQUIRED]


@pytest.mark.parametrize("name", COMPARED.tried)
def test_values_are_accepted_exactly_if_java_accepts_them(name):
    """Values are accepted exactly if Java accepts them, with the listed exceptions."""
    assert COMPARED.expected(name) == COMPARED.accepted(name)
    assert COMPARED.stricter.get(name, set()) <= COMPARED.accepted_by_java(name)


@pytest.mark.parametrize("name", sorted(set(GOLDEN["settings"]) & set(REFUSED_ADMIN)))
def test_an_unsupported_setting_is_an_error_with_its_reason(name):
    """A setting of Java's admin client that is not supported is rejected with the reason."""
    refused = REFUSED_ADMIN[name]
    with pytest.raises(ConfigError) as caught:
        AdminConfig.from_mapping({**SERVERS, name: "something else"})

    assert f"{name} is not supported: {refused.reason}" == str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("default.api.timeout", "default.api.timeout.ms"), ("bootstrap.server", "bootstrap.servers")],
)
def test_an_unknown_setting_is_an_error_that_suggests_the_nearest(name, nearest):
    """A mistyped setting is never ignored."""
    with pytest.raises(ConfigError, match=rf"{name}.*{nearest}"):
        AdminConfig.from_mapping({**SERVERS, name: "1"})


def test_a_configuration_survives_pickling():
    """A pickled configuration is equal to the original."""
    settings = {**SERVERS, "default.api.timeout.ms": "5", "request.timeout.ms": "4"}
    config = AdminConfig.from_mapping(settings)
    assert config == pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert 5 == config.default_api_timeout_ms


@pytest.mark.parametrize(
    ("given", "request_timeout"),
    [({}, 30_000), ({"request.timeout.ms": 5_000}, 5_000), ({"request.timeout.ms": 1_001}, 1_001)],
)
def test_a_call_must_have_the_time_of_a_request(given, request_timeout):
    """A given default.api.timeout.ms below request.timeout.ms is an error, as in Java."""
    with pytest.raises(ConfigError) as caught:
        AdminConfig.from_mapping({**SERVERS, "default.api.timeout.ms": 1_000, **given})

    assert (
        "default.api.timeout.ms is 1000, but must be at least request.timeout.ms, which is "
        f"{request_timeout}: lower that as well, or pass a `timeout` to single calls"
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 60_000),
        ({"request.timeout.ms": 60_000}, 60_000),
        ({"request.timeout.ms": 90_000}, 90_000),
        ({"request.timeout.ms": 1_000, "default.api.timeout.ms": 1_000}, 1_000),
    ],
)
def test_the_default_time_of_a_call_grows_with_that_of_a_request(settings, expected):
    """A long request.timeout.ms raises the default of default.api.timeout.ms, as in Java."""
    assert expected == AdminConfig.from_mapping({**SERVERS, **settings}).default_api_timeout_ms
