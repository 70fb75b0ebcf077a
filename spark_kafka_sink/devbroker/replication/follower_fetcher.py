"""The fetcher of the partitions that this broker follows at one leader (ReplicaFetcherThread).

One request is in flight at a time, for all partitions that are not delayed. A partition is fetched
from the end of its log, so the log itself is the position. Each Fetch request says which epoch the
last record has; if the leader's log has no such record, the response says where the logs diverge
instead, the follower truncates and fetches again (KIP-101, KIP-279, KIP-595): each time it goes
back at least one of its own epochs, so this ends. As in Kafka since 4.0, no follower asks by
OffsetForLeaderEpoch.

A follower outside of the leader's log (OFFSET_OUT_OF_RANGE) asks with ListOffsets where that ends
and begins: it truncates its log to the end, or begins again at the start.

A response counts only for a partition that is still followed in the epoch of the request, and whose
log ends where the request said. An error delays the partition; a fenced one waits for new metadata.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import fetch, list_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_NOT_DIVERGING = fetch.EpochEndOffset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """The broker's settings of replication, with Kafka's names and defaults; times in seconds."""

    #: How long a follower may stay behind before it leaves the ISR (replica.lag.time.max.ms).
    replica_lag_time_max: float = 30.0
    #: How long a leader may hold an empty fetch (replica.fetch.wait.max.ms).
    replica_fetch_wait_max: float = 0.5
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1024 * 1024
    replica_fetch_response_max_bytes: int = 10 * 1024 * 1024
    #: How long a partition with an error is not fetched (replica.fetch.backoff.ms).
    replica_fetch_backoff: float = 1.0
    #: Whether followers learn at once of a high watermark that has moved, because consumers may
    #: fetch from them (in Kafka, if there is a replica.selector.class).
    serves_consumers: bool = False
    #: Whether a partition that is new to a follower is fetched at once: the request in flight,
    #: which does not name it, is given up. In Kafka the partition waits for its response. Requests
    #: must arrive in their order.
    interrupts_fetches: bool = False
    #: How long to wait for a response of another broker (replica.socket.timeout.ms).
    replica_socket_timeout: float = 30.0
    #: How often high watermarks are stored (replica.high.watermark.checkpoint.interval.ms).
    replica_high_watermark_checkpoint_interval: float = 5.0


@dataclass(slots=True)
class _Followed:
    """A partition that is followed."""

    topic: str
    log: PartitionLog
    leader_epoch: int
    #: When it may be fetched again.
    ready_at: float = 0.0
    #: Which of the leader's offsets must be known first, as ListOffsets asks for it; None: none.
    missing_offset: int | None = None


class FollowerFetcher:
    """The partitions that follow one leader, and the request in flight to it."""

    def __init__(
        self, node_id: int, settings: ReplicationSettings, truncated: Callable[[], None]
    ) -> None:
        """Begin without partitions; `truncated` is called when logs were, and may raise OSError."""
        self._node_id = node_id
        self._settings = settings
        self._truncated = truncated
        self._partitions: dict[TopicIdPartition, _Followed] = {}
        self._in_flight: fetch.FetchRequest | list_offsets.ListOffsetsRequest | None = None
        self._expires_at = NEVER

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to fetch any more."""
        return not self._partitions

    @property
    def deadline(self) -> float:
        """When `expire` or `next_request` must be called at the latest."""
        if self._in_flight is not None:
            return self._expires_at
        return min((each.ready_at for each in self._partitions.values()), default=NEVER)

    def follow(
        self, partition: TopicIdPartition, topic: str, log: PartitionLog, leader_epoch: int
    ) -> None:
        """Fetch a partition from the end of its log on, in this leader epoch."""
        self._partitions[partition] = _Followed(topic, log, leader_epoch)
        if self._settings.interrupts_fetches:
            self._in_flight = None

    def stop(self, partition: TopicIdPartition) -> None:
        """Do not fetch a partition any more."""
        self._partitions.pop(partition, None)

    def next_request(
        self, broker_epoch: int, now: float
    ) -> fetch.FetchRequest | list_offsets.ListOffsetsRequest | None:
        """Return the request to send now; None to wait."""
        if self._in_flight is not None:
            return None
        ready = {key: each for key, each in self._partitions.items() if each.ready_at <= now}
        if not ready:
            return None
        asking = {key: each for key, each in ready.items() if each.missing_offset is not None}
        self._in_flight = (
            self._list_offsets_request(asking)
            if asking
            else self._fetch_request(ready, broker_epoch)
        )
        self._expires_at = now + self._settings.replica_socket_timeout
        return self._in_flight

    def _fetch_request(
        self, ready: dict[TopicIdPartition, _Followed], broker_epoch: int
    ) -> fetch.FetchRequest:
        settings = self._settings
        return fetch.FetchRequest(
            replica_state=fetch.ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=int(settings.replica_fetch_wait_max * 1000),
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            # One topic for each partition keeps the order, so that none is starved.
            topics=tuple(
                fetch.FetchTopic(
                    topic_id=key.topic_id,
                    partitions=(
                        fetch.FetchPartition(
                            partition=key.partition,
                            current_leader_epoch=each.leader_epoch,
                            fetch_offset=each.log.log_end_offset,
                            last_fetched_epoch=each.log.last_epoch,
                            log_start_offset=each.log.log_start_offset,
                            partition_max_bytes=settings.replica_fetch_max_bytes,
                        ),
                    ),
                )
                for key, each in ready.items()
            ),
        )

    def _list_offsets_request(
        self, asking: dict[TopicIdPartition, _Followed]
    ) -> list_offsets.ListOffsetsRequest:
        return list_offsets.ListOffsetsRequest(
            replica_id=self._node_id,
            topics=tuple(
                list_offsets.ListOffsetsTopic(
                    name=each.topic,
                    partitions=(
                        list_offsets.ListOffsetsPartition(
                            partition_index=key.partition,
                            current_leader_epoch=each.leader_epoch,
                            timestamp=each.missing_offset or 0,
                        ),
                    ),
                )
                for key, each in asking.items()
            ),
        )

    def expire(self, now: float) -> None:
        """End the request in flight if its response is overdue."""
        if self._in_flight is not None and now >= self._expires_at:
            self.fail(now)

    def fail(self, now: float) -> None:
        """Delay all partitions, because a request could not be sent, or was not answered."""
        self._in_flight = None
        for each in self._partitions.values():
            self._delay(each, now)

    def _delay(self, followed: _Followed, now: float) -> None:
        followed.ready_at = now + self._settings.replica_fetch_backoff

    def handle_fetch(self, response: fetch.FetchResponse, now: float) -> list[TopicIdPartition]:
        """Take a response; return the partitions whose high watermark has moved."""
        request, self._in_flight = self._in_flight, None
        if not isinstance(request, fetch.FetchRequest):
            return []
        if response.error_code != ErrorCode.NONE:
            self.fail(now)
            return []
        asked = {
            TopicIdPartition(topic.topic_id, partition.partition): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        moved: list[TopicIdPartition] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicIdPartition(topic.topic_id, data.partition_index)
                followed = self._partitions.get(key)
                sent = asked.get(key)
                if (
                    followed is not None
                    and sent is not None
                    and sent.current_leader_epoch == followed.leader_epoch
                    and sent.fetch_offset == followed.log.log_end_offset
                    and self._handle_partition(key, followed, data, now)
                ):
                    moved.append(key)
        return moved

    def _handle_partition(
        self, key: TopicIdPartition, followed: _Followed, data: fetch.PartitionData, now: float
    ) -> bool:
        """Apply the response for a partition; return whether its high watermark has moved."""
        log = followed.log
        try:
            if data.error_code != ErrorCode.NONE:
                self._handle_error(key, followed, data.error_code, now)
                return False
            if data.diverging_epoch != _NOT_DIVERGING:
                offset = _offset_to_truncate_to(log, data.diverging_epoch)
                logger.info("truncating %s to offset %d", key, offset)
                log.truncate_as_follower(offset, int(now * 1000))
                self._truncated()
                return False
            for piece in _pieces(data):
                log.append_as_follower(memoryview(piece), now_ms=int(now * 1000))
            if data.log_start_offset > log.log_start_offset:
                log.delete_records(min(data.log_start_offset, log.log_end_offset))
            if data.records:
                self._partitions[key] = self._partitions.pop(key)
            return log.update_high_watermark(data.high_watermark)
        except CorruptRecordError as error:
            logger.warning("%s: the leader's records cannot be appended: %s", key, error)
            self._delay(followed, now)
        except (OSError, RefusedError) as error:
            logger.warning("%s: the replica has failed: %s", key, error)
            self.stop(key)
        return False

    def _handle_error(
        self, key: TopicIdPartition, followed: _Followed, error_code: int, now: float
    ) -> None:
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            followed.missing_offset = list_offsets.LATEST_TIMESTAMP
        elif error_code == ErrorCode.FENCED_LEADER_EPOCH:
            self.stop(key)
        else:
            self._delay(followed, now)

    def handle_list_offsets(self, response: list_offsets.ListOffsetsResponse, now: float) -> None:
        """Take the offsets at which the leader's logs end or begin (fetchOffsetAndTruncate)."""
        request, self._in_flight = self._in_flight, None
        if not isinstance(request, list_offsets.ListOffsetsRequest):
            return
        asked = {
            (topic.name, partition.partition_index): partition
            for topic in request.topics
            for partition in topic.partitions
        }
        found = {
            (topic.name, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        for key, followed in list(self._partitions.items()):
            name = (followed.topic, key.partition)
            sent, answer = asked.get(name), found.get(name)
            if (
                sent is None
                or answer is None
                or sent.current_leader_epoch != followed.leader_epoch
                or sent.timestamp != followed.missing_offset
            ):
                continue
            if answer.error_code != ErrorCode.NONE:
                self._handle_error(key, followed, answer.error_code, now)
            else:
                self._reset(key, followed, answer.offset, now)

    def _reset(self, key: TopicIdPartition, followed: _Followed, offset: int, now: float) -> None:
        log, now_ms = followed.log, int(now * 1000)
        try:
            if followed.missing_offset == list_offsets.EARLIEST_TIMESTAMP:
                followed.missing_offset = None
                if offset > log.log_end_offset:
                    log.restart_at(offset, now_ms)
                    self._truncated()
            elif offset < log.log_end_offset:
                followed.missing_offset = None
                log.truncate_as_follower(offset, now_ms)
                self._truncated()
            else:
                followed.missing_offset = list_offsets.EARLIEST_TIMESTAMP
        except OSError as error:
            logger.warning("%s: the replica has failed: %s", key, error)
            self.stop(key)


def _pieces(data: fetch.PartitionData) -> tuple[bytes | bytearray | memoryview, ...]:
    """Return the records: several buffers before they were sent, and one after that."""
    records = data.records
    if not records:
        return ()
    if isinstance(records, (bytes, bytearray, memoryview)):
        return (records,)
    return tuple(records)


def _offset_to_truncate_to(log: PartitionLog, leader_end: fetch.EpochEndOffset) -> int:
    """Return the offset from which on the log differs from the leader's, or may do so.

    `leader_end` is where the leader's log has the largest epoch that is not above the follower's
    last one. If the follower does not have that epoch, its records of all later epochs are not in
    the leader's log, and the next response tells more (AbstractFetcherThread's
    getOffsetTruncationState).
    """
    own_end = log.end_offset_for_epoch(leader_end.epoch)
    if own_end is None:
        offset = leader_end.end_offset
    elif own_end.epoch != leader_end.epoch:
        offset = own_end.end_offset
    else:
        offset = min(own_end.end_offset, leader_end.end_offset)
    return min(offset, log.log_end_offset)
