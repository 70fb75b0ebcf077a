"""Work that runs outside the network thread."""

from __future__ import annotations

import threading

import pytest

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer.batch import batch_compression
from spark_kafka_sink.producer.batch.batch_compression import WorkerThread, WorkOutcome

TIMEOUT = 120


class _NetworkThread:
    """A network thread that holds its calls until `run`."""

    def __init__(self) -> None:
        self.calls = []
        self._has_call = threading.Semaphore(0)

    def call_soon(self, call) -> None:
        self.calls.append(call)
        self._has_call.release()

    def run(self, count: int) -> None:
        for _ in range(count):
            assert self._has_call.acquire(timeout=TIMEOUT)
            self.calls.pop(0)()


def test_jobs_run_in_order_on_another_thread():
    """Each outcome is passed to its callback on the network thread, which runs no job itself."""
    network, outcomes, threads = _NetworkThread(), [], set()
    worker = WorkerThread(network.call_soon, client_id="c")
    for number in range(3):
        worker.run_aside(
            lambda number=number: (threads.add(threading.current_thread()), number)[1],
            outcomes.append,
        )
    network.run(3)
    worker.close()
    assert [WorkOutcome(number) for number in range(3)] == outcomes
    # A process that forgets to close its producer can still exit.
    assert [("kafka-producer-worker-thread | c", True)] == [
        (thread.name, thread.daemon) for thread in threads
    ]


@pytest.mark.parametrize("exits", [True, False])
def test_a_job_needs_no_thread_at_the_end_of_the_process(monkeypatch, exits):
    """Python 3.12 and later start none then; at any other time it is an error that none starts."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(batch_compression, "is_exiting", lambda: exits)
    network, outcomes = _NetworkThread(), []
    worker = WorkerThread(network.call_soon, client_id="c")
    if exits:
        worker.run_aside(lambda: 7, outcomes.append)
        network.run(1)
        assert [WorkOutcome(7)] == outcomes
    else:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.run_aside(lambda: 7, outcomes.append)
    worker.close()


def test_an_error_in_a_job_is_its_outcome():
    """An error in a job does not end the thread, and the next job runs."""
    network, outcomes = _NetworkThread(), []
    worker = WorkerThread(network.call_soon, client_id="c")
    worker.run_aside(lambda: 1 / 0, outcomes.append)
    worker.run_aside(lambda: 1, outcomes.append)
    network.run(2)
    worker.close()
    assert [ZeroDivisionError, type(None)] == [type(outcome.error) for outcome in outcomes]


def test_closing_waits_only_for_the_running_job():
    """Jobs that have not started do not run after a close, and their callbacks get an error."""
    network, outcomes, started, may_continue = (
        _NetworkThread(),
        [],
        threading.Event(),
        threading.Event(),
    )
    worker = WorkerThread(network.call_soon, client_id="c")
    worker.run_aside(lambda: (started.set(), may_continue.wait(TIMEOUT))[1], outcomes.append)
    worker.run_aside(lambda: "not any more", outcomes.append)
    assert started.wait(TIMEOUT)
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not worker._is_closing:
        closing.join(0.001)
    may_continue.set()
    closing.join(TIMEOUT)
    network.run(2)
    assert [WorkOutcome(result=True), (None, ProducerClosedError)] == [
        outcomes[0],
        (outcomes[1].result, type(outcomes[1].error)),
    ]
    assert not worker._thread.is_alive()


def test_no_thread_is_started_without_a_job():
    """A producer that compresses nothing has no such thread, and can be closed."""
    worker = WorkerThread(_NetworkThread().call_soon, client_id="c")
    worker.close()
    assert worker._thread is None


def test_an_error_starting_the_thread_is_raised(monkeypatch):
    """If the system has no thread left, the call raises an error, and closing still works."""
    worker = WorkerThread(_NetworkThread().call_soon, client_id="c")
    with monkeypatch.context() as short:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        short.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.run_aside(lambda: None, lambda _: None)
    worker.close()
