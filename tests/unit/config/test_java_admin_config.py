"""Settings compared with Kafka's own Java admin client; see golden/ConfigGoldens.java."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from spark_kafka_sink.config.admin.admin_config import AdminConfig
from spark_kafka_sink.config.admin.admin_settings import ADMIN_CONFIG_DEF, REFUSED_ADMIN
from spark_kafka_sink.config.config_def import REQUIRED
from spark_kafka_sink.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "java_admin_config.json").read_text())
KEYS = {key.name: key for key in ADMIN_CONFIG_DEF}
SERVERS = {"bootstrap.servers": "127.0.0.1:9"}

#: Java's defaults where ours differ.
OTHER_DEFAULTS = {
    # Java's may be empty if there are bootstrap.controllers.
    "bootstrap.servers": "",
    # A fixed size keeps the operating system from letting the buffer grow.
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "131072",
    "client.id": "",
}
#: Values that Java accepts and we reject, and why.
STRICTER = {
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
        AdminConfig.from_mapping({**SERVERS, **settings})
    except ConfigError:
        return False
    return True


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


@pytest.mark.parametrize("name", sorted(KEYS))
def test_types_importances_and_defaults_equal_javas(name):
    """Types, importances and defaults equal Java's, with the listed exceptions."""
    java, key = GOLDEN["settings"][name], KEYS[name]
    assert (java["type"], java["importance"]) == (key.type.value, key.importance.value)
    default = OTHER_DEFAULTS.get(name, key.default_text())
    assert (java["default"] or "") == (default or "")


def test_only_the_bootstrap_servers_are_required():
    """All other settings have defaults."""
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
    config = AdminConfig.from_mapping({**SERVERS, "default.api.timeout.ms": "5"})
    assert config == pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert 5 == config.default_api_timeout_ms
