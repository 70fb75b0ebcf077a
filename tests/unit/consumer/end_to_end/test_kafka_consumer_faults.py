"""Faults of brokers that must neither be hidden, nor hammered, nor delay what is in order."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from spark_kafka_sink.consumer.offsets.offset_calls import OffsetCalls
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import BrokerError, CorruptRecordError, KafkaError, WakeupError
from spark_kafka_sink.testing import (
    AlterRecords,
    AlterResponse,
    AnswerError,
    ApiKey,
    Delay,
    ErrorCode,
    NeverAnswer,
)
from tests.support.consumer.commits import BY_HAND
from tests.support.consumer.embedded_consuming import (
    NEVER_MS,
    PATIENCE,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered


@pytest.fixture
def broker():
    """Return a broker with three records in each of the two partitions of topic `t`."""
    with DevBroker(topics={"t": 2}, auto_create_topics=False) as broker:
        for number in (0, 1):
            fill(broker.bootstrap_servers, "t", numbered(3), partition=number)
        yield broker


def without_brokers(response):
    """Return the metadata of a cluster that is still starting."""
    return replace(response, brokers=())


@pytest.mark.parametrize(
    "fault",
    [AlterResponse(without_brokers), AnswerError(ErrorCode.UNKNOWN_SERVER_ERROR)],
    ids=["no brokers", "an error"],
)
def test_a_pattern_whose_first_match_fails_is_matched_again_after_a_pause(broker, fault):
    """Metadata are asked for once per retry.backoff.ms, until they name topics."""
    hook = broker.on(ApiKey.METADATA, fault)
    settings = {**BY_HAND, "retry.backoff.ms": 200, "retry.backoff.max.ms": 200}
    with consuming(broker, **settings) as consumer:
        begin = time.monotonic()
        consumer.subscribe(pattern="t.*")
        while hook.seen < 6:
            with suppress(KafkaError):
                consumer.poll(0.1)
            assert time.monotonic() - begin < PATIENCE
        # Five back-offs, which vary by a fifth.
        assert 0.6 < time.monotonic() - begin
        hook.remove()
        assert 6 == len(take(consumer, 6))


def test_a_pattern_is_matched_within_the_time_of_a_request(broker, monkeypatch):
    """The look-up has request.timeout.ms; `poll` does not wait for it."""
    limits = []
    topic_names = OffsetCalls.topic_names

    async def record(self, deadline, **given):
        limits.append(deadline - consumer._core.clock())
        return await topic_names(self, deadline, **given)

    monkeypatch.setattr(OffsetCalls, "topic_names", record)
    with consuming(broker, **BY_HAND, request_timeout_ms=NEVER_MS + 500) as consumer:
        consumer.subscribe(pattern="t.*")
        take(consumer, 6)
    assert all(NEVER_MS / 1000 - PATIENCE < limit <= NEVER_MS / 1000 + 0.5 for limit in limits)
    assert limits


def out_of_range(response):
    """Return the response that denies all offsets which were asked for."""
    return replace(
        response,
        responses=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(each, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=None)
                    for each in topic.partitions
                ),
            )
            for topic in response.responses
        ),
    )


def test_a_broker_that_denies_the_offsets_that_it_names_is_not_hammered(broker):
    """A reset that leads to OFFSET_OUT_OF_RANGE again waits for retry.backoff.ms."""
    hook = broker.on(ApiKey.FETCH, AlterResponse(out_of_range))
    lists = broker.on(ApiKey.LIST_OFFSETS, Delay(0.0))
    settings = {"retry.backoff.ms": 200, "retry.backoff.max.ms": 200}
    with consuming(broker, **settings) as consumer:
        consumer.assign([tp()])
        begin = time.monotonic()
        while hook.seen < 6:
            consumer.poll(0.1)
            assert time.monotonic() - begin < PATIENCE
        # All resets but the first two wait: that for the initial position, and the first error's.
        assert 0.8 <= time.monotonic() - begin
        assert lists.seen <= 7
        hook.remove()
        assert numbered(3) == values(take(consumer, 3))


def without_partitions(response):
    """Return a response that is about nothing."""
    return replace(response, responses=())


def test_a_broker_that_answers_without_the_partition_is_not_hammered(broker):
    """A Fetch that is answered at once, but not about what was asked, waits for a back-off."""
    hook = broker.on(ApiKey.FETCH, AlterResponse(without_partitions))
    with consuming(broker, **{"retry.backoff.ms": 200}) as consumer:
        consumer.assign([tp()])
        begin = time.monotonic()
        while hook.seen < 6:
            consumer.poll(0.1)
            assert time.monotonic() - begin < PATIENCE
        assert 1.0 <= time.monotonic() - begin
        hook.remove()
        assert numbered(3) == values(take(consumer, 3))


@pytest.mark.parametrize("is_subscribed", [True, False])
def test_a_classic_group_goes_on_after_its_topic_was_created_again(broker, is_subscribed):
    """Commits and look-ups name the topic, not the id that it had."""
    with consuming(broker, **BY_HAND) as consumer:
        if is_subscribed:
            consumer.subscribe("t")
        else:
            consumer.assign([tp(0), tp(1)])
        take(consumer, 6)
        # Nothing is fetched any more, which would notice the new id.
        consumer.pause([tp(0), tp(1)])
        poll_until(consumer, lambda: 3 == consumer.position(tp()))
        broker.delete_topic("t")
        broker.create_topic("t", partitions=2)
        consumer.commit({tp(): 2}, timeout=PATIENCE)
        assert 2 == consumer.committed([tp()], timeout=PATIENCE)[tp()].offset


def unknown(response):
    """Return an answer to OffsetFetch according to which no partition exists."""
    code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return replace(
        response,
        groups=tuple(
            replace(
                group,
                topics=tuple(
                    replace(
                        topic,
                        partitions=tuple(replace(it, error_code=code) for it in topic.partitions),
                    )
                    for topic in group.topics
                ),
            )
            for group in response.groups
        ),
    )


def test_a_look_up_of_an_unknown_partition_is_raised(broker):
    """Poll raises it, after one request per poll; then reading goes on."""
    hook = broker.on(ApiKey.OFFSET_FETCH, AlterResponse(unknown))
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        for _ in range(3):
            with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                poll_until(consumer, lambda: False)
        time.sleep(0.2)
        assert hook.seen <= 4
        hook.remove()
        got = []
        until = time.monotonic() + PATIENCE
        while len(got) < 3 and time.monotonic() < until:
            try:
                got += consumer.poll(0.1).records()
            except BrokerError:
                continue
        assert numbered(3) == values(got)


def test_positions_are_committed_within_a_long_poll(broker):
    """Every auto.commit.interval.ms, also if the partitions were assigned by hand."""
    with consuming(broker, auto_commit_interval_ms=300, group_id="g") as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        hook = broker.on(
            ApiKey.OFFSET_COMMIT, lambda _, it: consumer.wakeup() if it.number == 4 else None
        )
        begin = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.poll(PATIENCE)
        # Three intervals, except that the first commit may have been on its way.
        assert 0.5 < time.monotonic() - begin
        assert 4 == hook.seen
        assert 3 == consumer.committed([tp()])[tp()].offset


def test_a_silent_leader_delays_no_other():
    """Partitions of the other leader get their positions, and are read."""
    with DevBroker(topics={"t": 2}, brokers=2, auto_create_topics=False) as broker:
        silent = broker.leader("t", 0)
        assert silent != broker.leader("t", 1)
        for number in (0, 1):
            fill(broker.bootstrap_servers, "t", numbered(3), partition=number)

        def ignore(_, context):
            return NeverAnswer() if context.node_id == silent else None

        hook = broker.on(ApiKey.LIST_OFFSETS, ignore)
        with consuming(broker, request_timeout_ms=NEVER_MS) as consumer:
            consumer.assign([tp(0), tp(1)])
            assert {1} == {record.partition for record in take(consumer, 3)}
            poll_until(consumer, lambda: hook.fired)
            consumer.close(0)


def test_a_corrupt_batch_is_raised_beside_a_busy_partition(broker):
    """An Arrow poll returns the records of the latter first; the next one raises the error."""
    # Each answer has a batch of about ten of them.
    fill(broker.bootstrap_servers, "t", numbered(100), partition=1)
    broker.on(ApiKey.FETCH, AlterRecords(partitions=[("t", 0)]))
    with consuming(broker, max_partition_fetch_bytes=1000) as consumer:
        consumer.assign([tp(0), tp(1)])
        rows = []
        with pytest.raises(CorruptRecordError, match="partition 0"):
            repeat(lambda: rows.append(consumer.poll_arrow(PATIENCE).num_rows))
        assert len(rows) <= 3
        assert 0 == consumer.position(tp(0))
        assert sum(rows) == consumer.position(tp(1)) < 100
        # The user moves on.
        consumer.seek(tp(0), 3)
        while sum(rows) < 103:
            rows.append(consumer.poll_arrow(PATIENCE).num_rows)
            assert rows[-1]
        assert 103 == consumer.position(tp(1))


def test_a_postponed_error_does_not_prevent_a_rebalance(broker):
    """The poll that raises it may be the one that would have begun the rebalance."""
    broker.create_topic("u")
    fill(broker.bootstrap_servers, "t", numbered(100), partition=1)
    hook = broker.on(ApiKey.FETCH, AlterRecords(partitions=[("t", 0)]))
    with consuming(broker, max_partition_fetch_bytes=1000, **BY_HAND) as consumer:
        consumer.subscribe("t")
        until = time.monotonic() + PATIENCE
        while consumer._polls._postponed is None and time.monotonic() < until:
            consumer.poll_arrow(0.1)
        consumer.subscribe(["t", "u"])
        with pytest.raises(CorruptRecordError):
            consumer.poll_arrow(PATIENCE)
        hook.remove()
        poll_until(consumer, lambda: 3 == len(consumer.assignment()))


def repeat(function):
    """Call a function until it raises, but not forever."""
    for _ in range(8):
        function()


def test_an_infinite_timeout_is_accepted(broker):
    """Requests name the longest timeout that they can."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        assert {tp(): 3} == consumer.end_offsets([tp()], timeout=math.inf)
        assert {tp(): 0} == consumer.beginning_offsets([tp()], timeout=math.inf)
        assert {tp(): None} == consumer.committed([tp()], timeout=math.inf)
        assert 0 == consumer.position(tp(), timeout=math.inf)
        consumer.commit({tp(): 1}, timeout=math.inf)
        assert 3 == len(consumer.poll(math.inf).get(tp(), []))
        consumer.close(math.inf)


def test_unreachable_brokers_are_logged_once_for_each_outage(broker, caplog):
    """Poll only returns nothing then, which a topic without records does as well."""

    def warnings():
        return [each for each in caplog.messages if each.startswith("no broker answered through")]

    caplog.set_level(logging.WARNING, "spark_kafka_sink.consumer")
    with consuming(broker, metadata_max_age_ms=50) as consumer:
        consumer.assign([tp()])
        take(consumer, 3)
        assert [] == warnings()
        for outage in (1, 2):
            broker.stop()
            poll_until(consumer, lambda outage=outage: outage == len(warnings()))
            assert consumer.poll(0.3).is_empty
            broker.start()
            consumer.end_offsets([tp()])
            assert outage == len(warnings())
    assert "Connection refused" in warnings()[0]
    assert warnings()[0].endswith("The consumer keeps trying")


def test_what_was_read_delays_no_further_fetch(broker):
    """Only a partition that could not be read is asked for again after retry.backoff.ms."""
    never = {"retry_backoff_ms": NEVER_MS, "retry_backoff_max_ms": NEVER_MS}
    for number in range(3):
        fill(broker.bootstrap_servers, "t", [b"%d" % number])
    with consuming(broker, max_partition_fetch_bytes=1, fetch_max_bytes=1, **never) as consumer:
        consumer.assign([tp()])
        consumer.seek(tp(), 0)
        # A batch at a time, of three and of one each.
        assert [*numbered(3), b"0", b"1", b"2"] == values(take(consumer, 6))
