"""A log's leader epochs as a file, Kafka's `leader-epoch-checkpoint`.

A text: a version, the number of entries, and a line with epoch and first offset for each.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.leader_epoch_cache import EpochEntry, LeaderEpochCache
from spark_kafka_sink.errors import CorruptRecordError

_VERSION = 0
_HEADER_LINES = 2


def encode_leader_epochs(leader_epochs: LeaderEpochCache) -> bytes:
    """Write the file."""
    entries = leader_epochs.entries
    lines = [str(_VERSION), str(len(entries))]
    lines += [f"{entry.epoch} {entry.start_offset}" for entry in entries]
    return ("\n".join(lines) + "\n").encode()


def decode_leader_epochs(content: bytes) -> LeaderEpochCache:
    """Read the file. Raises CorruptRecordError."""
    lines = content.decode("ascii", "replace").split("\n")
    try:
        version, count = int(lines[0]), int(lines[1])
        entries = [EpochEntry(*map(int, line.split(" "))) for line in lines[_HEADER_LINES:] if line]
    except (ValueError, IndexError, TypeError) as error:
        raise CorruptRecordError(f"a leader-epoch-checkpoint that says {content!r}") from error
    if version != _VERSION or count != len(entries):
        raise CorruptRecordError(
            f"a leader-epoch-checkpoint of version {version} with {len(entries)} of {count} entries"
        )
    return LeaderEpochCache(entries)
