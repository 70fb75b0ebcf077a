"""Tasks that are cancelled while they send: each record is delivered once, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker.net.faults import NeverAnswer
from spark_kafka_sink.protocol.api_keys import ApiKey
from tests.support.producer.on_loop import aio_producer, on_loop, until_injected
from tests.support.producer.sending import values_of

SEEDS = range(6)
TASKS = 200


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_cancellations_loses_and_doubles_nothing(broker, seed):
    """Each send that returned is in the log once, one that was cancelled at most once."""
    rng = random.Random(seed)
    settings = {
        "linger.ms": rng.choice([0, 1]),
        "compression.type": rng.choice(["none", "lz4"]),
        "buffer.memory": rng.choice([150_000, 33_554_432]),
        "batch.size": rng.choice([1_000, 16_384]),
    }
    sent: set[bytes] = set()

    async def main() -> None:
        async with aio_producer(broker, **settings) as producer:

            async def send(number: int) -> None:
                for part in range(5):
                    value = (b"%d-%d." % (number, part)).ljust(rng.choice([20, 300, 20_000]), b".")
                    await producer.send("one", value)
                    sent.add(value)

            tasks = [asyncio.create_task(send(number)) for number in range(TASKS)]
            while not all(task.done() for task in tasks):
                rng.choice(tasks).cancel()
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {asyncio.CancelledError, type(None)} >= {type(outcome) for outcome in outcomes}
            # What was staged by a send that was cancelled is delivered, too.
            await producer.flush()
            assert await producer.send("one", b"last")
            assert 0 == producer._core.unsent_records
            pool = producer._core.pool
            assert (pool.total_bytes, 0) == (pool.available_bytes, pool.waiting_threads)

    on_loop(main, "uvloop" if seed % 2 else "asyncio")
    counts = Counter(values_of(broker))
    assert {1} == set(counts.values())
    assert sent <= set(counts)


def test_a_send_that_is_cancelled_before_its_topic_is_known_sends_nothing(broker):
    """Until it has found its topic nothing of the record exists."""
    hook = broker.on(ApiKey.METADATA, NeverAnswer(), times=1)

    async def main() -> None:
        async with aio_producer(broker, **{"request.timeout.ms": 1_000}) as producer:
            send = asyncio.create_task(producer.send("one", b"cancelled"))
            await until_injected(hook)
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            assert 0 == (await producer.send("one", b"v")).offset

    on_loop(main)
    assert [b"v"] == values_of(broker)


def test_a_send_that_is_cancelled_while_it_waits_for_its_broker_is_delivered(broker):
    """The record is on its way, and cannot be taken back."""
    hook = broker.on(ApiKey.PRODUCE, NeverAnswer(), times=1)

    async def main() -> None:
        settings = {"request.timeout.ms": 1_000, "linger.ms": 0}
        async with aio_producer(broker, **settings) as producer:
            send = asyncio.create_task(producer.send("one", b"cancelled"))
            await until_injected(hook)
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send

    on_loop(main)
    assert [b"cancelled"] == values_of(broker)


def test_a_future_that_is_cancelled_changes_nothing(broker):
    """Cancelling the future of send_nowait does not disturb the others of its batch."""

    async def main() -> None:
        async with aio_producer(broker, **{"linger.ms": 50}) as producer:
            await producer.partitions_for("one")
            futures = [producer.send_nowait("one", b"%d" % n) for n in range(3)]
            futures[1].cancel()
            assert [0, 2] == [(await futures[n]).offset for n in (0, 2)]

    on_loop(main)
    assert [b"0", b"1", b"2"] == values_of(broker)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_that_is_cancelled_is_sent_up_to_some_row(broker, seed, monkeypatch):
    """The rows in the log are the first of the table, in order, and the producer goes on."""
    monkeypatch.setattr("spark_kafka_sink.producer.aio_kafka_producer.SLICE_BYTES", 20_000)
    rng = random.Random(seed)
    values = [b"%08d" % n * 10 for n in range(5_000)]

    async def main() -> None:
        settings = {"buffer.memory": 100_000, "compression.type": "none"}
        async with aio_producer(broker, **settings) as producer:
            table = pa.table({"value": values})
            sending = asyncio.create_task(producer.send_table(table, topic="one"))
            for _ in range(rng.randrange(100)):
                await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await producer.flush()
            await producer.send("one", b"last")

    on_loop(main)
    *rows, last = values_of(broker)
    assert b"last" == last
    assert values[: len(rows)] == rows
