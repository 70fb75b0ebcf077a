"""A cluster of brokers that replicate with Kafka's own times, on a clock that a test moves."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.lifecycle.broker_cluster import BrokerCluster
from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import BrokerIdentity
from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
from spark_kafka_sink.devbroker.log.data_directory import (
    DataDirectory,
    MetaProperties,
    StoredCluster,
)
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
from spark_kafka_sink.devbroker.replication.leader_replica import ACKS_ALL
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.replication.simulated_cluster import records_of
from tests.support.record.plain_batches import PlainRecord, plain_batch

if TYPE_CHECKING:
    from pathlib import Path

    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord

CLUSTER_ID = "local"


class LocalCluster:
    """Three brokers, in memory or in a directory."""

    def __init__(self, path: Path | None = None, node_ids: tuple[int, ...] = (1, 2, 3)) -> None:
        self.now = 100.0
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
                BrokerSettings(),
                MetaProperties(CLUSTER_ID, node_id),
                path=None if self._data is None else self._data.broker_path(node_id),
            )
            for node_id in node_ids
        }
        for node_id in node_ids:
            self.start(node_id)

    # Time and processes.

    def run(self, seconds: float) -> None:
        """Run until some seconds have passed."""
        end = self.now + seconds
        while self.cluster.deadline <= end:
            self.now = max(self.now, self.cluster.deadline)
            self.cluster.tick(self.now)
        self.now = end

    def start(self, node_id: int) -> None:
        """Start a broker that is not running."""
        logs = self.logs[node_id]
        logs.start(self.now)
        identity = BrokerIdentity(
            node_id=node_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self._new_uuid(),
            previous_epoch=logs.previous_epoch,
        )
        node = BrokerNode(
            identity,
            self.node_ids,
            logs,
            self._quorum,
            new_uuid=self._new_uuid,
            rng=self._random,
        )
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

    def create_topic(self, name: str, *, ask: int) -> TopicIdPartition:
        """Create a topic with one partition on all brokers; return the partition."""
        topic = CreatableTopic(
            name=name, num_partitions=1, replication_factor=len(self.node_ids), assignments=()
        )
        request = ForwardedRequest(request=CreateTopicsRequest(topics=(topic,)), version=7)
        answers = []
        self.cluster.forward(ask, request, answers.append, self.now)
        (result,) = answers[0].response.topics
        assert 0 == result.error_code
        return TopicIdPartition(result.topic_id, 0)

    def partition(self, key: TopicIdPartition, node_id: int | None = None) -> PartitionRecord:
        """Return a partition as a broker knows it, by default any that runs."""
        node = next(iter(self.cluster.nodes.values()))
        if node_id is not None:
            node = self.cluster.nodes[node_id]
        return node.image.find_partition(key)

    def produce(self, key: TopicIdPartition, number: int, *, to: int, acks=-1, wait=0.0):
        """Write a record; return the outcome after a while, or None if there is none yet."""
        replicas = self.cluster.nodes[to].replicas
        batch = memoryview(bytearray(plain_batch([PlainRecord(timestamp=number)])))
        result = replicas.append(key, batch, decode_header(batch), acks=acks, now=self.now)
        term = replicas.find(key).term
        self.cluster.collect(to, self.now)
        self.run(wait)
        if acks != ACKS_ALL:
            return ErrorCode.NONE
        return replicas.check_replicated(key, result.last_offset + 1, term)

    def records(self, key: TopicIdPartition, node_id: int) -> list[int]:
        """Return the records in the log of a replica."""
        log = self.cluster.nodes[node_id].replicas.log(key)
        return records_of(log, log.log_start_offset, log.log_end_offset)

    def high_watermark(self, key: TopicIdPartition, node_id: int) -> int:
        """Return up to where consumers of a replica see its records."""
        return self.cluster.nodes[node_id].replicas.find(key).log.high_watermark
