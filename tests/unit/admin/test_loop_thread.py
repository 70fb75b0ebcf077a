"""The thread of blocking calls: what they share, Ctrl-C, and closing beside running calls."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_kafka_sink.admin.blocking_client import LoopThread
from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError
from tests.support.faults.interrupts import interrupt, needs_signals
from tests.support.forked import call_in_fork

TIMEOUT = 60.0
NAME = "test-admin"
CLOSED = "the admin client is closed"


class _Shared:
    """What the calls share; it records the threads that open and close it."""

    def __init__(self):
        self.opened_by = threading.current_thread().name
        self.closed_by = []
        self.events = []

    async def close(self):
        self.events.append("closed")
        self.closed_by.append(threading.current_thread().name)


class _Endless:
    """A call that lasts until it is cancelled."""

    def __init__(self, at_begin=lambda: None):
        self.at_begin = at_begin
        self.has_begun = threading.Event()

    async def __call__(self, shared):
        shared.events.append("begun")
        self.has_begun.set()
        self.at_begin()
        try:
            await asyncio.Event().wait()
        finally:
            shared.events.append("cancelled")


async def _itself(shared):
    return shared


@pytest.fixture
def made():
    """Return the list of the shared objects that have been opened."""
    return []


@pytest.fixture
def thread(made):
    def open_shared():
        made.append(_Shared())
        return made[-1]

    started = LoopThread(NAME, open_shared)
    yield started
    started.close()


@pytest.fixture
def beside():
    """Yield an executor for calls beside those of the main thread."""
    with ThreadPoolExecutor() as executor:
        yield executor


def _is_alive():
    return any(it.name.startswith(NAME) for it in threading.enumerate())


def _wait_for_calls(thread, number):
    while len(thread._calls) < number:
        time.sleep(0.001)


# --- what calls share


def test_all_calls_share_what_the_first_one_opened(thread, made):
    """It is opened and closed once, on the thread of the loop."""
    assert thread.run(_itself) is thread.run(_itself)
    thread.close()

    [shared] = made
    assert shared.opened_by.startswith(NAME)
    assert [shared.opened_by] == shared.closed_by


def test_nothing_is_opened_before_the_first_call(thread, made):
    """A thread that was never used ends without opening anything."""
    thread.close()

    assert [] == made
    with pytest.raises(IllegalStateError, match=CLOSED):
        thread.run(_itself)


def test_what_could_not_be_opened_is_opened_by_the_next_call():
    """The error is that of the call, and the thread remains usable."""
    outcomes = [ZeroDivisionError(), _Shared()]

    def open_shared():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    thread = LoopThread(NAME, open_shared)
    with pytest.raises(ZeroDivisionError):
        thread.run(_itself)
    assert [] == thread.run(_itself).events
    thread.close()


def test_an_error_of_closing_is_raised_and_the_thread_ends(thread):
    """The caller of `close` learns why the connections may still be open."""
    shared = thread.run(_itself)

    async def fail():
        raise ZeroDivisionError

    shared.close = fail
    with pytest.raises(ZeroDivisionError):
        thread.close()
    thread.close()
    assert not _is_alive()


def test_a_call_that_cancels_itself_is_not_taken_for_a_closed_thread(thread):
    """Only `close` leads to its error."""

    async def cancel(_):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        thread.run(cancel)


def test_a_system_without_threads_is_not_taken_for_a_closed_thread(thread, monkeypatch):
    """The error of the system passes through unless the thread was closed."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(thread._thread, "submit", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        thread.run(_itself)


# --- Ctrl-C


@needs_signals
def test_an_interrupted_call_is_cancelled_and_the_next_one_runs(thread):
    """Ctrl-C ends the wait at once, and the call with it; what is shared remains open."""
    with pytest.raises(KeyboardInterrupt):
        thread.run(_Endless(interrupt))

    assert ["begun", "cancelled"] == thread.run(_itself).events
    assert set() == thread._calls


def test_no_call_starts_a_thread(thread, monkeypatch):
    """A Ctrl-C while a thread starts would leave two of them, each using the same loop."""

    def refuse(_):
        raise AssertionError("a call has started a thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert [] == thread.run(_itself).events


@needs_signals
def test_an_interrupted_caller_does_not_wait_for_the_call(thread):
    """A call that takes long to end does not keep the interrupted thread."""
    may_end = threading.Event()

    async def slow(_):
        try:
            interrupt()
            await asyncio.Event().wait()
        finally:
            may_end.wait(TIMEOUT)

    with pytest.raises(KeyboardInterrupt):
        thread.run(slow)

    assert not may_end.is_set()
    may_end.set()


@needs_signals
def test_a_call_that_is_interrupted_before_its_turn_never_begins(thread, beside):
    """Ctrl-C cancels the caller's own call, but not that of another thread before it."""
    may_end, second = threading.Event(), _Endless()

    async def first(_):
        _wait_for_calls(thread, 2)
        interrupt()
        return may_end.wait(TIMEOUT)

    running = beside.submit(thread.run, first)
    with pytest.raises(KeyboardInterrupt):
        thread.run(second)
    may_end.set()

    assert running.result(TIMEOUT)
    thread.run(_itself)
    assert not second.has_begun.is_set()


@needs_signals
def test_an_interrupted_close_ends_the_thread_all_the_same(thread):
    """Ctrl-C while `close` waits neither leaks the thread nor keeps the caller."""
    shared = thread.run(_itself)
    may_end = threading.Event()

    async def slow():
        interrupt()
        may_end.wait(TIMEOUT)
        shared.events.append("closed")

    shared.close = slow
    with pytest.raises(KeyboardInterrupt):
        thread.close()
    assert [] == shared.events
    may_end.set()
    thread.close()

    assert ["closed"] == shared.events
    assert not _is_alive()


# --- closing beside calls


def test_close_cancels_running_and_waiting_calls(thread, beside, made):
    """Their callers get the error of a closed client, and the connections close after them."""
    running = _Endless()
    calls = [beside.submit(thread.run, running)]
    assert running.has_begun.wait(TIMEOUT)
    waiting = _Endless()
    calls.append(beside.submit(thread.run, waiting))
    _wait_for_calls(thread, 2)

    thread.close()

    for call in calls:
        with pytest.raises(IllegalStateError, match=CLOSED):
            call.result(TIMEOUT)
    assert [["begun", "cancelled", "closed"]] == [shared.events for shared in made]
    assert not waiting.has_begun.is_set()
    assert not _is_alive()


def test_every_close_waits_for_the_end(thread, beside):
    """A second thread that closes returns when everything is closed."""
    shared = thread.run(_itself)
    is_closing, may_end = threading.Event(), threading.Event()

    async def slow():
        is_closing.set()
        may_end.wait(TIMEOUT)
        shared.events.append("closed")

    shared.close = slow
    first = beside.submit(thread.close)
    assert is_closing.wait(TIMEOUT)
    second = beside.submit(lambda: (thread.close(), list(shared.events)))
    may_end.set()

    assert ["closed"] == second.result(TIMEOUT)[1]
    first.result(TIMEOUT)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_call_that_races_with_close_is_refused(thread, made, has_ended):
    """A call may find the thread open, and be too late for `close` to cancel it."""

    class Closing(set):
        """A set of calls that another thread closes before a call is added."""

        def add(self, call):
            if has_ended:
                thread.close()
            else:
                thread._closed = True
            super().add(call)

    thread._calls = Closing()
    with pytest.raises(IllegalStateError, match=CLOSED):
        thread.run(_itself)
    assert [] == made


# --- other threads, and forked processes


def test_a_call_waits_for_its_turn_no_longer_than_its_timeout(thread, beside):
    """It never begins, and the call that lasts so long goes on."""
    endless = _Endless()
    answer = beside.submit(thread.run, endless)
    endless.has_begun.wait(TIMEOUT)
    with pytest.raises(KafkaTimeoutError, match=r"calls of other threads .* 0\.01 s"):
        thread.run(_itself, 0.01)
    assert not answer.done()
    thread.close()
    with pytest.raises(IllegalStateError, match=CLOSED):
        answer.result(TIMEOUT)


def test_a_call_that_has_begun_may_end_after_its_timeout(thread):
    """It ends by itself, with a better error than that of the one who waits."""

    async def slow(_shared):
        await asyncio.sleep(0.05)
        return "slow"

    assert "slow" == thread.run(slow, 0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_can_only_close_it(thread):
    """The thread and the connections remain those of the process that has created them."""
    shared = thread.run(_itself)

    def use():
        thread.close()
        with pytest.raises(IllegalStateError) as refused:
            thread.run(_itself)
        return str(refused.value)

    assert "the admin client was created in another process" in call_in_fork(use)
    assert shared is thread.run(_itself)
    assert [] == shared.events
