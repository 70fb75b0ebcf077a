"""What an asyncio consumer reads: the same as KafkaConsumer, on its caller's loop."""

from __future__ import annotations

import asyncio
import json
from itertools import chain

import pytest

from spark_kafka_sink.consumer.interceptors import ConsumerInterceptor
from spark_kafka_sink.consumer.records.consumer_record import ConsumerRecords
from spark_kafka_sink.consumer.records.fetched_records import FetchedRecords
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import IllegalStateError, PayloadError, SerializationError
from tests.support.consumer.aio_consuming import aio_consuming, take
from tests.support.consumer.commits import BY_HAND
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE, consuming, tp, values
from tests.support.consumer.reading import fill, numbered
from tests.support.producer.on_loop import on_loop

MANY = numbered(2_000, 1_000)
FIXED = json.dumps({"type": "fixed", "name": "Number", "size": len(MANY[0])})


@pytest.fixture(scope="module")
def broker():
    """Return a broker with many records in topic `t`."""
    with DevBroker(topics={"t": 2, "u": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", MANY)
        yield broker


async def iterate(consumer):
    """Yield the values of an iteration."""
    async for record in consumer:
        yield [record.value]


async def poll(consumer):
    """Yield the values of polls."""
    while True:
        yield values(chain(*(await consumer.poll(PATIENCE)).values()))


async def poll_arrow(consumer):
    """Yield the values of tables."""
    while True:
        table = await consumer.poll_arrow(PATIENCE, columns=["value"])
        yield table["value"].to_pylist()


async def poll_typed(consumer):
    """Yield the values of tables that are decoded on a thread."""
    while True:
        table = await consumer.poll_arrow(
            PATIENCE, columns=["value"], value_format="avro", value_schema=FIXED
        )
        yield table["value"].to_pylist()


READS = {
    "poll": poll,
    "poll_arrow": poll_arrow,
    "poll_arrow with a format": poll_typed,
    "iteration": iterate,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_all_records_are_read_in_order(broker, read):
    """Each way of reading returns every record once."""
    found = []

    async def main():
        async with aio_consuming(broker, max_partition_fetch_bytes=5_000) as consumer:
            consumer.assign([tp()])
            async for some in read(consumer):
                found.extend(some)
                if len(found) >= len(MANY):
                    break
            assert len(MANY) == await consumer.position(tp())

    on_loop(main)
    assert MANY == found


def test_an_iteration_fetches_records_once(broker, monkeypatch):
    """It makes some records ahead, and goes on in the same fetch when they are used up."""
    read = []
    begin = FetchedRecords.__init__

    def counted(self, partition, records, next_offset, **more):
        read.append(next_offset)
        begin(self, partition, records, next_offset, **more)

    monkeypatch.setattr(FetchedRecords, "__init__", counted)

    async def main():
        async with aio_consuming(broker) as consumer:
            consumer.assign([tp()])
            count = 0
            async for _ in consumer:
                count += 1
                if count == len(MANY):
                    break

    on_loop(main)
    # One answer may end before the last record.
    assert 3 > len(read), read


def test_a_commit_within_an_iteration_covers_what_was_yielded(broker):
    """The loop can be left anywhere, and another one goes on there."""

    async def main():
        async with aio_consuming(broker, **{**BY_HAND, "group.id": "iterating"}) as consumer:
            consumer.assign([tp()])
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 7:
                    await consumer.commit()
                    break
            [committed] = (await consumer.committed([tp()])).values()
            assert 7 == committed.offset
            async for record in consumer:
                assert MANY[7] == record.value
                break

    on_loop(main)


@pytest.mark.parametrize("read", [poll, iterate])
def test_other_tasks_run_while_records_are_there(broker, read):
    """A reader whose records never run out does not keep the loop to itself."""
    turns = []

    async def count():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def main():
        async with aio_consuming(broker, max_poll_records=1) as consumer:
            consumer.assign([tp()])
            async for _ in read(consumer):
                break
            counting = asyncio.create_task(count())
            async for [value] in read(consumer):
                if len(turns) > 3:
                    break
                if value == MANY[-10]:
                    consumer.seek(tp(), 0)
            counting.cancel()

    on_loop(main)


def test_a_poll_without_time_gives_others_a_turn(broker):
    """A program that polls without waiting does not block its loop."""

    async def main():
        async with aio_consuming(broker) as consumer:
            consumer.assign([tp(0, "u")])
            done = asyncio.create_task(asyncio.sleep(0))
            while not done.done():
                assert not await consumer.poll(0)

    on_loop(main)


def test_questions_have_the_answers_of_the_other_consumer(broker):
    """Positions and offsets are those that KafkaConsumer returns."""
    partitions = [tp(0), tp(1)]
    with consuming(broker, **GROUP) as other:
        expected = (
            other.beginning_offsets(partitions),
            other.end_offsets(partitions),
            other.offsets_for_times({tp(): 0}),
            other.partitions_for("t"),
            other.list_topics(),
            other.committed(partitions),
        )

    async def main():
        async with aio_consuming(broker, **GROUP) as consumer:
            return (
                await consumer.beginning_offsets(partitions),
                await consumer.end_offsets(partitions),
                await consumer.offsets_for_times({tp(): 0}),
                await consumer.partitions_for("t"),
                await consumer.list_topics(),
                await consumer.committed(partitions),
            )

    assert expected == on_loop(main)


def test_positions_can_be_moved_and_paused(broker):
    """Calls that need no broker are no coroutines."""

    async def main():
        async with aio_consuming(broker, max_poll_records=1) as consumer:
            consumer.assign([tp()])
            assert frozenset({tp()}) == consumer.assignment()
            consumer.seek(tp(), 5)
            assert [MANY[5]] == values(await take(consumer, 1))
            consumer.pause([tp()])
            assert frozenset({tp()}) == consumer.paused()
            assert not await consumer.poll(0)
            consumer.resume([tp()])
            assert [MANY[6]] == values(await take(consumer, 1))
            consumer.seek_to_beginning()
            assert [MANY[0]] == values(await take(consumer, 1))
            consumer.seek_to_end()
            assert len(MANY) == await consumer.position(tp())
            assert 0 == consumer.current_lag(tp())
            assert consumer.metrics()
            await consumer.unsubscribe()
            with pytest.raises(IllegalStateError, match="reads nothing"):
                await consumer.poll()

    on_loop(main)


class Doubling(ConsumerInterceptor):
    """An interceptor that returns the records of each poll, and counts commits."""

    def __init__(self):
        self.commits = []

    def on_consume(self, records):
        """Return the records."""
        return ConsumerRecords(dict(records.items()), records.next_offsets)

    def on_commit(self, offsets):
        """Record the offsets."""
        self.commits.append(dict(offsets))


def test_interceptors_and_deserializers_are_called(broker):
    """They are those of KafkaConsumer."""
    interceptor = Doubling()

    async def main():
        settings = {
            **BY_HAND,
            "group.id": "intercepted",
            "interceptor.classes": [interceptor],
            "value.deserializer": "string",
        }
        async with aio_consuming(broker, **settings) as consumer:
            consumer.assign([tp()])
            async for record in consumer:
                assert MANY[0].decode() == record.value
                break
            await consumer.commit()

    on_loop(main)
    assert [1] == [offsets[tp()].offset for offsets in interceptor.commits]


def test_a_record_that_cannot_be_returned_can_be_passed(broker):
    """Each poll raises its error, until the position is moved."""

    def fail(data):
        if data == MANY[1]:
            raise ValueError("no number")
        return data

    async def main():
        async with aio_consuming(broker, value_deserializer=fail) as consumer:
            consumer.assign([tp()])
            assert MANY[:1] == values(await take(consumer, 1))
            for _ in range(2):
                with pytest.raises(SerializationError, match="offset 1: the value"):
                    await consumer.poll(PATIENCE)
            consumer.seek(tp(), 2)
            assert MANY[2] == (await take(consumer, 1))[0].value
            consumer.seek(tp(), 0)
            with pytest.raises(PayloadError):
                await consumer.poll_arrow(PATIENCE, value_format="avro", value_schema='"boolean"')

    on_loop(main)


def test_nothing_to_subscribe_to_is_an_error(broker):
    """Ending a subscription may have to wait, so it is a coroutine of its own."""

    async def main():
        async with aio_consuming(broker, **GROUP) as consumer:
            with pytest.raises(ValueError, match="await unsubscribe"):
                consumer.subscribe([])
            with pytest.raises(ValueError, match="await unsubscribe"):
                consumer.subscribe(iter(()))
            with pytest.raises(ValueError, match="await unsubscribe"):
                consumer.assign([])

    on_loop(main)
