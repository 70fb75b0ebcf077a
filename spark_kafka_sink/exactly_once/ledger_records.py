r"""Encoding and decoding of ledger entries.

A key is the format version and a JSON array; a value is the version and a JSON object, so that an
operator can read the ledger with any console consumer:

    \x01["generation", prefix]               the last claim
    \x01["write", prefix, write id]          the last batch of a write, and its outcome
    \x01["winners", prefix, write id, n]     a piece of a decision that is too large for one record

The key format never changes: every version must be able to read which prefix an entry belongs to.
Equal keys are equal bytes, so a key that would be encoded differently is invalid. A value of a
later version is refused if it belongs to the reader's own prefix. A decision that is too large for
one record is split into pieces, which hold the compressed list of winners; each piece starts with
the generation and batch id of the decision.

Decoding validates values: every number has the right type and range, every topic name is legal, the
claimant is short printable text, and every winner is the transactional id of a task under the same
prefix. The value of a write that has ended always has the form `SETTLED`, so that a reader of a
large ledger can recognize it without decoding it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.admin.records import KeyValue
from spark_kafka_sink.exactly_once.errors import ExactlyOnceError, LedgerFormatError
from spark_kafka_sink.exactly_once.transactional_ids import is_worker_id_of
from spark_kafka_sink.exactly_once.transitions import NOTHING_COMMITTED, Fate, Write, WriteState
from spark_kafka_sink.model import UNKNOWN_OFFSET, ProducerIdAndEpoch, TopicPartition, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = b"\x01"

#: A larger list of winners is split into pieces of `PIECE_BYTES`, well below any realistic
#: message.max.bytes.
MAX_INLINE_BYTES: Final = 65_536
PIECE_BYTES: Final = 400_000
#: generation, batch id
_PIECE_HEAD: Final = struct.Struct(">qq")
#: The maximum size of a decompressed list of winners: offsets in half a million partitions.
MAX_WINNERS_BYTES: Final = 64 * 1024 * 1024
#: Generations are milliseconds since 1970. JSON numbers are exact up to this value, which leaves
#: ample room for later generations.
MAX_GENERATION: Final = 2**53 - 1
#: The end of the year 9999: later times cannot be formatted for an operator.
_MAX_TIME_MS: Final = 253_402_300_799_999
#: Much longer than any host name (255) with the text a driver adds to it.
_MAX_CLAIMED_BY: Final = 500
_MAX_INT16: Final = 2**15 - 1
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1

GENERATION: Final = "generation"
WRITE: Final = "write"
#: The kind of entry that holds a piece of a large decision.
WINNERS: Final = "winners"
_KEY_LENGTHS: Final = {GENERATION: 2, WRITE: 3, WINNERS: 4}
_BY_HAND: Final = (
    "No driver wrote it: check which other clients may write to the ledger topic. Nothing can be "
    "written under this prefix until the entry is deleted in a transaction; see 'A ledger is a "
    "trust domain' in docs/guides/exactly-once.md"
)
#: The end of a write's key, after its id.
_ID_END: Final = b'"]'
#: What the keys of each kind start with.
KEY_STARTS: Final = tuple(VERSION + f'["{kind}",'.encode() for kind in _KEY_LENGTHS)

#: The expiry time in the value of a write that never expires.
NEVER: Final = b"null"
#: The form in which `encode_write` encodes a write that is done or void; its group is the expiry
#: time. It is cheap to match; `decode_write` validates the numbers.
SETTLED: Final = re.compile(
    rb'\x01\{"batch_id":[^,]++,"generation":[^,]++,"state":"(?:done|void)","in_before":[^,]++,'
    rb'"updated_at_ms":[^,]++,"expires_at_ms":(\d{1,19}+|null),"topic":[^,]++,"pieces":0,'
    rb'"winners":\[\]\}'
)


class OffsetRange(NamedTuple):
    """The records that a winner wrote to one partition."""

    topic_partition: TopicPartition
    first_offset: int
    last_offset: int
    #: The number of records; records of other producers may lie between the offsets.
    records: int

    def __str__(self) -> str:
        return f"{self.topic_partition} offsets {self.first_offset} to {self.last_offset}"


class Winner(NamedTuple):
    """A transaction that belongs to a decided batch."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    #: The transaction protocol version under which it began (KIP-890).
    transaction_version: int
    ranges: tuple[OffsetRange, ...]
    #: Its outcome; recorded for mixed batches only.
    fate: Fate | None = None


class Claim(NamedTuple):
    """The driver that owns the prefix."""

    generation: int
    claimed_at_ms: int
    #: Host and process, for an operator.
    claimed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecord:
    """The ledger's record of a write."""

    write: Write
    updated_at_ms: int
    #: When a job's record may be dropped; None for a stream, whose record is never dropped.
    expires_at_ms: int | None = None
    #: The topic to which a job writes; None for a stream, or if the rows name their topics.
    topic: str | None = None
    #: The transactions of a decided or mixed batch; otherwise empty.
    winners: tuple[Winner, ...] = ()


class EntryKey(NamedTuple):
    """The kind of an entry, and the prefix and write it belongs to."""

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
    """Decode a key; raise LedgerFormatError if it is not a valid one."""
    if data is None or data[:1] != VERSION:
        raise LedgerFormatError("the ledger topic has a record that is not a ledger entry")
    parts = _parse(data[1:])
    if not isinstance(parts, list) or len(parts) != _KEY_LENGTHS.get(str(parts[:1] and parts[0])):
        raise LedgerFormatError("the ledger topic has an entry of an unknown kind")
    if not all(isinstance(part, str) for part in parts[:3]) or not all(
        type(part) is int for part in parts[3:]
    ):
        raise LedgerFormatError("the ledger topic has an entry with a malformed key")
    key = EntryKey(*parts)
    if not 0 <= key.piece <= _MAX_INT32 or _encodes_differently(key, data):
        raise LedgerFormatError("the ledger topic has an entry with a malformed key")
    return key


def write_key(prefix: str, write_id: str) -> bytes:
    """Encode the key of a write."""
    return encode_key(EntryKey(WRITE, prefix, write_id))


def _encodes_differently(key: EntryKey, data: bytes) -> bool:
    try:
        return encode_key(key) != data
    except UnicodeEncodeError:
        # A lone surrogate, which cannot be encoded.
        return True


class PrefixKeys:
    """The key patterns of one prefix, for a reader that sees the keys of many."""

    def __init__(self, prefix: str) -> None:
        self.claim = encode_key(EntryKey(GENERATION, prefix))
        write = encode_key(EntryKey(WRITE, prefix))[: -len(_ID_END)]
        piece = VERSION + _json((WINNERS, prefix))[:-1] + b","
        #: What the prefix's keys start with, for `bytes.startswith`.
        self.starts = (self.claim, write, piece)
        #: Matches the key of a write whose id needs no escapes and so is its own encoding.
        self.plain_write = re.compile(re.escape(write) + rb"[ !#-\[\]-~]*+" + re.escape(_ID_END))


# --- values


def encode_claim(prefix: str, claim: Claim) -> KeyValue:
    """Encode a claim; raise LedgerFormatError if its generation exceeds `MAX_GENERATION`."""
    if claim.generation > MAX_GENERATION:
        raise LedgerFormatError(
            f"prefix {prefix!r} can no longer be claimed: its last generation in the ledger is "
            f"{claim.generation - 1}, which no driver's clock can have reached. {_BY_HAND}"
        )
    # A host may have any name, and readers refuse text that a terminal could act on.
    claimed_by = "".join(
        character if character.isprintable() else "?"
        for character in claim.claimed_by[:_MAX_CLAIMED_BY]
    )
    value = claim._replace(claimed_by=claimed_by)._asdict()
    return KeyValue(encode_key(EntryKey(GENERATION, prefix)), VERSION + _json(value))


def encode_write(
    prefix: str, write_id: str, record: WriteRecord, *, pieces_before: int = 0
) -> list[KeyValue]:
    """Encode the record of a write, as one or more entries.

    `pieces_before` is the number of pieces of the record it replaces; those not overwritten are
    deleted. Raises ExactlyOnceError if the winners take more than `MAX_WINNERS_BYTES`.
    """
    write = record.write
    value = {
        "batch_id": write.batch_id,
        "generation": write.generation,
        "state": write.state.value,
        "in_before": write.in_before,
        "updated_at_ms": record.updated_at_ms,
        "expires_at_ms": record.expires_at_ms,
        "topic": record.topic,
    }
    winners = _json([_winner_as_json(winner) for winner in record.winners])
    pieces: list[bytes] = []
    if len(winners) > MAX_WINNERS_BYTES:
        raise ExactlyOnceError(
            f"batch {write.batch_id} of {write_id!r} was not committed, and none of it is "
            f"visible: its {len(record.winners)} transactions and their offsets take "
            f"{len(winners)} bytes in the ledger, and the limit is {MAX_WINNERS_BYTES}. Write with "
            "fewer tasks, or to fewer partitions"
        )
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
    key = encode_key(EntryKey(WRITE, prefix, write_id))
    return [*entries, KeyValue(key, VERSION + _json(value))]


def forget_write(prefix: str, write_id: str, *, pieces_before: int = 0) -> list[KeyValue]:
    """Return the tombstones of a write and its pieces."""
    keys = [EntryKey(WRITE, prefix, write_id)]
    keys += [EntryKey(WINNERS, prefix, write_id, number) for number in range(pieces_before)]
    return [KeyValue(encode_key(key), None) for key in keys]


def decode_claim(value: bytes) -> Claim:
    """Decode a claim; raise LedgerFormatError if it is not a valid one."""
    parsed = _parse(_versioned(value))
    try:
        return _claim_from_json(parsed)
    except (ValueError, RecursionError) as error:
        raise LedgerFormatError(
            f"a claim in the ledger cannot be read: {error}. {_BY_HAND}"
        ) from error


def decode_write(
    prefix: str, write_id: str, value: bytes, pieces: Mapping[int, bytes]
) -> WriteRecord:
    """Decode the record of a write; raise LedgerFormatError if it is not a valid one."""
    parsed = _parse(_versioned(value))
    try:
        write = Write(
            _check_integer(parsed["batch_id"], 0, _MAX_INT64, "batch_id"),
            _check_integer(parsed["generation"], 0, MAX_GENERATION, "generation"),
            WriteState(parsed["state"]),
            _check_integer(parsed["in_before"], NOTHING_COMMITTED, _MAX_INT64, "in_before"),
        )
        expires_at_ms = parsed["expires_at_ms"]
        if expires_at_ms is not None:
            _check_integer(expires_at_ms, 0, _MAX_INT64, "expires_at_ms")
        topic = parsed["topic"]
        if topic is not None:
            _check_topic(topic)
        winners = parsed["winners"]
        count = _check_integer(parsed["pieces"], 0, _MAX_INT32, "pieces")
        if count:
            winners = _unpack(write, pieces, count)
        return WriteRecord(
            write=write,
            updated_at_ms=_check_integer(parsed["updated_at_ms"], 0, _MAX_TIME_MS, "updated_at_ms"),
            expires_at_ms=expires_at_ms,
            topic=topic,
            winners=tuple(_winner_from_json(winner, prefix) for winner in winners),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, zlib.error) as error:
        raise LedgerFormatError(
            f"the ledger's entry of write {write_id!r} under prefix {prefix!r} cannot be read: "
            f"{error!r}. {_BY_HAND}"
        ) from error


def _unpack(write: Write, pieces: Mapping[int, bytes], count: int) -> Any:
    head = _PIECE_HEAD.pack(write.generation, write.batch_id)
    packed = bytearray()
    for number in range(count):
        if number not in pieces:
            raise ValueError(f"piece {number} of {count} is missing")
        piece = _versioned(pieces[number])
        if not piece.startswith(head):
            raise ValueError(f"piece {number} belongs to another decision")
        packed += piece[_PIECE_HEAD.size :]
    unpacker = zlib.decompressobj()
    winners = unpacker.decompress(packed, MAX_WINNERS_BYTES)
    if not unpacker.eof:
        raise ValueError(f"its winners are truncated, or exceed {MAX_WINNERS_BYTES} bytes")
    return json.loads(winners)


# --- parts of values


def _claim_from_json(value: Any) -> Claim:
    if not isinstance(value, dict) or value.keys() != set(Claim._fields):
        raise ValueError(f"it must have the fields {', '.join(Claim._fields)} and no others")
    return Claim(
        _check_integer(value["generation"], 0, MAX_GENERATION, "generation"),
        _check_integer(value["claimed_at_ms"], 0, _MAX_TIME_MS, "claimed_at_ms"),
        _check_claimed_by(value["claimed_by"]),
    )


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


def _winner_from_json(value: Any, prefix: str) -> Winner:
    transactional_id, producer_id, epoch, version, fate, topics = value
    if not isinstance(transactional_id, str) or not is_worker_id_of(prefix, transactional_id):
        raise ValueError(
            f"its winner {transactional_id!r} is not a transaction of a task under this prefix"
        )
    return Winner(
        transactional_id,
        ProducerIdAndEpoch(
            _check_integer(producer_id, 0, _MAX_INT64, "producer id"),
            _check_integer(epoch, 0, _MAX_INT16, "epoch"),
        ),
        _check_integer(version, 0, _MAX_INT16, "transaction version"),
        tuple(
            _range_from_json(topic, *written)
            for topic, ranges in topics.items()
            for written in ranges
        ),
        None if fate is None else Fate(fate),
    )


def _range_from_json(
    topic: str, partition: Any, first: Any, last: Any, records: Any
) -> OffsetRange:
    _check_topic(topic)
    return OffsetRange(
        TopicPartition(topic, _check_integer(partition, 0, _MAX_INT32, "partition")),
        _check_integer(first, UNKNOWN_OFFSET, _MAX_INT64, "first offset"),
        _check_integer(last, UNKNOWN_OFFSET, _MAX_INT64, "last offset"),
        _check_integer(records, 0, _MAX_INT64, "number of records"),
    )


def _check_topic(value: Any) -> None:
    if not isinstance(value, str) or not is_topic_name(value):
        raise ValueError(f"{str(value)[:40]!r} is not a legal topic name")


def _check_integer(value: Any, least: int, most: int, name: str) -> int:
    # True and False are integers in Python, but not in JSON.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"its {name} is not valid: {str(value)[:40]!r}")
    return value


def _check_claimed_by(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_CLAIMED_BY or not value.isprintable():
        raise ValueError(
            f"its claimed_by is not text of at most {_MAX_CLAIMED_BY} printable characters"
        )
    return value


def _versioned(value: bytes) -> bytes:
    if value[:1] != VERSION:
        raise LedgerFormatError(
            "the ledger was written by a later version of spark_kafka_sink: upgrade it here"
        )
    return value[1:]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LedgerFormatError("the ledger topic has an entry that is not valid JSON") from error
