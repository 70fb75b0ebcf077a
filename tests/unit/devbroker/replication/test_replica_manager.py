"""A broker's replicas answer producers, consumers and followers, and follow their leaders."""

from __future__ import annotations

import uuid

import pytest

from spark_kafka_sink.devbroker.metadata.envelope import CONTROLLER, Envelope
from spark_kafka_sink.devbroker.metadata.image import MetadataDelta
from spark_kafka_sink.devbroker.metadata.records import NO_LEADER, RemoveTopic
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import (
    alter_partition,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from tests.support.devbroker.replication.simulated_broker import SimulatedDisk
from tests.support.devbroker.replication.simulated_cluster import records_of
from tests.support.devbroker.replication.three_replicas import (
    KEY,
    TOPIC_ID,
    broker_epoch,
    change,
    three_replicas,
)
from tests.support.record.plain_batches import PlainRecord, plain_batch

CLIENT = -2


class Node:
    """One broker of three, whose messages the test carries."""

    def __init__(self, node_id, disk=None, **metadata):
        self.node_id = node_id
        self.image = three_replicas(**metadata)
        self.disk = disk or SimulatedDisk()
        self.manager = ReplicaManager(node_id, self.disk, self.image)
        self.manager.registered(broker_epoch(node_id))
        self.now = 0.0
        self.sent = self.manager.apply(MetadataDelta(partitions={KEY: None}), self.now)

    @property
    def log(self):
        """The broker's log of the partition."""
        return self.manager.log(KEY)

    def update(self, *records):
        """Apply records of the metadata log."""
        self.sent = self.manager.apply(self.image.apply(records), self.now)

    def ask(self, message, sender=CLIENT):
        """Handle a request, and return the answers to clients and all else that is sent."""
        self.sent = self.manager.handle(Envelope(sender, self.node_id, 1, message), self.now)
        return [each.message for each in self.sent if each.receiver == sender]

    def tick(self, seconds):
        """Wait, and return the messages that are sent because of it."""
        self.now += seconds
        self.sent = self.manager.tick(self.now)
        return [each.message for each in self.sent]

    def produce(self, record=1, acks=-1, index=0, topic_id=TOPIC_ID):
        """Send a record, and return the answers."""
        batch = plain_batch([PlainRecord(timestamp=record)])
        return self.ask(
            produce.ProduceRequest(
                acks=acks,
                timeout_ms=1000,
                topic_data=(
                    produce.TopicProduceData(
                        topic_id=topic_id,
                        partition_data=(produce.PartitionProduceData(index=index, records=batch),),
                    ),
                ),
            )
        )

    def fetch(self, offset, *, replica=-1, epoch=3, last_epoch=-1, wait=0, committed=False):
        """Fetch as a consumer or a replica, and return the answers."""
        return self.ask(
            fetch.FetchRequest(
                replica_state=fetch.ReplicaState(
                    replica_id=replica, replica_epoch=broker_epoch(replica) if replica >= 0 else -1
                ),
                max_wait_ms=wait,
                min_bytes=1,
                isolation_level=int(committed),
                topics=(
                    fetch.FetchTopic(
                        topic_id=TOPIC_ID,
                        partitions=(
                            fetch.FetchPartition(
                                partition=0,
                                current_leader_epoch=epoch,
                                fetch_offset=offset,
                                last_fetched_epoch=last_epoch,
                                partition_max_bytes=1 << 20,
                            ),
                        ),
                    ),
                ),
            ),
            sender=replica if replica >= 0 else CLIENT,
        )


def produced(answers):
    ((answer,),) = [each.partition_responses for each in answers[0].responses]
    return answer.error_code, answer.base_offset


def fetched(answers):
    ((data,),) = [each.partitions for each in answers[0].responses]
    return data


def copy(leader, follower, count=6):
    """Relay the fetches of a follower to the leader, and the responses back."""
    envelopes = list(follower.sent)
    for _ in range(count):
        requests = [each for each in envelopes if each.receiver == leader.node_id]
        if not requests:
            return
        envelopes = []
        for request in requests:
            for answer in leader.manager.handle(request, leader.now):
                if answer.receiver == follower.node_id:
                    envelopes += follower.manager.handle(answer, follower.now)


def test_acks_all_waits_for_the_followers():
    """The producer's answer is sent when the last in-sync follower has fetched beyond its batch."""
    leader = Node(0)
    assert leader.produce(acks=-1) == []
    leader.fetch(1, replica=1)
    assert [each.receiver for each in leader.sent] == [1]
    leader.fetch(1, replica=2)
    answer = next(each for each in leader.sent if each.receiver == CLIENT)
    assert produced([answer.message]) == (ErrorCode.NONE, 0)


def test_acks_one_is_answered_by_the_leader_alone():
    """The batch is in the leader's log only."""
    leader = Node(0)
    assert produced(leader.produce(acks=1)) == (ErrorCode.NONE, 0)
    assert leader.log.high_watermark == 0


def test_acks_zero_has_no_answer():
    """The batch is appended, and nobody is told."""
    leader = Node(0)
    assert leader.produce(acks=0) == []
    assert leader.log.log_end_offset == 1


def test_acks_all_times_out():
    """After the request's timeout the batch stays in the log, but the producer is told."""
    leader = Node(0)
    leader.produce(acks=-1)
    assert leader.manager.deadline <= 1.0
    assert produced(leader.tick(1.0)) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert leader.log.log_end_offset == 1
    assert leader.tick(1.0) == []


def test_a_leader_that_is_replaced_answers_who_waits():
    """Whether the batch survives is up to the next leader."""
    leader = Node(0)
    leader.produce(acks=-1)
    leader.update(change(leader=1, isr=(1, 2)))
    answers = [each.message for each in leader.sent if each.receiver == CLIENT]
    assert produced(answers) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"index": 3}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": uuid.UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_a_write_to_what_does_not_exist(fields, code):
    """The broker's metadata have no such topic or partition."""
    assert produced(Node(0).produce(**fields)) == (code, -1)


def test_a_write_to_a_follower():
    """Only the leader appends."""
    assert produced(Node(1).produce()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_write_to_too_few_replicas():
    """With acks=all nothing is appended below min.insync.replicas."""
    leader = Node(0, isr=(0,), min_insync_replicas=2)
    assert produced(leader.produce()) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert leader.log.log_end_offset == 0


def test_a_consumer_sees_what_is_committed():
    """Records that only the leader has are neither read nor out of range."""
    leader = Node(0)
    leader.produce(acks=1)
    data = fetched(leader.fetch(0))
    assert (data.error_code, data.high_watermark, data.records) == (ErrorCode.NONE, 0, ())
    data = fetched(leader.fetch(1))
    assert (data.error_code, data.records) == (ErrorCode.NONE, ())
    assert fetched(leader.fetch(2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for replica in (1, 2):
        leader.fetch(1, replica=replica)
    data = fetched(leader.fetch(0))
    assert (data.high_watermark, len(data.records)) == (1, 1)


def test_a_waiting_consumer_is_answered_when_the_record_is_committed():
    """The high watermark wakes it, not the append."""
    leader = Node(0)
    assert leader.fetch(0, wait=500) == []
    leader.produce(acks=1)
    assert [each for each in leader.sent if each.message.__class__ is fetch.FetchResponse] == []
    leader.fetch(1, replica=1)
    leader.fetch(1, replica=2)
    answer = next(each for each in leader.sent if each.receiver == CLIENT)
    assert len(fetched([answer.message]).records) == 1


def test_a_waiting_follower_is_answered_by_an_append():
    """It sees records before they are committed."""
    leader = Node(0)
    assert leader.fetch(0, replica=1, wait=500) == []
    leader.produce(acks=-1)
    (answer,) = leader.sent
    assert (answer.receiver, len(fetched([answer.message]).records)) == (1, 1)


def test_a_fetch_without_records_is_answered_in_time():
    """After the maximum wait the answer is empty."""
    leader = Node(0)
    leader.fetch(0, replica=1, wait=500)
    assert fetched(leader.tick(0.5)).records == ()


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_fetch_in_another_epoch(epoch, code):
    """Either the requester or this broker has older metadata."""
    leader = Node(0)
    assert fetched(leader.fetch(0, epoch=epoch)).error_code == code
    assert fetched(leader.fetch(0, epoch=epoch, replica=1)).error_code == code


def test_a_fetch_of_a_broker_without_replica():
    """The leader does not know it as a follower."""
    leader = Node(0)
    data = fetched(leader.fetch(0, replica=7))
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_does_not_serve_followers():
    """It may serve consumers, up to its high watermark."""
    follower = Node(1)
    assert fetched(follower.fetch(0)).error_code == ErrorCode.NONE
    assert fetched(follower.fetch(0, replica=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_copies_its_leader():
    """It has the leader's records and epochs, and the high watermark one fetch later."""
    leader, follower = Node(0, isr=(0, 1)), Node(1, isr=(0, 1))
    leader.produce(1, acks=1)
    leader.produce(2, acks=1)
    copy(leader, follower)
    assert records_of(follower.log, 0, 2) == [1, 2]
    assert follower.log.last_epoch == 3
    assert leader.log.high_watermark == 2


def test_a_follower_truncates_what_the_leader_does_not_have():
    """The records of a former leader that were never committed are replaced."""
    disk = SimulatedDisk()
    former = Node(1, disk, leader=1)
    for record in (1, 2, 3):
        former.produce(record, acks=1)
    leader = Node(0)
    leader.produce(7, acks=1)
    for node in (leader, former):
        node.update(change(leader=0))
    leader.produce(8, acks=1)
    copy(leader, former)
    assert records_of(former.log, 0, former.log.log_end_offset) == [1, 8]


def test_a_follower_resets_to_a_leader_that_begins_later():
    """It asks where the leader's log ends and begins, and continues there."""
    leader, follower = Node(0, isr=(0,)), Node(1, isr=(0,))
    for record in range(1, 6):
        leader.produce(record, acks=1)
    leader.log.delete_records(3)
    copy(leader, follower)
    assert follower.log.log_start_offset == 3
    assert records_of(follower.log, 3, 5) == [4, 5]


def test_a_follower_follows_the_leaders_log_start():
    """Deleted records are deleted on followers with the next fetch."""
    leader, follower = Node(0, isr=(0, 1)), Node(1, isr=(0, 1))
    for record in range(1, 4):
        leader.produce(record, acks=1)
    copy(leader, follower)
    leader.log.delete_records(2)
    leader.produce(4, acks=1)
    (answer,) = [each for each in leader.sent if each.receiver == 1]
    follower.manager.handle(answer, follower.now)
    assert follower.log.log_start_offset == 2


def test_a_failed_fetch_is_repeated_later():
    """A leader that cannot be reached is asked again after the backoff."""
    follower = Node(1)
    (request,) = follower.sent
    assert follower.manager.failed(request.correlation_id, follower.now) == []
    assert follower.tick(0.5) == []
    (message,) = follower.tick(0.6)
    assert isinstance(message, fetch.FetchRequest)


def test_an_answer_that_comes_too_late_is_ignored():
    """After the time-out another request is in flight, and only its answer counts."""
    leader, follower = Node(0), Node(1)
    (first,) = follower.sent
    follower.tick(ReplicationSettings().replica_socket_timeout)
    follower.tick(1.0)
    leader.produce(acks=1)
    (late,) = leader.manager.handle(first, leader.now)
    follower.manager.handle(late, follower.now)
    assert follower.log.log_end_offset == 0


def test_a_fenced_follower_waits_for_metadata():
    """It does not ask a leader of a newer epoch again before it knows the epoch."""
    leader, follower = Node(0), Node(1)
    leader.update(change(leader=0))
    copy(leader, follower)
    assert follower.tick(5.0) == []
    follower.update(change(leader=0))
    assert [each.receiver for each in follower.sent] == [0]


def test_an_isr_change_is_asked_of_the_controller():
    """The request is repeated until the controller answers, and then counts."""
    leader = Node(0, isr=(0, 1))
    leader.fetch(0, replica=2)
    request = next(each for each in leader.sent if each.receiver == CONTROLLER)
    partition = request.message.topics[0].partitions[0]
    assert [each.broker_id for each in partition.new_isr_with_epochs] == [0, 1, 2]
    leader.manager.failed(request.correlation_id, leader.now)
    leader.tick(0.1)
    again = next(each for each in leader.sent if each.receiver == CONTROLLER)
    assert again.message == request.message
    answer = alter_partition.AlterPartitionResponse(
        topics=(
            alter_partition.AlterPartitionResponseTopic(
                topic_id=TOPIC_ID,
                partitions=(
                    alter_partition.AlterPartitionResponsePartition(
                        partition_index=0, leader_epoch=3, isr=(0, 1, 2), partition_epoch=1
                    ),
                ),
            ),
        )
    )
    leader.manager.handle(again.response(answer), leader.now)
    assert leader.manager.leader(KEY).isr == {0, 1, 2}


def test_offsets_for_consumers_and_followers():
    """A consumer's latest offset is the high watermark, a follower's the log end."""
    leader = Node(0)
    leader.produce(acks=1)

    def latest(replica_id):
        (answer,) = leader.ask(
            list_offsets.ListOffsetsRequest(
                replica_id=replica_id,
                topics=(
                    list_offsets.ListOffsetsTopic(
                        name="t",
                        partitions=(
                            list_offsets.ListOffsetsPartition(
                                partition_index=0, timestamp=list_offsets.LATEST_TIMESTAMP
                            ),
                        ),
                    ),
                ),
            )
        )
        partition = answer.topics[0].partitions[0]
        return partition.error_code, partition.offset

    assert (latest(-1), latest(1)) == ((ErrorCode.NONE, 0), (ErrorCode.NONE, 1))
    leader.update(change(leader=0))
    # The new epoch may begin behind offsets that consumers have seen (KIP-207).
    assert latest(-1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)


def test_the_end_of_an_epoch():
    """OffsetForLeaderEpoch knows where the epochs of the leader's log end."""
    leader = Node(0)
    leader.produce(acks=1)
    leader.update(change(leader=0))
    (answer,) = leader.ask(
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            topics=(
                offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic="t",
                    partitions=(
                        offset_for_leader_epoch.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=4, leader_epoch=3
                        ),
                    ),
                ),
            )
        )
    )
    end = answer.topics[0].partitions[0]
    assert (end.error_code, end.leader_epoch, end.end_offset) == (ErrorCode.NONE, 3, 1)


def test_high_watermarks_survive_a_restart():
    """They are stored now and then; what is not stored is found out again."""
    disk = SimulatedDisk()
    leader = Node(0, disk, isr=(0,))
    leader.produce(acks=-1)
    leader.tick(5.0)
    leader.produce(acks=-1)
    assert Node(0, disk, isr=(0, 1)).log.high_watermark == 1


def test_a_deleted_topic_is_removed():
    """Its logs are deleted, and those who waited for it get an error."""
    leader = Node(0)
    leader.produce(acks=-1)
    leader.update(RemoveTopic(topic_id=TOPIC_ID))
    answers = [each.message for each in leader.sent if each.receiver == CLIENT]
    assert produced(answers) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert (leader.log, leader.disk.logs) == (None, {})


def test_a_replica_that_moves_away_is_removed():
    """A broker without a replica any more deletes its log, and says who is not the leader."""
    follower = Node(2)
    follower.update(change(replicas=(0, 1), isr=(0, 1)))
    assert follower.disk.logs == {}
    assert produced(follower.produce()) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_without_a_leader_nothing_is_fetched():
    """The follower waits for a leader, and serves what was committed."""
    follower = Node(1, leader=NO_LEADER)
    assert follower.sent == []
    assert follower.tick(5.0) == []
