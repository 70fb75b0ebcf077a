"""Values that every layer speaks of. No behaviour beyond what the values themselves imply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
#: An offset that is not known: acks=0, or a duplicate whose original the broker has forgotten.
UNKNOWN_OFFSET = -1
NO_LEADER_EPOCH = -1


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


class SecurityProtocol(StrEnum):
    """How a connection is secured (`security.protocol`)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


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
