"""Which fields a heartbeat of a KIP-848 group sends."""

from __future__ import annotations

import pytest

from spark_kafka_sink.consumer.group.consumer_membership import HeartbeatFields
from spark_kafka_sink.consumer.group.group_member import NO_ASSIGNMENT, LocalAssignment
from spark_kafka_sink.consumer.subscription.subscription import Subscription
from spark_kafka_sink.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tests.support.consumer.member_script import MEMBER_ID, ORDERS, PAYMENTS, member_settings

OWNED = LocalAssignment(3, {PAYMENTS: (4,), ORDERS: (0, 1)})
SETTINGS = member_settings(
    group_instance_id="till", rack_id="paris", server_assignor="range", rebalance_timeout=4.2
)
ALWAYS = {"group_id": "shop", "member_id": MEMBER_ID, "instance_id": "till"}
ALL = {
    "rebalance_timeout_ms": 4200,
    "subscribed_topic_names": ("orders", "payments"),
    "server_assignor": "range",
    "topic_partitions": (
        TopicPartitions(topic_id=ORDERS, partitions=(0, 1)),
        TopicPartitions(topic_id=PAYMENTS, partitions=(4,)),
    ),
}


@pytest.fixture
def subscription() -> Subscription:
    subscription = Subscription()
    subscription.set_topics(["payments", "orders"])
    return subscription


@pytest.fixture
def fields(subscription) -> HeartbeatFields:
    return HeartbeatFields(SETTINGS, subscription)


def build(
    fields: HeartbeatFields,
    epoch: int = 7,
    owned: LocalAssignment = OWNED,
    *,
    is_joining: bool = False,
) -> ConsumerGroupHeartbeatRequest:
    """Build a request."""
    return fields.build_request(epoch, owned, is_joining=is_joining)


def expected(epoch: int = 7, **changes: object) -> ConsumerGroupHeartbeatRequest:
    """Return a request with the fields that are always sent, and with others."""
    return ConsumerGroupHeartbeatRequest(**{**ALWAYS, "member_epoch": epoch, **changes})


def test_a_member_joins_with_all_fields(fields):
    """They are sent even if they were sent before, and owned partitions even if there are none."""
    build(fields)
    joining = build(fields, 0, NO_ASSIGNMENT, is_joining=True)
    assert expected(0, **{**ALL, "rack_id": "paris", "topic_partitions": ()}) == joining
    assert joining == build(fields, 0, NO_ASSIGNMENT, is_joining=True)


def test_later_only_changed_fields_are_sent(fields):
    """The ids and the epoch are part of each heartbeat."""
    build(fields, is_joining=True)
    assert expected() == build(fields)
    assert expected(8) == build(fields, 8)


def test_after_a_failure_all_fields_but_the_rack_are_sent(fields):
    """The coordinator may not have received them."""
    build(fields, is_joining=True)
    fields.reset()
    assert expected(**ALL) == build(fields)
    assert expected() == build(fields)


def test_a_new_assignment_is_sent_even_with_the_same_partitions(fields):
    """Each target is acknowledged."""
    build(fields)
    again = LocalAssignment(4, OWNED.partitions)
    assert expected(topic_partitions=ALL["topic_partitions"]) == build(fields, owned=again)
    assert expected() == build(fields, owned=again)
    assert expected(topic_partitions=()) == build(fields, owned=LocalAssignment(5, {}))


def test_changed_topics_are_sent_sorted(fields, subscription):
    """The order in which the user names them does not count."""
    build(fields)
    subscription.set_topics(["orders", "payments"])
    assert expected() == build(fields)
    subscription.set_topics(["orders", "invoices"])
    assert expected(subscribed_topic_names=("invoices", "orders")) == build(fields)
    subscription.clear()
    assert expected(subscribed_topic_names=()) == build(fields)


def test_a_pattern_is_sent_once_and_then_removed():
    """An empty pattern removes it; there are no topic names."""
    subscription = Subscription()
    subscription.set_broker_pattern("ord.*")
    fields = HeartbeatFields(member_settings(), subscription)
    joining = build(fields, is_joining=True)
    assert ("ord.*", ()) == (joining.subscribed_topic_regex, joining.subscribed_topic_names)
    assert build(fields).subscribed_topic_regex is None
    assert "ord.*" == build(fields, is_joining=True).subscribed_topic_regex
    subscription.clear()
    subscription.set_broker_pattern("pay.*")
    assert "pay.*" == build(fields).subscribed_topic_regex
    subscription.clear()
    removed = build(fields).subscribed_topic_regex
    assert isinstance(removed, str)
    assert not removed
    assert build(fields).subscribed_topic_regex is None
    fields.reset()
    assert build(fields, is_joining=True).subscribed_topic_regex is None


def test_settings_that_are_not_set_are_not_sent(subscription):
    """A dynamic member has no instance, and leaves the choice of the assignor to the group."""
    joining = build(HeartbeatFields(member_settings(), subscription), is_joining=True)
    assert joining.instance_id is None
    assert joining.rack_id is None
    assert joining.server_assignor is None
