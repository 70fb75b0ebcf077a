"""A broker's replicas answer producers, consumers and followers, and follow their leaders."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.devbroker.metadata.envelope import CONTROLLER
from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    RemoveTopic,
    TopicIdPartition,
)
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_partition, fetch
from spark_kafka_sink.record.record_batch import decode_header
from tests.support.devbroker.replication.one_replica import OneReplica
from tests.support.devbroker.replication.simulated_broker import SimulatedDisk
from tests.support.devbroker.replication.simulated_cluster import records_of
from tests.support.devbroker.replication.three_replicas import (
    KEY,
    TOPIC_ID,
    change,
    fence,
    three_replicas,
)
from tests.support.record.plain_batches import PlainRecord, plain_batch


class Node(OneReplica):
    """One broker of three, whose messages the test carries."""

    def produce(self, record=1, acks=-1, key=KEY):
        """Append a record, and return the outcome; None while it is not replicated."""
        batch = memoryview(bytearray(plain_batch([PlainRecord(timestamp=record)])))
        try:
            appended = self.manager.append(
                key, batch, decode_header(batch), acks=acks, now=self.now
            )
        except RefusedError as refused:
            return refused.error_code
        self.appended = appended.last_offset + 1, self.manager.find(key).term
        self.sent = self.manager.collect(self.now)
        return self.outcome()

    def outcome(self):
        """Return the outcome of the last append; None while it is not replicated."""
        return self.manager.check_replicated(KEY, *self.appended)

    def read(self, offset, *, committed=False):
        """Read as a consumer; return the number of pieces, or an error code."""
        try:
            read = self.manager.find(KEY).read(
                offset, max_bytes=1 << 20, min_one_batch=True, committed=committed
            )
        except RefusedError as refused:
            return refused.error_code
        return len(read.batches)


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
    """A write is replicated when the last in-sync follower has fetched beyond its batch."""
    leader = Node(0)
    for replica in (1, 2):
        leader.fetch(0, replica=replica)
    assert leader.produce() is None
    leader.manager.take_changed()
    leader.fetch(1, replica=1)
    assert leader.outcome() is None
    assert leader.manager.take_changed() == set()
    leader.fetch(1, replica=2)
    assert leader.outcome() == ErrorCode.NONE
    assert leader.manager.take_changed() == {KEY}


def test_a_new_process_keeps_the_high_watermarks_until_it_has_its_replicas():
    """Otherwise every restart would hide all records from consumers until they are replicated."""
    first = Node(0, isr=(0,))
    assert ErrorCode.NONE == first.produce()
    first.tick(5.0)
    again = ReplicaManager(0, first.disk, three_replicas(isr=(0,)))
    again.tick(6.0)
    again.checkpoint()
    assert 1 == first.disk.high_watermark(KEY)


def test_a_leader_that_is_replaced_does_not_acknowledge():
    """Whether the batch survives is up to the next leader, even if that is the same broker."""
    leader = Node(0)
    leader.produce()
    leader.manager.take_changed()
    leader.update(change(leader=1, isr=(1, 2)))
    assert leader.manager.take_changed() == {KEY}
    assert leader.outcome() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.update(change(leader=0, isr=(0, 1, 2)))
    for replica in (1, 2):
        leader.fetch(1, replica=replica, epoch=5)
    assert leader.log.high_watermark == 1
    assert leader.outcome() == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (TopicIdPartition(TOPIC_ID, 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicIdPartition(uuid.UUID(int=9), 0), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_a_write_to_what_does_not_exist(key, code):
    """The broker's metadata have no such topic or partition."""
    assert Node(0).produce(key=key) == code


def test_a_write_to_a_follower():
    """Only the leader appends."""
    assert Node(1).produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("acks", "code"), [(-1, ErrorCode.NOT_ENOUGH_REPLICAS), (1, None)])
def test_a_write_to_too_few_replicas(acks, code):
    """With acks=all nothing is appended below min.insync.replicas."""
    leader = Node(0, isr=(0,), min_insync_replicas=2)
    assert leader.produce(acks=acks) == code
    assert leader.log.log_end_offset == (0 if code else 1)


def marker():
    return TransactionMarker(5, 0, True, coordinator_epoch=2, transaction_version=1, timestamp=9)


def test_a_marker_is_replicated_as_records_are():
    """It is a write with acks=all, and the end of the transaction is seen once it is committed."""
    leader = Node(0)
    assert leader.manager.append_marker(KEY, marker(), leader.now) == 0
    term = leader.manager.find(KEY).term
    assert leader.manager.check_replicated(KEY, 1, term) is None
    for replica in (1, 2):
        leader.fetch(1, replica=replica)
    assert leader.manager.check_replicated(KEY, 1, term) == ErrorCode.NONE
    alone = Node(0, isr=(0,), min_insync_replicas=2)
    with pytest.raises(RefusedError, match="in sync") as raised:
        alone.manager.append_marker(KEY, marker(), alone.now)
    assert raised.value.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_consumer_sees_what_is_committed():
    """Records that only the leader has are neither read nor out of range."""
    leader = Node(0)
    leader.produce(acks=1)
    assert leader.read(0) == 0
    assert leader.read(1) == 0
    assert leader.read(2) == ErrorCode.OFFSET_OUT_OF_RANGE
    for replica in (1, 2):
        leader.fetch(1, replica=replica)
    assert leader.read(0) == 1


def test_a_waiting_follower_is_answered_by_an_append():
    """It sees records before they are committed."""
    leader = Node(0)
    assert leader.fetch(0, replica=1, wait=500) == []
    leader.produce()
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


def test_a_fetch_of_a_broker_without_replica():
    """The leader does not know it as a follower."""
    leader = Node(0)
    data = fetched(leader.fetch(0, replica=7))
    assert data.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_does_not_serve_followers():
    """It may serve consumers, up to its high watermark."""
    follower = Node(1)
    assert follower.read(0) == 0
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


def test_a_new_leader_may_not_know_the_end():
    """Its high watermark may be behind what consumers have seen, until followers have fetched."""
    leader = Node(0)
    leader.produce(acks=1)
    leader.manager.find(KEY).check_offsets_available()
    leader.update(change(leader=0))
    with pytest.raises(RefusedError, match="high watermark is 0") as raised:
        leader.manager.find(KEY).check_offsets_available()
    assert raised.value.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    for replica in (1, 2):
        leader.fetch(1, replica=replica, epoch=4)
    leader.manager.find(KEY).check_offsets_available()


def test_the_low_watermark_is_that_of_all_running_replicas():
    """Records are deleted everywhere once the followers have fetched with the new start."""
    leader = Node(0)
    leader.produce(acks=1)
    for replica in (1, 2):
        leader.fetch(1, replica=replica)
    leader.log.delete_records(1)
    assert leader.manager.low_watermark(KEY) == 0
    leader.manager.take_changed()
    leader.fetch(1, replica=1, log_start=1)
    assert leader.manager.take_changed() == {KEY}
    assert leader.manager.low_watermark(KEY) == 0
    leader.update(fence(2))
    assert leader.manager.low_watermark(KEY) == 1
    with pytest.raises(RefusedError, match="is broker 0"):
        Node(1).manager.low_watermark(KEY)


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        ({0: "a", 1: "b", 2: "b"}, 2),
        ({0: "b", 1: "b", 2: "b"}, None),
        ({0: "a", 1: "b", 2: "c"}, 1),
        ({0: "a", 1: "c", 2: "c"}, None),
    ],
    ids=["the latest", "the leader", "the only one", "none"],
)
def test_a_consumer_is_sent_to_its_rack(racks, expected):
    """To the follower there that has its offset and lags least, unless the leader is there."""
    leader = Node(0)
    for node_id, rack in racks.items():
        leader.update(replace(leader.image.brokers[node_id], rack=rack))
    leader.produce(acks=1)
    leader.fetch(0, replica=1)
    leader.fetch(1, replica=2)
    assert leader.manager.closest_follower(KEY, "b", 0) == expected
    assert leader.manager.closest_follower(KEY, "", 0) is None


def test_a_consumer_is_not_sent_to_a_follower_without_its_offset():
    """Nor to one that is not in sync, nor by a follower."""
    leader = Node(0, isr=(0, 2))
    for node_id in (1, 2):
        leader.update(replace(leader.image.brokers[node_id], rack="b"))
    leader.produce(acks=1)
    leader.fetch(1, replica=1)
    leader.fetch(0, replica=2)
    assert leader.manager.closest_follower(KEY, "b", 1) is None
    assert leader.manager.closest_follower(KEY, "b", 0) == 2
    assert Node(1).manager.closest_follower(KEY, "b", 0) is None


def test_high_watermarks_survive_a_restart():
    """They are stored now and then; what is not stored is found out again."""
    disk = SimulatedDisk()
    leader = Node(0, disk, isr=(0,))
    leader.produce()
    leader.tick(5.0)
    leader.produce()
    assert Node(0, disk, isr=(0, 1)).log.high_watermark == 1


def test_a_deleted_topic_is_removed():
    """Its logs are deleted, and those who waited for it get an error."""
    leader = Node(0)
    leader.produce()
    leader.manager.take_changed()
    leader.update(RemoveTopic(topic_id=TOPIC_ID))
    assert leader.manager.take_changed() == {KEY}
    assert leader.outcome() == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (leader.log, leader.disk.logs) == (None, {})


def test_a_replica_that_moves_away_is_removed():
    """A broker without a replica any more deletes its log, and says who is not the leader."""
    follower = Node(2)
    follower.update(change(replicas=(0, 1), isr=(0, 1)))
    assert follower.disk.logs == {}
    assert follower.produce() == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_without_a_leader_nothing_is_fetched():
    """The follower waits for a leader, and serves what was committed."""
    follower = Node(1, leader=NO_LEADER)
    assert follower.sent == []
    assert follower.tick(5.0) == []
