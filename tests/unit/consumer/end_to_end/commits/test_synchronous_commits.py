"""Synchronous commits of a consumer."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spark_kafka_sink.errors import (
    BrokerError,
    CommitFailedError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from spark_kafka_sink.model import OffsetAndMetadata
from spark_kafka_sink.testing import (
    AlterResponse,
    AnswerError,
    ApiKey,
    CloseConnection,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.commits import BY_HAND, committed
from tests.support.consumer.embedded_consuming import (
    ENDLESS_SESSION,
    NEVER_MS,
    PATIENCE,
    SHORT_SESSION,
    Recording,
    consuming,
    poll_until,
    refuse_and_forget,
    take,
    tp,
    values,
    wait_until,
)
from tests.support.consumer.reading import fill
from tests.support.network.leaps import leap, leap_broker


def test_a_commit_has_the_positions(broker):
    """Those after what poll has returned, not after what has been fetched."""
    with consuming(broker, max_poll_records=4, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 4)
        consumer.commit()
        assert 4 == consumer.committed([tp()])[tp()].offset
    assert 4 == committed(broker)


def test_offsets_are_committed_with_their_metadata(broker):
    """The text and the epoch come back."""
    offset = OffsetAndMetadata(3, 0, "a note")
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit({tp(): offset})
        assert {tp(): offset, tp(1): None} == consumer.committed([tp(), tp(1)])
        assert {} == consumer.committed([])


def test_nothing_is_committed_by_default_at_close(broker):
    """With enable.auto.commit=false."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
    assert committed(broker) is None


@pytest.mark.parametrize(
    "fault",
    [
        AnswerError(ErrorCode.NOT_COORDINATOR),
        AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        AnswerError(ErrorCode.REQUEST_TIMED_OUT),
        AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        CloseConnection(),
        CloseConnection(handled=True),
        NeverAnswer(),
        AlterResponse(lambda answer: replace(answer, topics=())),
    ],
    ids=lambda fault: "no partitions" if isinstance(fault, AlterResponse) else repr(fault),
)
def test_a_commit_is_retried(broker, fault):
    """An error that passes is not raised."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, fault, times=2)
    with consuming(broker, request_timeout_ms=300, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit({tp(): 5})
    assert 2 == hook.fired
    assert 5 == committed(broker)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError),
        (ErrorCode.REBALANCE_IN_PROGRESS, RebalanceInProgressError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, BrokerError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, BrokerError),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, BrokerError),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, BrokerError),
        (ErrorCode.UNKNOWN_SERVER_ERROR, BrokerError),
    ],
)
def test_a_refused_commit_is_raised(broker, code, error):
    """The consumer goes on afterwards."""
    forgets = code is ErrorCode.UNKNOWN_MEMBER_ID
    refusal = refuse_and_forget(broker, code) if forgets else AnswerError(code)
    with consuming(broker, enable_auto_commit=False, **SHORT_SESSION) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        broker.on(ApiKey.OFFSET_COMMIT, refusal, times=1, expect=True)
        with pytest.raises(error):
            consumer.commit()
        fill(broker.bootstrap_servers, "t", [b"more"])
        assert b"more" == values(take(consumer, 1))[-1]
        poll_until(consumer, lambda: True)
        consumer.commit()
    assert 11 == committed(broker)


def test_a_commit_without_an_answer_times_out(broker):
    """The error comes after the timeout of the call, and says what it waited for."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer())
    with consuming(broker, request_timeout_ms=NEVER_MS, **BY_HAND) as consumer:
        consumer.assign([tp()])
        # On a slow machine a commit may end before it is sent.
        while not hook.fired:
            begin = time.monotonic()
            with pytest.raises(KafkaTimeoutError, match="OffsetCommit"):
                consumer.commit({tp(): 5}, timeout=0.5)
            assert 0.4 < time.monotonic() - begin < PATIENCE


def test_a_listener_can_commit_while_the_consumer_is_closed(broker):
    """The partitions are revoked before the member leaves."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe(
            "t",
            listener=Recording(lambda what, _: what == "revoked" and consumer.commit({tp(): 6})),
        )
        poll_until(consumer, consumer.assignment)
    assert 6 == committed(broker)


def test_a_commit_during_a_rebalance_says_so(broker):
    """The member may try again after it has joined."""
    settings = {**ENDLESS_SESSION, "enable.auto.commit": False}
    with consuming(broker, **settings) as consumer, consuming(broker, **settings) as other:
        other.subscribe("t")
        poll_until(other, other.assignment)
        consumer.subscribe("t")
        poll_until(other, lambda: 2 == consumer.group_metadata().generation_id, consumer)
        hook = broker.on(ApiKey.JOIN_GROUP, lambda *_: None)
        consumer.enforce_rebalance()
        # The coordinator waits for the other member, which does not poll.
        poll_until(consumer, lambda: hook.seen)
        with pytest.raises(RebalanceInProgressError):
            consumer.commit({tp(): 1})
        other.close()
        poll_until(consumer, consumer.assignment)
        consumer.commit({tp(): 1})
    assert 1 == committed(broker)


def test_a_member_that_is_out_cannot_commit(broker):
    """After max.poll.interval.ms the partitions may have another owner."""
    leave = broker.on(ApiKey.LEAVE_GROUP, lambda *_: None)
    with consuming(broker, max_poll_interval_ms=15_000, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        leap(consumer)
        wait_until(lambda: leave.seen)
        with pytest.raises(CommitFailedError):
            consumer.commit()
        assert 10 == len(take(consumer, 10))
        consumer.commit()


def test_a_search_that_was_refused_can_succeed_later(broker):
    """Each call asks anew, also without poll."""
    refusal = AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    hook = broker.on(ApiKey.FIND_COORDINATOR, refusal, times=2)
    with consuming(broker, **BY_HAND) as consumer:
        for _ in range(2):
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                consumer.committed([tp()])
        assert {tp(): None} == consumer.committed([tp()])
    assert 2 == hook.fired


def test_a_synchronous_commit_that_was_fenced_is_raised(broker):
    """The advice names group.instance.id."""
    broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.FENCED_INSTANCE_ID), times=1)
    with consuming(broker, group_instance_id="i", **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*group\.instance\.id"):
            consumer.commit()


def test_a_consumer_that_left_its_group_commits_without_it(broker):
    """Neither its old generation nor its group.instance.id is sent with assigned partitions."""
    sent = []
    broker.on(ApiKey.OFFSET_COMMIT, lambda request, _: sent.append(request))
    settings = {**SHORT_SESSION, "group.instance.id": "i", "enable.auto.commit": False}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.unsubscribe()
        leap_broker(broker)
        consumer.assign([tp()])
        consumer.commit({tp(): 3})
    assert [(-1, "", None)] == [
        (each.generation_id_or_member_epoch, each.member_id, each.group_instance_id)
        for each in sent
    ]
