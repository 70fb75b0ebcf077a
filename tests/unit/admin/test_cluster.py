"""Settings, access control lists and the cluster itself, in the public admin client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AdminError,
    AlterConfigOp,
    AlterConfigOpType,
    BrokerError,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    KafkaError,
    ResourceType,
)
from spark_kafka_sink.devbroker.net.faults import AlterResponse
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.admin.admin_errors import failed
from tests.support.admin.late_calls import end_at_back_off

DATA = ConfigResource(ConfigResourceType.TOPIC, "data")


# --- settings


def test_settings_are_changed_one_by_one(admin):
    """Set, append and delete change what they name and nothing else."""
    admin.incremental_alter_configs(
        {
            DATA: [
                AlterConfigOp("retention.ms", "1000"),
                AlterConfigOp("cleanup.policy", "compact", AlterConfigOpType.APPEND),
            ]
        }
    )
    changed = admin.describe_configs([DATA], include_synonyms=True)[DATA]
    admin.incremental_alter_configs(
        {DATA: [AlterConfigOp("retention.ms", None, AlterConfigOpType.DELETE)]}
    )

    assert ("1000", False) == (changed["retention.ms"].value, changed["retention.ms"].is_default)
    assert "delete,compact" == changed["cleanup.policy"].value
    assert "retention.ms" == changed["retention.ms"].synonyms[0].name
    assert admin.describe_configs([DATA])[DATA]["retention.ms"].is_default


def test_a_wrong_setting_changes_nothing(admin):
    """An unknown setting is an error of its topic; with `validate_only` nothing changes at all."""
    changes = {DATA: [AlterConfigOp("retention.ms", "1000")]}
    admin.incremental_alter_configs(changes, validate_only=True)
    with pytest.raises(AdminError) as caught:
        admin.incremental_alter_configs({DATA: [*changes[DATA], AlterConfigOp("retention", "1")]})

    assert {DATA: "INVALID_CONFIG"} == failed(caught)
    assert admin.describe_configs([DATA])[DATA]["retention.ms"].is_default


def test_settings_of_a_broker_come_from_it(admin, monkeypatch):
    """A broker is asked for its own settings; one that is not running is an error."""
    running = ConfigResource(ConfigResourceType.BROKER, "1")
    absent = ConfigResource(ConfigResourceType.BROKER, "7")

    assert admin.describe_configs([running, DATA])[running]
    end_at_back_off(monkeypatch)
    with pytest.raises(KafkaError, match="broker '7' is not running"):
        admin.describe_configs([absent])


# --- the cluster


def test_the_cluster_is_described(broker, admin):
    """The description has the brokers with their addresses, and the rights if requested."""
    cluster = admin.describe_cluster(include_authorized_operations=True)

    assert [broker.bootstrap_servers] == [f"{it.host}:{it.port}" for it in cluster.nodes]
    assert AclOperation.ALTER_CONFIGS in cluster.authorized_operations
    assert None is admin.describe_cluster().authorized_operations


# --- access control lists


def test_a_cluster_without_an_authorizer_has_no_acls(admin):
    """All three calls are refused, with what the broker said."""
    acl = AclBinding(
        resource_type=ResourceType.TOPIC,
        name="data",
        principal="User:alice",
        operation=AclOperation.READ,
    )
    with pytest.raises(BrokerError, match="No Authorizer is configured") as refused:
        admin.describe_acls()
    assert "SECURITY_DISABLED" == refused.value.name
    for call, item in ((admin.create_acls, acl), (admin.delete_acls, AclBindingFilter())):
        with pytest.raises(AdminError) as caught:
            call([item])
        assert {item: "SECURITY_DISABLED"} == failed(caught)


def test_an_operation_of_a_newer_broker_is_unknown():
    """A number that this version does not know is UNKNOWN and not an error."""
    assert AclOperation.UNKNOWN is AclOperation(99)
    assert ConfigSource.UNKNOWN is ConfigSource(99)


@pytest.mark.parametrize(("number", "name"), [(-1, None), (0, None), (1, "BOOLEAN"), (10, None)])
def test_a_setting_of_an_unknown_type_has_no_type(broker, admin, number, name):
    """Types are numbers in responses, and a newer broker may have others."""

    def with_type(response):
        results = tuple(
            replace(
                result,
                configs=tuple(replace(config, config_type=number) for config in result.configs),
            )
            for result in response.results
        )
        return replace(response, results=results)

    broker.on(ApiKey.DESCRIBE_CONFIGS, AlterResponse(with_type))
    assert name == admin.describe_configs([DATA])[DATA]["retention.ms"].type_name
