"""Single plain records are validated without the compiled loop, and never with another verdict."""

from __future__ import annotations

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.log.log_validator import plain_record_timestamp
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.kernel.validate_kernel import validate_records
from spark_kafka_sink.record.kernel.validation_values import Expectation, RecordProblem, Validation
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, decode_header
from tests.support.record.plain_batches import PlainRecord, encode_record, plain_batch

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
LOG_APPEND_TIME = 0x08
TOPIC = Expectation(NOW_MS, HOUR_MS, HOUR_MS, needs_keys=False, sets_timestamps=False)


def timestamp(batch: bytes, expected: Expectation = TOPIC) -> int | None:
    payload = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
    return plain_record_timestamp(decode_header(batch), payload, expected)


def validation(batch: bytes, expected: Expectation) -> Validation:
    payload = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
    return validate_records(decode_header(batch), [payload], expected, is_stream=False)


@pytest.mark.parametrize(
    "record",
    [
        PlainRecord(timestamp=NOW_MS),
        PlainRecord(b"v" * 100_000, b"k" * 200, NOW_MS - HOUR_MS),
        PlainRecord(None, b"", NOW_MS + HOUR_MS),
    ],
    ids=["no key", "large", "tombstone"],
)
def test_a_plain_record_needs_no_compiled_loop(record):
    """Its timestamp is returned, which the log needs."""
    assert record.timestamp == timestamp(plain_batch([record]))


NOW = PlainRecord(b"v", b"k", NOW_MS)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (plain_batch([NOW, NOW]), TOPIC),
        (plain_batch([NOW], compression=CompressionType.GZIP), TOPIC),
        (plain_batch([NOW._replace(headers=((b"h", b"1"),))]), TOPIC),
        (plain_batch([NOW._replace(value=b"v" * 1_048_576)]), TOPIC),
        (plain_batch([NOW._replace(key=None)]), TOPIC._replace(needs_keys=True)),
        (plain_batch([NOW._replace(timestamp=NOW_MS - HOUR_MS - 1)]), TOPIC),
        (plain_batch([NOW._replace(timestamp=NOW_MS + HOUR_MS + 1)]), TOPIC),
        (plain_batch([NOW._replace(timestamp=-1)]), TOPIC),
        (plain_batch([NOW], attributes=LOG_APPEND_TIME), TOPIC),
    ],
    ids=[
        "two records", "compressed", "headers", "very large", "no key", "old", "early", "timeless",
        "LogAppendTime",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_compiled_loop(batch, expected):
    """What is unusual or refused gets its verdict, and its message, from one place."""
    assert timestamp(batch, expected) is None


records = st.builds(
    PlainRecord,
    st.none() | st.binary(max_size=100),
    st.none() | st.binary(max_size=100),
    st.sampled_from([-2, -1, 0, NOW_MS - HOUR_MS - 1, NOW_MS, NOW_MS + HOUR_MS + 1, 2**63 - 1]),
)
edits = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2)


@given(
    record=records,
    base=st.sampled_from([0, 3, -64, 63, 64]),
    edits=edits,
    tail=st.binary(max_size=2),
    offset_delta=st.sampled_from([0, 0, 0, 1, 300]),
    attributes=st.sampled_from([0, 0, LOG_APPEND_TIME]),
    expected=st.builds(
        Expectation,
        st.just(NOW_MS),
        st.sampled_from([HOUR_MS, 2**63 - 1]),
        st.sampled_from([HOUR_MS, 2**63 - 1]),
        st.booleans(),
        st.booleans(),
    ),
)
@example(PlainRecord(timestamp=NOW_MS), 0, [], b"", 0, 0, TOPIC)
def test_the_compiled_loop_agrees_wherever_it_is_left_out(  # noqa: PLR0917  Hypothesis names them
    record, base, edits, tail, offset_delta, attributes, expected
):
    """Whatever the bytes are, what is accepted without the loop is accepted by it, too."""
    base_timestamp = min(max(record.timestamp - base, -(2**63)), 2**63 - 1)
    payload = bytearray(
        encode_record(record, offset_delta=offset_delta, base_timestamp=base_timestamp) + tail
    )
    for position, byte in edits:
        payload[position % len(payload)] = byte
    batch = plain_batch(
        [record._replace(timestamp=base_timestamp)], payload=bytes(payload), attributes=attributes
    )
    found = timestamp(batch, expected)
    event("without the loop" if found is not None else "with it")
    if found is not None:
        assert (RecordProblem.NONE, 1, found, True, []) == validation(batch, expected)
