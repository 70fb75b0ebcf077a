"""Tasks that follow one pace in simulated time: what they send, and when."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.spark.sink.pacing import Pace, Pacer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark_kafka_sink.spark.sink.pacing import Limits


class MemoryPace:
    """A `SharedPace` of the tasks of this process."""

    def __init__(self) -> None:
        """Begin when it is first used."""
        self.pace: Pace | None = None
        self.closed = 0

    def read(self, now: float) -> Pace:
        """Return the pace."""
        self.pace = self.pace or Pace.begun(now)
        return self.pace

    def change(self, now: float, change: Callable[[Pace], Pace]) -> Pace:
        """Replace the pace."""
        self.pace = change(self.read(now))
        return self.pace

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


class Sent(NamedTuple):
    """What was sent at a time."""

    at: float
    rows: int
    bytes: int


class SimulatedTask(NamedTuple):
    """The parts that a task sends, endlessly."""

    rows: int
    #: Of a part, before it is compressed.
    size: int
    #: The bytes on the wire for each of these.
    ratio: float
    #: How long appending and flushing a part takes, in seconds.
    takes: float
    starts_at: float = 0.0


def simulate(limits: Limits, tasks: list[SimulatedTask], seconds: float) -> list[Sent]:
    """Run tasks side by side for some seconds; return what they sent, in order."""
    now = 0.0
    shared = MemoryPace()
    sent: list[Sent] = []

    def run(task: SimulatedTask) -> Iterator[float]:
        pacer = Pacer(limits, shared, clock=lambda: now)
        unflushed = 0

        def flush() -> int:
            nonlocal unflushed
            flushed, unflushed = unflushed, 0
            return flushed

        while True:
            yield from pacer.pauses(task.rows, task.size, flush)
            size = round(task.size * task.ratio)
            unflushed += size
            sent.append(Sent(now, task.rows, size))
            yield task.takes

    waiting: list[tuple[float, int, Iterator[float]]] = []
    for number, task in enumerate(tasks):
        heappush(waiting, (task.starts_at, number, run(task)))
    while waiting[0][0] < seconds:
        now, number, turns = heappop(waiting)
        heappush(waiting, (now + next(turns), number, turns))
    return sent
