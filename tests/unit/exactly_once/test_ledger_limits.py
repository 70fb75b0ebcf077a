"""The minimum and maximum of every number in the ledger, and how much of a bad value is quoted."""

from __future__ import annotations

import json
from functools import partial

import pytest

from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.errors import ExactlyOnceError, LedgerFormatError
from spark_kafka_sink.exactly_once.ledger_records import (
    VERSION,
    Claim,
    EntryKey,
    OffsetRange,
    Winner,
    WriteRecord,
    decode_claim,
    decode_key,
    decode_write,
    encode_claim,
    encode_key,
    encode_write,
    forget_write,
)
from spark_kafka_sink.exactly_once.transitions import Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

INT16, INT32, INT64 = 32_767, 2_147_483_647, 9_223_372_036_854_775_807
#: The largest integer that JSON numbers represent exactly.
GENERATION = 9_007_199_254_740_991
#: The end of the year 9999.
TIME = 253_402_300_799_999
LARGEST_RANGE = OffsetRange(TopicPartition("t", INT32), INT64, INT64, INT64)
#: A write in which every number has its maximum.
LARGEST = WriteRecord(
    write=Write(INT64, GENERATION, WriteState.DECIDED, INT64),
    updated_at_ms=TIME,
    expires_at_ms=INT64,
    winners=(
        Winner(f"p.{7:032x}.0", ProducerIdAndEpoch(INT64, INT16), INT16, (LARGEST_RANGE,), None),
    ),
)
#: A write in which every number has its minimum.
LEAST = WriteRecord(
    write=Write(0, 0, WriteState.DECIDED, -1),
    updated_at_ms=0,
    expires_at_ms=0,
    winners=(
        Winner(
            f"p.{7:032x}.0",
            ProducerIdAndEpoch(0, 0),
            0,
            (OffsetRange(TopicPartition("t", 0), -1, -1, 0),),
            None,
        ),
    ),
)
#: The path of each number in a write's value -> its name in errors, its minimum and its maximum.
NUMBERS = {
    ("batch_id",): ("batch_id", 0, INT64),
    ("generation",): ("generation", 0, GENERATION),
    ("in_before",): ("in_before", -1, INT64),
    ("updated_at_ms",): ("updated_at_ms", 0, TIME),
    ("expires_at_ms",): ("expires_at_ms", 0, INT64),
    ("pieces",): ("pieces", 0, INT32),
    ("winners", 0, 1): ("producer id", 0, INT64),
    ("winners", 0, 2): ("epoch", 0, INT16),
    ("winners", 0, 3): ("transaction version", 0, INT16),
    ("winners", 0, 5, "t", 0, 0): ("partition", 0, INT32),
    ("winners", 0, 5, "t", 0, 1): ("first offset", -1, INT64),
    ("winners", 0, 5, "t", 0, 2): ("last offset", -1, INT64),
    ("winners", 0, 5, "t", 0, 3): ("number of records", 0, INT64),
}
read_write = partial(decode_write, "p", "q", pieces={})


def value_of(record):
    """Return the value of a write's entry."""
    [(_, value)] = encode_write("p", "q", record)
    return value


def forged(place, number):
    """Return the value of a write's entry with one number replaced."""
    value = json.loads(value_of(LEAST).removeprefix(VERSION))
    *path, last = place
    part = value
    for step in path:
        part = part[step]
    assert last in part or last < len(part)
    part[last] = number
    return VERSION + json.dumps(value).encode()


@pytest.mark.parametrize("record", [LEAST, LARGEST], ids=["least", "greatest"])
def test_the_smallest_and_largest_numbers_of_a_write_are_decoded(record):
    """A write with the smallest or largest permitted numbers is decoded as it was encoded."""
    assert record == read_write(value=value_of(record))


@pytest.mark.parametrize(("place", "rule"), NUMBERS.items(), ids=str)
def test_the_error_of_a_number_out_of_range_names_the_field(place, rule):
    """A number outside its range, or a boolean, is refused with an error that names the field."""
    name, least, greatest = rule
    for number in (least - 1, greatest + 1, True):
        with pytest.raises(LedgerFormatError) as caught:
            read_write(value=forged(place, number))
        assert f"its {name} is not valid: {str(number)!r}" in str(caught.value)


def test_the_largest_number_of_pieces_is_accepted():
    """The largest number of pieces is accepted, and the error is about the missing first piece."""
    with pytest.raises(LedgerFormatError, match="piece 0 of 2147483647 is missing"):
        read_write(value=forged(("pieces",), INT32))


def test_the_numbers_of_a_key_and_a_claim_have_limits():
    """The largest numbers of keys and claims are decoded, and larger ones are refused."""
    key = EntryKey("winners", "p", "q", INT32)
    assert key == decode_key(encode_key(key))
    assert EntryKey("winners", "p", "q", 0) == decode_key(b'\x01["winners","p","q",0]')
    for piece in (-1, INT32 + 1):
        with pytest.raises(LedgerFormatError, match="a malformed key"):
            decode_key(encode_key(key._replace(piece=piece)))
    for claim in (Claim(GENERATION, TIME, "h" * 500), Claim(0, 0, "")):
        assert claim == decode_claim(encode_claim("p", claim).value)
    for field, number in (("generation", GENERATION + 1), ("claimed_at_ms", TIME + 1)):
        value = {**Claim(0, 0, "")._asdict(), field: number}
        with pytest.raises(LedgerFormatError, match=f"its {field} is not valid: '{number}'"):
            decode_claim(VERSION + json.dumps(value).encode())


def test_a_bad_value_is_quoted_up_to_forty_characters():
    """An error quotes at most forty characters of a bad value."""
    with pytest.raises(LedgerFormatError) as caught:
        read_write(value=forged(("batch_id",), "7" * 41))
    assert f"its batch_id is not valid: '{'7' * 40}'" in str(caught.value)
    value = value_of(LEAST).replace(b'"t":', b'"%s":' % (b"/" * 41))
    with pytest.raises(LedgerFormatError) as caught:
        read_write(value=value)
    assert f"ValueError(\"'{'/' * 40}' is not a legal topic name\")" in str(caught.value)


def decision_of(size, *, records=1):
    """Return a prefix, and a decision whose encoded list of winners has this size in bytes."""
    ranges = tuple(
        OffsetRange(TopicPartition("t", partition), partition * 7919 % 1_000_003, INT32, 1)
        for partition in range(records)
    )
    winner = Winner(f".{7:032x}.0", ProducerIdAndEpoch(1, 0), 2, ranges)
    taken = len(
        json.dumps(
            [[*winner[:1], 1, 0, 2, None, {"t": [[*one[0][1:], *one[1:]] for one in ranges]}]],
            separators=(",", ":"),
        )
    )
    prefix = "p" * (size - taken)
    winner = winner._replace(transactional_id=prefix + winner.transactional_id)
    return prefix, WriteRecord(
        write=Write(5, 3, WriteState.DECIDED, 4), updated_at_ms=1, winners=(winner,)
    )


@pytest.mark.parametrize(("size", "entries"), [(65_536, 1), (65_537, 2)])
def test_a_decision_of_up_to_64_kib_is_one_entry(size, entries):
    """A decision of up to 64 KiB is one entry, and a larger one is split into pieces."""
    prefix, record = decision_of(size)
    assert entries == len(encode_write(prefix, "q", record))


def test_a_piece_has_400_000_bytes_of_winners():
    """Every piece but the last holds 400,000 bytes after its version, generation and batch id."""
    prefix, record = decision_of(3_000_000, records=120_000)
    *pieces, last, _ = encode_write(prefix, "q", record)
    assert pieces
    assert {400_017} == {len(piece.value) for piece in pieces}
    assert len(last.value) < 400_017


@pytest.mark.parametrize("limit", [70_000, 69_999])
def test_winners_of_the_maximum_size_are_written_and_read(monkeypatch, limit):
    """Winners of exactly the maximum size are written and read, and one byte more is refused."""
    monkeypatch.setattr(ledger_records, "MAX_WINNERS_BYTES", limit)
    prefix, record = decision_of(70_000)
    if limit < 70_000:
        with pytest.raises(
            ExactlyOnceError, match="take 70000 bytes in the ledger, and the limit is"
        ):
            encode_write(prefix, "q", record)
        return
    [(_, piece), (_, value)] = encode_write(prefix, "q", record)
    assert record == decode_write(prefix, "q", value, {0: piece})


def test_a_write_without_pieces_is_deleted_by_one_tombstone():
    """A write without pieces is one entry, and one tombstone deletes it."""
    assert [(b'\x01["write","p","q"]', None)] == forget_write("p", "q")
    assert [b'\x01["write","p","q"]'] == [key for key, _ in encode_write("p", "q", LEAST)]
    with pytest.raises(TypeError):
        forget_write("p", "q", 1)


def test_the_error_of_the_largest_generation_names_the_one_in_the_ledger():
    """The error names the generation in the ledger, not the one that could not follow it."""
    with pytest.raises(LedgerFormatError) as caught:
        encode_claim("p", Claim(GENERATION + 1, 1, "me"))
    assert f"its last generation in the ledger is {GENERATION}, which no driver" in str(
        caught.value
    )
