"""What a consumer tells about topics, the lag and rebalances."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.testing import AnswerError, ApiKey, Delay, ErrorCode
from tests.support.consumer.embedded_consuming import (
    GROUP,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
)
from tests.support.consumer.reading import fill, numbered


@pytest.fixture
def broker():
    """Return a broker with topic `t` of two partitions, of which the first has ten records."""
    with DevBroker(topics={"t": 2}) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


def test_all_topics_are_listed_with_their_partitions(broker):
    """Those that the user has not created, such as that of offsets, are among them."""
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        consumer.commit({tp(): 1})
        found = consumer.list_topics()
        assert [0, 1] == [each.partition for each in found["t"]]
        assert found["t"] == consumer.partitions_for("t")
        assert "t" in found


def test_the_lag_is_that_of_the_position(broker):
    """It is known once records have been fetched."""
    with consuming(broker, max_poll_records=4) as consumer:
        consumer.assign([tp()])
        assert consumer.current_lag(tp()) is None
        take(consumer, 4)
        hook = broker.on(ApiKey.LIST_OFFSETS, Delay(0.0), expect=False)
        assert 6 == consumer.current_lag(tp())
        consumer.seek(tp(), 9)
        assert 1 == consumer.current_lag(tp())
        consumer.list_topics()
    # A look-up would have been sent before the question about the topics.
    assert 0 == hook.seen


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_the_lag_of_a_paused_partition_is_looked_up(broker, isolation_level):
    """Nothing is fetched of it, so that no answer has told its end."""
    with consuming(broker, isolation_level=isolation_level) as consumer:
        consumer.assign([tp()])
        consumer.pause([tp()])
        consumer.seek(tp(), 3)
        poll_until(consumer, lambda: consumer.current_lag(tp()) is not None)
        assert 7 == consumer.current_lag(tp())


def test_a_look_up_of_the_end_that_fails_is_repeated_by_the_next_call(broker):
    """The lag remains unknown meanwhile, and nothing is raised."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        consumer.pause([tp()])
        consumer.seek(tp(), 3)
        broker.on(ApiKey.LIST_OFFSETS, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), times=1)
        poll_until(consumer, lambda: consumer.current_lag(tp()) is not None)
        assert 7 == consumer.current_lag(tp())


def test_a_partition_that_is_not_assigned_has_no_lag(broker):
    """As in Java."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        with pytest.raises(IllegalStateError, match="t-1 is not assigned to this consumer"):
            consumer.current_lag(tp(1))


def test_a_rebalance_can_be_enforced(broker):
    """The next poll joins the group anew, with the reason."""
    reasons = []
    broker.on(ApiKey.JOIN_GROUP, lambda request, _: reasons.append(request.reason))
    listener = Recording()
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        before = consumer.group_metadata().generation_id
        reasons.clear()
        consumer.enforce_rebalance("other user data")
        poll_until(consumer, lambda: before + 1 == consumer.group_metadata().generation_id)
    assert ["other user data"] == reasons


def test_a_rebalance_of_the_consumer_protocol_cannot_be_enforced(broker, caplog):
    """As in Java, a warning says so."""
    with consuming(broker, group_id="g", group_protocol="consumer") as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.enforce_rebalance("a test")
    assert "enforce_rebalance has no effect with group.protocol=consumer" in caplog.text
    assert "the reason was: a test" in caplog.text


def test_a_rebalance_needs_a_group(broker):
    """The error says what to set."""
    with (
        consuming(broker) as consumer,
        pytest.raises(ConfigError, match="enforce_rebalance needs a group"),
    ):
        consumer.enforce_rebalance()
