"""The state of a ledger, built from the entries read so far.

A ledger remembers every job for days; at one job per second that is half a million entries. So
reading an entry must be cheap, and a step must not look at entries that do not concern it:

- Values are stored as bytes and decoded only when that write is looked up.
- The form of its value, `SETTLED`, identifies a write that has ended. Every other value is
  unsettled, and the first step that sees it decodes it, once.
- Nearly every ended write is alone in its transaction. One regular expression finds and splits it.
- Ended jobs are queued by expiry time in portions of 1,000 seconds, and each step checks only some
  of them.

Only transactional records with a COMMIT marker count. A record outside a transaction was written
without fencing, and a record whose key is not a ledger key was not written by a driver. Both are
ignored, counted and reported: they must not stop the prefixes that share the topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from spark_kafka_sink.exactly_once import ledger_records
from spark_kafka_sink.exactly_once.errors import LedgerFormatError
from spark_kafka_sink.exactly_once.transitions import WriteState

#: Jobs whose expiry times differ only in this many last digits form a portion of 1,000 seconds.
_PORTION_DIGITS: Final = 6
_PORTION_MS: Final = 10**_PORTION_DIGITS
_HAVE_ENDED: Final = frozenset({WriteState.DONE, WriteState.VOID})
_NO_PIECES: Final[Mapping[int, bytes]] = {}

#: The key, the value, and the offset of the record's batch.
_Entry: TypeAlias = tuple[bytes, bytes | None, int]
#: Committed entries are applied together, up to about this many at once.
_MAX_TOGETHER: Final = 10_000

_NOT_TRANSACTIONAL: Final = "not written in a transaction"
_NOT_AN_ENTRY: Final = "without a valid ledger key"
_NOT_DECODABLE: Final = "in a batch that cannot be decoded"


class Contents(NamedTuple):
    """The entries of one prefix, decoded."""

    #: None before the first claim, or if it cannot be read.
    claim: ledger_records.Claim | None
    writes: dict[str, ledger_records.WriteRecord]
    #: The errors of the unreadable entries.
    unreadable: dict[ledger_records.EntryKey, LedgerFormatError]


class LedgerState:
    """The entries of one prefix: the last value of each key.

    What it returns is valid until the ledger is read again. Every method that decodes an entry may
    raise LedgerFormatError.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.keys = ledger_records.PrefixKeys(prefix)
        self._claim: bytes | None = None
        #: The values of writes by key.
        self._values: dict[bytes, bytes] = {}
        self._pieces: dict[str, dict[int, bytes]] = {}
        #: The keys of writes whose value does not have the form `SETTLED`, with the decoded value,
        #: or None before it is decoded.
        self._unsettled: dict[bytes, ledger_records.WriteRecord | None] = {}
        #: The keys of ended writes that never expire: streams. May contain stale keys.
        self._lasting: dict[bytes, None] = {}
        #: The keys of ended writes that expire, by portion. May contain stale keys.
        self._expiring: dict[bytes, deque[bytes]] = {}

    def put(self, records: Iterable[_Entry]) -> list[int]:
        """Apply records in order; return the offsets of those that are not entries."""
        return [offset for key, value, offset in records if not self._put_any(key, value)]

    def put_ended(self, keys: list[bytes], values: list[bytes], times: list[bytes]) -> None:
        """Apply writes that have ended, in order.

        `times` are the expiry times in decimal digits, or `NEVER`. A new driver runs this for
        nearly every entry of a large ledger: it is the hot path.
        """
        self._values.update(zip(keys, values, strict=True))
        if self._unsettled:
            for key in keys:
                self._unsettled.pop(key, None)
        portion = b""
        append = self._expiring.setdefault(portion, deque()).append
        for key, expires_at_ms in zip(keys, times, strict=True):
            if expires_at_ms == ledger_records.NEVER:
                self._lasting[key] = None
                continue
            if expires_at_ms[:-_PORTION_DIGITS] != portion:
                portion = expires_at_ms[:-_PORTION_DIGITS]
                append = self._expiring.setdefault(portion, deque()).append
            append(key)

    def _put_any(self, key: bytes, value: bytes | None) -> bool:
        """Apply a record of any kind; return whether it is an entry of the prefix."""
        if not self.keys.plain_write.fullmatch(key):
            kind = self._put_other(key, value)
            if kind != ledger_records.WRITE:
                return kind is not None
        if value is None:
            self._values.pop(key, None)
            self._unsettled.pop(key, None)
            self._lasting.pop(key, None)
        elif settled := ledger_records.SETTLED.fullmatch(value):
            self.put_ended([key], [value], [settled[1]])
        else:
            self._values[key] = value
            self._unsettled[key] = None
        return True

    def _put_other(self, key: bytes, value: bytes | None) -> str | None:
        """Apply a claim or a piece of a decision; return the entry's kind, or None.

        None means that the record is not an entry of this prefix.
        """
        if key == self.keys.claim:
            self._claim = value
            return ledger_records.GENERATION
        try:
            entry = ledger_records.decode_key(key)
        except LedgerFormatError:
            return None
        if entry.prefix != self.prefix:
            return None
        if entry.kind == ledger_records.WINNERS:
            self._put_piece(entry, value)
        return entry.kind

    def _put_piece(self, entry: ledger_records.EntryKey, value: bytes | None) -> None:
        pieces = self._pieces.setdefault(entry.write_id, {})
        if value is None:
            pieces.pop(entry.piece, None)
        else:
            pieces[entry.piece] = value
        if not pieces:
            del self._pieces[entry.write_id]

    @property
    def claim(self) -> ledger_records.Claim | None:
        """The latest claim, or None before the first."""
        return None if self._claim is None else ledger_records.decode_claim(self._claim)

    @property
    def generation(self) -> int:
        """The latest claimed generation, or 0 before the first."""
        claim = self.claim
        return 0 if claim is None else claim.generation

    @property
    def writes(self) -> Mapping[str, ledger_records.WriteRecord]:
        """All writes. Looking one up is cheap; iterating over all of a large ledger is not."""
        return _Writes(self._values.keys(), self.record)

    def pieces(self, write_id: str) -> int:
        """Return the number of pieces of a write's record."""
        return len(self._pieces.get(write_id, _NO_PIECES))

    def record(self, write_id: str) -> ledger_records.WriteRecord | None:
        """Return the record of a write, or None."""
        return self._record(ledger_records.write_key(self.prefix, write_id), write_id)

    def _record(self, key: bytes, write_id: str) -> ledger_records.WriteRecord | None:
        value = self._values.get(key)
        if value is None:
            return None
        known = self._unsettled.get(key)
        if known is None:
            pieces = self._pieces.get(write_id, _NO_PIECES)
            known = ledger_records.decode_write(self.prefix, write_id, value, pieces)
            if key in self._unsettled:
                self._unsettled[key] = known
        return known

    def _records(self, keys: Iterable[bytes]) -> dict[str, ledger_records.WriteRecord]:
        records = {}
        for key in keys:
            write_id = _write_id(key)
            record = self._record(key, write_id)
            if record is not None:
                records[write_id] = record
        return records

    @property
    def is_empty(self) -> bool:
        """Whether there are no entries, readable or not."""
        return self._claim is None and not self._values

    def decode_all(self) -> Contents:
        """Decode every entry; collect the errors of the unreadable ones."""
        contents = Contents(None, {}, {})
        try:
            contents = contents._replace(claim=self.claim)
        except LedgerFormatError as error:
            contents.unreadable[ledger_records.EntryKey(ledger_records.GENERATION, self.prefix)] = (
                error
            )
        for key in self._values:
            entry = ledger_records.decode_key(key)
            try:
                record = self._record(key, entry.write_id)
            except LedgerFormatError as error:
                contents.unreadable[entry] = error
            else:
                if record is not None:
                    contents.writes[entry.write_id] = record
        return contents

    def unfinished(self) -> dict[str, ledger_records.WriteRecord]:
        """Return the writes that have not ended (decided or mixed)."""
        records = self._records(self._unsettled)
        return {
            write_id: record
            for write_id, record in records.items()
            if record.write.state not in _HAVE_ENDED
        }

    def streams(self) -> dict[str, ledger_records.WriteRecord]:
        """Return the writes that never expire."""
        records = self._records({**self._lasting, **self._unsettled})
        return {
            write_id: record for write_id, record in records.items() if record.expires_at_ms is None
        }

    def expired(self, now_ms: int, *, most: int) -> frozenset[str]:
        """Return ended jobs that may be dropped, after checking at most `most` jobs.

        A job is returned again until its tombstone is read. Checked jobs move to the back of their
        queue, so that the next call checks others.
        """
        expired: dict[bytes, None] = {}
        for portion in sorted(self._expiring, key=_number):
            if _number(portion) > now_ms // _PORTION_MS:
                break
            waiting = self._expiring[portion]
            for _ in range(len(waiting)):
                if not most:
                    break
                key = waiting.popleft()
                expires_at_ms = self._expires_at_ms(key)
                if expires_at_ms is None or expires_at_ms // _PORTION_MS != _number(portion):
                    # Dropped or rewritten since it was queued.
                    continue
                waiting.append(key)
                most -= 1
                if expires_at_ms <= now_ms:
                    expired[key] = None
            if not waiting:
                del self._expiring[portion]
        return frozenset(map(_write_id, expired))

    def _expires_at_ms(self, key: bytes) -> int | None:
        """Return when an ended write may be dropped; None if never, or if it has been removed."""
        settled = ledger_records.SETTLED.fullmatch(self._values.get(key, b""))
        return int(settled[1]) if settled and settled[1] != ledger_records.NEVER else None


def _number(portion: bytes) -> int:
    return int(portion or b"0")


def _write_id(key: bytes) -> str:
    return ledger_records.decode_key(key).write_id


class _Writes(Mapping[str, "ledger_records.WriteRecord"]):
    """The writes of a prefix, each decoded on lookup."""

    def __init__(
        self, keys: Collection[bytes], record: Callable[[str], ledger_records.WriteRecord | None]
    ) -> None:
        self._keys = keys
        self._record = record

    def __getitem__(self, write_id: str) -> ledger_records.WriteRecord:
        record = self._record(write_id)
        if record is None:
            raise KeyError(write_id)
        return record

    def __iter__(self) -> Iterator[str]:
        return map(_write_id, self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def decided_writes(state: LedgerState) -> dict[str, ledger_records.WriteRecord]:
    """Return the writes whose transactions must be committed, by any driver."""
    return {
        write_id: record
        for write_id, record in state.unfinished().items()
        if record.write.state is WriteState.DECIDED
    }


class KeyOffsets:
    """The offsets of each given key's last committed record: a sink for `DriverClient.read_log`."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        #: See `LogSink`.
        self.known_records: None = None
        self._open: dict[int, dict[bytes, int]] = {}
        self._keys = frozenset(keys)
        #: By key, the offset of the last batch that has it in a committed transaction.
        self.offsets: dict[bytes, int] = {}

    def take_records(
        self,
        offset: int,
        producer_id: int,
        records: list[tuple[bytes | None, bytes | None]],
    ) -> None:
        """Record the keys' offsets until their transaction ends."""
        offsets = {key: offset for key, _ in records if key and key in self._keys}
        self._open.setdefault(producer_id, {}).update(offsets)

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Keep the offsets of a committed transaction; drop those of an aborted one."""
        offsets = self._open.pop(producer_id, {})
        if committed:
            self.offsets.update(offsets)

    def take_plain(self, offset: int, count: int) -> None:
        """Skip records outside a transaction, which do not count."""

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Skip a batch whose keys cannot be decoded."""


class Ignored(NamedTuple):
    """The ignored records of a ledger topic that share a reason."""

    records: int
    #: The offset of the first batch that contains one.
    first_offset: int


class LedgerFold:
    """The ledger state built from its records and markers: a sink for `DriverClient.read_log`."""

    def __init__(self, prefix: str | None = None) -> None:
        """Start without entries; with a prefix, collect only its own, otherwise all."""
        self._prefix = prefix
        keys = None if prefix is None else ledger_records.PrefixKeys(prefix)
        self._starts = ledger_records.KEY_STARTS if keys is None else keys.starts
        #: See `LogSink`. A reader of all prefixes has to decode every key anyway.
        self.known_records = (
            None
            if keys is None
            else (keys.plain_write.pattern, ledger_records.SETTLED.pattern, self._take_ended)
        )
        self._prefixes: dict[str, LedgerState] = {}
        #: Entries whose transaction has not ended yet, by producer id.
        self._pending: dict[int, list[_Entry]] = {}
        self._committed: list[_Entry] = []
        #: Whether the last transaction with entries was committed, by producer id.
        self._ends: dict[int, bool] = {}
        self._ignored: dict[str, Ignored] = {}

    def take_records(
        self,
        offset: int,
        producer_id: int,
        records: list[tuple[bytes | None, bytes | None]],
    ) -> None:
        """Hold the records of a transactional batch until its transaction ends."""
        starts = self._starts
        own: list[_Entry] = [
            (key, value, offset) for key, value in records if key and key.startswith(starts)
        ]
        if len(own) != len(records):
            foreign = sum(
                not (key or b"").startswith(ledger_records.KEY_STARTS) for key, _ in records
            )
            self._ignore(_NOT_AN_ENTRY, offset, foreign)
        if not own:
            return
        pending = self._pending.get(producer_id)
        if pending is None:
            self._pending[producer_id] = own
        else:
            pending += own

    def _take_ended(
        self, producer_id: int, keys: list[bytes], values: list[bytes], times: list[bytes]
    ) -> None:
        """Apply committed transactions that each contain a single ended write."""
        # The first of these transactions may have earlier batches.
        self._committed += self._pending.pop(producer_id, ())
        self._put_committed()
        self._ends[producer_id] = True
        if self._prefix is not None:
            self._entries_of(self._prefix).put_ended(keys, values, times)

    def take_plain(self, offset: int, count: int) -> None:
        """Count records outside a transaction, which are ignored."""
        self._ignore(_NOT_TRANSACTIONAL, offset, count)

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Handle the marker of a transaction."""
        entries = self._pending.pop(producer_id, None)
        if entries is None:
            # Another prefix's marker, or a duplicate from a restarted coordinator.
            return
        self._ends[producer_id] = committed
        if committed:
            self._committed += entries
            if len(self._committed) > _MAX_TOGETHER:
                self._put_committed()

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Count a batch that cannot be decoded, which is ignored."""
        self._ignore(f"{_NOT_DECODABLE} ({reason})", offset, 1)

    def is_open(self, producer_id: int) -> bool:
        """Return whether a producer has entries that no marker follows."""
        return producer_id in self._pending

    def end_of(self, producer_id: int) -> bool | None:
        """Return whether a producer's last ended transaction was committed; None if none ended."""
        return self._ends.get(producer_id)

    @property
    def prefixes(self) -> Mapping[str, LedgerState]:
        """The entries of each prefix that has any."""
        self._put_committed()
        return self._prefixes

    def entries(self, prefix: str) -> LedgerState:
        """Return the entries of a prefix, empty if it has none."""
        return self.prefixes.get(prefix, LedgerState(prefix))

    def take_ignored(self) -> dict[str, Ignored]:
        """Return the records ignored since the last call, by reason."""
        ignored, self._ignored = self._ignored, {}
        return ignored

    def _put_committed(self) -> None:
        committed, self._committed = self._committed, []
        if self._prefix is None:
            for prefix, entries in self._by_prefix(committed).items():
                self._put(prefix, entries)
        elif committed:
            self._put(self._prefix, committed)

    def _put(self, prefix: str, entries: list[_Entry]) -> None:
        for offset in self._entries_of(prefix).put(entries):
            self._ignore(_NOT_AN_ENTRY, offset, 1)

    def _entries_of(self, prefix: str) -> LedgerState:
        known = self._prefixes.get(prefix)
        if known is None:
            known = self._prefixes[prefix] = LedgerState(prefix)
        return known

    def _by_prefix(self, committed: list[_Entry]) -> dict[str, list[_Entry]]:
        by_prefix: dict[str, list[_Entry]] = {}
        for entry in committed:
            try:
                prefix = ledger_records.decode_key(entry[0]).prefix
            except LedgerFormatError:
                self._ignore(_NOT_AN_ENTRY, entry[2], 1)
            else:
                by_prefix.setdefault(prefix, []).append(entry)
        return by_prefix

    def _ignore(self, why: str, offset: int, count: int) -> None:
        if count:
            known = self._ignored.get(why, Ignored(0, offset))
            self._ignored[why] = known._replace(records=known.records + count)
