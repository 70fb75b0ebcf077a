"""An interrupt, such as Ctrl-C, at any point while records are gathered."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import spark_kafka_sink.producer
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import KafkaError, TransactionAbortableError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.batch.produce_result import CallbackQueue, ProduceResult
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.producer.records.batch_builder import BatchBuilder
from spark_kafka_sink.producer.threaded_core import ThreadedCore
from spark_kafka_sink.spark.worker import without_collector
from tests.support.faults.interrupts import interrupted_anew
from tests.support.producer.gatherer_harness import GathererHarness, acknowledge, held_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from spark_kafka_sink.producer.records.record_gatherer import RecordGatherer

SOURCES = str(Path(spark_kafka_sink.producer.__file__).parent)
#: Between a lock and the code that releases it Python leaves a few unprotected moments.
LOCKING = {
    "_forget_weight",
    "acquire",
    "acquire_unless",
    "call_when_done",
    "release",
    "weigh",
}
RECORDS = 6


def _check_memory(harness: GathererHarness, struck: str) -> None:
    """Check that batches own all used memory, unless the producer ended.

    An interrupt that strikes while memory is given back is not checked.
    """
    for batch in harness.batches:
        batch.free(harness.pool)
    harness.builder.abort_open(KafkaError("the test is over"))
    gives_back = ("_discard_open", "__contains__")
    is_given_back = struck.startswith("buffer_pool.py") or struck.endswith(gives_back)
    if not (harness.broken or is_given_back):
        assert harness.pool.total_bytes == harness.pool.available_bytes, struck


@contextmanager
def _interrupted_at(line: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt at the n-th line run in the producer, and yield where that was."""
    count = itertools.count(1)
    struck: list[str] = []

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCES) or code.co_name in LOCKING:
            return None
        if event == "line" and next(count) == line:
            struck.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    # The finalizers of what other tests have left would be calls, too.
    with without_collector():
        sys.settrace(trace)
        try:
            yield struck
        except KeyboardInterrupt:
            assert struck
        finally:
            sys.settrace(before)


def _interrupt(call: str, arguments: tuple[object, ...], line: int) -> str | None:
    """Interrupt a call of the gatherer at its n-th line, and return where, or None past its end."""
    called: list[object] = []
    more = {"headers": [("name", b"value")], "callback": called.append}
    queue = CallbackQueue(lambda _: None)
    harness = GathererHarness(callbacks=queue, **{"linger.ms": 5_000, "batch.size": 600})
    futures = [harness.stage(b"%0100d" % n, **more) for n in range(RECORDS)]
    harness.gatherer.write_staged()
    futures += [harness.stage(b"%0100d" % n, key=b"k", **more) for n in range(RECORDS)]
    with _interrupted_at(line) as struck:
        getattr(harness.gatherer, call)(*arguments)
    if not struck:
        return None
    if harness.gatherer._lock.is_held_here:
        # The lines around the lock include those of the `finally` that releases it.
        assert struck[0].startswith("interrupts.py"), struck
        return struck[0]
    for batch in harness.batches:
        if not batch.result.has_ended:
            acknowledge(batch)
    if harness.broken:
        assert all(future.done() for future in futures), struck
    else:
        harness.gatherer.write_staged()
        harness.gatherer.close_batches()
        for batch in harness.batches:
            if not batch.result.has_ended:
                acknowledge(batch)
        ended = [future.done() if arguments else future.exception(0) is None for future in futures]
        assert all(ended), struck
    queue.end()
    assert Counter(futures) == Counter(called), struck
    _check_memory(harness, struck[0])
    return struck[0]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("write_staged", ()), ("close_batches", ()), ("abort", (KafkaError("aborted"),))],
)
def test_an_interrupt_at_any_line_leaves_no_record_and_no_callback_pending(call, arguments):
    """Nothing has happened yet, or all records end; each callback is called once."""
    places = (_interrupt(call, arguments, line) for line in itertools.count(1))
    assert len(list(itertools.takewhile(bool, places))) > 50


def _begin_nothing() -> None:
    """Do nothing, in place of beginning a transaction."""


HOLDERS: dict[str, Callable[[RecordGatherer], object]] = {
    "close_batches": lambda gatherer: gatherer.close_batches(),
    "end_transaction": lambda gatherer: gatherer.end_transaction(_begin_nothing),
    "begin_transaction": lambda it: it.begin_transaction(_begin_nothing, KafkaError("late")),
    "abort": lambda gatherer: gatherer.abort(KafkaError("aborted")),
}


@pytest.mark.parametrize("call", HOLDERS.values(), ids=HOLDERS)
def test_no_call_leaves_the_lock_held_whenever_it_is_interrupted(call):
    """Another thread can write, although the error of the interrupt still refers to all frames."""
    seen: set[Any] = set()
    struck: KeyboardInterrupt | None = KeyboardInterrupt()
    while struck is not None:
        harness = GathererHarness(**{"linger.ms": 5_000})
        harness.stage(b"v")
        struck = interrupted_anew(seen, partial(call, harness.gatherer))
        assert not harness.gatherer._lock.is_held_here, repr(struck)
    assert len(seen) > 5


def _interrupt_failure(call: str, line: int) -> bool:
    """Interrupt at the n-th line a call that fails records; return whether it was interrupted."""
    called: list[object] = []
    queue = CallbackQueue(lambda _: None)
    harness = GathererHarness(callbacks=queue, **{"linger.ms": 5_000})
    futures = [harness.stage(b"v", callback=called.append) for _ in range(3)]
    held = harness.hold_memory()
    calls: dict[str, Callable[[], object]] = {
        "write_for": lambda: harness.gatherer.write_for(futures[-1], 0.0),
        "begin_transaction": lambda: harness.gatherer.begin_transaction(
            _begin_nothing, KafkaError("late")
        ),
    }
    with _interrupted_at(line) as struck:
        calls[call]()
    if struck and harness.gatherer._lock.is_held_here:
        assert struck[0].startswith("interrupts.py"), struck
        return True
    harness.pool.release(held)
    harness.gatherer.close_batches()
    for batch in harness.batches:
        acknowledge(batch)
    queue.end()
    assert Counter(futures) == Counter(called), struck
    return bool(struck)


@pytest.mark.parametrize("call", ["write_for", "begin_transaction"])
def test_an_interrupt_while_records_fail_leaves_none_pending(call):
    """Each record still ends, and its callback is called once."""
    places = (_interrupt_failure(call, line) for line in itertools.count(1))
    assert len(list(itertools.takewhile(bool, places))) > 10


def _interrupt_send(line: int, *, by_kernels: bool) -> str | None:
    """Interrupt at the n-th line a call that sends a single record at once; as `_interrupt`."""
    harness = GathererHarness(**{"linger.ms": 0})
    if by_kernels:
        harness.builder.fill_single = lambda *_, **__: None
    called: list[object] = []
    with held_elsewhere(harness.gatherer._lock):
        future = harness.stage(b"v", callback=called.append)
    harness.gatherer.staged_since, harness.wakeups = None, 0
    with _interrupted_at(line) as struck:
        harness.gatherer.note_staged()
    if not struck:
        return None
    if harness.gatherer._lock.is_held_here:
        assert struck[0].startswith("interrupts.py"), struck
        return struck[0]
    if not harness.broken:
        # No later record wakes the network thread for one that was noted.
        is_noted = harness.gatherer.staged_since is not None
        assert harness.wakeups or not is_noted, struck
        harness.gatherer.close_batches()
    for batch in harness.batches:
        if not batch.result.has_ended:
            acknowledge(batch)
    assert future.done(), struck
    assert [future] == called, struck
    _check_memory(harness, struck[0])
    return struck[0]


@pytest.mark.parametrize("by_kernels", [False, True])
def test_an_interrupt_leaves_no_record_pending_that_is_sent_at_once(by_kernels):
    """After an interrupt a single record is still staged, or it ends."""
    lines = itertools.takewhile(
        bool, (_interrupt_send(line, by_kernels=by_kernels) for line in itertools.count(1))
    )
    assert len(list(lines)) > 50


class _InterruptedLock:
    """A lock of the C library that Ctrl-C interrupts once it is taken, before Python goes on."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def acquire(self, **timeout: float) -> bool:
        assert self._lock.acquire(**timeout)
        raise KeyboardInterrupt


def test_an_interrupt_right_after_the_lock_was_taken_leaves_it_free():
    """A lock that was taken by an interrupted call is free for other threads."""
    harness = GathererHarness(**{"linger.ms": 0})
    lock = harness.gatherer._lock
    inner = lock._lock
    lock._lock = _InterruptedLock(inner)
    with pytest.raises(KeyboardInterrupt):
        harness.stage(b"v")
    lock._lock = inner
    assert not lock.is_held_here
    with held_elsewhere(lock):
        assert not lock.acquire(0)


USES = {
    "send": lambda gatherer: gatherer.note_staged(),
    "write_staged": lambda gatherer: gatherer.write_staged(),
    "write_without_waiting": lambda gatherer: gatherer.write_without_waiting(),
    "close_batches": lambda gatherer: gatherer.close_batches(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_interrupt_before_the_release_is_signalled_leaves_the_lock_free(monkeypatch, use):
    """No Python function, at whose start Ctrl-C may strike, comes before the lock is released."""
    harness = GathererHarness(**{"linger.ms": 0})
    lock = harness.gatherer._lock
    with held_elsewhere(lock):
        harness.stage(b"v")
    harness.gatherer.staged_since = None

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "signal_release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        use(harness.gatherer)
    assert (False, False) == (lock.is_held, lock.is_held_here)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", ["fill_single", "enqueue"])
def test_a_transaction_that_has_lost_a_record_cannot_be_committed(monkeypatch, step, error):
    """Whether the record was in a batch already or not, the transaction can only be aborted."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with DevBroker(topics={"t": 1}) as broker:
        producer = KafkaProducer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "orders.1",
                "linger.ms": 0,
            }
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"kept").result(120)
        with monkeypatch.context() as interrupted:
            interrupted.setattr(BatchBuilder, step, fail)
            with pytest.raises(error):
                producer.send("t", b"lost")
        with pytest.raises(TransactionAbortableError, match="can only be aborted"):
            producer.commit_transaction()
        producer.close(0)


def test_an_interrupted_constructor_leaves_no_thread_running(monkeypatch):
    """An interrupt during construction stops the thread, because no caller could close it."""
    threads = []
    real_start = ThreadedCore.start

    def start(core: ThreadedCore, **more: Any) -> None:
        real_start(core, **more)
        threads.append(core._thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadedCore, "start", start)
    with pytest.raises(KeyboardInterrupt):
        KafkaProducer({"bootstrap.servers": "127.0.0.1:9"})
    assert [False] == [thread.is_alive for thread in threads]


def test_an_interrupted_wake_up_does_not_suppress_the_next(monkeypatch):
    """An interrupted wake-up of the network thread does not suppress the next one."""
    producer = KafkaProducer({"bootstrap.servers": "127.0.0.1:9"})
    core = producer._core
    with monkeypatch.context() as interrupted:

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        interrupted.setattr(core._thread, "call_soon", interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.wake_network_thread()
    calls: list[object] = []
    monkeypatch.setattr(core._thread, "call_soon", calls.append)
    core.wake_network_thread()
    monkeypatch.undo()
    assert [core._wakeup] == calls
    producer.close(0)


def _end_interrupted_at(line: int) -> bool:
    """Fail a batch with an interrupt at the n-th line, and return whether it was raised."""
    queue = CallbackQueue(lambda _: None)
    result = ProduceResult(TopicPartition("t", 0), queue.add)
    called: list[bool] = []
    result.call_when_done(0, lambda: called.append(result.is_done(0)))
    error = KafkaError("lost")
    with _interrupted_at(line) as struck:
        result.fail(error)
    assert not called, struck
    if not result.has_ended:
        # The thread that ends batches would end this one again.
        result.fail(error)
    queue.end()
    assert [True] == called, struck
    assert result.wait(0, timeout=0), struck
    return bool(struck)


def test_an_interrupt_while_a_batch_ends_loses_no_callback():
    """After an interrupt the batch has not ended yet, or its callbacks are queued."""
    lines = itertools.takewhile(bool, (_end_interrupted_at(line) for line in itertools.count(1)))
    assert len(list(lines)) > 5


def _add_interrupted_at(line: int) -> bool:
    """Add a job with an interrupt at the n-th line, and return whether it was raised."""
    turns: list[Callable[[], None]] = []
    queue = CallbackQueue(turns.append)
    called: list[bool] = []
    with _interrupted_at(line) as struck:
        queue.add(lambda: called.append(True))
    was_queued = bool(queue._jobs)
    for turn in turns:
        turn()
    assert [True] * was_queued == called, struck
    return bool(struck)


def test_an_interrupt_while_a_callback_is_queued_still_schedules_a_turn():
    """Every queued callback has a turn scheduled, since no later one may come to schedule it."""
    lines = itertools.takewhile(bool, (_add_interrupted_at(line) for line in itertools.count(1)))
    assert len(list(lines)) > 3


def test_a_callback_that_runs_early_finds_its_batch_ended():
    """If the network thread is quicker, the callback already finds the batch ended."""
    called: list[bool] = []
    result = ProduceResult(TopicPartition("t", 0), lambda settle: settle())
    result.call_when_done(0, lambda: called.append(result.is_done(0)))
    result.complete(7)
    result.call_when_done(0, lambda: called.append(result.is_settled))
    assert [True, True] == called
