"""The client of a Schema Registry and the embedded registry, which keeps Confluent's rules."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from spark_kafka_sink.config.registry_settings import RegistrySettings
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.registry.client import SchemaRegistryClient
from spark_kafka_sink.registry.rest_service import RestService
from spark_kafka_sink.registry.schemas import Direction, SchemaReference
from spark_kafka_sink.testing import (
    AnswerStatus,
    CloseConnection,
    Listener,
    SaslSettings,
    TlsSettings,
)


def record(name, /, **fields):
    """Return the text of a record's schema, as the registry itself writes it."""
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    schema = {"type": "record", "name": name, "namespace": "shop", "fields": listed}
    return json.dumps(schema, separators=(",", ":"))


ORDER = record("Order", id="long")


def settings_of(broker, **others):
    named = {name.replace("_", "."): value for name, value in others.items()}
    return RegistrySettings.from_mapping({"url": broker.schema_registry_url, **named})


def client_of(broker, **others):
    """Return a new client, which knows nothing yet and does not wait between retries."""
    return SchemaRegistryClient(settings_of(broker, **others), sleep=lambda _: None)


@pytest.fixture
def broker():
    with DevBroker(schema_registry=True) as broker:
        yield broker


@contextmanager
def refused(code):
    """Check that a block is refused with one of Confluent's codes."""
    with pytest.raises(SchemaRegistryError) as caught:
        yield caught
    assert (code, False) == (caught.value.error_code, caught.value.retriable)


def test_a_registered_schema_is_found_in_every_way(broker):
    """All calls return the same text, and the same id."""
    registered = client_of(broker).register("orders-value", ORDER)
    found = [
        client_of(broker).latest_schema("orders-value"),
        client_of(broker).schema_version("orders-value", 1),
        client_of(broker).look_up("orders-value", ORDER),
    ]
    assert [(registered.id, "orders-value", 1)] * 3 == [
        (each.id, each.subject, each.version) for each in found
    ]
    by_id = client_of(broker).schema_by_id(registered.id, "orders-value")
    assert [ORDER] * 4 == [each.text for each in (*found, by_id)]


def test_a_schema_has_one_id_in_all_subjects(broker):
    """Registering it again changes nothing."""
    client = client_of(broker)
    ids = [client.register(subject, ORDER).id for subject in ("a", "b", "a")]
    assert [ids[0]] * 3 == ids
    assert 1 == client.latest_schema("a").version


def test_what_is_not_there_is_told_apart(broker):
    """Subject, version and schema have codes of their own."""
    client = client_of(broker)
    client.register("a", ORDER)
    with refused(40401):
        client.latest_schema("b")
    with refused(40402):
        client.schema_version("a", 2)
    with refused(40403):
        client.schema_by_id(1000)
    with refused(40403):
        client.look_up("a", '"int"')
    with refused(40401):
        client.look_up("b", ORDER)


def test_another_path_is_not_a_registry(broker):
    """The error asks for the right URL."""
    client = client_of(broker, url=f"{broker.schema_registry_url}/no/registry")
    with refused(None) as caught:
        client.latest_schema("a")
    assert "check that url is the URL of a Schema Registry, with its path" in str(caught.value)


def test_an_incompatible_schema_is_refused(broker):
    """The test says why, and so does the registration."""
    client = client_of(broker)
    client.register("a", ORDER)
    other = record("Order", id="long", name="string")
    tested = client.test_compatibility("a", other)
    assert (False, True) == (tested.is_compatible, "name" in " ".join(tested.messages))
    assert client.test_compatibility("a", ORDER).is_compatible
    assert client.test_compatibility("new", other).is_compatible
    with pytest.raises(SchemaRegistryError, match="compatible") as caught:
        client.register("a", other)
    assert 409 == caught.value.status


def test_a_text_that_is_no_schema_is_refused(broker):
    """The error has the registry's code."""
    with refused(42201) as caught:
        client_of(broker).register("a", "{}")
    assert 422 == caught.value.status


def test_normalized_texts_are_the_same_schema(broker):
    """Without the flag, the order of attributes makes a difference."""
    client = client_of(broker)
    registered = client.register("a", ORDER, normalize=True)
    shuffled = json.dumps(dict(reversed(json.loads(ORDER).items())))
    assert registered.id == client.look_up("a", shuffled, normalize=True).id


def test_references_are_fetched_with_the_schema(broker):
    """They come in the order in which they are needed, by id and by subject."""
    client = client_of(broker)
    item, line = record("Item", sku="string"), record("Line", item="Item")
    client.register("item", item)
    of_item = [SchemaReference("shop.Item", "item", 1)]
    client.register("line", line, of_item)
    of_line = [SchemaReference("shop.Line", "line", 1)]
    order = client.register("orders-value", record("Order", line="Line"), of_line)
    fresh = client_of(broker)
    for schema in (order, fresh.schema_by_id(order.id), fresh.latest_schema("orders-value")):
        assert [item, line] == [each.text for each in schema.dependencies]


def test_contexts_have_ids_of_their_own(broker):
    """The subject says in which context an id is meant."""
    client = client_of(broker)
    first = client.register("a", ORDER)
    other = client.register(":.team:a", '"int"')
    assert first.id == other.id
    fresh = client_of(broker)
    assert '"int"' == fresh.schema_by_id(other.id, ":.team:a").text
    assert ORDER == fresh.schema_by_id(first.id, "a").text


def test_rules_are_refused(broker):
    """A schema whose fields are to be encrypted is not written in clear text."""
    rule = {"name": "pii", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD"}
    body = {"schema": ORDER, "ruleSet": {"domainRules": [rule]}}
    RestService(settings_of(broker)).post("/subjects/a/versions", {}, body)
    schema = client_of(broker).latest_schema("a")
    by_id = client_of(broker).schema_by_id(schema.id)
    for each in (schema, by_id):
        for direction in Direction:
            with pytest.raises(SchemaRegistryError, match="its rule 'pii' \\(WRITEREAD ENCRYPT\\)"):
                each.check_rules(direction)


@pytest.mark.parametrize("fault", [AnswerStatus(503), AnswerStatus(429), CloseConnection()])
def test_transient_faults_are_retried(broker, fault):
    """A call succeeds once they have passed."""
    client = client_of(broker)
    client.register("a", ORDER)
    hook = broker.schema_registry.on("GET /subjects/...", fault, times=3)
    assert 1 == client.latest_schema("a").version
    assert 3 == hook.fired


def test_a_lasting_fault_is_an_error(broker):
    """It may be retried later, and other requests are not affected."""
    client = client_of(broker, max_retries=1)
    hook = broker.schema_registry.on("GET /subjects/...", AnswerStatus(500))
    with pytest.raises(
        SchemaRegistryError, match=r"failed after 2 attempts .* with status 500"
    ) as it:
        client.latest_schema("a")
    assert (True, 2) == (it.value.retriable, hook.fired)
    assert "a" == client.register("a", ORDER).subject


def test_each_schema_is_requested_once(broker):
    """However often it is needed, and whoever asked for it first."""
    registered = client_of(broker).register("a", ORDER)
    hook = broker.schema_registry.on("GET /...", lambda *_: None)
    client = client_of(broker)
    for _ in range(3):
        client.schema_by_id(registered.id, "a")
    assert 1 == hook.seen
    client.latest_schema("a")
    client.schema_version("a", 1)
    client.schema_version("a", 1)
    assert 3 == hook.seen


def test_a_registry_without_tls_is_told_from_one_that_is_away(broker):
    """An https URL for it fails with the first answer, is not retried, and says what to write."""
    url = broker.schema_registry_url.replace("http://", "https://")
    with pytest.raises(SchemaRegistryError) as caught:
        client_of(broker, url=url).latest_schema("a")
    assert "the server answers without TLS" in str(caught.value)
    assert str(caught.value).endswith("if the registry has none, begin url with http://")
    assert (False, None) == (caught.value.retriable, caught.value.status)


def test_a_secured_registry(certificates):
    """Certificate and password are checked on both sides."""
    tls = TlsSettings(
        keystore_type="PEM",
        keystore_location=str(certificates.server.pem_file),
    )
    sasl = SaslSettings(users={"me": "planted"}, mechanisms=("PLAIN",))
    listener = Listener(security_protocol="SASL_SSL", tls=tls, sasl=sasl)
    trust = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": certificates.authority.pem,
    }
    with DevBroker(schema_registry=listener) as broker:
        client = client_of(broker, **trust, **{"basic.auth.user.info": "me:planted"})
        assert 1 == client.register("a", ORDER).id
        with refused(401) as caught:
            client_of(broker, **trust).latest_schema("a")
        assert "check the credentials: basic.auth.user.info or" in str(caught.value)
        with pytest.raises(SchemaRegistryError, match="certificate is not trusted"):
            client_of(broker, basic_auth_user_info="me:planted").latest_schema("a")
