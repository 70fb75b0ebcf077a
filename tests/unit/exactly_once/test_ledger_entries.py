"""The ledger state built from its entries, and how few of them each step decodes."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.admin.records import transactional_batches
from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.ledger_entries import (
    LedgerFold,
    decided_writes,
)
from spark_kafka_sink.exactly_once.ledger_records import (
    GENERATION,
    WRITE,
    Claim,
    EntryKey,
    Winner,
    WriteRecord,
    encode_claim,
    encode_write,
    forget_write,
    write_key,
)
from spark_kafka_sink.exactly_once.transitions import Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.record.key_values import read_key_values
from spark_kafka_sink.record.record_batch import ControlRecordType, transaction_marker
from spark_kafka_sink.spark.worker import without_collector

HOUR_MS = 3_600_000
OURS, THEIRS = 10, 99
WINNER = Winner("p.00000000000000000000000000000000.0", ProducerIdAndEpoch(1, 0), 2, ())


def _record(state=WriteState.DONE, *, batch_id=0, expires_at_ms=None):
    winners = (WINNER,) if state in {WriteState.DECIDED, WriteState.MIXED} else ()
    return WriteRecord(
        write=Write(batch_id, 5, state, -1),
        updated_at_ms=1,
        expires_at_ms=expires_at_ms,
        winners=winners,
    )


def _claim(fold, generation, *, producer_id=OURS, prefix="p"):
    fold.take_records(0, producer_id, [encode_claim(prefix, Claim(generation, 0, ""))])


def _put(fold, writes, *, forget=()):
    """Append and commit writes as they would be read from the ledger."""
    entries = [
        entry for name, record in writes.items() for entry in encode_write("p", name, record)
    ]
    entries += [entry for name in forget for entry in forget_write("p", name)]
    fold.take_records(0, OURS, entries)
    fold.take_end(OURS, committed=True)


def _state(fold):
    return fold.entries("p")


def _generation(fold, prefix="p"):
    claim = fold.entries(prefix).claim
    return None if claim is None else claim.generation


# --- which records count


def test_an_entry_counts_only_after_its_transaction_is_committed():
    """An entry counts only after its COMMIT marker, and never if it is open or aborted."""
    fold = LedgerFold("p")
    _claim(fold, 1)
    assert (None, True) == (_generation(fold), fold.is_open(OURS))
    fold.take_end(OURS, committed=True)
    assert (1, False, True) == (_generation(fold), fold.is_open(OURS), fold.end_of(OURS))
    _claim(fold, 2)
    fold.take_end(OURS, committed=False)
    assert (1, False) == (_generation(fold), fold.end_of(OURS))


def test_a_transaction_may_have_many_batches():
    """A marker ends all batches of its transaction, and a duplicate marker has no effect."""
    fold = LedgerFold("p")
    _claim(fold, 1)
    _claim(fold, 2)
    fold.take_records(9, OURS, [])
    fold.take_end(OURS, committed=True)
    fold.take_end(OURS, committed=False)
    assert (2, True) == (_generation(fold), fold.end_of(OURS))


def test_a_batch_emptied_by_compaction_is_not_an_open_transaction():
    """A batch emptied by compaction is not an open transaction: its marker may be gone as well."""
    fold = LedgerFold("p")
    fold.take_records(0, OURS, [])
    assert not fold.is_open(OURS)


def test_an_ended_write_can_end_a_transaction_with_more_entries():
    """Earlier entries of a transaction are applied before the ended write that closes it."""
    record = _record(expires_at_ms=9 * HOUR_MS)
    [before] = encode_write("p", "j", _record(batch_id=7))
    fold = LedgerFold("p")
    fold.take_records(0, OURS, [before, encode_claim("p", Claim(3, 0, ""))])
    log = _log(encode_write("p", "j", record))
    read_key_values(log, fold, offset=0)
    assert (3, {"j": record}) == (_generation(fold), dict(_state(fold).writes))
    assert (False, True) == (fold.is_open(OURS), fold.end_of(OURS))


def test_entries_of_interleaved_transactions_are_kept_apart():
    """Interleaved transactions are kept apart, and an open one does not delay another."""
    fold = LedgerFold()
    _claim(fold, 8, producer_id=THEIRS, prefix="other")
    _claim(fold, 1)
    fold.take_end(OURS, committed=True)
    assert (1, None) == (_generation(fold), _generation(fold, "other"))
    fold.take_end(THEIRS, committed=True)
    assert 8 == _generation(fold, "other")


def test_only_the_entries_of_the_prefix_are_kept():
    """A reader of one prefix stores no entries of other prefixes and does not report them."""
    fold = LedgerFold("p")
    _claim(fold, 8, producer_id=THEIRS, prefix="p.eu")
    fold.take_end(THEIRS, committed=True)
    assert {} == fold.prefixes
    assert {} == fold.take_ignored()


def test_a_record_outside_a_transaction_is_ignored():
    """Records outside a transaction are ignored and counted, since their writer has not fenced."""
    for fold in (LedgerFold("p"), LedgerFold()):
        fold.take_plain(7, 3)
        fold.take_plain(10, 1)
        fold.take_end(-1, committed=True)
        assert [] == list(_state(fold).writes)
        assert {"not written in a transaction": (4, 7)} == fold.take_ignored()


@pytest.mark.parametrize(("prefix", "count"), [("p", 6), (None, 8)])
def test_a_record_with_an_invalid_key_is_ignored(prefix, count):
    """Records with invalid keys are counted and reported once, with the first offset."""
    # Only the reader of all prefixes counts a malformed key that may be another prefix's.
    fold = LedgerFold(prefix)
    foreign = [None, b"", b"user-7", b"\x01[", b'\x01["write","p", "q"]', b'\x01["write","p",7]']
    fold.take_records(3, THEIRS, [(key, b"\x01{}") for key in foreign])
    cut_off = write_key("p", "q")[:-1]
    fold.take_records(4, THEIRS, [encode_claim("p", Claim(3, 0, "")), (cut_off, b""), (b"x", None)])
    fold.take_end(THEIRS, committed=True)
    assert 3 == _generation(fold)
    assert [] == list(_state(fold).writes)
    [(why, ignored)] = fold.take_ignored().items()
    assert ("without a valid ledger key", (count, 3)) == (why, tuple(ignored))
    assert {} == fold.take_ignored()


def test_an_undecodable_batch_is_ignored():
    """An undecodable batch is ignored and reported, since no driver wrote it."""
    fold = LedgerFold("p")
    fold.take_undecodable(4, "too large")
    assert {"in a batch that cannot be decoded (too large)": (1, 4)} == fold.take_ignored()


# --- what a step decodes


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", 'quoted "c"', "\u00e9\u00a0", "\U0001f600"]),
            st.none()
            | st.builds(
                _record,
                st.sampled_from([state for state in WriteState if state is not WriteState.CLAIMED]),
                batch_id=st.integers(0, 3),
                expires_at_ms=st.none() | st.integers(0, 20 * HOUR_MS),
            ),
        ),
        max_size=20,
    ),
    now_ms=st.integers(0, 21 * HOUR_MS),
)
def test_every_query_returns_the_same_as_a_full_scan(steps, now_ms):
    """Every query returns the same as a full scan, after any sequence of entries."""
    fold = LedgerFold("p")
    kept = {}
    for name, record in steps:
        if record is None:
            _put(fold, {}, forget=[name])
            kept.pop(name, None)
        else:
            _put(fold, {name: record})
            kept[name] = record
    state = _state(fold)
    assert kept == dict(state.writes)
    assert len(kept) == len(state.writes)
    unfinished = {
        name: record
        for name, record in kept.items()
        if record.write.state in {WriteState.DECIDED, WriteState.MIXED}
    }
    assert unfinished == state.unfinished()
    assert {
        name: record
        for name, record in unfinished.items()
        if record.write.state is WriteState.DECIDED
    } == decided_writes(state)
    assert {
        name: record for name, record in kept.items() if record.expires_at_ms is None
    } == state.streams()
    for _ in range(2):
        assert {
            name
            for name, record in kept.items()
            if name not in unfinished
            and record.expires_at_ms is not None
            and record.expires_at_ms <= now_ms
        } == state.expired(now_ms, most=100)


def test_expired_jobs_are_returned_in_portions():
    """Expired jobs are returned oldest first, and again until their tombstones are read."""
    fold = LedgerFold("p")
    _put(fold, {f"j{n}": _record(expires_at_ms=n // 4 * HOUR_MS) for n in range(12)})
    now_ms = 2 * HOUR_MS - 1
    first = _state(fold).expired(now_ms, most=3)
    assert {"j0", "j1", "j2", "j3"} > first
    again = _state(fold).expired(now_ms, most=3)
    assert (3, 3) == (len(first), len(again))
    _put(fold, {}, forget=first | again)
    seen = set(first | again)
    while found := _state(fold).expired(now_ms, most=3):
        seen |= found
        _put(fold, {}, forget=found)
    assert {f"j{n}" for n in range(8)} == seen
    assert {f"j{n}" for n in range(8, 12)} == set(_state(fold).writes)


def test_a_rewritten_job_expires_later():
    """A rewritten job expires by its last record."""
    fold = LedgerFold("p")
    _put(fold, {"j": _record(WriteState.VOID, expires_at_ms=1)})
    _put(fold, {"j": _record(WriteState.DONE, expires_at_ms=3 * HOUR_MS)})
    assert frozenset() == _state(fold).expired(2 * HOUR_MS, most=9)
    assert {"j"} == _state(fold).expired(4 * HOUR_MS, most=9)


def test_a_step_decodes_only_the_writes_it_needs(monkeypatch):
    """With a thousand jobs in the ledger, a step decodes only the writes that it needs."""
    fold = LedgerFold("p")
    _put(fold, {f"j{n}": _record(expires_at_ms=9 * HOUR_MS) for n in range(1000)})
    _put(fold, {"query": _record(WriteState.DECIDED), "stream": _record()})
    decoded = []
    decode = ledger_records.decode_write

    def count(prefix, write_id, *rest):
        decoded.append(write_id)
        return decode(prefix, write_id, *rest)

    monkeypatch.setattr(ledger_records, "decode_write", count)
    for _ in range(3):
        state = _state(fold)
        assert {"query"} == set(decided_writes(state))
        assert {"query", "stream"} == set(state.streams())
        assert 0 == state.writes["j7"].write.batch_id
        assert None is state.writes.get("another")
        state.expired(8 * HOUR_MS, most=100)
    assert ["query"] + 3 * ["stream", "j7"] == decoded


def test_every_entry_is_decoded_once(monkeypatch):
    """Every entry is decoded once, and unreadable ones are returned with their errors."""
    fold = LedgerFold("p")
    writes = {"job": _record(expires_at_ms=1), "query": _record(WriteState.MIXED)}
    _put(fold, {**writes, "forged job": _record(expires_at_ms=1), "forged query": _record()})
    forged = [
        (key, value.replace(b":0,", b":true,", 1))
        for name in ("forged job", "forged query")
        for key, value in encode_write("p", name, _record(expires_at_ms=1))
    ]
    claim = encode_claim("p", Claim(1, 0, ""))
    fold.take_records(1, OURS, [*forged, (claim.key, b"\x01{}")])
    fold.take_end(OURS, committed=True)
    decoded = []
    decode = ledger_records.decode_write

    def count(prefix, write_id, *rest):
        decoded.append(write_id)
        return decode(prefix, write_id, *rest)

    monkeypatch.setattr(ledger_records, "decode_write", count)
    contents = _state(fold).decode_all()
    assert (None, writes) == (contents.claim, contents.writes)
    assert [
        EntryKey(GENERATION, "p"),
        EntryKey(WRITE, "p", "forged job"),
        EntryKey(WRITE, "p", "forged query"),
    ] == list(contents.unreadable)
    assert all("cannot be read" in str(error) for error in contents.unreadable.values())
    assert ["job", "query", "forged job", "forged query"] == decoded


def _log(*transactions):
    """Encode transactions as a broker stores them: a batch followed by its marker."""
    log = bytearray()
    producer = ProducerIdAndEpoch(OURS, 0)
    offset = 0
    for entries in transactions:
        batches = list(transactional_batches(entries, producer=producer, timestamp_ms=1))
        marker = transaction_marker(
            ControlRecordType.COMMIT,
            producer_id=OURS,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1,
        )
        for batch, count in zip([*batches, marker], [len(entries), 1], strict=True):
            struct.pack_into(">q", batch, 0, offset)
            log += batch
            offset += count
    return bytes(log)


def _calls(function):
    """Return the number of Python function calls that a function makes."""
    names = []

    def note(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    # The finalizers of what other tests have left would be calls, too.
    with without_collector():
        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(before)
    return len(names)


def test_ended_writes_are_read_without_a_call_for_each():
    """Reading jobs that each have their own transaction makes less than one call per four jobs."""
    count = 500
    log = _log(
        *(encode_write("p", f"j{n}", _record(expires_at_ms=n * HOUR_MS)) for n in range(count))
    )
    fold = LedgerFold("p")
    # The first read compiles the expression.
    read_key_values(b"", fold, offset=0)
    assert count / 4 > _calls(lambda: read_key_values(log, fold, offset=0))
    assert {f"j{n}" for n in range(count)} == set(_state(fold).writes)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", 'quoted "c"', "\u00e9"]),
            st.none()
            | st.builds(
                _record,
                st.sampled_from([WriteState.DONE, WriteState.VOID, WriteState.DECIDED]),
                batch_id=st.integers(0, 3),
                expires_at_ms=st.none() | st.integers(0, 20 * HOUR_MS),
            ),
            st.sampled_from(["p", "p", "other"]),
        ),
        max_size=12,
    )
)
def test_both_ways_to_read_an_entry_find_the_same_state(steps):
    """The fast path for one prefix and the reader of all prefixes find the same state."""
    log = _log(
        *(
            forget_write(prefix, name) if record is None else encode_write(prefix, name, record)
            for name, record, prefix in steps
        )
    )
    one, all_of_them = LedgerFold("p"), LedgerFold()
    assert read_key_values(log, one, offset=0) == read_key_values(log, all_of_them, offset=0)
    quick, slow = _state(one), _state(all_of_them)
    assert dict(slow.writes) == dict(quick.writes)
    assert slow.unfinished() == quick.unfinished()
    assert slow.streams() == quick.streams()
    assert slow.expired(21 * HOUR_MS, most=100) == quick.expired(21 * HOUR_MS, most=100)
