"""The whole life of a member, from its requests to their answers, at an embedded broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.classic_membership import ClassicMemberState
from spark_kafka_sink.consumer.group.commit_rules import (
    OffsetAction,
    OffsetCall,
    commit_in_generation,
    judge_partitions,
    offset_action,
)
from spark_kafka_sink.consumer.group.group_requests import (
    CompleteJoin,
    Heartbeat,
    JoinGroup,
    LeaveOperation,
    PerformAssignment,
    SyncGroup,
    heartbeat_request,
    join_request,
    leave_request,
    read_leave,
    sync_request,
)
from spark_kafka_sink.consumer.group.offset_commits import (
    FetchedOffsets,
    commit_request,
    highest_fetch_version,
    read_fetched,
)
from spark_kafka_sink.consumer.offsets.offset_requests import EpochEnd, epoch_request, read_epochs
from spark_kafka_sink.consumer.subscription.partition_state import FetchPosition, LeaderAndEpoch
from spark_kafka_sink.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.group_offsets import commit_codes, offset_fetch_request
from tests.support.consumer.classic_script import COORDINATOR, ClassicScript, group_settings
from tests.support.devbroker.broker_requests import NOW, ask, broker_with
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    consumer_heartbeat,
    joining,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
#: The newest versions of JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetFetch
#: in Kafka 2.1, and in Kafka 4.3.
KAFKA_2_1, NEWEST = (3, 2, 2, 2, 6, 5), (9, 5, 4, 5, 10, 10)


class Story(ClassicScript):
    """A member whose requests are sent to a broker, in one version of each."""

    def __init__(self, broker, versions, **settings):
        super().__init__(**settings)
        self.broker = broker
        self.settings = group_settings(**settings)
        self.join_version, self.sync_version, self.heartbeat_version, *rest = versions
        self.leave_version, self.commit_version, self.fetch_version = rest
        self.topic_ids = {"t": broker.cluster.topic("t").topic_id}
        self.topic_names = {topic_id: name for name, topic_id in self.topic_ids.items()}

    def ask(self, request, version):
        """Send a request; return its answer."""
        return ask(self.broker, request, version, now=NOW + self.now)

    def send_join(self, join):
        """Send JoinGroup, and apply the answer."""
        request = join_request(join, self.settings, [("range", b"topics")], self.join_version)
        answer = self.ask(request, self.join_version)
        self.member.join_answered(join, answer, self.now)

    def join_as_leader(self):
        """Join the group, alone, and assign all to this member."""
        self.find()
        self.send_join(self.start_join())
        step = self.step()
        if isinstance(step, JoinGroup):
            # The coordinator has given it a member id (KIP-394).
            self.send_join(step)
            step = self.step()
        assert isinstance(step, PerformAssignment), step
        assert [b"topics"] == [member.metadata for member in step.members]
        self.member.assignment_performed(step, {step.members[0].member_id: b"mine"})
        self.send_sync(self.expect(SyncGroup))
        done = self.expect(CompleteJoin)
        assert b"mine" == done.assignment
        self.member.join_completed(done)

    def send_sync(self, sync):
        """Send SyncGroup, and apply the answer."""
        request = sync_request(sync, self.settings, self.sync_version)
        self.member.sync_answered(sync, self.ask(request, self.sync_version), self.now)

    def send_heartbeat(self):
        """Wait for the next heartbeat, send it, and return the error code."""
        beat = self.sleep_until(Heartbeat, may_join=False)
        request = heartbeat_request(beat, self.settings, self.heartbeat_version)
        code = self.ask(request, self.heartbeat_version).error_code
        self.member.heartbeat_answered(beat, code, self.now)
        return code

    def commit(self, offsets, generation):
        """Commit in a generation; return the codes."""
        member = ConsumerGroupMetadata(
            self.settings.group_id,
            generation.generation_id,
            generation.member_id,
            self.settings.group_instance_id,
        )
        request, highest = commit_request(member, offsets, self.topic_ids)
        assert highest is None
        return dict(commit_codes(self.ask(request, self.commit_version), self.topic_names))

    def committed(self, *partitions):
        """Fetch the group's offsets."""
        assert highest_fetch_version(partitions, self.topic_ids) is None
        request = offset_fetch_request(
            self.settings.group_id,
            partitions,
            self.fetch_version,
            topic_ids=self.topic_ids,
            require_stable=True,
        )
        return read_fetched(self.ask(request, self.fetch_version), self.topic_names)

    def leave(self):
        """Leave the group; return the error code."""
        step = self.member.leave("the end", LeaveOperation.LEAVE_GROUP)
        request = leave_request(step, self.settings, self.leave_version)
        return read_leave(self.ask(request, self.leave_version))


@pytest.fixture
def broker():
    """Return an embedded broker with a topic of two partitions."""
    return broker_with({"t": 2})


@pytest.mark.parametrize(
    ("versions", "settings"),
    [(KAFKA_2_1, {}), (NEWEST, {}), (NEWEST, {"group_instance_id": "i"})],
    ids=["kafka-2.1", "newest", "static"],
)
def test_a_member_joins_commits_fetches_and_leaves(broker, versions, settings):
    """With the requests of an old broker and with the newest; also if it is a static member."""
    story = Story(broker, versions, **settings)
    story.join_as_leader()
    generation = story.member.stable_generation
    committed = OffsetAndMetadata(5, 3, "note")

    assert 0 == story.send_heartbeat()
    assert {T0: 0} == story.commit({T0: committed}, generation)
    assert FetchedOffsets(0, {T0: committed, T1: None}, {}) == story.committed(T0, T1)
    assert 0 == story.leave()
    assert ClassicMemberState.UNJOINED is story.member.state
    # The coordinator has forgotten the member, but not the offsets.
    codes = story.commit({T0: OffsetAndMetadata(6)}, generation)
    assert {T0: ErrorCode.UNKNOWN_MEMBER_ID} == codes
    assert {T0: committed} == story.committed(T0).offsets


def test_a_commit_of_an_earlier_generation_is_refused(broker):
    """The member is still in the group, so only its generation is at fault."""
    story = Story(broker, NEWEST)
    story.join_as_leader()
    generation = story.member.stable_generation
    outdated = generation._replace(generation_id=generation.generation_id - 1)
    codes = story.commit({T0: OffsetAndMetadata(5)}, outdated)
    verdict = judge_partitions(OffsetCall.CLASSIC_COMMIT, codes)

    assert OffsetAction.REJOIN_AS_MEMBER is verdict.action
    current = commit_in_generation(verdict, outdated, generation, story.member.state)
    assert OffsetAction.REFUSED is current.action
    assert 0 == story.send_heartbeat()


def test_offsets_are_committed_from_outside_a_group(broker):
    """A consumer with assigned partitions has neither a member id nor a generation."""
    request, _ = commit_request(ConsumerGroupMetadata("g"), {T1: OffsetAndMetadata(9)})
    assert {T1: 0} == dict(commit_codes(ask(broker, request, 9)))
    assert {T1: OffsetAndMetadata(9), T0: None} == (
        read_fetched(
            ask(broker, offset_fetch_request("g", [T0, T1], 9, require_stable=True), 9)
        ).offsets
    )


@pytest.mark.parametrize("version", [9, 10])
def test_a_member_of_the_new_protocol_commits_and_fetches_in_its_epoch(broker, version):
    """A stale epoch is refused for both requests, each with its own reaction."""
    ids = {"t": broker.cluster.topic("t").topic_id}
    names = {topic_id: name for name, topic_id in ids.items()}
    epoch = ask(broker, joining("g", "m", topics=["t"])).member_epoch
    offsets = {T0: OffsetAndMetadata(5, 1, "")}

    def commit(member_epoch):
        request, _ = commit_request(ConsumerGroupMetadata("g", member_epoch, "m"), offsets, ids)
        return dict(commit_codes(ask(broker, request, version), names))

    def fetch(member_epoch):
        request = offset_fetch_request(
            "g",
            [T0],
            version,
            member_id="m",
            member_epoch=member_epoch,
            topic_ids=ids,
            require_stable=True,
        )
        return read_fetched(ask(broker, request, version), names)

    assert {T0: 0} == commit(epoch)
    assert FetchedOffsets(0, offsets, {}) == fetch(epoch)
    stale = judge_partitions(OffsetCall.CONSUMER_COMMIT, commit(epoch + 1))
    assert (OffsetAction.NEW_EPOCH, ErrorCode.STALE_MEMBER_EPOCH) == stale[:2]
    assert ErrorCode.STALE_MEMBER_EPOCH == fetch(epoch + 1).error_code

    ask(broker, consumer_heartbeat("g", "m", -1))
    assert {T0: ErrorCode.UNKNOWN_MEMBER_ID} == commit(epoch)
    code = fetch(epoch).error_code
    assert OffsetAction.FATAL is offset_action(OffsetCall.CONSUMER_FETCH, code)


@pytest.mark.parametrize("version", [2, 4])
def test_a_leader_confirms_a_position(broker, version):
    """An empty log ends at offset 0, in the epoch of its leader."""
    epoch = broker.cluster.topic("t").partitions[0].leader_epoch
    position = FetchPosition(0, epoch, LeaderAndEpoch(COORDINATOR, epoch))
    response = ask(broker, epoch_request({T0: position}), version)
    assert {T0: EpochEnd(0, epoch)} == read_epochs(response, [T0]).found
