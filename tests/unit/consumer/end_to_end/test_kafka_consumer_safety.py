"""Threads, wakeups, interruptions, absent brokers, and what remains after close."""

from __future__ import annotations

import copy
import logging
import pickle
import re
import socket
import threading
import time
from datetime import UTC, datetime

import pytest

from spark_kafka_sink.consumer.consumer_core import ConsumerCore
from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.consumer.kafka_consumer import KafkaConsumer
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    WakeupError,
)
from spark_kafka_sink.model import OffsetAndMetadata, TopicPartition
from spark_kafka_sink.testing import AnswerError, ApiKey, ErrorCode, NeverAnswer
from tests.support import leaks
from tests.support.consumer.embedded_consuming import (
    GROUP,
    NEVER_MS,
    PATIENCE,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
    wait_until,
)
from tests.support.consumer.reading import fill, numbered
from tests.support.faults.expected_faults import wait_until_injected
from tests.support.faults.interrupts import interrupt, interrupting, needs_signals
from tests.support.network.leaps import leap


@pytest.fixture
def broker():
    """Return a broker with topic `t` of one partition."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        yield broker


@pytest.fixture
def count_rounds(monkeypatch):
    """Return a function that says how often the network threads have looked what is due."""
    rounds = []
    advance = ConsumerCore._advance

    def counted(core, now):
        rounds.append(now)
        return advance(core, now)

    monkeypatch.setattr(ConsumerCore, "_advance", counted)
    return lambda: len(rounds)


def free_port():
    """Return a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_two_threads_at_once_are_refused(broker):
    """The second one's call raises; the first one's goes on, and then the second may call."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])

        def wait():
            with pytest.raises(WakeupError):
                consumer.poll(PATIENCE)

        # Without a poll there is no position to fetch from.
        fetch = broker.on(ApiKey.FETCH, lambda *_: None)
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: fetch.seen)
        calls = (consumer.poll, consumer.close, consumer.assignment, lambda: consumer.seek(tp(), 0))
        for call in calls:
            with pytest.raises(IllegalStateError, match="two threads"):
                call()
        consumer.wakeup()
        thread.join()
        assert frozenset({tp()}) == consumer.assignment()


def test_wakeup_before_a_poll_makes_it_raise_once(broker):
    """The next poll is an ordinary one."""
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        consumer.wakeup()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll(5)
        assert consumer.poll(0).is_empty


@pytest.mark.parametrize("method", ["poll", "poll_arrow", "commit", "position", "end_offsets"])
def test_wakeup_interrupts_what_waits(broker, method):
    """The call raises before there is an answer, and the consumer stays usable."""
    fill(broker.bootstrap_servers, "t", numbered(3))
    calls = {
        "poll": (ApiKey.FETCH, lambda it: it.poll(PATIENCE)),
        "poll_arrow": (ApiKey.FETCH, lambda it: it.poll_arrow(PATIENCE)),
        "commit": (ApiKey.OFFSET_COMMIT, lambda it: it.commit({tp(): 1}, timeout=PATIENCE)),
        "position": (ApiKey.LIST_OFFSETS, lambda it: it.position(tp(), timeout=PATIENCE)),
        "end_offsets": (ApiKey.LIST_OFFSETS, lambda it: it.end_offsets([tp()], timeout=PATIENCE)),
    }
    api, call = calls[method]

    def wake(*_):
        consumer.wakeup()
        return NeverAnswer()

    hook = broker.on(api, wake, times=1)
    settings = {"request.timeout.ms": 15_000, "enable.auto.commit": False, **GROUP}
    with consuming(broker, **settings) as consumer:
        consumer.assign([tp()])
        with pytest.raises(WakeupError):
            call(consumer)
        # Otherwise it would have been sent again, after its timeout.
        assert 1 == hook.seen
        leap(consumer)
        assert numbered(3) == values(take(consumer, 3))


def test_close_ignores_a_wakeup(broker):
    """The member has left when close returns."""
    hook = broker.on(ApiKey.LEAVE_GROUP, lambda *_: consumer.wakeup())
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.wakeup()
        consumer.close()
        assert 1 == hook.seen


def test_a_closed_consumer_refuses_calls(broker):
    """Each raises, except for close and wakeup; its repr says that it is closed."""
    with consuming(broker, **GROUP) as consumer:
        consumer.close()
        consumer.close()
        consumer.wakeup()
        for call in (
            consumer.poll,
            consumer.poll_arrow,
            consumer.commit,
            consumer.assignment,
            consumer.unsubscribe,
            lambda: consumer.subscribe("t"),
            lambda: consumer.assign([tp()]),
            lambda: consumer.seek(tp(), 0),
            lambda: consumer.position(tp()),
            lambda: consumer.committed([tp()]),
            lambda: consumer.partitions_for("t"),
            lambda: next(iter(consumer)),
        ):
            with pytest.raises(IllegalStateError, match="closed"):
                call()
        assert "closed" in repr(consumer)


def test_close_in_a_listener_is_refused(broker):
    """The error names close; the consumer works on."""
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t", listener=Recording(lambda *_: consumer.close()))
        with pytest.raises(KafkaError, match="close was called by a listener"):
            poll_until(consumer, lambda: False)
        fill(broker.bootstrap_servers, "t", [b"a"])
        assert [b"a"] == values(take(consumer, 1))


def test_nothing_is_left_after_close(broker):
    """Neither a thread nor a socket."""
    before = leaks.look()
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.poll(0.1)
    assert [] == leaks.left_since(before)


@pytest.mark.parametrize("timeout", [0, 1])
@pytest.mark.parametrize("silent", [ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP])
def test_close_returns_in_time_while_the_broker_is_silent(broker, timeout, silent):
    """Neither the last Fetch, nor the commit or LeaveGroup, gets an answer."""
    with consuming(broker, request_timeout_ms=NEVER_MS, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.position(tp())
        fetches = broker.on(ApiKey.FETCH, NeverAnswer())
        poll_until(consumer, lambda: fetches.fired)
        # Nothing is sent after a commit on a connection that is silent.
        hook = broker.on(silent, NeverAnswer())
        begin = time.monotonic()
        consumer.close(timeout)
        assert time.monotonic() - begin < PATIENCE
        # What was sent may arrive later.
        wait_until_injected(hook)


@pytest.mark.parametrize("commits", [False, True])
def test_close_looks_for_the_coordinator_only_to_commit(broker, commits):
    """Without one there is nothing to leave; a commit waits for it until the timeout."""
    settings = {"enable.auto.commit": commits, "request.timeout.ms": NEVER_MS, **GROUP}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.position(tp())
        not_available = AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        search = broker.on(ApiKey.FIND_COORDINATOR, not_available)
        broker.on(ApiKey.HEARTBEAT, AnswerError(ErrorCode.NOT_COORDINATOR))
        hook = broker.on(ApiKey.LEAVE_GROUP, lambda *_: None)
        poll_until(consumer, lambda: search.seen)
        begin = time.monotonic()
        consumer.close(1.5 if commits else NEVER_MS / 1000)
        assert (1.4 if commits else 0) < time.monotonic() - begin < PATIENCE
        assert 0 == hook.seen


def test_an_assigned_consumer_has_no_group_to_leave(broker):
    """Closing it commits, and sends no LeaveGroup."""
    commit, leave = (
        broker.on(key, lambda *_: None) for key in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP)
    )
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        consumer.position(tp())
    assert [1, 0] == [commit.seen, leave.seen]


def test_close_takes_no_longer_than_a_request(broker):
    """Whatever its timeout is: a coordinator that does not answer by then is not waited for."""

    def ignore(*_):
        leap(consumer)
        return NeverAnswer()

    with consuming(broker, request_timeout_ms=15_000, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.position(tp())
        hook = broker.on(ApiKey.OFFSET_COMMIT, ignore)
        begin = time.monotonic()
        consumer.close(NEVER_MS / 1000)
        assert time.monotonic() - begin < PATIENCE
        assert hook.seen


def test_close_returns_in_time_without_a_broker(broker):
    """The consumer does not wait for its return."""
    with consuming(broker, request_timeout_ms=NEVER_MS, **GROUP) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        broker.stop()
        begin = time.monotonic()
        consumer.close(1)
        assert time.monotonic() - begin < PATIENCE


@needs_signals
def test_an_interrupted_poll_can_be_repeated(broker):
    """Ctrl-C ends a poll that waits; the next one reads."""
    broker.on(ApiKey.FETCH, lambda _, it: interrupt() if it.number == 1 else None)
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(PATIENCE)
        fill(broker.bootstrap_servers, "t", [b"a"])
        assert [b"a"] == values(take(consumer, 1))


def test_records_of_an_interrupted_poll_are_returned_by_the_next(broker):
    """Ctrl-C while records are deserialized loses none of them, and none are committed."""
    interrupts = [True]

    def interrupted(data):
        if data == numbered(6)[4] and interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return data

    fill(broker.bootstrap_servers, "t", numbered(6))
    settings = {"value.deserializer": interrupted, "max.poll.records": 3, **GROUP}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        assert numbered(3) == values(take(consumer, 3))
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30)
        assert 3 == consumer.position(tp())
        consumer.commit()
        assert 3 == consumer.committed([tp()])[tp()].offset
        assert numbered(6)[3:] == values(take(consumer, 3))


def test_an_arrow_table_of_an_interrupted_poll_is_returned_by_the_next(broker, monkeypatch):
    """Ctrl-C while records are decoded loses none of them."""
    fill(broker.bootstrap_servers, "t", numbered(3))
    take_arrow = FetchedRecords.take_arrow

    def interrupted(records, schema, **limits):
        monkeypatch.setattr(FetchedRecords, "take_arrow", take_arrow)
        take_arrow(records, schema, **limits)
        raise KeyboardInterrupt

    monkeypatch.setattr(FetchedRecords, "take_arrow", interrupted)
    with consuming(broker) as consumer:
        consumer.assign([tp()])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_arrow(30)
        assert 0 == consumer.position(tp())
        assert numbered(3) == consumer.poll_arrow(30)["value"].to_pylist()


@needs_signals
def test_an_interrupted_commit_before_a_rebalance_is_repeated(broker):
    """Nothing is given up without the listener's knowledge."""
    listener = Recording()
    with consuming(broker, request_timeout_ms=15_000, **GROUP) as consumer:
        consumer.subscribe("t", listener=listener)
        poll_until(consumer, consumer.assignment)
        consumer.position(tp())
        broker.on(ApiKey.OFFSET_COMMIT, interrupting, times=1, expect=True)
        broker.create_topic("u")
        consumer.subscribe(["t", "u"], listener=listener)
        with pytest.raises(KeyboardInterrupt):
            poll_until(consumer, lambda: False)
        leap(consumer)
        poll_until(consumer, lambda: 2 == len(consumer.assignment()))
    names = [what for what, partitions in listener.calls if partitions]
    assert ["assigned", "revoked", "assigned", "revoked"] == names


def test_an_idle_consumer_is_not_busy(broker, count_rounds):
    """It asks about twice a second for records, and sends its heartbeats."""
    fetches = broker.on(ApiKey.FETCH, lambda *_: None)
    settings = {"group.id": "g", "fetch.max.wait.ms": 500}
    with consuming(broker, **settings) as consumer:
        consumer.subscribe("t")
        poll_until(consumer, consumer.assignment)
        consumer.poll(0.1)
        before, rounds = fetches.seen, count_rounds()
        consumer.poll(1)
        assert fetches.seen - before <= 3
        assert count_rounds() - rounds <= 15


@pytest.mark.parametrize("is_subscribed", [True, False])
def test_a_consumer_without_a_broker_is_not_busy(is_subscribed, count_rounds):
    """It tries to connect with its back-off; poll returns nothing in time."""
    settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "group.id": "g"}
    with KafkaConsumer(settings) as consumer:
        if is_subscribed:
            consumer.subscribe("t")
        else:
            consumer.assign([tp()])
        begin = time.monotonic()
        assert consumer.poll(1).is_empty
        assert 0.9 < time.monotonic() - begin < PATIENCE
        assert count_rounds() < 100
        with pytest.raises(KafkaTimeoutError):
            consumer.committed([tp()], timeout=0.2)
        consumer.close(0)


def test_a_broker_that_starts_later_is_found():
    """The consumer joins and reads as soon as there is one."""
    port = free_port()
    settings = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 50,
    }
    with KafkaConsumer(settings) as consumer:
        consumer.subscribe("t")
        assert consumer.poll(0.3).is_empty
        with DevBroker(topics={"t": 1}, port=port) as broker:
            fill(broker.bootstrap_servers, "t", numbered(3))
            assert numbered(3) == values(take(consumer, 3))
            consumer.close()


def test_a_restart_of_the_broker_is_survived(broker):
    """The member goes on where it was."""
    with consuming(broker, **GROUP) as consumer:
        consumer.subscribe("t")
        fill(broker.bootstrap_servers, "t", [b"a"])
        assert [b"a"] == values(take(consumer, 1))
        broker.stop()
        assert consumer.poll(0.3).is_empty
        broker.start()
        fill(broker.bootstrap_servers, "t", [b"b"])
        assert [b"b"] == values(take(consumer, 1))


@pytest.mark.parametrize("is_subscribed", [True, False])
def test_an_unknown_topic_is_read_once_it_exists(broker, caplog, is_subscribed):
    """There is one warning until then."""
    caplog.set_level(logging.WARNING, "spark_kafka_sink.consumer")
    with consuming(broker, metadata_max_age_ms=100, **GROUP) as consumer:
        if is_subscribed:
            consumer.subscribe("new")
        else:
            consumer.assign([tp(0, "new")])

        def warnings():
            return [record for record in caplog.records if "'new'" in record.getMessage()]

        poll_until(consumer, warnings)
        metadata = broker.on(ApiKey.METADATA, lambda *_: None)
        poll_until(consumer, lambda: 4 <= metadata.seen)
        assert 1 == len(warnings())
        broker.create_topic("new")
        fill(broker.bootstrap_servers, "new", [b"a"])
        assert [b"a"] == values(take(consumer, 1))


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda it: it.poll("1")),
        (ValueError, lambda it: it.poll(-1)),
        (ValueError, lambda it: it.poll(float("nan"))),
        (TypeError, lambda it: it.poll(True)),
        (TypeError, lambda it: it.subscribe([1])),
        (ValueError, lambda it: it.subscribe([""])),
        (ConfigError, lambda it: it.subscribe("t", pattern="t")),
        (ConfigError, lambda it: it.subscribe(pattern="(")),
        (TypeError, lambda it: it.subscribe(pattern=re.compile(b"t"))),
        (TypeError, lambda it: it.subscribe("t", listener=print)),
        (TypeError, lambda it: it.assign(["t"])),
        (TypeError, lambda it: it.assign([("t", "0")])),
        (TypeError, lambda it: it.assign([TopicPartition(b"t", 0)])),
        (ValueError, lambda it: it.assign([("t", -1)])),
        (IllegalStateError, lambda it: it.seek(tp(5), 0)),
        (IllegalStateError, lambda it: it.pause([tp(5)])),
        (IllegalStateError, lambda it: it.resume([tp(5)])),
        (IllegalStateError, lambda it: it.position(tp(5))),
        (IllegalStateError, lambda it: it.seek_to_end([tp(5)])),
        (IllegalStateError, lambda it: it.subscribe("t")),
        (ValueError, lambda it: it.seek(tp(), -1)),
        (TypeError, lambda it: it.seek(tp(), "0")),
        (TypeError, lambda it: it.commit({tp(): 1.5})),
        (TypeError, lambda it: it.commit({tp(): OffsetAndMetadata(1, metadata=5)})),
        (TypeError, lambda it: it.commit_async({tp(): 1}, "callback")),
        (ValueError, lambda it: it.offsets_for_times({tp(): -1})),
        (BrokerError, lambda it: it.partitions_for("missing", timeout=PATIENCE)),
    ],
)
def test_bad_arguments_are_refused(broker, error, call, monkeypatch):
    """The error is raised at once, and the assignment stays."""
    monkeypatch.setattr("spark_kafka_sink.consumer.offsets.offset_calls.FINAL_SECONDS", 0.2)
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        with pytest.raises(error):
            call(consumer)
        assert frozenset({tp()}) == consumer.assignment()


class AwaitingListener(ConsumerRebalanceListener):
    """A listener for an AIOKafkaConsumer."""

    async def on_partitions_revoked(self, partitions):
        """Do nothing."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda it: it.subscribe(re.compile("t")), "pass a regular expression as `pattern`"),
        (lambda it: it.subscribe(None), "topics are names, not None"),
        (lambda it: it.assign("t"), "partitions are a list of TopicPartition, not 't'"),
        (lambda it: it.assign(None), "partitions are a list of TopicPartition, not None"),
        (lambda it: it.pause(tp()), "partitions are a list of TopicPartition, not TopicPartition("),
        (lambda it: it.end_offsets(tp()), "partitions are a list of TopicPartition, not Topic"),
        (lambda it: it.commit([tp()]), "offsets are a mapping of TopicPartition to offset, not ["),
        (lambda it: it.commit_async(print), "offsets are a mapping of TopicPartition to offset"),
        (lambda it: it.offsets_for_times([tp()]), "times are a mapping of TopicPartition to ms"),
        (
            lambda it: it.offsets_for_times({tp(): datetime(2026, 3, 1, tzinfo=UTC)}),
            "t-0: a time is a whole number of ms since 1970, such as int(moment.timestamp()",
        ),
        (lambda it: it.offsets_for_times({tp(): 1.5}), "not 1.5"),
        (lambda it: it.partitions_for(tp()), "the name of a topic is a text, not TopicPartition("),
        (lambda it: it.offsets_for_times({tp(): 2**63}), "t-0: a time does not fit into 64 bits"),
        (lambda it: it.poll(float("nan")), "timeout is nan, but must be a number of seconds from"),
        (lambda it: it.poll_arrow(columns="value"), "columns must be a list of the names"),
        (
            lambda it: it.subscribe("t", listener=AwaitingListener()),
            "on_partitions_revoked is a coroutine function, which only an AIOKafkaConsumer awaits",
        ),
        (
            lambda it: it.commit_async({tp(): 1}, AwaitingListener().on_partitions_revoked),
            "callback is a coroutine function, which only an AIOKafkaConsumer awaits",
        ),
    ],
)
def test_an_argument_of_another_form_is_named(broker, call, message):
    """The error says what is expected, rather than which operation failed on what was passed."""
    with consuming(broker, **GROUP) as consumer:
        consumer.assign([tp()])
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            call(consumer)
        assert frozenset({tp()}) == consumer.assignment()


def test_the_repr_says_what_is_read(broker):
    """It names the group, and what is subscribed to, in words."""
    with consuming(broker, **GROUP) as consumer:
        group = f"<KafkaConsumer group={GROUP['group.id']!r}"
        assert f"{group} not subscribed>" == repr(consumer)
        consumer.subscribe(["u", "t"])
        assert f"{group} subscribed to t, u>" == repr(consumer)
        with pytest.raises(IllegalStateError, match="it is subscribed to t, u; unsubscribe first"):
            consumer.assign([tp()])
        consumer.unsubscribe()
        consumer.subscribe(pattern="t.*")
        assert f"{group} subscribed to the pattern 't.*'>" == repr(consumer)
        consumer.unsubscribe()
        consumer.assign([tp()])
    assert f"{group} assigned to partitions of t, closed>" == repr(consumer)


def test_what_needs_a_group_or_a_subscription_says_so(broker):
    """The errors name what is missing."""
    with consuming(broker) as consumer:
        for call in (
            lambda: consumer.subscribe("t"),
            consumer.commit,
            consumer.commit_async,
            lambda: consumer.committed([tp()]),
            consumer.group_metadata,
        ):
            with pytest.raises(ConfigError, match=r"group\.id"):
                call()
        with pytest.raises(IllegalStateError, match="subscribe to topics or assign"):
            consumer.poll(0)


def test_a_consumer_is_neither_pickled_nor_copied(broker):
    """It belongs to its process."""
    with consuming(broker) as consumer:
        for refused in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="pickled"):
                refused(consumer)


def test_secrets_appear_nowhere(caplog):
    """Neither in the consumer's repr, nor in logs or errors."""
    caplog.set_level(logging.DEBUG)
    settings = {
        "bootstrap.servers": f"127.0.0.1:{free_port()}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="hush-hush";',
        "group.id": "g",
    }
    with KafkaConsumer(settings) as consumer:
        consumer.subscribe("t")
        consumer.poll(0.2)
        with pytest.raises(KafkaTimeoutError) as caught:
            consumer.committed([tp()], timeout=0.1)
        seen = repr(consumer) + repr(caught.value) + caplog.text
        consumer.close(0)
    assert "hush-hush" not in seen
