"""Values that every layer speaks of. No behaviour beyond what the values themselves imply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
#: An offset that is not known: acks=0, or a duplicate whose original the broker has forgotten.
UNKNOWN_OFFSET = -1
NO_LEADER_EPOCH = -1
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name, by the rules of Kafka's Topic class."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Write it as Kafka's own tools do."""
        return f"{self.topic}-{self.partition}"


class Node(NamedTuple):
    """A broker's id and advertised address."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        """Give the address first: it is what an operator looks for."""
        return f"{self.host}:{self.port} (id {self.node_id})"


class ProducerIdAndEpoch(NamedTuple):
    """What a broker knows an idempotent producer by."""

    producer_id: int
    epoch: int

    @property
    def is_valid(self) -> bool:
        """Whether a broker has given this id."""
        return self.producer_id != NO_PRODUCER_ID


NO_PRODUCER_ID_AND_EPOCH = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PreparedTransaction(NamedTuple):
    """A transaction that was left open, for another process to end before it times out."""

    producer: ProducerIdAndEpoch
    #: The rules by which it was begun: 2 for those of KIP-890, less for the older ones.
    transaction_version: int


class OffsetAndMetadata(NamedTuple):
    """The next offset that a consumer group is to read of a partition."""

    offset: int
    #: Of the record last read; `NO_LEADER_EPOCH` where it is not known.
    leader_epoch: int = NO_LEADER_EPOCH
    #: Any text that the group wants to keep with the offset.
    metadata: str | None = ""


class ConsumerGroupMetadata(NamedTuple):
    """Who commits offsets: a group, and its member where it has one (KIP-447).

    With a member and its generation the coordinator fences consumers that have lost the partition.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class SecurityProtocol(StrEnum):
    """How a connection is secured (`security.protocol`)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is (Kafka's class of the same name)."""

    topic: str
    partition: int
    #: `UNKNOWN_OFFSET` where the broker told none (acks=0, or a duplicate it has forgotten).
    offset: int
    #: Milliseconds since 1970: the record's own, or the broker's where the topic replaces it.
    timestamp: int
    #: Bytes of the serialized key; -1 without one.
    serialized_key_size: int
    #: Bytes of the serialized value; -1 without one.
    serialized_value_size: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition, for `partitions_for` (Kafka's class of the same name)."""

    topic: str
    partition: int
    #: None while there is none, or none that is known.
    leader: Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAcks:
    """What one producer wrote to one partition, as far as the broker has acknowledged it.

    Offsets are `UNKNOWN_OFFSET` where the broker told none (acks=0). Between `first_offset` and
    `last_offset` other producers' records may lie: `records` counts ours alone.
    """

    first_offset: int
    last_offset: int
    #: Records acknowledged.
    records: int
    #: Bytes of the record batches as sent: compressed, headers included.
    bytes: int
    #: Whether the topic replaces our timestamps by its own (message.timestamp.type=LogAppendTime).
    log_append_time: bool = False

    def merged(self, other: PartitionAcks) -> PartitionAcks:
        """Join what two producers, or two batches, wrote to the same partition."""
        known = [o for o in (self.first_offset, other.first_offset) if o != UNKNOWN_OFFSET]
        return PartitionAcks(
            first_offset=min(known, default=UNKNOWN_OFFSET),
            last_offset=max(self.last_offset, other.last_offset),
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            log_append_time=self.log_append_time or other.log_append_time,
        )
