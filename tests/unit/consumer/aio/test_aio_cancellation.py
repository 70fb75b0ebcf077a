"""Tasks that are cancelled while they consume: no record is lost, and none comes twice."""

from __future__ import annotations

import asyncio
import json
import random
import time
from itertools import chain

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.consumer import polls
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.testing import ApiKey, Delay, NeverAnswer
from tests.support import leaks
from tests.support.consumer.aio_consuming import (
    AwaitingListener,
    aio_consumer,
    aio_consuming,
    poll_until,
    settings_of,
    take,
)
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE, tp, values
from tests.support.consumer.reading import fill, numbered
from tests.support.producer.on_loop import on_loop, until

MANY = numbered(400, 100)
FIXED = json.dumps({"type": "fixed", "name": "Number", "size": len(MANY[0])})
T = (tp(0), tp(1))


@pytest.fixture
def broker():
    """Return a broker with records in topic `t`."""
    with DevBroker(topics={"t": 2}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", MANY)
        yield broker


async def iterate(consumer):
    """Return the value of the next record."""
    async for record in consumer:
        return [record.value]
    raise AssertionError


async def poll(consumer):
    """Return the values of a poll."""
    return values(chain(*(await consumer.poll(PATIENCE)).values()))


async def poll_arrow(consumer):
    """Return the values of a table."""
    return (await consumer.poll_arrow(PATIENCE, columns=["value"]))["value"].to_pylist()


async def poll_typed(consumer):
    """Return the values of a table that is decoded on a thread."""
    table = await consumer.poll_arrow(
        PATIENCE, columns=["value"], value_format="avro", value_schema=FIXED
    )
    return table["value"].to_pylist()


READS = {
    "poll": poll,
    "poll_arrow": poll_arrow,
    "poll_arrow with a format": poll_typed,
    "iteration": iterate,
}


async def cancelled_after(rounds, call):
    """Cancel a call after so many rounds of the loop; return its result, None without one."""
    task = asyncio.create_task(call)
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("protocol", ["none", "classic", "consumer"])
def test_a_storm_of_cancellations_loses_and_doubles_nothing(broker, read, protocol):
    """What a cancelled call has taken is returned by the next one; a commit does not cover it."""
    rng = random.Random(36)
    found = []

    async def main():
        settings = settings_of(
            protocol, enable_auto_commit=False, max_partition_fetch_bytes=1_000, max_poll_records=3
        )
        async with aio_consuming(broker, **settings) as consumer:
            if protocol == "none":
                consumer.assign([tp()])
            else:
                consumer.subscribe("t")
            cancelled = 0
            # At the end of the log every call waits, until it is cancelled.
            while len(found) < len(MANY) or cancelled <= 20:
                some = await cancelled_after(rng.randrange(25), read(consumer))
                if some is None:
                    cancelled += 1
                else:
                    found.extend(some)
                if consumer.assignment() and rng.random() < 0.05:
                    assert len(found) == await consumer.position(tp())
                    await consumer.commit()
                    assert len(found) == (await consumer.committed([tp()]))[tp()].offset

    on_loop(main, "uvloop" if protocol == "consumer" else "asyncio")
    assert MANY == found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_commits_that_are_cancelled_leave_the_consumer_usable(broker, protocol):
    """A later commit is answered, and no earlier one comes after it."""

    async def main():
        async with aio_consuming(
            broker, **settings_of(protocol, enable_auto_commit=False)
        ) as consumer:
            consumer.subscribe("t")
            await poll_until(consumer.assignment, consumer)
            for number in range(1, 60):
                await cancelled_after(number % 20, consumer.commit({tp(): number}))
            await consumer.commit({tp(): 60})
            assert 60 == (await consumer.committed([tp()]))[tp()].offset

    on_loop(main)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_listener_that_is_cancelled_ends_its_step(broker, protocol):
    """A later poll goes on with the rebalance, and the member reads its partitions."""

    async def main():
        async with aio_consuming(broker, **settings_of(protocol)) as consumer:
            began = []

            async def wait_once(_what, _partitions):
                began.append(None)
                if len(began) == 1:
                    await asyncio.get_running_loop().create_future()

            listener = AwaitingListener(wait_once)
            consumer.subscribe("t", listener=listener)
            polling = asyncio.create_task(consumer.poll(PATIENCE))
            await until(lambda: began, "the listener")
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert [] == listener.calls
            assert MANY[:3] == values(await take(consumer, 3))[:3]
            assert set(T) == consumer.assignment()

    on_loop(main)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_cancelled_block_leaves_the_group(broker, protocol):
    """The other members do not wait for the end of its session; nothing is committed."""

    async def main():
        settings = settings_of(protocol)
        listener = AwaitingListener()
        has_read = asyncio.Event()

        async def consume():
            async with aio_consuming(broker, **settings) as consumer:
                consumer.subscribe("t", listener=listener)
                async for _ in consumer:
                    has_read.set()

        task = asyncio.create_task(consume())
        await has_read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [("assigned", T), ("revoked", T)] == listener.calls

    on_loop(main)
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert () == admin.describe_consumer_groups(["g"])["g"].members
        assert {} == admin.list_consumer_group_offsets("g")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_cancelled_close_does_not_wait_for_its_time(broker, protocol, monkeypatch):
    """A cancelled close waits only a moment for a group that does not answer."""
    monkeypatch.setattr(polls, "_LAST_SECONDS", 0.05)
    leaves = ApiKey.LEAVE_GROUP if protocol == "classic" else ApiKey.CONSUMER_GROUP_HEARTBEAT

    async def main():
        consumer = aio_consumer(broker, **settings_of(protocol, request_timeout_ms=10**9))
        consumer.subscribe("t")
        await take(consumer, 3)
        commit = broker.on(ApiKey.OFFSET_COMMIT, NeverAnswer())
        closing = asyncio.create_task(consumer.close(10**9))
        await until(lambda: commit.fired, "the commit")
        broker.on(leaves, NeverAnswer(), expect=False)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert "closed" in repr(consumer)
        assert 0 == consumer._core._client.connection_count

    on_loop(main)


def test_all_tasks_of_a_program_that_ends_can_leave(broker):
    """asyncio.run cancels all tasks, and those that consume still leave their groups."""
    listeners = [AwaitingListener() for _ in range(2)]

    async def consume(listener):
        async with aio_consuming(broker, **GROUP, client_id="leaving") as consumer:
            consumer.subscribe("t", listener=listener)
            while True:
                await consumer.poll(PATIENCE)

    async def main():
        tasks = [asyncio.create_task(consume(listener)) for listener in listeners]

        def are_balanced():
            return {1} == {len(last(each)) for each in listeners}

        await until(are_balanced, "both to have a partition")
        return tasks

    def last(listener):
        return [] if not listener.calls else listener.calls[-1][1]

    before = leaks.look()
    tasks = on_loop(main)
    assert all(task.cancelled() for task in tasks)
    assert ["revoked", "revoked"] == [each.calls[-1][0] for each in listeners]
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert () == admin.describe_consumer_groups(["g"])["g"].members
    assert [] == leaks.left_since(before)


@pytest.mark.parametrize("api_key", [ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.FIND_COORDINATOR])
def test_a_request_in_flight_of_a_program_that_ends_does_not_delay_it(broker, api_key):
    """asyncio.run cancels it with all tasks, and the member leaves without its answer."""

    async def main():
        async def consume():
            async with aio_consuming(broker, **settings_of("consumer")) as consumer:
                consumer.subscribe("t")
                await consumer.poll(PATIENCE)
                await asyncio.get_running_loop().create_future()

        hook = broker.on(api_key, Delay(seconds=0.2))
        task = asyncio.create_task(consume())
        await until(lambda: hook.fired, "the request")
        return task

    began = time.monotonic()
    assert on_loop(main).cancelled()
    # `close` waits for up to 30 s.
    assert 25 > time.monotonic() - began
