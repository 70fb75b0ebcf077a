"""A member of a KIP-848 group by itself, without heartbeats."""

from __future__ import annotations

from spark_kafka_sink.consumer.group.group_member import GroupMember, MemberState
from spark_kafka_sink.consumer.subscription.partition_state import EARLIEST
from spark_kafka_sink.consumer.subscription.subscription_state import SubscriptionState
from tests.support.consumer.member_script import member_settings

_S = MemberState


def test_a_poll_uses_up_a_change_of_the_subscription():
    """A member that is out of the group joins again only if the subscription changes then."""
    subscriptions = SubscriptionState(EARLIEST)
    subscriptions.subscribe(("orders",), None)
    member = GroupMember(member_settings(), subscriptions)
    for _ in range(2):
        member.subscription_changed()
        member.poll()
        assert _S.JOINING is member.state
    member.poll_expired()
    member.heartbeat_skipped()
    member.poll()
    assert _S.UNSUBSCRIBED is member.state
    member.subscription_changed()
    member.poll()
    assert _S.JOINING is member.state
