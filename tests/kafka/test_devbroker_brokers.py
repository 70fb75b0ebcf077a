"""Three embedded brokers and three of Apache Kafka: the same answers from each of the three.

A topic has replicas on two of the brokers. Its leader, its follower and the third broker get the
same requests before the leader stops, while it is down, and after it is back.
"""

from __future__ import annotations

import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.describe_cluster import DescribeClusterRequest
from spark_kafka_sink.protocol.messages.elect_leaders import PREFERRED, UNCLEAN
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafka_sink.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from spark_kafka_sink.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.devbroker.admin_requests import elect_leaders, list_reassignments, reassign
from tests.support.devbroker.broker_asker import (
    FETCH,
    METADATA,
    PRODUCE,
    Asker,
    creatable,
    produce_request,
)
from tests.support.record.plain_batches import plain_batch

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

NODES = (1, 2, 3)
LEADER, FOLLOWER, STRANGER = NODES
NAMES = {LEADER: "the first leader", FOLLOWER: "its follower", STRANGER: "a stranger"}
SECONDS = 120


class Brokers:
    """Three brokers that get requests one by one, and that can be stopped and started."""

    def __init__(self, ports, stop, start):
        self._ports = ports
        self.stop = stop
        self.start = start

    def ask(self, node_id, request, version):
        """Send a request to one broker on a new connection."""
        asker = self.asker(node_id)
        try:
            return asker.ask(request, version)
        finally:
            asker.close()

    def asker(self, node_id):
        """Return an `Asker` for one broker."""
        return Asker(self._ports[node_id])

    def create(self, *replicas, min_insync_replicas=1):
        """Create a topic of one partition on these brokers, and wait until all brokers know it."""
        name = f"brokers-{uuid.uuid4().hex}"
        # The records have the lowest possible timestamps.
        configs = {"min.insync.replicas": str(min_insync_replicas), "retention.ms": "-1"}
        asker = self.asker(STRANGER)
        (result,) = asker.create(creatable(name, -1, -1, [(0, replicas)], **configs))
        asker.close()
        assert 0 == result.error_code
        self.wait(
            lambda: all(self.described(node, name)["isr"] == sorted(replicas) for node in NODES)
        )
        # The leader may not have taken over the partition yet.
        self.wait(lambda: not self.listed(replicas[0], name)[0][0])
        return name

    def wait(self, condition):
        """Wait until a condition holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def described(self, node_id, topic, version=METADATA):
        """Return a broker's metadata of the topic's partition."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        (found,) = self.ask(node_id, request, version).topics
        if not found.partitions:
            return {"isr": []}
        (p,) = found.partitions
        return {
            "error": p.error_code,
            "leader": p.leader_id,
            "epoch": p.leader_epoch,
            "replicas": list(p.replica_nodes),
            "isr": sorted(p.isr_nodes),
            "offline": list(p.offline_replicas),
        }

    def placed(self, node_id, topic):
        """Return leader, replicas and in-sync replicas of the topic's partitions."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        (found,) = self.ask(node_id, request, METADATA).topics
        return [(p.leader_id, list(p.replica_nodes), list(p.isr_nodes)) for p in found.partitions]

    def running(self, node_id):
        """Return the brokers that a broker knows."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        answer = self.ask(node_id, request, 0)
        return answer.error_code, sorted(broker.broker_id for broker in answer.brokers)

    def produced(self, node_id, topic, *, acks=-1, version=PRODUCE):
        """Return the answer to a Produce request."""
        request = produce_request(topic, plain_batch(2), acks=acks)
        answer = self.ask(node_id, request, version)
        (p,) = answer.responses[0].partition_responses
        hint = p.current_leader
        return (
            p.error_code,
            p.base_offset,
            p.log_start_offset,
            (hint.leader_id, hint.leader_epoch),
            [node.node_id for node in answer.node_endpoints],
        )

    def fetched(self, node_id, topic, *, version=FETCH, epoch=-1, last_epoch=-1, offset=0):
        """Return the answer to a Fetch request."""
        partition = FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=10**6,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
        )
        if version < 13:
            asked = FetchTopic(topic=topic, partitions=(partition,))
        else:
            request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
            topic_id = self.ask(node_id, request, METADATA).topics[0].topic_id
            asked = FetchTopic(topic_id=topic_id, partitions=(partition,))
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(asked,))
        answer = self.ask(node_id, request, version)
        (p,) = answer.responses[0].partitions
        hint, diverging = p.current_leader, p.diverging_epoch
        return (
            p.error_code,
            bool(p.records),
            (hint.leader_id, hint.leader_epoch),
            (diverging.epoch, diverging.end_offset),
            [node.node_id for node in answer.node_endpoints],
        )

    def listed(self, node_id, topic, *, timestamp=-1, epoch=-1):
        """Return the answer to a ListOffsets request."""
        asker = self.asker(node_id)
        try:
            return asker.offsets((topic, 0, timestamp, epoch))
        finally:
            asker.close()

    def epoch_ends(self, node_id, topic, *, epoch, current=-1):
        """Return the answer to an OffsetForLeaderEpoch request."""
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=(
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=(
                        OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=current, leader_epoch=epoch
                        ),
                    ),
                ),
            ),
        )
        (p,) = self.ask(node_id, request, 4).topics[0].partitions
        return p.error_code, p.leader_epoch, p.end_offset


@pytest.fixture(params=["kafka_cluster", "kafka_cluster_3"])
def kafka_brokers(request):
    """Return three brokers of Apache Kafka."""
    cluster = request.getfixturevalue(request.param)
    by_id = {broker.node_id: broker for broker in cluster.brokers}

    def start(node_id):
        by_id[node_id].start()
        cluster.wait_until_ready()

    return Brokers(
        {i: int(broker.address.rpartition(":")[2]) for i, broker in by_id.items()},
        lambda node_id: by_id[node_id].stop(),
        start,
    )


@pytest.fixture
def our_brokers():
    """Yield three embedded brokers."""
    with DevBroker(brokers=3) as cluster:
        ports = {i: int(a.rpartition(":")[2]) for i, a in cluster.addresses.items()}
        yield Brokers(ports, cluster.stop, cluster.start)


def everything(brokers, topic, nodes, when):
    """Send every request to each of these brokers."""
    seen = {}
    for node_id in nodes:

        def note(what, answer, node_id=node_id):
            seen[f"{when}, {NAMES[node_id]}: {what}"] = answer

        note("metadata", brokers.described(node_id, topic))
        note("old metadata", brokers.described(node_id, topic, version=0).get("error"))
        for version in (9, 11):
            note(f"produce {version}", brokers.produced(node_id, topic, version=version))
        for epoch in (-1, 0, 1, 2):
            for version in (10, 12, 16, 17):
                answer = brokers.fetched(node_id, topic, version=version, epoch=epoch)
                note(f"fetch {version} in epoch {epoch}", answer)
            for timestamp in (-1, -2, -3, 0):
                answer = brokers.listed(node_id, topic, timestamp=timestamp, epoch=epoch)
                note(f"offset of {timestamp} in epoch {epoch}", answer)
            for asked in (0, 1, 2):
                answer = brokers.epoch_ends(node_id, topic, epoch=asked, current=epoch)
                note(f"end of epoch {asked} in epoch {epoch}", answer)
        for last_epoch, offset in [(0, 0), (0, 6), (1, 6), (2, 0)]:
            answer = brokers.fetched(node_id, topic, last_epoch=last_epoch, offset=offset)
            note(f"fetch {offset} after epoch {last_epoch}", answer)
    return seen


def leaders_and_followers(brokers):
    """Send the requests before, while, and after the leader is down."""
    topic = brokers.create(LEADER, FOLLOWER)
    strict = brokers.create(FOLLOWER, LEADER, min_insync_replicas=2)
    single = brokers.create(LEADER)
    seen = everything(brokers, topic, NODES, "before")
    seen["enough replicas"] = brokers.produced(FOLLOWER, strict)
    brokers.stop(LEADER)
    try:
        left = (FOLLOWER, STRANGER)
        brokers.wait(lambda: all(brokers.described(n, topic)["leader"] == FOLLOWER for n in left))
        brokers.wait(lambda: all(brokers.described(n, strict)["isr"] == [FOLLOWER] for n in left))
        brokers.wait(lambda: all(LEADER not in brokers.running(n)[1] for n in left))
        brokers.wait(lambda: not brokers.produced(FOLLOWER, topic)[0])
        seen |= everything(brokers, topic, left, "while")
        seen["too few replicas"] = [
            brokers.produced(FOLLOWER, strict, acks=acks) for acks in (-1, 1)
        ]
        # Versions with and without KIP-966 report the last in-sync replica differently.
        leaderless = brokers.described(STRANGER, single)
        seen["no leader"] = [leaderless[key] for key in ("error", "leader", "replicas", "offline")]
        seen["no leader to write to"] = brokers.produced(STRANGER, single)[0]
        seen["running"] = brokers.running(STRANGER)
    finally:
        brokers.start(LEADER)
    brokers.wait(lambda: all(brokers.described(n, topic)["isr"] == [1, 2] for n in NODES))
    brokers.wait(lambda: all(brokers.described(n, single)["leader"] == LEADER for n in NODES))
    brokers.wait(lambda: not brokers.produced(LEADER, single)[0])
    seen |= everything(brokers, topic, NODES, "afterwards")
    seen["enough replicas again"] = brokers.produced(FOLLOWER, strict)
    return seen


def coordinators(brokers):
    """Find the coordinators, then send them and the other brokers a coordinator's requests."""
    found = {}
    for key_type, key in [(0, "a group"), (1, "an id")]:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))

        def named(request=request):
            answers = [brokers.ask(node, request, 4).coordinators[0] for node in NODES]
            return {c.node_id for c in answers if c.error_code == ErrorCode.NONE}

        brokers.wait(lambda named=named: len(named()) == 1 and -1 not in named())
        (found[key_type],) = named()
    init = InitProducerIdRequest(transactional_id="an id", transaction_timeout_ms=1000)
    read = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="a group", topics=()),))

    def error_for_group(node_id):
        return brokers.ask(node_id, read, 8).groups[0].error_code

    def error_for_id(node_id):
        return brokers.ask(node_id, init, 4).error_code

    # A coordinator may not be loaded yet, even if brokers already return it.
    brokers.wait(lambda: not error_for_group(found[0]))
    brokers.wait(lambda: not error_for_id(found[1]))
    return {
        "of groups": sorted((node == found[0], error_for_group(node)) for node in NODES),
        "of transactions": sorted((node == found[1], error_for_id(node)) for node in NODES),
    }


def new_topics_while_one_is_down(brokers):
    """Create topics whose replicas need the broker that is down, and others."""
    stopped, *others = NODES
    asked = {
        "three replicas": {"partitions": 4, "replication": 3},
        "four replicas": {"replication": 4},
        "assigned": {"partitions": -1, "assignments": [(0, [stopped, others[0]])]},
        "assigned to the stopped": {"partitions": -1, "assignments": [(0, [stopped])]},
        "assigned to a stranger": {"partitions": -1, "assignments": [(0, [others[0], 77])]},
    }
    names = {what: f"down-{uuid.uuid4().hex}" for what in asked}
    seen = {}
    brokers.stop(stopped)
    try:
        brokers.wait(lambda: all(stopped not in brokers.running(n)[1] for n in others))
        for what, fields in asked.items():
            asker = brokers.asker(others[0])
            (result,) = asker.create(creatable(names[what], **fields))
            asker.close()
            seen[what] = result.error_code
            if not result.error_code:
                brokers.wait(lambda what=what: brokers.placed(others[0], names[what]))
                seen[f"{what}, placed"] = [
                    (len(replicas), sorted(isr), stopped in replicas, leader in others)
                    for leader, replicas, isr in brokers.placed(others[0], names[what])
                ]
    finally:
        brokers.start(stopped)
    brokers.wait(
        lambda: all(
            sorted(isr) == list(NODES)
            for _, _, isr in brokers.placed(others[0], names["three replicas"])
        )
    )
    return seen


@pytest.mark.parametrize(
    "scenario", [leaders_and_followers, coordinators, new_topics_while_one_is_down]
)
def test_three_brokers_give_the_same_answers_as_kafka(kafka_brokers, our_brokers, scenario):
    """The answers are the same for every broker, whichever broker is the leader."""
    theirs, ours = scenario(kafka_brokers), scenario(our_brokers)
    assert theirs.keys() == ours.keys()
    assert {} == {key: (theirs[key], ours[key]) for key in theirs if theirs[key] != ours[key]}


def moved_replicas(brokers):
    """Move a partition between brokers, also to one that is down, and elect its leaders."""
    topic = brokers.create(1, 2)
    seen = {}

    def note(what, replicas, isr):
        def state():
            found = brokers.described(1, topic)
            return found["replicas"], found["isr"]

        brokers.wait(lambda: state() == (replicas, isr))
        found = brokers.described(1, topic)
        seen[what] = found["leader"], found["epoch"]

    def move(what, replicas):
        answer = brokers.ask(1, reassign((topic, 0, replicas)), 0)
        seen[f"{what}, code"] = answer.responses[0].partitions[0].error_code

    def elect(what, election_type=PREFERRED):
        answer = brokers.ask(1, elect_leaders({topic: [0]}, election_type), 2)
        results = answer.replica_election_results[0].partition_result
        seen[f"{what}, code"] = results[0].error_code

    def moving():
        topics = brokers.ask(1, list_reassignments({topic: [0]}), 0).topics
        return [
            (list(p.replicas), list(p.adding_replicas), list(p.removing_replicas))
            for found in topics
            for p in found.partitions
        ]

    move("to others", [2, 3])
    note("to others", [2, 3], [2, 3])
    move("in another order", [3, 2])
    note("in another order", [3, 2], [2, 3])
    elect("of the preferred leader")
    brokers.wait(lambda: brokers.described(1, topic)["leader"] == 3)
    note("of the preferred leader", [3, 2], [2, 3])
    elect("once more")
    elect("unclean", UNCLEAN)
    brokers.stop(3)
    try:
        note("while one is down", [3, 2], [2])
        elect("of the one that is down")
        move("with the one that is down", [1, 3])
        note("with the one that is down", [1, 3], [1])
        move("away from it", [1, 2])
        note("away from it", [1, 2], [1, 2])
        move("to the one that is down", [2, 3])
        brokers.wait(moving)
        seen["moving"] = moving()
        note("while moving", [2, 3, 1], [1, 2])
        move("cancelled", None)
        note("cancelled", [2, 1], [1, 2])
        move("cancelled once more", None)
        move("to the one that is down again", [2, 3])
    finally:
        brokers.start(3)
    note("afterwards", [2, 3], [2, 3])
    seen["moving afterwards"] = moving()
    return seen


@pytest.mark.parametrize("kafka_brokers", ["kafka_cluster"], indirect=True)
def test_replicas_move_as_in_kafka(kafka_brokers, our_brokers):
    """Leaders, epochs and errors are those of the newest version after each move."""
    theirs, ours = moved_replicas(kafka_brokers), moved_replicas(our_brokers)
    assert theirs == ours
