"""Rows that cannot be sent, kept as arrays by their reasons."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import InvalidPartitionError, KafkaError, PayloadError, RecordError
from spark_kafka_sink.record.refused_rows import (
    RefusedPayloads,
    RefusedRows,
    RowErrorKind,
    groups,
)

TOPIC, VALUE = RowErrorKind.TOPIC, RowErrorKind.VALUE
NULL = RecordError("the topic is null", row=None, advice="Set one")
LATE = RecordError("the timestamp is late", row=None, topic="t", advice="Use another")


def added(*refusals, most=None):
    refused = RefusedRows(most)
    for reason, rows in refusals:
        refused.add(TOPIC, reason, np.array(rows))
    return refused


def rows_of(refusals):
    return [(str(refusal.reason), refusal.rows.tolist()) for refusal in refusals]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (NULL, "row 7: the topic is null. Set one"),
        (LATE, "row 7, topic 't': the timestamp is late. Use another"),
        (
            PayloadError("it is null", schema_id=3, field="value.a", advice="Fill it"),
            "row 7, schema 3, value.a: it is null. Fill it",
        ),
    ],
)
def test_the_error_of_a_row_begins_with_its_number(reason, expected):
    """The rest is the same for all rows with the same reason, which dead letters rely on."""
    [refusal] = added((reason, [7])).between(0, 8)
    assert expected == str(refusal.error(7))


def test_the_first_error_of_a_row_counts():
    """What is found wrong with it later is not added."""
    refused = added((NULL, [1, 3]), (LATE, [0, 1]), (LATE, [0, 3, 4]), (NULL, [1, 4]))
    assert [(str(NULL), [1, 3]), (str(LATE), [0]), (str(LATE), [4])] == rows_of(
        refused.between(0, 9)
    )
    assert 4 == refused.count


def test_rows_are_handed_out_by_their_numbers():
    """Those of a part of a batch are dealt with, and forgotten, before those of the next."""
    refused = added((NULL, [1, 5, 9]), (LATE, [2, 6]))
    for side, rows in (("key", [1, 2]), ("value", [5])):
        refused.keep(RefusedPayloads(side, np.array(rows), pa.nulls(len(rows)), list))
    assert [(str(NULL), [1, 5]), (str(LATE), [2])] == rows_of(refused.between(0, 6))
    refused.forget(5)
    assert [(str(NULL), [5, 9]), (str(LATE), [6])] == rows_of(refused.between(0, 10))
    assert ["value"] == [payloads.side for payloads in refused.payloads]
    # A row that was dealt with is not known any more.
    refused.add(TOPIC, NULL, np.array([1]))
    assert 6 == refused.count


def test_more_rows_than_allowed_are_an_error():
    """It has the first ten, and is caused by the error of the row that was too many."""
    refused = added((NULL, [0, 1]), most=11)
    with pytest.raises(KafkaError, match="more than 11 rows") as caught:
        refused.add(TOPIC, LATE, np.arange(2, 12))
    assert "row 9, " in str(caught.value)
    assert "row 10, " not in str(caught.value)
    assert isinstance(caught.value.__cause__, RecordError)


def test_reasons_are_equal_if_only_the_row_differs():
    """Kind, class, and each attribute of the error must be the same."""
    reasons = [
        NULL,
        LATE,
        RecordError("the topic is null", row=None, advice="Set one"),
        InvalidPartitionError("the topic is null", row=None, advice="Set one"),
        RecordError("the topic is null", row=None, partition=1, advice="Set one"),
    ]
    refusals = [added((reason, [1])).between(0, 2)[0] for reason in reasons]
    refusals.append(refusals[0]._replace(kind=VALUE))
    equal = [refusals[0].has_same_reason(other) for other in refusals]
    assert [True, False, True, False, False, False] == equal


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([[], []], []),
        ([[4, 4, 4]], [[0, 1, 2]]),
        ([[4, 4, 4], [1, 2, 1]], [[0, 2], [1]]),
        ([[2, 1, 2, 1], [0, 0, 0, 5]], [[1], [3], [0, 2]]),
    ],
)
def test_positions_with_equal_keys_are_grouped(keys, expected):
    """The positions of a group are in order."""
    assert expected == [group.tolist() for group in groups(*map(np.array, keys))]
