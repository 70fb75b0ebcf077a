"""Timers run in order, and not before their time."""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.timers import Timers


def test_nothing_to_do_has_no_deadline():
    """A broker without timers may sleep."""
    timers = Timers()
    timers.run_due(10.0)

    assert None is timers.next_deadline


def test_due_actions_run_in_order():
    """Actions run by deadline, then by order of scheduling, and get their deadline."""
    timers, done = Timers(), []
    for name, deadline in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("d", 9.0)):
        timers.schedule(deadline, lambda now, name=name: done.append((name, now)))

    timers.run_due(3.5)

    assert [("a", 1.0), ("b", 1.0), ("c", 3.0)] == done
    assert 9.0 == timers.next_deadline


def test_a_cancelled_timer_does_nothing():
    """It does not count for the next deadline, and may be cancelled twice or too late."""
    timers, done = Timers(), []
    first = timers.schedule(1.0, done.append)
    second = timers.schedule(2.0, done.append)
    first.cancel()
    first.cancel()

    assert (False, 2.0) == (first.is_pending, timers.next_deadline)
    timers.run_due(5.0)
    second.cancel()
    assert [2.0] == done


def test_an_action_may_schedule_others():
    """An action scheduled for a time that has passed runs at once."""
    timers, done = Timers(), []
    timers.schedule(1.0, lambda now: timers.schedule(now, done.append))

    timers.run_due(2.0)

    assert [1.0] == done


def test_cancelled_timers_do_not_pile_up():
    """Timers that are rescheduled repeatedly do not accumulate."""
    timers = Timers()
    last = timers.schedule(1e9, lambda _: None)
    for deadline in range(10_000):
        last.cancel()
        last = timers.schedule(1e9 + deadline, lambda _: None)

    assert len(timers._heap) < 200
    assert last.deadline == timers.next_deadline


def fail(_):
    raise OSError(28, "No space left on device")


def test_an_action_that_fails_keeps_no_other_from_being_done(caplog):
    """The failure is logged, and all other due actions run, also those in the background."""
    timers, done = Timers(), []
    for schedule in (timers.schedule, timers.schedule_in_background):
        schedule(1.0, done.append)
        schedule(2.0, fail)
        schedule(3.0, done.append)
        schedule(9.0, done.append)

    timers.run_due(5.0)
    assert [1.0, 3.0, 1.0, 3.0] == done
    assert 2 == len(caplog.records)
    assert "No space left on device" in caplog.text
    timers.run_due(9.0)
    assert [9.0, 9.0] == done[4:]


def test_background_actions_do_not_wake_the_broker():
    """A background action runs with the next due timer, and may reschedule itself."""
    timers = Timers()
    done = []

    def again(now):
        done.append(now)
        timers.schedule_in_background(now + 5, again)

    timers.schedule_in_background(5.0, again)

    assert None is timers.next_deadline
    timers.run_due(4.0)
    assert [] == done
    timers.run_due(6.0)
    timers.run_due(7.0)
    assert [5.0] == done
    timers.clear()
    timers.run_due(100.0)
    assert [5.0] == done
