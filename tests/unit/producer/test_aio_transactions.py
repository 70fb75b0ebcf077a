"""Transactions of the asyncio producer: blocks, single calls, and tasks that race."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_kafka_sink.admin.admin_client import AdminClient
from spark_kafka_sink.devbroker.net.faults import AnswerError, NeverAnswer
from spark_kafka_sink.errors import (
    BrokerError,
    ConfigError,
    IllegalStateError,
    KafkaTimeoutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from spark_kafka_sink.model import ConsumerGroupMetadata, TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.sending.transaction_state import TransactionState
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from tests.support.producer.on_loop import aio_producer, on_loop, until_injected
from tests.support.producer.sending import LONG_LINGER

TRANSACTIONAL = {"transactional.id": "orders"}


def committed(broker) -> list[bytes]:
    """Return what consumers of committed records read from the topic `one`."""
    return [record.value for record in broker.records("one")[0]]


def test_a_block_commits_its_records(broker):
    """The first block also initializes the producer; each commits at its end."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            for number in range(3):
                async with producer.transaction() as same:
                    assert producer is same
                    await producer.send("one", b"%d" % number)
                    assert number == len(committed(broker))
                assert number + 1 == len(committed(broker))

    on_loop(main)
    assert [b"0", b"1", b"2"] == committed(broker)


def test_a_block_that_raises_aborts(broker):
    """The error is raised, nothing of the block is read, and the next one commits."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with producer.transaction():
                    await producer.send("one", b"sent")
                    unsent = producer.send_nowait("one", b"unsent")
                    raise ZeroDivisionError
            with pytest.raises(TransactionAbortedError):
                await unsent
            async with producer.transaction():
                await producer.send("one", b"kept")

    on_loop(main)
    assert [b"kept"] == committed(broker)


@pytest.mark.parametrize("seed", range(8))
def test_a_block_that_is_cancelled_aborts_or_has_committed(broker, seed):
    """Wherever it is cancelled, all of its records are read or none, and the next block commits."""
    rng = random.Random(seed)

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL, **{"linger.ms": 0}) as producer:

            async def block(number: int) -> None:
                async with producer.transaction():
                    for part in range(3):
                        await producer.send("one", b"%d-%d" % (number, part))

            for number in range(12):
                task = asyncio.create_task(block(number))
                for _ in range(rng.randrange(60)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    # Until something is sent, a turn of the loop takes no time.
                    await asyncio.sleep(rng.random() / 200)
                task.cancel()
                await asyncio.wait({task})
            await block(99)

    on_loop(main, "uvloop" if seed % 2 else "asyncio")
    numbers = [value.partition(b"-")[0] for value in committed(broker)]
    assert {3} == {numbers.count(number) for number in numbers}
    assert [b"99"] * 3 == numbers[-3:]


def test_a_commit_that_is_cancelled_goes_on(broker):
    """The task does not wait for it; the next block does, and its own records follow."""
    hook = broker.on(ApiKey.END_TXN, NeverAnswer(), times=1)

    async def main() -> None:
        settings = {**TRANSACTIONAL, "request.timeout.ms": 1_000}
        async with aio_producer(broker, **settings) as producer:

            async def block() -> None:
                async with producer.transaction():
                    await producer.send("one", b"first")

            task = asyncio.create_task(block())
            await until_injected(hook)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send("one", b"second")

    on_loop(main)
    assert [b"first", b"second"] == committed(broker)


def test_a_producer_ends_a_commit_that_was_cancelled(broker):
    """A task that is cancelled with its producer leaves no open transaction behind."""
    hook = broker.on(ApiKey.END_TXN, AnswerError(ErrorCode.CONCURRENT_TRANSACTIONS))

    async def main() -> None:
        async def work() -> None:
            async with aio_producer(broker, **TRANSACTIONAL) as producer, producer.transaction():
                await producer.send("one", b"v")

        task = asyncio.create_task(work())
        await until_injected(hook)
        task.cancel()
        hook.remove()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_loop(main)
    assert [b"v"] == committed(broker)


def test_a_producer_aborts_what_an_error_leaves_open(broker):
    """Single calls have no block: the producer's own aborts, and what was not sent says so."""
    ends: list[bool] = []
    broker.on(ApiKey.END_TXN, lambda request, _: ends.append(request.committed))

    async def main() -> None:
        async def fail() -> None:
            async with producer:
                raise ZeroDivisionError

        producer = aio_producer(broker, **TRANSACTIONAL, **LONG_LINGER)
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.partitions_for("one")
        sent = producer.send_nowait("one", b"sent")
        await producer.flush()
        unsent = producer.send_nowait("one", b"unsent")
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert 0 == sent.result().offset
        assert isinstance(unsent.exception(), TransactionAbortedError)

    on_loop(main)
    assert [False] == ends
    assert [] == committed(broker)


def test_blocks_of_tasks_take_turns(broker):
    """Tasks that use one producer get a transaction each, one after the other."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:

            async def block(number: int) -> None:
                async with producer.transaction():
                    for part in range(3):
                        await producer.send("one", b"%d-%d" % (number, part))
                    if number % 3 == 0:
                        raise ZeroDivisionError

            await asyncio.gather(*(block(n) for n in range(10)), return_exceptions=True)

    on_loop(main)
    expected = [n for n in range(10) if n % 3]
    assert [b"%d-%d" % (n, part) for n in expected for part in range(3)] == committed(broker)


def test_a_block_in_a_block_is_refused(broker):
    """A task that waited for its own block would wait for ever."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer, producer.transaction():
            with pytest.raises(IllegalStateError, match="this task has a transaction already"):
                async with producer.transaction():
                    pass
            await producer.send("one", b"v")

    on_loop(main)
    assert [b"v"] == committed(broker)


def test_a_record_that_was_refused_aborts_the_block(broker):
    """The commit fails with the cause, and the next block goes on."""
    broker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.MESSAGE_TOO_LARGE), times=1)

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            await producer.partitions_for("one")
            with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
                async with producer.transaction():
                    refused = producer.send_nowait("one", b"refused")
            assert "MESSAGE_TOO_LARGE" in str(refused.exception())
            async with producer.transaction():
                await producer.send("one", b"kept")

    on_loop(main)
    assert [b"kept"] == committed(broker)


def test_the_single_calls_are_those_of_kafka_producer(broker):
    """init, begin, send, commit and abort, with the same errors out of order."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            with pytest.raises(IllegalStateError, match="call init_transactions"):
                await producer.send("one", b"v")
            await producer.init_transactions()
            with pytest.raises(IllegalStateError):
                await producer.init_transactions()
            await producer.begin_transaction()
            with pytest.raises(IllegalStateError):
                await producer.begin_transaction()
            await producer.send("one", b"aborted")
            await producer.abort_transaction()
            await producer.begin_transaction()
            producer.send_nowait("one", b"kept")
            await producer.commit_transaction()
            with pytest.raises(IllegalStateError):
                await producer.commit_transaction()
        async with aio_producer(broker) as producer:
            with pytest.raises(ConfigError, match=r"transactional\.id"):
                await producer.init_transactions()

    on_loop(main)
    assert [b"kept"] == committed(broker)


def test_a_prepared_transaction_can_be_ended_elsewhere(broker):
    """Prepared records stay invisible, and the producer can begin under another id."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("one", b"prepared")
            prepared = await producer.prepare_transaction()
            assert prepared.producer.is_valid
            await producer.init_transactions("orders-2")
            await producer.begin_transaction()
            await producer.send("one", b"second")
            await producer.commit_transaction()

    on_loop(main)
    # The second is behind the one that is still prepared.
    assert [] == committed(broker)


@pytest.mark.parametrize("seed", range(4))
def test_tasks_may_commit_offsets_and_send_at_the_same_time(broker, seed):
    """Offsets of many tasks are all committed with the transaction, whatever comes between."""
    rng = random.Random(seed)
    group = ConsumerGroupMetadata("readers")

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            for number in range(3):
                async with producer.transaction():

                    async def step(partition: int, offset: int) -> None:
                        for _ in range(rng.randrange(10)):
                            await asyncio.sleep(0)
                        await producer.send("one", b"v")
                        await producer.send_offsets_to_transaction(
                            {TopicPartition("t", partition): offset}, group
                        )

                    await asyncio.gather(
                        *(step(p, 10 * number + p) for p in range(3) for _ in "ab")
                    )

    on_loop(main)
    assert 18 == len(committed(broker))
    with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        offsets = admin.list_consumer_group_offsets("readers")
    assert {TopicPartition("t", p): 20 + p for p in range(3)} == {
        place: offset.offset for place, offset in offsets.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_record_is_in_the_transaction_that_was_open_when_it_was_sent(broker, seed):
    """A send that waits while its transaction ends is refused, not written into the next one."""
    rng = random.Random(seed)

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            await producer.init_transactions()
            sends: list[tuple[bytes, asyncio.Task]] = []
            for number in range(8):
                await producer.begin_transaction()
                for part in range(4):
                    value = b"%d-%d" % (number, part)
                    topic = rng.choice(["one", "t"])
                    sends.append((value, asyncio.create_task(producer.send(topic, value))))
                    for _ in range(rng.randrange(5)):
                        await asyncio.sleep(0)
                end = rng.choice([producer.commit_transaction, producer.abort_transaction])
                try:
                    await end()
                    aborted.extend([number] if end == producer.abort_transaction else [])
                except TransactionAbortableError:
                    await producer.abort_transaction()
                    aborted.append(number)
            outcomes = await asyncio.gather(*(task for _, task in sends), return_exceptions=True)
            for (value, _), outcome in zip(sends, outcomes, strict=True):
                if not isinstance(outcome, Exception):
                    returned.add(value)
                else:
                    assert isinstance(
                        outcome,
                        IllegalStateError | TransactionAbortedError | TransactionAbortableError,
                    )

    aborted: list[int] = []
    returned: set[bytes] = set()
    on_loop(main)
    read = {
        record.value
        for topic in ("one", "t")
        for p in broker.records(topic).values()
        for record in p
    }
    assert set() == {value for value in read if int(value.partition(b"-")[0]) in aborted}
    assert read == {value for value in returned if int(value.partition(b"-")[0]) not in aborted}


def test_a_send_that_waits_for_its_topic_does_not_move_to_the_next_transaction(broker):
    """The metadata arrive when another transaction is open: the record is refused."""
    hook = broker.on(ApiKey.METADATA, NeverAnswer(), times=1)

    async def main() -> None:
        settings = {**TRANSACTIONAL, "request.timeout.ms": 2_000}
        async with aio_producer(broker, **settings) as producer:
            core = producer._core
            core.transaction_manager.state._current = TransactionState.IN_TRANSACTION
            send = asyncio.create_task(producer.send("one", b"late"))
            await until_injected(hook)
            core.transactions += 1
            with pytest.raises(IllegalStateError, match="while its transaction was ending"):
                await send
            core.transaction_manager.state._current = TransactionState.UNINITIALIZED

    on_loop(main)


def test_a_fenced_producer_raises_the_error_of_its_block(broker):
    """Another producer has the id: nothing can be aborted, and the block's error says why."""

    async def main() -> None:
        async with aio_producer(broker, **TRANSACTIONAL) as producer:
            async with producer.transaction():
                await producer.send("one", b"mine")

            def take_over() -> None:
                settings = {"bootstrap.servers": broker.bootstrap_servers, **TRANSACTIONAL}
                with KafkaProducer(settings) as other:
                    other.init_transactions()

            with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH") as raised:  # noqa: PT012
                async with producer.transaction():
                    await asyncio.to_thread(take_over)
                    producer.send_nowait("one", b"late")
            assert "a newer producer has taken over" in raised.value.__notes__[0]

    on_loop(main)
    assert [b"mine"] == committed(broker)


def test_an_abort_that_fails_does_not_hide_the_error_of_its_block(broker):
    """The error of the block is raised, with a note about the abort."""
    broker.on(ApiKey.END_TXN, NeverAnswer())

    async def main() -> None:
        producer = aio_producer(broker, **TRANSACTIONAL)
        with pytest.raises(ZeroDivisionError) as raised:  # noqa: PT012
            async with producer.transaction():
                await producer.send("one", b"v")
                producer._core._max_block = 0.05
                raise ZeroDivisionError
        assert (
            "could not be aborted: abort_transaction did not complete" in raised.value.__notes__[0]
        )
        with pytest.raises(KafkaTimeoutError):
            await producer.abort_transaction()
        await producer.close(0)

    on_loop(main)
