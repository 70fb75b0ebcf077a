"""Asyncio members of groups: rebalances, and listeners that are coroutines."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.consumer.group.rebalance_listener import ConsumerRebalanceListener
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import IllegalStateError, KafkaError
from tests.support.consumer.aio_consuming import (
    AwaitingListener,
    aio_consuming,
    poll_until,
    settings_of,
    take,
)
from tests.support.consumer.embedded_consuming import (
    PATIENCE,
    Recording,
    consuming,
    tp,
    values,
)
from tests.support.consumer.embedded_consuming import poll_until as poll_thread_until
from tests.support.consumer.reading import fill, numbered
from tests.support.producer.on_loop import on_loop

T = (tp(0), tp(1))
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def broker():
    """Return a broker with three records in topic `t` of two partitions."""
    with DevBroker(topics={"t": 2, "u": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(3))
        yield broker


@PROTOCOLS
def test_members_of_one_loop_share_the_partitions(broker, protocol):
    """One has all, then each a half, then the other one has all."""
    first, second = AwaitingListener(), AwaitingListener()

    async def main():
        settings = settings_of(protocol, enable_auto_commit=False)
        async with aio_consuming(broker, **settings) as other:
            async with aio_consuming(broker, **settings) as consumer:
                consumer.subscribe("t", listener=first)
                assert numbered(3) == values(await take(consumer, 3))
                await consumer.commit()
                other.subscribe("t", listener=second)
                await poll_until(
                    lambda: 1 == len(consumer.assignment()) == len(other.assignment()),
                    consumer,
                    other,
                )
                assert set(T) == consumer.assignment() | other.assignment()
            await poll_until(lambda: set(T) == other.assignment(), other)
            assert 3 == (await other.committed([tp()]))[tp()].offset

    on_loop(main)
    assert ("assigned", T) == first.calls[0]
    assert "revoked" == first.calls[-1][0]
    assert ("revoked", T) == second.calls[-1]


@PROTOCOLS
def test_it_shares_a_group_with_a_consumer_that_has_a_thread(broker, protocol):
    """Both speak the same protocol, and the listener may be that of a KafkaConsumer."""
    listener = Recording()

    async def main(other):
        async with aio_consuming(broker, **settings_of(protocol)) as consumer:
            consumer.subscribe("t", listener=listener)
            await poll_until(lambda: set(T) == consumer.assignment(), consumer)
            other.subscribe("t")
            async with asyncio.timeout(PATIENCE):
                while len(consumer.assignment()) != 1 or not other.assignment():
                    await consumer.poll(0.02)
                    await asyncio.to_thread(other.poll, 0.02)

    with consuming(broker, **settings_of(protocol)) as other:
        on_loop(lambda: main(other))
        poll_thread_until(other, lambda: set(T) == other.assignment())
    assert ("assigned", T) == listener.calls[0]


@PROTOCOLS
def test_a_listener_may_use_the_consumer(broker, protocol):
    """Its calls, and those of tasks that it creates, belong to the poll that awaits it."""

    async def main():
        settings = settings_of(protocol, enable_auto_commit=False)
        async with aio_consuming(broker, **settings) as consumer:
            found = []

            async def use(what, partitions):
                if what == "assigned":
                    found.append(await asyncio.wait_for(consumer.position(tp()), PATIENCE))
                    found.extend(
                        await asyncio.gather(
                            consumer.committed(partitions), consumer.end_offsets(partitions)
                        )
                    )
                    consumer.seek(tp(), 1)
                else:
                    await consumer.commit()

            consumer.subscribe("t", listener=AwaitingListener(use))
            assert numbered(3)[1:] == values(await take(consumer, 2))
            await consumer.unsubscribe()
            assert [0, dict.fromkeys(T), {tp(0): 3, tp(1): 0}] == found
            assert 3 == (await consumer.committed([tp()]))[tp()].offset

    on_loop(main)


class OnlyRevoked(ConsumerRebalanceListener):
    """A listener that awaits in one method, which the other one calls by default."""

    def __init__(self):
        self.lost = []

    async def on_partitions_revoked(self, partitions):
        """Record it."""
        await asyncio.sleep(0)
        self.lost += partitions


def test_lost_partitions_are_revoked_by_default(broker):
    """The coroutine of on_partitions_revoked is awaited for on_partitions_lost, too."""
    listener = OnlyRevoked()

    async def main():
        await listener.on_partitions_lost(T)

    on_loop(main)
    assert list(T) == listener.lost


@PROTOCOLS
def test_the_error_of_a_listener_is_raised(broker, protocol):
    """It is that of KafkaConsumer."""

    async def fail(_what, _partitions):
        raise ZeroDivisionError

    async def main():
        async with aio_consuming(broker, **settings_of(protocol)) as consumer:
            consumer.subscribe("t", listener=AwaitingListener(fail))
            with pytest.raises(KafkaError, match="on_partitions_assigned raised ZeroDivisionError"):
                await poll_until(lambda: False, consumer)
            consumer.subscribe("t")
            assert numbered(3) == values(await take(consumer, 3))

    on_loop(main)


@PROTOCOLS
def test_a_listener_may_not_close_the_consumer(broker, protocol):
    """The error says to call it later."""

    async def main():
        async with aio_consuming(broker, **settings_of(protocol)) as consumer:

            async def close(what, _partitions):
                if what == "assigned":
                    with pytest.raises(IllegalStateError, match="after poll has returned"):
                        await consumer.close()

            listener = AwaitingListener(close)
            consumer.subscribe("t", listener=listener)
            assert numbered(3) == values(await take(consumer, 3))
            assert [("assigned", T)] == listener.calls

    on_loop(main)


def test_callbacks_of_commits_are_awaited(broker):
    """A coroutine function and a plain one are called by a later call."""
    calls = []

    async def note(offsets, error):
        await asyncio.sleep(0)
        calls.append((offsets[tp()].offset, error))

    async def main():
        async with aio_consuming(
            broker, **settings_of("classic", enable_auto_commit=False)
        ) as consumer:
            consumer.assign([tp()])
            consumer.commit_async({tp(): 1}, note)
            consumer.commit_async({tp(): 2}, lambda offsets, _: calls.append(offsets[tp()].offset))
            await consumer.commit({tp(): 3})
            assert consumer.group_metadata().group_id

    on_loop(main)
    assert [(1, None), 2] == calls


@pytest.mark.parametrize("pattern", [{"pattern": "[tu]"}, {"broker_pattern": "[tu]"}])
def test_patterns_are_subscribed_to(broker, pattern):
    """All that match are read."""
    protocol = "consumer" if "broker_pattern" in pattern else "classic"

    async def main():
        async with aio_consuming(broker, **settings_of(protocol)) as consumer:
            consumer.subscribe(**pattern)
            await poll_until(lambda: {*T, tp(0, "u")} == consumer.assignment(), consumer)
            if protocol == "classic":
                assert frozenset("tu") == consumer.subscription()

    on_loop(main)


def test_automatic_commits_are_made(broker):
    """A later member of the group begins where the first one has ended."""

    async def main():
        async with aio_consuming(broker, **settings_of("classic")) as consumer:
            consumer.subscribe("t")
            await take(consumer, 3)
        async with aio_consuming(broker, **settings_of("classic")) as consumer:
            assert 3 == (await consumer.committed([tp()]))[tp()].offset

    on_loop(main)
