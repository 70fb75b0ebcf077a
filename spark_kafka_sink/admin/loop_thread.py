"""A thread with an event loop of its own, for blocking calls.

A notebook already runs a loop on the caller's thread. The loop runs only while a call does: between
calls nothing is awake, and a connection that ended meanwhile is found to have ended by the next.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from spark_kafka_sink.errors import IllegalStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class LoopThread:
    """Runs coroutines one at a time; see the module. `close` it."""

    def __init__(self, name: str) -> None:
        """Start nothing before the first call."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._runner = asyncio.Runner()
        self._closed = False

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what `function` gives, made on the loop's thread, to its end.

        Raises IllegalStateError after `close`.
        """
        if self._closed:
            raise IllegalStateError("the admin client is closed: make another")

        async def run() -> T:
            return await function()

        return self._thread.submit(lambda: self._runner.run(run())).result()

    def close(self) -> None:
        """End the loop and the thread; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()
