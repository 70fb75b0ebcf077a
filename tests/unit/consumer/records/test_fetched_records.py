"""The rest of an answer: its position, its epochs, and what stops it."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.consumer.records import fetched_records
from spark_kafka_sink.consumer.records.fetched_records import FewBatches, RecordDecoders
from spark_kafka_sink.errors import CorruptRecordError, SchemaError
from spark_kafka_sink.record.arrow.schema import arrow_schema
from spark_kafka_sink.record.compression import CompressionType
from tests.support.consumer.fetched import ORDERS, fetched
from tests.support.record.plain_batches import PlainRecord, encode_record, plain_batch

TRANSACTIONAL = 16
CONTROL = 32
ABORT = b"\0\0\0\0"


@pytest.fixture(autouse=True, params=["by the kernel", "without it"])
def decoding(request, monkeypatch):
    """Decode the few records of these tests in both ways."""
    if request.param == "by the kernel":
        monkeypatch.setattr(FewBatches, "of", lambda *_: None)


def batch(*values, offset=0, epoch=None, **settings):
    """Encode a batch with some values; its leader epoch is not part of the checksum."""
    records = [PlainRecord(value=value) for value in values]
    encoded = plain_batch(records, base_offset=offset, **settings)
    return encoded if epoch is None else encoded[:12] + struct.pack(">i", epoch) + encoded[16:]


def marker(offset, producer_id, key=ABORT):
    return plain_batch(
        [PlainRecord(key=key, value=bytes(6))],
        base_offset=offset,
        producer_id=producer_id,
        attributes=TRANSACTIONAL | CONTROL,
    )


def damaged(encoded):
    """Change the last byte, so that the checksum is wrong."""
    return encoded[:-1] + bytes([encoded[-1] ^ 1])


def offsets(records):
    return [record.offset for record in records]


def values(records):
    return [record.value for record in records]


# --- the position


def test_records_are_taken_piece_by_piece():
    """Each call goes on where the last one stopped, over the borders of batches."""
    records = fetched(batch(b"a", b"b") + batch(b"c", b"d", b"e", offset=2))
    assert [b"a", b"b", b"c"] == values(records.take(3))
    assert (3, False) == (records.next_offset, records.is_exhausted)
    assert [b"d"] == values(records.take(1))
    assert [b"e"] == values(records.take(9))
    assert (5, True) == (records.next_offset, records.is_exhausted)
    assert [] == records.take(9)
    assert [] == records.take_arrow(arrow_schema())


def test_no_more_is_taken_once_the_limit_in_bytes_is_reached(monkeypatch):
    """The limit is checked between outputs, and what is left comes with the next call."""
    decoders = RecordDecoders(max_rows=2, few_records=0)
    records = fetched(batch(*[b"x" * 100] * 5), decoders=decoders)
    assert [0, 1] == offsets(records.take(9, max_bytes=1))
    assert 200 <= records.taken_bytes < 300
    assert [2, 3] == [
        offset
        for some in records.take_arrow(arrow_schema(), max_bytes=200)
        for offset in some.column("offset").to_pylist()
    ]
    assert [4] == offsets(records.take(9, max_bytes=1000))
    assert [] == records.take(9, max_bytes=1000)
    assert 0 == records.taken_bytes


def test_records_that_take_exactly_the_limit_are_enough():
    """The limit is what records may take, not what they must exceed."""
    decoders = RecordDecoders(max_rows=2, few_records=0)
    data = batch(*[b"x" * 100] * 4)
    first = fetched(data, decoders=decoders)
    first.take(2)
    assert [0, 1] == offsets(fetched(data, decoders=decoders).take(4, max_bytes=first.taken_bytes))


def test_few_records_count_their_headers():
    """Records that no kernel decodes count the same; if they are too large, a kernel does."""
    headers = ((b"", b""),)
    for count in (10, 2000):
        records = fetched(plain_batch([PlainRecord(headers=headers * count)]))
        (record,) = records.take(9)
        assert count == len(record.headers)
        assert 200 * count <= records.taken_bytes < 210 * count + 500


def test_nothing_is_taken_with_a_limit_of_zero():
    """A limit of zero takes nothing and changes nothing, even if the first record is corrupt."""
    records = fetched(damaged(batch(b"a")))
    assert [] == records.take(0)
    assert [] == records.take_arrow(arrow_schema(), 0)
    assert (0, False) == (records.next_offset, records.is_exhausted)


def test_an_answer_may_begin_before_the_position():
    """Brokers return whole batches: records before the position are skipped."""
    records = fetched(batch(b"a", b"b", b"c"), 2)
    assert 2 == records.next_offset
    assert [2] == offsets(records.take(9))


def test_the_position_passes_over_a_control_batch_at_the_end():
    """The next Fetch must not return the marker again; so with one that is alone."""
    records = fetched(batch(b"a", producer_id=1, attributes=TRANSACTIONAL) + marker(1, 1))
    assert [0] == offsets(records.take(9))
    assert (2, True) == (records.next_offset, records.is_exhausted)

    alone = fetched(marker(7, 1), 7)
    assert [] == alone.take(9)
    assert (8, True) == (alone.next_offset, alone.is_exhausted)


def test_the_position_passes_over_compacted_offsets_at_the_end():
    """A batch keeps its last offset when compaction removes the record there."""
    records = fetched(batch(b"a", b"b", last_offset_delta=9))
    assert [0] == offsets(records.take(1))
    assert 1 == records.next_offset
    assert [1] == offsets(records.take(1))
    assert (10, True) == (records.next_offset, records.is_exhausted)


def test_a_batch_without_records_is_passed_over():
    """Compaction may leave an empty batch."""
    empty = plain_batch(0, base_offset=3, last_offset_delta=4, payload=b"")
    records = fetched(empty, 3)
    assert [] == records.take(9)
    assert (8, True) == (records.next_offset, records.is_exhausted)


@pytest.mark.parametrize("is_committed", [True, False])
def test_aborted_transactions_are_skipped_if_only_committed_records_are_wanted(is_committed):
    """With read_uncommitted, the list of aborted transactions does not matter."""
    answer = batch(b"a", producer_id=1, attributes=TRANSACTIONAL) + marker(1, 1)
    answer += batch(b"b", offset=2)
    records = fetched_records.FetchedRecords(
        ORDERS, answer, 0, aborted=[(1, 0)], is_committed=is_committed
    )
    assert ([b"b"] if is_committed else [b"a", b"b"]) == values(records.take(9))
    assert (3, True) == (records.next_offset, records.is_exhausted)


def test_an_aborted_transaction_at_the_end_is_passed_over():
    """What is not returned is not fetched again."""
    answer = batch(b"a") + batch(b"b", b"c", offset=1, producer_id=1, attributes=TRANSACTIONAL)
    records = fetched(answer, aborted=[(1, 1)])
    assert [0] == offsets(records.take(1))
    assert (3, True) == (records.next_offset, records.is_exhausted)


@pytest.mark.parametrize("answer", [b"", batch(b"a" * 100)[:-1]])
def test_an_answer_without_a_complete_batch_is_exhausted_at_once(answer):
    """The reader can see that the response was too small for the first batch."""
    records = fetched(answer, 5)
    assert (5, 0, 0, True) == (
        records.next_offset,
        records.batch_count,
        records.size,
        records.is_exhausted,
    )
    assert [] == records.take(9)


def test_batches_are_counted():
    """The number and the size of complete batches are known before anything is decoded."""
    first, second = batch(b"a"), batch(b"b", offset=1)
    records = fetched(first + second + first[:-1])
    assert (2, len(first + second)) == (records.batch_count, records.size)


# --- leader epochs


def test_each_record_has_the_epoch_of_its_batch():
    """A change of the leader within an answer is seen by each record, and by the position."""
    answer = batch(b"a", b"b", epoch=4) + batch(b"c", offset=2, epoch=4)
    answer += batch(b"d", b"e", offset=3, epoch=6) + batch(b"f", offset=9, epoch=7)
    records = fetched(answer)
    assert -1 == records.last_epoch
    found = records.take(2)
    assert 4 == records.last_epoch
    found += records.take(3)
    assert 6 == records.last_epoch
    found += records.take(9)
    assert 7 == records.last_epoch
    assert [4, 4, 4, 6, 6, 7] == [record.leader_epoch for record in found]


def test_the_epoch_of_the_position_is_that_of_the_record_before_it():
    """After the last record of a batch, the next batch with its new epoch does not count yet."""
    records = fetched(batch(b"a", epoch=4) + batch(b"b", offset=1, epoch=6))
    records.take(1)
    assert 4 == records.last_epoch


def test_the_decoder_of_a_closed_answer_is_used_again():
    """An answer that is dropped halfway returns its decoder."""
    decoders = RecordDecoders(max_rows=1, few_records=0)
    records = fetched(batch(b"a", b"b", b"c"), decoders=decoders)
    records.take(1)
    idle = len(decoders._idle)
    records.close()
    assert idle + 1 == len(decoders._idle)


def test_an_unknown_epoch_is_none():
    """A record without a leader epoch has None, and its position the number of Kafka for that."""
    records = fetched(batch(b"a") + batch(b"b", offset=1, epoch=0))
    assert [None, 0] == [record.leader_epoch for record in records.take(9)]
    unknown = fetched(batch(b"a"))
    assert [None] == [record.leader_epoch for record in unknown.take(9)]
    assert -1 == unknown.last_epoch


def test_the_epoch_of_a_batch_that_is_passed_over_counts():
    """A marker of a new leader at the end determines the epoch of the position."""
    control = marker(1, 1)
    control = control[:12] + struct.pack(">i", 9) + control[16:]
    records = fetched(batch(b"a", epoch=8) + control)
    assert [8] == [record.leader_epoch for record in records.take(9)]
    assert 9 == records.last_epoch


# --- laziness


def test_nothing_is_decoded_before_it_is_wanted(monkeypatch):
    """An answer that is never taken from costs only a look at its headers."""
    decoders = RecordDecoders()
    started: list[int] = []
    records = fetched(damaged(batch(b"a")), decoders=decoders)
    take = decoders.take
    monkeypatch.setattr(decoders, "take", lambda *given: started.append(1) or take(*given))
    assert [] == started
    assert not records.is_exhausted
    with pytest.raises(CorruptRecordError):
        records.take(1)
    assert [1] == started


def test_a_closed_answer_is_exhausted():
    """After `close`, nothing is left, and the decoder serves the next answer."""
    decoders = RecordDecoders()
    records = fetched(batch(b"a", b"b"), decoders=decoders)
    records.take(1)
    records.close()
    assert records.is_exhausted
    assert 1 == records.next_offset
    assert [] == records.take(1)
    assert [b"c"] == values(fetched(batch(b"c"), decoders=decoders).take(9))


def test_an_answer_in_progress_has_its_decoder_to_itself():
    """Answers that are taken by turns do not disturb each other, whatever decoders are idle."""
    decoders = RecordDecoders(max_rows=3)
    answers = [fetched(batch(*(b"%d" % n for n in range(50))), decoders=decoders) for _ in "abc"]
    found = [[], [], []]
    for _ in range(25):
        for number, records in enumerate(answers):
            found[number] += values(records.take(2))
    assert [[b"%d" % n for n in range(50)]] * 3 == found


def test_an_interrupted_call_changes_nothing(monkeypatch):
    """Rows that were decoded when a Ctrl-C came are decoded again, and none is lost."""
    records = fetched(
        batch(b"a", b"b") + batch(b"c" * 300, offset=2, compression=CompressionType.ZSTD)
    )
    with monkeypatch.context() as patch:

        def interrupt(*_):
            raise KeyboardInterrupt

        for module in ("arrow.record_decoder", "decode"):
            patch.setattr(f"spark_kafka_sink.record.{module}.decompress", interrupt)
        with pytest.raises(KeyboardInterrupt):
            records.take(9)
    assert 0 == records.next_offset
    assert [0, 1, 2] == offsets(records.take(9))
    assert records.is_exhausted


# --- corrupt batches


def test_records_before_a_corrupt_batch_are_returned_first():
    """The error comes with the next call, and the position is at the batch."""
    answer = batch(b"a", b"b") + damaged(batch(b"c", offset=4)) + batch(b"d", offset=5)
    records = fetched(answer)
    assert [0, 1] == offsets(records.take(9))
    assert (4, False) == (records.next_offset, records.is_exhausted)
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"offset 4: .*checksum"):
            records.take(9)
    with pytest.raises(CorruptRecordError, match=r"offset 4: .*checksum"):
        records.take_arrow(arrow_schema())
    assert 4 == records.next_offset


def test_a_corrupt_record_is_reached_within_its_batch():
    """The records before it in the same batch are returned, and it is the position."""
    whole = batch(b"a", b"b", b"c")
    payload = whole[61:-1] + b"\x05"
    records = fetched(batch(b"a", b"b", b"c", payload=payload))
    assert [0, 1] == offsets(records.take(9))
    assert 2 == records.next_offset
    with pytest.raises(CorruptRecordError, match="offset 2: "):
        records.take(9)
    assert [] == records.take(0)


def test_records_before_a_wrong_header_are_returned_first():
    """A batch in an unknown format does not hide those before it."""
    wrong = batch(b"c", offset=2, magic=1)
    records = fetched(batch(b"a", b"b") + wrong)
    assert [0, 1] == offsets(records.take(9))
    assert (2, False) == (records.next_offset, records.is_exhausted)
    with pytest.raises(CorruptRecordError, match="offset 2: the records have format 1"):
        records.take(9)


def test_a_wrong_header_at_the_start_is_reported_when_it_is_reached():
    """The answer can be created, and each call raises."""
    records = fetched(batch(b"a", magic=3), 0)
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"offset 0: .* unknown format 3"):
            records.take(9)
    assert (0, False) == (records.next_offset, records.is_exhausted)


def test_checksums_are_checked_unless_told_otherwise():
    """With check.crcs=false, a wrong checksum does not matter."""
    answer = damaged(batch(b"a", b"b"))
    ignoring = RecordDecoders(check_crcs=False)
    # The last byte is the number of headers of the last record.
    assert [0] == offsets(fetched(answer, decoders=ignoring).take(1))
    with pytest.raises(CorruptRecordError):
        fetched(answer).take(1)

    only_the_checksum = batch(b"a", crc=1)
    assert [b"a"] == values(fetched(only_the_checksum, decoders=ignoring).take(1))
    with pytest.raises(CorruptRecordError, match="checksum"):
        fetched(only_the_checksum).take(1)


def test_a_timestamp_of_more_than_64_bits_is_corrupt():
    """The sum of a record's and its batch's is what counts."""
    records = [PlainRecord(timestamp=2**63 - 1)]
    payload = encode_record(PlainRecord(timestamp=1), offset_delta=0, base_timestamp=0)
    with pytest.raises(CorruptRecordError, match="offset 0: the timestamp"):
        fetched(plain_batch(records, payload=payload)).take(1)


def test_a_batch_that_decompresses_to_too_much_is_refused():
    """The limit is that of the decoders."""
    answer = batch(b"x" * 100_000, compression=CompressionType.GZIP)
    small = RecordDecoders(max_uncompressed_batch_bytes=50_000)
    with pytest.raises(CorruptRecordError, match=r"max\.uncompressed\.batch\.bytes"):
        fetched(answer, decoders=small).take(1)
    assert 100_000 == fetched(answer).take(1)[0].serialized_value_size


# --- Arrow


def test_rows_have_the_columns_of_the_schema():
    """Columns come in the wanted order, and the offset only if it is wanted."""
    schema = arrow_schema(["value", "topic", "partition"])
    records = fetched(batch(b"a", b"b", b"c"))
    [rows] = records.take_arrow(schema, 2)
    assert schema == rows.schema
    assert [
        {"value": b"a", "topic": "orders", "partition": 3},
        {"value": b"b", "topic": "orders", "partition": 3},
    ] == rows.to_pylist()
    assert 2 == records.next_offset
    [rest] = records.take_arrow(schema)
    assert [b"c"] == rest["value"].to_pylist()
    assert (3, True) == (records.next_offset, records.is_exhausted)


def test_rows_with_offsets_are_not_copied():
    """A row keeps its memory after the answer is gone, and others do not overwrite it."""
    decoders = RecordDecoders()
    schema = arrow_schema(["offset", "value"])
    held = [
        fetched(batch(b"%d" % n * 1000, offset=n), n, decoders=decoders).take_arrow(schema)[0]
        for n in range(20)
    ]
    assert [[{"offset": n, "value": b"%d" % n * 1000}] for n in range(20)] == [
        rows.to_pylist() for rows in held
    ]


def test_rows_before_a_corrupt_batch_are_returned_first():
    """The error comes with the next call."""
    records = fetched(batch(b"a", b"b") + damaged(batch(b"c", offset=2)))
    [rows] = records.take_arrow(arrow_schema(["value"]))
    assert 2 == rows.num_rows
    with pytest.raises(CorruptRecordError, match="offset 2"):
        records.take_arrow(arrow_schema(["value"]))


def test_an_unknown_column_is_refused():
    """The error names the columns, and changes nothing."""
    wrong = arrow_schema(["value"]).append(arrow_schema(["key"]).field(0).with_name("price"))
    records = fetched(batch(b"a"))
    with pytest.raises(SchemaError, match="price"):
        records.take_arrow(wrong)
    assert [b"a"] == values(records.take(1))


# --- decoders


def test_a_decoder_serves_several_partitions():
    """Rows and errors have the partition of their own answer."""
    decoders = RecordDecoders()
    schema = arrow_schema(["topic", "partition"])
    for partition in (1, 2):
        place = ORDERS._replace(topic=f"orders-{partition}", partition=partition)
        records = fetched_records.FetchedRecords(place, batch(b"a"), 0, decoders=decoders)
        [rows] = records.take_arrow(schema)
        assert [{"topic": place.topic, "partition": partition}] == rows.to_pylist()
        wrong = fetched_records.FetchedRecords(place, damaged(batch(b"a")), 0, decoders=decoders)
        with pytest.raises(CorruptRecordError, match=f"topic 'orders-{partition}', partition"):
            wrong.take(1)


def test_a_decoder_is_used_again():
    """A decoder that an answer has given back is that of the next, for the same schema."""
    decoders = RecordDecoders()
    schema = arrow_schema(["value"])
    first = decoders.take(schema, ORDERS)
    assert decoders.take(schema, ORDERS) is not first
    decoders.give_back(schema, first)
    assert decoders.take(arrow_schema(["key"]), ORDERS) is not first
    assert decoders.take(arrow_schema(["value"]), ORDERS) is first


# --- the fields of records


def test_timestamps_come_back_exactly():
    """Milliseconds are as they were written, however far from 1970; -1 is that there is none."""
    # The large number is one of a producer that has sent nanoseconds by mistake.
    times = [1_700_000_000_123, 0, 1, -1, -2, 1_700_000_000_123_456_789, -(2**62), 2**63 - 1]
    answer = plain_batch([PlainRecord(timestamp=time) for time in times])
    found = fetched(answer).take(9)
    assert times == [record.timestamp for record in found]
    assert {0} == {record.timestamp_type for record in found}


def test_log_append_time_replaces_the_timestamps():
    """Records of one answer may have different types of timestamps."""
    answer = batch(b"a") + batch(b"b", offset=1, attributes=8, max_timestamp=77)
    first, second = fetched(answer).take(9)
    assert (0, 0) == (first.timestamp, first.timestamp_type)
    assert (77, 1) == (second.timestamp, second.timestamp_type)


@pytest.mark.parametrize("count", [1, 2])
def test_headers_are_pairs_in_their_order(count):
    """Records with as many headers each, with different numbers, and without any."""
    one = ((b"a", b"1"), (b"b", None), (b"a", b""))[:count]
    expected = (("a", b"1"), ("b", None), ("a", b""))[:count]
    same = plain_batch([PlainRecord(headers=one)] * 3)
    assert [expected] * 3 == [record.headers for record in fetched(same).take(9)]
    mixed = plain_batch([PlainRecord(headers=one[:n]) for n in (1, 0, count, 1)])
    records = fetched(mixed)
    records.take(1)
    found = records.take(9)
    assert [(), expected, expected[:1]] == [record.headers for record in found]
    assert "a" == found[1].headers[0].key
    assert [()] == [record.headers for record in fetched(batch(b"a")).take(1)]
