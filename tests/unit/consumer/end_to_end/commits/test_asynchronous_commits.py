"""Asynchronous commits of a consumer, and their callbacks."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.consumer.group.offset_commits import OffsetCommits
from spark_kafka_sink.consumer.offsets.offset_calls import BrokerRequests
from spark_kafka_sink.errors import (
    BrokerError,
    DecodeError,
    KafkaError,
    KafkaTimeoutError,
    WakeupError,
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
    GROUP,
    NEVER_MS,
    PATIENCE,
    consuming,
    poll_until,
    take,
    tp,
)


def test_callbacks_run_in_order_within_poll(broker):
    """Each has the offsets, on the user's thread, and never before a call of the consumer's."""
    calls = []

    def note(offsets, error):
        calls.append((offsets[tp()].offset, error, threading.current_thread()))

    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        for offset in range(5):
            consumer.commit_async({tp(): offset}, note)
        time.sleep(0.3)
        assert [] == calls
        poll_until(consumer, lambda: 5 == len(calls))
        assert [(n, None, threading.current_thread()) for n in range(5)] == calls
        consumer.commit_async({tp(): 9}, note)
    assert 9 == calls[-1][0]
    assert 9 == committed(broker)


def test_commits_are_sent_in_order_although_the_first_one_waits_for_a_connection(
    broker, monkeypatch
):
    """A later one must not overtake it, or the older offset would be the committed one."""
    original = BrokerRequests.connection_to
    waits = []

    async def connect(self, node, deadline):
        connection = await original(self, node, deadline)
        if not waits:
            waits.append(node)
            await asyncio.sleep(0.2)
        return connection

    sent = []
    calls = []
    broker.on(ApiKey.OFFSET_COMMIT, lambda request, _: sent.append(request))
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        # The coordinator is known.
        consumer.committed([tp()])
        monkeypatch.setattr(BrokerRequests, "connection_to", connect)
        for offset in range(3):
            consumer.commit_async({tp(): offset}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: 3 == len(calls))
    assert [0, 1, 2] == [it.topics[0].partitions[0].committed_offset for it in sent]
    assert [0, 1, 2] == [offsets[tp()].offset for offsets, _ in calls]
    assert 2 == committed(broker)


def test_a_commit_waits_its_turn_behind_asynchronous_ones(broker):
    """The last offset is that of the last call; the callbacks have run then."""
    calls = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        for offset in range(20):
            consumer.commit_async({tp(): offset}, lambda *given: calls.append(given))
        consumer.commit({tp(): 7})
        assert 20 == len(calls)
    assert 7 == committed(broker)


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_callback_gets_the_error(broker, code):
    """An asynchronous commit is not retried."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, AnswerError(code), times=1)
    calls = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 1}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: calls)
    [(offsets, error)] = calls
    assert {tp(): OffsetAndMetadata(1)} == offsets
    assert isinstance(error, KafkaError)
    assert code.name in str(error)
    assert 1 == hook.seen


def test_a_callback_learns_that_a_partition_was_not_answered(broker):
    """An answer that lacks a partition does not count as a commit of it."""

    def without_second(answer):
        [topic] = answer.topics
        kept = tuple(each for each in topic.partitions if each.partition_index != 1)
        return replace(answer, topics=(replace(topic, partitions=kept),))

    broker.on(ApiKey.OFFSET_COMMIT, AlterResponse(without_second), times=1)
    calls = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp(), tp(1)])
        consumer.commit_async({tp(): 1, tp(1): 2}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: calls)
    [(_, error)] = calls
    assert isinstance(error, DecodeError)
    assert "the coordinator's answer lacks t-1, so" in str(error)


def test_an_asynchronous_commit_ends_by_the_default_timeout(broker, monkeypatch):
    """Without another limit it takes at most default.api.timeout.ms."""
    limits = []
    commit = OffsetCommits.commit

    async def record(self, prepared, deadline, **given):
        limits.append(deadline - consumer._core.clock())
        return await commit(self, prepared, deadline, **given)

    monkeypatch.setattr(OffsetCommits, "commit", record)
    calls = []
    with consuming(broker, **BY_HAND, default_api_timeout_ms=90_000_500) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 1}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: calls)
    [limit] = limits
    # The clock goes on between the two times that it is read.
    assert 90_000.5 - PATIENCE < limit <= 90_000.5


def test_a_failed_asynchronous_commit_is_logged_without_a_callback(broker, caplog):
    """Nobody else would know."""
    broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED), times=1)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 1})
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_a_callback_that_raises_does_not_prevent_close(broker):
    """Its error is that of the call in which it ran."""

    def fail(offsets, error):
        raise ValueError("broken")

    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 1}, fail)
        with pytest.raises(ValueError, match="broken"):
            poll_until(consumer, lambda: False)
        consumer.commit_async({tp(): 2}, fail)
        with pytest.raises(ValueError, match="broken"):
            consumer.close()
        assert "closed" in repr(consumer)
    assert 2 == committed(broker)


def test_a_commit_of_nothing_waits_for_asynchronous_ones(broker, monkeypatch):
    """It calls their callbacks, and raises if they take too long."""
    calls = []
    original = BrokerRequests.connection_to
    may_connect = threading.Event()

    async def connect(self, node, deadline):
        while not may_connect.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.005)
        return await original(self, node, deadline)

    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        # The coordinator is known.
        consumer.committed([tp()])
        monkeypatch.setattr(BrokerRequests, "connection_to", connect)
        consumer.commit_async({tp(): 5}, lambda *given: calls.append(given))
        with pytest.raises(KafkaTimeoutError, match="asynchronous"):
            consumer.commit({}, timeout=0.1)
        assert [] == calls
        may_connect.set()
        consumer.commit({})
        assert [({tp(): OffsetAndMetadata(5)}, None)] == calls


@pytest.mark.parametrize("is_automatic", [False, True])
def test_a_member_whose_commit_was_fenced_can_only_be_closed(broker, is_automatic):
    """The callback gets the error, and each later poll and commit raises it, without a request."""
    calls = []
    settings = {"group.instance.id": "i", "auto.commit.interval.ms": 100, **GROUP}
    with consuming(broker, enable_auto_commit=is_automatic, **settings) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        hook = broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.FENCED_INSTANCE_ID))
        if not is_automatic:
            consumer.commit_async({tp(): 1}, lambda *given: calls.append(given))
        with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
            poll_until(consumer, lambda: False)
        assert [] == calls if is_automatic else "FENCED_INSTANCE_ID" in str(calls[0][1])
        for call in (consumer.poll, consumer.commit, consumer.commit_async):
            with pytest.raises(BrokerError, match="FENCED_INSTANCE_ID"):
                call()
        assert 1 == hook.seen


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        ("classic", ErrorCode.NOT_COORDINATOR),
        ("classic", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ("consumer", ErrorCode.NOT_COORDINATOR),
    ],
)
def test_commits_to_a_lost_coordinator_fail_at_once(broker, protocol, code):
    """What is in flight to it is not waited for; the callbacks say that a retry may succeed."""
    actions = {1: AnswerError(code), 2: NeverAnswer()}
    broker.on(ApiKey.OFFSET_COMMIT, lambda _, it: actions.get(it.number), expect=True)
    calls = []
    settings = {"group.id": "g", "group.protocol": protocol, "enable.auto.commit": False}
    with consuming(broker, request_timeout_ms=NEVER_MS, **settings) as consumer:
        consumer.assign([tp()])
        for offset in range(3):
            consumer.commit_async({tp(): offset}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: 3 == len(calls))
        assert [0, 1, 2] == [offsets[tp()].offset for offsets, _ in calls]
        assert [True] * 3 == [error.retriable for _, error in calls]
        consumer.commit({tp(): 9})
    assert 9 == committed(broker)


def test_commits_on_a_connection_that_ends_fail_at_once(broker):
    """However many there are, and each callback is called."""
    broker.on(ApiKey.OFFSET_COMMIT, CloseConnection(), times=1)
    calls = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        assert consumer.committed([tp()])[tp()] is None
        for offset in range(100):
            consumer.commit_async({tp(): offset}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: 100 == len(calls))
        assert sorted(offsets[tp()].offset for offsets, _ in calls) == list(range(100))
        assert any(error is not None for _, error in calls)
        assert all(error is None or error.retriable for _, error in calls)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("error", [ValueError("of the callback"), KafkaError("of the callback")])
@pytest.mark.parametrize("is_automatic", [False, True])
def test_a_callback_that_raises_does_not_keep_a_closed_member_in_the_group(
    broker, protocol, error, is_automatic
):
    """Its error is raised after the group has been left, and is no failure of the last commit."""

    def fail(_offsets, _error):
        raise error

    settings = {"group_id": "g", "group_protocol": protocol, "enable_auto_commit": is_automatic}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.position(tp())
        consumer.commit_async(callback=fail)
        with pytest.raises(type(error), match="of the callback"):
            consumer.close()
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert () == admin.describe_consumer_groups(["g"])["g"].members


def test_a_commit_that_fails_calls_the_callbacks_of_earlier_ones(broker):
    """They ended before it, and have run when it raises."""
    hook = AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    broker.on(ApiKey.OFFSET_COMMIT, lambda _, it: hook if it.number == 2 else None, expect=True)
    calls = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 3}, lambda *given: calls.append(given))
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
            consumer.commit({tp(): 4})
        assert [({tp(): OffsetAndMetadata(3)}, None)] == calls


def test_a_wakeup_of_a_commit_is_not_lost_to_a_callback_that_raises(broker):
    """The loop that it is to end would go on; a later call runs the callback."""

    def fail(_offsets, _error):
        raise ValueError("of the callback")

    # What has ended already is not interrupted.
    broker.on(ApiKey.OFFSET_COMMIT, lambda _, it: NeverAnswer() if it.number == 2 else None)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 3}, fail)
        while not consumer._commits._done:
            time.sleep(0.001)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.commit({tp(): 4})
        with pytest.raises(ValueError, match="of the callback"):
            poll_until(consumer, lambda: False)
