"""Transactions and groups survive a close or kill of a broker that has a data directory."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.groups.group_offsets import encode_offsets
from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog, decode_versioned
from spark_kafka_sink.devbroker.transactions.transaction_coordinator import (
    TransactionLogValue,
    encode_transaction,
)
from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionMetadata
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.devbroker.broker_requests import NOW, ask
from tests.support.devbroker.durable_cluster import DurableCluster
from tests.support.devbroker.group_client import WITH_NAMES, GroupClient, txn_commit_request
from tests.support.devbroker.transactional_client import END_TV1, PRODUCE_TV1, TransactionalClient

OK = ErrorCode.NONE


class World:
    """A cluster with a topic, and clients that reconnect after each restart."""

    def __init__(self, path, **settings):
        self.cluster = DurableCluster(path, **settings)
        self.client = TransactionalClient(self.cluster.broker)
        self.group = GroupClient(self.cluster.broker)
        broker = self.cluster.broker
        if broker.cluster.topic("t") is None:
            broker.cluster.create_topic("t", partitions=2, config=broker.settings.topic_defaults)

    def again(self, how, seconds=0.0):
        """Close or kill the broker, and open the next one after some seconds."""
        self.cluster.now += seconds
        self.client.broker = self.group.broker = getattr(self.cluster, how)()
        self.at(self.cluster.now)

    def at(self, now):
        """Set the time to `now`."""
        self.client.now = self.group.now = now
        self.client.broker.tick(now)


@pytest.fixture(params=["restart", "kill"])
def how(request):
    return request.param


@pytest.fixture
def make(tmp_path):
    worlds = []

    def make(**settings):
        worlds.append(World(tmp_path / "data", **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.cluster.close()


@pytest.fixture
def world(make):
    return make()


@pytest.mark.parametrize("transaction_version", [0, 2])
def test_an_open_transaction_continues_after_a_restart(make, how, transaction_version):
    """Records from before and after the restart are committed together."""
    world = make(transaction_version=transaction_version)
    client = world.client
    versions = {} if transaction_version else {"version": PRODUCE_TV1}
    _, identity = client.init()
    if not transaction_version:
        client.add(identity, 0, 1)
    client.produce(identity, 0, 0, value=b"before", **versions)

    world.again(how)

    assert "Ongoing" == client.state()
    assert [] == client.read_committed()
    assert [(OK, 1)] == client.produce(identity, 1, 0, value=b"after", **versions)
    code, _ = client.end(
        identity, committed=True, **({} if transaction_version else {"version": END_TV1})
    )
    assert OK == code
    assert [b"before", b"after"] == client.read_committed()


def test_ids_and_epochs_are_remembered(world, how):
    """The next producer with an id gets the next epoch and fences the previous one."""
    _, first = world.client.init()
    world.again(how)
    _, second = world.client.init()
    world.again(how)

    assert (first[0], first[1] + 1) == second
    ((code, _),) = world.client.produce(first, 0)
    assert code in {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}


@pytest.mark.parametrize("committed", [True, False])
def test_a_decided_transaction_is_completed_after_a_restart(make, how, committed):
    """A transaction whose markers were not yet written ends as the response said."""
    world = make(transaction_marker_delay_ms=500)
    client = world.client
    _, identity = client.init()
    client.produce(identity, 0, 0, 1, value=b"v")
    code, _ = client.end(identity, committed=committed)
    assert (OK, True) == (code, client.state() in {"PrepareCommit", "PrepareAbort"})

    world.again(how)

    assert ("CompleteCommit" if committed else "CompleteAbort") == client.state()
    for partition in (0, 1):
        assert ([b"v"] if committed else []) == client.read_committed(partition)
        assert 2 == client.latest(partition=partition)


def test_a_timeout_counts_from_the_beginning(make, how):
    """A restart does not extend a transaction."""
    world = make(transaction_abort_interval_ms=1000)
    client = world.client
    _, identity = client.init(timeout_ms=5000)
    client.produce(identity, 0)

    world.again(how, seconds=3)
    world.at(NOW + 4.9)
    assert "Ongoing" == client.state()
    world.at(NOW + 7)

    assert "CompleteAbort" == client.state()
    assert (2, []) == (client.latest(), client.read_committed())


def test_a_transaction_that_timed_out_meanwhile_is_aborted(world, how):
    """The first check after the restart aborts the transaction."""
    _, identity = world.client.init(timeout_ms=5000)
    world.client.produce(identity, 0)

    world.again(how, seconds=60)
    world.at(world.cluster.now + 10)

    assert "CompleteAbort" == world.client.state()


def test_ids_that_have_expired_stay_forgotten(make, how):
    """The expiration of a transactional id is written to the log too."""
    world = make(transactional_id_expiration_ms=1000)
    world.client.init()
    world.at(NOW + 2)
    assert None is world.client.state()

    world.again(how)

    assert [] == world.client.broker.cluster.transactions.all(0)


def test_markers_are_accepted_after_a_coordinator_has_moved_and_restarted(world, how):
    """The coordinator epoch never decreases: markers with an older one would be fenced."""
    client = world.client
    _, identity = client.init()
    client.produce(identity, 0)
    world.again(how)
    world.again(how)

    code, identity = client.end(identity, committed=True)

    assert (OK, "CompleteCommit") == (code, client.state())
    (entry,) = client.broker.cluster.topic("t").partitions[0].log.producer_state.entries()
    assert 1 == entry.coordinator_epoch


def test_offsets_of_groups_are_remembered(world, how):
    """The last offset of each partition is restored, with its metadata."""
    world.group.commit({("t", 0): 3, ("t", 1): 4})
    world.group.commit({("t", 0): 5}, metadata="x")

    world.again(how)

    assert {("t", 0): (OK, 5), ("t", 1): (OK, 4)} == world.group.offsets("t", 0, 1)
    offsets = world.group.broker.cluster.groups.offsets
    assert "x" == offsets.committed("g")[TopicPartition("t", 0)].metadata
    assert "Empty" == world.group.state()


def test_deleted_offsets_remain_deleted_after_a_restart(world, how):
    """Offsets are deleted with their group and with their topic."""
    other = GroupClient(world.cluster.broker, "other")
    cluster = world.cluster.broker.cluster
    cluster.create_topic("gone", partitions=1, config=cluster.settings.topic_defaults)
    world.group.commit({("t", 0): 3})
    other.commit({("t", 0): 3, ("gone", 0): 4})
    ask(world.cluster.broker, DeleteGroupsRequest(groups_names=("g",)))
    cluster.delete_topic(cluster.topic("gone"))

    world.again(how)

    assert None is world.group.state()
    groups = world.group.broker.cluster.groups
    assert {"other"} == {group.group_id for group in groups.all()}
    assert [TopicPartition("t", 0)] == list(groups.offsets.committed("other"))


def test_a_deleted_offset_does_not_come_back_with_its_transaction(world, how):
    """An offset that was pending when it was deleted is not there after a restart, nor a commit."""
    client, group = world.client, world.group
    group.commit({("t", 0): 1})
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("t", 0): 7}), WITH_NAMES)
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequestTopic(name="t", partitions=(partition,))
    ask(group.broker, OffsetDeleteRequest(group_id="g", topics=(topic,)))

    world.again(how)

    assert {("t", 0): (OK, -1)} == group.offsets("t", 0, require_stable=True)
    assert OK == client.end(identity, committed=True)[0]
    assert {("t", 0): (OK, -1)} == group.offsets("t", 0)

    world.again(how)

    assert {("t", 0): (OK, -1)} == group.offsets("t", 0)


def test_a_pending_offset_is_deleted_with_its_topic(world, how):
    """It never applies, before and after a restart; those of other topics do."""
    client, group = world.client, world.group
    cluster = client.broker.cluster
    gone = cluster.create_topic("gone", partitions=1, config=cluster.settings.topic_defaults)
    group.commit({("gone", 0): 1})
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("gone", 0): 7, ("t", 0): 8}), WITH_NAMES)
    client.ask(txn_commit_request("other", identity, {("gone", 0): 9}), WITH_NAMES)
    cluster.delete_topic(gone)

    def unstable():
        groups = client.broker.cluster.groups
        return [groups.offsets.unstable(name) for name in ("g", "other")]

    expected = [{TopicPartition("t", 0)}, set()]
    assert expected == unstable()
    world.again(how)
    assert expected == unstable()
    assert OK == client.end(identity, committed=True)[0]

    def committed():
        groups = client.broker.cluster.groups
        return {
            group.group_id: {p: each.offset for p, each in offsets.items()}
            for group in groups.all()
            for offsets in [groups.offsets.committed(group.group_id)]
        }

    assert {"g": {TopicPartition("t", 0): 8}, "other": {}} == committed()
    world.again(how)
    assert {"g": {TopicPartition("t", 0): 8}, "other": {}} == committed()


def test_pending_offsets_of_missing_topics_are_removed_when_the_log_is_read(world):
    """If the disk was full when a topic was deleted, the log still has offsets of transactions."""
    client = world.client
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("t", 0): 7}), WITH_NAMES)
    groups = client.broker.cluster.groups

    groups.load((), world.cluster.now)

    assert set() == groups.offsets.unstable("g")
    assert OK == client.end(identity, committed=True)[0]
    assert {} == groups.offsets.committed("g")
    assert "Empty" == world.group.state()


def test_an_offset_committed_after_a_deletion_outlives_it(world, how, monkeypatch):
    """A deletion that a full disk has delayed does not delete what was committed since."""
    group, groups = world.group, world.cluster.broker.cluster.groups
    group.commit({("t", 0): 3, ("t", 1): 4})
    with monkeypatch.context() as patch:
        refused = RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        patch.setattr(CoordinatorLog, "append", Mock(side_effect=refused))
        groups.delete_topics({"t"})
    group.commit({("t", 0): 5})
    groups.offsets.write_deletions()

    world.again(how)
    assert {("t", 0): (OK, 5), ("t", 1): (OK, -1)} == group.offsets("t", 0, 1)


@pytest.mark.parametrize("committed", [True, False])
def test_a_group_with_only_pending_offsets_is_deleted_with_them(world, how, committed):
    """Neither a restart nor the end of the transaction brings the group or its offset back."""
    client = world.client
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("t", 0): 7}), WITH_NAMES)
    (result,) = ask(client.broker, DeleteGroupsRequest(groups_names=("g",))).results

    assert (OK, None) == (result.error_code, world.group.state())
    assert set() == client.broker.cluster.groups.offsets.unstable("g")
    world.again(how)
    assert None is world.group.state()
    assert set() == client.broker.cluster.groups.offsets.unstable("g")
    assert OK == client.end(identity, committed=committed)[0]
    world.again(how)
    assert None is world.group.state()
    assert {} == client.broker.cluster.groups.offsets.committed("g")


def test_the_deletion_of_an_offset_creates_no_group(world, how):
    """A log that has been cleaned may have only the deletion of an offset left."""
    place = TopicPartition("t", 0)
    log = world.group.broker.cluster.groups._log
    log.append("g", encode_offsets("g", [(place, None)], now_ms=0))

    world.again(how)

    assert None is world.group.state()


@pytest.mark.parametrize("committed", [True, False])
def test_a_group_without_offsets_any_more_stays(world, how, committed):
    """A group that an offset has created exists until it is deleted, as in Kafka."""
    client, group = world.client, world.group
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("t", 0): 7}), WITH_NAMES)
    client.end(identity, committed=committed)
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topic = OffsetDeleteRequestTopic(name="t", partitions=(partition,))
    assert OK == ask(group.broker, OffsetDeleteRequest(group_id="g", topics=(topic,))).error_code

    assert "Empty" == group.state()
    world.again(how)
    assert "Empty" == group.state()


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_transaction_count_once_it_is_committed(world, how, committed):
    """This holds before a restart, after it, and after another one."""
    client, group = world.client, world.group
    group.commit({("t", 0): 1})
    _, identity = client.init()
    client.ask(txn_commit_request("g", identity, {("t", 0): 7}), WITH_NAMES)

    world.again(how)

    assert {("t", 0): (OK, 1)} == group.offsets("t", 0)
    unstable = {("t", 0): (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)}
    assert unstable == group.offsets("t", 0, require_stable=True)
    assert OK == client.end(identity, committed=committed)[0]
    expected = {("t", 0): (OK, 7 if committed else 1)}
    assert expected == group.offsets("t", 0, require_stable=True)

    world.again(how)

    assert expected == group.offsets("t", 0, require_stable=True)


def test_members_go_on_without_a_rebalance(world, how):
    """A group keeps its generation, leader and assignments."""
    group = world.group
    member = group.join().member_id
    group.sync(member, 1, {member: b"all"})

    world.again(how)

    assert ("Stable", OK) == (group.state(), group.heartbeat(member, 1))
    assert b"all" == group.sync(member, 1).assignment
    assert [OK] == group.commit({("t", 0): 2}, member_id=member, generation_id=1)


def test_members_that_do_not_come_back_are_removed(world, how):
    """Members have their session timeout to come back."""
    member = world.group.join(session_timeout_ms=10_000).member_id
    world.group.sync(member, 1, {member: b"all"})

    world.again(how)
    world.at(world.cluster.now + 9)
    assert "Stable" == world.group.state()
    world.at(world.cluster.now + 60)
    assert "Empty" == world.group.state()

    world.again(how)

    assert "Empty" == world.group.state()
    assert 2 == world.group.broker.cluster.groups.find("g").generation_id


def flip(world, pattern, position):
    """Change one byte of the only file that matches the pattern, and return its path."""
    (path,) = world.cluster.path.glob(pattern)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("position", [-1, -30, 10])
@pytest.mark.parametrize(
    ("topic", "means"),
    [
        ("__consumer_offsets", "lose their committed offsets"),
        ("__transaction_state", "start again from nothing"),
    ],
)
def test_the_error_for_a_damaged_file_says_how_to_recover(world, topic, means, position):
    """After a clean shutdown the broker refuses to start, and following its advice works."""
    world.group.commit({("t", 0): 3})
    world.client.init()
    world.client.init()
    world.cluster.close()
    path = flip(world, f"{topic}-*/*.log", position)

    with pytest.raises(ConfigError, match=f"{path}, byte \\d+: .*move the directory.*{means}"):
        world.cluster.open()

    path.parent.rename(world.cluster.path.parent / "moved")
    world.cluster.open()
    world.group.broker = world.cluster.broker
    expected = 3 if topic == "__transaction_state" else -1
    assert {("t", 0): (OK, expected)} == world.group.offsets("t", 0)


def test_a_file_that_is_cut_off_after_a_kill_is_named(world, caplog):
    """Earlier commits are kept; a message names the file that was cut and what was lost."""
    world.group.commit({("t", 0): 3})
    world.group.commit({("t", 0): 4})
    world.cluster.end()
    path = flip(world, "__consumer_offsets-*/*.log", -1)

    world.cluster.open()

    world.group.broker = world.cluster.broker
    assert {("t", 0): (OK, 3)} == world.group.offsets("t", 0)
    messages = [record.getMessage() for record in caplog.records]
    (message,) = [message for message in messages if "truncated" in message]
    assert f"truncated {path}, byte {path.stat().st_size}:" in message
    assert "Later offset commits are lost" in message
    assert "restore the file from a backup" in message


def test_clients_do_not_see_the_coordinators_topics(world):
    """Coordinator topics are only files and cannot be listed or read."""
    world.group.commit({("t", 0): 3})
    world.client.init()

    assert ["t"] == [topic.name for topic in world.client.broker.cluster.topics]
    assert 1 == len(list(world.cluster.path.glob("__consumer_offsets-*")))
    assert 1 == len(list(world.cluster.path.glob("__transaction_state-*")))


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_an_id_that_has_had_no_transaction_yet_is_written_as_kafka_does(transaction_version):
    """It has no epoch, other producer ids, partitions, start time or client version."""
    fresh = TransactionMetadata(
        transactional_id="orders", producer_id=7, timeout_ms=60_000, last_update_ms=3
    )
    _, value = encode_transaction(fresh, transaction_version=transaction_version)
    assert TransactionLogValue(
        producer_id=7,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=-1,
        transaction_timeout_ms=60_000,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=3,
        transaction_start_timestamp_ms=-1,
        client_transaction_version=0,
    ) == decode_versioned(TransactionLogValue, value)


@pytest.mark.parametrize(
    ("refused", "answered"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD),
    ],
)
def test_only_a_disk_failure_makes_clients_look_for_another_coordinator(refused, answered):
    """Any other refusal by the log keeps its error code."""

    def append(*_, **__):
        raise RefusedError(refused, "refused")

    partition = SimpleNamespace(leader_epoch=0, append=append)
    logs = SimpleNamespace(is_durable=True, data=None, log=lambda *_: partition)
    log = CoordinatorLog(logs, "__consumer_offsets", lambda _: 0)
    log.open(uuid4(), now=1.0)
    with pytest.raises(RefusedError) as caught:
        log.append("group", [(b"key", b"value")])
    assert answered == caught.value.error_code
