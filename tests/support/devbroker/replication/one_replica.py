"""A broker's replica of a partition that three brokers have, to test one broker's part."""

from __future__ import annotations

from spark_kafka_sink.devbroker.metadata.envelope import Envelope
from spark_kafka_sink.devbroker.metadata.image import MetadataDelta
from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
from spark_kafka_sink.protocol.messages import fetch
from tests.support.devbroker.replication.simulated_broker import SimulatedDisk
from tests.support.devbroker.replication.three_replicas import (
    KEY,
    TOPIC_ID,
    broker_epoch,
    three_replicas,
)


class OneReplica:
    """One broker of three with a replica of a partition, whose messages a test carries."""

    def __init__(self, node_id, disk=None, **metadata):
        self.node_id = node_id
        self.image = three_replicas(**metadata)
        self.disk = disk or SimulatedDisk()
        self.manager = ReplicaManager(node_id, self.disk, self.image)
        self.manager.registered(broker_epoch(node_id))
        self.now = 0.0
        self.sent = self._apply(MetadataDelta(partitions={KEY: None}))

    def _apply(self, delta):
        outgoing = self.manager.apply(delta, self.now)
        self.applied(delta)
        return outgoing

    def applied(self, delta):
        """Do nothing: for those who also use the metadata."""

    @property
    def log(self):
        """The broker's log of the partition."""
        return self.manager.log(KEY)

    def update(self, *records):
        """Apply records of the metadata log."""
        self.sent = self._apply(self.image.apply(records))

    def ask(self, message, sender):
        """Handle a request of another broker, and return the answers to it."""
        self.sent = self.manager.handle(Envelope(sender, self.node_id, 1, message), self.now)
        return [each.message for each in self.sent if each.receiver == sender]

    def tick(self, seconds):
        """Wait, and return the messages that are sent because of it."""
        self.now += seconds
        self.sent = self.manager.tick(self.now)
        return [each.message for each in self.sent]

    def fetch(self, offset, *, replica=1, epoch=3, last_epoch=-1, wait=0, log_start=0):
        """Fetch as a replica, and return the answers."""
        return self.ask(
            fetch.FetchRequest(
                replica_state=fetch.ReplicaState(
                    replica_id=replica, replica_epoch=broker_epoch(replica)
                ),
                max_wait_ms=wait,
                min_bytes=1,
                topics=(
                    fetch.FetchTopic(
                        topic_id=TOPIC_ID,
                        partitions=(
                            fetch.FetchPartition(
                                partition=0,
                                current_leader_epoch=epoch,
                                fetch_offset=offset,
                                last_fetched_epoch=last_epoch,
                                log_start_offset=log_start,
                                partition_max_bytes=1 << 20,
                            ),
                        ),
                    ),
                ),
            ),
            sender=replica,
        )
