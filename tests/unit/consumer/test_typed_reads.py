"""Keys and values as Avro in `read_arrow` and `poll_arrow`, from the embedded broker."""

from __future__ import annotations

import io
import time

import fastavro
import pyarrow as pa
import pytest

from spark_kafka_sink.consumer import payload_columns
from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    ConfigError,
    IllegalStateError,
    PayloadError,
    SchemaError,
    SchemaRegistryError,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.testing import AnswerStatus
from tests.support.consumer.embedded_consuming import PATIENCE, consuming

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)
TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])
ROWS = [{"id": number, "item": f"item {number}"} for number in range(4)]
NOT_AVRO = b"no Avro"
LATEST = "GET /subjects/{subject}/versions/latest"


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 2, "others": 1}, schema_registry=True) as broker:
        yield broker


@pytest.fixture
def avro(broker):
    """Return the arguments of a call with Avro."""
    registry = {"url": broker.schema_registry_url, "max.retries": 0}
    return {"value_format": "avro", "schema_registry": registry}


def send(broker, rows, avro, *, kind=TYPE, topic="orders", partition=0):
    """Write rows as Avro, and register their schema."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        count = len(rows)
        table = pa.table({"value": pa.array(rows, kind), "partition": [partition] * count})
        options = {"autoRegisterSchemas": True}
        producer.send_arrow(table, topic=topic, **avro, format_options=options).result(PATIENCE)


def send_raw(broker, *values, partition=0, key=None, headers=None):
    """Write values as they are."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for value in values:
            producer.send("orders", value, key, headers, partition)


def values_of(table):
    return table.column("value").to_pylist()


def polled(consumer, count, **avro):
    """Poll until there are so many values, and return them."""
    values, until = [], time.monotonic() + PATIENCE
    while len(values) < count:
        assert time.monotonic() < until, values
        values += values_of(consumer.poll_arrow(0.1, **avro))
    return values


# --- read_arrow


def test_a_topic_is_read_by_the_latest_schema(broker, avro):
    """The column has the type of the schema; a tombstone is null, and all other columns remain."""
    send(broker, [*ROWS, None], avro)
    reader = read_arrow(broker.bootstrap_servers, "orders", **avro)
    assert pa.field("value", TYPE) == reader.schema.field("value")
    table = reader.read_all()
    assert [*ROWS, None] == values_of(table)
    assert ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"] == (
        table.column_names
    )


def test_columns_are_read_in_the_given_order(broker, avro):
    """Those that are not selected are not needed, and need no schema either."""
    send(broker, ROWS, avro)
    table = read_arrow(broker.bootstrap_servers, "orders", columns=["value", "offset"], **avro)
    assert ["value", "offset"] == table.schema.names
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    only = read_arrow(broker.bootstrap_servers, "orders", columns=["offset"], **avro).read_all()
    assert ([{"offset": offset} for offset in range(4)], 0) == (only.to_pylist(), latest.seen)


def test_both_sides_may_have_formats_without_a_registry(broker):
    """Each payload is decoded by the text of a schema."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, "string", "a book")
    send_raw(broker, buffer.getvalue(), key=b"\x02")
    table = read_arrow(
        broker.bootstrap_servers,
        "orders",
        columns=["key", "value"],
        key_format="avro",
        key_schema='"long"',
        value_format="avro",
        value_schema='"string"',
    ).read_all()
    assert [{"key": 1, "value": "a book"}] == table.to_pylist()


def test_older_payloads_are_read_by_the_latest_schema(broker, avro):
    """Fields that they lack have their defaults; the schema is looked up once, by the call."""
    send(broker, ROWS[:1], avro)
    wider = pa.struct([*TYPE, ("channel", pa.string())])
    send(broker, [{**ROWS[1], "channel": "web"}], avro, kind=wider, partition=1)
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    reader = read_arrow(broker.bootstrap_servers, "orders", **avro)
    assert 1 == latest.seen
    expected = [{**ROWS[0], "channel": None}, {**ROWS[1], "channel": "web"}]
    assert (expected, 1) == (values_of(reader.read_all()), latest.seen)


def test_a_malformed_payload_ends_the_read(broker, avro):
    """The error says where the record is, and what to do."""
    send(broker, ROWS, avro)
    send_raw(broker, NOT_AVRO)
    reader = read_arrow(broker.bootstrap_servers, "orders", **avro)
    with pytest.raises(PayloadError) as caught:
        reader.read_all()
    assert ("orders", 0, 4) == (caught.value.topic, caught.value.partition, caught.value.offset)
    assert "begins with the byte 110" in caught.value.cause
    assert "onDecodeError=null" in caught.value.advice


def test_malformed_payloads_become_null(broker, avro):
    """Three columns say why, also if only some are selected; they have places of one's choice."""
    send(broker, ROWS[:1], avro)
    send_raw(broker, NOT_AVRO, key=b"k")
    given = {**avro, "format_options": {"onDecodeError": "null"}}
    reader = read_arrow(
        broker.bootstrap_servers, "orders", columns=["decodeError", "value"], **given
    )
    assert ["decodeError", "value", "rawKey", "rawValue"] == reader.schema.names
    good, bad = reader.read_all().to_pylist()
    assert {"decodeError": None, "value": ROWS[0], "rawKey": None, "rawValue": None} == good
    assert (None, b"k", NOT_AVRO) == (bad["value"], bad["rawKey"], bad["rawValue"])
    assert bad["decodeError"].startswith("value: it begins with the byte 110")
    columns = ["value", "rawKey", "rawKey"]
    with pytest.raises(SchemaError, match="'rawKey' is selected twice"):
        read_arrow(broker.bootstrap_servers, "orders", columns=columns, **given)


def test_topics_with_other_schemas_are_refused(broker, avro):
    """One schema is needed for all of them."""
    send(broker, ROWS, avro)
    send(broker, ["text"], avro, kind=pa.string(), topic="others")
    with pytest.raises(SchemaError, match="the values of the topics have different schemas"):
        read_arrow(broker.bootstrap_servers, ["orders", "others"], **avro)


def test_wrong_arguments_of_a_read_are_refused_before_anything_is_connected():
    """No registry and no broker is asked."""
    with pytest.raises(ConfigError, match="valueFormat=avro needs a schema"):
        read_arrow("localhost:1", "orders", value_format="avro")
    with pytest.raises(TypeError, match="value_format must be a str, not bool"):
        read_arrow("localhost:1", "orders", value_format=True)


def test_a_registry_that_fails_is_named(broker, avro):
    """The call itself raises."""
    broker.schema_registry.on(LATEST, AnswerStatus(503), expect=True)
    with pytest.raises(SchemaRegistryError, match="503"):
        read_arrow(broker.bootstrap_servers, "orders", **avro)


# --- poll_arrow


def test_a_poll_looks_the_schema_up_once(broker, avro):
    """Later polls keep it, although the subject has a newer version; a new consumer has that."""
    send(broker, ROWS[:2], avro)
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:2] == polled(consumer, 2, **avro)
        wider = pa.struct([*TYPE, ("channel", pa.string())])
        send(broker, [{**ROWS[2], "channel": "web"}], avro, kind=wider)
        assert ROWS[2:3] == polled(consumer, 1, **avro)
        assert 1 == latest.seen
        consumer.assign([TopicPartition("others", 0)])
        with pytest.raises(SchemaRegistryError):
            consumer.poll_arrow(0, **avro)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert "web" == polled(consumer, 3, **avro)[2]["channel"]


def test_a_subscription_names_the_subject(broker, avro):
    """A pattern does not: then the schema must be given."""
    send(broker, ROWS, avro)
    with consuming(broker, group_id="g") as consumer:
        with pytest.raises(IllegalStateError, match="the consumer reads nothing"):
            consumer.poll_arrow(0, **avro)
        consumer.subscribe("orders")
        assert ROWS == polled(consumer, 4, **avro)
        consumer.unsubscribe()
        consumer.subscribe(pattern="ord.*")
        with pytest.raises(ConfigError, match="the subject of values depends on the topic"):
            consumer.poll_arrow(0, **avro)
        assert 0 == consumer.poll_arrow(0, **avro, value_schema="id:1").num_rows


def test_a_malformed_payload_is_raised_after_the_records_before_it(broker, avro):
    """The position is at the record, again and again, until the caller seeks past it."""
    send(broker, ROWS[:2], avro)
    send_raw(broker, NOT_AVRO)
    send(broker, ROWS[2:], avro)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:2] == polled(consumer, 2, **avro)
        for _ in range(3):
            assert 2 == consumer.position(ZERO)
            with pytest.raises(PayloadError) as caught:
                polled(consumer, 1, **avro)
            assert (0, 2) == (caught.value.partition, caught.value.offset)
        consumer.seek(ZERO, caught.value.offset + 1)
        assert ROWS[2:] == polled(consumer, 2, **avro)


@pytest.mark.parametrize("method", ["poll", "poll_arrow"])
def test_a_malformed_payload_can_be_read_as_bytes(broker, avro, method):
    """A poll without formats does not raise what one with formats has postponed."""
    send(broker, ROWS[:1], avro)
    send_raw(broker, NOT_AVRO)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:1] == polled(consumer, 1, **avro)
        until = time.monotonic() + PATIENCE
        records = []
        while not records:
            assert time.monotonic() < until
            if method == "poll":
                records = [record.value for record in consumer.poll(0.1).records()]
            else:
                records = values_of(consumer.poll_arrow(0.1))
        assert [NOT_AVRO] == records


def test_a_malformed_payload_does_not_hide_behind_another_partition(broker, avro):
    """Although that one always has records to return, the error is raised."""
    send_raw(broker, NOT_AVRO, partition=0)
    with consuming(broker) as consumer:
        consumer.assign([ZERO, ONE])
        send(broker, ROWS, avro, partition=1)

        def poll_forever():
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                consumer.poll_arrow(0.1, **avro)
                consumer.seek(ONE, 0)

        with pytest.raises(PayloadError):
            poll_forever()
        assert 0 == consumer.position(ZERO)


def test_a_poll_returns_records_however_large_they_are(broker, avro, monkeypatch):
    """Payloads that take all the memory of a poll leave room for a value."""
    send(broker, ROWS, avro)
    send(broker, ROWS, avro, partition=1)
    with consuming(broker) as consumer:
        monkeypatch.setattr(consumer._polls._decoders, "poll_bytes", 1)
        monkeypatch.setattr(consumer._polls._decoders, "_max_rows", 3)
        consumer.assign([ZERO, ONE])
        got = {0: [], 1: []}
        while sum(map(len, got.values())) < 8:
            table = consumer.poll_arrow(PATIENCE, **avro)
            assert 1 <= table.num_rows <= 3
            for row in table.to_pylist():
                got[row["partition"]].append(row["value"])
    assert {0: ROWS, 1: ROWS} == got


def test_a_read_that_failed_asks_for_its_schema_again(broker, avro):
    """An id that the registry did not have may be there when the caller tries again."""
    send(broker, ROWS[:1], avro)
    send_raw(broker, b"\0\0\0\0\x63\x02")
    asked = broker.schema_registry.on("GET /schemas/ids/99", lambda *_: None)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:1] == polled(consumer, 1, **avro)
        for count in (1, 2):
            with pytest.raises(PayloadError, match="no schema with its id"):
                polled(consumer, 1, **avro)
            consumer.seek(ZERO, 1)
            assert count == asked.seen


def test_the_first_of_two_malformed_payloads_counts(broker, avro):
    """Whichever side it is on: the other side may have been decoded further."""
    send_raw(broker, b"\x02", b"\x04", key=b"\x02")
    send_raw(broker, NOT_AVRO, key=b"\x02")
    send_raw(broker, b"\x02", key=b"not a long, but text")
    given = {
        "key_format": "avro",
        "key_schema": '"long"',
        "value_format": "avro",
        "value_schema": '"long"',
    }
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert [1, 2] == polled(consumer, 2, **given)
        for offset in (2, 3):
            with pytest.raises(PayloadError) as caught:
                polled(consumer, 1, **given)
            assert offset == caught.value.offset
            consumer.seek(ZERO, offset + 1)


def test_a_record_whose_header_names_its_schema_is_refused_at_its_offset(broker, avro):
    """As any malformed payload; those before it are returned."""
    send(broker, ROWS[:1], avro)
    send_raw(broker, b"\x02", headers=[("__value_schema_id", b"\x01" + bytes(16))])
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:1] == polled(consumer, 1, **avro)
        with pytest.raises(PayloadError, match="__value_schema_id"):
            polled(consumer, 1, **avro)
        assert 1 == consumer.position(ZERO)


def test_records_come_again_after_an_error_of_the_registry(broker, avro):
    """A schema that a payload names may not be there for a while."""
    send(broker, ROWS[:1], avro)
    wider = pa.struct([*TYPE, ("channel", pa.string())])
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        assert ROWS[:1] == polled(consumer, 1, **avro)
        # Another client, or this one would know the schema.
        other = {**avro, "schema_registry": {**avro["schema_registry"], "max.retries": 1}}
        send(broker, [{**ROWS[1], "channel": "web"}], other, kind=wider)
        hook = broker.schema_registry.on("GET /schemas/ids/{id}", AnswerStatus(503), expect=True)
        with pytest.raises(SchemaRegistryError):
            polled(consumer, 1, **avro)
        assert 1 == consumer.position(ZERO)
        hook.remove()
        assert ROWS[1:2] == polled(consumer, 1, **avro)


def test_a_commit_does_not_pass_a_malformed_payload(broker, avro):
    """Only what was returned is committed."""
    send(broker, ROWS[:2], avro)
    send_raw(broker, NOT_AVRO)
    with consuming(broker, group_id="g") as consumer:
        consumer.assign([ZERO])
        assert ROWS[:2] == polled(consumer, 2, **avro)
        with pytest.raises(PayloadError):
            polled(consumer, 1, **avro)
        consumer.commit()
        assert 2 == consumer.committed([ZERO])[ZERO].offset


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_loses_no_records(broker, avro, monkeypatch, after):
    """What was decoded before it comes again with the next poll."""
    send(broker, ROWS, avro)
    original = payload_columns.PayloadColumns.values
    interrupts = []

    def interrupted(self, *given):
        values = original(self, *given) if after else None
        if not interrupts:
            interrupts.append(1)
            raise KeyboardInterrupt
        return values or original(self, *given)

    monkeypatch.setattr(payload_columns.PayloadColumns, "values", interrupted)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        with pytest.raises(KeyboardInterrupt):
            polled(consumer, 1, **avro)
        assert ROWS == polled(consumer, 4, **avro)


def test_schemas_of_many_arguments_are_forgotten(broker, avro, monkeypatch):
    """The oldest ones are looked up again when they are needed."""
    monkeypatch.setattr("spark_kafka_sink.consumer.polls._MOST_PAYLOADS", 1)
    send(broker, ROWS, avro)
    latest = broker.schema_registry.on(LATEST, lambda *_: None)
    with consuming(broker) as consumer:
        consumer.assign([ZERO])
        for _ in range(2):
            consumer.poll_arrow(0, **avro)
            consumer.poll_arrow(0, columns=["value"], **avro)
    assert 4 == latest.seen
