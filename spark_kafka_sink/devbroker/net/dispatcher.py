"""The connections that wait for changes or turns, over all brokers of a cluster on one event loop.

A request to one broker may cause what a client of another one waits for: new records, a marker, a
leader that has moved. `Dispatcher` wakes only the connections that watch what has changed, and runs
the cluster's timers when they are due. Without work it does nothing: an idle cluster never wakes
its event loop. Connections that could keep the event loop busy wait for their turns in a `Lane`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Iterable

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.net.connection import Connection

logger = logging.getLogger(__name__)

#: The key that connections watch which wait for others to be read.
ROOM: Final = "room for unread answers"
#: How long a client may read nothing while others wait for room.
STALLED_SECONDS: Final = 5.0
#: A connection whose last request took longer than this enters a lane for the next one. Few
#: requests of well-behaved clients do.
LONG_SECONDS: Final = 0.02


class Dispatched(Protocol):
    """The brokers whose changes and timers a `Dispatcher` handles."""

    settings: BrokerSettings

    @property
    def next_deadline(self) -> float | None:
        """When `run_due` must be called, in seconds since 1970; None for never."""

    def run_due(self, now: float) -> None:
        """Do what is due by `now`."""

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since the last call."""


class _Unread(NamedTuple):
    bytes: int
    #: When the client last read something, or was sent its first response.
    progressed_at: float


class UnreadAnswers:
    """The responses that clients have not read yet, over all brokers of a cluster.

    A connection handles no further request until its client has read the last response. But a
    thousand clients that read nothing would still hold a thousand large responses in memory. So all
    connections share a budget: once it is used up, requests with large responses wait until others
    have been read. A client that then reads nothing for some seconds is disconnected.

    The event loop is not used here: time is an argument.
    """

    def __init__(self, max_bytes: int, stalled_seconds: float = STALLED_SECONDS) -> None:
        """Set the budget in bytes, and how long a client may stall once it is used up."""
        self._max_bytes = max_bytes
        self._stalled_seconds = stalled_seconds
        self._connections: dict[Connection, _Unread] = {}
        #: The bytes of all unread responses.
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the budget is used up."""
        return self.bytes > self._max_bytes

    def update(self, connection: Connection, now: float) -> bool:
        """Count what a connection has to send now; return whether that makes room."""
        was_full = self.is_full
        unread = connection.unread_bytes
        before = self._connections.get(connection)
        if before is not None and unread >= before.bytes:
            self.bytes += unread - before.bytes
            self._connections[connection] = before._replace(bytes=unread)
        else:
            self._remove(connection)
            if unread:
                self.bytes += unread
                self._connections[connection] = _Unread(unread, now)
        return was_full and not self.is_full

    def remove(self, connection: Connection) -> bool:
        """Forget a closed connection; return whether that makes room."""
        was_full = self.is_full
        self._remove(connection)
        return was_full and not self.is_full

    def has_room(self, now: float) -> bool:
        """Return whether the budget allows another large response.

        If not, disconnect all clients that have stalled for too long first.
        """
        if not self.is_full:
            return True
        for connection in list(self._connections):
            self.update(connection, now)
            unread = self._connections.get(connection)
            if unread is not None and now - unread.progressed_at >= self._stalled_seconds:
                self._remove(connection)
                connection.abort()
        return not self.is_full

    def _remove(self, connection: Connection) -> None:
        removed = self._connections.pop(connection, None)
        if removed is not None:
            self.bytes -= removed.bytes


class Lane:
    """Connections that wait for their next request to be handled.

    A turn of the event loop handles one request of a connection, or a few short ones. That is not
    enough if each of its requests takes long, or if the client has not authenticated yet. Such
    connections share a lane: it gives them turns one at a time, in the order in which they entered,
    and then rests for as long as the turn took. So all of them together take at most half of the
    event loop's time.

    What counts is the time for which the event loop computed: on a busy machine the time on the
    wall says nothing about a request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, cpu_clock: Callable[[], float]) -> None:
        """Create an empty lane; `cpu_clock` returns the seconds that the loop has computed."""
        self._loop = loop
        self._cpu_clock = cpu_clock
        self._turns: deque[Callable[[], None]] = deque()
        self._rests_until = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, turn: Callable[[], None]) -> None:
        """Call `turn`, which handles a request, after those that entered before."""
        self._turns.append(turn)
        self._schedule()

    def close(self) -> None:
        """Forget all connections."""
        self._turns.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._timer is None and self._turns:
            self._timer = self._loop.call_at(self._rests_until, self._run)

    def _run(self) -> None:
        began = self._cpu_clock()
        try:
            self._turns.popleft()()
        finally:
            self._rests_until = self._loop.time() + self._cpu_clock() - began
            self._timer = None
            self._schedule()


class Dispatcher:
    """Wakes connections and runs timers on one event loop."""

    def __init__(
        self,
        cluster: Dispatched,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        """Dispatch the changes of a cluster.

        `clock` returns seconds since 1970, `cpu_clock` the seconds that the loop has computed.
        """
        self.loop = loop
        self.clock = clock
        self.cpu_clock = cpu_clock
        #: For connections whose requests take long, and for those that have not authenticated.
        self.slow_lane = Lane(loop, cpu_clock)
        self.unauthenticated_lane = Lane(loop, cpu_clock)
        self.unread_answers = UnreadAnswers(cluster.settings.queued_max_response_bytes)
        self._cluster = cluster
        self._watching: dict[Hashable, set[Connection]] = {}
        self._to_wake: set[Connection] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._tick_deadline = 0.0
        self._schedule_tick()

    @property
    def watched(self) -> frozenset[Hashable]:
        """The keys that connections wait for."""
        return frozenset(self._watching)

    def watch(self, connection: Connection, watched: Iterable[Hashable]) -> None:
        """Wake a connection when one of these keys changes."""
        for key in watched:
            self._watching.setdefault(key, set()).add(connection)

    def unwatch(self, connection: Connection, watched: Iterable[Hashable]) -> None:
        """Undo `watch`, including a wake-up that is already scheduled."""
        self._to_wake.discard(connection)
        for key in watched:
            watching = self._watching.get(key)
            if watching is not None:
                watching.discard(connection)
                if not watching:
                    del self._watching[key]

    def handled(self) -> None:
        """Dispatch what has changed since the last call, and reschedule the timers."""
        for key in self._cluster.take_changed():
            self._changed(key)
        self._schedule_tick()

    def made_room(self) -> None:
        """Wake the connections that wait until others have been read."""
        self._changed(ROOM)

    def _changed(self, key: Hashable) -> None:
        for connection in self._watching.get(key, ()):
            if not self._to_wake:
                self.loop.call_soon(self._wake)
            self._to_wake.add(connection)

    def close(self) -> None:
        """Stop running timers, and the turns in lanes."""
        self.slow_lane.close()
        self.unauthenticated_lane.close()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def _schedule_tick(self) -> None:
        """Schedule the cluster's timers for when the next one is due."""
        deadline = self._cluster.next_deadline
        if deadline is None or (self._tick is not None and self._tick_deadline <= deadline):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_deadline = deadline
        self._tick = self.loop.call_later(max(0.0, deadline - self.clock()), self._run_timers)

    def _run_timers(self) -> None:
        self._tick = None
        try:
            self._cluster.run_due(self.clock())
        except Exception:
            logger.exception("a timer failed")
        self.handled()

    def _wake(self) -> None:
        to_wake, self._to_wake = self._to_wake, set()
        for connection in to_wake:
            connection.wake()
