"""Nothing times out before the loop has had the chance to read what has arrived."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.network.timeout_check import (
    ROUNDS_UNTIL_GIVING_UP,
    TimeoutCheck,
    done_by,
)
from tests.support.network.scripted_transport import run_without_waiting


class _Waits:
    """Something that a connection waits for, and the times at which it was found missing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.deadline: float | None = None
        self.timeouts: list[tuple[str, float]] = []
        #: How many rounds of the loop it takes to read what has arrived.
        self.rounds_to_read = 0
        self.check = TimeoutCheck(
            self.loop,
            lambda: {"no answer": self.deadline, "no session": None},
            self._note,
            lambda: self.rounds_to_read,
        )

    def _note(self, overdue: str) -> None:
        self.timeouts.append((overdue, self.loop.time()))

    def read_one_round(self) -> None:
        """Read, and receive the whole answer with the last round."""
        self.rounds_to_read -= 1
        if self.rounds_to_read:
            self.loop.call_soon(self.read_one_round)
        else:
            self.deadline = None

    def begin(self, timeout: float) -> None:
        self.deadline = self.loop.time() + timeout
        self.check.check_at(self.deadline)

    async def iterations_until_timeout(self) -> int:
        """Count the rounds of the loop from the deadline on."""
        await asyncio.sleep(self.deadline - self.loop.time())
        rounds = 1
        while not self.timeouts:
            await asyncio.sleep(0)
            rounds += 1
        return rounds


def test_a_timeout_takes_three_iterations_of_the_loop():
    """One may find no socket, the next reads the bytes, and the third decodes them."""

    async def run() -> tuple[int, list]:
        waits = _Waits()
        waits.begin(30)
        deadline = waits.deadline
        return await waits.iterations_until_timeout(), [("no answer", deadline)] == waits.timeouts

    assert (3, True) == run_without_waiting(run)


def test_an_answer_that_takes_many_rounds_to_read_is_in_time():
    """After a pause of the process, more may have arrived than a few rounds of the loop read."""

    async def run() -> tuple[list, int]:
        waits = _Waits()
        waits.begin(30)
        waits.rounds_to_read = 100
        waits.loop.call_at(waits.deadline, waits.read_one_round)
        await asyncio.sleep(60)
        return waits.timeouts, waits.rounds_to_read

    assert ([], 0) == run_without_waiting(run)


def test_what_arrives_after_the_deadline_does_not_put_off_the_timeout():
    """A peer that goes on sending, but never completes its answer, times out all the same."""

    async def run() -> int:
        waits = _Waits()
        waits.rounds_to_read = 20
        waits.begin(30)
        return await waits.iterations_until_timeout()

    # The number of rounds to read does not decrease here.
    assert 23 == run_without_waiting(run)


def test_a_late_response_does_not_affect_the_next_timeout():
    """The next timeout takes as many rounds as the first would have taken."""

    async def run() -> int:
        waits = _Waits()
        waits.begin(30)
        await asyncio.sleep(30)
        waits.deadline = None
        await asyncio.sleep(30)
        waits.begin(30)
        return await waits.iterations_until_timeout()

    assert 3 == run_without_waiting(run)


def test_a_cancelled_check_never_times_out():
    """A closed connection does not time out."""

    async def run() -> list:
        waits = _Waits()
        waits.check.cancel()
        waits.begin(30)
        waits.check.cancel()
        await asyncio.sleep(60)
        return waits.timeouts

    assert [] == run_without_waiting(run)


@pytest.mark.parametrize("rounds", [0, 1, ROUNDS_UNTIL_GIVING_UP - 1, ROUNDS_UNTIL_GIVING_UP + 1])
def test_a_response_being_processed_at_the_deadline_is_in_time(rounds):
    """A response that has arrived passes through some tasks before it reaches the waiter."""

    async def run() -> tuple[bool, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        future = loop.create_future()

        def hand_over(left: int) -> None:
            if left:
                loop.call_soon(hand_over, left - 1)
            elif not future.done():
                future.set_result(None)

        # The waiter wakes in the round after the one in which the deadline passes.
        loop.call_at(began + 30, loop.call_soon, hand_over, rounds)
        return await done_by(future, began + 30), loop.time() - began

    is_in_time = rounds < ROUNDS_UNTIL_GIVING_UP
    assert (is_in_time, 30) == run_without_waiting(run)


def test_a_done_future_ends_the_wait():
    """Even with a deadline in the past, a future that is done, or about to be, counts."""

    async def run() -> tuple[bool, bool, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        early, late = loop.create_future(), loop.create_future()
        loop.call_at(began + 5, early.set_result, None)
        loop.call_soon(late.set_result, None)
        return (
            await done_by(late, began - 30),
            await done_by(early, began + 30),
            loop.time() - began,
        )

    assert (True, True, 5) == run_without_waiting(run)


def test_a_timeout_does_not_cancel_the_future():
    """Other callers may be waiting for it."""

    async def run() -> tuple[bool, bool]:
        future = asyncio.get_running_loop().create_future()
        return await done_by(future, asyncio.get_running_loop().time() + 30), future.cancelled()

    assert (False, False) == run_without_waiting(run)
