"""Commits of a consumer: by hand, asynchronous and automatic."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from spark_kafka_sink.consumer.membership.member_states import MemberState
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from spark_kafka_sink.model import OffsetAndMetadata
from spark_kafka_sink.testing import (
    AnswerError,
    ApiKey,
    CloseConnection,
    Delay,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.embedded_consuming import (
    GROUP,
    PATIENCE,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered

BY_HAND = {**GROUP, "enable.auto.commit": False}


@pytest.fixture
def broker():
    """Return a broker with topic `t` of one partition with ten records."""
    with DevBroker(topics={"t": 1}, group_min_session_timeout_ms=100) as broker:
        fill(broker.bootstrap_servers, "t", numbered(10))
        yield broker


def committed(broker):
    """Return the offset that the group has committed."""
    with consuming(broker, **BY_HAND) as consumer:
        found = consumer.committed([tp()])[tp()]
        return None if found is None else found.offset


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
    ],
    ids=repr,
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
    with consuming(broker, session_timeout_ms=500, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        broker.on(ApiKey.OFFSET_COMMIT, AnswerError(code), times=1)
        with pytest.raises(error):
            consumer.commit()
        fill(broker.bootstrap_servers, "t", [b"more"])
        assert b"more" == values(take(consumer, 1))[-1]
        poll_until(consumer, lambda: True)
        consumer.commit()
    assert 11 == committed(broker)


def test_a_commit_without_an_answer_times_out(broker):
    """The error comes soon after its timeout, and says what it waited for."""
    broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer())
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        begin = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match="OffsetCommit"):
            consumer.commit({tp(): 5}, timeout=0.5)
        assert 0.4 < time.monotonic() - begin < 2.5


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


def test_positions_are_committed_after_the_interval(broker):
    """By a later poll: what the last one returned may not have been processed."""
    with consuming(broker, auto_commit_interval_ms=100, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        time.sleep(0.3)
        assert committed_by(consumer) is None or committed_by(consumer) == 0
        poll_until(consumer, lambda: 10 == committed_by(consumer))


def committed_by(consumer):
    """Return the offset that the consumer's group has committed."""
    found = consumer.committed([tp()])[tp()]
    return None if found is None else found.offset


def test_the_interval_limits_automatic_commits(broker):
    """Polls in between commit nothing."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    with consuming(broker, auto_commit_interval_ms=200, **GROUP) as consumer:
        consumer.subscribe("t")
        until = time.monotonic() + 1
        poll_until(consumer, lambda: time.monotonic() > until)
        assert 3 <= hook.seen <= 6


def test_close_commits_automatically(broker):
    """What poll has returned; and so does an assigned consumer."""
    for offset, subscribes in ((4, True), (8, False)):
        with consuming(broker, max_poll_records=4, **GROUP) as consumer:
            if subscribes:
                consumer.subscribe("t")
            else:
                consumer.assign([tp()])
            take(consumer, 4)
        assert offset == committed(broker)


@pytest.mark.parametrize("is_subscribed", [False, True])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_close_commits_without_waiting(broker, protocol, is_subscribed):
    """With a timeout of 0 the commit is sent, before the member leaves."""
    with consuming(broker, group_protocol=protocol, group_id="g") as consumer:
        if is_subscribed:
            consumer.subscribe("t")
        else:
            consumer.assign([tp()])
        take(consumer, 10)
        begin = time.monotonic()
        consumer.close(0)
        assert time.monotonic() - begin < 2.5
    assert 10 == committed(broker)


def test_a_revocation_is_preceded_by_an_automatic_commit(broker):
    """The listener finds the offsets committed."""
    found = []
    with consuming(broker, auto_commit_interval_ms=60_000, **GROUP) as consumer:

        def ask(what, partitions):
            if what == "revoked":
                found.append(consumer.committed(partitions))

        consumer.subscribe("t", listener=Recording(ask))
        take(consumer, 10)
        broker.create_topic("u")
        consumer.subscribe(["t", "u"], listener=Recording(ask))
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
    assert [10, 10] == [each[tp()].offset for each in found]


def test_a_listener_can_commit_while_the_consumer_is_closed(broker):
    """The partitions are revoked before the member leaves."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe(
            "t",
            listener=Recording(lambda what, _: what == "revoked" and consumer.commit({tp(): 6})),
        )
        poll_until(consumer, consumer.assignment)
    assert 6 == committed(broker)


def test_an_automatic_commit_that_fails_is_repeated(broker, caplog):
    """It is only logged; reading goes on."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.NOT_COORDINATOR), times=2)
    with consuming(broker, auto_commit_interval_ms=50, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        poll_until(consumer, lambda: 10 == committed_by(consumer))
    assert 2 == hook.fired
    assert "automatic commit" in caplog.text


def test_a_commit_during_a_rebalance_says_so(broker):
    """The member may try again after it has joined."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        hook = broker.on(ApiKey.JOIN_GROUP, Delay(0.5), times=1)
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: hook.seen)
        with pytest.raises(RebalanceInProgressError):
            consumer.commit({tp(): 1})
        poll_until(consumer, consumer.assignment)
        consumer.commit({tp(): 1})
    assert 1 == committed(broker)


def test_a_member_that_is_out_cannot_commit(broker):
    """After max.poll.interval.ms the partitions may have another owner."""
    with consuming(broker, max_poll_interval_ms=200, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        time.sleep(0.5)
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


def test_automatic_commits_begin_an_interval_after_a_join(broker):
    """However long the join has taken: there is nothing to commit before."""
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    broker.on(ApiKey.JOIN_GROUP, Delay(0.7), times=1)
    with consuming(broker, auto_commit_interval_ms=600, **GROUP) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        until = time.monotonic() + 0.3
        poll_until(consumer, lambda: time.monotonic() > until)
        assert 0 == hook.seen
        poll_until(consumer, lambda: 10 == committed_by(consumer))


def test_a_commit_of_nothing_waits_for_asynchronous_ones(broker):
    """It calls their callbacks, and raises if they take too long."""
    calls = []
    broker.on(ApiKey.OFFSET_COMMIT, Delay(0.5), times=1)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        consumer.commit_async({tp(): 5}, lambda *given: calls.append(given))
        with pytest.raises(KafkaTimeoutError, match="asynchronous"):
            consumer.commit({}, timeout=0.1)
        assert [] == calls
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


def test_a_synchronous_commit_that_was_fenced_is_raised(broker):
    """The advice names group.instance.id."""
    broker.on(ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.FENCED_INSTANCE_ID), times=1)
    with consuming(broker, group_instance_id="i", **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        with pytest.raises(BrokerError, match=r"FENCED_INSTANCE_ID.*group\.instance\.id"):
            consumer.commit()


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
    broker.on(ApiKey.OFFSET_COMMIT, lambda _, it: actions.get(it.number))
    calls = []
    settings = {"group.id": "g", "group.protocol": protocol, "enable.auto.commit": False}
    with consuming(broker, **settings) as consumer:
        consumer.assign([tp()])
        begin = time.monotonic()
        for offset in range(3):
            consumer.commit_async({tp(): offset}, lambda *given: calls.append(given))
        poll_until(consumer, lambda: 3 == len(calls))
        assert time.monotonic() - begin < 5
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


def test_a_consumer_that_left_its_group_commits_without_it(broker):
    """Neither its old generation nor its group.instance.id is sent with assigned partitions."""
    sent = []
    broker.on(ApiKey.OFFSET_COMMIT, lambda request, _: sent.append(request))
    with consuming(broker, group_instance_id="i", session_timeout_ms=200, **BY_HAND) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.unsubscribe()
        time.sleep(0.5)
        consumer.assign([tp()])
        consumer.commit({tp(): 3})
    assert [(-1, "", None)] == [
        (each.generation_id_or_member_epoch, each.member_id, each.group_instance_id)
        for each in sent
    ]


@pytest.mark.parametrize("to_beginning", [False, True])
def test_an_assigned_consumer_finds_the_coordinator_when_it_commits(broker, to_beginning):
    """A consumer with positions does not need it before, and the search is retried."""
    error = AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    hook = broker.on(
        ApiKey.FIND_COORDINATOR, lambda _, context: error if context.number < 4 else None
    )
    with consuming(broker, auto_commit_interval_ms=500, **GROUP) as consumer:
        consumer.assign([tp()])
        if to_beginning:
            consumer.seek_to_beginning()
        else:
            consumer.seek(tp(), 2)
        take(consumer, 8)
        assert 0 == hook.seen
        poll_until(consumer, lambda: 4 == hook.seen)
        poll_until(consumer, lambda: 10 == committed_by(consumer))


RETRIED = [
    AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    CloseConnection(),
]
NOT_RETRIED = [
    AnswerError(ErrorCode.UNKNOWN_MEMBER_ID),
    AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    NeverAnswer(),
]


@pytest.mark.parametrize("fault", RETRIED + NOT_RETRIED, ids=repr)
def test_a_commit_before_a_rebalance_does_not_prevent_it(broker, fault):
    """It is retried if that may help soon, and given up after max.poll.interval.ms."""
    broker.create_topic("u")
    settings = {**GROUP, "auto.commit.interval.ms": 60_000, "session.timeout.ms": 1000}
    settings |= {"request.timeout.ms": 500, "max.poll.interval.ms": 1000}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        times = None if isinstance(fault, NeverAnswer) else 1
        hook = broker.on(ApiKey.OFFSET_COMMIT, fault, times=times)
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        assert 1 <= hook.fired
        hook.remove()
        expected = 10 if fault in RETRIED else None
        assert expected == committed_by(consumer)


def test_nothing_is_committed_before_a_rebalance_by_hand(broker):
    """With enable.auto.commit=false."""
    broker.create_topic("u")
    hook = broker.on(ApiKey.OFFSET_COMMIT, lambda *_: None)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.subscribe("t")
        take(consumer, 10)
        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
    assert 0 == hook.seen


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_commit_before_a_rebalance_does_not_delay_poll(broker, strategy):
    """A cooperative member goes on reading; the commit is of what earlier polls have returned."""
    broker.create_topic("u")
    sent = []

    def slow(request, _):
        sent.append(request.topics[0].partitions[0].committed_offset)
        return Delay(0.6)

    settings = {
        **GROUP,
        "auto.commit.interval.ms": 60_000,
        "partition.assignment.strategy": strategy,
        "max.poll.records": 1,
    }
    listener = Recording()
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t", listener=listener)
        take(consumer, 3)
        broker.on(ApiKey.OFFSET_COMMIT, slow, times=1)
        consumer.subscribe(["t", "u"], listener=listener)
        begin = time.monotonic()
        found = consumer.poll(0.1)
        assert time.monotonic() - begin < 0.5
        assert [("assigned", (tp(),))] == listener.calls
        assert (0 if strategy == "range" else 1) == found.count
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        assert [3] == sent
        if strategy == "range":
            assert 3 == committed_by(consumer)


def test_a_commit_before_a_revocation_has_what_was_returned(broker):
    """Not what poll returns while the commit is on its way (KIP-848)."""
    broker.create_topic("u")
    sent = []
    settings = {"group.id": "g", "group.protocol": "consumer", "max.poll.records": 1}
    with consuming(broker, auto_commit_interval_ms=60_000, **settings) as consumer:
        commit = consumer._context.commit_positions

        async def commit_later(*given):
            await asyncio.sleep(0.2)
            await commit(*given)

        consumer.subscribe(["t", "u"])
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
        consumer.seek(tp(), 3)
        assert 3 == consumer.position(tp())
        consumer._context.commit_positions = commit_later
        broker.on(
            ApiKey.OFFSET_COMMIT,
            lambda request, _: sent.append(
                max(each.committed_offset for it in request.topics for each in it.partitions)
            ),
        )
        consumer.subscribe("t")
        before = consumer.position(tp())
        assert before < 10
        # The new assignment arrives without poll.
        membership = consumer._core.coordinator.member
        deadline = time.monotonic() + PATIENCE
        while membership.state is not MemberState.RECONCILING and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 1 == consumer.poll(5).count
        poll_until(consumer, lambda: sent)
        assert before == sent[0]
