"""Iterating over a consumer: records are made ahead, but nothing else shows that."""

from __future__ import annotations

import itertools
import random

import pytest

from spark_kafka_sink.consumer.polls import Polls
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import RecordDeserializationError, WakeupError
from tests.support.consumer.commits import BY_HAND, committed
from tests.support.consumer.embedded_consuming import (
    GROUP,
    Background,
    Recording,
    consuming,
    poll_until,
    take,
    tp,
    values,
)
from tests.support.consumer.reading import fill, numbered
from tests.support.faults.interrupts import interrupt, needs_signals

#: More than are made at once, so that all ways to get to the next record are gone.
COUNT = 1_200


@pytest.fixture
def broker():
    """Return a broker with numbered records in two partitions of topic `t`."""
    with DevBroker(topics={"t": 2}) as broker:
        for partition in range(2):
            fill(broker.bootstrap_servers, "t", numbered(COUNT), partition=partition)
        yield broker


def offsets_of(records, partition=0):
    """Return the offsets of the records of a partition."""
    return [record.offset for record in records if record.partition == partition]


def test_each_record_comes_once_and_in_order_whatever_is_called_between(broker):
    """Positions, commits, polls and pauses by turns see the records that were yielded, no more."""
    random_ = random.Random(16)
    seen = {0: 0, 1: 0}

    def note(record):
        assert seen[record.partition] == record.offset
        seen[record.partition] += 1

    with consuming(broker, max_poll_records=7, **BY_HAND) as consumer:
        consumer.assign([tp(0), tp(1)])
        records = iter(consumer)
        while sum(seen.values()) < 2 * COUNT:
            for record in itertools.islice(records, min(50, 2 * COUNT - sum(seen.values()))):
                note(record)
            match random_.randrange(4):
                case 0:
                    assert seen == {number: consumer.position(tp(number)) for number in range(2)}
                case 1:
                    consumer.commit()
                    found = consumer.committed([tp(0), tp(1)])
                    assert seen == {place.partition: it.offset for place, it in found.items()}
                case 2:
                    for record in consumer.poll(0).records():
                        note(record)
                case 3 if max(seen.values()) < COUNT - 50:
                    paused = random_.randrange(2)
                    consumer.pause([tp(paused)])
                    some = list(itertools.islice(records, 50))
                    assert [] == offsets_of(some, paused)
                    consumer.resume([tp(paused)])
                    for record in some:
                        note(record)


def test_most_records_need_no_poll(broker, monkeypatch):
    """Otherwise an iteration would take many times as long as polls."""
    polls = []
    original = Polls._wait_for
    monkeypatch.setattr(Polls, "_wait_for", lambda *given: polls.append(1) or original(*given))
    # A moment that does not end, however slow the machine is.
    monkeypatch.setattr("spark_kafka_sink.consumer.polls._CALM_SECONDS", 3600)
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        assert numbered(COUNT) == values(itertools.islice(consumer, COUNT))
    assert len(polls) < COUNT / 10


def test_a_seek_takes_effect_with_the_next_record(broker):
    """What was made ahead is not returned."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        records = iter(consumer)
        assert [0, 1, 2] == offsets_of(itertools.islice(records, 3))
        consumer.seek(tp(), 1_000)
        assert [1_000, 1_001] == offsets_of(itertools.islice(records, 2))
        consumer.seek(tp(), 0)
        assert [0, 1] == offsets_of(itertools.islice(records, 2))


def test_only_yielded_records_are_committed_by_close(broker):
    """The next consumer begins with the first one that was not yielded."""
    with consuming(broker, group_id="g") as consumer:
        consumer.assign([tp()])
        assert list(range(123)) == offsets_of(itertools.islice(consumer, 123))
    assert 123 == committed(broker)


def test_wakeup_interrupts_an_iteration_once(broker):
    """No record is lost by it."""
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        assert list(range(5)) == offsets_of(itertools.islice(consumer, 5))
        consumer.wakeup()
        with pytest.raises(WakeupError):
            next(iter(consumer))
        assert list(range(5, COUNT)) == offsets_of(itertools.islice(consumer, COUNT - 5))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_iterates_takes_part_in_rebalances(broker, protocol):
    """Its listener is called between two records, and both members read a partition each."""
    settings = {"group.id": "g", "group.protocol": protocol}
    if protocol == "classic":
        settings |= GROUP
    listener = Recording()
    with consuming(broker, **settings) as one, consuming(broker, **settings) as other:
        one.subscribe("t", listener=listener)
        poll_until(one, lambda: 2 == len(one.assignment()))
        other.subscribe("t")
        with Background(other):
            for record in one:
                # So that there is always another record to return.
                if record.offset == COUNT - 1:
                    one.seek(tp(record.partition), 0)
                if len(listener.calls) > 1 and 1 == len(one.assignment()):
                    break
    assert "revoked" in [what for what, _ in listener.calls]


def test_an_interceptor_sees_each_record_before_it_is_yielded(broker):
    """Records are passed to it one by one, so nothing is returned without it."""
    passed = []

    class Note:
        def on_consume(self, records):
            passed.extend(records.records())
            return records

    with consuming(broker, interceptor_classes=[Note()], **BY_HAND) as consumer:
        consumer.assign([tp()])
        for count, record in enumerate(itertools.islice(consumer, 20), start=1):
            assert count == len(passed)
            assert record is passed[-1]


def test_an_error_of_a_deserializer_comes_after_the_records_before_it(broker):
    """It names the record; after a seek past it the iteration goes on."""

    def refuse(data):
        if data == numbered(COUNT)[700]:
            raise ValueError("no")
        return data

    with consuming(broker, value_deserializer=refuse, **BY_HAND) as consumer:
        consumer.assign([tp()])
        records = iter(consumer)
        assert list(range(700)) == offsets_of(itertools.islice(records, 700))
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="offset 700"):
                next(iter(consumer))
        assert 700 == consumer.position(tp())
        consumer.seek(tp(), 701)
        assert list(range(701, COUNT)) == offsets_of(itertools.islice(consumer, COUNT - 701))


@needs_signals
@pytest.mark.parametrize("number", [1, 2, 250, 499, 500])
@pytest.mark.parametrize("comes_after", [False, True])
@pytest.mark.parametrize("step", [(FetchedRecords, "take_made"), (Polls, "_took")])
def test_a_record_of_an_interrupted_step_comes_again(
    broker, monkeypatch, step, number, comes_after
):
    """Ctrl-C before or after a step that takes a record neither loses nor repeats it."""
    original = getattr(*step)
    calls = []

    def interrupted(self, *given):
        calls.append(self)
        if not comes_after and len(calls) == number:
            interrupt()
        result = original(self, *given)
        if comes_after and len(calls) == number:
            interrupt()
        return result

    monkeypatch.setattr(*step, interrupted)
    got = []
    with consuming(broker, **BY_HAND) as consumer:
        consumer.assign([tp()])
        with pytest.raises(KeyboardInterrupt):
            got.extend(consumer)
        assert (got[-1].offset + 1 if got else 0) == consumer.position(tp())
        got += take(consumer, COUNT - len(got))
    assert list(range(COUNT)) == offsets_of(got)
