"""The typed columns of a read: payloads of record batches become values."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.format_options import (
    LATEST,
    EvolutionMode,
    Framing,
    OnDecodeError,
    PayloadFormat,
    PayloadOptions,
    SubjectNameStrategy,
)
from spark_kafka_sink.config.registry_settings import REGISTRY_PREFIX, RegistrySettings
from spark_kafka_sink.consumer.payload_columns import (
    PayloadColumns,
    resolved_columns,
    with_type,
)
from spark_kafka_sink.errors import PayloadError, SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.payload_decoder import PayloadDecoder, payload_decoder
from spark_kafka_sink.formats.payload_schemas import PayloadSchema
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.registry.framing import prefix
from tests.support.registry.fake_registry import FakeRegistry, error

PLACE = TopicPartition("orders", 3)
TEXT = parse_schema('"string"')
LONG = parse_schema('"long"')
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FULL = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.int64()),
        ("decodeError", pa.string()),
        ("rawKey", pa.binary()),
        ("rawValue", pa.binary()),
    ]
)


def decoders(most_bytes=1 << 20):
    """Return decoders of keys that are texts and of values that are longs."""
    return {
        "key": PayloadDecoder(TEXT, TEXT, most_bytes, "key"),
        "value": PayloadDecoder(LONG, lambda _: LONG, most_bytes),
    }


def text(value):
    """Return a text of Avro."""
    return bytes([len(value) << 1]) + value.encode()


def batch(columns, rows, headers=None):
    """Return a batch of raw columns: rows of key and value, at the offsets from 10 on."""
    arrays = {
        "key": pa.array([key for key, _ in rows], pa.binary()),
        "value": pa.array([value for _, value in rows], pa.binary()),
        "offset": pa.array(range(10, 10 + len(rows)), pa.int64()),
        "headers": pa.array(headers or [[]] * len(rows), HEADERS),
    }
    return pa.RecordBatch.from_arrays(
        [arrays[name] for name in columns.raw_schema.names], schema=columns.raw_schema
    )


def rows_of(columns, raw):
    """Return the rows of a raw batch."""
    return [row for out in columns.batches(raw, PLACE) for row in out.to_pylist()]


def test_both_sides_are_decoded():
    """Keys and values become columns of their own types, and nothing else is added."""
    schema = pa.schema([("value", pa.int64()), ("key", pa.string())])
    columns = PayloadColumns(schema, decoders())
    raw = batch(columns, [(text("a"), prefix(1) + b"\x02"), (None, None)])
    [out] = columns.batches(raw, PLACE)
    assert schema == out.schema
    assert [{"value": 1, "key": "a"}, {"value": None, "key": None}] == out.to_pylist()


def test_a_side_without_a_format_remains_bytes():
    """A column that has no decoder is passed on."""
    schema = pa.schema([("key", pa.binary()), ("value", pa.int64()), ("offset", pa.int64())])
    columns = PayloadColumns(schema, {"value": decoders()["value"]})
    raw = batch(columns, [(b"k", prefix(1) + b"\x04")])
    assert [{"key": b"k", "value": 2, "offset": 10}] == rows_of(columns, raw)


def test_a_malformed_payload_ends_the_read():
    """The error says where the payload is, and what to do."""
    columns = PayloadColumns(FULL, decoders())
    raw = batch(columns, [(None, None), (None, prefix(7) + b"\x80")])
    with pytest.raises(PayloadError) as caught:
        rows_of(columns, raw)
    error = caught.value
    assert ("orders", 3, 11, 7, "value") == (
        error.topic,
        error.partition,
        error.offset,
        error.schema_id,
        error.field,
    )
    assert str(error).startswith("topic 'orders', partition 3, offset 11, schema 7, value: ")
    assert str(error).endswith("its bytes are shown in another column")


def test_a_malformed_payload_becomes_null():
    """With onDecodeError=null the row says what is wrong, and has the bytes of both sides."""
    columns = PayloadColumns(FULL, decoders(), OnDecodeError.NULL)
    bad = prefix(7) + b"\x80"
    raw = batch(columns, [(text("a"), prefix(1) + b"\x02"), (text("b"), bad), (b"\x02", bad)])
    fine, value, both = rows_of(columns, raw)
    nothing = dict.fromkeys(("decodeError", "rawKey", "rawValue"))
    assert {"key": "a", "value": 1, **nothing} == fine
    assert ("b", None, text("b"), bad) == (
        value["key"],
        value["value"],
        value["rawKey"],
        value["rawValue"],
    )
    assert value["decodeError"].startswith("value: ")
    assert value["decodeError"].endswith(" (schema 7)")
    assert (None, None, b"\x02", bad) == (
        both["key"],
        both["value"],
        both["rawKey"],
        both["rawValue"],
    )
    key_error, value_error = both["decodeError"].split("; ")
    assert key_error.startswith("key: ")
    assert value_error == value["decodeError"]


@pytest.mark.parametrize("most_bytes", [1, 30, 200])
def test_a_batch_may_become_several(most_bytes):
    """Where outputs are small, both sides are divided, and rows and reasons remain together."""
    columns = PayloadColumns(FULL, decoders(most_bytes=max(most_bytes, 64)), OnDecodeError.NULL)
    rows = [(text(f"k{number}"), prefix(1) + bytes([number << 1])) for number in range(40)]
    rows[17] = (text("k17"), b"bad")
    result = rows_of(columns, batch(columns, rows))
    assert [f"k{number}" for number in range(40)] == [row["key"] for row in result]
    assert [None if number == 17 else number for number in range(40)] == [
        row["value"] for row in result
    ]
    assert [17] == [number for number, row in enumerate(result) if row["decodeError"]]


def test_what_is_read_is_what_errors_need():
    """They need offsets and headers, and the columns of malformed payloads both sides."""
    schema = pa.schema([("value", pa.int64()), ("offset", pa.int64())])
    columns = PayloadColumns(schema, {"value": decoders()["value"]})
    assert ["value", "offset", "headers"] == columns.raw_schema.names
    columns = PayloadColumns(schema, {"value": decoders()["value"]}, OnDecodeError.NULL)
    assert ["value", "offset", "headers", "key"] == columns.raw_schema.names


def test_columns_of_malformed_payloads_are_added_or_selected():
    """They follow the others unless they are named; one that is named twice is refused."""
    given = FormatArguments(
        value_format="json",
        value_schema="id bigint",
        format_options={"onDecodeError": "null"},
    )
    added = ["decodeError", "rawKey", "rawValue"]
    for columns, expected in (
        (["value"], ["value", *added]),
        (["rawValue", "value"], ["rawValue", "value", "decodeError", "rawKey"]),
        ([*added, "value"], [*added, "value"]),
    ):
        resolved = resolved_columns(given.of_read(), columns, ["orders"])
        assert resolved is not None
        assert expected == resolved.schema.names
    with pytest.raises(SchemaError) as refused:
        resolved_columns(given.of_read(), ["rawKey", "value", "rawKey"], ["orders"])
    assert "the column 'rawKey' is selected twice: remove one of them" == str(refused.value)


ID_HEADER = [{"key": "__value_schema_id", "value": b"x"}]


def test_a_schema_in_a_header_is_refused():
    """A payload whose schema is named in a header has another framing; a tombstone has none."""
    columns = PayloadColumns(FULL, decoders())
    headers = [[], ID_HEADER, ID_HEADER]
    raw = batch(columns, [(None, None), (None, None), (None, b"\0\0\0\0\x01\x02")], headers)
    with pytest.raises(PayloadError) as caught:
        rows_of(columns, raw)
    assert (
        "topic 'orders', partition 3, offset 12, value: its schema is named in the header "
        "__value_schema_id, a framing that is not supported yet. Read the value as raw bytes, or "
        "set onDecodeError=null"
    ) == str(caught.value)


@pytest.mark.parametrize("most_bytes", [1 << 20, 64])
def test_a_payload_with_a_schema_in_a_header_is_never_decoded(most_bytes):
    """With onDecodeError=null it is null with a reason, though it would decode."""
    columns = PayloadColumns(FULL, decoders(most_bytes), OnDecodeError.NULL)
    good, bad = prefix(1) + b"\x02", b"bad"
    cells = [good, good, None, bad, good, bad, good] * 3
    headers = [[], ID_HEADER, ID_HEADER, ID_HEADER, [{"key": "a", "value": b""}], [], []] * 3
    raw = batch(columns, [(text("k"), cell) for cell in cells], headers)
    rows = rows_of(columns, raw)
    reason = (
        "value: its schema is named in the header __value_schema_id, a framing that is not "
        "supported yet"
    )
    short = "value: it has 3 bytes, fewer than the 5 of the framing of a registry"
    assert [None if row == 2 else cells[row] for row in (1, 2, 3, 5)] * 3 == [
        row["rawValue"] for number, row in enumerate(rows) if number % 7 in {1, 2, 3, 5}
    ]
    assert [None, reason, None, reason, None, short, None] * 3 == [
        row["decodeError"] for row in rows
    ]
    assert [1, None, None, None, 1, None, 1] * 3 == [row["value"] for row in rows]
    assert ["k"] * 21 == [row["key"] for row in rows]


ORDER = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}%s]}'
NEWER = ORDER % ', {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}'


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        fake.values["/schemas/ids/4?subject=orders"] = {"schema": NEWER}
        yield fake


def registered_rows(registry, evolution=EvolutionMode.NONE, on_error=OnDecodeError.FAIL):
    """Return a function that returns the rows of values by schema 3, whose others are registered.

    The worker knows schema 3.
    """
    side = PayloadOptions(
        side="value",
        format=PayloadFormat.AVRO,
        framing=Framing.CONFLUENT,
        schema=LATEST,
        subject=None,
        strategy=SubjectNameStrategy.TOPIC,
        record_name=None,
    )
    settings = {
        "url": registry.url.replace("//", "//me:planted@"),
        "max.retries": "2",
        "retries.wait.ms": "0",
    }
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    decoder = payload_decoder(
        side,
        PayloadSchema(ORDER % "", schema_id=3, subject="orders", version=1),
        kind,
        RegistrySettings.from_mapping(settings, prefix=REGISTRY_PREFIX),
        evolution,
    )
    fields = [pa.field("key", pa.binary()), pa.field("value", kind)]
    added = list(FULL)[2:] if on_error is OnDecodeError.NULL else []
    columns = PayloadColumns(pa.schema(fields + added), {"value": decoder}, on_error)
    return lambda cells: rows_of(columns, batch(columns, [(None, cell) for cell in cells]))


@pytest.mark.parametrize("on_error", list(OnDecodeError))
def test_a_registry_that_is_away_is_asked_again_for_a_new_id(registry, on_error):
    """After max.retries the error says where the payload is; known ids are still read."""
    rows = registered_rows(registry, on_error=on_error)
    known, new = prefix(3) + b"\x02", prefix(4) + b"\x04\0"
    registry.script = [error(503)] * 3
    with pytest.raises(SchemaRegistryError) as caught:
        rows([known, None, new])
    assert (
        "topic 'orders', partition 3, offset 12, schema 4, value: "
        f"GET {registry.url}/schemas/ids/4?subject=orders failed after 3 attempts "
        "(schema.registry.max.retries) with status 503: look into the registry's log"
    ) == str(caught.value)
    assert (503, True) == (caught.value.status, caught.value.retriable)
    assert [{"id": 1}] == [row["value"] for row in rows([known])]
    registry.script = [error(503)] * 2
    assert [{"id": 1}, {"id": 2}] == [row["value"] for row in rows([known, new])]


@pytest.mark.parametrize("on_error", list(OnDecodeError))
def test_a_schema_that_a_registry_does_not_know_yet_is_waited_for(registry, on_error):
    """A node of the registry may be behind: the payload is not malformed."""
    rows = registered_rows(registry, on_error=on_error)
    registry.script = [error(404, 40403)] * 2
    assert [{"id": 2}] == [row["value"] for row in rows([prefix(4) + b"\x04\0"])]


RECURSIVE = '{"type":"record","name":"Tree","fields":[{"name":"up","type":["null","Tree"]}]}'


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            {"schema": "syntax", "schemaType": "PROTOBUF"},
            "the schema is of the type PROTOBUF, which is not supported yet",
        ),
        (
            {"schema": RECURSIVE},
            (
                "its schema cannot be read: Avro schema, up[1]: the schema is recursive (Tree "
                "contains itself): no column can have its type"
            ),
        ),
    ],
)
def test_a_payload_whose_schema_is_of_no_use_is_malformed(registry, answer, reason):
    """One record of another format does not end a read whose malformed payloads become null."""
    registry.values["/schemas/ids/5?subject=orders"] = answer
    cells = [prefix(3) + b"\x02", prefix(5) + b"\x02"]
    fine, bad = registered_rows(registry, on_error=OnDecodeError.NULL)(cells)
    assert ({"id": 1}, None) == (fine["value"], fine["decodeError"])
    assert (None, cells[1]) == (bad["value"], bad["rawValue"])
    assert f"value: {reason} (schema 5)" == bad["decodeError"]
    with pytest.raises(PayloadError) as caught:
        registered_rows(registry)(cells)
    assert (11, 5, "value") == (caught.value.offset, caught.value.schema_id, caught.value.field)
    assert f"schema 5, value: {reason}. To go on, set onDecodeError=null" in str(caught.value)


def test_a_newer_schema_is_a_warning(registry, caplog):
    """What it has more than the reader's is named once."""
    rows = registered_rows(registry)
    for _ in range(2):
        assert [{"id": 2}] == [row["value"] for row in rows([prefix(4) + b"\x04\0"])]
    assert [
        (
            "Kafka: values with schema 4 have more than schema 3 (subject orders, version 1): "
            "field kind. This is not read"
        )
    ] == caplog.messages


def test_a_newer_schema_ends_a_read_that_is_to_be_started_again(registry):
    """The error says where the first payload with it is."""
    rows = registered_rows(registry, EvolutionMode.RESTART)
    with pytest.raises(SchemaError) as caught:
        rows([None, prefix(4) + b"\x04\0"])
    assert (
        "topic 'orders', partition 3, offset 11, schema 4, value: its schema has more than schema "
        "3 (subject orders, version 1): field kind. To read this, make the DataFrame again (load) "
        "and start the query with it (schemaEvolutionMode=restart)"
    ) == str(caught.value)


LOOSE = pa.struct(
    [
        pa.field("a", pa.int32()),
        pa.field("at", pa.time64("ns")),
        pa.field("list", pa.list_(pa.struct([pa.field("x", pa.int64())]))),
        pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64())]))),
    ]
)
STRICT = pa.struct(
    [
        pa.field("a", pa.int32(), nullable=False),
        pa.field("at", pa.time64("us"), nullable=False),
        pa.field("list", pa.list_(pa.struct([pa.field("x", pa.int64(), nullable=False)]))),
        pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("x", pa.int64())]))),
    ]
)
VALUES = [
    {"a": 1, "at": dt.time(1), "list": [{"x": 1}, {"x": 2}], "map": [("k", {"x": 3})]},
    None,
    {"a": 2, "at": dt.time(2), "list": None, "map": None},
    {"a": 3, "at": dt.time(3), "list": [None], "map": [("l", None), ("m", {"x": 4})]},
    None,
]


@pytest.mark.parametrize(("first", "second"), [(LOOSE, STRICT), (STRICT, LOOSE), (LOOSE, LOOSE)])
@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize("end", [2, 4, 5])
def test_an_array_gets_another_type_of_the_same_values(first, second, begin, end):
    """What may be null may differ, at any level and in slices; so may the unit of a time."""
    values = pa.array(VALUES, first).slice(begin, max(end - begin, 0))
    changed = with_type(values, second)
    changed.validate(full=True)
    assert second == changed.type
    assert values.to_pylist() == changed.to_pylist()


def values(columns, raws, most_bytes=1 << 30):
    """Return the rows, the next offset and the error of some raw batches."""
    found = columns.values(raws, PLACE, most_bytes)
    rows = [row for out in found.batches for row in out.to_pylist()]
    return rows, found.next_offset, found.error


ONE, TWO = (text("a"), prefix(1) + b"\x02"), (text("b"), prefix(1) + b"\x04")
BAD = (text("c"), prefix(1))
PAIR = pa.schema([("key", pa.string()), ("value", pa.int64())])
ROW_ONE, ROW_TWO = {"key": "a", "value": 1}, {"key": "b", "value": 2}


def test_values_of_several_batches_are_returned():
    """Nothing is left."""
    columns = PayloadColumns(PAIR, decoders())
    raws = [batch(columns, [ONE]), batch(columns, [TWO])]
    assert ([ROW_ONE, ROW_TWO], None, None) == values(columns, raws)


def test_values_end_where_their_memory_does():
    """A part is returned whole, and the next offset says where to go on, without an error."""
    columns = PayloadColumns(PAIR, decoders(most_bytes=16))
    raws = [batch(columns, [ONE, TWO, BAD])]
    assert ([ROW_ONE], 11, None) == values(columns, raws, most_bytes=1)
    assert ([], 10, None) == values(columns, raws, most_bytes=0)


@pytest.mark.parametrize("most_bytes", [16, 1 << 20])
def test_values_end_before_a_malformed_payload(most_bytes):
    """Those before it are returned, however they are divided, and those behind it are not."""
    columns = PayloadColumns(PAIR, decoders(most_bytes))
    rows, offset, error = values(columns, [batch(columns, [ONE, TWO, BAD, ONE])])
    assert ([ROW_ONE, ROW_TWO], 12) == (rows, offset)
    assert (PayloadError, 12) == (type(error), error.offset)


def test_values_end_before_the_first_malformed_payload_of_both_sides():
    """Keys are decoded first, but a value before the malformed key is malformed, too."""
    columns = PayloadColumns(PAIR, decoders())
    bad_key = (b"\x09", ONE[1])
    rows, offset, error = values(columns, [batch(columns, [ONE, BAD, bad_key])])
    assert ([ROW_ONE], 11, "value") == (rows, offset, error.field)


def test_values_end_before_a_schema_that_cannot_be_used():
    """Those before it are returned, so that the caller can pass by the record."""

    def writers(schema_id):
        if schema_id == 1:
            return LONG
        raise SchemaRegistryError(f"{schema_id} is forbidden", status=403)

    columns = PayloadColumns(PAIR, {**decoders(), "value": PayloadDecoder(LONG, writers)})
    forbidden = (text("c"), prefix(2) + b"\x06")
    rows, offset, error = values(columns, [batch(columns, [ONE, TWO, forbidden, ONE])])
    place = "topic 'orders', partition 3, offset 12, schema 2, value"
    assert ([ROW_ONE, ROW_TWO], 12) == (rows, offset)
    assert (f"{place}: 2 is forbidden", 403) == (str(error), error.status)
    assert "2 is forbidden" == str(error.__cause__)
    rows, offset, error = values(columns, [batch(columns, [forbidden, ONE])])
    assert ([], 10, 403) == (rows, offset, error.status)


def test_values_end_before_a_registry_that_is_away():
    """What is decoded together with its record comes again, and no other id is asked for."""
    asked = []

    def away(schema_id):
        asked.append(schema_id)
        raise SchemaRegistryError(f"no answer about {schema_id}", retriable=True)

    columns = PayloadColumns(PAIR, {**decoders(), "value": PayloadDecoder(LONG, away)})
    other = (text("c"), prefix(2) + b"\x06")
    rows, offset, error = values(columns, [batch(columns, [other, TWO])])
    place = "topic 'orders', partition 3, offset 11, schema 1, value"
    assert ([], 10, f"{place}: no answer about 1") == (rows, offset, str(error))
    assert [1] == asked
