"""What the entries of a ledger come to, as far as they have been read.

A ledger remembers every job for days, and a job per second is half a million of them. So reading an
entry must be cheap, and a step must not look at entries that do not concern it:

- Values are kept as bytes, and decoded when somebody asks for that write.
- Writes that have ended are told from the others by the form of their value, `SETTLED`. Whatever
  has another form is unsettled, and is decoded, once, by the first step that sees it.
- An ended write that is alone in its transaction, as nearly all are, is found and taken apart by
  one regular expression.
- Jobs that have ended wait in the order of the quarters of an hour in which they may be dropped,
  and a step looks at some of them.

Only entries of transactions count, and only behind their COMMIT marker. The writer of a record
outside of a transaction has fenced nobody, and a record with a key that is not a ledger's is no
driver's. Both are left out, counted, and reported: they must not stop the prefixes that share the
topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.exactly_once.errors import LedgerFormatError
from spark_kafka_sink.exactly_once.ledger_records import (
    GENERATION,
    KEY_STARTS,
    NEVER,
    SETTLED,
    WINNERS,
    WRITE,
    EntryKey,
    PrefixKeys,
    decode_claim,
    decode_key,
    decode_write,
    write_key,
)
from spark_kafka_sink.exactly_once.transitions import WriteState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_kafka_sink.exactly_once.ledger_records import Claim, WriteRecord

#: Jobs whose times agree but for this many digits may be dropped together: 1,000 seconds.
_PORTION_DIGITS: Final = 6
_PORTION_MS: Final = 10**_PORTION_DIGITS
_HAVE_ENDED: Final = frozenset({WriteState.DONE, WriteState.VOID})
_NO_PIECES: Final[Mapping[int, bytes]] = {}

#: Key, value, and the offset of the batch that it was in.
_Entry: TypeAlias = tuple[bytes, bytes | None, int]
#: Entries that are committed are taken in together, up to this many at once.
_MOST_TOGETHER: Final = 10_000

_NOT_TRANSACTIONAL: Final = "not written in a transaction"
_NOT_AN_ENTRY: Final = "with a key that is not a ledger entry's"
_NOT_DECODABLE: Final = "in a batch that cannot be decoded"


class Contents(NamedTuple):
    """The entries of one prefix, decoded."""

    #: None before the first claim, and where it cannot be read.
    claim: Claim | None
    writes: dict[str, WriteRecord]
    #: What is wrong with the entries that cannot be read.
    unreadable: dict[EntryKey, LedgerFormatError]


class PrefixEntries:
    """The entries of one prefix: the last value of each key."""

    def __init__(self, prefix: str) -> None:
        """Begin without entries."""
        self.prefix = prefix
        self.keys = PrefixKeys(prefix)
        self._claim: bytes | None = None
        #: The values of writes by their keys.
        self._values: dict[bytes, bytes] = {}
        self._pieces: dict[str, dict[int, bytes]] = {}
        #: The keys of writes whose value does not have the form of one that has ended; with None
        #: before the value was decoded.
        self._unsettled: dict[bytes, WriteRecord | None] = {}
        #: The others that are kept for ever: streams. Some may have become something else since.
        self._lasting: dict[bytes, None] = {}
        #: The others by when they may be dropped, in portions of a quarter of an hour. Likewise.
        self._expiring: dict[bytes, deque[bytes]] = {}

    def put(self, records: Iterable[_Entry]) -> list[int]:
        """Take records in, in their order; return where those are that are not entries."""
        return [offset for key, value, offset in records if not self._put_any(key, value)]

    def put_ended(self, keys: list[bytes], values: list[bytes], times: list[bytes]) -> None:
        """Take in writes that have ended, in their order.

        `times` say when each may be dropped, in decimal digits, or are `NEVER`. This is where a new
        driver spends its time, with each entry of a large ledger.
        """
        self._values.update(zip(keys, values, strict=True))
        if self._unsettled:
            for key in keys:
                self._unsettled.pop(key, None)
        portion = b""
        append = self._expiring.setdefault(portion, deque()).append
        for key, expires_at_ms in zip(keys, times, strict=True):
            if expires_at_ms == NEVER:
                self._lasting[key] = None
                continue
            if expires_at_ms[:-_PORTION_DIGITS] != portion:
                portion = expires_at_ms[:-_PORTION_DIGITS]
                append = self._expiring.setdefault(portion, deque()).append
            append(key)

    def _put_any(self, key: bytes, value: bytes | None) -> bool:
        """Take in a record that may be any; return whether it is an entry of the prefix."""
        if not self.keys.plain_write.fullmatch(key):
            kind = self._put_other(key, value)
            if kind != WRITE:
                return kind is not None
        if value is None:
            self._values.pop(key, None)
            self._unsettled.pop(key, None)
            self._lasting.pop(key, None)
        elif settled := SETTLED.fullmatch(value):
            self.put_ended([key], [value], [settled[1]])
        else:
            self._values[key] = value
            self._unsettled[key] = None
        return True

    def _put_other(self, key: bytes, value: bytes | None) -> str | None:
        """Take in a claim or a piece of a decision; return the kind of any entry of the prefix."""
        if key == self.keys.claim:
            self._claim = value
            return GENERATION
        try:
            entry = decode_key(key)
        except LedgerFormatError:
            return None
        if entry.prefix != self.prefix:
            return None
        if entry.kind == WINNERS:
            self._put_piece(entry, value)
        return entry.kind

    def _put_piece(self, entry: EntryKey, value: bytes | None) -> None:
        pieces = self._pieces.setdefault(entry.write_id, {})
        if value is None:
            pieces.pop(entry.piece, None)
        else:
            pieces[entry.piece] = value
        if not pieces:
            del self._pieces[entry.write_id]

    @property
    def claim(self) -> Claim | None:
        """The latest claim; None before the first. Raises LedgerFormatError."""
        return None if self._claim is None else decode_claim(self._claim)

    def __len__(self) -> int:
        """Count the writes."""
        return len(self._values)

    @property
    def write_ids(self) -> list[str]:
        """All writes that there are."""
        return [_write_id(key) for key in self._values]

    def pieces(self, write_id: str) -> int:
        """Count the pieces of a write's record."""
        return len(self._pieces.get(write_id, _NO_PIECES))

    def record(self, write_id: str) -> WriteRecord | None:
        """Return what the ledger says of a write; raises LedgerFormatError."""
        return self._record(write_key(self.prefix, write_id), write_id)

    def _record(self, key: bytes, write_id: str) -> WriteRecord | None:
        value = self._values.get(key)
        if value is None:
            return None
        known = self._unsettled.get(key)
        if known is None:
            pieces = self._pieces.get(write_id, _NO_PIECES)
            known = decode_write(self.prefix, write_id, value, pieces)
            if key in self._unsettled:
                self._unsettled[key] = known
        return known

    def _records(self, keys: Iterable[bytes]) -> dict[str, WriteRecord]:
        """Decode the writes of these keys; raises LedgerFormatError."""
        found = {}
        for key in keys:
            write_id = _write_id(key)
            record = self._record(key, write_id)
            if record is not None:
                found[write_id] = record
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there are no entries, readable or not."""
        return self._claim is None and not self._values

    def decode_all(self) -> Contents:
        """Decode everything that can be decoded."""
        contents = Contents(None, {}, {})
        try:
            contents = contents._replace(claim=self.claim)
        except LedgerFormatError as error:
            contents.unreadable[EntryKey(GENERATION, self.prefix)] = error
        for key in self._values:
            entry = decode_key(key)
            try:
                record = self._record(key, entry.write_id)
            except LedgerFormatError as error:
                contents.unreadable[entry] = error
            else:
                if record is not None:
                    contents.writes[entry.write_id] = record
        return contents

    def unfinished(self) -> dict[str, WriteRecord]:
        """Return the writes that have not ended: decided, or mixed. Raises LedgerFormatError."""
        records = self._records(self._unsettled)
        return {
            write_id: record
            for write_id, record in records.items()
            if record.write.state not in _HAVE_ENDED
        }

    def streams(self) -> dict[str, WriteRecord]:
        """Return the writes that are kept for ever; raises LedgerFormatError."""
        records = self._records({**self._lasting, **self._unsettled})
        return {
            write_id: record for write_id, record in records.items() if record.expires_at_ms is None
        }

    def expired(self, now_ms: int, *, most: int) -> frozenset[str]:
        """Name jobs that have ended and may be dropped, after a look at so many of them at most.

        They stay until their tombstones are read; then others are looked at.
        """
        found: dict[bytes, None] = {}
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
                    # Dropped, or written again, since it was put here.
                    continue
                waiting.append(key)
                most -= 1
                if expires_at_ms <= now_ms:
                    found[key] = None
            if not waiting:
                del self._expiring[portion]
        return frozenset(map(_write_id, found))

    def _expires_at_ms(self, key: bytes) -> int | None:
        """Return when a write that has ended may be dropped; None if it may not, or is gone."""
        settled = SETTLED.fullmatch(self._values.get(key, b""))
        return int(settled[1]) if settled and settled[1] != NEVER else None


def _number(portion: bytes) -> int:
    return int(portion or b"0")


def _write_id(key: bytes) -> str:
    return decode_key(key).write_id


class _Writes(Mapping[str, "WriteRecord"]):
    """The writes of a prefix, each decoded when it is asked for."""

    def __init__(self, entries: PrefixEntries) -> None:
        self._entries = entries

    def __getitem__(self, write_id: str) -> WriteRecord:
        record = self._entries.record(write_id)
        if record is None:
            raise KeyError(write_id)
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries.write_ids)

    def __len__(self) -> int:
        return len(self._entries)


class LedgerState:
    """What a ledger says of one prefix.

    It is a view: valid until the ledger is read again. Whatever decodes an entry may raise
    LedgerFormatError.
    """

    def __init__(self, entries: PrefixEntries) -> None:
        """View the entries of a prefix."""
        self._entries = entries
        #: All writes. Looking one up costs nothing; going through all of them, a large ledger does.
        self.writes: Mapping[str, WriteRecord] = _Writes(entries)

    @property
    def is_empty(self) -> bool:
        """Whether the ledger has nothing of the prefix."""
        return self._entries.is_empty

    @property
    def claim(self) -> Claim | None:
        """The latest claim; None before the first."""
        return self._entries.claim

    @property
    def generation(self) -> int:
        """The latest generation that was claimed; 0 before the first."""
        claim = self.claim
        return 0 if claim is None else claim.generation

    def decode_all(self) -> Contents:
        """See `PrefixEntries.decode_all`."""
        return self._entries.decode_all()

    def unfinished(self) -> dict[str, WriteRecord]:
        """See `PrefixEntries.unfinished`."""
        return self._entries.unfinished()

    def streams(self) -> dict[str, WriteRecord]:
        """See `PrefixEntries.streams`."""
        return self._entries.streams()

    def expired(self, now_ms: int, *, most: int) -> frozenset[str]:
        """See `PrefixEntries.expired`."""
        return self._entries.expired(now_ms, most=most)


def decided_writes(state: LedgerState) -> dict[str, WriteRecord]:
    """Return the writes whose transactions are to be committed, whoever does it."""
    return {
        write_id: record
        for write_id, record in state.unfinished().items()
        if record.write.state is WriteState.DECIDED
    }


class KeyOffsets:
    """Where the last record of each of some keys is: a sink for `AdminClient.read_log`."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """Look for these keys."""
        #: See `LogSink`.
        self.known_records: None = None
        self._open: dict[int, dict[bytes, int]] = {}
        self._keys = frozenset(keys)
        #: The offset of the batch of each key that was found in a committed transaction.
        self.offsets: dict[bytes, int] = {}

    def take_records(
        self,
        offset: int,
        producer_id: int,
        records: list[tuple[bytes | None, bytes | None]],
    ) -> None:
        """Note where the keys are, in case their transaction is committed."""
        found = {key: offset for key, _ in records if key and key in self._keys}
        self._open.setdefault(producer_id, {}).update(found)

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Believe what a committed transaction has."""
        found = self._open.pop(producer_id, {})
        if committed:
            self.offsets.update(found)

    def take_plain(self, offset: int, count: int) -> None:
        """Pass over records that count for nobody."""

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Pass over a batch that has no keys."""


class Ignored(NamedTuple):
    """Records of a ledger topic that are left out."""

    records: int
    #: Of the first batch that has one.
    first_offset: int


class LedgerFold:
    """What the records and markers of a ledger come to: a sink for `AdminClient.read_log`."""

    def __init__(self, prefix: str | None = None) -> None:
        """Read the entries of one prefix, or of all."""
        self._prefix = prefix
        keys = None if prefix is None else PrefixKeys(prefix)
        self._starts = KEY_STARTS if keys is None else keys.starts
        #: See `LogSink`. A reader of all prefixes has the time to decode their keys.
        self.known_records = (
            None if keys is None else (keys.plain_write.pattern, SETTLED.pattern, self._take_ended)
        )
        self._prefixes: dict[str, PrefixEntries] = {}
        #: Entries whose transaction has not ended yet, by producer id.
        self._pending: dict[int, list[_Entry]] = {}
        self._committed: list[_Entry] = []
        #: How the last transaction with entries has ended, by producer id.
        self._ends: dict[int, bool] = {}
        self._ignored: dict[str, Ignored] = {}

    def take_records(
        self,
        offset: int,
        producer_id: int,
        records: list[tuple[bytes | None, bytes | None]],
    ) -> None:
        """Take the records of a transaction's batch in."""
        starts = self._starts
        own: list[_Entry] = [
            (key, value, offset) for key, value in records if key and key.startswith(starts)
        ]
        if len(own) != len(records):
            strangers = sum(not (key or b"").startswith(KEY_STARTS) for key, _ in records)
            self._ignore(_NOT_AN_ENTRY, offset, strangers)
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
        """Take in committed transactions of one write each that has ended."""
        # The first one may have batches before.
        self._committed += self._pending.pop(producer_id, ())
        self._put_committed()
        self._ends[producer_id] = True
        if self._prefix is not None:
            self._entries_of(self._prefix).put_ended(keys, values, times)

    def take_plain(self, offset: int, count: int) -> None:
        """Count records outside any transaction, which are ignored."""
        self._ignore(_NOT_TRANSACTIONAL, offset, count)

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Take the end of a transaction in."""
        entries = self._pending.pop(producer_id, None)
        if entries is None:
            # Others', or written twice by a coordinator that was started again.
            return
        self._ends[producer_id] = committed
        if committed:
            self._committed += entries
            if len(self._committed) > _MOST_TOGETHER:
                self._put_committed()

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Take note of a batch that nobody can decode."""
        self._ignore(f"{_NOT_DECODABLE} ({reason})", offset, 1)

    def is_open(self, producer_id: int) -> bool:
        """Whether there are entries of a producer without a marker behind them."""
        return producer_id in self._pending

    def end_of(self, producer_id: int) -> bool | None:
        """Return whether a producer's last entries were committed; None: none have ended."""
        return self._ends.get(producer_id)

    @property
    def prefixes(self) -> Mapping[str, PrefixEntries]:
        """The prefixes that have entries."""
        self._put_committed()
        return self._prefixes

    def entries(self, prefix: str) -> PrefixEntries:
        """Return the entries of a prefix, empty if it has none."""
        return self.prefixes.get(prefix, PrefixEntries(prefix))

    def take_ignored(self) -> dict[str, Ignored]:
        """Return what was left out since this was last asked, by why."""
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

    def _entries_of(self, prefix: str) -> PrefixEntries:
        known = self._prefixes.get(prefix)
        if known is None:
            known = self._prefixes[prefix] = PrefixEntries(prefix)
        return known

    def _by_prefix(self, committed: list[_Entry]) -> dict[str, list[_Entry]]:
        found: dict[str, list[_Entry]] = {}
        for entry in committed:
            try:
                prefix = decode_key(entry[0]).prefix
            except LedgerFormatError:
                self._ignore(_NOT_AN_ENTRY, entry[2], 1)
            else:
                found.setdefault(prefix, []).append(entry)
        return found

    def _ignore(self, why: str, offset: int, count: int) -> None:
        if count:
            known = self._ignored.get(why, Ignored(0, offset))
            self._ignored[why] = known._replace(records=known.records + count)
