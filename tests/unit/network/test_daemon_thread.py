"""Blocking calls on threads of their own."""

from __future__ import annotations

import asyncio
import sys

import pytest

from spark_kafka_sink.network.daemon_thread import in_daemon_thread


def _outcome_of(function):
    async def call():
        async with asyncio.timeout(30):
            return await in_daemon_thread("test", function)

    return asyncio.run(call())


def test_a_call_gives_its_result():
    """Whoever waits gets what the function returned."""
    assert 7 == _outcome_of(lambda: 7).get()


def test_what_a_call_raises_is_raised_where_it_is_wanted():
    """The future itself never raises."""
    outcome = _outcome_of(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outcome.get()


def test_a_call_that_exits_is_an_error():
    """SystemExit ends the thread and nothing else: nobody waits for ever, and no loop ends."""
    outcome = _outcome_of(lambda: sys.exit(3))
    assert "SystemExit" in str(outcome.error)
    assert isinstance(outcome.error.__cause__, SystemExit)
