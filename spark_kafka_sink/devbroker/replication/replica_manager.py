"""The replicas of one broker: what it leads, what it follows, and who waits (ReplicaManager).

Metadata decide the roles (`apply`). Messages of other brokers come in by `handle`: the fetches of
followers, and the responses to what this one has asked; what must be sent goes out as the result of
each call. It never reads a clock, a socket or another broker's state: a broker alone on one side of
a cut goes on as it knows.

A follower's fetch for which there are too few bytes is kept as data. It is looked at again when
something has changed at one of its partitions, and answered anyway when its time is up.

The requests of clients are those of the handlers: they `append` and read, and ask again when
`take_changed` names a partition that they wait for. What is to be sent because of that, `collect`
returns.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.server_config import topic_values
from spark_kafka_sink.devbroker.base.timers import NEVER
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig, without_controllers
from spark_kafka_sink.devbroker.metadata.envelope import CONTROLLER, Envelope
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    NO_LEADER,
    TOPIC_RESOURCE,
    ConfigResource,
    PartitionRecord,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.replication.follower_fetcher import (
    FollowerFetcher,
    ReplicationSettings,
)
from spark_kafka_sink.devbroker.replication.leader_replica import (
    IsrProposal,
    LeaderReplica,
)
from spark_kafka_sink.devbroker.replication.replica import Replica, diverging_epoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    alter_partition,
    fetch,
    list_offsets,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterator, Mapping

    from spark_kafka_sink.devbroker.log.partition_log import AppendResult, PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.envelope import Request, Response
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage
    from spark_kafka_sink.protocol.schema import AnyRequest, ApiResponse
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

_UNKNOWN_OFFSET = -1
#: How long to wait before the controller is asked again.
_CONTROLLER_BACKOFF = 0.05


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
class _WaitingFetch:
    """The fetch of a follower for which there was too little to read (DelayedFetch)."""

    envelope: Envelope
    request: fetch.FetchRequest
    deadline: float
    waits: dict[TopicIdPartition, None]


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
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._fetchers: dict[int, FollowerFetcher] = {}
        self._waiting: dict[int, _WaitingFetch] = {}
        #: Where something has changed since waiting requests were looked at.
        self._changed: set[TopicIdPartition] = set()
        self._news: set[TopicIdPartition] = set()
        self._numbers = itertools.count() if numbers is None else numbers
        #: The fetchers by the correlation ids of their requests in flight.
        self._fetching: dict[int, FollowerFetcher] = {}
        #: The leaders that have a proposal to send.
        self._proposing: dict[TopicIdPartition, None] = {}
        self._proposed: dict[TopicIdPartition, IsrProposal] = {}
        self._proposal_id: int | None = None
        self._proposal_expires_at = NEVER
        self._propose_at = 0.0
        self._next_isr_check = 0.0
        self._next_checkpoint = 0.0
        self._outgoing: list[Envelope] = []

    # What the owner may look at.

    def log(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Return the log of a replica, if this broker has one."""
        replica = self._replicas.get(partition)
        return None if replica is None else replica.log

    def leader(self, partition: TopicIdPartition) -> LeaderReplica | None:
        """Return the leader of a partition, if this broker believes to lead it."""
        replica = self._replicas.get(partition)
        return None if replica is None else replica.leader

    @property
    def deadline(self) -> float:
        """When `tick` must be called at the latest, if nothing happens before."""
        return min(
            self._next_isr_check,
            self._next_checkpoint,
            self._proposal_expires_at,
            self._propose_at if self._proposing and self._proposal_id is None else NEVER,
            min((each.deadline for each in self._fetchers.values()), default=NEVER),
            min((each.deadline for each in self._waiting.values()), default=NEVER),
        )

    # Metadata.

    def registered(self, broker_epoch: int) -> None:
        """Continue with the epoch that the controller has given this broker."""
        self._broker_epoch = broker_epoch
        for replica in self._replicas.values():
            if replica.leader is not None:
                replica.leader.broker_epoch = broker_epoch

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
        all_changed = any(each.resource_type == BROKER_RESOURCE for each in delta.configs)
        for replica in self._replicas.values():
            if all_changed or replica.topic in changed:
                replica.log.config = self.topic_config(replica.topic)
        return self._finish(now)

    def topic_config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic, with the defaults of this broker."""
        values = self._image.topic_config(topic)
        return self.topic_defaults.with_values(without_controllers(values))

    @property
    def topic_defaults(self) -> TopicConfig:
        """The defaults of topics on this broker: those of its file, and what was changed since."""
        defaults = self._topic_defaults
        for name in ("", str(self.node_id)):
            values = self._image.config(ConfigResource(BROKER_RESOURCE, name))
            if values:
                defaults = defaults.with_values(topic_values(values))
        return defaults

    def _take_role(self, key: TopicIdPartition, partition: PartitionRecord, now: float) -> None:
        replica = self._replicas.get(key)
        if replica is None:
            topic = self._image.topics[key.topic_id].name
            log = self._logs.open(key, topic, self.topic_config(topic))
            log.begin_replication(self._logs.high_watermark(key))
            replica = self._replicas[key] = Replica(key, topic, log)
        if partition.leader == self.node_id:
            self._lead(key, replica, partition, now)
        elif (partition.leader, partition.leader_epoch) != (
            replica.leader_id,
            replica.leader_epoch,
        ):
            self._follow(key, replica, partition)
        replica.leader_id = partition.leader
        replica.leader_epoch = partition.leader_epoch

    def _lead(
        self, key: TopicIdPartition, replica: Replica, partition: PartitionRecord, now: float
    ) -> None:
        if replica.leader is None:
            self._stop_fetching(key, replica)
            replica.term = next(self._numbers)
            replica.leader = LeaderReplica(
                self.node_id,
                self._broker_epoch,
                replica.log,
                max_lag=self._settings.replica_lag_time_max,
            )
        replica.leader.lead(partition, self._image, now)
        self._changed.add(key)

    def _follow(self, key: TopicIdPartition, replica: Replica, partition: PartitionRecord) -> None:
        self._stop_fetching(key, replica)
        replica.leader = None
        self._proposing.pop(key, None)
        self._changed.add(key)
        # Epochs that this replica began as a leader and in which it has written nothing.
        replica.log.truncate_as_follower(replica.log.log_end_offset, 0)
        if partition.leader != NO_LEADER:
            fetcher = self._fetchers.get(partition.leader)
            if fetcher is None:
                fetcher = FollowerFetcher(self.node_id, self._settings, self._logs.truncated)
                self._fetchers[partition.leader] = fetcher
            fetcher.follow(key, replica.topic, replica.log, partition.leader_epoch)

    def _stop_fetching(self, key: TopicIdPartition, replica: Replica) -> None:
        fetcher = self._fetchers.get(replica.leader_id)
        if fetcher is not None:
            fetcher.stop(key)

    def _stop(self, key: TopicIdPartition) -> None:
        """Delete a replica that this broker is not to have any more."""
        replica = self._replicas.pop(key, None)
        if replica is not None:
            self._stop_fetching(key, replica)
            self._proposing.pop(key, None)
            self._changed.add(key)
            self._logs.delete(key)

    # Messages and time.

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Handle a message; return what to send because of it."""
        match envelope.message:
            case fetch.FetchRequest() as request:
                self._fetch(envelope, request, now)
            case list_offsets.ListOffsetsRequest() as request:
                self._answer(envelope, self._list_offsets(request))
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
        self._logs.remove_others(self._replicas.keys())

    def checkpoint(self) -> None:
        """Store the high watermarks; also done by an orderly shutdown.

        Without replicas those of the last process remain, which this one may not have read yet
        (ReplicaManager.checkpointHighWatermarks).
        """
        if self._replicas:
            self._logs.store_high_watermarks(
                {key: replica.log.high_watermark for key, replica in self._replicas.items()}
            )

    def _check_isr(self, now: float) -> None:
        for key, replica in self._replicas.items():
            leader = replica.leader
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
            self._news |= changed
            for number, waiting in list(self._waiting.items()):
                if not changed.isdisjoint(waiting.waits) and self._complete(waiting, now):
                    del self._waiting[number]
        self._send_proposals(now)
        self._send_fetches(now)
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

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
            leader = self._replicas[key].leader
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
        self._proposal_expires_at = NEVER
        self._propose_at = now + backoff

    # What tests ask.

    def pause(self, key: TopicIdPartition) -> None:
        """Stop fetching a partition that this broker follows, until `resume` or a new role."""
        replica = self._replicas.get(key)
        if replica is not None:
            self._stop_fetching(key, replica)

    def resume(self, key: TopicIdPartition) -> None:
        """Fetch a partition again that this broker follows."""
        replica = self._replicas.get(key)
        partition = self._image.find_partition(key)
        if replica is not None and partition is not None and replica.leader is None:
            self._follow(key, replica, partition)

    def drop_from_isr(self, key: TopicIdPartition, node_id: int) -> None:
        """Remove a follower from the ISR, as if it had not caught up for too long."""
        leader = self.leader(key)
        if leader is not None:
            leader.drop_from_isr(node_id)
            self._note(key, leader)

    # What the handlers of this broker ask.

    def find(self, key: TopicIdPartition) -> Replica:
        """Return a replica of this broker.

        Raises RefusedError with UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, or
        NOT_LEADER_OR_FOLLOWER if other brokers have the partition.
        """
        replica = self._replicas.get(key)
        if replica is not None:
            return replica
        topic = self._image.topics.get(key.topic_id)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif key.partition not in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise RefusedError(code, f"broker {self.node_id} does not have {key}")

    def append(
        self,
        key: TopicIdPartition,
        batch: memoryview,
        header: RecordBatchHeader,
        *,
        acks: int,
        now: float,
        from_coordinator: bool = False,
    ) -> AppendResult:
        """Append a validated batch to a partition that this broker leads.

        Raises RefusedError as `find`, `Replica.as_leader` and `LeaderReplica.append`.
        """
        leader = self.find(key).as_leader()
        appended = leader.append(
            batch, header, acks=acks, now_ms=int(now * 1000), from_coordinator=from_coordinator
        )
        self._appended(key, leader, now)
        return appended

    def append_marker(self, key: TopicIdPartition, marker: TransactionMarker, now: float) -> int:
        """Append a transaction marker to a partition that this broker leads; return its offset.

        Raises RefusedError as `find`, `Replica.as_leader` and `PartitionLog.append_marker`.
        """
        leader = self.find(key).as_leader()
        offset = leader.append_marker(marker)
        self._appended(key, leader, now)
        return offset

    def _appended(self, key: TopicIdPartition, leader: LeaderReplica, now: float) -> None:
        leader.maybe_increment_high_watermark(self._image, now)
        self._changed.add(key)

    def check_replicated(
        self, key: TopicIdPartition, end_offset: int, term: int
    ) -> ErrorCode | None:
        """Return the outcome of an acks=all write that ends before an offset; None to wait.

        `term` is that of the replica when it was written. After another one the records may be
        lost, even if this broker leads again.
        """
        replica = self._replicas.get(key)
        if replica is None or replica.leader is None or replica.term != term:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return replica.leader.check_replicated(end_offset)

    def low_watermark(self, key: TopicIdPartition) -> int:
        """Return the lowest log start; see `Replica.low_watermark`. Raises RefusedError."""
        return self.find(key).low_watermark(self._image)

    def closest_follower(self, key: TopicIdPartition, rack: str, fetch_offset: int) -> int | None:
        """Return the follower to fetch from; see `Replica.closest_follower`."""
        return self.find(key).closest_follower(rack, fetch_offset, self._image)

    def take_changed(self) -> set[TopicIdPartition]:
        """Return the partitions that have changed since the last call, for requests that wait."""
        news, self._news = self._news, set()
        return news

    def collect(self, now: float) -> list[Envelope]:
        """Return what to send because of what handlers have done."""
        return self._finish(now)

    # The fetches of followers.

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

    def _complete(self, waiting: _WaitingFetch, now: float, *, expired: bool = False) -> bool:
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
        self._note_sent(request.replica_state.replica_id, responses)
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
        replica = self.find(key)
        replica.check_epoch(partition.current_leader_epoch)
        follower_id = request.replica_state.replica_id
        leader = replica.as_leader()
        if follower_id not in leader.followers:
            raise RefusedError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {follower_id} is not a replica of {key} in epoch {replica.leader_epoch}",
            )
        log = replica.log
        data = fetch.PartitionData(
            partition_index=partition.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            records=(),
        )
        diverging = diverging_epoch(log, partition, log.log_end_offset)
        if diverging is not None:
            return _Read(replace(data, diverging_epoch=diverging))
        records = log.read(
            partition.fetch_offset,
            max_bytes=min(partition.partition_max_bytes, remaining),
            min_one_batch=first,
        )
        if records.batches:
            data = replace(data, records=tuple(records.batches))
        if arrived:
            self._note_fetch(key, leader, request.replica_state, partition, now)
        urgent = self._settings.serves_consumers and (
            leader.followers[follower_id].sent_high_watermark < log.high_watermark
        )
        return _Read(data, records.size_in_bytes, urgent=urgent)

    def _note_sent(self, follower_id: int, responses: list[fetch.FetchableTopicResponse]) -> None:
        """Record the high watermarks that a follower is sent."""
        for topic in responses:
            for data in topic.partitions:
                leader = self.leader(TopicIdPartition(topic.topic_id, data.partition_index))
                if leader is not None and follower_id in leader.followers:
                    follower = leader.followers[follower_id]
                    follower.sent_high_watermark = data.high_watermark

    def _note_fetch(
        self,
        key: TopicIdPartition,
        leader: LeaderReplica,
        follower: fetch.ReplicaState,
        partition: fetch.FetchPartition,
        now: float,
    ) -> None:
        before = leader.followers[follower.replica_id].log_start_offset
        if (
            leader.follower_fetched(
                follower.replica_id,
                follower.replica_epoch,
                partition.fetch_offset,
                partition.log_start_offset,
                image=self._image,
                now=now,
            )
            or partition.log_start_offset != before
        ):
            self._changed.add(key)
        self._note(key, leader)

    def _list_offsets(
        self, request: list_offsets.ListOffsetsRequest
    ) -> list_offsets.ListOffsetsResponse:
        """Return where the logs that a follower asks for begin or end."""

        def look_up(
            topic: str, wanted: list_offsets.ListOffsetsPartition
        ) -> list_offsets.ListOffsetsPartitionResponse:
            try:
                replica = self._find_by_name(topic, wanted.partition_index)
                replica.check_epoch(wanted.current_leader_epoch)
                log = replica.as_leader().log
            except RefusedError as refused:
                return list_offsets.ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=refused.error_code
                )
            begins = wanted.timestamp == list_offsets.EARLIEST_TIMESTAMP
            return list_offsets.ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index,
                offset=log.log_start_offset if begins else log.log_end_offset,
                leader_epoch=replica.leader_epoch,
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

    def _find_by_name(self, topic: str, index: int) -> Replica:
        topic_image = self._image.find_topic(topic)
        if topic_image is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist"
            )
        return self.find(TopicIdPartition(topic_image.topic_id, index))


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


def _refused_fetch(index: int, refused: RefusedError) -> _Read:
    return _Read(
        fetch.PartitionData(
            partition_index=index,
            error_code=refused.error_code,
            high_watermark=_UNKNOWN_OFFSET,
            records=(),
        )
    )
