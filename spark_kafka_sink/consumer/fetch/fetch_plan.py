"""Which partitions to fetch next, and from which brokers.

This is AbstractFetch.prepareFetchRequests of Kafka, as values: nothing is sent here. Its rules:

- Each broker gets one Fetch at a time, with all partitions to read from it.
- A partition is read from its leader, or from the follower that the leader has recommended
  (KIP-392), as long as the metadata know the follower.
- Partitions whose records wait in the buffer are not fetched. Nor are the others of the same
  broker: a request without the waiting ones would remove them from the fetch session, or make the
  broker drop it (KAFKA-17182). Waiting partitions that cannot be returned now, because they are
  paused for example, do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.consumer.fetch.fetch_sessions import PartitionToFetch
from spark_kafka_sink.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition
    from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
    from spark_kafka_sink.model import Node, TopicPartition
    from spark_kafka_sink.network.cluster.metadata import MetadataSnapshot


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
