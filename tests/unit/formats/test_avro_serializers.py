"""Single records as Avro, by plug-ins of the clients, with the embedded broker and registry."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
from contextlib import suppress

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    ConfigError,
    PayloadError,
    RecordDeserializationError,
    SchemaError,
    SchemaRegistryError,
    SerializationError,
)
from spark_kafka_sink.formats.avro_serializers import AvroDeserializer, AvroSerializer
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.registry.framing import prefix
from spark_kafka_sink.testing import AnswerStatus, NeverAnswer
from tests.support.consumer.embedded_consuming import PATIENCE, consuming, take
from tests.support.kafka.real_kafka import wait_until
from tests.support.registry.fake_registry import FakeRegistry, by_version

ZERO = TopicPartition("orders", 0)
LATEST = "GET /subjects/{subject}/versions/latest"
CONTEXT = SerializationContext("orders", MessageField.VALUE)


def record(*names, **optional):
    """Return the text of a schema: required longs, and fields with a default."""
    fields = [{"name": name, "type": "long"} for name in names]
    fields += [
        {"name": name, "type": ["null", "string"], "default": default}
        for name, default in optional.items()
    ]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


TEXT = record("id", item=None)
WIDER = record("id", item=None, channel=None)
ORDER = {"id": 1, "item": "book"}


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 1, "others": 1}, schema_registry=True) as broker:
        yield broker


@pytest.fixture
def registry(broker):
    return {"url": broker.schema_registry_url, "max.retries": 0}


@pytest.fixture
def register(registry):
    """Return a serializer that registers a schema."""

    def create(schema=TEXT, **more):
        return AvroSerializer(registry, schema=schema, auto_register_schemas=True, **more)

    return create


def producing(broker, **settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, **named})


def test_dicts_are_written_and_read(broker, registry, register):
    """Key and value have serializers of their own; a tombstone passes by them."""
    serializers = {"key_serializer": register('"string"'), "value_serializer": register()}
    with producing(broker, **serializers) as producer:
        producer.send("orders", ORDER, "alice")
        producer.send("orders", None, "bob")
    deserializers = {
        "key_deserializer": AvroDeserializer(registry),
        "value_deserializer": AvroDeserializer(registry),
    }
    with consuming(broker, **deserializers) as consumer:
        consumer.assign([ZERO])
        records = take(consumer, 2)
    assert [("alice", ORDER), ("bob", None)] == [(each.key, each.value) for each in records]


def test_confluents_serializers_agree(registry, register):
    """Each reads what the other writes, and both write the same bytes."""
    data = register().serialize("orders", [], ORDER)
    with SchemaRegistryClient({"url": registry["url"]}) as client:
        assert data == TheirSerializer(client, TEXT)(ORDER, CONTEXT)
        assert ORDER == TheirDeserializer(client)(data, CONTEXT)
    assert ORDER == AvroDeserializer(registry).deserialize("orders", [], data)


def test_the_schema_may_be_chosen(registry, register):
    """By version, by id, as a text that must be registered, and as the latest one."""
    register().serialize("orders", [], ORDER)
    register(WIDER).serialize("orders", [], ORDER)
    for schema, schema_id in (
        (None, 2),
        ("latest", 2),
        ("version:1", 1),
        ("id:1", 1),
        (TEXT, 1),
    ):
        data = AvroSerializer(registry, schema=schema).serialize("orders", [], ORDER)
        assert prefix(schema_id) == data[:5]
    with pytest.raises(SchemaError, match="valueSchema is not registered under the subject"):
        AvroSerializer(registry, schema=record("other")).serialize("orders", [], {"other": 1})


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ({}, "orders-value"),
        ({"subject": "mine"}, "mine"),
        ({"subject_name_strategy": "RecordNameStrategy"}, "Order"),
        ({"subject_name_strategy": "TopicRecordNameStrategy"}, "orders-Order"),
    ],
)
def test_the_subject_is_named_as_in_spark(broker, register, given, subject):
    """By the topic, explicitly, or by the name of the record in the text."""
    registered = broker.schema_registry.on(f"POST /subjects/{subject}/versions", lambda *_: None)
    register(**given).serialize("orders", [], ORDER)
    assert 1 == registered.seen


def test_the_key_has_a_subject_of_its_own(broker, registry, register):
    """The client says which side it is for."""
    with producing(broker, key_serializer=register('"string"')) as producer:
        producer.send("orders", b"raw", "alice").result(PATIENCE)
    key = AvroSerializer(registry)
    key.configure({}, is_key=True)
    assert prefix(1) == key.serialize("orders", [], "bob")[:5]
    with pytest.raises(SchemaRegistryError, match="orders-value"):
        AvroSerializer(registry).serialize("orders", [], "bob")


@pytest.mark.parametrize("plug_in", [AvroSerializer, AvroDeserializer])
def test_an_object_is_for_one_side(registry, plug_in):
    """Several clients may share it, but a key and a value may not."""
    shared = plug_in(registry)
    for _ in range(2):
        shared.configure({}, is_key=True)
    with pytest.raises(ConfigError, match="create one for keys and one for values"):
        shared.configure({}, is_key=False)


def test_a_topic_is_looked_up_once(broker, registry, register):
    """Writers know the schema of each topic then, readers that of each id."""
    data = register().serialize("orders", [], ORDER)
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    writer = AvroSerializer(registry)
    assert [data, data] == [writer.serialize("orders", [], ORDER) for _ in range(2)]
    assert 1 == latest.seen
    # Another client than that of the writer, which knows the id.
    by_id = broker.schema_registry.on("GET /schemas/ids/{id}", lambda *_: None)
    reader = AvroDeserializer({**registry, "max.retries": 1})
    assert [ORDER, ORDER] == [reader.deserialize("orders", [], data) for _ in range(2)]
    assert (1, 1) == (by_id.seen, latest.seen)


def test_threads_share_a_look_up(broker, registry, register):
    """All of them serialize, and the registry is asked once."""
    register().serialize("orders", [], ORDER)
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    writer = AvroSerializer(registry)
    found = []
    barrier = threading.Barrier(8)

    def serialize():
        barrier.wait(PATIENCE)
        found.append(writer.serialize("orders", [], ORDER))

    threads = [threading.Thread(target=serialize) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (8, 1, 1) == (len(found), len(set(found)), latest.seen)


def test_look_ups_of_different_schemas_do_not_wait_for_each_other(broker, registry, register):
    """While the registry is silent about one id, payloads of another one are read."""
    slow, quick = (register(text).serialize("orders", [], ORDER) for text in (TEXT, WIDER))
    slow_id, quick_id = (int.from_bytes(data[1:5], "big") for data in (slow, quick))
    assert slow_id != quick_id
    asked = broker.schema_registry.on(f"GET /schemas/ids/{slow_id}", NeverAnswer())
    reader = AvroDeserializer({**registry, "max.retries": 0, "request.timeout.ms": 60_000})
    thread = threading.Thread(target=_refused, args=(reader, slow), daemon=True)
    thread.start()
    wait_until(lambda: asked.fired, seconds=PATIENCE, what="the request")
    assert {**ORDER, "channel": None} == reader.deserialize("orders", [], quick)
    assert thread.is_alive()


def _refused(reader, data):
    """Read a payload whose schema cannot be found."""
    with suppress(SchemaRegistryError):
        reader.deserialize("orders", [], data)


def test_payloads_are_read_by_their_own_schemas(registry, register):
    """Without a reader's schema, each dict has the fields of the schema it was written with."""
    payloads = [register(text).serialize("orders", [], ORDER) for text in (TEXT, WIDER)]
    reader = AvroDeserializer(registry)
    wider = {**ORDER, "channel": None}
    assert [ORDER, wider] == [reader.deserialize("orders", [], data) for data in payloads]


@pytest.mark.parametrize(
    ("schema", "expected"), [("latest", WIDER), ("version:1", TEXT), (TEXT, TEXT)]
)
def test_payloads_are_read_by_a_readers_schema(broker, registry, register, schema, expected):
    """Older payloads get defaults, newer ones lose fields; the latest is found once."""
    payloads = [register(text).serialize("orders", [], ORDER) for text in (TEXT, WIDER)]
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    reader = AvroDeserializer(registry, schema=schema)
    wanted = {**ORDER, "channel": None} if expected is WIDER else ORDER
    assert [wanted, wanted] == [reader.deserialize("orders", [], data) for data in payloads]
    assert (schema == "latest") == latest.seen


def test_a_wrong_value_is_named(broker, register):
    """The error of `send` has the path, both types and the id, and not the value."""
    with (
        producing(broker, value_serializer=register()) as producer,
        pytest.raises(SerializationError) as caught,
    ):
        producer.send("orders", {"id": "secret"})
    text = str(caught.value)
    assert "(schema 1, value.id: the value is str, but the schema has long). Pass an int" in text
    assert "secret" not in text
    assert isinstance(caught.value.__cause__, PayloadError)
    assert (1, "value.id") == (caught.value.__cause__.schema_id, caught.value.__cause__.field)


def test_a_schema_that_cannot_be_used_is_not_blamed_on_the_value(broker, registry):
    """The error of `send` says what to do about the schema."""
    with (
        producing(broker, value_serializer=AvroSerializer(registry, schema=TEXT)) as producer,
        pytest.raises(SerializationError, match=r"has no schema for a value: .*: register it, or"),
    ):
        producer.send("orders", ORDER)


def test_a_wrong_value_leaves_the_producer_usable(broker, registry, register):
    """Only that record is not sent, also within a transaction."""
    settings = {"value_serializer": register(), "transactional_id": "x"}
    with producing(broker, **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for order in (ORDER, {"id": None}, {"id": 2}):
            with suppress(SerializationError):
                producer.send("orders", order)
        producer.commit_transaction()
    with consuming(broker, value_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign([ZERO])
        assert [1, 2] == [each.value["id"] for each in take(consumer, 2)]


def pickled(value):
    """Return the copy that another process gets."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 -- its own


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_copies_find_schemas_themselves(broker, registry, register, duplicate):
    """A function that is sent to another process may refer to one; its side is kept."""
    serializer, deserializer = register('"string"'), AvroDeserializer(registry)
    serializer.configure({}, is_key=True)
    data = serializer.serialize("orders", [], "alice")
    look_ups = broker.schema_registry.on("POST /subjects/{subject}", lambda *_: None)
    assert data == duplicate(serializer).serialize("orders", [], "alice")
    assert 1 == look_ups.seen
    assert "alice" == duplicate(deserializer).deserialize("orders", [], data)


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent():
    """That thread may have been looking a schema up, and does not exist there."""
    serializer = AvroSerializer(schema='"string"')
    with serializer._lock:
        child = os.fork()
        if not child:
            os._exit(0 if serializer._lock.acquire(blocking=False) else 1)
        assert (child, 0) == os.waitpid(child, 0)


def test_a_malformed_record_is_named_and_can_be_skipped(broker, registry, register):
    """The error of `poll` says where it is and why; the position stays until a seek."""
    with producing(broker) as producer:
        producer.send("orders", b"no Avro")
    with producing(broker, value_serializer=register()) as producer:
        producer.send("orders", ORDER)
    with consuming(broker, value_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign([ZERO])
        for _ in range(2):
            with pytest.raises(RecordDeserializationError) as caught:
                take(consumer, 1)
            assert 0 == consumer.position(ZERO)
        assert "value: it begins with the byte 110" in str(caught.value)
        assert b"no Avro" == caught.value.record.value
        consumer.seek(ZERO, 1)
        assert [ORDER] == [each.value for each in take(consumer, 1)]


def test_a_failed_look_up_is_not_kept(broker, registry, register):
    """The record can be sent, or read, once the registry answers: it is not one to skip."""
    with producing(broker, value_serializer=register()) as producer:
        broker.schema_registry.on("POST /subjects/...", AnswerStatus(503), times=1, expect=True)
        with pytest.raises(SchemaRegistryError, match=r"topic 'orders': there is no .*503"):
            producer.send("orders", ORDER)
        producer.send("orders", ORDER).result(PATIENCE)
    reader = AvroDeserializer({**registry, "request.timeout.ms": 29_000})
    with consuming(broker, value_deserializer=reader) as consumer:
        consumer.assign([ZERO])
        broker.schema_registry.on("GET /schemas/...", AnswerStatus(503), times=1, expect=True)
        with pytest.raises(SchemaRegistryError, match=r"partition 0, offset 0: .*503") as caught:
            take(consumer, 1)
        assert (503, 0) == (caught.value.status, consumer.position(ZERO))
        assert [ORDER] == [each.value for each in take(consumer, 1)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "it has 0 bytes"),
        (b"\x01" + bytes(16), "it seems to have a GUID"),
        (b"\0\xff\xff\xff\xff\x02", "it has the id -1"),
        (prefix(99) + b"\x02", "the registry has no schema with its id"),
    ],
)
def test_payloads_without_a_known_schema_are_refused(registry, data, expected):
    """The error says what stands in place of an id."""
    with pytest.raises(PayloadError, match=expected):
        AvroDeserializer(registry).deserialize("orders", [], data)


def test_a_payload_whose_schema_is_of_no_use_is_refused(broker, registry):
    """It is the payload that is refused, so that a consumer can pass by it."""
    tree = record("x").replace('"long"', '["null", "Order"]')
    with SchemaRegistryClient({"url": registry["url"]}) as client:
        schema_id = client.register_schema("trees", Schema(tree, "AVRO"))
    with pytest.raises(PayloadError, match="its schema cannot be read") as caught:
        AvroDeserializer(registry).deserialize("orders", [], prefix(schema_id) + b"\0")
    assert schema_id == caught.value.schema_id


def test_a_schema_in_a_header_is_refused(registry):
    """The payload has another framing then, and might decode by a false schema."""
    headers = [("__value_schema_id", b"1")]
    with pytest.raises(PayloadError, match="__value_schema_id"):
        AvroDeserializer(registry).deserialize("orders", headers, prefix(1))


def test_framed_bytes_have_no_length(registry, register):
    """As Confluent's serializers write and read them."""
    data = register('"bytes"').serialize("orders", [], b"ab")
    assert prefix(1) + b"ab" == data
    assert b"ab" == AvroDeserializer(registry).deserialize("orders", [], data)
    assert b"" == AvroDeserializer(registry).deserialize("orders", [], prefix(1))


def test_a_registry_is_not_needed():
    """Payloads have no framing then, and the schema is a text."""
    data = AvroSerializer(schema=TEXT).serialize("orders", [], ORDER)
    assert ORDER == AvroDeserializer(schema=TEXT).deserialize("orders", [], data)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_payload_may_be_any_bytes(kind):
    """A consumer passes bytes; other callers may have a part of a buffer."""
    assert "a" == AvroDeserializer(schema='"string"').deserialize("orders", [], kind(b"\x02a"))


@pytest.mark.parametrize(
    ("given", "query", "schema_id"),
    [({}, "", 7), ({}, "", 0), ({"normalize_schemas": True}, "?normalize=true", 7)],
)
def test_the_registry_may_normalize_the_text(given, query, schema_id):
    """It is asked to when the text is looked up; any id is before the value, also 0."""
    with FakeRegistry() as fake:
        fake.values[f"/subjects/orders-value{query}"] = by_version(schema_id, 1, TEXT)
        writer = AvroSerializer({"url": fake.url}, schema=TEXT, **given)
        assert prefix(schema_id) == writer.serialize("orders", [], ORDER)[:5]


def test_framing_may_be_left_out(registry, register):
    """The readers' schema is that of all payloads then."""
    data = register(framing="none").serialize("orders", [], ORDER)
    assert b"\x02" == data[:1]
    reader = AvroDeserializer(registry, schema="latest", framing="none")
    assert ORDER == reader.deserialize("orders", [], data)


@pytest.mark.parametrize(
    ("plug_in", "given", "expected"),
    [
        (AvroSerializer, {}, "valueFormat=avro needs a schema: set schema.registry.url"),
        (AvroDeserializer, {}, "valueFormat=avro needs a schema: set schema.registry.url"),
        (
            AvroSerializer,
            {"schema_registry": {"url": "http://a:1"}, "auto_register_schemas": True},
            "autoRegisterSchemas=true needs valueSchema as the text of a schema",
        ),
        (
            AvroSerializer,
            {"schema_registry": {"urll": "http://a:1"}},
            "unknown option 'schema.registry.urll'; did you mean 'schema.registry.url'",
        ),
        (
            AvroSerializer,
            {"schema_registry": {"url": "http://a:1"}, "framing": "glue"},
            "valueFraming must be one of: confluent, none; glue is not supported yet",
        ),
        (
            AvroDeserializer,
            {"schema_registry": {"url": "http://a:1"}, "framing": "none"},
            "valueFraming=none needs valueSchema: such payloads do not name their schemas",
        ),
        (
            AvroDeserializer,
            {
                "schema_registry": {"url": "http://a:1"},
                "subject_name_strategy": "TopicNameStrategy",
            },
            "valueSubjectNameStrategy has no effect without valueSchema",
        ),
        (
            AvroDeserializer,
            {"schema": '"long"', "framing": "confluent"},
            "valueFraming=confluent needs schema.registry.url",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(plug_in, given, expected):
    """Before anything is connected, with the sentences of Spark's options."""
    with pytest.raises(ConfigError) as caught:
        plug_in(**given)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (({}, TEXT), "takes only the settings of the registry by position: name the other"),
        ((TEXT,), "pass the text of a schema by its name, as in"),
    ],
)
@pytest.mark.parametrize("plug_in", [AvroSerializer, AvroDeserializer])
def test_arguments_as_of_confluents_classes_are_refused(plug_in, given, expected):
    """Their schema comes second; the error shows how it is passed here."""
    with pytest.raises(TypeError) as caught:
        plug_in(*given)
    assert expected in str(caught.value)
    assert f"{plug_in.__name__}(" in str(caught.value)


def test_a_key_is_checked_with_its_own_names(broker, registry):
    """The client's error names the setting and the option."""
    with pytest.raises(TypeError, match="schema_registry must be a mapping"):
        AvroSerializer("http://localhost:8081")
    serializer = AvroSerializer(registry)
    serializer.configure({}, is_key=False)
    with pytest.raises(ConfigError, match=r"key\.serializer.*create one for keys and one for"):
        producing(broker, key_serializer=serializer)


def test_an_iteration_reads_dicts_too(broker, registry, register):
    """As `poll` does."""
    with producing(broker, value_serializer=register()) as producer:
        producer.send("orders", ORDER)
    with consuming(broker, value_deserializer=AvroDeserializer(registry)) as consumer:
        consumer.assign([ZERO])
        assert ORDER == next(iter(consumer)).value
