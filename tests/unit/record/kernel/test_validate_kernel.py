"""The compiled validation of records, which `test_produce_handler.py` compares with Kafka's."""

from __future__ import annotations

import pytest

from spark_kafka_sink.record.kernel.validate_kernel import validate_records
from spark_kafka_sink.record.kernel.validation_values import (
    MAX_REFUSED_RECORDS,
    Expectation,
    RecordProblem,
    Refusal,
    RefusedByTopic,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, decode_header
from tests.support.devbroker.malformed_batches import PAYLOADS, batch
from tests.support.record.plain_batches import PlainRecord, plain_batch

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
ANYTHING = Expectation(
    now_ms=NOW_MS,
    before_max_ms=2**63 - 1,
    after_max_ms=2**63 - 1,
    needs_keys=False,
    sets_timestamps=False,
)


def validate(data, expectation=ANYTHING, *, is_stream=True, piece=None):
    payload = data[RECORD_BATCH_OVERHEAD:]
    piece = piece or max(len(payload), 1)
    chunks = [payload[start : start + piece] for start in range(0, len(payload), piece)]
    return validate_records(decode_header(data), chunks, expectation, is_stream=is_stream)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_stream_may_be_divided_anywhere(name, piece):
    """Chunks of any size, which end within numbers and strings, lead to the same result."""
    data = batch(PAYLOADS[name][0])

    assert validate(data) == validate(data, piece=piece)


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_largest_timestamp_is_found(is_stream):
    """The result has the largest timestamp, and the number of records."""
    records = [PlainRecord(timestamp=time) for time in (5, 9, 7)]

    found = validate(plain_batch(records), is_stream=is_stream)

    assert (RecordProblem.NONE, 3, 9, True, []) == found


def test_records_without_timestamps_have_none_together():
    """Timestamps below -1 count as no timestamp, as in Kafka."""
    assert -1 == validate(plain_batch([PlainRecord(timestamp=-7)])).max_timestamp


@pytest.mark.parametrize("is_stream", [False, True])
def test_each_refused_record_is_named(is_stream):
    """Records without a key, too old and too new ones are named, with the reason."""
    strict = ANYTHING._replace(needs_keys=True, before_max_ms=DAY_MS, after_max_ms=0)
    records = [
        PlainRecord(key=b"k", timestamp=NOW_MS),
        PlainRecord(timestamp=NOW_MS),
        PlainRecord(key=b"k", timestamp=NOW_MS - DAY_MS),
        PlainRecord(key=b"k", timestamp=NOW_MS - DAY_MS - 1),
        PlainRecord(key=b"", timestamp=NOW_MS + 1),
        PlainRecord(key=b"k", timestamp=-1),
    ]

    assert [
        RefusedByTopic(1, Refusal.NO_KEY, NOW_MS),
        RefusedByTopic(3, Refusal.TIMESTAMP, NOW_MS - DAY_MS - 1),
        RefusedByTopic(4, Refusal.TIMESTAMP, NOW_MS + 1),
    ] == validate(plain_batch(records), strict, is_stream=is_stream).refused


def test_only_the_first_refused_records_are_named():
    """Any number of records may be refused; the first hundred are named."""
    found = validate(
        plain_batch(3 * MAX_REFUSED_RECORDS), ANYTHING._replace(needs_keys=True), is_stream=False
    )

    assert list(range(MAX_REFUSED_RECORDS)) == [record.position for record in found.refused]
    assert 3 * MAX_REFUSED_RECORDS == found.records_done


def test_nothing_is_read_after_a_problem():
    """A problem is reported before the next chunk is decompressed, which may be corrupt."""

    def chunks():
        yield batch(PAYLOADS["-1 headers"][0])[RECORD_BATCH_OVERHEAD:]
        raise AssertionError

    found = validate_records(decode_header(batch(b"")), chunks(), ANYTHING, is_stream=True)

    assert RecordProblem.NEGATIVE_HEADER_COUNT == found.problem
