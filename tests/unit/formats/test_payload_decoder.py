"""Payloads of one column, each decoded by its own schema."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import SchemaError, SchemaRegistryError
from spark_kafka_sink.formats.avro.schema import Field, Primitive, parse_schema
from spark_kafka_sink.formats.payload_decoder import NO_SCHEMA, NoDecoderError, PayloadDecoder
from spark_kafka_sink.formats.payload_schemas import UnknownSchemaError, UnreadableSchemaError
from spark_kafka_sink.registry.framing import prefix


def record(*fields, **defaults):
    """Return a schema of long fields, and of others with a default."""
    return parse_schema(
        json.dumps(
            {
                "type": "record",
                "name": "Order",
                "fields": [{"name": name, "type": "long"} for name in fields]
                + [
                    {"name": name, "type": "long", "default": value}
                    for name, value in defaults.items()
                ],
            }
        )
    )


def long(number):
    """Return a long of Avro, of at most six bits."""
    return bytes([number << 1])


SCHEMAS = {1: record("id"), 2: record("id", "price"), 3: record("price", "id")}
READER = record("id", price=-1)


def writers(schema_id):
    """Return the schema of an id."""
    if schema_id not in SCHEMAS:
        raise UnknownSchemaError("there is no such schema")
    return SCHEMAS[schema_id]


def payload(schema_id, *numbers):
    """Return a payload with Confluent's framing."""
    return prefix(schema_id) + b"".join(map(long, numbers))


def decoded(decoder, payloads):
    """Return the rows of payloads, and what is malformed."""
    rows, malformed = [], {}
    for output in decoder.decode(pa.array(payloads, pa.binary())):
        assert len(rows) == output.first
        rows += output.values.to_pylist()
        found = output.malformed
        reasons = zip(found.reasons.to_pylist(), found.schema_ids.tolist(), strict=True)
        malformed |= dict(zip(found.rows.tolist(), reasons, strict=True))
    return rows, malformed


def test_each_payload_is_decoded_by_its_own_schema():
    """Payloads of several schemas are read as one, in their order; nulls remain null."""
    payloads = [payload(2, 1, 7), payload(1, 2), None, payload(3, 9, 3), payload(2, 4, 8)]
    expected = [
        {"id": 1, "price": 7},
        {"id": 2, "price": -1},
        None,
        {"id": 3, "price": 9},
        {"id": 4, "price": 8},
    ]
    assert (expected, {}) == decoded(PayloadDecoder(READER, writers), payloads)


def test_payloads_without_framing_have_one_schema():
    """Without framing, all payloads are read by the schema that is given."""
    decoder = PayloadDecoder(READER, SCHEMAS[3])
    rows, malformed = decoded(decoder, [long(5) + long(6), None, b""])
    assert [{"id": 6, "price": 5}, None, None] == rows
    assert [2] == list(malformed)


def test_malformed_payloads_are_null_and_have_a_reason():
    """A payload that cannot be decoded says why, with the id of its schema if it has one."""
    payloads = [payload(1, 2), payload(9, 2), b"\0\0", payload(1), b"\x05\0\0\0\x01\x02"]
    rows, malformed = decoded(PayloadDecoder(READER, writers), payloads)
    assert [{"id": 2, "price": -1}, None, None, None, None] == rows
    assert [1, 2, 3, 4] == sorted(malformed)
    assert ("value: there is no such schema", 9) == malformed[1]
    short = "value: it has 2 bytes, fewer than the 5 of the framing of a registry"
    assert (short, NO_SCHEMA) == malformed[2]
    assert (1, NO_SCHEMA) == (malformed[3][1], malformed[4][1])


def test_a_schema_is_asked_for_once():
    """The schema of an id is asked for once, and an unknown one less and less often."""
    asked = []

    def counting(schema_id):
        asked.append(schema_id)
        return writers(schema_id)

    decoder = PayloadDecoder(READER, counting)
    for _ in range(3):
        decoded(decoder, [payload(1, 2), payload(9), payload(2, 1, 1)])
    assert [1, 2, 9, 9] == sorted(asked)


def test_an_unknown_id_is_asked_for_again_after_a_while():
    """A schema that was registered later is found, however few batches a stream has."""
    now = [0.0]
    known = {}

    def late(schema_id):
        if schema_id not in known:
            raise UnknownSchemaError("there is no such schema")
        return known[schema_id]

    decoder = PayloadDecoder(READER, late, clock=lambda: now[0])
    for _ in range(7):
        assert [None] == decoded(decoder, [payload(1, 2)])[0]
    known[1] = SCHEMAS[1]
    now[0] = 59.0
    assert [None] == decoded(decoder, [payload(1, 2)])[0]
    now[0] = 60.0
    assert [{"id": 2, "price": -1}] == decoded(decoder, [payload(1, 2)])[0]


def test_a_schema_that_is_of_no_use_makes_payloads_malformed():
    """Such payloads can never be read, while others are; the registry is asked once."""
    asked = []

    def refusing(schema_id):
        asked.append(schema_id)
        if schema_id == 8:
            raise UnreadableSchemaError("its schema is recursive")
        return writers(schema_id)

    decoder = PayloadDecoder(READER, refusing)
    for _ in range(3):
        rows, malformed = decoded(decoder, [payload(8, 1), payload(1, 2), payload(8)])
        assert [None, {"id": 2, "price": -1}, None] == rows
        reason = ("value: its schema is recursive", 8)
        assert {0: reason, 2: reason} == malformed
    assert [1, 8] == sorted(asked)


def test_too_many_unknown_ids_end_the_read():
    """Payloads without a frame name ever new ids, and each of them costs a request."""
    decoder = PayloadDecoder(READER, writers)
    payloads = [payload(number, 1) for number in range(10, 1_020)]
    expected = (
        "the registry has no schema for more than 1000 ids in the values of the topic: if these "
        "have no framing, set valueFraming=none, or read them as raw bytes"
    )
    with pytest.raises(NoDecoderError) as caught:
        decoded(decoder, payloads)
    assert expected == str(caught.value.error)


def test_a_schema_that_cannot_be_read_is_named():
    """The error of a schema says whose it is."""
    schemas = {6: record("id")}
    wrong = record("id")
    wrong = replace(wrong, fields=(*wrong.fields, Field("name", Primitive("string"), default=7)))
    decoder = PayloadDecoder(wrong, schemas.__getitem__)
    with pytest.raises(NoDecoderError) as caught:
        decoded(decoder, [None, payload(6, 1)])
    assert (1, 6, SchemaError) == (
        caught.value.row,
        caught.value.schema_id,
        type(caught.value.error),
    )
    assert str(caught.value.error).startswith("Avro: the default")


def test_an_error_of_the_registry_is_raised():
    """A registry that does not answer ends the read: the payload may be in order."""

    def failing(_):
        raise ConnectionError("the registry is away")

    with pytest.raises(ConnectionError, match="the registry is away"):
        decoded(PayloadDecoder(READER, failing), [payload(1, 2)])


@pytest.mark.parametrize("most_bytes", [60, 1 << 20])
def test_a_schema_that_cannot_be_had_names_the_row(most_bytes):
    """The row is that of the batch, in whichever output it would be."""
    failed = SchemaRegistryError("GET it failed")

    def failing(schema_id):
        if schema_id == 7:
            raise failed
        return writers(schema_id)

    decoder = PayloadDecoder(READER, failing, most_bytes)
    with pytest.raises(NoDecoderError) as caught:
        decoded(decoder, [payload(1, 2)] * 9 + [payload(7, 1)] + [payload(1, 2)] * 5)
    assert (9, 7, failed) == (
        caught.value.row,
        caught.value.schema_id,
        caught.value.error,
    )


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 50)),
            st.just(b"\x07"),
        ),
        max_size=40,
    ),
    st.integers(1, 400),
)
def test_outputs_of_any_size_have_all_rows(rows, most_bytes):
    """However small an output may be, all rows come once, in their order."""
    payloads, expected, bad = [], [], []
    for number, row in enumerate(rows):
        match row:
            case None | b"\x07":
                payloads.append(row)
                expected.append(None)
                bad += [number] if row else []
            case (1, order, _):
                payloads.append(payload(1, order))
                expected.append({"id": order, "price": -1})
            case (schema_id, order, price):
                both = (order, price) if schema_id == 2 else (price, order)
                payloads.append(payload(schema_id, *both))
                expected.append({"id": order, "price": price})
    small = decoded(PayloadDecoder(READER, writers, most_bytes), payloads)
    if most_bytes >= 64:
        assert expected == small[0]
        assert bad == sorted(small[1])
    assert len(expected) == len(small[0])


def test_framed_bytes_have_no_length():
    """Behind Confluent's framing the schema "bytes" is the bytes alone, also read as a text."""
    payloads = [prefix(4) + b"abc", None, prefix(4), prefix(5) + b"\x06def"]
    schemas = {4: parse_schema('"bytes"'), 5: parse_schema('"string"')}
    for reader, expected in (
        ('"bytes"', [b"abc", None, b"", b"def"]),
        ('["null", "string"]', ["abc", None, "", "def"]),
    ):
        decoder = PayloadDecoder(parse_schema(reader), schemas.__getitem__)
        assert (expected, {}) == decoded(decoder, payloads)


@pytest.mark.parametrize("schema_id", [1, 2])
def test_values_have_the_type_of_the_reader(schema_id):
    """Whatever schema payloads have, the column has the reader's type."""
    decoder = PayloadDecoder(READER, writers)
    numbers = [3] * schema_id
    [output] = decoder.decode(pa.array([payload(schema_id, *numbers)]))
    assert decoder.type == output.values.type
