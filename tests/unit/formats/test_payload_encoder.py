"""Rows that a schema does not have, which are raised or set aside."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.config.format_arguments import FormatArguments
from spark_kafka_sink.config.format_options import Framing
from spark_kafka_sink.errors import KafkaError, PayloadError
from spark_kafka_sink.formats.payload_encoder import PayloadEncoder, encoded, text_of, texts_of
from spark_kafka_sink.formats.payload_schemas import PayloadSchema, schemas_to_write
from spark_kafka_sink.record.refused_rows import RefusedRows, RowErrorKind

COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "color", "type": COLOR}],
}
TYPE = pa.struct([("id", pa.int64()), ("color", pa.string())])


def encode(values, refused, *, first_row=0, key=None):
    """Return the payloads of a batch's values, and of its keys if it has any."""
    return encode_array(pa.array(values, TYPE), refused, first_row=first_row, key=key)


def encode_array(values, refused, *, first_row=0, key=None, schema=ORDER):
    columns = {"value": values} | ({} if key is None else {"key": pa.array(key)})
    call = FormatArguments(
        key_format=None if key is None else "avro",
        value_format="avro",
        key_schema=None if key is None else json.dumps(COLOR),
        value_schema=json.dumps(schema),
        schema_registry=None,
        format_options=None,
    ).of_write()
    types = {name: column.type for name, column in columns.items()}
    schemas = schemas_to_write(types, call.formats, call.registry, "orders", is_dry_run=True)
    [batch] = encoded(pa.record_batch(columns), schemas, call.formats, first_row, refused)
    return batch


def kept(refused, side):
    """Return the values that were kept for dead letters, by their rows."""
    return {
        row: json.loads(text)
        for payloads in refused.payloads
        if payloads.side == side
        for row, text in zip(payloads.rows.tolist(), payloads.texts().to_pylist(), strict=True)
    }


def row(number, color="RED"):
    return {"id": number, "color": color}


@pytest.mark.parametrize(
    ("framing", "schema", "expected"),
    [
        (Framing.CONFLUENT, PayloadSchema('"long"', schema_id=42), b"\0\0\0\0\x2a\2"),
        # So that a dry run finds the same errors, such as payloads that are too large.
        (Framing.CONFLUENT, PayloadSchema('"long"', subject="orders-value"), b"\0\0\0\0\0\2"),
        (Framing.CONFLUENT, PayloadSchema('"long"'), b"\2"),
        (Framing.NONE, PayloadSchema('"long"', schema_id=42), b"\2"),
    ],
)
def test_the_id_of_the_schema_is_before_the_value(framing, schema, expected):
    """Without a registry or a framing there is none; a dry run has none yet, and writes 0."""
    [side] = FormatArguments(value_format="avro", value_schema='"long"').of_write().formats.sides
    encoder = PayloadEncoder(replace(side, framing=framing), schema, pa.int64())
    assert [expected] == encoder.encode(pa.array([1])).to_pylist()


def test_bad_rows_are_set_aside():
    """Their payloads are null, all others are as before, and their values are kept as JSON."""
    rows = [row(0), row(1, "PINK"), None, row(3), row(None), row(5, "BLUE"), row(6, "GREY")]
    refused = RefusedRows()
    payloads = encode(rows, refused, first_row=10).column("value")
    assert [b"\0\0", None, None, b"\x06\0", None, b"\x0a\x02", None] == payloads.to_pylist()
    found = refused.between(10, 20)
    assert [11, 14, 16] == sorted(row for bad in found for row in bad.rows.tolist())
    assert {RowErrorKind.VALUE} == {bad.kind for bad in found}
    # As JSON of Spark's `to_json`, which has no nulls.
    assert {11: rows[1], 14: {"color": "RED"}, 16: rows[6]} == kept(refused, "value")
    [null] = [bad for bad in found if 14 in bad.rows]
    assert str(null.error(14)).startswith("row 14, value.id: the value is null")


def test_without_a_place_for_them_the_first_bad_row_is_an_error():
    """It is the first of the batch."""
    with pytest.raises(PayloadError, match=r"row 1, value\.color"):
        encode([row(0), row(1, "PINK"), row(None)], None)


def test_keys_are_set_aside_by_a_kind_of_their_own():
    """A row whose key and value are bad counts once."""
    refused = RefusedRows()
    batch = encode([row(0), row(None)], refused, key=["RED", "PINK"])
    assert [b"\0", None] == batch.column("key").to_pylist()
    [bad] = refused.between(0, 2)
    assert (RowErrorKind.KEY, [1], 1) == (bad.kind, bad.rows.tolist(), refused.count)
    assert ({1: "PINK"}, {1: {"color": "RED"}}) == (kept(refused, "key"), kept(refused, "value"))


def test_too_many_bad_rows_end_the_task():
    """The error has the first of them."""
    with pytest.raises(KafkaError, match=r"more than 1 row .*: row 0, value\.color.*; row 1, "):
        encode([row(0, "A"), row(1, "B"), row(2, "C")], RefusedRows(1))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.int32(), "null"),
        (b"\xff", pa.binary(), '"/w=="'),
        ("é", pa.string(), '"é"'),
        (True, pa.bool_(), "true"),
        (1.5, pa.float64(), "1.5"),
        (Decimal("1.50"), pa.decimal128(5, 2), '"1.50"'),
        (
            dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
            pa.timestamp("us"),
            '"2026-01-02 03:00:00.000000"',
        ),
        (["a", None], pa.list_(pa.string()), '["a", null]'),
        ([("a", 1)], pa.map_(pa.string(), pa.int8()), '[{"key": "a", "value": 1}]'),
        ("a", pa.dictionary(pa.int8(), pa.string()), '"a"'),
        (row(1), TYPE, '{"id": 1, "color": "RED"}'),
    ],
)
def test_a_value_as_text_for_people(value, kind, expected):
    """Whatever is in it, there is a text."""
    assert expected == text_of(pa.array([value], kind)[0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", "é", None]), ['"a"', '"é"', "null"]),
        (pa.array([Decimal("1.50")] * 3), ["1.50"] * 3),
        (pa.array([row(1), row(None), None], TYPE), [row(1), {"color": "RED"}, None]),
        # What `to_json` does not have.
        (pa.array([1, 2, 3], pa.uint64()), ["1", "2", "3"]),
        # Arrow cannot take these by index.
        (pa.array(["a", "b", "c"], pa.string_view()), ['"a"', '"b"', '"c"']),
        # Only the second is not UTF-8.
        (
            pa.array([b"a", b"\xffa", b"c"], pa.binary()).view(pa.string()),
            ['"a"', '"\ufffda"', '"c"'],
        ),
    ],
)
def test_rows_of_a_column_as_text(values, expected):
    """Whatever `to_json` lacks has the text for people."""
    texts = [text or b"null" for text in texts_of(values, np.arange(3)).to_pylist()]
    found = [json.loads(text, parse_float=Decimal) for text in texts]
    wanted = [
        json.loads(each, parse_float=Decimal) if isinstance(each, str) else each
        for each in expected
    ]
    assert wanted == found
    [last] = texts_of(values, np.array([2])).to_pylist()
    assert texts[2] == (last or b"null")


NAMED = ORDER | {"fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}


def malformed(*offsets):
    """Return rows that all lack an id, and whose names have these offsets."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes()), pa.py_buffer(b"ab")]
    names = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    ids = pa.nulls(len(names), pa.int64())
    return pa.StructArray.from_arrays([ids, names], ["id", "name"])


def test_a_bad_row_that_refers_to_other_memory_ends_the_write():
    """A dead letter could show what is there, although the row is bad for another reason."""
    refused = RefusedRows()
    encode_array(malformed(0, 1, 900, 2), refused, first_row=10, schema=NAMED)
    with pytest.raises(PayloadError, match=r"row 11, value\.id: the value is null"):
        refused.payloads[0].texts()


def test_a_bad_row_is_set_aside_although_others_are_malformed():
    """Its text is the same, and nothing that other rows refer to is read."""
    for offsets in ([0, 1, 2, 2], [0, 1, 2, 900, 2]):
        ids = pa.array([0, None, 2, 3][: len(offsets) - 1])
        array = pa.StructArray.from_arrays([ids, malformed(*offsets).field(1)], ["id", "name"])
        assert [b'{"name":"b"}'] == texts_of(array, np.array([1])).to_pylist()


def test_a_text_that_only_python_can_write_needs_right_columns():
    """Python would follow the offsets of any field."""
    buffers = malformed(0, 1, 900, 2).field(1)
    ids = pa.array([b"\xff", b"a", b"a"], pa.binary()).view(pa.string())
    times = pa.array([1, 2, 3], pa.time64("us"))
    for other in (ids, times):
        array = pa.StructArray.from_arrays([other, buffers], ["id", "name"])
        with pytest.raises(PayloadError, match="refers to data outside of its buffers"):
            texts_of(array, np.array([0]))


def test_without_dead_letters_no_value_is_read():
    """Rows are only counted."""
    refused = RefusedRows(keeps_payloads=False)
    encode_array(malformed(0, 1, 900, 2), refused, schema=NAMED)
    assert (3, []) == (refused.count, refused.payloads)


def test_a_value_that_python_does_not_have_is_text():
    """Moments beyond year 9999 and strings that are not UTF-8 are no reason to lose a letter."""
    late = pa.array([2**60], pa.int64()).view(pa.timestamp("us"))
    assert text_of(late[0]).startswith('"')
    bad = pa.array([b"\xffa"], pa.binary()).view(pa.string())
    assert '"\ufffda"' == text_of(bad[0])
