"""The state of the reading of a range of one partition: the next step, and losses.

It does no I/O and reads no clock. `step` returns what to do next; the shell does it, and reports
the outcome by one of the other methods. Rules:

- The range ends when the position has reached its end. The position after an answer is that after
  its last batch, whatever the batch held; rows are never counted.
- Nothing is repeated without progress or a back-off, and nothing is repeated without end: without
  progress for `timeout` seconds, `step` raises an error with what was last seen.
- Only the leader decides what is lost. A follower that fails is not asked again (KIP-392), unless
  the leader insists.
- Records at the end of the range that were deleted, as by compaction, make answers empty. So does
  slow remote storage (KIP-405): only what is on the leader's own disk can be seen to be gone.
- A log that seems too short, and a topic that seems to be gone, are checked repeatedly before a
  loss is reported: a broker that has just taken over may not know better yet (KAFKA-7703).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_kafka_sink.consumer.fetch.fetch_rules import ADVICE, FetchAction, fetch_action
from spark_kafka_sink.display import counted
from spark_kafka_sink.errors import CorruptRecordError, KafkaError, KafkaTimeoutError
from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET, Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from spark_kafka_sink.network.exponential_backoff import ExponentialBackoff
    from spark_kafka_sink.protocol.messages.fetch import PartitionData

#: How often a log must be found to be too short before that is believed.
ASKS_UNTIL_SHORT: Final = 3
#: Empty answers, each with a high watermark past the range, after which nothing may be left.
EMPTY_UNTIL_DONE: Final = 2
#: Seconds for which a topic must be gone before that is believed: a broker that has just started
#: may not know every topic.
GONE_SECONDS: Final = 3.0
#: The metadata responses that must say so meanwhile.
GONE_ANSWERS: Final = 2


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
    """The partition in the metadata at one moment."""

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
    """The headers of the batches in an answer."""

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


class _Doubt(Enum):
    """Why the bounds of the log are looked up."""

    #: The leader does not have the position.
    OUT_OF_RANGE = auto()
    #: The leader returned nothing, although its log should have more.
    EMPTY = auto()
    #: The leader returned nothing, although the range ends before its high watermark.
    DELETED = auto()


class RangeFetch:
    """The state; see the module."""

    def __init__(
        self,
        partition_range: PartitionRange,
        *,
        is_committed: bool,
        backoff: ExponentialBackoff,
        timeout: float,
        replica_max_age: float,
        now: float,
    ) -> None:
        """Start at the beginning of the range.

        `is_committed` is whether the reader waits for open transactions. A follower is read from
        for `replica_max_age` seconds before the leader is asked again which one to prefer.
        """
        self._range = partition_range
        self._topic_partition = partition_range.topic_partition
        self.position = partition_range.start
        #: May become smaller if the log is too short.
        self.end = partition_range.end
        self._is_committed = is_committed
        self._backoff = backoff
        self._timeout = timeout
        self._replica_max_age = replica_max_age
        #: When to give up waiting for progress.
        self.deadline = now + timeout
        self._topic_id = partition_range.topic_id
        self._last_fetched_epoch = partition_range.start_epoch
        self._loss: DataLoss | None = None
        #: For the error of a timeout.
        self._last_seen = "no broker has answered yet"
        self._hint = ""
        # Retries.
        self._failures = 0
        self._retry_at = now
        self._is_stale = False
        self._failed_epoch = NO_LEADER_EPOCH
        # Followers.
        self._replica_id: int | None = None
        self._replica_until = now
        self._may_redirect = True
        # Doubts.
        self._empty_answers = 0
        self._doubt: _Doubt | None = None
        self._short_answers = 0
        self._gone_since: float | None = None
        self._gone_answers = 0

    @property
    def is_done(self) -> bool:
        """Whether the range has been read to its end."""
        return self.position >= self.end

    # --- what to do next

    def resume(self, now: float) -> None:
        """Restart the timeout: the reader was busy with the rows, not waiting for more."""
        self.deadline = now + self._timeout

    def may_fetch(self, view: PartitionView, now: float) -> bool:
        """Return whether the next step is a Fetch, without taking any step."""
        return (
            self._loss is None
            and not self.is_done
            and self._doubt is None
            and not self._is_stale
            and self._retry_at <= now < self.deadline
            and view.leader is not None
            and not view.topic_error
            and self._absence(view) is None
        )

    def step(self, view: PartitionView, now: float) -> Step:
        """Return what to do next.

        Raises KafkaTimeoutError if there was no progress for too long, BrokerError if the topic
        cannot be read.
        """
        if self._loss is not None:
            loss, self._loss = self._loss, None
            return Lose(loss)
        if self.is_done:
            return Done()
        if now >= self.deadline:
            raise self._timed_out()
        if view.topic_error and fetch_action(view.topic_error) is FetchAction.FATAL:
            raise self._error(view.topic_error, "Metadata")
        if self._topic_id is None and view.topic_id != ZERO_UUID:
            self._topic_id = view.topic_id
        absence = self._absence(view)
        if absence is not None:
            return self._gone(absence, now)
        self._gone_since = None
        return self._request(view, now)

    def _request(self, view: PartitionView, now: float) -> Step:
        if self._is_stale and view.leader is not None and view.leader_epoch > self._failed_epoch:
            # An error response has named the new leader (KIP-951).
            self._is_stale = False
            self._retry_at = now
        if now < self._retry_at:
            return Wait(min(self._retry_at, self.deadline))
        if view.leader is None or self._is_stale or view.leader_epoch < self._least_epoch(view):
            return Refresh()
        if self._doubt is not None:
            return LookUpBounds(view.leader, view.leader_epoch, self._doubt is _Doubt.DELETED)
        return self._fetch(view, view.leader, now)

    def _least_epoch(self, view: PartitionView) -> int:
        # Brokers before 2.1 report no epochs.
        return NO_LEADER_EPOCH if view.leader_epoch < 0 else self._range.leader_epoch

    def _fetch(self, view: PartitionView, leader: Node, now: float) -> SendFetch:
        if now >= self._replica_until:
            self._replica_id = None
        replica = None if self._replica_id is None else view.nodes.get(self._replica_id)
        return SendFetch(
            node=replica or leader,
            is_replica=replica is not None,
            topic_id=self._topic_id or ZERO_UUID,
            leader_epoch=view.leader_epoch,
            last_fetched_epoch=self._last_fetched_epoch,
            offset=self.position,
            left=self.end - self.position,
            may_redirect=self._may_redirect,
            may_wait=self._empty_answers == 0,
        )

    def _absence(self, view: PartitionView) -> str | None:
        """Return how the metadata say that the topic of this range no longer exists, if they do."""
        if view.topic_error in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}:
            return "the topic no longer exists"
        if self._topic_id is not None and view.topic_id not in {ZERO_UUID, self._topic_id}:
            return (
                f"the topic was deleted and recreated: its id was {self._topic_id} and is now "
                f"{view.topic_id}"
            )
        if 0 < view.partition_count <= self._range.partition:
            return (
                "the partition no longer exists: the topic has "
                f"{counted(view.partition_count, 'partition')}"
            )
        return None

    def _gone(self, reason: str, now: float) -> Step:
        if self._gone_since is None:
            self._gone_since = now
            self._gone_answers = 0
            self._retry_at = now
        self._last_seen = reason
        if self._gone_answers >= GONE_ANSWERS and now - self._gone_since >= GONE_SECONDS:
            self._lose(self.position, UNKNOWN_OFFSET, self.end - self.position, reason)
            self._advance(self.end, now)
            return self._report()
        return Wait(min(self._retry_at, self.deadline)) if now < self._retry_at else Refresh()

    # --- what has happened

    def refreshed(self, view: PartitionView, now: float) -> None:
        """Record that metadata have arrived."""
        self._is_stale = False
        if self._gone_since is not None:
            self._gone_answers += 1
            self._back_off(now)
        elif view.leader is None or view.leader_epoch < self._least_epoch(view):
            self._last_seen = (
                f"the topic is unknown, or {self._topic_partition} has no leader"
                if view.leader is None
                else f"the metadata are older than those of the range: leader epoch "
                f"{view.leader_epoch}, not {self._range.leader_epoch}"
            )
            self._back_off(now)

    def failed(self, error: KafkaError, now: float, *, leader_epoch: int | None = None) -> None:
        """Record that a step got no response, and that the metadata may be the cause.

        `leader_epoch` is that of the failed request, unless it was one for metadata.
        """
        self._last_seen = str(error)
        self._drop_replica()
        self._ask_for_leader(now, leader_epoch)

    def _ask_for_leader(self, now: float, leader_epoch: int | None) -> None:
        self._is_stale = True
        if leader_epoch is not None:
            self._failed_epoch = leader_epoch
        if self._failures or leader_epoch is None:
            self._back_off(now)
        else:
            # The first time, the metadata are requested at once.
            self._failures = 1

    def answered(
        self,
        sent: SendFetch,
        data: PartitionData | None,
        *,
        throttle: float,
        batches: Batches | None,
        now: float,
    ) -> Rows | None:
        """Record the answer to a Fetch; return the part of the range that it covers, if any.

        `data` is None if the answer lacks the partition, `batches` if there are no batches in it,
        and `throttle` is the time in seconds for which the broker has throttled this client.

        Raises BrokerError for a fatal error, CorruptRecordError if the batches have no end.
        """
        if data is None:
            self._last_seen = f"{sent.node} answered without the partition"
            self._wait_or_back_off(throttle, now)
            return None
        action = fetch_action(data.error_code)
        if action is FetchAction.READ:
            return self._read(sent, data, throttle=throttle, batches=batches, now=now)
        error = self._error(data.error_code, f"Fetch from offset {sent.offset} at {sent.node}")
        if action is FetchAction.FATAL and not sent.is_replica:
            raise error
        self._last_seen = str(error)
        if sent.is_replica:
            # The leader may know better, and decides what is lost.
            self._drop_replica()
            if action is not FetchAction.REFRESH:
                return None
        if action is FetchAction.LOOK_UP_BOUNDS:
            self._doubt = _Doubt.OUT_OF_RANGE
        elif action is FetchAction.REFRESH:
            self._ask_for_leader(now, sent.leader_epoch)
        else:
            self._wait_or_back_off(throttle, now)
        return None

    def _read(
        self,
        sent: SendFetch,
        data: PartitionData,
        *,
        throttle: float,
        batches: Batches | None,
        now: float,
    ) -> Rows | None:
        if data.diverging_epoch.end_offset >= 0:
            if sent.is_replica:
                # It may lag behind: the leader decides.
                self._drop_replica()
            else:
                self._diverged(data.diverging_epoch.end_offset, now)
            return None
        redirected = self._redirect(sent, data, now)
        if batches is None:
            if not redirected:
                self._nothing_read(sent, data, throttle, now)
            return None
        if not batches.batch_count:
            raise CorruptRecordError(
                f"{self._topic_partition}, offset {self.position}: {sent.node} returned bytes "
                "without a complete batch, although a first batch always comes whole (KIP-74)"
            )
        if batches.next_offset <= self.position:
            self._last_seen = f"{sent.node} returned only batches before offset {self.position}"
            self._back_off(now)
            return None
        rows = Rows(self.position, self.end)
        self._last_fetched_epoch = batches.last_leader_epoch
        self._advance(batches.next_offset, now)
        return rows

    def _redirect(self, sent: SendFetch, data: PartitionData, now: float) -> bool:
        """Return whether the leader has recommended a follower, which is used now (KIP-392)."""
        replica_id = data.preferred_read_replica
        if sent.is_replica or replica_id in {-1, sent.node.node_id}:
            return False
        if not self._may_redirect:
            # A follower that has failed, but the leader reads nothing itself.
            self._last_seen = f"{sent.node} recommends to read from broker {replica_id} instead"
            self._may_redirect = True
            self._ask_for_leader(now, sent.leader_epoch)
            return True
        if self._replica_id == replica_id and now < self._replica_until:
            # It was recommended before, but the metadata do not know its address.
            self._drop_replica()
            self._ask_for_leader(now, sent.leader_epoch)
            return True
        self._replica_id = replica_id
        self._replica_until = now + self._replica_max_age
        return True

    def _diverged(self, end_offset: int, now: float) -> None:
        """Handle a log that has other records than those read so far (KIP-320, KIP-595)."""
        if self._last_fetched_epoch == NO_LEADER_EPOCH:
            # Nothing was claimed that could diverge.
            self._last_seen = f"the leader's log diverges at offset {end_offset}"
            self._back_off(now)
        self._last_fetched_epoch = NO_LEADER_EPOCH
        if end_offset < self.position:
            self._lose(
                self.position,
                end_offset,
                self.position - end_offset,
                f"the log was truncated to offset {end_offset} after records up to offset "
                f"{self.position} had been read; a leader that was not in sync may have been "
                "elected",
            )

    def _nothing_read(
        self, sent: SendFetch, data: PartitionData, throttle: float, now: float
    ) -> None:
        watermark = data.last_stable_offset if self._is_committed else data.high_watermark
        name = "last stable offset" if self._is_committed else "high watermark"
        self._last_seen = f"{sent.node} returned no records; its {name} is {watermark}"
        if throttle:
            self._retry_at = now + throttle
        elif sent.is_replica:
            # It may lag behind: the leader decides.
            self._drop_replica()
        elif watermark >= self.end:
            # All that is left may have been deleted, such as tombstones in a compacted topic.
            self._empty_answers += 1
            if self._empty_answers >= EMPTY_UNTIL_DONE:
                self._doubt = _Doubt.DELETED
        else:
            self._empty_answers = 0
            self._doubt = _Doubt.EMPTY

    def bounds_found(self, bounds: LogBounds, now: float) -> None:
        """Record the bounds of the log, from its leader."""
        doubt, self._doubt = self._doubt, None
        is_short = bounds.end < (self.position if doubt is _Doubt.OUT_OF_RANGE else self.end)
        if self.position < bounds.start:
            available = min(bounds.start, self.end)
            self._lose(
                self.position,
                bounds.start,
                available - self.position,
                f"the log now begins at offset {bounds.start}: older records were deleted, by "
                "retention or by DeleteRecords",
            )
            self._last_fetched_epoch = NO_LEADER_EPOCH
            self._advance(available, now)
        elif is_short:
            self._last_seen = f"the log ends at offset {bounds.end}"
            self._short_answers += 1
            if self._short_answers < ASKS_UNTIL_SHORT:
                self._doubt = doubt
                self._back_off(now)
            else:
                self._cut_short(bounds.end, now)
        elif doubt is _Doubt.DELETED and self.position >= bounds.local_start:
            self._advance(self.end, now)
        elif doubt is _Doubt.DELETED:
            self._hint = (
                f". Records from offset {self.position} on are in remote storage, which has "
                "returned none of them: the leader's own disk begins at offset "
                f"{bounds.local_start}"
            )
            self._empty_answers = 0
            self._back_off(now)
        else:
            # With an unknown epoch the leader refuses an offset that it has.
            self._last_fetched_epoch = NO_LEADER_EPOCH
            if self._is_committed and bounds.stable_end < self.end:
                self._hint = (
                    f". An open transaction holds back the records from offset {bounds.stable_end} "
                    f"on, although the high watermark is {bounds.end}: wait until it is committed "
                    "or aborted, or read with isolation.level=read_uncommitted"
                )
            self._back_off(now)

    def _cut_short(self, log_end: int, now: float) -> None:
        new_end = max(self.position, log_end)
        self._lose(
            self.end if new_end == log_end else self.position,
            log_end,
            self.end - new_end,
            f"the log ends at offset {log_end}: later records were lost, for example because a "
            "leader that was not in sync was elected, or never written",
        )
        self.end = new_end
        self._last_fetched_epoch = NO_LEADER_EPOCH
        self._advance(self.position, now)

    # --- helpers

    def _advance(self, position: int, now: float) -> None:
        self.position = position
        self.deadline = now + self._timeout
        self._hint = ""
        self._failures = 0
        self._retry_at = now
        self._empty_answers = 0
        self._short_answers = 0

    def _back_off(self, now: float) -> None:
        self._retry_at = now + self._backoff.delay(self._failures)
        self._failures += 1

    def _wait_or_back_off(self, throttle: float, now: float) -> None:
        if throttle:
            self._retry_at = now + throttle
        else:
            self._back_off(now)

    def _drop_replica(self) -> None:
        if self._replica_id is not None:
            self._replica_id = None
            # Otherwise the leader would recommend it again.
            self._may_redirect = False

    def _lose(self, wanted: int, available: int, lost: int, reason: str) -> None:
        topic, partition = self._topic_partition
        self._loss = DataLoss(topic, partition, wanted, available, lost, reason)

    def _report(self) -> Step:
        loss, self._loss = self._loss, None
        return Done() if loss is None else Lose(loss)

    def _error(self, code: int, what: str) -> KafkaError:
        return broker_error(code, f"{self._topic_partition}: {what}", ADVICE.get(code))

    def _timed_out(self) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"{self._topic_partition}: no progress within {self._timeout:g} s at offset "
            f"{self.position}; the range ends at offset {self.end}. Last seen: {self._last_seen}"
            f"{self._hint}"
        )
