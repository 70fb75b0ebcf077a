"""Encoding and decoding of ledger entries, and the refusal of invalid ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.errors import ExactlyOnceError, LedgerFormatError
from spark_kafka_sink.exactly_once.ledger_entries import LedgerState
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_GENERATION,
    MAX_INLINE_BYTES,
    PIECE_BYTES,
    VERSION,
    Claim,
    EntryKey,
    OffsetRange,
    Winner,
    WriteRecord,
    decode_key,
    encode_claim,
    encode_key,
    encode_write,
    forget_write,
)
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition, is_topic_name

_int64 = st.integers(0, 2**63 - 1)
_generations = st.integers(0, MAX_GENERATION)
#: Until the year 9999.
_times = st.integers(0, 253_402_300_799_999)
_prefixes = st.text(min_size=1)
_LIMIT = ledger_records.MAX_WINNERS_BYTES
_ranges = st.builds(
    OffsetRange,
    st.builds(
        TopicPartition,
        st.from_regex(r"[a-zA-Z0-9._-]{1,8}", fullmatch=True).filter(is_topic_name),
        st.integers(0, 10_000),
    ),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    _int64,
)
_printable = st.text(max_size=500).filter(str.isprintable)
_winners = st.builds(
    Winner,
    st.integers(0, 2**128 - 1).map("p.{:032x}.0".format),
    st.builds(ProducerIdAndEpoch, _int64, st.integers(0, 2**15 - 1)),
    st.integers(0, 3),
    st.lists(_ranges, max_size=5).map(lambda ranges: tuple(sorted(ranges))),
    st.none() | st.sampled_from(Fate),
)
_records = st.builds(
    WriteRecord,
    write=st.builds(
        Write, _int64, _generations, st.sampled_from(WriteState), st.integers(-1, 2**63 - 1)
    ),
    updated_at_ms=_times,
    expires_at_ms=st.none() | _int64,
    topic=st.none() | st.from_regex(r"[a-zA-Z0-9_-]{1,249}", fullmatch=True),
    winners=st.lists(_winners, max_size=4).map(tuple),
)


def _read(entries, prefix="p"):
    read = LedgerState(prefix)
    assert [] == read.put((key, value, 0) for key, value in entries)
    return read


#: Winners of `_large` that take two pieces; 60 take one.
MANY = 250


def _forged(old, new, **settings):
    """Decode a decision after replacing something in its encoded value."""
    [(key, value)] = encode_write("p", "q", _large(1, **settings))
    assert old in value
    return _read([(key, value.replace(old, new, 1))]).record("q")


def _large(count, *, generation=3, batch_id=5, partitions=150):
    """Return a decision of `count` winners whose offsets do not compress well."""
    return WriteRecord(
        write=Write(batch_id, generation, WriteState.DECIDED, 4),
        updated_at_ms=1,
        winners=tuple(_winner(number, partitions) for number in range(count)),
    )


@cache
def _winner(number, partitions):
    return Winner(
        f"p.{number:032x}.0",
        ProducerIdAndEpoch(number * 7919 % 1_000_003, 0),
        2,
        tuple(
            OffsetRange(
                TopicPartition("t", partition),
                offset := abs(hash((number, partition))) >> 8,
                offset + 9,
                10,
            )
            for partition in range(partitions)
        ),
    )


@given(prefix=_prefixes, write_id=st.text(), record=_records)
def test_a_write_is_decoded_as_it_was_encoded(prefix, write_id, record):
    """Every field of a write is decoded as it was encoded, whatever text its ids contain."""
    winners = tuple(
        winner._replace(transactional_id=prefix + winner.transactional_id.removeprefix("p"))
        for winner in record.winners
    )
    record = replace(record, winners=winners)
    entries = encode_write(prefix, write_id, record)
    assert EntryKey("write", prefix, write_id) == decode_key(entries[-1].key)
    assert record == _read(entries, prefix).record(write_id)


@given(claim=st.builds(Claim, _generations, _times, _printable), prefix=_prefixes)
def test_a_claim_is_decoded_as_it_was_encoded(claim, prefix):
    """A claim is decoded as it was encoded, including the claimant's name."""
    assert claim == _read([encode_claim(prefix, claim)], prefix).claim


def test_a_host_with_any_name_can_claim():
    """Characters of a host name that readers would refuse are replaced, and long names are cut."""
    claim = Claim(3, 1, f"a\x1b[2Jb\udcff, process 7{'!' * 1000}")
    read = _read([encode_claim("p", claim)]).claim
    shown = f"a?[2Jb?, process 7{'!' * 1000}"[:500]
    assert claim._replace(claimed_by=shown) == read


@given(prefix=st.text(), write_id=st.text(), piece=st.integers(0, 10**6))
def test_a_key_is_decoded_as_it_was_encoded(prefix, write_id, piece):
    """Every key is decoded as it was encoded."""
    for key in (
        EntryKey("generation", prefix),
        EntryKey("write", prefix, write_id),
        EntryKey("winners", prefix, write_id, piece),
    ):
        assert key == decode_key(encode_key(key))


def test_a_large_decision_is_written_in_pieces():
    """A large decision is split into entries of limited size, which together decode to it."""
    record = _large(400)
    entries = encode_write("p", "q", record)
    assert len(entries) > 2
    assert all(len(entry.value) <= PIECE_BYTES + 100 for entry in entries)
    assert record == _read(entries).record("q")


@settings(max_examples=8)
@given(counts=st.lists(st.sampled_from([0, 1, 60, MANY]), min_size=2, max_size=4))
def test_pieces_of_an_earlier_decision_are_deleted(counts):
    """A new decision replaces the earlier one and deletes the pieces that it does not need."""
    read = LedgerState("p")
    for generation, count in enumerate(counts):
        record = _large(count, generation=generation)
        entries = encode_write("p", "q", record, pieces_before=read.pieces("q"))
        read.put((key, value, 0) for key, value in entries)
        assert record == read.record("q")
        written = sum(entry.value is not None for entry in entries) - 1
        assert written == read.pieces("q")


def test_a_write_is_deleted_with_its_pieces():
    """The tombstones of a write delete its record and all of its pieces."""
    read = _read(encode_write("p", "q", _large(MANY)))
    tombstones = forget_write("p", "q", pieces_before=read.pieces("q"))
    read.put((key, value, 0) for key, value in tombstones)
    assert (None, 0, []) == (read.record("q"), read.pieces("q"), list(read.writes))


def test_a_piece_of_another_decision_is_rejected():
    """A decision with a piece of another decision is refused."""
    old = encode_write("p", "q", _large(MANY, generation=2))
    new = encode_write("p", "q", _large(MANY, generation=3))
    with pytest.raises(LedgerFormatError, match="another decision"):
        _read([old[0], *new[1:]]).record("q")


def test_a_missing_piece_is_rejected():
    """A decision with a missing piece is an error, never an empty decision."""
    with pytest.raises(LedgerFormatError, match="'q' under prefix 'p' cannot be read"):
        _read(encode_write("p", "q", _large(MANY))[1:]).record("q")


def test_small_decisions_are_one_entry():
    """A small decision is a single entry that an operator can read as JSON."""
    [entry] = encode_write("p", "q", _large(3))
    assert len(entry.value) < MAX_INLINE_BYTES
    assert entry.value.startswith(b'\x01{"batch_id":5,')


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"plain",
        b"\x02[]",
        b"\x01[",
        b"\x01{}",
        b"\x01[]",
        b'\x01["other","p"]',
        b'\x01["write","p"]',
        b'\x01["write","p",7]',
        b'\x01["winners","p","q","0"]',
        b'\x01["winners","p","q",true]',
        b'\x01["winners","p","q",-1]',
        b'\x01["winners","p","q",99999999999]',
        b'\x01["write","p", "q"]',
        b'\x01["write","p","\\u0071"]',
        b'\x01["write","p","\\ud800"]',
        b'\x01["write","p","\xff"]',
        b"\x01" + b"[" * 100_000,
    ],
)
def test_a_key_that_no_driver_wrote_is_rejected(key):
    """A key that a driver would not have encoded in the same way is refused."""
    with pytest.raises(LedgerFormatError):
        decode_key(key)


@pytest.mark.parametrize(
    "value",
    [b"\x02{}", b"\x01{", b"\x01[]", b"\x01{}", b"\x01null", b"\x01" + b'{"a":' * 100_000],
    ids=["later", "cut off", "list", "empty", "null", "deep"],
)
def test_an_unreadable_value_is_rejected(value):
    """An unreadable value, or one of a later version, is refused for writes and claims."""
    with pytest.raises(LedgerFormatError):
        _read([(encode_key(EntryKey("write", "p", "q")), value)]).record("q")
    with pytest.raises(LedgerFormatError):
        _ = _read([(encode_key(EntryKey("generation", "p")), value)]).claim


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_id", "-1"),
        ("batch_id", "true"),
        ("batch_id", "9223372036854775808"),
        ("generation", "9223372036854775807"),
        ("generation", '"abc"'),
        ("generation", "1.5"),
        ("generation", "null"),
        ("in_before", "-2"),
        ("updated_at_ms", "1e300"),
        ("updated_at_ms", "9223372036854775807"),
        ("expires_at_ms", '"never"'),
        ("topic", "7"),
        ("topic", '".."'),
        ("pieces", "-1"),
        ("pieces", "false"),
        ("winners", "null"),
        ("winners", "[1]"),
        ("winners", "[" * 100_000),
    ],
)
def test_an_invalid_number_is_rejected(field, value):
    """A number of the wrong type or range is refused rather than converted."""
    [(key, known)] = encode_write("p", "q", _large(0))
    parts = json.loads(known[1:])
    before = f'"{field}":{json.dumps(parts[field])}'.encode()
    forged = known.replace(before, f'"{field}":{value}'.encode())
    assert known != forged
    with pytest.raises(LedgerFormatError):
        _read([(key, forged)]).record("q")


@pytest.mark.parametrize("field", ["generation", "claimed_at_ms"])
@pytest.mark.parametrize("value", [-1, 2**63 - 1, 1.5, True, "abc", None])
def test_a_claim_with_an_invalid_number_is_rejected(field, value):
    """A claim with an invalid generation or time is refused, and the error names the field."""
    claim = {"generation": 1, "claimed_at_ms": 1, "claimed_by": "me", field: value}
    key = encode_key(EntryKey("generation", "p"))
    with pytest.raises(LedgerFormatError, match=field):
        _ = _read([(key, VERSION + json.dumps(claim).encode())]).claim


@pytest.mark.parametrize(
    "forged",
    [
        {"claimed_by": "\x1b[2Jhost"},
        {"claimed_by": "host\nERROR forged"},
        {"claimed_by": "\ud800"},
        {"claimed_by": "\u202ehost"},
        {"claimed_by": "h" * 501},
        {"claimed_by": 7},
        {"\x1b[2J": 1},
    ],
)
def test_a_claimant_that_is_not_short_printable_text_is_rejected(forged):
    """A claim by anything but short printable text is refused with a short printable error."""
    claim = {"generation": 1, "claimed_at_ms": 1, "claimed_by": "me", **forged}
    key = encode_key(EntryKey("generation", "p"))
    with pytest.raises(LedgerFormatError) as caught:
        _ = _read([(key, VERSION + json.dumps(claim).encode())]).claim
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "topic", ["\ud800", "\x1b[2J", "", ".", "..", "a b", "t\n", "\u00e9", "t" * 250]
)
def test_a_winner_with_an_illegal_topic_name_is_rejected(topic):
    """A winner with an illegal topic name is refused with a printable error."""
    with pytest.raises(LedgerFormatError, match="is not a legal topic name") as caught:
        _forged(b'"t":', f"{json.dumps(topic)}:".encode(), partitions=1)
    assert str(caught.value).isprintable()


def test_a_prefix_at_the_largest_generation_cannot_be_claimed():
    """A claim beyond the largest generation is refused, and the error says what to delete."""
    with pytest.raises(LedgerFormatError, match="until the entry is deleted in a transaction"):
        encode_claim("p", Claim(MAX_GENERATION + 1, 1, "me"))


@pytest.mark.parametrize(
    "stranger",
    [
        b'"p.ledger"',
        b'"p.eu.00000000000000000000000000000000.0"',
        b'"other.00000000000000000000000000000000.0"',
        b"7",
    ],
)
def test_a_winner_that_is_not_a_task_of_the_prefix_is_rejected(stranger):
    """A winner whose transactional id is not a task's under the prefix is refused."""
    own = b'"p.00000000000000000000000000000000.0"'
    assert _forged(own, own) is not None
    with pytest.raises(LedgerFormatError, match="not a transaction of a task under this prefix"):
        _forged(own, stranger)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'.0",0,0,2', b'.0","0",0,2'),
        (b'.0",0,0,2', b'.0",0,32768,2'),
        (b'.0",0,0,2', b'.0",0,0,-1'),
        (b'.0",0,0,2', b'.0",0,0,2,7'),
        (b"[0,", b"[-1,"),
        (b"[0,", b'["0",'),
        (b"[0,", b"[0,7,"),
        (b'{"t":', b'["t",'),
        (b",null,", b',"lost",'),
    ],
)
def test_a_malformed_winner_is_rejected(old, new):
    """A winner with a malformed producer, version, range or fate is refused."""
    with pytest.raises(LedgerFormatError):
        _forged(old, new, partitions=1)


def test_winners_that_decompress_too_far_are_rejected(monkeypatch):
    """Winners that decompress beyond the limit are refused, to protect the driver's memory."""
    entries = encode_write("p", "q", _large(MANY))
    monkeypatch.setattr(ledger_records, "MAX_WINNERS_BYTES", 1_000_000)
    with pytest.raises(LedgerFormatError, match="exceed 1000000 bytes"):
        _read(entries).record("q")


def test_a_decision_too_large_to_be_read_back_is_rejected(monkeypatch):
    """A decision too large to be read back is refused before anything is visible."""
    monkeypatch.setattr(ledger_records, "MAX_WINNERS_BYTES", 1_000_000)
    with pytest.raises(ExactlyOnceError, match="batch 5 of 'q' was not committed, and none of it"):
        encode_write("p", "q", _large(MANY))
    assert 64 * 1024 * 1024 == _LIMIT


@pytest.mark.parametrize("piece", [b"", b"\x01", b"\x01\0\0"])
def test_a_truncated_piece_is_rejected(piece):
    """A truncated piece is refused like a missing one."""
    (key, _), *others = encode_write("p", "q", _large(MANY))
    with pytest.raises(LedgerFormatError):
        _read([(key, piece), *others]).record("q")


@pytest.mark.parametrize("state", ['"other"', "7", "null"])
def test_an_unknown_state_is_rejected(state):
    """A write with an unknown state is refused, so that it is not overwritten."""
    [(key, value)] = encode_write("p", "q", _large(0))
    with pytest.raises(LedgerFormatError):
        _read([(key, value.replace(b'"decided"', state.encode()))]).record("q")


def test_a_deleted_claim_is_none():
    """After its tombstone a claim is None, as if the prefix had never been claimed."""
    key, value = encode_claim("p", Claim(3, 1, "me"))
    assert _read([(key, value), (key, None)]).claim is None


def test_the_version_is_the_first_byte():
    """The version is the first byte of keys and of values."""
    key, value = encode_claim("p", Claim(3, 1, "me"))
    assert (VERSION, VERSION) == (key[:1], value[:1])
