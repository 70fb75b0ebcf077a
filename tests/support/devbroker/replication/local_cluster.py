"""A cluster of brokers that replicate with Kafka's own times, on a clock that a test moves."""

from __future__ import annotations

import random
import uuid
from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.replicated_broker import ReplicatedBroker
from spark_kafka_sink.devbroker.cluster.broker_view import BrokerView
from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.lifecycle.broker_cluster import BrokerCluster
from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import BrokerIdentity
from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode, NodeSettings
from spark_kafka_sink.devbroker.log.data_directory import (
    DataDirectory,
    MetaProperties,
    StoredCluster,
)
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.protocol.messages.broker_registration import Listener
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.messages.fetch import (
    FINAL_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.broker_requests import ask
from tests.support.devbroker.replication.simulated_cluster import records_of
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from pathlib import Path

    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord

CLUSTER_ID = "local"


class LocalCluster:
    """Three brokers, in memory or in a directory."""

    def __init__(
        self,
        path: Path | None = None,
        node_ids: tuple[int, ...] = (1, 2, 3),
        settings: BrokerSettings | None = None,
    ) -> None:
        self.now = 100.0
        self._settings = settings or BrokerSettings()
        self.node_ids = node_ids
        self._path = path
        self._random = random.Random(1)
        self._data: DataDirectory | None = None
        store = None
        if path is not None:
            self._data = DataDirectory(path)
            self._data.write_cluster(StoredCluster(cluster_id=CLUSTER_ID))
            store = self._data.metadata_log()
        self.cluster = BrokerCluster(MetadataQuorum(store=store))
        self._quorum = self.cluster.quorum
        self.logs = {
            node_id: BrokerLogs(
                self._settings,
                MetaProperties(CLUSTER_ID, node_id),
                path=None if self._data is None else self._data.broker_path(node_id),
            )
            for node_id in node_ids
        }
        self._store = ClusterStore(self._settings, CLUSTER_ID)
        #: The handlers of each broker.
        self.brokers: dict[int, ReplicatedBroker] = {}
        for node_id in node_ids:
            self.start(node_id)

    # Time and processes.

    def run(self, seconds: float) -> None:
        """Run until some seconds have passed."""
        end = self.now + seconds
        while self._deadline <= end:
            self.now = max(self.now, self._deadline)
            self._tick()
        self.now = end

    @property
    def _deadline(self) -> float:
        brokers = (self.brokers[node_id].deadline for node_id in self.cluster.nodes)
        return min(self.cluster.deadline, *brokers)

    def _tick(self) -> None:
        for node_id in list(self.cluster.nodes):
            self.brokers[node_id].tick(self.now)
        self.cluster.tick(self.now)
        for node_id in list(self.cluster.nodes):
            self.cluster.collect(node_id, self.now)

    def start(self, node_id: int) -> None:
        """Start a broker that is not running."""
        logs = self.logs[node_id]
        logs.start(self.now)
        identity = BrokerIdentity(
            node_id=node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self._new_uuid(),
            previous_epoch=logs.previous_epoch,
            listeners=(
                Listener(
                    name="PLAINTEXT", host="localhost", port=9000 + node_id, security_protocol=0
                ),
            ),
        )
        node = BrokerNode(
            identity,
            self.node_ids,
            logs,
            self._quorum,
            new_uuid=self._new_uuid,
            rng=self._random,
            settings=NodeSettings(replication=ReplicationSettings(interrupts_fetches=True)),
        )
        view = BrokerView(
            self._settings, self._store, logs, node, partial(self.cluster.forward, node_id)
        )
        broker = self.brokers[node_id] = ReplicatedBroker(
            node_id,
            self._settings,
            self.cluster.collect,
            lambda node_id, listeners: self.cluster.advertise(node_id, listeners, self.now),
        )
        broker.start(node, view, logs)
        self.cluster.start(node, self.now)

    def kill(self, node_id: int) -> None:
        """End a broker without notice."""
        self.cluster.kill(node_id, self.now)
        self.logs[node_id].abandon()

    def shut_down(self, node_id: int) -> None:
        """End a broker in order, as soon as the controller lets it go."""
        node = self.cluster.nodes[node_id]
        self.cluster.shut_down(node_id, self.now)
        for _ in range(1000):
            if node.may_stop:
                break
            self.run(0.01)
        self.cluster.stop(node_id, self.now)
        self.logs[node_id].close(node.lifecycle.epoch, self.now)

    def close(self) -> None:
        """End all brokers without notice, and release the directories."""
        for node_id in list(self.cluster.nodes):
            self.kill(node_id)
        if self._data is not None:
            self._data.close()

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))

    # Clients.

    def create_topic(
        self,
        name: str,
        *,
        ask: int,
        replicas: tuple[int, ...] = (),
        min_insync_replicas: int = 1,
    ) -> TopicIdPartition:
        """Create a topic with one partition, which is returned.

        The first of the brokers `replicas` leads; by default all brokers have a replica.
        """
        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if replicas else 1,
            replication_factor=-1 if replicas else len(self.node_ids),
            assignments=(CreatableReplicaAssignment(partition_index=0, broker_ids=replicas),)
            if replicas
            else (),
            configs=(
                CreatableTopicConfig(name="min.insync.replicas", value=str(min_insync_replicas)),
            ),
        )
        request = ForwardedRequest(request=CreateTopicsRequest(topics=(topic,)), version=7)
        answers = []
        self.cluster.forward(ask, request, answers.append, self.now)
        (result,) = answers[0].response.topics
        assert 0 == result.error_code
        return TopicIdPartition(result.topic_id, 0)

    def delete_topic(self, name: str, *, ask: int) -> None:
        """Delete a topic."""
        topic = DeleteTopicState(name=name, topic_id=ZERO_UUID)
        request = DeleteTopicsRequest(topics=(topic,), timeout_ms=0)
        answers = []
        forwarded = ForwardedRequest(request=request, version=6)
        self.cluster.forward(ask, forwarded, answers.append, self.now)
        (result,) = answers[0].response.responses
        assert 0 == result.error_code

    def partition(self, key: TopicIdPartition, node_id: int | None = None) -> PartitionRecord:
        """Return a partition as a broker knows it, by default any that runs."""
        node = next(iter(self.cluster.nodes.values()))
        if node_id is not None:
            node = self.cluster.nodes[node_id]
        return node.image.find_partition(key)

    def ask(self, node_id: int, request, version=None, *, wait=0.0):
        """Return the response of a broker's handlers; Delayed if there is none after a while."""
        broker = self.brokers[node_id]
        arrived, end = self.now, self.now + wait
        outcome = ask(broker, request, version, now=arrived)
        while isinstance(outcome, Delayed):
            if outcome.watched.isdisjoint(broker.take_changed()) and (self.now < outcome.until):
                due = min(self._deadline, outcome.until)
                if due > end:
                    break
                self.now = max(self.now, due)
                self._tick()
                continue
            outcome = ask(
                broker, request, version, now=self.now, arrived=arrived, kept=outcome.kept
            )
        self.run(max(0.0, end - self.now))
        return outcome

    def produce(self, key: TopicIdPartition, number: int, *, to: int, acks=-1, wait=0.0):
        """Write a record; return the error code, or None if there is no response in time."""
        data = PartitionProduceData(
            index=key.partition, records=plain_batch([PlainRecord(timestamp=number)])
        )
        topic = TopicProduceData(topic_id=key.topic_id, partition_data=(data,))
        request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=(topic,))
        response = self.ask(to, request, wait=wait)
        if isinstance(response, Delayed):
            return None
        return response.responses[0].partition_responses[0].error_code

    def fetch(self, key: TopicIdPartition, *, at: int):
        """Return what a consumer gets of a partition from the beginning."""
        partition = FetchPartition(
            partition=key.partition, fetch_offset=0, partition_max_bytes=1 << 20
        )
        topic = FetchTopic(topic_id=key.topic_id, partitions=(partition,))
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, session_epoch=FINAL_EPOCH, topics=(topic,)
        )
        return self.ask(at, request).responses[0].partitions[0]

    def high_watermark(self, key: TopicIdPartition, node_id: int) -> int:
        """Return up to where consumers of a replica see its records."""
        return self.fetch(key, at=node_id).high_watermark

    def records(self, key: TopicIdPartition, node_id: int) -> list[int]:
        """Return the records in the log of a replica."""
        log = self.cluster.nodes[node_id].replicas.log(key)
        return records_of(log, log.log_start_offset, log.log_end_offset)
