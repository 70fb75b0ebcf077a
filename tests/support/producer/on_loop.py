"""Run tests of `AIOKafkaProducer` on an event loop of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvloop

from spark_kafka_sink.producer.aio_kafka_producer import AIOKafkaProducer
from tests.support.kafka.real_kafka import wait_until
from tests.support.producer.sending import FAST_RETRIES, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from spark_kafka_sink.devbroker import DevBroker
    from spark_kafka_sink.devbroker.net.faults import Hook

T = TypeVar("T")


#: The kinds of event loops that the asyncio clients run on.
LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_loop(
    main: Callable[[], Coroutine[Any, Any, T]],
    loop: str = "asyncio",
    *,
    seconds: float = TIMEOUT,
) -> T:
    """Run a coroutine function on one of `LOOPS`, not longer than this; return what it returns."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await main()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(limited())


def aio_producer(broker: DevBroker, **settings: object) -> AIOKafkaProducer:
    """Create a producer with short back-offs on the running loop."""
    return AIOKafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, **FAST_RETRIES, **settings}
    )


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait on a thread until a condition holds, while the loop goes on."""
    await asyncio.to_thread(wait_until, condition, seconds=TIMEOUT, what=what)


async def until_injected(hook: Hook) -> None:
    """Wait until a fault has acted, while the loop goes on."""
    await until(lambda: hook.fired > 0, "the fault to act")
