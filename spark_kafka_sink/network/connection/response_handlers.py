"""The functions that are called with the responses of one connection as soon as they arrive.

A done callback of a future runs in the next round of the loop, and a handler in the round in which
the response arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from spark_kafka_sink.protocol.schema import ApiResponse, ResponseT


class ResponseHandlers:
    """The handlers of the requests of one connection that have one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create it; errors of handlers are reported to `loop`."""
        self._loop = loop
        #: By the future of a request.
        self._handlers: dict[asyncio.Future[Any], Callable[[asyncio.Future[Any]], None]] = {}

    def add(
        self,
        outcome: asyncio.Future[ResponseT],
        on_done: Callable[[asyncio.Future[ResponseT]], None],
    ) -> None:
        """Call `on_done` with this future once: by `answer`, or by the loop if it fails."""
        outcome.add_done_callback(on_done)
        self._handlers[outcome] = on_done

    def answer(self, outcome: asyncio.Future[Any], response: ApiResponse) -> None:
        """Set a future's result, and call its handler now; do nothing if it is already done."""
        on_done = self._handlers.pop(outcome, None)
        if outcome.done():
            return
        if on_done is None:
            outcome.set_result(response)
            return
        outcome.remove_done_callback(on_done)
        outcome.set_result(response)
        try:
            on_done(outcome)
        except Exception as error:  # noqa: BLE001  reported as the error of a done callback would be
            self._loop.call_exception_handler(
                {"message": "the handler of a response failed", "exception": error}
            )

    def clear(self) -> None:
        """Forget all handlers: the loop calls those of futures that fail."""
        self._handlers.clear()
