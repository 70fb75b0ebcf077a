"""Callbacks are queued for the network thread from any thread, and are called in order."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.producer.batch.interrupts import AppendLock
from spark_kafka_sink.producer.batch.produce_result import CallbackQueue
from spark_kafka_sink.producer.records.record_gatherer import RecordGatherer
from tests.support.producer.gatherer_harness import NOW_MS, GathererHarness, acknowledge

IN_TIME = 10


def _queue() -> tuple[CallbackQueue, list]:
    """Build a queue and the list of the functions that it schedules on the network thread."""
    scheduled: list = []
    return CallbackQueue(scheduled.append), scheduled


def test_jobs_run_in_order_on_the_network_thread():
    """Adding a job never runs it, and one turn is scheduled for any number of jobs."""
    queue, scheduled = _queue()
    ran = []
    for number in range(3):
        queue.add(partial(ran.append, number))
    assert ([], [queue.run]) == (ran, scheduled)
    queue.run()
    assert [0, 1, 2] == ran


def test_jobs_added_by_a_job_run_in_a_later_turn():
    """A job that a job adds runs in a later turn, so endless callbacks cannot block the thread."""
    queue, scheduled = _queue()
    ran = []
    queue.add(lambda: queue.add(partial(ran.append, "added")))
    queue.run()
    assert ([], 2) == (ran, len(scheduled))
    queue.run()
    assert ["added"] == ran


def test_the_end_runs_all_remaining_jobs():
    """The end runs all remaining jobs, including those that they add."""
    queue, _ = _queue()
    ran = []
    queue.add(lambda: queue.add(partial(ran.append, "added")))
    queue.end()
    assert ["added"] == ran


def test_after_the_end_the_adding_thread_runs_the_jobs():
    """After the end, adding threads run the jobs with `run_rest`, which before does nothing."""
    queue, _ = _queue()
    ran = []
    queue.add(partial(ran.append, "before"))
    queue.run_rest()
    assert [] == ran
    queue.end()
    queue.add(partial(ran.append, "after"))
    assert ["before"] == ran
    queue.run_rest()
    assert ["before", "after"] == ran


def test_a_wait_ends_when_the_callbacks_have_run():
    """A flush waits until queued callbacks have run, and does not wait if none is queued."""
    queue, _ = _queue()
    assert queue.wait(0)
    ran = []
    queue.add(partial(ran.append, "called"))
    assert not queue.wait(0)
    assert [] == ran
    queue.end()
    assert queue.wait(0)
    assert ["called"] == ran


def test_an_interrupt_while_a_turn_is_scheduled_loses_no_callback():
    """If Ctrl-C strikes inside of `add`, the next job schedules a turn for both."""
    scheduled: list = []
    interrupts = [KeyboardInterrupt()]

    def schedule(run) -> None:
        if interrupts:
            raise interrupts.pop()
        scheduled.append(run)

    queue = CallbackQueue(schedule)
    ran: list = []
    with pytest.raises(KeyboardInterrupt):
        queue.add(partial(ran.append, "interrupted"))
    queue.add(partial(ran.append, "next"))
    assert [queue.run] == scheduled
    queue.run()
    assert ["interrupted", "next"] == ran


def test_no_callback_is_called_while_records_are_written():
    """A record that fails before it reaches a batch is reported after the batches are unlocked."""
    harness = GathererHarness(
        **{"buffer.memory": 2_000, "max.request.size": 1_000, "batch.size": 600}
    )
    queue, scheduled = _queue()
    harness.gatherer = _with_callbacks(harness, queue)
    called = []
    harness.stage(bytes(1_500), callback=called.append)
    harness.stage(b"v", callback=called.append)
    harness.gatherer.write_staged()
    assert ([], [queue.run]) == (called, scheduled)
    queue.run()
    assert [RecordTooLargeError] == [type(future.exception(0)) for future in called]


def _with_callbacks(harness: GathererHarness, queue: CallbackQueue) -> RecordGatherer:
    return RecordGatherer(
        builder=harness.builder,
        open_batches=harness.gatherer._open,
        core=harness,
        wall_clock_ms=lambda: NOW_MS,
        clock=lambda: harness.now,
        linger=None,
        max_block=harness.config.max_block_ms / 1000,
        callbacks=queue,
    )


# --- futures and the writing thread


def _two_partitions(**settings: object) -> GathererHarness:
    """Build a gatherer with memory for two small batches."""
    sizes = {"buffer.memory": 2_048, "max.request.size": 1_000, "batch.size": 600}
    return GathererHarness(partitions=2, **sizes, **settings)


def _stage_two_and_one(harness: GathererHarness) -> list:
    """Stage two records of partition 0, each filling a batch, and one of partition 1."""
    return [harness.stage(bytes(450), partition=number) for number in (0, 0, 1)]


def test_a_future_is_done_while_another_record_waits_for_memory():
    """An acknowledged record's future is done while the rest of its chunk waits for memory."""
    harness = _two_partitions()
    first, second, third = _stage_two_and_one(harness)
    harness.pool.reserve(harness.pool.available_bytes - 1_200)
    seen = []

    def wait(size: int, timeout: float) -> bool:
        acknowledge(harness.batches[0], 7)
        seen.append((first.done(), first.result(0).offset, second.done(), third.done()))
        return False

    harness.pool.wait_for = wait
    harness.gatherer.write_staged()
    assert (True, 7, False, False) == seen[0]


def test_waiting_for_a_record_does_not_wait_for_the_memory_of_another():
    """The thread writes the chunk up to its own record, and the rest stays staged."""
    harness = _two_partitions()
    first, *others = _stage_two_and_one(harness)
    harness.pool.reserve(harness.pool.available_bytes - 1_200)
    waits = []
    harness.pool.wait_for = lambda size, timeout: waits.append(timeout)

    def enqueue(batch) -> None:
        harness.batches.append(batch)
        acknowledge(batch)

    harness.enqueue = enqueue
    assert 0 == first.result(IN_TIME).offset
    assert {0} == set(waits)
    assert [False, False] == [future.done() for future in others]
    assert 2 == len(harness.gatherer.staged)


def test_a_thread_that_waits_for_the_lock_wakes_when_its_record_is_in_a_batch():
    """A waiting thread wakes when its record is in a batch, not when the writer is done."""
    lock = AppendLock(lambda: None)
    lock.acquire()
    placed = threading.Event()
    got = []
    waiting = threading.Thread(
        target=lambda: got.append(lock.acquire_unless(placed.is_set, 60)), daemon=True
    )
    waiting.start()
    while not lock._turns:
        pass
    placed.set()
    lock.note_progress()
    waiting.join(IN_TIME)
    assert [False] == got
    lock.release()
    assert lock.acquire_unless(lambda: False, 0)
