"""The effects of the settings of a group's member on its requests: each test changes one."""

from __future__ import annotations

import pytest

from spark_kafka_sink import AdminClient
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.consumer.embedded_consuming import consuming, poll_until, take, wait_until
from tests.support.consumer.reading import fill


@pytest.fixture
def broker():
    with DevBroker(topics={"t": 1}) as broker:
        yield broker


def _requests(broker: DevBroker, api_key: ApiKey, **settings: object) -> list[tuple]:
    """Return the requests of a member until it has partitions, each with its context."""
    seen = []
    broker.on(api_key, lambda request, context: seen.append((request, context)))
    with consuming(broker, **{"group_id": "g", **settings}) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
    return seen


@pytest.mark.parametrize(
    ("setting", "value", "field", "expected"),
    [
        ("group_id", "billing", "group_id", "billing"),
        ("group_instance_id", "till", "group_instance_id", "till"),
        ("session_timeout_ms", 21_000, "session_timeout_ms", 21_000),
        ("max_poll_interval_ms", 310_000, "rebalance_timeout_ms", 310_000),
    ],
)
def test_a_join_has_the_setting(broker, setting, value, field, expected):
    """JoinGroup carries the settings that the coordinator obeys."""
    requests = _requests(broker, ApiKey.JOIN_GROUP, **{setting: value})
    assert {expected} == {getattr(request, field) for request, _ in requests}


@pytest.mark.parametrize("strategy", [["sticky"], ["roundrobin", "range"]])
def test_a_join_offers_the_assignors(broker, strategy):
    """JoinGroup lists partition.assignment.strategy in order of preference."""
    requests = _requests(broker, ApiKey.JOIN_GROUP, partition_assignment_strategy=strategy)
    request, _ = requests[-1]
    assert strategy == [protocol.name for protocol in request.protocols]


@pytest.mark.parametrize("name", ["spark-kafka-sink-consumer", "billing"])
def test_a_join_has_the_client_id(broker, name):
    """JoinGroup carries client.id, with which the member id begins."""
    requests = _requests(broker, ApiKey.JOIN_GROUP, client_id=name)
    request, context = requests[-1]
    assert name == context.header.client_id
    assert request.member_id.startswith(f"{name}-")


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_member_names_the_assignor_of_the_broker(broker, assignor):
    """With group.protocol=consumer, a heartbeat carries group.remote.assignor."""
    requests = _requests(
        broker,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        group_protocol="consumer",
        group_remote_assignor=assignor,
    )
    request, _ = requests[0]
    assert assignor == request.server_assignor


@pytest.mark.parametrize("creates", [True, False])
def test_a_subscription_may_create_its_topic(broker, creates):
    """The broker creates a topic that is subscribed to only if allow.auto.create.topics says so."""
    hook = broker.on(ApiKey.METADATA, lambda *_: None)
    with consuming(broker, group_id="g", allow_auto_create_topics=creates) as consumer:
        consumer.subscribe("new")
        if creates:
            poll_until(consumer, consumer.assignment)
        else:
            poll_until(consumer, lambda: 2 <= hook.seen)
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert creates == ("new" in admin.list_topics())


def test_heartbeats_follow_the_interval(broker):
    """A member whose heartbeat.interval.ms is short sends several within a session."""
    hook = broker.on(ApiKey.HEARTBEAT, lambda *_: None)
    with consuming(broker, group_id="g", heartbeat_interval_ms=20) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        wait_until(lambda: 3 <= hook.seen)


@pytest.mark.parametrize("limit", [70_000, 80_000])
def test_a_fetch_has_the_limit_of_a_partition(broker, limit):
    """Fetch carries max.partition.fetch.bytes."""
    fill(broker.bootstrap_servers, "t", [b"1"])
    seen = []
    broker.on(ApiKey.FETCH, lambda request, _: seen.append(request))
    with consuming(broker, group_id="g", max_partition_fetch_bytes=limit) as consumer:
        consumer.subscribe("t")
        take(consumer, 1)
    assert limit == seen[0].topics[0].partitions[0].partition_max_bytes


@pytest.mark.parametrize(("part", "expected"), [("key", (2, b"1")), ("value", (b"2", 1))])
def test_keys_and_values_are_deserialized(broker, part, expected):
    """A key or a value is deserialized as its setting says, and bytes without one."""
    fill(broker.bootstrap_servers, "t", [b"1"], key=b"2")
    with consuming(broker, group_id="g", **{f"{part}_deserializer": "json"}) as consumer:
        consumer.subscribe("t")
        [record] = take(consumer, 1)
    assert expected == (record.key, record.value)
