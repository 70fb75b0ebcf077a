"""Three embedded brokers and three of Apache Kafka in racks: the same answers to consumers.

The first broker leads a topic with replicas on all three. Each broker gets the same requests from
consumers in every rack, before and after one of the followers has stopped.
"""

from __future__ import annotations

import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.record.record_batch import decode_header, split_record_batches
from tests.support.devbroker.broker_asker import METADATA, Asker, creatable
from tests.support.record.plain_batches import plain_batch

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NODES = (1, 2, 3)
RACKS = ("", "r1", "r2", "r3", "elsewhere")
SECONDS = 120


class Brokers:
    """Three brokers, and one topic."""

    def __init__(self, ports, stop):
        self.askers = {node_id: Asker(port) for node_id, port in ports.items()}
        self._stop = stop
        self.topic = f"racks-{uuid.uuid4().hex}"
        configs = {"retention.ms": "-1", "min.insync.replicas": "1"}
        leader = self.askers[1]
        (created,) = leader.create(creatable(self.topic, -1, -1, [(0, NODES)], **configs))
        assert 0 == created.error_code
        self.wait(lambda: not leader.offsets((self.topic, 0, -1))[0][0])
        self.wait(lambda: all(self.isr(asker) == 3 for asker in self.askers.values()))
        for _ in range(2):
            leader.produce(self.topic, plain_batch(2))
        self.topic_id = leader.topic_id(self.topic)
        # The leader prefers a follower once it knows that it has the records.
        self.wait(lambda: [self.fetch(1, rack, offset=4)[1] for rack in ("r2", "r3")] == [2, 3])
        self.wait(lambda: all(self.fetch(node, "", offset=4)[2] == 4 for node in NODES))

    def close(self):
        """Close the connections."""
        for asker in self.askers.values():
            asker.close()

    def stop(self, node_id):
        """Stop a follower and wait until the others know."""
        self.askers.pop(node_id).close()
        self._stop(node_id)
        self.wait(lambda: all(self.isr(asker) == 2 for asker in self.askers.values()))
        self.wait(lambda: all(len(self.racks(asker)) == 2 for asker in self.askers.values()))

    def wait(self, condition):
        """Wait until a condition holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def isr(self, asker):
        """Return the number of in-sync replicas that a broker knows."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=self.topic),))
        (topic,) = asker.ask(request, METADATA).topics
        return len(topic.partitions[0].isr_nodes) if topic.partitions else 0

    def racks(self, asker):
        """Return the racks of the brokers in the metadata."""
        answer = asker.ask(MetadataRequest(topics=()), METADATA)
        return sorted((broker.node_id, broker.rack) for broker in answer.brokers)

    def fetch(self, node_id, rack, *, version=17, offset=0, epoch=-1, **fields):
        """Fetch from a broker; return what matters in the response."""
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=10**6, current_leader_epoch=epoch
        )
        topic = {"topic": self.topic} if version < 13 else {"topic_id": self.topic_id}
        request = FetchRequest(
            **{
                "max_wait_ms": 0,
                "min_bytes": 1,
                "rack_id": rack,
                "topics": (FetchTopic(**topic, partitions=(partition,)),),
            }
            | fields
        )
        answer = self.askers[node_id].ask(request, version)
        (p,) = answer.responses[0].partitions
        return (
            p.error_code,
            p.preferred_read_replica,
            p.high_watermark,
            p.last_stable_offset,
            p.log_start_offset,
            p.aborted_transactions,
            [decode_header(batch).base_offset for batch in split_record_batches(p.records or b"")],
            [(node.node_id, node.rack) for node in answer.node_endpoints],
        )


def everything(brokers, when):
    """Send every request to each of the brokers that run."""
    seen = {}
    for node_id, asker in brokers.askers.items():
        answer = asker.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
        seen[when, node_id, "racks"] = (
            brokers.racks(asker),
            sorted((broker.broker_id, broker.rack) for broker in answer.brokers),
        )
        for rack in RACKS:
            for fields in (
                *({"version": version} for version in (10, 11, 12, 13, 16, 17)),
                *({"offset": offset} for offset in (-1, 3, 4, 5)),
                *({"epoch": epoch} for epoch in (0, 1)),
                {"isolation_level": 1},
                {"offset": 4, "max_wait_ms": 20},
            ):
                seen[when, node_id, rack, str(fields)] = brokers.fetch(node_id, rack, **fields)
    return seen


def observe(brokers):
    try:
        seen = everything(brokers, "before")
        brokers.stop(2)
        return seen | everything(brokers, "afterwards")
    finally:
        brokers.close()


def test_consumers_are_sent_to_the_same_replicas_as_by_kafka(kafka_in_racks):
    """Racks, preferred replicas and the answers of followers are the same."""
    by_id = {broker.node_id: broker for broker in kafka_in_racks.brokers}
    ports = {i: int(broker.address.rpartition(":")[2]) for i, broker in by_id.items()}
    theirs = observe(Brokers(ports, lambda node_id: by_id[node_id].stop()))

    racks = ("r1", "r2", "r3")
    with DevBroker(brokers=3, racks=racks, rack_aware_replica_selector=True) as cluster:
        ports = {i: int(a.rpartition(":")[2]) for i, a in cluster.addresses.items()}
        ours = observe(Brokers(ports, cluster.stop))

    assert theirs.keys() == ours.keys()
    assert {} == {key: (theirs[key], ours[key]) for key in theirs if theirs[key] != ours[key]}
