"""What the configurations of all clients have in common."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

from spark_kafka_sink.config.client_config import REFUSED_CLIENT, ClientConfig
from spark_kafka_sink.config.config_def import ConfigDef
from spark_kafka_sink.config.consumer_config import (
    CONSUMER_CONFIG_DEF,
    REFUSED_CONSUMER,
    ConsumerConfig,
)
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, REFUSED, ProducerConfig

TABLES = {
    ProducerConfig: (PRODUCER_CONFIG_DEF, REFUSED),
    ConsumerConfig: (CONSUMER_CONFIG_DEF, REFUSED_CONSUMER),
}
KINDS = pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)


def test_the_base_has_no_settings_of_its_own():
    """Only the configuration of a producer or a consumer can be made."""
    with pytest.raises(TypeError, match="abstract"):
        ClientConfig(**dict.fromkeys(each.name for each in fields(ClientConfig)))


@KINDS
def test_each_client_has_the_settings_of_all_clients(kind):
    """The settings of all clients are in each table, with the same types, defaults and texts."""
    supported, refused = TABLES[kind]
    shared = ConfigDef.of(ClientConfig)
    assert list(shared) == [supported[name] for name in shared.names]
    assert REFUSED_CLIENT.items() <= refused.items()


@KINDS
def test_the_repr_shows_the_settings_in_the_order_of_their_table(kind):
    """The repr names the class, and lists its settings in the order of the documentation."""
    config = kind.from_mapping({"bootstrap.servers": "a:1"})
    shown = repr(config)
    assert shown.startswith(f"{kind.__name__}(bootstrap_servers=(('a', 1),), ")
    names = [name.replace(".", "_") for name in TABLES[kind][0].names]
    places = [shown.index(f"{name}=") for name in names if hasattr(config, name)]
    assert sorted(places) == places


@KINDS
def test_a_pickled_configuration_keeps_its_kind(kind):
    """Pickling keeps the kind of the configuration, with and without references."""
    plain = kind.from_mapping({"bootstrap.servers": "a:1"})
    assert plain == pickle.loads(pickle.dumps(plain))  # noqa: S301 -- our own bytes


@KINDS
def test_a_pickled_reference_is_resolved_again(kind, monkeypatch):
    """The value of a reference is not pickled, and is looked up where it is unpickled."""
    monkeypatch.setenv("KEY_PASSWORD", "hunter2")
    config = kind.from_mapping(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SSL",
            "ssl.key.password": "${env:KEY_PASSWORD}",
        },
        prefix="kafka.",
    )
    data = pickle.dumps(config)
    assert b"hunter2" not in data
    monkeypatch.setenv("KEY_PASSWORD", "hunter3")
    restored = pickle.loads(data)  # noqa: S301 -- our own bytes
    assert kind is type(restored)
    assert "hunter3" == restored.security.ssl_key_password.value
