"""Topics that are deleted, and perhaps created again, while they are read."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import NoOffsetForPartitionError
from spark_kafka_sink.testing import AnswerError, ApiKey, ErrorCode
from tests.support.consumer.embedded_consuming import (
    GROUP,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered
from tests.support.consumer.recreated_topics import EXPECTED, read_before_and_after
from tests.support.faults.recreated_topic import recreate_topic
from tests.support.network.leaps import leap


@pytest.fixture
def broker():
    """Return a broker with topic `t` of one partition."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        yield broker


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_was_created_again_is_read_from_its_beginning(broker, caplog, protocol):
    """The position was one in the old topic; a warning names both topics by their ids."""
    caplog.set_level(logging.WARNING)
    settings = {"group.protocol": protocol, "enable.auto.commit": False}
    assert EXPECTED == read_before_and_after(broker, "t", "g", **settings)
    if protocol == "classic":
        # A member of the other protocol may lose the partition before it sees the new topic.
        assert "deleted and created again: its id was" in caplog.text


def test_a_topic_that_was_created_again_has_no_position_without_a_reset(broker):
    """Each poll raises the error until the user seeks."""
    fill(broker.bootstrap_servers, "t", numbered(3))
    with consuming(broker, auto_offset_reset="none") as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 0)
        take(consumer, 3)
        recreate_topic(broker.bootstrap_servers, "t", 1)
        fill(broker.bootstrap_servers, "t", numbered(6))
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError, match="t-0"):
                poll_until(consumer, lambda: False)
        consumer.seek(tp(), 0)
        assert numbered(6) == values(take(consumer, 6))


def test_automatic_commits_do_not_hurry_for_a_topic_that_is_gone(broker, caplog):
    """There is one per interval, and no warning about it."""
    caplog.set_level(logging.DEBUG)
    fill(broker.bootstrap_servers, "t", numbered(3))
    gone = AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    commits = broker.on(ApiKey.OFFSET_COMMIT, gone)
    with consuming(broker, **GROUP, auto_commit_interval_ms=15_000) as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        leap(consumer)
        poll_until(consumer, lambda: "automatic commit" in caplog.text)
        for _ in range(20):
            consumer.poll(0.02)
        assert 1 == commits.seen
        commits.remove()
    [said] = {it.levelname for it in caplog.records if "automatic commit:" in it.getMessage()}
    assert "DEBUG" == said
