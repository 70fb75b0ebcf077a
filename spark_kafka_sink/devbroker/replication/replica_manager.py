"""The replicas of one broker: what it leads, what it follows, and who waits (ReplicaManager).

Metadata decide the roles (`apply`). Requests come in by `handle`, with the responses of the brokers
that this one has asked; what must be sent goes out as the result of each call. It never reads a
clock, a socket or another broker's state: a broker alone on one side of a cut goes on as it knows.

A request that cannot be answered yet is kept as data, with what it waits for: a Produce request
with acks=all until the high watermark has passed its records, a Fetch request until there are
enough bytes. Both are looked at again when something has changed at one of their partitions, and
answered anyway when their time is up.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.log_validator import (
    ValidationBudget,
    only_batch,
    validate_batch,
)
from spark_kafka_sink.devbroker.metadata.envelope import CONTROLLER, Envelope
from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    TOPIC_RESOURCE,
    PartitionRecord,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.replication.follower_fetcher import (
    FollowerFetcher,
    ReplicationSettings,
)
from spark_kafka_sink.devbroker.replication.leader_replica import (
    ACKS_ALL,
    IsrProposal,
    LeaderReplica,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    alter_partition,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.metadata.envelope import Request, Response
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse

_UNKNOWN_OFFSET = -1
_READ_COMMITTED = 1
_NEVER = float("inf")
#: How long to wait before the controller is asked again.
_CONTROLLER_BACKOFF = 0.05
#: How many bytes the batches of one Produce request may decompress to.
_VALIDATED_BYTES = 100 * 1024 * 1024
#: Settings that concern the controller and not the logs.
_OF_THE_CONTROLLER = frozenset({"unclean.leader.election.enable"})


class ReplicaLogs(Protocol):
    """Where a broker keeps its logs and high watermarks; both survive the end of its process."""

    def open(self, partition: TopicIdPartition, topic: str, config: TopicConfig) -> PartitionLog:
        """Load the log of a partition, or create it."""

    def delete(self, partition: TopicIdPartition) -> None:
        """Delete the log of a partition."""

    def high_watermark(self, partition: TopicIdPartition) -> int:
        """Return the stored high watermark of a partition; 0 if there is none."""

    def store_high_watermarks(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Store all high watermarks (replication-offset-checkpoint)."""

    def truncated(self) -> None:
        """Store where logs that were truncated end now. Raises OSError."""

    def remove_others(self, partitions: Collection[TopicIdPartition]) -> None:
        """Delete the logs of all other partitions."""


@dataclass(slots=True)
class _Hosted:
    """A partition of which this broker has a replica."""

    topic: str
    log: PartitionLog
    leader_id: int = NO_LEADER
    leader_epoch: int = NO_LEADER_EPOCH
    #: The replica as a leader; None for a follower.
    leader: LeaderReplica | None = None


@dataclass(slots=True)
class _WaitingProduce:
    """A Produce request whose batches are appended, and not yet replicated (DelayedProduce)."""

    envelope: Envelope
    request: produce.ProduceRequest
    deadline: float
    #: The results so far, in the order of the request.
    results: list[tuple[produce.TopicProduceData, produce.PartitionProduceResponse]]
    #: The partitions to wait for: where the result is, and the offset after the batch.
    waits: dict[TopicIdPartition, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _WaitingFetch:
    """A Fetch request for which there was too little to read (DelayedFetch)."""

    envelope: Envelope
    request: fetch.FetchRequest
    deadline: float
    waits: dict[TopicIdPartition, None]


_Waiting: TypeAlias = _WaitingProduce | _WaitingFetch


class _Read(NamedTuple):
    """What was read of a partition, and whether to respond because of it at once."""

    data: fetch.PartitionData
    size_in_bytes: int = 0
    urgent: bool = True


class ReplicaManager:
    """All replicas of a broker."""

    def __init__(
        self,
        node_id: int,
        logs: ReplicaLogs,
        image: MetadataImage,
        *,
        settings: ReplicationSettings | None = None,
        topic_defaults: TopicConfig | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        """Begin without replicas, which the metadata bring.

        `image` is the broker's own, which its owner changes before `apply`. It must not be applied
        before the broker's registration is in it: an older one may say that the broker leads.
        `numbers` are the correlation ids of requests, if the owner sends others.
        """
        self.node_id = node_id
        self._logs = logs
        self._image = image
        self._settings = settings or ReplicationSettings()
        self._topic_defaults = topic_defaults or TopicConfig()
        self._broker_epoch = -1
        self._hosted: dict[TopicIdPartition, _Hosted] = {}
        self._fetchers: dict[int, FollowerFetcher] = {}
        self._waiting: dict[int, _Waiting] = {}
        #: Where something has changed since waiting requests were looked at.
        self._changed: set[TopicIdPartition] = set()
        self._numbers = itertools.count() if numbers is None else numbers
        #: The fetchers by the correlation ids of their requests in flight.
        self._fetching: dict[int, FollowerFetcher] = {}
        #: The leaders that have a proposal to send.
        self._proposing: dict[TopicIdPartition, None] = {}
        self._proposed: dict[TopicIdPartition, IsrProposal] = {}
        self._proposal_id: int | None = None
        self._proposal_expires_at = _NEVER
        self._propose_at = 0.0
        self._next_isr_check = 0.0
        self._next_checkpoint = 0.0
        self._outgoing: list[Envelope] = []

    # What the owner may look at.

    def log(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Return the log of a replica, if this broker has one."""
        hosted = self._hosted.get(partition)
        return None if hosted is None else hosted.log

    def leader(self, partition: TopicIdPartition) -> LeaderReplica | None:
        """Return the leader of a partition, if this broker believes to lead it."""
        hosted = self._hosted.get(partition)
        return None if hosted is None else hosted.leader

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest, if nothing happens before."""
        return min(
            self._next_isr_check,
            self._next_checkpoint,
            self._proposal_expires_at,
            self._propose_at if self._proposing and self._proposal_id is None else _NEVER,
            min((each.deadline for each in self._fetchers.values()), default=_NEVER),
            min((each.deadline for each in self._waiting.values()), default=_NEVER),
        )

    # Metadata.

    def registered(self, broker_epoch: int) -> None:
        """Continue with the epoch that the controller has given this broker."""
        self._broker_epoch = broker_epoch
        for hosted in self._hosted.values():
            if hosted.leader is not None:
                hosted.leader.broker_epoch = broker_epoch

    def apply(self, delta: MetadataDelta, now: float) -> list[Envelope]:
        """Take the roles that the changed metadata say (ReplicaManager.applyDelta)."""
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._stop(TopicIdPartition(topic_id, index))
        for key in delta.partitions:
            partition = self._image.find_partition(key)
            if partition is None or self.node_id not in partition.replicas:
                self._stop(key)
            else:
                self._take_role(key, partition, now)
        changed = {each.name for each in delta.configs if each.resource_type == TOPIC_RESOURCE}
        for hosted in self._hosted.values():
            if hosted.topic in changed:
                hosted.log.config = self._config(hosted.topic)
        return self._finish(now)

    def _config(self, topic: str) -> TopicConfig:
        values = self._image.topic_config(topic)
        return self._topic_defaults.with_values(
            {name: value for name, value in values.items() if name not in _OF_THE_CONTROLLER}
        )

    def _take_role(self, key: TopicIdPartition, partition: PartitionRecord, now: float) -> None:
        hosted = self._hosted.get(key)
        if hosted is None:
            topic = self._image.topics[key.topic_id].name
            log = self._logs.open(key, topic, self._config(topic))
            log.begin_replication(self._logs.high_watermark(key))
            hosted = self._hosted[key] = _Hosted(topic, log)
        if partition.leader == self.node_id:
            self._lead(key, hosted, partition, now)
        elif (partition.leader, partition.leader_epoch) != (
            hosted.leader_id,
            hosted.leader_epoch,
        ):
            self._follow(key, hosted, partition)
        hosted.leader_id = partition.leader
        hosted.leader_epoch = partition.leader_epoch

    def _lead(
        self, key: TopicIdPartition, hosted: _Hosted, partition: PartitionRecord, now: float
    ) -> None:
        if hosted.leader is None:
            self._stop_fetching(key, hosted)
            hosted.leader = LeaderReplica(
                self.node_id,
                self._broker_epoch,
                hosted.log,
                max_lag=self._settings.replica_lag_time_max,
            )
        hosted.leader.lead(partition, self._image, now)
        self._changed.add(key)

    def _follow(self, key: TopicIdPartition, hosted: _Hosted, partition: PartitionRecord) -> None:
        self._stop_fetching(key, hosted)
        hosted.leader = None
        self._proposing.pop(key, None)
        self._changed.add(key)
        # Epochs that this replica began as a leader and in which it has written nothing.
        hosted.log.truncate_as_follower(hosted.log.log_end_offset, 0)
        if partition.leader != NO_LEADER:
            fetcher = self._fetchers.get(partition.leader)
            if fetcher is None:
                fetcher = FollowerFetcher(self.node_id, self._settings, self._logs.truncated)
                self._fetchers[partition.leader] = fetcher
            fetcher.follow(key, hosted.topic, hosted.log, partition.leader_epoch)

    def _stop_fetching(self, key: TopicIdPartition, hosted: _Hosted) -> None:
        fetcher = self._fetchers.get(hosted.leader_id)
        if fetcher is not None:
            fetcher.stop(key)

    def _stop(self, key: TopicIdPartition) -> None:
        """Delete a replica that this broker is not to have any more."""
        hosted = self._hosted.pop(key, None)
        if hosted is not None:
            self._stop_fetching(key, hosted)
            self._proposing.pop(key, None)
            self._changed.add(key)
            self._logs.delete(key)

    # Messages and time.

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Handle a message; return what to send because of it."""
        match envelope.message:
            case produce.ProduceRequest() as request:
                self._produce(envelope, request, now)
            case fetch.FetchRequest() as request:
                self._fetch(envelope, request, now)
            case list_offsets.ListOffsetsRequest() as request:
                self._answer(envelope, self._list_offsets(request))
            case offset_for_leader_epoch.OffsetForLeaderEpochRequest() as request:
                self._answer(envelope, self._end_offsets(request))
            case response:
                self._handle_response(envelope.correlation_id, response, now)
        return self._finish(now)

    def _handle_response(
        self, correlation_id: int, response: Request | Response, now: float
    ) -> None:
        """Handle a response, unless its request was given up."""
        fetcher = self._fetching.pop(correlation_id, None)
        match response:
            case fetch.FetchResponse():
                if fetcher is not None:
                    self._changed.update(fetcher.handle_fetch(response, now))
            case list_offsets.ListOffsetsResponse():
                if fetcher is not None:
                    fetcher.handle_list_offsets(response, now)
            case alter_partition.AlterPartitionResponse():
                if correlation_id == self._proposal_id:
                    self._handle_recorded(response, now)
            case other:
                raise TypeError(f"{type(other).__name__} is not a message of replication")

    def failed(self, correlation_id: int, now: float) -> list[Envelope]:
        """Handle that a request could not be sent, or its connection was closed."""
        fetcher = self._fetching.pop(correlation_id, None)
        if fetcher is not None:
            fetcher.fail(now)
        if correlation_id == self._proposal_id:
            self._proposal_failed(now)
        return self._finish(now)

    def tick(self, now: float) -> list[Envelope]:
        """Do what is due."""
        for number, waiting in list(self._waiting.items()):
            if now >= waiting.deadline:
                del self._waiting[number]
                self._complete(waiting, now, expired=True)
        for fetcher in self._fetchers.values():
            fetcher.expire(now)
        if now >= self._proposal_expires_at:
            self._proposal_failed(now)
        if now >= self._next_isr_check:
            self._check_isr(now)
            self._next_isr_check = now + self._settings.replica_lag_time_max / 2
        if now >= self._next_checkpoint:
            self.checkpoint()
            interval = self._settings.replica_high_watermark_checkpoint_interval
            self._next_checkpoint = now + interval
        return self._finish(now)

    def remove_strays(self) -> None:
        """Delete the logs of partitions that were moved or deleted while this broker was away."""
        self._logs.remove_others(self._hosted.keys())

    def checkpoint(self) -> None:
        """Store the high watermarks; also done by an orderly shutdown."""
        self._logs.store_high_watermarks(
            {key: hosted.log.high_watermark for key, hosted in self._hosted.items()}
        )

    def _check_isr(self, now: float) -> None:
        for key, hosted in self._hosted.items():
            leader = hosted.leader
            if leader is not None:
                leader.maybe_shrink_isr(now)
                self._note(key, leader)
                # The broker of a follower that the high watermark waited for may be gone.
                if leader.maybe_increment_high_watermark(self._image, now):
                    self._changed.add(key)

    def _note(self, key: TopicIdPartition, leader: LeaderReplica) -> None:
        if leader.must_propose:
            self._proposing[key] = None

    def _finish(self, now: float) -> list[Envelope]:
        """Respond to those that waited for what has changed; return all that must be sent."""
        while self._changed:
            changed, self._changed = self._changed, set()
            for number, waiting in list(self._waiting.items()):
                if not changed.isdisjoint(waiting.waits) and self._complete(waiting, now):
                    del self._waiting[number]
        self._send_proposals(now)
        self._send_fetches(now)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _complete(self, waiting: _Waiting, now: float, *, expired: bool = False) -> bool:
        if isinstance(waiting, _WaitingFetch):
            return self._complete_fetch(waiting, now, expired=expired)
        return self._complete_produce(waiting, expired=expired)

    def _send(self, receiver: int, message: AnyRequest) -> int:
        number = next(self._numbers)
        self._outgoing.append(Envelope(self.node_id, receiver, number, message))
        return number

    def _answer(self, envelope: Envelope, message: ApiResponse) -> None:
        self._outgoing.append(envelope.response(message))

    def _send_fetches(self, now: float) -> None:
        for leader_id, fetcher in list(self._fetchers.items()):
            if fetcher.is_idle:
                del self._fetchers[leader_id]
                continue
            request = fetcher.next_request(self._broker_epoch, now)
            if request is not None:
                self._fetching = {
                    number: each for number, each in self._fetching.items() if each is not fetcher
                }
                self._fetching[self._send(leader_id, request)] = fetcher

    # ISR changes (AlterPartitionManager).

    def _send_proposals(self, now: float) -> None:
        if not self._proposing or self._proposal_id is not None or now < self._propose_at:
            return
        topics: dict[uuid.UUID, list[alter_partition.AlterPartitionRequestPartition]] = {}
        for key in self._proposing:
            leader = self._hosted[key].leader
            proposal = None if leader is None else leader.proposal
            if leader is None or proposal is None or not leader.must_propose:
                continue
            leader.must_propose = False
            self._proposed[key] = proposal
            topics.setdefault(key.topic_id, []).append(_proposed_partition(key, proposal))
        self._proposing.clear()
        if topics:
            request = alter_partition.AlterPartitionRequest(
                broker_id=self.node_id,
                broker_epoch=self._broker_epoch,
                topics=tuple(
                    alter_partition.AlterPartitionRequestTopic(
                        topic_id=topic_id, partitions=tuple(partitions)
                    )
                    for topic_id, partitions in topics.items()
                ),
            )
            self._proposal_id = self._send(CONTROLLER, request)
            self._proposal_expires_at = now + self._settings.replica_socket_timeout

    def _handle_recorded(
        self, response: alter_partition.AlterPartitionResponse, now: float
    ) -> None:
        if response.error_code != ErrorCode.NONE:
            self._proposal_failed(now)
            return
        for topic in response.topics:
            for result in topic.partitions:
                key = TopicIdPartition(topic.topic_id, result.partition_index)
                proposal = self._proposed.pop(key, None)
                leader = self.leader(key)
                if proposal is None or leader is None:
                    continue
                if result.error_code != ErrorCode.NONE:
                    leader.isr_refused(proposal, result.error_code)
                elif result.leader_epoch == leader.leader_epoch and leader.isr_recorded(
                    proposal, frozenset(result.isr), result.partition_epoch, self._image, now
                ):
                    self._changed.add(key)
                self._note(key, leader)
        self._proposal_failed(now, backoff=0.0)

    def _proposal_failed(self, now: float, backoff: float = _CONTROLLER_BACKOFF) -> None:
        """End the request in flight; what it did not answer is proposed again."""
        for key, proposal in self._proposed.items():
            leader = self.leader(key)
            if leader is not None:
                leader.isr_refused(proposal, ErrorCode.NETWORK_EXCEPTION)
                self._note(key, leader)
        self._proposed.clear()
        self._proposal_id = None
        self._proposal_expires_at = _NEVER
        self._propose_at = now + backoff

    # Produce.

    def _find(self, key: TopicIdPartition) -> _Hosted:
        """Return a replica of this broker.

        Raises RefusedError with UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, or
        NOT_LEADER_OR_FOLLOWER if other brokers have the partition.
        """
        hosted = self._hosted.get(key)
        if hosted is not None:
            return hosted
        topic = self._image.topics.get(key.topic_id)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif key.partition not in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise RefusedError(code, f"broker {self.node_id} does not have {key}")

    def _find_leader(self, key: TopicIdPartition) -> LeaderReplica:
        """Return a leader. Raises RefusedError as `_find`, and for a follower."""
        leader = self._find(key).leader
        if leader is None:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.node_id} does not lead {key}"
            )
        return leader

    def _produce(self, envelope: Envelope, request: produce.ProduceRequest, now: float) -> None:
        """Append the batches; respond, or wait for the followers (ReplicaManager.appendRecords)."""
        waiting = _WaitingProduce(envelope, request, now + request.timeout_ms / 1000, [])
        budget = ValidationBudget(_VALIDATED_BYTES)
        for topic in request.topic_data:
            for data in topic.partition_data:
                key = TopicIdPartition(topic.topic_id, data.index)
                try:
                    result, end_offset = self._append(key, data, request.acks, budget, now)
                except RefusedError as refused:
                    result, end_offset = _refused_produce(data.index, refused), None
                if end_offset is not None and request.acks == ACKS_ALL:
                    waiting.waits[key] = (len(waiting.results), end_offset)
                waiting.results.append((topic, result))
        if request.acks == 0:
            return
        if not self._complete_produce(waiting, expired=False):
            self._waiting[next(self._numbers)] = waiting

    def _append(
        self,
        key: TopicIdPartition,
        data: produce.PartitionProduceData,
        acks: int,
        budget: ValidationBudget,
        now: float,
    ) -> tuple[produce.PartitionProduceResponse, int]:
        """Append a batch; return the result, and the offset after the batch."""
        leader = self._find_leader(key)
        now_ms = int(now * 1000)
        records = None if data.records is None else _joined(data.records)
        batch, header = validate_batch(
            only_batch(records, api_version=produce.ProduceRequest.versions.max),
            leader.log.config,
            now_ms=now_ms,
            budget=budget,
        )
        appended = leader.append(batch, header, acks=acks, now_ms=now_ms)
        leader.maybe_increment_high_watermark(self._image, now)
        self._changed.add(key)
        result = produce.PartitionProduceResponse(
            index=data.index,
            base_offset=appended.first_offset,
            log_start_offset=leader.log.log_start_offset,
        )
        return result, appended.last_offset + 1

    def _complete_produce(self, waiting: _WaitingProduce, *, expired: bool) -> bool:
        for key, (index, end_offset) in list(waiting.waits.items()):
            leader = self.leader(key)
            code: ErrorCode | None
            if leader is None:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                code = leader.check_replicated(end_offset)
            if code is None and expired:
                code = ErrorCode.REQUEST_TIMED_OUT
            if code is None:
                continue
            del waiting.waits[key]
            if code is not ErrorCode.NONE:
                topic, result = waiting.results[index]
                failed = replace(result, error_code=code, base_offset=_UNKNOWN_OFFSET)
                waiting.results[index] = (topic, failed)
        if waiting.waits:
            return False
        results = iter(waiting.results)
        self._answer(
            waiting.envelope,
            produce.ProduceResponse(
                responses=tuple(
                    produce.TopicProduceResponse(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partition_responses=tuple(next(results)[1] for _ in topic.partition_data),
                    )
                    for topic in waiting.request.topic_data
                )
            ),
        )
        return True

    # Fetch.

    def _fetch(self, envelope: Envelope, request: fetch.FetchRequest, now: float) -> None:
        """Respond with what there is, or wait for more (ReplicaManager.fetchMessages)."""
        keys = dict.fromkeys(
            TopicIdPartition(topic.topic_id, partition.partition)
            for topic in request.topics
            for partition in topic.partitions
        )
        waiting = _WaitingFetch(envelope, request, now + request.max_wait_ms / 1000, waits=keys)
        response = self._read_all(request, now, arrived=True, expired=request.max_wait_ms <= 0)
        if response is None:
            self._waiting[next(self._numbers)] = waiting
        else:
            self._answer(envelope, response)

    def _complete_fetch(self, waiting: _WaitingFetch, now: float, *, expired: bool) -> bool:
        response = self._read_all(waiting.request, now, arrived=False, expired=expired)
        if response is None:
            return False
        self._answer(waiting.envelope, response)
        return True

    def _read_all(
        self, request: fetch.FetchRequest, now: float, *, arrived: bool, expired: bool
    ) -> fetch.FetchResponse | None:
        """Read all partitions of a request; return None if it should wait.

        What a follower has is noted once, when its request has `arrived`.
        """
        remaining = request.max_bytes
        size = 0
        urgent = expired
        responses: list[fetch.FetchableTopicResponse] = []
        for topic in request.topics:
            partitions: list[fetch.PartitionData] = []
            for partition in topic.partitions:
                key = TopicIdPartition(topic.topic_id, partition.partition)
                try:
                    read = self._read(
                        key, request, partition, remaining, now, first=size == 0, arrived=arrived
                    )
                except RefusedError as refused:
                    read = _refused_fetch(partition.partition, refused)
                partitions.append(read.data)
                size += read.size_in_bytes
                remaining = max(0, remaining - read.size_in_bytes)
                urgent = urgent or read.urgent
            responses.append(
                fetch.FetchableTopicResponse(topic_id=topic.topic_id, partitions=tuple(partitions))
            )
        if not urgent and size < request.min_bytes and request.topics:
            return None
        return fetch.FetchResponse(responses=tuple(responses))

    def _read(
        self,
        key: TopicIdPartition,
        request: fetch.FetchRequest,
        partition: fetch.FetchPartition,
        remaining: int,
        now: float,
        *,
        first: bool,
        arrived: bool,
    ) -> _Read:
        """Read one partition, and note what the follower has (Partition.fetchRecords)."""
        hosted = self._find(key)
        _check_epoch(key, hosted, partition.current_leader_epoch)
        log = hosted.log
        replica_id = request.replica_state.replica_id
        is_follower = replica_id >= 0
        if is_follower and replica_id not in self._find_leader(key).followers:
            raise RefusedError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica_id} is not a replica of {key} in epoch {hosted.leader_epoch}",
            )
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        data = fetch.PartitionData(
            partition_index=partition.partition,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=log.log_start_offset,
            records=(),
        )
        diverging = _diverging_epoch(log, partition)
        if diverging is not None:
            return _Read(replace(data, diverging_epoch=diverging))
        committed = request.isolation_level == _READ_COMMITTED
        end = log.log_end_offset if is_follower else stable if committed else high_watermark
        offset = partition.fetch_offset
        if end < offset <= log.log_end_offset:
            # Written, but not committed: there is nothing yet that this consumer may see.
            return _Read(data, urgent=False)
        records = log.read(
            offset,
            max_bytes=min(partition.partition_max_bytes, remaining),
            min_one_batch=first,
            end_offset=end,
        )
        if records.batches:
            aborted = log.aborted_transactions(offset, records.upper_bound) if committed else ()
            data = replace(
                data,
                records=tuple(records.batches),
                aborted_transactions=tuple(
                    fetch.AbortedTransaction(
                        producer_id=txn.producer_id, first_offset=txn.first_offset
                    )
                    for txn in aborted
                ),
            )
        if is_follower and arrived:
            self._note_fetch(key, request.replica_state, partition, now)
        return _Read(data, records.size_in_bytes, urgent=False)

    def _note_fetch(
        self,
        key: TopicIdPartition,
        follower: fetch.ReplicaState,
        partition: fetch.FetchPartition,
        now: float,
    ) -> None:
        leader = self._find_leader(key)
        if leader.follower_fetched(
            follower.replica_id,
            follower.replica_epoch,
            partition.fetch_offset,
            partition.log_start_offset,
            image=self._image,
            now=now,
        ):
            self._changed.add(key)
        self._note(key, leader)

    # Offsets.

    def _find_by_name(
        self, topic: str, index: int, leader_epoch: int
    ) -> tuple[_Hosted, LeaderReplica]:
        topic_image = self._image.find_topic(topic)
        if topic_image is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist"
            )
        key = TopicIdPartition(topic_image.topic_id, index)
        hosted = self._find(key)
        _check_epoch(key, hosted, leader_epoch)
        return hosted, self._find_leader(key)

    def _list_offsets(
        self, request: list_offsets.ListOffsetsRequest
    ) -> list_offsets.ListOffsetsResponse:
        """Return where logs begin or end: for a follower the log end, else what is committed."""

        def look_up(
            topic: str, wanted: list_offsets.ListOffsetsPartition
        ) -> list_offsets.ListOffsetsPartitionResponse:
            try:
                hosted, leader = self._find_by_name(
                    topic, wanted.partition_index, wanted.current_leader_epoch
                )
                offset = _offset_for(leader, request, wanted.timestamp)
            except RefusedError as refused:
                return list_offsets.ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=refused.error_code
                )
            return list_offsets.ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index,
                offset=offset,
                leader_epoch=hosted.leader_epoch,
            )

        return list_offsets.ListOffsetsResponse(
            topics=tuple(
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(look_up(topic.name, each) for each in topic.partitions),
                )
                for topic in request.topics
            )
        )

    def _end_offsets(
        self, request: offset_for_leader_epoch.OffsetForLeaderEpochRequest
    ) -> offset_for_leader_epoch.OffsetForLeaderEpochResponse:
        """Return where leader epochs end (Partition.lastOffsetForLeaderEpoch)."""

        def look_up(
            topic: str, wanted: offset_for_leader_epoch.OffsetForLeaderPartition
        ) -> offset_for_leader_epoch.EpochEndOffset:
            try:
                hosted, _ = self._find_by_name(topic, wanted.partition, wanted.current_leader_epoch)
            except RefusedError as refused:
                return offset_for_leader_epoch.EpochEndOffset(
                    partition=wanted.partition, error_code=refused.error_code
                )
            end = hosted.log.end_offset_for_epoch(wanted.leader_epoch)
            if end is None:
                return offset_for_leader_epoch.EpochEndOffset(partition=wanted.partition)
            return offset_for_leader_epoch.EpochEndOffset(
                partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.end_offset
            )

        return offset_for_leader_epoch.OffsetForLeaderEpochResponse(
            topics=tuple(
                offset_for_leader_epoch.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple(look_up(topic.topic, each) for each in topic.partitions),
                )
                for topic in request.topics
            )
        )


def _proposed_partition(
    key: TopicIdPartition, proposal: IsrProposal
) -> alter_partition.AlterPartitionRequestPartition:
    return alter_partition.AlterPartitionRequestPartition(
        partition_index=key.partition,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=tuple(
            alter_partition.BrokerState(broker_id=broker_id, broker_epoch=epoch)
            for broker_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
        ),
        partition_epoch=proposal.partition_epoch,
    )


def _joined(records: bytes | memoryview | Iterable[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(records if isinstance(records, bytes | memoryview) else b"".join(records))


def _refused_produce(index: int, refused: RefusedError) -> produce.PartitionProduceResponse:
    return produce.PartitionProduceResponse(
        index=index,
        error_code=refused.error_code,
        base_offset=_UNKNOWN_OFFSET,
        error_message=refused.message,
    )


def _refused_fetch(index: int, refused: RefusedError) -> _Read:
    return _Read(
        fetch.PartitionData(
            partition_index=index,
            error_code=refused.error_code,
            high_watermark=_UNKNOWN_OFFSET,
            records=(),
        )
    )


def _check_epoch(key: TopicIdPartition, hosted: _Hosted, leader_epoch: int) -> None:
    """Raise RefusedError if a client or follower knows another leader epoch (KIP-320)."""
    if leader_epoch in {NO_LEADER_EPOCH, hosted.leader_epoch}:
        return
    raise RefusedError(
        ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch < hosted.leader_epoch
        else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the request has leader epoch {leader_epoch}, {key} has {hosted.leader_epoch}",
    )


def _diverging_epoch(
    log: PartitionLog, partition: fetch.FetchPartition
) -> fetch.EpochEndOffset | None:
    """Return where the requester's log diverges from this one; None if it does not.

    As Partition.readRecords. Raises RefusedError with OFFSET_OUT_OF_RANGE for an unknown epoch, and
    for an offset before the log start.
    """
    epoch = partition.last_fetched_epoch
    if epoch == NO_LEADER_EPOCH:
        return None
    end = log.end_offset_for_epoch(epoch)
    if end is None:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {epoch} is unknown")
    if partition.fetch_offset < log.log_start_offset:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"the log starts at offset {log.log_start_offset}"
        )
    if end.epoch < epoch or end.end_offset < partition.fetch_offset:
        return fetch.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    return None


def _offset_for(
    leader: LeaderReplica, request: list_offsets.ListOffsetsRequest, timestamp: int
) -> int:
    """Return an offset that ListOffsets asks for without a time.

    Raises RefusedError with OFFSET_NOT_AVAILABLE while the high watermark of a new leader has not
    reached the leader's epoch (KIP-207), and with UNSUPPORTED_VERSION for a time.
    """
    log = leader.log
    if timestamp == list_offsets.EARLIEST_TIMESTAMP:
        return log.log_start_offset
    if timestamp != list_offsets.LATEST_TIMESTAMP:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is not looked up here"
        )
    if request.replica_id >= 0:
        return log.log_end_offset
    if log.high_watermark < leader.epoch_start_offset:
        raise RefusedError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the high watermark is {log.high_watermark}, and the leader's epoch begins at "
            f"{leader.epoch_start_offset}",
        )
    return (
        log.last_stable_offset
        if request.isolation_level == _READ_COMMITTED
        else (log.high_watermark)
    )
