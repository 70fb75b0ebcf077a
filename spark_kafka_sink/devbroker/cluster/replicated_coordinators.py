"""The coordinators of one broker in a cluster that replicates.

Their state is in the partitions of `__consumer_offsets` and `__transaction_state`, which are topics
like others. A broker coordinates what is in the partitions that it leads: it loads them when it
begins to lead, and forgets them when it does not any more. Loading takes no time here.

A write is applied at once, and the response waits until it is replicated (`take_writes`). If the
broker stops leading before that, the next coordinator may not have it, and neither has this one,
which has forgotten the partition.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import (
    COORDINATED_TOPICS,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER, TopicIdPartition
from spark_kafka_sink.errors import CorruptRecordError, DecodeError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import write_txn_markers as wire
from spark_kafka_sink.record.record_batch import decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState, OnMarkers
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.log.log_manager import LogManager
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.envelope import Response
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta

logger = logging.getLogger(__name__)

_ALL_ACKS = -1


class CoordinatorWrite(NamedTuple):
    """A write that the followers may not have yet."""

    key: TopicIdPartition
    end_offset: int
    term: int


class ReplicatedCoordinatorLog(CoordinatorLog):
    """The partitions of one internal topic that this broker leads."""

    def __init__(self, logs: LogManager, topic: str, node: BrokerNode) -> None:
        """Write to the replicas of a broker, which are among its `logs`."""
        super().__init__(logs, topic, lambda _: 0)
        self._node = node
        #: What was written since the owner has looked.
        self.writes: list[CoordinatorWrite] = []

    @property
    def is_durable(self) -> bool:
        """Whether the log stores anything at all."""
        return True

    def key(self, index: int) -> TopicIdPartition:
        """Return the id of a partition. Raises RefusedError if the topic does not exist."""
        topic = self._node.image.find_topic(self.topic)
        if topic is None:
            raise RefusedError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"topic {self.topic} does not exist yet"
            )
        return TopicIdPartition(topic.topic_id, index)

    def key_of(self, name: str) -> TopicIdPartition:
        """Return the partition of a group or transactional id. Raises RefusedError as `key`."""
        return self.key(coordinator_partition(name))

    def leader(self, index: int) -> int:
        """Return the broker that leads a partition, -1 for none."""
        topic = self._node.image.find_topic(self.topic)
        partition = None if topic is None else topic.partitions.get(index)
        return NO_LEADER if partition is None else partition.leader

    def partition(self, index: int) -> PartitionLog:
        """Return the log of a partition. Raises RefusedError if this broker has no replica."""
        return self._node.replicas.find(self.key(index)).log

    def _append(self, index: int, batch: memoryview, now_ms: int) -> None:
        key = self.key(index)
        appended = self._node.replicas.append(
            key,
            batch,
            decode_header(batch),
            acks=_ALL_ACKS,
            now=now_ms / 1000,
            from_coordinator=True,
        )
        self._written(key, appended.last_offset + 1)

    def append_marker(self, index: int, marker: TransactionMarker) -> None:
        """Append the marker that ends a producer's transaction.

        Raises RefusedError as `ReplicaManager.append_marker`.
        """
        key = self.key(index)
        offset = self._node.replicas.append_marker(key, marker, marker.timestamp / 1000)
        self._written(key, offset + 1)

    def _written(self, key: TopicIdPartition, end_offset: int) -> None:
        term = self._node.replicas.find(key).term
        self.writes.append(CoordinatorWrite(key, end_offset, term))

    def last_write(self, index: int) -> CoordinatorWrite:
        """Return what has been written so far to a partition that this broker leads."""
        replica = self._node.replicas.find(self.key(index))
        return CoordinatorWrite(replica.key, replica.log.log_end_offset, replica.term)


@dataclass(slots=True, eq=False)
class _Markers:
    """The markers of a transaction, from its decision on until all partitions have them."""

    #: The decision: markers are sent once it is replicated.
    decided: CoordinatorWrite
    partitions: Collection[TopicPartition]
    marker: TransactionMarker
    written: OnMarkers
    refusals: dict[TopicPartition, RefusedError] = field(default_factory=dict)
    #: How many requests have no response yet.
    in_flight: int = 0


class ReplicatedCoordinators:
    """Loads and unloads the coordinators of a broker, and sends the markers of transactions."""

    def __init__(self, cluster: ClusterState, node: BrokerNode) -> None:
        """Begin without partitions; `cluster` has the coordinators, which use `logs`."""
        self._cluster = cluster
        self._node = node
        self.logs = {
            name: ReplicatedCoordinatorLog(cluster.logs, name, node) for name in COORDINATED_TOPICS
        }
        self._loaded: dict[str, set[int]] = {name: set() for name in COORDINATED_TOPICS}
        self._markers: list[_Markers] = []

    def is_loaded(self, topic: str, key: str) -> bool:
        """Return whether this broker coordinates a group or transactional id."""
        return coordinator_partition(key) in self._loaded[topic]

    def leader(self, topic: str, key: str) -> int:
        """Return the broker that coordinates a group or transactional id, -1 for none."""
        return self.logs[topic].leader(coordinator_partition(key))

    def take_writes(self) -> list[CoordinatorWrite]:
        """Return what was written since the last call."""
        writes: list[CoordinatorWrite] = []
        for log in self.logs.values():
            if log.writes:
                writes += log.writes
                log.writes = []
        return writes

    # Leadership.

    def apply(self, delta: MetadataDelta, now: float) -> None:
        """Load the partitions that this broker leads now, and unload the others."""
        for topic in delta.deleted_topics.values():
            if topic.name in COORDINATED_TOPICS:
                for index in list(self._loaded[topic.name]):
                    self._unload(topic.name, index)
        image = self._node.image
        for key in delta.partitions:
            name = image.topics[key.topic_id].name
            if name not in COORDINATED_TOPICS:
                continue
            partition = image.find_partition(key)
            leads = partition is not None and partition.leader == self._node.node_id
            if not leads:
                self._unload(name, key.partition)
            elif key.partition not in self._loaded[name]:
                self._load(name, key.partition, now)

    def _load(self, topic: str, index: int, now: float) -> None:
        self._loaded[topic].add(index)
        try:
            if topic == GROUP_METADATA_TOPIC:
                self._cluster.groups.load_partition(index, self._cluster.topic_index.names, now)
            else:
                self._cluster.transactions.load_partition(index, now)
        except (CorruptRecordError, DecodeError, RefusedError) as error:
            # As in Kafka, nothing is coordinated then until another broker leads.
            logger.warning("cannot load %s-%d: %s", topic, index, error)
            self._unload(topic, index)

    def _unload(self, topic: str, index: int) -> None:
        if index not in self._loaded[topic]:
            return
        self._loaded[topic].discard(index)
        if topic == GROUP_METADATA_TOPIC:
            self._cluster.groups.unload_partition(index)
        else:
            self._cluster.transactions.unload_partition(index)

    # Markers (TransactionMarkerChannelManager).

    def write_markers(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        written: OnMarkers,
    ) -> None:
        """Write a transaction's markers once its end is replicated; then call `written`."""
        log = self.logs[TRANSACTION_STATE_TOPIC]
        decided = log.last_write(coordinator_partition(transactional_id))
        self._markers.append(_Markers(decided, partitions, marker, written))

    def send_markers(self, now: float) -> None:
        """Send the markers of the transactions whose end is replicated by now."""
        waiting, self._markers = self._markers, []
        for markers in waiting:
            code = self._node.replicas.check_replicated(*markers.decided)
            if code is None:
                self._markers.append(markers)
            elif code is ErrorCode.NONE:
                self._send(markers, now)
            # Otherwise this broker has lost the partition, and its next leader goes on.

    def _send(self, markers: _Markers, now: float) -> None:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic_partition in markers.partitions:
            # A partition that was deleted meanwhile needs none.
            if self._cluster.has(topic_partition):
                by_leader[self._cluster.leader(topic_partition)].append(topic_partition)
        for leaderless in by_leader.pop(NO_LEADER, ()):
            markers.refusals[leaderless] = RefusedError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{leaderless} has no leader"
            )
        if not by_leader:
            markers.written(markers.refusals, now)
            return
        markers.in_flight = len(by_leader)
        for leader, partitions in by_leader.items():
            request = _request(markers.marker, partitions)
            self._node.peers.ask(leader, request, _on_response(markers, partitions), now)


def _request(
    marker: TransactionMarker, partitions: Iterable[TopicPartition]
) -> wire.WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = defaultdict(list)
    for name, index in partitions:
        topics[name].append(index)
    return wire.WriteTxnMarkersRequest(
        markers=(
            wire.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.committed,
                topics=tuple(
                    wire.WritableTxnMarkerTopic(name=name, partition_indexes=tuple(indexes))
                    for name, indexes in topics.items()
                ),
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            ),
        )
    )


def _on_response(
    markers: _Markers, partitions: Collection[TopicPartition]
) -> Callable[[Response | None, float], None]:
    def handle(response: Response | None, now: float) -> None:
        codes = dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if isinstance(response, wire.WriteTxnMarkersResponse):
            codes = {
                TopicPartition(topic.name, result.partition_index): ErrorCode(result.error_code)
                for marker in response.markers
                for topic in marker.topics
                for result in topic.partitions
            }
        for topic_partition, code in codes.items():
            if code is not ErrorCode.NONE:
                markers.refusals[topic_partition] = RefusedError(
                    code, f"{topic_partition}: {code.name}"
                )
        markers.in_flight -= 1
        if not markers.in_flight:
            markers.written(markers.refusals, now)

    return handle
