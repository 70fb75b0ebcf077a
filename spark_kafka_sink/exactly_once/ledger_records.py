r"""The entries of the ledger as bytes, and as values.

A key is the format's version and a JSON array; a value is the version and a JSON object, so that an
operator can read the ledger with any console consumer:

    \x01["generation", prefix]               the last claim
    \x01["write", prefix, write id]          the last batch of a write, and what became of it
    \x01["winners", prefix, write id, n]     a piece of a decision that is too large for one record

The format of keys never changes: whoever reads must be able to tell whose an entry is. A value of a
later version is refused where it is ours. Of a chunked decision the pieces hold the compressed list
of winners, each behind the generation and batch that it belongs to.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_kafka_sink.admin.record_batches import KeyValue
from spark_kafka_sink.exactly_once.errors import LedgerFormatError
from spark_kafka_sink.exactly_once.transitions import Fate, Write, WriteState
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition

VERSION: Final = b"\x01"

#: Winners that take more are chunked, into pieces of this many bytes: well below the smallest
#: message.max.bytes that anybody sets.
MAX_INLINE_BYTES: Final = 65_536
PIECE_BYTES: Final = 400_000
#: generation, batch id
_PIECE_HEAD: Final = struct.Struct(">qq")
#: No list of winners unpacks to more: a million partitions' ranges take a tenth of it.
_MAX_WINNERS_BYTES: Final = 1 << 30

_GENERATION: Final = "generation"
_WRITE: Final = "write"
#: The kind of entry that holds a piece of a large decision.
WINNERS: Final = "winners"
_KEY_LENGTHS: Final = {_GENERATION: 2, _WRITE: 3, WINNERS: 4}


class OffsetRange(NamedTuple):
    """What a winner wrote to one partition."""

    topic_partition: TopicPartition
    first_offset: int
    last_offset: int
    #: Between the offsets others' records may lie.
    records: int

    def __str__(self) -> str:
        """Give the partition and its offsets, as an operator looks for them."""
        return f"{self.topic_partition} offsets {self.first_offset} to {self.last_offset}"


class Winner(NamedTuple):
    """A transaction that belongs to a decided batch."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    #: The rules that it was begun by (KIP-890).
    transaction_version: int
    ranges: tuple[OffsetRange, ...]
    #: What became of it; noted for mixed batches only.
    fate: Fate | None = None


class Claim(NamedTuple):
    """Who has the prefix."""

    generation: int
    claimed_at_ms: int
    #: Host and process, for an operator.
    claimed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecord:
    """What the ledger says of a write."""

    write: Write
    updated_at_ms: int
    #: When a job's record may be dropped; a stream's is kept.
    expires_at_ms: int | None = None
    #: Of a decided or mixed batch.
    winners: tuple[Winner, ...] = ()


class EntryKey(NamedTuple):
    """Whose an entry is."""

    kind: str
    prefix: str
    write_id: str = ""
    piece: int = 0


# --- keys


def encode_key(key: EntryKey) -> bytes:
    """Encode a key; equal keys are equal bytes."""
    parts = (key.kind, key.prefix, key.write_id, key.piece)[: _KEY_LENGTHS[key.kind]]
    return VERSION + _json(parts)


def decode_key(data: bytes | None) -> EntryKey:
    """Read a key; raises LedgerFormatError."""
    if data is None or data[:1] != VERSION:
        raise LedgerFormatError("the ledger topic holds a record that is no ledger entry")
    parts = _parse(data[1:])
    if not isinstance(parts, list) or len(parts) != _KEY_LENGTHS.get(str(parts[:1] and parts[0])):
        raise LedgerFormatError("the ledger topic holds an entry of an unknown kind")
    if not all(isinstance(part, str) for part in parts[:3]) or not all(
        isinstance(part, int) for part in parts[3:]
    ):
        raise LedgerFormatError("the ledger topic holds an entry with a malformed key")
    return EntryKey(*parts)


# --- values


def encode_claim(prefix: str, claim: Claim) -> KeyValue:
    """Encode a claim."""
    return KeyValue(encode_key(EntryKey(_GENERATION, prefix)), VERSION + _json(claim._asdict()))


def encode_write(
    prefix: str, write_id: str, record: WriteRecord, *, pieces_before: int = 0
) -> list[KeyValue]:
    """Encode what the ledger is to say of a write, in as many entries as it takes.

    `pieces_before` is how many pieces the record that it replaces had: those that are not written
    again are deleted.
    """
    write = record.write
    value = {
        "batch_id": write.batch_id,
        "generation": write.generation,
        "state": write.state.value,
        "in_before": write.in_before,
        "updated_at_ms": record.updated_at_ms,
        "expires_at_ms": record.expires_at_ms,
    }
    winners = _json([_winner_as_json(winner) for winner in record.winners])
    pieces: list[bytes] = []
    if len(winners) > MAX_INLINE_BYTES:
        packed = zlib.compress(winners)
        pieces = [packed[at : at + PIECE_BYTES] for at in range(0, len(packed), PIECE_BYTES)]
        value["pieces"] = len(pieces)
        value["winners"] = None
    else:
        value["pieces"] = 0
        value["winners"] = json.loads(winners)
    head = VERSION + _PIECE_HEAD.pack(write.generation, write.batch_id)
    entries = [
        KeyValue(encode_key(EntryKey(WINNERS, prefix, write_id, number)), head + piece)
        for number, piece in enumerate(pieces)
    ]
    entries += [
        KeyValue(encode_key(EntryKey(WINNERS, prefix, write_id, number)), None)
        for number in range(len(pieces), pieces_before)
    ]
    key = encode_key(EntryKey(_WRITE, prefix, write_id))
    return [*entries, KeyValue(key, VERSION + _json(value))]


def forget_write(prefix: str, write_id: str, *, pieces_before: int = 0) -> list[KeyValue]:
    """Make the tombstones of a write."""
    keys = [EntryKey(_WRITE, prefix, write_id)]
    keys += [EntryKey(WINNERS, prefix, write_id, number) for number in range(pieces_before)]
    return [KeyValue(encode_key(key), None) for key in keys]


class PrefixEntries:
    """The entries of one prefix, as far as they were read: the last value of each key."""

    def __init__(self) -> None:
        """Have read none."""
        self.claim: Claim | None = None
        self._writes: dict[str, dict[str, Any]] = {}
        self._pieces: dict[tuple[str, int], bytes] = {}

    def apply(self, key: EntryKey, value: bytes | None) -> None:
        """Take an entry in; raises LedgerFormatError."""
        if key.kind == WINNERS:
            place = (key.write_id, key.piece)
            if value is None:
                self._pieces.pop(place, None)
            else:
                self._pieces[place] = _versioned(value)
        elif key.kind == _GENERATION:
            self.claim = None if value is None else _decode(Claim, _parse(_versioned(value)))
        elif value is None:
            self._writes.pop(key.write_id, None)
        else:
            parsed = _parse(_versioned(value))
            if not isinstance(parsed, dict):
                raise LedgerFormatError("an entry of the ledger is no object")
            self._writes[key.write_id] = parsed

    @property
    def write_ids(self) -> list[str]:
        """All writes that there are."""
        return list(self._writes)

    def pieces(self, write_id: str) -> int:
        """Count the pieces of a write's record."""
        return sum(1 for owner, _ in self._pieces if owner == write_id)

    def record(self, write_id: str) -> WriteRecord | None:
        """Give what the ledger says of a write; raises LedgerFormatError."""
        value = self._writes.get(write_id)
        if value is None:
            return None
        try:
            write = Write(
                int(value["batch_id"]),
                int(value["generation"]),
                WriteState(value["state"]),
                int(value["in_before"]),
            )
            winners = value["winners"]
            if value["pieces"]:
                winners = self._unpack(write_id, write, int(value["pieces"]))
            return WriteRecord(
                write=write,
                updated_at_ms=value["updated_at_ms"],
                expires_at_ms=value["expires_at_ms"],
                winners=tuple(_winner_from_json(winner) for winner in winners),
            )
        except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
            raise LedgerFormatError(
                f"the ledger's entry of write {write_id!r} cannot be read: {error!r}"
            ) from error

    def _unpack(self, write_id: str, write: Write, count: int) -> Any:
        packed = bytearray()
        for number in range(count):
            piece = self._pieces[(write_id, number)]
            if _PIECE_HEAD.unpack_from(piece) != (write.generation, write.batch_id):
                raise ValueError(f"piece {number} belongs to another decision")
            packed += piece[_PIECE_HEAD.size :]
        return json.loads(zlib.decompressobj().decompress(bytes(packed), _MAX_WINNERS_BYTES))


# --- parts of values


def _winner_as_json(winner: Winner) -> list[Any]:
    topics: dict[str, list[list[int]]] = {}
    for (topic, partition), first, last, records in winner.ranges:
        topics.setdefault(topic, []).append([partition, first, last, records])
    fate = None if winner.fate is None else winner.fate.value
    return [
        winner.transactional_id,
        *winner.producer,
        winner.transaction_version,
        fate,
        topics,
    ]


def _winner_from_json(value: Any) -> Winner:
    transactional_id, producer_id, epoch, version, fate, topics = value
    return Winner(
        transactional_id,
        ProducerIdAndEpoch(producer_id, epoch),
        version,
        tuple(
            OffsetRange(TopicPartition(topic, partition), first, last, records)
            for topic, ranges in topics.items()
            for partition, first, last, records in ranges
        ),
        None if fate is None else Fate(fate),
    )


def _decode(kind: type[Claim], value: Any) -> Claim:
    try:
        return kind(**value)
    except TypeError as error:
        raise LedgerFormatError(f"a claim in the ledger cannot be read: {error}") from error


def _versioned(value: bytes) -> bytes:
    if value[:1] != VERSION:
        raise LedgerFormatError(
            "the ledger was written by a later version of this package: update this one"
        )
    return value[1:]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise LedgerFormatError("the ledger topic holds what is no JSON") from error
