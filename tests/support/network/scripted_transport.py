"""A transport controlled by the test, and an event loop with simulated time."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.protocol.frame import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class _PassingTime(selectors.SelectSelector):
    """A selector that returns at once and advances the clock by the timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self.now += timeout
        return super().select(0)


class _GivenTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passing_time = _PassingTime()
        super().__init__(self._passing_time)

    def time(self) -> float:
        return self._passing_time.now


def run_without_waiting(main: Callable[[], Coroutine[None, None, T]]) -> T:
    """Run a coroutine on a loop with simulated time, on which every wait ends at once."""
    with asyncio.Runner(loop_factory=_GivenTimeLoop) as runner:
        return runner.run(main())


class ScriptedTransport:
    """A `Transport` whose peer accepts only as many bytes as the test permits."""

    def __init__(self) -> None:
        """Accept no bytes yet."""
        self._loop = asyncio.get_running_loop()
        self.taken_at = self._loop.time()
        #: All bytes that were accepted.
        self.taken = bytearray()
        self.is_closed = False
        self._room = 0
        self._is_blocked = False
        self._incoming: deque[bytes] = deque()
        self._on_readable: Callable[[], None] = lambda: None
        self._on_writable: Callable[[], None] = lambda: None

    def start(self, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Set what to call, see `Transport.start`."""
        self._on_readable, self._on_writable = on_readable, on_writable

    def take(self, count: int) -> None:
        """Accept this many more bytes."""
        self._room += count
        if self._is_blocked:
            self._loop.call_soon(self._call, self._on_writable)

    def deliver(self, data: bytes) -> None:
        """Make the client read these bytes."""
        self._incoming.append(data)
        self._loop.call_soon(lambda: self._call(self._on_readable))

    def _call(self, callback: Callable[[], None]) -> None:
        if not self.is_closed:
            callback()

    def write(self, pending: deque[memoryview]) -> bool:
        """Accept as many bytes as are permitted, see `Transport.write`."""
        while pending and self._room:
            now_taken = pending[0][: self._room]
            rest = pending.popleft()[len(now_taken) :]
            if rest:
                pending.appendleft(rest)
            self.taken += now_taken
            self._room -= len(now_taken)
            self.taken_at = self._loop.time()
        self._is_blocked = bool(pending)
        return not pending

    def read(self) -> bytes | None:
        """Read the next delivered bytes, see `Transport.read`."""
        return self._incoming.popleft() if self._incoming else None

    def rounds_to_read(self) -> int:
        """Count the deliveries, see `Transport.rounds_to_read`."""
        return len(self._incoming)

    def close(self) -> None:
        """Record the close, see `Transport.close`."""
        self.is_closed = True


class AnsweringTransport(ScriptedTransport):
    """A `Transport` to a peer that accepts every byte and answers each request at once."""

    def __init__(self, script: Callable[[bytes], bytes | None]) -> None:
        """Store `script`, which maps a request's frame to the response, or to None to close."""
        super().__init__()
        self._script = script
        self._requests = FrameDecoder(1 << 20)

    def write(self, pending: deque[memoryview]) -> bool:
        """Accept all bytes, and deliver the responses to the requests that they complete."""
        self.take(sum(map(len, pending)))
        taken = len(self.taken)
        super().write(pending)
        self._requests.receive_data(self.taken[taken:])
        while (request := self._requests.next_frame()) is not None:
            answer = self._script(bytes(request))
            if answer != b"":
                self.deliver(answer or b"")
        return True
