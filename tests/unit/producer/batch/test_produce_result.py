"""How threads and callbacks learn of a batch's end, whenever they start to wait for it."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.model import UNKNOWN_OFFSET, TopicPartition
from spark_kafka_sink.producer.batch.produce_result import (
    NO_LOG_APPEND_TIME,
    ProduceResult,
    RefusedRecord,
)

PLACE = TopicPartition("t", 1)
REFUSED = DeliveryError("refused")


@pytest.fixture
def result() -> ProduceResult:
    return ProduceResult(PLACE)


def _waiting(result: ProduceResult, index: int = 0) -> threading.Thread:
    """Start a thread that waits for a record, and return once it waits."""
    waits = threading.Thread(target=result.wait, args=(index, 120), daemon=True)
    waits.start()
    pause = threading.Event()
    assert any(result._waiters or pause.wait(0.001) for _ in range(60_000))
    return waits


def _joined(thread: threading.Thread) -> bool:
    thread.join(120)
    return not thread.is_alive()


# --- the end


def test_an_acknowledged_batch_has_the_offset_of_each_record(result):
    """Offsets count from the base offset of the batch."""
    assert not result.is_done(0)
    result.complete(100, 7)
    assert result.is_done(0)
    assert [100, 109] == [result.offset(0), result.offset(9)]
    assert 7 == result.log_append_time_ms
    assert result.error_of(0) is None


def test_offsets_are_unknown_if_the_broker_returns_none(result):
    """With acks=0 the offset of every record is unknown, not only the first one's."""
    result.complete(UNKNOWN_OFFSET)
    assert [UNKNOWN_OFFSET] * 2 == [result.offset(0), result.offset(9)]
    assert NO_LOG_APPEND_TIME == result.log_append_time_ms


def test_every_record_of_a_failed_batch_has_its_error(result):
    """If no record is blamed, all have the batch's error."""
    result.fail(REFUSED)
    assert result.is_done(5)
    assert REFUSED is result.error_of(0)
    assert REFUSED is result.error_of(5)


def test_a_rejected_record_has_the_brokers_message(result):
    """The record at fault gets the broker's message, and the others learn of it (KIP-467)."""
    result.fail(REFUSED, {1: RefusedRecord("has no key")})
    messages = [str(result.error_of(index)) for index in range(2)]
    assert messages[1].startswith("t-1: the broker rejected this record: has no key. Correct it")
    assert messages[0].startswith(
        "t-1: this record was not written because the broker rejected other"
    )
    assert [REFUSED, REFUSED] == [result.error_of(index).__cause__ for index in range(2)]


# --- waiting


def test_an_acknowledgement_wakes_waiting_threads(result):
    """A wait ends with the acknowledgement, and later waits return at once."""
    waits = _waiting(result)
    result.complete(0)
    assert _joined(waits)
    assert result.wait(0, timeout=0)


def test_a_failure_wakes_waiting_threads(result):
    """A wait ends with an error as well."""
    waits = _waiting(result)
    result.fail(REFUSED)
    assert _joined(waits)


def test_the_end_wakes_every_waiting_thread(result):
    """Each thread waits on its own, also one for which another record of the batch is of use."""
    threads = [_waiting(result)]
    threads += [
        threading.Thread(target=result.wait, args=(index, 120), daemon=True) for index in range(2)
    ]
    for thread in threads[1:]:
        thread.start()
    result.complete(0)
    assert [True] * 3 == [_joined(thread) for thread in threads]


def test_a_wait_that_times_out_returns_false(result):
    """Waiting returns False if the batch has not ended in time, and leaves nothing behind."""
    assert not result.wait(0, timeout=0)
    assert not result.wait(0, timeout=-1)
    assert not result.wait_for_all(deadline=1.0, clock=lambda: 1.0)
    assert () == result._waiters


def test_a_split_wakes_waiting_threads(result):
    """A split wakes waiting threads, although no record has ended."""
    waits = _waiting(result)
    result.divide([1, 1])
    assert _joined(waits)
    assert not result.is_done(0)


def test_waiting_for_all_includes_the_parts_of_a_split_batch(result):
    """A split batch has ended when each of its parts has."""
    first, second = result.divide([2, 3])
    first.complete(10)
    assert not result.wait_for_all(deadline=1.0, clock=lambda: 1.0)
    second.fail(REFUSED)
    assert result.wait_for_all(deadline=1.0, clock=lambda: 1.0)


def test_waiting_for_all_continues_after_a_split(result):
    """A thread that waits during a split continues with the parts."""
    waits = threading.Thread(target=result.wait_for_all, args=(None, lambda: 0.0), daemon=True)
    waits.start()
    for part in result.divide([1, 1]):
        assert waits.is_alive()
        part.complete(0)
    assert _joined(waits)


# --- callbacks


@pytest.mark.parametrize("moment", ["before", "after the division", "after the end"])
def test_a_callback_runs_once_whenever_it_is_added(result, moment):
    """A callback runs once if it is added before the end, after a split, or after the end."""
    calls = []
    callback = partial(calls.append, "done")
    if moment == "before":
        result.call_when_done(1, callback)
    first, second = result.divide([1, 1])
    if moment == "after the division":
        result.call_when_done(1, callback)
    first.complete(0)
    assert [] == calls
    second.complete(1)
    if moment == "after the end":
        result.call_when_done(1, callback)
    assert ["done"] == calls


def test_a_callback_can_be_added_during_a_split(result, monkeypatch):
    """A callback added while its batch is split is passed on to the record's part."""
    calls = []
    parts = []

    class Moment:
        """A lock that splits the batch just before it is acquired."""

        def __enter__(self):
            monkeypatch.undo()
            parts.extend(result.divide([1, 1]))

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("spark_kafka_sink.producer.batch.produce_result._moment", Moment())
    result.call_when_done(1, partial(calls.append, "done"))
    parts[1].complete(0)
    assert ["done"] == calls


def test_a_callback_added_while_the_batch_ends_runs_on_the_adding_thread(monkeypatch):
    """A callback added while a batch ends runs on the adding thread, not under the other's lock."""
    threads, adding = [], []
    result = ProduceResult(PLACE, call_later=adding.append)

    def add() -> None:
        result.call_when_done(0, lambda: threads.append(threading.current_thread()))

    class Moment:
        """A lock that lets another thread add a callback as soon as it is released."""

        def __enter__(self):
            monkeypatch.undo()

        def __exit__(self, *_):
            adding.append(threading.Thread(target=add))
            adding[0].start()
            adding[0].join(120)

    monkeypatch.setattr("spark_kafka_sink.producer.batch.produce_result._moment", Moment())
    result.complete(0)
    assert adding == threads


def test_callbacks_run_in_the_order_in_which_they_were_added(result):
    """Callbacks of a batch run in the order in which its records were sent."""
    calls = []
    for index in range(5):
        result.call_when_done(index, partial(calls.append, index))
    result.complete(0)
    assert [0, 1, 2, 3, 4] == calls


def test_the_record_is_done_inside_its_callback(result):
    """Inside a callback the record is done and has its offset."""
    calls = []
    result.call_when_done(0, lambda: calls.append((result.is_done(0), result.offset(0))))
    result.complete(40)
    assert [(True, 40)] == calls


def test_an_interrupt_is_raised_after_all_callbacks_have_run(result):
    """The interrupt is raised after all other callbacks have run."""
    calls = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    result.call_when_done(0, interrupted)
    result.call_when_done(1, lambda: calls.append(1))
    with pytest.raises(KeyboardInterrupt):
        result.complete(0)
    assert [1] == calls
    assert result.is_settled


def test_an_error_in_a_callback_is_logged_and_the_others_still_run(result, caplog):
    """An error in a callback is logged and does not affect other records."""
    calls = []
    result.call_when_done(0, lambda: 1 / 0)
    result.call_when_done(1, partial(calls.append, 1))
    with caplog.at_level(logging.ERROR):
        result.complete(0)
    assert [1] == calls
    assert result.has_ended
    assert ["a delivery callback raised an exception"] == [
        entry.message for entry in caplog.records
    ]
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


def test_waiting_for_all_includes_the_callbacks(result):
    """A flush waits for callbacks to return, while inside of them the record is already done."""
    calls = []

    def callback() -> None:
        calls.append((result.is_done(0), result.wait_for_all(1.0, clock=lambda: 1.0)))

    result.call_when_done(0, callback)
    result.complete(0)
    assert [(True, False)] == calls
    assert result.wait_for_all(1.0, clock=lambda: 1.0)


def test_a_base_exception_in_a_callback_leaves_no_thread_waiting(result):
    """A BaseException is raised, and waiting threads continue."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    result.call_when_done(0, interrupt)
    with pytest.raises(KeyboardInterrupt):
        result.complete(0)
    assert result.wait(0, timeout=0)


def test_callbacks_of_a_failed_batch_run(result):
    """Callbacks run for failures as well as for success."""
    calls = []
    result.call_when_done(0, lambda: calls.append(result.error_of(0)))
    result.fail(REFUSED)
    assert [REFUSED] == calls


# --- split batches


def test_a_split_batch_ends_only_through_its_parts(result):
    """The records of a split batch belong to its parts, one of which may fail alone."""
    first, second = result.divide([2, 1])
    first.complete(100)
    second.fail(REFUSED)
    assert not result.has_ended
    assert [True] * 3 == [result.is_done(index) for index in range(3)]
    places = [result.final(index) for index in range(3)]
    assert [(first, 0), (first, 1), (second, 0)] == places
    assert [None, None, REFUSED] == [part.error_of(index) for part, index in places]


def test_failing_a_split_batch_fails_its_unfinished_parts(result):
    """A part that was acknowledged keeps its offsets."""
    first, second = result.divide([1, 2])
    inner = second.divide([1, 1])
    first.complete(5)
    inner[0].complete(6)
    result.fail(REFUSED)
    assert [None, None, REFUSED] == [first.error, inner[0].error, inner[1].error]
    assert not result.has_ended


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_any_record_of_a_split_batch_is_found(counts, data):
    """Every record and range of records is found, however often the batch was split."""
    whole = ProduceResult(PLACE)
    leaves: list[tuple[ProduceResult, int]] = []

    def divide(result: ProduceResult, sizes: list[int]) -> None:
        for part, size in zip(result.divide(sizes), sizes, strict=True):
            if size > 1 and data.draw(st.booleans()):
                divide(part, [1, size - 1])
            else:
                leaves.extend((part, index) for index in range(size))

    divide(whole, counts)
    total = sum(counts)
    assert leaves == [whole.final(index) for index in range(total)]
    first = data.draw(st.integers(0, total - 1))
    count = data.draw(st.integers(1, total - first))
    found = whole.batches(first, count)
    assert leaves[first : first + count] == [(part, n) for part, indexes in found for n in indexes]
    assert len(found) == len({part for part, _ in found})


def test_waiting_for_all_continues_until_its_deadline(result, monkeypatch):
    """A wait that is woken early continues until its deadline, to the exact moment."""
    timeouts = []
    monkeypatch.setattr(ProduceResult, "_wait", lambda _, timeout: timeouts.append(timeout))
    times = iter([4.0, 9.5, 10.0])
    assert not result.wait_for_all(10.0, lambda: next(times))
    assert [6.0, 0.5] == timeouts
    times = iter([10.5])
    assert not result.wait_for_all(10.0, lambda: next(times))
    assert [6.0, 0.5] == timeouts


def test_a_batch_has_ended_before_its_callbacks_are_called():
    """During callbacks the outcome is available, but a flush waits until they have returned."""
    jobs = []
    result = ProduceResult(PLACE, jobs.append)
    assert (False, False) == (result.has_ended, result.is_settled)
    result.call_when_done(0, lambda: None)
    result.complete(7)
    assert (True, False) == (result.has_ended, result.is_settled)
    [job] = jobs
    job()
    assert (True, True) == (result.has_ended, result.is_settled)
    undisturbed = ProduceResult(PLACE, jobs.append)
    undisturbed.fail(REFUSED)
    assert (True, True) == (undisturbed.has_ended, undisturbed.is_settled)


def test_a_batch_whose_callbacks_are_running_has_ended():
    """A batch counts as ended if the network thread runs its callbacks before that is noted."""
    ended = []
    result = ProduceResult(PLACE, lambda job: job())
    result.call_when_done(0, lambda: ended.append(result.has_ended))
    result.complete(7)
    assert [True] == ended


@pytest.mark.parametrize(
    ("indexes", "refused", "message"),
    [
        (range(1, 2), {1: RefusedRecord("too old")}, "the broker rejected this record: too old."),
        (range(3), {1: RefusedRecord("too old")}, "the broker rejected a row: too old."),
        (range(3), {1: RefusedRecord("too old", row=0)}, "the broker rejected row 0: too old."),
        (range(3), {1: RefusedRecord("")}, "the broker rejected a row: no reason given."),
        (range(3), {2: RefusedRecord("b"), 1: RefusedRecord("a")}, "rejected a row: b."),
        (
            range(1, 3),
            {0: RefusedRecord("a"), 3: RefusedRecord("b")},
            "rows were not written because",
        ),
    ],
)
def test_the_error_names_the_first_rejected_row(result, indexes, refused, message):
    """The error names the first of these rows that was refused, by number if known."""
    result.fail(REFUSED, refused)
    assert message in str(result.error_of_rows(indexes))
    assert REFUSED is result.error_of_rows(indexes).__cause__
