"""Consumer group offsets in the embedded broker, their transactions, and administration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from spark_kafka_sink.devbroker.base.topic_names import coordinator_partition
from spark_kafka_sink.devbroker.groups.group_offsets import CommittedOffset, GroupOffsets
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.support.devbroker.broker_requests import NOW, broker_with
from tests.support.devbroker.group_client import GroupClient, commit_request, txn_commit_request
from tests.support.devbroker.groups_of_devbroker import (
    ILLEGAL,
    OK,
    REBALANCE,
    UNKNOWN,
    alone,
    client_of,
)
from tests.support.devbroker.transactional_client import END_TV1, END_TV2, TransactionalClient


@pytest.fixture
def client():
    return client_of()


class TestOffsets:
    """The committed offsets of a group."""

    def test_offsets_are_kept(self, client):
        """Anyone may commit while the group has no members; an unknown offset is -1."""
        assert [OK, OK] == client.commit({("t", 0): 5, ("t", 1): 6})
        assert [OK] == client.commit({("t", 0): 7})

        assert {("t", 0): (OK, 7), ("t", 1): (OK, 6), ("t", 9): (OK, -1)} == client.offsets(
            "t", 0, 1, 9
        )
        assert {("t", 0): (OK, 7), ("t", 1): (OK, 6)} == client.offsets(None)
        client.group_id = "other"
        assert {("t", 0): (OK, -1)} == client.offsets("t", 0)

    @pytest.mark.parametrize("version", range(1, 8))
    def test_old_clients_ask_about_one_group(self, client, version):
        """Up to version 7 the request names one group; since version 2 null means all topics."""
        client.commit({("t", 1): 6})
        topics = (OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1)),)
        request = OffsetFetchRequest(group_id="g", topics=topics)

        answer = client.ask(request, version)

        assert [(0, -1), (1, 6)] == [
            (p.partition_index, p.committed_offset) for p in answer.topics[0].partitions
        ]
        if version >= 2:
            everything = client.ask(OffsetFetchRequest(group_id="g", topics=None), version)
            assert [1] == [p.partition_index for p in everything.topics[0].partitions]

    def test_topics_are_named_by_id_from_version_10_on(self, client):
        """An unknown id is UNKNOWN_TOPIC_ID, both in a commit and in a fetch of offsets."""
        topic_id = client.broker.cluster.topic("t").topic_id
        committed = client.ask(commit_request("g", {("t", 1): 6}), 10)
        request = commit_request("g", {("t", 1): 6})
        known = type(request.topics[0])(topic_id=topic_id, partitions=request.topics[0].partitions)
        client.ask(type(request)(group_id="g", member_id="", topics=(known,)), 10)

        answer = client.ask(
            OffsetFetchRequest(
                groups=(
                    OffsetFetchRequestGroup(
                        group_id="g",
                        topics=(
                            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=(1,)),
                            OffsetFetchRequestTopics(partition_indexes=(1,)),
                        ),
                    ),
                    OffsetFetchRequestGroup(group_id="g", topics=None),
                )
            ),
            10,
        )

        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        assert unknown == committed.topics[0].partitions[0].error_code
        assert [[(OK, 6)], [(unknown, -1)]] == [
            [(p.error_code, p.committed_offset) for p in topic.partitions]
            for topic in answer.groups[0].topics
        ]
        assert [topic_id] == [topic.topic_id for topic in answer.groups[1].topics]

    @pytest.mark.parametrize(("version", "expected"), [(9, ["gone", "t"]), (10, [""])])
    def test_offsets_of_a_topic_without_an_id_are_listed_by_name_only(
        self, client, monkeypatch, version, expected
    ):
        """A topic that is no longer there has no id by which version 10 could name it."""
        client.commit({("t", 0): 5})
        committed = GroupOffsets.committed

        def with_another(self, group_id):
            found = committed(self, group_id)
            return {TopicPartition("gone", 0): found[TopicPartition("t", 0)], **found}

        monkeypatch.setattr(GroupOffsets, "committed", with_another)
        everything = OffsetFetchRequestGroup(group_id="g", topics=None)
        [group] = client.ask(OffsetFetchRequest(groups=(everything,)), version).groups
        assert expected == [topic.name for topic in group.topics]

    def test_only_members_commit_where_there_are_some(self, client):
        """A member must be of the current generation to commit."""
        member = alone(client)

        assert [UNKNOWN] == client.commit({("t", 0): 1})
        assert [UNKNOWN] == client.commit({("t", 0): 1}, member_id="nobody", generation_id=1)
        assert [ILLEGAL] == client.commit({("t", 0): 1}, member_id=member, generation_id=0)
        assert [OK] == client.commit({("t", 0): 1}, member_id=member, generation_id=1)

    def test_a_commit_in_the_middle_of_a_rebalance_is_refused(self, client):
        """A member that has joined but has no assignment yet cannot commit."""
        answer = client.join()

        assert [REBALANCE] == client.commit(
            {("t", 0): 1}, member_id=answer.member_id, generation_id=1
        )

    def test_a_commit_is_a_heartbeat(self, client):
        """A commit extends the member's session."""
        member = alone(client)
        for _ in range(3):
            client.now += 8
            client.commit({("t", 0): 1}, member_id=member, generation_id=1)

        assert OK == client.heartbeat(member, 1)

    @pytest.mark.parametrize(
        ("version", "expected"), [(8, ILLEGAL), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
    )
    def test_a_generation_of_no_group_is_refused(self, client, version, expected):
        """The error code depends on the version."""
        request = commit_request("g", {("t", 0): 1}, member_id="m", generation_id=3)

        assert expected == client.ask(request, version).topics[0].partitions[0].error_code

    def test_bad_partitions_are_refused_by_themselves(self, client):
        """Unknown partitions and too much metadata are refused; other partitions are accepted."""
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        assert [OK, missing, missing] == client.commit(
            {("t", 0): 1, ("t", 9): 1, ("no-such", 0): 1}
        )
        assert [ErrorCode.OFFSET_METADATA_TOO_LARGE] == client.commit(
            {("t", 0): 2}, metadata="x" * 4097
        )
        assert {("t", 0): (OK, 1)} == client.offsets("t", 0)


class TestOffsetsOfTransactions:
    """TxnOffsetCommit, and what other clients see of it."""

    @pytest.fixture(params=[2, 0], ids=["TV2", "TV1"])
    def producer(self, request):
        """Return a transactional producer of a cluster with or without transaction.version 2."""
        producer = TransactionalClient(broker_with({"t": 2}, transaction_version=request.param))
        producer.version = 5 if request.param == 2 else 4
        return producer

    def commit(self, producer, identity, *, group_id="g", version=None, offset=5, **fields):
        """Commit an offset in the transaction and return the error code."""
        request = txn_commit_request(group_id, identity, {("t", 0): offset}, **fields)
        answer = producer.ask(request, version or producer.version)
        return answer.topics[0].partitions[0].error_code

    def begin(self, producer):
        """Begin a transaction, add the group if needed, and return the producer's identity."""
        _, identity = producer.init()
        if producer.version < 5:
            assert OK == producer.add_offsets(identity, "g")
        return identity

    @pytest.mark.parametrize("committed", [True, False])
    def test_offsets_count_when_the_transaction_is_committed(self, producer, committed):
        """Until then a fetch returns the old offset, or an error if it requires stable ones."""
        client = GroupClient(producer.broker)
        client.commit({("t", 0): 1})
        identity = self.begin(producer)

        assert OK == self.commit(producer, identity)
        before = client.offsets("t", 0), client.offsets("t", 0, require_stable=True)
        version = END_TV2 if producer.version == 5 else END_TV1
        assert OK == producer.end(identity, committed=committed, version=version)[0]

        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert ({("t", 0): (OK, 1)}, {("t", 0): (unstable, -1)}) == before
        expected = {("t", 0): (OK, 5 if committed else 1)}
        assert expected == client.offsets("t", 0, require_stable=True)

    @pytest.mark.parametrize(
        ("version", "expected"),
        [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
    )
    def test_a_group_must_be_added_first(self, producer, version, expected):
        """AddOffsetsToTxn is required of clients before TV2 only."""
        _, identity = producer.init()

        assert expected == self.commit(producer, identity, version=version)

    def test_a_fenced_producer_commits_nothing(self, producer):
        """The epoch of a fenced producer is too old."""
        identity = self.begin(producer)
        producer.init()
        producer.init()

        assert ErrorCode.INVALID_PRODUCER_EPOCH == self.commit(producer, identity)

    def test_members_must_be_of_the_generation(self, producer):
        """A member id and generation must be right if given, and may be omitted (KIP-447)."""
        client = GroupClient(producer.broker)
        identity = self.begin(producer)
        assert ILLEGAL == self.commit(producer, identity, member_id="m", generation_id=1)
        member = alone(client)

        assert UNKNOWN == self.commit(producer, identity, member_id="m", generation_id=1)
        assert ILLEGAL == self.commit(producer, identity, member_id=member, generation_id=2)
        assert OK == self.commit(producer, identity, member_id=member, generation_id=1)
        assert OK == self.commit(producer, identity)

    def test_bad_requests_are_refused(self, producer):
        """Each request without a valid group, partition or transactional id is refused."""
        identity = self.begin(producer)

        assert ErrorCode.INVALID_GROUP_ID == self.commit(producer, identity, group_id="")
        request = txn_commit_request("g", identity, {("t", 9): 1})
        answer = producer.ask(request, producer.version)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert missing == answer.topics[0].partitions[0].error_code
        stranger = self.commit(producer, identity, group_id="h", transactional_id="nobody")
        assert ErrorCode.INVALID_PRODUCER_ID_MAPPING == stranger


def test_offsets_of_transactions_are_committed_by_topic_ids():
    """Version 6 names no topics, and tells an unknown group from a wrong generation (KIP-1319)."""
    producer = TransactionalClient(broker_with({"t": 2}))
    _, identity = producer.init()
    topic_id = producer.broker.cluster.existing_topic("t").topic_id

    def commit(*ids, **fields):
        request = txn_commit_request("g", identity, {("t", 0): 5}, **fields)
        topics = tuple(replace(request.topics[0], name="", topic_id=topic_id) for topic_id in ids)
        answer = producer.ask(replace(request, topics=topics), 6)
        return [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics]

    other = UUID(int=9)
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert [(topic_id, missing)] == commit(topic_id, member_id="m", generation_id=1)
    assert [(other, ErrorCode.UNKNOWN_TOPIC_ID), (topic_id, OK)] == commit(other, topic_id)
    assert OK == producer.end(identity, committed=True, version=END_TV2)[0]
    assert {("t", 0): (OK, 5)} == GroupClient(producer.broker).offsets("t", 0)


class TestAdministration:
    """What administrators see and do."""

    def test_groups_are_listed(self, client):
        """ListGroups filters by state and type, ignoring case."""
        alone(client)
        client.group_id = "h"
        client.commit({("t", 0): 1})

        def listed(states=(), types=()):
            request = ListGroupsRequest(states_filter=states, types_filter=types)
            return [
                (group.group_id, group.group_state, group.protocol_type, group.group_type)
                for group in client.ask(request).groups
            ]

        stable, empty = ("g", "Stable", "consumer", "Classic"), ("h", "Empty", "", "Classic")
        assert [stable, empty] == listed()
        assert [stable] == listed(states=("stable", "Dead"))
        assert [stable, empty] == listed(types=("classic",))
        assert [] == listed(types=("consumer",))

    def test_groups_are_described(self, client):
        """While the group is stable, members are described with their assignments."""
        member = alone(client)

        (group,) = client.ask(
            DescribeGroupsRequest(groups=("g",), include_authorized_operations=True)
        ).groups

        assert (OK, "Stable", "consumer", "range", 0b110101001000) == (
            group.error_code,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            group.authorized_operations,
        )
        assert [(member, "test", b"m", b"all")] == [
            (m.member_id, m.client_id, m.member_metadata, m.member_assignment)
            for m in group.members
        ]
        client.join()
        (group,) = client.ask(DescribeGroupsRequest(groups=("g",))).groups
        assert ("PreparingRebalance", "", -(2**31)) == (
            group.group_state,
            group.protocol_data,
            group.authorized_operations,
        )
        assert {b""} == {m.member_assignment for m in group.members}

    @pytest.mark.parametrize(("version", "expected"), [(5, OK), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
    def test_an_unknown_group_is_dead(self, client, version, expected):
        """Since version 6 the response has an error code as well (KIP-1043)."""
        (group,) = client.ask(DescribeGroupsRequest(groups=("g",)), version).groups

        assert (expected, "Dead") == (group.error_code, group.group_state)

    def test_groups_without_members_can_be_deleted(self, client):
        """The group's offsets are deleted with it."""
        alone(client)

        def delete(*names):
            results = client.ask(DeleteGroupsRequest(groups_names=names)).results
            assert {None} == {result.error_message for result in results}
            return [(result.group_id, result.error_code) for result in results]

        assert [("g", ErrorCode.NON_EMPTY_GROUP), ("h", ErrorCode.GROUP_ID_NOT_FOUND)] == delete(
            "g", "h"
        )
        client.group_id = "h"
        client.commit({("t", 0): 1})
        assert [("h", OK)] == delete("h")
        assert {("t", 0): (OK, -1)} == client.offsets("t", 0)


def test_a_marker_ends_the_offsets_of_its_partition_only():
    """A transaction may commit offsets of groups whose coordinators get a marker each."""
    partition, producer = TopicPartition("t", 0), ProducerIdAndEpoch(7, 0)
    offsets = GroupOffsets(SimpleNamespace(is_durable=False))
    for group_id in ("g", "h"):
        offsets.commit_in_transaction(producer, group_id, {partition: CommittedOffset(5)}, now_ms=0)
    first, second = (coordinator_partition(group_id) for group_id in ("g", "h"))
    assert first != second

    offsets.append_marker(first, TransactionMarker(7, 0, True, 0, 1, 0))
    assert {partition: CommittedOffset(5)} == offsets.committed("g")
    assert ({}, {partition}) == (offsets.committed("h"), offsets.unstable("h"))
    offsets.append_marker(second, TransactionMarker(7, 0, False, 0, 1, 0))
    assert ({}, set()) == (offsets.committed("h"), offsets.unstable("h"))


def test_an_empty_group_has_no_timers():
    """An empty group has no timers."""
    client = client_of()
    member = alone(client)
    client.leave((member, None))

    assert None is client.broker.tick(NOW + 1)
