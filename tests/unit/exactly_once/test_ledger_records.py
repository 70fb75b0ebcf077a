"""Entries of the ledger, there and back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.admin.partition_events import DataRecord, EndMarker
from spark_kafka_sink.exactly_once.errors import LedgerFormatError
from spark_kafka_sink.exactly_once.ledger import LedgerFold
from spark_kafka_sink.exactly_once.ledger_records import (
    MAX_INLINE_BYTES,
    PIECE_BYTES,
    VERSION,
    Claim,
    EntryKey,
    OffsetRange,
    PrefixEntries,
    Winner,
    WriteRecord,
    decode_key,
    encode_claim,
    encode_key,
    encode_write,
    forget_write,
)
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.record.decode import Record

_int64 = st.integers(0, 2**63 - 1)
_ranges = st.builds(
    OffsetRange,
    st.builds(TopicPartition, st.text(max_size=8), st.integers(0, 10_000)),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    _int64,
)
_winners = st.builds(
    Winner,
    st.text(max_size=20),
    st.builds(ProducerIdAndEpoch, _int64, st.integers(0, 2**15 - 1)),
    st.integers(0, 3),
    st.lists(_ranges, max_size=5).map(lambda ranges: tuple(sorted(ranges))),
    st.none() | st.sampled_from(Fate),
)
_records = st.builds(
    WriteRecord,
    write=st.builds(Write, _int64, _int64, st.sampled_from(WriteState), st.integers(-1, 2**63 - 1)),
    updated_at_ms=_int64,
    expires_at_ms=st.none() | _int64,
    winners=st.lists(_winners, max_size=4).map(tuple),
)


def _read(entries):
    read = PrefixEntries()
    for key, value in entries:
        read.apply(decode_key(key), value)
    return read


def _large(count, *, generation=3, batch_id=5):
    """Make a decision of `count` winners whose offsets do not compress well."""
    return WriteRecord(
        write=Write(batch_id, generation, WriteState.DECIDED, 4),
        updated_at_ms=1,
        winners=tuple(
            Winner(
                f"orders.{number:032x}.0",
                ProducerIdAndEpoch(number * 7919 % 1_000_003, 0),
                2,
                tuple(
                    OffsetRange(
                        TopicPartition("t", partition),
                        offset := hash((number, partition)) >> 8,
                        offset + 9,
                        10,
                    )
                    for partition in range(150)
                ),
            )
            for number in range(count)
        ),
    )


@given(prefix=st.text(), write_id=st.text(), record=_records)
def test_a_write_is_read_as_it_was_written(prefix, write_id, record):
    """Every field comes back, whatever its text."""
    entries = encode_write(prefix, write_id, record)
    assert EntryKey("write", prefix, write_id) == decode_key(entries[-1].key)
    assert record == _read(entries).record(write_id)


@given(claim=st.builds(Claim, _int64, _int64, st.text()), prefix=st.text())
def test_a_claim_is_read_as_it_was_written(claim, prefix):
    """With who made it, for an operator."""
    assert claim == _read([encode_claim(prefix, claim)]).claim


@given(prefix=st.text(), write_id=st.text(), piece=st.integers(0, 10**6))
def test_a_key_is_read_as_it_was_written(prefix, write_id, piece):
    """Equal keys are equal bytes, which compaction relies on."""
    for key in (
        EntryKey("generation", prefix),
        EntryKey("write", prefix, write_id),
        EntryKey("winners", prefix, write_id, piece),
    ):
        assert key == decode_key(encode_key(key))


def test_a_large_decision_is_written_in_pieces():
    """No entry is larger than what a broker takes, and together they are the decision."""
    record = _large(400)
    entries = encode_write("orders", "q", record)
    assert len(entries) > 2
    assert all(len(entry.value) <= PIECE_BYTES + 100 for entry in entries)
    assert record == _read(entries).record("q")


@settings(max_examples=8)
@given(counts=st.lists(st.sampled_from([0, 1, 60, 400]), min_size=2, max_size=4))
def test_pieces_of_an_earlier_decision_are_deleted(counts):
    """The last decision is what is read, and no piece is left that it does not need."""
    read = PrefixEntries()
    for generation, count in enumerate(counts):
        record = _large(count, generation=generation)
        entries = encode_write("p", "q", record, pieces_before=read.pieces("q"))
        for key, value in entries:
            read.apply(decode_key(key), value)
        assert record == read.record("q")
        written = sum(entry.value is not None for entry in entries) - 1
        assert written == read.pieces("q")


def test_a_write_is_forgotten_with_its_pieces():
    """Nothing is left under its keys."""
    read = _read(encode_write("p", "q", _large(400)))
    for key, value in forget_write("p", "q", pieces_before=read.pieces("q")):
        read.apply(decode_key(key), value)
    assert (None, 0, []) == (read.record("q"), read.pieces("q"), read.write_ids)


def test_a_piece_of_another_decision_is_refused():
    """Then the ledger was tampered with: half of each of two decisions is no decision."""
    old = encode_write("p", "q", _large(400, generation=2))
    new = encode_write("p", "q", _large(400, generation=3))
    with pytest.raises(LedgerFormatError, match="another decision"):
        _read([old[0], *new[1:]]).record("q")


def test_a_missing_piece_is_refused():
    """What cannot be read is an error, never an empty decision."""
    with pytest.raises(LedgerFormatError, match="'q' cannot be read"):
        _read(encode_write("p", "q", _large(400))[1:]).record("q")


def test_small_decisions_are_one_entry():
    """Which an operator can read as it is."""
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
    ],
)
def test_what_is_no_entry_is_refused(key):
    """A topic with other records in it is no ledger."""
    with pytest.raises(LedgerFormatError):
        decode_key(key)


@pytest.mark.parametrize("kind", ["generation", "write"])
@pytest.mark.parametrize("value", [b"\x02{}", b"\x01{", b"\x01[]", b"\x01{}"])
def test_a_value_that_cannot_be_read_is_refused(kind, value):
    """One of a later version asks for an update, and is never passed over."""
    key = encode_key(EntryKey(kind, "p", "q"))
    with pytest.raises(LedgerFormatError):
        _read([(key, value)]).record("q")


@pytest.mark.parametrize("state", ['"other"', "7", "null"])
def test_a_state_of_a_later_version_is_refused(state):
    """A write whose state is not known is not written over."""
    [(key, value)] = encode_write("p", "q", _large(0))
    with pytest.raises(LedgerFormatError):
        _read([(key, value.replace(b'"decided"', state.encode()))]).record("q")


def test_a_deleted_claim_is_none():
    """As if nobody had claimed the prefix."""
    key, value = encode_claim("p", Claim(3, 1, "me"))
    assert _read([(key, value), (key, None)]).claim is None


# --- the ledger as records and markers


def _entry(generation, producer_id, prefix="p"):
    key, value = encode_claim(prefix, Claim(generation, 0, ""))
    return DataRecord(Record(0, 0, key, value), producer_id)


def _generation(fold, prefix="p"):
    claim = fold.prefixes[prefix].claim if prefix in fold.prefixes else None
    return None if claim is None else claim.generation


def test_an_entry_counts_once_its_transaction_is_committed():
    """And never when it was aborted, or has not ended."""
    fold = LedgerFold("p")
    fold.apply([_entry(1, 10), EndMarker(1, 10, 0, True), _entry(2, 10)])
    assert 1 == _generation(fold)
    fold.apply([EndMarker(3, 10, 0, False), _entry(3, 10), EndMarker(5, 10, 0, True)])
    assert 3 == _generation(fold)


def test_entries_of_transactions_side_by_side_are_kept_apart():
    """Another prefix's open transaction holds nothing back."""
    fold = LedgerFold()
    fold.apply([_entry(8, 99, "other"), _entry(1, 10), EndMarker(2, 10, 0, True)])
    assert (1, None) == (_generation(fold), _generation(fold, "other"))
    fold.apply([EndMarker(3, 99, 0, True)])
    assert 8 == _generation(fold, "other")


def test_only_the_entries_of_the_prefix_are_kept():
    """A ledger that a thousand jobs share is not held in memory by each of them."""
    fold = LedgerFold("p")
    fold.apply([_entry(8, 99, "p.eu"), EndMarker(1, 99, 0, True)])
    assert {} == fold.prefixes


def test_an_entry_without_a_transaction_counts_at_once():
    """So an operator can write one by hand."""
    fold = LedgerFold("p")
    fold.apply([_entry(4, None)])
    assert 4 == _generation(fold)


def test_the_version_is_the_first_byte():
    """Of keys and values alike."""
    key, value = encode_claim("p", Claim(3, 1, "me"))
    assert (VERSION, VERSION) == (key[:1], value[:1])
