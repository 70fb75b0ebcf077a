"""Blocking calls on daemon threads."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from spark_kafka_sink.network import daemon_thread
from spark_kafka_sink.network.daemon_thread import SharedCall, in_daemon_thread


def _outcome_of(function):
    async def call():
        async with asyncio.timeout(30):
            return await in_daemon_thread("test", function)

    return asyncio.run(call())


def test_a_call_returns_its_result():
    """The waiter gets what the function returned."""
    assert 7 == _outcome_of(lambda: 7).get()


def test_an_exception_of_a_call_is_raised_in_the_waiter():
    """The future itself never raises."""
    outcome = _outcome_of(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outcome.get()


def test_a_call_that_exits_is_an_error():
    """SystemExit ends the thread only: the waiter gets an error, and the loop continues."""
    outcome = _outcome_of(lambda: sys.exit(3))
    assert "SystemExit" in str(outcome.error)
    assert isinstance(outcome.error.__cause__, SystemExit)


def _refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_call_at_the_end_of_the_process_needs_no_thread(monkeypatch):
    """Python 3.12 and later start none then: the call runs on the thread of the loop."""
    monkeypatch.setattr(threading.Thread, "start", _refuse)
    monkeypatch.setattr(daemon_thread, "is_exiting", lambda: True)
    assert threading.get_ident() == _outcome_of(threading.get_ident).get()


class Hanging:
    """A function that numbers its calls, which return once they are released."""

    def __init__(self):
        self.calls = 0
        self.released = threading.Event()

    def __call__(self):
        """Return the number of the call."""
        self.calls += 1
        number = self.calls
        assert self.released.wait(60)
        return number


def test_the_next_wait_joins_a_call_that_is_still_running():
    """A function that hangs is called once, and whichever wait is current gets the result."""

    async def run() -> list:
        hanging = Hanging()
        shared = SharedCall("test", hanging)
        outcomes = [await shared.outcome_within(0) for _ in range(3)]
        patient = [asyncio.ensure_future(shared.outcome_within(60)) for _ in range(2)]
        await asyncio.sleep(0)
        hanging.released.set()
        return [*outcomes, *[(await each).get() for each in patient]]

    assert [None, None, None, 1, 1] == asyncio.run(run())


@pytest.mark.parametrize(("kept_seconds", "expected"), [(60, [1, 2]), (-1, [2, 3])])
def test_a_late_result_is_returned_to_the_next_wait(monkeypatch, kept_seconds, expected):
    """The result of a function that outlasts each wait is used unless it is too old."""
    monkeypatch.setattr(daemon_thread, "KEPT_SECONDS", kept_seconds)

    async def run() -> list:
        hanging = Hanging()
        shared = SharedCall("test", hanging)
        assert await shared.outcome_within(0) is None
        hanging.released.set()
        await asyncio.wait({shared._call})
        return [(await shared.outcome_within(60)).get() for _ in range(2)]

    assert expected == asyncio.run(run())


def test_cancelling_a_wait_does_not_cancel_the_call():
    """A connection that is closed during its login takes no token from another one."""

    async def run() -> int:
        hanging = Hanging()
        shared = SharedCall("test", hanging)
        first, second = (asyncio.ensure_future(shared.outcome_within(60)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        hanging.released.set()
        return (await second).get()

    assert 1 == asyncio.run(run())
