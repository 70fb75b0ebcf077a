"""The thread that owns the event loop: its start, its end, and the work submitted to it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, suppress

import pytest

from spark_kafka_sink.errors import IllegalStateError, KafkaTimeoutError
from spark_kafka_sink.network import network_thread
from spark_kafka_sink.network.network_thread import NetworkThread

#: Seconds that nothing here takes, even on a busy machine.
TIMEOUT = 60
#: Coroutines submitted to a thread that is ending; a slow one accepts all of them.
MANY = 1_000


def _thread(main) -> NetworkThread:
    return NetworkThread(
        main,
        name="a client's thread",
        closed=lambda: IllegalStateError("the client was closed by another thread"),
        busy="because a callback kept it busy",
    )


class _Serving:
    """A network thread that runs until `end` is called."""

    def __init__(self) -> None:
        self.thread = _thread(self._main)
        self.thread.start(ExitStack())

    async def _main(self) -> None:
        self.ended = asyncio.Event()
        self.thread.started()
        await self.ended.wait()

    def end(self) -> None:
        self.thread.call_soon(self.ended.set)
        self.thread.join(TIMEOUT)


@pytest.fixture
def serving():
    serving = _Serving()
    yield serving
    serving.end()


async def _current_thread() -> threading.Thread:
    return threading.current_thread()


async def _broken() -> None:
    raise ZeroDivisionError


def test_a_coroutine_runs_on_the_thread(serving):
    """The coroutine runs on the thread, and its result is returned."""
    assert "a client's thread" == serving.thread.run(_current_thread(), TIMEOUT).name
    assert not serving.thread.is_current
    assert serving.thread.is_alive


def test_the_thread_does_not_keep_the_process_alive(serving):
    """The thread is a daemon, so a process that forgets to close its client can still exit."""
    assert serving.thread.run(_current_thread(), TIMEOUT).daemon


def test_the_error_of_a_coroutine_is_raised_in_the_caller(serving):
    """The error of a coroutine is raised in the caller and does not end the thread."""
    with pytest.raises(ZeroDivisionError):
        serving.thread.run(_broken(), TIMEOUT)
    assert serving.thread.is_alive


def test_code_can_check_whether_it_runs_on_the_thread(serving):
    """Code that must not wait can check whether it runs on the network thread."""
    called = threading.Event()

    def note() -> None:
        assert serving.thread.is_current
        called.set()

    serving.thread.call_soon(note)
    assert called.wait(TIMEOUT)


def test_coroutines_raise_an_error_after_the_end_of_the_thread(serving):
    """After the end of the thread calls are ignored, and coroutines raise an error."""
    serving.end()
    assert not serving.thread.is_alive
    serving.thread.call_soon(lambda: pytest.fail("the loop is closed"))
    with pytest.raises(IllegalStateError, match="closed by another thread"):
        serving.thread.run(_current_thread(), TIMEOUT)


def test_the_thread_can_stop_itself(serving):
    """A client that is closed on its own thread, by the garbage collector, ends without waiting."""
    serving.thread.call_soon(serving.thread.stop)
    assert serving.thread.join(TIMEOUT)


def test_a_submitted_coroutine_runs_while_the_caller_goes_on(serving):
    """The future of a submitted coroutine has its result; after the thread's end, it is refused."""
    assert "a client's thread" == serving.thread.submit(_current_thread()).result(TIMEOUT).name
    serving.end()
    with pytest.raises(IllegalStateError, match="closed by another thread"):
        serving.thread.submit(_current_thread())


def test_a_coroutine_overtaken_by_the_end_raises_an_error(serving):
    """The caller gets an error, not a CancelledError, if the thread ends before the answer."""
    started = threading.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    def end() -> None:
        started.wait(TIMEOUT)
        serving.thread.call_soon(serving.ended.set)

    ender = threading.Thread(target=end, daemon=True)
    ender.start()
    with pytest.raises(IllegalStateError, match="closed by another thread"):
        serving.thread.run(endless(), TIMEOUT)
    ender.join()


def test_what_was_submitted_as_the_thread_ends_is_answered_at_once(caplog):
    """No future waits for ever: each is cancelled, or has the error of a closed client."""
    futures = []

    async def main() -> None:
        thread.started()

    async def endless() -> None:
        await asyncio.Event().wait()

    for _ in range(200):
        thread = _thread(main)
        with suppress(IllegalStateError), ExitStack() as stack:
            thread.start(stack)
            # Not without end: a paused thread would have millions to cancel.
            for _ in range(MANY):
                futures.append(thread.submit(endless()))  # noqa: PERF401  a call may raise
        assert thread.join(TIMEOUT)

    assert [] == [future for future in futures if not future.done()]
    assert [] == caplog.messages


class _Endless:
    """A coroutine that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_a_coroutine_is_cancelled_after_its_timeout(serving, monkeypatch):
    """The coroutine is cancelled after its timeout, and the thread continues."""
    monkeypatch.setattr(network_thread, "ANSWER_TIMEOUT", 0.0)
    endless = _Endless()
    with pytest.raises(KafkaTimeoutError):
        serving.thread.run(endless.run(), 0.01)
    assert endless.cancelled.wait(TIMEOUT)
    assert serving.thread.is_alive


def test_a_pause_of_the_process_does_not_time_out_the_thread(serving, monkeypatch):
    """If a pause uses up the timeout, the result still has ANSWER_TIMEOUT to arrive."""
    real_wait, released, waited = network_thread.wait, asyncio.Event(), []

    def wait(futures, timeout):
        waited.append(timeout)
        if len(waited) == 1:
            return set(), set(futures)
        serving.thread.call_soon(released.set)
        return real_wait(futures, 30)

    monkeypatch.setattr(network_thread, "wait", wait)
    assert serving.thread.run(released.wait(), 60)
    assert [60, network_thread.ANSWER_TIMEOUT] == waited


def test_a_thread_blocked_by_a_callback_times_out_the_caller(serving):
    """The caller gets a timeout that names the cause, and its coroutine is cancelled."""
    may_continue = threading.Event()
    endless = _Endless()
    serving.thread.call_soon(may_continue.wait)
    try:
        with pytest.raises(KafkaTimeoutError, match="a callback kept it busy"):
            serving.thread.run(endless.run(), 0.0)
    finally:
        may_continue.set()
    # The loop starts the coroutine, which is cancelled at its first wait.
    assert endless.cancelled.wait(TIMEOUT)


def test_a_thread_that_dies_during_its_start_leaves_no_thread_waiting(monkeypatch):
    """If the thread dies during its start, `start` still returns."""
    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)

    async def dies() -> None:
        raise ZeroDivisionError

    thread = _thread(dies)
    thread.start(ExitStack())
    thread.join(TIMEOUT)
    assert not thread.is_alive
    assert [ZeroDivisionError] == [hook.exc_type for hook in died]


# --- an interrupted start


class _Interrupted:
    """A wrapper of a function that raises KeyboardInterrupt before or after calling it."""

    def __init__(self, function, *, is_called):
        self._function, self._is_called = function, is_called

    def __call__(self):
        if self._is_called:
            self._function()
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_called", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "where", ["_thread.start", "_started.wait"], ids=["its beginning", "its answer"]
)
def test_an_interrupted_start_leaves_no_thread_running(monkeypatch, where, is_called):
    """Ctrl-C may strike before or after the thread has started, or while `start` waits for it."""

    async def endless() -> None:
        thread.started()
        await asyncio.Event().wait()

    thread = _thread(endless)
    part, _, name = where.partition(".")
    function = getattr(getattr(thread, part), name)
    monkeypatch.setattr(getattr(thread, part), name, _Interrupted(function, is_called=is_called))
    with pytest.raises(KeyboardInterrupt), ExitStack() as undo:
        thread.start(undo)
    assert not thread.is_alive
    assert thread._loop.is_closed()


def test_a_thread_that_starts_after_it_was_stopped_does_nothing(monkeypatch):
    """A thread that starts late, after it was stopped, runs nothing."""
    ran = []

    async def main() -> None:
        ran.append(None)

    thread = _thread(main)
    begin = thread._thread.start
    monkeypatch.setattr(thread._thread, "start", _Interrupted(begin, is_called=False))
    with pytest.raises(KeyboardInterrupt), ExitStack() as undo:
        thread.start(undo)
    begin()
    assert thread.join(TIMEOUT)
    assert [] == ran
