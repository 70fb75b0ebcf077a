"""Groups of the new consumer protocol (KIP-848): the embedded broker and the newest Apache Kafka.

The method is that of test_devbroker_groups: each scenario sends the same requests to both, and
records what matters in the answers. Members create their ids, so these are equal; topic ids are
recorded as the numbers of the topics.
"""

from __future__ import annotations

import os
import time
import uuid

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from spark_kafka_sink.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from spark_kafka_sink.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from tests.support.devbroker.consumer_groups.conformance_group import Group
from tests.support.devbroker.consumer_groups.consumer_group_client import (
    DESCRIBE,
    FETCH_OFFSETS,
    consumer_heartbeat,
    joining,
)
from tests.support.devbroker.group_client import (
    fetch_offsets_request,
    fetched_offsets,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from tests.support.kafka.kafka_files import KAFKA_4, is_older
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError, skip_or_fail
from tests.support.kafka.real_kafka import start_kafka
from tests.support.network.raw_client import RawClient

pytestmark = pytest.mark.kafka

INTERVAL_MS, SESSION_MS, MAX_SIZE = 500, 6_000, 4
#: The settings of both brokers: quick, and without conversions between protocols.
KAFKA_SETTINGS = {
    "group.consumer.migration.policy": "disabled",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(INTERVAL_MS),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.max.size": str(MAX_SIZE),
    # One coordinator, which learns of a topic once for all groups.
    "offsets.topic.num.partitions": "1",
}
DEVBROKER_SETTINGS = {
    "group_consumer_heartbeat_interval_ms": INTERVAL_MS,
    "group_consumer_session_timeout_ms": SESSION_MS,
    "group_consumer_max_size": MAX_SIZE,
}


def two_members(group):
    """Add a second and a third member, then remove the first and the others."""
    name, topic = group.topic(4)
    group.describe("missing")
    group.join("first", "a", topics=[name], rack_id="r1")
    group.describe("one")
    group.beat("confirms", "a", 2, owned={topic: [0, 1, 2, 3]})
    group.beat("nothing new", "a", 2)
    group.beat("everything again", "a", 2, topics=[name], timeout_ms=9000, owned={topic: range(4)})
    group.join("second", "b", topics=[name])
    group.describe("two")
    group.beat("must wait", "b", 3, owned={})
    group.beat("must revoke", "a", 2)
    group.describe("revoking")
    group.beat("still owns all", "a", 2, owned={topic: [0, 1, 2, 3]})
    group.beat("still owns one too many", "a", 2, owned={topic: [0, 1, 3]})
    group.beat("has revoked", "a", 2, owned={topic: [0, 1]})
    group.describe("released")
    group.beat("receives the rest", "b", 3)
    group.describe("stable")
    group.join("third", "c", topics=[name])
    group.beat("revokes at once", "a", 3, owned={})
    group.beat("revokes", "b", 3)
    group.beat("has revoked", "b", 3, owned={topic: [2]})
    group.beat("receives", "c", 4)
    group.describe("three", counts=True)
    group.beat("leaves", "a", -1)
    group.beat("has left", "a", 4)
    group.describe("left", counts=True)
    group.beat("of two again", "b", 4, counts=True)
    group.beat("of two again", "c", 4, counts=True)
    group.describe("two again", counts=True)
    group.delete("not empty")
    group.beat("leaves", "b", -1)
    group.beat("leaves", "c", -1)
    group.describe("empty")
    group.delete("delete")
    group.describe("deleted")
    group.beat("is gone", "c", 5)


def refusals(group):
    """Send requests that are invalid, or fenced by their epochs."""
    name, topic = group.topic(4)
    group.beat("no group", "a", 2)
    group.beat("no group", "a", -1)
    for what, fields in {
        "no timeout": {"timeout_ms": -1},
        "no partitions": {"owned": None},
        "partitions": {"owned": {topic: [0]}},
        "no subscription": {"topics": None},
        "empty instance": {"instance_id": ""},
        "empty rack": {"rack_id": ""},
        "blank rack": {"rack_id": " "},
        "assignor": {"assignor": "sticky"},
        "no member": {"member_id": ""},
        "no group": {"group_id": ""},
    }.items():
        ids = {"group_id": group.group_id, "member_id": "a"}
        ids |= {key: fields.pop(key) for key in list(fields) if key in ids}
        request = joining(ids["group_id"], ids["member_id"], **{"topics": [name]} | fields)
        group.noted(what, group.send(request))
    group.beat("epoch", "a", -3)
    group.beat("no instance", "a", -2)
    group.describe("none of them joined")
    group.join("joins", "a", topics=[name])
    group.join("joins again", "a", topics=[name])
    group.beat("too high", "a", 3)
    group.beat("unknown", "b", 2)
    group.beat("unknown leaves", "b", -1)
    group.beat("unknown instance", "a", 2, instance_id="i")
    group.join("second", "b", topics=[name])
    group.beat("moves on", "a", 2, owned={topic: [0, 1]})
    group.beat("previous without partitions", "a", 2)
    group.beat("previous with revoked partitions", "a", 2, owned={topic: [0, 1, 2]})
    group.beat("previous with a part", "a", 2, owned={topic: [1]})
    group.beat("previous with none", "a", 2, owned={})
    group.join("third", "c", topics=[name])
    group.join("fourth", "d", topics=[name], counts=True)
    group.join("one too many", "e", topics=[name])
    group.join("joins again", "b", topics=[name], counts=True)
    group.beat("before previous", "a", 2, owned={})
    group.beat("assignor", "a", 3, assignor="none")
    group.describe("four", counts=True)


def server_ids(group):
    """Join in version 0, in which the coordinator creates member ids."""
    name, topic = group.topic(2)
    request = joining(group.group_id, "", topics=[name])
    answer = group.asker.ask(request, 0)
    group.note("id", answer.error_code, len(answer.member_id), answer.member_epoch)
    for epoch in (1, -1):
        group.noted("no id", group.send(consumer_heartbeat(group.group_id, "", epoch), 0))
    member = answer.member_id
    answer = group.send(consumer_heartbeat(group.group_id, member, 1, owned={topic: [0, 1]}), 0)
    group.note("confirmed", answer.error_code, answer.member_id == member, answer.assignment)


def static_members(group):
    """Restart static members, fence them, and remove them by their instance ids."""
    name, topic = group.topic(2)
    group.join("first", "a", topics=[name], instance_id="i")
    group.beat("confirms", "a", 2, owned={topic: [0, 1]}, instance_id="i")
    group.join("too early", "b", topics=[name], instance_id="i")
    group.beat("leaves for a while", "a", -2, instance_id="i")
    group.describe("away")
    group.beat("is away", "a", 2, instance_id="i")
    group.join("returns", "b", topics=[name], instance_id="i")
    group.describe("back")
    group.beat("confirms", "b", 2, owned={topic: [0, 1]}, instance_id="i")
    group.beat("is replaced", "a", 2, instance_id="i")
    group.beat("is replaced", "a", 2)
    group.beat("leaves too late", "a", -2, instance_id="i")
    group.beat("leaves too late", "a", -1, instance_id="i")
    group.beat("without instance", "b", 2)
    group.join("second", "c", topics=[name], instance_id="j")
    for what, members in {
        "unknown": (("nobody", None), ("", "k")),
        "other id": (("c", "i"),),
        "by instance": (("", "i"), ("c", "j")),
        "again": (("", "i"),),
    }.items():
        answer = group.asker.ask(leave_request(group.group_id, *members), 5)
        group.note(what, answer.error_code, [member.error_code for member in answer.members])
    group.describe("empty")


def silent_members(group):
    """Stop the heartbeats of a member, and never confirm a revocation."""
    name, topic = group.topic(2)
    group.join("silent", "a", topics=[name])
    group.join("waits", "b", topics=[name])
    group.beat_until("receives", "b", 3, lambda a: a.assignment or a.error_code)
    group.beat("is gone", "a", 2)
    group.describe("alone", counts=True)
    group.join("stubborn", "c", topics=[name])
    # The answer begins the rebalance timeout, at a time that this process may learn of late.
    started = time.monotonic()
    group.beat("owns all", "b", 4, owned={topic: [0, 1]}, timeout_ms=1000)

    def gone():
        beat = consumer_heartbeat(group.group_id, "b", 4, owned={topic: [0, 1]})
        return group.send(beat).error_code

    group.note("fenced", group.wait_for(gone))
    assert 0.9 <= time.monotonic() - started
    group.beat_until("receives", "c", 5, lambda a: a.member_epoch == 6)


def expressions(group):
    """Join with regular expressions, valid and invalid ones."""
    name, topic = group.topic(3)
    others = name.removesuffix(name[-4:])
    for regex in ("(", "a**", "(?=a)", r"\Z", "[b-a]", "a{2,1}", r"(a)\1"):
        group.join(f"invalid {regex}", "a", regex=regex)
    group.describe("none of them joined")
    group.join("not resolved yet", "a", regex=others + ".*")
    group.beat_until(
        "resolved",
        "a",
        0,
        lambda a: a.assignment and a.assignment.topic_partitions,
        regex=others + ".*",
        owned={},
        timeout_ms=30_000,
    )
    group.describe("resolved")
    group.beat("confirms", "a", 2, owned={topic: [0, 1, 2]})
    group.join("the same", "b", regex=others + ".*")
    group.beat("revokes", "a", 2, owned={topic: [0, 1]})
    group.beat("receives", "b", 3)
    group.beat("no expression", "b", 3, regex="", topics=[])
    group.describe("without")
    group.beat("revoked", "b", 3, owned={})
    group.beat("receives", "a", 3)
    group.beat("name", "a", 4, regex="", topics=[name])
    group.describe("a name")


def changing_topics(group):
    """Add partitions, create a missing topic, and delete one."""
    name, topic = group.topic(2)
    missing = f"missing-{uuid.uuid4().hex}"
    group.join("first", "a", topics=[name, missing])
    group.beat("confirms", "a", 2, owned={topic: [0, 1]})
    group.describe("before")
    request = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=name, count=4, assignments=None),),
        timeout_ms=10_000,
        validate_only=False,
    )
    group.note("more", [result.error_code for result in group.asker.ask(request, 3).results])
    group.beat_until("more partitions", "a", 2, lambda a: a.assignment)
    group.beat("confirms", "a", 3, owned={topic: [0, 1, 2, 3]})
    group.describe("more")
    request = DeleteTopicsRequest(
        topics=(DeleteTopicState(name=name, topic_id=ZERO_UUID),), timeout_ms=10_000
    )
    group.note("delete", [r.error_code for r in group.asker.ask(request, 6).responses])
    group.beat_until("to revoke", "a", 3, lambda a: a.assignment)
    group.describe("revoking")
    group.beat("revoked", "a", 3, owned={})
    group.describe("without topics")


def assignors(group):
    """Choose assignors, by the majority of the members."""
    (first, first_id), (second, _) = group.topic(3), group.topic(3)
    names = [first, second]
    group.join("range", "a", topics=names, assignor="range")
    group.join("range", "b", topics=names, assignor="range")
    group.beat("revokes", "a", 2)
    group.beat("revoked", "a", 2, owned={})
    group.beat("receives", "b", 3)
    group.describe("range")
    group.beat("prefers uniform", "a", 3, assignor="uniform", topics=[first])
    group.beat("revoked", "a", 3, owned={first_id: [0, 1]})
    group.describe("different topics", counts=True)
    group.beat("uniform", "b", 3, assignor="uniform", topics=[first])
    group.describe("uniform", counts=True)


def offsets(group):
    """Commit, fetch and delete offsets, in all ways that are accepted and rejected."""
    (name, topic), (other, _) = group.topic(2), group.topic(1)
    group.commit("no group", {(name, 0): 1}, "a", 2)
    group.join("first", "a", topics=[name])
    group.beat("confirms", "a", 2, owned={topic: [0, 1]})
    group.commit("member", {(name, 0): 5, (name, 1): 6, (other, 0): 7}, "a", 2)
    group.commit("old version", {(name, 0): 8}, "a", 2, version=8)
    group.commit("no member", {(name, 0): 8})
    group.commit("nobody", {(name, 0): 8}, "b", 2)
    group.commit("future", {(name, 0): 8}, "a", 3)
    group.look("anyone", name)
    group.look("member", name, "a", 2)
    group.look("stale", name, "a", 0)
    group.look("nobody", name, "b", 2)
    group.look("no id", name, "", 1)
    group.join("second", "b", topics=[name])
    group.beat("revoking", "a", 2)
    group.commit("revoking", {(name, 0): 9, (name, 1): 9}, "a", 2)
    group.beat("revoked", "a", 2, owned={topic: [0]})
    group.beat("receives", "b", 3)
    group.commit("before its epoch", {(name, 0): 10, (name, 1): 10}, "a", 2)
    group.commit("the previous epoch", {(name, 0): 10}, "a", 2)
    group.commit("the previous epoch", {(name, 1): 10}, "a", 2)
    group.commit("before its epoch", {(name, 1): 11, (name, 0): 11}, "b", 2)
    group.look("kept", name)
    group.delete_offsets("subscribed", (name, 0), (other, 0), (other, 7), ("no-such", 0))
    group.look("deleted", other)
    group.delete_offsets("no group", (name, 0), group_id="no-such-group")
    group.delete_offsets("no group id", (name, 0), group_id="")
    group.beat("leaves", "a", -1)
    group.beat("leaves", "b", -1)
    group.commit("empty", {(name, 0): 12})
    group.look("empty", name)
    group.delete_offsets("empty", (name, 0), (name, 1))
    group.look("deleted", name)


def protocols(group):
    """Join a group of the other protocol, with and without members."""
    name, _ = group.topic(1)
    ask = group.asker.ask

    def join_classic(what, member_id=""):
        answer = ask(join_request(group.group_id, member_id, metadata=subscription(name)), 9)
        group.note(what, answer.error_code, answer.generation_id, bool(answer.member_id))
        return answer.member_id

    group.join("consumer", "a", topics=[name])
    group.commit("commit", {(name, 0): 3}, "a", 2)
    join_classic("into a consumer group")
    group.note("heartbeat", ask(heartbeat_request(group.group_id, "a", 2), 4).error_code)
    group.note("sync", ask(sync_request(group.group_id, "a", 2), 5).error_code)
    group.beat("leaves", "a", -1)
    member = join_classic("empty")
    with RawClient(group.port) as client:
        client.send(join_request(group.group_id, member, metadata=subscription(name)), 9)
        answer = client.receive()[1]
        group.note("classic", answer.error_code, answer.generation_id)
        sync = sync_request(group.group_id, member, answer.generation_id, {member: b""})
        group.note("sync", ask(sync, 5).error_code)
        group.join("into a classic group", "b", topics=[name])
        group.beat("of a classic group", "b", 2)
        request = ConsumerGroupDescribeRequest(
            group_ids=(group.group_id,), include_authorized_operations=False
        )
        group.note("described", [g.error_code for g in ask(request, DESCRIBE).groups])
        group.look("kept", name)
        group.delete_offsets("subscribed", (name, 0))
        answer = ask(leave_request(group.group_id, (member, None)), 5)
        group.note("leaves", answer.error_code)
    group.join("follows", "b", topics=[name])
    request = fetch_offsets_request(group.group_id, name, 0)
    group.note("kept", list(fetched_offsets(ask(request, FETCH_OFFSETS)).values()))
    group.describe("follows")


def emptied(group):
    """Create a group of the new protocol, which its only member has left."""
    name, _ = group.topic(1)
    group.join("joins", "a", topics=[name])
    group.commit("commit", {(name, 0): 3}, "a", 2)
    group.beat("leaves", "a", -1)
    return name


def refused_without_id(group):
    """Send a new classic member, which is told its id, to an empty group."""
    name = emptied(group)
    answer = group.asker.ask(join_request(group.group_id, metadata=subscription(name)), 9)
    group.note("refused", answer.error_code)
    group.wait_until_classic()
    group.describe("refused")
    group.look("kept", name)


def refused_without_protocols(group):
    """Send a classic member without protocols to an empty group."""
    name = emptied(group)
    answer = group.asker.ask(join_request(group.group_id, protocols=()), 9)
    group.note("refused", answer.error_code)
    group.wait_until_classic()
    group.describe("refused")
    group.look("kept", name)
    group.join("follows", "b", topics=[name])


def refused_with_id(group):
    """Send a client that believes to be a classic member to an empty group."""
    name = emptied(group)
    request = join_request(group.group_id, "a", metadata=subscription(name))
    group.note("refused", group.asker.ask(request, 9).error_code)
    group.describe("refused")
    group.look("kept", name)


def refused_by_nobody(group):
    """Send a classic member without protocols to a group that does not exist."""
    group.describe("before")
    answer = group.asker.ask(join_request(group.group_id, protocols=()), 9)
    group.note("refused", answer.error_code)
    group.describe("refused")
    group.delete("deleted")
    group.describe("deleted")


def subscription(*topics):
    """Return the metadata of a classic consumer: version 0, topics, no user data."""
    encoded = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return bytes(2) + len(topics).to_bytes(4, "big") + encoded + b"\xff\xff\xff\xff"


SCENARIOS = [
    two_members,
    refusals,
    server_ids,
    static_members,
    silent_members,
    expressions,
    changing_topics,
    assignors,
    offsets,
    protocols,
    refused_without_id,
    refused_without_protocols,
    refused_with_id,
    refused_by_nobody,
]


def observe(scenario, port):
    group = Group(port)
    try:
        scenario(group)
        return group.notes
    finally:
        group.close()


@pytest.fixture(scope="module")
def kafka_with_groups():
    """Yield a broker with short sessions, in which protocols do not mix."""
    try:
        kafka = start_kafka(KAFKA_4, overrides=KAFKA_SETTINGS)
    except KafkaUnavailableError as error:
        skip_or_fail(error, os.environ)
    with kafka:
        yield kafka


def as_since_4_4(note):
    """Return what the newest Kafka says of a group without members: its assignment is not old."""
    match note:
        case (what, code, "Empty", epoch, _, *others):
            return (what, code, "Empty", epoch, epoch, *others)
    return note


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_members_get_the_same_answers_as_from_kafka(kafka_with_groups, scenario):
    """Kafka and the embedded broker give the same answers to the same requests."""
    expected = observe(scenario, int(kafka_with_groups.bootstrap_servers.rpartition(":")[2]))
    if is_older(KAFKA_4, "4.4"):
        expected = [as_since_4_4(note) for note in expected]

    with DevBroker(**DEVBROKER_SETTINGS) as devbroker:
        actual = observe(scenario, devbroker.port)

    assert expected == actual
