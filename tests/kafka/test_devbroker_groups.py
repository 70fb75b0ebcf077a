"""Consumer groups of the embedded broker and of Apache Kafka: the same answers.

The method is that of test_devbroker_conformance. Each member has its own connection, on which it
sends nothing else while it waits for the others. Member ids differ between brokers, so they are
recorded as numbers, in the order in which they were assigned.
"""

from __future__ import annotations

import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.delete_groups import DeleteGroupsRequest
from spark_kafka_sink.protocol.messages.describe_groups import DescribeGroupsRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.leave_group import LeaveGroupRequest
from spark_kafka_sink.protocol.messages.list_groups import ListGroupsRequest
from tests.support.devbroker.broker_asker import Asker
from tests.support.devbroker.group_client import (
    COMMIT,
    FETCH_OFFSETS,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    commit_request,
    fetch_offsets_request,
    fetched_offsets,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
    txn_commit_request,
)
from tests.support.devbroker.transactional_client import TransactionalRequests
from tests.support.kafka.kafka_files import KAFKA_3
from tests.support.network.raw_client import RawClient

PATIENCE_SECONDS = 120
LOADING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
SHORT_SESSION_MS = 6_000
LONG_SESSION_MS = 120_000
#: The operations that 3.9 supports: read, delete and describe. Since 4.0 groups have configs, too.
OLD_OPERATIONS = 0b101001000


class Group:
    """A group, a topic, and the recorded answers about them."""

    def __init__(self, port):
        """Create the topic, and wait until the group coordinator is ready."""
        self.port = port
        self.asker = Asker(port)
        self.group_id = f"conformance-{uuid.uuid4().hex}"
        self.notes = []
        self.members = []
        self.clients = []
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=(self.group_id,))
        self.wait_for(lambda: self.asker.ask(asked, 4).coordinators[0].error_code not in LOADING)
        self.wait_for(lambda: self.asker.ask(self.heartbeat("m", 1), 4).error_code not in LOADING)
        self.topic = self.asker.topic(2)

    def close(self):
        """Close all connections."""
        self.asker.close()
        for client in self.clients:
            client.close()

    def wait_for(self, condition):
        """Wait until a condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def connect(self):
        """Return a new connection."""
        self.clients.append(RawClient(self.port))
        return self.clients[-1]

    def heartbeat(self, member_id, generation_id, **fields):
        """Build a Heartbeat request."""
        return heartbeat_request(self.group_id, member_id, generation_id, **fields)

    def name(self, member_id):
        """Return the number of a member id; an id that the broker did not assign is unchanged."""
        return self.members.index(member_id) if member_id in self.members else member_id

    def new_member(self, member_id):
        """Assign a number to a new member id."""
        if member_id and member_id not in self.members:
            self.members.append(member_id)

    def note(self, what, *values):
        """Record what matters in an answer."""
        self.notes.append((what, *values))

    def joined(self, what, answer):
        """Record the answer to a JoinGroup request."""
        if answer.error_code in {0, 79}:
            self.new_member(answer.member_id)
        self.note(
            what,
            answer.error_code,
            answer.generation_id,
            answer.protocol_type,
            answer.protocol_name,
            self.name(answer.leader),
            self.name(answer.member_id),
            answer.skip_assignment,
            sorted(
                (self.name(m.member_id), m.group_instance_id, m.metadata) for m in answer.members
            ),
        )
        return answer.member_id

    def get_id(self, **fields):
        """Request a member id."""
        answer = self.asker.ask(join_request(self.group_id, **fields), JOIN)
        return self.joined("first join", answer)

    def begin(self, client, member_id, version=JOIN, **fields):
        """Send a JoinGroup request without waiting for the answer."""
        client.send(join_request(self.group_id, member_id, **fields), version)

    def synced(self, what, answer):
        """Record the answer to a SyncGroup request."""
        self.note(
            what, answer.error_code, answer.protocol_type, answer.protocol_name, answer.assignment
        )

    def beat(self, what, member_id, generation_id, **fields):
        """Send a heartbeat, and record the answer."""
        answer = self.asker.ask(self.heartbeat(member_id, generation_id, **fields), HEARTBEAT)
        self.note(what, answer.error_code)
        return answer.error_code

    def sync(self, what, member_id, generation_id, assignments=None, **fields):
        """Send a SyncGroup request that is answered immediately, and record the answer."""
        request = sync_request(self.group_id, member_id, generation_id, assignments, **fields)
        self.synced(what, self.asker.ask(request, SYNC))

    def leave(self, what, *members):
        """Send a LeaveGroup request, and record the answer."""
        answer = self.asker.ask(leave_request(self.group_id, *members), LEAVE)
        self.note(what, answer.error_code, [member.error_code for member in answer.members])

    def commit(self, what, offsets, version=COMMIT, **fields):
        """Send an OffsetCommit request, and record the answer."""
        answer = self.asker.ask(commit_request(self.group_id, offsets, **fields), version)
        self.note(what, sorted(p.error_code for topic in answer.topics for p in topic.partitions))

    def look(self, what, *partitions, **fields):
        """Record the committed offsets of some partitions, or of all."""
        topic = self.topic if partitions else None
        request = fetch_offsets_request(self.group_id, topic, *partitions, **fields)
        answer = self.asker.ask(request, FETCH_OFFSETS)
        fetched = fetched_offsets(answer)
        self.note(what, {partition: value for (_, partition), value in sorted(fetched.items())})

    def alone(self, **fields):
        """Create a group with a single member."""
        client = self.connect()
        member = "" if fields.get("instance_id") else self.get_id(**fields)
        self.begin(client, member, **fields)
        member = self.joined("alone", client.receive()[1])
        instance = {"instance_id": fields["instance_id"]} if "instance_id" in fields else {}
        self.sync("alone", member, 1, {member: b"all"}, **instance)
        return client, member


def two_members(group):
    """Add a second member, then remove the first and the second."""
    first, leader = group.alone()
    second, follower = group.connect(), group.get_id()
    group.begin(second, follower)
    group.wait_for(lambda: group.asker.ask(group.heartbeat(leader, 1), HEARTBEAT).error_code != 0)
    group.beat("to join again", leader, 1)
    group.sync("too late", leader, 1)
    group.begin(first, leader)
    group.joined("leader", first.receive()[1])
    group.joined("follower", second.receive()[1])
    second.send(sync_request(group.group_id, follower, 2), SYNC)
    first.send(
        sync_request(group.group_id, leader, 2, {leader: b"mine", follower: b"theirs"}), SYNC
    )
    group.synced("leader", first.receive()[1])
    group.synced("follower", second.receive()[1])
    group.sync("again", follower, 2)
    group.begin(second, follower)
    group.joined("follower joins again", second.receive()[1])
    group.beat("stable", follower, 2)
    group.leave("leader leaves", (leader, None))
    group.beat("is out", leader, 2)
    group.begin(second, follower)
    group.joined("alone", second.receive()[1])
    group.leave("all leave", (follower, None), ("nobody", None), ("", "static"))
    group.beat("empty", follower, 3)
    group.begin(second, follower)
    group.joined("empty", second.receive()[1])


def refusals(group):
    """Join with bad timeouts, protocols and ids; send requests for unknown members."""
    ask = group.asker.ask
    for timeout in (5_999, 1_800_001):
        group.joined("timeout", ask(join_request(group.group_id, session_timeout_ms=timeout), 9))
    for fields in ({"protocols": ()}, {"protocol_type": ""}):
        group.joined("no protocol", ask(join_request(group.group_id, **fields), 9))
    group.joined("no group id", ask(join_request(""), 9))
    for version in (5, 6, 7, 9):
        group.joined("unknown", ask(join_request(group.group_id, "nobody"), version))
    group.sync("unknown", "nobody", 1)
    group.beat("unknown", "nobody", 1)
    group.leave("unknown", ("nobody", None))
    group.note("no group id", ask(LeaveGroupRequest(group_id=""), LEAVE).error_code)
    group.note("no group id", ask(heartbeat_request("", "m", 1), HEARTBEAT).error_code)
    group.synced("no group id", ask(sync_request("", "m", 1), SYNC))
    _, member = group.alone()
    group.joined("other type", ask(join_request(group.group_id, protocol_type="connect"), 9))
    group.joined("other protocol", ask(join_request(group.group_id, protocols=("x",)), 9))
    for protocol in (("connect", "range"), ("consumer", "x"), (None, "range")):
        group.sync("other protocol", member, 1, protocol=protocol)
    group.sync("other generation", member, 2)
    group.beat("other generation", member, 0)
    group.joined("nobody", ask(join_request(group.group_id, "nobody"), 9))


def old_members(group):
    """Join with old request versions."""
    ask = group.asker.ask
    for version in range(4):
        fields = {} if version else {"rebalance_timeout_ms": -1}
        client = group.connect()
        group.begin(client, "", version, **fields)
        member = group.joined("join", client.receive()[1])
        generation = group.notes[-1][2]
        answer = ask(
            sync_request(group.group_id, member, generation, {member: b"a"}, protocol=(None, None)),
            0,
        )
        group.note("sync", answer.error_code, answer.assignment)
        request = LeaveGroupRequest(group_id=group.group_id, member_id=member)
        group.note("leave", ask(request, version % 3).error_code)


def static_members(group):
    """Restart a static member, fence the old one, and remove it by its instance id."""
    _, member = group.alone(instance_id="i")
    group.joined("restarted", group.asker.ask(join_request(group.group_id, instance_id="i"), JOIN))
    new = group.members[-1]
    group.sync("new", new, 1, instance_id="i")
    group.sync("old", member, 1, instance_id="i")
    group.beat("old", member, 1, instance_id="i")
    group.beat("new", new, 1, instance_id="i")
    group.joined(
        "old", group.asker.ask(join_request(group.group_id, member, instance_id="i"), JOIN)
    )
    group.leave("old", (member, "i"))
    answer = group.asker.ask(join_request(group.group_id, instance_id="i"), 8)
    group.joined("older client", answer)
    group.leave("by name", ("", "i"))
    group.beat("gone", new, 1, instance_id="i")


def silent_members(group):
    """Stop the heartbeats of one of two members."""
    # The other session is long, and so is the life of an id that nobody has joined with: a stall of
    # the machine must not end them.
    first, leader = group.alone(session_timeout_ms=LONG_SESSION_MS)
    second, silent = group.connect(), group.get_id(session_timeout_ms=LONG_SESSION_MS)
    group.begin(second, silent, session_timeout_ms=SHORT_SESSION_MS)
    group.begin(first, leader, session_timeout_ms=LONG_SESSION_MS)
    group.joined("leader", first.receive()[1])
    group.joined("silent", second.receive()[1])
    second.send(sync_request(group.group_id, silent, 2), SYNC)
    # The broker's answers begin the sessions, at a time that this process may learn of late.
    started = time.monotonic()
    group.sync("leader", leader, 2, {leader: b"a", silent: b"b"})
    group.synced("silent", second.receive()[1])
    request = group.heartbeat(leader, 2)
    group.wait_for(lambda: group.asker.ask(request, HEARTBEAT).error_code != 0)
    group.note("after its session", SHORT_SESSION_MS / 1000 <= time.monotonic() - started + 1)
    group.beat("rebalance", leader, 2)
    group.beat("out", silent, 2)


def offsets(group):
    """Commit and fetch offsets, in all ways that are accepted and rejected."""
    group.look("nothing", 0, 1)
    group.look("nothing at all")
    group.commit("simple", {(group.topic, 0): 5, (group.topic, 1): 6})
    group.commit("missing", {(group.topic, 0): 7, (group.topic, 9): 1, ("no-such", 0): 1})
    group.commit("large", {(group.topic, 0): 8}, metadata="x" * 4097)
    group.commit("only missing", {("no-such", 0): 1}, generation_id=4, member_id="m")
    group.look("known", 0, 1, 7)
    group.look("all")
    group.commit("no member", {(group.topic, 0): 9}, generation_id=1, member_id="m")
    _, member = group.alone()
    group.commit("no member", {(group.topic, 0): 10})
    group.commit("nobody", {(group.topic, 0): 10}, generation_id=1, member_id="m")
    group.commit("generation", {(group.topic, 0): 10}, generation_id=0, member_id=member)
    group.commit("member", {(group.topic, 0): 11}, generation_id=1, member_id=member)
    group.look("all")
    other = f"{group.group_id}-other"
    beat = heartbeat_request(other, "m", 1)
    group.wait_for(lambda: group.asker.ask(beat, HEARTBEAT).error_code not in LOADING)
    # From version 9 on, the error depends on Kafka's version as well.
    answer = group.asker.ask(
        commit_request(other, {(group.topic, 0): 1}, generation_id=1, member_id="m"), 8
    )
    group.note("no group", [p.error_code for t in answer.topics for p in t.partitions])


def administration(group):
    """List, describe and delete groups."""
    ask = group.asker.ask

    def described(version):
        (answer,) = ask(
            DescribeGroupsRequest(
                groups=(group.group_id,), include_authorized_operations=version > 2
            ),
            version,
        ).groups
        return (
            answer.error_code,
            answer.group_state,
            answer.protocol_type,
            answer.protocol_data,
            answer.authorized_operations & OLD_OPERATIONS,
            [
                (
                    group.name(m.member_id),
                    m.client_id,
                    m.client_host,
                    m.member_metadata,
                    m.member_assignment,
                )
                for m in answer.members
            ],
        )

    def listed(**filters):
        request = ListGroupsRequest(**{"states_filter": (), "types_filter": ()} | filters)
        return [
            (listed.group_state, listed.protocol_type, listed.group_type.lower())
            for listed in ask(request, 5).groups
            if listed.group_id == group.group_id
        ]

    def deleted():
        return [
            r.error_code
            for r in ask(DeleteGroupsRequest(groups_names=(group.group_id,)), 2).results
        ]

    group.note("missing", described(5), listed(), deleted())
    _, member = group.alone()
    group.note("stable", described(0), described(5), listed(), deleted())
    group.note("by state", listed(states_filter=("stable",)), listed(states_filter=("Empty",)))
    group.note("by type", listed(types_filter=("CLASSIC",)), listed(types_filter=("consumer",)))
    group.leave("leave", (member, None))
    group.note("empty", described(5), listed())
    group.commit("commit", {(group.topic, 0): 3})
    group.note("delete", deleted(), described(5), listed())
    group.look("gone", 0)


def transactions(group):
    """Commit offsets in transactions that are committed, aborted or fenced."""
    producer = TransactionalRequests(f"conformance-{uuid.uuid4().hex}", group.topic)
    producer.ask = group.asker.ask
    group.asker.wait_for_coordinators()

    def init():
        answers = []

        def done():
            answers.append(producer.init())
            return answers[-1][0] not in LOADING

        group.wait_for(done)
        return answers[-1][1]

    def commit(identity, version, **fields):
        request = txn_commit_request(
            group.group_id,
            identity,
            {(group.topic, 0): 5, (group.topic, 9): 1},
            **{"transactional_id": producer.transactional_id} | fields,
        )
        answers = []

        def done():
            answer = group.asker.ask(request, version)
            answers.append(
                sorted(
                    (p.partition_index, p.error_code)
                    for topic in answer.topics
                    for p in topic.partitions
                )
            )
            return not LOADING & {code for _, code in answers[-1]}

        group.wait_for(done)
        return answers[-1]

    def settled():
        request = fetch_offsets_request(group.group_id, group.topic, 0, require_stable=True)
        answer = fetched_offsets(group.asker.ask(request, FETCH_OFFSETS))
        return {code for code, _ in answer.values()} == {0}

    group.commit("before", {(group.topic, 0): 1})
    for committed in (False, True):
        identity = init()
        for version in (3, 4):
            group.note("not added", commit(identity, version))
        group.note("add", producer.add_offsets(identity, group.group_id))
        group.note("commit", commit(identity, 4))
        group.look("pending", 0)
        group.look("pending, stable", 0, require_stable=True)
        group.note("end", producer.end(identity, committed=committed, version=4)[0])
        group.wait_for(settled)
        group.look("ended", 0)
    fenced = identity
    identity = init()
    group.note("zombie", commit(fenced, 4))
    group.note("stranger", commit(identity, 4, transactional_id="nobody-knows"))
    group.note("no member", commit(identity, 4, member_id="m", generation_id=1))
    group.note("add", producer.add_offsets(identity, group.group_id))
    group.note("no member", commit(identity, 4, member_id="m", generation_id=1))


SCENARIOS = [
    two_members,
    refusals,
    old_members,
    static_members,
    silent_members,
    offsets,
    administration,
    transactions,
]


def observe(scenario, port):
    group = Group(port)
    try:
        scenario(group)
        return group.notes
    finally:
        group.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_group_requests_get_the_same_answers_as_from_kafka(kafka, scenario):
    """Kafka and the embedded broker give the same answers to the same requests."""
    expected = observe(scenario, int(kafka.bootstrap_servers.rpartition(":")[2]))

    with DevBroker(transaction_version=0 if kafka.version == KAFKA_3 else 2) as devbroker:
        actual = observe(scenario, devbroker.port)

    assert expected == actual
