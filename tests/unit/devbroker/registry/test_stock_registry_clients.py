"""The embedded Schema Registry with the client and the serializers of confluent-kafka."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink.devbroker import DevBroker, Listener, SaslSettings
from spark_kafka_sink.testing import AnswerStatus
from tests.support.devbroker.registry_calls import record
from tests.support.security.secure_listeners import PASSWORD, USER

V1 = record("id:long")
V2 = record("id:long", 'note:string=""')
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="module")
def running():
    """Yield a broker with a registry, which the tests of this module share."""
    with DevBroker(schema_registry=True) as broker:
        yield broker


@pytest.fixture
def client(running):
    """Yield a client of the registry."""
    with SchemaRegistryClient({"url": running.schema_registry_url}) as client:
        yield client


def refused(call, *arguments):
    """Return the status and the error code with which a call fails."""
    with pytest.raises(SchemaRegistryError) as error:
        call(*arguments)
    return error.value.http_status_code, error.value.error_code


def test_a_client_registers_and_finds_schemas(client):
    """Registration, look-up, versions and ids agree with what the client expects."""
    schema_id = client.register_schema("a", Schema(V1, "AVRO"))
    assert schema_id == client.register_schema("a", Schema(V1, "AVRO"))
    assert schema_id == client.lookup_schema("a", Schema(V1, "AVRO")).schema_id
    assert "AVRO" == client.get_schema(schema_id).schema_type
    assert (1, schema_id) == (
        client.get_latest_version("a").version,
        client.get_latest_version("a").schema_id,
    )
    assert schema_id == client.get_version("a", 1).schema_id
    assert [1] == client.get_versions("a")
    assert "a" in client.get_subjects()
    assert ["AVRO"] == client.get_schema_types()


def test_a_client_understands_refusals(client):
    """Errors have the status and the code that the client turns into exceptions."""
    client.register_schema("b", Schema(V1, "AVRO"))
    assert (404, 40403) == refused(client.get_schema, 1_000_000)
    assert (404, 40401) == refused(client.get_versions, "none")
    assert (404, 40402) == refused(client.get_version, "b", 7)
    assert (404, 40403) == refused(client.lookup_schema, "b", Schema(V2, "AVRO"))
    assert (422, 42201) == refused(client.register_schema, "b", Schema("{}", "AVRO"))
    incompatible = Schema(record("id:long", "price:double"), "AVRO")
    assert (409, 40901) == refused(client.register_schema, "b", incompatible)


def test_a_client_checks_and_configures_compatibility(client):
    """Levels and checks of compatibility work through the client."""
    client.register_schema("c", Schema(V1, "AVRO"))
    assert client.test_compatibility("c", Schema(V2, "AVRO"))
    incompatible = Schema(record("id:long", "price:double"), "AVRO")
    assert not client.test_compatibility("c", incompatible)
    assert not client.test_compatibility_all_versions("c", incompatible)
    assert "BACKWARD" == client.get_compatibility()
    client.set_compatibility("c", "NONE")
    assert "NONE" == client.get_config("c").compatibility_level
    client.set_config(
        "c", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL, compatibility_group="major")
    )
    assert "major" == client.get_config("c").compatibility_group


def test_a_client_deletes(client):
    """Versions and subjects can be deleted softly, and then for good."""
    client.register_schema("d", Schema(V1, "AVRO"))
    client.register_schema("d", Schema(V2, "AVRO"))
    assert 1 == client.delete_version("d", 1)
    assert [2] == client.get_versions("d")
    assert [2] == client.delete_subject("d")
    assert [1, 2] == client.delete_subject("d", permanent=True)
    assert "d" not in client.get_subjects(deleted=True)


def test_a_client_follows_references(client):
    """A schema with a reference is registered, and found from the one that it refers to."""
    customer = Schema(record("name:string", name="shop.Customer"), "AVRO")
    client.register_schema("customer", customer)
    order = Schema(
        record("customer:shop.Customer", name="shop.Order"),
        "AVRO",
        [SchemaReference("shop.Customer", "customer", 1)],
    )
    schema_id = client.register_schema("order", order)
    assert [schema_id] == client.get_referenced_by("customer", 1)
    assert "customer" == client.get_schema(schema_id).references[0].subject


def test_serializers_frame_payloads_with_ids(client, running):
    """A value goes through serializer, broker and deserializer, with the schema's id before it."""
    serialize = AvroSerializer(client, V1)
    payload = serialize({"id": 7}, VALUE)
    schema_id = client.get_latest_version("orders-value").schema_id
    assert b"\0" + schema_id.to_bytes(4, "big") + b"\x0e" == payload
    with SchemaRegistryClient({"url": running.schema_registry_url}) as other:
        assert {"id": 7} == AvroDeserializer(other)(payload, VALUE)


def test_a_deserializer_resolves_schemas(client):
    """A reader's schema adds the default of a field that the writer lacks."""
    payload = AvroSerializer(client, V1)({"id": 7}, VALUE)
    reader = AvroDeserializer(client, V2)
    assert {"id": 7, "note": ""} == reader(payload, VALUE)


def test_a_client_tries_again(client, running):
    """A client repeats a request that got a status of an unavailable registry."""
    hook = running.schema_registry.on("GET /schemas/types", AnswerStatus(503), times=1)
    assert ["AVRO"] == client.get_schema_types()
    assert 1 == hook.fired


def test_a_client_authenticates():
    """The credentials of the client's settings are accepted, and others refused."""
    listener = Listener(
        security_protocol="SASL_PLAINTEXT",
        sasl=SaslSettings(
            users={USER: PASSWORD}, mechanisms=("PLAIN",), failed_authentication_delay_ms=0
        ),
    )
    with DevBroker(schema_registry=listener) as broker:
        settings = {"url": broker.schema_registry_url}
        user_info = {"basic.auth.user.info": f"{USER}:{PASSWORD}"}
        with SchemaRegistryClient({**settings, **user_info}) as client:
            assert [] == client.get_subjects()
        with SchemaRegistryClient({**settings, "basic.auth.user.info": f"{USER}:no"}) as client:
            assert (401, 401) == refused(client.get_subjects)


def test_a_client_may_work_in_a_context(running):
    """A URL that ends with a context gives it to all names."""
    url = f"{running.schema_registry_url}/contexts/:.other:"
    with SchemaRegistryClient({"url": url}) as client:
        assert 1 == client.register_schema("e", Schema(V1, "AVRO"))
        assert [":.other:e"] == client.get_subjects()
        assert V1.replace(" ", "") == client.get_schema(1, ":.other:e").schema_str
