"""The handlers of a broker serve its own replicas, and wait for those of other brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.broker import Broker
from spark_kafka_sink.devbroker.cluster.replicated_topics import ReplicatedTopics
from spark_kafka_sink.devbroker.cluster.standalone_cluster import StandaloneCluster
from spark_kafka_sink.devbroker.handlers.handler import Delayed
from spark_kafka_sink.devbroker.metadata.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    ConfigResource,
    PartitionRecord,
    RemoveTopic,
    TopicIdPartition,
    TopicRecord,
)
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    delete_records,
    fetch,
    list_offsets,
    metadata,
    produce,
    write_txn_markers,
)
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.devbroker.replication.one_replica import OneReplica
from tests.support.devbroker.replication.three_replicas import (
    KEY,
    TOPIC_ID,
    change,
)
from tests.support.devbroker.transactional_client import TransactionalClient
from tests.support.record.plain_batches import PlainRecord, plain_batch

PARTITION = TopicPartition("t", 0)


class ReplicatingBroker(OneReplica):
    """One broker of three, with handlers, whose followers the test plays."""

    def __init__(self, node_id=0, **metadata):
        self.cluster = StandaloneCluster(settings=BrokerSettings(node_id=node_id))
        self.topics = None
        super().__init__(node_id, **metadata)
        self.broker = Broker(cluster=self.cluster)

    def applied(self, delta):
        """Update the topics that handlers see."""
        if self.topics is None:
            self.topics = ReplicatedTopics(self.cluster.topic_index, self.image, self.manager)
        self.topics.apply(delta)

    def request(self, message, version=None, *, kept=None, seconds=0.0):
        """Handle a request of a client, again with what was `kept`, after some seconds."""
        response = ask(self.broker, message, version, now=NOW + seconds, arrived=NOW, kept=kept)
        self.sent = self.manager.collect(self.now)
        return response

    def write(self, *, acks=-1, by_name=False, timeout_ms=1000, **again):
        """Write a record; return the response to the request, or Delayed."""
        topic = produce.TopicProduceData(
            name="t",
            topic_id=TOPIC_ID,
            partition_data=(
                produce.PartitionProduceData(
                    index=0, records=plain_batch([PlainRecord(timestamp=1)])
                ),
            ),
        )
        request = produce.ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=(topic,))
        return self.request(request, 9 if by_name else None, **again)

    def consume(self, offset=0, *, version=17, rack="", wait=0, kept=None):
        """Fetch as a consumer; return the response, or Delayed."""
        partition = fetch.FetchPartition(
            partition=0,
            current_leader_epoch=NO_LEADER_EPOCH,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
        )
        topic = fetch.FetchTopic(
            topic="t" if version < 13 else "",
            topic_id=ZERO_UUID if version < 13 else TOPIC_ID,
            partitions=(partition,),
        )
        request = fetch.FetchRequest(
            max_wait_ms=wait,
            min_bytes=1,
            session_epoch=fetch.FINAL_EPOCH,
            rack_id=rack,
            topics=(topic,),
        )
        return self.request(request, version, kept=kept)

    def offset(self, timestamp=list_offsets.LATEST_TIMESTAMP, *, version=None, replica_id=-1):
        """Return the error code and the offset that ListOffsets finds."""
        partition = list_offsets.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=NO_LEADER_EPOCH, timestamp=timestamp
        )
        topic = list_offsets.ListOffsetsTopic(name="t", partitions=(partition,))
        request = list_offsets.ListOffsetsRequest(replica_id=replica_id, topics=(topic,))
        found = self.request(request, version).topics[0].partitions[0]
        return found.error_code, found.offset

    def replicate(self, *followers, to, log_start=0):
        """Fetch as followers that have all records before an offset."""
        for follower in followers or (1, 2):
            epoch = self.manager.find(KEY).leader_epoch
            self.fetch(to, replica=follower, epoch=epoch, log_start=log_start)


def produced(response):
    result = response.responses[0].partition_responses[0]
    return result.error_code, result.base_offset


def consumed(response):
    data = response.responses[0].partitions[0]
    return data.error_code, data.high_watermark, len(data.records or b"") > 0


@pytest.mark.parametrize("by_name", [True, False])
def test_a_response_waits_for_the_followers(by_name):
    """With acks=all, until all in-sync replicas have the records; the records are written once."""
    leader = ReplicatingBroker()
    waiting = leader.write(by_name=by_name)
    assert isinstance(waiting, Delayed)
    assert (NOW + 1.0, frozenset({PARTITION})) == (waiting.until, waiting.watched)
    again = leader.write(by_name=by_name, kept=waiting.kept)
    assert isinstance(again, Delayed)
    leader.replicate(to=1)
    response = leader.write(by_name=by_name, kept=again.kept)
    assert (ErrorCode.NONE, 0) == produced(response)
    assert 1 == leader.log.log_end_offset


def test_records_that_are_not_replicated_in_time():
    """The response says so, with the offset that they have; they may still be committed."""
    leader = ReplicatingBroker()
    waiting = leader.write()
    response = leader.write(kept=waiting.kept, seconds=1.0)
    assert (ErrorCode.REQUEST_TIMED_OUT, 0) == produced(response)
    assert (ErrorCode.REQUEST_TIMED_OUT, 1) == produced(leader.write(timeout_ms=0))


def test_a_leader_that_was_replaced_says_by_whom():
    """Whether the records survive is up to the new leader."""
    leader = ReplicatingBroker()
    waiting = leader.write()
    leader.update(change(leader=1, isr=(1, 2)))
    response = leader.write(kept=waiting.kept)
    result = response.responses[0].partition_responses[0]
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == result.error_code
    assert (1, 4) == (result.current_leader.leader_id, result.current_leader.leader_epoch)


@pytest.mark.parametrize(
    ("node_id", "acks", "code"),
    [
        (0, 1, ErrorCode.NONE),
        (0, -1, ErrorCode.NOT_ENOUGH_REPLICAS),
        (1, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_response_that_does_not_wait(node_id, acks, code):
    """With acks=1 the leader responds at once, and with an error anyone does."""
    broker = ReplicatingBroker(node_id, isr=(0,), min_insync_replicas=2)
    assert code == produced(broker.write(acks=acks))[0]


def test_acks_zero_has_no_response():
    """The batch is appended."""
    leader = ReplicatingBroker()
    assert leader.write(acks=0) is None
    assert 1 == leader.log.log_end_offset


@pytest.mark.parametrize("version", [12, 17])
def test_a_consumer_sees_what_is_committed(version):
    """A record that the followers do not have is neither read nor out of range."""
    leader = ReplicatingBroker()
    leader.write(acks=1)
    assert (ErrorCode.NONE, 0, False) == consumed(leader.consume(version=version))
    assert (ErrorCode.NONE, 0, False) == consumed(leader.consume(1, version=version))
    assert ErrorCode.OFFSET_OUT_OF_RANGE == consumed(leader.consume(2, version=version))[0]
    waiting = leader.consume(version=version, wait=500)
    assert isinstance(waiting, Delayed)
    leader.replicate(to=1)
    assert {KEY} == leader.manager.take_changed()
    response = leader.consume(version=version, wait=500, kept=waiting.kept)
    assert (ErrorCode.NONE, 1, True) == consumed(response)


def test_a_consumer_may_read_from_a_follower():
    """From version 11 on, up to the follower's high watermark."""
    follower = ReplicatingBroker(1)
    assert (ErrorCode.NONE, 0, False) == consumed(follower.consume())
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == consumed(follower.consume(version=10))[0]


def test_a_consumer_is_sent_to_the_follower_in_its_rack():
    """If the broker selects replicas by racks; the response has no records then."""
    leader = ReplicatingBroker()
    leader.broker.settings = replace(leader.broker.settings, rack_aware_replica_selector=True)
    for node_id, rack in enumerate("abc"):
        leader.update(replace(leader.image.brokers[node_id], rack=rack))
    leader.write(acks=1)
    leader.replicate(to=1)
    data = leader.consume(rack="b").responses[0].partitions[0]
    assert (1, 0) == (data.preferred_read_replica, len(data.records or b""))


def test_offsets_are_those_that_are_committed():
    """For consumers; a broker may ask for all, and a tool may ask a follower."""
    leader = ReplicatingBroker()
    leader.write(acks=1)
    assert (ErrorCode.NONE, 0) == leader.offset()
    assert (ErrorCode.NONE, -1) == leader.offset(0)
    assert (ErrorCode.NONE, 1) == leader.offset(replica_id=1)
    assert (ErrorCode.NONE, 0) == leader.offset(0, replica_id=1)
    leader.replicate(to=1)
    assert (ErrorCode.NONE, 1) == leader.offset()
    assert (ErrorCode.NONE, 0) == leader.offset(0)
    assert (ErrorCode.NONE, 0) == leader.offset(list_offsets.MAX_TIMESTAMP)
    follower = ReplicatingBroker(1)
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER == follower.offset()[0]
    assert (ErrorCode.NONE, 0) == follower.offset(replica_id=-2)


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_a_new_leader_may_not_know_the_end(version, code):
    """It says so instead of an offset before what consumers have seen (KIP-207)."""
    leader = ReplicatingBroker()
    leader.write(acks=1)
    leader.update(change(leader=0))
    assert (code, -1) == leader.offset(version=version)
    assert (code, -1) == leader.offset(0, version=version)
    assert (ErrorCode.NONE, 0) == leader.offset(list_offsets.EARLIEST_TIMESTAMP, version=version)
    leader.replicate(to=1)
    assert (ErrorCode.NONE, 1) == leader.offset(version=version)


class Deleting(ReplicatingBroker):
    """A leader whose log has two committed records, to delete them."""

    def __init__(self):
        super().__init__()
        self.write(acks=1)
        self.write(acks=1)
        self.replicate(to=2)
        # The logs of a test's disk are not those that the cluster manages.
        self.cluster.logs.delete_records = self.delete_in_log

    def delete_in_log(self, offsets):
        """Delete records as the log manager does."""
        for offset in offsets.values():
            self.log.delete_records(offset)
        return {}

    def delete(self, offset, **again):
        """Delete the records before an offset; return the response, or Delayed."""
        partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        topic = delete_records.DeleteRecordsTopic(name="t", partitions=(partition,))
        request = delete_records.DeleteRecordsRequest(topics=(topic,), timeout_ms=1000)
        return self.request(request, **again)


def deleted(response):
    result = response.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_deletion_waits_for_the_followers():
    """The response has the lowest log start of all replicas."""
    leader = Deleting()
    waiting = leader.delete(1)
    assert isinstance(waiting, Delayed)
    assert (NOW + 1.0, frozenset({PARTITION})) == (waiting.until, waiting.watched)
    leader.replicate(1, to=2, log_start=1)
    assert isinstance(leader.delete(1, kept=waiting.kept), Delayed)
    leader.replicate(2, to=2, log_start=1)
    assert (ErrorCode.NONE, 1) == deleted(leader.delete(1, kept=waiting.kept))


def test_deletion_that_followers_do_not_confirm_in_time():
    """The records are deleted at the leader, and the low watermark is that of before."""
    leader = Deleting()
    waiting = leader.delete(2)
    response = leader.delete(2, kept=waiting.kept, seconds=1.0)
    assert (ErrorCode.REQUEST_TIMED_OUT, 0) == deleted(response)
    assert 2 == leader.log.log_start_offset


def test_deletion_by_a_leader_that_is_replaced():
    """It cannot say any more what the followers have."""
    leader = Deleting()
    waiting = leader.delete(2)
    leader.update(change(leader=1, isr=(1, 2)))
    response = leader.delete(2, kept=waiting.kept)
    assert (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) == deleted(response)


def test_topics_follow_the_metadata():
    """New partitions, leaders, settings and deletions are seen as the broker knows them."""
    broker = ReplicatingBroker(1)
    cluster = broker.cluster
    partition = cluster.partition(PARTITION)
    assert (0, 3, (0, 1, 2)) == (partition.leader_id, partition.leader_epoch, partition.replicas)
    assert partition.log is broker.log
    broker.update(
        PartitionRecord(topic_id=TOPIC_ID, partition=1, replicas=(0, 2), isr=(0, 2), leader=2),
        change(leader=1, isr=(1, 2), elr=(0,)),
        ConfigRecord(resource=ConfigResource(TOPIC_RESOURCE, "t"), name="retention.ms", value="7"),
    )
    topic = cluster.topic("t")
    assert [1, 2] == [each.leader_id for each in topic.partitions]
    assert ((1, 2), {0}) == (partition.leadership.isr, partition.leadership.eligible)
    assert (7, "7") == (topic.config.retention_ms, topic.overrides["retention.ms"])
    assert 7 == broker.log.config.retention_ms
    # Other brokers have that partition.
    assert broker.manager.log(TopicIdPartition(TOPIC_ID, 1)) is None
    broker.update(RemoveTopic(topic_id=TOPIC_ID))
    assert [] == cluster.topics
    again = TOPIC_ID.__class__(int=8)
    broker.update(
        TopicRecord(topic_id=again, name="t"),
        PartitionRecord(topic_id=again, partition=0, replicas=(1,), isr=(1,), leader=1),
    )
    assert again == cluster.topic("t").topic_id
    assert 604_800_000 == cluster.topic("t").config.retention_ms


def test_metadata_have_leaders_and_replicas():
    """The handler of Metadata responds with what this broker knows."""
    broker = ReplicatingBroker(1, isr=(0, 1))
    request = metadata.MetadataRequest(topics=(metadata.MetadataRequestTopic(name="t"),))
    (partition,) = broker.request(request).topics[0].partitions
    assert (0, 3) == (partition.leader_id, partition.leader_epoch)
    assert ((0, 1, 2), (0, 1)) == (partition.replica_nodes, partition.isr_nodes)


def test_a_transaction_ends_when_its_marker_is_committed():
    """Until then consumers of committed records see none of it, and then they see who aborted."""
    leader = ReplicatingBroker()
    leader.broker.advertise("127.0.0.1", 9092)
    client = TransactionalClient(leader.broker)
    _, producer = client.init()
    waiting = client.ask(client.produce_request(producer, 0), 12)
    leader.replicate(to=1)
    response = client.ask(client.produce_request(producer, 0), 12, kept=waiting.kept)
    assert (ErrorCode.NONE, 0) == produced(response)
    client.end(producer, committed=False)
    assert 2 == leader.log.log_end_offset
    assert (1, 0) == (leader.log.high_watermark, leader.log.last_stable_offset)
    assert (b"", 0) == (client.fetch().records or b"", client.latest())
    leader.replicate(to=2)
    assert [(producer[0], 0)] == [
        (each.producer_id, each.first_offset) for each in client.fetch().aborted_transactions
    ]
    assert 2 == client.latest()
    assert [] == client.read_committed()


def test_a_batch_that_is_sent_again_waits_as_the_first_did():
    """An idempotent producer's duplicate is acknowledged when the first append is replicated."""
    leader = ReplicatingBroker()
    batch = plain_batch([PlainRecord()], producer_id=5, producer_epoch=0, base_sequence=0)
    topic = produce.TopicProduceData(
        topic_id=TOPIC_ID,
        partition_data=(produce.PartitionProduceData(index=0, records=batch),),
    )
    request = produce.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(topic,))
    assert isinstance(leader.request(request), Delayed)
    again = leader.request(request)
    assert isinstance(again, Delayed)
    leader.replicate(to=1)
    assert (ErrorCode.NONE, 0) == produced(leader.request(request, kept=again.kept))
    assert 1 == leader.log.log_end_offset


def test_a_marker_waits_for_the_followers():
    """A coordinator on another broker is told once the marker is replicated."""
    leader = ReplicatingBroker()
    topic = write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=(0,))
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=5,
        producer_epoch=0,
        transaction_result=True,
        topics=(topic,),
        coordinator_epoch=0,
    )
    request = write_txn_markers.WriteTxnMarkersRequest(markers=(marker,))
    waiting = leader.request(request)
    assert (NOW + 30.0, frozenset({PARTITION})) == (waiting.until, waiting.watched)
    expired = leader.request(request, kept=waiting.kept, seconds=30.0)
    assert ErrorCode.REQUEST_TIMED_OUT == expired.markers[0].topics[0].partitions[0].error_code
    waiting = leader.request(request)
    leader.replicate(to=2)
    response = leader.request(request, kept=waiting.kept)
    assert ErrorCode.NONE == response.markers[0].topics[0].partitions[0].error_code
    assert 2 == leader.log.log_end_offset
