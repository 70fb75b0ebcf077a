"""The conditions that a batch must meet before it is appended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.log_validator import (
    ValidationBudget,
    is_transactional,
    only_batch,
    validate_batch,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.record_batch import validate_record_batch
from tests.support.record.plain_batches import PlainRecord, plain_batch

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TRANSACTIONAL = 0x10
CONTROL = 0x20
LOG_APPEND_TIME = 0x08


def only(records, *, api_version=12):
    return only_batch(None if records is None else memoryview(records), api_version=api_version)


def validate(batch, config=TopicConfig()):  # noqa: B008 - it is frozen
    return validate_batch(
        memoryview(bytearray(batch)), config, now_ms=NOW_MS, budget=ValidationBudget(1 << 30)
    )


def refusal(work):
    with pytest.raises(RefusedError) as caught:
        work()
    return caught.value


ONE = plain_batch(3)


@pytest.mark.parametrize(
    ("records", "api_version", "expected"),
    [
        pytest.param(None, 12, ErrorCode.INVALID_RECORD, id="null"),
        pytest.param(b"", 12, ErrorCode.INVALID_RECORD, id="empty"),
        pytest.param(ONE[:11], 12, ErrorCode.INVALID_RECORD, id="cut off in the length"),
        pytest.param(ONE[:16], 12, ErrorCode.INVALID_RECORD, id="cut off before the magic"),
        pytest.param(ONE[:-1], 12, ErrorCode.INVALID_RECORD, id="cut off at the end"),
        pytest.param(
            plain_batch(1, batch_length=13), 12, ErrorCode.CORRUPT_MESSAGE, id="length too small"
        ),
        pytest.param(
            plain_batch(1, batch_length=-1), 12, ErrorCode.CORRUPT_MESSAGE, id="length negative"
        ),
        pytest.param(
            plain_batch(1, batch_length=48),
            12,
            ErrorCode.CORRUPT_MESSAGE,
            id="shorter than a header",
        ),
        pytest.param(plain_batch(1, magic=3), 12, ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(plain_batch(1, magic=-1), 12, ErrorCode.CORRUPT_MESSAGE, id="magic -1"),
        pytest.param(plain_batch(1, magic=1), 12, ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(plain_batch(1, magic=0), 12, ErrorCode.INVALID_RECORD, id="magic 0"),
        pytest.param(ONE + ONE, 12, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(
            ONE + plain_batch(1, magic=9), 12, ErrorCode.CORRUPT_MESSAGE, id="garbage behind"
        ),
        pytest.param(
            plain_batch(1, compression=CompressionType.ZSTD),
            6,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            id="zstd before version 7",
        ),
    ],
)
def test_anything_but_one_batch_of_format_2_is_refused(records, api_version, expected):
    """A partition's records in a Produce request must be one whole batch of format 2."""
    assert expected == refusal(lambda: only(records, api_version=api_version)).error_code


@pytest.mark.parametrize("api_version", [3, 6, 7, 12])
def test_one_batch_is_accepted(api_version):
    """One whole batch is returned unchanged."""
    assert ONE == only(ONE, api_version=api_version)


@pytest.mark.parametrize("records", [plain_batch(1, magic=9), plain_batch(1, batch_length=3)])
def test_malformed_batches_are_refused_before_transactions_are_checked(records):
    """A wrong length or format is CORRUPT_MESSAGE before anything else is checked."""
    refused = refusal(lambda: is_transactional(memoryview(records)))

    assert ErrorCode.CORRUPT_MESSAGE == refused.error_code


def test_zstd_is_accepted_since_version_7():
    """KIP-110 allows zstd since Produce version 7."""
    batch = plain_batch(1, compression=CompressionType.ZSTD)

    assert batch == only(batch, api_version=7)


def test_a_cut_off_batch_behind_the_first_is_dropped():
    """An incomplete batch after the first is ignored."""
    assert ONE == only(ONE + ONE[:40])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (None, False),
        (memoryview(b""), False),
        (memoryview(ONE), False),
        (memoryview(plain_batch(1, attributes=TRANSACTIONAL)), True),
    ],
)
def test_transactional_batches_are_recognized_by_their_attributes(records, expected):
    """Bit 4 of the attributes marks a transactional batch."""
    assert expected == is_transactional(records)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        pytest.param(plain_batch(1, base_offset=5), ErrorCode.INVALID_RECORD, id="base offset"),
        pytest.param(plain_batch(1, crc=1), ErrorCode.CORRUPT_MESSAGE, id="checksum"),
        pytest.param(ONE[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE, id="a changed byte"),
        pytest.param(plain_batch([], payload=b""), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(
            plain_batch(2, record_count=-1), ErrorCode.INVALID_RECORD, id="negative count"
        ),
        pytest.param(
            plain_batch(2, last_offset_delta=-1), ErrorCode.INVALID_RECORD, id="negative delta"
        ),
        pytest.param(
            plain_batch(2, last_offset_delta=2), ErrorCode.INVALID_RECORD, id="offsets with a gap"
        ),
        pytest.param(
            plain_batch(2, record_count=3), ErrorCode.INVALID_RECORD, id="count too large"
        ),
        pytest.param(
            plain_batch(1, attributes=CONTROL), ErrorCode.INVALID_RECORD, id="control batch"
        ),
        pytest.param(plain_batch(1, attributes=5), ErrorCode.UNKNOWN_SERVER_ERROR, id="codec 5"),
        pytest.param(
            plain_batch(1, producer_id=1, producer_epoch=0, base_sequence=-1),
            ErrorCode.INVALID_RECORD,
            id="producer without sequence",
        ),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(batch, expected):
    """The header and the checksum must be consistent with the records."""
    assert expected == refusal(lambda: validate(batch)).error_code


@pytest.mark.parametrize(("spare", "taken"), [(0, True), (-1, False)])
def test_max_message_bytes_bounds_the_whole_batch(spare, taken):
    """A batch of max.message.bytes is accepted, and one more byte is MESSAGE_TOO_LARGE."""
    config = TopicConfig(max_message_bytes=len(ONE) + spare)

    if taken:
        assert ONE == validate(ONE, config)[0]
    else:
        assert ErrorCode.MESSAGE_TOO_LARGE == refusal(lambda: validate(ONE, config)).error_code


def test_a_batch_within_the_rules_is_given_back_unchanged():
    """A valid batch is not rewritten."""
    batch = plain_batch([PlainRecord(timestamp=NOW_MS)] * 2, compression=CompressionType.LZ4)

    taken, header = validate(batch)

    assert batch == taken
    assert (2, NOW_MS) == (header.record_count, header.max_timestamp)


def test_log_append_time_is_written_into_the_batch():
    """The broker's time replaces the producer's for all records, and the checksum is updated."""
    batch = plain_batch([PlainRecord(timestamp=5), PlainRecord(timestamp=6)])

    taken, header = validate(batch, TopicConfig(log_append_time=True))

    assert header == validate_record_batch(taken)
    assert (NOW_MS, True) == (header.max_timestamp, header.log_append_time)
    assert [NOW_MS, NOW_MS] == [r.timestamp for r in decode_record_batch(taken).records]


def test_log_append_time_of_a_read_only_batch_is_written_into_a_copy():
    """Read-only memory is not modified."""
    batch = plain_batch(1)

    taken, _ = validate_batch(
        memoryview(batch),
        TopicConfig(log_append_time=True),
        now_ms=NOW_MS,
        budget=ValidationBudget(1 << 30),
    )

    assert plain_batch(1) == batch
    assert NOW_MS == validate_record_batch(taken).max_timestamp


def test_a_producer_must_not_claim_log_append_time():
    """On a LogAppendTime topic such a batch is refused, with an error for each record."""
    batch = plain_batch(2, attributes=LOG_APPEND_TIME)

    refused = refusal(lambda: validate(batch, TopicConfig(log_append_time=True)))

    assert ErrorCode.INVALID_TIMESTAMP == refused.error_code
    assert [0, 1] == [record.batch_index for record in refused.record_errors]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_a_batch_that_claims_log_append_time_and_too_many_records_names_none(compression):
    """The refusal lists only decoded records, not as many as the header claims."""
    batch = plain_batch(
        1,
        attributes=LOG_APPEND_TIME,
        compression=compression,
        record_count=10_000,
        last_offset_delta=9_999,
    )

    refused = refusal(lambda: validate(batch, TopicConfig(log_append_time=True)))

    assert (ErrorCode.INVALID_RECORD, ()) == (refused.error_code, refused.record_errors)


def test_log_append_time_is_corrected_on_other_topics():
    """On a CreateTime topic the timestamp type of the batch is corrected."""
    taken, header = validate(
        plain_batch([PlainRecord(timestamp=NOW_MS)], attributes=LOG_APPEND_TIME)
    )

    assert header == validate_record_batch(taken)
    assert (NOW_MS, False) == (header.max_timestamp, header.log_append_time)


def test_a_record_too_far_in_the_future_is_named():
    """message.timestamp.after.max.ms refuses the batch and lists its records (KIP-467)."""
    batch = plain_batch(
        [
            PlainRecord(timestamp=NOW_MS),
            PlainRecord(timestamp=NOW_MS + HOUR_MS),
            PlainRecord(timestamp=NOW_MS + HOUR_MS + 1),
        ]
    )

    refused = refusal(lambda: validate(batch))

    assert ErrorCode.INVALID_TIMESTAMP == refused.error_code
    assert [2] == [record.batch_index for record in refused.record_errors]


def test_a_record_too_far_in_the_past_is_named():
    """message.timestamp.before.max.ms refuses the batch and lists its records."""
    config = TopicConfig(message_timestamp_before_max_ms=1000)
    batch = plain_batch(
        [PlainRecord(timestamp=NOW_MS - 1001), PlainRecord(timestamp=NOW_MS - 1000)]
    )

    refused = refusal(lambda: validate(batch, config))

    assert ErrorCode.INVALID_TIMESTAMP == refused.error_code
    assert [0] == [record.batch_index for record in refused.record_errors]


def test_a_record_without_a_timestamp_is_never_too_old():
    """-1 means no timestamp and is not compared."""
    config = TopicConfig(message_timestamp_before_max_ms=1000)

    _, header = validate(plain_batch([PlainRecord(timestamp=-1)]), config)

    assert (-1, 1) == (header.max_timestamp, header.record_count)


def test_timestamps_do_not_matter_under_log_append_time():
    """The broker's time replaces the producer's, whatever that was."""
    future = plain_batch([PlainRecord(timestamp=NOW_MS * 2)])

    _, header = validate(future, TopicConfig(log_append_time=True))

    assert NOW_MS == header.max_timestamp


def test_a_compacted_topic_names_the_records_without_a_key():
    """A compacted topic refuses the batch with INVALID_RECORD and lists these records."""
    config = replace(TopicConfig(), cleanup_policy="compact")
    batch = plain_batch([PlainRecord(key=b"k"), PlainRecord(), PlainRecord(key=b"")])

    refused = refusal(lambda: validate(batch, config))

    assert ErrorCode.INVALID_RECORD == refused.error_code
    assert [1] == [record.batch_index for record in refused.record_errors]
    assert "the first is record 1" in refused.message


def test_a_compacted_topic_accepts_records_with_keys():
    """A key may be empty."""
    config = replace(TopicConfig(), cleanup_policy="compact,delete")
    batch = plain_batch([PlainRecord(key=b"k"), PlainRecord(key=b"")])

    assert batch == validate(batch, config)[0]


@pytest.mark.parametrize("compression", list(CompressionType))
def test_the_largest_timestamp_is_corrected(compression):
    """A wrong largest timestamp in the header is corrected, as in Kafka."""
    records = [PlainRecord(timestamp=5), PlainRecord(timestamp=9)]

    taken, header = validate(plain_batch(records, max_timestamp=7, compression=compression))

    assert header == validate_record_batch(taken)
    assert 9 == header.max_timestamp


def test_a_refusal_names_the_malformed_record():
    """The message says which record is malformed, and why."""
    batch = plain_batch(2, payload=plain_batch(2)[61:-8] + b"\x0f")

    assert (
        "record 1 of the 2 of the batch is malformed: its fields do not have its length"
        == refusal(lambda: validate(batch)).message
    )
