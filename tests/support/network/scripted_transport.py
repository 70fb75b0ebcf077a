"""A transport controlled by the test, and an event loop with simulated time."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, TypeVar

from spark_kafka_sink.protocol.frame import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

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
        self._has_room = asyncio.Event()
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()

    def take(self, count: int) -> None:
        """Accept this many more bytes."""
        self._room += count
        self._has_room.set()

    def deliver(self, data: bytes) -> None:
        """Make the client read these bytes."""
        self._incoming.put_nowait(data)

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Write as many bytes as are permitted, see `Transport.begin_write`."""
        data = b"".join(buffers)
        now_taken = data[: self._room]
        if now_taken:
            self.taken += now_taken
            self._room -= len(now_taken)
            self.taken_at = self._loop.time()
        rest = data[len(now_taken) :]
        return [rest] if rest else []

    async def write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write all bytes as they are permitted, see `Transport.write`."""
        while buffers := self.begin_write(buffers):
            self._has_room.clear()
            await self._has_room.wait()

    async def read(self) -> bytes:
        """Read the next delivered bytes, see `Transport.read`."""
        return await self._incoming.get()

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

    def begin_write(self, buffers: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Accept all bytes, and deliver the responses to the requests that they complete."""
        self.take(sum(memoryview(buffer).nbytes for buffer in buffers))
        taken = len(self.taken)
        rest = super().begin_write(buffers)
        self._requests.receive_data(self.taken[taken:])
        while (request := self._requests.next_frame()) is not None:
            answer = self._script(bytes(request))
            if answer != b"":
                self.deliver(answer or b"")
        return rest
