"""The lane in which connections wait that could keep the event loop busy."""

from __future__ import annotations

import pytest

from spark_kafka_sink.devbroker.net.dispatcher import Lane


class Loop:
    """An event loop whose clock stands still between calls."""

    def __init__(self):
        self.now = 100.0
        self.computed = 0.0
        self.scheduled = []

    def time(self):
        """Return the current time."""
        return self.now

    def call_at(self, when, callback):
        """Schedule a call."""
        timer = Timer(self, when, callback)
        self.scheduled.append(timer)
        return timer

    def run_next(self):
        """Advance to the only timer that is scheduled, and run it; return its time."""
        (timer,) = self.scheduled
        self.scheduled.clear()
        self.now = max(self.now, timer.when)
        timer.callback()
        return timer.when


class Timer:
    """A scheduled call."""

    def __init__(self, loop, when, callback):
        self.loop = loop
        self.when = when
        self.callback = callback

    def cancel(self):
        """Remove the call."""
        self.loop.scheduled.remove(self)


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def lane(loop):
    return Lane(loop, lambda: loop.computed)


@pytest.fixture
def takes(loop, lane):
    """Return a function that enters a turn of some seconds, and the names of the turns taken."""
    taken = []

    def enter(name, seconds):
        def turn():
            taken.append(name)
            loop.now += seconds
            loop.computed += seconds

        lane.enter(turn)

    enter.taken = taken
    return enter


def test_the_lane_rests_for_as_long_as_a_request_took(loop, takes):
    """All connections of the lane together take at most half of the time."""
    takes("a", 0.1)
    takes("b", 0.2)
    takes("c", 0.1)

    assert [100.0, 100.2, 100.6] == [pytest.approx(loop.run_next()) for _ in range(3)]
    assert ["a", "b", "c"] == takes.taken
    assert [] == loop.scheduled


def test_a_connection_that_enters_again_is_behind_the_others(loop, lane, takes):
    """Each connection gets its turn, however many requests another one has sent."""

    def again():
        takes.taken.append("hostile")
        lane.enter(again)

    lane.enter(again)
    takes("a", 0.0)
    takes("b", 0.0)
    for _ in range(4):
        loop.run_next()

    assert ["hostile", "a", "b", "hostile"] == takes.taken


def test_the_rest_also_applies_to_a_connection_that_enters_after_it_began(loop, takes):
    """A client cannot avoid the rest by waiting for its response first."""
    takes("a", 0.5)
    loop.run_next()
    takes("a", 0.5)

    assert 101.0 == loop.run_next()


def test_only_computing_counts(loop, lane, takes):
    """The lane does not rest for the time in which the process was suspended."""

    def suspended():
        loop.now += 3600.0

    lane.enter(suspended)
    takes("a", 0.0)
    loop.run_next()

    assert 3700.0 == loop.run_next()


def test_a_turn_that_fails_does_not_block_the_lane(loop, lane, takes):
    """The next connection gets its turn after an error."""

    def fail():
        raise RuntimeError("a bug")

    lane.enter(fail)
    takes("a", 0.0)
    with pytest.raises(RuntimeError, match="a bug"):
        loop.run_next()
    loop.run_next()

    assert ["a"] == takes.taken


def test_a_closed_lane_has_no_turns(loop, lane, takes):
    """Nothing runs after the broker has stopped."""
    takes("a", 0.0)
    lane.close()

    assert [] == loop.scheduled
