"""The state of one assigned partition: its position or its reset, and whether it can be fetched.

`TRANSITIONS` alone decides which fetch state may follow which; an illegal transition raises and
changes nothing, where Java ignores it (SubscriptionState.TopicPartitionState.transitionState). A
state in `WITH_POSITION` has a position, any other has none. Times are seconds on the caller's
clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.config.durations import duration_ns
from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.messages.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    from uuid import UUID

    from spark_kafka_sink.network.metadata import MetadataSnapshot

_BY_DURATION: Final = "by_duration:"
_NANOSECONDS: Final = 1_000_000_000


class ResetType(StrEnum):
    """The kinds of start (AutoOffsetResetStrategy.StrategyType)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a partition starts without a valid position (Kafka's AutoOffsetResetStrategy).

    It is a value of `auto.offset.reset` (KIP-1106).
    """

    type: ResetType
    #: Nanoseconds before now, for BY_DURATION; 0 for the others.
    duration_ns: int = 0

    def __str__(self) -> str:
        """Return the kind, with the duration in seconds if there is one."""
        if self.type is not ResetType.BY_DURATION:
            return self.type.value
        return f"by_duration ({self.duration_ns / _NANOSECONDS:g} s)"

    def timestamp(self, now_ms: int) -> int:
        """Return the timestamp with which to ask ListOffsets for the start.

        `now_ms` and the result are milliseconds since 1970. A duration that reaches back beyond
        1970 gives 0, because negative timestamps have meanings of their own. Raise
        IllegalStateError for NONE, which has no start.

        Source: AutoOffsetResetStrategy.timestamp, KIP-1106.
        """
        match self.type:
            case ResetType.EARLIEST:
                return EARLIEST_TIMESTAMP
            case ResetType.LATEST:
                return LATEST_TIMESTAMP
            case ResetType.BY_DURATION:
                return max((now_ms * 1_000_000 - self.duration_ns) // 1_000_000, 0)
            case ResetType.NONE:
                raise IllegalStateError(
                    "auto.offset.reset is 'none': there is no offset to reset to"
                )


EARLIEST: Final = OffsetReset(ResetType.EARLIEST)
LATEST: Final = OffsetReset(ResetType.LATEST)
NONE: Final = OffsetReset(ResetType.NONE)
_NAMED: Final = {str(value): value for value in (EARLIEST, LATEST, NONE)}


def parse_offset_reset(value: str) -> OffsetReset:
    """Parse a value of `auto.offset.reset`; raise ConfigError for any other text.

    The values are `earliest`, `latest`, `none` and `by_duration:` with an ISO 8601 duration of
    days, hours, minutes and seconds that is not negative, such as `by_duration:PT36H`.

    Source: AutoOffsetResetStrategy.fromString, java.time.Duration.parse.
    """
    if value in _NAMED:
        return _NAMED[value]
    duration = duration_ns(value.removeprefix(_BY_DURATION))
    if not value.startswith(_BY_DURATION) or duration is None or duration < 0:
        raise ConfigError(
            f"auto.offset.reset: {value!r} is invalid. Use 'earliest', 'latest', 'none' or "
            "'by_duration:' with an ISO 8601 duration that is not negative, such as "
            "'by_duration:P1DT12H'"
        )
    return OffsetReset(ResetType.BY_DURATION, duration)


class FetchState(Enum):
    """Kafka's states of an assigned partition (SubscriptionState.FetchStates)."""

    #: It has no position yet: the committed offset has to be looked up.
    INITIALIZING = auto()
    #: It has a valid position.
    FETCHING = auto()
    #: The start has to be looked up as its reset says.
    AWAIT_RESET = auto()
    #: It has a position that the current leader has to confirm (KIP-320).
    AWAIT_VALIDATION = auto()


_S = FetchState

#: The states that may follow each state.
TRANSITIONS: dict[FetchState, frozenset[FetchState]] = {
    _S.INITIALIZING: frozenset({_S.FETCHING, _S.AWAIT_RESET, _S.AWAIT_VALIDATION}),
    _S.FETCHING: frozenset({_S.FETCHING, _S.AWAIT_RESET, _S.AWAIT_VALIDATION}),
    # There is no position that could be validated.
    _S.AWAIT_RESET: frozenset({_S.FETCHING, _S.AWAIT_RESET}),
    _S.AWAIT_VALIDATION: frozenset({_S.FETCHING, _S.AWAIT_RESET, _S.AWAIT_VALIDATION}),
}
#: The states in which there is a position.
WITH_POSITION: Final = frozenset({_S.FETCHING, _S.AWAIT_VALIDATION})


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition as the metadata name it (Metadata.LeaderAndEpoch)."""

    #: None while there is no leader, or it is not known.
    leader: Node | None = None
    #: `NO_LEADER_EPOCH` if it is not known.
    epoch: int = NO_LEADER_EPOCH

    @classmethod
    def in_metadata(cls, snapshot: MetadataSnapshot, partition: TopicPartition) -> LeaderAndEpoch:
        """Return the current leader."""
        known = snapshot.partition(partition)
        epoch = NO_LEADER_EPOCH if known is None else known.leader_epoch
        return cls(snapshot.leader_of(partition), epoch)


NO_LEADER: Final = LeaderAndEpoch()


class FetchPosition(NamedTuple):
    """The next offset to read (SubscriptionState.FetchPosition)."""

    offset: int
    #: The leader epoch of the record before it; `NO_LEADER_EPOCH` if it is not known.
    offset_epoch: int = NO_LEADER_EPOCH
    #: The leader that the position was last compared with.
    current_leader: LeaderAndEpoch = NO_LEADER

    @property
    def can_be_validated(self) -> bool:
        """Whether both epochs are known, without which a leader cannot confirm the position."""
        return NO_LEADER_EPOCH not in {self.offset_epoch, self.current_leader.epoch}


class LogTruncation(NamedTuple):
    """A log without the records that were read before the position (KIP-320).

    `divergent_offset` is the first offset that differs; None if the leader does not know it.
    """

    topic_partition: TopicPartition
    position: FetchPosition
    divergent_offset: OffsetAndMetadata | None


@dataclass(slots=True)
class PartitionState:
    """The state of one assigned partition (SubscriptionState.TopicPartitionState)."""

    fetch_state: FetchState = FetchState.INITIALIZING
    position: FetchPosition | None = None
    #: The position before the records that a call has taken and not yet returned; None without any.
    taken_from: FetchPosition | None = None
    #: How to find the start; None unless the state is AWAIT_RESET.
    reset: OffsetReset | None = None
    #: No look-up is due before this time; None for no such time.
    retry_at: float | None = None
    #: How often in a row a Fetch found the position outside of the log.
    out_of_range: int = 0
    #: The user has paused it.
    is_paused: bool = False
    #: It is about to be revoked: nothing of it is fetched or returned.
    pending_revocation: bool = False
    #: on_partitions_assigned has not yet returned for it.
    pending_on_assigned: bool = False
    #: Offsets from the last Fetch response; None if there was none.
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    #: The end of the log was asked for, and the answer is not here yet.
    end_offset_requested: bool = False
    #: The id of the topic to which the position belongs; None if it is not known.
    topic_id: UUID | None = None
    #: The id of the topic that was deleted before; brokers that lag behind may still name it.
    former_topic_id: UUID | None = None
    #: The metadata name another topic of this name than the group's coordinator has assigned.
    is_withheld: bool = False
    _preferred_replica: int | None = None
    _preferred_replica_until: float = 0.0

    @property
    def has_valid_position(self) -> bool:
        """Whether records can be read from the position."""
        return self.fetch_state is _S.FETCHING

    @property
    def is_fetchable(self) -> bool:
        """Whether a Fetch for it may be sent, and its records returned."""
        return (
            self.fetch_state is _S.FETCHING
            and not self.is_paused
            and not self.pending_revocation
            and not self.pending_on_assigned
            and not self.is_withheld
        )

    @property
    def needs_initial_position(self) -> bool:
        """Whether its committed offset has to be looked up."""
        return self.fetch_state is _S.INITIALIZING and not self.pending_revocation

    def awaits(self, fetch_state: FetchState, now: float) -> bool:
        """Return whether it is in `fetch_state` and a look-up is due at `now`."""
        return (
            self.fetch_state is fetch_state
            and not self.is_withheld
            and (self.retry_at is None or now >= self.retry_at)
        )

    def request_reset(self, reset: OffsetReset) -> None:
        """Drop the position: the start has to be looked up by `reset`."""
        self._transition(_S.AWAIT_RESET, None)
        self.reset = reset
        self.retry_at = self.taken_from = None

    def seek(self, position: FetchPosition) -> None:
        """Read from `position`, which needs no validation."""
        self._transition(_S.FETCHING, position)
        self.reset = self.retry_at = self.taken_from = None

    def seek_unvalidated(self, position: FetchPosition) -> None:
        """Read from `position` when its leader has confirmed it, or at once if none can."""
        self.seek(position)
        self._validate(position)

    def move(self, position: FetchPosition) -> None:
        """Set the position after records that were read; raise IllegalStateError without one."""
        if not self.has_valid_position:
            raise IllegalStateError("there is no valid position that a new one could follow")
        self.taken_from = self.taken_from or self.position
        self.position = position

    @property
    def consumed(self) -> FetchPosition | None:
        """The valid position after the returned records; None if there is none."""
        return (self.taken_from or self.position) if self.has_valid_position else None

    def move_back(self, position: FetchPosition) -> None:
        """Set the position back to a record that was taken and cannot be returned."""
        start = self.taken_from
        self.seek(position)
        self.taken_from = start

    def give_back_taken(self) -> None:
        """Read the records taken again; a position that was set since stays."""
        start = self.taken_from
        if start is not None and self.position is not None:
            # The leader may be another one by now.
            self.seek(self.position._replace(offset=start.offset, offset_epoch=start.offset_epoch))

    def maybe_validate(self, current_leader: LeaderAndEpoch) -> bool:
        """Return whether the position awaits validation, which a change of the leader starts.

        Source: TopicPartitionState.maybeValidatePosition.
        """
        if self.fetch_state is _S.AWAIT_RESET or current_leader.leader is None:
            return False
        if self.position is not None and self.position.current_leader != current_leader:
            self._validate(self.position._replace(current_leader=current_leader))
            self.clear_preferred_replica()
        return self.fetch_state is _S.AWAIT_VALIDATION

    def skip_validation(self, current_leader: LeaderAndEpoch) -> None:
        """Read on from a new leader whose brokers cannot validate the position."""
        if self.position is not None:
            self._transition(_S.FETCHING, self.position._replace(current_leader=current_leader))
            self.retry_at = None

    def complete_validation(self) -> None:
        """Read on from the position, if there is one: its leader has confirmed it."""
        if self.position is not None:
            self._transition(_S.FETCHING, self.position)
            self.retry_at = None

    def preferred_replica(self, now: float) -> int | None:
        """Return the broker id of the follower to fetch from, while its lease lasts (KIP-392)."""
        if self._preferred_replica is not None and now > self._preferred_replica_until:
            self._preferred_replica = None
        return self._preferred_replica

    @property
    def last_preferred_replica(self) -> int | None:
        """The broker id of the follower, even if its lease has ended."""
        return self._preferred_replica

    def set_preferred_replica(self, node_id: int, until: float) -> None:
        """Fetch from a follower until `until`; naming the same one again extends nothing."""
        if node_id != self._preferred_replica:
            self._preferred_replica = node_id
            self._preferred_replica_until = until

    def clear_preferred_replica(self) -> int | None:
        """Fetch from the leader again; return the id of the follower that was preferred."""
        removed, self._preferred_replica = self._preferred_replica, None
        return removed

    def end_offset(self, *, is_committed: bool) -> int | None:
        """Return the last known end: the last stable offset for `read_committed`."""
        return self.last_stable_offset if is_committed else self.high_watermark

    def _validate(self, position: FetchPosition) -> None:
        can_be_validated = position.can_be_validated
        self._transition(_S.AWAIT_VALIDATION if can_be_validated else _S.FETCHING, position)
        self.retry_at = None

    def _transition(self, target: FetchState, position: FetchPosition | None) -> None:
        """Change the state and the position together, or raise and change nothing."""
        if target not in TRANSITIONS[self.fetch_state]:
            raise IllegalStateError(
                f"invalid transition from fetch state {self.fetch_state.name} to {target.name}"
            )
        if (position is not None) != (target in WITH_POSITION):
            raise IllegalStateError(f"fetch state {target.name} does not go with {position}")
        self.fetch_state = target
        self.position = position
