"""The values that describe the reading of a range of one partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets of a partition from `start` up to but excluding `end`.

    With a topic id, the range belongs to that topic, not to a later one of the same name. The
    leader epoch is the one in which the offsets were found: older metadata are not used. The leader
    of the start epoch had all records before the start: a log without them was truncated.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: UUID | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    start_epoch: int = NO_LEADER_EPOCH

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class DataLoss:
    """Offsets of a range that can no longer be read.

    `wanted` is the offset that was asked for, `available` the nearest one that there is, -1 if
    there is none, and `lost` how many offsets are skipped; some of them may never have held a
    record.
    """

    topic: str
    partition: int
    wanted: int
    available: int
    lost: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.topic}-{self.partition}: {self.lost} offsets are lost: "
        if 0 <= self.available <= self.wanted:
            # The reason says where the log ends.
            return what + self.reason
        next_offset = (
            "there is none after it"
            if self.available < 0
            else f"offset {self.available} is the next that there is"
        )
        return f"{what}offset {self.wanted} was wanted, and {next_offset}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What the metadata say about the partition at one moment."""

    leader: Node | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    #: All zero if the broker has no topic ids, or the topic is unknown.
    topic_id: UUID = ZERO_UUID
    #: Kafka's error code for the topic; 0 for none.
    topic_error: int = ErrorCode.NONE
    #: The number of partitions of the topic; 0 if the topic is unknown.
    partition_count: int = 0
    nodes: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))


class LogBounds(NamedTuple):
    """The offsets of a log as its leader reports them."""

    #: The first offset that there is.
    start: int
    #: The high watermark.
    end: int
    #: The last stable offset.
    stable_end: int
    #: The first offset on the leader's own disk: earlier records are in remote storage (KIP-405).
    local_start: int = 0


class Batches(NamedTuple):
    """What the headers of the batches in an answer say."""

    #: The number of complete batches.
    batch_count: int
    #: The offset after the last complete batch.
    next_offset: int
    #: The leader epoch of the last complete batch.
    last_leader_epoch: int


class SendFetch(NamedTuple):
    """The step of fetching from a broker."""

    node: Node
    #: Whether the broker is a follower that the leader has recommended (KIP-392).
    is_replica: bool
    topic_id: UUID
    leader_epoch: int
    last_fetched_epoch: int
    offset: int
    #: How many offsets are wanted, from `offset` on.
    left: int
    #: Whether the leader may recommend a follower.
    may_redirect: bool
    #: Whether the broker may wait for records (fetch.max.wait.ms).
    may_wait: bool


class LookUpBounds(NamedTuple):
    """The step of looking up the log's bounds at the leader."""

    node: Node
    leader_epoch: int
    #: Whether the start of what is on its own disk matters.
    needs_local_start: bool = False


class Refresh(NamedTuple):
    """The step of requesting metadata."""


class Wait(NamedTuple):
    """The step of waiting until a point in time."""

    until: float


class Lose(NamedTuple):
    """The step of reporting a loss, after which the rest of the range can be read."""

    loss: DataLoss


class Done(NamedTuple):
    """The end of the range has been reached."""


Step: TypeAlias = SendFetch | LookUpBounds | Refresh | Wait | Lose | Done


class Rows(NamedTuple):
    """The part of the range that the batches of an answer cover."""

    #: Records before this offset are not wanted.
    start: int
    #: Nor are records from this offset on.
    end: int
