"""How an asyncio consumer ends, and what it refuses: other loops, other tasks, a blocked loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading

import pytest

from spark_kafka_sink.consumer.aio_kafka_consumer import AIOKafkaConsumer
from spark_kafka_sink.consumer.loop_core import Silence
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, IllegalStateError
from spark_kafka_sink.testing import ApiKey
from tests.support import leaks
from tests.support.consumer.aio_consuming import (
    aio_consumer,
    aio_consuming,
    poll_until,
    settings_of,
    take,
)
from tests.support.consumer.embedded_consuming import GROUP, PATIENCE, tp
from tests.support.consumer.reading import fill, numbered
from tests.support.forked import call_in_fork
from tests.support.producer.on_loop import on_loop, until


@pytest.fixture
def broker():
    """Return a broker with three records in topic `t`."""
    with DevBroker(topics={"t": 1}, auto_create_topics=False) as broker:
        fill(broker.bootstrap_servers, "t", numbered(3))
        yield broker


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_closing_leaves_nothing(broker, protocol):
    """There are no tasks, threads and sockets afterwards; a second close does nothing."""
    before = leaks.look()

    async def main():
        tasks = asyncio.all_tasks()
        consumer = aio_consumer(broker, **settings_of(protocol))
        consumer.subscribe("t")
        await take(consumer, 3)
        await consumer.close()
        await consumer.close()
        assert tasks == asyncio.all_tasks()

    on_loop(main)
    assert [] == leaks.left_since(before)


def test_a_closed_consumer_refuses_calls(broker):
    """The error is that of KafkaConsumer."""

    async def main():
        async with aio_consuming(broker, **GROUP) as consumer:
            consumer.assign([tp()])
        assert "<AIOKafkaConsumer group='g' assigned to partitions of t, closed>" == repr(consumer)
        for call in (
            consumer.poll,
            consumer.poll_arrow,
            consumer.commit,
            consumer.unsubscribe,
            lambda: consumer.committed([tp()]),
            lambda: consumer.position(tp()),
            lambda: anext(aiter(consumer)),
        ):
            with pytest.raises(IllegalStateError, match="the consumer is closed"):
                await call()
        with pytest.raises(IllegalStateError, match="the consumer is closed"):
            consumer.assignment()

    on_loop(main)


def test_there_is_no_consumer_without_a_loop():
    """The error says where to create one."""
    with pytest.raises(IllegalStateError, match="create an AIOKafkaConsumer in a coroutine"):
        AIOKafkaConsumer({"bootstrap.servers": "localhost:9092"})


def test_a_wrong_setting_leaves_nothing():
    """Settings are checked as for KafkaConsumer."""
    before = leaks.look()

    async def main():
        with pytest.raises(ConfigError, match=r"group\.idd"):
            AIOKafkaConsumer({"bootstrap.servers": "localhost:9092", "group.idd": "g"})

    on_loop(main)
    assert [] == leaks.left_since(before)


def test_it_cannot_be_pickled(broker):
    """It belongs to its loop."""

    async def main():
        async with aio_consuming(broker) as consumer:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(consumer)

    on_loop(main)


def test_two_tasks_at_once_are_refused(broker):
    """The second one's call raises; the first one's goes on, and then the second may call."""

    async def main():
        async with aio_consuming(broker) as consumer:
            consumer.assign([tp()])
            consumer.seek(tp(), 3)
            fetch = broker.on(ApiKey.FETCH, lambda *_: None)
            polling = asyncio.create_task(consumer.poll(PATIENCE), name="the reader")
            await until(lambda: fetch.seen, "a fetch")
            for call in (consumer.poll, consumer.close, lambda: anext(aiter(consumer))):
                with pytest.raises(IllegalStateError, match="'the reader' waits in a call"):
                    await call()
            with pytest.raises(IllegalStateError, match="by two tasks at once"):
                consumer.seek(tp(), 0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            consumer.seek(tp(), 0)
            assert 3 == len(await take(consumer, 3))

    on_loop(main)


def test_a_listener_of_one_consumer_may_use_another(broker):
    """Calls are nested in that of their own consumer only."""

    async def main():
        async with aio_consuming(broker) as one, aio_consuming(broker) as two:
            for each in (one, two):
                each.assign([tp()])

            async def both():
                return await asyncio.gather(take(one, 3), take(two, 3))

            first, second = await asyncio.create_task(both())
            assert first == second

    on_loop(main)


def test_another_loop_or_thread_is_an_error_at_once(broker):
    """The error names the consumer, its loop and thread, and those of the call."""

    async def main():
        async with aio_consuming(broker, client_id="mine") as consumer:
            consumer.assign([tp()])
            names = r"'mine' belongs to <.*> of thread '.*', and was called on thread 'other' "
            checked = []

            def on_other_loop():
                for call in (consumer.poll, consumer.close, lambda: anext(aiter(consumer))):

                    async def main(call=call):
                        await call()

                    with pytest.raises(IllegalStateError, match=names + "on <"):
                        asyncio.run(main())
                with pytest.raises(IllegalStateError, match=names + "without a running"):
                    consumer.assignment()
                checked.append(True)

            thread = threading.Thread(target=on_other_loop, name="other")
            thread.start()
            await asyncio.to_thread(thread.join)
            assert [True] == checked
            assert 3 == len(await take(consumer, 3))

    on_loop(main)


def test_a_forked_process_is_refused(broker):
    """The child gets an error that says to create another consumer."""

    async def main():
        async with aio_consuming(broker) as consumer:
            consumer.assign([tp()])
            await take(consumer, 3)

            def refused() -> str:
                with pytest.raises(IllegalStateError) as caught:
                    consumer.assignment()
                return str(caught.value)

            assert "created in another process" in call_in_fork(refused)

    on_loop(main)


def test_a_forgotten_consumer_is_stopped_and_says_so(broker):
    """A ResourceWarning names it; its sockets, tasks and threads end while the loop runs."""
    before = leaks.look()

    async def main():
        tasks = asyncio.all_tasks()

        async def forget():
            consumer = aio_consumer(broker, **GROUP, client_id="forgotten")
            consumer.subscribe("t")
            await take(consumer, 3)

        with pytest.warns(  # noqa: PT031
            ResourceWarning,
            match=r"AIOKafkaConsumer was not closed \(client\.id 'forgotten'\): await close\(\)",
        ):
            await forget()
            gc.collect()
        names = lambda: {thread.name for thread in threading.enumerate()}  # noqa: E731
        await until(lambda: "AIOKafkaConsumer that was not closed" not in names(), "the thread")
        loop = asyncio.get_running_loop()
        await until(lambda: tasks == asyncio.all_tasks(loop), "the tasks to end")

    on_loop(main)
    assert [] == leaks.left_since(before)


@pytest.mark.parametrize("cancels", [True, False], ids=["asyncio.run", "loop.close"])
def test_a_loop_that_ends_before_its_consumer_leaves_nothing(broker, cancels):
    """Sockets and threads are gone with the consumer, and a ResourceWarning names it."""
    before = leaks.look()

    async def main():
        consumer = aio_consumer(broker, **GROUP)
        consumer.subscribe("t")
        await take(consumer, 3)
        return consumer

    def use():
        if cancels:
            consumer = on_loop(main)
        else:
            loop = asyncio.new_event_loop()
            consumer = loop.run_until_complete(main())
            loop.close()
        assert repr(consumer).startswith("<AIOKafkaConsumer")

    with pytest.warns(ResourceWarning, match="AIOKafkaConsumer was not closed"):  # noqa: PT031
        use()
        gc.collect()
    assert [] == leaks.left_since(before)


def test_a_blocked_loop_is_reported(broker, caplog):
    """The warning comes while the loop is still blocked, and shows where."""
    reported = threading.Event()

    class Waiting(logging.Handler):
        def emit(self, record):
            if "has been blocked for" in record.getMessage():
                reported.set()

    def block_the_loop():
        assert reported.wait(PATIENCE)

    async def main():
        # A broker ends no session before its own group.min.session.timeout.ms.
        async with aio_consuming(
            broker, **{**GROUP, "session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}
        ) as consumer:
            consumer.subscribe("t")
            await poll_until(consumer.assignment, consumer)
            block_the_loop()

    handler = Waiting()
    logger = logging.getLogger("spark_kafka_sink.consumer.loop_core")
    logger.addHandler(handler)
    try:
        on_loop(main)
    finally:
        logger.removeHandler(handler)
    [message] = [each for each in caplog.messages if "has been blocked for" in each]
    assert "in block_the_loop" in message
    assert "session.timeout.ms, 6000" in message
    assert "group 'g'" in message


def test_a_silence_is_reported_once():
    """It is by the time that the loop must have been blocked for, which is the least possible."""
    silence = Silence(8.0, 1.0, 100.0)
    reports = {now: silence.to_report(float(now)) for now in range(101, 115)}
    assert {110: 9.0} == {now: seconds for now, seconds in reports.items() if seconds is not None}
    silence.heard_at = 114.5
    assert {None} == {silence.to_report(float(now)) for now in range(115, 124)}
    assert 8.5 == silence.to_report(124.0)


def test_a_pause_of_the_process_is_not_reported():
    """The watch itself has been late."""
    silence = Silence(8.0, 1.0, 100.0)
    assert silence.to_report(101.0) is None
    assert silence.to_report(130.0) is None
    silence.heard_at = 130.0
    assert silence.to_report(131.0) is None
