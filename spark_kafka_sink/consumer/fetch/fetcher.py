"""Fetching ahead for a consumer (Kafka's AbstractFetch).

`plan_fetches` decides what to fetch, and a `FetchSession` per broker writes the request. Answers
wait in the buffer until the user's thread takes them. The rules of the plan:

- Each broker gets one Fetch at a time, with all partitions to read from it.
- A partition is read from its leader, or from the follower that the leader has recommended
  (KIP-392), as long as the metadata know the follower.
- Partitions whose records wait in the buffer are not fetched. Nor are the others of the same
  broker: a request without the waiting ones would remove them from the fetch session, or make the
  broker drop it (KAFKA-17182). Waiting partitions that cannot be returned now, because they are
  paused for example, do not count.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.consumer.fetch.completed_fetches import (
    CompletedFetch,
    FetchBuffer,
    FetchOutcome,
    initialize,
)
from spark_kafka_sink.consumer.fetch.fetch_sessions import (
    FetchSession,
    PartitionToFetch,
    build_fetch,
    has_topic_ids,
    named_leaders,
    named_nodes,
    read_fetch,
)
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import NO_LEADER_EPOCH, Node, TopicPartition
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Container, Mapping
    from uuid import UUID

    from spark_kafka_sink.consumer.consumer_context import ConsumerContext
    from spark_kafka_sink.consumer.consumer_metrics import FetchedTotals
    from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.network.connection.broker_connection import BrokerConnection
    from spark_kafka_sink.network.metadata import MetadataSnapshot
    from spark_kafka_sink.protocol.messages.fetch import FetchResponse, PartitionData

logger = logging.getLogger(__name__)


class FetchPlan(NamedTuple):
    """The requests to send now."""

    #: The partitions to fetch from each broker, in the order of fetching.
    requests: Mapping[Node, Mapping[TopicPartition, PartitionToFetch]]
    #: Whether to request metadata: a leader or a follower is not known.
    needs_metadata: bool


def plan_fetches(
    subscriptions: SubscriptionState,
    snapshot: MetadataSnapshot,
    now: float,
    *,
    is_unavailable: Callable[[Node], bool],
    in_flight: Container[int],
    buffered: Collection[TopicPartition],
    max_partition_bytes: int,
) -> FetchPlan:
    """Plan the requests; followers that the metadata do not know are no longer preferred.

    `now` is in seconds. `is_unavailable` returns whether a broker is in the back-off before a
    reconnection; its errors, such as a failed authentication, are raised. `in_flight` has the ids
    of brokers with a Fetch in flight, and `buffered` are the partitions of the buffer.
    `max_partition_bytes` is max.partition.fetch.bytes.

    Source: AbstractFetch.prepareFetchRequests.
    """
    choice = _NodeChoice(subscriptions, snapshot, now)
    fetchable = subscriptions.fetchable_partitions(lambda partition: partition not in buffered)
    if not fetchable:
        return FetchPlan({}, needs_metadata=False)
    busy = {
        node.node_id
        for partition in buffered
        if subscriptions.is_fetchable(partition)
        if (position := subscriptions.position(partition)) is not None
        if (node := choice.node_for(partition, position)) is not None
    }
    requests: dict[Node, dict[TopicPartition, PartitionToFetch]] = {}
    # The same by the id of the broker; None for those that are skipped.
    by_id: dict[int, dict[TopicPartition, PartitionToFetch] | None] = {}
    for partition, position in fetchable:
        node = choice.node_for(partition, position)
        if node is None:
            continue
        if node.node_id not in by_id:
            is_skipped = is_unavailable(node) or node.node_id in in_flight or node.node_id in busy
            by_id[node.node_id] = None if is_skipped else requests.setdefault(node, {})
        request = by_id[node.node_id]
        if request is not None:
            request[partition] = PartitionToFetch(
                topic_id=snapshot.topic_id(partition.topic),
                offset=position.offset,
                leader_epoch=position.current_leader.epoch,
                # As in Java: truncation is found by validating positions (KIP-320) instead.
                last_fetched_epoch=NO_LEADER_EPOCH,
                max_bytes=max_partition_bytes,
            )
    return FetchPlan(requests, choice.needs_metadata)


class _NodeChoice:
    """The brokers from which partitions are read."""

    def __init__(
        self, subscriptions: SubscriptionState, snapshot: MetadataSnapshot, now: float
    ) -> None:
        self._subscriptions = subscriptions
        self._nodes = snapshot.nodes
        self._now = now
        self.needs_metadata = False

    def node_for(self, partition: TopicPartition, position: FetchPosition) -> Node | None:
        """Return the broker to read a partition from; None if it is not known.

        Source: AbstractFetch.maybeNodeForPosition and selectReadReplica.
        """
        leader = position.current_leader.leader
        if leader is None:
            self.needs_metadata = True
            return None
        replica_id = self._subscriptions.preferred_read_replica(partition, self._now)
        if replica_id is not None:
            replica = self._nodes.get(replica_id)
            if replica is not None:
                return replica
            self._subscriptions.clear_preferred_read_replica(partition)
            self.needs_metadata = True
        # Its address may have changed; a broker gets one request, whichever partitions are read.
        return self._nodes.get(leader.node_id, leader)


class Fetcher:
    """The fetches of one consumer; `advance` is called on the network thread, under the lock."""

    def __init__(self, context: ConsumerContext) -> None:
        self._context = context
        config = context.config
        self._is_committed = config.is_read_committed
        self._replica_lease = config.metadata_max_age_ms / 1000
        self._reset_backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self.buffer = FetchBuffer()
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: set[int] = set()
        #: When a broker may be asked again after a failure, by its id.
        self._ready_at: dict[int, float] = {}
        #: The last refusal of each broker that `poll` has raised.
        self._raised: dict[int, KafkaError] = {}

    def advance(self, now: float) -> float:
        """Send what is due at `now`, and return when to call again."""
        context = self._context
        client = context.client
        context.measures.fetches.assignment_changed(
            context.subscriptions.assignment_id, lambda: context.subscriptions.assigned_partitions
        )
        self.buffer.drop_other_topics(client.metadata.snapshot)
        waits = [NEVER]
        refusals: dict[int, KafkaError] = {}

        def is_unavailable(node: Node) -> bool:
            ready_at = max(client.ready_at(node), self._ready_at.get(node.node_id, 0.0))
            if ready_at > now:
                waits.append(ready_at)
                refusal = client.refusal_of(node)
                if refusal is not None:
                    refusals[node.node_id] = refusal
            return ready_at > now

        plan = plan_fetches(
            context.subscriptions,
            client.metadata.snapshot,
            now,
            is_unavailable=is_unavailable,
            in_flight=self._in_flight,
            buffered=self.buffer.buffered,
            max_partition_bytes=context.config.max_partition_fetch_bytes,
        )
        if plan.needs_metadata:
            client.metadata.request_update()
        for node, partitions in plan.requests.items():
            connection = client.ready_connection(node)
            if connection is not None:
                self._send(node, connection, partitions)
        for node_id, refusal in refusals.items():
            # Each attempt's is raised once, so that records of other brokers are returned, too.
            if refusal is not self._raised.get(node_id):
                self._raised[node_id] = refusal
                context.fail(refusal)
        return min(waits)

    def _send(
        self,
        node: Node,
        connection: BrokerConnection,
        partitions: Mapping[TopicPartition, PartitionToFetch],
    ) -> None:
        context = self._context
        config = context.config
        session = self._sessions.setdefault(node.node_id, FetchSession())
        try:
            request, version = build_fetch(
                session.next_request(
                    partitions, uses_topic_ids=has_topic_ids(connection.api_versions)
                ),
                connection.api_versions,
                is_committed=self._is_committed,
                max_bytes=config.fetch_max_bytes,
                min_bytes=config.fetch_min_bytes,
                max_wait_ms=config.fetch_max_wait_ms,
                rack=config.client_rack,
            )
            connection.send(
                request,
                max_version=version,
                on_done=partial(self._on_done, node, session, dict(partitions)),
            )
        except KafkaError as error:
            session.failed()
            self._pause(node)
            if not error.retriable:
                context.fail(error)
        else:
            self._in_flight.add(node.node_id)

    def _pause(self, node: Node) -> None:
        pause = self._context.config.retry_backoff_ms / 1000
        self._ready_at[node.node_id] = self._context.clock() + pause

    def _on_done(
        self,
        node: Node,
        session: FetchSession,
        partitions: dict[TopicPartition, PartitionToFetch],
        answer: asyncio.Future[FetchResponse],
    ) -> None:
        context = self._context
        with context.lock:
            self._in_flight.discard(node.node_id)
            before = len(self.buffer)
            if answer.cancelled() or answer.exception() is not None:
                self._failed(node, session, partitions)
            else:
                self._answered(node, session, partitions, answer.result())
            if len(self.buffer) == before or not self.buffer.has_available(context.subscriptions):
                # Otherwise nothing more is fetched from this broker before the user's thread has
                # taken what there is, which it can do sooner if this one does not go on.
                context.wake()

    def _failed(
        self,
        node: Node,
        session: FetchSession,
        partitions: Mapping[TopicPartition, PartitionToFetch],
    ) -> None:
        """Handle a request without an answer (AbstractFetch.handleFetchFailure)."""
        session.failed()
        self._pause(node)
        self._context.client.metadata.request_update()
        for partition in partitions:
            self._context.subscriptions.clear_preferred_read_replica(partition)

    def _answered(
        self,
        node: Node,
        session: FetchSession,
        partitions: Mapping[TopicPartition, PartitionToFetch],
        response: FetchResponse,
    ) -> None:
        names: dict[UUID, str] = {
            to_fetch.topic_id: partition.topic for partition, to_fetch in partitions.items()
        }
        if not session.answered(response, names):
            logger.info("Fetch at %s: %s; a new session begins", node, session.problem)
            if response.error_code:
                self._context.client.metadata.request_update()
            if response.error_code or not response.throttle_time_ms:
                # Otherwise the connection is throttled, and waits longer or not as long.
                self._pause(node)
            return
        answers = read_fetch(response, names)
        leaders = named_leaders(answers)
        if leaders:
            self._context.client.metadata.update_leaders(leaders, named_nodes(response))
        requested = {
            partition: data for partition, data in answers.items() if partition in partitions
        }
        totals = self._context.measures.fetches.answered(requested)
        for partition, data in requested.items():
            self._arrived(node, partition, data, partitions[partition], totals)

    def _arrived(
        self,
        node: Node,
        partition: TopicPartition,
        data: PartitionData,
        to_fetch: PartitionToFetch,
        totals: FetchedTotals,
    ) -> None:
        context = self._context
        snapshot = context.client.metadata.snapshot
        known = snapshot.partition(partition)
        fetch = CompletedFetch(
            partition,
            data,
            to_fetch.offset,
            f"Fetch from offset {to_fetch.offset} at {node}",
            is_replica=known is not None and known.leader_id != node.node_id,
            topic_id=to_fetch.topic_id,
            totals=totals,
        )
        if fetch.is_of_other_topic(snapshot):
            fetch.drain()
        elif data.error_code or len(fetch.records):
            self.buffer.add(fetch)
            context.note_change()
        else:
            # Nothing that could concern the user: the end of the log, as far as it is known.
            self.apply(fetch)
            fetch.drain()

    def apply(self, fetch: CompletedFetch) -> bool:
        """Apply what a fetch says; return whether its records can be read. Needs the lock.

        Raises BrokerError and CorruptRecordError for what no retry mends.
        """
        context = self._context
        outcome = initialize(
            fetch,
            context.subscriptions,
            context.clock(),
            replica_lease=self._replica_lease,
            backoff=self._reset_backoff,
        )
        if outcome is FetchOutcome.REFRESH:
            context.client.metadata.request_update()
        if outcome in {FetchOutcome.REFRESH, FetchOutcome.RETRY}:
            leader = context.client.metadata.snapshot.leader_of(fetch.partition)
            if leader is not None:
                self._pause(leader)
        return outcome is FetchOutcome.READ

    async def close(self) -> None:
        """Close the sessions, without waiting for the answers."""
        for node_id, session in self._sessions.items():
            request = session.close_request()
            node = self._context.client.metadata.snapshot.nodes.get(node_id)
            connection = None if node is None else self._context.client.ready_connection(node)
            if request is not None and connection is not None and node_id not in self._in_flight:
                fetch, version = build_fetch(
                    request,
                    connection.api_versions,
                    is_committed=self._is_committed,
                    max_bytes=0,
                    min_bytes=0,
                    max_wait_ms=0,
                    rack="",
                )
                connection.send(fetch, max_version=version, on_done=_ignore)


def _ignore(answer: asyncio.Future[FetchResponse]) -> None:
    """Retrieve the error, which does not matter, so that it is not logged."""
    if not answer.cancelled():
        answer.exception()
