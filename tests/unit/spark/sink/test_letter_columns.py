"""The columns of dead letters, without a broker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import RecordError
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.columns import NULL_TIMESTAMP
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.refused_rows import RefusedPayloads, RefusedRows, RowErrorKind
from spark_kafka_sink.spark.sink.letter_columns import (
    BadBatch,
    BadRowTable,
    Header,
    LetterBuilder,
)
from tests.support.record.kernel_batches import write_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KINDS = {kind: RecordError(f"bad {kind}", row=None, advice="Fix it") for kind in RowErrorKind}

#: In milliseconds since 1970.
NOW = 1_700_000_000_000


def headers_of(refusal, topic):
    """Return few headers, whose number depends on the kind."""
    extra = [Header("size", b"")] if refusal.kind is RowErrorKind.SIZE else []
    error = str(refusal.reason).encode()
    return [Header("topic", str(topic).encode()), *extra, Header("error", error)]


def bad_batch(bad, *, first_row=0, payloads=(), **columns):
    """Return a batch with these columns; `bad` has the rows of each kind."""
    rows = len(next(iter(columns.values())))
    batch = pa.record_batch({"value": [f"v{first_row + row}" for row in range(rows)]} | columns)
    topic = None if "topic" in columns else "t"
    refused = RefusedRows()
    for kind, numbers in bad.items():
        refused.add(kind, KINDS[kind], first_row + np.array(numbers))
    made = record_columns(batch, topic=topic, first_row=first_row, refused=RefusedRows())
    return BadBatch(refused.between(0, first_row + rows), first_row, batch, made, payloads)


def letters_of(*batches, most_bytes=10_000, topic="t"):
    """Return key, value, timestamp and headers of each letter."""
    bad = BadRowTable(topic, has_letters=True)
    for batch in batches:
        bad.add(batch)
    builder = LetterBuilder(
        "bad", lambda: most_bytes, headers_of, row="row", truncated="cut", timestamp="time"
    )
    made = builder.letters(bad, NOW)
    assert (("bad",), bad.count) == (made.topics, made.num_rows)
    records = decode_record_batch(write_records(made).batch()).records
    return [
        (
            text(record.key),
            text(record.value),
            int(timestamp),
            [(name, text(value)) for name, value in record.headers],
        )
        for record, timestamp in zip(records, made.timestamp, strict=True)
    ]


def text(content):
    return None if content is None else content.decode()


def own(row, kind, topic="t"):
    """Return the headers that a letter has of `headers_of`."""
    extra = [("size", "")] if kind == "size" else []
    return [("topic", topic), *extra, ("error", f"bad {kind}. Fix it"), ("row", str(row))]


def payloads_of(side, texts):
    """Return keys or values with these texts, by their rows."""
    values = pa.array(list(texts.values()))
    return RefusedPayloads(side, np.array(list(texts)), values, lambda: values)


KEYS = pa.array(["a", None, "", "d"], pa.string())


def test_letters_have_the_rows_and_the_numbers_of_their_errors():
    """They are in the order of the rows, whatever is wrong, with any number of digits."""
    firsts = (0, 7, 98, 2**40, 10**18 - 1)
    batches = [
        bad_batch({RowErrorKind.TOPIC: [0, 3], RowErrorKind.SIZE: [1]}, first_row=first, key=KEYS)
        for first in firsts
    ]
    expected = []
    for first in firsts:
        for place, kind in ((0, "topic"), (1, "size"), (3, "topic")):
            row = first + place
            key = KEYS[place].as_py()
            expected.append((key, f"v{row}", NULL_TIMESTAMP, own(row, kind)))
    assert expected == letters_of(*batches)


def test_letters_keep_the_timestamps_that_are_right():
    """One that is wrong becomes the time of writing."""
    times = pa.array([1, 2, None], pa.timestamp("ms"))
    bad = {RowErrorKind.TIMESTAMP: [0], RowErrorKind.SIZE: [1, 2]}
    letters = letters_of(bad_batch(bad, timestamp=times))
    assert [NULL_TIMESTAMP, 2, NULL_TIMESTAMP] == [timestamp for _, _, timestamp, _ in letters]


def test_letters_of_rows_that_are_far_ahead_have_the_time_of_writing():
    """Brokers accept what is an hour ahead; the timestamp of a row that is further is a header."""
    hour = NOW + 3_600_000
    times = pa.array([hour, hour + 1, hour + 2, hour + 1], pa.timestamp("ms"))
    bad = bad_batch({RowErrorKind.SIZE: [0, 1, 2, 3]}, timestamp=times)
    expected = [(hour, own(0, "size"))]
    expected += [
        (NULL_TIMESTAMP, [*own(row, "size"), ("time", str(ahead))])
        for row, ahead in ((1, hour + 1), (2, hour + 2), (3, hour + 1))
    ]
    assert expected == [(timestamp, headers) for _, _, timestamp, headers in letters_of(bad)]


def test_letters_name_the_topics_that_rows_asked_for():
    """Also one that is null, or not the name of a topic."""
    for topics in (
        pa.array(["a", None, "b c", "a"]),
        pa.array(["a", None, "b c", "a"]).dictionary_encode(),
        pa.array(["a", None, "b c", "a"], pa.string_view()),
    ):
        batch = bad_batch({RowErrorKind.TOPIC: [0, 1, 2, 3]}, topic=topics)
        expected = [own(row, "topic", topic) for row, topic in enumerate(["a", "None", "b c", "a"])]
        assert expected == [headers for _, _, _, headers in letters_of(batch, topic=None)]


@pytest.mark.parametrize("kind", [HEADERS, pa.large_list(HEADERS.value_type)])
def test_the_headers_of_rows_come_first(kind):
    """Those without a name are left out, and batches without the column have none."""
    headers = [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [None, {"key": "c", "value": b"3"}, {"key": None, "value": b"4"}],
        [{"key": "x", "value": b"x"}],
    ]
    batches = [
        bad_batch({RowErrorKind.SIZE: [0]}, key=["k"]),
        bad_batch({RowErrorKind.HEADERS: [0, 1, 2]}, first_row=1, headers=pa.array(headers, kind)),
    ]
    expected = [
        own(0, "size"),
        [("a", "1"), ("b", None), *own(1, "headers")],
        own(2, "headers"),
        [("c", "3"), *own(3, "headers")],
    ]
    assert expected == [headers for _, _, _, headers in letters_of(*batches)]


def test_payloads_that_were_not_encoded_are_text():
    """Only those of bad rows, and of their side."""
    kept = [
        payloads_of("value", {11: b"one", 13: b"three", 20: b"later"}),
        payloads_of("key", {12: b"two"}),
    ]
    bad = {RowErrorKind.VALUE: [1, 3], RowErrorKind.KEY: [2]}
    letters = letters_of(bad_batch(bad, first_row=10, payloads=kept, key=KEYS))
    assert [(None, "one"), ("two", "v12"), ("d", "three")] == [letter[:2] for letter in letters]


def test_only_letters_without_room_are_cut():
    """First go their own headers, then the end of the key, then that of the value."""
    keys = ["k" * 10, "k" * 300, "k" * 10, "k" * 10]
    headers = [[], [], [{"key": "h", "value": b"h" * 300}], [{"key": "h", "value": b"1"}]]
    batch = bad_batch(
        {RowErrorKind.TOPIC: [0, 1, 2, 3]}, key=keys, headers=pa.array(headers, HEADERS)
    )
    letters = letters_of(batch, most_bytes=300)
    cut = [dict(headers).get("cut") for _, _, _, headers in letters]
    assert [None, "key,value", "headers", None] == cut
    assert 0 < len(letters[1][0]) < 300
    assert ["v0", "", "v2", "v3"] == [value for _, value, _, _ in letters]
    assert [False, False, False, True] == ["h" in dict(headers) for *_, headers in letters]
