"""The settings of the admin client."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.config.admin_config import AdminConfig
from spark_kafka_sink.errors import ConfigError

SERVERS = {"bootstrap.servers": "127.0.0.1:9"}


def test_describing_a_topic_does_not_create_it():
    """What is no setting has the value that Java's admin client sends."""
    assert AdminConfig.from_mapping(SERVERS).allow_auto_create_topics is False


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
