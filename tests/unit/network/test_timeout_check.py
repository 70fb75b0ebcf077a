"""A connection times out only after the loop has had the chance to read what has arrived."""

from __future__ import annotations

import asyncio

from spark_kafka_sink.network.timeout_check import TimeoutCheck
from tests.support.scripted_transport import run_without_waiting


class _Waits:
    """Something that a connection waits for, and the times at which it was found to be missing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.deadline: float | None = None
        self.timeouts: list[tuple[str, float]] = []
        self.check = TimeoutCheck(
            self.loop, lambda: {"no answer": self.deadline, "no session": None}, self._note
        )

    def _note(self, overdue: str) -> None:
        self.timeouts.append((overdue, self.loop.time()))

    def begin(self, timeout: float) -> None:
        self.deadline = self.loop.time() + timeout
        self.check.check_at(self.deadline)

    async def rounds_until_timeout(self) -> int:
        """Count the rounds of the loop from the deadline on."""
        await asyncio.sleep(self.deadline - self.loop.time())
        rounds = 1
        while not self.timeouts:
            await asyncio.sleep(0)
            rounds += 1
        return rounds


def test_a_timeout_takes_three_rounds_of_the_loop_and_no_time():
    """One may find no socket, the next reads the bytes, and the third decodes them."""

    async def run() -> tuple[int, list]:
        waits = _Waits()
        waits.begin(30)
        deadline = waits.deadline
        return await waits.rounds_until_timeout(), [("no answer", deadline)] == waits.timeouts

    assert (3, True) == run_without_waiting(run)


def test_an_answer_that_is_read_after_its_deadline_leaves_nothing_behind():
    """The next timeout takes as many rounds as the first would have."""

    async def run() -> int:
        waits = _Waits()
        waits.begin(30)
        await asyncio.sleep(30)
        waits.deadline = None
        await asyncio.sleep(30)
        waits.begin(30)
        return await waits.rounds_until_timeout()

    assert 3 == run_without_waiting(run)


def test_a_check_that_is_cancelled_finds_nothing():
    """A closed connection does not time out."""

    async def run() -> list:
        waits = _Waits()
        waits.check.cancel()
        waits.begin(30)
        waits.check.cancel()
        await asyncio.sleep(60)
        return waits.timeouts

    assert [] == run_without_waiting(run)
