"""What the errors of a group's coordinator do to a member."""

from __future__ import annotations

import time

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.testing import AnswerError, ApiKey, ErrorCode
from tests.support.consumer.embedded_consuming import SHORT_SESSION as GROUP
from tests.support.consumer.embedded_consuming import (
    consuming,
    poll_until,
    refuse_and_forget,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered

ALL = tuple(tp(number) for number in range(4))


@pytest.fixture
def broker():
    """Return a broker with topic `t` of four partitions."""
    with DevBroker(topics={"t": 4}) as broker:
        yield broker


FATAL = [
    (ApiKey.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.JOIN_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.JOIN_GROUP, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (ApiKey.JOIN_GROUP, ErrorCode.FENCED_INSTANCE_ID),
    (ApiKey.JOIN_GROUP, ErrorCode.GROUP_MAX_SIZE_REACHED),
    (ApiKey.JOIN_GROUP, ErrorCode.INVALID_SESSION_TIMEOUT),
    (ApiKey.SYNC_GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.SYNC_GROUP, ErrorCode.FENCED_INSTANCE_ID),
    (ApiKey.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID),
]


def refusal(broker, code):
    """Return the answer to a request; some errors make a member forget its id."""
    forgets = code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
    return refuse_and_forget(broker, code) if forgets else AnswerError(code)


@pytest.mark.parametrize(("api", "code"), FATAL)
def test_an_error_of_the_group_is_raised_once(broker, api, code):
    """Poll raises it, without further requests; the next poll joins again."""
    hook = broker.on(api, refusal(broker, code), times=1)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        with pytest.raises(BrokerError, match=code.name):
            poll_until(consumer, lambda: False)
        assert 1 == hook.fired == hook.seen
        until = time.monotonic() + 0.2
        poll_until(
            consumer, lambda: consumer.assignment() == frozenset(ALL) and time.monotonic() > until
        )


def test_a_member_of_the_other_protocol_is_told_of_group_protocol(broker):
    """The advice names both settings, since the broker does not say which of them differs."""
    with (
        consuming(broker, **{"group.id": "g", "group.protocol": "consumer"}) as one,
        consuming(broker, **GROUP) as two,
    ):
        one.subscribe("t")
        poll_until(one, one.assignment)
        two.subscribe("t")
        advice = r"Use the group\.protocol of .* \(partition\.assignment\.strategy\)"
        with pytest.raises(BrokerError, match=advice):
            poll_until(two, lambda: False)


PASSING = [
    (ApiKey.FIND_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.JOIN_GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.JOIN_GROUP, ErrorCode.NOT_COORDINATOR),
    (ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
    (ApiKey.JOIN_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (ApiKey.JOIN_GROUP, ErrorCode.REBALANCE_IN_PROGRESS),
    (ApiKey.SYNC_GROUP, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.SYNC_GROUP, ErrorCode.NOT_COORDINATOR),
    (ApiKey.SYNC_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
    (ApiKey.SYNC_GROUP, ErrorCode.ILLEGAL_GENERATION),
    (ApiKey.SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS),
    (ApiKey.HEARTBEAT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR),
    (ApiKey.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID),
    (ApiKey.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION),
    (ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS),
    (ApiKey.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR),
    (ApiKey.OFFSET_FETCH, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
]


@pytest.mark.parametrize(("api", "code"), PASSING)
def test_an_error_of_the_group_that_passes_is_mended(broker, api, code):
    """The member recovers by itself, and reads."""
    fill(broker.bootstrap_servers, "t", numbered(3))
    hook = broker.on(api, refusal(broker, code), times=2)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        assert numbered(3) == values(take(consumer, 3))
        poll_until(consumer, lambda: 2 == hook.fired)
        until = time.monotonic() + 0.2
        poll_until(
            consumer, lambda: consumer.assignment() == frozenset(ALL) and time.monotonic() > until
        )
