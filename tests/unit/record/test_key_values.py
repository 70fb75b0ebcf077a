"""The fast reader of keys and values returns the same as decoding everything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record import key_values
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.decode import decode_record_batch
from spark_kafka_sink.record.key_values import read_key_values
from spark_kafka_sink.record.record_batch import ControlRecordType, transaction_marker
from tests.support.record.plain_batches import PlainRecord, plain_batch, varint

TRANSACTIONAL = 0x10

#: The producer id of the batches that `_transactional` makes.
PRODUCER = 5

_contents = st.binary(max_size=40) | st.integers(0, 20_000).map(bytes)
_records = st.lists(
    st.builds(
        PlainRecord,
        key=st.none() | _contents,
        value=st.none() | _contents,
        timestamp=st.integers(0, 2**42),
        headers=st.sampled_from([(), (), (), ((b"h", b"1"),)]),
    ),
    max_size=8,
)
_codecs = st.sampled_from([CompressionType.NONE, CompressionType.NONE, CompressionType.GZIP])


class Collected:
    """A sink that stores everything it receives."""

    def __init__(self, known=None):
        self.events = []
        self.known_records = None if known is None else (*known, self._take_known)
        #: The matches of the pattern's group.
        self.groups = []

    def _take_known(self, producer_id, keys, values, groups):
        """Store known transactions as the same events as all others, without offsets."""
        for record in zip(keys, values, strict=True):
            self.events += [(None, producer_id, [record]), (producer_id, True)]
        self.groups += groups

    def take_records(self, offset, producer_id, records):
        """Store the records."""
        self.events.append((offset, producer_id, records))

    def take_plain(self, offset, count):
        """Store the number of plain records."""
        self.events.append((offset, count))

    def take_end(self, producer_id, *, committed):
        """Store the end of a transaction."""
        self.events.append((producer_id, committed))

    def take_undecodable(self, offset, reason):
        """Store the fault of a batch."""
        self.events.append((offset, reason))


def _read(data, offset=0, **settings):
    sink = Collected()
    return read_key_values(data, sink, offset=offset, **settings), sink.events


def _transactional(records, **others):
    return plain_batch(records, attributes=TRANSACTIONAL, producer_id=PRODUCER, **others)


def _marker(kind, *, producer_id=7, base_offset=0):
    made = transaction_marker(
        kind, producer_id=producer_id, producer_epoch=1, coordinator_epoch=2, timestamp_ms=3
    )
    struct.pack_into(">q", made, 0, base_offset)
    return bytes(made)


def _as_decoded(batch):
    try:
        records = decode_record_batch(batch).records
    except CorruptRecordError as error:
        return (0, str(error))
    return (0, PRODUCER, [(record.key, record.value) for record in records])


@given(records=_records, codec=_codecs, producer_id=st.integers(0, 2**63 - 1))
def test_keys_and_values_equal_those_of_the_decoder(records, codec, producer_id):
    """Keys and values equal those of the decoder, whether or not a batch is read in place."""
    batch = plain_batch(
        records,
        base_offset=100,
        compression=codec,
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
    )
    pairs = [(record.key, record.value) for record in decode_record_batch(batch).records]
    assert (100 + len(records), [(100, producer_id, pairs)]) == _read(batch)


KNOWN = (rb"k[a-z]*", rb"v\d*=(\d+)x*")


def _both_ways(data, *, offset=0):
    """Return the events without and with a known form, and the matches of its group."""
    results = []
    for known in (None, KNOWN):
        sink = Collected(known)
        try:
            behind = read_key_values(data, sink, offset=offset)
        except CorruptRecordError as error:
            behind = str(error)
        events = [event if len(event) < 3 else (None, *event[1:]) for event in sink.events]
        results.append((behind, events))
    return *results, sink.groups


@given(
    transactions=st.lists(
        st.tuples(
            st.binary(max_size=3) | st.from_regex(rb"k[a-z]{0,100}", fullmatch=True),
            st.binary(max_size=3) | st.from_regex(rb"v\d*=\d+x{0,9000}", fullmatch=True),
            st.sampled_from([{}, {}, {"headers": ((b"h", b"1"),)}]),
            st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 255)),
            st.sampled_from([ControlRecordType.COMMIT] * 3 + [ControlRecordType.ABORT, None]),
            st.sampled_from([PRODUCER, PRODUCER, PRODUCER + 1]),
        ),
        max_size=4,
    ),
    damage=st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 255)),
    offset=st.sampled_from([0, 0, 0, 1, 2, 3]),
)
# The offset of a record is damaged, and its marker is below the offset to read from.
@example(
    transactions=[(b"k", b"v1=1", {}, None, ControlRecordType.COMMIT, PRODUCER)],
    damage=(0, 1),
    offset=2,
)
# The offset of the second record, which begins at byte 151, becomes negative.
@example(
    transactions=[(b"k", b"v1=1", {}, None, ControlRecordType.COMMIT, PRODUCER)] * 2,
    damage=(151, 0x80),
    offset=0,
)
def test_known_transactions_equal_those_of_the_decoder(transactions, damage, offset):
    """Known transactions yield what the decoder yields, whatever is damaged in them."""
    data = bytearray()
    place = 0
    for key, value, others, inner, end, producer_id in transactions:
        payload = bytearray(plain_batch([PlainRecord(value, key, **others)])[61:])
        if inner is not None:
            payload[inner[0] % len(payload)] = inner[1]
        data += _transactional(1, payload=bytes(payload), base_offset=place)
        place += 1
        if end is not None:
            data += _marker(end, producer_id=producer_id, base_offset=place)
            place += 1
    if damage is not None and data:
        data[damage[0] % len(data)] = damage[1]
    plain, fast, _ = _both_ways(bytes(data), offset=offset)
    assert plain == fast


def _known(number, **others):
    record = PlainRecord(b"v1=%dx" % number, b"k" + b"a" * number)
    return _transactional([record], base_offset=2 * number, **others) + _marker(
        ControlRecordType.COMMIT, producer_id=PRODUCER, base_offset=2 * number + 1
    )


@pytest.mark.parametrize("key_size", [2, 3, 4])
@pytest.mark.parametrize("value_size", [3, 4, 5])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_known_record_with_a_wrong_size_is_left_to_the_decoder(key_size, value_size, more):
    """A known record with a wrong size is left to the decoder."""
    body = b"\0\0\0" + varint(key_size) + b"kab" + varint(value_size) + b"v1=2" + b"\0"
    plain, fast, groups = _both_ways(
        _transactional(1, payload=varint(len(body) + more) + body)
        + _marker(ControlRecordType.COMMIT, producer_id=PRODUCER, base_offset=1)
    )
    assert plain == fast
    assert ([b"2"] if (key_size, value_size, more) == (3, 4, 0) else []) == groups


@pytest.mark.parametrize("key_bytes", [1, 64, 300, 8_192])
@pytest.mark.parametrize("value_bytes", [4, 64, 300, 8_192, 1_000_000])
def test_a_known_record_may_be_of_any_size_below_a_mebibyte(key_bytes, value_bytes):
    """A known record may be of any size below 1 MiB, at any offset from the requested one on."""
    key, value = b"k" + b"a" * (key_bytes - 1), b"v1=" + b"7".ljust(value_bytes - 3, b"x")
    plain, fast, groups = _both_ways(
        _transactional([PlainRecord(value, key)], base_offset=1_000)
        + _marker(ControlRecordType.COMMIT, producer_id=PRODUCER, base_offset=1_001),
        offset=999,
    )
    assert (plain, [b"7"]) == (fast, groups)


def test_known_transactions_have_their_matched_groups():
    """Consecutive known transactions of a producer are passed on with their matched groups."""
    data = b"".join(map(_known, range(3)))
    plain, fast, groups = _both_ways(data)
    assert (plain, [b"0", b"1", b"2"]) == (fast, groups)
    assert 6 == fast[0]
    # The last transaction is truncated, or followed by another producer's marker.
    assert [b"0", b"1"] == _both_ways(data[:-1])[2]
    others = _marker(ControlRecordType.COMMIT, producer_id=PRODUCER + 1, base_offset=5)
    assert [b"0", b"1"] == _both_ways(data[: -len(others)] + others)[2]


def test_a_known_transaction_with_a_lower_offset_than_the_one_before_is_skipped():
    """A known transaction below the requested offset is left out even after one above it."""
    plain, fast, groups = _both_ways(_known(3) + _known(1), offset=5)
    assert (plain, [b"3"]) == (fast, groups)


def test_known_transactions_below_the_requested_offset_are_skipped():
    """Records of a known transaction below the requested offset are left out."""
    plain, fast, groups = _both_ways(_known(3), offset=7)
    assert (8, [(None, PRODUCER, []), (PRODUCER, True)]) == plain == fast
    assert [] == groups


@given(
    records=_records.filter(bool),
    codec=_codecs,
    damage=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_a_payload_of_any_bytes_is_decoded_or_reported(records, codec, damage):
    """A corrupt payload with a right checksum is reported, and reading continues."""
    payload = bytearray(plain_batch(records, compression=codec)[61:])
    for at, byte in damage:
        payload[at % len(payload)] = byte
    bad = _transactional(
        1,
        payload=bytes(payload),
        compression=codec,
        last_offset_delta=len(records) - 1,
        record_count=len(records),
    )
    good = _transactional([PlainRecord(b"v", b"k")], base_offset=len(records))
    behind, events = _read(bad + good)
    assert len(records) + 1 == behind
    assert (len(records), PRODUCER, [(b"k", b"v")]) == events[-1]
    expected = _as_decoded(bad)
    # The fast path does not check the records' offset deltas.
    if "offset delta" not in str(expected):
        assert [expected] == events[:-1]


@pytest.mark.parametrize("base_offset", [0, 1_000])
@pytest.mark.parametrize("key_bytes", [0, 1, 63, 64, 128, 8_191])
@pytest.mark.parametrize("value_bytes", [None, 0, 1, 63, 64, 128, 8_191, 8_192, 16_384, 1_040_000])
def test_simple_batches_are_read_without_the_decoder(
    monkeypatch, base_offset, key_bytes, value_bytes
):
    """Simple batches are read without the decoder, which is many times slower."""
    monkeypatch.delattr(key_values, "decode_record_batch")
    value = None if value_bytes is None else b"v" * value_bytes
    record = PlainRecord(value, b"k" * key_bytes, 2**40)
    # The last record's deltas of offset and timestamp take two bytes or more; 127, which is the
    # number -64, is the largest byte without a continuation bit.
    records = [record, *(record._replace(timestamp=2**40 + delta) for delta in (-64, 64, -(2**40)))]
    batch = _transactional(
        records + [PlainRecord(b"", b"", 2**40)] * 64 + [record], base_offset=base_offset
    )
    pairs = [(each.key, each.value) for each in records]
    _, [(_, _, read)] = _read(batch)
    assert [*pairs, *[(b"", b"")] * 64, pairs[0]] == read


@pytest.mark.parametrize("length", [-1, -64, -65, -8_192, -8_193, -(2**20)])
def test_a_null_value_of_any_negative_length_is_read_without_the_decoder(monkeypatch, length):
    """A null value with any negative length is read without the decoder."""
    monkeypatch.delattr(key_values, "decode_record_batch")
    body = b"\0\0\0" + varint(1) + b"k" + varint(length) + b"\0"
    batch = _transactional(1, payload=varint(len(body)) + body)
    assert (1, [(0, PRODUCER, [(b"k", None)])]) == _read(batch)


def _sized(body):
    return varint(len(body)) + body


# The record's size takes four bytes, the last of which is also the first byte of the body here: it
# states twice the actual size.
_LONG_RECORD = b"\2\0\0" + _sized(b"k" * 8_191) + _sized(b"v" * (2**20 - 1)) + b"\0"
_LONG_RECORD = varint(len(_LONG_RECORD))[:3] + _LONG_RECORD
# The key's size takes three bytes, the last of which is also the first byte of the key here.
_LONG_KEY = _sized(b"\0\0\0\x80\x81" + b"\2" + b"k" * 8_255 + b"\2v\0")
# The value's size, which means null, takes four bytes, so that the number of headers is missing.
_LONG_VALUE = _sized(b"\0\0\0\2k" + b"\x81\x80\x81\0")


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [(_LONG_RECORD, "does not fit"), (_LONG_KEY, "does not fit"), (_LONG_VALUE, "truncated")],
    ids=["record", "key", "value"],
)
def test_a_long_size_is_not_mistaken_for_a_shorter_one(payload, complaint):
    """A size with more bytes than the fast path reads is not mistaken for a shorter one."""
    behind, [(offset, reason)] = _read(_transactional(1, payload=payload))
    assert (1, 0, True) == (behind, offset, complaint in reason)


@pytest.mark.parametrize("codec", list(CompressionType)[1:], ids=str)
def test_an_uncompressed_payload_marked_as_compressed_is_reported(codec):
    """An uncompressed payload in a batch marked as compressed is reported, not read."""
    payload = _transactional([PlainRecord(b"v1=2", b"k")])[61:]
    lying = _transactional(1, payload=payload, compression=codec)
    plain, fast, _ = _both_ways(
        lying + _marker(ControlRecordType.COMMIT, producer_id=PRODUCER, base_offset=1)
    )
    assert (2, [_as_decoded(lying), (PRODUCER, True)]) == plain == fast


@pytest.mark.parametrize("key_length", range(-3, 2))
@pytest.mark.parametrize("value_length", range(-3, 2))
def test_any_negative_length_means_null(key_length, value_length):
    """Any negative length means null, as in Java, and no bytes follow it."""
    key, value = (b"x" if length == 1 else b"" for length in (key_length, value_length))
    body = b"\0\0\0" + varint(key_length) + key + varint(value_length) + value + b"\0"
    batch = _transactional(1, payload=varint(len(body)) + body)
    pair = (None if key_length < 0 else key, None if value_length < 0 else value)
    assert (1, [(0, PRODUCER, [pair])]) == _read(batch)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(-7, "does not fit"), (-6, "does not fit"), (5, "is truncated"), (7, "does not fit")],
)
def test_a_record_whose_length_differs_from_its_fields_is_reported(size, expected):
    """A record whose length differs from its fields is reported."""
    behind, [(offset, reason)] = _read(_transactional(1, payload=varint(size) + b"\0\0\0\0\1\0"))
    assert (1, 0, True) == (behind, offset, expected in reason)


@pytest.mark.parametrize("kept", range(7))
def test_a_truncated_record_at_the_end_of_the_data_is_reported(kept):
    """A truncated record at the end of the data is reported."""
    batch = _transactional(1, payload=(varint(6) + b"\0\0\0\0\1\0")[:kept])
    behind, [(offset, reason)] = _read(batch)
    assert (1, _as_decoded(batch)) == (behind, (offset, reason))


@pytest.mark.parametrize("kind", ControlRecordType, ids=str)
def test_markers_end_transactions(monkeypatch, kind):
    """Commit and abort markers end transactions, and are read without the decoder."""
    monkeypatch.delattr(key_values, "decode_record_batch")
    assert (6, [(7, kind is ControlRecordType.COMMIT)]) == _read(_marker(kind, base_offset=5))


def test_a_marker_of_a_later_version_is_read():
    """A marker of a later version, with more fields, is read."""
    key, value = struct.pack(">hh", 1, 1), struct.pack(">hiq", 1, 2, 3)
    batch = plain_batch([PlainRecord(value, key)], attributes=0x30, producer_id=9)
    assert (1, [(9, True)]) == _read(batch)


def test_other_control_records_are_ignored():
    """Other control records, such as those of KRaft, are ignored."""
    batch = plain_batch(
        [PlainRecord(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, 5))], attributes=0x20
    )
    assert (1, []) == _read(batch)


def test_records_below_the_requested_offset_are_skipped():
    """Records below the requested offset are left out, since brokers return whole batches."""
    batch = _transactional(
        [PlainRecord(b"0", b"k"), PlainRecord(b"1", b"k"), PlainRecord(b"2", b"k")], base_offset=10
    )
    assert (13, [(10, PRODUCER, [(b"k", b"2")])]) == _read(batch, 12)
    assert (6, []) == _read(_marker(ControlRecordType.COMMIT, base_offset=4), 6)


def test_a_truncated_last_batch_is_skipped():
    """A truncated last batch is left out, since the next response begins with it."""
    first = _transactional([PlainRecord(b"v", b"k")])
    second = _transactional([PlainRecord(b"w", b"k")], base_offset=1)
    for cut in (1, 30, 61, len(second) - 1):
        assert (1, [(0, PRODUCER, [(b"k", b"v")])]) == _read(first + second[:cut])
    assert (5, []) == _read(second[:-1], 5)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"crc": 0}, "^wrong checksum of the record batch at offset 7$"),
        ({"crc": 2**32 - 1}, "^wrong checksum of the record batch at offset 7$"),
        ({"magic": 1}, "^no record batch of format 2 at offset 7$"),
        ({"magic": 3}, "^no record batch of format 2 at offset 7$"),
        ({"batch_length": 48}, "^no record batch of format 2 at offset 7$"),
        ({"batch_length": -13}, "^no record batch of format 2 at offset 7$"),
    ],
    ids=str,
)
def test_damaged_batches_are_rejected(damage, complaint):
    """A batch with a wrong checksum, format or length is an error that names its offset."""
    with pytest.raises(CorruptRecordError, match=complaint):
        _read(plain_batch(base_offset=7, **damage))


def test_bytes_after_the_last_record_are_reported():
    """Bytes after the last record are reported."""
    batch = _transactional(1, payload=plain_batch(2)[61:])
    assert (1, [(0, "8 bytes after the last record")]) == _read(batch)


def test_a_batch_that_exceeds_the_limit_is_reported():
    """A batch that exceeds the limit is reported, and the batches after it are read."""
    bomb = _transactional([PlainRecord(bytes(100_000), b"k")], compression=CompressionType.GZIP)
    good = _transactional([PlainRecord(b"v", b"k")], base_offset=1)
    behind, [(offset, _), after] = _read(bomb + good, max_uncompressed_bytes=50_000)
    assert (2, 0, (1, PRODUCER, [(b"k", b"v")])) == (behind, offset, after)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP], ids=str)
@pytest.mark.parametrize("attributes", [0, 0x40], ids=["as it was sent", "compacted"])
def test_records_outside_a_transaction_are_only_counted(codec, attributes):
    """Batches outside a transaction are counted without being decompressed or decoded."""
    plain = plain_batch(
        payload=b"neither gzip nor records",
        compression=codec,
        attributes=attributes,
        base_offset=10,
        last_offset_delta=399_999,
        record_count=400_000,
    )
    good = _transactional([PlainRecord(b"v", b"k")], base_offset=400_010)
    after = (400_010, PRODUCER, [(b"k", b"v")])
    assert (400_011, [(10, 400_000), after]) == _read(plain + good)
    assert (400_011, [(400_009, 1), after]) == _read(plain + good, 400_009)


@pytest.mark.parametrize(("count", "reported"), [(-1, 0), (2, 2), (2**31 - 1, 3)])
def test_the_number_of_plain_records_is_bounded_by_their_offsets(count, reported):
    """The count of plain records is bounded by their offsets, since a header may be wrong."""
    batch = plain_batch(3, record_count=count)
    assert (3, [(0, reported)]) == _read(batch)
