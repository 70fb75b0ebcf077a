"""How an asyncio producer ends: closed, forgotten, on another loop, or after its loop."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support import leaks
from tests.support.forked import call_in_fork
from tests.support.producer.on_loop import aio_producer, on_loop, until, until_injected
from tests.support.producer.sending import LONG_LINGER, values_of


def test_closing_sends_what_lingers(broker):
    """A graceful close flushes first, and leaves neither tasks nor sockets."""
    before = leaks.look()

    async def main() -> None:
        tasks = asyncio.all_tasks()
        producer = aio_producer(broker, **LONG_LINGER)
        await producer.partitions_for("one")
        future = producer.send_nowait("one", b"v")
        await producer.close()
        assert 0 == future.result().offset
        await producer.close()
        assert tasks == asyncio.all_tasks()

    on_loop(main)
    assert [] == leaks.left_since(before)


def test_using_a_closed_producer_raises_an_error(broker):
    """Every call after close raises the same error as KafkaProducer's."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            await producer.send("one", b"v")
        for call in (
            lambda: producer.send("one", b"v"),
            lambda: producer.send_table(None),
            producer.flush,
            lambda: producer.partitions_for("one"),
            producer.init_transactions,
            producer.__aenter__,
        ):
            with pytest.raises(ProducerClosedError, match="is closed"):
                await call()
        with pytest.raises(ProducerClosedError, match="is closed"):
            producer.send_nowait("one", b"v")

    on_loop(main)


def test_close_gives_up_records_after_its_timeout(broker):
    """The futures of records that are given up fail, and close says so."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())

    async def main() -> None:
        producer = aio_producer(broker)
        send = asyncio.create_task(producer.send("one", b"v"))
        await until_injected(hook)
        with pytest.raises(KafkaTimeoutError, match=r"within 0\.05 s"):
            await producer.close(timeout=0.05)
        with pytest.raises(ProducerClosedError):
            await send

    on_loop(main)


def test_a_cancelled_close_does_not_wait(broker):
    """A task that is cancelled while it closes ends the producer at once."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    before = leaks.look()

    async def main() -> None:
        producer = aio_producer(broker)
        send = asyncio.create_task(producer.send("one", b"v"))
        await until_injected(hook)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        second = asyncio.create_task(producer.close())
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await second
        with pytest.raises(ProducerClosedError):
            await send

    on_loop(main)
    assert [] == leaks.left_since(before)


def test_a_block_that_fails_does_not_wait_for_its_records(broker):
    """The error of the block is raised, and what was not sent is given up."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with aio_producer(broker) as producer:
                send = asyncio.create_task(producer.send("one", b"v"))
                await until_injected(hook)
                raise ZeroDivisionError
        with pytest.raises(ProducerClosedError):
            await send

    on_loop(main)


def test_closing_ends_the_wait_for_metadata(broker):
    """A send that waits for its topic fails as soon as the producer is closed."""
    hook = broker.on(ApiKey.METADATA, NeverAnswer())

    async def main() -> None:
        producer = aio_producer(broker)
        send = asyncio.create_task(producer.send("one", b"v"))
        await until_injected(hook)
        await producer.close(0)
        with pytest.raises(ProducerClosedError):
            await send

    on_loop(main)


def test_another_loop_or_thread_is_an_error_at_once(broker):
    """The error names the producer, its loop and thread, and those of the call."""

    async def main() -> None:
        async with aio_producer(broker, **{"client.id": "mine"}) as producer:
            await producer.send("one", b"v")
            names = r"'mine' belongs to <.*> of thread '.*', and was called on thread 'other' "

            def on_other_loop() -> None:
                for call in (
                    lambda: producer.send("one", b"v"),
                    lambda: producer.send("one", b"v", partition=0),
                    producer.flush,
                    producer.close,
                ):
                    with pytest.raises(IllegalStateError, match=names + "on <"):
                        asyncio.run(call())
                with pytest.raises(IllegalStateError, match=names + "without a running"):
                    producer.send_nowait("one", b"v")
                checked.append(True)

            checked: list[bool] = []
            thread = threading.Thread(target=on_other_loop, name="other")
            thread.start()
            await asyncio.to_thread(thread.join)
            assert [True] == checked
            await producer.send("one", b"w")

    on_loop(main)
    assert [b"v", b"w"] == values_of(broker)


def test_a_forked_process_is_refused(broker):
    """The child gets an error that says to create another producer."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            await producer.send("one", b"v")

            def refused() -> str:
                with pytest.raises(ProducerClosedError) as caught:
                    producer.send_nowait("one", b"v")
                return str(caught.value)

            assert "created by another process" in call_in_fork(refused)

    on_loop(main)


def test_a_forgotten_producer_sends_its_records_and_says_so(broker):
    """A ResourceWarning names the producer, whose records are sent while its loop runs."""
    before = leaks.look()

    async def main() -> None:
        tasks = asyncio.all_tasks()

        async def forget() -> asyncio.Future:
            producer = aio_producer(broker, **LONG_LINGER, **{"client.id": "forgotten"})
            await producer.partitions_for("one")
            return producer.send_nowait("one", b"v")

        with pytest.warns(  # noqa: PT031
            ResourceWarning, match=r"AIOKafkaProducer was not closed.*'forgotten'"
        ):
            future = await forget()
            gc.collect()
        assert 0 == (await future).offset
        loop = asyncio.get_running_loop()
        await until(lambda: tasks == asyncio.all_tasks(loop), "the tasks to end")

    on_loop(main)
    assert [] == leaks.left_since(before)


@pytest.mark.parametrize("cancels", [True, False], ids=["asyncio.run", "loop.close"])
def test_a_loop_that_ends_before_its_producer_leaves_nothing(broker, cancels):
    """Sockets and threads are gone with the producer, and a ResourceWarning names it."""
    before = leaks.look()

    async def main() -> object:
        producer = aio_producer(broker, **{"compression.type": "lz4", "linger.ms": 0})
        await producer.send("one", bytes(100_000))
        return producer

    def use() -> None:
        if cancels:
            producer = on_loop(main)
            assert producer.has_ended
        else:
            loop = asyncio.new_event_loop()
            producer = loop.run_until_complete(main())
            loop.close()
        assert repr(producer).startswith("<AIOKafkaProducer")

    with pytest.warns(ResourceWarning, match="AIOKafkaProducer was not closed"):  # noqa: PT031
        use()
        gc.collect()
    assert [] == leaks.left_since(before)


def test_sends_fail_when_the_loop_ends(broker):
    """A task that outlives the producer's own gets an error instead of a hang."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer())
    outcomes: list[BaseException] = []

    async def main() -> None:
        async with aio_producer(broker) as producer:
            send = asyncio.create_task(producer.send("one", b"v"))
            await until_injected(hook)
            producer._core._served.cancel()
            try:
                await send
            except KafkaError as error:
                outcomes.append(error)
            with pytest.raises(ProducerClosedError, match="event loop ended"):
                await producer.send("one", b"w")

    on_loop(main)
    assert [ProducerClosedError] == [type(error) for error in outcomes]


def test_an_error_of_the_producer_ends_it(broker, monkeypatch):
    """An unexpected error of the sender is raised by sends and later calls."""

    async def main() -> None:
        async with aio_producer(broker) as producer:
            await producer.send("one", b"v")

            def fail(_: float) -> float:
                raise RuntimeError("no such luck")

            monkeypatch.setattr(producer._core._sender, "run_once", fail)
            with pytest.raises(KafkaError, match="no such luck"):
                await producer.send("one", b"w")
            with pytest.raises(KafkaError, match="no such luck"):
                await producer.flush()
            assert producer.has_ended

    on_loop(main)


def test_a_refused_login_ends_the_producer(broker):
    """An error that ends the producer is raised by every call, as by KafkaProducer."""
    broker.on(ApiKey.INIT_PRODUCER_ID, AnswerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    async def main() -> None:
        async with aio_producer(broker) as producer:
            with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await producer.send("one", b"v")

    on_loop(main)
