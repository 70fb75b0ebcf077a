"""Joins of a group that are interrupted, that get no answer, or that cannot begin."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.consumer.group import classic_coordinator
from spark_kafka_sink.consumer.group.classic_membership import ClassicMemberState
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.devbroker.net.listener import Listener, SaslSettings
from spark_kafka_sink.errors import AuthenticationError, DecodeError, WakeupError
from spark_kafka_sink.testing import (
    AlterResponse,
    AnswerError,
    ApiKey,
    Delay,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.embedded_consuming import (
    ENDLESS_SESSION,
    PATIENCE,
    SHORT_SESSION,
    Recording,
    consuming,
    poll_until,
    refuse_and_forget,
    tp,
    wait_until,
)
from tests.support.network.leaps import leap, leap_broker

GROUP = {**ENDLESS_SESSION, "partition.assignment.strategy": "range"}
#: For members that forget their id.
SHORT = {**SHORT_SESSION, "partition.assignment.strategy": "range"}
T, U = (tp(),), (tp(0, "u"),)


@pytest.fixture
def broker():
    """Return a broker with topics `t` and `u` of one partition each."""
    with DevBroker(topics={"t": 1, "u": 1}) as broker:
        yield broker


def test_an_assignor_that_was_not_offered_is_an_error_of_the_coordinator(broker):
    """The name comes from the network, so its control characters are escaped."""
    broker.on(
        ApiKey.JOIN_GROUP, AlterResponse(lambda answer: replace(answer, protocol_name="no\x1b"))
    )
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        with pytest.raises(DecodeError, match=r"has chosen the assignor 'no\\x1b', which this mem"):
            poll_until(consumer, consumer.assignment)


@pytest.mark.parametrize("is_completed_between", [False, True])
@pytest.mark.parametrize("is_answered_later", [False, True])
@pytest.mark.parametrize("api", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP], ids=lambda api: api.name)
def test_a_wakeup_during_a_join_does_not_repeat_it(
    broker, api, is_answered_later, is_completed_between
):
    """Poll raises once; whatever is answered by then, nothing is revoked or assigned twice."""
    listener = Recording()
    with consuming(broker, **GROUP) as consumer:

        def wake(_, context):
            if context.number > 1:
                return None
            consumer.wakeup()
            return Delay(0.2) if is_answered_later else None

        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        hook = broker.on(api, wake)
        consumer.subscribe("u", listener=listener)
        with pytest.raises(WakeupError):
            poll_until(consumer, lambda: False)
        assert frozenset() == consumer.assignment()
        if is_completed_between:
            membership = consumer._core.coordinator.member
            wait_until(lambda: membership.state is ClassicMemberState.STABLE)
            assert frozenset() == consumer.assignment()
        poll_until(consumer, lambda: consumer.assignment() == frozenset(U))
        assert 1 == hook.seen
        assert 2 == consumer.group_metadata().generation_id
    assert [("assigned", T), ("revoked", T), ("assigned", U), ("revoked", U)] == listener.calls


def test_a_wakeup_interrupts_the_search_for_the_coordinator(broker):
    """Also a poll that does not wait raises it, once, and the next one goes on."""
    broker.on(ApiKey.FIND_COORDINATOR, AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE), times=3)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(0)
        poll_until(consumer, consumer.assignment)


@pytest.mark.parametrize("api", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP], ids=lambda api: api.name)
def test_a_join_without_an_answer_is_repeated(broker, api):
    """JoinGroup may take longer than other requests; then the same member joins again."""
    # JoinGroup takes 5 s longer than the latter; a leap is longer than the former.
    settings = {**GROUP, "request.timeout.ms": 15_000, "max.poll.interval.ms": 30_000}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        member_id = consumer.group_metadata().member_id
        hook = broker.on(api, lambda _, it: NeverAnswer() if it.number == 1 else None)
        consumer.subscribe("u")
        poll_until(consumer, lambda: hook.seen)
        leap(consumer)
        if api is ApiKey.JOIN_GROUP:
            for _ in range(5):
                consumer.poll(0.05)
            assert 1 == hook.seen
            leap(consumer)
        poll_until(consumer, lambda: hook.seen > 1)
        poll_until(consumer, lambda: consumer.assignment() == frozenset(U))
        assert member_id == consumer.group_metadata().member_id


def test_a_poll_returns_in_time_while_the_group_cannot_be_joined(broker):
    """The join is retried with its back-off, by the next polls too."""
    hook = broker.on(ApiKey.JOIN_GROUP, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    with consuming(broker, retry_backoff_ms=50, **GROUP) as consumer:
        consumer.subscribe("t")
        for _ in range(2):
            begin, before = time.monotonic(), hook.seen
            assert consumer.poll(0.3).is_empty
            took = time.monotonic() - begin
            assert 0.2 < took
            # The back-off varies by a fifth.
            assert hook.seen - before <= 2 + took / 0.04
            poll_until(consumer, lambda before=before: before < hook.seen)


def test_an_unexpected_error_of_a_heartbeat_is_raised_by_poll(broker, monkeypatch):
    """The user learns of it, and the member recovers when its session has ended."""
    build = classic_coordinator.heartbeat_request
    errors = [ValueError("broken")]

    def fail_once(*given):
        if errors:
            raise errors.pop()
        return build(*given)

    with consuming(broker, **SHORT) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        monkeypatch.setattr(classic_coordinator, "heartbeat_request", fail_once)
        with pytest.raises(ValueError, match="broken"):
            poll_until(consumer, lambda: False)
        leap_broker(broker)
        leap(consumer)
        hook = broker.on(ApiKey.HEARTBEAT, lambda *_: None)
        poll_until(consumer, lambda: hook.seen)
        poll_until(consumer, lambda: consumer.assignment() == frozenset(T))


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR])
def test_a_member_leaves_whatever_the_coordinator_answers(broker, caplog, code):
    """The error is only logged, and the consumer can subscribe again."""
    caplog.set_level("INFO", "spark_kafka_sink.consumer")
    hook = broker.on(ApiKey.LEAVE_GROUP, refuse_and_forget(broker, code), times=1)
    with consuming(broker, **SHORT) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.unsubscribe()
        consumer.subscribe("u")
        poll_until(consumer, lambda: consumer.assignment() == frozenset(U))
    assert 1 == hook.fired
    assert code.name in caplog.text


def test_a_wrong_password_is_raised_by_poll():
    """No further attempt would help."""
    sasl = SaslSettings(
        users={"alice": "right"}, mechanisms=("PLAIN",), failed_authentication_delay_ms=0
    )
    listener = Listener(security_protocol="SASL_PLAINTEXT", sasl=sasl)
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="wrong";',
    }
    with (
        DevBroker(topics={"t": 1}, listeners=[listener]) as broker,
        consuming(broker, **settings, **GROUP) as consumer,
    ):
        consumer.subscribe("t")
        with pytest.raises(AuthenticationError):
            poll_until(consumer, lambda: False)
        consumer.close(0)


def test_metadata_without_an_answer_only_delay_a_join():
    """Retriable errors of background work, such as the leader's questions, never reach the user."""
    joins, held, read = [], [], []

    def note_join(_, context):
        joins.append(context.number)

    def hold(_, context):
        # Of the questions that follow each of the first joins, two get no answer.
        if len(held) < 2 * min(len(joins), 4):
            held.append(context.number)
            return NeverAnswer()
        return None

    hasty = {**GROUP, "request.timeout.ms": 300, "metadata.max.age.ms": 500}
    with DevBroker(topics={"t": 2}) as broker:
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for partition in (0, 1):
                producer.send("t", b"%d" % partition, partition=partition)
        broker.on(ApiKey.JOIN_GROUP, note_join)
        broker.on(ApiKey.METADATA, hold)
        with consuming(broker, **hasty) as one, consuming(broker, **hasty) as other:
            members = (one, other)
            for consumer in members:
                consumer.subscribe("t")

            def poll_all():
                for consumer in members:
                    read.extend(record.value for record in consumer.poll(0.02).records())
                is_assigned = all(len(consumer.assignment()) == 1 for consumer in members)
                return is_assigned and set(read) == {b"0", b"1"} and len(held) == 8

            deadline = time.monotonic() + PATIENCE
            while not poll_all():
                assert time.monotonic() < deadline, (read, joins, held)
