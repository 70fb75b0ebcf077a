"""An unused connection is detected when its time is over, and a busy one is left alone."""

from __future__ import annotations

import asyncio

import pytest

from spark_kafka_sink.network.connection.broker_connection import LEAST_IDLE_CHECK, IdleCheck
from tests.support.network.scripted_transport import run_without_waiting


def _ends(max_idle, *, busy_for=0.0, used_for=0.0, cancel=False):
    """Return why, and after how many seconds, a connection is told to close."""
    ends = []

    async def run():
        loop = asyncio.get_running_loop()
        began = loop.time()
        check = IdleCheck(
            loop,
            max_idle,
            last_used=lambda: min(loop.time(), began + used_for),
            is_busy=lambda: loop.time() < began + busy_for,
            on_idle=lambda reason: ends.append((reason, round(loop.time() - began, 6))),
        )
        check.start()
        if cancel:
            check.cancel()
        await asyncio.sleep(10_000)

    run_without_waiting(run)
    return ends


@pytest.mark.parametrize(
    ("max_idle", "state", "seconds"),
    [
        (540.0, {}, 540.0),
        (540.0, {"used_for": 200.0}, 740.0),
        (540.0, {"busy_for": 600.0}, 1_080.0),
        (0.0, {}, 0.0),
        (0.0, {"busy_for": 0.001}, LEAST_IDLE_CHECK),
    ],
)
def test_an_idle_connection_is_closed_once(max_idle, state, seconds):
    """It ends one idle time after its last use, or at a later check if it is busy then."""
    reason = f"idle for {max_idle:g} s (connections.max.idle.ms)"
    assert [(reason, seconds)] == _ends(max_idle, **state)


@pytest.mark.parametrize("idle", [{"max_idle": None}, {"max_idle": 1.0, "cancel": True}])
def test_a_connection_without_a_limit_is_never_closed(idle):
    """This holds without a limit, and after the check was cancelled."""
    assert [] == _ends(**idle)
