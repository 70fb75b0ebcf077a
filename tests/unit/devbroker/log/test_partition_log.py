"""The log of one partition: offsets, reads, and lookups by timestamp."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog, TimestampAndOffset
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_records
from spark_kafka_sink.record.record_batch import decode_header, validate_record_batch
from tests.support.record.decode_budgets import ample_budget
from tests.support.record.plain_batches import PlainRecord, plain_batch


def append(log, batch):
    """Append a batch in memory of its own, as the produce handler does."""
    view = memoryview(bytearray(batch))
    return log.append(view, decode_header(view))


def log_of(*batches):
    log = PartitionLog()
    for batch in batches:
        append(log, batch)
    return log


def error_of(work):
    with pytest.raises(RefusedError) as caught:
        work()
    return caught.value.error_code


def test_an_empty_log_begins_and_ends_at_0():
    """All offsets of a new partition are 0, and a read returns nothing."""
    log = PartitionLog()

    assert (0, 0, 0, 0) == (
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.last_stable_offset,
    )
    assert [] == log.read(0, max_bytes=1000, min_one_batch=True).batches


def test_batches_get_offsets_one_after_the_other():
    """The next batch begins where the last one ended."""
    log = PartitionLog()

    results = [append(log, plain_batch(count)) for count in (3, 1, 2)]

    assert [(0, 2), (3, 3), (4, 5)] == [(r.first_offset, r.last_offset) for r in results]
    assert 6 == log.log_end_offset


def test_an_appended_batch_keeps_its_checksum_and_gets_offset_and_leader_epoch():
    """Offset and leader epoch are written to fields that the checksum does not cover."""
    log = PartitionLog(leader_epoch=5)
    append(log, plain_batch(3))
    append(log, plain_batch([PlainRecord(b"x")]))

    headers = [validate_record_batch(batch) for batch in log.batches()]

    assert [(0, 5), (3, 5)] == [(h.base_offset, h.partition_leader_epoch) for h in headers]


def test_a_writable_batch_is_kept_where_it_lies():
    """Appending a writable batch does not copy it."""
    memory = bytearray(plain_batch(2))
    log = PartitionLog()
    log.append(memoryview(memory), decode_header(memory))

    (kept,) = log.batches()

    assert memory is kept.obj


def test_a_read_only_batch_is_copied():
    """Read-only memory is copied rather than refused."""
    log = PartitionLog()
    append(log, plain_batch(1))
    batch = plain_batch(2)

    log.append(memoryview(batch), decode_header(batch))

    assert [0, 1, 2] == [record.offset for record in decode_records(b"".join(log.batches()))]
    assert plain_batch(2) == batch


def test_a_duplicate_is_answered_with_the_first_offsets_and_not_appended():
    """Appending a batch again changes nothing and returns the original offsets."""
    log = PartitionLog()
    batch = plain_batch(
        [PlainRecord(timestamp=7)] * 3, producer_id=1, producer_epoch=0, base_sequence=0
    )
    append(log, plain_batch(2))
    first = append(log, batch)

    again = append(log, batch)

    assert (2, 4, False) == first[:3]
    assert (2, 4, True, 7) == tuple(again)
    assert 5 == log.log_end_offset


def test_a_batch_out_of_sequence_is_refused_and_leaves_the_log_as_it_was():
    """A gap is OUT_OF_ORDER_SEQUENCE_NUMBER and nothing is appended."""
    log = log_of(plain_batch(2, producer_id=1, producer_epoch=0, base_sequence=0))
    gap = plain_batch(1, producer_id=1, producer_epoch=0, base_sequence=3)

    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == error_of(lambda: append(log, gap))
    assert (2, 1) == (log.log_end_offset, len(list(log.batches())))


def test_batches_without_a_producer_id_have_no_sequence():
    """Without a producer id the same batch is appended every time."""
    log = log_of(plain_batch(1), plain_batch(1))

    assert 2 == log.log_end_offset
    assert [] == log.producer_state.entries()


BATCH = plain_batch([PlainRecord(b"x" * 30)])


@pytest.mark.parametrize(
    ("offset", "max_bytes", "min_one", "expected"),
    [
        pytest.param(0, 10**9, False, [0, 1, 2, 3], id="all"),
        pytest.param(2, 10**9, False, [2, 3], id="from the middle"),
        pytest.param(4, 10**9, True, [], id="at the end"),
        pytest.param(0, 2 * len(BATCH), False, [0, 1], id="exactly two"),
        pytest.param(0, 3 * len(BATCH) - 1, False, [0, 1], id="not quite three"),
        pytest.param(1, len(BATCH) - 1, False, [], id="less than one"),
        pytest.param(1, len(BATCH) - 1, True, [1], id="less than one, but one at least"),
        pytest.param(1, 0, True, [1], id="no bytes, but one at least"),
        pytest.param(1, 0, False, [], id="no bytes"),
    ],
)
def test_reads_give_whole_batches_within_the_limit(offset, max_bytes, min_one, expected):
    """A read starts at the batch with its offset and ends before a batch that does not fit."""
    log = log_of(*[BATCH] * 4)

    found = log.read(offset, max_bytes=max_bytes, min_one_batch=min_one)

    assert expected == [decode_header(batch).base_offset for batch in found.batches]
    assert len(expected) * len(BATCH) == found.size_in_bytes


@pytest.mark.parametrize(
    ("max_bytes", "min_one", "expected"),
    [
        pytest.param(10**9, False, 4 * len(BATCH), id="all there is"),
        pytest.param(len(BATCH) + 5, False, len(BATCH) + 5, id="cut off within a batch"),
        pytest.param(5, True, len(BATCH), id="the one batch that comes anyway"),
        pytest.param(5, False, 0, id="nothing"),
    ],
)
def test_readable_bytes_are_those_that_kafka_would_return(max_bytes, min_one, expected):
    """Kafka truncates the last batch at the limit; a Fetch's min_bytes counts these bytes."""
    log = log_of(*[BATCH] * 4)

    assert expected == log.read(0, max_bytes=max_bytes, min_one_batch=min_one).readable_bytes


def test_a_read_from_within_a_batch_gives_the_whole_batch():
    """Consumers skip the records before the offset that they requested."""
    log = log_of(plain_batch(2), plain_batch(5), plain_batch(1))

    found = log.read(4, max_bytes=10**9, min_one_batch=False)

    assert [2, 7] == [decode_header(batch).base_offset for batch in found.batches]


@pytest.mark.parametrize("offset", [-1, 4, 10**18])
def test_reads_outside_of_the_log_are_out_of_range(offset):
    """A read below the log start or above the log end does not wait."""
    log = log_of(plain_batch(3))

    assert ErrorCode.OFFSET_OUT_OF_RANGE == error_of(
        lambda: log.read(offset, max_bytes=1, min_one_batch=True)
    )


TIMES = ((10, 30, 20), (15,), (40, 40), (35,))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, TimestampAndOffset(10, 0)),
        (10, TimestampAndOffset(10, 0)),
        (11, TimestampAndOffset(30, 1)),
        (31, TimestampAndOffset(40, 4)),
        (36, TimestampAndOffset(40, 4)),
        (41, None),
    ],
)
def test_the_first_record_as_late_as_a_time_is_found(compression, timestamp, expected):
    """A lookup returns the first match in offset order, in whatever order the timestamps are."""
    log = log_of(
        *[
            plain_batch([PlainRecord(timestamp=t) for t in times], compression=compression)
            for times in TIMES
        ]
    )

    assert expected == log.offset_for_timestamp(timestamp, ample_budget())


def test_the_record_of_the_largest_timestamp_is_the_first_that_has_it():
    """Of several records with the largest timestamp the first one is returned."""
    log = log_of(*[plain_batch([PlainRecord(timestamp=t) for t in times]) for times in TIMES])

    assert TimestampAndOffset(40, 4) == log.offset_of_max_timestamp(ample_budget())


def test_an_empty_log_has_no_largest_timestamp():
    """A lookup in an empty log returns None."""
    assert None is PartitionLog().offset_of_max_timestamp(ample_budget())
    assert None is PartitionLog().offset_for_timestamp(0, ample_budget())


def test_a_header_that_promises_a_later_record_than_there_is_finds_none():
    """A lookup relies on the records' timestamps, not on those in the batch header."""
    log = log_of(plain_batch([PlainRecord(timestamp=5)], max_timestamp=99))

    assert None is log.offset_for_timestamp(50, ample_budget())


def test_the_end_of_a_leader_epoch_to_come_is_not_known():
    """The last epoch ends at the log end, and a later epoch has no end."""
    log = log_of(plain_batch(3))

    assert (0, 3) == log.end_offset_for_epoch(0)
    assert None is log.end_offset_for_epoch(1)


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    start=st.integers(0, 40),
    max_bytes=st.integers(0, 2000),
    min_one=st.booleans(),
)
def test_reads_agree_with_a_scan(counts, start, max_bytes, min_one):
    """A read by bisection returns the same batches as a scan of the log."""
    log = log_of(*[plain_batch(count) for count in counts])
    start = min(start, log.log_end_offset)
    expected = []
    size = 0
    for batch in log.batches():
        (base_offset,) = struct.unpack_from(">q", batch)
        if base_offset + decode_header(batch).last_offset_delta < start:
            continue
        if size + len(batch) > max_bytes and not (min_one and not expected):
            break
        expected.append(base_offset)
        size += len(batch)

    found = log.read(start, max_bytes=max_bytes, min_one_batch=min_one)

    assert expected == [decode_header(batch).base_offset for batch in found.batches]
    assert size == found.size_in_bytes
