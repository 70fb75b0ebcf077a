"""Whole answers, read as by a consumer of Kafka's Java client; see golden/FetchGoldens.java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.record.reading.decoding import decoder_of, rows_of

GOLDEN = Path(__file__).parents[1] / "golden" / "java_fetches.json"
FETCHES = json.loads(GOLDEN.read_text())


def hexed(content: bytes | None) -> str | None:
    return None if content is None else content.hex()


@pytest.mark.parametrize("number", range(len(FETCHES)))
def test_answers_are_read_as_by_javas_consumer(number):
    """The rows of an answer, without those of aborted transactions, are those that Java reads."""
    golden = FETCHES[number]
    rows = rows_of(
        decoder_of(),
        bytes.fromhex(golden["answer"]),
        start=golden["start"],
        aborted=golden["aborted"],
    )
    assert golden["rows"] == [
        [
            row["offset"],
            row["timestamp"] // 1000,
            row["timestampType"],
            hexed(row["key"]),
            hexed(row["value"]),
            [[hexed(it["key"].encode()), hexed(it["value"])] for it in row["headers"] or ()],
        ]
        for row in rows
    ]


def test_the_answers_have_all_kinds_of_batches():
    """The golden answers have aborted transactions, headers, both timestamp types and nulls."""
    rows = [row for golden in FETCHES for row in golden["rows"]]
    assert {0, 1} == {row[2] for row in rows}
    assert {True, False} == {row[3] is None for row in rows} == {bool(row[5]) for row in rows}
    assert any(golden["aborted"] for golden in FETCHES)
