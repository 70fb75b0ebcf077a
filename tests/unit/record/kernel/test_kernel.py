"""The compiled loop that writes records: bytes, reasons to return, and checks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.record.columns import (
    NULL_PARTITION,
    NULL_TIMESTAMP,
    BytesColumn,
    EncodedHeaders,
    RecordColumns,
    constant_topic,
)
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.kernel.kernel import (
    SLOT_DTYPE,
    STICKY_DTYPE,
    STICKY_SLOT,
    AppendResult,
    AppendStatus,
    SlotStatus,
    append_rows,
    assign_slots,
)
from spark_kafka_sink.record.kernel.kernel_hashes import murmur2
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD
from tests.support.record.kernel_batches import (
    Slots,
    Written,
    columns_of,
    header_columns,
    no_sticky,
    write_records,
)
from tests.support.record.plain_batches import PlainRecord, encode_record
from tests.support.record.record_columns import bytes_column, columns

NOW_MS = 1_700_000_000_000
NO_LIMIT = 2**31 - 1


def int32s(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def payload_of(*records: PlainRecord) -> bytes:
    """Return the encoded records of a batch, from an independent encoder."""
    base = records[0].timestamp
    return b"".join(
        encode_record(record, offset_delta=delta, base_timestamp=base)
        for delta, record in enumerate(records)
    )


def sticky_table(*, slot: int, limit: int, used: int = 0) -> np.ndarray:
    return np.array([(slot, used, limit)], STICKY_DTYPE)


def test_a_slot_fills_a_cache_line():
    """Slots have the size of a cache line, so that neighbours do not share one."""
    assert 64 == SLOT_DTYPE.itemsize


# --- append_rows: what is written


def test_records_are_encoded_as_in_kafka():
    """Keys, values and headers are encoded correctly, whether null, empty or not."""
    records = [
        PlainRecord(b"value", b"key", 5, ((b"h", b"1"), (b"h", None), (b"", b""))),
        PlainRecord(None, None, 5),
        PlainRecord(b"", b"", 6, ((b"h" * 100, b"v" * 1000),)),
        PlainRecord(b"x" * 63, b"y" * 64, 70),
    ]
    written = write_records(columns_of(records))
    assert payload_of(*records) == written.payload
    assert (4, 5, 70) == written[1:]


@pytest.mark.parametrize("length", [0, 63, 64, 8191, 8192, 2**20 - 1, 2**20, 2**20 + 1])
def test_lengths_of_every_width_are_encoded(length):
    """Lengths are encoded correctly at every size of their varint."""
    record = PlainRecord(b"v" * length, b"k" * length)
    written = write_records(columns_of([record]), capacity=3 << 20)
    assert payload_of(record) == written.payload


def test_short_fields_are_copied_to_their_last_byte():
    """Short fields of every length are copied exactly, although the moves overlap."""
    pattern = bytes(range(1, 71))
    for length in range(70):
        name, value = pattern[:length], pattern[length:]
        record = PlainRecord(value, name, headers=((name, value), (value, name), (name, None)))
        assert payload_of(record) == write_records(columns_of([record])).payload


@pytest.mark.parametrize("count", [63, 64, 65, 8193])
def test_offset_deltas_of_every_width_are_encoded(count):
    """The records of a batch are numbered from 0, at every size of the varint."""
    records = [PlainRecord(b"v")] * count
    assert payload_of(*records) == write_records(columns_of(records)).payload


@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_header_counts_of_every_width_are_encoded(count):
    """Any number of headers can be written."""
    record = PlainRecord(b"v", headers=((b"name", b"value"),) * count)
    assert payload_of(record) == write_records(columns_of([record])).payload


@pytest.mark.parametrize("count", [0, 1, 63, 64])
@pytest.mark.parametrize("with_own", [False, True])
def test_encoded_headers_come_behind_those_of_the_columns(count, with_own):
    """The number of headers is that of both, and each row has its own."""
    own = ((b"name", b"value"), (b"", None))
    records = [PlainRecord(b"v", headers=own[: row if with_own else 0]) for row in range(3)]
    blocks = [b"", b"\x02c\x02d" * count, b"\x02e\x01"]
    encoded = EncodedHeaders(np.array([0, count, 1], np.int32), bytes_column(blocks))
    made = dataclasses.replace(columns_of(records, with_headers=with_own), encoded_headers=encoded)
    more = [(), ((b"c", b"d"),) * count, ((b"e", None),)]
    expected = [
        record._replace(headers=record.headers + headers)
        for record, headers in zip(records, more, strict=True)
    ]
    assert payload_of(*expected) == write_records(made).payload


def test_timestamps_are_relative_to_the_first():
    """Timestamps are relative to the first and may decrease; the batch keeps the maximum."""
    times = [1000, 999, 0, 2**62, 1000 + 63, 1000 - 64, 1000 + 64]
    records = [PlainRecord(b"v", timestamp=time) for time in times]
    written = write_records(columns_of(records))
    assert payload_of(*records) == written.payload
    assert (1000, 2**62) == (written.base_timestamp, written.max_timestamp)


def test_no_timestamp_means_now():
    """Rows without a timestamp get the time of appending."""
    records = [PlainRecord(timestamp=t) for t in (-1, NOW_MS - 5, -1)]
    written = write_records(columns_of(records), now_ms=NOW_MS)
    batch = decode_record_batch(written.batch())
    assert [NOW_MS, NOW_MS - 5, NOW_MS] == [record.timestamp for record in batch.records]
    assert (NOW_MS, NOW_MS) == (written.base_timestamp, written.max_timestamp)


def test_a_later_call_continues_the_batch():
    """A later call continues the batch, with its offsets and its base timestamp."""
    slots, sticky = Slots(1), no_sticky()
    records = [PlainRecord(b"a", timestamp=100), PlainRecord(b"b", timestamp=90)]
    for record in records:
        append_rows(columns_of([record]), int32s(0), 0, slots.table, sticky, NOW_MS, NO_LIMIT)
    assert payload_of(*records) == slots.payload()
    slot = slots.table[0]
    assert [2, 100, 100] == [slot[f] for f in ("record_count", "base_timestamp", "max_timestamp")]


def test_an_emptied_slot_has_new_timestamps():
    """A record count of 0 resets the timestamps of a slot."""
    slots, sticky = Slots(1), no_sticky()
    slots.table[0]["base_timestamp"] = 10**15
    slots.table[0]["max_timestamp"] = 10**15
    record = PlainRecord(b"a", timestamp=7)
    append_rows(columns_of([record]), int32s(0), 0, slots.table, sticky, NOW_MS, NO_LIMIT)
    assert payload_of(record) == slots.payload()
    assert (7, 7) == (slots.table[0]["base_timestamp"], slots.table[0]["max_timestamp"])


def test_columns_may_be_slices_of_larger_ones():
    """Columns may be slices, with offsets and bitmaps that start anywhere."""
    whole = bytes_column([b"before", None, b"a", None, b"", b"b", b"after"])
    for first in range(4):
        sliced = BytesColumn(
            np.ascontiguousarray(whole.offsets[first : first + 4]),
            whole.data,
            whole.validity,
            first,
        )
        made = dataclasses.replace(columns([b""] * 3), key=sliced, value=sliced)
        expected = [b"before", None, b"a", None, b"", b"b", b"after"][first : first + 3]
        batch = decode_record_batch(write_records(made).batch())
        assert [(value, value) for value in expected] == [(r.key, r.value) for r in batch.records]


# --- append_rows: when it returns

ROW = PlainRecord(b"v" * 30, b"k" * 5)
ROW_BYTES = len(payload_of(ROW))


def append(records, row_slots, slots, *, sticky=None, start=0, max_record_bytes=NO_LIMIT):
    return append_rows(
        columns_of(records, with_headers=False),
        np.array(row_slots, np.int32),
        start,
        slots.table,
        no_sticky() if sticky is None else sticky,
        NOW_MS,
        max_record_bytes,
    )


def test_the_result_has_no_slot_when_all_rows_are_written():
    """When all rows are written, the result has no slot."""
    assert AppendResult(2, AppendStatus.ALL_APPENDED, -1, 0) == append([ROW] * 2, [0, 0], Slots(1))


def test_writing_can_begin_at_any_row():
    """Rows before the start are not written, and a start after the last row writes nothing."""
    slots = Slots(1)
    append([PlainRecord(b"a"), PlainRecord(b"b")], [0, 0], slots, start=1)
    assert payload_of(PlainRecord(b"b")) == slots.payload()
    assert 2 == append([ROW] * 2, [0, 0], slots, start=2).next_row


def test_a_record_may_fill_a_slot_exactly():
    """A record may end exactly at its slot's limit."""
    slots = Slots(1, capacity=RECORD_BATCH_OVERHEAD + 2 * ROW_BYTES)
    assert AppendStatus.ALL_APPENDED is append([ROW] * 2, [0, 0], slots).status
    assert payload_of(ROW, ROW) == slots.payload()


def test_a_full_slot_is_reported_with_the_size_needed():
    """A record that is one byte too large leaves the slot unchanged, and its size is returned."""
    slots = Slots(1, capacity=RECORD_BATCH_OVERHEAD + 2 * ROW_BYTES - 1)
    result = append([ROW] * 2, [0, 0], slots)
    assert AppendResult(1, AppendStatus.BATCH_FULL, 0, ROW_BYTES) == result
    assert payload_of(ROW) == slots.payload()
    before = slots.table.copy()
    assert result == append([ROW] * 2, [0, 0], slots, start=1)
    assert (before == slots.table).all()


def test_the_size_needed_includes_the_deltas():
    """The returned size includes the deltas that the record has in the current batch."""
    slots = Slots(1, capacity=1 << 12)
    append([PlainRecord(b"v", timestamp=0)] * 64, [0] * 64, slots)
    late = PlainRecord(b"v", timestamp=2**40)
    slots.table[0]["limit"] = slots.table[0]["position"]
    in_batch = append([late], [0], slots).record_bytes
    slots.table[0]["record_count"] = 0
    alone = append([late], [0], slots).record_bytes
    assert len(payload_of(late)) == alone
    assert alone + 6 == in_batch


def test_a_slot_without_a_buffer_is_full():
    """A slot with the address 0 has no open batch, and counts as full."""
    slots = Slots(2)
    slots.table[1]["address"] = 0
    result = append([ROW] * 3, [0, 1, 0], slots)
    assert AppendResult(1, AppendStatus.BATCH_FULL, 1, ROW_BYTES) == result


def test_writing_continues_after_a_full_slot():
    """After room is made, writing continues with the same row."""
    slots = Slots(1, capacity=RECORD_BATCH_OVERHEAD + ROW_BYTES)
    records = [PlainRecord(bytes([65 + i]) * 30, b"k" * 5) for i in range(4)]
    row, seen = 0, []
    while (result := append(records, [0] * 4, slots, start=row)).status is AppendStatus.BATCH_FULL:
        row = result.next_row
        seen.append(slots.payload())
        slots.table[0]["position"] = RECORD_BATCH_OVERHEAD
        slots.table[0]["record_count"] = 0
    assert [payload_of(record) for record in records] == [*seen, slots.payload()]


def test_a_record_that_is_too_large_is_reported():
    """A record is too large if it exceeds the maximum in an empty batch; its size is returned."""
    slots = Slots(1)
    large = PlainRecord(b"v" * 1000)
    size = len(payload_of(large))
    assert AppendStatus.ALL_APPENDED is append([large], [0], slots, max_record_bytes=size).status
    result = append([ROW, large], [0, 0], slots, max_record_bytes=size - 1)
    assert AppendResult(1, AppendStatus.RECORD_TOO_LARGE, 0, size) == result


def test_the_size_of_a_record_includes_its_length_field():
    """A body of 64 bytes is the shortest whose length takes two bytes."""
    records = [PlainRecord(b"v" * count) for count in (57, 58)]
    assert [64, 66] == [len(payload_of(record)) for record in records]
    results = [append([each], [0], Slots(1), max_record_bytes=63) for each in records]
    refused = AppendStatus.RECORD_TOO_LARGE
    assert [AppendResult(0, refused, 0, size) for size in (64, 66)] == results
    result = append(records[1:], [0], Slots(1), max_record_bytes=65)
    assert AppendResult(0, refused, 0, 66) == result


def test_a_record_too_large_takes_precedence_over_a_full_batch():
    """A record that is too large is reported even if its slot has no open batch."""
    slots = Slots(1)
    slots.table[0]["address"] = 0
    result = append([ROW], [0], slots, max_record_bytes=ROW_BYTES - 1)
    assert AppendStatus.RECORD_TOO_LARGE is result.status


def test_deltas_do_not_make_a_record_too_large():
    """A record that fits into an empty batch is never too large because of its deltas."""
    slots = Slots(1)
    first, late = PlainRecord(b"v", timestamp=0), PlainRecord(b"v", timestamp=2**40)
    result = append([first, late], [0, 0], slots, max_record_bytes=len(payload_of(late)))
    assert AppendStatus.ALL_APPENDED is result.status


# --- append_rows: sticky partitions


def test_no_sticky_partition_is_chosen_at_first():
    """Before the first keyless row, the caller has to choose a sticky partition."""
    result = append([ROW], [STICKY_SLOT], Slots(1))
    assert AppendResult(0, AppendStatus.STICKY_FULL, -1, 0) == result


def test_keyless_rows_go_to_the_sticky_partition():
    """Keyless rows go to the sticky partition, and only their bytes are counted there."""
    slots, sticky = Slots(2), sticky_table(slot=1, limit=1000, used=10)
    append([ROW, ROW, ROW], [STICKY_SLOT, 0, STICKY_SLOT], slots, sticky=sticky)
    assert [payload_of(ROW), payload_of(ROW, ROW)] == [slots.payload(0), slots.payload(1)]
    assert 10 + 2 * ROW_BYTES == sticky[0]["bytes"]


@pytest.mark.parametrize("limit", [ROW_BYTES + 1, 2 * ROW_BYTES])
def test_a_sticky_partition_changes_at_its_limit(limit):
    """When its bytes reach the limit, a new sticky partition is needed before the next row."""
    slots, sticky = Slots(2), sticky_table(slot=1, limit=limit)
    result = append([ROW] * 3, [STICKY_SLOT] * 3, slots, sticky=sticky)
    assert AppendResult(2, AppendStatus.STICKY_FULL, 1, 0) == result
    assert payload_of(ROW, ROW) == slots.payload(1)


def test_bytes_of_an_unwritten_row_do_not_count():
    """A row is counted for the sticky partition only when it is written."""
    slots, sticky = Slots(1, capacity=RECORD_BATCH_OVERHEAD), sticky_table(slot=0, limit=1000)
    result = append([ROW], [STICKY_SLOT], slots, sticky=sticky)
    assert (AppendStatus.BATCH_FULL, 0) == (result.status, sticky[0]["bytes"])


def test_each_topic_has_its_own_sticky_partition():
    """Each topic has its own sticky partition."""
    made = columns([b"a", b"b", b"c"], topics=["t", "u", "t"])
    slots = Slots(2)
    sticky = np.array([(1, 0, 1000), (0, 0, 1000)], STICKY_DTYPE)
    append_rows(made, int32s(-1, -1, -1), 0, slots.table, sticky, 0, NO_LIMIT)
    assert payload_of(PlainRecord(b"b")) == slots.payload(0)
    assert payload_of(PlainRecord(b"a"), PlainRecord(b"c")) == slots.payload(1)


# --- append_rows: errors of the caller


@pytest.mark.parametrize("slot", [1, 2**31 - 1])
def test_invalid_slots_are_rejected(slot):
    """A slot index past the end of the table is rejected."""
    with pytest.raises(ValueError, match=f"row 1 has slot {slot}, but there are only 1"):
        append([ROW] * 2, [0, slot], Slots(1))


def test_invalid_sticky_slots_are_rejected():
    """A sticky partition's slot past the end of the table is rejected."""
    with pytest.raises(ValueError, match="row 0 has slot 5, but there are only 1"):
        append([ROW], [STICKY_SLOT], Slots(1), sticky=sticky_table(slot=5, limit=100))


@pytest.mark.parametrize("start", [-1, 3])
def test_invalid_start_rows_are_rejected(start):
    """A start row outside the columns is rejected."""
    with pytest.raises(ValueError, match="do not match the columns"):
        append([ROW] * 2, [0, 0], Slots(1), start=start)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_row_slots_is_rejected(count):
    """The number of row slots must equal the number of rows."""
    with pytest.raises(ValueError, match="do not match the columns"):
        append([ROW] * 2, [0] * count, Slots(1))


def test_a_sticky_table_of_wrong_length_is_rejected():
    """The number of sticky partitions must equal the number of topics."""
    with pytest.raises(ValueError, match="expected sticky partitions for 1 topics"):
        append([ROW], [0], Slots(1), sticky=no_sticky(2))


def test_arrays_of_another_type_are_rejected():
    """Arrays of the wrong type are rejected, since each function has one compiled signature."""
    with pytest.raises(TypeError):
        append_rows(columns([b"v"]), np.zeros(1, np.int64), 0, Slots(1).table, no_sticky(), 0, 1)
    with pytest.raises(TypeError):
        append_rows(columns([b"v"]), int32s(0), 0, np.zeros(1, np.int64), no_sticky(), 0, 1)


# --- everything at once

BYTES = st.none() | st.binary(max_size=80)
ROWS = st.lists(
    st.tuples(
        st.builds(
            PlainRecord,
            value=BYTES,
            key=BYTES,
            timestamp=st.integers(-1, 2**41),
            headers=st.lists(
                st.tuples(st.sampled_from([b"", b"name", b"same" * 20]), BYTES), max_size=3
            ).map(tuple),
        ),
        st.none() | st.integers(0, 3),
    ),
    max_size=60,
)


@given(
    rows=ROWS,
    capacity=st.integers(RECORD_BATCH_OVERHEAD, 1500),
    sticky_bytes=st.integers(1, 500),
    skip=st.integers(0, 9),
    with_headers=st.booleans(),
)
def test_every_row_is_written_once_and_in_order(rows, capacity, sticky_bytes, skip, with_headers):
    """Each partition gets exactly its rows, in order, whatever the size of the batches."""
    records = [r if with_headers else r._replace(headers=()) for r, _ in rows]
    made = sliced_columns(records, [p for _, p in rows], skip, with_headers=with_headers)
    slots = Slots(4, capacity=capacity)
    written: list[list] = [[], [], [], []]
    result = assign_slots(made, int32s(0), int32s(4))
    assert SlotStatus.ALL_ASSIGNED is result.status
    sticky, order = no_sticky(), []

    def close(index: int) -> None:
        slot = slots.table[index]
        if slot["record_count"]:
            part = Written(
                slots.payload(index),
                *(int(slot[f]) for f in ("record_count", "base_timestamp", "max_timestamp")),
            )
            batch = decode_record_batch(part.batch())
            assert max(r.timestamp for r in batch.records) == batch.header.max_timestamp
            written[index] += [(r.timestamp, r.key, r.value, r.headers) for r in batch.records]
        slots.table[index]["position"] = RECORD_BATCH_OVERHEAD
        slots.table[index]["record_count"] = 0

    row = 0
    while True:
        append_result = append_rows(
            made, result.row_slots, row, slots.table, sticky, NOW_MS, NO_LIMIT
        )
        row = append_result.next_row
        match append_result.status:
            case AppendStatus.ALL_APPENDED:
                break
            case AppendStatus.STICKY_FULL:
                sticky[0] = ((int(sticky[0]["slot"]) + 1) % 4, 0, sticky_bytes)
                order.append((row, int(sticky[0]["slot"])))
            case AppendStatus.BATCH_FULL:
                index = append_result.slot
                close(index)
                if RECORD_BATCH_OVERHEAD + append_result.record_bytes > slots.table[index]["limit"]:
                    larger = Slots(1, capacity=RECORD_BATCH_OVERHEAD + append_result.record_bytes)
                    slots.buffers[index] = larger.buffers[0]
                    slots.table[index] = larger.table[0]
    for index in range(4):
        close(index)
    assert expected_order(records, list(result.row_slots), order) == written


def expected_order(records, row_slots, sticky_changes) -> list[list]:
    changes, sticky = dict(sticky_changes), -1
    partitions: list[list] = [[], [], [], []]
    for row, (record, slot) in enumerate(zip(records, row_slots, strict=True)):
        sticky = changes.get(row, sticky)
        partitions[sticky if slot == STICKY_SLOT else slot].append(
            (
                NOW_MS if record.timestamp == -1 else record.timestamp,
                record.key,
                record.value,
                tuple((key.decode(), value) for key, value in record.headers),
            )
        )
    return partitions


def sliced_columns(records, partitions, skip: int, *, with_headers: bool) -> RecordColumns:
    """Return columns of these records as slices that begin `skip` rows into larger columns."""

    def sliced(values) -> BytesColumn:
        column = bytes_column([b"before"] * skip + list(values) + [b"after"])
        end = skip + len(values) + 1
        return BytesColumn(
            np.ascontiguousarray(column.offsets[skip:end]), column.data, column.validity, skip
        )

    rows = len(records)
    headers = header_columns([((b"before", b"x"),)] * skip + [r.headers for r in records])
    return RecordColumns(
        num_rows=rows,
        key=sliced([r.key for r in records]),
        value=sliced([r.value for r in records]),
        topics=("t",),
        topic_index=constant_topic(rows),
        partition=np.array([NULL_PARTITION if p is None else p for p in partitions], np.int32),
        timestamp=np.array(
            [NULL_TIMESTAMP if r.timestamp == -1 else r.timestamp for r in records], np.int64
        ),
        headers=headers._replace(offsets=np.ascontiguousarray(headers.offsets[skip:]))
        if with_headers
        else None,
    )


@given(st.binary(max_size=100))
def test_murmur2_is_a_signed_number(key):
    """The hash is a signed 32-bit number, as in Java."""
    assert -(2**31) <= murmur2(key) < 2**31


def test_each_written_row_gets_its_slot_and_index():
    """Each written row gets its slot and its index in the batch."""
    sticky = sticky_table(slot=1, limit=1000)
    row_slots, row_indexes = int32s(-1, 0, -1, 0), int32s(-9, -9, -9, -9)
    append_rows(
        columns([b"v"] * 4),
        row_slots,
        0,
        Slots(2).table,
        sticky,
        NOW_MS,
        NO_LIMIT,
        row_indexes=row_indexes,
    )
    assert [1, 0, 1, 0] == row_slots.tolist()
    assert [0, 0, 1, 1] == row_indexes.tolist()


def test_an_index_array_of_wrong_length_is_rejected():
    """The array for indexes in the batch must have one entry per row."""
    with pytest.raises(ValueError, match="expected 2 row indexes or none, not 1"):
        append_rows(
            columns([b"v"] * 2),
            int32s(0, 0),
            0,
            Slots(1).table,
            no_sticky(),
            NOW_MS,
            NO_LIMIT,
            row_indexes=int32s(0),
        )
