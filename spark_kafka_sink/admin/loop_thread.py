"""A thread with an event loop of its own, for blocking calls.

A notebook already runs a loop on the caller's thread. The loop here runs only during a call:
nothing runs between calls, and the next call detects a connection that has ended in the meantime.
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
    """A thread that runs coroutines one at a time; `close` it."""

    def __init__(self, name: str) -> None:
        """Create the thread, which starts with the first call."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._runner = asyncio.Runner()
        self._closed = False

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call `function` on the loop's thread, and run its coroutine to the end.

        Raises IllegalStateError after `close`.
        """
        if self._closed:
            raise IllegalStateError("the admin client is closed: create another one")

        async def run() -> T:
            return await function()

        return self._thread.submit(lambda: self._runner.run(run())).result()

    def close(self) -> None:
        """Close the loop and end the thread; may be called more than once."""
        if self._closed:
            return
        self._closed = True
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()
